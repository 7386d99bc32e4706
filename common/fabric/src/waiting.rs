//! How long to wait, where target and initiator have the same reasons. Calls nothing; read by their
//! loops and their ends.

use core::time::Duration;

/// A loop that polls yields its core (`sched_yield`) only after so long without work.
///
/// Somebody who shall run on this very core (the peer, on a machine with few) must not wait for the
/// end of the polling. But a yield is a system call each turn, and what is being waited for mostly
/// comes within a round trip, which is shorter than this: until then the loop only looks. Measured in
/// `docs/performance-notes.md`.
pub const YIELD_AFTER: Duration = Duration::from_micros(10);

/// A signal so soon after another is the same one: `timeout` sends its own to the process, then to the
/// group that this is in.
pub const SAME_SIGNAL: Duration = Duration::from_millis(500);

/// At an orderly end, how long a peer that owes acknowledgements may be silent
/// ([`Fabric::silent_since`](crate::Fabric::silent_since)) until it is not waited for any more.
///
/// A peer that is there acknowledges within microseconds, whatever its disks and users do; the
/// transport's own retries go on for seconds, for connections that are to live. This is time for half
/// a dozen of them.
pub const PARTING_SILENCE: Duration = Duration::from_millis(750);

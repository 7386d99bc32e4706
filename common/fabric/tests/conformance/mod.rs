//! What every provider of [`Fabric`] must do, as tests over a [`Harness`]: `soft`, `sim`
//! and `ib` are held to it.
//!
//! [`conformance!`] makes a test of each function below for one harness. A test gets a fresh
//! [`Pair`]: a host that connects and a target that listens, driven in turns from one thread.

#![allow(unreachable_pub, reason = "every test binary has this module to itself")]
#![allow(clippy::cast_possible_truncation, reason = "numbers that the tests choose are small")]

mod connections;
mod failures;
pub mod pair;
mod shared;
mod transfers;

pub use connections::*;
pub use failures::*;
#[allow(unused_imports, reason = "not every provider's test has use for all of them")]
pub use pair::{Harness, Host, Pair, Target, params};
pub use shared::*;
pub use transfers::*;

/// Makes the tests for a harness: an expression that is evaluated anew for each.
///
/// With `optional` the expression is an `Option`: without what it needs, the tests are skipped.
macro_rules! conformance {
    ($harness:expr) => { conformance! { @all (Some($harness)) } };
    (optional $harness:expr) => { conformance! { @all ($harness) } };
    (@all $harness:tt) => {
        conformance! { @tests $harness =>
            connects_with_private_data
            rejects_with_private_data
            refuses_where_nobody_listens
            gives_up_on_silence
            disconnects_either_way
            flushes_on_disconnect
            destroys_in_flight
            destroys_before_connecting
            refuses_stale_handles
            limits_are_kept
            many_connections_share_a_fabric
            sleeps_until_something_comes
            listener_is_alone_and_closes
            sends_and_receives
            sends_from_two_pieces_into_two
            waits_for_a_late_receive
            writes
            write_then_send_keeps_order
            reads
            reads_beyond_the_negotiated_depth
            unsignalled_requests_complete_silently
            mixes_in_posting_order
            invalidates
            refuses_bad_remote_access
            refuses_access_across_domains
            refuses_bad_local_memory
            fails_a_receive_that_is_too_small
            a_region_that_is_gone_is_not_touched
            shared_receives_serve_whoever_sends
            an_empty_shared_queue_makes_peers_wait
            shared_receives_outlive_connections
            taken_receives_come_back
        }
    };
    (@tests $harness:tt => $($name:ident)*) => {
        $(#[test] fn $name() {
            if let Some(harness) = $harness {
                $crate::conformance::$name(&mut $crate::conformance::Pair::new(harness));
            }
        })*
    };
}
pub(crate) use conformance;

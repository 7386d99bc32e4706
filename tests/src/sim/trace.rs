//! What happened, in order: hashed always (equal runs have equal hashes), printed on request; and
//! how often each kind of thing happened.

use core::fmt::{self, Write as _};
use std::collections::BTreeMap;

use lariat_fabric::Timestamp;

/// How often what happened. Names are fixed texts, so that reports of many seeds can be added up.
pub type Coverage = BTreeMap<&'static str, u64>;

/// The record of a run.
#[derive(Debug)]
pub struct Trace {
    hash: u64,
    echo: bool,
    /// The time of what is noted from now on.
    pub now: Timestamp,
    /// What was counted.
    pub coverage: Coverage,
}

struct Hasher<'a>(&'a mut u64);

impl fmt::Write for Hasher<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            *self.0 = (*self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        Ok(())
    }
}

impl Trace {
    /// An empty record, which is printed as it grows if `echo`.
    #[must_use]
    pub fn new(echo: bool) -> Self {
        Self { hash: 0xcbf2_9ce4_8422_2325, echo, now: Timestamp::ZERO, coverage: Coverage::new() }
    }

    /// Notes an event.
    #[expect(clippy::print_stdout, reason = "the trace is what a replay is for")]
    pub fn note(&mut self, what: fmt::Arguments<'_>) {
        let nanos = self.now.as_nanos();
        let _ = write!(Hasher(&mut self.hash), "{nanos} {what}");
        if self.echo {
            println!("{:>6}.{:06} ms  {what}", nanos / 1_000_000, nanos % 1_000_000);
        }
    }

    /// Counts something.
    pub fn count(&mut self, what: &'static str) {
        self.add(what, 1);
    }

    /// Counts something that happened several times.
    pub fn add(&mut self, what: &'static str, times: u64) {
        if times > 0 {
            *self.coverage.entry(what).or_default() += times;
        }
    }

    /// A fingerprint of all that was noted.
    #[must_use]
    pub const fn hash(&self) -> u64 {
        self.hash
    }
}

/// Notes an event in a [`Trace`].
macro_rules! note {
    ($trace:expr, $($what:tt)*) => {
        $trace.note(format_args!($($what)*))
    };
}
pub(crate) use note;

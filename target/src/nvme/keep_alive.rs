//! The keep-alive timer. Called by `controller`.

use std::time::Duration;

use lariat_fabric::Timestamp;

/// Granularity of the timer in units of 100 ms (KAS).
pub(super) const KEEP_ALIVE_UNITS: u16 = 1;

/// The keep-alive timer (NVMe Base 2.1, 3.9). Any command restarts it, on whatever queue
/// (traffic-based keep alive): when it runs out, the commands since it was started are counted.
#[derive(Debug)]
pub(super) struct KeepAlive {
    /// `None`: no timer.
    timeout: Option<Duration>,
    deadline: Timestamp,
    /// Commands of all queues when it was started.
    commands: u64,
}

impl KeepAlive {
    pub(super) fn new(now: Timestamp, timeout_ms: u32, commands: u64) -> Self {
        let timeout = (timeout_ms > 0).then(|| Duration::from_millis(u64::from(timeout_ms)));
        let mut timer = Self { timeout, deadline: Timestamp::NEVER, commands };
        timer.restart(now, commands);
        timer
    }

    pub(super) fn restart(&mut self, now: Timestamp, commands: u64) {
        self.deadline = self.timeout.map_or(Timestamp::NEVER, |timeout| now + timeout);
        self.commands = commands;
    }

    /// When to look again; [`Timestamp::NEVER`] without a timer.
    pub(super) const fn deadline(&self) -> Timestamp {
        self.deadline
    }

    /// Whether the host was silent for a whole timeout. `commands` is asked for only when the
    /// time is up.
    pub(super) fn expired(&mut self, now: Timestamp, commands: impl FnOnce() -> u64) -> bool {
        if now < self.deadline {
            return false;
        }
        let commands = commands();
        if commands == self.commands {
            return true;
        }
        self.restart(now, commands);
        false
    }
}

//! How much may be on its way: a byte window with slow start, additive increase, multiplicative
//! decrease on loss, and a gentler, DCQCN-like decrease on congestion notifications.
//!
//! Calls nothing; used by the requester. IBTA A17.9 only says that a notification means
//! "slow down"; how is ours to choose.

use core::time::Duration;

use crate::time::Timestamp;

/// Weight of a new notification in the congestion estimate: 1/16.
const GAIN_SHIFT: u32 = 4;
/// The estimate's 1.0.
const ONE: u64 = 1 << 10;
/// Between two reductions by notification, and one step of the estimate's decay.
const CNP_INTERVAL: Duration = Duration::from_micros(55);

/// The congestion window.
#[derive(Debug)]
pub(super) struct Window {
    bytes: u64,
    threshold: u64,
    floor: u64,
    ceiling: u64,
    mtu: u64,
    /// Fraction of marked traffic, in units of 1/[`ONE`].
    congestion: u64,
    last_cnp: Option<Timestamp>,
    /// Window and threshold before the last timeout.
    before_timeout: Option<(u64, u64)>,
}

impl Window {
    pub(super) fn new(mtu: u32, max_inflight_bytes: u32) -> Self {
        let mtu = u64::from(mtu);
        let ceiling = u64::from(max_inflight_bytes).max(mtu * 2);
        Self {
            bytes: (mtu * 16).max(128 << 10).min(ceiling),
            threshold: u64::MAX,
            floor: (mtu * 2).min(ceiling),
            ceiling,
            mtu,
            congestion: ONE,
            last_cnp: None,
            before_timeout: None,
        }
    }

    /// Bytes that may be on their way.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// `acked` bytes arrived while the window was what held us back.
    pub(super) fn grow(&mut self, acked: u64) {
        let step = if self.bytes < self.threshold {
            acked
        } else {
            // One packet per window.
            (self.mtu * acked / self.bytes.max(1)).max(1)
        };
        self.bytes = (self.bytes + step).min(self.ceiling);
    }

    /// A packet was lost on the way, others came through.
    pub(super) fn on_loss(&mut self) {
        self.before_timeout = None;
        self.threshold = (self.bytes / 2).max(self.floor);
        self.bytes = self.threshold;
    }

    /// Nothing came through: start again from the bottom.
    pub(super) fn on_timeout(&mut self) {
        self.before_timeout.get_or_insert((self.bytes, self.threshold));
        self.threshold = (self.bytes / 2).max(self.floor);
        self.bytes = self.floor;
    }

    /// What the timeouts took for lost had arrived: the peer, or this end, had only been asleep.
    pub(super) fn undo_timeout(&mut self) {
        if let Some((bytes, threshold)) = self.before_timeout.take() {
            self.bytes = self.bytes.max(bytes);
            self.threshold = threshold;
        }
    }

    /// What was sent again was needed.
    pub(super) fn confirm_timeout(&mut self) {
        self.before_timeout = None;
    }

    /// A congestion notification.
    pub(super) fn on_cnp(&mut self, now: Timestamp) {
        if let Some(last) = self.last_cnp {
            let quiet = now.since(last);
            if quiet < CNP_INTERVAL {
                return;
            }
            let steps = quiet.as_nanos() / CNP_INTERVAL.as_nanos() - 1;
            for _ in 0..steps.min(64) {
                self.congestion -= self.congestion >> GAIN_SHIFT;
            }
        }
        self.last_cnp = Some(now);
        self.congestion += (ONE - self.congestion) >> GAIN_SHIFT;
        let cut = self.bytes * self.congestion / (2 * ONE);
        self.bytes = (self.bytes - cut).max(self.floor);
        self.threshold = self.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shrinks_and_grows_between_its_bounds() {
        let mut window = Window::new(1024, 1 << 20);
        assert_eq!(window.bytes(), 128 << 10);
        window.grow(128 << 10);
        assert_eq!(window.bytes(), 256 << 10);
        window.grow(u64::from(u32::MAX));
        assert_eq!(window.bytes(), 1 << 20);
        window.on_loss();
        assert_eq!(window.bytes(), 512 << 10);
        // Past the threshold: a packet per window, not a window per window.
        window.grow(512 << 10);
        assert_eq!(window.bytes(), (512 << 10) + 1024);
        for _ in 0..40 {
            window.on_timeout();
            window.on_loss();
        }
        assert_eq!(window.bytes(), 2048);
    }

    #[test]
    fn needless_timeouts_are_undone_unless_a_loss_came_between() {
        let mut window = Window::new(1024, 1 << 20);
        window.on_timeout();
        window.on_timeout();
        assert_eq!(window.bytes(), 2048);
        window.undo_timeout();
        assert_eq!(window.bytes(), 128 << 10);
        window.undo_timeout();
        window.on_timeout();
        window.on_loss();
        window.undo_timeout();
        assert_eq!(window.bytes(), 2048);
        window.on_timeout();
        window.confirm_timeout();
        window.undo_timeout();
        assert_eq!(window.bytes(), 2048);
    }

    #[test]
    fn notifications_within_the_interval_count_once() {
        let mut window = Window::new(4096, 1 << 20);
        let before = window.bytes();
        window.on_cnp(Timestamp::from_nanos(1_000_000));
        let after = window.bytes();
        assert!(after < before && after >= before / 2);
        window.on_cnp(Timestamp::from_nanos(1_010_000));
        assert_eq!(window.bytes(), after);
        // After a long silence the path counts as hardly congested: a small cut.
        window.on_cnp(Timestamp::from_nanos(1_000_000_000));
        assert!(window.bytes() > after * 9 / 10);
    }
}

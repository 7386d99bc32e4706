//! The retransmission timeout: measured round trips and exponential backoff (after RFC 6298).
//!
//! Calls nothing; used by the requester. The negotiated timeout (IBTA 9.7.6.1.3) is for giving up;
//! it is far too long for sending again.

use core::time::Duration;

/// First guess, in multiples of the floor, while nothing was measured.
const FIRST_GUESS: u32 = 16;

/// Round-trip estimate.
#[derive(Debug)]
pub(super) struct RoundTrip {
    floor: Duration,
    cap: Duration,
    smoothed: Option<Duration>,
    variation: Duration,
    /// The shortest ever measured.
    shortest: Duration,
    backoff: u32,
}

impl RoundTrip {
    pub(super) fn new(floor: Duration, cap: Duration) -> Self {
        let floor = floor.max(Duration::from_nanos(1));
        Self {
            floor,
            cap: cap.max(floor),
            smoothed: None,
            variation: Duration::ZERO,
            shortest: Duration::MAX,
            backoff: 0,
        }
    }

    /// A packet that was sent once was answered after `sample`.
    pub(super) fn sample(&mut self, sample: Duration) {
        self.shortest = self.shortest.min(sample);
        self.smoothed = Some(match self.smoothed {
            None => {
                self.variation = sample / 2;
                sample
            }
            Some(smoothed) => {
                self.variation = (self.variation * 3 + smoothed.abs_diff(sample)) / 4;
                (smoothed * 7 + sample) / 8
            }
        });
    }

    /// Something new was acknowledged.
    pub(super) fn progress(&mut self) {
        self.backoff = 0;
    }

    /// The timeout passed.
    pub(super) fn back_off(&mut self) {
        self.backoff = self.backoff.saturating_add(1);
    }

    /// How long to wait for an answer.
    pub(super) fn timeout(&self) -> Duration {
        let base = match self.smoothed {
            None => self.floor * FIRST_GUESS,
            Some(smoothed) => (smoothed + self.variation * 4).max(self.floor),
        };
        base.saturating_mul(1 << self.backoff.min(20)).min(self.cap)
    }

    /// Within this no answer comes, or hardly any: the shortest round trip, but not less than half
    /// the usual one, since paths change.
    pub(super) fn no_answer_within(&self) -> Duration {
        self.smoothed.map_or(Duration::ZERO, |smoothed| self.shortest.max(smoothed / 2))
    }

    /// The shortest round trip so far.
    pub(super) fn shortest(&self) -> Option<Duration> {
        self.smoothed.map(|_| self.shortest)
    }

    /// A round trip, or the timeout where none was measured.
    pub(super) fn estimate(&self) -> Duration {
        self.smoothed.unwrap_or_else(|| self.timeout())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapts_between_floor_and_cap() {
        let ms = Duration::from_millis;
        let mut rtt = RoundTrip::new(ms(1), ms(100));
        assert_eq!((rtt.timeout(), rtt.shortest()), (ms(16), None));
        for _ in 0..50 {
            rtt.sample(Duration::from_micros(20));
        }
        assert_eq!(rtt.timeout(), ms(1));
        rtt.back_off();
        rtt.back_off();
        assert_eq!(rtt.timeout(), ms(4));
        for _ in 0..100 {
            rtt.back_off();
        }
        assert_eq!(rtt.timeout(), ms(100));
        rtt.progress();
        for _ in 0..50 {
            rtt.sample(ms(30));
        }
        assert_eq!(rtt.shortest(), Some(Duration::from_micros(20)));
        assert!(rtt.timeout() >= ms(30) && rtt.timeout() < ms(60), "{:?}", rtt.timeout());
    }
}

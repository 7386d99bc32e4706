//! Log lines that peers or disks can cause at any rate: one in a while is written, the others are
//! counted. Calls nothing; the reactor's files ask it before they write.

use core::time::Duration;

use lariat_fabric::Timestamp;

/// The time between two lines.
const INTERVAL: Duration = Duration::from_secs(1);

/// One kind of line.
#[derive(Debug, Default)]
pub(super) struct Sparse {
    next: Timestamp,
    unsaid: u64,
}

impl Sparse {
    /// Whether a line may be written now, and how many were not since the last one.
    pub(super) fn due(&mut self, now: Timestamp) -> Option<u64> {
        if now < self.next {
            self.unsaid += 1;
            return None;
        }
        self.next = now + INTERVAL;
        Some(core::mem::take(&mut self.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_in_a_while() {
        let mut sparse = Sparse::default();
        let start = Timestamp::from_nanos(5);
        assert_eq!(sparse.due(start), Some(0));
        assert_eq!(sparse.due(start), None);
        assert_eq!(sparse.due(start + INTERVAL / 2), None);
        assert_eq!(sparse.due(start + INTERVAL), Some(2));
        assert_eq!(sparse.due(start + INTERVAL * 3), Some(0));
    }
}

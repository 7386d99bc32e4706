//! How long the waiting owner of a queue looks for answers before it sleeps. Calls nothing; called
//! by `io_queue`.

use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use std::sync::OnceLock;

/// A target that takes longer is not worth to stay awake for, unless the user says so.
const LONGEST: Duration = Duration::from_micros(500);

/// What a queue learned of its target.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    learned: Duration,
}

impl Patience {
    /// How long to look: as far as waits took lately. `least`: what the user wants in any case.
    pub(crate) fn limit(&self, least: Duration) -> Duration {
        self.learned.max(least)
    }

    /// A wait has ended after that time. What is usually answered soon is looked for: to sleep would
    /// cost a wake-up each time.
    pub(crate) fn learn(&mut self, least: Duration, waited: Duration) {
        self.learned = if least.is_zero() || waited > LONGEST {
            Duration::ZERO
        } else {
            // A batch is one long wait and many short ones.
            (waited * 2).max(self.learned - self.learned / 32).min(LONGEST)
        };
    }
}

/// An owner of this process that looks for answers instead of sleeping. More of them than there are
/// cores would only keep each other, and maybe the target, from running.
#[derive(Debug)]
pub(crate) struct Looking {
    before: usize,
}

static LOOKING: AtomicUsize = AtomicUsize::new(0);

impl Looking {
    pub(crate) fn start() -> Self {
        Self { before: LOOKING.fetch_add(1, Ordering::Relaxed) }
    }

    /// Whether every core had one already.
    pub(crate) fn is_crowded(&self) -> bool {
        static CORES: OnceLock<usize> = OnceLock::new();
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        self.before >= *CORES.get_or_init(cores)
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        LOOKING.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    #[test]
    fn answers_are_looked_for_as_long_as_they_usually_take() {
        let mut patience = Patience::default();
        assert_eq!(patience.limit(us(100)), us(100));
        patience.learn(us(100), us(160));
        assert_eq!(patience.limit(us(100)), us(320));
        patience.learn(us(100), us(3));
        assert_eq!(patience.limit(us(100)), us(310), "one short wait does not undo that");
        for _ in 0..60 {
            patience.learn(us(100), us(3));
        }
        assert_eq!(patience.limit(us(100)), us(100));
        patience.learn(us(100), us(400));
        assert_eq!(patience.limit(us(100)), us(500));
        patience.learn(us(100), us(501));
        assert_eq!(patience.limit(us(100)), us(100), "a slow target is slept through");
        patience.learn(Duration::ZERO, us(120));
        assert_eq!(patience.limit(Duration::ZERO), Duration::ZERO, "who never looks");
    }

    #[test]
    fn no_more_look_than_there_are_cores() {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        // Other tests of this process may wait as well.
        let all: Vec<Looking> = (0..=cores).map(|_| Looking::start()).collect();
        assert!(all.last().is_some_and(Looking::is_crowded));
        drop(all);
        assert!(LOOKING.load(Ordering::Relaxed) < usize::MAX / 2);
    }
}

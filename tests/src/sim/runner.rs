//! Many seeds on all cores: a thread runs one world at a time, nothing is shared but the counter of
//! seeds. Called by the `sim` binary and the tests.

use core::time::Duration;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::Defect;
use super::trace::Coverage;
use super::world::{Report, run};

/// How one seed ended.
pub type Outcome = Result<Report, String>;

/// What many seeds gave.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Seeds that were run.
    pub seeds: u64,
    /// Requests that ended well.
    pub requests: u64,
    /// Sectors that were checked.
    pub sectors: u64,
    /// Virtual time.
    pub time: Duration,
    /// How often what happened.
    pub coverage: Coverage,
    /// The lowest seed that failed, and how.
    pub failure: Option<(u64, String)>,
}

impl Summary {
    fn add(&mut self, seed: u64, outcome: Outcome) {
        self.seeds += 1;
        match outcome {
            Ok(report) => {
                self.requests += report.requests;
                self.sectors += report.sectors;
                self.time += report.time;
                for (what, times) in report.coverage {
                    *self.coverage.entry(what).or_default() += times;
                }
            }
            Err(what) => {
                if self.failure.as_ref().is_none_or(|(first, _)| seed < *first) {
                    self.failure = Some((seed, what));
                }
            }
        }
    }
}

/// Runs one seed; a panic is a failure like any other.
pub fn run_seed(seed: u64, defect: Option<Defect>, echo: bool) -> Outcome {
    match catch_unwind(AssertUnwindSafe(|| run(seed, defect, echo))) {
        Ok(Ok(report)) => Ok(report),
        Ok(Err(violation)) => Err(violation.to_string()),
        Err(panic) => {
            let words = panic.downcast_ref::<String>().cloned();
            let words = words.or_else(|| panic.downcast_ref::<&str>().map(|&s| s.to_owned()));
            Err(format!("seed {seed}: panic: {}", words.unwrap_or_default()))
        }
    }
}

/// Runs `count` seeds from `from` on, on so many threads, until one fails. `progress` is called
/// after each with the number of seeds done.
pub fn run_seeds(from: u64, count: u64, threads: usize, progress: impl Fn(u64) + Sync) -> Summary {
    let next = AtomicU64::new(0);
    let done = AtomicU64::new(0);
    let failed = AtomicBool::new(false);
    let summary = Mutex::new(Summary::default());
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                while !failed.load(Ordering::Relaxed) {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count {
                        return;
                    }
                    let seed = from + index;
                    let outcome = run_seed(seed, None, false);
                    failed.fetch_or(outcome.is_err(), Ordering::Relaxed);
                    summary.lock().unwrap_or_else(PoisonError::into_inner).add(seed, outcome);
                    progress(done.fetch_add(1, Ordering::Relaxed) + 1);
                }
            });
        }
    });
    summary.into_inner().unwrap_or_else(PoisonError::into_inner)
}

//! How many requests go to the disks at once, and how many completions come back at once. Sans-IO;
//! called by `uring`.
//!
//! Virtual disks tend to answer in batches (one interrupt when they have run out of work), and to
//! tell them of work when they have none leaves the virtual machine (20 us and more). So what counts
//! is how soon after an answer the disk has enough to do again: a first few requests quickly, but
//! not one alone, and the next ones while it works on those.

use core::time::Duration;

use lariat_fabric::Timestamp;

/// Requests that keep a disk busy while the next ones are taken in: these are started at once.
const HANDFUL: usize = 4;

/// Less than that waits for company for so long, where much was asked for before.
const COMPANY_WAIT: Duration = Duration::from_micros(12);

/// Requests that are with the disks together where they are asked for much at a time.
const MANY: usize = 16;

/// Completions taken in one poll, at most. Whoever answers a whole batch before it looks for new
/// requests lets the disk stand idle meanwhile.
const AT_ONCE: usize = 8;

/// The same for the first poll that finds any: the sooner its answers leave, the sooner the hosts'
/// next requests are here.
const AT_FIRST: usize = 4;

/// Looks for more completions after one that found none, while much is with the disks: those of a
/// batch come within a microsecond of one another.
const LOOKS: u32 = 40;

/// What was seen of late.
#[derive(Debug, Default)]
pub(super) struct Batching {
    /// The most requests that were with the disks at a time, since they had none.
    crowd: usize,
    /// The same of the time before.
    crowd_before: usize,
    held_since: Option<Timestamp>,
    /// The last poll took completions.
    in_batch: bool,
}

impl Batching {
    /// A request is added to `others` that are not done.
    pub(super) fn accepted(&mut self, others: usize) {
        if others == 0 {
            self.crowd_before = core::mem::take(&mut self.crowd);
        }
        self.crowd = self.crowd.max(others + 1);
    }

    /// Whether so many queued operations are to be started without waiting for the poll's end.
    pub(super) fn is_handful(queued: usize) -> bool {
        queued >= HANDFUL
    }

    /// Whether the start of what is queued (all but nothing of the `unfinished`) waits for more.
    pub(super) fn holds(&mut self, now: Timestamp, queued: usize, unfinished: usize) -> bool {
        let disks_idle = queued > 0 && queued >= unfinished;
        if !disks_idle || Self::is_handful(queued) || self.crowd_before < MANY {
            self.held_since = None;
            return false;
        }
        now.since(*self.held_since.get_or_insert(now)) < COMPANY_WAIT
    }

    /// Completions that this poll may take.
    pub(super) fn at_once(&self) -> usize {
        if self.in_batch { AT_ONCE } else { AT_FIRST }
    }

    /// Whether it is worth to look again: the poll has `taken` so many, `unfinished` are left, and so
    /// many looks since the last completion found nothing.
    pub(super) fn looks_on(&self, taken: usize, unfinished: usize, vain: u32) -> bool {
        (1..self.at_once()).contains(&taken) && unfinished >= AT_ONCE && vain < LOOKS
    }

    /// A poll has ended.
    pub(super) fn polled(&mut self, taken: usize) {
        self.in_batch = taken > 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_micros(micros)
    }

    /// After a time in which so many requests were with the disks at once, and then none.
    fn after(crowd: usize) -> Batching {
        let mut batching = Batching::default();
        (0..crowd).for_each(|others| batching.accepted(others));
        batching.accepted(0);
        batching
    }

    #[test]
    fn the_first_of_many_waits_for_company_but_not_long() {
        let mut batching = after(32);
        assert!(batching.holds(at(100), 1, 1));
        assert!(batching.holds(at(111), 3, 3));
        assert!(!batching.holds(at(112), 3, 3), "long enough");
        let mut batching = after(32);
        assert!(batching.holds(at(100), 1, 1));
        assert!(!batching.holds(at(101), 4, 4), "a handful");
        // The wait of the next one starts anew.
        batching.accepted(0);
        (1..32).for_each(|others| batching.accepted(others));
        batching.accepted(0);
        assert!(batching.holds(at(200), 1, 1));
    }

    #[test]
    fn who_asks_for_little_does_not_wait() {
        for crowd in [1, 15] {
            assert!(!after(crowd).holds(at(100), 1, 1), "{crowd}");
        }
        // The habit of a crowd is forgotten with the first who comes alone.
        let mut batching = after(32);
        batching.accepted(0);
        assert!(!batching.holds(at(100), 1, 1));
    }

    #[test]
    fn a_working_disk_is_told_at_once() {
        let mut batching = after(32);
        assert!(!batching.holds(at(100), 1, 2));
        assert!(!batching.holds(at(100), 0, 0));
    }

    #[test]
    fn a_batch_starts_with_few_and_goes_on_with_more() {
        let mut batching = Batching::default();
        assert_eq!(batching.at_once(), 4);
        batching.polled(4);
        assert_eq!(batching.at_once(), 8);
        batching.polled(0);
        assert_eq!(batching.at_once(), 4);
    }

    #[test]
    fn only_the_rest_of_a_batch_is_looked_for() {
        let batching = Batching::default();
        assert!(batching.looks_on(1, 31, 0));
        assert!(!batching.looks_on(0, 32, 0), "no batch has come");
        assert!(!batching.looks_on(4, 28, 0), "enough");
        assert!(!batching.looks_on(1, 7, 0), "few are left");
        assert!(!batching.looks_on(1, 31, LOOKS), "it does not come");
    }
}

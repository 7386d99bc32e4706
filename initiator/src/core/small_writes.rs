//! Whether the data of small writes goes in their capsules or is left for the controller to fetch.
//!
//! In the capsule it is there a round trip earlier; where a provider sends runs of equal packets
//! cheaply (`Fabric::fetching_pays_from`), many of them are faster fetched. Owned and called by the
//! queue.

/// So few are never worth to be fetched, and the fabric need not be asked.
const FEW: u32 = 8;
/// Of the most writes that were under way, this part is forgotten with each post.
const FORGOTTEN_PART: u32 = 8;

/// The small writes of a queue: those whose data would fit their capsules.
#[derive(Debug, Default)]
pub(super) struct SmallWrites {
    under_way: u32,
    /// The most under way lately, whose memory fades.
    usual: u32,
    fetched: bool,
}

impl SmallWrites {
    /// Whether the next one's data is to be fetched.
    pub(super) const fn are_fetched(&self) -> bool {
        self.fetched
    }

    /// Whether there are any.
    pub(super) const fn any(&self) -> bool {
        self.under_way > 0
    }

    /// One was submitted.
    pub(super) const fn began(&mut self) {
        self.under_way = self.under_way.saturating_add(1);
    }

    /// One ended.
    pub(super) const fn ended(&mut self) {
        self.under_way = self.under_way.saturating_sub(1);
    }

    /// Those that began are handed to the fabric, which says from how many on fetching pays.
    pub(super) fn posted(&mut self, pays_from: impl FnOnce() -> Option<u32>) {
        let faded = self.usual - self.usual.div_ceil(FORGOTTEN_PART);
        self.usual = self.under_way.max(faded);
        self.fetched = self.usual > FEW && pays_from().is_some_and(|least| self.usual >= least);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_at_a_time_are_fetched_and_few_are_not() {
        let mut writes = SmallWrites::default();
        for _ in 0..15 {
            writes.began();
        }
        writes.posted(|| Some(16));
        assert!(!writes.are_fetched());
        writes.began();
        writes.posted(|| Some(16));
        assert!(writes.are_fetched());
        // Half of them end and begin anew, again and again: still many.
        for _ in 0..50 {
            for _ in 0..8 {
                writes.ended();
            }
            for _ in 0..8 {
                writes.began();
            }
            writes.posted(|| Some(16));
            assert!(writes.are_fetched());
        }
        // From now on one at a time.
        for _ in 0..16 {
            writes.ended();
        }
        for _ in 0..20 {
            writes.began();
            writes.posted(|| Some(16));
            writes.ended();
        }
        assert!(!writes.are_fetched());
    }

    #[test]
    fn a_provider_to_which_it_never_pays_gets_them_in_capsules() {
        let mut writes = SmallWrites::default();
        for _ in 0..1000 {
            writes.began();
        }
        writes.posted(|| None);
        assert!(!writes.are_fetched());
    }
}

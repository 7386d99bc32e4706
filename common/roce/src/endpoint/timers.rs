//! Deadlines of connections: a binary heap that knows where each connection stands in it.
//!
//! One deadline per slot; setting, moving and removing it is O(log n), and nothing is allocated
//! once the heap has seen its largest size. Used by the endpoint only.

use crate::time::Timestamp;

const ABSENT: u32 = u32::MAX;

/// Deadlines by slot number.
#[derive(Debug, Default)]
pub(super) struct Timers {
    heap: Vec<(Timestamp, u32)>,
    /// Where a slot stands in `heap`, or [`ABSENT`].
    place: Vec<u32>,
}

impl Timers {
    /// The earliest deadline.
    pub(super) fn next(&self) -> Timestamp {
        self.heap.first().map_or(Timestamp::NEVER, |(at, _)| *at)
    }

    /// The slot whose deadline is the earliest, if it is not later than `now`.
    pub(super) fn due(&self, now: Timestamp) -> Option<u32> {
        self.heap.first().filter(|(at, _)| *at <= now).map(|(_, slot)| *slot)
    }

    /// Sets or moves a deadline; [`Timestamp::NEVER`] removes it.
    pub(super) fn set(&mut self, slot: u32, at: Timestamp) {
        let key = slot as usize;
        if key >= self.place.len() {
            self.place.resize(key + 1, ABSENT);
        }
        let place = self.place.get(key).copied().unwrap_or(ABSENT) as usize;
        match self.heap.get_mut(place) {
            Some((old, _)) if *old == at => {}
            Some(entry) if at != Timestamp::NEVER => {
                entry.0 = at;
                let place = self.up(place);
                self.down(place);
            }
            Some(_) => self.remove_at(place),
            None if at == Timestamp::NEVER => {}
            None => {
                self.heap.push((at, slot));
                let last = self.heap.len() - 1;
                self.settle(last);
                self.up(last);
            }
        }
    }

    fn remove_at(&mut self, place: usize) {
        let (_, slot) = self.heap.swap_remove(place);
        if let Some(entry) = self.place.get_mut(slot as usize) {
            *entry = ABSENT;
        }
        if place < self.heap.len() {
            self.settle(place);
            let place = self.up(place);
            self.down(place);
        }
    }

    /// Notes where the entry at `place` stands.
    fn settle(&mut self, place: usize) {
        if let Some((_, slot)) = self.heap.get(place)
            && let Some(entry) = self.place.get_mut(*slot as usize)
        {
            *entry = u32::try_from(place).unwrap_or(ABSENT);
        }
    }

    fn at(&self, place: usize) -> Option<Timestamp> {
        self.heap.get(place).map(|(at, _)| *at)
    }

    fn swap(&mut self, one: usize, other: usize) {
        self.heap.swap(one, other);
        self.settle(one);
        self.settle(other);
    }

    fn up(&mut self, mut place: usize) -> usize {
        while place > 0 {
            let parent = (place - 1) / 2;
            if self.at(parent) <= self.at(place) {
                break;
            }
            self.swap(parent, place);
            place = parent;
        }
        place
    }

    fn down(&mut self, mut place: usize) {
        loop {
            let (left, right) = (2 * place + 1, 2 * place + 2);
            let Some(first) = self.at(left) else { break };
            let child = if self.at(right).is_some_and(|at| at < first) { right } else { left };
            if self.at(place) <= self.at(child) {
                break;
            }
            self.swap(child, place);
            place = child;
        }
    }

    /// Deadlines there are.
    pub(super) fn len(&self) -> usize {
        self.heap.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a plain list: the same earliest deadline after each step.
        #[test]
        fn agrees_with_a_list(steps in proptest::collection::vec((0_u32..20, 0_u64..12), 1..200)) {
            let mut timers = Timers::default();
            let mut list = [Timestamp::NEVER; 20];
            for (slot, at) in steps {
                let at = if at == 0 { Timestamp::NEVER } else { Timestamp::from_nanos(at) };
                timers.set(slot, at);
                list[slot as usize] = at;
                let earliest = list.iter().min().copied().unwrap();
                prop_assert_eq!(timers.next(), earliest);
                prop_assert_eq!(timers.len(), list.iter().filter(|at| **at != Timestamp::NEVER).count());
                if let Some(due) = timers.due(Timestamp::from_nanos(5)) {
                    prop_assert_eq!(list[due as usize], earliest);
                    prop_assert!(earliest <= Timestamp::from_nanos(5));
                } else {
                    prop_assert!(earliest > Timestamp::from_nanos(5));
                }
            }
        }
    }
}

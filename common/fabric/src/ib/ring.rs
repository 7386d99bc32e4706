//! The requests of a queue that are outstanding. Called by `qp`.
//!
//! Completions of a queue come in its order; but Soft-iWARP completes what was posted behind an RDMA
//! READ before it.

use std::collections::VecDeque;

use lariat_roce::verbs::{PostErrorKind, WcOpcode};

/// Places of a queue where some requests are over before others.
const MAX_OVERTAKEN: u32 = 1 << 15;

/// What the user said about a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) wr_id: u64,
    pub(super) opcode: WcOpcode,
    pub(super) signaled: bool,
    pub(super) length: u32,
}

/// An entry, and how far it is.
#[derive(Clone, Copy, Debug)]
struct Posted {
    entry: Entry,
    /// The device was asked to say when it is over.
    announced: bool,
    over: bool,
}

/// Requests of a queue that are outstanding, in order.
#[derive(Debug)]
pub(super) struct Ring {
    entries: VecDeque<Posted>,
    /// Of `entries`, those that are not over, and how many these may be.
    outstanding: usize,
    depth: usize,
    /// How many `entries` there may be.
    most: usize,
    /// Number of the first.
    head: u16,
}

impl Ring {
    /// For so many requests at a time. `overtaken`: some may be over before others that were posted
    /// earlier; their places are free only with those of the others.
    pub(super) fn new(depth: u32, overtaken: bool) -> Self {
        let most = if overtaken { MAX_OVERTAKEN } else { depth };
        let (depth, most) = (depth as usize, most as usize);
        Self { entries: VecDeque::with_capacity(depth), outstanding: 0, depth, most, head: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Takes back what was pushed last, all but so many.
    pub(super) fn truncate(&mut self, count: usize) {
        self.outstanding -= self.entries.len().saturating_sub(count).min(self.outstanding);
        self.entries.truncate(count);
    }

    /// Adds one and says its number.
    pub(super) fn push(&mut self, entry: Entry, announced: bool) -> Result<u16, PostErrorKind> {
        if self.outstanding >= self.depth || self.entries.len() >= self.most {
            return Err(PostErrorKind::QueueFull);
        }
        // `most` is below 2^16.
        let place = u16::try_from(self.entries.len()).map_err(|_| PostErrorKind::QueueFull)?;
        self.entries.push_back(Posted { entry, announced, over: false });
        self.outstanding += 1;
        Ok(self.head.wrapping_add(place))
    }

    /// The one of this number is over, and with it those before it that are not announced. `None`:
    /// it is not there.
    pub(super) fn retire(&mut self, sequence: u16) -> Option<Entry> {
        let place = usize::from(sequence.wrapping_sub(self.head));
        let posted = self.entries.get_mut(place).filter(|posted| !posted.over)?;
        posted.over = true;
        let entry = posted.entry;
        self.outstanding -= 1;
        let before = self.entries.iter_mut().take(place);
        for earlier in before.filter(|earlier| !earlier.announced && !earlier.over) {
            earlier.over = true;
            self.outstanding -= 1;
        }
        while self.entries.front().is_some_and(|first| first.over) {
            self.entries.pop_front();
            self.head = self.head.wrapping_add(1);
        }
        Some(entry)
    }

    /// Forgets all that is outstanding, in order.
    pub(super) fn abandon(&mut self, mut each: impl FnMut(Entry)) {
        self.outstanding = 0;
        for posted in self.entries.drain(..) {
            self.head = self.head.wrapping_add(1);
            if !posted.over {
                each(posted.entry);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(wr_id: u64) -> Entry {
        Entry { wr_id, opcode: WcOpcode::Send, signaled: true, length: 0 }
    }

    #[test]
    fn a_ring_retires_in_order_around_the_end_of_its_numbers() {
        let mut ring = Ring::new(4, false);
        let mut next = 0;
        for round in 0..40_000_u64 {
            let numbers: Vec<u16> =
                (0..3).map(|i| ring.push(entry(round * 3 + i), i > 0).unwrap()).collect();
            assert_eq!(numbers[0], next);
            // The second takes the unsignalled first with it.
            assert_eq!(ring.retire(numbers[1]).unwrap().wr_id, round * 3 + 1);
            assert!(ring.retire(numbers[1]).is_none());
            assert!(ring.retire(numbers[0]).is_none());
            assert_eq!(ring.retire(numbers[2]).unwrap().wr_id, round * 3 + 2);
            next = numbers[2].wrapping_add(1);
        }
        for i in 0..4 {
            ring.push(entry(i), true).unwrap();
        }
        assert_eq!(ring.push(entry(4), true), Err(PostErrorKind::QueueFull));
    }

    #[test]
    fn what_overtakes_a_read_does_not_end_it() {
        let mut ring = Ring::new(3, true);
        let read = ring.push(entry(1), true).unwrap();
        let write = ring.push(entry(2), false).unwrap();
        let send = ring.push(entry(3), true).unwrap();
        assert_eq!(ring.retire(send).unwrap().wr_id, 3);
        assert!(ring.retire(send).is_none() && ring.retire(write).is_none());
        assert_eq!((ring.len(), ring.outstanding), (3, 1));
        // The places of those that are over are free as far as the depth goes.
        let next = ring.push(entry(4), true).unwrap();
        assert_eq!(ring.push(entry(5), true), Ok(next.wrapping_add(1)));
        assert_eq!(ring.push(entry(6), true), Err(PostErrorKind::QueueFull));
        ring.truncate(3);
        assert_eq!(ring.outstanding, 1);
        assert_eq!(ring.retire(read).unwrap().wr_id, 1);
        assert!(ring.is_empty() && ring.outstanding == 0);
        assert_eq!(ring.push(entry(4), true), Ok(send.wrapping_add(1)));
    }
}

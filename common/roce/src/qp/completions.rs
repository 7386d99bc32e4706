//! Work completions on their way to the owner.
//!
//! Calls nothing; used by both halves of the queue pair. A request keeps its place in its queue
//! until its completion was polled, so the list never outgrows the queues' sizes.

use std::collections::VecDeque;

use lariat_wire::rocev2::Rkey;

use crate::verbs::{ConnId, WcOpcode, WcStatus, WorkCompletion};

/// Completions not polled yet, in order.
#[derive(Debug)]
pub(super) struct Completions {
    conn: ConnId,
    queue: VecDeque<WorkCompletion>,
    receives: usize,
}

impl Completions {
    pub(super) fn new(conn: ConnId, capacity: usize) -> Self {
        Self { conn, queue: VecDeque::with_capacity(capacity), receives: 0 }
    }

    /// What the list can hold without allocating.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.queue.capacity()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Of requests, not yet polled.
    pub(super) fn sends(&self) -> usize {
        self.queue.len() - self.receives()
    }

    /// Of receives, not yet polled.
    pub(super) fn receives(&self) -> usize {
        self.receives
    }

    #[inline]
    pub(super) fn push(
        &mut self,
        wr_id: u64,
        opcode: WcOpcode,
        status: WcStatus,
        byte_len: u32,
        invalidated: Option<Rkey>,
    ) {
        self.receives += usize::from(opcode == WcOpcode::Recv);
        self.queue.push_back(WorkCompletion {
            conn: self.conn,
            wr_id,
            status,
            opcode,
            byte_len,
            invalidated,
        });
    }

    /// Moves the oldest to `out`, `most` at most; how many.
    pub(super) fn take(&mut self, most: usize, out: &mut Vec<WorkCompletion>) -> usize {
        let start = out.len();
        let (older, newer) = self.queue.as_slices();
        let from_older = most.min(older.len());
        let from_newer = (most - from_older).min(newer.len());
        out.extend_from_slice(older.get(..from_older).unwrap_or_default());
        out.extend_from_slice(newer.get(..from_newer).unwrap_or_default());
        let taken = from_older + from_newer;
        self.queue.drain(..taken);
        self.receives -=
            out.iter().skip(start).filter(|done| done.opcode == WcOpcode::Recv).count();
        taken
    }

    /// The end: all that nobody polled.
    pub(super) fn abandon(&mut self, each: impl FnMut(WorkCompletion)) {
        self.receives = 0;
        self.queue.drain(..).for_each(each);
    }
}

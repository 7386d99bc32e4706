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
    receives: u32,
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
        self.receives as usize
    }

    pub(super) fn push(
        &mut self,
        wr_id: u64,
        opcode: WcOpcode,
        status: WcStatus,
        byte_len: u32,
        invalidated: Option<Rkey>,
    ) {
        self.receives += u32::from(opcode == WcOpcode::Recv);
        self.queue.push_back(WorkCompletion {
            conn: self.conn,
            wr_id,
            status,
            opcode,
            byte_len,
            invalidated,
        });
    }

    pub(super) fn pop(&mut self) -> Option<WorkCompletion> {
        let completion = self.queue.pop_front()?;
        self.receives -= u32::from(completion.opcode == WcOpcode::Recv);
        Some(completion)
    }
}

//! A receive queue that several queue pairs share (IBTA 10.2.9): a queue pair takes a receive when
//! the first packet of a SEND comes, and from then on that is its own.
//!
//! Calls `Memory`; its owner (`endpoint`) lends it to the queue pairs with each packet. Every
//! receive that was posted completes once, under the connection that took it, unless the queue ends
//! before that.

use std::collections::VecDeque;

use crate::memory::Memory;
use crate::verbs::{Access, DomainId, PostErrorKind, RecvRequest};

use super::buffer::LocalBuffer;
use super::responder::RecvWqe;

/// A shared receive queue.
#[derive(Debug)]
pub struct SharedReceives {
    domain: DomainId,
    depth: usize,
    queue: VecDeque<RecvWqe>,
    /// Taken by queue pairs, and their completions not polled yet.
    taken: usize,
}

impl SharedReceives {
    /// For so many receives; each counts until its completion was polled.
    #[must_use]
    pub fn new(domain: DomainId, depth: u32) -> Self {
        let depth = depth as usize;
        Self { domain, depth, queue: VecDeque::with_capacity(depth), taken: 0 }
    }

    /// The protection domain of its receives, and so of the queue pairs that take them.
    #[must_use]
    pub fn domain(&self) -> DomainId {
        self.domain
    }

    /// Appends a receive.
    ///
    /// # Errors
    /// The queue is full, or the memory is not registered for it.
    pub fn post<M: Memory + ?Sized>(
        &mut self,
        request: &RecvRequest,
        mem: &M,
    ) -> Result<(), PostErrorKind> {
        if self.queue.len() + self.taken >= self.depth {
            return Err(PostErrorKind::QueueFull);
        }
        let buffer = LocalBuffer::check(mem, self.domain, &request.sges, Access::LOCAL)?;
        self.queue.push_back(RecvWqe { wr_id: request.wr_id, buffer });
        Ok(())
    }

    /// The first receive, for a queue pair.
    pub(super) fn take(&mut self) -> Option<RecvWqe> {
        let wqe = self.queue.pop_front()?;
        self.taken += 1;
        Some(wqe)
    }

    /// The completions of so many receives were polled: there is room for others.
    pub fn polled(&mut self, receives: usize) {
        self.taken = self.taken.saturating_sub(receives);
    }
}

//! Messages of the connection manager that wait to be sent.
//!
//! Bounded: what a flood of requests makes us answer beyond the bound is dropped, and repetition
//! makes up for it. Filled by `exchange` and the endpoint, emptied by the endpoint.

use core::net::SocketAddr;
use std::collections::VecDeque;

use lariat_wire::rocev2::CM_MAD_LEN;
use lariat_wire::rocev2::cm::CmMad;

/// A message as bytes.
pub(crate) type MadBytes = Box<[u8; CM_MAD_LEN]>;

/// Waiting messages, the oldest first.
#[derive(Debug)]
pub(crate) struct Outbox {
    queue: VecDeque<(SocketAddr, MadBytes)>,
    /// Good-byes, which leave behind what queue pairs have to say.
    last: VecDeque<(SocketAddr, MadBytes)>,
    limit: usize,
    pub(crate) repeated: u64,
    pub(crate) overflow: u64,
}

impl Outbox {
    pub(crate) fn new(limit: usize) -> Self {
        Self { queue: VecDeque::new(), last: VecDeque::new(), limit, repeated: 0, overflow: 0 }
    }

    /// Queues a message.
    pub(crate) fn send(&mut self, to: SocketAddr, mad: &CmMad) {
        self.push(to, Box::new(mad.emit()));
    }

    /// Queues a message that was sent before.
    pub(crate) fn repeat(&mut self, to: SocketAddr, bytes: &MadBytes) {
        self.repeated += 1;
        self.push(to, bytes.clone());
    }

    /// Queues a message and returns it for later repetition.
    pub(crate) fn send_kept(&mut self, to: SocketAddr, mad: &CmMad) -> MadBytes {
        let bytes = Box::new(mad.emit());
        self.push(to, bytes.clone());
        bytes
    }

    fn push(&mut self, to: SocketAddr, bytes: MadBytes) {
        if self.queue.len() < self.limit {
            self.queue.push_back((to, bytes));
        } else {
            self.overflow += 1;
        }
    }

    /// Queues a message behind the packets of queue pairs and returns it for later repetition.
    pub(crate) fn send_last(&mut self, to: SocketAddr, mad: &CmMad) -> MadBytes {
        let bytes = Box::new(mad.emit());
        if self.last.len() < self.limit {
            self.last.push_back((to, bytes.clone()));
        } else {
            self.overflow += 1;
        }
        bytes
    }

    pub(crate) fn pop_last(&mut self) -> Option<(SocketAddr, MadBytes)> {
        self.last.pop_front()
    }

    pub(crate) fn pop(&mut self) -> Option<(SocketAddr, MadBytes)> {
        self.queue.pop_front()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.last.is_empty()
    }
}

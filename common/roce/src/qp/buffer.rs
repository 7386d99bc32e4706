//! The local memory of a work request: checked once, when it is posted.
//!
//! Calls `Memory`; used by both halves of the queue pair.

use crate::memory::{AccessError, MemRange, Memory};
use crate::transmit::Payload;
use crate::verbs::{Access, DomainId, PostErrorKind, SgeList};

use super::config::MAX_MESSAGE_BYTES;

/// Up to two checked ranges, one after the other.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LocalBuffer {
    first: Option<MemRange>,
    second: Option<MemRange>,
    length: u32,
}

impl LocalBuffer {
    /// Checks a scatter/gather list. Empty elements are not checked (IBTA 10.7.3.2).
    pub(super) fn check<M: Memory + ?Sized>(
        mem: &M,
        domain: DomainId,
        sges: &SgeList,
        need: Access,
    ) -> Result<Self, PostErrorKind> {
        let length = u32::try_from(sges.total_length()).map_err(|_| PostErrorKind::TooLong)?;
        if length > MAX_MESSAGE_BYTES {
            return Err(PostErrorKind::TooLong);
        }
        let mut buffer = Self { length, ..Self::default() };
        for sge in sges.iter().filter(|sge| sge.length > 0) {
            let range = mem.check_local(domain, sge, need).map_err(|_| PostErrorKind::BadMemory)?;
            if buffer.first.is_none() {
                buffer.first = Some(range);
            } else {
                buffer.second = Some(range);
            }
        }
        Ok(buffer)
    }

    /// Length in bytes.
    pub(super) fn len(&self) -> u32 {
        self.length
    }

    /// The `length` bytes from `skip` on, which must be inside.
    fn slice(&self, skip: u32, length: u32) -> Option<(MemRange, Option<MemRange>)> {
        let first = self.first?;
        if skip >= first.length
            && let Some(second) = self.second
        {
            return Some((second.slice(skip - first.length, length), None));
        }
        let head = first.slice(skip, length);
        let rest = length - head.length;
        let tail = self.second.filter(|_| rest > 0).map(|second| second.slice(0, rest));
        Some((head, tail))
    }

    /// The payload of a packet that carries `length` bytes from `skip` on.
    pub(super) fn payload(&self, skip: u32, length: u32) -> Payload {
        if length == 0 {
            return Payload::Empty;
        }
        self.slice(skip, length).map_or(Payload::Empty, |(head, tail)| Payload::Memory(head, tail))
    }

    /// Copies received bytes to `skip` bytes from the start.
    pub(super) fn place<M: Memory + ?Sized>(
        &self,
        mem: &mut M,
        skip: u32,
        bytes: &[u8],
    ) -> Result<(), AccessError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let length = u32::try_from(bytes.len()).map_err(|_| AccessError::OutOfBounds)?;
        if u64::from(skip) + u64::from(length) > u64::from(self.length) {
            return Err(AccessError::OutOfBounds);
        }
        let (head, tail) = self.slice(skip, length).ok_or(AccessError::OutOfBounds)?;
        let (now, later) =
            bytes.split_at_checked(head.length as usize).ok_or(AccessError::OutOfBounds)?;
        mem.place(head, 0, now)?;
        match tail {
            Some(tail) => mem.place(tail, 0, later),
            None => Ok(()),
        }
    }
}

//! The local memory of a work request: checked once, when it is posted.
//!
//! Calls `Memory`; used by both halves of the queue pair.

use crate::memory::{AccessError, MemRange, Memory};
use crate::transmit::Payload;
use crate::verbs::{Access, DomainId, PostErrorKind, Sge, SgeList};

use super::config::MAX_MESSAGE_BYTES;

/// Up to two checked ranges, one after the other. Without the second, or either, that is empty.
#[derive(Clone, Copy, Debug)]
pub(super) struct LocalBuffer {
    first: MemRange,
    second: MemRange,
    length: u32,
}

impl LocalBuffer {
    /// Checks a scatter/gather list. Empty elements are not checked (IBTA 10.7.3.2).
    #[inline(always)]
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
        let range = |sge: Option<Sge>| match sge {
            Some(sge) if sge.length > 0 => {
                mem.check_local(domain, sge, need).map_err(|_| PostErrorKind::BadMemory)
            }
            Some(_) | None => Ok(MemRange::EMPTY),
        };
        Ok(Self { first: range(sges.first())?, second: range(sges.second())?, length })
    }

    /// Length in bytes.
    #[inline]
    pub(super) fn len(&self) -> u32 {
        self.length
    }

    /// The `length` bytes from `skip` on, which must be inside.
    #[inline]
    fn slice(&self, skip: u32, length: u32) -> (MemRange, Option<MemRange>) {
        let Self { first, second, .. } = self;
        if skip >= first.length {
            return (second.slice(skip - first.length, length), None);
        }
        let head = first.slice(skip, length);
        let rest = length - head.length;
        (head, (rest > 0).then(|| second.slice(0, rest)))
    }

    /// The payload of a packet that carries `length` bytes from `skip` on.
    #[inline]
    pub(super) fn payload(&self, skip: u32, length: u32) -> Payload {
        if length == 0 {
            return Payload::Empty;
        }
        let (head, tail) = self.slice(skip, length);
        Payload::Memory(head, tail)
    }

    /// Copies received bytes to `skip` bytes from the start.
    #[inline(always)]
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
        let end = u64::from(skip) + u64::from(length);
        if end > u64::from(self.length) {
            return Err(AccessError::OutOfBounds);
        }
        if end <= u64::from(self.first.length) {
            return mem.place(self.first, skip, bytes);
        }
        let (head, tail) = self.slice(skip, length);
        let (now, later) =
            bytes.split_at_checked(head.length as usize).ok_or(AccessError::OutOfBounds)?;
        mem.place(head, 0, now)?;
        match tail {
            Some(tail) => mem.place(tail, 0, later),
            None => Ok(()),
        }
    }
}

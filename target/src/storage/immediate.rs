//! Disks that need no kernel: `memory` and `null`. Called by `uring`; calls `memory`.
//!
//! All but reads is done on the spot. Reads wait for the next poll. Some are copied at a time, so that
//! they are still in the cache when they are sent, and while one is, the next is fetched.

use std::collections::VecDeque;
use std::sync::Arc;

use lariat_fabric::Memory;

use super::memory::MemoryDisk;
use super::set::{Backend, StorageSet};
use super::{BlockCompletion, BlockOp, BlockRequest, StorageError};

/// How much is copied in one poll, about, before it is sent: it should still be in the second cache
/// then.
const COPIED_BYTES: u32 = 256 << 10;

/// Reads that are to be copied, oldest first.
#[derive(Debug)]
pub(super) struct Immediate(VecDeque<BlockRequest>);

impl Immediate {
    /// With room for so many without allocating.
    pub(super) fn new(room: usize) -> Self {
        Self(VecDeque::with_capacity(room))
    }

    /// Reads that wait.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Takes a request that was checked, of a disk of these kinds. What it ends with, if at once.
    pub(super) fn take(
        &mut self,
        backend: &Backend,
        request: BlockRequest,
        memories: &[Arc<Memory>],
    ) -> Option<BlockCompletion> {
        if let BlockOp::Read { .. } = request.op {
            self.0.push_back(request);
            return None;
        }
        Some(BlockCompletion { tag: request.tag, result: execute(backend, &request.op, memories) })
    }

    /// Copies for the reads that wait, up to [`COPIED_BYTES`] about.
    pub(super) fn work(
        &mut self,
        set: &StorageSet,
        memories: &[Arc<Memory>],
        finished: &mut Vec<BlockCompletion>,
    ) {
        let mut left = COPIED_BYTES;
        while left > 0
            && let Some(request) = self.0.pop_front()
        {
            if let Some(next) = self.0.front() {
                announce(set, next);
            }
            let result = match set.get(request.backend) {
                Some(backend) => execute(backend, &request.op, memories),
                None => Err(StorageError::Other { errno: libc::ENODEV }),
            };
            if let BlockOp::Read { buffer, .. } = request.op {
                left = left.saturating_sub(buffer.length);
            }
            finished.push(BlockCompletion { tag: request.tag, result });
        }
    }
}

/// A read that comes next.
fn announce(set: &StorageSet, request: &BlockRequest) {
    if let BlockOp::Read { start, .. } = request.op
        && let Some(Backend::Memory { disk, geometry }) = set.get(request.backend)
    {
        disk.announce(start * u64::from(geometry.block_bytes));
    }
}

fn execute(backend: &Backend, op: &BlockOp, memories: &[Arc<Memory>]) -> Result<(), StorageError> {
    match backend {
        Backend::Memory { disk, geometry } => in_memory(disk, op, geometry.block_bytes, memories),
        Backend::Null { .. } => null(op, memories),
        Backend::File { .. } => Err(StorageError::Other { errno: libc::ENODEV }),
    }
}

fn null(op: &BlockOp, memories: &[Arc<Memory>]) -> Result<(), StorageError> {
    let BlockOp::Read { buffer, .. } = *op else { return Ok(()) };
    let zeroed = memories
        .get(usize::from(buffer.memory))
        .and_then(|memory| memory.zero(buffer.offset, buffer.length as usize).ok());
    zeroed.ok_or(StorageError::Other { errno: libc::EFAULT })
}

fn in_memory(
    disk: &MemoryDisk,
    op: &BlockOp,
    block_bytes: u32,
    memories: &[Arc<Memory>],
) -> Result<(), StorageError> {
    let block = u64::from(block_bytes);
    let memory = |index: u16| memories.get(usize::from(index));
    let done = match *op {
        BlockOp::Read { start, buffer } => memory(buffer.memory).and_then(|memory| {
            disk.read(start * block, memory, buffer.offset, u64::from(buffer.length))
        }),
        BlockOp::Write { start, buffer, .. } => memory(buffer.memory).and_then(|memory| {
            disk.write(start * block, memory, buffer.offset, u64::from(buffer.length))
        }),
        BlockOp::WriteZeroes { range, .. } | BlockOp::Deallocate { range } => {
            disk.zero(range.start * block, range.blocks * block)
        }
        BlockOp::Flush => Some(()),
    };
    done.ok_or(StorageError::Other { errno: libc::EFAULT })
}

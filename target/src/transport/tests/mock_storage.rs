//! A storage that does what the test says, and holds its buffers as `mock`'s fabric does.

use std::sync::Arc;

use lariat_fabric::{Memory, Timestamp};

use super::mock::Ledger;
use crate::storage::{
    BackendId, BlockCompletion, BlockOp, BlockRange, BlockRequest, Geometry, Storage, StorageError,
};

pub(super) const BLOCK_BYTES: u32 = 512;
pub(super) const BLOCKS: u64 = 2048;

pub(super) const GEOMETRY: Geometry = Geometry {
    block_bytes: BLOCK_BYTES,
    capacity_blocks: BLOCKS,
    volatile_write_cache: true,
    deallocate: true,
    read_only: false,
};

/// A disk in memory that completes when it is told to.
pub(super) struct MockStorage {
    ledger: Ledger,
    memories: Vec<Arc<Memory>>,
    pub(super) disk: Vec<u8>,
    pub(super) pending: Vec<BlockRequest>,
    /// Completes nothing by itself.
    pub(super) held: bool,
    /// Requests it takes at a time.
    pub(super) capacity: usize,
    pub(super) fail: Option<StorageError>,
    pub(super) done: Vec<BlockOp>,
    /// Blocks that it says to be zeroes.
    pub(super) zeroes: core::ops::Range<u64>,
    ready: Vec<BlockCompletion>,
}

impl MockStorage {
    pub(super) fn new(ledger: Ledger) -> Self {
        Self {
            ledger,
            memories: Vec::new(),
            disk: (0..BLOCKS)
                .flat_map(|block| [u8::try_from(block % 251).unwrap(); BLOCK_BYTES as usize])
                .collect(),
            pending: Vec::new(),
            held: false,
            capacity: usize::MAX,
            fail: None,
            done: Vec::new(),
            zeroes: 0..0,
            ready: Vec::new(),
        }
    }

    /// Completes one of the pending requests, at the next poll.
    pub(super) fn finish(&mut self, at: usize) {
        let request = self.pending.swap_remove(at);
        let offset = |start: u64| usize::try_from(start).unwrap() * BLOCK_BYTES as usize;
        match request.op {
            BlockOp::Read { start, buffer } => {
                let memory = &self.memories[usize::from(buffer.memory)];
                self.ledger.give(memory, buffer.offset, buffer.length);
                if self.fail.is_none() {
                    let from = &self.disk[offset(start)..][..buffer.length as usize];
                    memory.write_at(buffer.offset, from).unwrap();
                }
            }
            BlockOp::Write { start, buffer, .. } => {
                let memory = &self.memories[usize::from(buffer.memory)];
                self.ledger.give(memory, buffer.offset, buffer.length);
                assert_eq!(buffer.offset % 4096, 0, "O_DIRECT");
                if self.fail.is_none() {
                    let to = &mut self.disk[offset(start)..][..buffer.length as usize];
                    memory.read_at(buffer.offset, to).unwrap();
                }
            }
            BlockOp::Flush | BlockOp::WriteZeroes { .. } | BlockOp::Deallocate { .. } => {}
        }
        self.done.push(request.op);
        let result = self.fail.map_or(Ok(()), Err);
        self.ready.push(BlockCompletion { tag: request.tag, result });
    }
}

impl Storage for MockStorage {
    fn use_buffers(&mut self, memories: &[Arc<Memory>]) {
        self.memories = memories.to_vec();
    }

    fn add_buffer(&mut self, memory: Arc<Memory>) {
        self.memories.push(memory);
    }

    fn geometry(&self, _backend: BackendId) -> Option<Geometry> {
        Some(GEOMETRY)
    }

    fn knows_zeroes(&self) -> bool {
        true
    }

    fn reads_zeroes(&self, _backend: BackendId, range: BlockRange) -> bool {
        self.zeroes.start <= range.start && range.start + range.blocks <= self.zeroes.end
    }

    fn submit(&mut self, request: BlockRequest) -> Result<(), BlockRequest> {
        if self.pending.len() >= self.capacity {
            return Err(request);
        }
        if let BlockOp::Read { buffer, .. } | BlockOp::Write { buffer, .. } = request.op {
            let memory = &self.memories[usize::from(buffer.memory)];
            self.ledger.take(memory, buffer.offset, buffer.length);
        }
        self.pending.push(request);
        Ok(())
    }

    fn poll(&mut self, _now: Timestamp, done: &mut Vec<BlockCompletion>) {
        while !self.held && !self.pending.is_empty() {
            self.finish(0);
        }
        done.append(&mut self.ready);
    }

    fn in_flight(&self) -> usize {
        self.pending.len()
    }
}

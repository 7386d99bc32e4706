//! Cuts a request into commands that the controller takes. Pure; called by `block`.

use lariat_wire::nvme::{Lba, Nsid};

/// A namespace, as far as addressing goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// The namespace.
    pub nsid: Nsid,
    /// Size of a logical block in bytes; a power of two.
    pub block_bytes: u32,
    /// Number of logical blocks.
    pub blocks: u64,
}

impl Geometry {
    /// Size in bytes.
    #[must_use]
    pub fn capacity_bytes(&self) -> u64 {
        self.blocks.saturating_mul(u64::from(self.block_bytes))
    }
}

/// One command's share of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// First block.
    pub start: Lba,
    /// Number of blocks, at least 1.
    pub blocks: u32,
    /// Where its data stands in the request's data, in bytes.
    pub data_offset: u64,
}

/// The commands of a request, in ascending order. Each can be executed on its own, in any order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunks {
    next: u64,
    left: u64,
    data_offset: u64,
    block_bytes: u32,
    max_blocks: u32,
}

impl Chunks {
    /// Of `blocks` blocks from `start` on, with at most `max_blocks` (at least 1) in a command.
    #[must_use]
    pub fn new(start: Lba, blocks: u64, block_bytes: u32, max_blocks: u32) -> Self {
        Self {
            next: start.0,
            left: blocks,
            data_offset: 0,
            block_bytes,
            max_blocks: max_blocks.max(1),
        }
    }

    /// No commands.
    pub const NONE: Self = Self { next: 0, left: 0, data_offset: 0, block_bytes: 0, max_blocks: 1 };

    /// Size of a block in bytes.
    #[must_use]
    pub fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// Whether there are none left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.left == 0
    }
}

impl Iterator for Chunks {
    type Item = Chunk;

    fn next(&mut self) -> Option<Chunk> {
        if self.left == 0 {
            return None;
        }
        let blocks =
            u32::try_from(self.left).map_or(self.max_blocks, |left| left.min(self.max_blocks));
        let chunk = Chunk { start: Lba(self.next), blocks, data_offset: self.data_offset };
        self.next = self.next.saturating_add(u64::from(blocks));
        self.left -= u64::from(blocks);
        let bytes = u64::from(blocks) * u64::from(self.block_bytes);
        self.data_offset = self.data_offset.saturating_add(bytes);
        Some(chunk)
    }
}

/// The most blocks of one command.
#[must_use]
pub fn max_blocks(max_transfer_bytes: u32, block_bytes: u32) -> u32 {
    // NLB has 16 zero-based bits (NVM Command Set 1.1, 3.2.4).
    (max_transfer_bytes / block_bytes.max(1)).clamp(1, 65_536)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn chunks_cover_the_request_once(
            start in 0u64..1 << 50, blocks in 0u64..300_000, shift in 9u32..13,
            max_transfer in 512u32..1 << 21,
        ) {
            let block_bytes = 1 << shift;
            let most = max_blocks(max_transfer, block_bytes);
            let mut at = start;
            let mut offset = 0;
            for chunk in Chunks::new(Lba(start), blocks, block_bytes, most) {
                prop_assert_eq!(chunk.start, Lba(at));
                prop_assert_eq!(chunk.data_offset, offset);
                prop_assert!(chunk.blocks >= 1 && chunk.blocks <= 65_536);
                prop_assert!(chunk.blocks == 1 || chunk.blocks * block_bytes <= max_transfer);
                at += u64::from(chunk.blocks);
                offset += u64::from(chunk.blocks) * u64::from(block_bytes);
            }
            prop_assert_eq!(at - start, blocks);
        }

        #[test]
        fn no_more_commands_than_needed(blocks in 1u64..100_000, most in 1u32..70_000) {
            let commands = Chunks::new(Lba(0), blocks, 512, most).count() as u64;
            prop_assert_eq!(commands, blocks.div_ceil(u64::from(most)));
        }
    }
}

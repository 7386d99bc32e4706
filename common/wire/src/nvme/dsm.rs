//! The data of a Dataset Management command: ranges of blocks (NVM Command Set
//! 1.1, 3.2.3). Calls `ids`; the target reads it, the initiator builds it.

use core::mem::offset_of;

use bytemuck::{Pod, Zeroable};

use super::ids::Lba;
use crate::endian::{U32Le, U64Le};

/// Size of a range on the wire.
pub const DSM_RANGE_BYTES: usize = 16;

/// Most ranges in one command.
pub const MAX_DSM_RANGES: u16 = 256;

/// One range.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct DsmRange {
    /// Context attributes: hints.
    pub attributes: U32Le,
    /// Length in blocks; a true count, 0 is an empty range.
    pub blocks: U32Le,
    /// First block.
    pub slba: U64Le,
}

const _: () = {
    assert!(size_of::<DsmRange>() == DSM_RANGE_BYTES);
    assert!(offset_of!(DsmRange, blocks) == 4);
    assert!(offset_of!(DsmRange, slba) == 8);
};

impl DsmRange {
    /// A range without hints.
    #[must_use]
    pub fn new(slba: Lba, blocks: u32) -> Self {
        Self { attributes: U32Le::default(), blocks: U32Le::new(blocks), slba: U64Le::new(slba.0) }
    }

    /// First block.
    #[must_use]
    pub fn start(&self) -> Lba {
        Lba(self.slba.get())
    }

    /// The whole ranges in `bytes`; a rest of less than 16 bytes is not looked at.
    pub fn parse_list(bytes: &[u8]) -> impl ExactSizeIterator<Item = Self> + '_ {
        bytes.as_chunks::<DSM_RANGE_BYTES>().0.iter().map(|chunk| bytemuck::cast(*chunk))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_round_trip() {
        let ranges = [DsmRange::new(Lba(8), 16), DsmRange::new(Lba(1 << 40), 1)];
        let bytes: &[u8] = bytemuck::cast_slice(&ranges);
        assert_eq!(bytes[4..9], [16, 0, 0, 0, 8]);
        assert!(DsmRange::parse_list(bytes).eq(ranges));
        assert_eq!(DsmRange::parse_list(&bytes[..31]).len(), 1);
        assert_eq!(DsmRange::parse_list(&[]).len(), 0);
    }
}

//! The RDMA extended transport header: where a WRITE goes, what a READ wants.
//!
//! Uses `fields`, `ids`; used by `packet`.

use super::Rkey;
use super::fields::Fields;

/// RDMA extended transport header (IBTA 9.3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// First byte, in the address space of the region that `rkey` names.
    pub virtual_address: u64,
    /// The region's remote key.
    pub rkey: Rkey,
    /// Length of the whole transfer in bytes, not that of the packet.
    pub length: u32,
}

impl Reth {
    /// Length in bytes.
    pub const LEN: usize = 16;

    /// Reads the header; every value of the bytes is one.
    #[must_use]
    #[inline]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        Self {
            virtual_address: bytes.be64_at::<0>(),
            rkey: Rkey(bytes.be32_at::<8>()),
            length: bytes.be32_at::<12>(),
        }
    }

    /// The header's bytes.
    #[must_use]
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out.put_be64::<0>(self.virtual_address);
        out.put_be32::<8>(self.rkey.get());
        out.put_be32::<12>(self.length);
        out
    }
}

//! The invalidate extended transport header: a remote key that a SEND retires.
//!
//! Uses `ids`; used by `packet`.

use super::Rkey;

/// Invalidate extended transport header (IBTA 9.3.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ieth {
    /// The key that the receiver of the SEND shall invalidate.
    pub rkey: Rkey,
}

impl Ieth {
    /// Length in bytes.
    pub const LEN: usize = 4;

    /// Reads the header; every value of the bytes is one.
    #[must_use]
    #[inline]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        Self { rkey: Rkey(u32::from_be_bytes(*bytes)) }
    }

    /// The header's bytes.
    #[must_use]
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        self.rkey.get().to_be_bytes()
    }
}

//! The immediate data header: four bytes for the receiver's completion.
//!
//! Calls nothing; used by `packet`.

/// Immediate data (IBTA 9.3.6), in wire order: the applications at both ends
/// agree on its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Imm(pub [u8; 4]);

impl Imm {
    /// Length in bytes.
    pub const LEN: usize = 4;

    /// Reads the header; every value of the bytes is one.
    #[must_use]
    pub const fn parse(bytes: &[u8; Self::LEN]) -> Self {
        Self(*bytes)
    }

    /// The header's bytes.
    #[must_use]
    pub const fn to_bytes(&self) -> [u8; Self::LEN] {
        self.0
    }
}

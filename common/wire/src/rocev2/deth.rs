//! The datagram extended transport header, which the connection manager's
//! packets carry.
//!
//! Uses `fields`, `ids`; used by `packet`.

use super::fields::Fields;
use super::{QKey, Qpn};

/// Datagram extended transport header (IBTA 9.3.2). Its reserved byte is
/// ignored when parsed and sent as zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deth {
    /// Queue key of the destination.
    pub qkey: QKey,
    /// The queue pair that sent the datagram.
    pub source_qp: Qpn,
}

impl Deth {
    /// Length in bytes.
    pub const LEN: usize = 8;

    /// Reads the header; every value of the bytes is one.
    #[must_use]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        Self { qkey: QKey(bytes.be32_at::<0>()), source_qp: Qpn::new(bytes.be24_at::<5>()) }
    }

    /// The header's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out.put_be32::<0>(self.qkey.0);
        out.put_be24::<5>(self.source_qp.get());
        out
    }
}

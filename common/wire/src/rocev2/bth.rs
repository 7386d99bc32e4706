//! The base transport header, which starts every packet.
//!
//! Uses `fields`, `ids`, `opcode`; used by `packet`.

use super::fields::Fields;
use super::{Opcode, PKey, Psn, Qpn};

/// Base transport header (IBTA 9.2). Reserved bits are ignored when parsed and
/// sent as zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// What the packet is.
    pub opcode: Opcode,
    /// The receiver is asked to raise a completion event.
    pub solicited: bool,
    /// Migration state; 1 (migrated) on every connection without alternate path.
    pub migreq: bool,
    /// Zero bytes between the payload and the ICRC, 0 to 3.
    pub pad: u8,
    /// Transport header version, 4 bits; 0 is the only one defined.
    pub version: u8,
    /// Partition key.
    pub pkey: PKey,
    /// Forward congestion mark.
    pub fecn: bool,
    /// Backward congestion mark.
    pub becn: bool,
    /// The queue pair the packet goes to.
    pub dest_qp: Qpn,
    /// The responder is asked to acknowledge this packet.
    pub ack_request: bool,
    /// The packet's sequence number.
    pub psn: Psn,
}

impl Bth {
    /// Length in bytes.
    pub const LEN: usize = 12;

    /// A header with the values that all packets of this project share:
    /// migrated, default partition, version 0, no pad, no marks.
    #[must_use]
    #[inline]
    pub const fn new(opcode: Opcode, dest_qp: Qpn, psn: Psn) -> Self {
        Self {
            opcode,
            solicited: false,
            migreq: true,
            pad: 0,
            version: 0,
            pkey: PKey::DEFAULT,
            fecn: false,
            becn: false,
            dest_qp,
            ack_request: false,
            psn,
        }
    }

    /// Reads the header; every value of the bytes is one.
    #[must_use]
    #[inline(always)]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let flags = bytes.u8_at::<1>();
        let marks = bytes.u8_at::<4>();
        Self {
            opcode: Opcode::from(bytes.u8_at::<0>()),
            solicited: flags & 0x80 != 0,
            migreq: flags & 0x40 != 0,
            pad: (flags >> 4) & 0x3,
            version: flags & 0xf,
            pkey: PKey(bytes.be16_at::<2>()),
            fecn: marks & 0x80 != 0,
            becn: marks & 0x40 != 0,
            dest_qp: Qpn::new(bytes.be24_at::<5>()),
            ack_request: bytes.u8_at::<8>() & 0x80 != 0,
            psn: Psn::new(bytes.be24_at::<9>()),
        }
    }

    /// The header's bytes. Only the low 2 bits of `pad` and the low 4 bits of
    /// `version` are taken.
    #[must_use]
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out.put_u8::<0>(self.opcode.into());
        out.put_u8::<1>(
            u8::from(self.solicited) << 7
                | u8::from(self.migreq) << 6
                | (self.pad & 0x3) << 4
                | (self.version & 0xf),
        );
        out.put_be16::<2>(self.pkey.0);
        out.put_u8::<4>(u8::from(self.fecn) << 7 | u8::from(self.becn) << 6);
        out.put_be24::<5>(self.dest_qp.get());
        out.put_u8::<8>(u8::from(self.ack_request) << 7);
        out.put_be24::<9>(self.psn.get());
        out
    }
}

//! A whole RoCEv2 packet, that is, one UDP payload: parsed into its headers and
//! a borrowed payload, or assembled from them.
//!
//! Uses the header modules and `icrc`; called by `lariat-roce` and by the
//! `soft` provider for every packet, so nothing here allocates. The ICRC is
//! read but not verified here: see [`super::icrc`].

use thiserror::Error;

use super::{Aeth, Bth, Deth, FlowSeed, Ieth, Imm, Opcode, Reth};

/// Length of the invariant CRC that ends each packet, in bytes.
pub const ICRC_LEN: usize = 4;

/// Enough for every combination of headers, in bytes.
pub const MAX_HEADER: usize = Bth::LEN + Deth::LEN + Reth::LEN + Aeth::LEN + Ieth::LEN + Imm::LEN;

/// Pad bytes that bring a payload to a multiple of four bytes.
#[must_use]
#[inline]
pub const fn pad_for(payload_bytes: usize) -> u8 {
    match payload_bytes % 4 {
        1 => 3,
        2 => 2,
        3 => 1,
        _ => 0,
    }
}

/// Why bytes are not a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PacketError {
    /// The headers that the opcode demands, and the ICRC, do not fit.
    #[error("{opcode:?} packet of {len} bytes is shorter than its headers and ICRC")]
    TooShort {
        /// The opcode, none where not even the BTH is whole.
        opcode: Option<Opcode>,
        /// Bytes there are.
        len: usize,
    },
    /// More pad bytes are announced than follow the headers.
    #[error("{pad} pad bytes announced, {available} bytes follow the headers")]
    PadTooLong {
        /// Announced pad bytes.
        pad: u8,
        /// Bytes between headers and ICRC.
        available: usize,
    },
}

/// The extended headers that may follow a BTH. Which of them do is the opcode's
/// to say; see [`Ext::fits`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ext {
    /// Datagram header.
    pub deth: Option<Deth>,
    /// RDMA header.
    pub reth: Option<Reth>,
    /// Acknowledge header.
    pub aeth: Option<Aeth>,
    /// Key to invalidate.
    pub ieth: Option<Ieth>,
    /// Immediate data.
    pub imm: Option<Imm>,
}

impl Ext {
    /// Whether these are exactly the headers that `opcode` demands.
    #[must_use]
    pub const fn fits(&self, opcode: Opcode) -> bool {
        self.deth.is_some() == opcode.has_deth()
            && self.reth.is_some() == opcode.has_reth()
            && self.aeth.is_some() == opcode.has_aeth()
            && self.ieth.is_some() == opcode.has_ieth()
            && self.imm.is_some() == opcode.has_imm()
    }
}

/// All headers of a packet, without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// Base transport header.
    pub bth: Bth,
    /// The extended headers.
    pub ext: Ext,
}

/// Why a packet could not be assembled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AssembleError {
    /// The output buffer is too small.
    #[error("packet needs {needed} bytes, the buffer has {available}")]
    NoRoom {
        /// Bytes the packet takes.
        needed: usize,
        /// Bytes the buffer has.
        available: usize,
    },
}

impl Headers {
    /// Headers without extensions.
    #[must_use]
    pub fn new(bth: Bth) -> Self {
        Self { bth, ext: Ext::default() }
    }

    /// Writes the headers that are present, in the order of IBTA 9.1, and
    /// returns how many bytes they take. The caller sets `bth.pad` (see
    /// [`pad_for`]) and sees to it that [`Ext::fits`].
    #[inline]
    pub fn emit(&self, out: &mut [u8; MAX_HEADER]) -> usize {
        debug_assert!(self.ext.fits(self.bth.opcode), "{self:?}");
        let mut rest: &mut [u8] = out;
        let mut len = put(&mut rest, &self.bth.to_bytes());
        if let Some(deth) = &self.ext.deth {
            len += put(&mut rest, &deth.to_bytes());
        }
        if let Some(reth) = &self.ext.reth {
            len += put(&mut rest, &reth.to_bytes());
        }
        if let Some(aeth) = &self.ext.aeth {
            len += put(&mut rest, &aeth.to_bytes());
        }
        if let Some(ieth) = &self.ext.ieth {
            len += put(&mut rest, &ieth.to_bytes());
        }
        if let Some(imm) = &self.ext.imm {
            len += put(&mut rest, &imm.to_bytes());
        }
        len
    }

    /// Assembles the whole UDP payload in `out`: headers, `payload`, pad (set
    /// here, whatever `bth.pad` says), and the ICRC for a packet of that flow
    /// with that IPv4 identification (0 for IPv6). Returns its length.
    ///
    /// For datagrams and simulations; the data path sends header and payload
    /// from separate buffers.
    ///
    /// # Errors
    /// When `out` is too small.
    pub fn assemble(
        &self,
        payload: &[u8],
        flow: &FlowSeed,
        ipv4_id: u16,
        out: &mut [u8],
    ) -> Result<usize, AssembleError> {
        let mut headers = *self;
        headers.bth.pad = pad_for(payload.len());
        let mut bytes = [0; MAX_HEADER];
        let header_len = headers.emit(&mut bytes);
        let pad = usize::from(headers.bth.pad);
        let covered = header_len + payload.len() + pad;
        let needed = covered + ICRC_LEN;
        let available = out.len();
        let packet = out.get_mut(..needed).ok_or(AssembleError::NoRoom { needed, available })?;
        let (body, icrc) = packet.split_at_mut(covered);
        let mut rest = &mut *body;
        put(&mut rest, bytes.get(..header_len).unwrap_or_default());
        put(&mut rest, payload);
        put(&mut rest, [0; 3].get(..pad).unwrap_or_default());
        icrc.copy_from_slice(&flow.seed(needed, ipv4_id).over(body));
        Ok(needed)
    }
}

/// Copies `bytes` to the front of `rest` and moves `rest` behind them. Bytes
/// that do not fit are dropped; the callers' sizes exclude it.
#[inline]
fn put(rest: &mut &mut [u8], bytes: &[u8]) -> usize {
    if let Some((head, tail)) = core::mem::take(rest).split_at_mut_checked(bytes.len()) {
        head.copy_from_slice(bytes);
        *rest = tail;
    }
    bytes.len()
}

/// A packet, its payload borrowed from the received bytes.
///
/// Of atomic operations and congestion notifications, which this project
/// refuses or ignores, the fixed bytes behind the known headers stand in
/// `payload`, as do those of unknown opcodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Base transport header.
    pub bth: Bth,
    /// The extended headers that the opcode demands.
    pub ext: Ext,
    /// The payload without pad and ICRC.
    pub payload: &'a [u8],
    /// The ICRC as received.
    pub icrc: [u8; ICRC_LEN],
}

impl<'a> Packet<'a> {
    /// Reads a UDP payload.
    ///
    /// # Errors
    /// When the bytes are too few for what the BTH announces.
    #[inline(always)]
    pub fn parse(udp_payload: &'a [u8]) -> Result<Self, PacketError> {
        let len = udp_payload.len();
        let (covered, icrc) = udp_payload
            .split_last_chunk::<ICRC_LEN>()
            .ok_or(PacketError::TooShort { opcode: None, len })?;
        let (bth, mut rest) = covered
            .split_first_chunk::<{ Bth::LEN }>()
            .ok_or(PacketError::TooShort { opcode: None, len })?;
        let bth = Bth::parse(bth);
        let opcode = bth.opcode;
        if matches!(opcode, Opcode::SendOnly | Opcode::WriteMiddle) {
            // By far the most frequent.
            return Self::behind_headers(bth, Ext::default(), rest, *icrc);
        }
        let short = PacketError::TooShort { opcode: Some(opcode), len };
        let mut ext = Ext::default();
        if opcode.has_deth() {
            ext.deth = Some(Deth::parse(take(&mut rest).ok_or(short)?));
        }
        if opcode.has_reth() {
            ext.reth = Some(Reth::parse(take(&mut rest).ok_or(short)?));
        }
        if opcode.has_aeth() {
            ext.aeth = Some(Aeth::parse(take(&mut rest).ok_or(short)?));
        }
        if opcode.has_ieth() {
            ext.ieth = Some(Ieth::parse(take(&mut rest).ok_or(short)?));
        }
        if opcode.has_imm() {
            ext.imm = Some(Imm::parse(take(&mut rest).ok_or(short)?));
        }
        Self::behind_headers(bth, ext, rest, *icrc)
    }

    /// Takes the payload from what follows the headers.
    #[inline(always)]
    fn behind_headers(
        bth: Bth,
        ext: Ext,
        rest: &'a [u8],
        icrc: [u8; ICRC_LEN],
    ) -> Result<Self, PacketError> {
        let pad_too_long = PacketError::PadTooLong { pad: bth.pad, available: rest.len() };
        let payload_len = rest.len().checked_sub(usize::from(bth.pad)).ok_or(pad_too_long)?;
        let payload = rest.get(..payload_len).ok_or(pad_too_long)?;
        Ok(Self { bth, ext, payload, icrc })
    }

    /// The packet's headers alone.
    #[must_use]
    pub const fn headers(&self) -> Headers {
        Headers { bth: self.bth, ext: self.ext }
    }
}

/// Takes the first `N` bytes from `rest`.
#[inline]
fn take<'a, const N: usize>(rest: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (head, tail) = rest.split_first_chunk::<N>()?;
    *rest = tail;
    Some(head)
}

#[cfg(test)]
mod tests;

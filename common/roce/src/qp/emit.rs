//! Headers into packets.
//!
//! Calls the wire types; used by both halves of the queue pair.

use core::net::SocketAddr;

use lariat_wire::rocev2::{Aeth, Bth, Ieth, MAX_HEADER, Opcode, Psn, Qpn, Reth, pad_for};

use crate::transmit::{Payload, Transmit};

use super::config::QpCounters;

/// Where packets go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    pub(super) remote: SocketAddr,
    pub(super) qpn: Qpn,
}

/// Where packets are put, and what counts them.
pub(super) struct Outbox<'a> {
    pub(super) peer: Peer,
    pub(super) counters: &'a mut QpCounters,
    pub(super) out: &'a mut Vec<Transmit>,
}

/// What of a BTH differs from packet to packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Label {
    pub(super) opcode: Opcode,
    pub(super) psn: Psn,
    pub(super) ack_request: bool,
}

/// The extended header of a packet: of those that we send, none has two.
#[derive(Clone, Copy, Debug)]
pub(super) enum Extension {
    None,
    Reth(Reth),
    Aeth(Aeth),
    Ieth(Ieth),
}

/// Bytes after the BTH of a congestion notification, all zero (IBTA A17.9.3).
const CNP_RESERVED: usize = 16;

impl Peer {
    /// A packet.
    #[inline(always)]
    pub(super) fn packet(&self, label: Label, extension: Extension, payload: Payload) -> Transmit {
        let Label { opcode, psn, ack_request } = label;
        debug_assert_eq!(matches!(extension, Extension::Reth(_)), opcode.has_reth());
        debug_assert_eq!(matches!(extension, Extension::Aeth(_)), opcode.has_aeth());
        debug_assert_eq!(matches!(extension, Extension::Ieth(_)), opcode.has_ieth());
        let mut bth = Bth::new(opcode, self.qpn, psn);
        bth.ack_request = ack_request;
        bth.pad = pad_for(payload.len() as usize);
        let mut headers = [0; MAX_HEADER];
        let header_len = match extension {
            Extension::None => Bth::LEN,
            Extension::Reth(reth) => put_extension(&mut headers, reth.to_bytes()),
            Extension::Aeth(aeth) => put_extension(&mut headers, aeth.to_bytes()),
            Extension::Ieth(ieth) => put_extension(&mut headers, ieth.to_bytes()),
        };
        self.with_headers(bth, headers, header_len, payload)
    }

    /// An acknowledge or NAK.
    pub(super) fn acknowledge(&self, psn: Psn, aeth: Aeth) -> Transmit {
        let label = Label { opcode: Opcode::Acknowledge, psn, ack_request: false };
        self.packet(label, Extension::Aeth(aeth), Payload::Empty)
    }

    /// A congestion notification.
    pub(super) fn congestion_notification(&self) -> Transmit {
        let mut bth = Bth::new(Opcode::Cnp, self.qpn, Psn::new(0));
        bth.becn = true;
        self.with_headers(bth, [0; MAX_HEADER], Bth::LEN + CNP_RESERVED, Payload::Empty)
    }

    /// Puts the BTH before what `headers` has behind its place.
    #[inline(always)]
    fn with_headers(
        &self,
        bth: Bth,
        mut headers: [u8; MAX_HEADER],
        header_len: usize,
        payload: Payload,
    ) -> Transmit {
        if let Some(room) = headers.first_chunk_mut() {
            *room = bth.to_bytes();
        }
        Transmit {
            remote: self.remote,
            dest_qp: self.qpn,
            headers,
            header_len: u8::try_from(header_len).unwrap_or(0),
            payload,
            pad: bth.pad,
        }
    }
}

/// Writes an extended header behind the BTH's place; returns where it ends.
#[inline]
fn put_extension<const N: usize>(headers: &mut [u8; MAX_HEADER], bytes: [u8; N]) -> usize {
    let end = Bth::LEN + N;
    if let Some(room) = headers.get_mut(Bth::LEN..end) {
        room.copy_from_slice(&bytes);
    }
    end
}

//! Headers into packets.
//!
//! Calls the wire types; used by both halves of the queue pair.

use core::net::SocketAddr;

use lariat_wire::rocev2::{Aeth, Bth, Ext, Headers, MAX_HEADER, Opcode, Psn, Qpn, pad_for};

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

/// Bytes after the BTH of a congestion notification, all zero (IBTA A17.9.3).
const CNP_RESERVED: u8 = 16;

impl Peer {
    /// A packet.
    pub(super) fn packet(&self, label: Label, ext: Ext, payload: Payload) -> Transmit {
        let mut bth = Bth::new(label.opcode, self.qpn, label.psn);
        bth.ack_request = label.ack_request;
        let pad = pad_for(payload.len() as usize);
        bth.pad = pad;
        self.with_headers(Headers { bth, ext }, payload, pad)
    }

    /// An acknowledge or NAK.
    pub(super) fn acknowledge(&self, psn: Psn, aeth: Aeth) -> Transmit {
        let label = Label { opcode: Opcode::Acknowledge, psn, ack_request: false };
        self.packet(label, Ext { aeth: Some(aeth), ..Ext::default() }, Payload::Empty)
    }

    /// A congestion notification.
    pub(super) fn congestion_notification(&self) -> Transmit {
        let mut bth = Bth::new(Opcode::Cnp, self.qpn, Psn::new(0));
        bth.becn = true;
        let mut transmit = self.with_headers(Headers::new(bth), Payload::Empty, 0);
        transmit.header_len += CNP_RESERVED;
        transmit
    }

    fn with_headers(&self, headers: Headers, payload: Payload, pad: u8) -> Transmit {
        let mut bytes = [0; MAX_HEADER];
        let header_len = u8::try_from(headers.emit(&mut bytes)).unwrap_or(0);
        Transmit {
            remote: self.remote,
            dest_qp: self.qpn,
            headers: bytes,
            header_len,
            payload,
            pad,
        }
    }
}

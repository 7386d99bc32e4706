//! A packet that wants to be sent: headers in place, payload named by memory range.
//!
//! The endpoint fills a list of these; whoever owns the socket reads the payload from registered
//! memory, adds padding and the ICRC (which covers the IP header that only it knows), and sends
//! runs of equal length to one receiver in one call.

use core::net::SocketAddr;

use lariat_wire::rocev2::{MAX_HEADER, Qpn};

use crate::memory::MemRange;

/// What follows the headers.
#[derive(Clone, Debug)]
pub enum Payload {
    /// Nothing.
    Empty,
    /// Registered memory; two pieces where a packet spans two scatter/gather elements.
    Memory(MemRange, Option<MemRange>),
    /// A connection manager's datagram (rare: allocation does not matter here).
    Mad(Box<[u8; 256]>),
}

impl Payload {
    /// Length in bytes, without padding.
    #[must_use]
    pub fn len(&self) -> u32 {
        match self {
            Self::Empty => 0,
            Self::Memory(first, second) => first.length + second.map_or(0, |range| range.length),
            Self::Mad(mad) => u32::try_from(mad.len()).unwrap_or(0),
        }
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// One packet.
#[derive(Clone, Debug)]
pub struct Transmit {
    /// Where to (UDP).
    pub remote: SocketAddr,
    /// The queue pair it is for: packets for different queue pairs may belong to different sockets
    /// of the peer, so a segmented call holds packets of one queue pair only.
    pub dest_qp: Qpn,
    /// BTH and extended headers.
    pub headers: [u8; MAX_HEADER],
    /// How many of those bytes count.
    pub header_len: u8,
    /// What follows.
    pub payload: Payload,
    /// Zero bytes after the payload (0-3), as the BTH says.
    pub pad: u8,
}

impl Transmit {
    /// Length of the UDP payload in bytes, ICRC included.
    #[must_use]
    pub fn datagram_len(&self) -> usize {
        usize::from(self.header_len) + self.payload.len() as usize + usize::from(self.pad) + 4
    }
}

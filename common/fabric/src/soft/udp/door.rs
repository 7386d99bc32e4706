//! A knock at a peer's UDP port: a packet to nobody, from a socket that does nothing else.
//!
//! The packet is a congestion notification for a queue pair that nobody has, so whoever speaks RoCEv2
//! drops it without a word (IBTA 9.6.1, A17.9.3). It has to be a whole one: Soft-RoCE (Linux 6.12) drops
//! a datagram shorter than a BTH in a way that ends its kernel, over IPv6.
//!
//! The kernel tells a connected socket, and only that, when the other end's system answers that
//! nothing listens there (ICMP), after it has compared both addresses and both ports with those in
//! the answer. Our own port is one of the kernel's choice, so an answer that somebody makes up has
//! to guess it. The sockets that carry packets take no part. Called by `soft::knocks`.

use core::net::SocketAddr;
use std::io;
use std::net::UdpSocket;

use lariat_wire::rocev2::{Bth, Opcode, Psn, Qpn};

use crate::soft::knocks::Door;

/// A BTH, the reserved bytes of a congestion notification, and the place of an ICRC. (A valid one needs
/// the identification that the kernel gives the datagram; nobody looks at it before the queue pair.)
const KNOCK_LEN: usize = Bth::LEN + 16 + 4;
/// The largest number before the one for multicasts: not given by anybody.
const NOBODY: Qpn = Qpn::new(0x00ff_fffe);

/// A socket connected to the peer.
#[derive(Debug)]
pub(super) struct UdpDoor(UdpSocket);

impl UdpDoor {
    /// From an address of this machine, the one that packets to the peer leave from.
    pub(super) fn open(mut local: SocketAddr, peer: SocketAddr) -> io::Result<Self> {
        local.set_port(0);
        let socket = UdpSocket::bind(local)?;
        socket.set_nonblocking(true)?;
        socket.connect(peer)?;
        Ok(Self(socket))
    }
}

impl Door for UdpDoor {
    fn knock(&mut self) {
        let mut bth = Bth::new(Opcode::Cnp, NOBODY, Psn::new(0));
        bth.becn = true;
        let mut packet = [0; KNOCK_LEN];
        if let Some(room) = packet.first_chunk_mut() {
            *room = bth.to_bytes();
        }
        // Whether it left shows later.
        let _ = self.0.send(&packet);
    }

    fn refusal(&mut self) -> Option<i32> {
        self.0.take_error().ok().flatten()?.raw_os_error()
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;
    use std::time::Instant;

    use lariat_wire::rocev2::Packet;

    use super::*;

    fn knocked(peer: SocketAddr) -> Option<i32> {
        let local = if peer.is_ipv4() { "127.90.9.1:4791" } else { "[::1]:4791" };
        let mut door = UdpDoor::open(local.parse().unwrap(), peer).unwrap();
        assert_eq!(door.refusal(), None);
        door.knock();
        let start = Instant::now();
        loop {
            let refusal = door.refusal();
            if refusal.is_some() || start.elapsed() > Duration::from_millis(200) {
                return refusal;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn only_a_port_without_a_socket_refuses() {
        for address in ["127.90.9.2:0", "[::1]:0"] {
            let socket = UdpSocket::bind(address).unwrap();
            let peer = socket.local_addr().unwrap();
            assert_eq!(knocked(peer), None);
            let mut bytes = [0; 100];
            let length = socket.recv(&mut bytes).unwrap();
            // A whole packet that no queue pair is meant by.
            let packet = Packet::parse(&bytes[..length]).unwrap();
            assert_eq!((packet.bth.opcode, packet.bth.dest_qp), (Opcode::Cnp, NOBODY));
            drop(socket);
            assert_eq!(knocked(peer), Some(libc::ECONNREFUSED));
        }
    }
}

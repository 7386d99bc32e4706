//! A knock at a peer's UDP port: an empty datagram from a socket that does nothing else.
//!
//! The kernel tells a connected socket, and only that, when the other end's system answers that
//! nothing listens there (ICMP), after it has compared both addresses and both ports with those in
//! the answer. Our own port is one of the kernel's choice, so an answer that somebody makes up has
//! to guess it. The sockets that carry packets take no part. Called by `soft::knocks`.

use core::net::SocketAddr;
use std::io;
use std::net::UdpSocket;

use crate::soft::knocks::Door;

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
        // What speaks RoCEv2 drops it: there is nothing in it. Whether it left shows later.
        let _ = self.0.send(&[]);
    }

    fn refusal(&mut self) -> Option<i32> {
        self.0.take_error().ok().flatten()?.raw_os_error()
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;
    use std::time::Instant;

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
            let mut byte = [0; 1];
            assert_eq!(socket.recv(&mut byte).unwrap(), 0, "an empty datagram came");
            drop(socket);
            assert_eq!(knocked(peer), Some(libc::ECONNREFUSED));
        }
    }
}

//! The ICRC seeds of the peers that a socket speaks with: a small cache, filled on use.
//!
//! Used by the wires; calls `lariat_wire::rocev2::icrc`.

use core::net::{IpAddr, SocketAddr};

use lariat_wire::rocev2::{Flow, FlowSeed};

const PLACES: usize = 256;

/// Direction of a cached flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the peer to us.
    In,
    /// From us to the peer.
    Out,
}

/// Seeds by peer address. A newer peer replaces an older one in its place.
#[derive(Debug)]
pub(crate) struct FlowCache {
    local: SocketAddr,
    direction: Direction,
    places: Box<[Option<(SocketAddr, FlowSeed)>]>,
}

impl FlowCache {
    pub(crate) fn new(local: SocketAddr, direction: Direction) -> Self {
        Self { local, direction, places: vec![None; PLACES].into() }
    }

    /// The seed of the flow with `peer`; none if its address family is not ours.
    #[inline]
    pub(crate) fn get(&mut self, peer: SocketAddr) -> Option<FlowSeed> {
        let place = self.places.get_mut(place_of(peer) % PLACES)?;
        if let Some((known, seed)) = place
            && *known == peer
        {
            return Some(*seed);
        }
        let flow = match self.direction {
            Direction::In => Flow::new(peer, self.local),
            Direction::Out => Flow::new(self.local, peer),
        }?;
        let seed = FlowSeed::new(&flow);
        *place = Some((peer, seed));
        Some(seed)
    }
}

#[inline]
fn place_of(peer: SocketAddr) -> usize {
    let sum = match peer.ip() {
        IpAddr::V4(ip) => ip.octets().iter().fold(0, |sum, byte| sum * 7 + usize::from(*byte)),
        IpAddr::V6(ip) => ip
            .octets()
            .iter()
            .fold(0_usize, |sum, byte| sum.wrapping_mul(7).wrapping_add(usize::from(*byte))),
    };
    sum.wrapping_add(usize::from(peer.port()).wrapping_mul(31))
}

//! [`SoftFabric`]: endpoints and wires, one pair (a port) for each local address; which of them a
//! connection is of, and where new ones come from.
//!
//! Uses `lariat-roce`'s endpoints for the protocol, a [`Network`] for the packets, and
//! [`RegionTable`] for memory; reactors and I/O queues call it through
//! [`Fabric`](crate::Fabric), whose implementation is in `verbs`.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod traffic;
mod verbs;
mod words;

use core::net::{IpAddr, SocketAddr};
use std::io;

use lariat_roce::endpoint::{Endpoint, EndpointConfig};
use lariat_roce::transmit::Transmit;
use lariat_roce::verbs::{CmEvent, ConnId, ListenerId};
use lariat_wire::rocev2::UDP_PORT;

use self::traffic::TRANSMIT_BATCH;
use super::knocks::Knocks;
use super::network::{BindError, Network, Route, SoftConfig, Source, Wire, WireCounters};
use crate::error::StaleHandle;
use crate::random::Random;
use crate::regions::RegionTable;

/// The top byte of a connection's number says which port it belongs to.
const PORT_SHIFT: u32 = 56;
const CONN_MASK: u64 = (1 << PORT_SHIFT) - 1;
const MAX_PORTS: usize = 256;

/// One local address: the protocol and the socket.
struct Port<W> {
    endpoint: Endpoint,
    wire: W,
    /// Taken from the endpoint, not yet sent.
    outgoing: Vec<Transmit>,
}

/// A soft RoCEv2 provider over a network.
pub struct SoftFabric<N: Network> {
    network: N,
    config: SoftConfig,
    ports: Vec<Port<N::Wire>>,
    /// The port whose completions are taken first: each in turn, or a busy one would use up the
    /// budget of all.
    first_port: usize,
    /// By number: the port and the endpoint's own number. A closed one leaves its place empty.
    listeners: Vec<Option<(usize, ListenerId)>>,
    regions: RegionTable,
    random: Random,
    wire_counters: WireCounters,
    /// Who waits for the answer to a REQ.
    knocks: Knocks,
}

impl<N: Network> core::fmt::Debug for SoftFabric<N> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let addresses: Vec<_> = self.ports.iter().map(|port| port.wire.local()).collect();
        f.debug_struct("SoftFabric")
            .field("network", &self.network.name())
            .field("addresses", &addresses)
            .field("regions", &self.regions)
            .finish_non_exhaustive()
    }
}

fn stale() -> StaleHandle {
    StaleHandle { what: "connection" }
}

impl<N: Network> SoftFabric<N> {
    /// A fabric over `network`, without addresses yet. Its keys and numbers come from `random`.
    #[must_use]
    pub fn new(network: N, config: &SoftConfig, mut random: Random) -> Self {
        Self {
            network,
            config: config.clone(),
            ports: Vec::new(),
            first_port: 0,
            listeners: Vec::new(),
            regions: RegionTable::new(random.fork()),
            random,
            wire_counters: WireCounters::default(),
            knocks: Knocks::default(),
        }
    }

    /// The local UDP addresses that are open, in the order of opening.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        self.ports.iter().map(|port| port.wire.local())
    }

    /// The network.
    pub fn network(&self) -> &N {
        &self.network
    }

    /// The memory regions.
    #[must_use]
    pub fn regions(&self) -> &RegionTable {
        &self.regions
    }

    /// What the wires counted.
    #[must_use]
    pub fn wire_counters(&self) -> WireCounters {
        self.wire_counters
    }

    /// Connections that take up memory, those that are still saying good-bye included.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.ports.iter().map(|port| port.endpoint.connections()).sum()
    }

    fn add_port(&mut self, wire: N::Wire) -> io::Result<usize> {
        let index = self.ports.len();
        if index == MAX_PORTS {
            return Err(io::Error::other(format!("{MAX_PORTS} local addresses are open")));
        }
        // A locally administered EUI-64 (the bit of weight 2 in its first byte).
        let guid = u64::from(self.random.next_u32()?) << 32 | u64::from(self.random.next_u32()?);
        let guid = guid & !(3 << PORT_SHIFT) | 2 << PORT_SHIFT;
        let seed = self.random.next_seed()?;
        let mut config = EndpointConfig::new(wire.local(), guid, seed);
        config.member = self.network.member();
        config.max_inflight_bytes = self.config.max_inflight_bytes.min(wire.window_bytes());
        config.ack_hold = self.config.ack_hold;
        config.rto_floor = self.config.min_rto;
        self.ports.push(Port {
            endpoint: Endpoint::new(config),
            wire,
            outgoing: Vec::with_capacity(TRANSMIT_BATCH),
        });
        Ok(index)
    }

    /// The port to listen at.
    fn listening_port(&mut self, ip: IpAddr) -> Result<usize, BindError> {
        let wanted = SocketAddr::new(ip, UDP_PORT);
        if let Some(index) = self.ports.iter().position(|port| port.wire.local() == wanted) {
            return Ok(index);
        }
        let wire = self.network.open_listening(ip)?;
        self.add_port(wire).map_err(|source| BindError::Io { ip, source })
    }

    /// The port to reach a peer from.
    fn connecting_port(&mut self, route: Route, remote: SocketAddr) -> Result<usize, BindError> {
        let fits = |local: IpAddr| match route.source {
            Source::Address(ip) => local == ip,
            Source::AnyLoopback => {
                matches!(local, IpAddr::V4(ip) if ip.is_loopback()) && local != remote.ip()
            }
        };
        if let Some(index) = self.ports.iter().position(|port| fits(port.wire.local().ip())) {
            return Ok(index);
        }
        let wire = self.network.open_connecting(route.source, remote)?;
        let ip = wire.local().ip();
        self.add_port(wire).map_err(|source| BindError::Io { ip, source })
    }

    #[inline]
    fn port_of(&self, conn: ConnId) -> Option<(&Port<N::Wire>, ConnId)> {
        let (index, conn) = parts(conn)?;
        Some((self.ports.get(index)?, conn))
    }

    #[inline]
    fn port_mut(&mut self, conn: ConnId) -> Option<(&mut Port<N::Wire>, ConnId, &RegionTable)> {
        let (index, conn) = parts(conn)?;
        Some((self.ports.get_mut(index)?, conn, &self.regions))
    }

    fn listener_number(&self, port: usize, inner: ListenerId) -> Option<ListenerId> {
        let place = self.listeners.iter().position(|known| *known == Some((port, inner)))?;
        u32::try_from(place).ok().map(ListenerId)
    }

    /// An endpoint's event in this fabric's numbers.
    fn own_event(&self, port: usize, mut event: CmEvent) -> Option<CmEvent> {
        let (CmEvent::Resolved { conn }
        | CmEvent::ConnectRequest { conn, .. }
        | CmEvent::Established { conn, .. }
        | CmEvent::ConnectFailed { conn, .. }
        | CmEvent::Disconnected { conn, .. }) = &mut event;
        *conn = tagged(port, *conn);
        if let CmEvent::ConnectRequest { listener, .. } = &mut event {
            *listener = self.listener_number(port, *listener)?;
        }
        Some(event)
    }
}

/// A connection's port and the endpoint's own number.
#[inline]
fn parts(conn: ConnId) -> Option<(usize, ConnId)> {
    Some((usize::try_from(conn.0 >> PORT_SHIFT).ok()?, ConnId(conn.0 & CONN_MASK)))
}

#[inline]
fn tagged(port: usize, conn: ConnId) -> ConnId {
    ConnId((port as u64) << PORT_SHIFT | conn.0 & CONN_MASK)
}

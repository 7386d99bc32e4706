//! The verbs, each handed to the port that it is for. Called through [`Fabric`]; calls the endpoints,
//! `traffic` and [`RegionTable`](crate::RegionTable).

use core::net::SocketAddr;
use core::time::Duration;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use lariat_roce::endpoint::{EndpointError, RouteInfo};
use lariat_roce::time::Timestamp;
use lariat_roce::verbs::{
    Access, CmEvent, ConnId, ConnectParams, DeviceLimits, DomainId, ListenerId, PostError,
    PostErrorKind, QpConfig, RecvRequest, RegionId, SendRequest, SharedReceiveId, WorkCompletion,
};
use lariat_wire::rocev2::{Rkey, UDP_PORT};

use super::traffic::Acks;
use super::{CONN_MASK, PORT_SHIFT, SoftFabric, stale, tagged, words};
use crate::error::{CmError, ListenError, QpError, RegisterError, ResolveError, StaleHandle};
use crate::fabric::{Armed, Fabric, FabricCounters, Path};
use crate::memory::Memory;
use crate::soft::network::{BindError, Network, Wire};
use crate::soft::{fetching, knocks};

/// When to offer packets again that found no room in the network.
const BLOCKED_RETRY: Duration = Duration::from_micros(50);

fn cm_error(error: EndpointError) -> CmError {
    match error {
        EndpointError::UnknownConnection => stale().into(),
        EndpointError::PrivateData { given, limit } => CmError::PrivateData { given, limit },
        other => CmError::Io(io::Error::other(other)),
    }
}

fn qp_error(error: EndpointError) -> QpError {
    match error {
        EndpointError::UnknownConnection => stale().into(),
        EndpointError::NoSharedReceive => StaleHandle { what: "shared receive queue" }.into(),
        EndpointError::Limit { what, wanted, limit } => QpError::Limit { what, wanted, limit },
        other => QpError::Io(io::Error::other(other)),
    }
}

/// A shared receive queue as its endpoint calls it.
fn inner(shared: SharedReceiveId) -> SharedReceiveId {
    SharedReceiveId(shared.0 & CONN_MASK)
}

impl<N: Network> Fabric for SoftFabric<N> {
    fn name(&self) -> &'static str {
        self.network.name()
    }

    fn open_domain(&mut self) -> Result<DomainId, RegisterError> {
        self.regions.open_domain()
    }

    fn register(
        &mut self,
        domain: DomainId,
        memory: Arc<Memory>,
        access: Access,
    ) -> Result<RegionId, RegisterError> {
        self.regions.register(domain, memory, access)
    }

    fn deregister(&mut self, region: RegionId) -> Result<(), StaleHandle> {
        self.regions.deregister(region)
    }

    fn rkey(&self, conn: ConnId, region: RegionId) -> Result<Rkey, StaleHandle> {
        let (port, conn) = self.port_of(conn).ok_or_else(stale)?;
        let domain = port.endpoint.domain(conn).ok().flatten().ok_or_else(stale)?;
        self.regions.rkey(domain, region)
    }

    fn listen(&mut self, address: SocketAddr) -> Result<ListenerId, ListenError> {
        let index = self.listening_port(address.ip()).map_err(|error| match error {
            BindError::InUse { holder, .. } => ListenError::InUse { address, holder },
            BindError::NotLocal { .. } => ListenError::NotLocal { address },
            BindError::Io { source, .. } => ListenError::Io { address, source },
        })?;
        let gone = || ListenError::Io { address, source: io::ErrorKind::NotFound.into() };
        let port = self.ports.get_mut(index).ok_or_else(gone)?;
        let inner = port.endpoint.listen(address.port()).map_err(|error| match error {
            EndpointError::PortInUse { .. } => {
                ListenError::InUse { address, holder: "this process itself".to_owned() }
            }
            other => ListenError::Io { address, source: io::Error::other(other) },
        })?;
        let number = u32::try_from(self.listeners.len()).map_err(|_| gone())?;
        self.listeners.push(Some((index, inner)));
        Ok(ListenerId(number))
    }

    fn close_listener(&mut self, listener: ListenerId) {
        let place = self.listeners.get_mut(listener.0 as usize).and_then(Option::take);
        if let Some((port, inner)) = place
            && let Some(port) = self.ports.get_mut(port)
        {
            port.endpoint.close_listener(inner);
        }
    }

    fn resolve(
        &mut self,
        now: Timestamp,
        remote: SocketAddr,
        _timeout: Duration,
    ) -> Result<ConnId, ResolveError> {
        let no_route = |reason: String| ResolveError::NoRoute { remote, reason };
        let route = self.network.route(remote).map_err(|error| no_route(error.to_string()))?;
        let index = self.connecting_port(route, remote).map_err(|error| match error {
            BindError::Io { source, .. } => ResolveError::Io { remote, source },
            other => no_route(other.to_string()),
        })?;
        let gone = || ResolveError::Io { remote, source: io::ErrorKind::NotFound.into() };
        let port = self.ports.get_mut(index).ok_or_else(gone)?;
        let peer = SocketAddr::new(remote.ip().to_canonical(), UDP_PORT);
        self.network.agree(&mut port.wire, peer).map_err(no_route)?;
        let info = RouteInfo { local_ip: port.wire.local().ip(), path_mtu: route.path_mtu };
        let conn = port.endpoint.resolve(now, remote, info);
        let conn =
            conn.map_err(|error| ResolveError::Io { remote, source: io::Error::other(error) })?;
        Ok(tagged(index, conn))
    }

    fn limits(&self, conn: ConnId) -> Result<DeviceLimits, StaleHandle> {
        let (port, conn) = self.port_of(conn).ok_or_else(stale)?;
        port.endpoint.limits(conn).map_err(|_| stale())
    }

    fn create_qp(&mut self, conn: ConnId, config: &QpConfig) -> Result<(), QpError> {
        if !self.regions.has_domain(config.domain) {
            return Err(StaleHandle { what: "protection domain" }.into());
        }
        let place = conn.0 >> PORT_SHIFT;
        let mut config = *config;
        if let Some(shared) = &mut config.shared_receive {
            if shared.0 >> PORT_SHIFT != place {
                return Err(StaleHandle { what: "shared receive queue of its device" }.into());
            }
            *shared = inner(*shared);
        }
        let (port, conn, _) = self.port_mut(conn).ok_or_else(stale)?;
        port.endpoint.create_qp(conn, &config).map_err(qp_error)
    }

    fn connect(
        &mut self,
        now: Timestamp,
        conn: ConnId,
        params: &ConnectParams,
        timeout: Duration,
    ) -> Result<(), CmError> {
        let (port, inner, _) = self.port_mut(conn).ok_or_else(stale)?;
        port.endpoint.connect(now, inner, params, timeout).map_err(cm_error)?;
        if self.network.can_knock() {
            self.knocks.add(now, conn);
        }
        self.transmit(now, Acks::All);
        Ok(())
    }

    fn accept(
        &mut self,
        now: Timestamp,
        conn: ConnId,
        params: &ConnectParams,
    ) -> Result<(), CmError> {
        let (port, inner) = self.port_of(conn).ok_or_else(stale)?;
        let local_ip = port.wire.local().ip();
        let remote = port.endpoint.remote(inner).map_err(cm_error)?;
        let route = self.network.route(remote).map_err(CmError::Io)?;
        let info = RouteInfo { local_ip, path_mtu: route.path_mtu };
        let (port, inner, _) = self.port_mut(conn).ok_or_else(stale)?;
        port.endpoint.accept(now, inner, params, info).map_err(cm_error)?;
        self.transmit(now, Acks::All);
        Ok(())
    }

    fn reject(&mut self, now: Timestamp, conn: ConnId, private_data: &[u8]) -> Result<(), CmError> {
        let (port, conn, _) = self.port_mut(conn).ok_or_else(stale)?;
        port.endpoint.reject(now, conn, private_data).map_err(cm_error)?;
        self.transmit(now, Acks::All);
        Ok(())
    }

    fn disconnect(&mut self, now: Timestamp, conn: ConnId) -> Result<(), CmError> {
        let (port, conn, _) = self.port_mut(conn).ok_or_else(stale)?;
        port.endpoint.disconnect(now, conn).map_err(cm_error)?;
        self.transmit(now, Acks::All);
        Ok(())
    }

    fn destroy(&mut self, now: Timestamp, conn: ConnId) {
        if let Some((port, conn, _)) = self.port_mut(conn) {
            port.endpoint.destroy(now, conn);
            // Packets that found no room may be of this connection: let them be lost.
            port.outgoing.clear();
            self.transmit(now, Acks::All);
        }
    }

    #[inline]
    fn post_recv(&mut self, conn: ConnId, requests: &[RecvRequest]) -> Result<(), PostError> {
        let none = PostError { index: 0, kind: PostErrorKind::NoQueuePair };
        let (port, conn, regions) = self.port_mut(conn).ok_or(none)?;
        port.endpoint.post_recv(conn, requests, regions)
    }

    #[inline]
    fn create_shared_receive(
        &mut self,
        conn: ConnId,
        domain: DomainId,
        entries: u32,
    ) -> Result<SharedReceiveId, QpError> {
        if !self.regions.has_domain(domain) {
            return Err(StaleHandle { what: "protection domain" }.into());
        }
        let place = conn.0 >> PORT_SHIFT << PORT_SHIFT;
        let (port, conn, _) = self.port_mut(conn).ok_or_else(stale)?;
        if !port.endpoint.contains(conn) {
            return Err(stale().into());
        }
        let made = port.endpoint.create_shared_receive(domain, entries).map_err(qp_error)?;
        Ok(SharedReceiveId(place | made.0))
    }

    fn can_share(&self, conn: ConnId, shared: SharedReceiveId) -> bool {
        conn.0 >> PORT_SHIFT == shared.0 >> PORT_SHIFT
            && self.port_of(conn).is_some_and(|(port, conn)| {
                port.endpoint.contains(conn) && port.endpoint.has_shared_receive(inner(shared))
            })
    }

    fn post_shared_receive(
        &mut self,
        shared: SharedReceiveId,
        requests: &[RecvRequest],
    ) -> Result<(), PostError> {
        let none = PostError { index: 0, kind: PostErrorKind::NoSharedReceive };
        let (port, _, regions) = self.port_mut(ConnId(shared.0)).ok_or(none)?;
        port.endpoint.post_shared_receive(inner(shared), requests, regions)
    }

    fn destroy_shared_receive(&mut self, shared: SharedReceiveId) -> bool {
        match self.port_mut(ConnId(shared.0)) {
            Some((port, _, _)) => port.endpoint.destroy_shared_receive(inner(shared)),
            None => true,
        }
    }

    fn post_send(&mut self, conn: ConnId, requests: &[SendRequest]) -> Result<(), PostError> {
        let none = PostError { index: 0, kind: PostErrorKind::NoQueuePair };
        let (port, conn, regions) = self.port_mut(conn).ok_or(none)?;
        port.endpoint.post_send(conn, requests, regions)
    }

    fn flush(&mut self, now: Timestamp) {
        self.transmit(now, Acks::All);
    }

    #[inline]
    fn poll(
        &mut self,
        now: Timestamp,
        budget: usize,
        completions: &mut Vec<WorkCompletion>,
        events: &mut Vec<CmEvent>,
    ) {
        self.turn(now, budget, completions, events);
    }

    fn arm(&mut self, now: Timestamp) -> Armed {
        for port in &mut self.ports {
            port.endpoint.send_held_acks(now);
        }
        self.transmit(now, Acks::All);
        let mut until = self.knocks.next();
        let mut ready = self.network.arm();
        for port in &mut self.ports {
            ready |= port.wire.arm();
            if port.outgoing.is_empty() {
                ready |= port.endpoint.has_output();
            } else {
                until = until.min(now + BLOCKED_RETRY);
            }
            until = until.min(port.endpoint.next_timeout());
        }
        if ready || until <= now { Armed::Ready } else { Armed::Until(until) }
    }

    fn wait_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.network.wait_fds()
    }

    fn diagnose(&self, conn: ConnId) -> Option<String> {
        let knocked = self.knocks.refusal(conn);
        let (port, conn) = self.port_of(conn)?;
        let local = port.wire.local();
        let remote = port.endpoint.remote(conn).ok().map(|remote| remote.ip());
        let own = remote.filter(|ip| *ip == local.ip() || ip.is_loopback());
        let knocked = knocked.filter(|_| !port.endpoint.is_answered(conn));
        if let Some((peer, errno)) = remote.zip(knocked) {
            return Some(knocks::in_words(peer, own.is_some(), errno));
        }
        let unusual = match own {
            Some(ip) => Some(words::at_home(ip, local, self.network.holder(ip))),
            None if local.port() == UDP_PORT => None,
            None => Some(words::beside(local, self.network.holder(local.ip()))),
        };
        let refused = port.wire.refusal().filter(|(to, _)| remote == Some(*to));
        let refused = refused.map(|(to, errno)| words::refused(to, errno));
        match (refused, unusual) {
            (Some(refused), Some(unusual)) => Some(format!("{refused}; {unusual}")),
            (refused, unusual) => refused.or(unusual),
        }
    }

    fn path(&self, conn: ConnId) -> Option<Path> {
        let (port, conn) = self.port_of(conn)?;
        port.wire.path(port.endpoint.remote(conn).ok()?)
    }

    fn fetching_pays_from(&self, conn: ConnId) -> Option<u32> {
        let (port, conn) = self.port_of(conn)?;
        let remote = port.endpoint.remote(conn).ok()?;
        if !port.wire.favours_equal_packets(remote) {
            return None;
        }
        // On the same host nothing takes time but the two ends themselves.
        let same_host = remote.ip() == port.wire.local().ip();
        let round_trip = port.endpoint.shortest_round_trip(conn)?;
        Some(fetching::pays_from(if same_host { Duration::ZERO } else { round_trip }))
    }

    fn peer_ended(&self, conn: ConnId) -> bool {
        self.port_of(conn).is_some_and(|(port, conn)| port.endpoint.peer_ended(conn))
    }

    fn silent_since(&self, conn: ConnId) -> Option<Timestamp> {
        let (port, conn) = self.port_of(conn)?;
        port.endpoint.silent_since(conn)
    }

    fn counters(&self) -> FabricCounters {
        let wire = self.wire_counters;
        let mut sum = FabricCounters {
            packets_sent: wire.packets_sent,
            packets_received: wire.packets_received,
            send_calls: wire.send_calls,
            receive_calls: wire.receive_calls,
            malformed: wire.malformed,
            bad_icrc: wire.bad_icrc,
            shm_packets_sent: wire.shm_packets_sent,
            shm_packets_received: wire.shm_packets_received,
            ..FabricCounters::default()
        };
        for port in &self.ports {
            let own = port.endpoint.counters();
            sum.retransmissions += own.retransmissions;
            sum.unknown_queue_pair += own.unknown_queue_pair + own.wrong_peer;
            sum.malformed += own.bad_pkey + own.bad_qkey + own.bad_mad;
            sum.naks_sent += own.naks_sent;
            sum.naks_received += own.naks_received;
            sum.congestion_marks += own.congestion_marks;
        }
        sum
    }
}

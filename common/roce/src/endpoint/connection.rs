//! Connections: how they come into the endpoint's table, are found, and leave it.
//!
//! Called by the verbs, by `messages` and by `traffic`.

use core::net::{IpAddr, SocketAddr};

use lariat_wire::rocev2::cm::{CommId, Rej};

use super::{Endpoint, EndpointError};
use crate::cm::{Exchange, Setup, State};
use crate::qp::QueuePair;
use crate::verbs::{CmEvent, ConnId, DomainId};

/// Bits of a [`ConnId`] that hold the slot; the generation stands above them.
const SLOT_BITS: u32 = 20;
/// All bits of a [`ConnId`] that the endpoint uses; the provider has the rest.
const ID_BITS: u32 = 56;

/// One connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: ConnId,
    /// Whether the caller still has the handle.
    pub(super) owned: bool,
    /// The peer's rdma_cm address.
    pub(super) service: SocketAddr,
    pub(super) local_ip: IpAddr,
    pub(super) exchange: Exchange,
    pub(super) qp: Option<QueuePair>,
    pub(super) domain: Option<DomainId>,
    /// Whether it stands in the list of those that want to transmit.
    pub(super) ready: bool,
    /// Whether it stands in the list of those that may have completions.
    pub(super) completing: bool,
    /// Whether it stands in the list of those that hold acknowledgements back.
    pub(super) holding: bool,
    /// Whether it was counted as half-open.
    half_open: bool,
    /// Whether the consumer was told that it stands, and that it ended or failed.
    pub(super) told_established: bool,
    pub(super) told_end: bool,
    /// Whether it ended because the peer's process did.
    pub(super) peer_ended: bool,
}

/// IPv4 addresses that come in IPv6 clothes are IPv4; a scope is kept.
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::new(ip.into(), address.port()),
        IpAddr::V6(_) => address,
    }
}

impl Endpoint {
    /// Makes room for a connection and numbers for it; `make` gets the numbers.
    pub(super) fn insert(
        &mut self,
        service: SocketAddr,
        local_ip: IpAddr,
        make: impl FnOnce(Setup, u64) -> Exchange,
    ) -> Result<usize, EndpointError> {
        let limit = self.config.max_connections.min(self.numbers.slots());
        if self.conns.len() >= limit as usize && !self.evict() {
            return Err(EndpointError::TooManyConnections { limit });
        }
        let slot = self.conns.vacant_key();
        let key = u32::try_from(slot).unwrap_or(u32::MAX);
        let (qpn, comm_id) = self.numbers.assign(key);
        let local = Setup { comm_id, qpn, psn: self.numbers.psn() };
        let exchange = make(local, self.numbers.transaction());
        self.generation = (self.generation + 1) & ((1 << (ID_BITS - SLOT_BITS)) - 1);
        let id = ConnId((self.generation << SLOT_BITS) | u64::from(key));
        Ok(self.conns.insert(Connection {
            id,
            owned: true,
            service,
            local_ip,
            exchange,
            qp: None,
            domain: None,
            ready: false,
            completing: false,
            holding: false,
            half_open: false,
            told_established: false,
            told_end: false,
            peer_ended: false,
        }))
    }

    /// Gives up a connection that only says good-bye, so that another can have its place.
    fn evict(&mut self) -> bool {
        if self.orphans == 0 {
            return false;
        }
        let Some((slot, _)) = self.conns.iter().find(|(_, conn)| !conn.owned) else {
            return false;
        };
        self.remove(slot);
        true
    }

    /// The slot of a handle.
    pub(super) fn slot_of(&self, conn: ConnId) -> Result<usize, EndpointError> {
        let slot = usize::try_from(conn.0 & ((1 << SLOT_BITS) - 1)).unwrap_or(usize::MAX);
        match self.conns.get(slot) {
            Some(entry) if entry.id == conn && entry.owned => Ok(slot),
            _ => Err(EndpointError::UnknownConnection),
        }
    }

    /// The connection behind a handle.
    pub(super) fn conn(&self, conn: ConnId) -> Result<&Connection, EndpointError> {
        self.conns.get(self.slot_of(conn)?).ok_or(EndpointError::UnknownConnection)
    }

    /// The connection that a message from `source` names by our id.
    pub(super) fn find_comm(&mut self, source: IpAddr, comm: CommId) -> Option<usize> {
        let slot = self.numbers.slot_of_comm(comm)?;
        let conn = self.conns.get(slot)?;
        if conn.exchange.local().comm_id != comm || conn.exchange.state() == State::Closed {
            return None;
        }
        if conn.exchange.remote().ip() != source {
            self.counters.wrong_peer += 1;
            return None;
        }
        Some(slot)
    }

    /// The connection that a REJ from `source` is of which names it by the peer's id alone. The GUID
    /// goes with it (IBTA 12.6.7.2, reason 4); without, the id must leave no doubt.
    pub(super) fn find_withdrawn(&self, source: IpAddr, rej: &Rej) -> Option<usize> {
        let id = rej.local_comm_id.0;
        let guid = (usize::from(rej.info_len_bytes) >= size_of::<u64>())
            .then(|| rej.additional_info.first_chunk().copied().map(u64::from_be_bytes))
            .flatten();
        let named = guid.and_then(|guid| self.by_remote_id.get(&(source, id, guid)));
        let mut all = self.by_remote_id.range((source, id, 0)..=(source, id, u64::MAX));
        let only = all.next().filter(|_| all.next().is_none()).map(|(_, slot)| slot);
        named.or(only).copied()
    }

    /// Enters what the peer calls the connection in the directories.
    pub(super) fn register(&mut self, slot: usize) {
        if let Some(conn) = self.conns.get(slot) {
            let exchange = &conn.exchange;
            let (ip, guid) = (exchange.remote().ip(), exchange.remote_guid());
            self.by_remote_id.insert((ip, exchange.remote_id().0, guid), slot);
            self.by_peer_qp.insert((ip, guid, exchange.remote_qpn().get()), slot);
        }
    }

    fn unregister_qp(&mut self, slot: usize) {
        if let Some(conn) = self.conns.get(slot) {
            let exchange = &conn.exchange;
            let key = (exchange.remote().ip(), exchange.remote_guid(), exchange.remote_qpn().get());
            if self.by_peer_qp.get(&key) == Some(&slot) {
                self.by_peer_qp.remove(&key);
            }
        }
    }

    fn unregister(&mut self, slot: usize) {
        self.unregister_qp(slot);
        if let Some(conn) = self.conns.get(slot) {
            let exchange = &conn.exchange;
            let key = (exchange.remote().ip(), exchange.remote_id().0, exchange.remote_guid());
            if self.by_remote_id.get(&key) == Some(&slot) {
                self.by_remote_id.remove(&key);
            }
        }
    }

    /// Brings everything in line with the state of a connection's exchange after it may have
    /// moved: directories, counts, the timer; removes it if nobody needs it any more.
    pub(super) fn settle(&mut self, slot: usize) {
        let Some(conn) = self.conns.get_mut(slot) else { return };
        let state = conn.exchange.state();
        let half_open = state.is_half_open();
        if half_open != conn.half_open {
            conn.half_open = half_open;
            if half_open {
                self.half_open += 1;
            } else {
                self.half_open -= 1;
            }
        }
        let over = !conn.owned && state == State::Closed;
        match state {
            State::Closed => self.unregister(slot),
            State::TimeWait => self.unregister_qp(slot),
            _ => {}
        }
        if over {
            self.remove(slot);
        } else {
            self.touch(slot);
        }
    }

    /// The caller gave the handle back: what is left only says good-bye.
    pub(super) fn disown(&mut self, slot: usize) {
        let Some(conn) = self.conns.get_mut(slot) else { return };
        if conn.owned {
            conn.owned = false;
            self.orphans += 1;
            let id = conn.id;
            self.events.retain(|event| event_conn(event) != id);
        }
        if let Some(mut qp) = conn.qp.take() {
            self.counters.add(qp.counters());
            if let Some(shared) = qp.shared_receive() {
                self.shared.left(shared, &mut qp);
            }
        }
    }

    /// Frees a slot.
    pub(super) fn remove(&mut self, slot: usize) {
        self.disown(slot);
        self.unregister(slot);
        self.timers.set(u32::try_from(slot).unwrap_or(u32::MAX), crate::time::Timestamp::NEVER);
        if let Some(conn) = self.conns.try_remove(slot) {
            self.orphans -= 1;
            if conn.half_open {
                self.half_open -= 1;
            }
            // A list may still name the slot; whoever takes it from there finds nothing to do, but
            // its next owner must not be listed twice.
            if conn.ready {
                self.ready.retain(|listed| *listed != slot);
            }
            if conn.completing {
                self.completing.retain(|listed| *listed != slot);
            }
            if conn.holding {
                self.holding.retain(|listed| *listed != slot);
            }
        }
    }
}

/// The connection that an event is of.
pub(super) fn event_conn(event: &CmEvent) -> ConnId {
    match event {
        CmEvent::Resolved { conn }
        | CmEvent::ConnectRequest { conn, .. }
        | CmEvent::Established { conn, .. }
        | CmEvent::ConnectFailed { conn, .. }
        | CmEvent::Disconnected { conn, .. } => *conn,
    }
}

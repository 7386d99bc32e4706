//! Connections come and go: accept and reject, the end, and the order in which memory is given
//! back at the end.
//!
//! A connection is destroyed when the fabric has nothing more to say about it (or did not in time)
//! *and* the storage has completed every operation on its buffers. Until then its requests keep
//! their slots and buffers, so that neither side ever touches memory that went to somebody else.
//! Called by the reactor's turn.

use core::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use lariat_fabric::verbs::{Access, CmEvent, ConnId, ConnectParams, PrivateData, QpConfig};
use lariat_fabric::{Fabric, Timestamp};
use lariat_wire::nvme::QueueSize;
use lariat_wire::rdma_cm::{ConnectAccept, ConnectReject, RejectStatus};

use super::arena::Piece;
use super::connection::{Agreement, Connection, Phase, Receives, Role};
use super::reactor::{Reactor, key_of};
use super::request::State;
use super::shared::SharedKey;
use super::wr_id::MAX_CONNECTIONS;
use crate::storage::Storage;

/// Transport retries that we ask for, the most there are: how long a peer may be silent is a
/// matter of its timeout, and of keep-alive.
const RETRIES: u8 = 7;

/// One in so many request slots, bytes of receive buffers and connections is for admin queues alone.
const ADMIN_SHARE: u64 = 8;

/// The part of the receive buffers, in eighths, that one address can hold for connections on which
/// no Fabrics Connect was accepted yet, with I/O queues and with all: who only knocks must not keep
/// others out.
const KNOCKING_EIGHTHS: (u64, u64) = (6, 7);

/// What a connection has to leave of something: a part of everything is kept for admin queues, since
/// a host with many queues must not keep others from reaching the target at all.
fn kept_for_admin(all: u64, agreement: &Agreement) -> u64 {
    if agreement.qid.is_admin() { 0 } else { all / ADMIN_SHARE }
}

impl<F: Fabric, S: Storage> Reactor<F, S> {
    pub(super) fn on_event(&mut self, now: Timestamp, event: &CmEvent) {
        match *event {
            CmEvent::ConnectRequest {
                conn,
                peer,
                responder_resources,
                initiator_depth,
                private_data,
                ..
            } => {
                let offered = (responder_resources, initiator_depth);
                match self.accept(now, conn, peer.ip(), offered, private_data.as_bytes()) {
                    Ok(agreement) => {
                        self.stats.accepted += 1;
                        tracing::debug!(%peer, qid = %agreement.qid, entries = agreement.entries, "accepted");
                    }
                    Err(status) => self.refuse(now, conn, peer, status),
                }
            }
            CmEvent::Established { conn, initiator_depth, .. } => {
                let Some(&key) = self.by_id.get(&conn) else { return };
                if let Some(connection) = self.connections.get_mut(key as usize) {
                    connection.established = true;
                    connection.read_depth = connection.read_depth.min(initiator_depth);
                    if initiator_depth == 0 {
                        self.violation(now, key, "the peer allows no RDMA READ");
                    }
                }
            }
            CmEvent::ConnectFailed { conn, failure } => {
                tracing::debug!(?failure, "a connection was not established");
                self.over(now, conn, "it was not established");
            }
            CmEvent::Disconnected { conn, reason } => {
                tracing::debug!(?reason, "disconnected");
                self.over(now, conn, "the fabric disconnected it");
            }
            // We never connect actively.
            CmEvent::Resolved { .. } => self.stats.anomalies += 1,
        }
    }

    fn accept(
        &mut self,
        now: Timestamp,
        id: ConnId,
        peer: IpAddr,
        offered: (u8, u8),
        private_data: &[u8],
    ) -> Result<Agreement, RejectStatus> {
        let none = RejectStatus::NO_RESOURCES;
        if self.drain_deadline.is_some() {
            return Err(none);
        }
        let device = self.fabric.limits(id).map_err(|_| none)?;
        if device.read_sink_needs_remote_write && !self.config.read_sinks_remotely_writable {
            tracing::warn!("the device needs remotely writable buffers; this is not configured");
            return Err(none);
        }
        let limits = &self.config.limits;
        let agreement =
            Agreement::new(private_data, offered, limits, &device, self.config.read_depth)?;
        let may_share = self.config.shared_receive
            && !agreement.qid.is_admin()
            && device.max_shared_receives > 0
            && self.registry.guests().knows(peer);
        let shared = if may_share { self.shared_for(now, id, &agreement, &device) } else { None };
        // It has to be there still when another connection made room.
        if let Some(shared) = shared {
            self.shared.enter(shared);
        }
        let accepted = self.accept_from(now, (id, peer), agreement, shared);
        if let (Err(_), Some(shared)) = (&accepted, shared) {
            self.leave_shared(shared);
        }
        accepted
    }

    fn accept_from(
        &mut self,
        now: Timestamp,
        (id, peer): (ConnId, IpAddr),
        agreement: Agreement,
        shared: Option<SharedKey>,
    ) -> Result<Agreement, RejectStatus> {
        let none = RejectStatus::NO_RESOURCES;
        let receive_bytes = if shared.is_some() { 0 } else { Receives::bytes_needed(&agreement) };
        let knocking_bytes = receive_bytes.saturating_add(self.knocking_bytes(peer));
        let (io, all) = KNOCKING_EIGHTHS;
        let eighths = if agreement.qid.is_admin() { all } else { io };
        if knocking_bytes > self.arena.most_bytes() / 8 * eighths {
            tracing::debug!(%peer, knocking_bytes, "too many connections without Fabrics Connect");
            return Err(none);
        }
        let receives = loop {
            match self.take_room(now, &agreement, shared) {
                Some(receives) => break receives,
                None if self.drop_unanswered(now) => {}
                None => return Err(none),
            }
        };
        let config = QpConfig {
            domain: self.regions.domain,
            max_send: agreement.max_send(),
            max_recv: agreement.receives,
            shared_receive: shared.and_then(|shared| self.shared.id(shared)),
            // What the host's region does not hold is the host's fault, and its memory alone.
            divide_writes: true,
        };
        let timeout = self.config.connect_timeout;
        let receives = (receives, shared);
        let mut connection = Connection::new((id, peer), agreement, receives, now, timeout);
        connection.agreement.may_invalidate &= self.config.remote_invalidate;
        let key = key_of(self.connections.vacant_key());
        match self.bring_up(now, &mut connection, key, &config) {
            Ok(()) => {
                self.slots_promised += agreement.slots;
                self.by_id.insert(id, key);
                self.connections.insert(connection);
                self.pool.join(key, peer, agreement.class(), agreement.slots);
                Ok(agreement)
            }
            Err(error) => {
                tracing::warn!(error = &*error, "a connection cannot be accepted");
                if let Some(piece) = connection.receives.into_piece() {
                    self.arena.release(piece);
                }
                Err(none)
            }
        }
    }

    /// Receive buffers for a connection, if there is room for it in every respect.
    fn take_room(
        &mut self,
        now: Timestamp,
        agreement: &Agreement,
        shared: Option<SharedKey>,
    ) -> Option<Receives> {
        let most = self.config.max_connections.min(MAX_CONNECTIONS) as usize;
        let share = |all| kept_for_admin(all, agreement);
        let kept = share(most as u64);
        if self.connections.len() as u64 + kept >= most as u64 {
            tracing::debug!(limit = most, "no connections are left");
            return None;
        }
        let slots = self.config.max_requests.saturating_sub(self.slots_promised);
        let kept = share(u64::from(self.config.max_requests));
        if u64::from(slots) < u64::from(agreement.slots) + kept {
            tracing::debug!(limit = self.config.max_requests, "no request slots are left");
            return None;
        }
        if let Some(shared) = shared {
            return self.shared.receives(shared);
        }
        let piece = self.take_receives(now, agreement, Receives::bytes_needed(agreement))?;
        let chunk = piece.chunk();
        let (Some(memory), Some(&region)) =
            (self.arena.memory(chunk), self.regions.receive.get(usize::from(chunk)))
        else {
            self.arena.release(piece);
            return None;
        };
        let place = (piece, Arc::clone(memory), region);
        Some(Receives::new(place, agreement.in_capsule_bytes))
    }

    /// A part of the receive buffers, of which there may be more than before.
    pub(super) fn take_receives(
        &mut self,
        now: Timestamp,
        agreement: &Agreement,
        receive_bytes: u64,
    ) -> Option<Piece> {
        let free = self.arena.free_bytes();
        let kept = kept_for_admin(self.arena.most_bytes(), agreement);
        if free < receive_bytes.saturating_add(kept) {
            tracing::debug!(free, kept, "no receive buffers are left");
            return None;
        }
        if let Some(piece) = self.arena.take(receive_bytes) {
            return Some(piece);
        }
        match self.grow(receive_bytes) {
            Ok(()) => self.arena.take(receive_bytes),
            Err(error) => {
                if let Some(unsaid) = self.growth_failures.due(now) {
                    tracing::warn!(error = &*error, unsaid, "there are no more receive buffers");
                }
                None
            }
        }
    }

    /// More memory for receive buffers, known to the fabric and to the storage.
    fn grow(&mut self, bytes: u64) -> Result<(), Box<dyn core::error::Error>> {
        let memory = self.arena.allocate_more(bytes)?;
        let domain = self.regions.domain;
        let region = self.fabric.register(domain, Arc::clone(&memory), Access::LOCAL)?;
        self.regions.receive.push(region);
        self.storage.add_buffer(Arc::clone(&memory));
        tracing::info!(bytes = memory.len(), "more receive buffers, for many queues");
        self.arena.add(memory);
        Ok(())
    }

    /// Ends the connection whose peer has owed an answer to our acceptance for longest, if it had
    /// its grace: requests in others' names are never answered, and must not keep out who is there.
    fn drop_unanswered(&mut self, now: Timestamp) -> bool {
        let unanswered = self.connections.iter().filter(|(_, connection)| {
            connection.is_live() && !connection.established && connection.in_storage == 0
        });
        let oldest = unanswered.min_by_key(|(_, connection)| connection.unanswered_grace);
        let Some((at, connection)) = oldest else { return false };
        if now < connection.unanswered_grace {
            return false;
        }
        let key = key_of(at);
        self.stats.unanswered += 1;
        self.close(now, key, "its peer never answered, and another needs the place");
        self.destroy(now, key);
        true
    }

    fn bring_up(
        &mut self,
        now: Timestamp,
        connection: &mut Connection,
        key: u32,
        config: &QpConfig,
    ) -> Result<(), Box<dyn core::error::Error>> {
        let agreement = connection.agreement;
        self.fabric.create_qp(connection.id, config)?;
        if connection.shared.is_none() {
            for index in 0..agreement.receives {
                connection.recycle(key, index);
            }
            self.fabric.post_recv(connection.id, &connection.to_receive)?;
            connection.to_receive.clear();
        }
        let size = QueueSize::from_entries(agreement.entries).unwrap_or(QueueSize::MIN_LEGAL);
        let private_data = ConnectAccept::new(size).to_bytes();
        let params = ConnectParams {
            responder_resources: agreement.responder_resources,
            initiator_depth: agreement.initiator_depth,
            retry_count: RETRIES,
            rnr_retry_count: RETRIES,
            private_data: PrivateData::new(&private_data).unwrap_or(PrivateData::EMPTY),
        };
        self.fabric.accept(now, connection.id, &params)?;
        Ok(())
    }

    /// The receive buffers, in bytes, that connections of a host hold before Fabrics Connect.
    fn knocking_bytes(&self, peer: IpAddr) -> u64 {
        let knocking = self.connections.iter().filter(|(_, connection)| {
            connection.peer == peer && matches!(connection.role, Role::Fresh | Role::Connecting)
        });
        knocking.map(|(_, connection)| connection.receives.own_bytes()).sum()
    }

    fn refuse(&mut self, now: Timestamp, id: ConnId, peer: SocketAddr, status: RejectStatus) {
        self.stats.rejected += 1;
        // Whoever asks again and again must not fill the log.
        if let Some(unsaid) = self.refusals.due(now) {
            tracing::info!(%peer, %status, unsaid, "connection refused");
        }
        if let Err(error) = self.fabric.reject(now, id, &ConnectReject { status }.to_bytes()) {
            tracing::debug!(%error, "the refusal was not sent");
        }
        // Nothing may be left of a half-made connection; a handle that is gone is ignored.
        self.fabric.destroy(now, id);
    }

    /// The peer broke the transport's rules.
    pub(super) fn violation(&mut self, now: Timestamp, key: u32, what: &'static str) {
        self.stats.violations += 1;
        self.close(now, key, what);
    }

    /// Starts the end of a connection.
    pub(super) fn close(&mut self, now: Timestamp, key: u32, why: &'static str) {
        let Some(connection) = self.connections.get_mut(key as usize) else { return };
        if !connection.is_live() {
            return;
        }
        tracing::debug!(qid = %connection.agreement.qid, why, "closing a connection");
        let id = connection.id;
        let deadline = self.close_deadline(now, id);
        let phase = match self.fabric.disconnect(now, id) {
            Ok(()) => Phase::Closing { deadline },
            Err(_) => Phase::Closed,
        };
        self.abandon(now, key, phase);
    }

    /// The fabric says that a connection is no more.
    fn over(&mut self, now: Timestamp, id: ConnId, why: &'static str) {
        let Some(&key) = self.by_id.get(&id) else { return };
        let Some(connection) = self.connections.get_mut(key as usize) else { return };
        if connection.is_live() {
            tracing::debug!(qid = %connection.agreement.qid, why, "a connection ended");
            self.abandon(now, key, Phase::Closed);
        } else {
            connection.phase = Phase::Closed;
        }
    }

    /// Gives back all that neither the fabric nor the storage holds.
    fn abandon(&mut self, now: Timestamp, key: u32, phase: Phase) {
        let Some(connection) = self.connections.get_mut(key as usize) else { return };
        connection.phase = phase;
        self.closing += 1;
        // The end of an admin queue is the end of its controller. An I/O queue keeps its identifier
        // until its last operation has left the storage, so that a successor cannot overtake it.
        if matches!(connection.role, Role::Admin(_)) {
            connection.role = Role::Gone;
        }
        connection.guest = None;
        connection.note_storage_done();
        for capsule in connection.parked.drain(..) {
            if let Some(shared) = connection.shared {
                self.shared.give_back(shared, capsule.receive);
            }
        }
        connection.ready.clear();
        connection.read_queue.clear();
        connection.to_receive.clear();
        let requests = &self.requests;
        let others = |slot: u32| {
            requests.get(slot as usize).is_some_and(|request| request.connection != key)
        };
        self.pool.forget(key);
        self.storage_queue.retain(|&slot| others(slot));
        self.waiting_connects.retain(|&slot| others(slot));
        // From the end, because a freed slot's place is taken by the last one.
        let mut at = connection.requests.len();
        while at > 0 {
            at -= 1;
            let slot = self.connections.get(key as usize).and_then(|c| c.requests.get(at)).copied();
            let Some(slot) = slot else { continue };
            let Some(request) = self.requests.get_mut(slot as usize) else { continue };
            match request.state() {
                State::InStorage => {
                    self.stats.orphaned += 1;
                    request.advance(now, State::Orphaned, &mut self.stats);
                }
                State::Fetching | State::Sending | State::Orphaned => {}
                _ => {
                    self.stats.orphaned += 1;
                    self.free(now, slot);
                }
            }
        }
    }

    /// Destroys the connections that nobody holds any more. Says whether there were any.
    pub(super) fn reap(&mut self, now: Timestamp) -> bool {
        if self.closing == 0 {
            return false;
        }
        let mut any = false;
        for at in 0..self.connections.capacity() {
            let Some(connection) = self.connections.get(at) else { continue };
            let over = match connection.phase {
                Phase::Live => false,
                Phase::Closing { deadline } => now >= deadline,
                Phase::Closed => true,
            };
            if over && connection.in_storage == 0 {
                self.destroy(now, key_of(at));
                any = true;
            }
        }
        any
    }

    fn destroy(&mut self, now: Timestamp, key: u32) {
        let Some(id) = self.connections.get(key as usize).map(|connection| connection.id) else {
            return;
        };
        // After this the fabric touches nothing of it.
        self.fabric.destroy(now, id);
        while let Some(slot) =
            self.connections.get(key as usize).and_then(|c| c.requests.last()).copied()
        {
            self.stats.orphaned += 1;
            self.free(now, slot);
        }
        let connection = self.connections.remove(key as usize);
        self.by_id.remove(&id);
        self.slots_promised -= connection.agreement.slots;
        if let Some(shared) = connection.shared {
            self.leave_shared(shared);
        }
        if let Some(piece) = connection.receives.into_piece() {
            self.arena.release(piece);
        }
        self.pool.leave(key);
        self.closing -= 1;
        self.stats.closed += 1;
    }

    /// Ends a request: its slot, buffer and receive are free again.
    pub(super) fn free(&mut self, now: Timestamp, slot: u32) {
        let Some(mut request) = self.requests.try_remove(slot as usize) else {
            self.stats.anomalies += 1;
            return;
        };
        request.advance(now, State::Done, &mut self.stats);
        if let Some(buffer) = request.buffer.take() {
            self.pool.release(buffer);
        }
        if request.ranges.capacity() > 0 {
            self.spare_ranges.push(core::mem::take(&mut request.ranges));
        }
        let Some(connection) = self.connections.get_mut(request.connection as usize) else {
            self.stats.anomalies += 1;
            return;
        };
        let position = request.position as usize;
        if connection.requests.get(position) == Some(&slot) {
            connection.requests.swap_remove(position);
            if let Some(&moved) = connection.requests.get(position)
                && let Some(moved) = self.requests.get_mut(moved as usize)
            {
                moved.position = request.position;
            }
        } else {
            self.stats.anomalies += 1;
        }
        if let Some(receive) = request.receive {
            self.give_back(request.connection, receive);
        }
    }

    /// Notes that a connection has something to post.
    pub(super) fn list(&mut self, key: u32) {
        if let Some(connection) = self.connections.get_mut(key as usize)
            && !connection.listed
        {
            connection.listed = true;
            self.listed.push(key);
        }
    }
}

//! The connection manager's datagrams: which connection each is for, and what follows from it.
//!
//! Called by `traffic`; calls the exchanges of `cm`.

use core::net::{IpAddr, SocketAddr};

use lariat_wire::rocev2::cm::{CmMad, CmMessage, Gid, Rej, RejReason, Req, TransportService};
use lariat_wire::rocev2::{Opcode, PKey, Packet, QKey};

use super::Endpoint;
use super::connection::canonical;
use crate::cm::{Exchange, Marker, Reaction, Setup, State, reject_request, reply_to_unknown};
use crate::qp::QpFailure;
use crate::time::Timestamp;
use crate::verbs::{CmEvent, ConnectFailure, DisconnectReason, ListenerId, PrivateData};

impl Endpoint {
    /// Takes a packet to queue pair 1.
    pub(super) fn handle_datagram(
        &mut self,
        now: Timestamp,
        source: SocketAddr,
        packet: &Packet<'_>,
    ) {
        let Some(deth) = packet.ext.deth else {
            self.counters.bad_mad += 1;
            return;
        };
        if deth.qkey != QKey::CM {
            self.counters.bad_qkey += 1;
            return;
        }
        if !packet.bth.pkey.matches(PKey::DEFAULT) {
            self.counters.bad_pkey += 1;
            return;
        }
        let mad = match CmMad::parse(packet.payload) {
            Ok(mad) if packet.bth.opcode == Opcode::UdSendOnly => mad,
            _ => {
                self.counters.bad_mad += 1;
                return;
            }
        };
        self.counters.cm_received += 1;
        let source = canonical(source);
        if let CmMessage::Req(req) = &mad.message {
            self.on_req(now, source, &mad, req);
            return;
        }
        let Some((slot, reaction)) = self.dispatch(now, source, &mad) else {
            self.counters.cm_ignored += 1;
            if let Some(reply) = reply_to_unknown(&mad) {
                self.outbox.send(self.reply_address(source, &mad.message), &reply);
            }
            return;
        };
        self.apply(now, slot, reaction);
    }

    /// Hands a message to the exchange it belongs to.
    fn dispatch(
        &mut self,
        now: Timestamp,
        source: SocketAddr,
        mad: &CmMad,
    ) -> Option<(usize, Reaction)> {
        let ip = source.ip();
        let (ours, theirs) = match &mad.message {
            CmMessage::Mra(mra) => (mra.remote_comm_id, None),
            CmMessage::Rej(rej) => (rej.remote_comm_id, None),
            CmMessage::Rep(rep) => (rep.remote_comm_id, None),
            CmMessage::Rtu(rtu) => (rtu.remote_comm_id, Some(rtu.local_comm_id)),
            CmMessage::Dreq(dreq) => (dreq.remote_comm_id, Some(dreq.local_comm_id)),
            CmMessage::Drep(drep) => (drep.remote_comm_id, Some(drep.local_comm_id)),
            CmMessage::Req(_) | CmMessage::Unknown { .. } => return None,
        };
        let mut found = self.find_comm(ip, ours);
        if let (None, CmMessage::Rej(rej)) = (found, &mad.message)
            && ours.0 == 0
        {
            // The active side gave up before it learned our id.
            found = self.find_withdrawn(ip, rej);
        }
        let slot = found?;
        let conn = self.conns.get_mut(slot)?;
        let (config, out) = (&self.config, &mut self.outbox);
        let exchange = &mut conn.exchange;
        if theirs.is_some_and(|theirs| theirs != exchange.remote_id()) {
            return None;
        }
        let transaction = mad.transaction_id();
        let reaction = match &mad.message {
            CmMessage::Mra(mra) => exchange.on_mra(now, mra),
            CmMessage::Rej(rej) => exchange.on_rej(now, config, rej),
            CmMessage::Rep(rep) => {
                if exchange.state() == State::TimeWait {
                    return None;
                }
                exchange.on_rep(config, transaction, rep, out)
            }
            CmMessage::Rtu(_) => {
                exchange.on_late_rtu(out);
                exchange.on_rtu()
            }
            CmMessage::Dreq(dreq) if dreq.remote_qpn == exchange.local().qpn => {
                exchange.on_dreq(now, config, transaction, dreq, out)
            }
            CmMessage::Drep(_) => exchange.on_drep(now, config),
            CmMessage::Dreq(_) | CmMessage::Req(_) | CmMessage::Unknown { .. } => {
                self.counters.cm_ignored += 1;
                Reaction::None
            }
        };
        Some((slot, reaction))
    }

    /// Where an answer to a message without a connection goes.
    fn reply_address(&self, source: SocketAddr, message: &CmMessage) -> SocketAddr {
        let marker = match message {
            CmMessage::Req(req) => Marker::find(&req.private_data),
            CmMessage::Rep(rep) => Marker::find(&rep.private_data),
            CmMessage::Dreq(dreq) => Marker::find(&dreq.private_data),
            _ => None,
        };
        let mut to = source;
        to.set_port(marker.map_or(self.config.peer_udp_port, |marker| marker.udp_port));
        to
    }

    /// Does to queue pair and consumer what follows from a move of the exchange.
    pub(super) fn apply(&mut self, now: Timestamp, slot: usize, reaction: Reaction) {
        match reaction {
            Reaction::None => {}
            Reaction::Established(private_data) => self.establish(now, slot, private_data),
            Reaction::Failed(failure) => {
                self.end(now, slot, |conn| CmEvent::ConnectFailed { conn, failure })
            }
            Reaction::Ended(reason) => {
                // A good-bye may overtake the RTU.
                let told = self.conns.get(slot).is_none_or(|conn| conn.told_established);
                if !told {
                    self.establish(now, slot, PrivateData::EMPTY);
                }
                self.end(now, slot, |conn| CmEvent::Disconnected { conn, reason });
            }
            Reaction::Renumber => self.renumber(now, slot),
        }
        self.settle(slot);
    }

    fn establish(&mut self, now: Timestamp, slot: usize, private_data: PrivateData) {
        let config = &self.config;
        let Some(conn) = self.conns.get_mut(slot) else { return };
        if let Some(qp) = &mut conn.qp {
            // The passive side has done it when it accepted.
            qp.activate(now, &conn.exchange.qp_params(config));
        }
        conn.told_established = true;
        let offer = conn.exchange.offer();
        if conn.owned {
            self.events.push_back(CmEvent::Established {
                conn: conn.id,
                initiator_depth: offer.initiator_depth,
                responder_resources: offer.responder_resources,
                private_data,
            });
        }
        self.register(slot);
    }

    /// Flushes the queue pair and tells the consumer, once.
    pub(super) fn end(
        &mut self,
        now: Timestamp,
        slot: usize,
        event: impl FnOnce(crate::verbs::ConnId) -> CmEvent,
    ) {
        let Some(conn) = self.conns.get_mut(slot) else { return };
        if let Some(qp) = &mut conn.qp {
            qp.fail(now, QpFailure::Closed);
        }
        if !conn.told_end {
            conn.told_end = true;
            if conn.owned {
                self.events.push_back(event(conn.id));
            }
        }
    }

    /// Tries a REQ again under numbers that the peer cannot take for a stale connection's.
    fn renumber(&mut self, now: Timestamp, slot: usize) {
        let (qpn, comm_id) = self.numbers.assign(u32::try_from(slot).unwrap_or(u32::MAX));
        let local = Setup { comm_id, qpn, psn: self.numbers.psn() };
        let transaction = self.numbers.transaction();
        if let Some(conn) = self.conns.get_mut(slot) {
            conn.exchange.restart(now, &self.config, local, transaction, &mut self.outbox);
        }
    }

    /// Sends a DREQ for a connection that stands.
    pub(super) fn send_dreq(&mut self, now: Timestamp, slot: usize) -> bool {
        let transaction = self.numbers.transaction();
        self.conns.get_mut(slot).is_some_and(|conn| {
            conn.exchange.disconnect(now, &self.config, transaction, &mut self.outbox)
        })
    }

    /// Withdraws or refuses what does not stand yet.
    pub(super) fn send_rej(
        &mut self,
        now: Timestamp,
        slot: usize,
        reason: RejReason,
        data: [u8; Rej::PRIVATE_LEN],
    ) -> bool {
        self.conns.get_mut(slot).is_some_and(|conn| {
            conn.exchange.reject(now, &self.config, reason, data, &mut self.outbox)
        })
    }

    /// The queue pair went to ERROR by itself.
    pub(super) fn on_qp_failure(&mut self, now: Timestamp, slot: usize, failure: QpFailure) {
        let Some(conn) = self.conns.get(slot) else { return };
        if conn.told_end {
            return;
        }
        let silent = failure == QpFailure::PeerSilent;
        match conn.exchange.state() {
            State::Established => {
                let reason =
                    if silent { DisconnectReason::Timeout } else { DisconnectReason::Error };
                self.end(now, slot, |conn| CmEvent::Disconnected { conn, reason });
                self.send_dreq(now, slot);
            }
            State::RepSent | State::MraRepReceived => {
                let failure = ConnectFailure::Timeout { waited: core::time::Duration::ZERO };
                self.end(now, slot, |conn| CmEvent::ConnectFailed { conn, failure });
                self.send_rej(now, slot, RejReason::TIMEOUT, [0; Rej::PRIVATE_LEN]);
            }
            _ => {}
        }
        self.settle(slot);
    }

    /// Takes a REQ: an old one again, or a new connection.
    fn on_req(&mut self, now: Timestamp, source: SocketAddr, mad: &CmMad, req: &Req) {
        let ip = source.ip();
        let transaction = mad.transaction_id();
        let key = (ip, req.local_comm_id.0, req.ca_guid);
        if let Some(slot) = self.by_remote_id.get(&key).copied()
            && let Some(conn) = self.conns.get_mut(slot)
        {
            let exchange = &mut conn.exchange;
            if exchange.remote_qpn() == req.local_qpn {
                exchange.on_duplicate_req(now, &self.config, transaction, &mut self.outbox);
                self.settle(slot);
                return;
            }
            // The peer starts its ids anew: whatever it had is gone.
            self.drop_stale(now, slot);
        }
        let mut gid = None;
        let reason = match self.check_req(source, req) {
            Ok((listener, local)) => {
                let stale = (ip, req.ca_guid, req.local_qpn.get());
                if let Some(slot) = self.by_peer_qp.get(&stale).copied() {
                    self.drop_stale(now, slot);
                    self.counters.stale_connections += 1;
                    RejReason::STALE_CONNECTION
                } else if self.admit(now, source, mad, req, listener, local) {
                    return;
                } else {
                    RejReason::NO_QP
                }
            }
            Err(RejReason::INVALID_GID) => {
                gid = Some(Gid::from(self.config.local.ip().to_canonical()));
                RejReason::INVALID_GID
            }
            Err(reason) => reason,
        };
        self.counters.requests_rejected += 1;
        let to = self.reply_address(source, &mad.message);
        self.outbox.send(to, &reject_request(transaction, req.local_comm_id, reason, gid));
    }

    /// What a REQ must say to reach a listener.
    fn check_req(
        &self,
        source: SocketAddr,
        req: &Req,
    ) -> Result<(ListenerId, SocketAddr), RejReason> {
        if req.transport_service != TransportService::Reliable {
            return Err(RejReason::INVALID_TRANSPORT_SERVICE);
        }
        let port = req.service_id.port().ok_or(RejReason::INVALID_SERVICE_ID)?;
        let listener = self.listeners.get(&port).ok_or(RejReason::INVALID_SERVICE_ID)?;
        let ours = self.config.local.ip().to_canonical();
        let is_ours = |address: IpAddr| ours.is_unspecified() || address.to_canonical() == ours;
        if !is_ours(req.primary.remote_gid.into())
            || IpAddr::from(req.primary.local_gid).to_canonical() != source.ip()
        {
            return Err(RejReason::INVALID_GID);
        }
        let header = req.ip_header().map_err(|_| RejReason::CONSUMER)?;
        if !is_ours(header.destination) || header.source.to_canonical() != source.ip() {
            return Err(RejReason::CONSUMER);
        }
        if req.path_mtu().is_none() {
            return Err(RejReason::INVALID_MTU);
        }
        if req.local_qpn.get() < 2 || !req.pkey.matches(PKey::DEFAULT) {
            return Err(RejReason::UNSUPPORTED);
        }
        Ok((*listener, SocketAddr::new(header.destination.to_canonical(), port)))
    }

    /// Makes the passive side of a connection and asks the consumer.
    fn admit(
        &mut self,
        now: Timestamp,
        source: SocketAddr,
        mad: &CmMad,
        req: &Req,
        listener: ListenerId,
        local: SocketAddr,
    ) -> bool {
        let (Some(mtu), Ok(header)) = (req.path_mtu(), req.ip_header()) else { return false };
        if self.half_open >= self.config.cm.max_half_open && !self.drop_unanswered(now) {
            return false;
        }
        let to = self.reply_address(source, &mad.message);
        let mut peer = source;
        peer.set_port(header.source_port);
        let made = self.insert(peer, local.ip(), |setup, _| {
            Exchange::passive(setup, mad.transaction_id(), to, req, mtu)
        });
        let Ok(slot) = made else { return false };
        let mut data = req.ip_private_data();
        Marker::erase(&mut data);
        if let Some(conn) = self.conns.get(slot) {
            self.events.push_back(CmEvent::ConnectRequest {
                conn: conn.id,
                listener,
                peer,
                local,
                responder_resources: req.responder_resources,
                initiator_depth: req.initiator_depth,
                private_data: PrivateData::new(&data).unwrap_or(PrivateData::EMPTY),
            });
        }
        self.register(slot);
        self.settle(slot);
        true
    }

    /// Gives up the connection that has waited longest for its RTU, if it had its grace. Nothing is
    /// sent: whoever is really there asks again.
    fn drop_unanswered(&mut self, now: Timestamp) -> bool {
        if now < self.next_unanswered {
            return false;
        }
        let grace = self.config.cm.half_open_grace;
        let waiting = self
            .conns
            .iter()
            .filter_map(|(slot, conn)| conn.exchange.awaits_rtu_since().map(|since| (since, slot)));
        let Some((since, slot)) = waiting.min() else { return false };
        if since + grace > now {
            // The search is not for every request of a flood.
            self.next_unanswered = since + grace;
            return false;
        }
        let failure = ConnectFailure::Timeout { waited: now.since(since) };
        self.end(now, slot, |conn| CmEvent::ConnectFailed { conn, failure });
        if let Some(conn) = self.conns.get_mut(slot) {
            conn.exchange.abandon();
        }
        self.counters.unanswered_dropped += 1;
        self.settle(slot);
        true
    }

    /// The peer uses the queue pair of this connection for another: it is not alive any more.
    fn drop_stale(&mut self, now: Timestamp, slot: usize) {
        let Some(conn) = self.conns.get(slot) else { return };
        match conn.exchange.state() {
            State::Established => {
                let reason = DisconnectReason::Peer;
                self.end(now, slot, |conn| CmEvent::Disconnected { conn, reason });
                self.send_dreq(now, slot);
            }
            state if state.is_half_open() => {
                let failure = ConnectFailure::Rejected {
                    reason: RejReason::STALE_CONNECTION.0,
                    private_data: PrivateData::EMPTY,
                };
                self.end(now, slot, |conn| CmEvent::ConnectFailed { conn, failure });
                self.send_rej(now, slot, RejReason::STALE_CONNECTION, [0; Rej::PRIVATE_LEN]);
            }
            _ => {}
        }
        self.settle(slot);
    }
}

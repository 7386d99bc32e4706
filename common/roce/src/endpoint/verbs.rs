//! The verbs: what the owner of connections asks for.
//!
//! Called by the providers of `lariat-fabric`; calls the exchanges of `cm` and the queue pairs.

use core::net::SocketAddr;
use core::time::Duration;

use lariat_wire::rocev2::cm::{Rej, RejReason, Rep, Req};

use super::connection::canonical;
use super::{Endpoint, EndpointError, RouteInfo};
use crate::cm::{Exchange, Marker, State};
use crate::memory::Memory;
use crate::qp::{QpFailure, QpSetup, QueuePair};
use crate::time::Timestamp;
use crate::verbs::{
    CmEvent, ConnId, ConnectFailure, ConnectParams, DeviceLimits, DisconnectReason, DomainId,
    ListenerId, PostError, PostErrorKind, QpConfig, RecvRequest, SendRequest, SharedReceiveId,
};

impl Endpoint {
    /// Takes connection requests for `port` (rdma_cm's, IBTA A11.2.1).
    ///
    /// # Errors
    /// Somebody listens there already.
    pub fn listen(&mut self, port: u16) -> Result<ListenerId, EndpointError> {
        if self.listeners.contains_key(&port) {
            return Err(EndpointError::PortInUse { port });
        }
        self.last_listener = self.last_listener.wrapping_add(1);
        let listener = ListenerId(self.last_listener);
        self.listeners.insert(port, listener);
        Ok(listener)
    }

    /// Stops listening. Connections that stand are not touched; undecided requests neither.
    pub fn close_listener(&mut self, listener: ListenerId) {
        self.listeners.retain(|_, listening| *listening != listener);
    }

    /// Makes the active side of a connection to `remote` (address and rdma_cm port) along a known
    /// route. [`CmEvent::Resolved`] follows at once.
    ///
    /// # Errors
    /// Too many connections, or addresses of different families.
    pub fn resolve(
        &mut self,
        _now: Timestamp,
        remote: SocketAddr,
        route: RouteInfo,
    ) -> Result<ConnId, EndpointError> {
        let remote = canonical(remote);
        let local_ip = route.local_ip.to_canonical();
        if remote.is_ipv4() != local_ip.is_ipv4() {
            return Err(EndpointError::AddressFamily);
        }
        let mut to = remote;
        to.set_port(self.config.peer_udp_port);
        let slot = self.insert(remote, local_ip, |setup, transaction| {
            Exchange::active(setup, transaction, to, route.path_mtu)
        })?;
        let conn = self.conns.get(slot).ok_or(EndpointError::UnknownConnection)?.id;
        self.events.push_back(CmEvent::Resolved { conn });
        Ok(conn)
    }

    /// Whether the handle names a connection.
    #[must_use]
    pub fn contains(&self, conn: ConnId) -> bool {
        self.slot_of(conn).is_ok()
    }

    /// The protection domain of a connection's queue pair; none without queue pair.
    ///
    /// # Errors
    /// A stale handle.
    pub fn domain(&self, conn: ConnId) -> Result<Option<DomainId>, EndpointError> {
        Ok(self.conn(conn)?.domain)
    }

    /// Where the datagrams of a connection go (UDP).
    ///
    /// # Errors
    /// A stale handle.
    pub fn remote(&self, conn: ConnId) -> Result<SocketAddr, EndpointError> {
        Ok(self.conn(conn)?.exchange.remote())
    }

    /// The shortest time after which the peer of `conn` has acknowledged something, if it has.
    #[must_use]
    pub fn shortest_round_trip(&self, conn: ConnId) -> Option<Duration> {
        self.conn(conn).ok()?.qp.as_ref()?.shortest_round_trip()
    }

    /// Since when the peer of `conn` owes acknowledgements or READ data without having given any.
    #[must_use]
    pub fn silent_since(&self, conn: ConnId) -> Option<Timestamp> {
        self.conn(conn).ok()?.qp.as_ref()?.silent_since()
    }

    /// The limits of the device.
    ///
    /// # Errors
    /// A stale handle.
    pub fn limits(&self, conn: ConnId) -> Result<DeviceLimits, EndpointError> {
        self.conn(conn).map(|_| self.config.device)
    }

    /// Creates the queue pair of a connection; receives may be posted from now on.
    ///
    /// # Errors
    /// A stale handle, a limit, or there is one already.
    pub fn create_qp(&mut self, conn: ConnId, config: &QpConfig) -> Result<(), EndpointError> {
        let slot = self.slot_of(conn)?;
        let limit = self.config.device.max_queue_depth;
        let max_recv = if config.shared_receive.is_some() { 0 } else { config.max_recv };
        for (what, wanted) in [("max_send", config.max_send), ("max_recv", max_recv)] {
            if wanted > limit {
                return Err(EndpointError::Limit { what, wanted, limit });
            }
        }
        let entry = self.conns.get_mut(slot).ok_or(EndpointError::UnknownConnection)?;
        if entry.qp.is_some() {
            return Err(EndpointError::HasQueuePair);
        }
        let state = entry.exchange.state();
        if !matches!(state, State::Idle | State::ReqReceived | State::MraReqSent) {
            let call = "create a queue pair";
            return Err(EndpointError::WrongState { state: state.describe(), call });
        }
        if let Some(shared) = config.shared_receive {
            self.shared.joined(shared, config.domain)?;
        }
        entry.domain = Some(config.domain);
        entry.qp = Some(QueuePair::new(QpSetup {
            conn,
            qpn: entry.exchange.local().qpn,
            domain: config.domain,
            max_send: config.max_send,
            max_recv,
            shared_receive: config.shared_receive,
            divide_writes: config.divide_writes,
        }));
        Ok(())
    }

    /// Active side: sends the REQ. [`CmEvent::Established`] or [`CmEvent::ConnectFailed`] comes
    /// within `timeout`.
    ///
    /// # Errors
    /// A stale handle, a wrong state, no queue pair, too much private data.
    pub fn connect(
        &mut self,
        now: Timestamp,
        conn: ConnId,
        params: &ConnectParams,
        timeout: Duration,
    ) -> Result<(), EndpointError> {
        let slot = self.slot_of(conn)?;
        // A peer that has to be told our port finds it behind the consumer's data.
        let marker = if self.config.marker().is_needed() { Marker::LEN } else { 0 };
        let limit = Req::IP_PRIVATE_LEN - marker;
        let given = params.private_data.as_bytes().len();
        let (config, out) = (&self.config, &mut self.outbox);
        let entry = self.conns.get_mut(slot).ok_or(EndpointError::UnknownConnection)?;
        let state = entry.exchange.state();
        if state != State::Idle {
            let call = "connect";
            return Err(EndpointError::WrongState { state: state.describe(), call });
        }
        if entry.qp.is_none() {
            return Err(EndpointError::NoQueuePair);
        }
        if given > limit {
            return Err(EndpointError::PrivateData { given, limit });
        }
        let (ip, service) = (entry.local_ip, entry.service);
        entry.exchange.connect(now, config, ip, service, params, timeout, out);
        self.settle(slot);
        Ok(())
    }

    /// Whether the REQ of a connection was sent and the peer has said nothing yet.
    #[must_use]
    pub fn awaits_first_answer(&self, conn: ConnId) -> bool {
        self.conn(conn).is_ok_and(|entry| entry.exchange.state() == State::ReqSent)
    }

    /// Whether the peer has accepted, or asked for patience.
    #[must_use]
    pub fn is_answered(&self, conn: ConnId) -> bool {
        let unanswered = [State::Idle, State::ReqSent, State::Closed];
        self.conn(conn).is_ok_and(|entry| !unanswered.contains(&entry.exchange.state()))
    }

    /// Gives up a connection whose REQ nobody has answered, because the peer is known not to be there:
    /// [`CmEvent::ConnectFailed`] comes now, with the operating system's error number. Others are not
    /// touched.
    pub fn give_up(&mut self, now: Timestamp, conn: ConnId, errno: i32) {
        if !self.awaits_first_answer(conn) {
            return;
        }
        let Ok(slot) = self.slot_of(conn) else { return };
        if let Some(entry) = self.conns.get_mut(slot) {
            entry.exchange.abandon();
        }
        let failure = ConnectFailure::Unreachable { errno };
        self.end(now, slot, |conn| CmEvent::ConnectFailed { conn, failure });
        self.settle(slot);
    }

    /// Passive side: sends the REP. [`CmEvent::Established`] or [`CmEvent::ConnectFailed`] comes.
    ///
    /// # Errors
    /// A stale handle, a wrong state, no queue pair, too much private data, or the peer wants a
    /// path MTU that the route back does not carry.
    pub fn accept(
        &mut self,
        now: Timestamp,
        conn: ConnId,
        params: &ConnectParams,
        route: RouteInfo,
    ) -> Result<(), EndpointError> {
        let slot = self.slot_of(conn)?;
        let (config, out) = (&self.config, &mut self.outbox);
        let entry = self.conns.get_mut(slot).ok_or(EndpointError::UnknownConnection)?;
        let state = entry.exchange.state();
        if !matches!(state, State::ReqReceived | State::MraReqSent) {
            let call = "accept";
            return Err(EndpointError::WrongState { state: state.describe(), call });
        }
        let Some(qp) = &mut entry.qp else { return Err(EndpointError::NoQueuePair) };
        let needed = entry.exchange.peer_is_soft() && config.marker().is_needed();
        let limit = Rep::PRIVATE_LEN - if needed { Marker::LEN } else { 0 };
        let given = params.private_data.as_bytes().len();
        if given > limit {
            return Err(EndpointError::PrivateData { given, limit });
        }
        let (asked, possible) = (entry.exchange.path_mtu(), route.path_mtu);
        if asked > possible {
            entry.told_end = true;
            self.send_rej(now, slot, RejReason::INVALID_MTU, [0; Rej::PRIVATE_LEN]);
            self.settle(slot);
            return Err(EndpointError::PathMtu { asked, possible });
        }
        entry.exchange.accept(now, config, params, out);
        qp.activate(now, &entry.exchange.qp_params(config));
        self.settle(slot);
        Ok(())
    }

    /// Passive side: sends a REJ (reason 28) with at most 148 bytes of private data. The handle is
    /// gone.
    ///
    /// # Errors
    /// A stale handle, a wrong state, too much private data.
    pub fn reject(
        &mut self,
        now: Timestamp,
        conn: ConnId,
        private_data: &[u8],
    ) -> Result<(), EndpointError> {
        let slot = self.slot_of(conn)?;
        let state = self.conn(conn)?.exchange.state();
        let (given, limit) = (private_data.len(), Rej::PRIVATE_LEN);
        let data = lariat_wire::rocev2::cm::private_data(private_data)
            .ok_or(EndpointError::PrivateData { given, limit })?;
        match state {
            State::ReqReceived | State::MraReqSent => {
                self.send_rej(now, slot, RejReason::CONSUMER, data);
            }
            // The peer withdrew its request already.
            State::Closed => {}
            state => {
                let call = "reject";
                return Err(EndpointError::WrongState { state: state.describe(), call });
            }
        }
        self.disown(slot);
        self.settle(slot);
        Ok(())
    }

    /// Ends a connection: flushes what is outstanding, sends the DREQ.
    /// [`CmEvent::Disconnected`] comes when the peer has answered or has been given up.
    ///
    /// # Errors
    /// A stale handle, or there is no connection to end.
    pub fn disconnect(&mut self, now: Timestamp, conn: ConnId) -> Result<(), EndpointError> {
        let slot = self.slot_of(conn)?;
        match self.conn(conn)?.exchange.state() {
            State::Established => {
                if let Some(qp) = self.conns.get_mut(slot).and_then(|entry| entry.qp.as_mut()) {
                    qp.fail(now, QpFailure::Closed);
                }
                self.send_dreq(now, slot);
            }
            State::RepSent | State::MraRepReceived => {
                let reason = DisconnectReason::Local;
                self.end(now, slot, |conn| CmEvent::Disconnected { conn, reason });
                self.send_rej(now, slot, RejReason::CONSUMER, [0; Rej::PRIVATE_LEN]);
            }
            State::DreqSent | State::TimeWait | State::Closed => {}
            state => {
                let call = "disconnect";
                return Err(EndpointError::WrongState { state: state.describe(), call });
            }
        }
        self.settle(slot);
        Ok(())
    }

    /// Frees a connection and its queue pair in any state, without further completions or events.
    /// A peer that is still there is told. A stale handle is ignored.
    pub fn destroy(&mut self, now: Timestamp, conn: ConnId) {
        let Ok(slot) = self.slot_of(conn) else { return };
        let Some(state) = self.conns.get(slot).map(|entry| entry.exchange.state()) else { return };
        self.disown(slot);
        let none = [0; Rej::PRIVATE_LEN];
        match state {
            State::Idle => return self.remove(slot),
            State::ReqSent | State::MraReqReceived => {
                self.send_rej(now, slot, RejReason::TIMEOUT, none);
            }
            State::ReqReceived | State::MraReqSent | State::RepSent | State::MraRepReceived => {
                self.send_rej(now, slot, RejReason::CONSUMER, none);
            }
            State::Established => {
                self.send_dreq(now, slot);
            }
            State::DreqSent | State::TimeWait | State::Closed => {}
        }
        self.settle(slot);
    }

    /// Posts receives, in order.
    ///
    /// # Errors
    /// Which was the first not posted, and why.
    pub fn post_recv<M: Memory>(
        &mut self,
        conn: ConnId,
        requests: &[RecvRequest],
        memory: &M,
    ) -> Result<(), PostError> {
        self.post(conn, requests, |qp, request| qp.post_recv(request, memory))
    }

    /// Makes a receive queue for queue pairs of a domain to share. It ends with
    /// [`Endpoint::destroy_shared_receive`].
    ///
    /// # Errors
    /// More entries than the device's limits say, or too many queues.
    pub fn create_shared_receive(
        &mut self,
        domain: DomainId,
        entries: u32,
    ) -> Result<SharedReceiveId, EndpointError> {
        let limit = self.config.device.max_shared_receives;
        if entries == 0 || entries > limit {
            let what = "shared receives";
            return Err(EndpointError::Limit { what, wanted: entries, limit });
        }
        self.shared.create(domain, entries)
    }

    /// Posts receives to a shared queue, in order.
    ///
    /// # Errors
    /// Which was the first not posted, and why.
    pub fn post_shared_receive<M: Memory>(
        &mut self,
        shared: SharedReceiveId,
        requests: &[RecvRequest],
        memory: &M,
    ) -> Result<(), PostError> {
        let none = PostError { index: 0, kind: PostErrorKind::NoSharedReceive };
        let queue = self.shared.get_mut(shared).ok_or(none)?;
        requests.iter().enumerate().try_for_each(|(index, request)| {
            queue.post(request, memory).map_err(|kind| PostError { index, kind })
        })
    }

    /// Whether a shared receive queue is there.
    #[must_use]
    pub fn has_shared_receive(&self, shared: SharedReceiveId) -> bool {
        self.shared.contains(shared)
    }

    /// Frees a shared receive queue without completions of what is in it. False, and it stays, as
    /// long as a queue pair uses it. A stale handle is ignored.
    pub fn destroy_shared_receive(&mut self, shared: SharedReceiveId) -> bool {
        self.shared.destroy(shared)
    }

    /// Queues send requests, in order. They start with the next [`Endpoint::poll_transmit`].
    ///
    /// # Errors
    /// Which was the first not posted, and why.
    pub fn post_send<M: Memory>(
        &mut self,
        conn: ConnId,
        requests: &[SendRequest],
        memory: &M,
    ) -> Result<(), PostError> {
        self.post(conn, requests, |qp, request| qp.post_send(request, memory))
    }

    fn post<R>(
        &mut self,
        conn: ConnId,
        requests: &[R],
        mut post: impl FnMut(&mut QueuePair, &R) -> Result<(), PostErrorKind>,
    ) -> Result<(), PostError> {
        let none = |_| PostError { index: 0, kind: PostErrorKind::NoQueuePair };
        let slot = self.slot_of(conn).map_err(none)?;
        let qp = self.conns.get_mut(slot).and_then(|entry| entry.qp.as_mut());
        let qp = qp.ok_or_else(|| none(EndpointError::NoQueuePair))?;
        let posted = requests.iter().enumerate().try_for_each(|(index, request)| {
            post(qp, request).map_err(|kind| PostError { index, kind })
        });
        self.touch(slot);
        posted
    }
}

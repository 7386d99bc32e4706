//! One connection's exchange of messages, from either side.
//!
//! Moves along the table of [`State`], repeats what is not answered, and tells the endpoint by
//! [`Reaction`] what follows for the queue pair and the consumer.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use lariat_wire::rocev2::cm::{
    CmMad, CmMessage, CmTimeout, CommId, Dreq, IpCmHeader, Mra, Path, PathMtu, RefersTo, Rej,
    RejReason, Rep, Req, TransportService, private_data, service_id,
};
use lariat_wire::rocev2::{PKey, Psn, QKey, Qpn};

use super::messages::{drep, mra, rej, rtu};
use super::outbox::{MadBytes, Outbox};
use super::{Marker, State, Trigger};
use crate::endpoint::EndpointConfig;
use crate::qp::QpParams;
use crate::time::Timestamp;
use crate::verbs::{ConnectFailure, ConnectParams, DisconnectReason, PrivateData};

/// The longest that a peer's MRAs can hold up the passive side.
const LONGEST_PATIENCE: Duration = Duration::from_secs(60);
/// How often a REQ that meets a stale connection is tried under other numbers.
const STALE_RETRIES: u8 = 3;

/// What follows from a message or from time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reaction {
    /// Nothing.
    None,
    /// The connection stands.
    Established(PrivateData),
    /// It will not come to be.
    Failed(ConnectFailure),
    /// It ended.
    Ended(DisconnectReason),
    /// The peer takes our numbers for those of an older connection: choose others and call
    /// [`Exchange::restart`].
    Renumber,
}

/// The numbers that name our end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Setup {
    pub(crate) comm_id: CommId,
    pub(crate) qpn: Qpn,
    /// The number that the peer's first packet shall have.
    pub(crate) psn: Psn,
}

/// What each end offers: RDMA READs served and wanted, retries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    retry_count: u8,
    rnr_retry_count: u8,
}

/// The state machine of one connection.
#[derive(Debug)]
pub(crate) struct Exchange {
    state: State,
    local: Setup,
    remote_id: CommId,
    remote_qpn: Qpn,
    remote_guid: u64,
    remote_psn: Psn,
    remote: SocketAddr,
    peer_is_soft: bool,
    transaction: u64,
    offer: Offer,
    path_mtu: PathMtu,
    ack_timeout: Duration,
    /// REQ, REP, DREQ: what is sent again; in time-wait, a REJ that may have been lost.
    repeat: Option<MadBytes>,
    interval: Duration,
    deadline: Timestamp,
    retries_left: u8,
    stale_retries_left: u8,
    started: Timestamp,
    give_up_at: Timestamp,
}

impl Exchange {
    /// The active side of a connection to the socket at `remote`.
    pub(crate) fn active(local: Setup, transaction: u64, remote: SocketAddr, mtu: PathMtu) -> Self {
        Self {
            state: State::Idle,
            local,
            remote_id: CommId(0),
            remote_qpn: Qpn::new(0),
            remote_guid: 0,
            remote_psn: Psn::new(0),
            remote,
            peer_is_soft: false,
            transaction,
            offer: Offer::default(),
            path_mtu: mtu,
            ack_timeout: Duration::ZERO,
            repeat: None,
            interval: Duration::ZERO,
            deadline: Timestamp::NEVER,
            retries_left: 0,
            stale_retries_left: STALE_RETRIES,
            started: Timestamp::ZERO,
            give_up_at: Timestamp::NEVER,
        }
    }

    /// The passive side of a connection that `req` asks for.
    pub(crate) fn passive(
        local: Setup,
        transaction: u64,
        remote: SocketAddr,
        req: &Req,
        mtu: PathMtu,
    ) -> Self {
        let mut this = Self::active(local, transaction, remote, mtu);
        this.peer_is_soft = Marker::find(&req.private_data).is_some();
        this.remote_id = req.local_comm_id;
        this.remote_qpn = req.local_qpn;
        this.remote_guid = req.ca_guid;
        this.remote_psn = req.starting_psn;
        this.offer = Offer {
            responder_resources: req.responder_resources,
            initiator_depth: req.initiator_depth,
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
        };
        // 0 is "never"; much less than usual would give up on the first hiccup.
        this.ack_timeout = match req.primary.ack_timeout.code() {
            0 => CmTimeout::from_code(17).duration(),
            code => CmTimeout::from_code(code.max(14)).duration(),
        };
        this.interval = req.local_cm_timeout.duration();
        this.retries_left = req.max_cm_retries;
        this.step(Trigger::ReceiveReq);
        this
    }

    pub(crate) fn state(&self) -> State {
        self.state
    }

    pub(crate) fn local(&self) -> Setup {
        self.local
    }

    pub(crate) fn remote(&self) -> SocketAddr {
        self.remote
    }

    pub(crate) fn remote_id(&self) -> CommId {
        self.remote_id
    }

    pub(crate) fn remote_qpn(&self) -> Qpn {
        self.remote_qpn
    }

    pub(crate) fn remote_guid(&self) -> u64 {
        self.remote_guid
    }

    /// Whether the peer showed our marker.
    pub(crate) fn peer_is_soft(&self) -> bool {
        self.peer_is_soft
    }

    pub(crate) fn path_mtu(&self) -> PathMtu {
        self.path_mtu
    }

    /// What was offered; once the connection stands, what both agreed on.
    pub(crate) fn offer(&self) -> Offer {
        self.offer
    }

    /// When [`Self::on_timeout`] wants to be called.
    pub(crate) fn next_timeout(&self) -> Timestamp {
        self.deadline
    }

    /// What the queue pair is told, once REP was sent or received.
    pub(crate) fn qp_params(&self, config: &EndpointConfig) -> QpParams {
        QpParams {
            initiator_depth: self.offer.initiator_depth,
            responder_resources: self.offer.responder_resources,
            retry_count: self.offer.retry_count,
            rnr_retry_count: self.offer.rnr_retry_count,
            ack_timeout: self.ack_timeout,
            ..config.qp_params(
                self.remote,
                self.remote_qpn,
                self.path_mtu,
                self.remote_psn,
                self.local.psn,
            )
        }
    }

    /// Moves if the table allows it, and says whether it does.
    fn step(&mut self, trigger: Trigger) -> bool {
        match self.state.after(trigger) {
            Some(next) => {
                self.state = next;
                true
            }
            None => false,
        }
    }

    /// Nothing is repeated any more.
    fn quiet(&mut self) {
        self.repeat = None;
        self.deadline = Timestamp::NEVER;
    }

    fn enter_time_wait(&mut self, now: Timestamp, config: &EndpointConfig) {
        self.repeat = None;
        self.deadline = now + config.cm.time_wait;
    }

    /// Sends the REQ. The caller has checked the length of the private data.
    #[expect(clippy::too_many_arguments, reason = "each is another fact of the REQ")]
    pub(crate) fn connect(
        &mut self,
        now: Timestamp,
        config: &EndpointConfig,
        local_ip: IpAddr,
        service: SocketAddr,
        params: &ConnectParams,
        timeout: Duration,
        out: &mut Outbox,
    ) -> bool {
        if self.state != State::Idle || !self.step(Trigger::SendReq) {
            return false;
        }
        let header = IpCmHeader {
            source_port: config.local.port(),
            source: local_ip,
            destination: service.ip(),
        };
        let mut consumer =
            private_data(params.private_data.as_bytes()).unwrap_or([0; Req::IP_PRIVATE_LEN]);
        if params.private_data.as_bytes().len() + Marker::LEN <= consumer.len() {
            config.marker().put(&mut consumer);
        }
        self.offer = Offer {
            // 0 would let the kernel accept, and then never read from us.
            responder_resources: params.responder_resources.max(1),
            initiator_depth: params.initiator_depth,
            retry_count: params.retry_count.min(7),
            rnr_retry_count: params.rnr_retry_count.min(7),
        };
        self.ack_timeout = config.ack_timeout.duration();
        let req = Req {
            local_comm_id: self.local.comm_id,
            service_id: service_id(service.port()),
            ca_guid: config.ca_guid,
            qkey: QKey(0),
            local_qpn: self.local.qpn,
            responder_resources: self.offer.responder_resources,
            initiator_depth: self.offer.initiator_depth,
            remote_cm_timeout: config.cm.response_timeout,
            transport_service: TransportService::Reliable,
            flow_control: false,
            starting_psn: self.local.psn,
            local_cm_timeout: config.cm.response_timeout,
            retry_count: self.offer.retry_count,
            pkey: PKey::DEFAULT,
            path_mtu_code: self.path_mtu.code(),
            rnr_retry_count: self.offer.rnr_retry_count,
            max_cm_retries: config.cm.max_retries.min(15),
            srq: false,
            extended_transport: 0,
            primary: Path::roce(local_ip, service.ip(), config.ack_timeout),
            alternate: None,
            private_data: Req::private_data_for_ip(&header, consumer),
        };
        self.started = now;
        self.give_up_at = now + timeout;
        self.interval = config.cm.response_timeout.duration();
        self.retries_left = config.cm.max_retries;
        let mad = CmMad::new(self.transaction, CmMessage::Req(Box::new(req)));
        self.repeat = Some(out.send_kept(self.remote, &mad));
        self.set_deadline(now, self.interval);
        true
    }

    /// Sends the REQ again under other numbers, after [`Reaction::Renumber`].
    pub(crate) fn restart(
        &mut self,
        now: Timestamp,
        config: &EndpointConfig,
        local: Setup,
        transaction: u64,
        out: &mut Outbox,
    ) {
        let kept = self.repeat.take().and_then(|bytes| CmMad::parse(bytes.as_slice()).ok());
        if let Some(CmMad { message: CmMessage::Req(mut req), .. }) = kept
            && self.step(Trigger::SendReq)
        {
            self.local = local;
            self.transaction = transaction;
            req.local_comm_id = local.comm_id;
            req.local_qpn = local.qpn;
            req.starting_psn = local.psn;
            self.retries_left = config.cm.max_retries;
            let mad = CmMad::new(transaction, CmMessage::Req(req));
            self.repeat = Some(out.send_kept(self.remote, &mad));
            self.set_deadline(now, self.interval);
        }
    }

    fn set_deadline(&mut self, now: Timestamp, wait: Duration) {
        self.deadline = (now + wait).min(self.give_up_at);
    }

    /// The peer asks for patience.
    pub(crate) fn on_mra(&mut self, now: Timestamp, mra: &Mra) -> Reaction {
        let fits = match self.state {
            State::ReqSent | State::MraReqReceived => mra.refers_to == RefersTo::Req,
            _ => mra.refers_to == RefersTo::Rep && mra.local_comm_id == self.remote_id,
        };
        if fits && self.step(Trigger::ReceiveMra) {
            self.set_deadline(now, mra.service_timeout.duration() + self.interval);
        }
        Reaction::None
    }

    /// The passive side accepted.
    pub(crate) fn on_rep(
        &mut self,
        config: &EndpointConfig,
        transaction: u64,
        rep: &Rep,
        out: &mut Outbox,
    ) -> Reaction {
        if matches!(self.state, State::ReqSent | State::MraReqReceived)
            && rep.local_qpn.get() > 1
            && self.step(Trigger::ReceiveRep)
        {
            self.quiet();
            self.remote_id = rep.local_comm_id;
            self.remote_qpn = rep.local_qpn;
            self.remote_guid = rep.ca_guid;
            self.remote_psn = rep.starting_psn;
            self.offer.initiator_depth = self.offer.initiator_depth.min(rep.responder_resources);
            self.offer.rnr_retry_count = rep.rnr_retry_count;
            let mut data = rep.private_data;
            if let Some(marker) = Marker::find(&data) {
                self.peer_is_soft = true;
                self.remote.set_port(marker.udp_port);
                Marker::erase(&mut data);
            }
            out.send(self.remote, &rtu(transaction, self.local.comm_id, self.remote_id));
            return Reaction::Established(PrivateData::new(&data).unwrap_or(PrivateData::EMPTY));
        }
        if self.remote_id != rep.local_comm_id {
            // A second connection for the same REQ: the peer forgot that it had answered.
            let ids = (rep.remote_comm_id, rep.local_comm_id);
            let reason = RejReason::INVALID_COMM_ID;
            let none = [0; Rej::PRIVATE_LEN];
            let mut to = self.remote;
            to.set_port(
                Marker::find(&rep.private_data).map_or(config.peer_udp_port, |m| m.udp_port),
            );
            out.send(to, &rej(transaction, ids, RefersTo::Rep, reason, &[], none));
        } else if self.state == State::Established {
            // Our RTU was lost.
            out.send(self.remote, &rtu(transaction, self.local.comm_id, self.remote_id));
        }
        Reaction::None
    }

    /// The active side is ready.
    pub(crate) fn on_rtu(&mut self) -> Reaction {
        self.established_by(Trigger::ReceiveRtu)
    }

    /// A packet came on the queue pair: as good as an RTU.
    pub(crate) fn on_data(&mut self) -> Reaction {
        self.established_by(Trigger::ReceiveData)
    }

    fn established_by(&mut self, trigger: Trigger) -> Reaction {
        if !self.step(trigger) {
            return Reaction::None;
        }
        self.quiet();
        Reaction::Established(PrivateData::EMPTY)
    }

    /// The peer said no.
    pub(crate) fn on_rej(
        &mut self,
        now: Timestamp,
        config: &EndpointConfig,
        rej: &Rej,
    ) -> Reaction {
        let before = self.state;
        if matches!(before, State::ReqSent | State::MraReqReceived)
            && rej.reason == RejReason::STALE_CONNECTION
            && self.stale_retries_left > 0
        {
            self.stale_retries_left -= 1;
            return Reaction::Renumber;
        }
        let stood = matches!(before, State::Established | State::DreqSent);
        if (stood && rej.local_comm_id != self.remote_id) || !self.step(Trigger::ReceiveRej) {
            return Reaction::None;
        }
        if stood {
            self.enter_time_wait(now, config);
            let asked = before == State::DreqSent;
            return Reaction::Ended(if asked {
                DisconnectReason::Local
            } else {
                DisconnectReason::Peer
            });
        }
        self.quiet();
        Reaction::Failed(ConnectFailure::Rejected {
            reason: rej.reason.0,
            private_data: PrivateData::new(&rej.private_data).unwrap_or(PrivateData::EMPTY),
        })
    }

    /// The REQ came again.
    pub(crate) fn on_duplicate_req(
        &mut self,
        now: Timestamp,
        config: &EndpointConfig,
        transaction: u64,
        out: &mut Outbox,
    ) {
        match self.state {
            State::ReqReceived | State::MraReqSent => {
                self.step(Trigger::SendMra);
                let (local, patience) = (self.local.comm_id, config.cm.service_timeout);
                out.send(self.remote, &mra(transaction, local, self.remote_id, patience));
            }
            State::RepSent | State::MraRepReceived => {
                if let Some(bytes) = &self.repeat {
                    out.repeat(self.remote, bytes);
                    self.set_deadline(now, self.interval);
                }
            }
            State::TimeWait => match &self.repeat {
                Some(bytes) => out.repeat(self.remote, bytes),
                None => out.send(
                    self.remote,
                    &super::reject_request(
                        transaction,
                        self.remote_id,
                        RejReason::STALE_CONNECTION,
                        None,
                    ),
                ),
            },
            _ => {}
        }
    }

    /// An RTU came when it was too late: say so again.
    pub(crate) fn on_late_rtu(&mut self, out: &mut Outbox) {
        if self.state == State::TimeWait
            && let Some(bytes) = &self.repeat
        {
            out.repeat(self.remote, bytes);
        }
    }

    /// Sends the REP. The caller has checked the length of the private data.
    pub(crate) fn accept(
        &mut self,
        now: Timestamp,
        config: &EndpointConfig,
        params: &ConnectParams,
        out: &mut Outbox,
    ) -> bool {
        if !self.step(Trigger::SendRep) {
            return false;
        }
        self.offer = Offer {
            responder_resources: params.responder_resources.min(self.offer.initiator_depth),
            initiator_depth: params.initiator_depth.min(self.offer.responder_resources),
            ..self.offer
        };
        let given = params.private_data.as_bytes();
        let mut data = private_data(given).unwrap_or([0; Rep::PRIVATE_LEN]);
        if self.peer_is_soft && given.len() + Marker::LEN <= data.len() {
            config.marker().put(&mut data);
        }
        let rep = Rep {
            local_comm_id: self.local.comm_id,
            remote_comm_id: self.remote_id,
            qkey: QKey(0),
            local_qpn: self.local.qpn,
            starting_psn: self.local.psn,
            responder_resources: self.offer.responder_resources,
            initiator_depth: self.offer.initiator_depth,
            target_ack_delay: CmTimeout::from_code(15),
            failover_accepted: 0,
            flow_control: true,
            rnr_retry_count: params.rnr_retry_count.min(7),
            srq: false,
            ca_guid: config.ca_guid,
            private_data: data,
        };
        // Sooner than the peer asked for does no harm; later than we like keeps a place taken.
        let ours = config.cm.response_timeout.duration();
        self.interval = self.interval.clamp(Duration::from_millis(10).min(ours), ours);
        self.started = now;
        self.give_up_at = now + LONGEST_PATIENCE;
        self.repeat =
            Some(out.send_kept(self.remote, &CmMad::new(self.transaction, CmMessage::Rep(rep))));
        self.set_deadline(now, self.interval);
        true
    }

    /// Refuses or withdraws what does not stand yet. In `TimeWait` the REJ is kept for repetition.
    pub(crate) fn reject(
        &mut self,
        now: Timestamp,
        config: &EndpointConfig,
        reason: RejReason,
        data: [u8; Rej::PRIVATE_LEN],
        out: &mut Outbox,
    ) -> bool {
        let (refers_to, ids) = match self.state {
            State::ReqSent | State::MraReqReceived => {
                (RefersTo::Req, (self.local.comm_id, self.remote_id))
            }
            State::RepSent | State::MraRepReceived => {
                (RefersTo::Other, (self.local.comm_id, self.remote_id))
            }
            _ => (RefersTo::Req, (CommId(0), self.remote_id)),
        };
        if !self.step(Trigger::SendRej) {
            return false;
        }
        let guid = config.ca_guid.to_be_bytes();
        let info = if reason == RejReason::TIMEOUT { &guid[..] } else { &[] };
        let mad = rej(self.transaction, ids, refers_to, reason, info, data);
        self.quiet();
        let bytes = out.send_kept(self.remote, &mad);
        if self.state == State::TimeWait {
            self.enter_time_wait(now, config);
            self.repeat = Some(bytes);
        }
        true
    }

    /// Sends the DREQ.
    pub(crate) fn disconnect(
        &mut self,
        now: Timestamp,
        config: &EndpointConfig,
        transaction: u64,
        out: &mut Outbox,
    ) -> bool {
        if !self.step(Trigger::SendDreq) {
            return false;
        }
        let mut data = [0; Dreq::PRIVATE_LEN];
        if self.peer_is_soft {
            config.marker().put(&mut data);
        }
        let dreq = Dreq {
            local_comm_id: self.local.comm_id,
            remote_comm_id: self.remote_id,
            remote_qpn: self.remote_qpn,
            private_data: data,
        };
        let mad = CmMad::new(transaction, CmMessage::Dreq(dreq));
        self.repeat = Some(out.send_last(self.remote, &mad));
        self.interval = config.cm.response_timeout.duration();
        self.retries_left = config.cm.disconnect_retries;
        self.give_up_at = Timestamp::NEVER;
        self.set_deadline(now, self.interval);
        true
    }

    /// The peer says good-bye.
    pub(crate) fn on_dreq(
        &mut self,
        now: Timestamp,
        config: &EndpointConfig,
        transaction: u64,
        dreq: &Dreq,
        out: &mut Outbox,
    ) -> Reaction {
        out.send(self.remote, &drep(transaction, dreq.remote_comm_id, dreq.local_comm_id));
        let asked = self.state == State::DreqSent;
        if !self.step(Trigger::ReceiveDreq) {
            return Reaction::None;
        }
        self.enter_time_wait(now, config);
        Reaction::Ended(if asked { DisconnectReason::Local } else { DisconnectReason::Peer })
    }

    /// The peer agrees to the end.
    pub(crate) fn on_drep(&mut self, now: Timestamp, config: &EndpointConfig) -> Reaction {
        if !self.step(Trigger::ReceiveDrep) {
            return Reaction::None;
        }
        self.enter_time_wait(now, config);
        Reaction::Ended(DisconnectReason::Local)
    }

    /// Repeats what is due, or gives up.
    pub(crate) fn on_timeout(
        &mut self,
        now: Timestamp,
        config: &EndpointConfig,
        out: &mut Outbox,
    ) -> Reaction {
        if now < self.deadline {
            return Reaction::None;
        }
        match self.state {
            State::TimeWait => {
                self.step(Trigger::Expire);
                self.quiet();
                return Reaction::None;
            }
            State::ReqSent
            | State::MraReqReceived
            | State::RepSent
            | State::MraRepReceived
            | State::DreqSent => {}
            _ => {
                self.quiet();
                return Reaction::None;
            }
        }
        if self.retries_left > 0 && now < self.give_up_at {
            self.retries_left -= 1;
            if let Some(bytes) = &self.repeat {
                out.repeat(self.remote, bytes);
            }
            self.set_deadline(now, self.interval);
            return Reaction::None;
        }
        if self.state == State::DreqSent {
            self.step(Trigger::Expire);
            self.enter_time_wait(now, config);
            return Reaction::Ended(DisconnectReason::Local);
        }
        let refers_to = match self.state {
            State::RepSent | State::MraRepReceived => RefersTo::Rep,
            _ => RefersTo::Req,
        };
        let ids = (self.local.comm_id, self.remote_id);
        let info = config.ca_guid.to_be_bytes();
        let none = [0; Rej::PRIVATE_LEN];
        self.step(Trigger::Expire);
        self.quiet();
        out.send(
            self.remote,
            &rej(self.transaction, ids, refers_to, RejReason::TIMEOUT, &info, none),
        );
        Reaction::Failed(ConnectFailure::Timeout { waited: now.since(self.started) })
    }
}

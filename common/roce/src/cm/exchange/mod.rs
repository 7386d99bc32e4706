//! One connection's exchange of messages, from either side.
//!
//! Moves along the table of [`State`], repeats what is not answered, and tells the endpoint by
//! [`Reaction`] what follows for the queue pair and the consumer.

mod active;
mod parting;
mod passive;

use core::net::SocketAddr;
use core::time::Duration;

use lariat_wire::rocev2::cm::{CommId, Mra, PathMtu, RefersTo, Rej, RejReason};
use lariat_wire::rocev2::{Psn, Qpn};

use super::messages::rej;
use super::outbox::{MadBytes, Outbox};
use super::{State, Trigger};
use crate::endpoint::EndpointConfig;
use crate::qp::QpParams;
use crate::time::Timestamp;
use crate::verbs::{ConnectFailure, DisconnectReason, PrivateData};

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

    /// Since when the peer's RTU is waited for.
    pub(crate) fn awaits_rtu_since(&self) -> Option<Timestamp> {
        matches!(self.state, State::RepSent | State::MraRepReceived).then_some(self.started)
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
            gap_hold: if self.peer_is_soft { Duration::ZERO } else { config.gap_hold },
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
    pub(super) fn step(&mut self, trigger: Trigger) -> bool {
        match self.state.after(trigger) {
            Some(next) => {
                self.state = next;
                true
            }
            None => false,
        }
    }

    /// Nothing is repeated any more.
    pub(super) fn quiet(&mut self) {
        self.repeat = None;
        self.deadline = Timestamp::NEVER;
    }

    pub(super) fn enter_time_wait(&mut self, now: Timestamp, config: &EndpointConfig) {
        self.repeat = None;
        self.deadline = now + config.cm.time_wait;
    }

    pub(super) fn set_deadline(&mut self, now: Timestamp, wait: Duration) {
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
        // A REQ is repeated as long as the consumer wants to wait: a count would end that early.
        let asks = matches!(self.state, State::ReqSent | State::MraReqReceived);
        if (asks || self.retries_left > 0) && now < self.give_up_at {
            self.retries_left = self.retries_left.saturating_sub(1);
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

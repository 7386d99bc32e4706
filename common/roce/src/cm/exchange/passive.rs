//! The passive side's own part: REQ in, MRA and REP out, RTU or data in (IBTA 12.9.7.2).
//!
//! Called by the endpoint.

use core::net::SocketAddr;
use core::time::Duration;

use lariat_wire::rocev2::QKey;
use lariat_wire::rocev2::cm::{
    CmMad, CmMessage, CmTimeout, PathMtu, RejReason, Rep, Req, private_data,
};

use super::super::messages::{mra, reject_request};
use super::super::outbox::Outbox;
use super::super::{Marker, State, Trigger};
use crate::endpoint::EndpointConfig;
use crate::time::Timestamp;
use crate::verbs::{ConnectParams, PrivateData};

use super::{Exchange, LONGEST_PATIENCE, Offer, Reaction, Setup};

/// Acknowledge timeouts, 4.096 us * 2^n each: what Linux asks for, and what we go along with.
const USUAL_ACK_TIMEOUT: u8 = 17;
const SHORTEST_ACK_TIMEOUT: u8 = 14;
const LONGEST_ACK_TIMEOUT: u8 = 20;

impl Exchange {
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
        // 0 is "never"; much less than usual would give up on the first hiccup, much more (31 is
        // hours) would keep the places of a peer that is gone.
        let code = match req.primary.ack_timeout.code() {
            0 => USUAL_ACK_TIMEOUT,
            code => code.clamp(SHORTEST_ACK_TIMEOUT, LONGEST_ACK_TIMEOUT),
        };
        this.ack_timeout = CmTimeout::from_code(code).duration();
        this.interval = req.local_cm_timeout.duration();
        this.retries_left = req.max_cm_retries;
        this.step(Trigger::ReceiveReq);
        this
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
                    &reject_request(transaction, self.remote_id, RejReason::STALE_CONNECTION, None),
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
        self.retries_left = self.retries_left.min(config.cm.accept_retries);
        self.started = now;
        self.give_up_at = now + LONGEST_PATIENCE;
        self.repeat =
            Some(out.send_kept(self.remote, &CmMad::new(self.transaction, CmMessage::Rep(rep))));
        self.set_deadline(now, self.interval);
        true
    }

    /// The RTU, or the answer to the REQ, is not waited for any longer.
    pub(crate) fn abandon(&mut self) {
        if self.step(Trigger::Expire) {
            self.quiet();
        }
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
}

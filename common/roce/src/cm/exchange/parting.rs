//! The ends of a connection: rejection, good-bye (IBTA 12.9.8).
//!
//! Called by the endpoint.

use lariat_wire::rocev2::cm::{CmMad, CmMessage, CommId, Dreq, RefersTo, Rej, RejReason};

use super::super::messages::{drep, rej};
use super::super::outbox::Outbox;
use super::super::{State, Trigger};
use crate::endpoint::EndpointConfig;
use crate::time::Timestamp;
use crate::verbs::{ConnectFailure, DisconnectReason, PrivateData};

use super::{Exchange, Reaction};

impl Exchange {
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
}

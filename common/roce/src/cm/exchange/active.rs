//! The active side's own part: REQ out, REP in, RTU out (IBTA 12.9.7.1).
//!
//! Called by the endpoint.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use lariat_wire::rocev2::cm::{
    CmMad, CmMessage, IpCmHeader, Path, RefersTo, Rej, RejReason, Rep, Req, TransportService,
    private_data, service_id,
};
use lariat_wire::rocev2::{PKey, QKey};

use super::super::messages::{rej, rtu};
use super::super::outbox::Outbox;
use super::super::{Marker, State, Trigger};
use crate::endpoint::EndpointConfig;
use crate::time::Timestamp;
use crate::verbs::{ConnectParams, PrivateData};

use super::{Exchange, Offer, Reaction, Setup};

impl Exchange {
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
}

//! One endpoint on a bench: messages of the connection manager go in and come out one by one, and
//! time moves by hand. The peer is the test.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use lariat_roce::endpoint::{Endpoint, EndpointConfig, RouteInfo};
use lariat_roce::time::Timestamp;
use lariat_roce::transmit::{Payload, Transmit};
use lariat_roce::verbs::{
    CmEvent, ConnId, ConnectParams, DomainId, PrivateData, QpConfig, WorkCompletion,
};
use lariat_wire::rocev2::cm::{
    CmMad, CmMessage, CmTimeout, CommId, Dreq, IpCmHeader, Path, PathMtu, RefersTo, Rej, RejReason,
    Rep, Req, Rtu, TransportService, service_id,
};
use lariat_wire::rocev2::{Bth, Deth, Ext, Headers, Opcode, PKey, Packet, Psn, QKey, Qpn};

use super::memory::TestMemory;

pub const US: &str = "10.9.0.1";
pub const PEER: &str = "10.9.0.2";
pub const PORT: u16 = 4420;
pub const PEER_GUID: u64 = 0x0202_0304_0506_0708;
pub const PEER_QPN: Qpn = Qpn::new(0x1234);
pub const PEER_ID: CommId = CommId(0x77);

pub fn ip(address: &str) -> IpAddr {
    address.parse().unwrap()
}

pub struct Lab {
    pub now: Timestamp,
    pub endpoint: Endpoint,
    pub memory: TestMemory,
    pub packets: Vec<Transmit>,
    pub completions: Vec<WorkCompletion>,
    events: Vec<CmEvent>,
}

impl Lab {
    pub fn new(change: impl FnOnce(&mut EndpointConfig)) -> Self {
        let mut config =
            EndpointConfig::new(SocketAddr::new(ip(US), 4791), 0x0a0b_0c0d_0e0f_1011, [3; 32]);
        config.cm.max_retries = 3;
        config.cm.disconnect_retries = 2;
        change(&mut config);
        let mut endpoint = Endpoint::new(config);
        endpoint.listen(PORT).unwrap();
        Self {
            now: Timestamp::from_nanos(1_000_000),
            endpoint,
            memory: TestMemory::default(),
            packets: Vec::new(),
            completions: Vec::new(),
            events: Vec::new(),
        }
    }

    /// Takes out everything; messages are returned, other packets and completions collected.
    pub fn messages(&mut self) -> Vec<(SocketAddr, CmMad)> {
        let mut out = Vec::new();
        while self.endpoint.poll_transmit(self.now, 8, &self.memory, &mut out) == 8 {}
        self.endpoint.poll_completions(usize::MAX, &mut self.completions);
        self.endpoint.poll_events(&mut self.events);
        let mut messages = Vec::new();
        for packet in out {
            if let Payload::Mad(mad) = &packet.payload {
                messages.push((packet.remote, CmMad::parse(mad.as_slice()).unwrap()));
            } else {
                self.packets.push(packet);
            }
        }
        messages
    }

    /// The one message that waits.
    pub fn message(&mut self) -> CmMad {
        let mut messages = self.messages();
        assert_eq!(messages.len(), 1, "{messages:?}");
        messages.remove(0).1
    }

    pub fn silence(&mut self) {
        let messages = self.messages();
        assert!(messages.is_empty(), "{messages:?}");
    }

    /// The events so far.
    pub fn events(&mut self) -> Vec<CmEvent> {
        self.endpoint.poll_completions(usize::MAX, &mut self.completions);
        self.endpoint.poll_events(&mut self.events);
        std::mem::take(&mut self.events)
    }

    pub fn event(&mut self) -> CmEvent {
        let mut events = self.events();
        assert_eq!(events.len(), 1, "{events:?}");
        events.remove(0)
    }

    /// Lets the peer say something.
    pub fn hear(&mut self, message: CmMessage) {
        self.hear_as(ip(PEER), QKey::CM, PKey::DEFAULT, 99, message);
    }

    pub fn hear_as(
        &mut self,
        from: IpAddr,
        qkey: QKey,
        pkey: PKey,
        transaction: u64,
        message: CmMessage,
    ) {
        let bytes = CmMad::new(transaction, message).emit();
        self.hear_bytes(from, qkey, pkey, &bytes);
    }

    pub fn hear_bytes(&mut self, from: IpAddr, qkey: QKey, pkey: PKey, bytes: &[u8]) {
        let mut bth = Bth::new(Opcode::UdSendOnly, Qpn::CM, Psn::new(0));
        bth.pkey = pkey;
        let ext = Ext { deth: Some(Deth { qkey, source_qp: Qpn::CM }), ..Ext::default() };
        let packet = Packet { bth, ext, payload: bytes, icrc: [0; 4] };
        // Soft-RoCE's source port.
        let source = SocketAddr::new(from, 55410);
        self.endpoint.handle_packet(self.now, source, &packet, false, &mut self.memory);
    }

    /// A packet on a queue pair.
    pub fn hear_packet(&mut self, headers: Headers, payload: &[u8]) {
        let packet = Packet { bth: headers.bth, ext: headers.ext, payload, icrc: [0; 4] };
        let source = SocketAddr::new(ip(PEER), 50_000);
        self.endpoint.handle_packet(self.now, source, &packet, false, &mut self.memory);
    }

    /// Moves time and runs the timers on the way, each at its time.
    pub fn wait(&mut self, time: Duration) -> Vec<CmMad> {
        let end = self.now + time;
        let mut messages = Vec::new();
        while self.endpoint.next_timeout() <= end {
            self.now = self.endpoint.next_timeout();
            self.endpoint.handle_timeout(self.now, &mut self.memory);
            messages.extend(self.messages().into_iter().map(|(_, mad)| mad));
        }
        self.now = end;
        messages
    }

    pub fn route() -> RouteInfo {
        RouteInfo { local_ip: ip(US), path_mtu: PathMtu::Mtu1024 }
    }

    pub fn params(data: &[u8]) -> ConnectParams {
        ConnectParams {
            responder_resources: 16,
            initiator_depth: 32,
            retry_count: 7,
            rnr_retry_count: 7,
            private_data: PrivateData::new(data).unwrap(),
        }
    }

    pub fn create_qp(&mut self, conn: ConnId) {
        let config = QpConfig::new(DomainId(1), 16, 16);
        self.endpoint.create_qp(conn, &config).unwrap();
    }

    /// The active side up to its REQ.
    pub fn connect(&mut self, timeout: Duration) -> (ConnId, Box<Req>, u64) {
        let service = SocketAddr::new(ip(PEER), PORT);
        let conn = self.endpoint.resolve(self.now, service, Self::route()).unwrap();
        assert_eq!(self.event(), CmEvent::Resolved { conn });
        self.create_qp(conn);
        self.endpoint.connect(self.now, conn, &Self::params(b"hello"), timeout).unwrap();
        let mad = self.message();
        let transaction = mad.transaction_id();
        let CmMessage::Req(req) = mad.message else { panic!("{mad:?}") };
        (conn, req, transaction)
    }

    /// The active side of a connection that stands.
    pub fn connected(&mut self) -> (ConnId, Box<Req>) {
        let (conn, req, _) = self.connect(Duration::from_secs(10));
        self.hear(CmMessage::Rep(rep(req.local_comm_id)));
        assert!(matches!(self.message().message, CmMessage::Rtu(_)));
        assert!(matches!(self.event(), CmEvent::Established { .. }));
        (conn, req)
    }

    /// The passive side with a request that waits.
    pub fn requested(&mut self) -> ConnId {
        self.hear(CmMessage::Req(Box::new(req())));
        match self.event() {
            CmEvent::ConnectRequest { conn, .. } => conn,
            event => panic!("{event:?}"),
        }
    }

    /// The passive side up to its REP.
    pub fn accepted(&mut self) -> (ConnId, Rep) {
        let conn = self.requested();
        self.create_qp(conn);
        self.endpoint.accept(self.now, conn, &Self::params(b"welcome"), Self::route()).unwrap();
        let mad = self.message();
        assert_eq!(mad.transaction_id(), 99);
        let CmMessage::Rep(rep) = mad.message else { panic!("{mad:?}") };
        (conn, rep)
    }

    /// Nothing is left of anything.
    pub fn is_empty(&self) -> bool {
        self.endpoint.connections() == 0 && self.endpoint.timers() == 0
    }
}

/// A REQ as Linux sends it.
pub fn req() -> Req {
    let header = IpCmHeader { source_port: 40_000, source: ip(PEER), destination: ip(US) };
    let mut data = [0; Req::IP_PRIVATE_LEN];
    data[..4].copy_from_slice(b"nvme");
    Req {
        local_comm_id: PEER_ID,
        service_id: service_id(PORT),
        ca_guid: PEER_GUID,
        qkey: QKey(0),
        local_qpn: PEER_QPN,
        responder_resources: 128,
        initiator_depth: 0,
        remote_cm_timeout: CmTimeout::from_code(20),
        transport_service: TransportService::Reliable,
        flow_control: true,
        starting_psn: Psn::new(0x111),
        local_cm_timeout: CmTimeout::from_code(20),
        retry_count: 7,
        pkey: PKey::DEFAULT,
        path_mtu_code: PathMtu::Mtu1024.code(),
        rnr_retry_count: 7,
        max_cm_retries: 3,
        srq: false,
        extended_transport: 0,
        primary: Path::roce(ip(PEER), ip(US), CmTimeout::from_code(17)),
        alternate: None,
        private_data: Req::private_data_for_ip(&header, data),
    }
}

/// A REP as nvmet sends it.
pub fn rep(to: CommId) -> Rep {
    Rep {
        local_comm_id: PEER_ID,
        remote_comm_id: to,
        qkey: QKey(0),
        local_qpn: PEER_QPN,
        starting_psn: Psn::new(0x222),
        responder_resources: 0,
        initiator_depth: 16,
        target_ack_delay: CmTimeout::from_code(15),
        failover_accepted: 0,
        flow_control: true,
        rnr_retry_count: 7,
        srq: false,
        ca_guid: PEER_GUID,
        private_data: [0; Rep::PRIVATE_LEN],
    }
}

pub fn rtu(to: CommId) -> CmMessage {
    CmMessage::Rtu(Rtu {
        local_comm_id: PEER_ID,
        remote_comm_id: to,
        private_data: [0; Rtu::PRIVATE_LEN],
    })
}

pub fn dreq(to: CommId, qpn: Qpn) -> CmMessage {
    CmMessage::Dreq(Dreq {
        local_comm_id: PEER_ID,
        remote_comm_id: to,
        remote_qpn: qpn,
        private_data: [0; Dreq::PRIVATE_LEN],
    })
}

pub fn rej(from: CommId, to: CommId, reason: RejReason) -> CmMessage {
    CmMessage::Rej(Rej {
        local_comm_id: from,
        remote_comm_id: to,
        refers_to: RefersTo::Req,
        info_len_bytes: 0,
        reason,
        additional_info: [0; Rej::INFO_LEN],
        private_data: [0; Rej::PRIVATE_LEN],
    })
}

/// The rejection that a message is.
pub fn rejection(message: &CmMessage) -> &Rej {
    match message {
        CmMessage::Rej(rej) => rej,
        other => panic!("{other:?}"),
    }
}

//! REQ: the request for a connection, and the path it names.
//!
//! Uses `fields`, `ids`, `types`, `ip`; used by `cm`.

use core::net::IpAddr;

use super::{
    BODY_LEN, CmTimeout, CommId, Gid, IpCmError, IpCmHeader, PathMtu, ServiceId, TransportService,
};
use crate::rocev2::fields::Fields;
use crate::rocev2::{PKey, Psn, QKey, Qpn};

/// Request for communication (IBTA 12.6.5). What only the RD service needs
/// (end-to-end contexts) is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Req {
    /// The sender's name for the connection.
    pub local_comm_id: CommId,
    /// Who is wanted.
    pub service_id: ServiceId,
    /// GUID of the sender's adapter.
    pub ca_guid: u64,
    /// Queue key; zero for connected services.
    pub qkey: QKey,
    /// The sender's queue pair.
    pub local_qpn: Qpn,
    /// RDMA READs and atomics that the sender can serve at a time.
    pub responder_resources: u8,
    /// RDMA READs and atomics that the sender would have outstanding.
    pub initiator_depth: u8,
    /// How long the receiver may take to answer.
    pub remote_cm_timeout: CmTimeout,
    /// The service wanted.
    pub transport_service: TransportService,
    /// Whether the sender does end-to-end flow control.
    pub flow_control: bool,
    /// What the RECEIVER of the REQ shall send first, that is, what the sender
    /// of the REQ expects.
    pub starting_psn: Psn,
    /// How long the sender takes to answer.
    pub local_cm_timeout: CmTimeout,
    /// Retries after timeouts and sequence errors, 3 bits.
    pub retry_count: u8,
    /// Partition key.
    pub pkey: PKey,
    /// The path's MTU as a 4-bit code, see [`Req::path_mtu`].
    pub path_mtu_code: u8,
    /// Retries after "receiver not ready", 3 bits; 7 means without end.
    pub rnr_retry_count: u8,
    /// Repetitions of a connection manager's message, 4 bits.
    pub max_cm_retries: u8,
    /// Whether the sender's queue pair has a shared receive queue.
    pub srq: bool,
    /// Extended transport type, 3 bits.
    pub extended_transport: u8,
    /// The path to use.
    pub primary: Path,
    /// A path to fall back to.
    pub alternate: Option<Path>,
    /// For the consumer; starts with an [`IpCmHeader`] in the IP CM service.
    pub private_data: [u8; Self::PRIVATE_LEN],
}

impl Req {
    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 92;
    /// Bytes of private data that the IP CM service leaves to the consumer.
    pub const IP_PRIVATE_LEN: usize = Self::PRIVATE_LEN - IpCmHeader::LEN;

    /// The path's MTU; none for codes that the specification does not have.
    #[must_use]
    pub const fn path_mtu(&self) -> Option<PathMtu> {
        PathMtu::from_code(self.path_mtu_code)
    }

    /// The IP CM service's header in the private data.
    ///
    /// # Errors
    /// When its versions are not supported.
    pub fn ip_header(&self) -> Result<IpCmHeader, IpCmError> {
        IpCmHeader::parse(&self.private_data.array_at::<0, { IpCmHeader::LEN }>())
    }

    /// The private data that the IP CM service leaves to the consumer.
    #[must_use]
    pub fn ip_private_data(&self) -> [u8; Self::IP_PRIVATE_LEN] {
        self.private_data.array_at::<{ IpCmHeader::LEN }, { Self::IP_PRIVATE_LEN }>()
    }

    /// Private data of the IP CM service: its header, then the consumer's.
    #[must_use]
    pub fn private_data_for_ip(
        header: &IpCmHeader,
        data: [u8; Self::IP_PRIVATE_LEN],
    ) -> [u8; Self::PRIVATE_LEN] {
        let mut out = [0; Self::PRIVATE_LEN];
        out.put_array::<0, { IpCmHeader::LEN }>(header.to_bytes());
        out.put_array::<{ IpCmHeader::LEN }, { Self::IP_PRIVATE_LEN }>(data);
        out
    }

    pub(super) fn parse(body: &[u8; BODY_LEN]) -> Self {
        let service = body.u8_at::<43>();
        let local = body.u8_at::<47>();
        let mtu = body.u8_at::<50>();
        let retries = body.u8_at::<51>();
        let alternate = body.array_at::<96, { Path::LEN }>();
        Self {
            local_comm_id: CommId(body.be32_at::<0>()),
            service_id: ServiceId(body.be64_at::<8>()),
            ca_guid: body.be64_at::<16>(),
            qkey: QKey(body.be32_at::<28>()),
            local_qpn: Qpn::new(body.be24_at::<32>()),
            responder_resources: body.u8_at::<35>(),
            initiator_depth: body.u8_at::<39>(),
            remote_cm_timeout: CmTimeout::from_code(service >> 3),
            transport_service: TransportService::from_code(service >> 1),
            flow_control: service & 1 != 0,
            starting_psn: Psn::new(body.be24_at::<44>()),
            local_cm_timeout: CmTimeout::from_code(local >> 3),
            retry_count: local & 7,
            pkey: PKey(body.be16_at::<48>()),
            path_mtu_code: mtu >> 4,
            rnr_retry_count: mtu & 7,
            max_cm_retries: retries >> 4,
            srq: retries & 8 != 0,
            extended_transport: retries & 7,
            primary: Path::parse(&body.array_at::<52, { Path::LEN }>()),
            alternate: (alternate != [0; Path::LEN]).then(|| Path::parse(&alternate)),
            private_data: body.array_at::<140, { Self::PRIVATE_LEN }>(),
        }
    }

    pub(super) fn to_body(&self) -> [u8; BODY_LEN] {
        let mut out = [0; BODY_LEN];
        out.put_be32::<0>(self.local_comm_id.0);
        out.put_be64::<8>(self.service_id.0);
        out.put_be64::<16>(self.ca_guid);
        out.put_be32::<28>(self.qkey.0);
        out.put_be24::<32>(self.local_qpn.get());
        out.put_u8::<35>(self.responder_resources);
        out.put_u8::<39>(self.initiator_depth);
        out.put_u8::<43>(
            self.remote_cm_timeout.code() << 3
                | self.transport_service.code() << 1
                | u8::from(self.flow_control),
        );
        out.put_be24::<44>(self.starting_psn.get());
        out.put_u8::<47>(self.local_cm_timeout.code() << 3 | (self.retry_count & 7));
        out.put_be16::<48>(self.pkey.0);
        out.put_u8::<50>(self.path_mtu_code << 4 | (self.rnr_retry_count & 7));
        out.put_u8::<51>(
            self.max_cm_retries << 4 | u8::from(self.srq) << 3 | (self.extended_transport & 7),
        );
        out.put_array::<52, { Path::LEN }>(self.primary.to_bytes());
        if let Some(alternate) = &self.alternate {
            out.put_array::<96, { Path::LEN }>(alternate.to_bytes());
        }
        out.put_array::<140, { Self::PRIVATE_LEN }>(self.private_data);
        out
    }
}

/// A path between two ports (IBTA 12.7.9 to 12.7.22, primary and alternate).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Local identifier of the sender's port; ffff in RoCE.
    pub local_lid: u16,
    /// Local identifier of the receiver's port; ffff in RoCE.
    pub remote_lid: u16,
    /// The sender's port.
    pub local_gid: Gid,
    /// The receiver's port.
    pub remote_gid: Gid,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Static rate, 6 bits.
    pub packet_rate: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Service level, 4 bits.
    pub service_level: u8,
    /// Whether both ports are in one subnet.
    pub subnet_local: bool,
    /// How long to wait for the peer's ACK.
    pub ack_timeout: CmTimeout,
}

impl Path {
    const LEN: usize = 44;

    /// A path of RoCEv2, with the values that the kernel sends, too.
    #[must_use]
    pub fn roce(local: IpAddr, remote: IpAddr, ack_timeout: CmTimeout) -> Self {
        Self {
            local_lid: 0xffff,
            remote_lid: 0xffff,
            local_gid: local.into(),
            remote_gid: remote.into(),
            flow_label: 0,
            packet_rate: 0,
            traffic_class: 0,
            hop_limit: 64,
            service_level: 0,
            subnet_local: false,
            ack_timeout,
        }
    }

    fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let service = bytes.u8_at::<42>();
        Self {
            local_lid: bytes.be16_at::<0>(),
            remote_lid: bytes.be16_at::<2>(),
            local_gid: Gid(bytes.array_at::<4, 16>()),
            remote_gid: Gid(bytes.array_at::<20, 16>()),
            flow_label: bytes.be24_at::<36>() >> 4,
            packet_rate: bytes.u8_at::<39>() & 0x3f,
            traffic_class: bytes.u8_at::<40>(),
            hop_limit: bytes.u8_at::<41>(),
            service_level: service >> 4,
            subnet_local: service & 8 != 0,
            ack_timeout: CmTimeout::from_code(bytes.u8_at::<43>() >> 3),
        }
    }

    fn to_bytes(self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out.put_be16::<0>(self.local_lid);
        out.put_be16::<2>(self.remote_lid);
        out.put_array::<4, 16>(self.local_gid.0);
        out.put_array::<20, 16>(self.remote_gid.0);
        out.put_be24::<36>(self.flow_label << 4);
        out.put_u8::<39>(self.packet_rate & 0x3f);
        out.put_u8::<40>(self.traffic_class);
        out.put_u8::<41>(self.hop_limit);
        out.put_u8::<42>(self.service_level << 4 | u8::from(self.subnet_local) << 3);
        out.put_u8::<43>(self.ack_timeout.code() << 3);
        out
    }
}

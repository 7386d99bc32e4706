//! The discovery log page, LID 70h (NVMe Base 2.1, 5.1.12.3.1; RDMA: transport
//! 1.1, 3.3): a header, then an entry for each way to a subsystem. Called by the
//! target's discovery service and the initiator's `discover`.

use core::net::IpAddr;

use crate::ascii;
use crate::endian::{U16Le, U64Le};
use crate::layout::layout;
use crate::nvme::ids::{ControllerId, QueueSize};
use crate::nvme::nqn::{Nqn, NqnError};
use crate::open_enum::open_enum;

/// The record format of today's log pages.
pub const DISCOVERY_RECORD_FORMAT: u16 = 0;

open_enum! {
    /// Transport type (TRTYPE).
    TransportType(u8) {
        PCIE = 0, "PCI Express";
        RDMA = 1, "RDMA";
        FIBRE_CHANNEL = 2, "Fibre Channel";
        TCP = 3, "TCP";
        LOOP = 254, "Intra-host";
    }
}

open_enum! {
    /// Address family (ADRFAM).
    AddressFamily(u8) {
        PCI = 0, "PCI";
        IPV4 = 1, "IPv4";
        IPV6 = 2, "IPv6";
        INFINIBAND = 3, "InfiniBand";
        FIBRE_CHANNEL = 4, "Fibre Channel";
        LOOP = 254, "Intra-host";
    }
}

open_enum! {
    /// Subsystem type (SUBTYPE).
    SubsystemType(u8) {
        REFERRAL = 1, "Referral to another discovery service";
        NVM = 2, "NVM subsystem";
        CURRENT_DISCOVERY = 3, "Current discovery subsystem";
    }
}

open_enum! {
    /// RDMA queue pair service type (RDMA_QPTYPE).
    RdmaQpType(u8) {
        CONNECTED = 1, "Reliable Connected";
        DATAGRAM = 2, "Reliable Datagram";
    }
}

open_enum! {
    /// RDMA provider type (RDMA_PRTYPE).
    RdmaProvider(u8) {
        NOT_SPECIFIED = 1, "Not specified";
        INFINIBAND = 2, "InfiniBand";
        ROCE = 3, "RoCE (v1)";
        ROCE_V2 = 4, "RoCEv2";
        IWARP = 5, "iWARP";
    }
}

open_enum! {
    /// RDMA connection management service (RDMA_CMS).
    RdmaCms(u8) {
        RDMA_CM = 1, "RDMA_IP_CM";
    }
}

layout! {
    /// Header of the log page.
    DiscoveryHeader[1024] {
        /// Generation: changes with the log page's content.
        0 pub generation: U64Le,
        /// Number of entries.
        8 pub entries: U64Le,
        /// Record format, 0.
        16 pub record_format: U16Le,
        18 reserved_18: [u8; 1006],
    }
}

impl DiscoveryHeader {
    /// A header.
    #[must_use]
    pub fn new(generation: u64, entries: u64) -> Self {
        Self { generation: U64Le::new(generation), entries: U64Le::new(entries), ..Self::default() }
    }
}

/// Length of a log page with `entries` entries; `None` when it overflows.
#[must_use]
pub const fn discovery_log_bytes(entries: u64) -> Option<u64> {
    match entries.checked_add(1) {
        Some(records) => records.checked_mul(1024),
        None => None,
    }
}

layout! {
    /// An entry of the log page.
    DiscoveryEntry[1024] {
        /// See [`TransportType`].
        0 pub trtype: u8,
        /// See [`AddressFamily`].
        1 pub adrfam: u8,
        /// See [`SubsystemType`].
        2 pub subtype: u8,
        /// Requirements: bits 1:0 secure channel (1 required, 2 not required),
        /// bit 2 SQ flow control can be disabled.
        3 pub treq: u8,
        /// Port of the subsystem.
        4 pub portid: U16Le,
        /// Controller; FFFFh means the dynamic model.
        6 pub cntlid: U16Le,
        /// Largest admin submission queue in entries, a true count, at least 32.
        8 pub asqsz: U16Le,
        /// Flags.
        10 pub eflags: U16Le,
        12 reserved_12: [u8; 20],
        /// Transport service identifier: for RDMA the port number, ASCII.
        32 pub trsvcid: [u8; 32],
        64 reserved_64: [u8; 192],
        /// Name of the subsystem, NUL-padded.
        256 pub subnqn: [u8; 256],
        /// Transport address, ASCII.
        512 pub traddr: [u8; 256],
        /// See [`RdmaQpType`]; first byte of the transport-specific subtype.
        768 pub rdma_qptype: u8,
        /// See [`RdmaProvider`].
        769 pub rdma_prtype: u8,
        /// See [`RdmaCms`].
        770 pub rdma_cms: u8,
        771 reserved_771: [u8; 5],
        /// Partition key, for InfiniBand.
        776 pub rdma_pkey: U16Le,
        778 reserved_778: [u8; 246],
    }
}

impl DiscoveryEntry {
    /// An entry for a subsystem of the dynamic model at an IP address over
    /// RoCEv2, without a secure channel.
    #[must_use]
    pub fn rdma(kind: SubsystemType, subnqn: &Nqn, address: IpAddr, port: u16) -> Self {
        let family = match address {
            IpAddr::V4(_) => AddressFamily::IPV4,
            IpAddr::V6(_) => AddressFamily::IPV6,
        };
        Self {
            trtype: TransportType::RDMA.0,
            adrfam: family.0,
            subtype: kind.0,
            treq: 2,
            cntlid: U16Le::new(ControllerId::DYNAMIC.0),
            asqsz: U16Le::new(32),
            trsvcid: ascii::padded(&port.to_string()),
            subnqn: subnqn.to_wire_field(),
            traddr: ascii::padded(&address.to_string()),
            rdma_qptype: RdmaQpType::CONNECTED.0,
            rdma_prtype: RdmaProvider::ROCE_V2.0,
            rdma_cms: RdmaCms::RDMA_CM.0,
            ..Self::default()
        }
    }

    /// Transport type.
    #[must_use]
    pub const fn transport(&self) -> TransportType {
        TransportType(self.trtype)
    }

    /// Address family.
    #[must_use]
    pub const fn family(&self) -> AddressFamily {
        AddressFamily(self.adrfam)
    }

    /// Subsystem type.
    #[must_use]
    pub const fn kind(&self) -> SubsystemType {
        SubsystemType(self.subtype)
    }

    /// Transport address as text.
    #[must_use]
    pub fn address(&self) -> String {
        ascii::read_padded(&self.traddr)
    }

    /// Transport service identifier as text.
    #[must_use]
    pub fn service(&self) -> String {
        ascii::read_padded(&self.trsvcid)
    }

    /// The address and port of an entry of IP; `None` when they are not that.
    #[must_use]
    pub fn socket_address(&self) -> Option<core::net::SocketAddr> {
        let address: IpAddr = self.address().parse().ok()?;
        let port = self.service().trim().parse().ok()?;
        Some(core::net::SocketAddr::new(address, port))
    }

    /// Name of the subsystem.
    ///
    /// # Errors
    /// What is wrong with the name.
    pub fn subsystem_nqn(&self) -> Result<Nqn, NqnError> {
        Nqn::from_wire_field(&self.subnqn)
    }

    /// Largest admin queue; `None` for 0.
    #[must_use]
    pub fn admin_queue(&self) -> Option<QueueSize> {
        QueueSize::from_entries(u32::from(self.asqsz.get()))
    }
}

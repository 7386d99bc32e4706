//! The discovery log: one entry for every subsystem that the asking host may use and every address
//! the target listens on (NVMe Base 2.1, 5.1.12.3.1). Called by `log`; the daemon gives the
//! addresses.
//!
//! The discovery subsystem itself is not in its log: hosts that follow such entries would come
//! back to where they are.

use std::net::SocketAddr;

use lariat_wire::nvme::Nqn;
use lariat_wire::nvme::log::{DiscoveryEntry, DiscoveryHeader, RdmaProvider, SubsystemType};

use super::registry::ADMIN_QUEUE_ENTRIES;
use super::subsystem::SubsystemMap;

/// TREQ: no secure channel is required (bits 1:0), and submission queue flow control may be
/// switched off (bit 2).
const REQUIREMENTS: u8 = 0b110;

/// Where the target listens, as hosts shall see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenerAddress {
    /// Address and rdma_cm port. Not an unspecified address (0.0.0.0, ::): hosts could not connect
    /// to it.
    pub address: SocketAddr,
    /// Identifier of the port in the subsystem (PORTID).
    pub port_id: u16,
    /// What RDMA travels as there.
    pub provider: RdmaProvider,
}

/// The log as `host` may see it.
pub(super) fn log_page(map: &SubsystemMap, generation: u64, host: &Nqn) -> Vec<u8> {
    let mut entries = Vec::new();
    let mut count = 0;
    for subsystem in map.subsystems().filter(|one| one.allowed_hosts().allows(host)) {
        for listener in map.listeners() {
            let (address, port) = (listener.address.ip(), listener.address.port());
            let mut entry =
                DiscoveryEntry::rdma(SubsystemType::NVM, subsystem.nqn(), address, port);
            entry.treq = REQUIREMENTS;
            entry.rdma_prtype = listener.provider.0;
            entry.portid.set(listener.port_id);
            entry.asqsz.set(u16::try_from(ADMIN_QUEUE_ENTRIES).unwrap_or(u16::MAX));
            entries.extend_from_slice(entry.as_bytes());
            count += 1;
        }
    }
    let mut page = DiscoveryHeader::new(generation, count).as_bytes().to_vec();
    page.append(&mut entries);
    page
}

//! The discovery log: one entry for every subsystem and listener. Called by `log`; the daemon
//! gives the addresses.

use std::net::{IpAddr, SocketAddr};

/// Address family of a transport address (NVMe Base 2.1, figure of the discovery log entry).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressFamily {
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
}

/// Where the target listens, as hosts shall see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenerAddress {
    /// Address and rdma_cm port.
    pub address: SocketAddr,
    /// Identifier of the port in the subsystem (PORTID).
    pub port_id: u16,
}

impl ListenerAddress {
    /// TRADDR.
    #[must_use]
    pub fn traddr(&self) -> String {
        self.address.ip().to_string()
    }

    /// TRSVCID.
    #[must_use]
    pub fn trsvcid(&self) -> String {
        self.address.port().to_string()
    }

    /// ADRFAM.
    #[must_use]
    pub const fn family(&self) -> AddressFamily {
        match self.address.ip() {
            IpAddr::V4(_) => AddressFamily::Ipv4,
            IpAddr::V6(_) => AddressFamily::Ipv6,
        }
    }
}

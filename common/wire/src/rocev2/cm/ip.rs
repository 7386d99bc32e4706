//! The RDMA IP CM service: TCP-like ports as service IDs, and the IP addresses
//! in a REQ's private data.
//!
//! Uses `fields`; used by `cm` and by the connection manager of `lariat-roce`.

use core::net::{IpAddr, Ipv6Addr};

use thiserror::Error;

use crate::rocev2::fields::Fields;

/// Who is wanted of a connection manager (IBTA 12.7.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceId(pub u64);

/// The prefix of the IP CM service (IBTA A11.2.1) with TCP's protocol number.
const TCP_PREFIX: u64 = 0x0106_0000;

/// The service ID of a TCP-like port (IBTA A11.2.1).
#[must_use]
pub const fn service_id(port: u16) -> ServiceId {
    // `From` is not const; u16 to u64 loses nothing.
    ServiceId(TCP_PREFIX | port as u64)
}

impl ServiceId {
    /// The TCP-like port; none for other services.
    #[must_use]
    pub fn port(self) -> Option<u16> {
        u16::try_from(self.0.checked_sub(TCP_PREFIX)?).ok()
    }
}

/// Why a REQ's private data does not start with a header of the IP CM service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum IpCmError {
    /// The header has another version than 0.
    #[error("IP CM header of version {0:#04x}, only 0 is known")]
    Version(u8),
    /// The addresses are neither of IPv4 nor of IPv6.
    #[error("IP CM header with IP version {0}")]
    IpVersion(u8),
}

/// Header of the IP CM service (IBTA A11.4.1): the first bytes of a REQ's
/// private data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpCmHeader {
    /// The sender's port.
    pub source_port: u16,
    /// The sender's address.
    pub source: IpAddr,
    /// The receiver's address, of the same family.
    pub destination: IpAddr,
}

impl IpCmHeader {
    /// Length in bytes.
    pub const LEN: usize = 36;

    /// Reads the header.
    ///
    /// # Errors
    /// When a version is not supported.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Result<Self, IpCmError> {
        let version = bytes.u8_at::<0>();
        if version != 0 {
            return Err(IpCmError::Version(version));
        }
        let (source, destination) = match bytes.u8_at::<1>() >> 4 {
            4 => (IpAddr::from(bytes.array_at::<16, 4>()), IpAddr::from(bytes.array_at::<32, 4>())),
            6 => {
                (IpAddr::from(bytes.array_at::<4, 16>()), IpAddr::from(bytes.array_at::<20, 16>()))
            }
            other => return Err(IpCmError::IpVersion(other)),
        };
        Ok(Self { source_port: bytes.be16_at::<2>(), source, destination })
    }

    /// The header's bytes. Addresses of different families go as IPv6, the
    /// IPv4 one in its mapped form.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out.put_be16::<2>(self.source_port);
        if let (IpAddr::V4(source), IpAddr::V4(destination)) = (self.source, self.destination) {
            out.put_u8::<1>(4 << 4);
            out.put_array::<16, 4>(source.octets());
            out.put_array::<32, 4>(destination.octets());
        } else {
            out.put_u8::<1>(6 << 4);
            out.put_array::<4, 16>(to_ipv6(self.source).octets());
            out.put_array::<20, 16>(to_ipv6(self.destination).octets());
        }
        out
    }
}

fn to_ipv6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

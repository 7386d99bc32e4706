//! Which provider serves an address: what `fabric = "auto"` means. Called by those that open
//! fabrics: the daemon, and the initiator's `provider`.

use core::net::{IpAddr, SocketAddr};

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Wanted {
    /// An RDMA device if one serves the address, else the soft provider.
    #[default]
    Auto,
    /// The soft provider.
    Soft,
    /// An RDMA device.
    Ib,
}

/// A provider that opens real connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Provider {
    /// RoCEv2 in user space over UDP.
    Soft,
    /// RDMA devices.
    Ib,
}

impl Provider {
    /// As [`Fabric::name`](crate::Fabric::name) says it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Soft => "soft",
            Self::Ib => "ib",
        }
    }
}

/// What a provider's packets travel as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// RoCE version 2: over UDP.
    RoceV2,
    /// RoCE version 1: over Ethernet alone.
    RoceV1,
    /// InfiniBand itself.
    InfiniBand,
    /// iWARP: over TCP.
    Iwarp,
}

impl core::fmt::Display for Network {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::RoceV2 => "RoCE v2",
            Self::RoceV1 => "RoCE v1",
            Self::InfiniBand => "InfiniBand",
            Self::Iwarp => "iWARP",
        })
    }
}

/// What was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The provider.
    pub provider: Provider,
    /// Why, in words.
    pub reason: String,
    /// What it speaks there.
    pub network: Network,
}

impl Choice {
    /// Whether the sinks of RDMA READs have to be registered for remote writing: iWARP devices write
    /// them as a peer would.
    #[must_use]
    pub fn read_sinks_remotely_writable(&self) -> bool {
        self.network == Network::Iwarp
    }
}

/// An RDMA device was asked for, and none serves the address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no RDMA device can be used for {address}: {reason}")]
pub struct NoDevice {
    /// The address.
    pub address: IpAddr,
    /// Why, in words.
    pub reason: String,
}

/// Chooses for a listener at `address`.
///
/// # Errors
/// A device was asked for and there is none.
pub fn choose_local(wanted: Wanted, address: IpAddr) -> Result<Choice, NoDevice> {
    choose(wanted, address, || local(address))
}

/// Chooses for a connection to `peer`.
///
/// # Errors
/// A device was asked for and there is none.
pub fn choose_remote(wanted: Wanted, peer: SocketAddr) -> Result<Choice, NoDevice> {
    choose(wanted, peer.ip(), || remote(peer))
}

/// A device in words, and what it speaks; or why there is none.
type Found = Result<(String, Network), String>;

fn choose(
    wanted: Wanted,
    address: IpAddr,
    find: impl FnOnce() -> Found,
) -> Result<Choice, NoDevice> {
    let soft = |reason| Choice { provider: Provider::Soft, reason, network: Network::RoceV2 };
    if wanted == Wanted::Soft {
        return Ok(soft("it was asked for".to_owned()));
    }
    match find() {
        Ok((device, network)) => Ok(Choice {
            provider: Provider::Ib,
            reason: format!("{device} serves {address}"),
            network,
        }),
        Err(reason) if wanted == Wanted::Auto => Ok(soft(reason)),
        Err(reason) => Err(NoDevice { address, reason }),
    }
}

#[cfg(feature = "ib")]
fn local(address: IpAddr) -> Found {
    crate::ib::cover_local(address).map(describe)
}

#[cfg(feature = "ib")]
fn remote(peer: SocketAddr) -> Found {
    crate::ib::cover_remote(peer).map(describe)
}

#[cfg(feature = "ib")]
fn describe(cover: crate::ib::Cover) -> (String, Network) {
    let crate::ib::Cover { device, port, network } = cover;
    (format!("port {port} of {device} ({network})"), network)
}

#[cfg(not(feature = "ib"))]
const NOT_BUILT: &str = "this build is without RDMA devices (cargo feature `ib`)";

#[cfg(not(feature = "ib"))]
fn local(_: IpAddr) -> Found {
    Err(NOT_BUILT.to_owned())
}

#[cfg(not(feature = "ib"))]
fn remote(_: SocketAddr) -> Found {
    Err(NOT_BUILT.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: IpAddr = IpAddr::V4(core::net::Ipv4Addr::LOCALHOST);

    #[test]
    fn a_device_is_taken_where_there_is_one() {
        let found = || Ok(("port 1 of siw0".to_owned(), Network::Iwarp));
        let choice = choose(Wanted::Auto, ADDRESS, found).unwrap();
        assert_eq!(choice.provider, Provider::Ib);
        assert_eq!(choice.reason, "port 1 of siw0 serves 127.0.0.1");
        assert!(choice.read_sinks_remotely_writable());
        let soft = choose(Wanted::Soft, ADDRESS, found).unwrap();
        assert_eq!((soft.provider, soft.network), (Provider::Soft, Network::RoceV2));
        assert!(!soft.read_sinks_remotely_writable());
    }

    #[test]
    fn without_one_auto_says_why() {
        let none = || Err("because".to_owned());
        let choice = choose(Wanted::Auto, ADDRESS, none).unwrap();
        assert_eq!((choice.provider, choice.reason.as_str()), (Provider::Soft, "because"));
        let error = choose(Wanted::Ib, ADDRESS, none).unwrap_err();
        assert!(error.to_string().ends_with("127.0.0.1: because"), "{error}");
    }

    #[test]
    fn loopback_is_never_a_devices() {
        assert_eq!(choose_local(Wanted::Auto, ADDRESS).unwrap().provider, Provider::Soft);
        let error = choose_remote(Wanted::Ib, (ADDRESS, 4420).into()).unwrap_err().to_string();
        assert_eq!(error.matches("127.0.0.1").count(), 1, "{error}");
    }
}

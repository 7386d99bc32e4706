//! Our own RoCEv2 over a network of datagrams: [`SoftFabric`] drives `lariat-roce`'s endpoints,
//! one for each local address, with the wires of a [`Network`].
//!
//! `udp` is the network of the machine, `shm` the way past it where both ends are on one host;
//! `sim` (beside this folder) is one in memory.

mod fabric;
mod fetching;
pub(crate) mod flows;
mod knocks;
mod network;
mod shm;
pub mod steering;
pub mod udp;

pub use fabric::SoftFabric;
pub use knocks::Door;
pub use network::{
    Arrival, BindError, Forwarded, LostPeer, Network, Route, SoftConfig, Source, Wire, WireChoice,
    WireCounters,
};
pub use shm::{HostNetwork, HostWire};
pub use udp::{UdpNetwork, UdpWire};

use crate::random::Random;

/// The soft provider could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot open the soft RoCEv2 provider")]
pub struct OpenError(#[from] std::io::Error);

/// Opens the soft provider for `count` threads (1 to 255), one fabric for each. They share the
/// addresses they open: packets are steered to the fabric that owns the connection. Members that
/// are to get connection requests all listen, at the same addresses and ports.
///
/// # Errors
/// The operating system's word.
pub fn open_group(
    count: u8,
    config: &SoftConfig,
) -> Result<Vec<SoftFabric<HostNetwork>>, OpenError> {
    let networks = shm::open_group(count, config)?.into_iter();
    Ok(networks.map(|network| SoftFabric::new(network, config, Random::system())).collect())
}

/// Opens the soft provider for one thread.
///
/// # Errors
/// The operating system's word.
pub fn open(config: &SoftConfig) -> Result<SoftFabric<HostNetwork>, OpenError> {
    let network = shm::open_group(1, config)?.pop();
    let network = network.ok_or_else(|| std::io::Error::other("no member"))?;
    Ok(SoftFabric::new(network, config, Random::system()))
}

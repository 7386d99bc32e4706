//! Which listeners go to which RDMA provider, and whether they can stand. Called by `run`.
//!
//! Reactors are generic over their fabric, so a reactor has one provider. Listeners of both kinds
//! get a set of reactors each (see docs/decisions/0006-mixed-providers.md).

use core::net::SocketAddr;

use lariat_fabric::provider::{Network, NoDevice, Provider, choose_local};
use lariat_fabric::soft::{self, SoftConfig};
use lariat_fabric::{Fabric, ListenError};
use lariat_wire::nvme::log::RdmaProvider;

use super::config::{Config, TargetConfig};
use super::run::RunError;

/// The listeners of one provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) provider: Provider,
    /// Where, and what it speaks there.
    pub(super) listeners: Vec<(SocketAddr, Network)>,
    /// A device of it writes the sinks of RDMA READs as a peer would (iWARP).
    pub(super) read_sinks_remotely_writable: bool,
}

/// Chooses for each listener, and says which and why.
pub(super) fn parts(config: &Config) -> Result<Vec<Part>, NoDevice> {
    let mut parts: Vec<Part> = Vec::new();
    for listener in &config.listeners {
        let address = listener.address;
        let choice = choose_local(listener.fabric, address.ip())?;
        let writable = choice.read_sinks_remotely_writable();
        let (provider, reason, network) = (choice.provider, choice.reason, choice.network);
        tracing::info!(%address, fabric = provider.name(), reason, "listener");
        match parts.iter_mut().find(|part| part.provider == provider) {
            Some(part) => {
                part.listeners.push((address, network));
                part.read_sinks_remotely_writable |= writable;
            }
            None => parts.push(Part {
                provider,
                listeners: vec![(address, network)],
                read_sinks_remotely_writable: writable,
            }),
        }
    }
    Ok(parts)
}

/// The fabrics of a part, one for each reactor.
pub(super) enum Fabrics {
    Soft(Vec<soft::SoftFabric<soft::HostNetwork>>),
    #[cfg(feature = "ib")]
    Ib(Vec<lariat_fabric::ib::IbFabric>),
}

/// Opens the fabrics of a part and sees that its addresses can be listened at: `soft` holds them from
/// then on.
pub(super) fn open(part: &Part, target: &TargetConfig) -> Result<Fabrics, RunError> {
    match part.provider {
        #[cfg(feature = "ib")]
        Provider::Ib => {
            let mut fabrics = lariat_fabric::ib::open_group(target.reactors, &Default::default())?;
            try_listening(&mut fabrics, part)?;
            Ok(Fabrics::Ib(fabrics))
        }
        // Without the feature `ib` nothing else is ever chosen.
        _ => {
            let config = SoftConfig { wire: target.wire, ..SoftConfig::default() };
            let mut fabrics = soft::open_group(target.reactors, &config)?;
            try_listening(&mut fabrics, part)?;
            Ok(Fabrics::Soft(fabrics))
        }
    }
}

/// Hosts of `soft` are not turned away between this and the reactors' own listening: nobody polls the
/// fabrics.
fn try_listening<F: Fabric>(fabrics: &mut [F], part: &Part) -> Result<(), ListenError> {
    let Some(first) = fabrics.first_mut() else { return Ok(()) };
    let mut listeners = Vec::new();
    for (address, _) in &part.listeners {
        listeners.push(first.listen(*address)?);
    }
    for listener in listeners {
        first.close_listener(listener);
    }
    Ok(())
}

/// What the discovery log says of a listener's network.
pub(super) fn rdma_provider(parts: &[Part], address: SocketAddr) -> RdmaProvider {
    let mut listeners = parts.iter().flat_map(|part| &part.listeners);
    match listeners.find(|(other, _)| *other == address) {
        Some((_, Network::RoceV2)) => RdmaProvider::ROCE_V2,
        Some((_, Network::RoceV1)) => RdmaProvider::ROCE,
        Some((_, Network::InfiniBand)) => RdmaProvider::INFINIBAND,
        Some((_, Network::Iwarp)) => RdmaProvider::IWARP,
        None => RdmaProvider::NOT_SPECIFIED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_names_each_listeners_network() {
        let at = |port: u16| SocketAddr::from(([10, 0, 0, 1], port));
        let part = |listeners| Part {
            provider: Provider::Ib,
            listeners,
            read_sinks_remotely_writable: false,
        };
        let parts = [
            part(vec![(at(1), Network::RoceV2), (at(2), Network::Iwarp)]),
            part(vec![(at(3), Network::InfiniBand), (at(4), Network::RoceV1)]),
        ];
        let named: Vec<u8> = (1..=5).map(|port| rdma_provider(&parts, at(port)).0).collect();
        assert_eq!(named, [4, 5, 2, 3, 1]);
    }
}

//! Which listeners go to which RDMA provider. Called by `run`.
//!
//! Reactors are generic over their fabric, so a reactor has one provider. Listeners of both kinds
//! get a set of reactors each (see docs/decisions/0006-mixed-providers.md).

use core::net::SocketAddr;

use lariat_fabric::provider::{NoDevice, Provider, choose_local};

use super::config::Config;

/// The listeners of one provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) provider: Provider,
    pub(super) listeners: Vec<SocketAddr>,
    /// A device of it writes the sinks of RDMA READs as a peer would (iWARP).
    pub(super) read_sinks_remotely_writable: bool,
}

/// Chooses for each listener, and says which and why.
pub(super) fn parts(config: &Config) -> Result<Vec<Part>, NoDevice> {
    let mut parts: Vec<Part> = Vec::new();
    for listener in &config.listeners {
        let address = listener.address;
        let choice = choose_local(listener.fabric, address.ip())?;
        let (provider, reason) = (choice.provider, choice.reason);
        tracing::info!(%address, fabric = provider.name(), reason, "listener");
        let writable = choice.read_sinks_remotely_writable;
        match parts.iter_mut().find(|part| part.provider == provider) {
            Some(part) => {
                part.listeners.push(address);
                part.read_sinks_remotely_writable |= writable;
            }
            None => parts.push(Part {
                provider,
                listeners: vec![address],
                read_sinks_remotely_writable: writable,
            }),
        }
    }
    Ok(parts)
}

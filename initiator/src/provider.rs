//! The one place of the library that names providers. Called by `controller`.

use lariat_fabric::Fabric;
use lariat_fabric::provider::{Provider, choose_remote};
use lariat_fabric::soft::SoftConfig;

use crate::error::ConnectError;
use crate::options::ConnectOptions;

/// A fabric of any kind, owned by one thread at a time.
pub(crate) type DynFabric = Box<dyn Fabric + Send>;

/// Opens `count` fabrics that reach the target and share their addresses, one for each thread.
pub(crate) fn open(options: &ConnectOptions, count: u8) -> Result<Vec<DynFabric>, ConnectError> {
    let peer = options.address;
    let chosen = choose_remote(options.fabric, peer).map_err(failed("ib"))?;
    tracing::info!(fabric = chosen.provider.name(), %peer, reason = chosen.reason, "provider");
    match chosen.provider {
        Provider::Soft => {
            let config = SoftConfig { wire: options.wire, ..SoftConfig::default() };
            let members = lariat_fabric::soft::open_group(count, &config);
            Ok(boxed(members.map_err(failed("soft"))?))
        }
        #[cfg(feature = "ib")]
        Provider::Ib => {
            let members = lariat_fabric::ib::open_group(count, &Default::default());
            Ok(boxed(members.map_err(failed("ib"))?))
        }
        #[cfg(not(feature = "ib"))]
        Provider::Ib => Err(failed("ib")("it is not part of this build")),
    }
}

fn boxed<F: Fabric + Send + 'static>(members: Vec<F>) -> Vec<DynFabric> {
    members.into_iter().map(|fabric| Box::new(fabric) as DynFabric).collect()
}

fn failed<E>(provider: &'static str) -> impl FnOnce(E) -> ConnectError
where
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    move |error| ConnectError::Fabric { provider, source: error.into() }
}

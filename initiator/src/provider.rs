//! The one place of the library that names a provider. Called by `controller`.

use lariat_fabric::Fabric;

use crate::error::ConnectError;
use crate::options::FabricChoice;

/// A fabric of any kind, owned by one thread at a time.
pub(crate) type DynFabric = Box<dyn Fabric + Send>;

/// Opens `count` fabrics that share their addresses, one for each thread.
pub(crate) fn open(choice: FabricChoice, count: u8) -> Result<Vec<DynFabric>, ConnectError> {
    match choice {
        FabricChoice::Auto | FabricChoice::Soft => {
            let members = lariat_fabric::soft::open_group(count, &Default::default());
            let members = members.map_err(|error| ConnectError::Fabric {
                provider: "soft",
                source: Box::new(error),
            })?;
            Ok(members.into_iter().map(|fabric| Box::new(fabric) as DynFabric).collect())
        }
    }
}

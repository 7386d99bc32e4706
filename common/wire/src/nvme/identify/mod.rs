//! What Identify returns: 4,096-byte structures and lists (NVMe Base 2.1,
//! 5.1.13). Calls `ids`, `nqn` and `ascii`; the target fills them, the initiator
//! reads them.

mod command_set;
mod controller;
mod descriptors;
mod lists;
mod namespace;
#[cfg(test)]
mod tests;

pub use command_set::{
    IdentifyIndependentNamespace, IdentifyNvmController, IdentifyNvmNamespace, IoCommandSets,
};
pub use controller::{
    AsyncEventSupport, Cmic, ControllerType, IdentifyController, Oncs, PowerState, SglSupport,
    TransferLimit,
};
pub use descriptors::{
    DescriptorError, NamespaceDescriptor, NamespaceDescriptorWriter, parse_descriptors,
};
pub use lists::{ControllerList, NamespaceList};
pub use namespace::{IdentifyNamespace, LbaFormat};

/// Size of all Identify data.
pub const IDENTIFY_BYTES: usize = 4096;

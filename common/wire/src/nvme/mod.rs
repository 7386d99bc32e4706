//! NVMe and NVMe over Fabrics: identifiers, commands, completions, status
//! codes, SGLs, qualified names, Fabrics records, properties, Identify data,
//! features, log pages and asynchronous events. Calls `endian` alone; the
//! target and the initiator call it.

pub mod async_event;
pub mod command;
pub mod completion;
pub mod dsm;
pub mod fabrics;
pub mod feature;
pub mod identify;
pub mod ids;
pub mod log;
pub mod nqn;
pub mod property;
pub mod sgl;
pub mod status;

pub use async_event::{AsyncEvent, AsyncEventType};
pub use command::{
    AdminCommand, AdminOpcode, COMMAND_BYTES, Cns, Command, CommandError, Csi, EncodeError,
    FabricsCommand, FabricsType, FeatureSelect, IoCommand, IoOpcode, PropertySize,
    ProtectionAction,
};
pub use completion::{COMPLETION_BYTES, Completion};
pub use dsm::DsmRange;
pub use fabrics::{ConnectData, ConnectInvalidParameter, ConnectResult, HostId};
pub use feature::FeatureId;
pub use identify::{
    IDENTIFY_BYTES, IdentifyController, IdentifyNamespace, LbaFormat, NamespaceDescriptor,
    NamespaceList,
};
pub use ids::{CommandId, ControllerId, Lba, Nsid, Numd, Qid, QueueSize};
pub use log::LogPage;
pub use nqn::{Nqn, NqnError};
pub use property::{
    Capabilities, ControllerConfig, ControllerStatus, Property, ShutdownNotification,
    ShutdownStatus, Version,
};
pub use sgl::Sgl;
pub use status::{Status, StatusKind};

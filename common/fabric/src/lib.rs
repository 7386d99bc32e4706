//! The verbs vocabulary as Rust traits, and its providers.
//!
//! [`Fabric`] is what the target and the initiator know of RDMA. Providers:
//! - [`soft`]: our own user-space RoCEv2 over a UDP socket (no root, no kernel module);
//! - [`sim`]: the same endpoint over a seeded, faulty, in-memory network and a virtual clock;
//! - `ib`: RDMA devices through libibverbs and librdmacm (cargo feature `ib`);
//! - [`provider`] says which of them serves an address.
//!
//! Only binaries choose a provider; everything else is generic over [`Fabric`].

pub mod error;
pub mod fabric;
#[cfg(feature = "ib")]
pub mod ib;
pub mod memory;
pub mod provider;
pub mod random;
pub mod regions;
pub mod sim;
pub mod soft;
pub mod waiting;

pub use error::{CmError, ListenError, QpError, RegisterError, ResolveError, StaleHandle};
pub use fabric::{Armed, Fabric, FabricCounters, Medium, Path};
pub use lariat_roce::time::Timestamp;
pub use lariat_roce::verbs;
pub use lariat_roce::verbs::{PostError, PostErrorKind};
pub use memory::{Memory, OutOfRange};
pub use regions::RegionTable;

//! NVMe over Fabrics from the host's side, over RDMA, in user space: no kernel module, no root.
//!
//! ```no_run
//! use lariat::{BufferPool, ConnectOptions, Controller, Nqn};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let subsystem = Nqn::parse("nqn.2026-01.org.example:disk1")?;
//! let options = ConnectOptions::new("192.0.2.7:4420".parse()?, subsystem);
//! let controller = Controller::connect(options)?;
//! let disk = controller.only_namespace()?;
//!
//! // Plain and synchronous:
//! let mut block = vec![0; 4096];
//! disk.read_at(&mut block, 0)?;
//!
//! // Queued, on a queue that belongs to this thread:
//! let mut queue = controller.io_queue()?;
//! let buffers = BufferPool::new(32, 4096)?;
//! let mut done = Vec::new();
//! for index in 0..32 {
//!     let buffer = buffers.take().ok_or("no buffer left")?;
//!     queue.submit_read(index, disk.geometry(), index * 4096, buffer)?;
//! }
//! while queue.outstanding() > 0 {
//!     queue.wait(&mut done, std::time::Duration::from_secs(1));
//!     for completion in done.drain(..) {
//!         completion.result?;
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! - [`Controller`] is a connection to a subsystem: identify, log pages, namespaces, and queues;
//! - [`IoQueue`] is owned by one thread, which submits and polls; it shares no state with others
//!   on the data path;
//! - [`Namespace`] reads and writes plain slices, synchronously, from any thread;
//! - [`discover`] asks a discovery controller what there is;
//! - [`core`] is the protocol as state machines without clock and thread, generic over the fabric.
//!
//! Nothing waits without end: each stage of connecting and each command has its time limit, and when
//! a connection is lost all that was outstanding on it fails at once.
#![forbid(unsafe_code)]

/// The README's example compiles.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

pub mod address;
pub mod core;
pub mod host_files;

mod buffer;
mod care;
mod clock;
mod controller;
mod discovery;
mod error;
mod host;
mod io_queue;
mod namespace;
mod options;
mod patience;
mod provider;

pub use buffer::{Buffer, BufferPool};
pub use controller::Controller;
pub use core::{AdminData, ControllerInfo, Failure, Geometry, LossReason, NamespaceInfo, Stages};
pub use discovery::{DiscoveryEntry, discover};
pub use error::{AdminError, ConnectError, Error, IoError, RejectedIo};
pub use host::{default_host_id, default_host_nqn};
pub use io_queue::{IoCompletion, IoQueue, RawData, wait_any};
pub use lariat_fabric::{FabricCounters, Medium, Memory, Path};
pub use lariat_wire::nvme::{HostId, Nqn, Nsid, Status};
pub use namespace::Namespace;
pub use options::{ConnectOptions, FabricChoice, WireChoice};

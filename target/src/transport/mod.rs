//! NVMe over RDMA as the target speaks it: connections, requests, buffers, and the reactor that
//! drives them. Generic over the fabric and the storage; calls `nvme` for what a command means.
//! The daemon (and simulations) call [`Reactor`].
//!
//! The way of a command, a file for each step:
//!
//! ```text
//! command.rs    capsule -> request -> admission -> SGL -> buffer
//! exchange.rs   RDMA READ of the host's data; RDMA WRITE and response, in batches
//! execute.rs    storage operations, admin commands, Connect
//! lifecycle.rs  connections come and go
//! stopping.rs   the end in good order
//! shared.rs     receives that many queues share
//! timers.rs     what time brings, and how long to sleep
//! reactor.rs    one turn of the loop
//! ```
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod arena;
mod buffer;
mod command;
mod config;
mod connection;
mod exchange;
mod execute;
mod lifecycle;
mod reactor;
mod regions;
mod request;
mod sgl;
mod share;
mod shared;
mod sparse;
mod stats;
mod stopping;
mod timers;
mod wr_id;

#[cfg(test)]
mod tests;

pub use config::ReactorConfig;
pub use reactor::{Reactor, ReactorError, Resources};
pub use request::State;
pub use stats::{BUCKETS, Latency, Stage, Statistics};

//! The initiator without clock, threads and sleep: queues, connecting, sessions.
//!
//! Everything here is driven by its owner: time and the fabric come in as arguments, commands and
//! completions go through `submit` and `poll_*`. The blocking API of this crate drives it with a
//! real fabric, the simulation tests with a simulated one. The order of calls in each turn:
//! hand in completions and events, `handle_timeout` when due, `post`, then ring the fabric once.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod block;
pub mod error;
pub mod link;
pub mod queue;
pub mod request;
pub mod session;
mod small_writes;
pub mod split;
pub mod types;

pub use block::BlockQueue;
pub use error::{ConnectError, Stage};
pub use link::{Identity, Link, LinkConfig, LinkStatus};
pub use queue::{HostQueue, QueueCompletion};
pub use request::{BlockLimits, IoDone, IoFailure, IoRequest, Operation};
pub use session::{
    AdminData, AdminDone, ControllerInfo, NamespaceInfo, Session, SessionConfig, SessionEvent,
    SessionState,
};
pub use split::{Chunk, Chunks, Geometry};
pub use types::{DataRef, Failure, LossReason, Stages, SubmitError, Transfer};

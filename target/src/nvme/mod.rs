//! What the target *is*: subsystems, namespaces, controllers, their admin commands, and the
//! admission of I/O commands. No fabric types, no I/O, no clock, no threads.
//!
//! `transport` calls it, in this order:
//!
//! ```text
//! first capsule of a queue:  ConnectCommand::parse -> fetch ConnectData ->
//!     qid 0:  Registry::connect_admin -> AdminController   (drop it: the controller is gone)
//!     qid n:  Registry::attach_io     -> IoAttachment      (drop it: the qid is free again)
//! admin queue:  AdminController::prepare -> (fetch data) -> execute -> complete, or hold
//!     each turn: AdminController::poll;  AdminController::next_timeout says when at the latest
//! I/O queue:    IoAttachment::admit -> IoPlan -> storage -> IoAttachment::finish -> complete
//!     each turn: IoAttachment::is_live; if not, disconnect the queue
//! ```
//!
//! Bytes are parsed by `lariat_wire`; errors that a peer can cause become a status in
//! [`errors`], in [`ConnectError`], or where the command is checked.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]
#![forbid(unsafe_code)]

mod abort;
pub mod admission;
pub mod attachment;
pub mod controller;
pub mod discovery;
pub mod errors;
mod event;
pub mod fabrics;
mod feature;
mod guests;
mod identify;
mod keep_alive;
mod log;
mod property;
pub mod registry;
pub mod subsystem;

#[cfg(test)]
mod tests;

pub use admission::{IoPlan, parse_ranges};
pub use attachment::{ControllerShared, IoAttachment, TerminateReason, Waker};
pub use controller::{AdminController, AdminEvent, AdminOutcome, AdminPlan, FatalReason, Transfer};
pub use discovery::ListenerAddress;
pub use errors::storage_status;
pub use fabrics::{ConnectCommand, ConnectError};
pub use guests::{Guest, Guests};
pub use registry::Registry;
pub use subsystem::{
    AllowedHosts, ConfigError, Limits, Namespace, Subsystem, SubsystemBuilder, SubsystemMap,
};

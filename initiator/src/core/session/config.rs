//! What a session is told, and what it tells: configuration, states, events. Calls nothing; called
//! by `session` and by users.

use std::net::SocketAddr;

use core::time::Duration;

use lariat_wire::nvme::{AsyncEvent, Completion};

use crate::core::link::Identity;
use crate::core::types::{Failure, LossReason};

/// How to reach and use a controller.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// The target.
    pub remote: SocketAddr,
    /// Who connects to what.
    pub identity: Identity,
    /// I/O queues to ask the controller for, those on other fabrics included; 0 for a discovery
    /// controller.
    pub io_queues: u16,
    /// How many of them, from queue 1 on, this session connects on its own fabric.
    pub own_io_queues: u16,
    /// Commands outstanding on an I/O queue, 1 to 65,534.
    pub queue_depth: u32,
    /// Keep alive timeout; zero for none. Half of it is the time between two Keep Alives.
    pub kato: Duration,
    /// Time for connecting one queue.
    pub connect_timeout: Duration,
    /// Time for an admin command.
    pub admin_timeout: Duration,
    /// Time for an I/O command.
    pub io_timeout: Duration,
    /// Time for an orderly end.
    pub shutdown_timeout: Duration,
    /// Most bytes of one command; the controller may allow less.
    pub max_transfer_bytes: u32,
    /// Most bytes of data in a capsule; the controller may allow less, 0 for none.
    pub max_in_capsule_bytes: u32,
}

impl SessionConfig {
    /// One I/O queue of 128 commands, and the timeouts that the blocking API starts from.
    #[must_use]
    pub fn new(remote: SocketAddr, identity: Identity) -> Self {
        Self {
            remote,
            identity,
            io_queues: 1,
            own_io_queues: 1,
            queue_depth: 128,
            kato: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(10),
            admin_timeout: Duration::from_secs(10),
            io_timeout: Duration::from_secs(30),
            shutdown_timeout: Duration::from_secs(2),
            max_transfer_bytes: 1 << 20,
            max_in_capsule_bytes: 8192,
        }
    }
}

/// Where a session stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionState {
    /// On its way up.
    Connecting,
    /// Usable.
    Ready,
    /// On its orderly way down.
    Closing,
    /// Gone, with everything completed and destroyed.
    Closed(LossReason),
}

/// What a session has to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEvent {
    /// The list of namespaces was read anew.
    NamespacesChanged,
    /// The discovery log changed.
    DiscoveryChanged,
    /// An asynchronous event of another kind.
    Other(AsyncEvent),
}

/// A user's admin command that ended.
#[derive(Clone, Debug)]
pub struct AdminDone {
    /// What the submitter gave.
    pub user_data: u64,
    /// The completion, or how it failed.
    pub result: Result<Completion, Failure>,
    /// Data to the host.
    pub data: Vec<u8>,
}

/// Data of a user's admin command: at most [`ADMIN_DATA_BYTES`](super::ADMIN_DATA_BYTES).
#[derive(Clone, Copy, Debug)]
pub enum AdminData<'a> {
    /// None.
    None,
    /// So many bytes from the controller.
    ToHost(u32),
    /// These bytes to the controller.
    ToController(&'a [u8]),
}

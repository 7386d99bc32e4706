//! How to reach a controller, and with what limits. Called by users and by `controller`.

use std::net::SocketAddr;
use std::time::Duration;

use lariat_wire::nvme::{HostId, Nqn};

use crate::core::{Identity, SessionConfig};
use crate::host::default_host_id;

/// Which RDMA provider to use: a device (`Ib`), the soft one, or by default (`Auto`) a device where one
/// reaches the target, else the soft one.
pub use lariat_fabric::provider::Wanted as FabricChoice;
/// What the soft provider's packets travel over: shared memory or UDP, or by default (`Auto`) shared
/// memory where the target is a process of the same user on this host, else UDP.
pub use lariat_fabric::soft::WireChoice;

/// How to connect. Start from [`ConnectOptions::new`] and set what differs.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// The target's transport address and service identifier (port).
    pub address: SocketAddr,
    /// The subsystem.
    pub subsystem: Nqn,
    /// This host's name; by default one that belongs to the machine.
    pub host_nqn: Nqn,
    /// This host's identifier; by default one that belongs to the machine.
    pub host_id: HostId,
    /// Which provider.
    pub fabric: FabricChoice,
    /// What the soft provider's packets travel over.
    pub wire: WireChoice,
    /// How many [`IoQueue`](crate::IoQueue)s can be taken at a time. One more is used by the
    /// synchronous calls.
    pub queues: u16,
    /// Requests outstanding on each queue, 1 to 1,024; the controller may allow fewer.
    pub queue_depth: u32,
    /// Keep alive timeout: how long the controller waits for a dead host, and this host for a dead
    /// controller when nothing else is going on. Zero for none.
    pub kato: Duration,
    /// Time for connecting one queue.
    pub connect_timeout: Duration,
    /// Time for an admin command.
    pub admin_timeout: Duration,
    /// Time for an I/O command. When it is over the queue's connection is given up, because the
    /// target could still write into the command's memory.
    pub io_timeout: Duration,
    /// Time for an orderly end when a controller or queue is dropped.
    pub shutdown_timeout: Duration,
    /// Most bytes of one command; longer requests are split. The controller may allow fewer.
    pub max_transfer_bytes: u32,
    /// Most bytes of data in the capsule of a write; the controller may allow fewer. 0 for none.
    pub in_capsule_bytes: u32,
    /// How long waiting calls look before they sleep: at least this, and up to 0.5 ms where reads
    /// are usually answered within that. Zero: they sleep at once.
    pub spin: Duration,
}

impl ConnectOptions {
    /// The defaults: one queue of 128 requests, 10 s to connect and keep alive, 30 s for I/O.
    #[must_use]
    pub fn new(address: SocketAddr, subsystem: Nqn) -> Self {
        let host_id = default_host_id();
        Self {
            address,
            subsystem,
            host_nqn: Nqn::from_uuid(host_id.0),
            host_id,
            fabric: FabricChoice::Auto,
            wire: WireChoice::Auto,
            queues: 1,
            queue_depth: 128,
            kato: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(10),
            admin_timeout: Duration::from_secs(10),
            io_timeout: Duration::from_secs(30),
            shutdown_timeout: Duration::from_secs(2),
            max_transfer_bytes: 1 << 20,
            in_capsule_bytes: 8192,
            spin: Duration::from_micros(100),
        }
    }

    /// For the discovery controller at `address`.
    #[must_use]
    pub fn discovery(address: SocketAddr) -> Self {
        // A discovery controller that is only asked once needs no keep alive.
        Self { queues: 0, kato: Duration::ZERO, ..Self::new(address, Nqn::discovery()) }
    }

    pub(crate) fn session(&self) -> SessionConfig {
        let identity = Identity {
            subsystem: self.subsystem.clone(),
            host: self.host_nqn.clone(),
            host_id: self.host_id,
        };
        let io_queues =
            if self.subsystem.is_discovery() { 0 } else { self.queues.saturating_add(1) };
        SessionConfig {
            io_queues,
            own_io_queues: 0,
            queue_depth: self.queue_depth.clamp(1, 1024),
            kato: self.kato,
            connect_timeout: self.connect_timeout,
            admin_timeout: self.admin_timeout,
            io_timeout: self.io_timeout,
            shutdown_timeout: self.shutdown_timeout,
            max_transfer_bytes: self.max_transfer_bytes,
            max_in_capsule_bytes: self.in_capsule_bytes,
            ..SessionConfig::new(self.address, identity)
        }
    }
}

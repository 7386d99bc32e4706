//! What a reactor is told when it is made. Plain values, filled in by the daemon and by tests.

use core::time::Duration;

use lariat_fabric::waiting::PARTING_SILENCE;

use crate::nvme::Limits;

/// Sizes and times of a reactor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReactorConfig {
    /// What the target grants; the same as in the registry's map.
    pub limits: Limits,
    /// Bytes of buffers for reads and writes.
    pub data_bytes: u32,
    /// Bytes of buffers that connect and admin commands have for themselves.
    pub reserve_bytes: u32,
    /// Bytes of receive buffers, for all connections together. A queue takes
    /// (entries + 8) x (64, or with in-capsule data 4,096 + that, in whole pages).
    pub receive_bytes: usize,
    /// As much as they may grow to when there are many queues, by `receive_bytes` at a time; they do
    /// not shrink. Not less than `receive_bytes`.
    pub receive_max_bytes: usize,
    /// I/O queues of hosts with a controller take their receives from queues that they share, where
    /// the device has such: `receive_bytes / 2`, but four times the largest queue at least.
    pub shared_receive: bool,
    /// Connections at most.
    pub max_connections: u32,
    /// Requests at most, for all connections together. A queue takes up to its entries, and half
    /// as many again or more for responses that are not acknowledged yet.
    pub max_requests: u32,
    /// RDMA READs in flight per connection at most, whatever the peer offers.
    pub read_depth: u8,
    /// Use SEND with Invalidate where the host asks for it and the device can.
    pub remote_invalidate: bool,
    /// The device writes the sinks of RDMA READs as a peer would (iWARP).
    pub read_sinks_remotely_writable: bool,
    /// How long a connection may stand without a successful Fabrics Connect.
    pub connect_timeout: Duration,
    /// How long a peer may hold up every response and RDMA READ of a connection (by posting no
    /// receives, say) before it is closed: what waits for it holds buffers that others need. Data
    /// sent counts with its response alone, so this has to cover a whole pool over a slow link.
    pub stall_timeout: Duration,
    /// How long a disconnect may take before the connection is destroyed.
    pub close_timeout: Duration,
    /// How long [`Reactor::shutdown`] lets commands in flight take.
    pub drain_timeout: Duration,
    /// From [`Reactor::shutdown`] on: how long a peer that owes acknowledgements may be silent until
    /// its connection is ended without them. Time for some retransmissions.
    pub stop_silence: Duration,
    /// From [`Reactor::shutdown`] on, instead of `close_timeout`: time for some good-byes.
    pub stop_close_timeout: Duration,
    /// The same while others wait for buffers and the connection holds some. After a quarter of that
    /// it gets no more buffers. To be long enough for a host's part of the pool over its link. Zero:
    /// no difference.
    pub starve_timeout: Duration,
    /// How long a controller without keep alive may be idle until its host is asked, by an RDMA
    /// WRITE of nothing, whether it is still there. Zero: never.
    pub idle_probe: Duration,
    /// How often timers and the state of controllers are looked at while the reactor is busy.
    pub sweep_interval: Duration,
    /// Fabric completions taken in one turn, about.
    pub poll_budget: usize,
}

impl Default for ReactorConfig {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            data_bytes: 64 << 20,
            reserve_bytes: 1 << 20,
            receive_bytes: 64 << 20,
            receive_max_bytes: 512 << 20,
            shared_receive: false,
            max_connections: 1024,
            max_requests: 32 << 10,
            read_depth: 16,
            remote_invalidate: true,
            read_sinks_remotely_writable: false,
            connect_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(60),
            close_timeout: Duration::from_secs(5),
            drain_timeout: Duration::from_secs(10),
            stop_silence: PARTING_SILENCE,
            stop_close_timeout: Duration::from_millis(1200),
            starve_timeout: Duration::from_secs(3),
            idle_probe: Duration::from_secs(30),
            sweep_interval: Duration::from_millis(1),
            poll_budget: 256,
        }
    }
}

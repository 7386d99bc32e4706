//! The reactor: one thread's fabric, storage, buffers and connections, and one turn of its loop.
//!
//! Run to completion: a turn takes what the fabric has, starts and reaps storage operations, and
//! posts all that became ready in one batch per connection, with one doorbell. Nothing is shared
//! with other reactors but the registry (at connects) and the atomics of a controller.
//!
//! The owner calls [`Reactor::poll`] while there is work, and [`Reactor::arm`] before it sleeps.

use core::net::SocketAddr;
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;

use lariat_fabric::verbs::{CmEvent, ConnId, ListenerId, SendRequest, WorkCompletion};
use lariat_fabric::waiting::PARTING_SILENCE;
use lariat_fabric::{Armed, Fabric, ListenError, Memory, RegisterError, Timestamp};
use slab::Slab;

use super::arena::Arena;
use super::buffer::{BufferPool, PoolConfig};
use super::connection::{Connection, Phase, Role};
use super::regions::{Memories, Regions};
use super::request::Request;
use super::shared::SharedQueues;
use super::sparse::Sparse;
use super::stats::Statistics;
use super::wr_id::MAX_CONNECTIONS;
use crate::nvme::{AdminEvent, Limits, Registry};
use crate::storage::{BlockCompletion, BlockRange, Storage};

/// Bytes of a response in the response memory.
pub(super) const RESPONSE_BYTES: u32 = 16;
/// The pool's memory, as the storage counts memories.
pub(super) const POOL_MEMORY: u16 = 0;
/// Index of the receive buffers' memory.
pub(super) const RECEIVE_MEMORY: u16 = 1;

/// Time between two looks at whether a Connect can go on.
const CONNECT_RETRY: Duration = Duration::from_millis(5);

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

/// Why a reactor could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ReactorError {
    /// No memory for buffers.
    #[error("cannot allocate {what}")]
    Memory {
        /// Which buffers.
        what: &'static str,
        /// The operating system's word.
        #[source]
        source: io::Error,
    },
    /// The fabric does not take the buffers.
    #[error("cannot register buffers with the fabric")]
    Register(#[from] RegisterError),
}

/// One thread's share of the target.
pub struct Reactor<F: Fabric, S: Storage> {
    pub(super) fabric: F,
    pub(super) storage: S,
    pub(super) registry: Arc<Registry>,
    pub(super) config: ReactorConfig,
    pub(super) pool: BufferPool,
    pub(super) arena: Arena,
    pub(super) responses: Arc<Memory>,
    pub(super) regions: Regions,
    pub(super) shared: SharedQueues,
    pub(super) requests: Slab<Request>,
    pub(super) connections: Slab<Connection>,
    pub(super) by_id: BTreeMap<ConnId, u32>,
    pub(super) listeners: Vec<ListenerId>,
    /// Requests that the storage had no room for, in order.
    pub(super) storage_queue: VecDeque<u32>,
    /// Connects that wait until commands of the host's last controller have left the storage.
    pub(super) waiting_connects: Vec<u32>,
    /// Connections with something to post.
    pub(super) listed: Vec<u32>,
    /// Connections that are not live any more.
    pub(super) closing: usize,
    /// Slots promised to connections.
    pub(super) slots_promised: u32,
    /// Operations were submitted since the storage was polled last.
    pub(super) unsubmitted: bool,
    pub(super) sweep_due: bool,
    next_sweep: Timestamp,
    /// Shutting down; what is in flight may take until then.
    pub(super) drain_deadline: Option<Timestamp>,
    /// Where admin and Connect data is worked on.
    pub(super) scratch: Vec<u8>,
    /// Range lists for Deallocate, reused.
    pub(super) spare_ranges: Vec<Vec<BlockRange>>,
    pub(super) batch: Vec<SendRequest>,
    completions: Vec<WorkCompletion>,
    events: Vec<CmEvent>,
    done: Vec<BlockCompletion>,
    admin_events: Vec<AdminEvent>,
    to_close: Vec<(u32, &'static str)>,
    pub(super) stats: Statistics,
    pub(super) refusals: Sparse,
    pub(super) storage_failures: Sparse,
    pub(super) growth_failures: Sparse,
}

impl<F: Fabric, S: Storage> Reactor<F, S> {
    /// Allocates the buffers and gives them to the fabric and the storage.
    ///
    /// # Errors
    /// No memory, or the fabric's registration limits.
    pub fn new(
        mut fabric: F,
        mut storage: S,
        registry: Arc<Registry>,
        config: ReactorConfig,
    ) -> Result<Self, ReactorError> {
        let memory = |what| move |source| ReactorError::Memory { what, source };
        let pool = BufferPool::new(&PoolConfig {
            data_bytes: config.data_bytes,
            reserve_bytes: config.reserve_bytes,
            max_buffer_bytes: config.limits.mdts_bytes,
        })
        .map_err(memory("data buffers"))?;
        let arena = Arena::new(config.receive_bytes, config.receive_max_bytes)
            .map_err(memory("receive buffers"))?;
        let Some(first) = arena.memory(0).map(Arc::clone) else {
            return Err(memory("receive buffers")(io::ErrorKind::OutOfMemory.into()));
        };
        let response_bytes = config.max_requests.max(1) as usize * RESPONSE_BYTES as usize;
        let responses = Memory::allocate(response_bytes).map_err(memory("response buffers"))?;
        let zeroes_bytes = storage.knows_zeroes().then_some(pool.max_buffer_bytes());
        let memories = Memories {
            pool: pool.memory(),
            pool_remotely_writable: config.read_sinks_remotely_writable,
            receive: &first,
            responses: &responses,
            zeroes_bytes,
        };
        let regions = Regions::register(&mut fabric, &memories)?;
        // In the order of POOL_MEMORY and RECEIVE_MEMORY.
        storage.use_buffers(&[Arc::clone(pool.memory()), first]);
        let scratch = vec![0; pool.max_buffer_bytes() as usize];
        Ok(Self {
            fabric,
            storage,
            registry,
            config,
            pool,
            arena,
            responses,
            regions,
            shared: SharedQueues::default(),
            requests: Slab::new(),
            connections: Slab::new(),
            by_id: BTreeMap::new(),
            listeners: Vec::new(),
            storage_queue: VecDeque::new(),
            waiting_connects: Vec::new(),
            listed: Vec::new(),
            closing: 0,
            slots_promised: 0,
            unsubmitted: false,
            sweep_due: false,
            next_sweep: Timestamp::ZERO,
            drain_deadline: None,
            scratch,
            spare_ranges: Vec::new(),
            batch: Vec::new(),
            completions: Vec::new(),
            events: Vec::new(),
            done: Vec::new(),
            admin_events: Vec::new(),
            to_close: Vec::new(),
            stats: Statistics::default(),
            refusals: Sparse::default(),
            storage_failures: Sparse::default(),
            growth_failures: Sparse::default(),
        })
    }

    /// A memory by the storage's number for it.
    pub(super) fn buffers(&self, number: u16) -> Option<&Arc<Memory>> {
        match number.checked_sub(RECEIVE_MEMORY) {
            None => Some(self.pool.memory()),
            Some(chunk) => self.arena.memory(chunk),
        }
    }

    /// Accepts connections on an address (an rdma_cm port).
    ///
    /// # Errors
    /// The fabric's word.
    pub fn listen(&mut self, address: SocketAddr) -> Result<(), ListenError> {
        let listener = self.fabric.listen(address)?;
        self.listeners.push(listener);
        Ok(())
    }

    /// One turn of the loop. Returns whether there was something to do; if so, call it again soon.
    pub fn poll(&mut self, now: Timestamp) -> bool {
        let mut completions = core::mem::take(&mut self.completions);
        let mut events = core::mem::take(&mut self.events);
        self.fabric.poll(now, self.config.poll_budget, &mut completions, &mut events);
        let mut worked = !completions.is_empty() || !events.is_empty();
        for completion in completions.drain(..) {
            self.on_completion(now, &completion);
        }
        for event in events.drain(..) {
            self.on_event(now, &event);
        }
        self.completions = completions;
        self.events = events;

        self.grant_buffers(now);
        self.unsubmitted = false;
        let mut done = core::mem::take(&mut self.done);
        self.storage.poll(now, &mut done);
        worked |= !done.is_empty();
        for completion in done.drain(..) {
            self.on_storage(now, &completion);
        }
        self.done = done;
        self.resubmit(now);

        if self.sweep_due || now >= self.next_sweep || self.drain_deadline.is_some() {
            self.sweep(now);
        }
        // What is posted has timers that nobody has heard of yet, and what is freed may be waited
        // for: both count as work, so that nobody sleeps over them.
        worked |= !self.listed.is_empty() || self.shared.has_to_post();
        self.post_batches(now);
        self.fabric.flush(now);
        worked |= self.reap(now);
        worked || self.unsubmitted || self.pool.may_grant()
    }

    /// Before sleeping: looks at timers and at what other threads changed, and says how long to
    /// sleep at most. To be called after the wake-up flag of the registry's waker was cleared.
    ///
    /// Sleep until the fabric's `wait_fds`, the storage's own or the waker say otherwise.
    pub fn arm(&mut self, now: Timestamp) -> Armed {
        self.sweep(now);
        if self.reap(now)
            || !self.listed.is_empty()
            || self.shared.has_to_post()
            || self.unsubmitted
            || self.pool.may_grant()
        {
            return Armed::Ready;
        }
        let mut deadline = self.drain_deadline.unwrap_or(Timestamp::NEVER);
        if !self.waiting_connects.is_empty() {
            // What they wait for may end on another reactor.
            deadline = deadline.min(now + CONNECT_RETRY);
        }
        let waiting_since = self.pool.waiting_since();
        for (at, connection) in &self.connections {
            deadline = deadline.min(match connection.phase {
                // Without the storage's completions there is nothing to do for it.
                Phase::Closing { .. } | Phase::Closed if connection.in_storage > 0 => {
                    Timestamp::NEVER
                }
                Phase::Closing { deadline } => deadline,
                Phase::Closed => now,
                Phase::Live => {
                    let role = match &connection.role {
                        Role::Fresh | Role::Connecting => connection.connect_deadline,
                        Role::Admin(controller) => {
                            let probe = connection.probe_at(self.config.idle_probe);
                            controller.next_timeout().min(probe)
                        }
                        Role::Io(_) | Role::Gone => Timestamp::NEVER,
                    };
                    role.min(connection.stalled_at(self.config.stall_timeout))
                        .min(self.silent_at(key_of(at), connection, waiting_since))
                        .min(self.given_up_at(connection.id))
                }
            });
        }
        match self.fabric.arm(now) {
            Armed::Until(fabric_deadline) if deadline > now => {
                Armed::Until(fabric_deadline.min(deadline))
            }
            _ => Armed::Ready,
        }
    }

    /// Timers, controllers that ended elsewhere, events of controllers that live here.
    fn sweep(&mut self, now: Timestamp) {
        self.sweep_due = false;
        self.next_sweep = now + self.config.sweep_interval;
        self.retry_connects(now);
        let mut to_close = core::mem::take(&mut self.to_close);
        let mut events = core::mem::take(&mut self.admin_events);
        self.bar_silent(now);
        let waiting_since = self.pool.waiting_since();
        for at in 0..self.connections.capacity() {
            let key = key_of(at);
            let Some(connection) = self.connections.get(at) else { continue };
            if !connection.is_live() {
                continue;
            }
            if now >= self.silent_at(key, connection, waiting_since) {
                self.stats.starvers += 1;
                to_close.push((key, "its peer is silent, and others wait for its buffers"));
                continue;
            }
            if now >= connection.stalled_at(self.config.stall_timeout) {
                self.stats.stalls += 1;
                to_close.push((key, "the peer takes nothing"));
                continue;
            }
            if now >= connection.probe_at(self.config.idle_probe) {
                self.probe(key);
            }
            let Some(connection) = self.connections.get_mut(at) else { continue };
            match &mut connection.role {
                Role::Fresh | Role::Connecting => {
                    if now >= connection.connect_deadline {
                        self.stats.connect_timeouts += 1;
                        to_close.push((key, "no Fabrics Connect in time"));
                    }
                }
                Role::Io(attachment) => {
                    if !attachment.is_live() {
                        to_close.push((key, "its controller is gone or was reset"));
                    }
                }
                Role::Admin(controller) => {
                    controller.poll(now, &mut events);
                    for event in events.drain(..) {
                        match event {
                            AdminEvent::CompleteHeld { cid, result, status } => {
                                self.complete_held(now, key, cid, result, status);
                            }
                            AdminEvent::Fatal(reason) => {
                                tracing::info!(?reason, "controller ends");
                                to_close.push((key, "its controller ended"));
                            }
                        }
                    }
                }
                Role::Gone => to_close.push((key, "its controller is gone")),
            }
        }
        self.list_stopped(now, &mut to_close);
        for (key, why) in to_close.drain(..) {
            self.close(now, key, why);
        }
        self.admin_events = events;
        self.to_close = to_close;
    }

    /// The fabric.
    pub fn fabric(&self) -> &F {
        &self.fabric
    }

    /// The fabric, for what a simulation does to it.
    pub fn fabric_mut(&mut self) -> &mut F {
        &mut self.fabric
    }

    /// The storage.
    pub fn storage(&self) -> &S {
        &self.storage
    }

    /// The storage, for its owner's own needs (its place to sleep, control).
    pub fn storage_mut(&mut self) -> &mut S {
        &mut self.storage
    }

    /// What was counted.
    pub fn statistics(&self) -> &Statistics {
        &self.stats
    }

    /// Connections that stand or are being ended.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Requests that own a slot, and bytes of the buffer pool and of receive buffers that are not
    /// lent. When all connections are gone this is as at the start.
    pub fn resources(&self) -> Resources {
        let (shared_receives, shared_receives_free) = self.shared.counts();
        Resources {
            shared_receives,
            shared_receives_free,
            requests: self.requests.len(),
            buffer_bytes: self.pool.total_bytes(),
            buffer_bytes_free: self.pool.free_bytes(),
            receive_bytes_free: self.arena.free_bytes(),
            receive_memories: self.regions.receive.len(),
            waiting_for_buffers: self.pool.waiting(),
            waiting_for_storage: self.storage_queue.len(),
        }
    }
}

/// What a reactor has lent out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resources {
    /// Slots in use.
    pub requests: usize,
    /// Size of the buffer pool in bytes.
    pub buffer_bytes: u64,
    /// Bytes free in the buffer pool.
    pub buffer_bytes_free: u64,
    /// Bytes free for receive buffers, those that can still be allocated included.
    pub receive_bytes_free: u64,
    /// Receives of shared queues, and how many of them no connection holds. Both 0 when no
    /// connection shares any.
    pub shared_receives: u32,
    /// See `shared_receives`.
    pub shared_receives_free: u32,
    /// Memories that receive buffers lie in.
    pub receive_memories: usize,
    /// Requests without a buffer.
    pub waiting_for_buffers: usize,
    /// Requests that the storage has no room for.
    pub waiting_for_storage: usize,
}

/// A slab index as the 32 bits that it is stored in; both slabs are bounded far below.
pub(super) fn key_of(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

const _: () = assert!(MAX_CONNECTIONS > 1 << 20);

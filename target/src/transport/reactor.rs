//! The reactor: one thread's fabric, storage, buffers and connections, and one turn of its loop. What
//! time brings stands in `timers`.
//!
//! Run to completion: a turn takes what the fabric has, starts and reaps storage operations, and
//! posts all that became ready in one batch per connection, with one doorbell. Nothing is shared
//! with other reactors but the registry (at connects) and the atomics of a controller.
//!
//! The owner calls [`Reactor::poll`] while there is work, and [`Reactor::arm`] before it sleeps.

use core::net::SocketAddr;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;

use lariat_fabric::verbs::{CmEvent, ConnId, ListenerId, SendRequest, WorkCompletion};
use lariat_fabric::{Fabric, ListenError, Memory, RegisterError, Timestamp};
use slab::Slab;

use super::arena::Arena;
use super::buffer::{BufferPool, PoolConfig};
use super::config::ReactorConfig;
use super::connection::Connection;
use super::regions::{Memories, Regions};
use super::request::Request;
use super::shared::SharedQueues;
use super::sparse::Sparse;
use super::stats::Statistics;
use super::wr_id::MAX_CONNECTIONS;
use crate::nvme::{AdminEvent, Registry};
use crate::storage::{BlockCompletion, BlockRange, Storage};

/// Bytes of a response in the response memory.
pub(super) const RESPONSE_BYTES: u32 = 16;
/// The pool's memory, as the storage counts memories.
pub(super) const POOL_MEMORY: u16 = 0;
/// Index of the receive buffers' memory.
pub(super) const RECEIVE_MEMORY: u16 = 1;

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
    pub(super) next_sweep: Timestamp,
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
    pub(super) admin_events: Vec<AdminEvent>,
    pub(super) to_close: Vec<(u32, &'static str)>,
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

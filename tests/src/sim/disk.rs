//! A disk with a volatile cache, as a target's [`Storage`]: requests finish out of order and after
//! a time from the seed, some fail, and a power cut takes what was not flushed.
//!
//! The power cut: each sector of 512 bytes that was written and not flushed is left with what is on
//! the medium or with any version that the cache had, whatever happens to its neighbours; of
//! requests under way each sector may have been written or not. What was acknowledged with FUA, or
//! flushed, stays.
//!
//! Buffers belong to the disk until the completion, and it makes use of that: it scribbles on the
//! sink of a read before the data comes, and takes the data of a write at any time in between.
//! With a [`Defect`] it breaks its promises, to prove that the checker sees that.

use core::time::Duration;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use lariat_fabric::{Memory, Timestamp};
use lariat_target::storage::{
    BackendId, BlockCompletion, BlockOp, BlockRange, BlockRequest, BufferRange, Geometry, Storage,
    StorageError,
};

use super::content::SECTOR_BYTES;
use super::random::Rng;
use super::trace::Coverage;

const SECTOR: u64 = SECTOR_BYTES as u64;
const EIO: i32 = 5;

/// A promise that a disk does not keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// Flushes do nothing.
    FlushLies,
    /// Force Unit Access is not looked at.
    ForceLies,
    /// Writes are acknowledged before they are applied.
    EarlyWrite,
    /// Reads complete before their data is there.
    EarlyRead,
    /// One in some writes is acknowledged and not applied.
    LostWrite,
    /// One in some writes goes to the neighbouring block.
    Misplaced,
    /// One in some requests is never completed.
    Forgotten,
    /// Some blocks are said to be zeroes that are not.
    FalseZeroes,
}

/// How a disk behaves.
#[derive(Clone, Copy, Debug)]
pub struct DiskConfig {
    /// Shortest time for a request.
    pub min_latency: Duration,
    /// Longest.
    pub max_latency: Duration,
    /// Requests in flight at most, for each reactor.
    pub slots: usize,
    /// Requests that fail, in a million.
    pub error_ppm: u32,
    /// What is wrong with it.
    pub defect: Option<Defect>,
}

/// When it was written, and what.
type Version = (u64, Box<[u8]>);

#[derive(Debug)]
struct Backend {
    geometry: Geometry,
    /// What reads see.
    cached: Vec<u8>,
    /// What a power cut leaves at least.
    medium: Vec<u8>,
    /// By sector: the versions since the last that is on the medium, oldest first.
    dirty: BTreeMap<u64, Vec<Version>>,
}

#[derive(Debug)]
struct Flight {
    handle: u32,
    request: BlockRequest,
    done_at: Timestamp,
    sequence: u64,
    /// The data, if it was taken early: of a write from the buffer, of a read from the disk.
    early: Option<Vec<u8>>,
    error: Option<StorageError>,
    /// Reported already, applied later (a [`Defect`]).
    reported: bool,
}

#[derive(Debug)]
struct State {
    config: DiskConfig,
    rng: Rng,
    now: Timestamp,
    slow_until: Timestamp,
    backends: Vec<Backend>,
    flights: Vec<Flight>,
    sequence: u64,
    buffers: BTreeMap<u32, Vec<Arc<Memory>>>,
    handles: u32,
    coverage: Coverage,
    errors: u64,
}

/// The disks of a target: they outlive its processes. Clones are the same disks.
#[derive(Clone, Debug)]
pub struct Disks(Rc<RefCell<State>>);

impl Disks {
    /// Disks full of zeroes.
    #[must_use]
    pub fn new(config: DiskConfig, rng: Rng, geometries: &[Geometry]) -> Self {
        let backends = geometries.iter().map(|&geometry| {
            let bytes = u64::from(geometry.block_bytes) * geometry.capacity_blocks;
            let zeroes = vec![0; usize::try_from(bytes).unwrap_or(0)];
            Backend { geometry, cached: zeroes.clone(), medium: zeroes, dirty: BTreeMap::new() }
        });
        Self(Rc::new(RefCell::new(State {
            config,
            rng,
            now: Timestamp::ZERO,
            slow_until: Timestamp::ZERO,
            backends: backends.collect(),
            flights: Vec::new(),
            sequence: 0,
            buffers: BTreeMap::new(),
            handles: 0,
            coverage: Coverage::new(),
            errors: 0,
        })))
    }

    /// A reactor's way to the disks.
    #[must_use]
    pub fn open(&self) -> SimDisk {
        let mut state = self.0.borrow_mut();
        state.handles += 1;
        SimDisk { disks: self.clone(), handle: state.handles }
    }

    /// Sets the time, for requests that are submitted from now on.
    pub fn set_now(&self, now: Timestamp) {
        self.0.borrow_mut().now = now;
    }

    /// When the next request is done.
    #[must_use]
    pub fn next_done(&self) -> Timestamp {
        let state = self.0.borrow();
        state.flights.iter().map(|flight| flight.done_at).min().unwrap_or(Timestamp::NEVER)
    }

    /// Requests in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.0.borrow().flights.iter().filter(|flight| !flight.reported).count()
    }

    /// Whether requests that were submitted after that may have been slow.
    #[must_use]
    pub fn were_slow(&self, since: Timestamp) -> bool {
        self.0.borrow().slow_until > since
    }

    /// Requests that are submitted until then take thirty times as long.
    pub fn slow_until(&self, until: Timestamp) {
        self.0.borrow_mut().slow_until = until;
    }

    /// From now on nothing fails.
    pub fn heal(&self) {
        self.0.borrow_mut().config.error_ppm = 0;
    }

    /// Requests that failed so far.
    #[must_use]
    pub fn errors(&self) -> u64 {
        self.0.borrow().errors
    }

    /// What was counted.
    #[must_use]
    pub fn coverage(&self) -> Coverage {
        self.0.borrow().coverage.clone()
    }

    /// The process with these disks open dies; the disks go on. What is under way happens or not.
    pub fn kill(&self) {
        self.0.borrow_mut().abandon(false);
    }

    /// The power goes.
    pub fn power_cut(&self) {
        self.0.borrow_mut().abandon(true);
    }
}

impl State {
    fn count(&mut self, what: &'static str) {
        *self.coverage.entry(what).or_default() += 1;
    }

    fn latency(&mut self) -> Duration {
        let DiskConfig { min_latency, max_latency, .. } = self.config;
        let spread = u64::try_from((max_latency - min_latency).as_nanos()).unwrap_or(0);
        let latency = min_latency + Duration::from_nanos(self.rng.range(0, spread));
        if self.now < self.slow_until {
            self.count("disk: slow request");
            latency * 30
        } else {
            latency
        }
    }

    fn memory(&self, handle: u32, buffer: BufferRange) -> Option<Arc<Memory>> {
        self.buffers.get(&handle)?.get(usize::from(buffer.memory)).cloned()
    }

    fn submit(&mut self, handle: u32, request: BlockRequest) -> Result<(), BlockRequest> {
        let mine = self.flights.iter().filter(|f| f.handle == handle && !f.reported).count();
        if mine >= self.config.slots {
            self.count("disk: queue full");
            return Err(request);
        }
        let early = match request.op {
            BlockOp::Read { start, buffer } => {
                let sample = self.rng.percent(50).then(|| self.bytes(&request, start, buffer));
                if let Some(memory) = self.memory(handle, buffer) {
                    let scribble = vec![0xdb; buffer.length as usize];
                    memory.write_at(buffer.offset, &scribble).expect("a buffer lies in its memory");
                }
                sample
            }
            BlockOp::Write { buffer, .. } if self.rng.percent(50) => self.load(handle, buffer),
            _ => None,
        };
        let error = self.rng.ppm(self.config.error_ppm).then(|| {
            let full = self.rng.percent(30);
            match request.op {
                BlockOp::Read { .. } => StorageError::Read { errno: EIO },
                BlockOp::Flush | BlockOp::Deallocate { .. } => StorageError::Write { errno: EIO },
                _ if full => StorageError::NoSpace,
                _ => StorageError::Write { errno: EIO },
            }
        });
        self.sequence += 1;
        let sequence = self.sequence;
        let mut done_at = self.now + self.latency();
        if self.config.defect == Some(Defect::Forgotten) && self.rng.percent(2) {
            done_at = Timestamp::NEVER;
        }
        self.flights.push(Flight {
            handle,
            request,
            done_at,
            sequence,
            early,
            error,
            reported: false,
        });
        Ok(())
    }

    /// Half of the time it knows of blocks that they are zeroes, if they are.
    fn reads_zeroes(&mut self, id: BackendId, range: BlockRange) -> bool {
        let Some(backend) = self.backends.get(id.0 as usize) else { return false };
        let block = u64::from(backend.geometry.block_bytes);
        let (from, bytes) = (place(range.start * block), place(range.blocks * block));
        let zeroes = backend.cached[from..from + bytes].iter().all(|&byte| byte == 0);
        let known = if zeroes {
            self.rng.percent(50)
        } else {
            self.config.defect == Some(Defect::FalseZeroes) && self.rng.percent(5)
        };
        if known {
            self.count("disk: known to be zeroes");
        }
        known
    }

    fn load(&self, handle: u32, buffer: BufferRange) -> Option<Vec<u8>> {
        let mut bytes = vec![0; buffer.length as usize];
        let memory = self.memory(handle, buffer)?;
        memory.read_at(buffer.offset, &mut bytes).expect("a buffer lies in its memory");
        Some(bytes)
    }

    fn bytes(&self, request: &BlockRequest, start: u64, buffer: BufferRange) -> Vec<u8> {
        let backend = &self.backends[request.backend.0 as usize];
        let from = place(start * u64::from(backend.geometry.block_bytes));
        backend.cached[from..from + buffer.length as usize].to_vec()
    }

    /// Everything of one reactor that is done by now, in order of time.
    fn poll(&mut self, handle: u32, now: Timestamp, done: &mut Vec<BlockCompletion>) {
        self.now = self.now.max(now);
        let now = self.now;
        loop {
            let ready = self.flights.iter().enumerate().filter(|(_, flight)| {
                flight.done_at <= now && (flight.handle == handle || flight.reported)
            });
            let next = ready.min_by_key(|(_, flight)| (flight.done_at, flight.sequence));
            let Some((at, _)) = next else { return };
            let mut flight = self.flights.swap_remove(at);
            let tag = flight.request.tag;
            let result = flight.error.map_or(Ok(()), Err);
            if flight.reported {
                self.apply(&flight, false);
                continue;
            }
            let early = matches!(
                (self.config.defect, flight.request.op),
                (Some(Defect::EarlyWrite), BlockOp::Write { .. })
                    | (Some(Defect::EarlyRead), BlockOp::Read { .. })
            );
            if early && flight.error.is_none() {
                flight.reported = true;
                flight.done_at = now + self.rng.micros(10, 2000);
                flight.early = None;
                self.flights.push(flight);
            } else {
                self.apply(&flight, false);
            }
            if result.is_err() {
                self.errors += 1;
                self.count("disk: error");
            }
            done.push(BlockCompletion { tag, result });
        }
    }

    /// Executes a request; in part only if `torn` or if it fails.
    fn apply(&mut self, flight: &Flight, torn: bool) {
        let torn = torn || flight.error.is_some();
        let request = flight.request;
        let block = u64::from(self.backends[request.backend.0 as usize].geometry.block_bytes);
        let defect = self.config.defect;
        match request.op {
            BlockOp::Read { start, buffer } => {
                let data = match &flight.early {
                    Some(data) => data.clone(),
                    None => self.bytes(&request, start, buffer),
                };
                if flight.error.is_none()
                    && let Some(memory) = self.memory(flight.handle, buffer)
                {
                    memory.write_at(buffer.offset, &data).expect("a buffer lies in its memory");
                }
            }
            BlockOp::Write { mut start, buffer, fua } => {
                if defect == Some(Defect::LostWrite) && self.rng.percent(5) {
                    return;
                }
                if defect == Some(Defect::Misplaced) && self.rng.percent(5) && start > 0 {
                    start -= 1;
                }
                let data = match &flight.early {
                    Some(data) => Some(data.clone()),
                    None => self.load(flight.handle, buffer),
                };
                if let Some(data) = data {
                    let fua = fua && defect != Some(Defect::ForceLies);
                    self.put(request.backend, start * block / SECTOR, &data, fua, torn);
                }
            }
            BlockOp::WriteZeroes { range, fua, .. } => {
                self.zero(request.backend, range, block, fua, torn);
            }
            BlockOp::Deallocate { range } => {
                self.zero(request.backend, range, block, false, torn);
            }
            BlockOp::Flush => {
                if !torn && defect != Some(Defect::FlushLies) {
                    self.flush(request.backend, flight.sequence);
                }
            }
        }
    }

    fn zero(&mut self, backend: BackendId, range: BlockRange, block: u64, fua: bool, torn: bool) {
        let zeroes = vec![0; place(range.blocks * block)];
        self.put(backend, range.start * block / SECTOR, &zeroes, fua, torn);
    }

    fn put(&mut self, id: BackendId, from: u64, data: &[u8], fua: bool, torn: bool) {
        self.sequence += 1;
        let version = self.sequence;
        let partial = torn && self.rng.percent(70);
        let none = torn && !partial && self.rng.percent(50);
        if none {
            return;
        }
        if partial {
            self.count("disk: torn write");
        }
        for (sector, bytes) in (from..).zip(data.chunks(SECTOR_BYTES)) {
            if partial && self.rng.percent(50) {
                continue;
            }
            let backend = &mut self.backends[id.0 as usize];
            let at = place(sector * SECTOR);
            backend.cached[at..at + SECTOR_BYTES].copy_from_slice(bytes);
            if (fua && !torn) || !backend.geometry.volatile_write_cache {
                backend.medium[at..at + SECTOR_BYTES].copy_from_slice(bytes);
                backend.dirty.remove(&sector);
            } else {
                backend.dirty.entry(sector).or_default().push((version, bytes.into()));
            }
        }
    }

    /// What was applied before the flush was submitted reaches the medium.
    fn flush(&mut self, id: BackendId, submitted: u64) {
        let backend = &mut self.backends[id.0 as usize];
        let medium = &mut backend.medium;
        backend.dirty.retain(|sector, versions| {
            let old = versions.partition_point(|(version, _)| *version < submitted);
            if let Some((_, bytes)) = versions.drain(..old).next_back() {
                let at = place(sector * SECTOR);
                medium[at..at + SECTOR_BYTES].copy_from_slice(&bytes);
            }
            !versions.is_empty()
        });
    }

    fn abandon(&mut self, power: bool) {
        let mut flights = core::mem::take(&mut self.flights);
        flights.sort_by_key(|flight| flight.sequence);
        for at in self.rng.order(flights.len()) {
            let flight = &flights[at];
            if !matches!(flight.request.op, BlockOp::Read { .. } | BlockOp::Flush) {
                self.count("disk: request under way when the target died");
                self.apply(flight, true);
            }
        }
        self.buffers.clear();
        if !power {
            return;
        }
        let Self { backends, rng, coverage, .. } = self;
        for backend in backends {
            for (sector, versions) in core::mem::take(&mut backend.dirty) {
                let at = place(sector * SECTOR);
                let left = rng.index(versions.len() + 1);
                let what = match left.checked_sub(1) {
                    None => "disk: unflushed sector vanished",
                    Some(version) => {
                        backend.medium[at..at + SECTOR_BYTES].copy_from_slice(&versions[version].1);
                        "disk: unflushed sector survived"
                    }
                };
                *coverage.entry(what).or_default() += 1;
            }
            backend.cached.copy_from_slice(&backend.medium);
        }
    }
}

/// Bytes of a disk that is in memory, as an index.
fn place(bytes: u64) -> usize {
    usize::try_from(bytes).expect("the disk is in memory")
}

/// One reactor's handle.
#[derive(Debug)]
pub struct SimDisk {
    disks: Disks,
    handle: u32,
}

impl Drop for SimDisk {
    fn drop(&mut self) {
        self.disks.0.borrow_mut().buffers.remove(&self.handle);
    }
}

impl Storage for SimDisk {
    fn use_buffers(&mut self, memories: &[Arc<Memory>]) {
        self.disks.0.borrow_mut().buffers.insert(self.handle, memories.to_vec());
    }

    fn add_buffer(&mut self, memory: Arc<Memory>) {
        let mut state = self.disks.0.borrow_mut();
        state.buffers.entry(self.handle).or_default().push(memory);
    }

    fn geometry(&self, backend: BackendId) -> Option<Geometry> {
        let state = self.disks.0.borrow();
        state.backends.get(backend.0 as usize).map(|backend| backend.geometry)
    }

    fn knows_zeroes(&self) -> bool {
        true
    }

    fn reads_zeroes(&self, backend: BackendId, range: BlockRange) -> bool {
        self.disks.0.borrow_mut().reads_zeroes(backend, range)
    }

    fn submit(&mut self, request: BlockRequest) -> Result<(), BlockRequest> {
        self.disks.0.borrow_mut().submit(self.handle, request)
    }

    fn poll(&mut self, now: Timestamp, done: &mut Vec<BlockCompletion>) {
        self.disks.0.borrow_mut().poll(self.handle, now, done);
    }

    fn in_flight(&self) -> usize {
        let state = self.disks.0.borrow();
        state.flights.iter().filter(|f| f.handle == self.handle && !f.reported).count()
    }
}

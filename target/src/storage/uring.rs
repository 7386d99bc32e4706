//! [`UringStorage`]: the storage of one reactor, and the reactor's one place to sleep.
//!
//! Files go through the [`Ring`](super::ring::Ring), step by step (`step`); disks in memory need no
//! kernel (`immediate`). Called by the transport's reactor (as [`Storage`]) and by the daemon's loop
//! ([`UringStorage::sleep`]).

use core::time::Duration;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use lariat_fabric::{Memory, Timestamp};
use slab::Slab;

use super::batch::Batching;
use super::immediate::Immediate;
use super::ring::{Event, Refused, Ring, RingCounters, Span, ZEROES_BYTES};
use super::set::{Backend, StorageSet};
use super::step::{Lacks, Next, Slot, Step, check, first_step, fits};
use super::waker::EventWaker;
use super::{
    BackendId, BlockCompletion, BlockOp, BlockRange, BlockRequest, Geometry, Storage, StorageError,
};

/// Room in the ring for polls.
const MAX_POLLS: u32 = 32;

/// The waker's poll; others follow.
const WAKER_POLL: u32 = 0;

/// Settings of a [`UringStorage`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UringConfig {
    /// Requests in flight, at most; more are handed back.
    pub depth: u32,
    /// Whether to register the buffers with the kernel (faster; needs locked memory).
    pub fixed_buffers: bool,
}

impl Default for UringConfig {
    fn default() -> Self {
        Self { depth: 1024, fixed_buffers: true }
    }
}

/// Why [`UringStorage::sleep`] came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// Storage has something: poll it.
    Storage,
    /// A descriptor is readable.
    Readable,
    /// The waker was used.
    Waker,
    /// The time is over, or a signal came.
    Nothing,
}

#[derive(Debug)]
struct Poll {
    fd: RawFd,
    armed: bool,
}

/// The storage of one reactor. To be made and used by one thread.
pub struct UringStorage {
    set: Arc<StorageSet>,
    ring: Ring,
    config: UringConfig,
    slots: Slab<Slot>,
    /// Slots whose next operation could not be queued yet.
    backlog: VecDeque<u32>,
    immediate: Immediate,
    finished: Vec<BlockCompletion>,
    lacks: Vec<Lacks>,
    waker: EventWaker,
    polls: Vec<Poll>,
    /// Completions taken since the last poll ended.
    taken: usize,
    batching: Batching,
}

impl UringStorage {
    /// Makes the ring. To be called on the thread that will use the storage.
    ///
    /// # Errors
    /// The kernel has no io_uring for this process; the text says what may be the cause.
    pub fn new(set: Arc<StorageSet>, waker: EventWaker, config: UringConfig) -> io::Result<Self> {
        let depth = config.depth.clamp(1, 16_384);
        let wanted = (depth + MAX_POLLS).next_power_of_two();
        let make = |entries| Ring::new(entries, set.files());
        let (ring, entries) = fitting(wanted, make).map_err(explain_no_ring)?;
        let depth = depth.min(entries - MAX_POLLS);
        if entries < wanted {
            tracing::warn!(
                requests = depth,
                "RLIMIT_MEMLOCK allows a small io_uring alone, with fewer requests at a time: raise \
                 it (ulimit -l, LimitMEMLOCK= of systemd)"
            );
        }
        let room = depth as usize;
        let waker_fd = waker.as_fd().as_raw_fd();
        Ok(Self {
            ring,
            config: UringConfig { depth, ..config },
            slots: Slab::with_capacity(room),
            backlog: VecDeque::with_capacity(room),
            immediate: Immediate::new(room),
            finished: Vec::with_capacity(room),
            lacks: vec![Lacks::default(); set.len()],
            waker,
            polls: vec![Poll { fd: waker_fd, armed: false }],
            taken: 0,
            batching: Batching::default(),
            set,
        })
    }

    /// Whether disks have something to do.
    #[must_use]
    pub fn disks_work(&self) -> bool {
        !self.slots.is_empty()
    }

    /// Operations given to the kernel so far.
    #[must_use]
    pub fn counters(&self) -> RingCounters {
        self.ring.counters()
    }

    /// The reactor's one place to sleep: until one of `fds` is readable, the waker is used, storage
    /// has something, the time is over, or a signal comes.
    ///
    /// No wake-up is lost: everything is armed before the kernel looks for the last time. A poll is
    /// armed once and stays armed until it fires, so a busy reactor that does not sleep pays for no
    /// wake-up but the first. `fds` are to be the same files for the life of the storage.
    ///
    /// # Errors
    /// The ring is broken, or there are more than 31 `fds`.
    pub fn sleep(&mut self, fds: &[impl AsFd], timeout: Option<Duration>) -> io::Result<Woken> {
        // What fired while the reactor was busy has to be armed again, so that the kernel looks at
        // the descriptor again.
        self.reap(usize::MAX);
        if !self.finished.is_empty() || !self.backlog.is_empty() {
            return Ok(Woken::Storage);
        }
        if self.polls.first().is_some_and(|poll| !poll.armed) {
            if self.waker.drain() {
                return Ok(Woken::Waker);
            }
            let waker = self.waker.clone();
            self.arm(WAKER_POLL, waker.as_fd())?;
        }
        for fd in fds {
            let fd = fd.as_fd();
            let number = fd.as_raw_fd();
            let known = self.polls.iter().skip(1).position(|poll| poll.fd == number);
            let place = match known {
                Some(place) => place + 1,
                None if self.polls.len() < MAX_POLLS as usize => {
                    self.polls.push(Poll { fd: number, armed: false });
                    self.polls.len() - 1
                }
                None => return Err(io::ErrorKind::InvalidInput.into()),
            };
            if self.polls.get(place).is_some_and(|poll| !poll.armed) {
                self.arm(u32::try_from(place).unwrap_or(u32::MAX), fd)?;
            }
        }
        self.ring.wait(timeout)?;
        let (waker, readable) = self.reap(self.batching.at_once());
        if !self.finished.is_empty() || !self.backlog.is_empty() {
            return Ok(Woken::Storage);
        }
        if waker && self.waker.drain() {
            return Ok(Woken::Waker);
        }
        Ok(if readable { Woken::Readable } else { Woken::Nothing })
    }

    #[cfg(test)]
    pub(super) fn queued(&mut self) -> usize {
        self.ring.queued()
    }

    #[cfg(test)]
    pub(super) fn ring_is_fixed(&self) -> bool {
        self.ring.is_fixed()
    }

    /// As if every file had been found to do without `fallocate`.
    #[cfg(test)]
    pub(super) fn pretend_no_fallocate(&mut self) {
        self.lacks.fill(Lacks { zero_range: true, punch_hole: true });
    }

    /// As if the kernel had ended this step of a request with this result.
    #[cfg(test)]
    pub(super) fn pretend(&mut self, request: BlockRequest, step: Step, result: i32) {
        let Some(Backend::File { open, index }) = self.set.get(request.backend) else { return };
        let slot = Slot {
            request,
            file: *index,
            block_bytes: open.geometry.block_bytes,
            direct: open.direct,
            step,
            done_bytes: 0,
            retries: 0,
        };
        let token = self.slots.insert(slot);
        self.complete(u32::try_from(token).unwrap(), result);
    }

    fn arm(&mut self, token: u32, fd: BorrowedFd<'_>) -> io::Result<()> {
        if self.ring.poll_readable(token, fd).is_err() {
            self.ring.enter()?;
            self.ring.poll_readable(token, fd).map_err(|_| io::ErrorKind::WouldBlock)?;
        }
        if let Some(poll) = self.polls.get_mut(token as usize) {
            poll.armed = true;
        }
        Ok(())
    }

    /// Takes the kernel's completions, at most so many. Says whether the waker's poll and whether
    /// another fired.
    fn reap(&mut self, limit: usize) -> (bool, bool) {
        let (mut waker, mut readable) = (false, false);
        for _ in 0..limit {
            let Some(event) = self.ring.next_event() else { break };
            match event {
                Event::Operation { token, result } => {
                    self.taken += 1;
                    self.complete(token, result);
                }
                Event::Poll { token } => {
                    if let Some(poll) = self.polls.get_mut(token as usize) {
                        poll.armed = false;
                    }
                    waker |= token == WAKER_POLL;
                    readable |= token != WAKER_POLL;
                }
            }
        }
        (waker, readable)
    }

    /// Takes what has completed: as much as one poll may, and what is just coming.
    fn take_batch(&mut self) {
        let mut vain = 0;
        loop {
            let before = self.taken;
            self.reap(self.batching.at_once().saturating_sub(before));
            vain = if self.taken > before { 0 } else { vain + 1 };
            if !self.batching.looks_on(self.taken, self.slots.len(), vain) {
                return;
            }
            core::hint::spin_loop();
            self.enter();
        }
    }

    fn enter(&mut self) {
        if let Err(error) = self.ring.enter() {
            let transient = [libc::EINTR, libc::EAGAIN, libc::EBUSY];
            if !error.raw_os_error().is_some_and(|errno| transient.contains(&errno)) {
                tracing::error!(%error, "io_uring_enter failed; trying again");
            }
        }
    }

    /// Queues a slot's next operation.
    fn start(&mut self, token: u32) {
        let Some(slot) = self.slots.get(token as usize).copied() else { return };
        let queued = match self.queue(token, &slot) {
            Err(Refused::Full) => {
                self.enter();
                self.queue(token, &slot)
            }
            other => other,
        };
        match queued {
            Ok(()) => {}
            Err(Refused::Full) => self.backlog.push_back(token),
            Err(Refused::Invalid) => {
                self.finish(token, Err(StorageError::Other { errno: libc::EFAULT }));
            }
        }
    }

    fn queue(&mut self, token: u32, slot: &Slot) -> Result<(), Refused> {
        let Slot { file, done_bytes, step, .. } = *slot;
        let (at, length) = slot.extent();
        let rest = length.saturating_sub(done_bytes);
        match step {
            Step::Transfer => {
                let (buffer, durable) = match slot.request.op {
                    BlockOp::Read { buffer, .. } => (buffer, None),
                    BlockOp::Write { buffer, .. } => (buffer, Some(slot.durable())),
                    _ => return Err(Refused::Invalid),
                };
                let span = Span {
                    file,
                    at: at + done_bytes,
                    memory: buffer.memory,
                    offset: buffer.offset.checked_add(done_bytes).ok_or(Refused::Invalid)?,
                    length: u32::try_from(rest).map_err(|_| Refused::Invalid)?,
                };
                match durable {
                    None => self.ring.read(token, span),
                    Some(durable) => self.ring.write(token, span, durable),
                }
            }
            Step::Sync => self.ring.sync(token, file),
            Step::Allocate(mode) => self.ring.fallocate(token, file, mode.flags(), at, length),
            Step::Zeroes => {
                let length = u32::try_from(rest.min(u64::from(ZEROES_BYTES)))
                    .map_err(|_| Refused::Invalid)?;
                self.ring.write_zeroes(token, file, at + done_bytes, length, slot.durable())
            }
        }
    }

    fn complete(&mut self, token: u32, result: i32) {
        let Some(slot) = self.slots.get_mut(token as usize) else { return };
        let backend = usize::try_from(slot.request.backend.0).unwrap_or(usize::MAX);
        let mut nothing = Lacks::default();
        let lacks = self.lacks.get_mut(backend).unwrap_or(&mut nothing);
        match slot.advance(result, lacks) {
            Next::Again => self.start(token),
            Next::Finished(result) => self.finish(token, result),
        }
    }

    fn finish(&mut self, token: u32, result: Result<(), StorageError>) {
        let Some(slot) = self.slots.try_remove(token as usize) else { return };
        let result = self.never_forget(&slot, result);
        self.finished.push(BlockCompletion { tag: slot.request.tag, result });
    }

    /// A file that failed to sync once has lost writes, be they in the page cache, in the device's
    /// or in what the file system knows of them: nothing that promises durability may succeed on
    /// it any more. (The next sync would: the kernel tells a loss once.)
    fn never_forget(
        &self,
        slot: &Slot,
        result: Result<(), StorageError>,
    ) -> Result<(), StorageError> {
        let Some(Backend::File { open, .. }) = self.set.get(slot.request.backend) else {
            return result;
        };
        if !slot.fua() && slot.request.op != BlockOp::Flush {
            return result;
        }
        if result.is_err() {
            if slot.step == Step::Sync && !open.lost_writes.swap(true, Ordering::AcqRel) {
                tracing::error!(
                    backend = slot.request.backend.0,
                    "a backend could not be synced: flushes and forced writes fail from now on, \
                     until the target is restarted"
                );
            }
        } else if open.lost_writes.load(Ordering::Acquire) {
            return Err(StorageError::Write { errno: libc::EIO });
        }
        result
    }

    fn finish_now(&mut self, tag: u64, result: Result<(), StorageError>) {
        self.finished.push(BlockCompletion { tag, result });
    }
}

impl Storage for UringStorage {
    fn use_buffers(&mut self, memories: &[Arc<Memory>]) {
        if let Err(error) = self.ring.use_memories(memories, self.config.fixed_buffers) {
            warn_unfixed(memories, &error);
        }
    }

    fn add_buffer(&mut self, memory: Arc<Memory>) {
        self.ring.add_memory(memory);
    }

    fn geometry(&self, backend: BackendId) -> Option<Geometry> {
        self.set.geometry(backend)
    }

    fn knows_zeroes(&self) -> bool {
        self.set.knows_zeroes()
    }

    fn reads_zeroes(&self, backend: BackendId, range: BlockRange) -> bool {
        self.set.get(backend).is_some_and(|backend| {
            backend.is_zeroes() && fits(range, backend.geometry().capacity_blocks)
        })
    }

    fn submit(&mut self, request: BlockRequest) -> Result<(), BlockRequest> {
        if self.in_flight() >= self.config.depth as usize {
            return Err(request);
        }
        let set = Arc::clone(&self.set);
        let tag = request.tag;
        let Some(backend) = set.get(request.backend) else {
            self.finish_now(tag, Err(StorageError::Other { errno: libc::ENODEV }));
            return Ok(());
        };
        let geometry = backend.geometry();
        if let Err(error) = check(&request.op, &geometry) {
            self.finish_now(tag, Err(error));
            return Ok(());
        }
        match backend {
            Backend::Null { .. } | Backend::Memory { .. } => {
                if let Some(done) = self.immediate.take(backend, request, self.ring.memories()) {
                    self.finished.push(done);
                }
            }
            Backend::File { index, open } => {
                let lacks = usize::try_from(request.backend.0)
                    .ok()
                    .and_then(|place| self.lacks.get(place).copied())
                    .unwrap_or_default();
                match first_step(&request.op, &geometry, lacks) {
                    None => self.finish_now(tag, Ok(())),
                    Some(step) => {
                        self.batching.accepted(self.slots.len());
                        let key = self.slots.insert(Slot {
                            request,
                            file: *index,
                            block_bytes: geometry.block_bytes,
                            direct: open.direct,
                            step,
                            done_bytes: 0,
                            retries: 0,
                        });
                        // `depth` is far below 2^32.
                        self.start(u32::try_from(key).unwrap_or(u32::MAX));
                        if Batching::is_handful(self.ring.queued()) {
                            self.enter();
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn poll(&mut self, now: Timestamp, done: &mut Vec<BlockCompletion>) {
        for _ in 0..self.backlog.len() {
            if let Some(token) = self.backlog.pop_front() {
                self.start(token);
            }
        }
        self.immediate.work(&self.set, self.ring.memories(), &mut self.finished);
        if !self.batching.holds(now, self.ring.queued(), self.slots.len()) {
            self.enter();
        }
        self.take_batch();
        self.batching.polled(self.taken);
        self.taken = 0;
        done.append(&mut self.finished);
    }

    fn in_flight(&self) -> usize {
        self.slots.len() + self.immediate.len() + self.finished.len()
    }
}

fn warn_unfixed(memories: &[Arc<Memory>], error: &io::Error) {
    let needed_bytes: usize = memories.iter().map(|memory| memory.len()).sum();
    let limit = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_MEMLOCK);
    let limit_bytes = limit.map_or(0, |(soft, _)| soft);
    // The first reactor speaks for all.
    static SAID: std::sync::Once = std::sync::Once::new();
    SAID.call_once(|| {
        tracing::warn!(
            %error,
            needed_bytes,
            limit_bytes,
            "io_uring does not take the buffers as fixed ones: every request pins its own, which \
             costs a little speed. RLIMIT_MEMLOCK has to cover the buffers of all reactors: raise \
             it (ulimit -l, LimitMEMLOCK= of systemd), or lower buffers_mib"
        );
    });
}

/// Makes a ring of so many entries, or of the largest smaller number that the limit on locked memory
/// allows: newer kernels count rings.
fn fitting<T>(wanted: u32, mut make: impl FnMut(u32) -> io::Result<T>) -> io::Result<(T, u32)> {
    let mut entries = wanted;
    loop {
        match make(entries) {
            Ok(ring) => return Ok((ring, entries)),
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) && entries / 2 > MAX_POLLS => {
                entries /= 2;
            }
            Err(error) => return Err(error),
        }
    }
}

fn explain_no_ring(error: io::Error) -> io::Error {
    let remedy = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "io_uring is forbidden here: see sysctl kernel.io_uring_disabled (0 allows it), or the \
             container's seccomp profile"
        }
        Some(libc::ENOSYS) => "this kernel has no io_uring, or a seccomp profile hides it",
        Some(libc::ENOMEM) => {
            "RLIMIT_MEMLOCK is too small for any ring: raise it (ulimit -l, LimitMEMLOCK= of systemd)"
        }
        _ => return error,
    };
    io::Error::new(error.kind(), format!("{error}; {remedy}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_shrinks_to_what_may_be_locked() {
        let room = |most: u32| {
            move |entries: u32| {
                let enough = entries <= most;
                enough.then_some(()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))
            }
        };
        assert_eq!(fitting(2048, room(4096)).unwrap().1, 2048);
        assert_eq!(fitting(2048, room(300)).unwrap().1, 256);
        assert_eq!(fitting(2048, room(64)).unwrap().1, 64);
        let error = fitting(2048, room(63)).unwrap_err();
        assert!(explain_no_ring(error).to_string().contains("RLIMIT_MEMLOCK"));
        // Nothing else is a reason for a smaller one.
        let mut asked = Vec::new();
        let refuse = |entries| {
            asked.push(entries);
            Err::<(), _>(io::Error::from_raw_os_error(libc::EPERM))
        };
        assert!(fitting(2048, refuse).is_err());
        assert_eq!(asked, [2048]);
    }
}

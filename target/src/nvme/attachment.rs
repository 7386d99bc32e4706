//! What the queues of one controller share across reactors, and an I/O queue's hold on it. Atomics
//! on the I/O path, a lock only where queues come and go or something failed. Calls `admission`;
//! `registry` makes it, `transport` and `controller` use it.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lariat_wire::nvme::{Command, ControllerId, HostId, Lba, Nqn, Qid, QueueSize, Status};

use super::admission::{self, IoPlan};
use super::fabrics::ConnectError;
use super::log::{ErrorReport, ErrorRing};
use super::subsystem::Subsystem;

/// Wakes one reactor: something about a controller changed that it has to look at.
pub trait Waker: Send + Sync {
    /// Makes the reactor turn once more, soon. Cheap, callable from any thread.
    fn wake(&self);
}

/// Why a controller is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TerminateReason {
    /// Its admin connection went away.
    AdminGone,
    /// The host was silent longer than its keep-alive timeout.
    KeepAliveExpired,
    /// The target stops.
    Shutdown,
}

impl TerminateReason {
    const fn code(self) -> u8 {
        match self {
            Self::AdminGone => 1,
            Self::KeepAliveExpired => 2,
            Self::Shutdown => 3,
        }
    }

    const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::AdminGone),
            2 => Some(Self::KeepAliveExpired),
            3 => Some(Self::Shutdown),
            _ => None,
        }
    }
}

/// What one I/O queue counted. Written by its reactor alone, read by the admin queue.
#[derive(Debug, Default)]
#[repr(align(128))]
struct QueueCounters {
    commands: AtomicU64,
    reads: AtomicU64,
    writes: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    media_errors: AtomicU64,
    /// Its connection has ended and the storage has nothing of it any more.
    over: AtomicBool,
}

/// Totals over the I/O queues of a controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Commands that arrived.
    pub commands: u64,
    /// Reads that succeeded.
    pub reads: u64,
    /// Writes that succeeded.
    pub writes: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Commands that the medium failed.
    pub media_errors: u64,
}

impl Totals {
    fn add(&mut self, queue: &QueueCounters) {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        self.commands = self.commands.wrapping_add(get(&queue.commands));
        self.reads = self.reads.wrapping_add(get(&queue.reads));
        self.writes = self.writes.wrapping_add(get(&queue.writes));
        self.bytes_read = self.bytes_read.wrapping_add(get(&queue.bytes_read));
        self.bytes_written = self.bytes_written.wrapping_add(get(&queue.bytes_written));
        self.media_errors = self.media_errors.wrapping_add(get(&queue.media_errors));
    }
}

/// One writer: no locked instruction needed.
fn bump(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

#[derive(Debug, Default)]
struct Queues {
    /// Queues in use in this epoch, by qid.
    attached: Vec<(Qid, Arc<QueueCounters>)>,
    /// Queues of earlier epochs that may have something in the storage.
    leaving: Vec<Arc<QueueCounters>>,
    /// What queues counted that are gone.
    retired: Totals,
}

/// What all queues of one controller see.
pub struct ControllerShared {
    id: ControllerId,
    host_nqn: Nqn,
    host_id: HostId,
    /// 0, or a [`TerminateReason`].
    terminated: AtomicU8,
    /// CC.EN and CSTS.RDY, and no shutdown.
    ready: AtomicBool,
    /// Goes up with every controller reset; queues of an older epoch are gone.
    epoch: AtomicU32,
    /// Volatile Write Cache feature: while off, every write is a forced one.
    write_cache: AtomicBool,
    /// Bits of [`Notice`].
    notices: AtomicU32,
    queues: Mutex<Queues>,
    errors: Mutex<ErrorRing>,
    wakers: Arc<[Box<dyn Waker>]>,
}

/// Something to tell the host by an asynchronous event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The discovery log changed.
    DiscoveryChanged,
}

impl Notice {
    const fn bit(self) -> u32 {
        match self {
            Self::DiscoveryChanged => 1,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The guarded values are plain counters and lists: valid at every step.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for ControllerShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControllerShared")
            .field("id", &self.id)
            .field("host_nqn", &self.host_nqn)
            .field("terminated", &self.terminated())
            .field("ready", &self.is_ready())
            .finish_non_exhaustive()
    }
}

impl ControllerShared {
    pub(super) fn new(
        id: ControllerId,
        host_nqn: Nqn,
        host_id: HostId,
        wakers: Arc<[Box<dyn Waker>]>,
    ) -> Self {
        Self {
            id,
            host_nqn,
            host_id,
            terminated: AtomicU8::new(0),
            ready: AtomicBool::new(false),
            epoch: AtomicU32::new(0),
            write_cache: AtomicBool::new(true),
            notices: AtomicU32::new(0),
            queues: Mutex::default(),
            errors: Mutex::default(),
            wakers,
        }
    }

    /// Its identifier in its subsystem.
    #[must_use]
    pub const fn id(&self) -> ControllerId {
        self.id
    }

    /// The host it belongs to.
    #[must_use]
    pub const fn host_nqn(&self) -> &Nqn {
        &self.host_nqn
    }

    /// The identifier its host gave.
    #[must_use]
    pub const fn host_id(&self) -> HostId {
        self.host_id
    }

    /// Ends the controller: all its connections are to be closed. Wakes all reactors; the first
    /// reason stays.
    pub fn terminate(&self, reason: TerminateReason) {
        self.ready.store(false, Ordering::Release);
        let first =
            self.terminated.compare_exchange(0, reason.code(), Ordering::AcqRel, Ordering::Acquire);
        if first.is_ok() {
            self.wake();
        }
    }

    /// Whether, and why, the controller is gone.
    #[must_use]
    pub fn terminated(&self) -> Option<TerminateReason> {
        TerminateReason::from_code(self.terminated.load(Ordering::Acquire))
    }

    /// Whether the controller is gone.
    #[must_use]
    pub fn is_terminated(&self) -> bool {
        self.terminated.load(Ordering::Acquire) != 0
    }

    /// Whether I/O commands are executed.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// Whether writes may stay in a volatile cache.
    #[must_use]
    pub fn write_cache_enabled(&self) -> bool {
        self.write_cache.load(Ordering::Relaxed)
    }

    pub(super) fn set_write_cache(&self, enabled: bool) {
        self.write_cache.store(enabled, Ordering::Relaxed);
    }

    pub(super) fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Ordering::Release);
    }

    /// A controller reset: queues of this epoch are no more, their identifiers are free.
    pub(super) fn reset(&self) {
        {
            let mut queues = lock(&self.queues);
            self.ready.store(false, Ordering::Release);
            self.epoch.fetch_add(1, Ordering::AcqRel);
            let Queues { attached, leaving, retired } = &mut *queues;
            for (_, counters) in attached.drain(..) {
                retired.add(&counters);
                leaving.push(counters);
            }
        }
        self.write_cache.store(true, Ordering::Relaxed);
        self.wake();
    }

    /// Number of I/O queues connected now.
    #[must_use]
    pub fn queues(&self) -> usize {
        lock(&self.queues).attached.len()
    }

    /// Number of I/O queues connected now whose connection has not ended, or of whose commands the
    /// storage still has some.
    #[must_use]
    pub fn busy_queues(&self) -> usize {
        let busy = |(_, queue): &&(Qid, Arc<QueueCounters>)| !queue.over.load(Ordering::Acquire);
        lock(&self.queues).attached.iter().filter(busy).count()
    }

    /// Whether commands of queues that are no more (by a reset, or because the controller is gone)
    /// may still change what is on the disks. What the host sends anew must not be overtaken by
    /// them.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        let busy = |counters: &Arc<QueueCounters>| !counters.over.load(Ordering::Acquire);
        let mut queues = lock(&self.queues);
        queues.leaving.retain(busy);
        let ended = self.is_terminated() && queues.attached.iter().any(|(_, queue)| busy(queue));
        ended || !queues.leaving.is_empty()
    }

    /// What the I/O queues counted since the controller was made.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let queues = lock(&self.queues);
        let mut totals = queues.retired;
        for (_, counters) in &queues.attached {
            totals.add(counters);
        }
        totals
    }

    pub(super) fn notify(&self, notice: Notice) {
        self.notices.fetch_or(notice.bit(), Ordering::AcqRel);
        self.wake();
    }

    pub(super) fn take_notice(&self, notice: Notice) -> bool {
        self.notices.fetch_and(!notice.bit(), Ordering::AcqRel) & notice.bit() != 0
    }

    /// Puts a failed command into the Error Information log; the status comes back with More set.
    pub(super) fn report(&self, report: ErrorReport) -> Status {
        lock(&self.errors).push(report);
        report.status.with_more()
    }

    pub(super) fn with_errors<T>(&self, read: impl FnOnce(&ErrorRing) -> T) -> T {
        read(&lock(&self.errors))
    }

    fn wake(&self) {
        for waker in self.wakers.iter() {
            waker.wake();
        }
    }

    fn attach(&self, qid: Qid) -> Result<(u32, Arc<QueueCounters>), ConnectError> {
        let mut queues = lock(&self.queues);
        // Under the lock, so that no reset comes between.
        if !self.is_ready() {
            return Err(ConnectError::NotReady(self.id));
        }
        if queues.attached.iter().any(|(used, _)| *used == qid) {
            return Err(ConnectError::QueueInUse(qid));
        }
        let counters = Arc::<QueueCounters>::default();
        queues.attached.push((qid, Arc::clone(&counters)));
        Ok((self.epoch.load(Ordering::Acquire), counters))
    }

    fn detach(&self, qid: Qid, epoch: u32) {
        let mut queues = lock(&self.queues);
        if self.epoch.load(Ordering::Acquire) != epoch {
            return;
        }
        let Queues { attached, retired, .. } = &mut *queues;
        if let Some(at) = attached.iter().position(|(used, _)| *used == qid) {
            let (_, counters) = attached.swap_remove(at);
            retired.add(&counters);
        }
    }
}

/// An I/O queue's hold on its controller. Lives with the queue's connection; its drop frees the
/// queue identifier.
#[derive(Debug)]
pub struct IoAttachment {
    controller: Arc<ControllerShared>,
    subsystem: Arc<Subsystem>,
    counters: Arc<QueueCounters>,
    epoch: u32,
    qid: Qid,
    size: QueueSize,
    sq_flow_control: bool,
}

impl IoAttachment {
    /// Refused when the queue identifier is in use or the controller is not ready.
    pub(super) fn new(
        controller: Arc<ControllerShared>,
        subsystem: Arc<Subsystem>,
        qid: Qid,
        size: QueueSize,
        sq_flow_control: bool,
    ) -> Result<Self, ConnectError> {
        let (epoch, counters) = controller.attach(qid)?;
        Ok(Self { controller, subsystem, counters, epoch, qid, size, sq_flow_control })
    }

    /// The controller.
    #[must_use]
    pub fn controller(&self) -> &Arc<ControllerShared> {
        &self.controller
    }

    /// The subsystem.
    #[must_use]
    pub fn subsystem(&self) -> &Arc<Subsystem> {
        &self.subsystem
    }

    /// The queue.
    #[must_use]
    pub const fn qid(&self) -> Qid {
        self.qid
    }

    /// Entries of the queue.
    #[must_use]
    pub const fn size(&self) -> QueueSize {
        self.size
    }

    /// Whether completions carry the submission queue head (else it is FFFFh).
    #[must_use]
    pub const fn sq_flow_control(&self) -> bool {
        self.sq_flow_control
    }

    /// Result of the Connect that made it.
    #[must_use]
    pub fn connect_result(&self) -> u64 {
        u64::from(self.controller.id.0)
    }

    /// Whether the queue still belongs to its controller; else its connection is to be closed (the
    /// controller is gone or was reset).
    #[must_use]
    pub fn is_live(&self) -> bool {
        !self.controller.is_terminated()
            && self.controller.epoch.load(Ordering::Acquire) == self.epoch
    }

    /// The connection has ended, and the storage has completed all that came by it. The reactors
    /// hear of it: the admin queue may wait for that.
    pub fn storage_is_done(&self) {
        if !self.counters.over.swap(true, Ordering::AcqRel) {
            self.controller.wake();
        }
    }

    /// Decides what a command of this queue is to do; counts it, and keeps the controller alive.
    ///
    /// # Errors
    /// The status to complete it with; it is in the error log already.
    pub fn admit(&self, command: &Command) -> Result<IoPlan, Status> {
        bump(&self.counters.commands, 1);
        // A queue of before a reset: the controller may be ready again, the queue is not.
        let plan = if self.is_live() {
            admission::admit(&self.subsystem, &self.controller, command)
        } else {
            Err(Status::ABORTED_SQ_DELETION)
        };
        plan.map_err(|status| self.log(command, status))
    }

    /// Reads the ranges of a Deallocate that [`admit`](Self::admit) planned, from its fetched data.
    ///
    /// # Errors
    /// The status to complete it with; it is in the error log already.
    pub fn parse_ranges(
        &self,
        command: &Command,
        data: &[u8],
        out: &mut Vec<crate::storage::BlockRange>,
    ) -> Result<(), Status> {
        let namespace = self
            .subsystem
            .namespace(command.namespace())
            .ok_or(Status::INVALID_NAMESPACE_OR_FORMAT.with_dnr());
        namespace
            .and_then(|namespace| admission::parse_ranges(data, &namespace.geometry, out))
            .map_err(|status| self.log(command, status))
    }

    /// Counts the end of an admitted command and, where it failed, logs it. Gives the status to
    /// complete it with.
    pub fn finish(&self, command: &Command, plan: &IoPlan, status: Status) -> Status {
        if !status.is_success() {
            if status.kind() == lariat_wire::nvme::StatusKind::MEDIA {
                bump(&self.counters.media_errors, 1);
            }
            return self.log(command, status);
        }
        match *plan {
            IoPlan::Read { bytes, .. } => {
                bump(&self.counters.reads, 1);
                bump(&self.counters.bytes_read, u64::from(bytes));
            }
            IoPlan::Write { bytes, .. } => {
                bump(&self.counters.writes, 1);
                bump(&self.counters.bytes_written, u64::from(bytes));
            }
            _ => {}
        }
        status
    }

    /// Logs a command that failed before or beside a plan (its SGL, say). Gives the status to
    /// complete it with.
    pub fn log(&self, command: &Command, status: Status) -> Status {
        let slba = u64::from(command.cdw10.get()) | u64::from(command.cdw11.get()) << 32;
        self.controller.report(ErrorReport {
            qid: self.qid,
            cid: command.command_id(),
            opcode: command.opcode,
            status,
            nsid: command.namespace(),
            lba: if command.is_fabrics() { Lba(0) } else { Lba(slba) },
        })
    }
}

impl Drop for IoAttachment {
    fn drop(&mut self) {
        self.storage_is_done();
        self.controller.detach(self.qid, self.epoch);
    }
}

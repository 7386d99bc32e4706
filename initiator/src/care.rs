//! What the threads of a controller share, and the thread that keeps it alive.
//!
//! The thread owns the admin queue and its fabric: Keep Alive, events, admin commands. It also looks
//! after I/O queues whose owner does not poll for a while, so that acknowledgements, retries, time
//! limits and the peer's good-bye do not wait for him. It takes a queue's lock only then; an owner
//! who polls never meets it. Calls the core; called by `controller` and `io_queue`.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use lariat_fabric::verbs::{CmEvent, DomainId, WorkCompletion};
use lariat_fabric::{Armed, Fabric, Path, Timestamp};
use lariat_wire::nvme::{Command, ControllerId, Qid};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;

use crate::clock;
use crate::core::{
    AdminData, AdminDone, BlockLimits, BlockQueue, ControllerInfo, LinkConfig, LossReason,
    NamespaceInfo, Session, SessionEvent, SessionState, SubmitError,
};
use crate::error::ConnectError;
use crate::options::ConnectOptions;
use crate::provider::DynFabric;

/// An owner who did not touch his queue for so long is not polling it.
const CARE_AFTER: Duration = Duration::from_millis(3);
/// The longest sleep: a lost wake-up would cost this.
const LONGEST_SLEEP: Duration = Duration::from_millis(500);
/// How long good-byes may take to go out after everything is closed.
const LINGER: Duration = Duration::from_millis(20);
/// Time for the orderly end of one more queue of a target that another found silent: if it is there
/// after all, that is plenty.
const HASTE: Duration = Duration::from_millis(100);

/// Locks, whatever happened to other holders: the state machines behind have no half-done states
/// that a panic of a caller could leave.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A fabric with the protection domain that everything on it uses.
pub(crate) struct Member {
    pub(crate) fabric: DynFabric,
    pub(crate) domain: DomainId,
}

impl Member {
    pub(crate) fn new(mut fabric: DynFabric) -> Result<Self, ConnectError> {
        let domain = fabric.open_domain().map_err(crate::core::ConnectError::from)?;
        Ok(Self { fabric, domain })
    }
}

/// An I/O queue with its fabric.
pub(crate) struct Lane {
    pub(crate) member: Member,
    pub(crate) block: BlockQueue,
    completions: Vec<WorkCompletion>,
    events: Vec<CmEvent>,
}

impl Lane {
    pub(crate) fn new(member: Member, block: BlockQueue) -> Self {
        Self { member, block, completions: Vec::with_capacity(256), events: Vec::new() }
    }

    /// A turn: what was submitted goes out, what has come is taken. Returns whether the fabric had
    /// anything.
    ///
    /// `now` is when the turn begins. Sending a batch and receiving one take longer than a command
    /// may: what has come is seen after that, and latencies are told by that time.
    pub(crate) fn turn(&mut self, mut now: Timestamp) -> bool {
        let fabric = &mut self.member.fabric;
        if self.block.post(now, fabric.as_mut()) {
            fabric.flush(now);
            now = clock::now();
        }
        fabric.poll(now, 256, &mut self.completions, &mut self.events);
        let any = !self.completions.is_empty() || !self.events.is_empty();
        if any {
            now = clock::now();
        }
        let conn = self.block.conn();
        for completion in self.completions.drain(..) {
            if conn == Some(completion.conn) {
                self.block.handle_completion(now, fabric.as_mut(), &completion);
            }
        }
        for event in self.events.drain(..) {
            self.block.handle_event(now, fabric.as_mut(), &event);
        }
        if now >= self.block.next_timeout() {
            self.block.handle_timeout(now, fabric.as_mut());
        }
        if self.block.post(now, fabric.as_mut()) {
            fabric.flush(now);
        }
        any
    }

    /// Prepares for sleep, and looks a last time. `None`: something is there, do not sleep.
    pub(crate) fn arm(&mut self, now: Timestamp) -> Option<Timestamp> {
        let Armed::Until(until) = self.member.fabric.arm(now) else { return None };
        let before = self.member.fabric.counters().packets_received;
        if self.turn(now) || self.member.fabric.counters().packets_received != before {
            return None;
        }
        Some(until.min(self.block.next_timeout()))
    }
}

/// A queue, as its owner and the caring thread see it.
pub(crate) struct Cell {
    pub(crate) lane: Mutex<Lane>,
    /// When its owner was last there, or will be back, in nanoseconds.
    touched: AtomicU64,
    /// The caring thread waits for its descriptors.
    watched: AtomicBool,
    fds: Vec<OwnedFd>,
}

impl Cell {
    /// `fds` are those of the lane's fabric.
    pub(crate) fn new(lane: Lane, fds: Vec<OwnedFd>) -> Arc<Self> {
        Arc::new(Self {
            lane: Mutex::new(lane),
            touched: AtomicU64::new(clock::now().as_nanos()),
            watched: AtomicBool::new(false),
            fds,
        })
    }

    /// The descriptors to wait for.
    pub(crate) fn fds(&self) -> &[OwnedFd] {
        &self.fds
    }

    /// The owner is here.
    pub(crate) fn touch(&self, now: Timestamp, shared: &Shared) {
        self.touched.store(now.as_nanos(), Ordering::Relaxed);
        if self.watched.load(Ordering::Relaxed) {
            self.watched.store(false, Ordering::Relaxed);
            shared.kick();
        }
    }

    /// The owner sleeps, holding the lock, and will be back by then.
    pub(crate) fn back_at(&self, until: Timestamp) {
        self.touched.store(until.as_nanos(), Ordering::Relaxed);
    }
}

/// The descriptors of a fabric, for waiting without borrowing it.
pub(crate) fn duplicate(fabric: &dyn Fabric) -> io::Result<Vec<OwnedFd>> {
    fabric.wait_fds().iter().map(BorrowedFd::try_clone_to_owned).collect()
}

/// Sleeps until one of the descriptors is readable, or `until`.
pub(crate) fn sleep_on(fds: &mut [PollFd<'_>], now: Timestamp, until: Timestamp) {
    let time = until.since(now).min(LONGEST_SLEEP);
    let _ = ppoll(fds, Some(TimeSpec::from_duration(time)), None);
}

/// What is free for new I/O queues.
#[derive(Default)]
struct Spare {
    members: Vec<Member>,
    /// Queues that are closed; their members are free once nobody else holds them.
    retired: Vec<Arc<Cell>>,
    qids: VecDeque<u16>,
}

impl Spare {
    /// The member of a closed queue. The caring thread may hold one for the moment of a sleep (it
    /// was woken when the queue closed), so this tries a few times.
    fn reclaim(&mut self) -> Option<Member> {
        for _ in 0..100 {
            for _ in 0..self.retired.len() {
                let cell = self.retired.swap_remove(0);
                match Arc::try_unwrap(cell) {
                    Ok(cell) => {
                        let lane = cell.lane.into_inner().unwrap_or_else(PoisonError::into_inner);
                        return Some(lane.member);
                    }
                    Err(cell) => self.retired.push(cell),
                }
            }
            if self.retired.is_empty() {
                return None;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        None
    }
}

/// What is known once the controller is up.
pub(crate) struct Facts {
    pub(crate) info: ControllerInfo,
    pub(crate) id: ControllerId,
    pub(crate) granted: u16,
    /// What the admin queue's packets travel over.
    pub(crate) path: Option<Path>,
    /// How to connect an I/O queue; `qid` and `domain` are to be filled in.
    pub(crate) link: Option<(LinkConfig, BlockLimits)>,
}

/// A request to the thread.
pub(crate) enum Request {
    /// An admin command.
    Admin { command: Command, payload: Payload, reply: SyncSender<Result<AdminDone, SubmitError>> },
    /// The orderly end.
    Shutdown,
}

/// Data of an admin command.
pub(crate) enum Payload {
    None,
    ToHost(u32),
    ToController(Vec<u8>),
}

impl Payload {
    fn as_data(&self) -> AdminData<'_> {
        match self {
            Self::None => AdminData::None,
            Self::ToHost(length) => AdminData::ToHost(*length),
            Self::ToController(bytes) => AdminData::ToController(bytes),
        }
    }
}

/// What the threads of a controller share.
pub(crate) struct Shared {
    pub(crate) options: ConnectOptions,
    pub(crate) facts: OnceLock<Facts>,
    pub(crate) namespaces: Mutex<Arc<Vec<NamespaceInfo>>>,
    spare: Mutex<Spare>,
    pub(crate) sync: Mutex<Option<crate::namespace::SyncQueue>>,
    pub(crate) requests: Sender<Request>,
    cells: Mutex<Vec<Arc<Cell>>>,
    lost: OnceLock<LossReason>,
    /// Whether the queue that ended last found the target silent.
    silent: AtomicBool,
    kick: EventFd,
}

impl Shared {
    pub(crate) fn new(
        options: ConnectOptions,
        members: Vec<Member>,
        requests: Sender<Request>,
    ) -> io::Result<Self> {
        Ok(Self {
            options,
            facts: OnceLock::new(),
            namespaces: Mutex::default(),
            spare: Mutex::new(Spare { members, ..Spare::default() }),
            sync: Mutex::new(None),
            requests,
            cells: Mutex::default(),
            lost: OnceLock::new(),
            silent: AtomicBool::new(false),
            kick: EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?,
        })
    }

    /// Wakes the thread.
    pub(crate) fn kick(&self) {
        let _ = self.kick.write(1);
    }

    /// Why the controller is gone, if it is.
    pub(crate) fn lost(&self) -> Option<LossReason> {
        self.lost.get().copied()
    }

    /// A queue found, or did not find, that the target acknowledges nothing any more.
    pub(crate) fn found_silent(&self, silent: bool) {
        self.silent.store(silent, Ordering::Relaxed);
    }

    /// Time for an orderly end: little, where a queue waited for the target in vain already.
    pub(crate) fn parting_time(&self) -> Duration {
        let time = self.options.shutdown_timeout;
        if self.silent.load(Ordering::Relaxed) { time.min(HASTE) } else { time }
    }

    pub(crate) fn add(&self, cell: &Arc<Cell>) {
        lock(&self.cells).push(Arc::clone(cell));
        self.kick();
    }

    pub(crate) fn remove(&self, cell: &Arc<Cell>) {
        lock(&self.cells).retain(|other| !Arc::ptr_eq(cell, other));
        self.kick();
    }

    /// What a new I/O queue needs.
    pub(crate) fn take_spare(&self) -> Result<(Member, Qid), ConnectError> {
        if let Some(reason) = self.lost() {
            return Err(ConnectError::Closed(reason));
        }
        let granted = self.facts.get().map_or(0, |facts| facts.granted);
        let mut spare = lock(&self.spare);
        let none = ConnectError::NoQueueLeft { asked: self.options.queues, granted };
        let Some(qid) = spare.qids.pop_front() else { return Err(none) };
        let member = spare.members.pop().or_else(|| spare.reclaim());
        let Some(member) = member else {
            spare.qids.push_front(qid);
            return Err(none);
        };
        Ok((member, Qid(qid)))
    }

    /// Takes a closed queue back.
    pub(crate) fn retire(&self, cell: &Arc<Cell>, qid: Qid) {
        let mut spare = lock(&self.spare);
        spare.retired.push(Arc::clone(cell));
        spare.qids.push_back(qid.0);
        drop(spare);
        self.kick();
    }

    pub(crate) fn give_back(&self, member: Member, qid: Qid) {
        let mut spare = lock(&self.spare);
        spare.members.push(member);
        spare.qids.push_back(qid.0);
    }
}

/// The thread's state.
pub(crate) struct Caretaker {
    pub(crate) member: Member,
    pub(crate) shared: Arc<Shared>,
    pub(crate) requests: Receiver<Request>,
    pub(crate) ready: SyncSender<Result<(), ConnectError>>,
}

struct Waiting {
    replies: BTreeMap<u64, SyncSender<Result<AdminDone, SubmitError>>>,
    /// Commands that found the admin queue full.
    held: VecDeque<Request>,
    next_id: u64,
}

impl Caretaker {
    /// The thread: from connecting to the end of the connection.
    pub(crate) fn run(mut self) {
        let now = clock::now();
        let config = self.shared.options.session();
        let started = Session::start(now, self.member.fabric.as_mut(), config, self.member.domain);
        let mut session = match started {
            Ok(session) => session,
            Err(error) => {
                let _ = self.ready.send(Err(error.into()));
                return;
            }
        };
        let fds = duplicate(self.member.fabric.as_ref()).unwrap_or_default();
        let mut waiting = Waiting { replies: BTreeMap::new(), held: VecDeque::new(), next_id: 0 };
        let mut announced = false;
        loop {
            let now = clock::now();
            session.poll(now, self.member.fabric.as_mut());
            self.take_requests(now, &mut session, &mut waiting);
            session.post(now, self.member.fabric.as_mut());
            answer(&mut session, &mut waiting);
            while let Some(event) = session.poll_event() {
                if event == SessionEvent::NamespacesChanged {
                    *lock(&self.shared.namespaces) = Arc::new(session.namespaces().to_vec());
                }
            }
            match session.state() {
                SessionState::Ready if !announced => {
                    announced = true;
                    self.publish(&session);
                    let _ = self.ready.send(Ok(()));
                }
                SessionState::Closed(reason) => {
                    self.finish(session, waiting, announced, reason);
                    return;
                }
                _ => {}
            }
            let care_at = self.care(now);
            self.sleep(now, &mut session, &fds, care_at);
        }
    }

    fn publish(&self, session: &Session) {
        *lock(&self.shared.namespaces) = Arc::new(session.namespaces().to_vec());
        let granted = session.granted_queues();
        lock(&self.shared.spare).qids = (1..=granted).collect();
        if let Some(info) = session.controller() {
            let _ = self.shared.facts.set(Facts {
                info: info.clone(),
                id: session.controller_id(),
                granted,
                path: session.admin_conn().and_then(|conn| self.member.fabric.path(conn)),
                link: session.io_link(Qid(1), self.member.domain),
            });
        }
    }

    fn take_requests(&mut self, now: Timestamp, session: &mut Session, waiting: &mut Waiting) {
        let fabric = self.member.fabric.as_mut();
        loop {
            let request = match waiting.held.pop_front() {
                Some(request) => request,
                None => match self.requests.try_recv() {
                    Ok(request) => request,
                    Err(_) => return,
                },
            };
            match request {
                Request::Shutdown => {
                    session.shutdown_within(now, fabric, self.shared.parting_time());
                }
                Request::Admin { command, payload, reply } => {
                    let id = waiting.next_id;
                    match session.submit_admin(now, fabric, command, payload.as_data(), id) {
                        Ok(()) => {
                            waiting.next_id += 1;
                            waiting.replies.insert(id, reply);
                        }
                        Err(SubmitError::Full) => {
                            waiting.held.push_front(Request::Admin { command, payload, reply });
                            return;
                        }
                        Err(error) => {
                            let _ = reply.try_send(Err(error));
                        }
                    }
                }
            }
        }
    }

    /// Turns for those queues whose owner is away. Returns when to look again.
    fn care(&self, now: Timestamp) -> Timestamp {
        let mut again = Timestamp::NEVER;
        for cell in lock(&self.shared.cells).iter() {
            let away_at = Timestamp::from_nanos(cell.touched.load(Ordering::Relaxed)) + CARE_AFTER;
            if now < away_at && !cell.watched.load(Ordering::Relaxed) {
                again = again.min(away_at);
                continue;
            }
            let Ok(mut lane) = cell.lane.try_lock() else {
                again = again.min(now + CARE_AFTER);
                continue;
            };
            lane.turn(now);
            match lane.arm(now) {
                Some(until) => {
                    cell.watched.store(true, Ordering::Relaxed);
                    again = again.min(until);
                }
                None => again = now,
            }
        }
        again
    }

    fn sleep(
        &mut self,
        now: Timestamp,
        session: &mut Session,
        fds: &[OwnedFd],
        care_at: Timestamp,
    ) {
        let fabric = self.member.fabric.as_mut();
        let Armed::Until(armed) = fabric.arm(now) else { return };
        let (before, state) = (fabric.counters().packets_received, session.state());
        session.poll(now, fabric);
        let until = armed.min(session.next_timeout()).min(care_at);
        let changed = session.state() != state || fabric.counters().packets_received != before;
        if changed || until <= now {
            return;
        }
        let cells: Vec<Arc<Cell>> = lock(&self.shared.cells)
            .iter()
            .filter(|cell| cell.watched.load(Ordering::Relaxed))
            .cloned()
            .collect();
        let mut all = vec![PollFd::new(self.shared.kick.as_fd(), PollFlags::POLLIN)];
        let watched = cells.iter().flat_map(|cell| &cell.fds);
        all.extend(fds.iter().chain(watched).map(|fd| PollFd::new(fd.as_fd(), PollFlags::POLLIN)));
        sleep_on(&mut all, now, until);
        let _ = self.shared.kick.read();
    }

    /// The connection is gone: tells everybody.
    fn finish(
        &mut self,
        mut session: Session,
        mut waiting: Waiting,
        announced: bool,
        reason: LossReason,
    ) {
        let _ = self.shared.lost.set(reason);
        answer(&mut session, &mut waiting);
        for reply in waiting.replies.into_values() {
            let _ = reply.try_send(Err(SubmitError::Closed(reason)));
        }
        for request in waiting.held.into_iter().chain(self.requests.try_iter()) {
            if let Request::Admin { reply, .. } = request {
                let _ = reply.try_send(Err(SubmitError::Closed(reason)));
            }
        }
        // Owners who are there notice by themselves; for the others it is done here.
        let now = clock::now();
        for cell in lock(&self.shared.cells).iter() {
            if let Ok(mut lane) = cell.lane.try_lock() {
                let Lane { member, block, .. } = &mut *lane;
                block.close(now, member.fabric.as_mut(), reason);
            }
        }
        linger(&mut self.member.fabric);
        if !announced {
            let error =
                session.take_error().map_or(ConnectError::Closed(reason), ConnectError::Session);
            let _ = self.ready.send(Err(error));
        }
    }
}

fn answer(session: &mut Session, waiting: &mut Waiting) {
    while let Some(done) = session.poll_admin() {
        if let Some(reply) = waiting.replies.remove(&done.user_data) {
            let _ = reply.try_send(Ok(done));
        }
    }
}

/// Gives good-byes a moment to go out and be answered.
pub(crate) fn linger(fabric: &mut DynFabric) {
    let (mut completions, mut events) = (Vec::new(), Vec::new());
    let start = clock::now();
    loop {
        let now = clock::now();
        fabric.flush(now);
        fabric.poll(now, 64, &mut completions, &mut events);
        completions.clear();
        events.clear();
        let end = start + LINGER;
        let idle = match fabric.arm(now) {
            Armed::Ready => continue,
            Armed::Until(until) => until,
        };
        if now >= end || idle == Timestamp::NEVER {
            return;
        }
        let mut fds: Vec<PollFd<'_>> = Vec::new();
        let waiting = fabric.wait_fds();
        fds.extend(waiting.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)));
        sleep_on(&mut fds, now, idle.min(end));
    }
}

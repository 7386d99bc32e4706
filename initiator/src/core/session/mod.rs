//! A controller, as its host keeps it: the admin queue, and I/O queues on the same fabric.
//!
//! ```text
//! start -> Connecting (admin queue, CAP, VS, CC.EN, CSTS.RDY, Identify, queues) -> Ready
//! Ready -> Closing (drain, Disconnect, CC.SHN, CSTS.SHST) -> Closed          [shutdown]
//! any   -> Closed(reason)                                                   [loss, abort]
//! ```
//!
//! Owned and driven by one thread (or one simulation): [`Session::poll`] is a turn. Losing the admin
//! queue loses the controller; losing an I/O queue is that queue's own affair. Calls `link` and
//! `block`; its sequences stand in `bringup` and `shutdown`.

mod bringup;
mod info;
mod shutdown;

use std::collections::VecDeque;
use std::net::SocketAddr;

use core::time::Duration;

use lariat_fabric::verbs::{CmEvent, ConnId, DomainId, WorkCompletion};
use lariat_fabric::{Fabric, Timestamp};
use lariat_wire::nvme::{
    AdminCommand, AdminOpcode, AsyncEvent, Capabilities, Command, CommandId, Completion,
    ControllerId, Qid, QueueSize, Version,
};

pub use info::{ControllerInfo, NamespaceInfo};

use super::block::{BlockLimits, BlockQueue, IoDone, IoRequest};
use super::error::{ConnectError, Stage};
use super::link::{Identity, Link, LinkConfig, LinkStatus};
use super::queue::{HostQueue, QueueCompletion};
use super::types::{Failure, LossReason, SubmitError, Transfer};

/// Entries of the admin queue, as the kernel's host has it (RDMA transport: at most 32 for nvmet).
const ADMIN_ENTRIES: u32 = 32;
/// Size of one piece of admin data.
pub const ADMIN_DATA_BYTES: u32 = 4096;
/// Commands of users on the admin queue at a time.
const ADMIN_USERS: usize = 8;
/// Events kept for a user who does not ask; later ones are dropped.
const MAX_EVENTS: usize = 64;

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

/// Data of a user's admin command: at most [`ADMIN_DATA_BYTES`].
#[derive(Clone, Copy, Debug)]
pub enum AdminData<'a> {
    /// None.
    None,
    /// So many bytes from the controller.
    ToHost(u32),
    /// These bytes to the controller.
    ToController(&'a [u8]),
}

#[derive(Clone, Copy, Debug)]
struct AdminUser {
    user_data: u64,
    to_host: u32,
}

/// What completions of the session's own commands are told apart by.
mod tag {
    /// A step of bring-up or rescan.
    pub(super) const STEP: u64 = 1 << 63;
    /// Keep Alive.
    pub(super) const KEEP_ALIVE: u64 = STEP | 1;
    /// Asynchronous Event Request.
    pub(super) const ASYNC_EVENT: u64 = STEP | 2;
    /// A step of the shutdown.
    pub(super) const SHUTDOWN: u64 = STEP | 3;
}

#[derive(Debug)]
enum Phase {
    AdminConnecting,
    Bringup,
    IoConnecting,
    Ready,
    Closing(shutdown::Closing),
    Closed(LossReason),
}

/// A host's session with a controller. See the module.
#[derive(Debug)]
pub struct Session {
    config: SessionConfig,
    domain: DomainId,
    phase: Phase,
    admin: Link,
    io: Vec<BlockQueue>,
    granted: u16,
    step: Option<bringup::Step>,
    step_at: Timestamp,
    step_started: Timestamp,
    listed: Vec<lariat_wire::nvme::Nsid>,
    building: Vec<NamespaceInfo>,
    rescan: bool,
    capabilities: Capabilities,
    version: Version,
    info: Option<ControllerInfo>,
    namespaces: Vec<NamespaceInfo>,
    keep_alive_at: Timestamp,
    users: [Option<AdminUser>; ADMIN_USERS],
    admin_done: VecDeque<AdminDone>,
    events: VecDeque<SessionEvent>,
    error: Option<ConnectError>,
    completions: Vec<WorkCompletion>,
    cm_events: Vec<CmEvent>,
}

impl Session {
    /// Starts connecting. Memory of commands' data is to be registered in `domain`.
    ///
    /// # Errors
    /// What fails at once.
    pub fn start<F: Fabric + ?Sized>(
        now: Timestamp,
        fabric: &mut F,
        config: SessionConfig,
        domain: DomainId,
    ) -> Result<Self, ConnectError> {
        let size = QueueSize::from_entries(ADMIN_ENTRIES).unwrap_or(QueueSize::MIN_LEGAL);
        let link = LinkConfig {
            remote: config.remote,
            domain,
            qid: Qid::ADMIN,
            size,
            cntlid: ControllerId::DYNAMIC,
            identity: config.identity.clone(),
            kato: config.kato,
            // Targets need not take data in capsules of the admin queue; the kernel's does not.
            in_capsule_bytes: 0,
            scratch_bytes: (ADMIN_USERS + 1) * ADMIN_DATA_BYTES as usize,
            timeout: config.connect_timeout,
        };
        let admin = Link::start(now, fabric, link)?;
        Ok(Self {
            config,
            domain,
            phase: Phase::AdminConnecting,
            admin,
            io: Vec::new(),
            granted: 0,
            step: None,
            step_at: Timestamp::NEVER,
            step_started: now,
            listed: Vec::new(),
            building: Vec::new(),
            rescan: false,
            capabilities: Capabilities::default(),
            version: Version(0),
            info: None,
            namespaces: Vec::new(),
            keep_alive_at: Timestamp::NEVER,
            users: [None; ADMIN_USERS],
            admin_done: VecDeque::new(),
            events: VecDeque::new(),
            error: None,
            completions: Vec::with_capacity(256),
            cm_events: Vec::new(),
        })
    }

    /// Where it stands.
    #[must_use]
    pub fn state(&self) -> SessionState {
        match self.phase {
            Phase::AdminConnecting | Phase::Bringup | Phase::IoConnecting => {
                SessionState::Connecting
            }
            Phase::Ready => SessionState::Ready,
            Phase::Closing(_) => SessionState::Closing,
            Phase::Closed(reason) => SessionState::Closed(reason),
        }
    }

    /// Why it did not come up; given once.
    pub fn take_error(&mut self) -> Option<ConnectError> {
        self.error.take()
    }

    /// The controller's identifier, once connected.
    #[must_use]
    pub fn controller_id(&self) -> ControllerId {
        self.admin.controller()
    }

    /// The controller, once identified.
    #[must_use]
    pub fn controller(&self) -> Option<&ControllerInfo> {
        self.info.as_ref()
    }

    /// The namespaces that can be used.
    #[must_use]
    pub fn namespaces(&self) -> &[NamespaceInfo] {
        &self.namespaces
    }

    /// I/O queues that the controller granted.
    #[must_use]
    pub fn granted_queues(&self) -> u16 {
        self.granted
    }

    /// The protection domain of its queues.
    #[must_use]
    pub fn domain(&self) -> DomainId {
        self.domain
    }

    /// This session's I/O queues.
    #[must_use]
    pub fn io_queues(&self) -> usize {
        self.io.len()
    }

    /// One of this session's I/O queues.
    #[must_use]
    pub fn io_queue(&self, index: usize) -> Option<&BlockQueue> {
        self.io.get(index)
    }

    /// How to connect I/O queue `qid` of this controller on any fabric; `None` before the controller
    /// is identified, or for a queue it did not grant.
    #[must_use]
    pub fn io_link(&self, qid: Qid, domain: DomainId) -> Option<(LinkConfig, BlockLimits)> {
        let info = self.info.as_ref()?;
        if qid.is_admin() || qid.0 > self.granted {
            return None;
        }
        // One entry of a queue always stays empty (NVMe Base 2.1, 3.3.3.1).
        let entries = self.config.queue_depth.saturating_add(1).max(2);
        let entries = entries.min(self.capabilities.max_queue().entries());
        let link = LinkConfig {
            remote: self.config.remote,
            domain,
            qid,
            size: QueueSize::from_entries(entries).unwrap_or(QueueSize::MIN_LEGAL),
            cntlid: self.admin.controller(),
            identity: self.config.identity.clone(),
            kato: Duration::ZERO,
            in_capsule_bytes: info.in_capsule_bytes(self.config.max_in_capsule_bytes),
            scratch_bytes: 0,
            timeout: self.config.connect_timeout,
        };
        let limits = BlockLimits {
            max_transfer_bytes: info.max_transfer_bytes(self.config.max_transfer_bytes),
            io_timeout: self.config.io_timeout,
        };
        Some((link, limits))
    }

    /// Queues a request on one of this session's I/O queues.
    ///
    /// # Errors
    /// Why it was not taken.
    pub fn submit<F: Fabric + ?Sized>(
        &mut self,
        now: Timestamp,
        fabric: &F,
        queue: usize,
        request: &IoRequest,
        user_data: u64,
    ) -> Result<(), SubmitError> {
        self.check_open()?;
        let queue = self.io.get_mut(queue).ok_or(SubmitError::NotReady)?;
        queue.submit(now, fabric, request, user_data)
    }

    /// Queues one command as it is on one of this session's I/O queues.
    ///
    /// # Errors
    /// Why it was not taken.
    pub fn submit_raw<F: Fabric + ?Sized>(
        &mut self,
        now: Timestamp,
        fabric: &F,
        queue: usize,
        command: Command,
        transfer: Transfer,
        user_data: u64,
    ) -> Result<(), SubmitError> {
        self.check_open()?;
        let queue = self.io.get_mut(queue).ok_or(SubmitError::NotReady)?;
        queue.submit_raw(now, fabric, command, transfer, user_data)
    }

    /// The next request that ended on I/O queue `queue`.
    pub fn poll_done(&mut self, queue: usize) -> Option<IoDone> {
        self.io.get_mut(queue)?.poll_done()
    }

    /// Queues an admin command.
    ///
    /// # Errors
    /// Why it was not taken.
    pub fn submit_admin<F: Fabric + ?Sized>(
        &mut self,
        now: Timestamp,
        fabric: &F,
        command: Command,
        data: AdminData<'_>,
        user_data: u64,
    ) -> Result<(), SubmitError> {
        self.check_open()?;
        let timeout = self.config.admin_timeout;
        let queue = self.admin.live().ok_or(SubmitError::NotReady)?;
        let index = self.users.iter().position(Option::is_none).ok_or(SubmitError::Full)?;
        let length = match data {
            AdminData::None => 0,
            AdminData::ToHost(length) => length,
            AdminData::ToController(bytes) => u32::try_from(bytes.len()).unwrap_or(u32::MAX),
        };
        if length > ADMIN_DATA_BYTES {
            let limit = u64::from(ADMIN_DATA_BYTES);
            return Err(SubmitError::TooLarge { bytes: u64::from(length), limit });
        }
        let target = queue.scratch(piece_offset(index + 1), length);
        let (transfer, to_host) = match (data, target) {
            (AdminData::ToHost(length), Some(target)) => (Transfer::ToHost(target), length),
            (AdminData::ToController(bytes), Some(target)) => {
                let written = queue.scratch_memory().write_at(target.offset, bytes);
                written.map_err(|_| SubmitError::BadMemory)?;
                (Transfer::ToController(target), 0)
            }
            _ => (Transfer::None, 0),
        };
        queue.submit(now, fabric, command, transfer, index as u64, 0, timeout)?;
        if let Some(user) = self.users.get_mut(index) {
            *user = Some(AdminUser { user_data, to_host });
        }
        Ok(())
    }

    /// The next admin command of a user that ended.
    pub fn poll_admin(&mut self) -> Option<AdminDone> {
        self.admin_done.pop_front()
    }

    /// The next thing to tell.
    pub fn poll_event(&mut self) -> Option<SessionEvent> {
        self.events.pop_front()
    }

    fn tell(&mut self, event: SessionEvent) {
        if self.events.len() < MAX_EVENTS {
            self.events.push_back(event);
        }
    }

    fn check_open(&self) -> Result<(), SubmitError> {
        match self.phase {
            Phase::Ready => Ok(()),
            Phase::Closing(_) => Err(SubmitError::Closed(LossReason::Local)),
            Phase::Closed(reason) => Err(SubmitError::Closed(reason)),
            _ => Err(SubmitError::NotReady),
        }
    }

    /// A whole turn: polls the fabric (which must be this session's alone), runs deadlines, posts
    /// and rings.
    pub fn poll<F: Fabric + ?Sized>(&mut self, now: Timestamp, fabric: &mut F) {
        let mut completions = core::mem::take(&mut self.completions);
        let mut events = core::mem::take(&mut self.cm_events);
        fabric.poll(now, 256, &mut completions, &mut events);
        self.handle(now, fabric, &completions, &events);
        completions.clear();
        events.clear();
        self.completions = completions;
        self.cm_events = events;
    }

    /// A turn of a session that shares its fabric: takes what is its own of the completions and
    /// events, runs deadlines, posts and rings.
    pub fn handle<F: Fabric + ?Sized>(
        &mut self,
        now: Timestamp,
        fabric: &mut F,
        completions: &[WorkCompletion],
        events: &[CmEvent],
    ) {
        for completion in completions {
            if self.admin.conn() == Some(completion.conn) {
                self.admin.handle_completion(now, fabric, completion);
                self.admin_turn(now, fabric);
            } else if let Some(queue) = self.queue_of(completion.conn) {
                queue.handle_completion(now, fabric, completion);
            }
        }
        for event in events {
            let conn = conn_of(event);
            if self.admin.conn() == Some(conn) {
                self.admin.handle_event(now, fabric, event);
            } else if let Some(queue) = self.queue_of(conn) {
                queue.handle_event(now, fabric, event);
            }
        }
        self.handle_timeout(now, fabric);
        self.post(now, fabric);
    }

    /// Posts what was submitted since, and rings the fabric if there was anything.
    pub fn post<F: Fabric + ?Sized>(&mut self, now: Timestamp, fabric: &mut F) {
        let mut ring = false;
        for queue in &mut self.io {
            ring |= queue.post(now, fabric);
        }
        ring |= self.admin.post(now, fabric);
        if ring {
            fabric.flush(now);
        }
    }

    fn queue_of(&mut self, conn: ConnId) -> Option<&mut BlockQueue> {
        self.io.iter_mut().find(|queue| queue.conn() == Some(conn))
    }

    /// When [`Self::handle`] or [`Self::poll`] wants to be called at the latest.
    #[must_use]
    pub fn next_timeout(&self) -> Timestamp {
        let io = self.io.iter().map(BlockQueue::next_timeout).min().unwrap_or(Timestamp::NEVER);
        let closing = match &self.phase {
            Phase::Closing(closing) => closing.next_timeout(),
            Phase::Closed(_) => return Timestamp::NEVER,
            _ => Timestamp::NEVER,
        };
        io.min(self.admin.next_timeout()).min(self.step_at).min(self.keep_alive_at).min(closing)
    }

    fn handle_timeout<F: Fabric + ?Sized>(&mut self, now: Timestamp, fabric: &mut F) {
        for queue in &mut self.io {
            if now >= queue.next_timeout() {
                queue.handle_timeout(now, fabric);
            }
        }
        if now >= self.admin.next_timeout() {
            self.admin.handle_timeout(now, fabric);
        }
        self.admin_turn(now, fabric);
        if now >= self.keep_alive_at {
            self.keep_alive(now, fabric);
        }
        if now >= self.step_at {
            self.step_at = Timestamp::NEVER;
            self.run_step(now, fabric);
        }
        self.watch_io(now, fabric);
        self.run_shutdown(now, fabric);
    }

    /// Looks after the admin queue: its coming up, its completions, its loss.
    fn admin_turn<F: Fabric + ?Sized>(&mut self, now: Timestamp, fabric: &mut F) {
        if matches!(self.phase, Phase::AdminConnecting) && self.admin.status() == LinkStatus::Live {
            self.phase = Phase::Bringup;
            if !self.config.kato.is_zero() {
                self.keep_alive_at = now + self.config.kato / 2;
            }
            self.begin(now, fabric, bringup::Step::Capabilities);
        }
        while let Some(done) = self.admin.queue().and_then(HostQueue::poll_completion) {
            self.admin_completion(now, fabric, &done);
        }
        if let LinkStatus::Closed(reason) = self.admin.status() {
            let reason = match reason {
                LossReason::CommandTimeout { opcode, waited, .. }
                    if opcode == AdminOpcode::KEEP_ALIVE.0 =>
                {
                    LossReason::KeepAlive { waited }
                }
                other => other,
            };
            if self.error.is_none() {
                self.error = self.admin.take_error();
            }
            self.end(now, fabric, reason);
        }
    }

    fn admin_completion<F: Fabric + ?Sized>(
        &mut self,
        now: Timestamp,
        fabric: &mut F,
        done: &QueueCompletion,
    ) {
        match done.user_data {
            tag::STEP => self.step_done(now, fabric, done),
            tag::KEEP_ALIVE => match done.success() {
                Ok(_) => self.keep_alive_at = now + self.config.kato / 2,
                Err(Failure::Status(_)) => {
                    let waited = done.stages.remote();
                    self.end(now, fabric, LossReason::KeepAlive { waited });
                }
                Err(_) => {}
            },
            tag::ASYNC_EVENT => self.async_event(now, fabric, done),
            tag::SHUTDOWN => self.shutdown_done(now, done),
            index => self.user_done(index, done),
        }
    }

    fn user_done(&mut self, index: u64, done: &QueueCompletion) {
        let Ok(index) = usize::try_from(index) else { return };
        let Some(user) = self.users.get_mut(index).and_then(Option::take) else { return };
        let result = done.success();
        let mut data = Vec::new();
        if result.is_ok() && user.to_host > 0 {
            data.resize(usize::try_from(user.to_host).unwrap_or(0), 0);
            if let Some(queue) = self.admin.queue() {
                let _ = queue.scratch_memory().read_at(piece_offset(index + 1), &mut data);
            }
        }
        self.admin_done.push_back(AdminDone { user_data: user.user_data, result, data });
    }

    fn keep_alive<F: Fabric + ?Sized>(&mut self, now: Timestamp, fabric: &mut F) {
        // Armed again when the answer comes; its own timeout sees to the case that none does.
        self.keep_alive_at = Timestamp::NEVER;
        let timeout = self.config.kato;
        let Some(queue) = self.admin.live() else { return };
        let command = AdminCommand::KeepAlive.to_command(CommandId(0));
        let sent = queue.submit(now, fabric, command, Transfer::None, tag::KEEP_ALIVE, 0, timeout);
        if sent == Err(SubmitError::Full) {
            self.keep_alive_at = now + Duration::from_millis(10);
        }
    }

    /// During bring-up: the I/O queues' coming up, or not.
    fn watch_io<F: Fabric + ?Sized>(&mut self, now: Timestamp, fabric: &mut F) {
        if !matches!(self.phase, Phase::IoConnecting) {
            return;
        }
        let mut all = true;
        for queue in &mut self.io {
            match queue.status() {
                LinkStatus::Live => {}
                LinkStatus::Connecting => all = false,
                LinkStatus::Closed(reason) => {
                    let error = queue.take_error();
                    self.fail(now, fabric, error, reason);
                    return;
                }
            }
        }
        if all {
            self.phase = Phase::Ready;
        }
    }

    fn fail<F: Fabric + ?Sized>(
        &mut self,
        now: Timestamp,
        fabric: &mut F,
        error: Option<ConnectError>,
        reason: LossReason,
    ) {
        if self.error.is_none() {
            self.error = error;
        }
        self.end(now, fabric, reason);
    }

    /// Ends everything at once. Connections are destroyed (the peer is told), outstanding commands
    /// fail with `reason`.
    pub fn abort<F: Fabric + ?Sized>(
        &mut self,
        now: Timestamp,
        fabric: &mut F,
        reason: LossReason,
    ) {
        self.end(now, fabric, reason);
    }

    fn end<F: Fabric + ?Sized>(&mut self, now: Timestamp, fabric: &mut F, reason: LossReason) {
        if matches!(self.phase, Phase::Closed(_)) {
            return;
        }
        if self.error.is_none() && matches!(self.state(), SessionState::Connecting) {
            let stage = match self.phase {
                Phase::AdminConnecting => Stage::Connect,
                _ if self.info.is_none() => Stage::Enable,
                _ => Stage::Identify,
            };
            self.error = Some(ConnectError::Lost { remote: self.config.remote, stage, reason });
        }
        self.phase = Phase::Closed(reason);
        self.step = None;
        self.step_at = Timestamp::NEVER;
        self.keep_alive_at = Timestamp::NEVER;
        for queue in &mut self.io {
            queue.close(now, fabric, reason);
        }
        self.admin.close(now, fabric, reason);
        while let Some(done) = self.admin.queue().and_then(HostQueue::poll_completion) {
            if done.user_data < tag::STEP {
                self.user_done(done.user_data, &done);
            }
        }
    }
}

/// Where piece `index` of the admin queue's scratch memory starts; piece 0 is the session's own.
fn piece_offset(index: usize) -> u64 {
    index as u64 * u64::from(ADMIN_DATA_BYTES)
}

/// Which connection an event is of.
fn conn_of(event: &CmEvent) -> ConnId {
    match event {
        CmEvent::Resolved { conn }
        | CmEvent::ConnectRequest { conn, .. }
        | CmEvent::Established { conn, .. }
        | CmEvent::ConnectFailed { conn, .. }
        | CmEvent::Disconnected { conn, .. } => *conn,
    }
}

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

mod admin;
mod bringup;
mod config;
mod info;
mod shutdown;

use std::collections::VecDeque;

use core::time::Duration;

use lariat_fabric::verbs::{CmEvent, ConnId, DomainId, WorkCompletion};
use lariat_fabric::{Fabric, Timestamp};
use lariat_wire::nvme::{Capabilities, Command, ControllerId, Qid, QueueSize, Version};

pub use config::{AdminData, AdminDone, SessionConfig, SessionEvent, SessionState};
pub use info::{ControllerInfo, NamespaceInfo};

use super::block::BlockQueue;
use super::error::{ConnectError, Stage};
use super::link::{Link, LinkConfig, LinkStatus};
use super::queue::HostQueue;
use super::request::{BlockLimits, IoDone, IoRequest};
use super::types::{LossReason, SubmitError, Transfer};

/// Entries of the admin queue, as the kernel's host has it (RDMA transport: at most 32 for nvmet).
const ADMIN_ENTRIES: u32 = 32;
/// Size of one piece of admin data.
pub const ADMIN_DATA_BYTES: u32 = 4096;
/// Commands of users on the admin queue at a time.
const ADMIN_USERS: usize = 8;
/// Events kept for a user who does not ask; later ones are dropped.
const MAX_EVENTS: usize = 64;

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

    /// The connection of the admin queue, while there is one.
    #[must_use]
    pub fn admin_conn(&self) -> Option<ConnId> {
        self.admin.conn()
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
        let depth = self.config.queue_depth.min(info.max_commands());
        let entries = depth.saturating_add(1).max(2);
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

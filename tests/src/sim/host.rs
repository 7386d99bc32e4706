//! A good host: sessions of `lariat::core` on one fabric, random requests, and a new session when
//! one is gone. Also where it is decided whether a lost connection has an excuse.

use core::net::IpAddr;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;

use lariat::core::{
    BlockQueue, DataRef, Geometry, Identity, IoDone, LinkStatus, LossReason, Session,
    SessionConfig, SessionEvent, SessionState, SubmitError, Transfer,
};
use lariat_fabric::sim::{SimNet, SimNetwork};
use lariat_fabric::soft::SoftFabric;
use lariat_fabric::verbs::{Access, CmEvent, ConnId, DomainId, RegionId, WorkCompletion};
use lariat_fabric::{Armed, Fabric, Memory, Timestamp};
use lariat_wire::nvme::{HostId, Nqn, Qid};

use super::content::Value;
use super::model::Model;
use super::plan::{HostPlan, reactor_address};
use super::random::Rng;
use super::trace::{Trace, note};
use super::workload::{Draft, Form, Op, RawData, Space};

/// What a turn may touch besides the host itself.
pub(super) struct Context<'a> {
    pub(super) now: Timestamp,
    pub(super) trace: &'a mut Trace,
    pub(super) model: &'a mut Model,
    /// Identity of the next write.
    pub(super) next_value: &'a mut u64,
    pub(super) mdts_bytes: u32,
    pub(super) turn: Duration,
}

/// Time for a command. Those of a host that vanished hold their buffers for up to nine seconds, until
/// the transport gives up, and others may have to wait for that.
pub(super) const IO_TIMEOUT: Duration = Duration::from_secs(25);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(8);

/// A host's machine: what dies with it.
struct Machine {
    fabric: SoftFabric<SimNetwork>,
    domain: DomainId,
    memory: Arc<Memory>,
    region: RegionId,
    session: Option<Session>,
    far: Vec<BlockQueue>,
    far_started: bool,
}

/// What a host does with its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    /// Random requests until the quota is used up.
    Work,
    /// Reads everything once.
    Verify,
    /// Nothing, but stays connected.
    Idle,
    /// Leaves for good.
    Leave,
}

/// A good host.
pub struct Host {
    pub(super) index: usize,
    pub(super) ip: IpAddr,
    plan: HostPlan,
    rng: Rng,
    net: SimNet,
    spaces: Vec<Space>,
    machine: Option<Machine>,
    /// When it comes (again).
    start_at: Timestamp,
    /// When it wants a turn.
    pub(super) wake: Timestamp,
    /// It does nothing until then.
    pub(super) asleep_until: Timestamp,
    pub(super) task: Task,
    to_verify: Vec<(Geometry, u64, u64)>,
    ops: BTreeMap<u64, Op>,
    next_op: u64,
    free_slots: Vec<usize>,
    slot_bytes: u32,
    /// Requests submitted.
    pub(super) submitted: u64,
    /// Requests that ended well.
    pub(super) succeeded: u64,
    /// Something was done to it that may end connections; until it has a new session.
    pub(super) excused: bool,
    was_ready: bool,
    failures_in_row: u32,
    think_until: Timestamp,
    /// It wants to go in good order.
    leaving: bool,
    far_left: bool,
    /// Its session ends because it wants that.
    dying: bool,
    /// It does not wait for what is under way.
    dropping: bool,
    completions: Vec<WorkCompletion>,
    events: Vec<CmEvent>,
}

/// The subsystem of the good hosts.
#[must_use]
pub fn subsystem_nqn() -> Nqn {
    Nqn::parse("nqn.2026-01.io.lariat:good").expect("a valid name")
}

/// Name of a host.
#[must_use]
pub fn host_nqn(index: usize) -> Nqn {
    Nqn::parse(&format!("nqn.2026-01.io.lariat:host{index}")).expect("a valid name")
}

impl Host {
    pub(super) fn new(
        index: usize,
        ip: IpAddr,
        plan: HostPlan,
        net: &SimNet,
        spaces: Vec<Space>,
        mut rng: Rng,
        mdts_bytes: u32,
    ) -> Self {
        let start_at = Timestamp::ZERO + rng.micros(0, 2000);
        let slot_bytes = plan.request_bytes.max(2 * mdts_bytes).max(4096);
        let queues = u32::from(plan.queues + plan.far_queues);
        let slots = (plan.depth * queues).min(160);
        Self {
            index,
            ip,
            plan,
            rng,
            net: net.clone(),
            spaces,
            machine: None,
            start_at,
            wake: start_at,
            asleep_until: Timestamp::ZERO,
            task: Task::Work,
            to_verify: Vec::new(),
            ops: BTreeMap::new(),
            next_op: 0,
            free_slots: (0..slots as usize).collect(),
            slot_bytes,
            submitted: 0,
            succeeded: 0,
            excused: false,
            was_ready: false,
            failures_in_row: 0,
            think_until: Timestamp::ZERO,
            leaving: false,
            far_left: false,
            dying: false,
            dropping: false,
            completions: Vec::new(),
            events: Vec::new(),
        }
    }

    fn total_slots(&self) -> usize {
        self.free_slots.len() + self.ops.len()
    }

    /// Boots: a fabric, a domain, registered memory.
    fn boot(&mut self) -> Result<(), String> {
        let mut fabric = self.net.node(self.ip);
        let domain = fabric.open_domain().map_err(|e| e.to_string())?;
        let bytes = self.total_slots() * self.slot_bytes as usize;
        let memory = Memory::allocate(bytes).map_err(|e| e.to_string())?;
        let region = fabric
            .register(domain, Arc::clone(&memory), Access::REMOTE)
            .map_err(|e| e.to_string())?;
        self.machine = Some(Machine {
            fabric,
            domain,
            memory,
            region,
            session: None,
            far: Vec::new(),
            far_started: false,
        });
        Ok(())
    }

    fn config(&self) -> SessionConfig {
        let identity = Identity {
            subsystem: subsystem_nqn(),
            host: host_nqn(self.index),
            host_id: HostId([u8::try_from(self.index + 1).unwrap_or(0); 16]),
        };
        let plan = &self.plan;
        SessionConfig {
            io_queues: plan.queues + plan.far_queues,
            own_io_queues: plan.queues,
            queue_depth: plan.depth,
            kato: plan.kato,
            connect_timeout: CONNECT_TIMEOUT,
            admin_timeout: Duration::from_secs(8),
            io_timeout: IO_TIMEOUT,
            shutdown_timeout: IO_TIMEOUT,
            max_transfer_bytes: plan.transfer_bytes,
            max_in_capsule_bytes: plan.in_capsule_bytes,
            ..SessionConfig::new(reactor_address(0), identity)
        }
    }

    /// Dies without a word, with all that was under way. Comes again after a while.
    pub(super) fn kill(&mut self, context: &mut Context<'_>, away: Duration) -> Result<(), String> {
        note!(
            context.trace,
            "host {}: killed with {} requests under way",
            self.index,
            self.ops.len()
        );
        if !self.ops.is_empty() {
            context.trace.count("host: killed with requests under way");
        }
        self.net.kill(self.ip);
        self.machine = None;
        self.was_ready = false;
        self.dying = false;
        self.leaving = false;
        self.excused = true;
        self.start_at = context.now + away;
        self.wake = self.start_at;
        let ids: Vec<u64> = self.ops.keys().copied().collect();
        for id in ids {
            let failure = lariat::core::IoFailure {
                opcode: 0,
                nsid: lariat_wire::nvme::Nsid(0),
                lba: lariat_wire::nvme::Lba(0),
                failure: lariat::core::Failure::Lost(LossReason::Local),
            };
            self.end_op(context, id, Err(failure))?;
        }
        Ok(())
    }

    /// Leaves in good order (and comes again, unless its task is to leave for good).
    pub(super) fn leave(&mut self, now: Timestamp) {
        self.leaving = true;
        self.wake = now;
    }

    /// A step on the way out: first the queues that the session does not look after.
    fn leave_on(&mut self, now: Timestamp) {
        let Some(Machine { session: Some(session), fabric, far, .. }) = &mut self.machine else {
            self.leaving = false;
            return;
        };
        if session.state() == SessionState::Ready {
            if !far.iter().all(BlockQueue::has_left) {
                return;
            }
            if !self.far_left {
                self.far_left = true;
                for queue in &mut *far {
                    queue.leave(now, fabric);
                }
                fabric.flush(now);
                if !far.is_empty() {
                    return;
                }
            }
        }
        for queue in far {
            queue.close(now, fabric, LossReason::Local);
        }
        session.shutdown(now, fabric);
        self.dying = true;
        self.leaving = false;
    }

    /// Drops its connections on the spot; the target is told.
    pub(super) fn drop_connections(&mut self, now: Timestamp) {
        if let Some(Machine { session: Some(session), fabric, far, .. }) = &mut self.machine {
            session.abort(now, fabric, LossReason::Local);
            for queue in far {
                queue.close(now, fabric, LossReason::Local);
            }
            self.dying = true;
            self.dropping = true;
        }
        self.wake = now;
    }

    /// Reads everything from now on.
    pub(super) fn verify(&mut self) {
        self.task = Task::Verify;
        self.to_verify.clear();
        for &Space { geometry, .. } in &self.spaces {
            let most = u64::from(self.slot_bytes / geometry.block_bytes);
            let mut start = 0;
            while start < geometry.blocks {
                let blocks = most.min(geometry.blocks - start);
                self.to_verify.push((geometry, start, blocks));
                start += blocks;
            }
        }
    }

    /// Whether its task is done.
    pub(super) fn is_done(&self) -> bool {
        match self.task {
            Task::Work => self.submitted >= self.plan.quota && self.ops.is_empty(),
            Task::Verify => self.to_verify.is_empty() && self.ops.is_empty(),
            Task::Idle => self.ops.is_empty(),
            Task::Leave => self.machine.as_ref().is_none_or(|machine| machine.session.is_none()),
        }
    }

    /// Requests under way.
    pub(super) fn under_way(&self) -> usize {
        self.ops.len()
    }

    /// What the fabric still holds: connections, and memory regions besides the data's own.
    pub(super) fn left_over(&self) -> (usize, usize) {
        self.machine.as_ref().map_or((0, 0), |machine| {
            (machine.fabric.connections(), machine.fabric.regions().len().saturating_sub(1))
        })
    }

    /// Whether every request ends in time.
    ///
    /// # Errors
    /// One that did not.
    pub(super) fn check_age(&self, now: Timestamp) -> Result<(), String> {
        if self.asleep_until + Duration::from_secs(1) > now {
            return Ok(());
        }
        for op in self.ops.values() {
            let limit = IO_TIMEOUT * (op.commands + 1) + Duration::from_secs(10);
            if now.since(op.submitted) > limit {
                return Err(format!("host {}: {op:?} did not end within {limit:?}", self.index));
            }
        }
        Ok(())
    }

    /// One turn. Sets `wake`.
    pub(super) fn turn(&mut self, context: &mut Context<'_>) -> Result<(), String> {
        let now = context.now;
        if now < self.asleep_until {
            self.wake = self.asleep_until;
            return Ok(());
        }
        if self.machine.is_none() {
            if now < self.start_at || self.task == Task::Leave {
                self.wake = if self.task == Task::Leave { Timestamp::NEVER } else { self.start_at };
                return Ok(());
            }
            self.boot()?;
        }
        let mut completions = core::mem::take(&mut self.completions);
        let mut events = core::mem::take(&mut self.events);
        let Some(machine) = &mut self.machine else { return Ok(()) };
        machine.fabric.poll(now, 64, &mut completions, &mut events);
        let mut worked = !completions.is_empty() || !events.is_empty();
        if let Some(session) = &mut machine.session {
            session.handle(now, &mut machine.fabric, &completions, &events);
        }
        machine.drive_far(now, &completions, &events);
        completions.clear();
        events.clear();
        self.completions = completions;
        self.events = events;
        worked |= self.collect(context)?;
        if self.leaving {
            self.leave_on(now);
        }
        self.look_after_session(context)?;
        worked |= self.submit_some(context)?;
        self.wake = self.next_wake(now, worked, context.turn);
        Ok(())
    }

    fn next_wake(&mut self, now: Timestamp, worked: bool, turn: Duration) -> Timestamp {
        let start_at = self.start_at;
        let think = self.think_until;
        let wants_to_start = self.wants_session();
        let Some(machine) = &mut self.machine else { return start_at };
        if worked {
            return now + turn;
        }
        let mut wake = match machine.fabric.arm(now) {
            Armed::Ready => now + turn,
            Armed::Until(time) => time,
        };
        match &machine.session {
            Some(session) => wake = wake.min(session.next_timeout()),
            None if wants_to_start => wake = wake.min(start_at),
            None => {}
        }
        for queue in &machine.far {
            wake = wake.min(queue.next_timeout());
        }
        if think > now {
            wake = wake.min(think);
        }
        wake
    }

    fn wants_session(&self) -> bool {
        self.task != Task::Leave
    }

    /// Takes what ended.
    fn collect(&mut self, context: &mut Context<'_>) -> Result<bool, String> {
        let mut done: Vec<IoDone> = Vec::new();
        if let Some(machine) = &mut self.machine {
            if let Some(session) = &mut machine.session {
                for queue in 0..session.io_queues() {
                    while let Some(one) = session.poll_done(queue) {
                        done.push(one);
                    }
                }
                while let Some(event) = session.poll_event() {
                    if matches!(event, SessionEvent::Other(_)) {
                        context.trace.count("host: asynchronous event");
                    }
                }
                while let Some(admin) = session.poll_admin() {
                    context.trace.count("host: admin command");
                    note!(context.trace, "host {}: admin {:?}", self.index, admin.result.is_ok());
                }
            }
            for queue in &mut machine.far {
                while let Some(one) = queue.poll_done() {
                    done.push(one);
                }
            }
        }
        for one in &done {
            self.end_op(context, one.user_data, one.result)?;
        }
        Ok(!done.is_empty())
    }

    fn end_op(
        &mut self,
        context: &mut Context<'_>,
        id: u64,
        result: Result<u64, lariat::core::IoFailure>,
    ) -> Result<(), String> {
        let Some(op) = self.ops.remove(&id) else {
            return Err(format!("host {}: request {id} ended twice, or never began", self.index));
        };
        self.free_slots.push(op.slot);
        let mut data = Vec::new();
        if let (Some(bytes), Ok(_), Some(machine)) = (op.reads(), result, &self.machine) {
            data.resize(usize::try_from(bytes).unwrap_or(0), 0);
            let offset = op.slot as u64 * u64::from(self.slot_bytes);
            machine.memory.read_at(offset, &mut data).map_err(|e| e.to_string())?;
        }
        let outcome = match result {
            Ok(_) => "done",
            Err(failure) => match failure.failure {
                lariat::core::Failure::Status(_) => "status",
                _ => "lost",
            },
        };
        note!(context.trace, "host {} request {id}: {outcome}", self.index);
        self.succeeded += u64::from(result.is_ok());
        let lost = matches!(
            result,
            Err(lariat::core::IoFailure { failure: lariat::core::Failure::Lost(_), .. })
        );
        if lost && !self.excused && !self.dropping {
            return Err(format!("host {}: {op:?} was lost: {result:?}", self.index));
        }
        // The deadline of a verification must not pass over what was lost.
        if lost
            && let super::workload::Kind::Read(span) = op.kind
            && self.task == Task::Verify
        {
            let geometry = self.spaces[span.space].geometry;
            let sectors = u64::from(geometry.block_bytes) / 512;
            self.to_verify.push((geometry, span.sector / sectors, span.count / sectors));
        }
        op.finish(result, &data, context.model, context.trace, self.spaces.len())
            .map_err(|wrong| format!("host {}, request {id}: {wrong}", self.index))
    }

    /// Sessions come and go.
    fn look_after_session(&mut self, context: &mut Context<'_>) -> Result<(), String> {
        let now = context.now;
        let index = self.index;
        let config = self.config();
        let wants = self.wants_session();
        let Some(machine) = &mut self.machine else { return Ok(()) };
        let Some(session) = &mut machine.session else {
            if wants && now >= self.start_at {
                match Session::start(now, &mut machine.fabric, config, machine.domain) {
                    Ok(session) => machine.session = Some(session),
                    Err(error) => return Err(format!("host {index}: no session: {error}")),
                }
                machine.far_started = false;
                self.far_left = false;
                self.was_ready = false;
                note!(context.trace, "host {index}: connects");
            }
            return Ok(());
        };
        let far_lost = machine.far.iter().any(|q| matches!(q.status(), LinkStatus::Closed(_)));
        let far_live = machine.far.iter().all(|queue| queue.status() == LinkStatus::Live);
        let own_lost = (0..session.io_queues())
            .filter_map(|at| session.io_queue(at))
            .any(|queue| matches!(queue.status(), LinkStatus::Closed(_)));
        match session.state() {
            SessionState::Ready if !machine.far_started => {
                machine.far_started = true;
                for far in 0..self.plan.far_queues {
                    let qid = Qid(self.plan.queues + far + 1);
                    let Some((mut link, limits)) = session.io_link(qid, machine.domain) else {
                        return Err(format!("host {index}: queue {qid} was not granted"));
                    };
                    link.remote = reactor_address(1);
                    match BlockQueue::start(now, &mut machine.fabric, link, limits) {
                        Ok(queue) => machine.far.push(queue),
                        Err(error) => return Err(format!("host {index}: no queue: {error}")),
                    }
                }
            }
            SessionState::Ready if !self.dying && (own_lost || (far_lost && !self.far_left)) => {
                note!(context.trace, "host {index}: lost a queue, gives the session up");
                context.trace.count("host: lost an I/O queue alone");
                session.abort(now, &mut machine.fabric, LossReason::Local);
                self.wake = now;
                return self.session_over(context);
            }
            SessionState::Ready if !self.was_ready && far_live => {
                self.was_ready = true;
                self.excused = false;
                self.failures_in_row = 0;
                context.trace.count("host: session ready");
                note!(context.trace, "host {index}: ready");
                self.check_namespaces()?;
            }
            SessionState::Closed(_) => return self.session_over(context),
            _ => {}
        }
        Ok(())
    }

    fn check_namespaces(&self) -> Result<(), String> {
        let session = self.machine.as_ref().and_then(|machine| machine.session.as_ref());
        let Some(session) = session else { return Ok(()) };
        let found: Vec<_> = session.namespaces().iter().map(|info| info.geometry).collect();
        if found.iter().eq(self.spaces.iter().map(|space| &space.geometry)) {
            Ok(())
        } else {
            Err(format!("host {}: sees namespaces {found:?}", self.index))
        }
    }

    fn session_over(&mut self, context: &mut Context<'_>) -> Result<(), String> {
        let now = context.now;
        let Some(machine) = &mut self.machine else { return Ok(()) };
        let Some(session) = &mut machine.session else { return Ok(()) };
        let SessionState::Closed(reason) = session.state() else { return Ok(()) };
        let error = session.take_error();
        for queue in &mut machine.far {
            queue.close(now, &mut machine.fabric, reason);
        }
        machine.fabric.flush(now);
        self.collect(context)?;
        let index = self.index;
        note!(context.trace, "host {index}: session over");
        if !self.ops.is_empty() {
            return Err(format!(
                "host {index}: the session is over and {} requests did not end",
                self.ops.len()
            ));
        }
        let Some(machine) = &mut self.machine else { return Ok(()) };
        machine.session = None;
        machine.far.clear();
        if !self.excused && !self.dying {
            let error = error.map_or_else(String::new, |error| format!(": {error}"));
            return Err(format!("host {index}: session lost without cause: {reason}{error}"));
        }
        context.trace.count(match reason {
            LossReason::Local => "host: session closed on its side",
            LossReason::Peer => "host: session closed by the target",
            LossReason::Unresponsive => "host: target did not answer",
            LossReason::Transport(_) => "host: queue pair failed",
            LossReason::CommandTimeout { .. } => "host: command timed out",
            LossReason::KeepAlive { .. } => "host: keep alive timed out",
            _ => "host: session lost otherwise",
        });
        self.dying = false;
        self.dropping = false;
        self.leaving = false;
        self.was_ready = false;
        self.failures_in_row += 1;
        // After a while, longer and longer; sometimes at once.
        let most = 20_000 << self.failures_in_row.min(6);
        self.start_at = now + self.rng.micros(0, most);
        Ok(())
    }

    /// Submits requests, as many as the moment allows.
    fn submit_some(&mut self, context: &mut Context<'_>) -> Result<bool, String> {
        let now = context.now;
        if !self.was_ready || self.leaving || now < self.think_until {
            return Ok(false);
        }
        let mut any = false;
        let burst = self.rng.range(1, 24);
        for _ in 0..burst {
            let draft = match self.task {
                Task::Work if self.submitted < self.plan.quota => {
                    Draft::random(&mut self.rng, &self.plan, &self.spaces, context.mdts_bytes)
                }
                Task::Verify => match self.to_verify.last() {
                    Some(&(geometry, start, blocks)) => Draft::read(geometry, start, blocks),
                    None => break,
                },
                _ => break,
            };
            let Some(slot) = self.free_slots.pop() else { break };
            if !self.submit(context, draft, slot)? {
                self.free_slots.push(slot);
                break;
            }
            any = true;
            self.submitted += u64::from(self.task == Task::Work);
            if self.task == Task::Verify {
                self.to_verify.pop();
            }
        }
        if let Some(Machine { fabric, session: Some(session), far, .. }) = &mut self.machine {
            session.post(now, fabric);
            let mut ring = false;
            for queue in far {
                ring |= queue.post(now, fabric);
            }
            if ring {
                fabric.flush(now);
            }
        }
        if any && self.rng.percent(30) {
            self.think_until = now + self.rng.micros(1, 2000);
        }
        Ok(any)
    }

    fn submit(
        &mut self,
        context: &mut Context<'_>,
        draft: Draft,
        slot: usize,
    ) -> Result<bool, String> {
        let now = context.now;
        let Some(machine) = &mut self.machine else { return Ok(false) };
        let Some(session) = &mut machine.session else { return Ok(false) };
        let offset = slot as u64 * u64::from(self.slot_bytes);
        *context.next_value += 1;
        let value = Value(*context.next_value);
        let length = draft.bytes as usize;
        let fits = draft.bytes <= self.slot_bytes;
        if !fits {
            return Err(format!("{draft:?} does not fit a slot of {} bytes", self.slot_bytes));
        }
        // Whoever reads from memory that was not written finds this.
        let bytes = draft.data(value).unwrap_or_else(|| vec![0xee; length]);
        machine.memory.write_at(offset, &bytes).map_err(|e| e.to_string())?;
        let address = machine.memory.address().as_ptr().addr() as u64 + offset;
        let data = DataRef { region: machine.region, offset, address, length: draft.bytes };
        let id = self.next_op;
        let own = usize::from(self.plan.queues);
        let queue = self.rng.index(own + machine.far.len());
        let taken = match draft.form {
            Form::Request(..) => {
                let request = draft.request((length > 0).then_some(data));
                let Some(request) = request else { return Ok(false) };
                match queue.checked_sub(own) {
                    None => session.submit(now, &machine.fabric, queue, &request, id),
                    Some(far) => machine.far[far].submit(now, &machine.fabric, &request, id),
                }
            }
            Form::Raw(_, raw) => {
                let transfer = match raw {
                    RawData::None => Transfer::None,
                    RawData::ToHost(_) => Transfer::ToHost(data),
                    RawData::FromHost(_) => Transfer::ToController(data),
                };
                let Some(command) = draft.command() else { return Ok(false) };
                let fabric = &machine.fabric;
                match queue.checked_sub(own) {
                    None => session.submit_raw(now, fabric, queue, command, transfer, id),
                    Some(far) => machine.far[far].submit_raw(now, fabric, command, transfer, id),
                }
            }
        };
        match taken {
            Ok(()) => {}
            Err(SubmitError::Full | SubmitError::Closed(_) | SubmitError::NotReady) => {
                context.trace.count("host: queue full or closed");
                return Ok(false);
            }
            Err(error) => return Err(format!("host {}: {draft:?}: {error}", self.index)),
        }
        self.next_op += 1;
        let kind = draft.begin(context.model, value);
        note!(
            context.trace,
            "host {} request {id} on queue {queue}, value {}: {kind:?}",
            self.index,
            value.0
        );
        let limit = self.plan.transfer_bytes.min(context.mdts_bytes).max(512);
        let commands = draft.bytes.div_ceil(limit).max(1);
        self.ops.insert(id, Op { kind, slot, submitted: now, commands });
        Ok(true)
    }
}

impl Machine {
    fn drive_far(&mut self, now: Timestamp, completions: &[WorkCompletion], events: &[CmEvent]) {
        let mut ring = false;
        for queue in &mut self.far {
            for completion in completions {
                if queue.conn() == Some(completion.conn) {
                    queue.handle_completion(now, &mut self.fabric, completion);
                }
            }
            for event in events {
                if queue.conn() == Some(conn_of(event)) {
                    queue.handle_event(now, &mut self.fabric, event);
                }
            }
            if now >= queue.next_timeout() {
                queue.handle_timeout(now, &mut self.fabric);
            }
            ring |= queue.post(now, &mut self.fabric);
        }
        if ring {
            self.fabric.flush(now);
        }
    }
}

/// Which connection an event is of.
pub(super) fn conn_of(event: &CmEvent) -> ConnId {
    match event {
        CmEvent::Resolved { conn }
        | CmEvent::ConnectRequest { conn, .. }
        | CmEvent::Established { conn, .. }
        | CmEvent::ConnectFailed { conn, .. }
        | CmEvent::Disconnected { conn, .. } => *conn,
    }
}

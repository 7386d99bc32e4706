//! A good host: sessions of `lariat::core` on one fabric, random requests, and a new session when
//! one is gone. Also where it is decided whether a lost connection has an excuse.

mod requests;
mod session;

use core::net::IpAddr;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;

use lariat::core::{BlockQueue, Failure, Geometry, LossReason, Session};
use lariat_fabric::sim::{SimNet, SimNetwork};
use lariat_fabric::soft::SoftFabric;
use lariat_fabric::verbs::{Access, CmEvent, ConnId, DomainId, RegionId, WorkCompletion};
use lariat_fabric::{Armed, Fabric, Memory, Timestamp};
use lariat_wire::nvme::{Nqn, Nsid};

use crate::sim::model::Model;
use crate::sim::plan::HostPlan;
use crate::sim::random::Rng;
use crate::sim::trace::{Trace, note};
use crate::sim::workload::{Op, Space};

/// What a turn may touch besides the host itself.
pub(in crate::sim) struct Context<'a> {
    pub(in crate::sim) now: Timestamp,
    pub(in crate::sim) trace: &'a mut Trace,
    pub(in crate::sim) model: &'a mut Model,
    /// Identity of the next write.
    pub(in crate::sim) next_value: &'a mut u64,
    pub(in crate::sim) mdts_bytes: u32,
    pub(in crate::sim) turn: Duration,
}

/// Time for a command. Also beside hosts that vanished or fell silent with all buffers in their hands
/// nobody may have to wait longer.
pub(in crate::sim) const IO_TIMEOUT: Duration = Duration::from_secs(8);
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
pub(in crate::sim) enum Task {
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
    pub(in crate::sim) index: usize,
    pub(in crate::sim) ip: IpAddr,
    plan: HostPlan,
    rng: Rng,
    net: SimNet,
    spaces: Vec<Space>,
    machine: Option<Machine>,
    /// When it comes (again).
    start_at: Timestamp,
    /// When it wants a turn.
    pub(in crate::sim) wake: Timestamp,
    /// It does nothing until then.
    pub(in crate::sim) asleep_until: Timestamp,
    pub(in crate::sim) task: Task,
    to_verify: Vec<(Geometry, u64, u64)>,
    ops: BTreeMap<u64, Op>,
    next_op: u64,
    free_slots: Vec<usize>,
    slot_bytes: u32,
    /// Requests submitted.
    pub(in crate::sim) submitted: u64,
    /// Requests that ended well.
    pub(in crate::sim) succeeded: u64,
    /// Something was done to it that may end connections; until it has a new session.
    pub(in crate::sim) excused: bool,
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
    pub(in crate::sim) fn new(
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

    /// Dies without a word, with all that was under way. Comes again after a while.
    pub(in crate::sim) fn kill(
        &mut self,
        context: &mut Context<'_>,
        away: Duration,
    ) -> Result<(), String> {
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
                nsid: Nsid(0),
                lba: lariat_wire::nvme::Lba(0),
                failure: Failure::Lost(LossReason::Local),
            };
            self.end_op(context, id, Err(failure))?;
        }
        Ok(())
    }

    /// Reads everything from now on.
    pub(in crate::sim) fn verify(&mut self) {
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
    pub(in crate::sim) fn is_done(&self) -> bool {
        match self.task {
            Task::Work => self.submitted >= self.plan.quota && self.ops.is_empty(),
            Task::Verify => self.to_verify.is_empty() && self.ops.is_empty(),
            Task::Idle => self.ops.is_empty(),
            Task::Leave => self.machine.as_ref().is_none_or(|machine| machine.session.is_none()),
        }
    }

    /// Requests under way.
    pub(in crate::sim) fn under_way(&self) -> usize {
        self.ops.len()
    }

    /// What the fabric still holds: connections, and memory regions besides the data's own.
    pub(in crate::sim) fn left_over(&self) -> (usize, usize) {
        self.machine.as_ref().map_or((0, 0), |machine| {
            (machine.fabric.connections(), machine.fabric.regions().len().saturating_sub(1))
        })
    }

    /// Whether every request ends in time.
    ///
    /// # Errors
    /// One that did not.
    pub(in crate::sim) fn check_age(&self, now: Timestamp) -> Result<(), String> {
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
    pub(in crate::sim) fn turn(&mut self, context: &mut Context<'_>) -> Result<(), String> {
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
}

/// Which connection an event is of.
pub(in crate::sim) fn conn_of(event: &CmEvent) -> ConnId {
    match event {
        CmEvent::Resolved { conn }
        | CmEvent::ConnectRequest { conn, .. }
        | CmEvent::Established { conn, .. }
        | CmEvent::ConnectFailed { conn, .. }
        | CmEvent::Disconnected { conn, .. } => *conn,
    }
}

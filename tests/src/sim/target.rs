//! The target: its reactors, each a machine of its own address, over the same disks and registry;
//! how it stops, dies and comes again, and what must be left then. Called by `world`.

use core::time::Duration;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lariat_fabric::sim::{SimNet, SimNetwork};
use lariat_fabric::soft::SoftFabric;
use lariat_fabric::{Armed, Timestamp};
use lariat_target::nvme::{AllowedHosts, Namespace, Registry, Subsystem, SubsystemMap, Waker};
use lariat_target::storage::BackendId;
use lariat_target::transport::{Reactor, Statistics};
use lariat_wire::nvme::{Nqn, Nsid};

use super::disk::{Disks, SimDisk};
use super::host::{host_nqn, subsystem_nqn};
use super::plan::{Plan, reactor_address, reactor_ip};
use super::trace::{Trace, note};

/// Memory regions that a reactor has registered beside receive buffers: pool, responses, zeroes.
const OTHER_REGIONS: usize = 3;

/// A stop is over by then unless the disks are slow, whatever becomes of hosts: one may be waited for
/// by another (for buffers), and then there are the good-byes.
const LONGEST_STOP: Duration = Duration::from_secs(3);

/// The subsystem that is open to the hostile host.
#[must_use]
pub(super) fn hostile_nqn() -> Nqn {
    Nqn::parse("nqn.2026-01.io.lariat:open").expect("a valid name")
}

struct Flag(Arc<AtomicBool>);

impl Waker for Flag {
    fn wake(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Where the target is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Up,
    /// Stops in good order, then is away so long.
    Stopping {
        since: Timestamp,
        away: Duration,
    },
    /// Off until then.
    Down(Timestamp),
}

/// A target.
pub(super) struct Target {
    net: SimNet,
    disks: Disks,
    map: Arc<SubsystemMap>,
    plan: Plan,
    life: Life,
    registry: Option<Arc<Registry>>,
    reactors: Vec<Reactor<SoftFabric<SimNetwork>, SimDisk>>,
    /// When each reactor wants a turn.
    wakes: Vec<Timestamp>,
    flag: Arc<AtomicBool>,
    asleep_until: Timestamp,
    total: Statistics,
}

impl Target {
    pub(super) fn new(plan: &Plan, net: &SimNet, disks: &Disks) -> Result<Self, String> {
        let good = plan.geometries.len() - usize::from(plan.hostile);
        let mut builder = Subsystem::builder(subsystem_nqn())
            .allowed_hosts(AllowedHosts::Only((0..plan.hosts.len()).map(host_nqn).collect()));
        let mut open = Subsystem::builder(hostile_nqn());
        for (index, &geometry) in plan.geometries.iter().enumerate() {
            let number = u32::try_from(index).unwrap_or(u32::MAX);
            let uuid = [u8::try_from(index + 1).unwrap_or(0); 16];
            let backend = BackendId(number);
            if index < good {
                builder =
                    builder.namespace(Namespace::new(Nsid(number + 1), backend, geometry, uuid));
            } else {
                open = open.namespace(Namespace::new(Nsid(1), backend, geometry, uuid));
            }
        }
        let subsystems = if plan.hostile { vec![builder, open] } else { vec![builder] };
        let map = SubsystemMap::new(plan.reactor.limits, subsystems, Vec::new())
            .map_err(|error| error.to_string())?;
        let mut target = Self {
            net: net.clone(),
            disks: disks.clone(),
            map: Arc::new(map),
            plan: plan.clone(),
            life: Life::Down(Timestamp::ZERO),
            registry: None,
            reactors: Vec::new(),
            wakes: vec![Timestamp::ZERO; plan.reactors],
            flag: Arc::new(AtomicBool::new(false)),
            asleep_until: Timestamp::ZERO,
            total: Statistics::default(),
        };
        target.start()?;
        Ok(target)
    }

    fn start(&mut self) -> Result<(), String> {
        let wakers = (0..self.plan.reactors)
            .map(|_| Box::new(Flag(Arc::clone(&self.flag))) as Box<dyn Waker>)
            .collect();
        let registry = Registry::new(Arc::clone(&self.map), wakers);
        for index in 0..self.plan.reactors {
            let fabric = self.net.node(reactor_ip(index));
            let disk = self.disks.open();
            let config = self.plan.reactor;
            let mut reactor = Reactor::new(fabric, disk, Arc::clone(&registry), config)
                .map_err(|error| error.to_string())?;
            reactor.listen(reactor_address(index)).map_err(|error| error.to_string())?;
            self.reactors.push(reactor);
        }
        self.registry = Some(registry);
        self.wakes.fill(self.net.now());
        self.life = Life::Up;
        Ok(())
    }

    /// When it wants a turn.
    pub(super) fn wake(&self) -> Timestamp {
        match self.life {
            Life::Down(until) => until,
            _ if self.flag.load(Ordering::Relaxed) => self.asleep_until,
            _ => {
                let first = self.wakes.iter().copied().min().unwrap_or(Timestamp::NEVER);
                first.min(self.disks.next_done()).max(self.asleep_until)
            }
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.life == Life::Up
    }

    pub(super) fn is_down(&self) -> bool {
        matches!(self.life, Life::Down(_))
    }

    /// Whether nothing of any host is under way here.
    pub(super) fn is_idle(&self) -> bool {
        self.disks.in_flight() == 0
            && self.reactors.iter().all(|reactor| reactor.resources().requests == 0)
    }

    /// Its threads do nothing until then.
    pub(super) fn sleep(&mut self, until: Timestamp) {
        self.asleep_until = until;
    }

    /// Stops in good order.
    pub(super) fn stop(&mut self, now: Timestamp, away: Duration, trace: &mut Trace) -> bool {
        if self.life != Life::Up {
            return false;
        }
        note!(trace, "target: stops");
        self.life = Life::Stopping { since: now, away };
        for reactor in &mut self.reactors {
            reactor.shutdown(now);
        }
        self.wakes.fill(now);
        true
    }

    /// Dies without a word. The disks are the caller's matter.
    pub(super) fn kill(
        &mut self,
        now: Timestamp,
        away: Duration,
        trace: &mut Trace,
    ) -> Result<bool, String> {
        if self.is_down() {
            return Ok(false);
        }
        note!(trace, "target: dies");
        for index in 0..self.plan.reactors {
            self.net.kill(reactor_ip(index));
        }
        self.bury()?;
        self.life = Life::Down(now + away);
        Ok(true)
    }

    /// Adds up what reactors counted, and drops them.
    fn bury(&mut self) -> Result<(), String> {
        for reactor in self.reactors.drain(..) {
            self.total.merge(reactor.statistics());
        }
        self.registry = None;
        self.check_anomalies()
    }

    fn check_anomalies(&self) -> Result<(), String> {
        let anomalies = self.statistics().anomalies;
        if anomalies == 0 { Ok(()) } else { Err(format!("target: {anomalies} anomalies")) }
    }

    /// What all reactors counted, those of earlier lives included.
    pub(super) fn statistics(&self) -> Statistics {
        let mut total = self.total;
        for reactor in &self.reactors {
            total.merge(reactor.statistics());
        }
        total
    }

    /// One turn of reactor `index`, or the next step of its life.
    pub(super) fn turn(
        &mut self,
        index: usize,
        now: Timestamp,
        trace: &mut Trace,
    ) -> Result<(), String> {
        if let Life::Down(until) = self.life {
            if now >= until {
                note!(trace, "target: starts");
                trace.count("target: started again");
                self.start()?;
            }
            return Ok(());
        }
        if now < self.asleep_until {
            return Ok(());
        }
        let Some(reactor) = self.reactors.get_mut(index) else { return Ok(()) };
        if index + 1 == self.plan.reactors {
            self.flag.store(false, Ordering::Relaxed);
        }
        let worked = reactor.poll(now);
        let wake = if worked {
            now + self.plan.turn
        } else {
            match reactor.arm(now) {
                Armed::Ready => now + self.plan.turn,
                Armed::Until(time) => time,
            }
        };
        if let Some(slot) = self.wakes.get_mut(index) {
            *slot = wake;
        }
        if let Life::Stopping { since, away } = self.life
            && self.reactors.iter().all(Reactor::is_drained)
        {
            let took = now.since(since);
            note!(trace, "target: has stopped, after {took:?}");
            trace.count("target: stopped in good order");
            if took >= self.plan.reactor.stop_silence {
                trace.count("target: stopped without waiting for a host");
            }
            if took > LONGEST_STOP && !self.disks.were_slow(since) {
                return Err(format!("target: the stop took {took:?}"));
            }
            self.check_empty()?;
            if self.disks.in_flight() != 0 {
                return Err("target: stopped with requests in the disks".to_owned());
            }
            self.bury()?;
            for index in 0..self.plan.reactors {
                self.net.kill(reactor_ip(index));
            }
            self.life = Life::Down(now + away);
        }
        Ok(())
    }

    /// Connections, and those that the fabric still says good-bye to.
    pub(super) fn connections(&self) -> usize {
        self.reactors.iter().map(|r| r.connections() + r.fabric().connections()).sum()
    }

    /// Without connections everything that was lent is back.
    ///
    /// # Errors
    /// What is not.
    pub(super) fn check_empty(&self) -> Result<(), String> {
        self.check_anomalies()?;
        for (index, reactor) in self.reactors.iter().enumerate() {
            let resources = reactor.resources();
            let regions = reactor.fabric().regions().len();
            let empty = reactor.connections() == 0
                && resources.requests == 0
                && resources.buffer_bytes == resources.buffer_bytes_free
                && resources.receive_bytes_free == self.plan.reactor.receive_max_bytes as u64
                && resources.waiting_for_buffers == 0
                && resources.waiting_for_storage == 0
                && regions == OTHER_REGIONS + resources.receive_memories;
            if !empty {
                return Err(format!(
                    "target: reactor {index} leaks: {} connections, {regions} regions, {resources:?}",
                    reactor.connections()
                ));
            }
        }
        let controllers = self.registry.as_ref().map_or(0, |registry| registry.controllers());
        if controllers != 0 {
            return Err(format!("target: {controllers} controllers are left"));
        }
        Ok(())
    }
}

//! The clock and the order of turns; what goes wrong, when its time has come; the questions at the
//! end. Calls everything else; called by `runner` and the tests.

use core::time::Duration;
use std::collections::BTreeMap;

use lariat::core::Geometry;
use lariat_fabric::Timestamp;
use lariat_fabric::sim::{Faults, SimNet};
use lariat_wire::nvme::Nsid;

use super::content::SECTOR_BYTES;
use super::disk::{Defect, Disks};
use super::garbage;
use super::host::{Context, Host, Task};
use super::hostile::Hostile;
use super::model::Model;
use super::plan::{Event, Plan, host_ip, reactor_ip};
use super::random::Rng;
use super::target::Target;
use super::trace::{Coverage, Trace, note};
use super::workload::{MEDIA_ERROR, Space};

/// What a run gives.
#[derive(Clone, Debug)]
pub struct Report {
    /// Fingerprint of all that happened.
    pub hash: u64,
    /// Requests that ended well.
    pub requests: u64,
    /// Sectors whose content was checked.
    pub sectors: u64,
    /// Virtual time that passed.
    pub time: Duration,
    /// How often what happened.
    pub coverage: Coverage,
}

/// A run that found something.
#[derive(Clone, Debug, thiserror::Error)]
#[error("seed {seed}, at {time:?}: {what}")]
pub struct Violation {
    /// The seed.
    pub seed: u64,
    /// Virtual time.
    pub time: Timestamp,
    /// What is wrong.
    pub what: String,
}

/// Everything has to be over by then.
const PATIENCE: Duration = Duration::from_secs(400);
/// Turns at most: more is a loop that does not get on.
const MOST_STEPS: u64 = 3_000_000;
/// No datagram is under way for longer than that.
const NETWORK_MEMORY: Duration = Duration::from_millis(60);
/// After a disturbance, connections may still end because of it.
const AFTERMATH: Duration = Duration::from_secs(10);

/// Runs one seed; with `echo` prints what happens.
///
/// # Errors
/// What is wrong.
pub fn run(seed: u64, defect: Option<Defect>, echo: bool) -> Result<Report, Box<Violation>> {
    let plan = Plan::new(seed, defect);
    let mut world = match World::new(plan, echo) {
        Ok(world) => world,
        Err(what) => return Err(Box::new(Violation { seed, time: Timestamp::ZERO, what })),
    };
    match world.run() {
        Ok(()) => Ok(world.report()),
        Err(what) => {
            note!(world.trace, "WRONG: {what}");
            Err(Box::new(Violation { seed, time: world.net.now(), what }))
        }
    }
}

/// A disturbance that ends by itself.
#[derive(Clone, Copy, Debug)]
enum Repair {
    Network,
    Cut { host: usize },
}

struct World {
    plan: Plan,
    rng: Rng,
    net: SimNet,
    disks: Disks,
    target: Target,
    hosts: Vec<Host>,
    hostile: Option<Hostile>,
    model: Model,
    trace: Trace,
    next_value: u64,
    next_event: usize,
    repairs: BTreeMap<(Timestamp, u64), Repair>,
    repair_number: u64,
    /// Until when which host's connections may be lost.
    excuses: Vec<Timestamp>,
    /// Writes of unknown outcome when they were last looked at, and when there were new ones.
    unknown: (u64, Timestamp),
    fenced: bool,
    target_awake_since: Timestamp,
    next_check: Timestamp,
    steps: u64,
}

impl World {
    fn new(mut plan: Plan, echo: bool) -> Result<Self, String> {
        let mut rng = plan.rng.fork();
        let net = SimNet::new(rng.word());
        net.set_faults(plan.network);
        net.set_path_mtu(plan.path_mtu);
        let disks = Disks::new(plan.disk, rng.fork(), &plan.geometries);
        let target = Target::new(&plan, &net, &disks)?;
        let mut model = Model::default();
        let good = plan.geometries.len() - usize::from(plan.hostile);
        let mut spaces = Vec::new();
        for (nsid, geometry) in (1..).zip(&plan.geometries[..good]) {
            let bytes = geometry.capacity_blocks * u64::from(geometry.block_bytes);
            let sectors = usize::try_from(bytes).unwrap_or(0) / SECTOR_BYTES;
            model.add_space(nsid, sectors);
            spaces.push(Space {
                geometry: Geometry {
                    nsid: Nsid(nsid),
                    block_bytes: geometry.block_bytes,
                    blocks: geometry.capacity_blocks,
                },
                deallocates: geometry.deallocate,
            });
        }
        let mdts = plan.reactor.limits.mdts_bytes;
        let host = |(index, host_plan): (usize, _)| {
            let spaces = spaces.clone();
            Host::new(index, host_ip(index), host_plan, &net, spaces, rng.fork(), mdts)
        };
        let hosts: Vec<_> = plan.hosts.iter().copied().enumerate().map(host).collect();
        let hostile = if plan.hostile {
            let block_bytes = plan.geometries.last().map_or(512, |disk| disk.block_bytes);
            Some(Hostile::new(rng.fork(), &net, plan.reactors, plan.turn, block_bytes, mdts)?)
        } else {
            None
        };
        let mut trace = Trace::new(echo);
        note!(trace, "{plan:#?}");
        Ok(Self {
            excuses: vec![Timestamp::ZERO; hosts.len()],
            plan,
            rng,
            net,
            disks,
            target,
            hosts,
            hostile,
            model,
            trace,
            next_value: 0,
            next_event: 0,
            repairs: BTreeMap::new(),
            repair_number: 0,
            unknown: (0, Timestamp::ZERO),
            fenced: true,
            target_awake_since: Timestamp::ZERO,
            next_check: Timestamp::ZERO,
            steps: 0,
        })
    }

    fn run(&mut self) -> Result<(), String> {
        self.until("the work is done", |world| {
            world.next_event == world.plan.events.len()
                && world.repairs.is_empty()
                && world.hosts.iter().all(Host::is_done)
        })?;
        self.check_calm()?;
        self.disks.heal();
        if self.plan.final_power_cut {
            self.apply(Event::PowerCut(Duration::from_millis(1)))?;
            self.until("the target is up", |world| world.target.is_up())?;
        }
        note!(self.trace, "everything is read");
        let reader = self.rng.index(self.hosts.len());
        for host in &mut self.hosts {
            host.task = Task::Idle;
        }
        self.hosts[reader].verify();
        self.wake_hosts();
        self.until("everything is read", |world| world.hosts.iter().all(Host::is_done))?;
        note!(self.trace, "everybody leaves");
        let now = self.net.now();
        if self.hostile.take().is_some() {
            self.net.kill(super::plan::hostile_ip());
        }
        for at in 0..self.hosts.len() {
            self.hosts[at].task = Task::Leave;
            if self.rng.percent(30) {
                self.act(at, |host, context| host.kill(context, Duration::ZERO))?;
            } else {
                self.hosts[at].leave(now);
            }
        }
        self.until("everybody is gone", |world| {
            world.hosts.iter().all(Host::is_done)
                && world.target.is_up()
                && world.target.connections() == 0
                && world.hosts.iter().all(|host| host.left_over().0 == 0)
        })?;
        self.target.check_empty()?;
        for host in &self.hosts {
            let (_, regions) = host.left_over();
            if regions != 0 {
                return Err(format!("host {}: {regions} memory regions are left", host.index));
            }
        }
        let now = self.net.now();
        self.target.stop(now, PATIENCE * 2, &mut self.trace);
        self.until("the target has stopped", |world| world.target.is_down())?;
        let seen = self.trace.coverage.get(MEDIA_ERROR).copied().unwrap_or(0);
        if seen > self.disks.errors() {
            let made = self.disks.errors();
            return Err(format!("{seen} requests failed, but the disks made {made} errors only"));
        }
        Ok(())
    }

    /// Without anything harmful each host has had one session.
    fn check_calm(&self) -> Result<(), String> {
        if self.plan.hostile || self.excuses.iter().any(|until| *until > Timestamp::ZERO) {
            return Ok(());
        }
        let statistics = self.target.statistics();
        let (violations, late) = (statistics.violations, statistics.connect_timeouts);
        // Who is killed between accept and Fabrics Connect says neither that nor good-bye.
        let killed = |(_, event): &_| matches!(event, Event::HostKilled(..));
        if violations == 0 && (late == 0 || self.plan.events.iter().any(killed)) {
            Ok(())
        } else {
            Err(format!(
                "the target complains of good hosts: {violations} violations, {late} late Connects"
            ))
        }
    }

    fn wake_hosts(&mut self) {
        let now = self.net.now();
        for host in &mut self.hosts {
            host.wake = now;
        }
    }

    fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) -> Result<(), String> {
        let limit = self.net.now() + PATIENCE;
        while !done(self) {
            self.step()?;
            self.steps += 1;
            if self.net.now() > limit || self.steps > MOST_STEPS {
                let under_way: usize = self.hosts.iter().map(Host::under_way).sum();
                return Err(format!(
                    "it does not come to pass that {what}: {} steps, {under_way} requests under \
                     way, {} connections at the target, {:?} left at hosts",
                    self.steps,
                    self.target.connections(),
                    self.hosts.iter().map(Host::left_over).collect::<Vec<_>>(),
                ));
            }
        }
        Ok(())
    }

    /// Lets time pass until something is to be done, and lets everybody do it, in any order.
    fn step(&mut self) -> Result<(), String> {
        let mut next = self.net.next_arrival().min(self.target.wake());
        for host in &self.hosts {
            next = next.min(host.wake.max(host.asleep_until));
        }
        if let Some(hostile) = &self.hostile {
            next = next.min(hostile.wake);
        }
        if let Some(((time, _), _)) = self.repairs.first_key_value() {
            next = next.min(*time);
        }
        if next == Timestamp::NEVER {
            return Err("nothing will ever happen again".to_owned());
        }
        self.net.step(next);
        let now = self.net.now();
        self.trace.now = now;
        self.disks.set_now(now);
        self.repair(now);
        for at in self.rng.order(self.hosts.len() + self.plan.reactors + 1) {
            if let Some(reactor) = at.checked_sub(self.hosts.len()) {
                if reactor < self.plan.reactors {
                    self.target.turn(reactor, now, &mut self.trace)?;
                } else if let Some(hostile) = &mut self.hostile {
                    hostile.turn(now, &mut self.trace)?;
                }
            } else {
                self.act(at, Host::turn)?;
            }
        }
        self.start_events()?;
        self.fence(now);
        if now >= self.next_check {
            self.next_check = now + Duration::from_millis(500);
            for host in &self.hosts {
                host.check_age(now)?;
            }
        }
        Ok(())
    }

    fn act(
        &mut self,
        at: usize,
        what: impl FnOnce(&mut Host, &mut Context<'_>) -> Result<(), String>,
    ) -> Result<(), String> {
        let now = self.net.now();
        let host = &mut self.hosts[at];
        host.excused |= now < self.excuses[at];
        let mut context = Context {
            now,
            trace: &mut self.trace,
            model: &mut self.model,
            next_value: &mut self.next_value,
            mdts_bytes: self.plan.reactor.limits.mdts_bytes,
            turn: self.plan.turn,
        };
        what(host, &mut context)
    }

    /// Tells the model when nothing can be left of lost writes.
    fn fence(&mut self, now: Timestamp) {
        let unknown = self.trace.coverage.get("request: write of unknown outcome");
        let unknown = unknown.copied().unwrap_or(0);
        if unknown != self.unknown.0 {
            self.unknown = (unknown, now);
            self.fenced = false;
        }
        let since = self.unknown.1.max(self.target_awake_since);
        if !self.fenced && now > since + NETWORK_MEMORY && self.target.is_idle() {
            self.trace.count("model: lost writes are over");
            self.model.fence();
            self.fenced = true;
        }
    }

    fn start_events(&mut self) -> Result<(), String> {
        let submitted: u64 = self.hosts.iter().map(|host| host.submitted).sum();
        let finished = self.hosts.iter().all(Host::is_done);
        while let Some(&(at, event)) = self.plan.events.get(self.next_event)
            && (at <= submitted || finished)
        {
            self.next_event += 1;
            self.apply(event)?;
        }
        Ok(())
    }

    fn excuse(&mut self, host: usize, until: Timestamp) {
        self.excuses[host] = self.excuses[host].max(until);
        self.hosts[host].excused = true;
    }

    fn excuse_all(&mut self, until: Timestamp) {
        for host in 0..self.hosts.len() {
            self.excuse(host, until);
        }
    }

    fn repair_at(&mut self, time: Timestamp, repair: Repair) {
        self.repair_number += 1;
        self.repairs.insert((time, self.repair_number), repair);
    }

    fn repair(&mut self, now: Timestamp) {
        while let Some(entry) = self.repairs.first_entry() {
            if entry.key().0 > now {
                break;
            }
            let repair = entry.remove();
            note!(self.trace, "mended: {repair:?}");
            match repair {
                Repair::Network => self.net.set_faults(self.plan.network),
                Repair::Cut { host } => {
                    for reactor in 0..self.plan.reactors {
                        self.net.cut(host_ip(host), reactor_ip(reactor), false);
                        self.net.cut(reactor_ip(reactor), host_ip(host), false);
                    }
                }
            }
        }
    }

    fn apply(&mut self, event: Event) -> Result<(), String> {
        let now = self.net.now();
        note!(self.trace, "EVENT {event:?}");
        match event {
            Event::BadNetwork(faults, time) => self.bad_network(now, faults, time),
            Event::Cut { host, out, back, time } => {
                self.trace.count(match (out, back) {
                    (true, true) => "event: host cut off",
                    (true, false) => "event: host not heard",
                    _ => "event: host does not hear",
                });
                self.excuse(host, now + time + AFTERMATH);
                for reactor in 0..self.plan.reactors {
                    if out {
                        self.net.cut(host_ip(host), reactor_ip(reactor), true);
                    }
                    if back {
                        self.net.cut(reactor_ip(reactor), host_ip(host), true);
                    }
                }
                self.repair_at(now + time, Repair::Cut { host });
            }
            Event::HostKilled(host, away) => {
                self.trace.count("event: host killed");
                self.act(host, |host, context| host.kill(context, away))?;
            }
            Event::HostLeaves(host) => {
                self.trace.count("event: host leaves in good order");
                self.hosts[host].leave(now);
            }
            Event::HostDrops(host) => {
                self.trace.count("event: host drops its connections");
                self.hosts[host].drop_connections(now);
            }
            Event::HostSleeps(host, time) => {
                self.trace.count("event: host sleeps");
                self.excuse(host, now + time + AFTERMATH);
                self.hosts[host].asleep_until = now + time;
            }
            Event::TargetStops(away) => {
                self.excuse_all(now + away + AFTERMATH);
                if self.target.stop(now, away, &mut self.trace) {
                    self.trace.count("event: target stops");
                }
            }
            Event::TargetKilled(away) => self.kill_target(now, away, false)?,
            Event::PowerCut(away) => self.kill_target(now, away, true)?,
            Event::TargetSleeps(time) => {
                self.trace.count("event: target sleeps");
                self.target.sleep(now + time);
                self.target_awake_since = now + time;
            }
            Event::SlowDisk(time) => {
                self.trace.count("event: disks are slow");
                self.disks.slow_until(now + time);
            }
            Event::Garbage(count) => {
                for _ in 0..count {
                    let (reactors, hosts) = (self.plan.reactors, self.plan.hosts.len());
                    garbage::send(&mut self.rng, &self.net, reactors, hosts, &mut self.trace);
                }
            }
        }
        Ok(())
    }

    fn bad_network(&mut self, now: Timestamp, faults: Faults, time: Duration) {
        if faults.loss_ppm >= 100_000 {
            self.trace.count("event: terrible network");
            self.excuse_all(now + time + AFTERMATH);
        } else {
            self.trace.count("event: bad network");
        }
        self.net.set_faults(faults);
        self.repair_at(now + time, Repair::Network);
    }

    fn kill_target(&mut self, now: Timestamp, away: Duration, power: bool) -> Result<(), String> {
        self.excuse_all(now + away + AFTERMATH);
        if self.target.is_down() {
            return Ok(());
        }
        if self.disks.in_flight() > 0 {
            self.trace.count("target: died with requests in the disks");
        }
        if power {
            self.trace.count("event: power cut");
            self.disks.power_cut();
            self.model.power_cut();
        } else {
            self.trace.count("event: target killed");
            self.disks.kill();
        }
        self.target.kill(now, away, &mut self.trace)?;
        Ok(())
    }

    fn report(mut self) -> Report {
        let net = self.net.counters();
        let statistics = self.target.statistics();
        let trace = &mut self.trace;
        for (what, times) in [
            ("network: sent", net.sent),
            ("network: lost", net.lost),
            ("network: unreachable", net.unreachable),
            ("network: duplicated", net.duplicated),
            ("network: reordered", net.reordered),
            ("network: damaged", net.corrupted),
            ("network: marked", net.marked),
            ("target: connections accepted", statistics.accepted),
            ("target: connections refused", statistics.rejected),
            ("target: rules broken by hosts", statistics.violations),
            ("target: silent connection ended for the sake of others", statistics.starvers),
            ("target: idle host probed", statistics.probes),
            ("target: no Fabrics Connect in time", statistics.connect_timeouts),
            ("target: waited for a buffer", statistics.buffer_waits),
            ("target: waited for the disk's queue", statistics.storage_waits),
            ("target: waited for a turn to RDMA READ", statistics.read_waits),
            ("target: capsules parked", statistics.parked_capsules),
            ("target: requests orphaned", statistics.orphaned),
            ("target: error responses", statistics.error_responses),
            ("target: fabric errors", statistics.fabric_errors),
            ("model: sectors checked", self.model.checked),
            ("model: sectors with several possible values", self.model.ambiguous),
        ] {
            trace.add(what, times);
        }
        for (what, times) in self.disks.coverage() {
            trace.add(what, times);
        }
        note!(trace, "network {net:?} {:x} {} commands", self.net.trace(), statistics.commands);
        Report {
            hash: self.trace.hash(),
            requests: self.hosts.iter().map(|host| host.succeeded).sum(),
            sectors: self.model.checked,
            time: self.net.now().since(Timestamp::ZERO),
            coverage: core::mem::take(&mut self.trace.coverage),
        }
    }
}

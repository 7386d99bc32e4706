//! Processor time of a request in the whole stack: initiator, soft fabric and target take
//! turns on one thread, so that other load on the machine hardly disturbs the figures.
//!
//! `cargo run --release -p lariat-tests --example stack_cost -- read|write [BYTES] [DEPTH] [COUNT]
//! [memory|null] [IN-CAPSULE BYTES] [udp|shm] [clock|steps]`
//!
//! With `steps`, time passes by a microsecond at each look at it: what the protocol does is then the
//! same in every run, for counting instructions (`cargo xtask instructions`, which knows
//! [`measured_initiator_turn`] and [`measured_target_turn`] by their names).
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a measurement, run by hand")]

use core::cell::Cell;
use core::net::SocketAddr;
use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use lariat::core::{
    DataRef, Geometry, Identity, IoRequest, Operation, Session, SessionConfig, SessionState,
};
use lariat_fabric::soft::{self, SoftConfig, WireChoice};
use lariat_fabric::verbs::{Access, RegionId};
use lariat_fabric::{Fabric, Memory, Timestamp};
use lariat_target::nvme::{Limits, Namespace, Registry, Subsystem, SubsystemMap, Waker};
use lariat_target::storage::{
    BackendConfig, BackendId, BackendKind, EventWaker, StorageSet, UringConfig, UringStorage,
};
use lariat_target::transport::{Reactor, ReactorConfig};
use lariat_wire::nvme::{HostId, Lba, Nqn, Nsid, QueueSize};

const CAPACITY: u64 = 256 << 20;

struct Nobody;

impl Waker for Nobody {
    fn wake(&self) {}
}

fn processor_time() -> (f64, f64) {
    let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_THREAD).unwrap();
    let micros = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 * 1e6 + time.tv_usec() as f64;
    (micros(usage.user_time()), micros(usage.system_time()))
}

/// The initiator and its load: random requests of one size, so many at a time.
struct Host<F> {
    fabric: F,
    session: Session,
    region: RegionId,
    base: u64,
    geometry: Geometry,
    write: bool,
    bytes: u32,
    /// Requests to submit, all in all.
    count: u64,
    free: Vec<u64>,
    submitted: u64,
    done: u64,
    random: u64,
}

impl<F: Fabric> Host<F> {
    fn turn(&mut self, now: Timestamp) {
        let blocks = u64::from(self.bytes / self.geometry.block_bytes);
        while self.submitted < self.count
            && let Some(slot) = self.free.pop()
        {
            self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let place = (self.random >> 33) % (self.geometry.blocks / blocks);
            let offset = slot * u64::from(self.bytes);
            let (region, address) = (self.region, self.base + offset);
            let data = DataRef { region, offset, address, length: self.bytes };
            let operation =
                if self.write { Operation::Write { fua: false } } else { Operation::Read };
            let (geometry, start) = (self.geometry, Lba(place * blocks));
            let request = IoRequest { operation, geometry, start, blocks, data: Some(data) };
            self.session.submit(now, &self.fabric, 0, &request, slot).unwrap();
            self.submitted += 1;
        }
        self.session.poll(now, &mut self.fabric);
        while let Some(ended) = self.session.poll_done(0) {
            ended.result.unwrap();
            self.free.push(ended.user_data);
            self.done += 1;
        }
    }
}

/// A turn that counts.
#[inline(never)]
fn measured_initiator_turn<F: Fabric>(host: &mut Host<F>, now: Timestamp) {
    host.turn(now);
    // So that this is a call and no jump, which callgrind would not see the end of.
    std::hint::black_box(());
}

/// A turn that counts.
#[inline(never)]
fn measured_target_turn<F: Fabric>(reactor: &mut Reactor<F, UringStorage>, now: Timestamp) {
    std::hint::black_box(reactor.poll(now));
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let word = |at: usize, other: &str| arguments.get(at).cloned().unwrap_or(other.to_owned());
    let write = word(0, "read") == "write";
    let bytes: u32 = word(1, "4096").parse().unwrap();
    let depth: u64 = word(2, "32").parse().unwrap();
    let count: u64 = word(3, "500000").parse().unwrap();
    let in_capsule_bytes: u32 = word(5, "8192").parse().unwrap();
    let steps = word(7, "clock") == "steps";
    let kind = if word(4, "memory") == "null" {
        BackendKind::Null { size_bytes: CAPACITY }
    } else {
        BackendKind::Memory { size_bytes: CAPACITY }
    };
    let start = Instant::now();
    let looks = Cell::new(0);
    let now = || {
        looks.set(looks.get() + 1);
        Timestamp::ZERO + if steps { Duration::from_micros(looks.get()) } else { start.elapsed() }
    };

    let config = BackendConfig { kind, block_bytes: 4096, read_only: false };
    let set = StorageSet::open(&[config]).unwrap();
    let geometry = set.geometry(BackendId(0)).unwrap();
    let limits = Limits {
        max_queue_depth: QueueSize::from_entries(256).unwrap(),
        in_capsule_bytes,
        ..Limits::default()
    };
    let nqn = Nqn::parse("nqn.2026-11.io.lariat:cost").unwrap();
    let namespace = Namespace::new(Nsid(1), BackendId(0), geometry, [1; 16]);
    let subsystem = Subsystem::builder(nqn.clone()).namespace(namespace);
    let map = Arc::new(SubsystemMap::new(limits, vec![subsystem], Vec::new()).unwrap());
    let registry = Registry::new(map, vec![Box::new(Nobody)]);
    let storage =
        UringStorage::new(set, EventWaker::new().unwrap(), UringConfig::default()).unwrap();
    let reactor_config = ReactorConfig { limits, ..ReactorConfig::default() };
    let wire = if word(6, "udp") == "shm" { WireChoice::Shm } else { WireChoice::Udp };
    let soft_config = SoftConfig { wire, ..SoftConfig::default() };
    let fabric = soft::open(&soft_config).unwrap();
    let mut reactor = Reactor::new(fabric, storage, registry, reactor_config).unwrap();
    let address: SocketAddr =
        format!("127.92.{}.{}:4420", std::process::id() / 250 % 250, std::process::id() % 250 + 1)
            .parse()
            .unwrap();
    reactor.listen(address).unwrap();

    let mut fabric = soft::open(&soft_config).unwrap();
    let domain = fabric.open_domain().unwrap();
    let memory = Memory::allocate(usize::try_from(depth * u64::from(bytes)).unwrap()).unwrap();
    memory.zero(0, memory.len()).unwrap();
    let region = fabric.register(domain, Arc::clone(&memory), Access::REMOTE).unwrap();
    let identity = Identity {
        subsystem: nqn,
        host: Nqn::parse("nqn.2026-11.io.lariat:host").unwrap(),
        host_id: HostId([7; 16]),
    };
    let mut session_config = SessionConfig::new(address, identity);
    session_config.queue_depth = u32::try_from(depth).unwrap();
    session_config.kato = Duration::ZERO;
    let mut session = Session::start(now(), &mut fabric, session_config, domain).unwrap();
    while session.state() != SessionState::Ready {
        assert_eq!(session.state(), SessionState::Connecting, "{:?}", session.take_error());
        session.poll(now(), &mut fabric);
        reactor.poll(now());
    }
    let geometry: Geometry = session.namespaces().first().unwrap().geometry;
    let base = memory.address().as_ptr().addr() as u64;
    let free = (0..depth).collect();
    let (submitted, done, random) = (0, 0, 1);
    let mut host = Host {
        fabric,
        session,
        region,
        base,
        geometry,
        write,
        bytes,
        count,
        free,
        submitted,
        done,
        random,
    };
    let warm = count / 10;
    while host.done < warm {
        host.turn(now());
        reactor.poll(now());
    }
    let (before, begin, first) = (processor_time(), Instant::now(), host.done);
    while host.done < count {
        measured_initiator_turn(&mut host, now());
        measured_target_turn(&mut reactor, now());
    }
    let after = processor_time();
    let measured = (count - first) as f64;
    let (target, initiator) = (reactor.fabric().counters(), host.fabric.counters());
    let batch = |packets: u64, calls: u64| packets as f64 / calls.max(1) as f64;
    println!(
        "{} {bytes} bytes, depth {depth}: user {:.2} us, system {:.2} us, together {:.2} us; target \
         {:.1} packets a send call, {:.1} a receive call, initiator {:.1} and {:.1}; sent again {} \
         and {}; {:.0} k/s, {measured} requests measured",
        word(0, "read"),
        (after.0 - before.0) / measured,
        (after.1 - before.1) / measured,
        (after.0 - before.0 + after.1 - before.1) / measured,
        batch(target.packets_sent, target.send_calls),
        batch(target.packets_received, target.receive_calls),
        batch(initiator.packets_sent, initiator.send_calls),
        batch(initiator.packets_received, initiator.receive_calls),
        target.retransmissions,
        initiator.retransmissions,
        measured / begin.elapsed().as_secs_f64() / 1e3,
    );
}

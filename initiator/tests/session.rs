//! The core over the simulated network against the stub target: bring-up, requests, loss, limits.

#![allow(clippy::unwrap_used, reason = "a panic here is a failing test")]

mod stub;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use lariat::core::{
    ConnectError, DataRef, Failure, Geometry, Identity, IoDone, IoRequest, LossReason, Operation,
    Session, SessionConfig, SessionState, SubmitError,
};
use lariat_fabric::sim::{Faults, SimNet, SimNetwork};
use lariat_fabric::soft::SoftFabric;
use lariat_fabric::verbs::{Access, DomainId, RegionId};
use lariat_fabric::waiting::PARTING_SILENCE;
use lariat_fabric::{Armed, Fabric, Memory};
use lariat_wire::nvme::{Command, HostId, Lba, Nqn, Nsid, Status};
use stub::{Knobs, SUBSYSTEM, Stub};

const HOST: &str = "10.0.0.1";
const TARGET: &str = "10.0.0.2";

struct World {
    net: SimNet,
    stub: Stub<SoftFabric<SimNetwork>>,
    fabric: SoftFabric<SimNetwork>,
    session: Session,
    memory: Arc<Memory>,
    region: RegionId,
}

fn config() -> SessionConfig {
    let identity = Identity {
        subsystem: Nqn::parse(SUBSYSTEM).unwrap(),
        host: Nqn::from_uuid([3; 16]),
        host_id: HostId([3; 16]),
    };
    let remote = SocketAddr::new(TARGET.parse().unwrap(), 4420);
    SessionConfig { queue_depth: 16, ..SessionConfig::new(remote, identity) }
}

impl World {
    fn new(knobs: Knobs, config: SessionConfig) -> Self {
        let net = SimNet::new(11);
        let host: IpAddr = HOST.parse().unwrap();
        let target: IpAddr = TARGET.parse().unwrap();
        let stub = Stub::new(net.node(target), SocketAddr::new(target, 4420), knobs);
        let mut fabric = net.node(host);
        let domain: DomainId = fabric.open_domain().unwrap();
        let memory = Memory::allocate(4 << 20).unwrap();
        let region = fabric.register(domain, Arc::clone(&memory), Access::REMOTE).unwrap();
        let session = Session::start(net.now(), &mut fabric, config, domain).unwrap();
        Self { net, stub, fabric, session, memory, region }
    }

    fn ready(knobs: Knobs, config: SessionConfig) -> Self {
        let mut world = Self::new(knobs, config);
        world.run(|world| world.session.state() != SessionState::Connecting);
        assert_eq!(world.session.state(), SessionState::Ready, "{:?}", world.session.take_error());
        world
    }

    /// One turn of everybody, then time passes to the next thing to happen.
    fn turn(&mut self) {
        let now = self.net.now();
        self.session.poll(now, &mut self.fabric);
        self.stub.poll(now);
        let mut next = self.net.next_event_time().min(self.session.next_timeout());
        for armed in [self.fabric.arm(now), self.stub.fabric.arm(now)] {
            next = next.min(match armed {
                Armed::Ready => now,
                Armed::Until(until) => until,
            });
        }
        next = next.min(self.net.next_event_time());
        // Where nothing will ever happen any more, `run` notices.
        let next = next.min(now + Duration::from_secs(1));
        self.net.step(next.max(now + Duration::from_nanos(100)));
    }

    fn run(&mut self, until: impl Fn(&Self) -> bool) {
        for _ in 0..500_000 {
            if until(self) {
                return;
            }
            self.turn();
        }
        panic!("it takes for ever, at {:?}: {:?}", self.net.now(), self.session.state());
    }

    fn geometry(&self) -> Geometry {
        self.session.namespaces()[0].geometry
    }

    fn data(&self, offset: u64, length: u32) -> DataRef {
        let address = self.memory.address().as_ptr().addr() as u64 + offset;
        DataRef { region: self.region, offset, address, length }
    }

    fn request(&self, operation: Operation, start: u64, blocks: u64, at: u64) -> IoRequest {
        let geometry = self.geometry();
        let bytes = u32::try_from(blocks * u64::from(geometry.block_bytes)).unwrap();
        let with_data = matches!(operation, Operation::Read | Operation::Write { .. });
        let data = with_data.then(|| self.data(at, bytes));
        IoRequest { operation, geometry, start: Lba(start), blocks, data }
    }

    fn submit(&mut self, request: &IoRequest, user_data: u64) -> Result<(), SubmitError> {
        self.session.submit(self.net.now(), &self.fabric, 0, request, user_data)
    }

    fn finish(&mut self, request: &IoRequest) -> IoDone {
        self.submit(request, 77).unwrap();
        self.done()
    }

    fn done(&mut self) -> IoDone {
        loop {
            if let Some(done) = self.session.poll_done(0) {
                return done;
            }
            self.turn();
        }
    }
}

#[test]
fn comes_up_and_moves_data() {
    let mut world = World::ready(Knobs::default(), config());
    let info = &world.session.namespaces()[0];
    assert_eq!(info.geometry, Geometry { nsid: Nsid(1), block_bytes: 512, blocks: 8192 });
    assert_eq!(info.uuid, Some(stub::UUID));
    assert_eq!(world.session.controller_id().0, 5);
    // 300 KiB at MDTS 128 KiB: three commands; and a small one that goes in its capsule.
    let bytes: Vec<u8> = (0..300 << 10).map(|at: u32| (at % 251) as u8).collect();
    world.memory.write_at(0, &bytes).unwrap();
    let write = world.request(Operation::Write { fua: true }, 8, 600, 0);
    let done = world.finish(&write);
    assert_eq!((done.user_data, done.result), (77, Ok(0)));
    assert!(done.stages.remote() > Duration::from_micros(10));
    assert_eq!(world.stub.disk[8 * 512..][..bytes.len()], bytes);
    assert_eq!(world.stub.largest_transfer, 128 << 10);
    assert_eq!(world.stub.in_capsule_writes, 0);
    let small = world.request(Operation::Write { fua: false }, 0, 8, 512);
    world.finish(&small).result.unwrap();
    assert_eq!(world.stub.in_capsule_writes, 1);
    assert_eq!(world.stub.disk[..4096], bytes[512..][..4096]);
    let read = world.request(Operation::Read, 8, 600, 1 << 20);
    world.finish(&read).result.unwrap();
    let mut back = vec![0; bytes.len()];
    world.memory.read_at(1 << 20, &mut back).unwrap();
    assert_eq!(back, bytes);
    let flush = world.request(Operation::Flush, 0, 0, 0);
    world.finish(&flush).result.unwrap();
    let zeroes = Operation::WriteZeroes { deallocate: true, fua: false };
    let zero = world.request(zeroes, 8, 100, 0);
    world.finish(&zero).result.unwrap();
    assert!(world.stub.disk[8 * 512..108 * 512].iter().all(|&byte| byte == 0));
    let gone = world.request(Operation::Deallocate, 108, 500, 0);
    world.finish(&gone).result.unwrap();
    assert!(world.stub.disk[8 * 512..608 * 512].iter().all(|&byte| byte == 0));
}

#[test]
fn without_in_capsule_data_and_with_large_blocks() {
    let knobs =
        Knobs { in_capsule_bytes: 0, block_shift: 12, blocks: 512, mdts: 1, ..Knobs::default() };
    let mut world = World::ready(knobs, config());
    world.memory.write_at(0, &vec![9; 40960]).unwrap();
    let write = world.request(Operation::Write { fua: false }, 500, 10, 0);
    world.finish(&write).result.unwrap();
    assert_eq!((world.stub.in_capsule_writes, world.stub.largest_transfer), (0, 8192));
    assert_eq!(world.stub.disk[500 * 4096..510 * 4096], vec![9; 40960]);
}

#[test]
fn the_data_of_many_small_writes_is_fetched() {
    let mut world = World::ready(Knobs::default(), config());
    let batches = |world: &mut World, count: u64, of: u64| {
        let before = world.stub.in_capsule_writes;
        for batch in 0..count {
            for block in 0..of {
                let fill = u8::try_from(1 + (batch + block) % 200).unwrap();
                world.memory.write_at(block * 512, &[fill; 512]).unwrap();
                let write = world.request(Operation::Write { fua: false }, block, 1, block * 512);
                world.submit(&write, block).unwrap();
            }
            for _ in 0..of {
                world.done().result.unwrap();
            }
            for block in 0..of {
                let at = usize::try_from(block).unwrap() * 512;
                let fill = u8::try_from(1 + (batch + block) % 200).unwrap();
                assert!(world.stub.disk[at..at + 512].iter().all(|&byte| byte == fill));
            }
        }
        world.stub.in_capsule_writes - before
    };
    // In the capsule they are there a round trip earlier, and few cost little.
    assert_eq!(batches(&mut world, 10, 1), 10);
    // The first of many are in their capsules, too: who knows how many will follow.
    assert_eq!(batches(&mut world, 10, 16), 16);
    // Many are forgotten after a while.
    let in_capsules = batches(&mut world, 30, 1);
    assert!((20..30).contains(&in_capsules), "{in_capsules}");
}

#[test]
fn keeps_to_its_depth_and_completes_each_once() {
    let mut world = World::ready(Knobs::default(), config());
    let mut seen = [0; 64];
    let mut next = 0;
    while seen.iter().sum::<u32>() < 64 {
        while next < 64 {
            let read =
                world.request(Operation::Read, next * 8, 1 + next % 3 * 300, (next % 8) << 19);
            match world.submit(&read, next) {
                Ok(()) => next += 1,
                Err(error) => {
                    assert_eq!(error, SubmitError::Full);
                    assert!(next > 16 || world.session.io_queue(0).unwrap().outstanding() == 16);
                    break;
                }
            }
        }
        let done = world.done();
        done.result.unwrap();
        seen[usize::try_from(done.user_data).unwrap()] += 1;
    }
    assert_eq!(seen, [1; 64]);
    assert!(world.stub.most_outstanding > 1, "capsules of one turn travel together");
}

#[test]
fn depth_follows_the_controller() {
    let knobs = Knobs { max_entries: 8, ..Knobs::default() };
    let world = World::ready(knobs, config());
    assert_eq!(world.session.io_queue(0).unwrap().depth(), 7);
}

#[test]
fn refuses_what_cannot_be() {
    let mut world = World::ready(Knobs::default(), config());
    let beyond = world.request(Operation::Read, 8190, 3, 0);
    let error = world.submit(&beyond, 0).unwrap_err();
    assert_eq!(error, SubmitError::OutOfRange { start: 8190, blocks: 3, capacity: 8192 });
    let overflow = IoRequest { start: Lba(u64::MAX), ..world.request(Operation::Read, 0, 1, 0) };
    assert!(matches!(world.submit(&overflow, 0), Err(SubmitError::OutOfRange { .. })));
    let none = world.request(Operation::Read, 0, 0, 0);
    assert_eq!(world.submit(&none, 0), Err(SubmitError::Empty));
    let short = IoRequest { blocks: 2, ..world.request(Operation::Read, 0, 1, 0) };
    assert!(matches!(world.submit(&short, 0), Err(SubmitError::LengthMismatch { .. })));
    let mut foreign = world.request(Operation::Read, 0, 1, 0);
    foreign.data = foreign.data.map(|data| DataRef { region: RegionId(999), ..data });
    assert_eq!(world.submit(&foreign, 0), Err(SubmitError::BadMemory));
    // Nothing of this took a slot.
    for user_data in 0..16 {
        let read = world.request(Operation::Read, 0, 1, 0);
        world.submit(&read, user_data).unwrap();
    }
}

#[test]
fn a_bad_block_fails_its_request_alone() {
    let knobs = Knobs { bad_block: Some(700), ..Knobs::default() };
    let mut world = World::ready(knobs, config());
    let long = world.request(Operation::Read, 0, 1024, 0);
    let failure = world.finish(&long).result.unwrap_err();
    assert_eq!((failure.opcode, failure.nsid, failure.lba), (2, Nsid(1), Lba(512)));
    let Failure::Status(status) = failure.failure else { panic!("{failure}") };
    assert!(status.same_code(Status::UNRECOVERED_READ_ERROR) && status.dnr());
    let good = world.request(Operation::Read, 0, 512, 0);
    world.finish(&good).result.unwrap();
}

#[test]
fn raw_commands_get_the_controllers_own_answer() {
    let mut world = World::ready(Knobs::default(), config());
    let mut command = Command::new(2).with_nsid(Nsid(1));
    command.cdw10.set(9000);
    let target = lariat::core::Transfer::ToHost(world.data(0, 512));
    let now = world.net.now();
    world.session.submit_raw(now, &world.fabric, 0, command, target, 5).unwrap();
    let failure = world.done().result.unwrap_err();
    let Failure::Status(status) = failure.failure else { panic!("{failure}") };
    assert!(status.same_code(Status::LBA_OUT_OF_RANGE));
}

#[test]
fn a_silent_command_ends_its_queue_within_the_time() {
    let knobs = Knobs { mute_io: Some(2), ..Knobs::default() };
    let config = SessionConfig { io_timeout: Duration::from_millis(700), ..config() };
    let mut world = World::ready(knobs, config);
    let start = world.net.now();
    let read = world.request(Operation::Read, 0, 1, 0);
    world.submit(&read, 1).unwrap();
    let long = world.request(Operation::Read, 0, 4096, 0);
    world.submit(&long, 2).unwrap();
    for _ in 0..2 {
        let failure = world.done().result.unwrap_err();
        assert!(
            matches!(failure.failure, Failure::Lost(LossReason::CommandTimeout { opcode: 2, .. })),
            "{failure}"
        );
    }
    let waited = world.net.now().since(start);
    assert!(waited >= Duration::from_millis(700) && waited < Duration::from_millis(720));
    assert!(matches!(world.submit(&read, 3), Err(SubmitError::Closed(_))));
    // The controller itself stands.
    assert_eq!(world.session.state(), SessionState::Ready);
}

#[test]
fn the_peers_good_bye_fails_everything_at_once() {
    let knobs = Knobs { mute_io: Some(2), ..Knobs::default() };
    let mut world = World::ready(knobs, config());
    for user_data in 0..16 {
        let read = world.request(Operation::Read, 0, 1000, 0);
        world.submit(&read, user_data).unwrap();
    }
    for _ in 0..200 {
        world.turn();
    }
    let now = world.net.now();
    world.stub.hang_up(now);
    world.run(|world| matches!(world.session.state(), SessionState::Closed(_)));
    assert!(world.net.now().since(now) < Duration::from_millis(50));
    assert_eq!(world.session.state(), SessionState::Closed(LossReason::Peer));
    let mut ended = 0;
    while let Some(done) = world.session.poll_done(0) {
        assert!(matches!(done.result.unwrap_err().failure, Failure::Lost(_)));
        ended += 1;
    }
    assert_eq!(ended, 16);
}

#[test]
fn a_dead_peer_is_noticed_without_traffic() {
    let config = SessionConfig { kato: Duration::from_secs(4), ..config() };
    let mut world = World::ready(Knobs::default(), config);
    let (host, target) = (HOST.parse().unwrap(), TARGET.parse().unwrap());
    world.net.cut(target, host, true);
    let start = world.net.now();
    world.run(|world| matches!(world.session.state(), SessionState::Closed(_)));
    let waited = world.net.now().since(start);
    assert!(waited < Duration::from_secs(7), "{waited:?}");
}

#[test]
fn keep_alive_goes_on_and_its_silence_counts() {
    let config = SessionConfig { kato: Duration::from_secs(2), ..config() };
    let mut world = World::ready(Knobs::default(), config);
    let end = world.net.now() + Duration::from_secs(10);
    world.run(|world| world.net.now() >= end);
    assert!((9..=11).contains(&world.stub.keep_alives), "{}", world.stub.keep_alives);
    assert_eq!(world.session.state(), SessionState::Ready);
    world.stub.knobs.mute_admin = Some(0x18);
    world.run(|world| matches!(world.session.state(), SessionState::Closed(_)));
    assert!(matches!(world.session.state(), SessionState::Closed(LossReason::KeepAlive { .. })));
}

#[test]
fn ends_in_order() {
    let mut world = World::ready(Knobs::default(), config());
    let read = world.request(Operation::Read, 0, 1000, 0);
    world.submit(&read, 9).unwrap();
    let now = world.net.now();
    world.session.shutdown(now, &mut world.fabric);
    assert!(matches!(world.submit(&read, 10), Err(SubmitError::Closed(LossReason::Local))));
    world.run(|world| matches!(world.session.state(), SessionState::Closed(_)));
    // What was outstanding came to its end first.
    assert_eq!(world.session.poll_done(0).map(|done| done.result), Some(Ok(0)));
    assert_eq!((world.stub.shutdowns, world.stub.disconnect_commands), (1, 1));
    world.run_until_idle();
    assert_eq!(world.stub.connections(), 0);
}

impl World {
    fn run_until_idle(&mut self) {
        let end = self.net.now() + Duration::from_millis(100);
        while self.net.now() < end {
            let now = self.net.now();
            self.session.poll(now, &mut self.fabric);
            self.stub.poll(now);
            self.fabric.arm(now);
            self.stub.fabric.arm(now);
            self.net.step(now + Duration::from_micros(50));
        }
    }
}

#[test]
fn the_end_is_bounded() {
    let config = SessionConfig { shutdown_timeout: Duration::from_millis(300), ..config() };
    let mut world = World::ready(Knobs::default(), config);
    world.net.cut(TARGET.parse().unwrap(), HOST.parse().unwrap(), true);
    let now = world.net.now();
    world.session.shutdown(now, &mut world.fabric);
    world.run(|world| matches!(world.session.state(), SessionState::Closed(_)));
    assert!(world.net.now().since(now) <= Duration::from_millis(301));
}

#[test]
fn a_silent_target_does_not_hold_up_the_end() {
    let mut world = World::ready(Knobs::default(), config());
    world.net.cut(TARGET.parse().unwrap(), HOST.parse().unwrap(), true);
    let read = world.request(Operation::Read, 0, 1000, 0);
    world.submit(&read, 9).unwrap();
    let now = world.net.now();
    world.session.shutdown(now, &mut world.fabric);
    world.run(|world| matches!(world.session.state(), SessionState::Closed(_)));
    // The I/O queue has waited in vain, and then the admin queue.
    let took = world.net.now().since(now);
    assert!(took >= PARTING_SILENCE && took <= PARTING_SILENCE * 2 + Duration::from_millis(1));
    let done = world.session.poll_done(0).map(|done| done.result);
    let lost = Failure::Lost(LossReason::Unresponsive);
    assert!(matches!(done, Some(Err(failure)) if failure.failure == lost));
}

fn failed(knobs: Knobs, config: SessionConfig) -> (ConnectError, Duration) {
    let mut world = World::new(knobs, config);
    let start = world.net.now();
    world.run(|world| world.session.state() != SessionState::Connecting);
    let error = world.session.take_error().expect("a reason");
    (error, world.net.now().since(start))
}

#[test]
fn tells_why_it_did_not_come_up() {
    let mut wrong = config();
    wrong.identity.subsystem = Nqn::parse("nqn.2026-01.org.example:none").unwrap();
    let (error, _) = failed(Knobs::default(), wrong);
    assert!(error.to_string().contains("there is no subsystem of this name"), "{error}");

    let mut wrong = config();
    wrong.remote.set_port(4421);
    let (error, _) = failed(Knobs::default(), wrong);
    assert!(matches!(error, ConnectError::Rejected { .. }), "{error}");
    assert!(error.to_string().contains("nobody listens there"), "{error}");

    let mut wrong = config();
    wrong.remote.set_ip("10.0.0.9".parse().unwrap());
    wrong.connect_timeout = Duration::from_secs(2);
    let (error, waited) = failed(Knobs::default(), wrong);
    assert!(matches!(error, ConnectError::TimedOut { .. }), "{error}");
    assert!(waited <= Duration::from_millis(2001), "{waited:?}");

    let (error, _) = failed(Knobs { never_ready: true, ..Knobs::default() }, config());
    assert!(matches!(error, ConnectError::NotReady { .. }), "{error}");

    let mute = Knobs { mute_admin: Some(0x06), ..Knobs::default() };
    let quick = SessionConfig { admin_timeout: Duration::from_secs(1), ..config() };
    let (error, waited) = failed(mute, quick);
    assert!(matches!(error, ConnectError::Lost { .. }), "{error}");
    assert!(waited < Duration::from_millis(1100), "{waited:?}");
}

#[test]
fn a_peer_that_breaks_the_protocol_loses_the_queue() {
    let broken = [
        Knobs { wrong_cid: Some(0x7777), ..Knobs::default() },
        Knobs { long_response: true, ..Knobs::default() },
        Knobs { invalidate: true, ..Knobs::default() },
    ];
    for knobs in broken {
        let mut world = World::ready(knobs, config());
        let read = world.request(Operation::Read, 0, 8, 0);
        let failure = world.finish(&read).result.unwrap_err();
        assert!(matches!(failure.failure, Failure::Lost(LossReason::Protocol(_))), "{failure}");
    }
}

#[test]
fn namespaces_are_read_anew_when_they_change() {
    let mut world = World::ready(Knobs::default(), config());
    world.stub.knobs.blocks = 4096;
    let now = world.net.now();
    world.stub.announce_change(now);
    world.run(|world| world.geometry().blocks == 4096);
    assert_eq!(world.session.poll_event(), Some(lariat::core::SessionEvent::NamespacesChanged));
}

#[test]
fn a_bad_network_only_slows_it_down() {
    for loss_ppm in [1_000, 20_000] {
        let mut world = World::new(Knobs::default(), config());
        world.net.set_faults(Faults {
            loss_ppm,
            duplicate_ppm: loss_ppm,
            reorder_ppm: loss_ppm,
            corrupt_ppm: loss_ppm,
            ..Faults::NONE
        });
        world.run(|world| world.session.state() != SessionState::Connecting);
        for round in 0..40_u64 {
            let pattern = vec![u8::try_from(round).unwrap(); 1 << 16];
            world.memory.write_at(0, &pattern).unwrap();
            let write = world.request(Operation::Write { fua: false }, round * 128, 128, 0);
            world.finish(&write).result.unwrap();
            let read = world.request(Operation::Read, round * 128, 128, 1 << 20);
            world.finish(&read).result.unwrap();
            let mut back = vec![0; 1 << 16];
            world.memory.read_at(1 << 20, &mut back).unwrap();
            assert_eq!(back, pattern);
        }
    }
}

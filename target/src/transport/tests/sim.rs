//! The reactor over the real endpoint and a simulated network, lossy too, against a host that is
//! written here by hand on the same fabric.

use core::net::{IpAddr, SocketAddr};

use lariat_fabric::sim::{Faults, SimNet, SimNetwork};
use lariat_fabric::soft::SoftFabric;
use lariat_fabric::verbs::{
    Access, CmEvent, ConnectParams, DomainId, PrivateData, QpConfig, RecvRequest, RegionId, SendOp,
    SendRequest, Sge, SgeList, WcStatus, WorkCompletion,
};
use lariat_fabric::{Armed, Fabric, Memory};

use super::*;
use crate::storage::Storage;

const TARGET: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(10, 0, 0, 1));
const HOST: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(10, 0, 0, 2));
const PORT: u16 = 4420;
/// The host's memory: capsules, responses, data.
const RESPONSES: u64 = 64 << 10;
const DATA: u64 = 128 << 10;
const DATA_BYTES: u32 = 512 << 10;
const COMMAND_BYTES: u32 = 64;

struct World {
    net: SimNet,
    reactor: Reactor<SoftFabric<SimNetwork>, MockStorage>,
    host: SoftFabric<SimNetwork>,
    memory: Arc<Memory>,
    domain: DomainId,
    region: RegionId,
    events: Vec<CmEvent>,
    completions: Vec<WorkCompletion>,
    responses: Vec<(ConnId, Completion)>,
    cid: u16,
}

impl World {
    fn new(seed: u64, faults: Faults) -> Self {
        Self::with(seed, faults, config())
    }

    fn with(seed: u64, faults: Faults, config: ReactorConfig) -> Self {
        let net = SimNet::new(seed);
        net.set_faults(faults);
        let namespace = Namespace::new(NSID, BackendId(0), GEOMETRY, [7; 16]);
        let subsystem = Subsystem::builder(subsystem_nqn()).namespace(namespace);
        let map = SubsystemMap::new(config.limits, [subsystem], Vec::new()).unwrap();
        let registry = Registry::new(Arc::new(map), Vec::new());
        let storage = MockStorage::new(Ledger::default());
        let mut reactor = Reactor::new(net.node(TARGET), storage, registry, config).unwrap();
        reactor.listen(SocketAddr::new(TARGET, PORT)).unwrap();
        let mut host = net.node(HOST);
        let domain = host.open_domain().unwrap();
        let memory =
            Memory::allocate(usize::try_from(DATA).unwrap() + DATA_BYTES as usize).unwrap();
        let region = host.register(domain, Arc::clone(&memory), Access::REMOTE).unwrap();
        let (events, completions, responses) = (Vec::new(), Vec::new(), Vec::new());
        Self { net, reactor, host, memory, domain, region, events, completions, responses, cid: 0 }
    }

    /// Lets both sides work until something is due, at the latest at the next event.
    fn step(&mut self) {
        let now = self.net.now();
        let mut next = self.net.next_event_time();
        for armed in [self.reactor.arm(now), self.host.arm(now)] {
            next = next.min(match armed {
                Armed::Ready => now + Duration::from_micros(1),
                Armed::Until(time) => time,
            });
        }
        let latest = now + Duration::from_millis(10);
        self.net.step(next.clamp(now + Duration::from_nanos(100), latest));
        let now = self.net.now();
        self.reactor.poll(now);
        self.host.poll(now, 64, &mut self.completions, &mut self.events);
        for completion in core::mem::take(&mut self.completions) {
            let Some(index) = completion.wr_id.checked_sub(1 << 32) else { continue };
            if completion.status == WcStatus::Success {
                assert_eq!(completion.byte_len, 16);
                let mut bytes = [0; 16];
                self.memory.read_at(RESPONSES + index * 16, &mut bytes).unwrap();
                self.responses.push((completion.conn, Completion::from_bytes(&bytes)));
                self.receive(completion.conn, index);
            }
        }
        self.host.flush(now);
    }

    /// Goes on until `done` gives something; within a minute of virtual time.
    fn until<T>(&mut self, mut done: impl FnMut(&mut Self) -> Option<T>) -> T {
        let deadline = self.net.now() + Duration::from_secs(60);
        loop {
            if let Some(result) = done(self) {
                return result;
            }
            assert!(self.net.now() < deadline, "nothing came: {:?}", self.reactor.statistics());
            self.step();
        }
    }

    fn sge(&self, offset: u64, length: u32) -> SgeList {
        SgeList::one(Sge { region: self.region, offset, length })
    }

    fn receive(&mut self, conn: ConnId, index: u64) {
        let sges = self.sge(RESPONSES + index * 16, 16);
        self.host.post_recv(conn, &[RecvRequest { wr_id: 1 << 32 | index, sges }]).unwrap();
    }

    fn open(&mut self, qid: u16, entries: u32, reads: u8) -> ConnId {
        let now = self.net.now();
        let address = SocketAddr::new(TARGET, PORT);
        let conn = self.host.resolve(now, address, Duration::from_secs(5)).unwrap();
        self.event(conn);
        let qp = QpConfig::new(self.domain, 256, 256);
        self.host.create_qp(conn, &qp).unwrap();
        for index in 0..u64::from(entries) {
            self.receive(conn, u64::from(qid) * 128 + index);
        }
        let size = QueueSize::from_entries(entries).unwrap();
        let request = ConnectRequest::new(Qid(qid), size, ControllerId(0)).to_bytes();
        let params = ConnectParams {
            responder_resources: reads,
            initiator_depth: 0,
            retry_count: 7,
            rnr_retry_count: 7,
            private_data: PrivateData::new(&request).unwrap(),
        };
        let now = self.net.now();
        self.host.connect(now, conn, &params, Duration::from_secs(10)).unwrap();
        let established = self.event(conn);
        assert!(matches!(established, CmEvent::Established { .. }), "{established:?}");
        conn
    }

    fn event(&mut self, wanted: ConnId) -> CmEvent {
        self.until(|world| {
            let at = world.events.iter().position(|event| match event {
                CmEvent::Resolved { conn }
                | CmEvent::Established { conn, .. }
                | CmEvent::ConnectFailed { conn, .. }
                | CmEvent::Disconnected { conn, .. } => *conn == wanted,
                CmEvent::ConnectRequest { .. } => false,
            })?;
            Some(world.events.remove(at))
        })
    }

    /// The host's data memory from `offset` on, as a descriptor.
    fn sgl(&self, conn: ConnId, offset: u32, length: u32) -> Sgl {
        let base = self.memory.address().as_ptr() as u64;
        let key = self.host.rkey(conn, self.region).unwrap().0;
        let address = base + DATA + u64::from(offset);
        Sgl::Keyed { address, length, key, invalidate: false }
    }

    fn send(&mut self, conn: ConnId, command: Command, data: &[u8]) -> CommandId {
        self.cid = (self.cid + 1) % 256;
        let cid = CommandId(self.cid);
        let at = u64::from(self.cid) * 256;
        let mut capsule = command.with_cid(cid).to_bytes().to_vec();
        capsule.extend(data);
        self.memory.write_at(at, &capsule).unwrap();
        let length = u32::try_from(capsule.len()).unwrap();
        assert!(length <= COMMAND_BYTES || length <= 256);
        let sges = self.sge(at, length);
        let send = SendRequest { wr_id: 0, op: SendOp::Send, sges, signaled: true };
        self.host.post_send(conn, &[send]).unwrap();
        self.host.flush(self.net.now());
        cid
    }

    fn answer(&mut self, wanted: ConnId, cid: CommandId) -> Completion {
        self.until(|world| {
            let is_it = |&(conn, answer): &(ConnId, Completion)| {
                conn == wanted && answer.command_id() == cid
            };
            let at = world.responses.iter().position(is_it)?;
            Some(world.responses.swap_remove(at).1)
        })
    }

    fn execute(&mut self, conn: ConnId, command: Command) -> Completion {
        let cid = self.send(conn, command, &[]);
        let answer = self.answer(conn, cid);
        assert!(answer.status().is_success(), "{}", answer.status());
        answer
    }

    fn connect(
        &mut self,
        conn: ConnId,
        qid: u16,
        entries: u32,
        cntlid: ControllerId,
    ) -> Completion {
        self.memory.write_at(DATA, &Rig::connect_data(cntlid)).unwrap();
        let sgl = self.sgl(conn, 0, 1024);
        let connect = FabricsCommand::Connect {
            recfmt: 0,
            qid: Qid(qid),
            sqsize: QueueSize::from_entries(entries).unwrap(),
            cattr: 0,
            kato_ms: 0,
        };
        self.execute(conn, connect.to_command(CommandId(0)).with_sgl(sgl))
    }

    fn bring_up(&mut self, entries: u32, reads: u8) -> (ConnId, ConnId) {
        let admin = self.open(0, 32, 4);
        let answer = self.connect(admin, 0, 32, ControllerId::DYNAMIC);
        let cntlid = ControllerId(u16::try_from(answer.result32() & 0xffff).unwrap());
        let size = PropertySize::Four;
        let set = FabricsCommand::PropertySet { size, offset: 0x14, value: 0x0046_0001 };
        self.execute(admin, set.to_command(CommandId(0)));
        let queue = self.open(1, entries, reads);
        self.connect(queue, 1, entries, cntlid);
        (admin, queue)
    }
}

fn io(write: bool, start: u64, blocks: u32) -> Command {
    let (nsid, slba, prinfo) = (NSID, Lba(start), ProtectionAction::NONE);
    let (fua, limited_retry, access_hints) = (false, false, 0);
    let command = if write {
        IoCommand::Write {
            nsid,
            slba,
            blocks,
            fua,
            limited_retry,
            prinfo,
            access_hints,
            directive_type: 0,
            directive_specific: 0,
        }
    } else {
        IoCommand::Read { nsid, slba, blocks, fua, limited_retry, prinfo, access_hints }
    };
    command.to_command(CommandId(0)).unwrap()
}

/// Queues of 16 to 64, with 256 receives for all of them.
fn sharing() -> ReactorConfig {
    let limits = Limits { max_queue_depth: QueueSize::from_entries(64).unwrap(), ..limits() };
    ReactorConfig { limits, receive_bytes: 4 << 20, shared_receive: true, ..config() }
}

fn write_then_read(seed: u64, faults: Faults, reads: u8) {
    let mut world = match seed % 2 {
        0 => World::with(seed, faults, sharing()),
        _ => World::new(seed, faults),
    };
    let (_, queue) = world.bring_up(16, reads);
    let shared = world.reactor.resources().shared_receives;
    assert_eq!(shared, if seed.is_multiple_of(2) { 256 } else { 0 });
    let pattern: Vec<u8> =
        (0..DATA_BYTES).map(|at| u8::try_from(at / 512 % 253).unwrap() ^ 0x55).collect();
    world.memory.write_at(DATA, &pattern).unwrap();
    for write in [true, false] {
        // 8 commands of 64 KiB at a time.
        let mut cids = Vec::new();
        for part in 0..8u32 {
            let sgl = world.sgl(queue, part * 65_536, 65_536);
            let command = io(write, u64::from(part) * 128, 128).with_sgl(sgl);
            cids.push(world.send(queue, command, &[]));
        }
        for cid in cids {
            let answer = world.answer(queue, cid);
            assert!(answer.status().is_success(), "{}", answer.status());
        }
        if write {
            assert_eq!(&world.reactor.storage().disk[..pattern.len()], &pattern[..]);
            world.memory.zero(DATA, DATA_BYTES as usize).unwrap();
        }
    }
    let mut back = vec![0; DATA_BYTES as usize];
    world.memory.read_at(DATA, &mut back).unwrap();
    assert!(back == pattern, "the host reads what it wrote");
    assert_eq!(world.reactor.statistics().anomalies, 0);
}

#[test]
fn writes_and_reads_over_the_endpoint() {
    for (seed, reads) in [(1, 1), (1, 16), (2, 16)] {
        write_then_read(seed, Faults::NONE, reads);
    }
}

#[test]
fn writes_and_reads_over_a_lossy_network() {
    let faults = Faults {
        loss_ppm: 10_000,
        duplicate_ppm: 10_000,
        reorder_ppm: 10_000,
        corrupt_ppm: 2_000,
        max_delay: Duration::from_micros(50),
        ..Faults::NONE
    };
    for seed in 0..20 {
        write_then_read(seed, faults, 4);
    }
}

#[test]
fn a_host_that_vanishes_leaves_nothing_behind() {
    let mut world = World::new(3, Faults::NONE);
    let (admin, queue) = world.bring_up(16, 4);
    world.reactor.storage_mut().held = true;
    let sgl = world.sgl(queue, 0, 65_536);
    world.send(queue, io(false, 0, 128).with_sgl(sgl), &[]);
    world.until(|world| (world.reactor.storage().in_flight() == 1).then_some(()));
    for conn in [queue, admin] {
        world.host.destroy(world.net.now(), conn);
    }
    // The I/O queue waits for the disk, the admin queue is gone.
    world.until(|world| (world.reactor.connections() == 1).then_some(()));
    assert_eq!(world.reactor.resources().requests, 1);
    world.reactor.storage_mut().held = false;
    world.until(|world| (world.reactor.connections() == 0).then_some(()));
    let resources = world.reactor.resources();
    assert_eq!(resources.requests, 0);
    assert_eq!(resources.buffer_bytes_free, resources.buffer_bytes);
    assert_eq!(world.reactor.statistics().anomalies, 0);
}

/// A stop with a response on its way that nobody will acknowledge.
fn stop_without_host(seed: u64, faults: Faults, cut_at_once: bool) -> Duration {
    let mut world = World::new(seed, faults);
    let (_, queue) = world.bring_up(16, 4);
    world.reactor.storage_mut().held = true;
    let sgl = world.sgl(queue, 0, 65_536);
    let cid = world.send(queue, io(false, 0, 128).with_sgl(sgl), &[]);
    world.until(|world| (world.reactor.storage().in_flight() == 1).then_some(()));
    if cut_at_once {
        world.net.cut(TARGET, HOST, true);
        world.net.cut(HOST, TARGET, true);
    }
    world.reactor.storage_mut().held = false;
    let start = world.net.now();
    world.reactor.shutdown(start);
    if !cut_at_once {
        assert!(world.answer(queue, cid).status().is_success());
    }
    world.until(|world| world.reactor.is_drained().then_some(()));
    let resources = world.reactor.resources();
    assert_eq!(resources.requests, 0);
    assert_eq!(resources.buffer_bytes_free, resources.buffer_bytes);
    assert_eq!(world.reactor.statistics().anomalies, 0);
    world.net.now().since(start)
}

#[test]
fn a_stop_gives_up_a_host_that_is_gone_and_answers_one_that_is_there() {
    let lossy = Faults { loss_ppm: 30_000, reorder_ppm: 10_000, ..Faults::NONE };
    let ReactorConfig { stop_silence, stop_close_timeout, .. } = config();
    for seed in 0..10 {
        let gone = stop_without_host(seed, lossy, true);
        assert!(gone >= stop_silence, "{gone:?}");
        assert!(gone < stop_silence + stop_close_timeout + Duration::from_millis(50), "{gone:?}");
        let there = stop_without_host(seed, lossy, false);
        assert!(there < stop_close_timeout + Duration::from_millis(50), "{there:?}");
    }
    assert!(stop_without_host(0, Faults::NONE, false) < Duration::from_millis(20));
}

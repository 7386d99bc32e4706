//! What the soft fabric carries without an upper layer: reads of 4 KiB in the shape of NVMe's.
//!
//! A host sends capsules of 64 bytes with a window of so many; the target answers those of one
//! turn with one RDMA WRITE each, then one response SEND each. `threads` (the default) runs both
//! ends spinning on two cores; `single` runs them in turns on one and shows the processor time of
//! a read at both ends together, which other load on the machine disturbs less.
//!
//! `cargo run --release -p lariat-fabric --example fabric_limit -- [threads|single] [SECONDS] [DEPTH]
//! [udp|shm]`
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a measurement, run by hand")]

use core::time::Duration;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use lariat_fabric::soft::{self, HostNetwork, SoftConfig, SoftFabric, WireChoice};
use lariat_fabric::verbs::{
    Access, CmEvent, ConnId, ConnectParams, PrivateData, QpConfig, RecvRequest, RegionId, SendOp,
    SendRequest, Sge, SgeList, WcOpcode, WcStatus, WorkCompletion,
};
use lariat_fabric::{Fabric, Memory, Timestamp};
use lariat_wire::rocev2::Rkey;
use nix::sys::resource::{UsageWho, getrusage};

const BLOCK: u32 = 4096;
const SLOTS: u64 = 128;
/// Where capsules and responses lie, behind the blocks.
const CAPSULES: u64 = SLOTS * 4096;
/// WRITEs of a block that one segmented message holds.
const GROUP: usize = 15;
const BYTES: usize = 1 << 20;

struct End {
    fabric: SoftFabric<HostNetwork>,
    memory: Arc<Memory>,
    region: RegionId,
    conn: ConnId,
    start: Instant,
    completions: Vec<WorkCompletion>,
    events: Vec<CmEvent>,
    sends: Vec<SendRequest>,
    recvs: Vec<RecvRequest>,
    ready: Vec<u64>,
    answers: u64,
    acknowledged: u64,
    config: QpConfig,
}

fn params() -> ConnectParams {
    ConnectParams {
        responder_resources: 16,
        initiator_depth: 16,
        retry_count: 7,
        rnr_retry_count: 7,
        private_data: PrivateData::EMPTY,
    }
}

fn end(start: Instant) -> End {
    let wire = match std::env::args().nth(4).as_deref() {
        Some("shm") => WireChoice::Shm,
        _ => WireChoice::Udp,
    };
    let mut fabric = soft::open(&SoftConfig { wire, ..SoftConfig::default() }).unwrap();
    let domain = fabric.open_domain().unwrap();
    let memory = Memory::allocate(BYTES).unwrap();
    memory.zero(0, BYTES).unwrap();
    let region = fabric.register(domain, memory.clone(), Access::REMOTE).unwrap();
    let max = u32::try_from(SLOTS).unwrap() * 2 + 2;
    End {
        fabric,
        memory,
        region,
        conn: ConnId(0),
        start,
        completions: Vec::with_capacity(1024),
        events: Vec::with_capacity(8),
        sends: Vec::with_capacity(512),
        recvs: Vec::with_capacity(512),
        ready: Vec::with_capacity(512),
        answers: 0,
        acknowledged: 0,
        config: QpConfig::new(domain, max, max),
    }
}

impl End {
    fn now(&self) -> Timestamp {
        Timestamp::from_nanos(u64::try_from(self.start.elapsed().as_nanos()).unwrap())
    }

    fn poll(&mut self) {
        let now = self.now();
        self.completions.clear();
        self.fabric.poll(now, 1024, &mut self.completions, &mut self.events);
    }

    fn sge(&self, offset: u64, length: u32) -> SgeList {
        SgeList::one(Sge { region: self.region, offset, length })
    }

    fn capsule(&self, slot: u64) -> SgeList {
        self.sge(CAPSULES + slot * 64, 64)
    }

    fn recv(&mut self, slot: u64) {
        let sges = self.capsule(SLOTS + slot);
        self.recvs.push(RecvRequest { wr_id: slot, sges });
    }

    fn go(&mut self) {
        if !self.recvs.is_empty() {
            self.fabric.post_recv(self.conn, &self.recvs).unwrap();
            self.recvs.clear();
        }
        if !self.sends.is_empty() {
            self.fabric.post_send(self.conn, &self.sends).unwrap();
            self.sends.clear();
            let now = self.now();
            self.fabric.flush(now);
        }
    }

    /// One turn of the target.
    fn serve(&mut self, address: u64, rkey: Rkey) -> bool {
        self.poll();
        let requests = core::mem::take(&mut self.completions);
        self.ready.clear();
        for completion in &requests {
            assert_eq!(completion.status, WcStatus::Success);
            if completion.opcode == WcOpcode::Recv {
                self.ready.push(completion.wr_id);
            }
        }
        // As many WRITEs as one segmented message holds, then their SENDs, and so on: the peer
        // works on the first while the rest is on its way.
        let ready = core::mem::take(&mut self.ready);
        for group in ready.chunks(GROUP) {
            for slot in group {
                let offset = slot * u64::from(BLOCK);
                let op = SendOp::Write { remote_address: address + offset, rkey };
                let sges = self.sge(offset, BLOCK);
                self.sends.push(SendRequest { wr_id: *slot, op, sges, signaled: false });
            }
            for slot in group {
                let sges = self.sge(CAPSULES + slot * 64, 16);
                let op = SendOp::Send;
                self.sends.push(SendRequest { wr_id: *slot, op, sges, signaled: true });
                self.recv(*slot);
            }
        }
        self.ready = ready;
        self.completions = requests;
        self.go();
        !self.sends.is_empty()
    }

    /// One turn of the host: how many reads were answered.
    fn ask(&mut self, depth: u64, outstanding: &mut u64, next: &mut u64) -> u64 {
        while *outstanding < depth {
            let slot = *next % depth;
            let sges = self.capsule(slot);
            let op = SendOp::Send;
            self.sends.push(SendRequest { wr_id: slot, op, sges, signaled: true });
            self.recv(slot);
            *next += 1;
            *outstanding += 1;
        }
        self.go();
        self.poll();
        for completion in &self.completions {
            match completion.opcode {
                WcOpcode::Recv => self.answers += 1,
                _ => self.acknowledged += 1,
            }
        }
        // A slot is free once its capsule is acknowledged, too.
        let finished = self.answers.min(self.acknowledged);
        self.answers -= finished;
        self.acknowledged -= finished;
        *outstanding -= finished;
        finished
    }
}

fn connect(host: &mut End, target: &mut End, address: &str, depth: u64) {
    let address = address.parse().unwrap();
    target.fabric.listen(address).unwrap();
    let now = host.now();
    host.conn = host.fabric.resolve(now, address, Duration::from_secs(1)).unwrap();
    host.fabric.create_qp(host.conn, &host.config).unwrap();
    host.fabric.connect(now, host.conn, &params(), Duration::from_secs(1)).unwrap();
    let mut standing = 0;
    while standing < 2 {
        host.poll();
        target.poll();
        for event in host.events.drain(..) {
            standing += u64::from(matches!(event, CmEvent::Established { .. }));
        }
        for event in core::mem::take(&mut target.events) {
            match event {
                CmEvent::ConnectRequest { conn, .. } => {
                    target.conn = conn;
                    target.fabric.create_qp(conn, &target.config).unwrap();
                    (0..depth).for_each(|slot| target.recv(slot));
                    target.go();
                    let now = target.now();
                    target.fabric.accept(now, conn, &params()).unwrap();
                }
                CmEvent::Established { .. } => standing += 1,
                other => panic!("{other:?}"),
            }
        }
    }
}

fn pin(core: usize) {
    let mut set = nix::sched::CpuSet::new();
    let _ = set.set(core);
    let _ = nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &set);
}

fn processor_time() -> (f64, f64) {
    let usage = getrusage(UsageWho::RUSAGE_THREAD).unwrap();
    let micros = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 * 1e6 + time.tv_usec() as f64;
    (micros(usage.user_time()), micros(usage.system_time()))
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let single = arguments.next().is_some_and(|word| word == "single");
    let seconds = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(2);
    let only: Option<u64> = arguments.next().and_then(|text| text.parse().ok());
    for depth in [1_u64, 8, 32, 128].into_iter().filter(|depth| only.is_none_or(|o| o == *depth)) {
        let start = Instant::now();
        let (mut host, mut target) = (end(start), end(start));
        let address = format!("127.91.{}.{depth}:4420", std::process::id() % 250);
        connect(&mut host, &mut target, &address, depth);
        let remote = host.memory.address().as_ptr().addr() as u64;
        let rkey = host.fabric.rkey(host.conn, host.region).unwrap();
        let (mut outstanding, mut next, mut done) = (0, 0, 0);
        let stop = Arc::new(AtomicBool::new(false));
        let begin = Instant::now();
        let before = processor_time();
        let target = if single {
            while begin.elapsed() < Duration::from_secs(seconds) {
                done += host.ask(depth, &mut outstanding, &mut next);
                target.serve(remote, rkey);
            }
            target
        } else {
            let flag = Arc::clone(&stop);
            let server = std::thread::spawn(move || {
                pin(0);
                while !flag.load(Ordering::Relaxed) {
                    target.serve(remote, rkey);
                }
                target
            });
            pin(1);
            while begin.elapsed() < Duration::from_secs(seconds) {
                done += host.ask(depth, &mut outstanding, &mut next);
            }
            stop.store(true, Ordering::Relaxed);
            server.join().unwrap()
        };
        let rate = done as f64 / begin.elapsed().as_secs_f64();
        let after = processor_time();
        let counters = target.fabric.counters();
        println!(
            "depth {depth:3}: {:6.0} k/s, {:6.1} us mean; a read: user {:.2} us, system {:.2} us; \
             {:.1} packets a send call, {} sent again",
            rate / 1e3,
            depth as f64 / rate * 1e6,
            (after.0 - before.0) / done as f64,
            (after.1 - before.1) / done as f64,
            counters.packets_sent as f64 / counters.send_calls as f64,
            counters.retransmissions,
        );
    }
}

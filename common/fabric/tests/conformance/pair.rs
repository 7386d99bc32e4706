//! Two fabrics in one thread, and what has happened to them.

use core::net::SocketAddr;
use core::time::Duration;
use std::sync::Arc;

use lariat_fabric::verbs::{
    Access, CmEvent, ConnId, ConnectParams, DomainId, ListenerId, PrivateData, QpConfig,
    RecvRequest, RegionId, SendOp, SendRequest, Sge, SgeList, WcStatus, WorkCompletion,
};
use lariat_fabric::{Fabric, Memory, Timestamp};

/// Two fabrics and their time.
pub trait Harness {
    /// The provider.
    type Fabric: Fabric;
    /// The fabric that connects.
    fn host(&mut self) -> &mut Self::Fabric;
    /// The fabric that listens.
    fn target(&mut self) -> &mut Self::Fabric;
    /// Where the target can listen.
    fn address(&self) -> SocketAddr;
    /// An address where nobody answers.
    fn silent_address(&self) -> SocketAddr;
    fn now(&self) -> Timestamp;
    /// Whether packets may be lost: then a NAK may be, and the good-bye that follows it tells less.
    fn lossy(&self) -> bool {
        false
    }
    /// Whether a peer may invalidate memory that [`Fabric::register`] registered. Devices let that
    /// be done to memory windows and to what kernels register, not to the regions of user space.
    fn invalidates(&self) -> bool {
        true
    }
    /// How a message that does not fit its receive ends for the sender, and for the receiver
    /// (IBTA 9.9.2.4.2: an invalid request; Soft-RoCE has it otherwise).
    fn too_long(&self) -> &[(WcStatus, WcStatus)] {
        &[(WcStatus::RemoteInvalidRequest, WcStatus::LocalLength)]
    }
    /// Lets time pass until something may have happened, and not much longer than `limit`.
    fn advance(&mut self, limit: Duration);
}

/// Memory size of a side.
pub const BYTES: usize = 1 << 20;
/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Host,
    Target,
}
pub use Side::{Host, Target};

pub struct One {
    pub domain: DomainId,
    pub memory: Arc<Memory>,
    pub region: RegionId,
    pub completions: Vec<WorkCompletion>,
    pub events: Vec<CmEvent>,
}

pub struct Pair<H: Harness> {
    pub harness: H,
    host: One,
    target: One,
    pub listener: ListenerId,
}

pub fn params(private_data: &[u8]) -> ConnectParams {
    ConnectParams {
        responder_resources: 4,
        initiator_depth: 4,
        retry_count: 7,
        rnr_retry_count: 7,
        private_data: PrivateData::new(private_data).unwrap(),
    }
}

fn one<F: Fabric>(fabric: &mut F, fill: u8) -> One {
    let domain = fabric.open_domain().unwrap();
    let memory = Memory::allocate(BYTES).unwrap();
    let bytes: Vec<u8> =
        (0..BYTES).map(|i| (i.wrapping_mul(0x9e37_79b1) >> 13) as u8 ^ fill).collect();
    memory.write_at(0, &bytes).unwrap();
    let region = fabric.register(domain, memory.clone(), Access::REMOTE).unwrap();
    One { domain, memory, region, completions: Vec::new(), events: Vec::new() }
}

impl<H: Harness> Pair<H> {
    pub fn new(mut harness: H) -> Self {
        let host = one(harness.host(), 0);
        let target = one(harness.target(), 0xa5);
        let address = harness.address();
        let listener = harness.target().listen(address).unwrap();
        Self { harness, host, target, listener }
    }

    pub fn fabric(&mut self, side: Side) -> &mut H::Fabric {
        match side {
            Host => self.harness.host(),
            Target => self.harness.target(),
        }
    }

    pub fn side(&mut self, side: Side) -> &mut One {
        match side {
            Host => &mut self.host,
            Target => &mut self.target,
        }
    }

    /// Whether messages are acknowledged by the peer's device.
    pub fn acknowledges(&mut self, side: Side, conn: ConnId) -> bool {
        self.fabric(side).limits(conn).unwrap().acknowledges
    }

    pub fn sge(&mut self, side: Side, offset: u64, length: u32) -> Sge {
        Sge { region: self.side(side).region, offset, length }
    }

    pub fn bytes(&mut self, side: Side, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.side(side).memory.read_at(offset, &mut bytes).unwrap();
        bytes
    }

    /// The peer's view of a place in a side's memory.
    pub fn virtual_address(&mut self, side: Side, offset: u64) -> u64 {
        self.side(side).memory.address().as_ptr().addr() as u64 + offset
    }

    pub fn poll(&mut self) {
        for side in [Host, Target] {
            let now = self.harness.now();
            let (fabric, own) = match side {
                Host => (self.harness.host(), &mut self.host),
                Target => (self.harness.target(), &mut self.target),
            };
            fabric.poll(now, 64, &mut own.completions, &mut own.events);
        }
    }

    /// Drives both sides until `done`.
    pub fn run_until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let limit = self.harness.now() + PATIENCE;
        loop {
            self.poll();
            if done(self) {
                return;
            }
            assert!(
                self.harness.now() < limit,
                "{what} did not happen; host {:?} {:?} {:?}; target {:?} {:?} {:?}",
                self.host.completions,
                self.host.events,
                self.harness.host().counters(),
                self.target.completions,
                self.target.events,
                self.harness.target().counters(),
            );
            self.harness.advance(Duration::from_millis(10));
        }
    }

    /// Drives both sides for a while.
    pub fn run_for(&mut self, time: Duration) {
        let end = self.harness.now() + time;
        while self.harness.now() < end {
            self.poll();
            let left = end.since(self.harness.now());
            self.harness.advance(left.min(Duration::from_millis(10)));
        }
        self.poll();
    }

    /// The next event of a side.
    pub fn event(&mut self, side: Side) -> CmEvent {
        self.run_until("an event", |pair| !pair.side(side).events.is_empty());
        self.side(side).events.remove(0)
    }

    /// The next `count` completions of a side.
    pub fn completions(&mut self, side: Side, count: usize) -> Vec<WorkCompletion> {
        self.run_until("completions", |pair| pair.side(side).completions.len() >= count);
        self.side(side).completions.drain(..count).collect()
    }

    /// One completion, which succeeded.
    pub fn success(&mut self, side: Side, wr_id: u64) -> WorkCompletion {
        let completion = self.completions(side, 1).remove(0);
        assert_eq!((completion.wr_id, completion.status), (wr_id, WcStatus::Success));
        completion
    }

    pub fn nothing_completed(&mut self, side: Side) -> bool {
        self.side(side).completions.is_empty() && self.side(side).events.is_empty()
    }

    pub fn config(&mut self, side: Side) -> QpConfig {
        QpConfig::new(self.side(side).domain, 32, 32)
    }

    /// A resolved host connection with a queue pair.
    pub fn resolve(&mut self, remote: SocketAddr) -> ConnId {
        let now = self.harness.now();
        let conn = self.harness.host().resolve(now, remote, Duration::from_secs(2)).unwrap();
        assert_eq!(self.event(Host), CmEvent::Resolved { conn });
        let config = self.config(Host);
        self.harness.host().create_qp(conn, &config).unwrap();
        conn
    }

    /// A request at the target, asked for with this private data: both ends.
    pub fn request(&mut self, private_data: &[u8]) -> (ConnId, ConnId) {
        let address = self.harness.address();
        let host = self.resolve(address);
        let now = self.harness.now();
        let timeout = Duration::from_secs(10);
        self.harness.host().connect(now, host, &params(private_data), timeout).unwrap();
        match self.event(Target) {
            CmEvent::ConnectRequest { conn, private_data: given, .. } => {
                assert!(given.as_bytes().starts_with(private_data), "{given:?}");
                (host, conn)
            }
            other => panic!("{other:?}"),
        }
    }

    /// A connection: the host's end and the target's.
    pub fn connect(&mut self) -> (ConnId, ConnId) {
        let (host, target) = self.request(b"hello");
        let config = self.config(Target);
        self.finish_connect(host, target, &config);
        (host, target)
    }

    /// The target says yes to a request, with a queue pair of this kind.
    pub fn finish_connect(&mut self, host: ConnId, target: ConnId, config: &QpConfig) {
        self.harness.target().create_qp(target, config).unwrap();
        let now = self.harness.now();
        self.harness.target().accept(now, target, &params(b"welcome")).unwrap();
        for (side, wanted) in [(Host, host), (Target, target)] {
            match self.event(side) {
                CmEvent::Established { conn, initiator_depth, responder_resources, .. } => {
                    assert_eq!(conn, wanted);
                    assert_eq!((initiator_depth, responder_resources), (4, 4));
                }
                other => panic!("{side:?}: {other:?}"),
            }
        }
    }

    pub fn recv(&mut self, side: Side, conn: ConnId, wr_id: u64, sges: SgeList) {
        self.fabric(side).post_recv(conn, &[RecvRequest { wr_id, sges }]).unwrap();
    }

    /// Posts a signalled request and rings.
    pub fn post(&mut self, side: Side, conn: ConnId, wr_id: u64, op: SendOp, sges: SgeList) {
        let request = SendRequest { wr_id, op, sges, signaled: true };
        self.fabric(side).post_send(conn, &[request]).unwrap();
        let now = self.harness.now();
        self.fabric(side).flush(now);
    }

    /// RDMA WRITE into the other side's memory.
    pub fn write_op(&mut self, from: Side, conn_of_other: ConnId, offset: u64) -> SendOp {
        let other = if from == Host { Target } else { Host };
        let region = self.side(other).region;
        let rkey = self.fabric(other).rkey(conn_of_other, region).unwrap();
        SendOp::Write { remote_address: self.virtual_address(other, offset), rkey }
    }

    /// RDMA READ from the other side's memory.
    pub fn read_op(&mut self, from: Side, conn_of_other: ConnId, offset: u64) -> SendOp {
        match self.write_op(from, conn_of_other, offset) {
            SendOp::Write { remote_address, rkey } => SendOp::Read { remote_address, rkey },
            other => other,
        }
    }
}

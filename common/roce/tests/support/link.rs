//! One connection of the simulation: what each side is going to send, and the proof that it came.

use std::net::SocketAddr;

use lariat_roce::time::Timestamp;
use lariat_roce::verbs::{
    Access, ConnId, DomainId, RecvRequest, RegionId, SendOp, SendRequest, Sge, SgeList, WcOpcode,
    WcStatus, WorkCompletion,
};

use super::memory::TestMemory;
use super::rng::Rng;

/// How a connection is meant to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// All messages pass, then these sides (0 active, 1 passive) disconnect at once.
    Clean { first: usize, both: bool },
    /// All messages pass, then this side destroys the connection.
    CleanDestroy { side: usize },
    /// The passive consumer rejects it.
    Rejected,
    /// Nobody listens on the port.
    NoListener,
    /// In the middle of things, a side disconnects.
    Disconnect { side: usize, at: Timestamp },
    /// In the middle of things, a side destroys the connection.
    Destroy { side: usize, at: Timestamp },
}

impl Mode {
    /// Whether every message must pass.
    pub fn is_clean(self) -> bool {
        matches!(self, Self::Clean { .. } | Self::CleanDestroy { .. })
    }
}

/// Where a side of a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Fresh,
    Connecting,
    Up,
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Send,
    SendInvalidate(RegionId),
    Write,
    Read,
}

/// One request: from `source` of whoever has the data to `target` of whoever gets it.
#[derive(Clone, Copy, Debug)]
pub struct Op {
    pub kind: Kind,
    pub source: u64,
    pub target: u64,
    pub length: u32,
    pub signaled: bool,
    pub split: bool,
}

/// One side of a connection.
pub struct Side {
    pub node: usize,
    pub conn: Option<ConnId>,
    pub phase: Phase,
    pub has_qp: bool,
    pub told_end: bool,
    pub plan: Vec<Op>,
    pub posted: usize,
    /// Requests that are known to be done, in order.
    pub done: usize,
    pub failed: bool,
    /// SENDs that the peer plans, hence receives to post.
    pub expected: usize,
    pub receives_posted: usize,
    pub receives_done: usize,
    pub received: usize,
    pub depth: usize,
    /// What is sent and written, what the peer writes and reads, what our READs fill, receives.
    src: RegionId,
    remote: RegionId,
    sink: RegionId,
    inbox: RegionId,
}

/// Half of `remote` is written, half is read by the peer.
const HALF: u64 = 24 * 1024;
/// The largest SEND.
const SLOT: u64 = 4 * 1024;

/// A connection.
pub struct Link {
    pub index: usize,
    pub mode: Mode,
    pub sides: [Side; 2],
    pub service: SocketAddr,
    /// When the passive consumer gets to decide.
    pub accept_at: Option<Timestamp>,
    pub disconnecting: bool,
    /// The network or a node fails for good: anything may end early.
    pub fragile: bool,
}

fn domain(index: usize) -> DomainId {
    DomainId(u32::try_from(index).unwrap() + 1)
}

impl Link {
    pub fn new(
        index: usize,
        mode: Mode,
        nodes: [usize; 2],
        service: SocketAddr,
        memories: &mut [TestMemory],
        rng: &mut Rng,
    ) -> Self {
        let domain = domain(index);
        let sides = [0, 1].map(|side| {
            let memory = &mut memories[nodes[side]];
            let half = usize::try_from(HALF).unwrap();
            let mut remote = vec![0; half];
            remote.extend(rng.bytes(half));
            Side {
                node: nodes[side],
                conn: None,
                phase: Phase::Fresh,
                has_qp: false,
                told_end: false,
                plan: Vec::new(),
                posted: 0,
                done: 0,
                failed: false,
                expected: 0,
                receives_posted: 0,
                receives_done: 0,
                received: 0,
                depth: usize::try_from(rng.between(1, 8)).unwrap(),
                src: memory.register(domain, Access::LOCAL_READ, rng.bytes(half)),
                remote: memory.register(domain, Access::REMOTE, remote),
                sink: memory.register(domain, Access::LOCAL, vec![0; half]),
                inbox: memory.register(
                    domain,
                    Access::LOCAL,
                    vec![0; usize::try_from(SLOT).unwrap() * 24],
                ),
            }
        });
        let mut link = Self {
            index,
            mode,
            sides,
            service,
            accept_at: None,
            disconnecting: false,
            fragile: false,
        };
        for side in 0..2 {
            link.make_plan(side, memories, rng);
        }
        link
    }

    fn make_plan(&mut self, side: usize, memories: &mut [TestMemory], rng: &mut Rng) {
        let peer = self.sides[1 - side].node;
        let (mut sends, mut writes, mut reads) = (0, 0, 0);
        let ops = rng.below(24);
        let largest = [64, 1500, 6000][usize::try_from(rng.below(3)).unwrap()];
        for last in (0..ops).rev() {
            let length = match rng.below(8) {
                0 => 0,
                1 => 1024 * rng.between(1, 4),
                _ => rng.between(1, largest),
            };
            let random_source = |rng: &mut Rng, length| rng.below(HALF - length);
            let (kind, source, target, length) = match rng.below(4) {
                0 if writes + length < HALF => {
                    let target = writes;
                    writes += length;
                    (Kind::Write, random_source(rng, length), target, length)
                }
                1 if reads + length < HALF => {
                    let target = reads;
                    reads += length;
                    (Kind::Read, HALF + random_source(rng, length), target, length)
                }
                _ => {
                    let length = length.min(SLOT);
                    let target = sends * SLOT;
                    sends += 1;
                    let kind = if rng.permille(250) {
                        let memory = &mut memories[peer];
                        Kind::SendInvalidate(memory.register(
                            domain(self.index),
                            Access::REMOTE,
                            vec![1; 8],
                        ))
                    } else {
                        Kind::Send
                    };
                    (kind, random_source(rng, length), target, length)
                }
            };
            // The last one is signalled, so that the end is seen.
            let signaled = last == 0 || rng.permille(700);
            let length = u32::try_from(length).unwrap();
            let split = length > 1 && rng.permille(300);
            self.sides[side].plan.push(Op { kind, source, target, length, signaled, split });
        }
        self.sides[1 - side].expected = usize::try_from(sends).unwrap();
    }

    pub fn domain(&self) -> DomainId {
        domain(self.index)
    }

    fn wr_id(&self, side: usize, receive: bool, index: usize) -> u64 {
        (self.index as u64) << 32 | (side as u64) << 24 | u64::from(receive) << 16 | index as u64
    }

    /// The connection and side that a completion is of.
    pub fn of_wr_id(wr_id: u64) -> (usize, usize) {
        (usize::try_from(wr_id >> 32).unwrap(), usize::try_from(wr_id >> 24 & 0xff).unwrap())
    }

    /// The next request of a side.
    pub fn next_send(&self, side: usize, memories: &[TestMemory]) -> Option<SendRequest> {
        let (this, peer) = (&self.sides[side], &self.sides[1 - side]);
        let op = *this.plan.get(this.posted)?;
        let (rkey, base) = memories[peer.node].key(peer.remote);
        let (op_code, region, offset) = match op.kind {
            Kind::Send => (SendOp::Send, this.src, op.source),
            Kind::SendInvalidate(region) => {
                let rkey = memories[peer.node].key(region).0;
                (SendOp::SendWithInvalidate { rkey }, this.src, op.source)
            }
            Kind::Write => {
                (SendOp::Write { remote_address: base + op.target, rkey }, this.src, op.source)
            }
            Kind::Read => {
                (SendOp::Read { remote_address: base + op.source, rkey }, this.sink, op.target)
            }
        };
        Some(SendRequest {
            wr_id: self.wr_id(side, false, this.posted),
            op: op_code,
            sges: sges(region, offset, op.length, op.split),
            signaled: op.signaled,
        })
    }

    /// The next receive of a side.
    pub fn next_receive(&self, side: usize) -> Option<RecvRequest> {
        let this = &self.sides[side];
        let index = this.receives_posted;
        (index < this.expected).then(|| RecvRequest {
            wr_id: self.wr_id(side, true, index),
            sges: sges(
                this.inbox,
                index as u64 * SLOT,
                u32::try_from(SLOT).unwrap(),
                index.is_multiple_of(3),
            ),
        })
    }

    /// Whether this side has all it wants.
    pub fn is_satisfied(&self, side: usize) -> bool {
        let this = &self.sides[side];
        this.done == this.plan.len() && this.received == this.expected
    }

    /// Requests of a side that have no completion and must get one.
    pub fn outstanding(&self, side: usize) -> usize {
        let this = &self.sides[side];
        let open = &this.plan[this.done..this.posted];
        // After a failure each request gets a completion; before, those that ask for it.
        let sends = open.iter().filter(|op| op.signaled || this.failed).count();
        sends + this.receives_posted - this.receives_done
    }

    /// Checks a completion against the plan and the memory of both ends.
    pub fn complete(&mut self, wc: &WorkCompletion, memories: &[TestMemory]) {
        let side = Self::of_wr_id(wc.wr_id).1;
        let index = usize::try_from(wc.wr_id & 0xffff).unwrap();
        let receive = wc.wr_id >> 16 & 1 == 1;
        let what = format!("link {} side {side} {wc:?}", self.index);
        assert_eq!(Some(wc.conn), self.sides[side].conn, "{what}: another connection's");
        assert_ne!(self.sides[side].phase, Phase::Gone, "{what}: after destroy");
        if receive {
            assert_eq!(index, self.sides[side].receives_done, "{what}: receives out of order");
            self.sides[side].receives_done += 1;
            if wc.status == WcStatus::Success {
                assert!(!self.sides[side].failed || self.sides[side].received == index, "{what}");
                self.check_receive(side, index, wc, memories, &what);
                self.sides[side].received += 1;
            } else {
                assert!(!self.must_pass(), "{what}");
            }
            return;
        }
        assert!(index < self.sides[side].posted, "{what}: never posted");
        assert!(index >= self.sides[side].done, "{what}: completed twice");
        let from = self.sides[side].done;
        if wc.status == WcStatus::Success {
            assert!(!self.sides[side].failed, "{what}: success behind a failure");
            for at in from..=index {
                let op = self.sides[side].plan[at];
                assert!(at == index || !op.signaled, "{what}: request {at} has no completion");
                self.check_bytes(side, at, memories, &what);
            }
            let op = self.sides[side].plan[index];
            assert!(op.signaled, "{what}: not asked for");
            match op.kind {
                Kind::Read => {
                    assert_eq!((wc.opcode, wc.byte_len), (WcOpcode::Read, op.length), "{what}");
                }
                Kind::Write => assert_eq!(wc.opcode, WcOpcode::Write, "{what}"),
                _ => assert_eq!(wc.opcode, WcOpcode::Send, "{what}"),
            }
        } else {
            assert!(!self.must_pass(), "{what}");
            // What precedes and was not signalled may have passed.
            let silent = self.sides[side].plan[from..index].iter().all(|op| !op.signaled);
            assert!(silent, "{what}: signalled requests without completion before it");
            assert!(!self.sides[side].failed || index == from, "{what}: one left out");
            self.sides[side].failed = true;
        }
        self.sides[side].done = index + 1;
    }

    /// Whether nothing may fail (yet).
    pub fn must_pass(&self) -> bool {
        self.mode.is_clean() && !self.disconnecting && !self.fragile
    }

    fn check_receive(
        &self,
        side: usize,
        index: usize,
        wc: &WorkCompletion,
        memories: &[TestMemory],
        what: &str,
    ) {
        let peer = &self.sides[1 - side];
        let sends = peer.plan.iter().enumerate();
        let is_send = |op: &Op| matches!(op.kind, Kind::Send | Kind::SendInvalidate(_));
        let (at, op) = sends.filter(|(_, op)| is_send(op)).nth(index).expect("a SEND");
        assert!(at < peer.posted, "{what}: a SEND that was never posted");
        assert_eq!(wc.byte_len, op.length, "{what}");
        self.check_bytes(1 - side, at, memories, what);
        let mine = &memories[self.sides[side].node];
        if let Kind::SendInvalidate(region) = op.kind {
            assert_eq!(wc.invalidated, Some(mine.key(region).0), "{what}");
            assert!(!mine.is_valid(region), "{what}");
        } else {
            assert_eq!(wc.invalidated, None, "{what}");
        }
        // All that the peer wrote before it sent is here.
        for before in 0..at {
            if peer.plan[before].kind == Kind::Write {
                self.check_bytes(1 - side, before, memories, what);
            }
        }
    }

    /// Compares the bytes of a request at both ends.
    fn check_bytes(&self, side: usize, at: usize, memories: &[TestMemory], what: &str) {
        let (this, peer) = (&self.sides[side], &self.sides[1 - side]);
        let (mine, theirs) = (&memories[this.node], &memories[peer.node]);
        let op = this.plan[at];
        let (from, to) = match op.kind {
            Kind::Send | Kind::SendInvalidate(_) => (
                mine.bytes(this.src, op.source, op.length),
                theirs.bytes(peer.inbox, op.target, op.length),
            ),
            Kind::Write => (
                mine.bytes(this.src, op.source, op.length),
                theirs.bytes(peer.remote, op.target, op.length),
            ),
            Kind::Read => (
                theirs.bytes(peer.remote, op.source, op.length),
                mine.bytes(this.sink, op.target, op.length),
            ),
        };
        assert!(from == to, "{what}: bytes of request {at} ({op:?}) differ");
    }
}

fn sges(region: RegionId, offset: u64, length: u32, split: bool) -> SgeList {
    let first = Sge { region, offset, length };
    if length == 0 {
        SgeList::EMPTY
    } else if split {
        let half = length / 2;
        SgeList::two(
            Sge { length: half, ..first },
            Sge { region, offset: offset + u64::from(half), length: length - half },
        )
    } else {
        SgeList::one(first)
    }
}

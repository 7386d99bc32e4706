//! Two queue pairs, a scripted wire between them, and memory in vectors.

mod early;
mod exchange;
mod flow;
mod refusals;
mod shared;
mod storms;

use core::time::Duration;
use std::collections::BTreeMap;

use lariat_wire::rocev2::cm::PathMtu;
use lariat_wire::rocev2::{Bth, Opcode, Packet, Psn, Qpn, Rkey};

use super::{QpCounters, QpParams, QpSetup, QpState, QueuePair, SharedReceives};
use crate::memory::{AccessError, MemRange, Memory};
use crate::time::Timestamp;
use crate::transmit::{Payload, Transmit};
use crate::verbs::{
    Access, ConnId, DomainId, RecvRequest, RegionId, SendOp, SendRequest, Sge, SgeList,
    SharedReceiveId, WcOpcode, WcStatus, WorkCompletion,
};

/// A region of test memory.
pub(super) struct Region {
    domain: DomainId,
    access: Access,
    rkey: Option<Rkey>,
    pub(super) bytes: Vec<u8>,
}

/// Where every region starts for the peer.
pub(super) const BASE: u64 = 0x1_0000_0000;
pub(super) const DOMAIN: DomainId = DomainId(3);

#[derive(Default)]
pub(super) struct TestMemory {
    pub(super) regions: Vec<Region>,
}

fn allows(has: Access, need: Access) -> bool {
    (has.local_write || !need.local_write)
        && (has.remote_read || !need.remote_read)
        && (has.remote_write || !need.remote_write)
}

impl TestMemory {
    pub(super) fn add(&mut self, bytes: Vec<u8>, access: Access) -> RegionId {
        let number = self.regions.len();
        let rkey = Some(Rkey(0x1000 + u32::try_from(number).unwrap()));
        self.regions.push(Region { domain: DOMAIN, access, rkey, bytes });
        RegionId(number as u64)
    }

    pub(super) fn bytes(&self, region: RegionId) -> &[u8] {
        &self.regions[usize::try_from(region.0).unwrap()].bytes
    }

    pub(super) fn revoke(&mut self, region: RegionId) {
        self.regions[usize::try_from(region.0).unwrap()].rkey = None;
    }

    fn read(&self, range: MemRange, out: &mut Vec<u8>) {
        let from = usize::try_from(range.offset).unwrap();
        out.extend_from_slice(&self.bytes(range.region)[from..from + range.length as usize]);
    }

    fn check(
        &self,
        number: usize,
        domain: DomainId,
        offset: u64,
        length: u32,
        need: Access,
    ) -> Result<MemRange, AccessError> {
        let region = self.regions.get(number).ok_or(AccessError::UnknownKey)?;
        if region.domain != domain {
            return Err(AccessError::WrongDomain);
        }
        if offset.checked_add(u64::from(length)).is_none_or(|end| end > region.bytes.len() as u64) {
            return Err(AccessError::OutOfBounds);
        }
        if !allows(region.access, need) {
            return Err(AccessError::NotAllowed);
        }
        Ok(MemRange { region: RegionId(number as u64), offset, length })
    }
}

impl Memory for TestMemory {
    fn check_remote(
        &self,
        domain: DomainId,
        rkey: Rkey,
        virtual_address: u64,
        length: u32,
        need: Access,
    ) -> Result<MemRange, AccessError> {
        let number = self.regions.iter().position(|region| region.rkey == Some(rkey));
        let number = number.ok_or(AccessError::UnknownKey)?;
        let offset = virtual_address.checked_sub(BASE).ok_or(AccessError::OutOfBounds)?;
        self.check(number, domain, offset, length, need)
    }

    fn check_local(
        &self,
        domain: DomainId,
        sge: Sge,
        need: Access,
    ) -> Result<MemRange, AccessError> {
        let number = usize::try_from(sge.region.0).unwrap();
        self.check(number, domain, sge.offset, sge.length, need)
    }

    fn place(&mut self, range: MemRange, skip: u32, bytes: &[u8]) -> Result<(), AccessError> {
        assert!(skip as usize + bytes.len() <= range.length as usize, "placed outside its range");
        let number = usize::try_from(range.region.0).unwrap();
        let from = usize::try_from(range.offset).unwrap() + skip as usize;
        let region = self.regions.get_mut(number).ok_or(AccessError::UnknownKey)?;
        region.bytes[from..from + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn invalidate(&mut self, domain: DomainId, rkey: Rkey) -> Result<(), AccessError> {
        let region = self.regions.iter_mut().find(|region| region.rkey == Some(rkey));
        let region = region.filter(|region| region.domain == domain);
        region.ok_or(AccessError::UnknownKey)?.rkey = None;
        Ok(())
    }
}

/// The wire's bytes of a packet, ICRC zero.
pub(super) fn wire_bytes(transmit: &Transmit, mem: &TestMemory) -> Vec<u8> {
    let mut bytes = transmit.headers[..usize::from(transmit.header_len)].to_vec();
    match &transmit.payload {
        Payload::Empty => {}
        Payload::Memory(first, second) => {
            mem.read(*first, &mut bytes);
            if let Some(second) = second {
                mem.read(*second, &mut bytes);
            }
        }
        Payload::Mad(_) => panic!("a queue pair sends no datagrams"),
    }
    bytes.resize(bytes.len() + usize::from(transmit.pad) + 4, 0);
    assert_eq!(bytes.len(), transmit.datagram_len());
    assert_eq!(bytes.len() % 4, 0);
    bytes
}

pub(super) fn bth(bytes: &[u8]) -> Bth {
    Bth::parse(bytes.first_chunk().unwrap())
}

/// Numbers from a seed (splitmix64).
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.roll() % bound.max(1)
    }

    pub(super) fn one_in(&mut self, chance: u64) -> bool {
        chance > 0 && self.below(chance) == 0
    }
}

/// What the wire does to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Deliver,
    Drop,
    /// Deliver this much later than usual.
    Late(Duration),
    Twice(Duration),
    /// With a congestion mark.
    Marked,
}

/// One side.
pub(super) struct Side {
    pub(super) qp: QueuePair,
    pub(super) mem: TestMemory,
    pub(super) done: Vec<WorkCompletion>,
}

/// How much time a packet takes.
pub(super) const ONE_WAY: Duration = Duration::from_micros(10);

pub(super) type Script = Box<dyn FnMut(usize, &[u8]) -> Fate>;

/// Two sides and the wire.
pub(super) struct Pair {
    pub(super) now: Timestamp,
    pub(super) sides: [Side; 2],
    flying: BTreeMap<(Timestamp, u64), (usize, Vec<u8>, bool)>,
    sent: u64,
    pub(super) script: Script,
    /// Opcode and PSN of every packet, with its sender.
    pub(super) log: Vec<(usize, Opcode, Psn)>,
    pub(super) budget: usize,
    /// A slow socket: one poll per side, then time passes.
    pub(super) lazy: bool,
    /// What queue pairs with a shared queue take from.
    pub(super) shared: SharedReceives,
}

/// Between two polls of a slow socket.
const LAZY: Duration = Duration::from_micros(3);

const PSNS: [Psn; 2] = [Psn::new(0xff_fff0), Psn::new(0x12_3456)];

pub(super) fn params(mtu: PathMtu) -> QpParams {
    let remote = "127.0.0.1:4791".parse().unwrap();
    QpParams::new(remote, Qpn::new(0), mtu, Psn::new(0), Psn::new(0))
}

impl Pair {
    /// As [`Self::new`], but side 1 takes its receives from [`Self::shared`].
    pub(super) fn sharing(mtu: PathMtu) -> Self {
        let mut pair = Self::new(mtu, |_, _| {});
        let shared_receive = Some(SharedReceiveId(7));
        let mut params = params(mtu);
        params.peer_qpn = pair.sides[0].qp.qpn();
        params.send_psn = PSNS[1];
        params.expected_psn = PSNS[0];
        let setup = QpSetup { shared_receive, ..*pair.sides[1].qp.setup() };
        let mut qp = QueuePair::new(setup);
        assert!(qp.activate(pair.now, &params));
        pair.sides[1].qp = qp;
        pair
    }

    /// Connected, queues of 64. `tune` may change either side's parameters.
    pub(super) fn new(mtu: PathMtu, tune: impl FnMut(usize, &mut QpParams)) -> Self {
        Self::with(mtu, false, tune)
    }

    /// The same; `divide_writes` as in [`QpSetup`].
    pub(super) fn with(
        mtu: PathMtu,
        divide_writes: bool,
        mut tune: impl FnMut(usize, &mut QpParams),
    ) -> Self {
        let now = Timestamp::from_nanos(1_000_000);
        let psns = PSNS;
        let sides = [0_usize, 1].map(|me| {
            let number = |side: usize| Qpn::new(0x100 + u32::try_from(side).unwrap());
            let mut qp = QueuePair::new(QpSetup {
                conn: ConnId(me as u64),
                qpn: number(me),
                domain: DOMAIN,
                max_send: 64,
                max_recv: 64,
                shared_receive: None,
                divide_writes,
            });
            let mut params = params(mtu);
            params.peer_qpn = number(1 - me);
            params.send_psn = psns[me];
            params.expected_psn = psns[1 - me];
            tune(me, &mut params);
            assert!(qp.activate(now, &params));
            Side { qp, mem: TestMemory::default(), done: Vec::new() }
        });
        Self {
            now,
            sides,
            flying: BTreeMap::new(),
            sent: 0,
            script: Box::new(|_, _| Fate::Deliver),
            log: Vec::new(),
            budget: 64,
            lazy: false,
            shared: SharedReceives::new(DOMAIN, 4),
        }
    }

    fn fly(&mut self, from: usize, bytes: Vec<u8>) {
        let fate = (self.script)(from, &bytes);
        let head = bth(&bytes);
        self.log.push((from, head.opcode, head.psn));
        let (extra, again, marked) = match fate {
            Fate::Drop => return,
            Fate::Deliver => (Duration::ZERO, None, false),
            Fate::Late(extra) => (extra, None, false),
            Fate::Twice(later) => (Duration::ZERO, Some(later), false),
            Fate::Marked => (Duration::ZERO, None, true),
        };
        for delay in [Some(extra), again].into_iter().flatten() {
            self.sent += 1;
            let at = self.now + ONE_WAY + delay;
            self.flying.insert((at, self.sent), (1 - from, bytes.clone(), marked));
        }
    }

    /// Hands bytes to a side at once, as if the wire had brought them.
    pub(super) fn inject(&mut self, to: usize, bytes: &[u8]) {
        let side = &mut self.sides[to];
        let packet = Packet::parse(bytes).unwrap();
        let shared = side.qp.shared_receive().map(|_| &mut self.shared);
        side.qp.handle_packet(self.now, &packet, false, &mut side.mem, shared);
    }

    /// Sends all that wants to be sent now and collects completions.
    pub(super) fn flush(&mut self) {
        let mut out = Vec::new();
        for me in 0..2 {
            loop {
                let side = &mut self.sides[me];
                let count = side.qp.poll_transmit(self.now, self.budget, &side.mem, &mut out);
                assert_eq!(count, out.len());
                assert!(count <= self.budget);
                assert!(count > 0 || !side.qp.wants_transmit(), "wants to send, sends nothing");
                if count == 0 {
                    break;
                }
                let packets: Vec<_> =
                    out.drain(..).map(|transmit| wire_bytes(&transmit, &side.mem)).collect();
                for bytes in packets {
                    self.fly(me, bytes);
                }
                if self.lazy {
                    break;
                }
            }
            let side = &mut self.sides[me];
            let before = side.done.len();
            let taken = side.qp.poll_completions(usize::MAX, &mut side.done);
            assert_eq!(side.done.len(), before + taken);
            assert!(side.done.iter().skip(before).all(|done| done.conn == ConnId(me as u64)));
        }
    }

    fn next_event(&self) -> Timestamp {
        let arrival = self.flying.keys().next().map_or(Timestamp::NEVER, |(at, _)| *at);
        let again = self.sides.iter().any(|side| side.qp.wants_transmit());
        let arrival = if again { arrival.min(self.now + LAZY) } else { arrival };
        self.sides.iter().map(|side| side.qp.next_timeout()).fold(arrival, Timestamp::min)
    }

    /// Lets the next thing happen; `false` when nothing will happen by itself any more.
    pub(super) fn step(&mut self) -> bool {
        self.flush();
        let at = self.next_event();
        if at == Timestamp::NEVER {
            return false;
        }
        self.now = self.now.max(at);
        while let Some(entry) = self.flying.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let (to, bytes, marked) = entry.remove();
            let side = &mut self.sides[to];
            let packet = Packet::parse(&bytes).unwrap();
            let shared = side.qp.shared_receive().map(|_| &mut self.shared);
            side.qp.handle_packet(self.now, &packet, marked, &mut side.mem, shared);
        }
        for side in &mut self.sides {
            if side.qp.next_timeout() <= self.now {
                side.qp.handle_timeout(self.now);
                assert!(side.qp.next_timeout() > self.now, "a deadline stays in the past");
            }
        }
        true
    }

    /// Until nothing happens any more.
    pub(super) fn settle(&mut self) {
        let mut steps = 0;
        while self.step() {
            steps += 1;
            assert!(steps < 2_000_000, "does not come to rest");
        }
    }

    pub(super) fn region(&mut self, side: usize, bytes: Vec<u8>, access: Access) -> RegionId {
        self.sides[side].mem.add(bytes, access)
    }

    pub(super) fn send(&mut self, side: usize, wr_id: u64, op: SendOp, sges: SgeList) {
        let side = &mut self.sides[side];
        let request = SendRequest { wr_id, op, sges, signaled: true };
        side.qp.post_send(&request, &side.mem).unwrap();
    }

    pub(super) fn recv(&mut self, side: usize, wr_id: u64, sges: SgeList) {
        let side = &mut self.sides[side];
        side.qp.post_recv(&RecvRequest { wr_id, sges }, &side.mem).unwrap();
    }

    pub(super) fn counters(&self, side: usize) -> &QpCounters {
        self.sides[side].qp.counters()
    }

    /// What completed on a side: identifier, kind, status, length.
    pub(super) fn done(&self, side: usize) -> Vec<(u64, WcOpcode, WcStatus, u32)> {
        let of = |c: &WorkCompletion| (c.wr_id, c.opcode, c.status, c.byte_len);
        self.sides[side].done.iter().map(of).collect()
    }

    pub(super) fn count(&self, side: usize, opcode: Opcode) -> usize {
        self.log.iter().filter(|(from, op, _)| *from == side && *op == opcode).count()
    }

    pub(super) fn both_alive(&self) -> bool {
        self.sides.iter().all(|side| side.qp.state() == QpState::Rts)
    }
}

/// One element.
pub(super) fn at(region: RegionId, offset: u64, length: u32) -> SgeList {
    SgeList::one(Sge { region, offset, length })
}

/// Bytes that differ from place to place.
pub(super) fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut dice = Dice(seed);
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend_from_slice(&dice.roll().to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

pub(super) fn key_of(region: RegionId) -> Rkey {
    Rkey(0x1000 + u32::try_from(region.0).unwrap())
}

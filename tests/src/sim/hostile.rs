//! A host that speaks RoCE well and NVMe badly: capsules of random bytes and lengths, keys that are
//! not its own, RDMA WRITEs and READs at guessed addresses, connection requests with broken private
//! data, queues that are connected and then misused, connections that are never used.
//!
//! It has a subsystem of its own: whatever it does must not be felt by anybody else.

use core::time::Duration;
use std::sync::Arc;

use lariat_fabric::sim::{SimNet, SimNetwork};
use lariat_fabric::soft::SoftFabric;
use lariat_fabric::verbs::{
    Access, CmEvent, ConnId, ConnectParams, DomainId, PrivateData, QpConfig, RecvRequest, RegionId,
    SendOp, SendRequest, Sge, SgeList, WorkCompletion,
};
use lariat_fabric::{Armed, Fabric, Memory, Timestamp};
use lariat_wire::nvme::{
    Command, CommandId, Completion, ConnectData, ConnectResult, ControllerId, FabricsCommand,
    HostId, IoCommand, Lba, Nqn, Nsid, Property, PropertySize, ProtectionAction, Qid, QueueSize,
    Sgl,
};
use lariat_wire::rdma_cm::ConnectRequest;
use lariat_wire::rocev2::Rkey;

use super::host::conn_of;
use super::plan::{hostile_ip, reactor_address};
use super::random::Rng;
use super::target::hostile_nqn;
use super::trace::{Trace, note};

const BYTES: usize = 256 << 10;
const RECEIVES: u32 = 32;
/// Where responses go in its memory; below is what it sends.
const RESPONSES: u64 = 128 << 10;

struct Line {
    conn: ConnId,
    qid: Qid,
    stands: bool,
    /// Entries of its queue.
    entries: u32,
    /// It posts no receive a second time.
    mute: bool,
    /// How many more misdeeds.
    left: u32,
    next: Timestamp,
    gone: bool,
}

/// A hostile host.
pub(super) struct Hostile {
    rng: Rng,
    fabric: SoftFabric<SimNetwork>,
    domain: DomainId,
    memory: Arc<Memory>,
    region: RegionId,
    lines: Vec<Line>,
    controller: ControllerId,
    rounds: u32,
    reactors: usize,
    pub(super) wake: Timestamp,
    next_line: Timestamp,
    /// It does and hears nothing until then.
    silent_until: Timestamp,
    /// Of its disk.
    block_bytes: u32,
    mdts_bytes: u32,
    turn: Duration,
    completions: Vec<WorkCompletion>,
    events: Vec<CmEvent>,
}

impl Hostile {
    pub(super) fn new(
        mut rng: Rng,
        net: &SimNet,
        reactors: usize,
        turn: Duration,
        block_bytes: u32,
        mdts_bytes: u32,
    ) -> Result<Self, String> {
        let mut fabric = net.node(hostile_ip());
        let domain = fabric.open_domain().map_err(|e| e.to_string())?;
        let memory = Memory::allocate(BYTES).map_err(|e| e.to_string())?;
        let region = fabric
            .register(domain, Arc::clone(&memory), Access::REMOTE)
            .map_err(|e| e.to_string())?;
        let rounds = u32::try_from(rng.range(2, 14)).unwrap_or(2);
        Ok(Self {
            rng,
            fabric,
            domain,
            memory,
            region,
            lines: Vec::new(),
            controller: ControllerId(1),
            rounds,
            reactors,
            wake: Timestamp::ZERO,
            next_line: Timestamp::ZERO,
            silent_until: Timestamp::ZERO,
            block_bytes,
            mdts_bytes,
            turn,
            completions: Vec::new(),
            events: Vec::new(),
        })
    }

    pub(super) fn turn(&mut self, now: Timestamp, trace: &mut Trace) -> Result<(), String> {
        if now < self.silent_until {
            self.wake = self.silent_until;
            return Ok(());
        }
        let mut completions = core::mem::take(&mut self.completions);
        let mut events = core::mem::take(&mut self.events);
        self.fabric.poll(now, 64, &mut completions, &mut events);
        let mut worked = !completions.is_empty() || !events.is_empty();
        for completion in completions.drain(..) {
            self.on_completion(&completion);
        }
        for event in events.drain(..) {
            self.on_event(now, &event, trace)?;
        }
        self.completions = completions;
        self.events = events;
        if now >= self.next_line && self.rounds > 0 && self.lines.len() < 3 {
            self.rounds -= 1;
            self.next_line = now + self.rng.micros(50, 5000);
            let remote = reactor_address(self.rng.index(self.reactors));
            if let Ok(conn) = self.fabric.resolve(now, remote, Duration::from_secs(2)) {
                let qid = Qid(u16::try_from(self.rng.pick(&[0, 0, 1, 1, 2])).unwrap_or(0));
                let left = u32::try_from(self.rng.range(0, 30)).unwrap_or(0);
                let entries = u32::try_from(self.rng.range(2, 40)).unwrap_or(2);
                self.lines.push(Line {
                    conn,
                    qid,
                    stands: false,
                    entries,
                    mute: self.rng.percent(20),
                    left,
                    next: now,
                    gone: false,
                });
            }
            worked = true;
        }
        for at in 0..self.lines.len() {
            worked |= self.misbehave(now, at, trace);
        }
        let fabric = &mut self.fabric;
        self.lines.retain(|line| {
            if line.gone {
                fabric.destroy(now, line.conn);
            }
            !line.gone
        });
        self.fabric.flush(now);
        self.wake = if worked {
            now + self.turn
        } else {
            let mut wake = match self.fabric.arm(now) {
                Armed::Ready => now + self.turn,
                Armed::Until(time) => time,
            };
            if self.rounds > 0 && self.lines.len() < 3 {
                wake = wake.min(self.next_line);
            }
            for line in self.lines.iter().filter(|line| line.stands) {
                wake = wake.min(line.next);
            }
            wake
        };
        Ok(())
    }

    fn on_completion(&mut self, completion: &WorkCompletion) {
        let success = completion.status == lariat_fabric::verbs::WcStatus::Success;
        if !success || completion.wr_id < RESPONSES {
            return;
        }
        let mut bytes = [0; 16];
        if self.memory.read_at(completion.wr_id, &mut bytes).is_ok() {
            let answer = Completion::from_bytes(&bytes);
            if answer.status().is_success() && answer.command_id() == CommandId(0xc0) {
                self.controller = ConnectResult::from_result(answer.result32()).cntlid;
            }
        }
        if self.lines.iter().any(|line| line.conn == completion.conn && line.mute) {
            return;
        }
        let sge = Sge { region: self.region, offset: completion.wr_id, length: 64 };
        let again = RecvRequest { wr_id: completion.wr_id, sges: SgeList::one(sge) };
        let _ = self.fabric.post_recv(completion.conn, &[again]);
    }

    fn on_event(
        &mut self,
        now: Timestamp,
        event: &CmEvent,
        trace: &mut Trace,
    ) -> Result<(), String> {
        let conn = conn_of(event);
        let Some(line) = self.lines.iter_mut().find(|line| line.conn == conn) else {
            return Ok(());
        };
        match event {
            CmEvent::Resolved { .. } => {
                let qp = QpConfig::new(self.domain, 64, RECEIVES);
                self.fabric.create_qp(conn, &qp).map_err(|e| e.to_string())?;
                let receives: Vec<_> = (0..u64::from(RECEIVES))
                    .map(|index| {
                        let offset = RESPONSES + index * 64;
                        let sge = Sge { region: self.region, offset, length: 64 };
                        RecvRequest { wr_id: offset, sges: SgeList::one(sge) }
                    })
                    .collect();
                self.fabric.post_recv(conn, &receives).map_err(|e| e.to_string())?;
                let size = QueueSize::from_entries(line.entries).unwrap_or(QueueSize::MIN_LEGAL);
                let mut words = ConnectRequest::new(line.qid, size, self.controller).to_bytes();
                if self.rng.percent(20) {
                    trace.count("hostile: broken connection request");
                    self.rng.fill(&mut words);
                }
                let length = if self.rng.percent(10) { self.rng.index(32) } else { words.len() };
                let params = ConnectParams {
                    responder_resources: self.rng.pick(&[0, 1, 16]),
                    initiator_depth: self.rng.pick(&[0, 4]),
                    retry_count: 2,
                    rnr_retry_count: 2,
                    private_data: PrivateData::new(&words[..length]).unwrap_or(PrivateData::EMPTY),
                };
                self.fabric
                    .connect(now, conn, &params, Duration::from_secs(2))
                    .map_err(|e| e.to_string())?;
            }
            CmEvent::Established { .. } => {
                trace.count("hostile: connected");
                line.stands = true;
                line.next = now;
                if self.rng.percent(85) {
                    let (qid, entries) = (line.qid, line.entries);
                    self.say_connect(conn, qid, entries);
                }
            }
            CmEvent::ConnectFailed { .. } => line.gone = true,
            CmEvent::Disconnected { .. } => {
                note!(trace, "hostile: thrown out");
                trace.count("hostile: thrown out");
                line.gone = true;
            }
            CmEvent::ConnectRequest { .. } => {}
        }
        Ok(())
    }

    fn key(&self, conn: ConnId) -> u32 {
        self.fabric.rkey(conn, self.region).map_or(0, Rkey::get)
    }

    fn address(&self) -> u64 {
        self.memory.address().as_ptr().addr() as u64
    }

    /// A Fabrics Connect that is right, mostly; and CC.EN behind it.
    fn say_connect(&mut self, conn: ConnId, qid: Qid, entries: u32) {
        let host = Nqn::parse("nqn.2026-01.io.lariat:mallory").expect("a valid name");
        let controller = if qid.is_admin() { ControllerId::DYNAMIC } else { self.controller };
        let data = ConnectData::new(HostId([0x66; 16]), controller, &hostile_nqn(), &host);
        let mut bytes = *data.as_bytes();
        if self.rng.percent(15) {
            let at = self.rng.index(bytes.len());
            bytes[at] ^= 1 << self.rng.below(8);
        }
        let _ = self.memory.write_at(4096, &bytes);
        let length = if self.rng.percent(90) { 1024 } else { 512 };
        let sgl = Sgl::Keyed {
            address: self.address() + 4096,
            length,
            key: self.key(conn),
            invalidate: self.rng.percent(30),
        };
        let connect = FabricsCommand::Connect {
            recfmt: 0,
            qid,
            sqsize: QueueSize::from_entries(entries).unwrap_or(QueueSize::MIN_LEGAL),
            cattr: 0,
            kato_ms: 1000,
        };
        self.send_capsule(conn, &connect.to_command(CommandId(0xc0)).with_sgl(sgl), 64);
        if qid.is_admin() && self.rng.percent(80) {
            let enable = FabricsCommand::PropertySet {
                size: PropertySize::Four,
                offset: Property::CC.0,
                value: 0x0046_0001,
            };
            self.send_capsule(conn, &enable.to_command(CommandId(1)), 64);
        }
    }

    fn send_capsule(&mut self, conn: ConnId, command: &Command, length: u32) {
        let offset = 8192 + self.rng.below(64) * 1024;
        let _ = self.memory.write_at(offset, &command.to_bytes());
        let sge = Sge { region: self.region, offset, length };
        self.post(conn, SendOp::Send, sge);
    }

    fn post(&mut self, conn: ConnId, op: SendOp, sge: Sge) {
        let request = SendRequest { wr_id: 0, op, sges: SgeList::one(sge), signaled: true };
        let _ = self.fabric.post_send(conn, &[request]);
    }

    fn misbehave(&mut self, now: Timestamp, at: usize, trace: &mut Trace) -> bool {
        let Some(line) = self.lines.get_mut(at) else { return false };
        if !line.stands || line.gone || now < line.next {
            return false;
        }
        let conn = line.conn;
        line.next = now + self.rng.micros(1, 1500);
        if line.left == 0 {
            // Good-bye, or none at all.
            match self.rng.below(3) {
                0 => line.gone = true,
                1 => {
                    let _ = self.fabric.disconnect(now, conn);
                    line.stands = false;
                }
                _ => line.next = now + Duration::from_secs(1),
            }
            return true;
        }
        line.left -= 1;
        let entries = line.entries;
        match self.rng.below(22) {
            0 => {
                trace.count("hostile: RDMA WRITE at a guessed key");
                let op = SendOp::Write {
                    remote_address: self.rng.word() >> 16,
                    rkey: Rkey(u32::try_from(self.rng.word() >> 32).unwrap_or(0)),
                };
                self.post(conn, op, Sge { region: self.region, offset: 0, length: 4096 });
            }
            1 => {
                trace.count("hostile: RDMA READ at a guessed key");
                let op = SendOp::Read {
                    remote_address: self.rng.word() >> 16,
                    rkey: Rkey(u32::try_from(self.rng.word() >> 32).unwrap_or(0)),
                };
                self.post(conn, op, Sge { region: self.region, offset: 0, length: 512 });
            }
            2 => {
                trace.count("hostile: SEND of any length");
                let length = u32::try_from(self.rng.below(12_000)).unwrap_or(0);
                self.post(conn, SendOp::Send, Sge { region: self.region, offset: 8192, length });
            }
            3 => {
                trace.count("hostile: SEND with Invalidate");
                let rkey = Rkey(u32::try_from(self.rng.word() >> 32).unwrap_or(0));
                let sge = Sge { region: self.region, offset: 8192, length: 64 };
                self.post(conn, SendOp::SendWithInvalidate { rkey }, sge);
            }
            20 => {
                trace.count("hostile: wants much");
                self.want_much(conn, entries);
                if self.rng.percent(50) {
                    note!(trace, "hostile: falls silent");
                    trace.count("hostile: falls silent");
                    // Long enough for what it wants to be on its way.
                    self.fabric.flush(now);
                    self.silent_until = now + self.rng.micros(100_000, 15_000_000);
                }
            }
            4..=6 => {
                trace.count("hostile: capsule of random bytes");
                let mut bytes = [0; 64];
                self.rng.fill(&mut bytes);
                self.send_capsule(conn, &Command::from_bytes(&bytes), 64);
            }
            _ => {
                trace.count("hostile: capsule that is nearly right");
                let command = self.nearly_right(conn);
                let behind = self.rng.pick(&[0, 0, 16, 512, 4096]);
                self.send_capsule(conn, &command, 64 + behind);
            }
        }
        true
    }

    /// As many reads as its queue has entries, as large as they may be.
    fn want_much(&mut self, conn: ConnId, entries: u32) {
        let most = self.mdts_bytes.min(64 << 10);
        let blocks = (most / self.block_bytes).clamp(1, 16);
        for number in 1..entries {
            let read = IoCommand::Read {
                nsid: Nsid(1),
                slba: Lba(0),
                blocks,
                fua: false,
                limited_retry: false,
                prinfo: ProtectionAction::NONE,
                access_hints: 0,
            };
            let cid = CommandId(0x4000 + u16::try_from(number).unwrap_or(0));
            let sgl = Sgl::Keyed {
                address: self.address(),
                length: blocks * self.block_bytes,
                key: self.key(conn),
                invalidate: false,
            };
            if let Ok(command) = read.to_command(cid) {
                self.send_capsule(conn, &command.with_sgl(sgl), 64);
            }
        }
    }

    /// A command with the right opcode and fields that are right or not.
    fn nearly_right(&mut self, conn: ConnId) -> Command {
        let mut bytes = [0; 64];
        let rng = &mut self.rng;
        bytes[0] = rng.pick(&[0, 1, 2, 8, 9, 6, 2, 0x0a, 0x0c, 0x18, 0x7f, 0x7f, 0x08, 0x09]);
        bytes[1] = rng.pick(&[0x40, 0x40, 0x40, 0, 0x41, 0xc0]);
        rng.fill(&mut bytes[2..4]);
        let nsid = rng.pick(&[0_u32, 1, 1, 1, 2, 1024, u32::MAX]);
        bytes[4..8].copy_from_slice(&nsid.to_le_bytes());
        for at in (40..64).step_by(4) {
            let word = rng.pick(&[0_u32, 0, 0, 1, 7, 0xff, 0xffff, u32::MAX, 0x0100_0000]);
            bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        let length = rng.pick(&[0, 16, 512, 4096, 8192, 1 << 20, 0xff_ffff]);
        let right_key = rng.percent(60);
        let key = u32::try_from(rng.word() >> 32).unwrap_or(0);
        let shift = rng.pick(&[0, 0, 0, 1 << 40, 200 << 10]);
        let invalidate = rng.percent(20);
        let form = rng.below(5);
        let sgl = match form {
            0 => Sgl::Null,
            1 => {
                Sgl::InCapsule { offset: u64::from(length & 0xfff) & 0x30, length: length & 0x1fff }
            }
            2 => {
                rng.fill(&mut bytes[24..40]);
                return Command::from_bytes(&bytes);
            }
            _ => Sgl::Keyed {
                address: self.address().wrapping_add(shift),
                length,
                key: if right_key { self.key(conn) } else { key },
                invalidate,
            },
        };
        Command::from_bytes(&bytes).with_sgl(sgl)
    }
}

//! A target just good enough to test the initiator against: one subsystem, one namespace in memory,
//! and knobs for what it does wrong. Not the product's target.
#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(clippy::unwrap_used, reason = "a panic here is a failing test")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use lariat_fabric::verbs::{
    Access, CmEvent, ConnId, ConnectParams, DomainId, PrivateData, QpConfig, RecvRequest, RegionId,
    SendOp, SendRequest, Sge, SgeList, WcStatus, WorkCompletion,
};
use lariat_fabric::{Fabric, Memory, Timestamp};
use lariat_wire::nvme::identify::{
    AsyncEventSupport, IdentifyController, IdentifyNamespace, NamespaceDescriptor,
    NamespaceDescriptorWriter, NamespaceList, Oncs, SglSupport, TransferLimit,
};
use lariat_wire::nvme::{
    AdminCommand, AsyncEvent, Capabilities, Cns, Command, CommandId, Completion, ConnectData,
    ConnectInvalidParameter, ConnectResult, ControllerConfig, ControllerId, ControllerStatus,
    DsmRange, FabricsCommand, IoCommand, Nqn, Nsid, Property, QueueSize, Sgl, ShutdownNotification,
    ShutdownStatus, Status,
};
use lariat_wire::rdma_cm::{ConnectAccept, ConnectRequest};
use lariat_wire::rocev2::Rkey;

pub(crate) const SUBSYSTEM: &str = "nqn.2026-01.org.example:stub";
pub(crate) const UUID: [u8; 16] = [7; 16];
const SLOT_BYTES: u64 = 64 + IN_CAPSULE as u64 + DATA_BYTES as u64 + 64;
const IN_CAPSULE: u32 = 8192;
const DATA_BYTES: u32 = 1 << 17;
const RECV: u64 = 1 << 32;
const FETCH: u64 = 2 << 32;
const RESPONSE: u64 = 3 << 32;

/// What the target does wrong, and its limits.
#[derive(Clone, Debug)]
pub(crate) struct Knobs {
    pub(crate) block_shift: u8,
    pub(crate) blocks: u64,
    pub(crate) mdts: u8,
    pub(crate) in_capsule_bytes: u32,
    pub(crate) queues: u16,
    pub(crate) max_entries: u32,
    /// MAXCMD.
    pub(crate) max_commands: u16,
    /// SGLS.
    pub(crate) sgls: u32,
    /// Commands of this opcode on I/O queues are never answered.
    pub(crate) mute_io: Option<u8>,
    /// Commands of this opcode on the admin queue are never answered.
    pub(crate) mute_admin: Option<u8>,
    /// Commands that touch this block fail.
    pub(crate) bad_block: Option<u64>,
    /// Never gets ready.
    pub(crate) never_ready: bool,
    /// Each I/O response is sent for this command identifier instead.
    pub(crate) wrong_cid: Option<u16>,
    /// Each I/O response has 64 bytes.
    pub(crate) long_response: bool,
    /// Each I/O response invalidates the host's key.
    pub(crate) invalidate: bool,
}

impl Default for Knobs {
    fn default() -> Self {
        Self {
            block_shift: 9,
            blocks: 8192,
            mdts: 5,
            in_capsule_bytes: 4096,
            queues: 4,
            max_entries: 128,
            max_commands: 0,
            sgls: SglSupport::RDMA,
            mute_io: None,
            mute_admin: None,
            bad_block: None,
            never_ready: false,
            wrong_cid: None,
            long_response: false,
            invalidate: false,
        }
    }
}

struct Conn {
    qid: u16,
    slots: u64,
    memory: Arc<Memory>,
    region: RegionId,
    connected: bool,
    config: ControllerConfig,
    event: Option<u16>,
    fetching: BTreeMap<u64, Command>,
    repost: Vec<u64>,
}

/// The target.
pub(crate) struct Stub<F: Fabric> {
    pub(crate) fabric: F,
    pub(crate) knobs: Knobs,
    pub(crate) disk: Vec<u8>,
    pub(crate) keep_alives: usize,
    pub(crate) disconnect_commands: usize,
    pub(crate) shutdowns: usize,
    pub(crate) largest_transfer: u32,
    pub(crate) in_capsule_writes: usize,
    pub(crate) most_outstanding: usize,
    domain: DomainId,
    conns: BTreeMap<ConnId, Conn>,
    completions: Vec<WorkCompletion>,
    events: Vec<CmEvent>,
}

impl<F: Fabric> Stub<F> {
    pub(crate) fn new(mut fabric: F, address: SocketAddr, knobs: Knobs) -> Self {
        let domain = fabric.open_domain().unwrap();
        fabric.listen(address).unwrap();
        let disk = vec![0; usize::try_from(knobs.blocks << knobs.block_shift).unwrap()];
        Self {
            fabric,
            knobs,
            disk,
            keep_alives: 0,
            disconnect_commands: 0,
            shutdowns: 0,
            largest_transfer: 0,
            in_capsule_writes: 0,
            most_outstanding: 0,
            domain,
            conns: BTreeMap::new(),
            completions: Vec::new(),
            events: Vec::new(),
        }
    }

    pub(crate) fn connections(&self) -> usize {
        self.conns.len()
    }

    /// Says good-bye on all connections.
    pub(crate) fn hang_up(&mut self, now: Timestamp) {
        for (conn, _) in std::mem::take(&mut self.conns) {
            self.fabric.destroy(now, conn);
        }
        self.fabric.flush(now);
    }

    /// Tells the host that its namespaces changed.
    pub(crate) fn announce_change(&mut self, now: Timestamp) {
        let held: Vec<(ConnId, u16)> = self
            .conns
            .iter_mut()
            .filter_map(|(conn, state)| Some((*conn, state.event.take()?)))
            .collect();
        for (conn, cid) in held {
            let answer = Completion::success(CommandId(cid))
                .with_result(AsyncEvent::NAMESPACE_CHANGED.to_result());
            self.respond(conn, 0, answer);
        }
        self.fabric.flush(now);
    }

    pub(crate) fn poll(&mut self, now: Timestamp) -> bool {
        let mut completions = std::mem::take(&mut self.completions);
        let mut events = std::mem::take(&mut self.events);
        self.fabric.poll(now, 64, &mut completions, &mut events);
        let any = !completions.is_empty() || !events.is_empty();
        for event in events.drain(..) {
            self.event(now, event);
        }
        let arrived = completions.iter().filter(|wc| wc.wr_id & RECV != 0 && wc.wr_id < FETCH);
        self.most_outstanding = self.most_outstanding.max(arrived.count());
        for completion in completions.drain(..) {
            self.completion(now, &completion);
        }
        self.completions = completions;
        self.events = events;
        let ids: Vec<ConnId> = self.conns.keys().copied().collect();
        for id in ids {
            let Some(conn) = self.conns.get_mut(&id) else { continue };
            let requests: Vec<RecvRequest> =
                conn.repost.drain(..).map(|slot| recv(conn.region, slot)).collect();
            if !requests.is_empty() {
                let _ = self.fabric.post_recv(id, &requests);
            }
        }
        self.fabric.flush(now);
        any
    }

    fn event(&mut self, now: Timestamp, event: CmEvent) {
        match event {
            CmEvent::ConnectRequest { conn, private_data, responder_resources, .. } => {
                let request = ConnectRequest::parse(private_data.as_bytes()).unwrap();
                let slots = u64::from(request.hsqsize.entries());
                let bytes = usize::try_from(slots * SLOT_BYTES).unwrap();
                let memory = Memory::allocate(bytes).unwrap();
                let region =
                    self.fabric.register(self.domain, Arc::clone(&memory), Access::LOCAL).unwrap();
                let depth = request.hsqsize.entries();
                let config = QpConfig::new(self.domain, depth * 3, depth);
                self.fabric.create_qp(conn, &config).unwrap();
                let requests: Vec<RecvRequest> = (0..slots).map(|at| recv(region, at)).collect();
                self.fabric.post_recv(conn, &requests).unwrap();
                let accept = ConnectAccept::new(request.hsqsize).to_bytes();
                let params = ConnectParams {
                    responder_resources: 0,
                    initiator_depth: responder_resources.min(16),
                    retry_count: 7,
                    rnr_retry_count: 7,
                    private_data: PrivateData::new(&accept).unwrap(),
                };
                self.fabric.accept(now, conn, &params).unwrap();
                self.conns.insert(
                    conn,
                    Conn {
                        qid: request.qid.0,
                        slots,
                        memory,
                        region,
                        connected: false,
                        config: ControllerConfig(0),
                        event: None,
                        fetching: BTreeMap::new(),
                        repost: Vec::new(),
                    },
                );
            }
            CmEvent::Disconnected { conn, .. } | CmEvent::ConnectFailed { conn, .. } => {
                self.fabric.destroy(now, conn);
                if let Some(state) = self.conns.remove(&conn) {
                    let _ = self.fabric.deregister(state.region);
                }
            }
            _ => {}
        }
    }

    fn completion(&mut self, now: Timestamp, completion: &WorkCompletion) {
        let id = completion.conn;
        let slot = completion.wr_id & 0xffff_ffff;
        if completion.status != WcStatus::Success {
            return;
        }
        let Some(conn) = self.conns.get_mut(&id) else { return };
        match completion.wr_id & !0xffff_ffff {
            RECV => {
                let mut bytes = [0; 64];
                conn.memory.read_at(slot * SLOT_BYTES, &mut bytes).unwrap();
                let command = Command::from_bytes(&bytes);
                let keyed_write = matches!(command.sgl(), Sgl::Keyed { .. })
                    && (command.opcode & 3 == 1
                        || command.is_fabrics() && command.nsid.get() & 3 == 1);
                if let (true, Sgl::Keyed { address, length, key, .. }) =
                    (keyed_write, command.sgl())
                {
                    self.largest_transfer = self.largest_transfer.max(length);
                    conn.fetching.insert(slot, command);
                    let request = SendRequest {
                        wr_id: FETCH | slot,
                        op: SendOp::Read { remote_address: address, rkey: Rkey(key) },
                        sges: SgeList::one(data(conn.region, slot, length)),
                        signaled: true,
                    };
                    self.fabric.post_send(id, &[request]).unwrap();
                    return;
                }
                let in_capsule = matches!(command.sgl(), Sgl::InCapsule { .. });
                let at = slot * SLOT_BYTES + 64;
                let length = command.sgl().length_bytes();
                if in_capsule {
                    assert_eq!(completion.byte_len, 64 + length);
                    self.in_capsule_writes += usize::from(conn.qid != 0 && command.opcode == 1);
                }
                self.execute(now, id, slot, &command, at);
            }
            FETCH => {
                let Some(command) = conn.fetching.remove(&slot) else { return };
                let at = slot * SLOT_BYTES + 64 + u64::from(IN_CAPSULE);
                self.execute(now, id, slot, &command, at);
            }
            _ => {}
        }
    }

    /// Runs a command whose data from the host, if any, stands at `at` in the connection's memory.
    fn execute(&mut self, _now: Timestamp, id: ConnId, slot: u64, command: &Command, at: u64) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.repost.push(slot);
        let cid = command.command_id();
        let length = usize::try_from(command.sgl().length_bytes()).unwrap();
        let mut input = vec![0; length];
        conn.memory.read_at(at, &mut input).unwrap();
        let admin = conn.qid == 0;
        let muted = if admin { self.knobs.mute_admin } else { self.knobs.mute_io };
        if muted == Some(command.opcode) && conn.connected {
            return;
        }
        let (answer, output) = if command.is_fabrics() {
            self.fabrics(id, command, &input)
        } else if admin {
            match self.admin(id, command) {
                Some(result) => result,
                None => return,
            }
        } else {
            self.io(command, &input)
        };
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let mut answer = answer;
        answer.cid.set(cid.0);
        if let (Some(output), Sgl::Keyed { address, length, key, .. }) = (output, command.sgl()) {
            self.largest_transfer = self.largest_transfer.max(length);
            assert!(output.len() <= usize::try_from(length).unwrap());
            let target = data(conn.region, slot, u32::try_from(output.len()).unwrap());
            conn.memory.write_at(target.offset, &output).unwrap();
            let request = SendRequest {
                wr_id: RESPONSE,
                op: SendOp::Write { remote_address: address, rkey: Rkey(key) },
                sges: SgeList::one(target),
                signaled: false,
            };
            self.fabric.post_send(id, &[request]).unwrap();
        }
        let key = match command.sgl() {
            Sgl::Keyed { key, .. } if self.knobs.invalidate && !admin => Some(Rkey(key)),
            _ => None,
        };
        self.respond_with(id, slot, answer, key, !admin && !command.is_fabrics());
    }

    fn respond(&mut self, id: ConnId, slot: u64, answer: Completion) {
        self.respond_with(id, slot, answer, None, false);
    }

    fn respond_with(
        &mut self,
        id: ConnId,
        slot: u64,
        mut answer: Completion,
        invalidate: Option<Rkey>,
        is_io: bool,
    ) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if let (true, Some(cid)) = (is_io, self.knobs.wrong_cid) {
            answer.cid.set(cid);
        }
        let length = if is_io && self.knobs.long_response { 64 } else { 16 };
        let offset = slot * SLOT_BYTES + SLOT_BYTES - 64;
        conn.memory.write_at(offset, &answer.to_bytes()).unwrap();
        let op = invalidate.map_or(SendOp::Send, |rkey| SendOp::SendWithInvalidate { rkey });
        let request = SendRequest {
            wr_id: RESPONSE | slot,
            op,
            sges: SgeList::one(Sge { region: conn.region, offset, length }),
            signaled: true,
        };
        let _ = self.fabric.post_send(id, &[request]);
    }

    fn fabrics(
        &mut self,
        id: ConnId,
        command: &Command,
        input: &[u8],
    ) -> (Completion, Option<Vec<u8>>) {
        let conn = self.conns.get_mut(&id).unwrap();
        let ok = Completion::success(CommandId(0));
        let answer = match FabricsCommand::parse(command).unwrap() {
            FabricsCommand::Connect { qid, sqsize, .. } => {
                let connect = ConnectData::from_bytes(input.try_into().unwrap());
                assert_eq!(qid.0, conn.qid);
                assert_eq!(u64::from(sqsize.entries()), conn.slots);
                if connect.subsystem_nqn().unwrap() == Nqn::parse(SUBSYSTEM).unwrap() {
                    conn.connected = true;
                    let result = ConnectResult { cntlid: ControllerId(5), authreq: 0 };
                    ok.with_result32(result.to_result())
                } else {
                    ok.with_status(Status::CONNECT_INVALID_PARAMETERS.with_dnr())
                        .with_result32(ConnectInvalidParameter::SUBNQN.to_result())
                }
            }
            FabricsCommand::PropertyGet { offset, .. } => match Property(offset) {
                Property::CAP => {
                    let size = QueueSize::from_entries(self.knobs.max_entries).unwrap();
                    ok.with_result(Capabilities::fabrics(size).0)
                }
                Property::CSTS => {
                    let ready = conn.config.enabled() && !self.knobs.never_ready;
                    let down = conn.config.shutdown() != ShutdownNotification(0);
                    let shutdown =
                        if down { ShutdownStatus::COMPLETE } else { ShutdownStatus::NORMAL };
                    let status = ControllerStatus(0).with_ready(ready).with_shutdown(shutdown);
                    ok.with_result32(status.0)
                }
                _ => ok.with_result32(0x0002_0100),
            },
            FabricsCommand::PropertySet { offset, value, .. } => {
                if Property(offset) == Property::CC {
                    conn.config = ControllerConfig(u32::try_from(value).unwrap());
                    if conn.config.shutdown() == ShutdownNotification::NORMAL {
                        self.shutdowns += 1;
                    }
                }
                ok
            }
            FabricsCommand::Disconnect { .. } => {
                self.disconnect_commands += 1;
                ok
            }
            FabricsCommand::Unsupported(_) => ok.with_status(Status::INVALID_OPCODE),
        };
        (answer, None)
    }

    /// `None`: the answer is held.
    fn admin(&mut self, id: ConnId, command: &Command) -> Option<(Completion, Option<Vec<u8>>)> {
        let ok = Completion::success(CommandId(0));
        Some(match AdminCommand::parse(command).unwrap() {
            AdminCommand::Identify { cns: Cns::CONTROLLER, .. } => {
                let mut identify = IdentifyController::default();
                identify.set_product("S1", "Stub", "1");
                identify.mdts = TransferLimit(self.knobs.mdts).0;
                identify.set_in_capsule_data(self.knobs.in_capsule_bytes);
                identify.sgls.set(self.knobs.sgls);
                identify.maxcmd.set(self.knobs.max_commands);
                identify.ofcs.set(1);
                identify.oncs.set(Oncs::WRITE_ZEROES | Oncs::DATASET_MANAGEMENT);
                identify.oaes.set(AsyncEventSupport::NAMESPACE_ATTRIBUTES);
                (ok, Some(identify.as_bytes().to_vec()))
            }
            AdminCommand::Identify { cns: Cns::ACTIVE_NAMESPACE_LIST, nsid, .. } => {
                (ok, Some(NamespaceList::after(nsid, [Nsid(1)]).as_bytes().to_vec()))
            }
            AdminCommand::Identify { cns: Cns::NAMESPACE, .. } => {
                let identify = IdentifyNamespace::new(self.knobs.blocks, self.knobs.block_shift);
                (ok, Some(identify.as_bytes().to_vec()))
            }
            AdminCommand::Identify { cns: Cns::NAMESPACE_DESCRIPTORS, .. } => {
                let mut writer = NamespaceDescriptorWriter::default();
                let _ = writer.push(&NamespaceDescriptor::Uuid(UUID));
                (ok, Some(writer.finish().to_vec()))
            }
            AdminCommand::SetFeatures { fid: 7, .. } => {
                let zero_based = u32::from(self.knobs.queues - 1);
                (ok.with_result32(zero_based | zero_based << 16), None)
            }
            AdminCommand::SetFeatures { .. } => (ok, None),
            AdminCommand::GetLogPage { numd, .. } => {
                (ok, Some(vec![0; usize::try_from(numd.bytes()).unwrap()]))
            }
            AdminCommand::KeepAlive => {
                self.keep_alives += 1;
                (ok, None)
            }
            AdminCommand::AsyncEventRequest => {
                self.conns.get_mut(&id).unwrap().event = Some(command.command_id().0);
                return None;
            }
            _ => (ok.with_status(Status::INVALID_OPCODE.with_dnr()), None),
        })
    }

    fn io(&mut self, command: &Command, input: &[u8]) -> (Completion, Option<Vec<u8>>) {
        let ok = Completion::success(CommandId(0));
        let refused = |status: Status| (ok.with_status(status.with_dnr()), None);
        let shift = self.knobs.block_shift;
        let (slba, blocks) = match IoCommand::parse(command).unwrap() {
            IoCommand::Read { slba, blocks, .. }
            | IoCommand::Write { slba, blocks, .. }
            | IoCommand::WriteZeroes { slba, blocks, .. } => (slba.0, u64::from(blocks)),
            IoCommand::DatasetManagement { ranges, .. } => {
                assert_eq!(ranges, 1);
                let range = DsmRange::parse_list(input).next().unwrap();
                (range.start().0, u64::from(range.blocks.get()))
            }
            _ => return (ok, None),
        };
        if slba + blocks > self.knobs.blocks {
            return refused(Status::LBA_OUT_OF_RANGE);
        }
        if self.knobs.bad_block.is_some_and(|bad| (slba..slba + blocks).contains(&bad)) {
            return refused(Status::UNRECOVERED_READ_ERROR);
        }
        let start = usize::try_from(slba << shift).unwrap();
        let range = start..start + usize::try_from(blocks << shift).unwrap();
        let expected = range.len();
        match IoCommand::parse(command).unwrap() {
            IoCommand::Read { .. } => (ok, Some(self.disk[range].to_vec())),
            IoCommand::Write { .. } => {
                assert_eq!(input.len(), expected);
                self.disk[range].copy_from_slice(input);
                (ok, None)
            }
            _ => {
                self.disk[range].fill(0);
                (ok, None)
            }
        }
    }
}

fn recv(region: RegionId, slot: u64) -> RecvRequest {
    let sge = Sge { region, offset: slot * SLOT_BYTES, length: 64 + IN_CAPSULE };
    RecvRequest { wr_id: RECV | slot, sges: SgeList::one(sge) }
}

fn data(region: RegionId, slot: u64, length: u32) -> Sge {
    Sge { region, offset: slot * SLOT_BYTES + 64 + u64::from(IN_CAPSULE), length }
}

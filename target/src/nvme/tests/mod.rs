//! A target driven as a host drives it, by commands that `lariat_wire` builds.

mod admission;
mod connect;
mod lifecycle;
mod pages;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use lariat_fabric::Timestamp;
use lariat_wire::nvme::log::RdmaProvider;
use lariat_wire::nvme::{
    AdminCommand, Command, CommandId, ConnectData, ControllerConfig, ControllerId, FabricsCommand,
    HostId, Nqn, Nsid, PropertySize, Qid, QueueSize, Status,
};

use super::*;
use crate::storage::{BackendId, Geometry};

const DISK: &str = "nqn.2026-01.io.lariat:disk";
const PRIVATE: &str = "nqn.2026-01.io.lariat:private";
const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-000000000001";
const HOST_ID: HostId = HostId([7; 16]);
const CC_OFFSET: u32 = 0x14;
const CSTS_OFFSET: u32 = 0x1c;

fn nqn(name: &str) -> Nqn {
    Nqn::parse(name).unwrap()
}

fn seconds(s: u64) -> Timestamp {
    Timestamp::from_nanos(s * 1_000_000_000)
}

fn limits() -> Limits {
    Limits {
        max_queues: 4,
        max_queue_depth: QueueSize::from_entries(128).unwrap(),
        mdts_bytes: 128 << 10,
        in_capsule_bytes: 8192,
        max_hosts: 3,
    }
}

fn geometry(block_bytes: u32, capacity_blocks: u64) -> Geometry {
    Geometry {
        block_bytes,
        capacity_blocks,
        volatile_write_cache: true,
        deallocate: true,
        read_only: false,
    }
}

fn namespace(nsid: u32, geometry: Geometry) -> Namespace {
    let mut uuid = [0xa0; 16];
    uuid[0] = u8::try_from(nsid).unwrap();
    Namespace::new(Nsid(nsid), BackendId(nsid), geometry, uuid)
}

/// Namespaces 1 (512 B blocks), 2 (4 KiB), 4 (read-only, no cache, no deallocation).
fn disk() -> SubsystemBuilder {
    let frozen = Geometry {
        read_only: true,
        deallocate: false,
        volatile_write_cache: false,
        ..geometry(512, 64)
    };
    Subsystem::builder(nqn(DISK))
        .serial("S1")
        .model("Disk")
        .namespace(namespace(1, geometry(512, 1000)))
        .namespace(namespace(2, geometry(4096, 500)))
        .namespace(namespace(4, frozen))
}

fn private() -> SubsystemBuilder {
    Subsystem::builder(nqn(PRIVATE))
        .allowed_hosts(AllowedHosts::Only([nqn("nqn.2026-01.io.lariat:friend")].into()))
}

fn listeners() -> Vec<ListenerAddress> {
    vec![
        ListenerAddress {
            address: "127.0.0.1:4420".parse().unwrap(),
            port_id: 1,
            provider: RdmaProvider::ROCE_V2,
        },
        ListenerAddress {
            address: "[::1]:4421".parse().unwrap(),
            port_id: 2,
            provider: RdmaProvider::IWARP,
        },
    ]
}

struct Counter(Arc<AtomicU32>);

impl Waker for Counter {
    fn wake(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

struct Target {
    registry: Arc<Registry>,
    wakes: Arc<AtomicU32>,
}

impl Target {
    fn new() -> Self {
        Self::with_limits(limits())
    }

    fn with_limits(limits: Limits) -> Self {
        let map = SubsystemMap::new(limits, [disk(), private()], listeners()).unwrap();
        let wakes = Arc::<AtomicU32>::default();
        let wakers: Vec<Box<dyn Waker>> = vec![Box::new(Counter(Arc::clone(&wakes)))];
        Self { registry: Registry::new(Arc::new(map), wakers), wakes }
    }

    fn wakes(&self) -> u32 {
        self.wakes.swap(0, Ordering::Relaxed)
    }

    fn admin(&self, subsystem: &str, kato_ms: u32) -> Admin {
        let data = data(ControllerId::DYNAMIC, subsystem, HOST);
        let command = ConnectCommand { kato_ms, ..connect(0, 32) };
        let controller = self.registry.connect_admin(Timestamp::ZERO, &command, &data).unwrap();
        Admin { controller, now: Timestamp::ZERO }
    }

    fn io(&self, admin: &Admin, qid: u16) -> Result<IoAttachment, ConnectError> {
        let data = data(admin.controller.shared().id(), DISK, HOST);
        self.registry.attach_io(admin.now, &connect(qid, 128), &data)
    }

    /// A controller that is ready, and its I/O queue 1.
    fn ready(&self) -> (Admin, IoAttachment) {
        let mut admin = self.admin(DISK, 0);
        admin.enable();
        let io = self.io(&admin, 1).unwrap();
        (admin, io)
    }
}

/// Goes by the bytes, as transport does.
fn connect(qid: u16, entries: u32) -> ConnectCommand {
    let command = FabricsCommand::Connect {
        recfmt: 0,
        qid: Qid(qid),
        sqsize: QueueSize::from_entries(entries).unwrap(),
        cattr: 0,
        kato_ms: 0,
    };
    ConnectCommand::parse(&command.to_command(CommandId(0))).unwrap()
}

fn data(cntlid: ControllerId, subsystem: &str, host: &str) -> ConnectData {
    ConnectData::new(HOST_ID, cntlid, &nqn(subsystem), &nqn(host))
}

/// An admin queue as a host uses it.
struct Admin {
    controller: AdminController,
    now: Timestamp,
}

impl Admin {
    fn outcome(&mut self, command: &Command, data: &mut Vec<u8>) -> Result<AdminOutcome, Status> {
        let plan = self.controller.prepare(command)?;
        let length = usize::try_from(plan.transfer.bytes()).unwrap();
        if matches!(plan.transfer, Transfer::ToHost(_)) {
            // What lies in the buffer must not reach the host.
            *data = vec![0xee; length];
        }
        assert_eq!(data.len(), length, "{plan:?}");
        Ok(self.controller.execute(self.now, &plan, data))
    }

    fn run_raw(&mut self, command: &Command, mut data: Vec<u8>) -> Result<(u64, Vec<u8>), Status> {
        match self.outcome(command, &mut data)? {
            AdminOutcome::Complete { result, status, bytes } if status.is_success() => {
                data.truncate(usize::try_from(bytes).unwrap());
                Ok((result, data))
            }
            AdminOutcome::Complete { result, status, bytes } => {
                assert_eq!((result, bytes), (0, 0), "a failure carries nothing");
                Err(status)
            }
            AdminOutcome::Hold => panic!("held"),
        }
    }

    fn run(&mut self, command: AdminCommand) -> Result<(u64, Vec<u8>), Status> {
        self.run_raw(&command.to_command(CommandId(9)), Vec::new())
    }

    fn get(&mut self, size: PropertySize, offset: u32) -> Result<u64, Status> {
        let command = FabricsCommand::PropertyGet { size, offset };
        self.run_raw(&command.to_command(CommandId(9)), Vec::new()).map(|(result, _)| result)
    }

    fn set(&mut self, size: PropertySize, offset: u32, value: u64) -> Result<(), Status> {
        let command = FabricsCommand::PropertySet { size, offset, value };
        self.run_raw(&command.to_command(CommandId(9)), Vec::new()).map(|_| ())
    }

    fn set_cc(&mut self, cc: ControllerConfig) {
        self.set(PropertySize::Four, CC_OFFSET, u64::from(cc.0)).unwrap();
    }

    fn csts(&mut self) -> u64 {
        self.get(PropertySize::Four, CSTS_OFFSET).unwrap()
    }

    fn enable(&mut self) {
        self.set_cc(ControllerConfig::enable_nvm());
        assert_eq!(self.csts(), 1);
    }

    fn hold_event_request(&mut self, cid: u16) -> Result<(), Status> {
        let command = AdminCommand::AsyncEventRequest.to_command(CommandId(cid));
        match self.outcome(&command, &mut Vec::new())? {
            AdminOutcome::Hold => Ok(()),
            AdminOutcome::Complete { status, .. } => Err(status),
        }
    }

    fn poll(&mut self) -> Vec<AdminEvent> {
        let mut events = Vec::new();
        self.controller.poll(self.now, &mut events);
        events
    }
}

/// Exactly this status, with Do Not Retry; whether More is set does not matter.
#[track_caller]
fn assert_refused<T: std::fmt::Debug>(got: Result<T, Status>, want: Status) {
    let got = got.unwrap_err();
    assert!(got.same_code(want) && got.dnr(), "got {got}, wanted {want} with DNR");
}

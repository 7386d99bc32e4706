//! The reactor against a mock fabric, a mock disk and a hand-written host.

mod chaos;
mod fair;
mod faults;
mod mock;
mod mock_storage;
mod paths;
mod rooms;
mod shared;
mod sim;
mod stopping;
mod zeroes;

use core::time::Duration;

use lariat_fabric::Timestamp;
use lariat_fabric::verbs::ConnId;
use lariat_wire::nvme::{
    Command, CommandId, Completion, ConnectData, ControllerId, FabricsCommand, HostId, IoCommand,
    Lba, Nqn, Nsid, PropertySize, ProtectionAction, Qid, QueueSize, Sgl,
};
use lariat_wire::rdma_cm::ConnectRequest;

use self::mock::{Ledger, MockConnection, MockFabric, address_of};
use self::mock_storage::{GEOMETRY, MockStorage};
use super::{Reactor, ReactorConfig};
use crate::nvme::{Limits, Namespace, Registry, Subsystem, SubsystemMap};
use crate::storage::BackendId;
use std::sync::Arc;

const NSID: Nsid = Nsid(1);
/// The key under which the host of the tests keeps its Connect data.
const CONNECT_KEY: u32 = 0xc0;

fn limits() -> Limits {
    Limits {
        max_queues: 8,
        max_queue_depth: QueueSize::from_entries(1024).unwrap(),
        mdts_bytes: 64 << 10,
        in_capsule_bytes: 4096,
        max_hosts: 8,
    }
}

fn config() -> ReactorConfig {
    ReactorConfig {
        limits: limits(),
        data_bytes: 1 << 20,
        reserve_bytes: 64 << 10,
        receive_bytes: 16 << 20,
        receive_max_bytes: 16 << 20,
        max_requests: 8192,
        ..ReactorConfig::default()
    }
}

struct Rig {
    reactor: Reactor<MockFabric, MockStorage>,
    now: Timestamp,
    ledger: Ledger,
    cid: u16,
}

fn subsystem_nqn() -> Nqn {
    Nqn::parse("nqn.2026-01.io.lariat:disk").unwrap()
}

impl Rig {
    fn new() -> Self {
        Self::with(config())
    }

    fn with(config: ReactorConfig) -> Self {
        Self::on(config, |_| {})
    }

    /// On a fabric that is prepared first.
    fn on(config: ReactorConfig, prepare: impl FnOnce(&mut MockFabric)) -> Self {
        let namespace = Namespace::new(NSID, BackendId(0), GEOMETRY, [7; 16]);
        let subsystem = Subsystem::builder(subsystem_nqn()).namespace(namespace);
        let map = SubsystemMap::new(config.limits, [subsystem], Vec::new()).unwrap();
        let registry = Registry::new(Arc::new(map), Vec::new());
        let ledger = Ledger::default();
        let mut fabric = MockFabric::new(ledger.clone());
        prepare(&mut fabric);
        let storage = MockStorage::new(ledger.clone());
        let reactor = Reactor::new(fabric, storage, registry, config).unwrap();
        Self { reactor, now: Timestamp::ZERO, ledger, cid: 0x100 }
    }

    fn turn(&mut self) -> bool {
        self.now += Duration::from_micros(10);
        self.reactor.poll(self.now)
    }

    /// Turns until nothing happens any more by itself.
    fn settle(&mut self) {
        let mut quiet = 0;
        for _ in 0..10_000 {
            quiet = if self.turn() { 0 } else { quiet + 1 };
            if quiet == 2 {
                return;
            }
        }
        panic!("the reactor does not come to rest");
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.settle();
    }

    fn fabric(&mut self) -> &mut MockFabric {
        self.reactor.fabric_mut()
    }

    fn storage(&mut self) -> &mut MockStorage {
        self.reactor.storage_mut()
    }

    fn host(&mut self, conn: ConnId) -> &mut MockConnection {
        self.fabric().connection(conn)
    }

    fn is_there(&mut self, conn: ConnId) -> bool {
        self.fabric().connections.contains_key(&conn)
    }

    /// A connection that the target accepted.
    fn dial(&mut self, qid: u16, entries: u32, reads: u8) -> ConnId {
        let size = QueueSize::from_entries(entries).unwrap();
        let request = ConnectRequest::new(Qid(qid), size, ControllerId(0));
        let conn = self.fabric().dial(&request.to_bytes(), reads);
        self.settle();
        assert!(self.host(conn).accepted.is_some());
        conn
    }

    fn next_cid(&mut self) -> CommandId {
        self.cid = self.cid.wrapping_add(1);
        CommandId(self.cid)
    }

    fn send(&mut self, conn: ConnId, command: &Command) {
        self.fabric().capsule(conn, &command.to_bytes());
    }

    fn connect_data(cntlid: ControllerId) -> [u8; 1024] {
        let host = Nqn::parse("nqn.2026-01.io.lariat:host").unwrap();
        *ConnectData::new(HostId([9; 16]), cntlid, &subsystem_nqn(), &host).as_bytes()
    }

    fn connect_command(&mut self, qid: u16, entries: u32) -> Command {
        let connect = FabricsCommand::Connect {
            recfmt: 0,
            qid: Qid(qid),
            sqsize: QueueSize::from_entries(entries).unwrap(),
            cattr: 0,
            kato_ms: 0,
        };
        let sgl = Sgl::Keyed {
            address: address_of(CONNECT_KEY),
            length: 1024,
            key: CONNECT_KEY,
            invalidate: false,
        };
        connect.to_command(self.next_cid()).with_sgl(sgl)
    }

    /// Fabrics Connect by RDMA READ; gives the completion.
    fn connect(
        &mut self,
        conn: ConnId,
        qid: u16,
        entries: u32,
        cntlid: ControllerId,
    ) -> Completion {
        self.host(conn).host.insert(CONNECT_KEY, Self::connect_data(cntlid).to_vec());
        let command = self.connect_command(qid, entries);
        self.send(conn, &command);
        self.settle();
        self.response(conn)
    }

    fn response(&mut self, conn: ConnId) -> Completion {
        self.host(conn).responses.pop_front().expect("a response")
    }

    /// An enabled controller: its admin connection and its identifier.
    fn controller(&mut self) -> (ConnId, ControllerId) {
        let conn = self.dial(0, 32, 16);
        let completion = self.connect(conn, 0, 32, ControllerId::DYNAMIC);
        assert!(completion.status().is_success(), "{}", completion.status());
        let cntlid = ControllerId(u16::try_from(completion.result32() & 0xffff).unwrap());
        // CC: I/O queue entries of 64 and 16 bytes, enabled.
        let set = FabricsCommand::PropertySet {
            size: PropertySize::Four,
            offset: 0x14,
            value: 0x0046_0001,
        };
        let cid = self.next_cid();
        self.send(conn, &set.to_command(cid));
        self.settle();
        assert!(self.response(conn).status().is_success());
        (conn, cntlid)
    }

    /// A connected I/O queue.
    fn queue(&mut self, cntlid: ControllerId, qid: u16, entries: u32, reads: u8) -> ConnId {
        let conn = self.dial(qid, entries, reads);
        let completion = self.connect(conn, qid, entries, cntlid);
        assert!(completion.status().is_success(), "{}", completion.status());
        conn
    }

    /// Memory of the host under a key, and the SGL that names it.
    fn memory(&mut self, conn: ConnId, key: u32, bytes: Vec<u8>) -> Sgl {
        let length = u32::try_from(bytes.len()).unwrap();
        self.host(conn).host.insert(key, bytes);
        Sgl::Keyed { address: address_of(key), length, key, invalidate: false }
    }

    fn read_command(&mut self, start: u64, blocks: u32, sgl: Sgl) -> Command {
        self.read_forced(false, start, blocks, sgl)
    }

    /// A read that may be forced (FUA).
    fn read_forced(&mut self, fua: bool, start: u64, blocks: u32, sgl: Sgl) -> Command {
        let read = IoCommand::Read {
            nsid: NSID,
            slba: Lba(start),
            blocks,
            fua,
            limited_retry: false,
            prinfo: ProtectionAction::NONE,
            access_hints: 0,
        };
        read.to_command(self.next_cid()).unwrap().with_sgl(sgl)
    }

    fn write_command(&mut self, start: u64, blocks: u32, sgl: Sgl) -> Command {
        let write = IoCommand::Write {
            nsid: NSID,
            slba: Lba(start),
            blocks,
            fua: false,
            limited_retry: false,
            prinfo: ProtectionAction::NONE,
            access_hints: 0,
            directive_type: 0,
            directive_specific: 0,
        };
        write.to_command(self.next_cid()).unwrap().with_sgl(sgl)
    }

    /// Everything that was lent is back: for when all connections are gone.
    fn check_nothing_leaked(&self) {
        let resources = self.reactor.resources();
        assert_eq!(self.reactor.connections(), 0);
        assert_eq!(resources.requests, 0);
        assert_eq!(resources.buffer_bytes_free, resources.buffer_bytes);
        assert_eq!(resources.receive_bytes_free, config().receive_bytes as u64);
        assert_eq!((resources.shared_receives, resources.shared_receives_free), (0, 0));
        assert_eq!((resources.waiting_for_buffers, resources.waiting_for_storage), (0, 0));
        assert_eq!(self.ledger.held(), 0);
        assert_eq!(self.reactor.statistics().anomalies, 0);
    }
}

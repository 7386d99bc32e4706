//! A fabric and a host (and in `mock_storage` a storage) that do what the test says, and complain when the reactor breaks
//! a rule: memory used by two at a time, queues overrun, RDMA READs beyond the agreed depth. Here is
//! what the test sees of them; what the reactor sees is in `mock/verbs`.

mod verbs;

use core::net::SocketAddr;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use lariat_fabric::verbs::{
    CmEvent, ConnId, ConnectParams, DeviceLimits, DisconnectReason, ListenerId, PrivateData,
    QpConfig, RecvRequest, RegionId, SendOp, SendRequest, Sge, SharedReceiveId, WcOpcode, WcStatus,
    WorkCompletion,
};
use lariat_fabric::{Memory, Timestamp};
use lariat_wire::nvme::Completion;
use lariat_wire::rocev2::Rkey;

/// Which bytes of which memory somebody holds. Shared by the mock fabric and the mock storage.
#[derive(Clone, Default)]
pub(super) struct Ledger(Rc<RefCell<Vec<(usize, u64, u64)>>>);

impl Ledger {
    pub(super) fn take(&self, memory: &Arc<Memory>, offset: u64, length: u32) {
        let base = memory.address().as_ptr() as usize;
        let (start, end) = (offset, offset + u64::from(length));
        assert!(end <= memory.len() as u64, "outside of the memory");
        let mut held = self.0.borrow_mut();
        for &(other, from, to) in held.iter() {
            assert!(
                other != base || end <= from || to <= start,
                "bytes {start}..{end} are in use as {from}..{to}"
            );
        }
        held.push((base, start, end));
    }

    pub(super) fn give(&self, memory: &Arc<Memory>, offset: u64, length: u32) {
        let entry = (memory.address().as_ptr() as usize, offset, offset + u64::from(length));
        let mut held = self.0.borrow_mut();
        let at = held.iter().position(|&other| other == entry).expect("it was held");
        held.swap_remove(at);
    }

    pub(super) fn held(&self) -> usize {
        self.0.borrow().len()
    }
}

pub(super) struct MockConnection {
    pub(super) qp: Option<QpConfig>,
    pub(super) accepted: Option<ConnectParams>,
    pub(super) rejected: Option<Vec<u8>>,
    pub(super) receives: VecDeque<RecvRequest>,
    /// Posted and not completed, in order.
    pub(super) sends: VecDeque<SendRequest>,
    /// Memory of the host by key.
    pub(super) host: BTreeMap<u32, Vec<u8>>,
    pub(super) responses: VecDeque<Completion>,
    pub(super) invalidated: Vec<u32>,
    /// Sends that may complete before the fabric stops; `None` for no limit.
    pub(super) credit: Option<usize>,
    /// Since when the host says nothing any more, to good-byes neither (set `credit` to 0 with it).
    pub(super) silent_since: Option<Timestamp>,
    pub(super) down: bool,
}

pub(super) struct MockFabric {
    ledger: Ledger,
    regions: Vec<Arc<Memory>>,
    /// A region that is read by many at a time and written by nobody.
    common: Option<RegionId>,
    /// Regions that there can be.
    pub(super) max_regions: usize,
    pub(super) connections: BTreeMap<ConnId, MockConnection>,
    pub(super) shared: BTreeMap<SharedReceiveId, VecDeque<RecvRequest>>,
    pub(super) completions: Vec<WorkCompletion>,
    pub(super) events: Vec<CmEvent>,
    /// What was posted, in order: `"write 4096"`, `"response 3"`.
    pub(super) log: Vec<String>,
    pub(super) limits: DeviceLimits,
    pub(super) fail_posts: bool,
    /// Last byte of the address of whoever dials.
    pub(super) peer: u8,
    /// Whether peers answer when they are accepted.
    pub(super) answer: bool,
    /// Connections that the target began to disconnect.
    pub(super) goodbyes: usize,
    next: u64,
}

/// Where a key's memory starts in the host.
pub(super) fn address_of(key: u32) -> u64 {
    u64::from(key) << 32
}

impl MockFabric {
    pub(super) fn new(ledger: Ledger) -> Self {
        Self {
            ledger,
            regions: Vec::new(),
            common: None,
            max_regions: usize::MAX,
            connections: BTreeMap::new(),
            shared: BTreeMap::new(),
            completions: Vec::new(),
            events: Vec::new(),
            log: Vec::new(),
            limits: DeviceLimits {
                max_queue_depth: 8192,
                max_sge: 2,
                max_initiator_depth: 16,
                max_responder_resources: 16,
                send_with_invalidate: true,
                read_sink_needs_remote_write: false,
                acknowledges: true,
                max_message_bytes: 1 << 30,
                max_shared_receives: 0,
            },
            fail_posts: false,
            peer: 1,
            answer: true,
            goodbyes: 0,
            next: 1,
        }
    }

    fn memory(&self, sge: &Sge) -> Arc<Memory> {
        let at = usize::try_from(sge.region.0).unwrap();
        Arc::clone(&self.regions[at])
    }

    /// The fabric has these bytes from now on.
    fn take(&self, sge: &Sge) {
        if self.common != Some(sge.region) {
            self.ledger.take(&self.memory(sge), sge.offset, sge.length);
        }
    }

    fn give(&self, sge: &Sge) {
        if self.common != Some(sge.region) {
            self.ledger.give(&self.memory(sge), sge.offset, sge.length);
        }
    }

    /// A host asks for a connection, serving `reads` RDMA READs at a time.
    pub(super) fn dial(&mut self, private_data: &[u8], reads: u8) -> ConnId {
        let conn = ConnId(self.next);
        self.next += 1;
        self.connections.insert(
            conn,
            MockConnection {
                qp: None,
                accepted: None,
                rejected: None,
                receives: VecDeque::new(),
                sends: VecDeque::new(),
                host: BTreeMap::new(),
                responses: VecDeque::new(),
                invalidated: Vec::new(),
                credit: None,
                silent_since: None,
                down: false,
            },
        );
        let local = SocketAddr::from(([127, 0, 0, 1], 4420));
        let peer = SocketAddr::from(([127, 0, 1, self.peer], 49_152));
        self.events.push(CmEvent::ConnectRequest {
            conn,
            listener: ListenerId(0),
            peer,
            local,
            responder_resources: reads,
            initiator_depth: 0,
            private_data: PrivateData::new(private_data).unwrap(),
        });
        conn
    }

    pub(super) fn connection(&mut self, conn: ConnId) -> &mut MockConnection {
        self.connections.get_mut(&conn).expect("the connection is there")
    }

    /// The host sends a capsule.
    pub(super) fn capsule(&mut self, conn: ConnId, bytes: &[u8]) {
        assert!(self.try_capsule(conn, bytes), "a receive for all that may be sent");
    }

    /// The host sends a capsule; false if it is told to try again.
    pub(super) fn try_capsule(&mut self, conn: ConnId, bytes: &[u8]) -> bool {
        let connection = self.connections.get_mut(&conn).expect("the connection is there");
        let shared = connection.qp.and_then(|qp| qp.shared_receive);
        let queue = match shared {
            Some(shared) => self.shared.get_mut(&shared).expect("as long as it is used"),
            None => &mut connection.receives,
        };
        let Some(receive) = queue.pop_front() else { return false };
        let sge = receive.sges.iter().next().unwrap();
        let memory = self.memory(&sge);
        self.give(&sge);
        let fits = bytes.len() <= sge.length as usize;
        if fits {
            memory.write_at(sge.offset, bytes).unwrap();
        }
        self.completions.push(WorkCompletion {
            conn,
            wr_id: receive.wr_id,
            status: if fits { WcStatus::Success } else { WcStatus::LocalLength },
            opcode: WcOpcode::Recv,
            byte_len: u32::try_from(bytes.len()).unwrap(),
            invalidated: None,
        });
        true
    }

    /// Executes what was posted, as far as the connection's credit goes.
    pub(super) fn execute(&mut self, conn: ConnId) {
        loop {
            let connection = self.connection(conn);
            match &mut connection.credit {
                _ if connection.down => return,
                Some(0) => return,
                Some(credit) if !connection.sends.is_empty() => *credit -= 1,
                _ => {}
            }
            let Some(send) = connection.sends.pop_front() else { return };
            self.execute_one(conn, &send);
        }
    }

    fn execute_one(&mut self, conn: ConnId, send: &SendRequest) {
        let Some(sge) = send.sges.iter().next() else { return self.answer_probe(conn, send) };
        let memory = self.memory(&sge);
        let mut bytes = vec![0; sge.length as usize];
        memory.read_at(sge.offset, &mut bytes).unwrap();
        let connection = self.connections.get_mut(&conn).unwrap();
        let mut status = WcStatus::Success;
        let opcode = match send.op {
            SendOp::Send | SendOp::SendWithInvalidate { .. } => {
                if let SendOp::SendWithInvalidate { rkey } = send.op {
                    connection.invalidated.push(rkey.0);
                }
                let completion = Completion::from_bytes(&bytes.try_into().unwrap());
                connection.responses.push_back(completion);
                WcOpcode::Send
            }
            SendOp::Write { remote_address, rkey } => {
                match remote(connection, rkey, remote_address, sge.length) {
                    Some(place) => place.copy_from_slice(&bytes),
                    None => status = WcStatus::RemoteAccess,
                }
                WcOpcode::Write
            }
            SendOp::Read { remote_address, rkey } => {
                match remote(connection, rkey, remote_address, sge.length) {
                    Some(place) => memory.write_at(sge.offset, place).unwrap(),
                    None => status = WcStatus::RemoteAccess,
                }
                WcOpcode::Read
            }
        };
        self.give(&sge);
        if send.signaled || status != WcStatus::Success {
            self.completions.push(WorkCompletion {
                conn,
                wr_id: send.wr_id,
                status,
                opcode,
                byte_len: sge.length,
                invalidated: None,
            });
        }
        if status != WcStatus::Success {
            self.cut(conn, DisconnectReason::Error);
        }
    }

    /// An RDMA WRITE of nothing: no memory is looked at.
    fn answer_probe(&mut self, conn: ConnId, send: &SendRequest) {
        assert!(send.signaled && matches!(send.op, SendOp::Write { .. }));
        self.completions.push(WorkCompletion {
            conn,
            wr_id: send.wr_id,
            status: WcStatus::Success,
            opcode: WcOpcode::Write,
            byte_len: 0,
            invalidated: None,
        });
    }

    /// The connection breaks: everything posted is flushed, and the event comes.
    pub(super) fn cut(&mut self, conn: ConnId, reason: DisconnectReason) {
        let Some(connection) = self.connections.get_mut(&conn) else { return };
        if connection.down {
            return;
        }
        connection.down = true;
        let sends: Vec<_> = connection.sends.drain(..).collect();
        let receives: Vec<_> = connection.receives.drain(..).collect();
        let flushed = |wr_id| WorkCompletion {
            conn,
            wr_id,
            status: WcStatus::Flushed,
            opcode: WcOpcode::Send,
            byte_len: 0,
            invalidated: None,
        };
        for send in sends {
            for sge in send.sges.iter() {
                self.give(&sge);
            }
            self.completions.push(flushed(send.wr_id));
        }
        for receive in receives {
            for sge in receive.sges.iter() {
                self.give(&sge);
            }
            self.completions.push(flushed(receive.wr_id));
        }
        self.events.push(CmEvent::Disconnected { conn, reason });
    }
}

fn remote(
    connection: &mut MockConnection,
    rkey: Rkey,
    address: u64,
    length: u32,
) -> Option<&mut [u8]> {
    let start = usize::try_from(address.checked_sub(address_of(rkey.0))?).ok()?;
    connection.host.get_mut(&rkey.0)?.get_mut(start..start + length as usize)
}

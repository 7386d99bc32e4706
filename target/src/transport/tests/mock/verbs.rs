//! The verbs of the mock fabric, as the reactor calls them.

use core::net::SocketAddr;
use core::time::Duration;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use lariat_fabric::verbs::{
    Access, CmEvent, ConnId, ConnectParams, DeviceLimits, DisconnectReason, DomainId, ListenerId,
    PrivateData, QpConfig, RecvRequest, RegionId, SendOp, SendRequest, SharedReceiveId, WcOpcode,
    WcStatus, WorkCompletion,
};
use lariat_fabric::{
    Armed, CmError, Fabric, FabricCounters, ListenError, Memory, PostError, PostErrorKind, QpError,
    RegisterError, ResolveError, StaleHandle, Timestamp,
};
use lariat_wire::rocev2::Rkey;

use super::{MockConnection, MockFabric};

const STALE: StaleHandle = StaleHandle { what: "connection" };

impl Fabric for MockFabric {
    fn name(&self) -> &'static str {
        "mock"
    }

    fn open_domain(&mut self) -> Result<DomainId, RegisterError> {
        Ok(DomainId(1))
    }

    fn register(
        &mut self,
        _domain: DomainId,
        memory: Arc<Memory>,
        access: Access,
    ) -> Result<RegionId, RegisterError> {
        if self.regions.len() >= self.max_regions {
            let limit = format!("{} regions", self.max_regions);
            return Err(RegisterError::Limit { bytes: memory.len(), limit, remedy: "none" });
        }
        // The fabric has it alone.
        let common = access == Access::LOCAL_READ && Arc::strong_count(&memory) == 1;
        self.regions.push(memory);
        let id = RegionId(self.regions.len() as u64 - 1);
        if common {
            self.common = Some(id);
        }
        Ok(id)
    }

    fn deregister(&mut self, _region: RegionId) -> Result<(), StaleHandle> {
        Err(STALE)
    }

    fn rkey(&self, _conn: ConnId, _region: RegionId) -> Result<Rkey, StaleHandle> {
        Err(STALE)
    }

    fn listen(&mut self, _address: SocketAddr) -> Result<ListenerId, ListenError> {
        Ok(ListenerId(0))
    }

    fn close_listener(&mut self, _listener: ListenerId) {}

    fn resolve(
        &mut self,
        _now: Timestamp,
        remote: SocketAddr,
        _timeout: Duration,
    ) -> Result<ConnId, ResolveError> {
        Err(ResolveError::NoRoute { remote, reason: "the mock only accepts".into() })
    }

    fn limits(&self, _conn: ConnId) -> Result<DeviceLimits, StaleHandle> {
        Ok(self.limits)
    }

    fn create_qp(&mut self, conn: ConnId, config: &QpConfig) -> Result<(), QpError> {
        self.connections.get_mut(&conn).ok_or(STALE)?.qp = Some(*config);
        Ok(())
    }

    fn connect(
        &mut self,
        _now: Timestamp,
        _conn: ConnId,
        _params: &ConnectParams,
        _timeout: Duration,
    ) -> Result<(), CmError> {
        Err(STALE.into())
    }

    fn accept(
        &mut self,
        _now: Timestamp,
        conn: ConnId,
        params: &ConnectParams,
    ) -> Result<(), CmError> {
        self.connections.get_mut(&conn).ok_or(STALE)?.accepted = Some(*params);
        if !self.answer {
            return Ok(());
        }
        self.events.push(CmEvent::Established {
            conn,
            initiator_depth: params.initiator_depth,
            responder_resources: params.responder_resources,
            private_data: PrivateData::EMPTY,
        });
        Ok(())
    }

    fn reject(
        &mut self,
        _now: Timestamp,
        conn: ConnId,
        private_data: &[u8],
    ) -> Result<(), CmError> {
        let connection = self.connections.get_mut(&conn).ok_or(STALE)?;
        assert!(connection.qp.is_none(), "nothing is left to free");
        connection.rejected = Some(private_data.to_vec());
        Ok(())
    }

    fn disconnect(&mut self, _now: Timestamp, conn: ConnId) -> Result<(), CmError> {
        if self.connections.get(&conn).is_none_or(|connection| connection.down) {
            return Err(STALE.into());
        }
        self.cut(conn, DisconnectReason::Local);
        self.goodbyes += 1;
        if self.connections.get(&conn).is_some_and(|there| there.silent_since.is_some()) {
            self.events.pop();
        }
        Ok(())
    }

    fn destroy(&mut self, _now: Timestamp, conn: ConnId) {
        if self.connections.get(&conn).is_none_or(|connection| connection.rejected.is_some()) {
            return;
        }
        self.cut(conn, DisconnectReason::Local);
        let qp = self.connections.get(&conn).and_then(|connection| connection.qp);
        let shares = qp.is_some_and(|qp| qp.shared_receive.is_some());
        self.completions.retain_mut(|completion| {
            let of_another = completion.conn != conn;
            if !of_another {
                completion.status = WcStatus::Flushed;
            }
            of_another || shares && completion.opcode == WcOpcode::Recv
        });
        self.events.retain(
            |event| !matches!(event, CmEvent::Disconnected { conn: other, .. } if *other == conn),
        );
        self.connections.remove(&conn);
    }

    fn post_recv(&mut self, conn: ConnId, requests: &[RecvRequest]) -> Result<(), PostError> {
        for request in requests {
            for sge in request.sges.iter() {
                self.take(&sge);
            }
        }
        let connection = self.connections.get_mut(&conn).expect("posted to a connection");
        if connection.down {
            // Refused as a whole: nothing of it is held.
            for sge in requests.iter().flat_map(|request| request.sges.iter()) {
                self.give(&sge);
            }
            return Err(PostError { index: 0, kind: PostErrorKind::WrongState });
        }
        connection.receives.extend(requests);
        let most = connection.qp.expect("has a queue pair").max_recv as usize;
        assert!(connection.receives.len() <= most, "more receives than the queue pair takes");
        Ok(())
    }

    fn create_shared_receive(
        &mut self,
        _conn: ConnId,
        _domain: DomainId,
        entries: u32,
    ) -> Result<SharedReceiveId, QpError> {
        assert!(entries <= self.limits.max_shared_receives);
        self.next += 1;
        let id = SharedReceiveId(self.next);
        self.shared.insert(id, VecDeque::with_capacity(entries as usize));
        Ok(id)
    }

    fn can_share(&self, conn: ConnId, shared: SharedReceiveId) -> bool {
        self.connections.contains_key(&conn) && self.shared.contains_key(&shared)
    }

    fn post_shared_receive(
        &mut self,
        shared: SharedReceiveId,
        requests: &[RecvRequest],
    ) -> Result<(), PostError> {
        for sge in requests.iter().flat_map(|request| request.sges.iter()) {
            self.take(&sge);
        }
        let none = PostError { index: 0, kind: PostErrorKind::NoSharedReceive };
        self.shared.get_mut(&shared).ok_or(none)?.extend(requests);
        Ok(())
    }

    fn destroy_shared_receive(&mut self, shared: SharedReceiveId) -> bool {
        let uses = |connection: &MockConnection| {
            connection.qp.is_some_and(|qp| qp.shared_receive == Some(shared))
        };
        if self.connections.values().any(uses) {
            return false;
        }
        for receive in self.shared.remove(&shared).unwrap_or_default() {
            for sge in receive.sges.iter() {
                self.give(&sge);
            }
        }
        true
    }

    fn post_send(&mut self, conn: ConnId, requests: &[SendRequest]) -> Result<(), PostError> {
        let down = self.connections.get(&conn).expect("posted to a connection").down;
        if down || self.fail_posts {
            return Err(PostError { index: 0, kind: PostErrorKind::WrongState });
        }
        for request in requests {
            for sge in request.sges.iter() {
                self.take(&sge);
            }
            self.log.push(match request.op {
                SendOp::Send | SendOp::SendWithInvalidate { .. } => "response".to_owned(),
                SendOp::Write { .. } => format!("write {}", request.sges.total_length()),
                SendOp::Read { .. } => format!("read {}", request.sges.total_length()),
            });
        }
        let connection = self.connection(conn);
        connection.sends.extend(requests);
        let reads = |send: &&SendRequest| matches!(send.op, SendOp::Read { .. });
        let reads = connection.sends.iter().filter(reads).count();
        let agreed = connection.accepted.expect("accepted").initiator_depth;
        assert!(reads <= usize::from(agreed), "more RDMA READs than agreed");
        let most = connection.qp.expect("has a queue pair").max_send as usize;
        assert!(connection.sends.len() <= most, "more sends than the queue pair takes");
        Ok(())
    }

    fn flush(&mut self, _now: Timestamp) {
        let all: Vec<_> = self.connections.keys().copied().collect();
        for conn in all {
            self.execute(conn);
        }
    }

    fn poll(
        &mut self,
        _now: Timestamp,
        budget: usize,
        completions: &mut Vec<WorkCompletion>,
        events: &mut Vec<CmEvent>,
    ) {
        let some = budget.min(self.completions.len());
        completions.extend(self.completions.drain(..some));
        if self.completions.is_empty() {
            events.append(&mut self.events);
        }
    }

    fn arm(&mut self, _now: Timestamp) -> Armed {
        if self.completions.is_empty() && self.events.is_empty() {
            Armed::Until(Timestamp::NEVER)
        } else {
            Armed::Ready
        }
    }

    fn wait_fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn silent_since(&self, conn: ConnId) -> Option<Timestamp> {
        let connection = self.connections.get(&conn)?;
        connection.silent_since.filter(|_| !connection.sends.is_empty())
    }

    fn counters(&self) -> FabricCounters {
        FabricCounters::default()
    }
}

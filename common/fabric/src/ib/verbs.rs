//! What users call: [`Fabric`] for [`IbFabric`]. Calls `fabric` and the wrappers.

use core::net::SocketAddr;
use core::time::Duration;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use lariat_roce::time::Timestamp;
use lariat_roce::verbs::{
    Access, CmEvent, ConnId, ConnectParams, DeviceLimits, DisconnectReason, DomainId, ListenerId,
    MAX_SGE, PostError, PostErrorKind, QpConfig, RecvRequest, RegionId, SendOp, SendRequest,
    SgeList, SharedReceiveId, WcOpcode, WcStatus, WorkCompletion,
};
use lariat_wire::rocev2::Rkey;

use super::cm::{CmId, Offer};
use super::conn::{Conn, State, handle, parts};
use super::cq;
use super::events::RESOLVE_INTERVAL;
use super::fabric::{IbFabric, stale};
use super::group::Refusal;
use super::inventory;
use super::memory::Regions;
use super::qp::{Awaited, Prepared};
use super::ring::Entry;
use crate::error::{CmError, ListenError, QpError, RegisterError, ResolveError, StaleHandle};
use crate::fabric::{Armed, Fabric, FabricCounters};
use crate::memory::Memory;

/// rdma_cm puts 36 bytes of its own before the private data of a REQ.
const MAX_CONNECT_DATA: usize = 56;
const MAX_ACCEPT_DATA: usize = 196;
const MAX_REJECT_DATA: usize = 148;
/// Looking for connection events is a system call: not in every poll. More often while connections are
/// set up.
pub(super) const CM_INTERVAL: Duration = Duration::from_millis(1);
const CM_INTERVAL_STARTING: Duration = Duration::from_micros(50);
/// So many sleeps that completions ended may pass without a look.
const MAX_ARMS: u8 = 16;
/// How long the end of a SEND may lie in its completion queue while the thread sleeps.
const SEND_LOOK: Duration = Duration::from_millis(1);
/// As rarely as that while the thread does not sleep: a device says seldom something unasked.
const NEWS_INTERVAL: Duration = Duration::from_millis(100);

/// The memory of a request, for the device.
#[inline]
pub(super) fn fill(
    request: &mut Prepared,
    regions: &Regions,
    (domain, device): (DomainId, usize),
    sges: &SgeList,
    written: bool,
) -> Result<(), PostErrorKind> {
    for sge in sges.iter() {
        let place = regions.place(domain, device, sge, written);
        let place = place.ok_or(PostErrorKind::BadMemory)?;
        request.add(place.address, sge.length, place.lkey);
    }
    Ok(())
}

fn flushed(conn: ConnId, wr_id: u64, opcode: WcOpcode) -> WorkCompletion {
    let (status, byte_len) = (WcStatus::Flushed, 0);
    WorkCompletion { conn, wr_id, status, opcode, byte_len, invalidated: None }
}

fn check_length(private_data: &[u8], limit: usize) -> Result<(), CmError> {
    let given = private_data.len();
    if given > limit { Err(CmError::PrivateData { given, limit }) } else { Ok(()) }
}

impl Fabric for IbFabric {
    fn name(&self) -> &'static str {
        "ib"
    }

    fn open_domain(&mut self) -> Result<DomainId, RegisterError> {
        self.regions.open_domain()
    }

    fn register(
        &mut self,
        domain: DomainId,
        memory: Arc<Memory>,
        access: Access,
    ) -> Result<RegionId, RegisterError> {
        self.regions.register(domain, memory, access, &self.devices)
    }

    fn deregister(&mut self, region: RegionId) -> Result<(), StaleHandle> {
        self.regions.deregister(region)
    }

    fn rkey(&self, conn: ConnId, region: RegionId) -> Result<Rkey, StaleHandle> {
        let conn = self.conn(conn)?;
        let (domain, device) = conn.domain.zip(conn.device).ok_or(stale())?;
        self.regions.rkey(domain, device, region)
    }

    fn listen(&mut self, address: SocketAddr) -> Result<ListenerId, ListenError> {
        self.member.listen(address).map_err(|refusal| match refusal {
            Refusal::AlreadyOurs => {
                ListenError::InUse { address, holder: "this process itself".to_owned() }
            }
            Refusal::Io(error) => match error.raw_os_error() {
                Some(libc::EADDRINUSE) => {
                    let holder = "another process or the kernel's target has this rdma_cm port \
                                  (`rdma resource show cm_id` tells which)";
                    ListenError::InUse { address, holder: holder.to_owned() }
                }
                Some(libc::ENODEV | libc::EADDRNOTAVAIL) => {
                    let source = format!("no RDMA device has it: {}", inventory::describe());
                    ListenError::Io { address, source: io::Error::other(source) }
                }
                _ => ListenError::Io { address, source: error },
            },
        })?;
        let number = u32::try_from(self.listeners.len());
        let prepared = number.map_err(io::Error::other).and_then(|number| {
            self.prepare(address)?;
            Ok(ListenerId(number))
        });
        match prepared {
            Ok(number) => {
                self.listeners.push(Some(address));
                Ok(number)
            }
            Err(source) => {
                self.member.leave(address);
                Err(ListenError::Io { address, source })
            }
        }
    }

    fn close_listener(&mut self, listener: ListenerId) {
        let place = self.listeners.get_mut(listener.0 as usize);
        if let Some(address) = place.and_then(Option::take) {
            self.member.leave(address);
        }
    }

    fn resolve(
        &mut self,
        now: Timestamp,
        remote: SocketAddr,
        timeout: Duration,
    ) -> Result<ConnId, ResolveError> {
        let mut id = CmId::new(&self.member.channel)
            .map_err(|source| ResolveError::Io { remote, source })?;
        // Which error it is where no device can reach the peer differs between drivers.
        id.resolve_address(remote, timeout.min(RESOLVE_INTERVAL)).map_err(|source| {
            let reason = format!("{source}; {}", inventory::describe());
            ResolveError::NoRoute { remote, reason }
        })?;
        self.next_cm_look = Timestamp::ZERO;
        self.insert(id, State::Resolving { remote, deadline: now + timeout })
            .map_err(|source| ResolveError::Io { remote, source })
    }

    fn limits(&self, conn: ConnId) -> Result<DeviceLimits, StaleHandle> {
        let conn = self.conn(conn)?;
        let device = conn.device.and_then(|place| self.device(place)).ok_or(stale())?;
        Ok(device.limits(conn.id.port(), self.config.remote_invalidate))
    }

    fn create_qp(&mut self, conn: ConnId, config: &QpConfig) -> Result<(), QpError> {
        let slot = self.slot_of(conn)?;
        if !self.regions.has_domain(config.domain) {
            return Err(StaleHandle { what: "protection domain" }.into());
        }
        self.make_qp(slot, config)
    }

    fn connect(
        &mut self,
        now: Timestamp,
        conn: ConnId,
        params: &ConnectParams,
        timeout: Duration,
    ) -> Result<(), CmError> {
        let limits = self.limits(conn)?;
        let (slot, conn) = self.conn_mut(conn)?;
        check_length(params.private_data.as_bytes(), MAX_CONNECT_DATA)?;
        if conn.state != State::Resolved || conn.qp.is_none() {
            return Err(StaleHandle { what: "resolved connection with a queue pair" }.into());
        }
        let asked = (
            params.initiator_depth.min(limits.max_initiator_depth),
            params.responder_resources.min(limits.max_responder_resources),
        );
        let offer = Offer::new(params, asked);
        let result = conn.id.connect(&offer);
        conn.state = State::Connecting { asked, since: now, deadline: now + timeout };
        match result {
            Ok(()) => self.connecting.push(slot),
            // Soft-iWARP waits for TCP's connection within the call.
            Err(error) => match error.raw_os_error() {
                Some(
                    errno @ (libc::ECONNREFUSED
                    | libc::ECONNRESET
                    | libc::ETIMEDOUT
                    | libc::EHOSTUNREACH
                    | libc::ENETUNREACH),
                ) => self.fail(now, slot, errno),
                _ => {
                    conn.state = State::Resolved;
                    return Err(CmError::Io(error));
                }
            },
        }
        Ok(())
    }

    fn accept(
        &mut self,
        _now: Timestamp,
        conn: ConnId,
        params: &ConnectParams,
    ) -> Result<(), CmError> {
        let limits = self.limits(conn)?;
        let (_, conn) = self.conn_mut(conn)?;
        check_length(params.private_data.as_bytes(), MAX_ACCEPT_DATA)?;
        let (State::Requested { offer }, true) = (conn.state, conn.qp.is_some()) else {
            return Err(StaleHandle { what: "connection request with a queue pair" }.into());
        };
        let agreed = (
            params.initiator_depth.min(offer.0).min(limits.max_initiator_depth),
            params.responder_resources.min(offer.1).min(limits.max_responder_resources),
        );
        let offer = Offer::new(params, agreed);
        conn.id.accept(&offer).map_err(CmError::Io)?;
        conn.state = State::Accepting { agreed };
        Ok(())
    }

    fn reject(&mut self, now: Timestamp, conn: ConnId, private_data: &[u8]) -> Result<(), CmError> {
        let (_, found) = self.conn_mut(conn)?;
        check_length(private_data, MAX_REJECT_DATA)?;
        if !matches!(found.state, State::Requested { .. }) {
            return Err(StaleHandle { what: "connection request" }.into());
        }
        let result = found.id.reject(private_data).map_err(CmError::Io);
        self.destroy(now, conn);
        result
    }

    fn disconnect(&mut self, now: Timestamp, conn: ConnId) -> Result<(), CmError> {
        let slot = self.slot_of(conn)?;
        self.close(now, slot, DisconnectReason::Local);
        Ok(())
    }

    fn destroy(&mut self, _now: Timestamp, conn: ConnId) {
        let Ok((slot, found)) = self.conn_mut(conn) else { return };
        if found.is_up() {
            let _ = found.id.disconnect();
        }
        let shares = found.qp.as_ref().is_some_and(|qp| qp.shared.is_some());
        self.drop_qp(slot);
        if let Some(found) = self.conns.try_remove(slot) {
            self.by_key.remove(&found.id.key());
        }
        self.backlog.retain_mut(|completion| {
            if completion.conn != conn {
                return true;
            }
            // A receive of a shared queue comes back all the same.
            *completion = flushed(conn, completion.wr_id, completion.opcode);
            shares && completion.opcode == WcOpcode::Recv
        });
        self.outbox.retain(|event| super::events::conn_of(event) != conn);
    }

    fn post_recv(&mut self, conn: ConnId, requests: &[RecvRequest]) -> Result<(), PostError> {
        let none = PostError { index: 0, kind: PostErrorKind::NoQueuePair };
        let (slot, _) = parts(conn);
        self.slot_of(conn).map_err(|_| none)?;
        let Self { conns, regions, chain, backlog, .. } = self;
        let found = conns.get_mut(slot).ok_or(none)?;
        if matches!(found.state, State::Closing { .. } | State::Dead) {
            let ids = requests.iter().map(|request| request.wr_id);
            backlog.extend(ids.map(|wr_id| flushed(conn, wr_id, WcOpcode::Recv)));
            return Ok(());
        }
        let (device, domain) = found.device.zip(found.domain).ok_or(none)?;
        let qp = found.qp.as_mut().ok_or(none)?;
        if qp.shared.is_some() {
            return Err(PostError { index: 0, kind: PostErrorKind::WrongState });
        }
        chain.prepared.clear();
        let mut wrong = None;
        for (index, request) in requests.iter().enumerate() {
            let mut prepared = Prepared::receive();
            match fill(&mut prepared, regions, (domain, device), &request.sges, true) {
                Ok(()) => chain.prepared.push(prepared),
                Err(kind) => {
                    wrong = Some(PostError { index, kind });
                    break;
                }
            }
        }
        let entries = requests.iter().map(|request| Entry {
            wr_id: request.wr_id,
            opcode: WcOpcode::Recv,
            signaled: true,
            length: 0,
        });
        qp.post_receives(chain, entries).map_err(|(index, kind)| PostError { index, kind })?;
        wrong.map_or(Ok(()), Err)
    }

    fn create_shared_receive(
        &mut self,
        conn: ConnId,
        domain: DomainId,
        entries: u32,
    ) -> Result<SharedReceiveId, QpError> {
        self.make_shared(conn, domain, entries)
    }

    fn can_share(&self, conn: ConnId, shared: SharedReceiveId) -> bool {
        let device = self.conn(conn).ok().and_then(|conn| conn.device);
        device.is_some() && self.shared.find(shared).map(|srq| srq.device) == device
    }

    fn post_shared_receive(
        &mut self,
        shared: SharedReceiveId,
        requests: &[RecvRequest],
    ) -> Result<(), PostError> {
        self.post_shared(shared, requests)
    }

    fn destroy_shared_receive(&mut self, shared: SharedReceiveId) -> bool {
        self.drop_shared(shared)
    }

    fn post_send(&mut self, conn: ConnId, requests: &[SendRequest]) -> Result<(), PostError> {
        let none = PostError { index: 0, kind: PostErrorKind::NoQueuePair };
        let (slot, _) = parts(conn);
        self.slot_of(conn).map_err(|_| none)?;
        let Self { conns, regions, devices, backlog, ready, config, .. } = self;
        let found = conns.get_mut(slot).ok_or(none)?;
        let (place, domain) = found.device.zip(found.domain).ok_or(none)?;
        let abilities = devices.get(place).and_then(Option::as_ref).ok_or(none)?.abilities;
        match found.state {
            State::Accepting { .. } | State::Established => {}
            State::Closing { .. } | State::Dead => {
                for request in requests {
                    let (_, opcode) = Prepared::send(request.op);
                    backlog.push(flushed(conn, request.wr_id, opcode));
                }
                return Ok(());
            }
            _ => return Err(PostError { index: 0, kind: PostErrorKind::WrongState }),
        }
        let qp = found.qp.as_mut().ok_or(none)?;
        let mut post = |request: &SendRequest| {
            let length = u32::try_from(request.sges.total_length());
            let length = length.map_err(|_| PostErrorKind::TooLong)?;
            if length > found.max_message_bytes {
                return Err(PostErrorKind::TooLong);
            }
            let (mut prepared, opcode) = Prepared::send(request.op);
            let written = opcode == WcOpcode::Read;
            fill(&mut prepared, regions, (domain, place), &request.sges, written)?;
            let most = if written { abilities.max_sge_read } else { abilities.max_sge };
            let pieces = u32::try_from(prepared.count).unwrap_or(u32::MAX);
            // Not every driver says what it can read into.
            if most != 0 && (most as usize) < MAX_SGE && pieces > most {
                return Err(PostErrorKind::Device(libc::EINVAL));
            }
            let invalidates = matches!(request.op, SendOp::SendWithInvalidate { .. });
            if invalidates && !(abilities.send_with_invalidate && config.remote_invalidate) {
                return Err(PostErrorKind::Device(libc::EOPNOTSUPP));
            }
            let (wr_id, signaled) = (request.wr_id, request.signaled);
            qp.queue_send(Entry { wr_id, opcode, signaled, length }, prepared)
        };
        let mut result = Ok(());
        for (index, request) in requests.iter().enumerate() {
            if let Err(kind) = post(request) {
                result = Err(PostError { index, kind });
                break;
            }
        }
        if !found.listed && qp.has_pending() {
            found.listed = true;
            ready.push(slot);
        }
        result
    }

    fn flush(&mut self, _now: Timestamp) {
        let Self { conns, ready, chain, broken, counters, .. } = self;
        for slot in ready.drain(..) {
            let Some(conn) = conns.get_mut(slot) else { continue };
            conn.listed = false;
            if matches!(conn.state, State::Closing { .. } | State::Dead) {
                continue;
            }
            let Some(qp) = conn.qp.as_mut() else { continue };
            counters.send_calls += u64::from(qp.has_pending());
            if let Err(error) = qp.flush(chain) {
                tracing::warn!(%error, "the device refuses a send request");
                conn.note = Some(format!("the device refused a send request: {error}"));
                broken.push((handle(slot, conn.generation), DisconnectReason::Error));
            }
        }
    }

    fn poll(
        &mut self,
        now: Timestamp,
        budget: usize,
        completions: &mut Vec<WorkCompletion>,
        events: &mut Vec<CmEvent>,
    ) {
        completions.append(&mut self.backlog);
        self.take_completions(budget, completions);
        // A sleep that no completion explains ended by something else. (Events that come with
        // completions end the next sleep at once.)
        let woken = self.armed_at.take_if(|at| now > *at).is_some();
        let unexplained = woken && completions.is_empty() && self.is_readable();
        if unexplained {
            for device in self.devices.iter_mut().flatten() {
                device.send_cqs.suspect();
                device.receive_cqs.suspect();
            }
        }
        if unexplained || now >= self.next_cm_look {
            self.arms = 0;
            self.take_events(now);
            let starting = self.conns.iter().any(|(_, conn)| conn.is_starting());
            self.next_cm_look = now + if starting { CM_INTERVAL_STARTING } else { CM_INTERVAL };
        }
        if unexplained || now >= self.next_news_look {
            self.next_news_look = now + NEWS_INTERVAL;
            self.take_news();
        }
        if self.member.lacks_listeners() && now >= self.next_revival {
            self.revive_listeners(now);
        }
        while let Some((conn, reason)) = self.broken.pop() {
            if let Ok(slot) = self.slot_of(conn)
                && self.conns.get(slot).is_some_and(Conn::is_up)
            {
                self.close(now, slot, reason);
            }
        }
        if !self.connecting.is_empty() {
            self.give_up(now);
        }
        if !self.closing.is_empty() {
            self.finish_closing(now);
        }
        completions.append(&mut self.backlog);
        events.append(&mut self.outbox);
    }

    fn arm(&mut self, now: Timestamp) -> Armed {
        self.flush(now);
        let mut awaited = Awaited::default();
        for (_, conn) in &self.conns {
            let one = conn.awaited();
            awaited.sends |= one.sends;
            awaited.others |= one.others;
        }
        if awaited.others > 0 || awaited.sends == 0 {
            self.send_look = None;
        } else if self.send_look.is_none() {
            self.send_look = Some(now + SEND_LOOK);
        }
        let overdue = self.send_look.is_some_and(|at| now >= at);
        for device in self.devices.iter_mut().flatten() {
            device.arm(awaited.others > 0 || overdue);
        }
        // What came before the queues were armed wakes nobody.
        let mut backlog = core::mem::take(&mut self.backlog);
        self.take_completions(cq::BATCH, &mut backlog);
        self.backlog.append(&mut backlog);
        // Connection events and news that are there end the sleep at once.
        self.armed_at = Some(now);
        self.arms = self.arms.saturating_add(1);
        if self.arms < MAX_ARMS {
            self.next_cm_look = self.next_cm_look.max(now + CM_INTERVAL);
        }
        let ready = !self.backlog.is_empty() || !self.outbox.is_empty() || !self.broken.is_empty();
        let mut until = self.earliest_deadline();
        if self.member.lacks_listeners() {
            until = until.min(self.next_revival);
        }
        if let Some(look) = self.send_look.filter(|_| !overdue) {
            until = until.min(look);
        }
        if ready || until <= now { Armed::Ready } else { Armed::Until(until) }
    }

    fn wait_fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.epoll.0.as_fd()]
    }

    fn diagnose(&self, conn: ConnId) -> Option<String> {
        self.conn(conn).ok()?.note.clone()
    }

    fn counters(&self) -> FabricCounters {
        self.counters
    }
}

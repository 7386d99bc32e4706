//! [`IbFabric`]: the verbs of RDMA devices for one thread. Owns what the wrappers wrap, in the order
//! in which it must be destroyed; reactors and I/O queues call it through [`Fabric`].

use core::net::SocketAddr;
use core::time::Duration;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use lariat_roce::time::Timestamp;
use lariat_roce::verbs::{
    Access, CmEvent, ConnId, ConnectParams, DeviceLimits, DisconnectReason, DomainId, ListenerId,
    MAX_SGE, PostError, PostErrorKind, QpConfig, RecvRequest, RegionId, SendOp, SendRequest,
    SgeList, WcOpcode, WcStatus, WorkCompletion,
};
use lariat_wire::rocev2::Rkey;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use rdma_sys::{ibv_qp_cap, ibv_qp_init_attr, ibv_qp_type, ibv_wc};
use slab::Slab;

use super::IbConfig;
use super::cm::{CmId, Event, IdKey, Offer};
use super::conn::{Conn, State, handle, parts};
use super::cq;
use super::device::Device;
use super::group::{Member, Refusal};
use super::inventory;
use super::memory::Regions;
use super::qp::{Chain, Entry, Prepared, QueuePair, Sizes, Tag};
use crate::error::{CmError, ListenError, QpError, RegisterError, ResolveError, StaleHandle};
use crate::fabric::{Armed, Fabric, FabricCounters};
use crate::memory::Memory;

/// Slots have 16 bits.
pub(super) const MAX_CONNECTIONS: usize = 1 << 16;
/// rdma_cm puts 36 bytes of its own before the private data of a REQ.
const MAX_CONNECT_DATA: usize = 56;
const MAX_ACCEPT_DATA: usize = 196;
const MAX_REJECT_DATA: usize = 148;
/// Looking for connection events is a system call: not in every poll.
const CM_INTERVAL: Duration = Duration::from_micros(50);

/// The provider for RDMA devices.
///
/// The order of the fields is the order of destruction: queue pairs before regions and domains,
/// these before the devices' completion queues, identifiers before their event channel.
pub struct IbFabric {
    pub(super) conns: Slab<Conn>,
    pub(super) by_key: BTreeMap<IdKey, usize>,
    pub(super) regions: Regions,
    pub(super) devices: Vec<Device>,
    pub(super) member: Member,
    epoll: Epoll,
    pub(super) config: IbConfig,
    /// By number; a closed one leaves its place empty.
    pub(super) listeners: Vec<Option<SocketAddr>>,
    generation: u32,
    chain: Chain,
    room: Box<[ibv_wc]>,
    /// Completions and events for the next poll.
    pub(super) backlog: Vec<WorkCompletion>,
    pub(super) outbox: Vec<CmEvent>,
    /// Events of identifiers that another member has moved here but not handed over yet.
    pub(super) early: Vec<Event>,
    /// Slots with requests to send.
    ready: Vec<usize>,
    /// Connections that failed, and why.
    pub(super) broken: Vec<(ConnId, DisconnectReason)>,
    /// Slots whose connections are flushing.
    pub(super) closing: Vec<usize>,
    /// Slots whose connections wait for the peer's answer.
    pub(super) connecting: Vec<usize>,
    next_cm_look: Timestamp,
}

impl core::fmt::Debug for IbFabric {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let devices: Vec<_> = self.devices().collect();
        f.debug_struct("IbFabric")
            .field("devices", &devices)
            .field("connections", &self.conns.len())
            .finish_non_exhaustive()
    }
}

pub(super) fn stale() -> StaleHandle {
    StaleHandle { what: "connection" }
}

impl IbFabric {
    pub(super) fn new(member: Member, config: IbConfig) -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let readable = EpollEvent::new(EpollFlags::EPOLLIN, 0);
        epoll.add(member.channel.fd(), readable)?;
        epoll.add(member.wake.as_fd(), readable)?;
        Ok(Self {
            conns: Slab::new(),
            by_key: BTreeMap::new(),
            regions: Regions::default(),
            devices: Vec::new(),
            member,
            epoll,
            config,
            listeners: Vec::new(),
            generation: 0,
            chain: Chain::default(),
            room: cq::room(),
            backlog: Vec::new(),
            outbox: Vec::new(),
            early: Vec::new(),
            ready: Vec::new(),
            broken: Vec::new(),
            closing: Vec::new(),
            connecting: Vec::new(),
            next_cm_look: Timestamp::ZERO,
        })
    }

    /// The devices in use, by name.
    pub fn devices(&self) -> impl Iterator<Item = &str> {
        self.devices.iter().map(|device| device.name.as_str())
    }

    /// Connections that take up memory.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.conns.len()
    }

    #[inline]
    fn slot_of(&self, conn: ConnId) -> Result<usize, StaleHandle> {
        let (slot, generation) = parts(conn);
        match self.conns.get(slot) {
            Some(known) if u64::from(known.generation) == generation => Ok(slot),
            _ => Err(stale()),
        }
    }

    #[inline]
    fn conn(&self, conn: ConnId) -> Result<&Conn, StaleHandle> {
        self.conns.get(self.slot_of(conn)?).ok_or(stale())
    }

    pub(super) fn conn_mut(&mut self, conn: ConnId) -> Result<(usize, &mut Conn), StaleHandle> {
        let slot = self.slot_of(conn)?;
        Ok((slot, self.conns.get_mut(slot).ok_or(stale())?))
    }

    /// Takes an identifier in.
    pub(super) fn insert(&mut self, id: CmId, state: State) -> io::Result<ConnId> {
        if self.conns.len() >= MAX_CONNECTIONS || self.generation >= Tag::MAX_GENERATION {
            return Err(io::Error::other("the fabric has no connection numbers left"));
        }
        self.generation += 1;
        let key = id.key();
        let slot = self.conns.insert(Conn::new(id, self.generation, state));
        self.by_key.insert(key, slot);
        Ok(handle(slot, self.generation))
    }

    /// The device of a local address, opened if need be.
    fn device_at(&mut self, address: SocketAddr) -> io::Result<usize> {
        let device = Device::open(&self.member.channel, address)?;
        let known = |other: &Device| !other.removed && other.context() == device.context();
        if let Some(place) = self.devices.iter().position(known) {
            return Ok(place);
        }
        self.epoll.add(device.channel.fd(), EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        self.devices.push(device);
        Ok(self.devices.len() - 1)
    }

    /// Finds the device that a connection's identifier is bound to.
    pub(super) fn attach(&mut self, slot: usize) -> io::Result<()> {
        let conn = self.conns.get(slot).ok_or(io::ErrorKind::NotFound)?;
        let context = conn.id.context().ok_or(io::ErrorKind::NotFound)?;
        let port = conn.id.port();
        let local = conn.id.local_address().ok_or(io::ErrorKind::AddrNotAvailable)?;
        let known = |device: &Device| !device.removed && device.context() == context;
        let place = match self.devices.iter().position(known) {
            Some(place) => place,
            None => self.device_at(local)?,
        };
        let device = self.devices.get(place).filter(|device| known(device));
        let device = device.ok_or_else(|| {
            io::Error::other(format!("more than one RDMA device has {}", local.ip()))
        })?;
        let limits = device.limits(port, self.config.remote_invalidate);
        if let Some(conn) = self.conns.get_mut(slot) {
            conn.device = Some(place);
            conn.max_message_bytes = limits.max_message_bytes;
        }
        Ok(())
    }

    /// The device of a listening address takes part in all domains: limits are met here and now.
    fn prepare(&mut self, address: SocketAddr) -> io::Result<()> {
        if address.ip().is_unspecified() {
            return Ok(());
        }
        super::cover_local(address.ip()).map_err(io::Error::other)?;
        let place = self.device_at(address)?;
        self.join_all(place).map_err(io::Error::other)
    }

    fn join_all(&mut self, place: usize) -> Result<(), RegisterError> {
        let Some(device) = self.devices.get(place) else { return Ok(()) };
        for domain in self.regions.domains() {
            self.regions.join(domain, place, device)?;
        }
        Ok(())
    }

    fn make_qp(&mut self, slot: usize, config: &QpConfig) -> Result<(), QpError> {
        let conn = self.conns.get_mut(slot).ok_or(stale())?;
        let place = conn.device.ok_or(stale())?;
        let device = self.devices.get_mut(place).ok_or(StaleHandle { what: "device" })?;
        if conn.qp.is_some() || device.removed {
            return Err(StaleHandle { what: "place for a queue pair" }.into());
        }
        let limit = device.abilities.max_depth;
        for (what, wanted) in
            [("send requests", config.max_send), ("receive requests", config.max_recv)]
        {
            if wanted > limit {
                return Err(QpError::Limit { what, wanted, limit });
            }
        }
        self.regions
            .join(config.domain, place, device)
            .map_err(|error| QpError::Io(io::Error::other(error)))?;
        let pd = self.regions.pd(config.domain, place);
        let pd = pd.ok_or(StaleHandle { what: "protection domain" })?;
        // Room for unsignalled requests that are over but not yet known to be.
        let sends = (config.max_send + (config.max_send / 2).max(16)).min(limit);
        let receives = config.max_recv.max(1);
        let promised = sends + receives;
        let cq_place = device.promise(promised).map_err(QpError::Io)?;
        let cq = device.cqs.get_mut(cq_place).ok_or(StaleHandle { what: "completion queue" })?;
        let sge = device.abilities.max_sge.min(2);
        let mut made = Err(io::ErrorKind::Unsupported.into());
        let mut max_inline = 0;
        for inline in [self.config.max_inline_bytes, 64, 0] {
            let inline = inline.min(self.config.max_inline_bytes);
            // SAFETY: a structure of integers and pointers, for which zero is a value.
            let mut attributes: ibv_qp_init_attr = unsafe { core::mem::zeroed() };
            attributes.send_cq = cq.as_ptr();
            attributes.recv_cq = cq.as_ptr();
            attributes.qp_type = ibv_qp_type::IBV_QPT_RC;
            attributes.cap = ibv_qp_cap {
                max_send_wr: sends,
                max_recv_wr: receives,
                max_send_sge: sge,
                max_recv_sge: sge,
                max_inline_data: inline,
            };
            made = conn.id.create_qp(pd, &mut attributes);
            max_inline = attributes.cap.max_inline_data.min(inline);
            // Some devices give no room for inline data beside deep queues.
            if made.is_ok() || inline == 0 {
                break;
            }
        }
        let raw = match made.map(|()| conn.id.queue_pair()) {
            Ok(Some(raw)) => raw,
            other => {
                cq.unpromise(promised);
                let nothing = || io::ErrorKind::NotFound.into();
                return Err(QpError::Io(other.err().unwrap_or_else(nothing)));
            }
        };
        let sizes = Sizes { sends, receives, max_inline, cq: cq_place, promised };
        let slot_number = u16::try_from(slot).map_err(|_| stale())?;
        // SAFETY: the queue pair is destroyed by `drop_qp`, after this value, or with the identifier.
        conn.qp = Some(unsafe { QueuePair::new(raw, sizes, conn.generation, slot_number) });
        conn.domain = Some(config.domain);
        Ok(())
    }

    /// Destroys a connection's queue pair: nothing touches its memory any more.
    pub(super) fn drop_qp(&mut self, slot: usize) {
        let Some(conn) = self.conns.get_mut(slot) else { return };
        let qp = conn.qp.take();
        conn.id.destroy_qp();
        if let Some((qp, place)) = qp.zip(conn.device)
            && let Some(device) = self.devices.get_mut(place)
            && let Some(cq) = device.cqs.get_mut(qp.sizes.cq)
        {
            cq.leave(qp.sizes.promised);
        }
    }

    /// Takes completions of the devices.
    fn take_completions(&mut self, budget: usize, completions: &mut Vec<WorkCompletion>) {
        let Self { devices, conns, room, broken, .. } = self;
        let mut left = budget.max(1);
        let mut failed = None;
        for (place, device) in devices.iter_mut().enumerate() {
            if device.removed {
                continue;
            }
            for cq in &mut device.cqs {
                while left > 0 {
                    let asked = left.min(cq::BATCH);
                    let Some(room) = room.get_mut(..asked) else { break };
                    let count = match cq.poll(room) {
                        Ok(count) => count,
                        Err(error) => {
                            tracing::error!(device = device.name, %error, "device lost");
                            failed = Some(place);
                            break;
                        }
                    };
                    for wc in room.iter().take(count) {
                        let tag = Tag::from_bits(wc.wr_id);
                        let conn = conns.get_mut(usize::from(tag.slot));
                        // Of a queue pair that is gone, if not.
                        let Some(conn) = conn.filter(|conn| conn.generation == tag.generation)
                        else {
                            continue;
                        };
                        let Some(completion) = conn.complete(tag, wc) else { continue };
                        if completion.status != WcStatus::Success && conn.is_up() {
                            let reason = match completion.status {
                                WcStatus::RetryExceeded | WcStatus::RnrRetryExceeded => {
                                    DisconnectReason::Timeout
                                }
                                _ => DisconnectReason::Error,
                            };
                            tracing::debug!(?completion, vendor = wc.vendor_err, "failed");
                            broken.push((completion.conn, reason));
                        }
                        completions.push(completion);
                    }
                    left -= count;
                    if count < asked {
                        break;
                    }
                }
            }
        }
        if let Some(place) = failed {
            self.lose_device(place);
        }
    }

    fn earliest_deadline(&self) -> Timestamp {
        let waiting = self.closing.iter().chain(&self.connecting);
        waiting
            .filter_map(|slot| match self.conns.get(*slot)?.state {
                State::Closing { deadline, .. } | State::Connecting { deadline, .. } => {
                    Some(deadline)
                }
                _ => None,
            })
            .min()
            .unwrap_or(Timestamp::NEVER)
    }
}

/// The memory of a request, for the device.
#[inline]
fn fill(
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
        _now: Timestamp,
        remote: SocketAddr,
        timeout: Duration,
    ) -> Result<ConnId, ResolveError> {
        let start = |member: &Member| {
            let mut id = CmId::new(&member.channel)?;
            id.resolve_address(remote, timeout)?;
            Ok(id)
        };
        let id = start(&self.member).map_err(|source: io::Error| match source.raw_os_error() {
            Some(libc::ENODEV | libc::ENETUNREACH | libc::EHOSTUNREACH) => {
                let reason = format!("{source}; {}", inventory::describe());
                ResolveError::NoRoute { remote, reason }
            }
            _ => ResolveError::Io { remote, source },
        })?;
        self.next_cm_look = Timestamp::ZERO;
        self.insert(id, State::Resolving { timeout })
            .map_err(|source| ResolveError::Io { remote, source })
    }

    fn limits(&self, conn: ConnId) -> Result<DeviceLimits, StaleHandle> {
        let conn = self.conn(conn)?;
        let device = conn.device.and_then(|place| self.devices.get(place)).ok_or(stale())?;
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
        let private_data = params.private_data.as_bytes();
        let (given, limit) = (private_data.len(), MAX_CONNECT_DATA);
        if given > limit {
            return Err(CmError::PrivateData { given, limit });
        }
        if conn.state != State::Resolved || conn.qp.is_none() {
            return Err(StaleHandle { what: "resolved connection with a queue pair" }.into());
        }
        let asked = (
            params.initiator_depth.min(limits.max_initiator_depth),
            params.responder_resources.min(limits.max_responder_resources),
        );
        let (retry_count, rnr_retry_count) = (params.retry_count, params.rnr_retry_count);
        let (initiator_depth, responder_resources) = asked;
        conn.id
            .connect(&Offer {
                private_data,
                responder_resources,
                initiator_depth,
                retry_count,
                rnr_retry_count,
            })
            .map_err(CmError::Io)?;
        conn.state = State::Connecting { asked, since: now, deadline: now + timeout };
        self.connecting.push(slot);
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
        let private_data = params.private_data.as_bytes();
        let (given, limit) = (private_data.len(), MAX_ACCEPT_DATA);
        if given > limit {
            return Err(CmError::PrivateData { given, limit });
        }
        let (State::Requested { offer }, true) = (conn.state, conn.qp.is_some()) else {
            return Err(StaleHandle { what: "connection request with a queue pair" }.into());
        };
        let agreed = (
            params.initiator_depth.min(offer.0).min(limits.max_initiator_depth),
            params.responder_resources.min(offer.1).min(limits.max_responder_resources),
        );
        let (retry_count, rnr_retry_count) = (params.retry_count, params.rnr_retry_count);
        let (initiator_depth, responder_resources) = agreed;
        let offer = Offer {
            private_data,
            responder_resources,
            initiator_depth,
            retry_count,
            rnr_retry_count,
        };
        conn.id.accept(&offer).map_err(CmError::Io)?;
        conn.state = State::Accepting { agreed };
        Ok(())
    }

    fn reject(&mut self, now: Timestamp, conn: ConnId, private_data: &[u8]) -> Result<(), CmError> {
        let (given, limit) = (private_data.len(), MAX_REJECT_DATA);
        let (_, found) = self.conn_mut(conn)?;
        if given > limit {
            return Err(CmError::PrivateData { given, limit });
        }
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
        self.drop_qp(slot);
        if let Some(found) = self.conns.try_remove(slot) {
            self.by_key.remove(&found.id.key());
        }
        self.backlog.retain(|completion| completion.conn != conn);
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

    fn post_send(&mut self, conn: ConnId, requests: &[SendRequest]) -> Result<(), PostError> {
        let none = PostError { index: 0, kind: PostErrorKind::NoQueuePair };
        let (slot, _) = parts(conn);
        self.slot_of(conn).map_err(|_| none)?;
        let Self { conns, regions, devices, backlog, ready, config, .. } = self;
        let found = conns.get_mut(slot).ok_or(none)?;
        let (place, domain) = found.device.zip(found.domain).ok_or(none)?;
        let abilities = devices.get(place).ok_or(none)?.abilities;
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
        let Self { conns, ready, chain, broken, .. } = self;
        for slot in ready.drain(..) {
            let Some(conn) = conns.get_mut(slot) else { continue };
            conn.listed = false;
            if matches!(conn.state, State::Closing { .. } | State::Dead) {
                continue;
            }
            let Some(qp) = conn.qp.as_mut() else { continue };
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
        if now >= self.next_cm_look {
            self.next_cm_look = now + CM_INTERVAL;
            self.take_events(now);
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
        for device in self.devices.iter_mut().filter(|device| !device.removed) {
            while let Some(fired) = device.channel.next() {
                for cq in device.cqs.iter_mut().filter(|cq| cq.key() == fired) {
                    cq.armed = false;
                }
            }
            for cq in &mut device.cqs {
                if let Err(error) = cq.arm() {
                    tracing::error!(device = device.name, %error, "no wake-up can be asked for");
                }
            }
        }
        // What came before the queues were armed wakes nobody.
        let mut backlog = core::mem::take(&mut self.backlog);
        self.take_completions(cq::BATCH, &mut backlog);
        self.backlog.append(&mut backlog);
        self.take_events(now);
        self.next_cm_look = Timestamp::ZERO;
        let ready = !self.backlog.is_empty() || !self.outbox.is_empty() || !self.broken.is_empty();
        let until = self.earliest_deadline();
        if ready || until <= now { Armed::Ready } else { Armed::Until(until) }
    }

    fn wait_fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.epoll.0.as_fd()]
    }

    fn diagnose(&self, conn: ConnId) -> Option<String> {
        self.conn(conn).ok()?.note.clone()
    }

    fn counters(&self) -> FabricCounters {
        FabricCounters::default()
    }
}

impl Drop for IbFabric {
    fn drop(&mut self) {
        for address in self.listeners.drain(..).flatten() {
            self.member.leave(address);
        }
        for (_, conn) in self.conns.iter_mut().filter(|(_, conn)| conn.is_up()) {
            let _ = conn.id.disconnect();
        }
        self.early.clear();
        while let Some(request) = self.member.take() {
            drop(request);
        }
    }
}

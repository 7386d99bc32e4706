//! [`IbFabric`]: the verbs of RDMA devices for one thread. Owns what the wrappers wrap, in the order
//! in which it must be destroyed. Called by `verbs`, which implements the trait, and by `events`.

use core::net::SocketAddr;
use core::ptr::{self, NonNull};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;

use lariat_roce::time::Timestamp;
use lariat_roce::verbs::{CmEvent, ConnId, DisconnectReason, QpConfig, WcStatus, WorkCompletion};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use rdma_sys::{ibv_context, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_type, ibv_wc};
use slab::Slab;

use super::IbConfig;
use super::cm::{CmId, Event, IdKey};
use super::conn::{Conn, State, handle, parts};
use super::cq;
use super::device::Device;
use super::group::Member;
use super::memory::Regions;
use super::qp::{Chain, QueuePair, Sizes, Tag};
use super::shared::SharedQueues;
use crate::error::{QpError, RegisterError, StaleHandle};
use crate::fabric::FabricCounters;

/// Slots have 16 bits.
pub(super) const MAX_CONNECTIONS: usize = 1 << 16;
/// The provider for RDMA devices.
///
/// The order of the fields is the order of destruction: queue pairs before shared queues, these
/// before regions and domains, these before the devices' completion queues, identifiers before
/// their event channel.
pub struct IbFabric {
    pub(super) conns: Slab<Conn>,
    pub(super) by_key: BTreeMap<IdKey, usize>,
    pub(super) shared: SharedQueues,
    pub(super) regions: Regions,
    /// By number; one that went away leaves its place empty.
    pub(super) devices: Vec<Option<Device>>,
    pub(super) member: Member,
    pub(super) epoll: Epoll,
    pub(super) config: IbConfig,
    /// By number; a closed one leaves its place empty.
    pub(super) listeners: Vec<Option<SocketAddr>>,
    generation: u32,
    pub(super) chain: Chain,
    room: Box<[ibv_wc]>,
    /// Completions and events for the next poll.
    pub(super) backlog: Vec<WorkCompletion>,
    pub(super) outbox: Vec<CmEvent>,
    /// Events of identifiers that another member has moved here but not handed over yet.
    pub(super) early: Vec<Event>,
    /// Slots with requests to send.
    pub(super) ready: Vec<usize>,
    /// Connections that failed, and why.
    pub(super) broken: Vec<(ConnId, DisconnectReason)>,
    /// Slots whose connections are flushing.
    pub(super) closing: Vec<usize>,
    /// Slots whose connections wait for the peer's answer.
    pub(super) connecting: Vec<usize>,
    pub(super) next_cm_look: Timestamp,
    pub(super) next_news_look: Timestamp,
    /// Armed then, and not polled at a later time yet.
    pub(super) armed_at: Option<Timestamp>,
    /// How often it was armed since connection events were looked for.
    pub(super) arms: u8,
    /// SENDs are outstanding, nobody is to be woken for their ends alone, and none has come: look
    /// then.
    pub(super) send_look: Option<Timestamp>,
    pub(super) next_revival: Timestamp,
    pub(super) counters: FabricCounters,
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
            shared: SharedQueues::default(),
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
            next_news_look: Timestamp::ZERO,
            armed_at: None,
            arms: 0,
            send_look: None,
            next_revival: Timestamp::ZERO,
            counters: FabricCounters::default(),
        })
    }

    /// The devices in use, by name.
    pub fn devices(&self) -> impl Iterator<Item = &str> {
        self.devices.iter().flatten().map(|device| device.name.as_str())
    }

    /// Connections that take up memory.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.conns.len()
    }

    #[inline]
    pub(super) fn slot_of(&self, conn: ConnId) -> Result<usize, StaleHandle> {
        let (slot, generation) = parts(conn);
        match self.conns.get(slot) {
            Some(known) if u64::from(known.generation) == generation => Ok(slot),
            _ => Err(stale()),
        }
    }

    #[inline]
    pub(super) fn conn(&self, conn: ConnId) -> Result<&Conn, StaleHandle> {
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
        if let Some(place) = self.place_of(device.context()) {
            return Ok(place);
        }
        let readable = EpollEvent::new(EpollFlags::EPOLLIN, 0);
        self.epoll.add(device.channel.fd(), readable)?;
        self.epoll.add(device.news.as_fd(), readable)?;
        let vacant = self.devices.iter().position(Option::is_none);
        let place = vacant.unwrap_or(self.devices.len());
        match self.devices.get_mut(place) {
            Some(vacant) => *vacant = Some(device),
            None => self.devices.push(Some(device)),
        }
        Ok(place)
    }

    fn place_of(&self, context: NonNull<ibv_context>) -> Option<usize> {
        let is_it = |device: &Option<Device>| {
            device.as_ref().is_some_and(|device| device.context() == context)
        };
        self.devices.iter().position(is_it)
    }

    pub(super) fn device(&self, place: usize) -> Option<&Device> {
        self.devices.get(place)?.as_ref()
    }

    /// Finds the device that a connection's identifier is bound to.
    pub(super) fn attach(&mut self, slot: usize) -> io::Result<()> {
        let conn = self.conns.get(slot).ok_or(io::ErrorKind::NotFound)?;
        let context = conn.id.context().ok_or(io::ErrorKind::NotFound)?;
        let port = conn.id.port();
        let local = conn.id.local_address().ok_or(io::ErrorKind::AddrNotAvailable)?;
        let place = match self.place_of(context) {
            Some(place) => place,
            None => self.device_at(local)?,
        };
        let device = self.device(place).filter(|device| device.context() == context);
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
    pub(super) fn prepare(&mut self, address: SocketAddr) -> io::Result<()> {
        if address.ip().is_unspecified() {
            return Ok(());
        }
        super::cover_local(address.ip()).map_err(io::Error::other)?;
        let place = self.device_at(address)?;
        self.join_all(place).map_err(io::Error::other)
    }

    fn join_all(&mut self, place: usize) -> Result<(), RegisterError> {
        let Some(device) = self.devices.get(place).and_then(Option::as_ref) else { return Ok(()) };
        for domain in self.regions.domains() {
            self.regions.join(domain, place, device)?;
        }
        Ok(())
    }

    pub(super) fn make_qp(&mut self, slot: usize, config: &QpConfig) -> Result<(), QpError> {
        let conn = self.conns.get_mut(slot).ok_or(stale())?;
        let place = conn.device.ok_or(stale())?;
        let device = self.devices.get_mut(place).and_then(Option::as_mut);
        let device = device.ok_or(StaleHandle { what: "device" })?;
        if conn.qp.is_some() {
            return Err(StaleHandle { what: "place for a queue pair" }.into());
        }
        let limit = device.abilities.max_depth;
        let shared = match config.shared_receive {
            None => None,
            Some(id) => {
                let srq = self.shared.find(id);
                let srq = srq.filter(|srq| (srq.device, srq.domain) == (place, config.domain));
                Some((id, srq.ok_or(StaleHandle { what: "shared receive queue of its device" })?))
            }
        };
        // Without receives of its own it takes up no room for their completions.
        let receives = if shared.is_some() { 0 } else { config.max_recv.max(1) };
        for (what, wanted) in [("send requests", config.max_send), ("receive requests", receives)] {
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
        let send_cq = device.promise_sends(sends).map_err(QpError::Io)?;
        // The completions of a shared queue have their room already.
        let receive_cq = match shared {
            Some((_, srq)) => Ok(srq.cq),
            None => device.promise_receives(receives),
        };
        let receive_cq = receive_cq.map_err(|error| {
            device.unpromise_sends(send_cq, sends);
            QpError::Io(error)
        })?;
        let cqs = device.send_cqs.get_mut(send_cq).zip(device.receive_cqs.get_mut(receive_cq));
        let cqs = cqs.ok_or(StaleHandle { what: "completion queue" })?;
        let srq = shared.map_or(ptr::null_mut(), |(_, srq)| srq.as_ptr());
        let sge = device.abilities.max_sge.min(2);
        let mut made = Err(io::ErrorKind::Unsupported.into());
        let mut max_inline = 0;
        for inline in [self.config.max_inline_bytes, 64, 0] {
            let inline = inline.min(self.config.max_inline_bytes);
            // SAFETY: a structure of integers and pointers, for which zero is a value.
            let mut attributes: ibv_qp_init_attr = unsafe { core::mem::zeroed() };
            attributes.send_cq = cqs.0.as_ptr();
            attributes.recv_cq = cqs.1.as_ptr();
            attributes.srq = srq;
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
                cqs.0.unpromise(sends);
                cqs.1.unpromise(receives);
                let nothing = || io::ErrorKind::NotFound.into();
                return Err(QpError::Io(other.err().unwrap_or_else(nothing)));
            }
        };
        let max_inline_invalidate = if device.abilities.iwarp { 0 } else { max_inline };
        let sizes =
            Sizes { sends, receives, max_inline, max_inline_invalidate, send_cq, receive_cq };
        let slot_number = u16::try_from(slot).map_err(|_| stale())?;
        // SAFETY: the queue pair is destroyed by `drop_qp`, after this value, or with the identifier.
        let qp = unsafe {
            QueuePair::new(raw, sizes, device.abilities.iwarp, conn.generation, slot_number)
        };
        let number = qp.number();
        let qp = conn.qp.insert(qp);
        if let Some((id, _)) = shared {
            qp.shared = Some(id);
            self.shared.join(id, (place, number), slot);
        }
        conn.domain = Some(config.domain);
        Ok(())
    }

    /// Destroys a connection's queue pair: nothing touches its memory any more.
    pub(super) fn drop_qp(&mut self, slot: usize) {
        let qp = self.conns.get(slot).and_then(|conn| conn.qp.as_ref());
        let shared = qp.and_then(|qp| Some((qp.shared?, qp.number())));
        if shared.is_some() {
            if let Some(qp) = self.conns.get_mut(slot).and_then(|conn| conn.qp.as_mut()) {
                qp.set_error();
            }
            self.drain_completions();
        }
        let Some(conn) = self.conns.get_mut(slot) else { return };
        let place = conn.device;
        let qp = conn.qp.take();
        conn.id.destroy_qp();
        if let Some((qp, place)) = qp.zip(conn.device)
            && let Some(device) = self.devices.get_mut(place).and_then(Option::as_mut)
        {
            let Sizes { sends, receives, send_cq, receive_cq, .. } = qp.sizes;
            if let Some(cq) = device.send_cqs.get_mut(send_cq) {
                cq.leave(sends);
            }
            if let Some(cq) = device.receive_cqs.get_mut(receive_cq) {
                cq.leave(receives);
            }
        }
        if let Some(((id, number), place)) = shared.zip(place) {
            self.drain_completions();
            self.shared.leave(id, (place, number));
        }
    }

    /// Takes completions of the devices.
    pub(super) fn take_completions(
        &mut self,
        budget: usize,
        completions: &mut Vec<WorkCompletion>,
    ) {
        let Self { devices, conns, room, broken, counters, send_look, shared, .. } = self;
        let mut left = budget.max(1);
        let mut failed = None;
        for (place, device) in devices.iter_mut().enumerate() {
            let Some(device) = device else { continue };
            for cq in device.send_cqs.iter_mut().chain(device.receive_cqs.iter_mut()) {
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
                    counters.receive_calls += u64::from(count != 0);
                    counters.completions += count as u64;
                    for wc in room.iter().take(count) {
                        let tag = Tag::from_bits(wc.wr_id);
                        if !tag.receive {
                            *send_look = None;
                        }
                        let conn = conns.get_mut(usize::from(tag.slot));
                        let completion = match conn.filter(|conn| conn.generation == tag.generation)
                        {
                            Some(conn) => conn.complete(tag, wc),
                            // If not of a shared queue, then of a queue pair that is gone.
                            None => shared.complete(place, tag, wc, conns),
                        };
                        let Some(completion) = completion else { continue };
                        let (slot, _) = parts(completion.conn);
                        if completion.status != WcStatus::Success
                            && conns.get(slot).is_some_and(Conn::is_up)
                        {
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

    /// Whether one of the descriptors that wake us has something.
    pub(super) fn is_readable(&self) -> bool {
        self.epoll.wait(&mut [EpollEvent::empty()], EpollTimeout::ZERO) != Ok(0)
    }

    pub(super) fn earliest_deadline(&self) -> Timestamp {
        let waiting = self.closing.iter().chain(&self.connecting);
        waiting
            .filter_map(|slot| {
                let conn = self.conns.get(*slot)?;
                match conn.state {
                    State::Closing { deadline, .. } => Some(conn.end_by(deadline)),
                    State::Connecting { deadline, .. } => Some(deadline),
                    _ => None,
                }
            })
            .min()
            .unwrap_or(Timestamp::NEVER)
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
        while let Some(parcel) = self.member.take() {
            drop(parcel);
        }
    }
}

//! librdmacm: the event channel of a member, and connection identifiers. Safe wrappers, one for each
//! object; called by `fabric`, `group` and `cover`.
//!
//! Events are copied and acknowledged at once, so that nothing ever waits for an acknowledgement:
//! `rdma_destroy_id` and `rdma_migrate_id` block until all events of an identifier are acknowledged.

use core::ffi::{c_int, c_void};
use core::mem;
use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use core::ptr::{self, NonNull};
use core::time::Duration;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use lariat_roce::verbs::{ConnectParams, PrivateData};
use rdma_sys::{ibv_context, ibv_qp, ibv_qp_init_attr, rdma_cm_event_type, rdma_conn_param};
use socket2::SockAddr;

use super::mr::Pd;

/// `RDMA_OPTION_ID` and `RDMA_OPTION_ID_AFONLY` of rdma_cma.h, whose enums have no names.
const OPTION_LEVEL_ID: c_int = 0;
const OPTION_ID_AFONLY: c_int = 2;

/// What librdmacm returns: 0, or -1 and `errno`.
fn check(result: c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Where the events of a member's identifiers come.
#[derive(Debug)]
pub(super) struct EventChannel {
    raw: NonNull<rdma_sys::rdma_event_channel>,
}

// SAFETY: librdmacm's calls may come from any thread; the structure is only read after its making.
unsafe impl Send for EventChannel {}
// SAFETY: as above; the kernel serialises readers of the descriptor.
unsafe impl Sync for EventChannel {}

impl EventChannel {
    /// Opens /dev/infiniband/rdma_cm, for reading without waiting.
    pub(super) fn open() -> io::Result<Self> {
        // SAFETY: no arguments.
        let raw = unsafe { rdma_sys::rdma_create_event_channel() };
        let channel = Self { raw: NonNull::new(raw).ok_or_else(io::Error::last_os_error)? };
        set_nonblocking(channel.fd())?;
        Ok(channel)
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel lives as long as `self`, its descriptor as long as the channel.
        unsafe { BorrowedFd::borrow_raw((*self.raw.as_ptr()).fd) }
    }

    /// The next event, if there is one. `own` is this very channel: a new identifier keeps it.
    pub(super) fn next(own: &Arc<Self>) -> io::Result<Option<Event>> {
        let mut raw = ptr::null_mut();
        // SAFETY: the channel lives; `raw` is a place for the answer.
        let result = unsafe { rdma_sys::rdma_get_cm_event(own.raw.as_ptr(), &mut raw) };
        if let Err(error) = check(result) {
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(error),
            };
        }
        // SAFETY: librdmacm handed out a valid event that is ours until it is acknowledged. All
        // identifiers of this library are of RDMA_PS_TCP, so `conn` is the member of the union.
        let event = unsafe {
            let source = &*raw;
            let is_request = source.event == rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST;
            let conn = &source.param.conn;
            Event {
                kind: source.event,
                status: source.status,
                id: IdKey(source.id.addr()),
                listener: is_request.then(|| IdKey(source.listen_id.addr())),
                request: NonNull::new(source.id)
                    .filter(|_| is_request)
                    .map(|raw| CmId { raw, channel: Arc::clone(own) }),
                responder_resources: conn.responder_resources,
                initiator_depth: conn.initiator_depth,
                private_data: copy_private_data(conn),
            }
        };
        // SAFETY: acknowledged once; nothing refers to it any more.
        check(unsafe { rdma_sys::rdma_ack_cm_event(raw) })?;
        Ok(Some(event))
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: every identifier holds an `Arc` of its channel, so none is left.
        unsafe { rdma_sys::rdma_destroy_event_channel(self.raw.as_ptr()) };
    }
}

pub(super) fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
    fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(())
}

/// # Safety
/// The pointer and length of the private data are those of an event that is not acknowledged.
unsafe fn copy_private_data(conn: &rdma_conn_param) -> PrivateData {
    let length = usize::from(conn.private_data_len).min(PrivateData::MAX);
    if conn.private_data.is_null() || length == 0 {
        return PrivateData::EMPTY;
    }
    // SAFETY: by the caller's promise there are at least so many bytes.
    let bytes = unsafe { core::slice::from_raw_parts(conn.private_data.cast::<u8>(), length) };
    PrivateData::new(bytes).unwrap_or(PrivateData::EMPTY)
}

/// Tells identifiers apart as long as they live. Never followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct IdKey(usize);

/// A copy of an event.
#[derive(Debug)]
pub(super) struct Event {
    pub(super) kind: rdma_cm_event_type::Type,
    /// 0, a negative error number, or for a refusal the reason (IBTA 12.6.7.2).
    pub(super) status: c_int,
    /// Whose it is.
    pub(super) id: IdKey,
    /// Of a connection request: where it came to.
    pub(super) listener: Option<IdKey>,
    /// Of a connection request: the new identifier.
    pub(super) request: Option<CmId>,
    /// RDMA READs that we are asked to serve at a time.
    pub(super) responder_resources: u8,
    /// RDMA READs that the peer serves at a time.
    pub(super) initiator_depth: u8,
    pub(super) private_data: PrivateData,
}

/// An `rdma_cm_id`, destroyed (with its queue pair) when dropped.
#[derive(Debug)]
pub(super) struct CmId {
    raw: NonNull<rdma_sys::rdma_cm_id>,
    channel: Arc<EventChannel>,
}

// SAFETY: librdmacm's calls may come from any thread; this value is the only one that has the
// identifier, and calls that change it take `&mut self`.
unsafe impl Send for CmId {}

impl CmId {
    pub(super) fn new(channel: &Arc<EventChannel>) -> io::Result<Self> {
        let mut raw = ptr::null_mut();
        let space = rdma_sys::rdma_port_space::RDMA_PS_TCP;
        // SAFETY: the channel lives; `raw` is a place for the answer.
        check(unsafe {
            rdma_sys::rdma_create_id(channel.raw.as_ptr(), &mut raw, ptr::null_mut(), space)
        })?;
        let raw = NonNull::new(raw).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { raw, channel: Arc::clone(channel) })
    }

    pub(super) fn key(&self) -> IdKey {
        IdKey(self.raw.as_ptr().addr())
    }

    /// Binds to an address of this machine; a device is chosen unless it is the wildcard.
    pub(super) fn bind(&mut self, address: SocketAddr) -> io::Result<()> {
        let address = SockAddr::from(address);
        // SAFETY: a live identifier; librdmacm reads the address according to its family.
        check(unsafe {
            rdma_sys::rdma_bind_addr(self.raw.as_ptr(), address.as_ptr().cast_mut().cast())
        })
    }

    /// Leaves IPv4 alone when bound to the wildcard of IPv6.
    pub(super) fn set_one_family(&mut self) -> io::Result<()> {
        let mut on: c_int = 1;
        // SAFETY: a live identifier, and an option that is one int.
        check(unsafe {
            rdma_sys::rdma_set_option(
                self.raw.as_ptr(),
                OPTION_LEVEL_ID,
                OPTION_ID_AFONLY,
                ptr::from_mut(&mut on).cast(),
                mem::size_of::<c_int>(),
            )
        })
    }

    pub(super) fn listen(&mut self, backlog: c_int) -> io::Result<()> {
        // SAFETY: a live identifier.
        check(unsafe { rdma_sys::rdma_listen(self.raw.as_ptr(), backlog) })
    }

    pub(super) fn resolve_address(
        &mut self,
        remote: SocketAddr,
        timeout: Duration,
    ) -> io::Result<()> {
        let remote = SockAddr::from(remote);
        // SAFETY: a live identifier; librdmacm reads the address according to its family.
        check(unsafe {
            rdma_sys::rdma_resolve_addr(
                self.raw.as_ptr(),
                ptr::null_mut(),
                remote.as_ptr().cast_mut().cast(),
                milliseconds(timeout),
            )
        })
    }

    pub(super) fn resolve_route(&mut self, timeout: Duration) -> io::Result<()> {
        // SAFETY: a live identifier.
        check(unsafe { rdma_sys::rdma_resolve_route(self.raw.as_ptr(), milliseconds(timeout)) })
    }

    /// The device it is bound to.
    pub(super) fn context(&self) -> Option<NonNull<ibv_context>> {
        // SAFETY: a live identifier.
        NonNull::new(unsafe { (*self.raw.as_ptr()).verbs })
    }

    /// The device's port it is bound to.
    pub(super) fn port(&self) -> u8 {
        // SAFETY: a live identifier.
        unsafe { (*self.raw.as_ptr()).port_num }
    }

    pub(super) fn local_address(&self) -> Option<SocketAddr> {
        // SAFETY: a live identifier; all members of the union are plain bytes that begin with the
        // family.
        unsafe {
            let union = &(*self.raw.as_ptr()).route.addr.src_addr_union;
            socket_address(union.src_addr.sa_family, &union.src_sin, &union.src_sin6)
        }
    }

    pub(super) fn peer_address(&self) -> Option<SocketAddr> {
        // SAFETY: as in `local_address`.
        unsafe {
            let union = &(*self.raw.as_ptr()).route.addr.dst_addr_union;
            socket_address(union.dst_addr.sa_family, &union.dst_sin, &union.dst_sin6)
        }
    }

    /// The queue pair, if there is one.
    pub(super) fn queue_pair(&self) -> Option<NonNull<ibv_qp>> {
        // SAFETY: a live identifier.
        NonNull::new(unsafe { (*self.raw.as_ptr()).qp })
    }

    /// Creates the queue pair and takes it to INIT. Sizes come back in `attributes`.
    pub(super) fn create_qp(
        &mut self,
        domain: &Pd,
        attributes: &mut ibv_qp_init_attr,
    ) -> io::Result<()> {
        // SAFETY: a live identifier and domain (librdmacm refuses one of another device); the
        // completion queues in `attributes` live longer than the queue pair (see `fabric`).
        check(unsafe { rdma_sys::rdma_create_qp(self.raw.as_ptr(), domain.as_ptr(), attributes) })
    }

    /// Destroys the queue pair; when it returns, the device uses no memory on its behalf.
    pub(super) fn destroy_qp(&mut self) {
        if self.queue_pair().is_some() {
            // SAFETY: there is a queue pair; librdmacm forgets it.
            unsafe { rdma_sys::rdma_destroy_qp(self.raw.as_ptr()) };
        }
    }

    pub(super) fn connect(&mut self, offer: &Offer<'_>) -> io::Result<()> {
        let mut params = offer.to_raw();
        // SAFETY: a live identifier; the private data outlives the call.
        check(unsafe { rdma_sys::rdma_connect(self.raw.as_ptr(), &mut params) })
    }

    pub(super) fn accept(&mut self, offer: &Offer<'_>) -> io::Result<()> {
        let mut params = offer.to_raw();
        // SAFETY: a live identifier; the private data outlives the call.
        check(unsafe { rdma_sys::rdma_accept(self.raw.as_ptr(), &mut params) })
    }

    pub(super) fn reject(&mut self, private_data: &[u8]) -> io::Result<()> {
        let length = u8::try_from(private_data.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let data = private_data.as_ptr().cast::<c_void>();
        // SAFETY: a live identifier; the private data outlives the call.
        check(unsafe { rdma_sys::rdma_reject(self.raw.as_ptr(), data, length) })
    }

    /// Takes the queue pair to the error state (iWARP: closing) and says good-bye, or answers one.
    pub(super) fn disconnect(&mut self) -> io::Result<()> {
        // SAFETY: a live identifier.
        check(unsafe { rdma_sys::rdma_disconnect(self.raw.as_ptr()) })
    }

    /// Tells the kernel that messages come already: the connection stands.
    pub(super) fn notify_established(&mut self) -> io::Result<()> {
        let event = rdma_sys::ibv_event_type::IBV_EVENT_COMM_EST;
        // SAFETY: a live identifier.
        check(unsafe { rdma_sys::rdma_notify(self.raw.as_ptr(), event) })
    }

    /// Lets its events come to another channel. No event of it may be unacknowledged, which
    /// [`EventChannel::next`] sees to.
    pub(super) fn migrate(&mut self, channel: &Arc<EventChannel>) -> io::Result<()> {
        if Arc::ptr_eq(&self.channel, channel) {
            return Ok(());
        }
        // SAFETY: a live identifier and channel.
        check(unsafe { rdma_sys::rdma_migrate_id(self.raw.as_ptr(), channel.raw.as_ptr()) })?;
        self.channel = Arc::clone(channel);
        Ok(())
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        self.destroy_qp();
        // SAFETY: the identifier is ours, without a queue pair, and all its events are acknowledged.
        if let Err(error) = check(unsafe { rdma_sys::rdma_destroy_id(self.raw.as_ptr()) }) {
            tracing::warn!(%error, "an rdma_cm identifier could not be destroyed");
        }
    }
}

/// What goes into a REQ or REP.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offer<'a> {
    pub(super) private_data: &'a [u8],
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry_count: u8,
}

impl<'a> Offer<'a> {
    /// The consumer's parameters, with the depths (initiator, responder) that are possible.
    pub(super) fn new(params: &'a ConnectParams, depths: (u8, u8)) -> Self {
        Self {
            private_data: params.private_data.as_bytes(),
            responder_resources: depths.1,
            initiator_depth: depths.0,
            retry_count: params.retry_count,
            rnr_retry_count: params.rnr_retry_count,
        }
    }

    fn to_raw(self) -> rdma_conn_param {
        rdma_conn_param {
            private_data: self.private_data.as_ptr().cast(),
            // `PrivateData` holds at most 196 bytes.
            private_data_len: u8::try_from(self.private_data.len()).unwrap_or(0),
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            flow_control: 1,
            retry_count: self.retry_count.min(7),
            rnr_retry_count: self.rnr_retry_count.min(7),
            srq: 0,
            qp_num: 0,
        }
    }
}

fn milliseconds(time: Duration) -> c_int {
    c_int::try_from(time.as_millis()).unwrap_or(c_int::MAX).max(1)
}

fn socket_address(
    family: libc::sa_family_t,
    v4: &libc::sockaddr_in,
    v6: &libc::sockaddr_in6,
) -> Option<SocketAddr> {
    match c_int::from(family) {
        libc::AF_INET => {
            let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
        }
        libc::AF_INET6 => {
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let port = u16::from_be(v6.sin6_port);
            Some(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
        }
        _ => None,
    }
}

//! From the socket to packets: one `recvmmsg` into reused buffers, merged datagrams taken apart,
//! ICRCs checked. The payload goes from the buffer to its place by one copy (in `regions`).

use core::cell::Cell;
use core::mem::MaybeUninit;
use core::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use core::ptr;
use std::io;
use std::os::fd::BorrowedFd;

use lariat_wire::rocev2::{IdBasis, Packet, icrc};

use super::calls::receive_messages;
use crate::soft::flows::{Direction, FlowCache};
use crate::soft::network::{Arrival, WireCounters};

/// Buffers, each as large as what the kernel merges at most.
const BUFFERS: usize = 4;
/// What one request at a time brings at most: data and response, and an acknowledgement; or a
/// capsule and an acknowledgement.
const FEW_PACKETS: u64 = 3;
/// So many calls in a row that fill their buffers say that there is a backlog. Fewer are the two
/// messages of one request, of which the second can wait until the first is dealt with.
const BACKLOG_CALLS: u32 = 3;
/// So many calls in a row that bring little make quiet times. (In busy ones, taking the packets of
/// a batch one by one would break up the batches that are made in answer.)
const QUIET_CALLS: u32 = 16;
const BUFFER_BYTES: usize = 1 << 16;
const UDP_GRO: libc::c_int = 104;
/// Congestion experienced, in the two low bits of the traffic class.
const CE: u8 = 3;

/// Room for the control messages: segment size and traffic class, with space to spare.
#[repr(C, align(8))]
struct Control([u8; 96]);

thread_local! {
    /// What the receivers of a thread receive into: used within a call alone, so that one for all of
    /// them stays in the cache.
    static SPARE: Cell<Option<Box<[u8]>>> = const { Cell::new(None) };
}

/// The receiving half of a socket.
#[derive(Debug)]
pub(super) struct Receiver {
    flows: FlowCache,
    basis: IdBasis,
    /// Buffers that the next call may fill. Few while little comes, since the kernel's look for
    /// another datagram costs time when there is none; all while packets come in runs.
    window: usize,
    /// How many of the last calls that brought something brought little, without interruption.
    little: u32,
    /// Calls in a row that filled all buffers they had.
    full: u32,
}

/// What the kernel said of one buffer.
#[derive(Clone, Copy)]
struct Received {
    source: Option<SocketAddr>,
    bytes: usize,
    segment_bytes: usize,
    congested: bool,
    truncated: bool,
}

impl Received {
    const NONE: Self =
        Self { source: None, bytes: 0, segment_bytes: 1, congested: false, truncated: false };
}

impl Receiver {
    pub(super) fn new(local: SocketAddr) -> Self {
        Self {
            flows: FlowCache::new(local, Direction::In),
            basis: IdBasis::new(),
            window: 1,
            little: 0,
            full: 0,
        }
    }

    /// Hands in what one call gives; says whether all buffers were used (so there may be more).
    #[inline]
    pub(super) fn receive<F: FnMut(Arrival<'_>)>(
        &mut self,
        socket: BorrowedFd<'_>,
        counters: &mut WireCounters,
        sink: F,
    ) -> bool {
        // (At the end of a thread its own may be gone.)
        let spare = SPARE.try_with(Cell::take).ok().flatten();
        let mut buffers = spare.unwrap_or_else(|| vec![0; BUFFERS * BUFFER_BYTES].into());
        let more = self.receive_into(&mut buffers, socket, counters, sink);
        let _ = SPARE.try_with(|spare| spare.set(Some(buffers)));
        more
    }

    #[inline]
    fn receive_into<F: FnMut(Arrival<'_>)>(
        &mut self,
        buffers: &mut [u8],
        socket: BorrowedFd<'_>,
        counters: &mut WireCounters,
        mut sink: F,
    ) -> bool {
        let mut received = [Received::NONE; BUFFERS];
        let window = self.window;
        let count = match receive_call(socket, buffers, window, &mut received) {
            Ok(count) => count,
            Err(error) => {
                self.full = 0;
                if self.little >= QUIET_CALLS {
                    self.window = 1;
                }
                // Interrupted, nothing there, or an error of an earlier send: nothing was received.
                if !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) {
                    tracing::debug!(%error, "receive");
                }
                return false;
            }
        };
        counters.receive_calls += 1;
        let packets_before = counters.packets_received;
        let buffers = buffers.chunks_exact(BUFFER_BYTES);
        for (buffer, info) in buffers.zip(received.iter().take(count)) {
            let Some((source, data)) =
                info.source.filter(|_| !info.truncated).zip(buffer.get(..info.bytes))
            else {
                counters.malformed += 1;
                continue;
            };
            let Some(flow) = self.flows.get(source) else {
                counters.malformed += 1;
                continue;
            };
            let segment = info.segment_bytes.max(1);
            let of_segment = flow.of_length(segment);
            for (index, datagram) in data.chunks(segment).enumerate() {
                let parsed = Packet::parse(datagram);
                let Ok(packet) = &parsed else {
                    counters.malformed += 1;
                    continue;
                };
                // Segments of one call carry their index as IPv4 identification.
                let expected_id = u16::try_from(index).unwrap_or(0);
                let length = datagram.len();
                let seeds = if length == segment { of_segment } else { flow.of_length(length) };
                if !icrc::verify_of_length(seeds, expected_id, datagram, &mut self.basis) {
                    counters.bad_icrc += 1;
                    continue;
                }
                counters.packets_received += 1;
                sink(Arrival { source, congested: info.congested, packet, datagram });
            }
        }
        if counters.packets_received - packets_before > FEW_PACKETS {
            self.little = 0;
        } else {
            self.little = self.little.saturating_add(1);
        }
        self.full = if count == window { self.full.saturating_add(1) } else { 0 };
        self.window = if self.little < QUIET_CALLS {
            BUFFERS
        } else if self.full >= BACKLOG_CALLS {
            (window * 2).min(BUFFERS)
        } else if self.full > 0 {
            window
        } else {
            1
        };
        count == BUFFERS
    }
}

fn receive_call(
    socket: BorrowedFd<'_>,
    buffers: &mut [u8],
    window: usize,
    received: &mut [Received; BUFFERS],
) -> io::Result<usize> {
    let mut names = [MaybeUninit::<libc::sockaddr_storage>::uninit(); BUFFERS];
    let mut controls = [const { MaybeUninit::<Control>::uninit() }; BUFFERS];
    let mut pieces = [libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; BUFFERS];
    // SAFETY: all-zero bytes are a valid `mmsghdr`: null pointers and zero lengths.
    let mut messages: [libc::mmsghdr; BUFFERS] = unsafe { core::mem::zeroed() };
    for ((((message, piece), name), control), buffer) in messages
        .iter_mut()
        .zip(&mut pieces)
        .zip(&mut names)
        .zip(&mut controls)
        .zip(buffers.chunks_exact_mut(BUFFER_BYTES))
        .take(window)
    {
        piece.iov_base = buffer.as_mut_ptr().cast();
        piece.iov_len = buffer.len();
        let header = &mut message.msg_hdr;
        header.msg_name = name.as_mut_ptr().cast();
        header.msg_namelen = const {
            assert!(size_of::<libc::sockaddr_storage>() == 128);
            128
        };
        header.msg_iov = piece;
        header.msg_iovlen = 1;
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = size_of::<Control>() as _;
    }
    let used = window.min(BUFFERS);
    // SAFETY: each of the first `window` messages, of BUFFERS, points at one name, one iovec and one
    // control buffer of the arrays above, each with its true length; the iovecs point at disjoint
    // pieces of `buffers`. All of them outlive the call, which may write to them.
    let count = unsafe { receive_messages(socket, messages.get_mut(..used).unwrap_or_default())? };
    for ((message, name), info) in messages.iter().take(count).zip(&names).zip(received) {
        let bytes = message.msg_len as usize;
        *info = Received { bytes, segment_bytes: bytes, ..Received::NONE };
        // SAFETY: the kernel filled the name of each received message, at least up to its family;
        // `socket_address` reads no further than the length it reports.
        info.source = unsafe { socket_address(name, message.msg_hdr.msg_namelen) };
        info.truncated = message.msg_hdr.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0;
        // SAFETY: the kernel wrote well-formed control messages to the control buffer of this
        // header and set `msg_controllen` to their total length.
        unsafe { read_controls(&message.msg_hdr, info) };
    }
    Ok(count)
}

/// # Safety
/// The first `length` bytes of `name` are written.
unsafe fn socket_address(
    name: &MaybeUninit<libc::sockaddr_storage>,
    length: libc::socklen_t,
) -> Option<SocketAddr> {
    let length = length as usize;
    if length < size_of::<libc::sa_family_t>() {
        return None;
    }
    // SAFETY: the caller says that so much is written; the storage is aligned for every address.
    let family = unsafe { name.as_ptr().cast::<libc::sa_family_t>().read() };
    match libc::c_int::from(family) {
        libc::AF_INET if length >= size_of::<libc::sockaddr_in>() => {
            // SAFETY: as above; any bytes are a valid `sockaddr_in`.
            let address = unsafe { name.as_ptr().cast::<libc::sockaddr_in>().read() };
            let ip = u32::from_be(address.sin_addr.s_addr).into();
            Some(SocketAddrV4::new(ip, u16::from_be(address.sin_port)).into())
        }
        libc::AF_INET6 if length >= size_of::<libc::sockaddr_in6>() => {
            // SAFETY: as above; any bytes are a valid `sockaddr_in6`.
            let address = unsafe { name.as_ptr().cast::<libc::sockaddr_in6>().read() };
            let ip = IpAddr::V6(Ipv6Addr::from(address.sin6_addr.s6_addr));
            let IpAddr::V6(ip) = ip else { return None };
            let port = u16::from_be(address.sin6_port);
            Some(SocketAddrV6::new(ip, port, 0, address.sin6_scope_id).into())
        }
        _ => None,
    }
}

/// # Safety
/// `header` describes control messages that the kernel wrote.
unsafe fn read_controls(header: &libc::msghdr, info: &mut Received) {
    // SAFETY: `header` is as the kernel left it.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !next.is_null() {
        // SAFETY: the macros give headers inside the control buffer, aligned for `cmsghdr`.
        let control = unsafe { next.read() };
        // SAFETY: `next` is a header inside the control buffer; its data follow it.
        let data = unsafe { libc::CMSG_DATA(next) };
        match (control.cmsg_level, control.cmsg_type) {
            (libc::IPPROTO_UDP, UDP_GRO) => {
                // SAFETY: the kernel's data of this type are an int.
                let size = unsafe { data.cast::<libc::c_int>().read_unaligned() };
                if let Ok(size) = usize::try_from(size) {
                    info.segment_bytes = size;
                }
            }
            (libc::IPPROTO_IP, libc::IP_TOS) => {
                // SAFETY: the kernel's data of this type are one byte.
                info.congested = unsafe { data.read() } & CE == CE;
            }
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                // SAFETY: the kernel's data of this type are an int.
                let class = unsafe { data.cast::<libc::c_int>().read_unaligned() };
                info.congested = class & libc::c_int::from(CE) == libc::c_int::from(CE);
            }
            _ => {}
        }
        // SAFETY: `header` as above, `next` one of its messages.
        next = unsafe { libc::CMSG_NXTHDR(header, next) };
    }
}

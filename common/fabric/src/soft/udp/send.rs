//! From packets to the socket: runs of equal packets become one segmented message (UDP_SEGMENT),
//! several messages one `sendmmsg`. Large payloads are not copied: the kernel reads them where
//! they are registered.
//!
//! Headers, pads, ICRCs and small payloads are written one behind the other into a scratch buffer,
//! so that a message without large payloads is a single piece for the kernel.

use core::net::{IpAddr, SocketAddr};
use core::ptr;
use std::io;
use std::os::fd::BorrowedFd;

use lariat_roce::memory::MemRange;
use lariat_roce::transmit::{Payload, Transmit};
use lariat_wire::rocev2::{ICRC_LEN, IcrcSeed, MAX_HEADER};
use socket2::SockAddr;

use super::calls::send_messages;
use crate::regions::RegionTable;
use crate::soft::flows::{Direction, FlowCache};
use crate::soft::network::WireCounters;

const UDP_SEGMENT: libc::c_int = 103;
/// The kernel's limit of segments (older kernels: 64).
const MAX_SEGMENTS: usize = 64;
/// What fits an IPv4 packet.
const MAX_MESSAGE_BYTES: usize = 65_507;
/// Payloads up to this size are copied: cheaper than a piece of their own.
const INLINE_BYTES: usize = 256;
const MESSAGES: usize = 32;
/// What one call sends, about.
const CALL_BYTES: usize = 48 << 10;
/// ... or this, if it ends with packets that are copied.
const GROUP_BYTES: usize = 16 << 10;
const PIECES: usize = 1024;
/// Room that one packet takes in the scratch buffer at most.
const PACKET_SCRATCH: usize = MAX_HEADER + INLINE_BYTES + 3 + ICRC_LEN;
const SCRATCH_BYTES: usize = 512 * PACKET_SCRATCH;

/// The control message that names the size of segments.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; CONTROL_BYTES]);

// SAFETY: `CMSG_SPACE` and `CMSG_LEN` only compute.
const CONTROL_BYTES: usize = unsafe { libc::CMSG_SPACE(2) } as usize;
// SAFETY: as above.
const CONTROL_LEN: usize = unsafe { libc::CMSG_LEN(2) } as usize;

/// A planned message.
#[derive(Clone, Copy)]
struct Message {
    /// Packets of the batch up to its end.
    end: usize,
    packets: usize,
    first_piece: usize,
    pieces: usize,
    segmented: bool,
}

/// The sending half of a socket.
pub(super) struct Sender {
    flows: FlowCache,
    segmentation: bool,
    /// To whom the system last refused to send, and why.
    pub(super) refusal: Option<(IpAddr, i32)>,
    /// Never reallocated: pieces point into it.
    scratch: Box<[u8]>,
    used: usize,
    pieces: Vec<libc::iovec>,
    messages: Vec<Message>,
    names: Vec<SockAddr>,
    controls: Vec<Control>,
    headers: Vec<libc::mmsghdr>,
}

// SAFETY: the pointers in `pieces` and `headers` are made and used within one call of `transmit`;
// between calls both lists are empty.
unsafe impl Send for Sender {}

impl core::fmt::Debug for Sender {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Sender").field("segmentation", &self.segmentation).finish_non_exhaustive()
    }
}

impl Sender {
    pub(super) fn new(local: SocketAddr, segmentation: bool) -> Self {
        Self {
            flows: FlowCache::new(local, Direction::Out),
            segmentation,
            refusal: None,
            scratch: vec![0; SCRATCH_BYTES].into(),
            used: 0,
            pieces: Vec::with_capacity(PIECES),
            messages: Vec::with_capacity(MESSAGES),
            names: Vec::with_capacity(MESSAGES),
            controls: Vec::with_capacity(MESSAGES),
            headers: Vec::with_capacity(MESSAGES),
        }
    }

    /// See [`Wire::transmit`](crate::soft::network::Wire::transmit).
    pub(super) fn transmit(
        &mut self,
        socket: BorrowedFd<'_>,
        batch: &[Transmit],
        regions: &RegionTable,
        counters: &mut WireCounters,
    ) -> usize {
        let mut done = 0;
        // Packets before this one go without segmentation: the kernel refused theirs.
        let mut single_until = 0;
        while done < batch.len() {
            let planned = self.plan(batch, done, single_until, regions, counters);
            let mut first = 0;
            let mut blocked = false;
            while first < self.messages.len() {
                match self.send(socket, first) {
                    Ok(sent) => {
                        counters.send_calls += 1;
                        for message in self.messages.iter().skip(first).take(sent) {
                            counters.packets_sent += message.packets as u64;
                            done = message.end;
                        }
                        first += sent.max(1);
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        blocked = true;
                        break;
                    }
                    Err(error) => {
                        let Some(message) = self.messages.get(first).copied() else { break };
                        if message.segmented && self.refuses_segmentation(&error) {
                            single_until = message.end;
                            break;
                        }
                        // A full device queue, a route that is gone, a packet too large for it, a
                        // firewall: lost, as the network may lose it. The transport sends again.
                        tracing::debug!(%error, "send");
                        let name = self.names.get(first).and_then(SockAddr::as_socket);
                        self.refusal = name.map(|to| to.ip()).zip(error.raw_os_error());
                        counters.send_failures += message.packets as u64;
                        done = message.end;
                        first += 1;
                    }
                }
            }
            let all = first >= self.messages.len();
            self.clear();
            if blocked {
                return done;
            }
            if all {
                done = planned;
            }
        }
        done
    }

    /// Whether an error of a segmented call says that the socket or path cannot segment. Without
    /// checksum offload it never can (EIO); the other errors may be of this path alone.
    fn refuses_segmentation(&mut self, error: &io::Error) -> bool {
        match error.raw_os_error() {
            Some(libc::EIO | libc::EOPNOTSUPP | libc::ENOPROTOOPT) => {
                tracing::info!(%error, "no UDP segmentation here: sending packets one by one");
                self.segmentation = false;
                true
            }
            Some(libc::EINVAL | libc::EMSGSIZE) => true,
            _ => false,
        }
    }

    fn clear(&mut self) {
        self.headers.clear();
        self.pieces.clear();
        self.messages.clear();
        self.names.clear();
        self.controls.clear();
        self.used = 0;
    }

    /// Plans messages for the packets from `start` on, as many as there is room for, and returns
    /// where it stopped.
    fn plan(
        &mut self,
        batch: &[Transmit],
        start: usize,
        single_until: usize,
        regions: &RegionTable,
        counters: &mut WireCounters,
    ) -> usize {
        let mut at = start;
        let mut planned_bytes = 0;
        while let Some(first) = batch.get(at) {
            if self.messages.len() == MESSAGES || !self.has_room() {
                break;
            }
            let Some(flow) = self.flows.get(first.remote) else {
                counters.send_failures += 1;
                at += 1;
                continue;
            };
            let segment = first.datagram_len();
            if segment > MAX_MESSAGE_BYTES {
                counters.send_failures += 1;
                at += 1;
                continue;
            }
            let first_piece = self.pieces.len();
            let scratch_start = self.used;
            let segmentation = self.segmentation && at >= single_until;
            let most = if segmentation { MAX_SEGMENTS } else { 1 };
            let of_segment = flow.of_length(segment);
            let mut open = scratch_start;
            let mut packets = 0;
            let mut bytes = 0;
            while packets < most && self.has_room() {
                let Some(packet) = batch.get(at) else { break };
                let length = packet.datagram_len();
                let same = packet.dest_qp == first.dest_qp && packet.remote == first.remote;
                if !same || length > segment || bytes + length > MAX_MESSAGE_BYTES {
                    break;
                }
                let seed = if length == segment { of_segment } else { flow.of_length(length) };
                // The IPv4 identification of segment i is i.
                let seed = seed.seed(u16::try_from(packets).unwrap_or(0));
                if !self.write(packet, length, seed, regions, &mut open) {
                    // Its memory is gone, so nobody waits for it.
                    counters.send_failures += 1;
                    at += 1;
                    if packets == 0 {
                        break;
                    }
                    continue;
                }
                at += 1;
                packets += 1;
                bytes += length;
                if length < segment {
                    break;
                }
            }
            self.close_piece(&mut open);
            if packets == 0 {
                continue;
            }
            let segmented = packets > 1;
            self.messages.push(Message {
                end: at,
                packets,
                first_piece,
                pieces: self.pieces.len() - first_piece,
                segmented,
            });
            self.names.push(first.remote.into());
            self.controls.push(segment_control(u16::try_from(segment).unwrap_or(u16::MAX)));
            planned_bytes += bytes;
            // The peer can work on this much while we make the rest. Small packets behind large ones
            // are what these are good for, as a rule: the responses behind the data.
            let ends_a_group = segment <= INLINE_BYTES && planned_bytes >= GROUP_BYTES;
            if planned_bytes >= CALL_BYTES || ends_a_group {
                break;
            }
        }
        at
    }

    fn has_room(&self) -> bool {
        self.pieces.len() + 4 <= PIECES && self.used + PACKET_SCRATCH <= SCRATCH_BYTES
    }

    /// Writes one packet, which has `length` bytes. `open` is where the scratch piece that is not yet
    /// listed starts. `false` if the payload is gone; then nothing is written.
    #[inline]
    fn write(
        &mut self,
        packet: &Transmit,
        length: usize,
        seed: IcrcSeed,
        regions: &RegionTable,
        open: &mut usize,
    ) -> bool {
        let start = self.used;
        let header_len = usize::from(packet.header_len).min(MAX_HEADER);
        let pad = usize::from(packet.pad & 3);
        let payload_at = start + header_len;
        let payload_len = length.saturating_sub(header_len + pad + ICRC_LEN);
        // All of the room, which costs less than to copy what counts.
        if let Some(room) = self.scratch.get_mut(start..start + MAX_HEADER) {
            room.copy_from_slice(&packet.headers);
        }
        let (payload_end, icrc) = match &packet.payload {
            Payload::Memory(first, second) if payload_len > INLINE_BYTES => {
                let Some(one) = piece(regions, *first) else { return false };
                let two = match second {
                    Some(range) => match piece(regions, *range) {
                        Some(two) => two,
                        None => return false,
                    },
                    None => EMPTY_PIECE,
                };
                // SAFETY: `piece` gave addresses of live registered memory of these lengths (or an
                // empty piece at a dangling but aligned address), which the table keeps alive
                // through this call. The bytes of a work request stay untouched until it completes
                // (`SendRequest`); should somebody (a peer allowed to, a user who breaks the rule)
                // write them now or before the kernel has read them, the sum does not fit the bytes
                // and the receiver drops the packet as damaged.
                let parts = unsafe { [bytes_of(&one), bytes_of(&two)] };
                let header = packet.headers.get(..header_len).unwrap_or_default();
                let icrc = seed.over_parts(header, &parts, packet.pad & 3);
                self.used = payload_at;
                self.close_piece(open);
                self.pieces.push(one);
                if two.iov_len != 0 {
                    self.pieces.push(two);
                }
                *open = self.used;
                self.pad(payload_at, pad);
                (payload_at, icrc)
            }
            payload => {
                let end = payload_at + payload_len;
                let copied = self
                    .scratch
                    .get_mut(payload_at..end)
                    .is_some_and(|room| copy_payload(payload, regions, room));
                if !copied {
                    return false;
                }
                self.pad(end, pad);
                (end, seed.over(self.scratch.get(start..end + pad).unwrap_or_default()))
            }
        };
        let icrc_at = payload_end + pad;
        self.used = icrc_at + ICRC_LEN;
        if let Some(room) = self.scratch.get_mut(icrc_at..icrc_at + ICRC_LEN) {
            room.copy_from_slice(&icrc);
        }
        true
    }

    #[inline]
    fn pad(&mut self, at: usize, bytes: usize) {
        if bytes > 0
            && let Some(room) = self.scratch.get_mut(at..at + bytes)
        {
            room.fill(0);
        }
    }

    /// Lists what was written to the scratch buffer since `open` as a piece.
    #[inline]
    fn close_piece(&mut self, open: &mut usize) {
        if let Some(written) = self.scratch.get_mut(*open..self.used)
            && !written.is_empty()
        {
            let piece =
                libc::iovec { iov_base: written.as_mut_ptr().cast(), iov_len: written.len() };
            self.pieces.push(piece);
        }
        *open = self.used;
    }

    /// Sends the planned messages from `first` on; how many went.
    fn send(&mut self, socket: BorrowedFd<'_>, first: usize) -> io::Result<usize> {
        self.headers.clear();
        for (index, message) in self.messages.iter().enumerate().skip(first) {
            // SAFETY: all-zero bytes are a valid `mmsghdr`: null pointers and zero lengths.
            let mut header: libc::mmsghdr = unsafe { core::mem::zeroed() };
            let Some((name, control)) = self.names.get(index).zip(self.controls.get_mut(index))
            else {
                break;
            };
            let pieces = message.first_piece..message.first_piece + message.pieces;
            let Some(pieces) = self.pieces.get_mut(pieces) else { break };
            header.msg_hdr.msg_name = name.as_ptr().cast_mut().cast();
            header.msg_hdr.msg_namelen = name.len();
            header.msg_hdr.msg_iov = pieces.as_mut_ptr();
            header.msg_hdr.msg_iovlen = pieces.len() as _;
            if message.segmented {
                header.msg_hdr.msg_control = ptr::from_mut(control).cast();
                header.msg_hdr.msg_controllen = CONTROL_BYTES as _;
            }
            self.headers.push(header);
        }
        // SAFETY: the headers point at names, pieces and controls that live in `self` and do not
        // change during the call; the pieces at the scratch buffer and at registered memory that
        // the table keeps alive through `transmit`. The kernel only reads all of them, and writes
        // the headers' lengths.
        unsafe { send_messages(socket, &mut self.headers) }
    }
}

const EMPTY_PIECE: libc::iovec =
    libc::iovec { iov_base: ptr::dangling_mut::<u8>().cast(), iov_len: 0 };

#[inline]
fn piece(regions: &RegionTable, range: MemRange) -> Option<libc::iovec> {
    let base = regions.address(range)?;
    Some(libc::iovec { iov_base: base.as_ptr().cast(), iov_len: range.length as usize })
}

/// # Safety
/// The piece is empty or names live memory, for the life of the result.
unsafe fn bytes_of<'a>(piece: &libc::iovec) -> &'a [u8] {
    // SAFETY: the caller's promise.
    unsafe { core::slice::from_raw_parts(piece.iov_base.cast::<u8>(), piece.iov_len) }
}

fn copy_payload(payload: &Payload, regions: &RegionTable, room: &mut [u8]) -> bool {
    match payload {
        Payload::Empty => true,
        Payload::Mad(mad) => {
            if room.len() == mad.len() {
                room.copy_from_slice(mad.as_slice());
            }
            true
        }
        Payload::Memory(first, second) => {
            let Some((head, tail)) = room.split_at_mut_checked(first.length as usize) else {
                return false;
            };
            regions.read(*first, head) && second.is_none_or(|range| regions.read(range, tail))
        }
    }
}

fn segment_control(bytes: u16) -> Control {
    let mut control = Control([0; CONTROL_BYTES]);
    let header = libc::cmsghdr {
        cmsg_len: CONTROL_LEN as _,
        cmsg_level: libc::IPPROTO_UDP,
        cmsg_type: UDP_SEGMENT,
    };
    // SAFETY: the buffer has room for a header and two bytes (`CMSG_SPACE`) and its alignment; the
    // data of a control message start right behind its (padded) header.
    unsafe {
        let start = control.0.as_mut_ptr();
        start.cast::<libc::cmsghdr>().write(header);
        start.add(CONTROL_LEN - 2).cast::<u16>().write_unaligned(bytes);
    }
    control
}

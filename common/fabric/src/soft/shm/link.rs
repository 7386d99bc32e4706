//! One end of a link: the rings in both directions between one member of a group and one of the
//! peer's, and the Unix socket between the two that wakes a sleeper and ends with its process.
//!
//! Used by `table` (which sends and receives) and `agree` (which makes ends and passes them on);
//! calls `ring`.
//!
//! The bell is a socket rather than an eventfd: an eventfd's flags are shared with the peer, who
//! could make our reads and writes of it block. A socket has a flag for each call, and its end
//! tells that the peer is gone.

use core::net::SocketAddr;
use core::time::Duration;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use lariat_roce::time::Timestamp;
use lariat_roce::transmit::{Payload, Transmit};
use nix::errno::Errno;
use nix::sys::socket::{
    self, AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, sockopt,
};

use super::ring::{self, Broken, Consumer, PacketBuffer, Piece, Producer, Pushed};
use crate::regions::RegionTable;

/// How long others wait for a peer whose ring is full and that takes nothing out. After that its
/// packets are lost, as a full socket would lose them.
const PATIENCE: Duration = Duration::from_millis(10);
/// Room for the descriptors that one message may bring (253, SCM_MAX_FD), and their header.
const CONTROL_BYTES: usize = 16 + 254 * size_of::<RawFd>();
/// What is written before the peer is shown it.
const PUBLISH_BYTES: u64 = 8 << 10;

/// Who is at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Peer {
    /// The UDP address it is known by.
    pub(super) address: SocketAddr,
    /// Which member of its group it is, and of how many.
    pub(super) member: u8,
    pub(super) members: u8,
}

/// One end.
pub(super) struct Link {
    pub(super) peer: Peer,
    producer: Producer,
    consumer: Consumer,
    bell: OwnedFd,
    /// Whether we asked to be woken.
    armed: bool,
    /// The ring was full then, and the peer had read so far.
    full: Option<(Timestamp, u64)>,
}

impl core::fmt::Debug for Link {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Link").field("peer", &self.peer).finish_non_exhaustive()
    }
}

/// What is passed to the peer for one link.
#[derive(Debug)]
pub(super) struct Ends {
    pub(super) memory: OwnedFd,
    pub(super) bell: OwnedFd,
}

/// Whether it is this side that made the memory: it writes the first ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Maker,
    Taker,
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    Yes,
    /// Lost: no memory to send any more, or a peer that stands still.
    Lost,
    /// Not now.
    Blocked,
}

impl Link {
    /// Makes a link; our end, and what the peer needs for its own.
    pub(super) fn make(peer: Peer, capacity: u32) -> io::Result<(Self, Ends)> {
        let memory = ring::allocate(capacity)?;
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let (ours, theirs) =
            socket::socketpair(AddressFamily::Unix, SockType::Stream, None, flags)?;
        let ends = Ends { memory, bell: theirs };
        Ok((Self::open(peer, ends.memory.as_fd(), ours, capacity, Role::Maker)?, ends))
    }

    /// The other end of a link.
    ///
    /// # Errors
    /// The memory or the bell is not what it is to be, or the operating system's word.
    pub(super) fn take(peer: Peer, ends: Ends, capacity: u32) -> io::Result<Self> {
        if !is_bell(ends.bell.as_fd()) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a bell that is no socket pair",
            ));
        }
        Self::open(peer, ends.memory.as_fd(), ends.bell, capacity, Role::Taker)
    }

    fn open(
        peer: Peer,
        memory: BorrowedFd<'_>,
        bell: OwnedFd,
        capacity: u32,
        role: Role,
    ) -> io::Result<Self> {
        let (producer, mut consumer) = ring::map(memory, capacity, role == Role::Maker)?;
        // Until somebody looks.
        consumer.arm().map_err(io::Error::other)?;
        Ok(Self { peer, producer, consumer, bell, armed: true, full: None })
    }

    /// What becomes readable when the peer rings or is gone.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Takes what was rung; `false` if the peer is gone, or makes noise: it is to ring once for each
    /// time that it was asked to, and what it rang is taken before it is asked again.
    pub(super) fn hear(&self) -> bool {
        let mut rings = [0; 64];
        match socket::recv(self.bell.as_raw_fd(), &mut rings, MsgFlags::MSG_DONTWAIT) {
            Ok(bytes) => (1..rings.len()).contains(&bytes),
            Err(Errno::EAGAIN | Errno::EINTR) => true,
            Err(_) => false,
        }
    }

    /// Whether packets wait that came before the peer was gone.
    pub(super) fn has_packets(&mut self) -> bool {
        self.consumer.look() == Ok(true)
    }

    /// Writes a packet into the ring. [`Link::publish`] has to follow.
    #[inline]
    pub(super) fn send(
        &mut self,
        now: Timestamp,
        packet: &Transmit,
        regions: &RegionTable,
    ) -> Result<Sent, Broken> {
        let headers = packet.headers.get(..usize::from(packet.header_len)).unwrap_or_default();
        let mut pieces = [Piece::Bytes(&[]); 2];
        let count = match &packet.payload {
            Payload::Empty => 0,
            Payload::Mad(mad) => {
                pieces = [Piece::Bytes(mad.as_slice()), Piece::Bytes(&[])];
                1
            }
            Payload::Memory(first, second) => {
                let rest = second.map_or(Piece::Bytes(&[]), Piece::Memory);
                pieces = [Piece::Memory(*first), rest];
                1 + usize::from(second.is_some())
            }
        };
        let pieces = pieces.get(..count).unwrap_or_default();
        let pushed = self.producer.push(headers, pieces, usize::from(packet.pad & 3), regions)?;
        match pushed {
            Pushed::Yes => {
                self.full = None;
                if self.producer.unpublished() >= PUBLISH_BYTES {
                    self.publish();
                }
                Ok(Sent::Yes)
            }
            Pushed::Gone => Ok(Sent::Lost),
            Pushed::Full => {
                self.publish();
                let read = self.producer.peer_has_read();
                match self.full {
                    Some((since, then)) if then == read => {
                        let lost = now.since(since) > PATIENCE;
                        Ok(if lost { Sent::Lost } else { Sent::Blocked })
                    }
                    _ => {
                        self.full = Some((now, read));
                        Ok(Sent::Blocked)
                    }
                }
            }
        }
    }

    /// Shows the peer what was sent, and wakes it if it sleeps.
    #[inline]
    pub(super) fn publish(&mut self) {
        if self.producer.unpublished() != 0 && self.producer.publish() {
            // A full socket wakes just as well; of a peer that is gone the socket tells.
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
            let _ = socket::send(self.bell.as_raw_fd(), &[1], flags);
        }
    }

    /// Hands in at most `budget` packets; how many there were.
    #[inline]
    pub(super) fn receive(
        &mut self,
        budget: usize,
        buffer: &mut PacketBuffer,
        mut sink: impl FnMut(SocketAddr, &[u8]),
    ) -> Result<usize, Broken> {
        let mut taken = 0;
        while taken < budget {
            let Some(datagram) = self.consumer.pop(buffer)? else { break };
            sink(self.peer.address, datagram);
            taken += 1;
            if taken % 8 == 0 {
                self.consumer.release();
            }
        }
        self.consumer.release();
        if taken != 0 && self.armed {
            self.armed = false;
            self.consumer.disarm();
        }
        Ok(taken)
    }

    /// Says something to the peer that makes no ring.
    #[cfg(test)]
    pub(super) fn break_it(&self) {
        self.producer.break_it();
    }

    /// Asks the peer to ring, until packets are taken. `true` if there is something already.
    pub(super) fn arm(&mut self) -> Result<bool, Broken> {
        self.armed = true;
        self.consumer.arm()
    }
}

/// Whether this is a connected Unix stream socket: of others we would not learn that the peer is gone.
fn is_bell(fd: BorrowedFd<'_>) -> bool {
    socket::getsockopt(&fd, sockopt::SockType) == Ok(SockType::Stream)
        && socket::getpeername::<UnixAddr>(fd.as_raw_fd()).is_ok()
}

/// Sends a message with the two descriptors of a link, without waiting.
pub(super) fn pass(socket: BorrowedFd<'_>, message: &[u8], ends: &Ends) -> io::Result<()> {
    let fds = [ends.memory.as_raw_fd(), ends.bell.as_raw_fd()];
    let control = [ControlMessage::ScmRights(&fds)];
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    let pieces = [io::IoSlice::new(message)];
    socket::sendmsg::<()>(socket.as_raw_fd(), &pieces, &control, flags, None)?;
    Ok(())
}

/// The descriptors that the kernel gave with a message.
fn descriptors(header: &libc::msghdr) -> Vec<OwnedFd> {
    let mut fds = Vec::new();
    // SAFETY: the kernel wrote the control messages of this header and their length, and the macros
    // stay inside it; the descriptors were opened for this call, nobody else has them.
    unsafe {
        let empty = libc::CMSG_LEN(0) as usize;
        let mut at = libc::CMSG_FIRSTHDR(header);
        while let Some(message) = at.as_ref() {
            if (message.cmsg_level, message.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let data = libc::CMSG_DATA(at).cast::<RawFd>();
                let count = message.cmsg_len.saturating_sub(empty) / size_of::<RawFd>();
                fds.extend(
                    (0..count).map(|nth| OwnedFd::from_raw_fd(data.add(nth).read_unaligned())),
                );
            }
            at = libc::CMSG_NXTHDR(header, at);
        }
    }
    fds
}

/// Receives a message, and the two descriptors of a link if there are exactly two, without waiting.
/// `None` at the end.
pub(super) fn receive(
    socket: BorrowedFd<'_>,
    message: &mut [u8],
) -> io::Result<Option<(usize, Option<Ends>)>> {
    let mut control = [0_u64; CONTROL_BYTES / 8];
    let mut piece = libc::iovec { iov_base: message.as_mut_ptr().cast(), iov_len: message.len() };
    // SAFETY: zeros are a valid (empty) header.
    let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
    header.msg_iov = &raw mut piece;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = CONTROL_BYTES;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the header names two exclusive borrows with their lengths.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) };
    // What comes negative is an error.
    let bytes = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    // All of them, also if there was no room in our table for the rest (MSG_CTRUNC): what is not
    // taken here nobody closes.
    let fds = descriptors(&header);
    if bytes == 0 {
        return Ok(None);
    }
    let ends = match <[OwnedFd; 2]>::try_from(fds) {
        Ok([memory, bell]) => Some(Ends { memory, bell }),
        Err(_) => None,
    };
    Ok(Some((bytes, ends)))
}

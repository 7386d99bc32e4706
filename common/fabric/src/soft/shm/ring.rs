//! A ring of packets in memory that two processes share: one of them writes, the other reads.
//!
//! Called by `link`; calls nothing but the kernel (to map) and [`RegionTable`] (for payloads).
//!
//! The peer may write anything anywhere in the memory at any time. So there are no references to
//! it: indices are atomics, bytes are copied. What the peer says is read once, checked, and used as
//! it was read; each side keeps its own index to itself and never reads it back. What does not fit
//! is [`Broken`], and the link is given up.
//!
//! Layout, in bytes from the start: the writer's index (0), the reader's index (128), "the reader
//! sleeps" (256), records (4096). Indices count bytes and never wrap. A record is a multiple of 64
//! bytes long: length of the headers and of the rest (8 bytes), headers, and from byte 64 the rest
//! (payload and pad). There is no ICRC: memory is not a cable.

use core::num::NonZeroUsize;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use lariat_roce::memory::MemRange;
use lariat_wire::rocev2::{ICRC_LEN, MAX_HEADER};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};

use crate::regions::RegionTable;

const TAIL: usize = 0;
const HEAD: usize = 128;
const ASLEEP: usize = 256;
const RECORDS: usize = 4096;
/// Records start at multiples of this; so does the payload in one, where copies are fastest.
const UNIT: u64 = 64;
const PAYLOAD_AT: u64 = 64;
/// The longest payload of a packet (path MTU 4096) with its pad.
const MAX_PAYLOAD: usize = 4096 + 3;
/// Sizes of the records' part that both sides take.
const MIN_CAPACITY: u32 = 64 << 10;
const MAX_CAPACITY: u32 = 16 << 20;

/// What a peer wrote that makes no ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Broken {
    #[error("indices {head} and {tail} in a ring of {capacity} bytes")]
    Index { head: u64, tail: u64, capacity: u64 },
    #[error("a record of {headers} bytes of headers and {payload} of payload, in {filled} bytes")]
    Record { headers: u32, payload: u32, filled: u64 },
}

/// Memory that is shared with another process.
pub(super) struct Mapping {
    base: NonNull<u8>,
    bytes: NonZeroUsize,
}

// SAFETY: the mapping has a fixed address and length for its whole life, and its bytes are reached
// only by atomics and raw copies.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `Mapping::new` mapped exactly this range, and nothing reaches it any more.
        let _ = unsafe { munmap(self.base.cast(), self.bytes.get()) };
    }
}

/// Whether rings may have so many bytes of records.
pub(super) fn fits(capacity: u32) -> bool {
    capacity.is_power_of_two() && (MIN_CAPACITY..=MAX_CAPACITY).contains(&capacity)
}

/// The size of memory that holds two rings of this capacity.
fn pair_bytes(capacity: u32) -> usize {
    2 * (RECORDS + capacity as usize)
}

/// New memory for a pair of rings, which nobody can make smaller any more.
pub(super) fn allocate(capacity: u32) -> io::Result<OwnedFd> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let memory = memfd_create(c"lariat-wire", flags)?;
    let bytes = i64::try_from(pair_bytes(capacity)).map_err(io::Error::other)?;
    nix::unistd::ftruncate(&memory, bytes)?;
    fcntl(&memory, FcntlArg::F_ADD_SEALS(SEALS | SealFlag::F_SEAL_SEAL))?;
    Ok(memory)
}

const SEALS: SealFlag = SealFlag::F_SEAL_SHRINK.union(SealFlag::F_SEAL_GROW);

impl Mapping {
    /// Maps memory that may come from a peer: it must be plain memory that cannot become smaller,
    /// or an access could end this process (SIGBUS).
    fn new(memory: impl AsFd, bytes: NonZeroUsize) -> io::Result<Self> {
        let refused = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why);
        let seals = fcntl(&memory, FcntlArg::F_GET_SEALS)?;
        if !SealFlag::from_bits_retain(seals).contains(SEALS) {
            return Err(refused("shared memory whose size is not sealed"));
        }
        if fstatfs(&memory)?.filesystem_type() != TMPFS_MAGIC {
            return Err(refused("shared memory of an unknown kind"));
        }
        let size = nix::sys::stat::fstat(&memory)?.st_size;
        if u64::try_from(size).ok() != Some(bytes.get() as u64) {
            return Err(refused("shared memory of another size than agreed"));
        }
        let rights = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a shared mapping of a file at an address of the kernel's choice aliases nothing
        // of this program; its bytes are there for as long as it lives (size and seals, above).
        let base = unsafe { mmap(None, bytes, rights, MapFlags::MAP_SHARED, memory, 0) }?;
        Ok(Self { base: base.cast(), bytes })
    }
}

/// Maps a pair of rings: the writer of the first or of the second, and the reader of the other.
pub(super) fn map(
    memory: impl AsFd,
    capacity: u32,
    first: bool,
) -> io::Result<(Producer, Consumer)> {
    let bytes = NonZeroUsize::new(pair_bytes(capacity)).filter(|_| fits(capacity));
    let bytes = bytes.ok_or(io::ErrorKind::InvalidInput)?;
    let mapping = Arc::new(Mapping::new(memory, bytes)?);
    let area = |second: bool| Area {
        mapping: Arc::clone(&mapping),
        start: if second { RECORDS + capacity as usize } else { 0 },
        capacity: u64::from(capacity),
    };
    let producer = Producer { area: area(!first), tail: 0, published: 0, head: 0 };
    Ok((producer, Consumer { area: area(first), head: 0, tail: 0, released: 0 }))
}

/// One ring's part of the memory. `map` saw to it that header and records lie inside.
struct Area {
    mapping: Arc<Mapping>,
    start: usize,
    capacity: u64,
}

impl Area {
    /// An index of the header.
    #[inline]
    fn index(&self, at: usize) -> &AtomicU64 {
        debug_assert!(at == TAIL || at == HEAD);
        // SAFETY: header and records lie inside the mapping, which lives as long as `self` and is
        // page aligned, as are the starts of rings; both sides use atomic operations here (a peer
        // that does not gets what it deserves: any value is checked).
        unsafe { AtomicU64::from_ptr(self.mapping.base.add(self.start + at).as_ptr().cast()) }
    }

    #[inline]
    fn asleep(&self) -> &AtomicU32 {
        // SAFETY: as in `index`.
        unsafe { AtomicU32::from_ptr(self.mapping.base.add(self.start + ASLEEP).as_ptr().cast()) }
    }

    /// Where the byte at an index is, and how many bytes follow before the end of the records.
    #[inline]
    fn place(&self, at: u64) -> (NonNull<u8>, usize) {
        let offset = at & (self.capacity - 1);
        #[expect(clippy::cast_possible_truncation, reason = "capacities are 32 bit numbers")]
        let (offset, left) = (offset as usize, (self.capacity - offset) as usize);
        // SAFETY: `offset` is less than the capacity, and the records lie inside the mapping.
        (unsafe { self.mapping.base.add(self.start + RECORDS + offset) }, left)
    }

    /// Copies bytes in from an index on, around the end.
    ///
    /// # Safety
    /// `from` is valid for reads of `length` bytes and no part of the mapping.
    #[inline]
    unsafe fn write(&self, at: u64, from: NonNull<u8>, length: usize) {
        debug_assert!(length as u64 <= self.capacity);
        let (to, left) = self.place(at);
        let first = length.min(left);
        // SAFETY: `first` bytes fit before the end of the records, the rest (no more than
        // `capacity - left`, as `length` is at most the capacity) at their start.
        unsafe {
            core::ptr::copy_nonoverlapping(from.as_ptr(), to.as_ptr(), first);
            if first < length {
                let (to, _) = self.place(0);
                let from = from.add(first);
                core::ptr::copy_nonoverlapping(from.as_ptr(), to.as_ptr(), length - first);
            }
        }
    }

    /// Copies bytes out from an index on, around the end.
    #[inline]
    fn read(&self, at: u64, into: &mut [u8]) {
        let (from, left) = self.place(at);
        let (head, tail) = into.split_at_mut(into.len().min(left));
        let (start, capacity) = self.place(0);
        let tail_bytes = tail.len().min(capacity);
        // SAFETY: `head` is no longer than what is left before the end of the records, `tail_bytes`
        // no longer than all of them; the slices are exclusive borrows of other memory. The peer
        // may write at the same time: the copy is then of old, new or mixed bytes, and only it is
        // looked at.
        unsafe {
            core::ptr::copy_nonoverlapping(from.as_ptr(), head.as_mut_ptr(), head.len());
            core::ptr::copy_nonoverlapping(start.as_ptr(), tail.as_mut_ptr(), tail_bytes);
        }
    }
}

/// The writing side.
pub(super) struct Producer {
    area: Area,
    /// Where the next record goes.
    tail: u64,
    /// Up to where the peer was told.
    published: u64,
    /// Where the peer was when last looked at.
    head: u64,
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pushed {
    /// It is in the ring.
    Yes,
    /// There is no room for it now.
    Full,
    /// Its memory is gone, or it is too large: nobody waits for it.
    Gone,
}

/// A piece of a packet's payload.
#[derive(Clone, Copy)]
pub(super) enum Piece<'a> {
    Bytes(&'a [u8]),
    Memory(MemRange),
}

impl Producer {
    /// Writes a packet: headers, pieces of payload, zero bytes. The peer sees it after `publish`.
    #[inline]
    pub(super) fn push(
        &mut self,
        headers: &[u8],
        pieces: &[Piece<'_>],
        pad: usize,
        regions: &RegionTable,
    ) -> Result<Pushed, Broken> {
        let payload: usize = pieces.iter().map(Piece::len).sum::<usize>() + pad;
        if headers.len() > MAX_HEADER || payload > MAX_PAYLOAD {
            return Ok(Pushed::Gone);
        }
        let bytes = PAYLOAD_AT + payload as u64;
        let end = self.tail + bytes.next_multiple_of(UNIT);
        if end - self.head > self.area.capacity {
            let head = self.area.index(HEAD).load(Ordering::Acquire);
            let capacity = self.area.capacity;
            match self.tail.checked_sub(head) {
                Some(filled) if filled <= capacity => self.head = head,
                _ => return Err(Broken::Index { head, tail: self.tail, capacity }),
            }
            if end - head > self.area.capacity {
                return Ok(Pushed::Full);
            }
        }
        let mut at = self.tail + PAYLOAD_AT;
        for piece in pieces {
            let from = match piece {
                Piece::Bytes(bytes) => NonNull::from(*bytes).cast(),
                Piece::Memory(range) => match regions.address(*range) {
                    Some(address) => address,
                    None => return Ok(Pushed::Gone),
                },
            };
            // SAFETY: bytes of a borrow, or of live registered memory of this length, which the
            // table keeps alive through the call. Neither is part of the mapping, which nobody
            // else knows of. There is room for them (above).
            unsafe { self.area.write(at, from, piece.len()) };
            at += piece.len() as u64;
        }
        let zeros = NonNull::from(&[0_u8; 3]).cast();
        let [a, b, c, d] = u32::try_from(headers.len()).unwrap_or(0).to_ne_bytes();
        let [e, f, g, h] = u32::try_from(payload).unwrap_or(0).to_ne_bytes();
        // SAFETY: borrows, with room for them as above. `pad` is at most 3.
        unsafe {
            self.area.write(at, zeros, pad.min(3));
            self.area.write(self.tail, NonNull::from(&[a, b, c, d, e, f, g, h]).cast(), 8);
            self.area.write(self.tail + 8, NonNull::from(headers).cast(), headers.len());
        }
        self.tail = end;
        Ok(Pushed::Yes)
    }

    /// Whether there are packets that the peer was not told of.
    #[inline]
    pub(super) fn unpublished(&self) -> u64 {
        self.tail - self.published
    }

    /// Shows the peer all packets. `true`: it sleeps and has to be woken.
    #[inline]
    pub(super) fn publish(&mut self) -> bool {
        self.published = self.tail;
        self.area.index(TAIL).store(self.tail, Ordering::Release);
        // Either the reader sees the new index in its last look, or we see that it sleeps.
        fence(Ordering::SeqCst);
        let asleep = self.area.asleep();
        asleep.load(Ordering::Relaxed) != 0 && asleep.swap(0, Ordering::Relaxed) != 0
    }

    #[cfg(test)]
    pub(super) fn break_it(&self) {
        self.area.index(TAIL).store(1, Ordering::Release);
    }

    /// How far the peer has read, as far as is known.
    pub(super) fn peer_has_read(&self) -> u64 {
        self.head
    }
}

impl Piece<'_> {
    #[inline]
    fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Memory(range) => range.length as usize,
        }
    }
}

/// Private memory for a packet that comes in.
pub(super) struct PacketBuffer(Box<[u8; BUFFER]>);

/// Headers end where the payload starts, at this place.
const BUFFER_PAYLOAD: usize = 64;
const BUFFER: usize = BUFFER_PAYLOAD + 4096 + 64;

impl PacketBuffer {
    pub(super) fn new() -> Self {
        Self(Box::new([0; BUFFER]))
    }
}

/// The reading side.
pub(super) struct Consumer {
    area: Area,
    /// Where the next record is.
    head: u64,
    /// Up to where there are records, when last looked at.
    tail: u64,
    /// Up to where the peer was told that there is room again.
    released: u64,
}

impl Consumer {
    /// Whether there is a packet.
    #[inline]
    pub(super) fn look(&mut self) -> Result<bool, Broken> {
        if self.head == self.tail {
            let tail = self.area.index(TAIL).load(Ordering::Acquire);
            let capacity = self.area.capacity;
            // What we have read but not released is the peer's to write no sooner than that.
            let end = self.released.saturating_add(capacity);
            if !(self.head..=end).contains(&tail) || !tail.is_multiple_of(UNIT) {
                return Err(Broken::Index { head: self.head, tail, capacity });
            }
            self.tail = tail;
        }
        Ok(self.head != self.tail)
    }

    /// Copies the next packet out: its bytes as a UDP datagram would have them, with an ICRC of
    /// zeros.
    #[inline]
    pub(super) fn pop<'a>(
        &mut self,
        buffer: &'a mut PacketBuffer,
    ) -> Result<Option<&'a [u8]>, Broken> {
        if !self.look()? {
            return Ok(None);
        }
        let mut start = [0; BUFFER_PAYLOAD];
        self.area.read(self.head, &mut start);
        let word = |at: usize| {
            start.get(at..).and_then(<[u8]>::first_chunk).copied().map_or(0, u32::from_ne_bytes)
        };
        let (headers, payload) = (word(0), word(4));
        let filled = self.tail - self.head;
        let broken = Broken::Record { headers, payload, filled };
        let bytes = (PAYLOAD_AT + u64::from(payload)).next_multiple_of(UNIT);
        let (headers, payload) = (headers as usize, payload as usize);
        if headers > MAX_HEADER || payload > MAX_PAYLOAD || bytes > filled {
            return Err(broken);
        }
        let first = BUFFER_PAYLOAD - headers;
        let end = BUFFER_PAYLOAD + payload;
        if let Some(room) = buffer.0.get_mut(first..BUFFER_PAYLOAD) {
            room.copy_from_slice(start.get(8..8 + headers).ok_or(broken)?);
        }
        if payload != 0 {
            let room = buffer.0.get_mut(BUFFER_PAYLOAD..end).ok_or(broken)?;
            self.area.read(self.head + PAYLOAD_AT, room);
        }
        buffer.0.get_mut(end..end + ICRC_LEN).ok_or(broken)?.fill(0);
        self.head += bytes;
        buffer.0.get(first..end + ICRC_LEN).ok_or(broken).map(Some)
    }

    /// Gives the room of packets that were taken back to the peer.
    #[inline]
    pub(super) fn release(&mut self) {
        if self.released != self.head {
            self.released = self.head;
            self.area.index(HEAD).store(self.head, Ordering::Release);
        }
    }

    /// Asks for a wake-up. `true` (or broken): there is something already.
    pub(super) fn arm(&mut self) -> Result<bool, Broken> {
        self.area.asleep().store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.look()
    }

    /// No wake-up is needed any more.
    pub(super) fn disarm(&self) {
        self.area.asleep().store(0, Ordering::Relaxed);
    }
}

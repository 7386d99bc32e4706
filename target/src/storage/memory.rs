//! A RAM disk that all reactors of the process share. Called by `uring`; calls `collapse`.
//!
//! Blocks are read and written whole: locks over stripes of 2 MiB see to it. They are hardly ever
//! contended, and a request takes one at a time.

use std::io;
use std::sync::{Arc, PoisonError, RwLock};

use lariat_fabric::Memory;

use super::collapse::Collapser;
use super::sys;

const STRIPE_BYTES: u64 = 2 << 20;
/// What comes to the cache ahead of a request: a line, since what takes long is to find the page.
/// (All pages of a batch at once, or more than a line of each, is more than a processor can have on
/// its way: it stands still for it.)
const ANNOUNCED_BYTES: usize = 64;
const LOCKS: usize = 128;

/// The disk.
#[derive(Debug)]
pub(super) struct MemoryDisk {
    bytes: Arc<Memory>,
    locks: Box<[RwLock<()>]>,
    /// A disk is read at random: with small pages most reads miss the TLB as well.
    collapser: Collapser,
}

impl MemoryDisk {
    /// Allocates address space; pages come as they are written.
    pub(super) fn new(size_bytes: usize) -> io::Result<Self> {
        let locks = (0..LOCKS).map(|_| RwLock::new(())).collect();
        let bytes = Memory::allocate(size_bytes)?;
        // See `collapse`.
        sys::take_small_pages(&bytes);
        let collapser = Collapser::start(Arc::clone(&bytes))?;
        Ok(Self { bytes, locks, collapser })
    }

    /// The block at that offset is read next: the beginning of it may come to the cache meanwhile.
    pub(super) fn announce(&self, at: u64) {
        sys::prefetch(&self.bytes, at, ANNOUNCED_BYTES);
    }

    /// Disk to buffer.
    pub(super) fn read(&self, at: u64, buffer: &Memory, offset: u64, length: u64) -> Option<()> {
        for piece in pieces(at, length)? {
            let lock = self.locks.get(piece.lock)?;
            let _shared = lock.read().unwrap_or_else(PoisonError::into_inner);
            let sink = offset.checked_add(piece.done)?;
            Memory::copy(&self.bytes, piece.at, buffer, sink, piece.length).ok()?;
        }
        Some(())
    }

    /// Buffer to disk.
    pub(super) fn write(&self, at: u64, buffer: &Memory, offset: u64, length: u64) -> Option<()> {
        for piece in pieces(at, length)? {
            let lock = self.locks.get(piece.lock)?;
            let _exclusive = lock.write().unwrap_or_else(PoisonError::into_inner);
            let source = offset.checked_add(piece.done)?;
            sys::copy_past_caches(buffer, source, &self.bytes, piece.at, piece.length).ok()?;
        }
        self.collapser.written(at, length);
        Some(())
    }

    /// The bytes read as zeroes afterwards and take no memory.
    pub(super) fn zero(&self, at: u64, length: u64) -> Option<()> {
        for piece in pieces(at, length)? {
            let lock = self.locks.get(piece.lock)?;
            let _exclusive = lock.write().unwrap_or_else(PoisonError::into_inner);
            sys::discard(&self.bytes, piece.at, piece.length).ok()?;
        }
        self.collapser.discarded(at, length);
        Some(())
    }
}

/// A part of a range that lies in one stripe.
struct Piece {
    at: u64,
    done: u64,
    length: usize,
    lock: usize,
}

fn pieces(at: u64, length: u64) -> Option<impl Iterator<Item = Piece>> {
    let end = at.checked_add(length)?;
    let mut next = at;
    Some(core::iter::from_fn(move || {
        if next >= end {
            return None;
        }
        let stripe = next / STRIPE_BYTES;
        let here = (end - next).min(STRIPE_BYTES - next % STRIPE_BYTES);
        let piece = Piece {
            at: next,
            done: next - at,
            length: usize::try_from(here).ok()?,
            lock: usize::try_from(stripe % LOCKS as u64).ok()?,
        };
        next += here;
        Some(piece)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_over_several_stripes_arrive_whole() {
        let disk = MemoryDisk::new(8 << 20).unwrap();
        let buffer = Memory::allocate(5 << 20).unwrap();
        let pattern: Vec<u8> = (0..5_u32 << 20).map(|n| (n % 251).to_le_bytes()[0]).collect();
        buffer.write_at(0, &pattern).unwrap();
        disk.write((1 << 20) + 512, &buffer, 0, 5 << 20).unwrap();
        buffer.zero(0, buffer.len()).unwrap();
        disk.read((1 << 20) + 512, &buffer, 0, 5 << 20).unwrap();
        let mut back = vec![0; 5 << 20];
        buffer.read_at(0, &mut back).unwrap();
        assert!(back == pattern);
        disk.zero(2 << 20, 3 << 20).unwrap();
        disk.read(2 << 20, &buffer, 0, 3 << 20).unwrap();
        buffer.read_at(0, &mut back).unwrap();
        assert!(back[..3 << 20].iter().all(|byte| *byte == 0));
        assert_eq!(disk.read(u64::MAX, &buffer, 0, 512), None);
        assert_eq!(disk.read(8 << 20, &buffer, 0, 512), None);
    }
}

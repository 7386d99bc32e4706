//! Room for the receive buffers of connections: page-wise first fit over one memory.
//!
//! Registered once and reused, because registering per connection costs pinned memory, time and,
//! on some devices, scarce regions. Called when a connection comes or goes, never per command.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use lariat_fabric::Memory;

const PAGE_BYTES: u64 = 4096;

/// A piece of the arena. Not `Clone`: given back by [`Arena::release`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a piece that is dropped is lost to the arena"]
pub(super) struct Piece {
    first_page: u64,
    pages: u64,
}

impl Piece {
    /// Bytes from the start of the arena's memory; a multiple of 4096.
    #[must_use]
    pub(super) fn offset(&self) -> u64 {
        self.first_page * PAGE_BYTES
    }

    /// Size in bytes; a multiple of 4096.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> u64 {
        self.pages * PAGE_BYTES
    }
}

/// The arena.
#[derive(Debug)]
pub(super) struct Arena {
    memory: Arc<Memory>,
    /// First page and number of pages of every hole; holes never touch.
    holes: BTreeMap<u64, u64>,
}

impl Arena {
    /// Allocates the memory, `bytes` rounded up to whole pages.
    ///
    /// # Errors
    /// What `mmap` says; `InvalidInput` for 0.
    pub(super) fn new(bytes: usize) -> io::Result<Self> {
        let memory = Memory::allocate(bytes)?;
        let pages = u64::try_from(memory.len()).unwrap_or(u64::MAX) / PAGE_BYTES;
        Ok(Self { memory, holes: BTreeMap::from([(0, pages)]) })
    }

    /// The memory that offsets count in.
    #[must_use]
    pub(super) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Takes `bytes`, rounded up to whole pages; `None` if no hole is that large.
    pub(super) fn take(&mut self, bytes: u64) -> Option<Piece> {
        let pages = bytes.div_ceil(PAGE_BYTES).max(1);
        let (&first_page, &hole) = self.holes.iter().find(|&(_, &hole)| hole >= pages)?;
        self.holes.remove(&first_page);
        if hole > pages {
            self.holes.insert(first_page + pages, hole - pages);
        }
        Some(Piece { first_page, pages })
    }

    /// Takes a piece back.
    #[expect(clippy::needless_pass_by_value, reason = "giving back is giving up")]
    pub(super) fn release(&mut self, piece: Piece) {
        let Piece { mut first_page, mut pages } = piece;
        if let Some((&before, &length)) = self.holes.range(..first_page).next_back()
            && before + length == first_page
        {
            self.holes.remove(&before);
            first_page = before;
            pages += length;
        }
        if let Some(length) = self.holes.remove(&(first_page + pages)) {
            pages += length;
        }
        self.holes.insert(first_page, pages);
    }

    /// Bytes that are not lent.
    #[must_use]
    pub(super) fn free_bytes(&self) -> u64 {
        self.holes.values().sum::<u64>() * PAGE_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_merge_on_both_sides() {
        let mut arena = Arena::new(10 * 4096).unwrap();
        let a = arena.take(4096).unwrap();
        let b = arena.take(4097).unwrap();
        let c = arena.take(1).unwrap();
        assert_eq!((b.offset(), b.bytes()), (4096, 8192));
        assert_eq!(arena.take(7 * 4096), None);
        arena.release(a);
        arena.release(c);
        assert_eq!(arena.take(8 * 4096), None);
        arena.release(b);
        assert_eq!(arena.free_bytes(), 10 * 4096);
        let all = arena.take(10 * 4096).unwrap();
        assert_eq!(arena.take(1), None);
        arena.release(all);
    }
}

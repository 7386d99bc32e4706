//! Room for the receive buffers of connections: page-wise first fit over one memory or more.
//!
//! Registered once and reused, because registering per connection costs pinned memory, time and,
//! on some devices, scarce regions. When the first memory is full there come others of its size, up
//! to a limit: a host with many cores wants many queues. They stay. Called when a connection comes
//! or goes, never per command.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use lariat_fabric::Memory;

const PAGE_BYTES: u64 = 4096;

/// A piece of the arena. Not `Clone`: given back by [`Arena::release`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a piece that is dropped is lost to the arena"]
pub(super) struct Piece {
    chunk: u16,
    first_page: u64,
    pages: u64,
}

impl Piece {
    /// Which of the arena's memories it lies in.
    #[must_use]
    pub(super) fn chunk(&self) -> u16 {
        self.chunk
    }

    /// Bytes from the start of that memory; a multiple of 4096.
    #[must_use]
    pub(super) fn offset(&self) -> u64 {
        self.first_page * PAGE_BYTES
    }

    /// Size in bytes; a multiple of 4096.
    #[must_use]
    pub(super) fn bytes(&self) -> u64 {
        self.pages * PAGE_BYTES
    }
}

/// One memory.
#[derive(Debug)]
struct Chunk {
    memory: Arc<Memory>,
    /// First page and number of pages of every hole; holes never touch.
    holes: BTreeMap<u64, u64>,
}

impl Chunk {
    fn new(memory: Arc<Memory>) -> Self {
        let pages = bytes_of(&memory) / PAGE_BYTES;
        Self { memory, holes: BTreeMap::from([(0, pages)]) }
    }

    fn take(&mut self, pages: u64) -> Option<u64> {
        let (&first_page, &hole) = self.holes.iter().find(|&(_, &hole)| hole >= pages)?;
        self.holes.remove(&first_page);
        if hole > pages {
            self.holes.insert(first_page + pages, hole - pages);
        }
        Some(first_page)
    }

    fn release(&mut self, mut first_page: u64, mut pages: u64) {
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
}

/// The arena.
#[derive(Debug)]
pub(super) struct Arena {
    chunks: Vec<Chunk>,
    most_bytes: u64,
    lent_bytes: u64,
}

impl Arena {
    /// Allocates the first memory, `bytes` rounded up to whole pages; all together have at most
    /// `most_bytes`, but the first is there in any case.
    ///
    /// # Errors
    /// What `mmap` says; `InvalidInput` for 0.
    pub(super) fn new(bytes: usize, most_bytes: usize) -> io::Result<Self> {
        let memory = Memory::allocate(bytes)?;
        let most_bytes = bytes_of(&memory).max(most_bytes as u64);
        Ok(Self { chunks: vec![Chunk::new(memory)], most_bytes, lent_bytes: 0 })
    }

    /// One of the memories; offsets of a piece count in its own.
    #[must_use]
    pub(super) fn memory(&self, chunk: u16) -> Option<&Arc<Memory>> {
        self.chunks.get(usize::from(chunk)).map(|chunk| &chunk.memory)
    }

    /// What all memories may have together.
    #[must_use]
    pub(super) fn most_bytes(&self) -> u64 {
        self.most_bytes
    }

    /// The size of the first memory.
    fn first_bytes(&self) -> u64 {
        self.chunks.first().map_or(0, |chunk| bytes_of(&chunk.memory))
    }

    /// Takes `bytes`, rounded up to whole pages; `None` if no hole is that large.
    pub(super) fn take(&mut self, bytes: u64) -> Option<Piece> {
        let pages = bytes.div_ceil(PAGE_BYTES).max(1);
        let found = (0..).zip(&mut self.chunks).find_map(|(index, chunk)| {
            Some(Piece { chunk: index, first_page: chunk.take(pages)?, pages })
        })?;
        self.lent_bytes += pages * PAGE_BYTES;
        Some(found)
    }

    /// Takes a piece back.
    #[expect(clippy::needless_pass_by_value, reason = "giving back is giving up")]
    pub(super) fn release(&mut self, piece: Piece) {
        if let Some(chunk) = self.chunks.get_mut(usize::from(piece.chunk)) {
            chunk.release(piece.first_page, piece.pages);
            self.lent_bytes -= piece.pages * PAGE_BYTES;
        }
    }

    /// Allocates one more memory that holds at least `bytes`. The caller makes it known where it
    /// has to be, then calls [`Arena::add`].
    ///
    /// # Errors
    /// What `mmap` says; `QuotaExceeded` at the limit.
    pub(super) fn allocate_more(&self, bytes: u64) -> io::Result<Arc<Memory>> {
        let wanted = bytes.max(self.first_bytes());
        let total: u64 = self.chunks.iter().map(|chunk| bytes_of(&chunk.memory)).sum();
        if total + wanted > self.most_bytes || self.chunks.len() >= usize::from(u16::MAX) {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        Memory::allocate(usize::try_from(wanted).unwrap_or(usize::MAX))
    }

    /// Pieces may lie in this memory too, which is the last by number.
    pub(super) fn add(&mut self, memory: Arc<Memory>) {
        self.chunks.push(Chunk::new(memory));
    }

    /// Bytes that are not lent, of memories that there are or may be.
    #[must_use]
    pub(super) fn free_bytes(&self) -> u64 {
        self.most_bytes.saturating_sub(self.lent_bytes)
    }
}

fn bytes_of(memory: &Memory) -> u64 {
    u64::try_from(memory.len()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_merge_on_both_sides() {
        let mut arena = Arena::new(10 * 4096, 0).unwrap();
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

    #[test]
    fn it_grows_up_to_its_limit() {
        let mut arena = Arena::new(2 * 4096, 7 * 4096).unwrap();
        let first = arena.take(2 * 4096).unwrap();
        assert_eq!(arena.take(3 * 4096), None);
        let memory = arena.allocate_more(3 * 4096).unwrap();
        assert_eq!(memory.len(), 3 * 4096);
        arena.add(memory);
        let second = arena.take(3 * 4096).unwrap();
        assert_eq!((first.chunk(), second.chunk(), second.offset()), (0, 1, 0));
        assert_eq!(arena.free_bytes(), 2 * 4096);
        let error = arena.allocate_more(3 * 4096).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::QuotaExceeded);
        let memory = arena.allocate_more(1).unwrap();
        assert_eq!(memory.len(), 2 * 4096, "not less than at first");
        arena.add(memory);
        arena.release(second);
        let third = arena.take(3 * 4096).unwrap();
        assert_eq!(third.chunk(), 1, "there is a hole");
        arena.release(first);
        arena.release(third);
        assert_eq!(arena.free_bytes(), 7 * 4096);
    }
}

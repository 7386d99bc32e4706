//! Page-aligned memory that devices, the kernel and peers may touch.
//!
//! [`Memory`] is the one place where raw memory is owned. Users reach it by copying
//! ([`Memory::read_at`], [`Memory::write_at`], [`Memory::copy`]): a peer may RDMA WRITE into registered memory at any
//! time, so a Rust reference to its bytes could not be sound. Providers and io_uring take
//! [`Memory::address`]; what they were given stays alive because they hold the [`Arc`].

use core::fmt;
use core::ptr::NonNull;
use std::io;
use std::sync::Arc;

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};

/// A range did not lie inside the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bytes {offset}..+{length} lie outside memory of {capacity} bytes")]
pub struct OutOfRange {
    /// Offset asked for, in bytes.
    pub offset: u64,
    /// Length asked for, in bytes.
    pub length: u64,
    /// Size of the memory in bytes.
    pub capacity: u64,
}

/// A block of memory at a fixed address, shared by [`Arc`].
pub struct Memory {
    base: NonNull<u8>,
    length: usize,
    owned: bool,
}

// SAFETY: the block has a fixed address and length for its whole life, and its bytes are reached
// only by raw copies that make no claim of exclusiveness; see `read_at`.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Allocates `length` zeroed bytes (rounded up to whole pages), page aligned.
    ///
    /// # Errors
    /// What `mmap` says; `InvalidInput` for a length of 0.
    pub fn allocate(length: usize) -> io::Result<Arc<Self>> {
        let rounded = length
            .checked_next_multiple_of(4096)
            .and_then(core::num::NonZeroUsize::new)
            .ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: an anonymous private mapping at an address of the kernel's choice aliases nothing.
        let base = unsafe {
            mmap_anonymous(
                None,
                rounded,
                ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
                MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE,
            )
        }?;
        Ok(Arc::new(Self { base: base.cast(), length: rounded.get(), owned: true }))
    }

    /// Asks the kernel for huge pages, a wish that it may ignore: right for large memory that is
    /// reached at random, wrong for memory of which little is used.
    pub fn prefer_huge_pages(&self) {
        if self.owned {
            // SAFETY: the advice changes how an anonymous mapping is backed, never what it holds;
            // the range is the one that `allocate` mapped.
            let _ = unsafe { madvise(self.base.cast(), self.length, MmapAdvise::MADV_HUGEPAGE) };
        }
    }

    /// Wraps memory that the caller owns.
    ///
    /// # Safety
    /// `base..base+length` must be valid for reads and writes until the last clone of the returned
    /// `Arc` is dropped (which a fabric may hold as long as a region is registered), and must not
    /// be reached through Rust references while work requests on it are outstanding.
    #[must_use]
    pub unsafe fn from_raw(base: NonNull<u8>, length: usize) -> Arc<Self> {
        Arc::new(Self { base, length, owned: false })
    }

    /// The first byte's address. Stays valid as long as the `Arc` does.
    #[must_use]
    pub fn address(&self) -> NonNull<u8> {
        self.base
    }

    /// Size in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are no bytes (only possible for [`Memory::from_raw`]).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The address of a checked range, for providers and io_uring.
    ///
    /// # Errors
    /// The range leaves the memory.
    pub fn range(&self, offset: u64, length: usize) -> Result<NonNull<u8>, OutOfRange> {
        let out_of_range =
            || OutOfRange { offset, length: length as u64, capacity: self.length as u64 };
        let start = usize::try_from(offset).map_err(|_| out_of_range())?;
        let end = start.checked_add(length).ok_or_else(out_of_range)?;
        if end > self.length {
            return Err(out_of_range());
        }
        // SAFETY: start <= end <= length, so the result is inside (or one past) the block.
        Ok(unsafe { self.base.add(start) })
    }

    /// Copies bytes out. Bytes that a device or peer writes at the same time come out old, new or
    /// mixed, as with any DMA memory.
    ///
    /// # Errors
    /// The range leaves the memory; nothing is copied.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), OutOfRange> {
        let from = self.range(offset, into.len())?;
        // SAFETY: `range` checked the source; `into` is a distinct exclusive borrow, which cannot
        // overlap memory that is reached only by copies (see `from_raw`).
        unsafe { core::ptr::copy_nonoverlapping(from.as_ptr(), into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// The range leaves the memory; nothing is copied.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), OutOfRange> {
        let to = self.range(offset, bytes.len())?;
        // SAFETY: as in `read_at`, the other way round.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// Copies between two memories (or within one; ranges may overlap).
    ///
    /// # Errors
    /// A range leaves its memory; nothing is copied.
    pub fn copy(
        from: &Self,
        from_offset: u64,
        to: &Self,
        to_offset: u64,
        length: usize,
    ) -> Result<(), OutOfRange> {
        let source = from.range(from_offset, length)?;
        let sink = to.range(to_offset, length)?;
        // SAFETY: both ranges were checked; `copy` allows overlap.
        unsafe { core::ptr::copy(source.as_ptr(), sink.as_ptr(), length) };
        Ok(())
    }

    /// Sets bytes to zero.
    ///
    /// # Errors
    /// The range leaves the memory.
    pub fn zero(&self, offset: u64, length: usize) -> Result<(), OutOfRange> {
        let to = self.range(offset, length)?;
        // SAFETY: `range` checked the bounds.
        unsafe { core::ptr::write_bytes(to.as_ptr(), 0, length) };
        Ok(())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.owned {
            // SAFETY: `allocate` mapped exactly this range, and nobody holds the `Arc` any more.
            let _ = unsafe { munmap(self.base.cast(), self.length) };
        }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({} bytes)", self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_stay_inside() {
        let memory = Memory::allocate(5000).unwrap();
        assert_eq!(memory.len(), 8192);
        memory.write_at(8190, b"ab").unwrap();
        assert_eq!(
            memory.write_at(8191, b"ab"),
            Err(OutOfRange { offset: 8191, length: 2, capacity: 8192 })
        );
        assert!(memory.read_at(u64::MAX, &mut [0; 1]).is_err());
        let mut back = [0; 2];
        memory.read_at(8190, &mut back).unwrap();
        assert_eq!(&back, b"ab");
        memory.zero(8190, 1).unwrap();
        memory.read_at(8190, &mut back).unwrap();
        assert_eq!(&back, b"\0b");
        Memory::copy(&memory, 8190, &memory, 0, 2).unwrap();
        memory.read_at(0, &mut back).unwrap();
        assert_eq!(&back, b"\0b");
        assert!(Memory::copy(&memory, 8190, &memory, 0, 3).is_err());
    }

    #[test]
    fn nothing_is_no_memory() {
        assert_eq!(Memory::allocate(0).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}

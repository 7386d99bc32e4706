//! Buffers for data: page aligned, taken from a pool or over the caller's own memory.
//!
//! A [`Buffer`] is moved into a request and comes back with its completion, so nobody can reuse the
//! memory while the target may still touch it. Its bytes are reached by copying (see
//! [`Memory`]). A queue registers a pool's memory when it first sees one of its buffers, or earlier
//! with [`IoQueue::register`](crate::IoQueue::register). Called by users and by `io_queue`.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use lariat_fabric::Memory;
use lariat_fabric::memory::OutOfRange;

/// Alignment of each buffer.
const PAGE_BYTES: usize = 4096;

#[derive(Debug)]
struct Pool {
    memory: Arc<Memory>,
    buffer_bytes: usize,
    stride: usize,
    free: Mutex<Vec<usize>>,
}

impl Pool {
    fn give_back(&self, index: usize) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(index);
    }
}

/// Buffers of one size in one piece of memory. Cheap to clone; any thread may take and drop.
#[derive(Clone, Debug)]
pub struct BufferPool {
    pool: Arc<Pool>,
}

impl BufferPool {
    /// Allocates `count` buffers of `buffer_bytes` each.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn new(count: usize, buffer_bytes: usize) -> io::Result<Self> {
        let too_big = || io::Error::from(io::ErrorKind::InvalidInput);
        let stride =
            buffer_bytes.max(1).checked_next_multiple_of(PAGE_BYTES).ok_or_else(too_big)?;
        let memory = Memory::allocate(stride.checked_mul(count).ok_or_else(too_big)?)?;
        let free = Mutex::new((0..count).rev().collect());
        Ok(Self { pool: Arc::new(Pool { memory, buffer_bytes, stride, free }) })
    }

    /// A buffer, if one is free. It returns to the pool when it is dropped.
    #[must_use]
    pub fn take(&self) -> Option<Buffer> {
        let index = self.pool.free.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
        Some(Buffer {
            memory: Arc::clone(&self.pool.memory),
            offset: index as u64 * self.pool.stride as u64,
            length: self.pool.buffer_bytes,
            capacity: self.pool.buffer_bytes,
            home: Some((Arc::clone(&self.pool), index)),
        })
    }

    /// Size of each buffer in bytes.
    #[must_use]
    pub fn buffer_bytes(&self) -> usize {
        self.pool.buffer_bytes
    }

    /// The memory all of them lie in.
    #[must_use]
    pub fn memory(&self) -> &Arc<Memory> {
        &self.pool.memory
    }
}

/// A piece of memory for a request's data.
#[derive(Debug)]
pub struct Buffer {
    memory: Arc<Memory>,
    offset: u64,
    length: usize,
    capacity: usize,
    home: Option<(Arc<Pool>, usize)>,
}

impl Buffer {
    /// A buffer over `memory`, which the caller shares: allocated with [`Memory::allocate`], or his
    /// own through [`Memory::from_raw`]. Register it once with
    /// [`IoQueue::register`](crate::IoQueue::register); making buffers over it is cheap.
    ///
    /// # Errors
    /// The range leaves the memory.
    pub fn over(memory: &Arc<Memory>, offset: u64, length: usize) -> Result<Self, OutOfRange> {
        memory.range(offset, length)?;
        let memory = Arc::clone(memory);
        Ok(Self { memory, offset, length, capacity: length, home: None })
    }

    /// Length in bytes: what a request transfers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether the length is 0.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The most bytes it can hold.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Sets the length, cut to the capacity.
    pub fn set_len(&mut self, length: usize) {
        self.length = length.min(self.capacity);
    }

    /// The memory it lies in.
    #[must_use]
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Where it starts in its memory, in bytes.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Copies bytes out, from `at` on.
    ///
    /// # Errors
    /// More than there are.
    pub fn read(&self, at: usize, into: &mut [u8]) -> Result<(), OutOfRange> {
        self.memory.read_at(self.check(at, into.len())?, into)
    }

    /// Copies bytes in, from `at` on.
    ///
    /// # Errors
    /// More than fit.
    pub fn write(&mut self, at: usize, bytes: &[u8]) -> Result<(), OutOfRange> {
        self.memory.write_at(self.check(at, bytes.len())?, bytes)
    }

    /// Copies all of its bytes out.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.length];
        // The whole buffer lies inside its memory: `over` and the pool see to that.
        let _ = self.memory.read_at(self.offset, &mut bytes);
        bytes
    }

    fn check(&self, at: usize, length: usize) -> Result<u64, OutOfRange> {
        let out =
            OutOfRange { offset: at as u64, length: length as u64, capacity: self.length as u64 };
        let end = at.checked_add(length).ok_or(out)?;
        if end > self.length { Err(out) } else { Ok(self.offset + at as u64) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some((pool, index)) = self.home.take() {
            pool.give_back(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_gives_each_buffer_once() {
        let pool = BufferPool::new(2, 5000).unwrap();
        let mut one = pool.take().unwrap();
        let two = pool.take().unwrap();
        assert!(pool.take().is_none());
        assert_eq!(one.offset().abs_diff(two.offset()), 8192);
        one.write(4999, b"x").unwrap();
        assert!(one.write(4999, b"xy").is_err());
        assert!(one.write(usize::MAX, b"x").is_err());
        assert_eq!(one.to_vec().len(), 5000);
        one.set_len(10);
        assert!(one.read(0, &mut [0; 11]).is_err());
        let offset = one.offset();
        drop(one);
        let again = pool.take().unwrap();
        assert_eq!((again.offset(), again.len()), (offset, 5000));
        let mut byte = [0];
        again.read(4999, &mut byte).unwrap();
        assert_eq!(&byte, b"x");
    }

    #[test]
    fn own_memory_is_checked() {
        let memory = Memory::allocate(4096).unwrap();
        assert!(Buffer::over(&memory, 4000, 97).is_err());
        assert_eq!(Buffer::over(&memory, 4000, 96).unwrap().len(), 96);
    }
}

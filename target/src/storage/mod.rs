//! Block storage as the target's core sees it: one [`Storage`] per reactor, completion by polling.
//!
//! The core says which backend, which blocks, which part of the buffer pool; a storage answers each
//! accepted request exactly once. `uring` (files and block devices by io_uring, plus `memory` and
//! `null` backends beside it) serves the daemon; the simulation brings a disk of its own with
//! power cuts. Nothing here knows NVMe but [`StorageError`], whose table to NVMe status lies with
//! the controller.
//!
//! ```text
//! set (opened once, shared)  -> open (files: lock, size, O_DIRECT; open_error: why not),
//!                               memory (RAM disk)
//! uring (one per reactor)    -> step (how a request goes on), batch (how many at a time),
//!                               ring (the io_uring; the unsafe code), waker (an eventfd)
//! ```

mod batch;
mod collapse;
mod immediate;
mod memory;
mod open;
mod open_error;
mod ring;
mod set;
mod step;
mod sys;
mod uring;
mod waker;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use lariat_fabric::{Memory, Timestamp};

pub use open_error::OpenError;
pub use ring::RingCounters;
pub use set::{BackendConfig, BackendKind, StorageSet};
pub(crate) use sys::processor_time;
pub use uring::{UringConfig, UringStorage, Woken};
pub use waker::EventWaker;

/// A backend of this storage: index into what it was configured with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BackendId(pub u32);

/// What a backend is, read when it is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Logical block size in bytes: 512 or 4096.
    pub block_bytes: u32,
    /// Capacity in logical blocks.
    pub capacity_blocks: u64,
    /// Whether completed writes may be lost by a power cut until a flush.
    pub volatile_write_cache: bool,
    /// Whether `Deallocate` does something, and deallocated blocks then read as zeroes.
    pub deallocate: bool,
    /// Whether writes are refused.
    pub read_only: bool,
}

/// A piece of the reactor's buffer pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferRange {
    /// Which of the memories given to [`Storage::use_buffers`].
    pub memory: u16,
    /// Bytes from its start.
    pub offset: u64,
    /// Length in bytes: a whole number of blocks.
    pub length: u32,
}

/// A run of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRange {
    /// First block.
    pub start: u64,
    /// Number of blocks.
    pub blocks: u64,
}

/// What to do. The core has checked ranges against [`Geometry`] and lengths against blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockOp {
    /// Disk to buffer.
    Read {
        /// First block.
        start: u64,
        /// Sink.
        buffer: BufferRange,
    },
    /// Buffer to disk; durable when it completes if `fua`.
    Write {
        /// First block.
        start: u64,
        /// Source.
        buffer: BufferRange,
        /// Force unit access.
        fua: bool,
    },
    /// All writes that completed before this was submitted become durable.
    Flush,
    /// The blocks read as zeroes afterwards.
    WriteZeroes {
        /// Which.
        range: BlockRange,
        /// The space may be given back.
        deallocate: bool,
        /// Force unit access.
        fua: bool,
    },
    /// The contents are not needed any more.
    Deallocate {
        /// Which. A command with several ranges is submitted range by range.
        range: BlockRange,
    },
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRequest {
    /// Where.
    pub backend: BackendId,
    /// What.
    pub op: BlockOp,
    /// Comes back in the completion.
    pub tag: u64,
}

/// How a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StorageError {
    /// ENOSPC, EDQUOT: the file system below is full.
    #[error("no space left below the backend")]
    NoSpace,
    /// The medium could not be read (EIO on a read, a short read inside the capacity).
    #[error("unrecovered read error (errno {errno})")]
    Read {
        /// The operating system's number.
        errno: i32,
    },
    /// The medium could not be written.
    #[error("write fault (errno {errno})")]
    Write {
        /// The operating system's number.
        errno: i32,
    },
    /// A write to a backend that is read-only.
    #[error("the backend is read-only")]
    ReadOnly,
    /// The operation is not to be had from this backend.
    #[error("the backend does not support the operation")]
    Unsupported,
    /// Anything else.
    #[error("backend error (errno {errno})")]
    Other {
        /// The operating system's number.
        errno: i32,
    },
}

/// A finished request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCompletion {
    /// The request's tag.
    pub tag: u64,
    /// How it went.
    pub result: Result<(), StorageError>,
}

/// The block devices of one reactor.
pub trait Storage {
    /// Gives the memories that requests will name (index = `BufferRange::memory`), once, before
    /// the first request. A storage may register them with the kernel; it holds the `Arc`s.
    fn use_buffers(&mut self, memories: &[Arc<Memory>]);

    /// One more memory that requests may name, by the next index.
    fn add_buffer(&mut self, memory: Arc<Memory>);

    /// What a backend is; `None` for an unknown one.
    fn geometry(&self, backend: BackendId) -> Option<Geometry>;

    /// Whether [`Storage::reads_zeroes`] may ever say yes: only then is there a place to send zeroes
    /// from.
    fn knows_zeroes(&self) -> bool {
        false
    }

    /// Whether these blocks, which the core has checked, read as zeroes at this moment, known without
    /// a look at the medium. Then a read of them needs neither a buffer nor a request: it is answered
    /// from a region of zeroes. "No" is always right.
    fn reads_zeroes(&self, backend: BackendId, range: BlockRange) -> bool {
        let _ = (backend, range);
        false
    }

    /// Takes a request, or hands it back when the queue is full (try again after `poll`).
    ///
    /// The buffer belongs to the storage until the completion.
    ///
    /// # Errors
    /// The request, untouched.
    fn submit(&mut self, request: BlockRequest) -> Result<(), BlockRequest>;

    /// Starts what was submitted (one system call for all) and appends what is done.
    fn poll(&mut self, now: Timestamp, done: &mut Vec<BlockCompletion>);

    /// Requests accepted and not completed.
    fn in_flight(&self) -> usize;
}

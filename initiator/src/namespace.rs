//! A namespace, read and written synchronously. Uses one I/O queue of its controller, connected at
//! the first call and shared by all threads that call; calls `io_queue`.

use std::sync::Arc;
use std::time::Duration;

use crate::buffer::BufferPool;
use crate::care::{Shared, lock};
use crate::core::{Geometry, NamespaceInfo, Operation};
use crate::error::{IoError, RejectedIo};
use crate::io_queue::{IoCompletion, IoQueue, check_range};

/// Bytes of one request of a synchronous call; longer calls keep several under way.
const PIECE_BYTES: usize = 256 << 10;
/// Requests that a synchronous call keeps under way.
const PIECES: usize = 8;
/// How long one look for completions lasts; what ends a wait is the command's own time limit.
const LOOK: Duration = Duration::from_secs(1);

/// The queue of the synchronous calls, with its buffers.
pub(crate) struct SyncQueue {
    queue: IoQueue,
    pool: BufferPool,
    done: Vec<IoCompletion>,
}

/// A namespace of a connected controller. Cheap to clone; any thread may use it.
#[derive(Clone)]
pub struct Namespace {
    shared: Arc<Shared>,
    info: NamespaceInfo,
}

impl std::fmt::Debug for Namespace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Namespace").field(&self.info.geometry).finish()
    }
}

impl Namespace {
    pub(crate) fn new(shared: Arc<Shared>, info: NamespaceInfo) -> Self {
        Self { shared, info }
    }

    /// Identifier, block size and size: what [`IoQueue`]'s submissions take.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.info.geometry
    }

    /// All that is known of it.
    #[must_use]
    pub fn info(&self) -> &NamespaceInfo {
        &self.info
    }

    /// Size in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.info.geometry.capacity_bytes()
    }

    /// Size of a block in bytes: offsets and lengths are multiples of it.
    #[must_use]
    pub fn block_bytes(&self) -> u32 {
        self.info.geometry.block_bytes
    }

    /// Fills `into` from `offset` (bytes) on.
    ///
    /// # Errors
    /// [`IoError::Unaligned`] and [`IoError::OutOfRange`] before anything is sent; then the
    /// controller's or the connection's. `into` is partly filled then.
    pub fn read_at(&self, into: &mut [u8], offset: u64) -> Result<(), IoError> {
        self.check(Operation::Read, offset, into.len() as u64)?;
        let geometry = self.geometry();
        let total = into.len();
        self.with_queue(|sync| {
            sync.pieces(
                total,
                |queue, position, buffer| {
                    queue.submit_read(position as u64, geometry, offset + position as u64, buffer)
                },
                |_, _| Ok(()),
                |position, buffer| {
                    let end = position.saturating_add(buffer.len()).min(total);
                    into.get_mut(position..end).map(|target| buffer.read(0, target));
                },
            )
        })
    }

    /// Writes `bytes` to `offset` (bytes). They are durable after a [`Self::flush`].
    ///
    /// # Errors
    /// As [`Self::read_at`]; some of the bytes may be written then.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), IoError> {
        self.write(bytes, offset, false)
    }

    /// As [`Self::write_at`], with Force Unit Access: durable when this returns.
    ///
    /// # Errors
    /// As [`Self::write_at`].
    pub fn write_at_durably(&self, bytes: &[u8], offset: u64) -> Result<(), IoError> {
        self.write(bytes, offset, true)
    }

    fn write(&self, bytes: &[u8], offset: u64, fua: bool) -> Result<(), IoError> {
        self.check(Operation::Write { fua }, offset, bytes.len() as u64)?;
        let geometry = self.geometry();
        self.with_queue(|sync| {
            sync.pieces(
                bytes.len(),
                |queue, position, buffer| {
                    let at = offset + position as u64;
                    queue.submit_write(position as u64, geometry, at, buffer, fua)
                },
                |position, buffer| {
                    let end = position.saturating_add(buffer.len()).min(bytes.len());
                    let piece = bytes.get(position..end).unwrap_or_default();
                    let copied = buffer.write(0, piece);
                    copied.map_err(|_| IoError::NotTaken(crate::core::SubmitError::BadMemory))
                },
                |_, _| {},
            )
        })
    }

    /// Makes all that was written and completed durable.
    ///
    /// # Errors
    /// The controller's or the connection's.
    pub fn flush(&self) -> Result<(), IoError> {
        let geometry = self.geometry();
        self.with_queue(|sync| sync.single(|queue| queue.submit_flush(0, geometry)))
    }

    /// Makes `length` bytes from `offset` on read as zeros; with `deallocate` the target may free
    /// the space.
    ///
    /// # Errors
    /// As [`Self::read_at`].
    pub fn write_zeroes(&self, offset: u64, length: u64, deallocate: bool) -> Result<(), IoError> {
        self.check(Operation::WriteZeroes { deallocate, fua: false }, offset, length)?;
        if length == 0 {
            return Ok(());
        }
        let geometry = self.geometry();
        self.with_queue(|sync| {
            sync.single(|queue| queue.submit_write_zeroes(0, geometry, offset, length, deallocate))
        })
    }

    /// Tells that `length` bytes from `offset` on are not needed any more.
    ///
    /// # Errors
    /// As [`Self::read_at`].
    pub fn deallocate(&self, offset: u64, length: u64) -> Result<(), IoError> {
        self.check(Operation::Deallocate, offset, length)?;
        if length == 0 {
            return Ok(());
        }
        let geometry = self.geometry();
        self.with_queue(|sync| {
            sync.single(|queue| queue.submit_deallocate(0, geometry, offset, length))
        })
    }

    fn check(&self, operation: Operation, offset: u64, length: u64) -> Result<(), IoError> {
        check_range(self.geometry(), operation, offset, length).map(drop)
    }

    fn with_queue<R>(
        &self,
        call: impl FnOnce(&mut SyncQueue) -> Result<R, IoError>,
    ) -> Result<R, IoError> {
        let mut slot = lock(&self.shared.sync);
        let mut sync = match slot.take() {
            Some(sync) => sync,
            None => SyncQueue::connect(&self.shared)?,
        };
        let result = call(&mut sync);
        // A lost queue is not kept: the next call connects anew, if the controller still stands.
        let keep = !matches!(&result, Err(error) if error.is_connection_lost());
        if keep && self.shared.lost().is_none() {
            *slot = Some(sync);
        }
        result
    }
}

impl SyncQueue {
    fn connect(shared: &Arc<Shared>) -> Result<Self, IoError> {
        let pool = BufferPool::new(PIECES, PIECE_BYTES)?;
        let mut queue = match IoQueue::connect(shared) {
            Ok(queue) => queue,
            Err(crate::error::ConnectError::Closed(reason)) => {
                return Err(IoError::ConnectionLost { reason });
            }
            Err(error) => return Err(IoError::Queue(Box::new(error))),
        };
        queue.register(pool.memory())?;
        Ok(Self { queue, pool, done: Vec::with_capacity(PIECES) })
    }

    /// Moves `total` bytes in pieces, several at a time.
    fn pieces(
        &mut self,
        total: usize,
        submit: impl Fn(&mut IoQueue, usize, crate::Buffer) -> Result<(), RejectedIo>,
        fill: impl Fn(usize, &mut crate::Buffer) -> Result<(), IoError>,
        mut drain: impl FnMut(usize, &crate::Buffer),
    ) -> Result<(), IoError> {
        let mut next = 0;
        let mut failed = None;
        loop {
            while failed.is_none() && next < total && self.queue.outstanding() < self.queue.depth()
            {
                let Some(mut buffer) = self.pool.take() else { break };
                buffer.set_len(total - next);
                let length = buffer.len();
                let sent = fill(next, &mut buffer)
                    .and_then(|()| submit(&mut self.queue, next, buffer).map_err(IoError::from));
                match sent {
                    Ok(()) => next += length,
                    Err(error) => failed = Some(error),
                }
            }
            if self.queue.outstanding() == 0 {
                return failed.map_or(Ok(()), Err);
            }
            self.queue.wait(&mut self.done, LOOK);
            for ended in self.done.drain(..) {
                match (ended.result, ended.buffer, usize::try_from(ended.user_data)) {
                    (Ok(_), Some(buffer), Ok(position)) => drain(position, &buffer),
                    (Err(error), ..) => {
                        failed.get_or_insert(error);
                    }
                    _ => {}
                }
            }
        }
    }

    /// One request without data.
    fn single(
        &mut self,
        submit: impl FnOnce(&mut IoQueue) -> Result<(), RejectedIo>,
    ) -> Result<(), IoError> {
        submit(&mut self.queue)?;
        while self.queue.wait(&mut self.done, LOOK) == 0 {}
        self.done.pop().map_or(Ok(()), |ended| ended.result.map(drop))
    }
}

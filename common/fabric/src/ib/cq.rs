//! Completion queues and the channel that wakes for them. Safe wrappers; called by `device` and
//! `fabric`.

use core::ffi::c_int;
use core::ptr::{self, NonNull};
use std::io;
use std::os::fd::BorrowedFd;

use rdma_sys::{ibv_comp_channel, ibv_context, ibv_cq, ibv_wc};

use super::cm::set_nonblocking;

/// Completions taken at a time.
pub(super) const BATCH: usize = 32;

/// What becomes readable when an armed completion queue gets an entry.
#[derive(Debug)]
pub(super) struct CompChannel {
    raw: NonNull<ibv_comp_channel>,
}

// SAFETY: libibverbs may be called from any thread; this value alone owns the channel.
unsafe impl Send for CompChannel {}

impl CompChannel {
    /// # Safety
    /// The context lives longer than the channel.
    pub(super) unsafe fn create(context: NonNull<ibv_context>) -> io::Result<Self> {
        // SAFETY: a live context.
        let raw = unsafe { rdma_sys::ibv_create_comp_channel(context.as_ptr()) };
        let channel = Self { raw: NonNull::new(raw).ok_or_else(io::Error::last_os_error)? };
        set_nonblocking(channel.fd())?;
        Ok(channel)
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor lives as long as the channel.
        unsafe { BorrowedFd::borrow_raw((*self.raw.as_ptr()).fd) }
    }

    /// Takes one event, without waiting, and acknowledges it: the queue that fired is not armed
    /// any more.
    pub(super) fn next(&self) -> Option<CqKey> {
        let (mut queue, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: a live channel, and places for the answers.
        let result =
            unsafe { rdma_sys::ibv_get_cq_event(self.raw.as_ptr(), &mut queue, &mut context) };
        if result != 0 {
            return None;
        }
        // SAFETY: the queue is alive: it is destroyed only together with this channel.
        unsafe { rdma_sys::ibv_ack_cq_events(queue, 1) };
        Some(CqKey(queue.addr()))
    }
}

impl Drop for CompChannel {
    fn drop(&mut self) {
        // SAFETY: its completion queues are gone before it (see `device`).
        unsafe { rdma_sys::ibv_destroy_comp_channel(self.raw.as_ptr()) };
    }
}

/// Tells completion queues apart. Never followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CqKey(usize);

/// A completion queue, and how much of it is promised to queue pairs.
///
/// A queue that overflows is lost with all its queue pairs, so its entries are promised before a
/// queue pair is made, and what a destroyed queue pair left in it counts until the queue was seen
/// empty.
#[derive(Debug)]
pub(super) struct Cq {
    raw: NonNull<ibv_cq>,
    capacity: u32,
    promised: u32,
    leaving: u32,
    pub(super) armed: bool,
}

// SAFETY: as for `CompChannel`.
unsafe impl Send for Cq {}

impl Cq {
    /// # Safety
    /// Context and channel live longer than the queue.
    pub(super) unsafe fn create(
        context: NonNull<ibv_context>,
        channel: &CompChannel,
        capacity: u32,
    ) -> io::Result<Self> {
        let entries = c_int::try_from(capacity).map_err(io::Error::other)?;
        // SAFETY: a live context and channel; no context pointer of ours.
        let raw = unsafe {
            rdma_sys::ibv_create_cq(
                context.as_ptr(),
                entries,
                ptr::null_mut(),
                channel.raw.as_ptr(),
                0,
            )
        };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { raw, capacity, promised: 0, leaving: 0, armed: false })
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_cq {
        self.raw.as_ptr()
    }

    pub(super) fn key(&self) -> CqKey {
        CqKey(self.raw.as_ptr().addr())
    }

    /// Promises entries to a queue pair; `false` if there are not enough.
    pub(super) fn promise(&mut self, entries: u32) -> bool {
        let fits = self.capacity - self.promised >= entries;
        if fits {
            self.promised += entries;
        }
        fits
    }

    /// Takes back the promise to a queue pair that was never made.
    pub(super) fn unpromise(&mut self, entries: u32) {
        self.promised -= entries.min(self.promised);
    }

    /// A queue pair is gone; its entries may still be there.
    pub(super) fn leave(&mut self, entries: u32) {
        self.leaving += entries;
    }

    /// Takes up to `into.len()` entries.
    pub(super) fn poll(&mut self, into: &mut [ibv_wc]) -> io::Result<usize> {
        let room = c_int::try_from(into.len()).unwrap_or(c_int::MAX);
        // SAFETY: a live queue, and room for so many entries.
        let count = unsafe { rdma_sys::ibv_poll_cq(self.raw.as_ptr(), room, into.as_mut_ptr()) };
        let count = usize::try_from(count)
            .map_err(|_| io::Error::other("the completion queue cannot be read"))?;
        if count < into.len() && self.leaving > 0 {
            self.unpromise(self.leaving);
            self.leaving = 0;
        }
        Ok(count)
    }

    /// Asks for an event with the next entry. Look into the queue once more afterwards.
    pub(super) fn arm(&mut self) -> io::Result<()> {
        if self.armed {
            return Ok(());
        }
        // SAFETY: a live queue.
        match unsafe { rdma_sys::ibv_req_notify_cq(self.raw.as_ptr(), 0) } {
            0 => {
                self.armed = true;
                Ok(())
            }
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // SAFETY: its queue pairs are gone before it (see `fabric`), its events acknowledged.
        let result = unsafe { rdma_sys::ibv_destroy_cq(self.raw.as_ptr()) };
        if result != 0 {
            let error = io::Error::from_raw_os_error(result);
            tracing::debug!(%error, "a completion queue could not be destroyed");
        }
    }
}

/// Room for [`Cq::poll`].
pub(super) fn room() -> Box<[ibv_wc]> {
    // SAFETY: a structure of integers, for which zero is a value.
    (0..BATCH).map(|_| unsafe { core::mem::zeroed() }).collect()
}

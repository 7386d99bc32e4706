//! Completion queues and the channel that wakes for them. Safe wrappers; called by `device` and
//! `fabric`.

use core::ffi::c_int;
use core::ptr::{self, NonNull};
use std::io;
use std::os::fd::BorrowedFd;

use rdma_sys::{ibv_comp_channel, ibv_context, ibv_cq, ibv_wc};

use super::cm::set_nonblocking;

/// Entries of the first completion queue; each further one has twice as many as the one before.
const FIRST_CQ: u32 = 2048;
const LARGEST_CQ: u32 = 1 << 16;
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
    armed: bool,
    /// Entries were taken since it was armed: it has fired, or may have.
    taken: bool,
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
        Ok(Self { raw, capacity, promised: 0, leaving: 0, armed: false, taken: false })
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_cq {
        self.raw.as_ptr()
    }

    fn key(&self) -> CqKey {
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
        self.taken |= count > 0;
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
                (self.armed, self.taken) = (true, false);
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

/// The completion queues of one kind of work queue. Only grows: not every device can resize one.
#[derive(Debug, Default)]
pub(super) struct Cqs(Vec<Cq>);

impl Cqs {
    /// Promises `entries` of a completion queue, which it makes if there is none with so much room,
    /// twice as large as the one before. Says which.
    ///
    /// # Safety
    /// Context and channel live longer than the queues.
    pub(super) unsafe fn promise(
        &mut self,
        context: NonNull<ibv_context>,
        channel: &CompChannel,
        entries: u32,
        limit: u32,
    ) -> io::Result<usize> {
        if let Some(place) = self.0.iter_mut().position(|cq| cq.promise(entries)) {
            return Ok(place);
        }
        // SAFETY: by the caller's promise.
        let mut cq =
            unsafe { Cq::create(context, channel, capacity(self.0.len(), entries, limit))? };
        cq.promise(entries);
        self.0.push(cq);
        Ok(self.0.len() - 1)
    }

    pub(super) fn get_mut(&mut self, place: usize) -> Option<&mut Cq> {
        self.0.get_mut(place)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Cq> {
        self.0.iter_mut()
    }

    /// Whether an event of one of them may be in the channel. One that is armed fires once, and then
    /// has an entry.
    pub(super) fn may_have_fired(&self) -> bool {
        self.0.iter().any(|cq| cq.armed && cq.taken)
    }

    /// The event of one queue was taken from the channel.
    pub(super) fn fired(&mut self, key: CqKey) {
        for cq in self.0.iter_mut().filter(|cq| cq.key() == key) {
            cq.armed = false;
        }
    }

    /// Something woke us that showed nowhere else: maybe one of them.
    pub(super) fn suspect(&mut self) {
        for cq in &mut self.0 {
            cq.taken = true;
        }
    }

    /// Asks for an event with the next entry of each.
    pub(super) fn arm(&mut self) -> io::Result<()> {
        self.0.iter_mut().try_for_each(Cq::arm)
    }
}

/// Entries of a device's next completion queue, when so many are there already.
fn capacity(there: usize, entries: u32, limit: u32) -> u32 {
    let number = u32::try_from(there).unwrap_or(u32::MAX);
    let wanted = FIRST_CQ.checked_shl(number).unwrap_or(LARGEST_CQ).min(LARGEST_CQ);
    wanted.max(entries).min(limit).max(entries)
}

/// Room for [`Cq::poll`].
pub(super) fn room() -> Box<[ibv_wc]> {
    // SAFETY: a structure of integers, for which zero is a value.
    (0..BATCH).map(|_| unsafe { core::mem::zeroed() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completion_queues_double() {
        assert_eq!(capacity(0, 10, 1 << 20), FIRST_CQ);
        assert_eq!(capacity(3, 10, 1 << 20), 8 * FIRST_CQ);
        assert_eq!(capacity(40, 10, 1 << 20), LARGEST_CQ);
        // What a queue pair needs, and what a device can do.
        assert_eq!(capacity(0, 5000, 1 << 20), 5000);
        assert_eq!(capacity(3, 10, 3000), 3000);
    }
}

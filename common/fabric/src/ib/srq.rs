//! A shared receive queue of a device: a safe wrapper, and the account of what is posted to it.
//! Called by `shared`, which owns them.
//!
//! Receives complete in any order, so the device gets the number of a place, and places are free
//! again one by one.

use core::ptr::{self, NonNull};
use std::io;

use lariat_roce::verbs::{DomainId, PostErrorKind};
use rdma_sys::{ibv_recv_wr, ibv_srq, ibv_srq_attr, ibv_srq_init_attr};

use super::mr::Pd;
use super::qp::{Chain, Tag, refusal};

/// The queue.
#[derive(Debug)]
pub(super) struct Srq {
    raw: NonNull<ibv_srq>,
    pub(super) generation: u32,
    pub(super) domain: DomainId,
    /// Its device, by number, and which of its completion queues for receives: that has room for all.
    pub(super) device: usize,
    pub(super) cq: usize,
    /// Queue pairs that take from it.
    pub(super) users: u32,
    number: u16,
    /// What the user said, by place.
    wr_ids: Vec<Option<u64>>,
    free: Vec<u16>,
}

// SAFETY: libibverbs may be called from any thread; this value alone owns the queue.
unsafe impl Send for Srq {}

impl Srq {
    /// A queue for `entries` receives, which are the promised part of completion queue `cq`.
    ///
    /// # Errors
    /// The device's word.
    ///
    /// # Safety
    /// The domain lives longer than the queue, the queue longer than queue pairs that use it.
    pub(super) unsafe fn create(
        (pd, domain): (&Pd, DomainId),
        (device, cq): (usize, usize),
        (generation, number): (u32, u16),
        (entries, max_sge): (u16, u32),
    ) -> io::Result<Self> {
        let attr = ibv_srq_attr { max_wr: u32::from(entries), max_sge, srq_limit: 0 };
        let mut init = ibv_srq_init_attr { srq_context: ptr::null_mut(), attr };
        // SAFETY: a live domain, and sizes that the device may raise.
        let raw = unsafe { rdma_sys::ibv_create_srq(pd.as_ptr(), &mut init) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        let wr_ids = vec![None; usize::from(entries)];
        let free = (0..entries).rev().collect();
        Ok(Self { raw, generation, domain, device, cq, users: 0, number, wr_ids, free })
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_srq {
        self.raw.as_ptr()
    }

    /// Receives that it holds at most.
    pub(super) fn entries(&self) -> u32 {
        u32::try_from(self.wr_ids.len()).unwrap_or(u32::MAX)
    }

    /// Gives receives to the device in one chain: number `i` is that of `chain.prepared[i]`. On
    /// failure, says how many were posted.
    pub(super) fn post(
        &mut self,
        chain: &mut Chain,
        wr_ids: impl Iterator<Item = u64>,
    ) -> Result<(), (usize, PostErrorKind)> {
        let Chain { receives: wrs, prepared, .. } = chain;
        wrs.clear();
        let mut full = None;
        for (index, (request, wr_id)) in prepared.iter_mut().zip(wr_ids).enumerate() {
            let Some(place) = self.free.pop() else {
                full = Some((index, PostErrorKind::QueueFull));
                break;
            };
            if let Some(entry) = self.wr_ids.get_mut(usize::from(place)) {
                *entry = Some(wr_id);
            }
            let tag = Tag { receive: true, generation: 0, slot: self.number, sequence: place };
            let (sg_list, num_sge) = (request.sges.as_mut_ptr(), request.count);
            wrs.push(ibv_recv_wr { wr_id: tag.to_bits(), next: ptr::null_mut(), sg_list, num_sge });
        }
        let first = wrs.as_mut_ptr();
        for place in 1..wrs.len() {
            // SAFETY: both places are inside the vector, which does not grow any more.
            unsafe { (*first.add(place - 1)).next = first.add(place) };
        }
        if !wrs.is_empty() {
            let mut refused = ptr::null_mut();
            // SAFETY: a live queue and a well-formed chain; what its elements name was checked to
            // lie in registered memory, which stays registered or makes the receive fail.
            let result =
                unsafe { rdma_sys::ibv_post_srq_recv(self.raw.as_ptr(), first, &mut refused) };
            if result != 0 {
                let posted = wrs.iter().position(|wr| ptr::eq(wr, refused)).unwrap_or(0);
                for wr in wrs.iter().skip(posted) {
                    self.retire(Tag::from_bits(wr.wr_id).sequence);
                }
                let errno = refusal(result).raw_os_error().unwrap_or(libc::EIO);
                return Err((posted, PostErrorKind::Device(errno)));
            }
        }
        full.map_or(Ok(()), Err)
    }

    /// The receive of a place is over: what the user said of it. `None`: there is none.
    pub(super) fn retire(&mut self, place: u16) -> Option<u64> {
        let wr_id = self.wr_ids.get_mut(usize::from(place))?.take()?;
        self.free.push(place);
        Some(wr_id)
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        // SAFETY: its queue pairs are gone before it (see `fabric` and `shared`).
        let result = unsafe { rdma_sys::ibv_destroy_srq(self.raw.as_ptr()) };
        if result != 0 {
            let error = io::Error::from_raw_os_error(result);
            tracing::debug!(%error, "a shared receive queue could not be destroyed");
        }
    }
}

//! The queue pair of a connection: what is outstanding on it, and the work requests on their way to
//! the device. Called by `fabric`.
//!
//! The device gets numbers of our own: which queue, which connection (with its generation, so that
//! completions of a queue pair that is gone are told apart), and which request. What the user said
//! stands in a `ring`.

use core::ptr::{self, NonNull};
use std::io;

use lariat_roce::verbs::{PostErrorKind, SendOp, SharedReceiveId, WcOpcode};
use rdma_sys::{
    ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state, ibv_recv_wr, ibv_send_flags, ibv_send_wr,
    ibv_sge, ibv_wr_opcode, imm_data_invalidated_rkey_union_t, rdma_t, wr_t,
};

use super::ring::{Entry, Ring};

/// RNR NAK timer of 0.64 ms (IBTA table 45); librdmacm leaves 655 ms.
const MIN_RNR_TIMER: u8 = 12;

/// The number that the device returns with a completion. Generation 0, which no connection has, is
/// of a shared receive queue: `slot` is its number, `sequence` a place in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag {
    pub(super) receive: bool,
    /// 31 bits.
    pub(super) generation: u32,
    pub(super) slot: u16,
    pub(super) sequence: u16,
}

impl Tag {
    pub(super) const MAX_GENERATION: u32 = (1 << 31) - 1;

    pub(super) fn to_bits(self) -> u64 {
        u64::from(self.receive) << 63
            | u64::from(self.generation & Self::MAX_GENERATION) << 32
            | u64::from(self.slot) << 16
            | u64::from(self.sequence)
    }

    #[expect(clippy::cast_possible_truncation, reason = "each part is masked or its own width")]
    pub(super) fn from_bits(bits: u64) -> Self {
        Self {
            receive: bits >> 63 != 0,
            generation: (bits >> 32) as u32 & Self::MAX_GENERATION,
            slot: (bits >> 16) as u16,
            sequence: bits as u16,
        }
    }
}

/// A work request as the device will see it.
#[derive(Clone, Copy)]
pub(super) struct Prepared {
    pub(super) opcode: ibv_wr_opcode::Type,
    pub(super) flags: u32,
    pub(super) remote_address: u64,
    pub(super) rkey: u32,
    pub(super) sges: [ibv_sge; 2],
    pub(super) count: i32,
    tag: u64,
}

impl core::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Prepared").field("opcode", &self.opcode).finish_non_exhaustive()
    }
}

const NO_SGE: ibv_sge = ibv_sge { addr: 0, length: 0, lkey: 0 };

impl Prepared {
    /// Of no memory yet.
    pub(super) fn receive() -> Self {
        Self {
            opcode: 0,
            flags: 0,
            remote_address: 0,
            rkey: 0,
            sges: [NO_SGE; 2],
            count: 0,
            tag: 0,
        }
    }

    /// Of no memory yet.
    pub(super) fn send(op: SendOp) -> (Self, WcOpcode) {
        let (opcode, name, remote_address, rkey) = match op {
            SendOp::Send => (ibv_wr_opcode::IBV_WR_SEND, WcOpcode::Send, 0, 0),
            SendOp::SendWithInvalidate { rkey } => {
                (ibv_wr_opcode::IBV_WR_SEND_WITH_INV, WcOpcode::Send, 0, rkey.0)
            }
            SendOp::Write { remote_address, rkey } => {
                (ibv_wr_opcode::IBV_WR_RDMA_WRITE, WcOpcode::Write, remote_address, rkey.0)
            }
            SendOp::Read { remote_address, rkey } => {
                (ibv_wr_opcode::IBV_WR_RDMA_READ, WcOpcode::Read, remote_address, rkey.0)
            }
        };
        (Self { opcode, remote_address, rkey, ..Self::receive() }, name)
    }

    /// Adds memory. Pieces of no bytes are left out: to some devices a length of 0 means 2 GiB.
    pub(super) fn add(&mut self, addr: u64, length: u32, lkey: u32) {
        if length == 0 {
            return;
        }
        let place = usize::try_from(self.count).unwrap_or(usize::MAX);
        if let Some(sge) = self.sges.get_mut(place) {
            *sge = ibv_sge { addr, length, lkey };
            self.count += 1;
        }
    }
}

/// Where chains of work requests are put together. Holds nothing between calls.
#[derive(Default)]
pub(super) struct Chain {
    sends: Vec<ibv_send_wr>,
    pub(super) receives: Vec<ibv_recv_wr>,
    /// Receives on their way to [`QueuePair::post_receives`], or to a shared queue.
    pub(super) prepared: Vec<Prepared>,
}

// SAFETY: the pointers in it are followed only within the call that put them there.
unsafe impl Send for Chain {}

impl core::fmt::Debug for Chain {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Chain")
    }
}

/// Tells queue pairs apart as long as they live. Never followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QpKey(usize);

impl QpKey {
    /// Of the address at which libibverbs keeps it.
    pub(super) const fn of(address: usize) -> Self {
        Self(address)
    }
}

/// Why a device took no work request: drivers return the error's number, some of them negated, and
/// Soft-iWARP's -1 with the number in `errno`.
pub(super) fn refusal(result: core::ffi::c_int) -> io::Error {
    match result {
        -1 => io::Error::last_os_error(),
        number => io::Error::from_raw_os_error(number.saturating_abs()),
    }
}

/// The sizes of a queue pair as created.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) sends: u32,
    pub(super) receives: u32,
    pub(super) max_inline: u32,
    /// The same for SEND with Invalidate: Soft-iWARP takes none of these.
    pub(super) max_inline_invalidate: u32,
    /// Which completion queues of the device have its sends and receives.
    pub(super) send_cq: usize,
    pub(super) receive_cq: usize,
}

impl Sizes {
    /// Whether a request of so many bytes is copied when it is posted.
    fn inline(&self, opcode: ibv_wr_opcode::Type, length: u32) -> bool {
        let most = match opcode {
            // Nothing to copy.
            ibv_wr_opcode::IBV_WR_RDMA_READ => return false,
            ibv_wr_opcode::IBV_WR_SEND_WITH_INV => self.max_inline_invalidate,
            _ => self.max_inline,
        };
        most > 0 && length <= most
    }
}

/// Outstanding send requests whose end is to be told.
///
/// With an RDMA READ or WRITE somebody waits for that. A SEND has done its work at the peer, and its
/// end only frees memory here: whoever sleeps is not woken for it at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Awaited {
    pub(super) sends: u32,
    pub(super) others: u32,
}

impl Awaited {
    fn of(&mut self, entry: &Entry) -> Option<&mut u32> {
        let count = if entry.opcode == WcOpcode::Send { &mut self.sends } else { &mut self.others };
        entry.signaled.then_some(count)
    }

    fn begun(&mut self, entry: &Entry) {
        if let Some(count) = self.of(entry) {
            *count += 1;
        }
    }

    fn over(&mut self, entry: &Entry) {
        if let Some(count) = self.of(entry) {
            *count = count.saturating_sub(1);
        }
    }
}

/// A queue pair of a connection; the `CmId` beside it owns the device's part.
#[derive(Debug)]
pub(super) struct QueuePair {
    raw: NonNull<ibv_qp>,
    pub(super) sizes: Sizes,
    tag: Tag,
    sends: Ring,
    receives: Ring,
    /// The last of `sends`: not given to the device yet.
    pending: Vec<Prepared>,
    /// Unsignalled requests since the last signalled one, and how many may be.
    quiet: u32,
    max_quiet: u32,
    /// What the user waits for among `sends`.
    awaited: Awaited,
    /// Every request is announced, whatever the user says (iWARP). Soft-iWARP completes others before
    /// an RDMA READ; and what is not to be announced it sends out of our memory, through TCP, long
    /// after the completion of a later request has said that the memory is ours again.
    announces_all: bool,
    /// Where its receives come from, if not from its own queue.
    pub(super) shared: Option<SharedReceiveId>,
    /// The device has said that it takes no more of them (`IBV_EVENT_QP_LAST_WQE_REACHED`).
    pub(super) took_last: bool,
}

// SAFETY: libibverbs may be called from any thread; one value alone posts to the queue pair.
unsafe impl Send for QueuePair {}

impl QueuePair {
    /// `iwarp`: the device is one of iWARP.
    ///
    /// # Safety
    /// The queue pair outlives this value.
    pub(super) unsafe fn new(
        raw: NonNull<ibv_qp>,
        sizes: Sizes,
        iwarp: bool,
        generation: u32,
        slot: u16,
    ) -> Self {
        Self {
            raw,
            sizes,
            tag: Tag { receive: false, generation, slot, sequence: 0 },
            sends: Ring::new(sizes.sends, iwarp),
            receives: Ring::new(sizes.receives, false),
            pending: Vec::with_capacity(sizes.sends as usize),
            quiet: 0,
            max_quiet: (sizes.sends / 4).max(1),
            awaited: Awaited::default(),
            announces_all: iwarp,
            shared: None,
            took_last: false,
        }
    }

    /// The device's number for it.
    pub(super) fn number(&self) -> u32 {
        // SAFETY: a live queue pair; the number never changes.
        unsafe { (*self.raw.as_ptr()).qp_num }
    }

    pub(super) fn key(&self) -> QpKey {
        QpKey::of(self.raw.as_ptr().addr())
    }

    /// Queues a send request for the next [`Self::flush`].
    pub(super) fn queue_send(
        &mut self,
        entry: Entry,
        mut request: Prepared,
    ) -> Result<(), PostErrorKind> {
        let announced = entry.signaled || self.announces_all || self.quiet + 1 >= self.max_quiet;
        let sequence = self.sends.push(entry, announced)?;
        self.awaited.begun(&entry);
        request.tag = Tag { sequence, ..self.tag }.to_bits();
        self.quiet = if announced { 0 } else { self.quiet + 1 };
        if announced {
            request.flags |= ibv_send_flags::IBV_SEND_SIGNALED.0;
        }
        if self.sizes.inline(request.opcode, entry.length) {
            request.flags |= ibv_send_flags::IBV_SEND_INLINE.0;
        }
        self.pending.push(request);
        Ok(())
    }

    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Gives all queued send requests to the device in one chain. Where the device refuses one,
    /// that and those behind it stay pending.
    pub(super) fn flush(&mut self, chain: &mut Chain) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let wrs = &mut chain.sends;
        wrs.clear();
        for request in &mut self.pending {
            // SAFETY: a structure of integers, pointers and unions of such: zero is a value.
            let mut wr: ibv_send_wr = unsafe { core::mem::zeroed() };
            wr.wr_id = request.tag;
            wr.sg_list = request.sges.as_mut_ptr();
            wr.num_sge = request.count;
            wr.opcode = request.opcode;
            wr.send_flags = request.flags;
            if request.opcode == ibv_wr_opcode::IBV_WR_SEND_WITH_INV {
                wr.imm_data_invalidated_rkey_union =
                    imm_data_invalidated_rkey_union_t { invalidated_rkey: request.rkey };
            }
            // For SEND with Invalidate too: Soft-iWARP's library takes the key from here.
            wr.wr =
                wr_t { rdma: rdma_t { remote_addr: request.remote_address, rkey: request.rkey } };
            wrs.push(wr);
        }
        let first = wrs.as_mut_ptr();
        for place in 1..wrs.len() {
            // SAFETY: both places are inside the vector, which does not grow any more.
            unsafe { (*first.add(place - 1)).next = first.add(place) };
        }
        let mut refused = ptr::null_mut();
        // SAFETY: a live queue pair and a well-formed chain; what its elements name was checked to
        // lie in registered memory, which stays registered or makes the request fail.
        let result = unsafe { rdma_sys::ibv_post_send(self.raw.as_ptr(), first, &mut refused) };
        if result == 0 {
            self.pending.clear();
            return Ok(());
        }
        let posted = wrs.iter().position(|wr| ptr::eq(wr, refused)).unwrap_or(0);
        self.pending.drain(..posted);
        Err(refusal(result))
    }

    /// Gives receives to the device in one chain: entry `i` is that of `chain.prepared[i]`. On
    /// failure, says how many were posted.
    pub(super) fn post_receives(
        &mut self,
        chain: &mut Chain,
        entries: impl Iterator<Item = Entry>,
    ) -> Result<(), (usize, PostErrorKind)> {
        let before = self.receives.len();
        let Chain { receives: wrs, prepared, .. } = chain;
        wrs.clear();
        let mut full = None;
        for (place, (request, entry)) in prepared.iter_mut().zip(entries).enumerate() {
            match self.receives.push(entry, true) {
                Ok(sequence) => {
                    let tag = Tag { receive: true, sequence, ..self.tag };
                    let sg_list = request.sges.as_mut_ptr();
                    let num_sge = request.count;
                    let (wr_id, next) = (tag.to_bits(), ptr::null_mut());
                    wrs.push(ibv_recv_wr { wr_id, next, sg_list, num_sge });
                }
                Err(kind) => {
                    full = Some((place, kind));
                    break;
                }
            }
        }
        let first = wrs.as_mut_ptr();
        for place in 1..wrs.len() {
            // SAFETY: both places are inside the vector, which does not grow any more.
            unsafe { (*first.add(place - 1)).next = first.add(place) };
        }
        if !wrs.is_empty() {
            let mut refused = ptr::null_mut();
            // SAFETY: as in `flush`.
            let result = unsafe { rdma_sys::ibv_post_recv(self.raw.as_ptr(), first, &mut refused) };
            if result != 0 {
                let posted = wrs.iter().position(|wr| ptr::eq(wr, refused)).unwrap_or(0);
                self.receives.truncate(before + posted);
                let errno = refusal(result).raw_os_error().unwrap_or(libc::EIO);
                return Err((posted, PostErrorKind::Device(errno)));
            }
        }
        full.map_or(Ok(()), Err)
    }

    /// What the user said about a request that is over. Sends before it are over as well. `None`: it
    /// is not known (any more).
    pub(super) fn retire(&mut self, tag: Tag) -> Option<Entry> {
        if tag.receive {
            return self.receives.retire(tag.sequence);
        }
        let entry = self.sends.retire(tag.sequence)?;
        self.awaited.over(&entry);
        Some(entry)
    }

    /// What the user waits for.
    pub(super) fn awaited(&self) -> Awaited {
        self.awaited
    }

    /// Whether the device owes no completion any more.
    pub(super) fn is_drained(&self) -> bool {
        self.receives.is_empty() && self.sends.len() == self.pending.len()
    }

    /// Forgets what is outstanding: sends in order, then receives.
    pub(super) fn abandon(&mut self, mut each: impl FnMut(Entry)) {
        self.pending.clear();
        self.awaited = Awaited::default();
        for ring in [&mut self.sends, &mut self.receives] {
            ring.abandon(&mut each);
        }
    }

    /// Lets a peer that came too early try again soon.
    pub(super) fn set_rnr_timer(&mut self) {
        self.modify(ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER, |attributes| {
            attributes.min_rnr_timer = MIN_RNR_TIMER;
        });
    }

    /// Flushes all that is outstanding.
    pub(super) fn set_error(&mut self) {
        self.modify(ibv_qp_attr_mask::IBV_QP_STATE, |attributes| {
            attributes.qp_state = ibv_qp_state::IBV_QPS_ERR;
        });
    }

    fn modify(&mut self, mask: ibv_qp_attr_mask, set: impl FnOnce(&mut ibv_qp_attr)) {
        // SAFETY: a structure of integers, for which zero is a value.
        let mut attributes: ibv_qp_attr = unsafe { core::mem::zeroed() };
        set(&mut attributes);
        let mask = i32::try_from(mask.0).unwrap_or(0);
        // SAFETY: a live queue pair.
        let result = unsafe { rdma_sys::ibv_modify_qp(self.raw.as_ptr(), &mut attributes, mask) };
        if result != 0 {
            let error = io::Error::from_raw_os_error(result.abs());
            tracing::debug!(%error, mask, "a queue pair was not modified");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_go_there_and_back() {
        let tag =
            Tag { receive: true, generation: Tag::MAX_GENERATION, slot: 0xfffe, sequence: 0x8001 };
        assert_eq!(Tag::from_bits(tag.to_bits()), tag);
        let other = Tag { receive: false, generation: 1, slot: 2, sequence: 3 };
        assert_eq!(Tag::from_bits(other.to_bits()), other);
        assert_eq!(other.to_bits(), 1 << 32 | 2 << 16 | 3);
    }

    #[test]
    fn small_messages_are_copied_where_the_device_takes_them() {
        let mut sizes = Sizes {
            sends: 1,
            receives: 1,
            max_inline: 64,
            max_inline_invalidate: 0,
            send_cq: 0,
            receive_cq: 0,
        };
        use ibv_wr_opcode::{
            IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_SEND, IBV_WR_SEND_WITH_INV,
        };
        assert!(sizes.inline(IBV_WR_SEND, 64) && sizes.inline(IBV_WR_RDMA_WRITE, 0));
        assert!(!sizes.inline(IBV_WR_SEND, 65) && !sizes.inline(IBV_WR_RDMA_READ, 1));
        assert!(!sizes.inline(IBV_WR_SEND_WITH_INV, 16));
        sizes.max_inline_invalidate = 64;
        assert!(sizes.inline(IBV_WR_SEND_WITH_INV, 16));
    }

    #[test]
    fn only_what_is_told_is_awaited() {
        let entry = |opcode, signaled| Entry { wr_id: 0, opcode, signaled, length: 0 };
        let mut awaited = Awaited::default();
        for signaled in [true, false] {
            for opcode in [WcOpcode::Send, WcOpcode::Read, WcOpcode::Write] {
                awaited.begun(&entry(opcode, signaled));
            }
        }
        assert_eq!(awaited, Awaited { sends: 1, others: 2 });
        awaited.over(&entry(WcOpcode::Write, false));
        awaited.over(&entry(WcOpcode::Send, true));
        awaited.over(&entry(WcOpcode::Read, true));
        assert_eq!(awaited, Awaited { sends: 0, others: 1 });
    }

    #[test]
    fn drivers_refuse_in_three_ways() {
        assert_eq!(refusal(libc::ENOMEM).raw_os_error(), Some(libc::ENOMEM));
        assert_eq!(refusal(-libc::EINVAL).raw_os_error(), Some(libc::EINVAL));
        nix::errno::Errno::set_raw(libc::ENOTCONN);
        assert_eq!(refusal(-1).raw_os_error(), Some(libc::ENOTCONN));
    }

    #[test]
    fn empty_pieces_are_left_out() {
        let (mut request, _) = Prepared::send(SendOp::Send);
        request.add(1, 0, 7);
        request.add(2, 5, 7);
        request.add(3, 0, 7);
        assert_eq!((request.count, request.sges[0].addr), (1, 2));
    }
}

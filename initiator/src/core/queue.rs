//! One NVMe queue over one connection: command slots, capsule buffers, responses, time limits.
//!
//! Submitting only queues: [`HostQueue::post`] hands the capsules of one turn to the fabric, those
//! of equal size together, and whoever owns the fabric rings its doorbell once. Calls the fabric
//! and the wire types; called by `link` (the queue's way up and down) and by `block`.

use std::collections::VecDeque;
use std::sync::Arc;

use core::time::Duration;

use lariat_fabric::verbs::{
    Access, ConnId, DomainId, RecvRequest, RegionId, SendOp, SendRequest, Sge, SgeList, WcStatus,
};
use lariat_fabric::{Fabric, Memory, RegisterError, Timestamp};
use lariat_wire::nvme::{COMMAND_BYTES, Command, CommandId, Completion, Qid, Sgl};

mod answers;

use super::small_writes::SmallWrites;
use super::types::{DataRef, Failure, LossReason, Stages, SubmitError, Transfer};

/// Room for a response; a response has 16 bytes, a stride of 64 keeps each in its own cache line.
const RESPONSE_STRIDE: u32 = 64;
/// How long after the first flushed request its cause is waited for.
const CAUSE_WITHIN: Duration = Duration::from_millis(100);
/// Marks the identifiers of receives; sends have their slot's number alone.
const RECV_MARK: u64 = 1 << 32;
/// Longest transfer of one keyed descriptor (24 bits), cut to whole pages.
pub const MAX_KEYED_BYTES: u32 = 0x00ff_f000;

/// A command that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueCompletion {
    /// What the submitter gave.
    pub user_data: u64,
    /// What else the submitter gave.
    pub tag: u64,
    /// The command's opcode.
    pub opcode: u8,
    /// The controller's answer (also where its status is an error), or why there is none.
    pub outcome: Result<Completion, LossReason>,
    /// When it passed which stage.
    pub stages: Stages,
}

impl QueueCompletion {
    /// The completion if its status is success.
    ///
    /// # Errors
    /// The status, or why there is none.
    pub fn success(&self) -> Result<Completion, Failure> {
        match self.outcome {
            Ok(completion) if completion.status().is_success() => Ok(completion),
            Ok(completion) => Err(Failure::Status(completion.status())),
            Err(reason) => Err(Failure::Lost(reason)),
        }
    }
}

/// What a command slot holds. The command ends with its response; its slot is free again when the
/// SEND is complete, too: before that the fabric may still read the capsule. (If the submitter's own
/// data is in the capsule, the command ends no sooner either.)
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    busy: bool,
    generation: u16,
    sent: bool,
    /// The capsule has the submitter's data.
    with_data: bool,
    /// A write whose data would fit the capsule.
    small_write: bool,
    /// Its end was told.
    ended: bool,
    answer: Option<Completion>,
    opcode: u8,
    user_data: u64,
    tag: u64,
    deadline: Timestamp,
    stages: Stages,
}

/// One queue. See the module.
#[derive(Debug)]
pub struct HostQueue {
    qid: Qid,
    conn: ConnId,
    capsules: Arc<Memory>,
    capsule_region: RegionId,
    scratch: Arc<Memory>,
    scratch_region: RegionId,
    slots: Vec<Slot>,
    free: Vec<u16>,
    /// Bits of a command identifier that hold the slot; the generation stands above.
    slot_bits: u32,
    /// Commands the peer takes at a time.
    credit: u32,
    /// Commands that have not ended.
    outstanding: u32,
    in_capsule_bytes: u32,
    small_writes: SmallWrites,
    bare: Vec<SendRequest>,
    with_data: Vec<SendRequest>,
    repost: Vec<RecvRequest>,
    done: VecDeque<QueueCompletion>,
    next_deadline: Timestamp,
    sq_head: u16,
    /// The queue pair is in the error state; why is known by then.
    flushed_until: Timestamp,
    lost: Option<LossReason>,
}

impl HostQueue {
    /// Registers the buffers of a queue of `commands` at a time, `capsules` of which may be on their
    /// way or not acknowledged yet (not fewer than `commands`), and `scratch_bytes` of memory that the
    /// peer may reach (for the data of small commands). The queue pair of `conn` must exist, for so
    /// many sends and receives; its receives are posted here.
    ///
    /// # Errors
    /// Memory could not be registered. (Receives that cannot be posted count as a lost connection,
    /// see [`Self::lost`].)
    pub fn new<F: Fabric + ?Sized>(
        fabric: &mut F,
        domain: DomainId,
        conn: ConnId,
        qid: Qid,
        (commands, capsules): (u16, u16),
        scratch_bytes: usize,
    ) -> Result<Self, RegisterError> {
        let commands = commands.max(1);
        let slots = capsules.max(commands);
        let count = usize::from(slots);
        let capsule_bytes =
            count * COMMAND_BYTES + usize::from(commands) * RESPONSE_STRIDE as usize;
        let allocate = |bytes: usize| {
            Memory::allocate(bytes).map_err(|source| RegisterError::Io { bytes, source })
        };
        let capsules = allocate(capsule_bytes)?;
        let scratch = allocate(scratch_bytes.max(1))?;
        let capsule_region = fabric.register(domain, Arc::clone(&capsules), Access::LOCAL)?;
        let scratch_region = match fabric.register(domain, Arc::clone(&scratch), Access::REMOTE) {
            Ok(region) => region,
            Err(error) => {
                let _ = fabric.deregister(capsule_region);
                return Err(error);
            }
        };
        let mut queue = Self {
            qid,
            conn,
            capsules,
            capsule_region,
            scratch,
            scratch_region,
            slots: vec![Slot::default(); count],
            free: (0..slots).rev().collect(),
            slot_bits: u16::BITS - (slots - 1).leading_zeros(),
            credit: u32::from(commands),
            outstanding: 0,
            in_capsule_bytes: 0,
            small_writes: SmallWrites::default(),
            bare: Vec::with_capacity(count),
            with_data: Vec::with_capacity(count),
            repost: (0..commands).map(|index| recv_request(capsule_region, slots, index)).collect(),
            done: VecDeque::with_capacity(count),
            next_deadline: Timestamp::NEVER,
            sq_head: 0,
            flushed_until: Timestamp::NEVER,
            lost: None,
        };
        queue.post_receives(fabric);
        Ok(queue)
    }

    /// The connection.
    #[must_use]
    pub fn conn(&self) -> ConnId {
        self.conn
    }

    /// The queue's identifier.
    #[must_use]
    pub fn qid(&self) -> Qid {
        self.qid
    }

    /// Commands that may be outstanding at a time.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.credit
    }

    /// Keeps to what the peer can receive (CRQSIZE; RDMA transport 1.1, 3.2).
    pub fn limit_depth(&mut self, commands: u32) {
        self.credit = self.credit.min(commands.max(1));
    }

    /// Allows data in the capsules of writes, up to this many bytes.
    pub fn set_in_capsule_bytes(&mut self, bytes: u32) {
        self.in_capsule_bytes = bytes;
    }

    /// Commands outstanding.
    #[must_use]
    pub fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// Commands that can be submitted now.
    #[must_use]
    pub fn vacant(&self) -> u32 {
        if self.lost.is_some() || self.is_flushed() {
            return 0;
        }
        let free = u32::try_from(self.free.len()).unwrap_or(u32::MAX);
        self.credit.saturating_sub(self.outstanding).min(free)
    }

    fn is_flushed(&self) -> bool {
        self.flushed_until != Timestamp::NEVER
    }

    /// Why the connection is lost, if it is. The owner then calls [`Self::close`].
    #[must_use]
    pub fn lost(&self) -> Option<LossReason> {
        self.lost
    }

    /// The controller's last word on the submission queue's head.
    #[must_use]
    pub fn sq_head(&self) -> u16 {
        self.sq_head
    }

    /// A piece of the memory that the peer may reach; `None` beyond its end.
    #[must_use]
    pub fn scratch(&self, offset: u64, length: u32) -> Option<DataRef> {
        let address = self.scratch.range(offset, usize::try_from(length).ok()?).ok()?;
        let address = u64::try_from(address.as_ptr().addr()).ok()?;
        Some(DataRef { region: self.scratch_region, offset, address, length })
    }

    /// The memory behind [`Self::scratch`].
    #[must_use]
    pub fn scratch_memory(&self) -> &Arc<Memory> {
        &self.scratch
    }

    /// Queues a command. Its identifier and data pointer are filled in here. It goes out with the
    /// next [`Self::post`], and comes back, in any case, as one [`QueueCompletion`].
    ///
    /// # Errors
    /// Why it was not taken.
    #[expect(clippy::too_many_arguments, reason = "each is one fact of a command")]
    pub fn submit<F: Fabric + ?Sized>(
        &mut self,
        now: Timestamp,
        fabric: &F,
        command: Command,
        transfer: Transfer,
        user_data: u64,
        tag: u64,
        timeout: Duration,
    ) -> Result<(), SubmitError> {
        if let Some(reason) = self.lost {
            return Err(SubmitError::Closed(reason));
        }
        if self.outstanding >= self.credit || self.is_flushed() {
            return Err(SubmitError::Full);
        }
        let small_write = matches!(transfer, Transfer::ToController(data) if self.fits(data));
        let (sgl, in_capsule) = self.data_pointer(fabric, transfer)?;
        let index = self.free.pop().ok_or(SubmitError::Full)?;
        let Some(slot) = self.slots.get_mut(usize::from(index)) else {
            return Err(SubmitError::Full);
        };
        let generation = slot.generation.wrapping_add(1);
        *slot = Slot {
            busy: true,
            generation,
            sent: false,
            with_data: in_capsule.is_some(),
            small_write,
            ended: false,
            answer: None,
            opcode: command.opcode,
            user_data,
            tag,
            deadline: now + timeout,
            stages: Stages { submitted: now, posted: now, answered: now },
        };
        self.outstanding += 1;
        if small_write {
            self.small_writes.began();
        }
        self.next_deadline = self.next_deadline.min(slot.deadline);
        let cid = CommandId(index | generation.checked_shl(self.slot_bits).unwrap_or(0));
        let bytes = command.with_cid(cid).with_sgl(sgl).to_bytes();
        let offset = u64::from(index) * COMMAND_BYTES as u64;
        if self.capsules.write_at(offset, &bytes).is_err() {
            self.lost = Some(LossReason::Protocol("capsule memory is too small"));
        }
        let capsule = Sge { region: self.capsule_region, offset, length: COMMAND_BYTES_U32 };
        let request = SendRequest {
            wr_id: u64::from(index),
            op: SendOp::Send,
            sges: in_capsule
                .map_or(SgeList::one(capsule), |data| SgeList::two(capsule, data.sge())),
            signaled: true,
        };
        match in_capsule {
            None => self.bare.push(request),
            Some(_) => self.with_data.push(request),
        }
        Ok(())
    }

    /// Whether data may go in a capsule.
    fn fits(&self, data: DataRef) -> bool {
        data.length <= self.in_capsule_bytes
    }

    /// The descriptor of a command's data, and the data itself where it goes in the capsule.
    fn data_pointer<F: Fabric + ?Sized>(
        &self,
        fabric: &F,
        transfer: Transfer,
    ) -> Result<(Sgl, Option<DataRef>), SubmitError> {
        let data = match transfer {
            Transfer::None => return Ok((Sgl::Null, None)),
            Transfer::ToController(data) if self.fits(data) && !self.small_writes.are_fetched() => {
                return Ok((Sgl::InCapsule { offset: 0, length: data.length }, Some(data)));
            }
            Transfer::ToController(data) | Transfer::ToHost(data) => data,
        };
        let key = fabric.rkey(self.conn, data.region).map_err(|_| SubmitError::BadMemory)?;
        let sgl =
            Sgl::keyed(data.address, data.length, key.get()).ok_or(SubmitError::TooLarge {
                bytes: u64::from(data.length),
                limit: u64::from(MAX_KEYED_BYTES),
            })?;
        Ok((sgl, None))
    }

    /// Hands what was queued to the fabric: receives first, then the capsules, those without data
    /// together and those with data together. The owner of the fabric rings its doorbell.
    /// Returns whether there was anything.
    pub fn post<F: Fabric + ?Sized>(&mut self, now: Timestamp, fabric: &mut F) -> bool {
        self.post_receives(fabric);
        if self.lost.is_some() || self.is_flushed() {
            return false;
        }
        let any = !self.bare.is_empty() || !self.with_data.is_empty();
        if self.small_writes.any() {
            self.small_writes.posted(|| fabric.fetching_pays_from(self.conn));
        }
        for list in [&mut self.bare, &mut self.with_data] {
            if list.is_empty() {
                continue;
            }
            for request in list.iter() {
                let slot =
                    usize::try_from(request.wr_id).ok().and_then(|at| self.slots.get_mut(at));
                if let Some(slot) = slot {
                    slot.stages.posted = now;
                }
            }
            if let Err(error) = fabric.post_send(self.conn, list) {
                self.lost = Some(LossReason::Post(error.kind));
            }
            list.clear();
        }
        any
    }

    fn post_receives<F: Fabric + ?Sized>(&mut self, fabric: &mut F) {
        if self.repost.is_empty() || self.lost.is_some() || self.is_flushed() {
            return;
        }
        if let Err(error) = fabric.post_recv(self.conn, &self.repost) {
            self.lost = Some(LossReason::Post(error.kind));
        }
        self.repost.clear();
    }

    /// When [`Self::handle_timeout`] wants to be called.
    #[must_use]
    pub fn next_timeout(&self) -> Timestamp {
        let idle = self.free.len() == self.slots.len() && !self.is_flushed();
        if idle { Timestamp::NEVER } else { self.next_deadline }
    }

    /// Looks for commands whose time is over. One is enough to give the connection up: while it
    /// stands, the peer may still write into that command's memory.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        if now < self.next_deadline || self.lost.is_some() {
            return;
        }
        if now >= self.flushed_until {
            self.lost = Some(LossReason::Transport(WcStatus::Flushed));
            return;
        }
        let mut next = self.flushed_until;
        for slot in self.slots.iter().filter(|slot| slot.busy) {
            if slot.deadline <= now {
                self.lost = Some(LossReason::CommandTimeout {
                    qid: self.qid,
                    opcode: slot.opcode,
                    waited: now.since(slot.stages.submitted),
                });
                return;
            }
            next = next.min(slot.deadline);
        }
        self.next_deadline = next;
    }

    /// The next command that ended.
    pub fn poll_completion(&mut self) -> Option<QueueCompletion> {
        self.done.pop_front()
    }

    /// Destroys the connection and completes all that is outstanding. Afterwards nothing touches
    /// the memory of its commands.
    pub fn close<F: Fabric + ?Sized>(
        &mut self,
        now: Timestamp,
        fabric: &mut F,
        reason: LossReason,
    ) {
        let reason = known_end(fabric, self.conn, self.lost.unwrap_or(reason));
        self.lost = Some(reason);
        fabric.destroy(now, self.conn);
        let _ = fabric.deregister(self.capsule_region);
        let _ = fabric.deregister(self.scratch_region);
        self.bare.clear();
        self.with_data.clear();
        self.repost.clear();
        for (index, slot) in self.slots.iter_mut().enumerate().filter(|(_, slot)| slot.busy) {
            slot.busy = false;
            if !slot.ended {
                slot.stages.answered = now;
                self.outstanding -= 1;
                self.done.push_back(QueueCompletion {
                    user_data: slot.user_data,
                    tag: slot.tag,
                    opcode: slot.opcode,
                    outcome: slot.answer.ok_or(reason),
                    stages: slot.stages,
                });
            }
            if let Ok(index) = u16::try_from(index) {
                self.free.push(index);
            }
        }
        self.next_deadline = Timestamp::NEVER;
    }
}

/// A peer that fell silent may be known to have ended. To be asked before the connection is destroyed.
pub(super) fn known_end<F: Fabric + ?Sized>(
    fabric: &F,
    conn: ConnId,
    reason: LossReason,
) -> LossReason {
    if reason == LossReason::Unresponsive && fabric.peer_ended(conn) {
        LossReason::PeerEnded
    } else {
        reason
    }
}

const COMMAND_BYTES_U32: u32 = 64;
const _: () = assert!(COMMAND_BYTES_U32 as usize == COMMAND_BYTES);

/// The low `bits` bits set.
fn low_mask(bits: u32) -> u16 {
    u16::MAX.checked_shl(bits).map_or(u16::MAX, |high| !high)
}

/// Receive `index` of a queue of `slots`: its buffer stands behind the commands.
fn recv_request(region: RegionId, slots: u16, index: u16) -> RecvRequest {
    let offset =
        u64::from(slots) * COMMAND_BYTES as u64 + u64::from(index) * u64::from(RESPONSE_STRIDE);
    RecvRequest {
        wr_id: RECV_MARK | u64::from(index),
        sges: SgeList::one(Sge { region, offset, length: RESPONSE_STRIDE }),
    }
}

#[cfg(test)]
mod tests;

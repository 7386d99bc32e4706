//! One NVMe queue over one RC connection: what was agreed, where its receive buffers lie, which
//! requests are its own, and the accounting that the specification asks for (submission queue
//! head, outstanding command identifiers, RDMA READ turns).
//!
//! Holds no fabric: the reactor's other files act on it. Calls `arena` and `nvme` types.

use core::net::IpAddr;
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

use lariat_fabric::verbs::{ConnId, DeviceLimits, RecvRequest, RegionId, Sge, SgeList};
use lariat_fabric::{Memory, Timestamp};
use lariat_wire::nvme::{COMMAND_BYTES, CommandId, Qid};
use lariat_wire::rdma_cm::{ConnectRequest, RejectStatus};

use super::arena::Piece;
use super::buffer::Class;
use super::reactor::RECEIVE_MEMORY;
use super::shared::SharedKey;
use super::wr_id::WrId;
use crate::nvme::registry::ADMIN_QUEUE_ENTRIES;
use crate::nvme::{AdminController, Guest, IoAttachment, Limits};

const PAGE_BYTES: u32 = 4096;
/// A command on the wire, as the 32 bits that lengths have here.
pub(super) const CAPSULE_BYTES: u32 = 64;
const _: () = assert!(COMMAND_BYTES == 64);

/// Receives beyond the queue's size: for capsules that wait because the peer's acknowledgements
/// of responses are late.
const SPARE_RECEIVES: u32 = 8;

/// How long a peer has to answer our acceptance before its place may go to another: some round
/// trips.
const UNANSWERED_GRACE: Duration = Duration::from_millis(20);

/// What both sides of a connection will live with; made from the host's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Agreement {
    /// The queue.
    pub(super) qid: Qid,
    /// Commands the host may have outstanding.
    pub(super) entries: u32,
    /// Bytes behind a command that a receive takes.
    pub(super) in_capsule_bytes: u32,
    /// Receives to post.
    pub(super) receives: u32,
    /// Requests it may have in the slab: outstanding ones, and those whose response is not
    /// acknowledged yet.
    pub(super) slots: u32,
    /// RDMA READs we may have outstanding.
    pub(super) initiator_depth: u8,
    /// RDMA READs of the peer that we would serve.
    pub(super) responder_resources: u8,
    /// Whether SEND with Invalidate may be used.
    pub(super) may_invalidate: bool,
}

impl Agreement {
    /// Work requests of the send queue: at most two of a request are posted at a time (RDMA WRITE
    /// and response; or an RDMA READ, which ends before the response starts), and on an admin
    /// queue a probe.
    pub(super) const fn max_send(&self) -> u32 {
        self.slots * 2 + if self.qid.is_admin() { 1 } else { 0 }
    }

    /// What its commands want buffers for.
    pub(super) const fn class(&self) -> Class {
        if self.qid.is_admin() { Class::Admin } else { Class::Data }
    }

    /// Checks a host's request (RDMA transport 1.1, 5.2).
    ///
    /// # Errors
    /// The status to reject it with.
    pub(super) fn new(
        private_data: &[u8],
        offered: (u8, u8),
        limits: &Limits,
        device: &DeviceLimits,
        config_read_depth: u8,
    ) -> Result<Self, RejectStatus> {
        let (peer_responder_resources, peer_initiator_depth) = offered;
        let request = ConnectRequest::parse(private_data).map_err(|error| error.reject_status())?;
        let entries = request.hsqsize.entries();
        let is_admin = request.qid.is_admin();
        if request.qid.0 > limits.max_queues {
            return Err(RejectStatus::INVALID_QID);
        }
        let most = if is_admin {
            limits.max_queue_depth.entries().max(ADMIN_QUEUE_ENTRIES)
        } else {
            limits.max_queue_depth.entries()
        };
        if !(2..=most).contains(&entries) {
            return Err(RejectStatus::INVALID_HSQSIZE);
        }
        if request.hrqsize == 0 {
            return Err(RejectStatus::INVALID_HRQSIZE);
        }
        let initiator_depth =
            peer_responder_resources.min(device.max_initiator_depth).min(config_read_depth);
        if initiator_depth == 0 {
            // Without RDMA READ no command's data could be fetched.
            return Err(RejectStatus::INVALID_IRD);
        }
        let receives = entries + SPARE_RECEIVES;
        let slots = (entries + entries.clamp(16, 128))
            .min((device.max_queue_depth - u32::from(is_admin)) / 2);
        if receives > device.max_queue_depth || slots <= entries {
            return Err(RejectStatus::NO_RESOURCES);
        }
        let in_capsule_bytes = if is_admin {
            limits.in_capsule_bytes.min(PAGE_BYTES)
        } else {
            limits.in_capsule_bytes
        };
        Ok(Self {
            qid: request.qid,
            entries,
            in_capsule_bytes,
            receives,
            slots,
            initiator_depth,
            responder_resources: peer_initiator_depth.min(device.max_responder_resources),
            may_invalidate: device.send_with_invalidate,
        })
    }
}

/// Where the receive buffers of a connection lie. With in-capsule data each has whole pages, so
/// placed that the data behind the command is page aligned and can be written by `O_DIRECT`;
/// without, they stand side by side.
#[derive(Debug)]
pub(super) struct Receives {
    /// What it owns of the arena; nothing if it looks at a shared queue's.
    piece: Option<Piece>,
    chunk: u16,
    start: u64,
    memory: Arc<Memory>,
    region: RegionId,
    stride: u32,
    lead: u32,
    length: u32,
}

impl Receives {
    /// Distance of two buffers, and where in its stretch a capsule starts.
    const fn layout(in_capsule_bytes: u32) -> (u32, u32) {
        if in_capsule_bytes == 0 {
            (CAPSULE_BYTES, 0)
        } else {
            let data = in_capsule_bytes.div_ceil(PAGE_BYTES) * PAGE_BYTES;
            (PAGE_BYTES + data, PAGE_BYTES - CAPSULE_BYTES)
        }
    }

    /// Distance of two buffers.
    pub(super) const fn stride(in_capsule_bytes: u32) -> u32 {
        Self::layout(in_capsule_bytes).0
    }

    /// Bytes of the arena that a connection needs for receives of its own.
    pub(super) fn bytes_needed(agreement: &Agreement) -> u64 {
        let (stride, _) = Self::layout(agreement.in_capsule_bytes);
        u64::from(stride) * u64::from(agreement.receives)
    }

    /// The piece, the memory that it lies in, and the fabric's name for that.
    pub(super) fn new(
        (piece, memory, region): (Piece, Arc<Memory>, RegionId),
        in_capsule_bytes: u32,
    ) -> Self {
        let (stride, lead) = Self::layout(in_capsule_bytes);
        let (chunk, start) = (piece.chunk(), piece.offset());
        let (piece, length) = (Some(piece), CAPSULE_BYTES + in_capsule_bytes);
        Self { piece, chunk, start, memory, region, stride, lead, length }
    }

    /// The same buffers, for one who does not own them.
    pub(super) fn view(&self) -> Self {
        Self { piece: None, memory: Arc::clone(&self.memory), ..*self }
    }

    /// Bytes of the arena that it owns.
    pub(super) fn own_bytes(&self) -> u64 {
        self.piece.as_ref().map_or(0, Piece::bytes)
    }

    /// The memory that they lie in.
    pub(super) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The storage's name for it.
    pub(super) fn buffers(&self) -> u16 {
        RECEIVE_MEMORY + self.chunk
    }

    /// Where a capsule starts, in bytes from the start of the memory.
    pub(super) fn capsule(&self, index: u32) -> u64 {
        self.start + u64::from(index) * u64::from(self.stride) + u64::from(self.lead)
    }

    /// Where the data behind a command starts.
    pub(super) fn data(&self, index: u32) -> u64 {
        self.capsule(index) + u64::from(CAPSULE_BYTES)
    }

    /// The work request for a buffer.
    pub(super) fn request(&self, connection: u32, index: u32) -> RecvRequest {
        self.named(WrId::receive(connection, index), index)
    }

    /// The work request for a buffer of a shared queue.
    pub(super) fn shared_request(&self, queue: SharedKey, index: u32) -> RecvRequest {
        self.named(WrId::shared(queue.bits(), index), index)
    }

    fn named(&self, id: WrId, index: u32) -> RecvRequest {
        let sge = Sge { region: self.region, offset: self.capsule(index), length: self.length };
        RecvRequest { wr_id: id.encode(), sges: SgeList::one(sge) }
    }

    pub(super) fn into_piece(self) -> Option<Piece> {
        self.piece
    }
}

/// What a connection is to NVMe.
#[derive(Debug)]
pub(super) enum Role {
    /// No Fabrics Connect yet.
    Fresh,
    /// A Fabrics Connect is being worked on.
    Connecting,
    /// The admin queue of a controller.
    Admin(Box<AdminController>),
    /// An I/O queue.
    Io(IoAttachment),
    /// It was an admin queue; the controller is gone.
    Gone,
}

/// Where a connection is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Accepted or established: commands are executed.
    Live,
    /// Disconnect was asked for; destroyed at the latest at this time, but not before the storage
    /// has given back its buffers.
    Closing {
        /// When to stop waiting for the fabric's word.
        deadline: Timestamp,
    },
    /// The fabric said that it is over.
    Closed,
}

/// A capsule that arrived and is not looked at yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Capsule {
    /// Its receive buffer.
    pub(super) receive: u32,
    /// Its length in bytes.
    pub(super) bytes: u32,
}

/// The outstanding command identifiers of a queue.
#[derive(Debug)]
struct CommandIds(Box<[u64]>);

impl CommandIds {
    fn new() -> Self {
        Self(vec![0; 1 << 10].into_boxed_slice())
    }

    /// False if it is outstanding already.
    fn claim(&mut self, cid: CommandId) -> bool {
        let mask = 1 << (cid.0 & 63);
        match self.0.get_mut(usize::from(cid.0 >> 6)) {
            Some(word) if *word & mask == 0 => {
                *word |= mask;
                true
            }
            _ => false,
        }
    }

    fn free(&mut self, cid: CommandId) {
        if let Some(word) = self.0.get_mut(usize::from(cid.0 >> 6)) {
            *word &= !(1 << (cid.0 & 63));
        }
    }
}

/// What the peer has to acknowledge: signalled work requests that are posted and not complete.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wire {
    in_flight: u32,
    /// When the last one ended, or the first one was posted after a pause.
    since: Timestamp,
}

impl Wire {
    const fn new(now: Timestamp) -> Self {
        Self { in_flight: 0, since: now }
    }

    pub(super) fn posted(&mut self, now: Timestamp) {
        if self.in_flight == 0 {
            self.since = now;
        }
        self.in_flight += 1;
    }

    pub(super) fn ended(&mut self, now: Timestamp) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.since = now;
    }

    /// Whether the peer has something of ours that it has not acknowledged.
    pub(super) const fn is_busy(&self) -> bool {
        self.in_flight > 0
    }

    /// Since when the peer owes an acknowledgement without giving any.
    pub(super) fn stalled_since(&self) -> Option<Timestamp> {
        (self.in_flight > 0).then_some(self.since)
    }

    /// Since when nothing is under way.
    pub(super) fn idle_since(&self) -> Option<Timestamp> {
        (self.in_flight == 0).then_some(self.since)
    }
}

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    /// The fabric's handle.
    pub(super) id: ConnId,
    /// Whose it is.
    pub(super) peer: IpAddr,
    /// What was agreed.
    pub(super) agreement: Agreement,
    /// Where it is in its life.
    pub(super) phase: Phase,
    /// What it is to NVMe.
    pub(super) role: Role,
    /// Its receive buffers.
    pub(super) receives: Receives,
    /// The queue that these are of, if they are not its own.
    pub(super) shared: Option<SharedKey>,
    /// That the host is known, of an admin queue.
    pub(super) guest: Option<Guest>,
    /// Receives to post with this turn's batch.
    pub(super) to_receive: Vec<RecvRequest>,
    /// Its requests, by slot.
    pub(super) requests: Vec<u32>,
    /// Requests whose response is to be posted with this turn's batch.
    pub(super) ready: Vec<u32>,
    /// Requests that wait for their turn to RDMA READ.
    pub(super) read_queue: VecDeque<u32>,
    /// RDMA READs posted and not completed.
    pub(super) reads_in_flight: u8,
    /// RDMA READs that may be in flight.
    pub(super) read_depth: u8,
    /// Operations that the storage has.
    pub(super) in_storage: u32,
    /// Capsules not looked at yet.
    pub(super) parked: VecDeque<Capsule>,
    /// Whether the peer has shown that it is there, and until when it need not have.
    pub(super) established: bool,
    pub(super) unanswered_grace: Timestamp,
    /// Whether it stands in the reactor's list of connections with something to post.
    pub(super) listed: bool,
    /// When a Fabrics Connect has to have succeeded.
    pub(super) connect_deadline: Timestamp,
    /// What the peer has to acknowledge.
    pub(super) wire: Wire,
    /// Whether the peer is to be asked if it is there, with this turn's batch.
    pub(super) probe_due: bool,
    cids: CommandIds,
    outstanding: u32,
    queue_entries: u32,
    sq_head: u32,
    sq_flow_control: bool,
}

impl Connection {
    pub(super) fn new(
        (id, peer): (ConnId, IpAddr),
        agreement: Agreement,
        (receives, shared): (Receives, Option<SharedKey>),
        now: Timestamp,
        connect_timeout: Duration,
    ) -> Self {
        let own_receives = if shared.is_some() { 0 } else { agreement.receives };
        // Everything at its largest, so that no command allocates.
        Self {
            id,
            peer,
            agreement,
            phase: Phase::Live,
            role: Role::Fresh,
            receives,
            shared,
            guest: None,
            to_receive: Vec::with_capacity(own_receives as usize),
            requests: Vec::with_capacity(agreement.slots as usize),
            ready: Vec::with_capacity(agreement.slots as usize),
            read_queue: VecDeque::with_capacity(agreement.slots as usize),
            reads_in_flight: 0,
            read_depth: agreement.initiator_depth,
            in_storage: 0,
            parked: VecDeque::new(),
            established: false,
            unanswered_grace: now + UNANSWERED_GRACE,
            listed: false,
            connect_deadline: now + connect_timeout,
            wire: Wire::new(now),
            probe_due: false,
            cids: CommandIds::new(),
            outstanding: 0,
            queue_entries: agreement.entries,
            sq_head: 0,
            sq_flow_control: true,
        }
    }

    pub(super) fn is_live(&self) -> bool {
        self.phase == Phase::Live
    }

    /// When the peer is to be asked whether it is there: it has been silent for so long, and
    /// nothing else would notice that it is gone.
    pub(super) fn probe_at(&self, interval: Duration) -> Timestamp {
        match (&self.role, self.wire.idle_since()) {
            (Role::Admin(controller), Some(since))
                if !interval.is_zero() && !controller.has_keep_alive() =>
            {
                since + interval
            }
            _ => Timestamp::NEVER,
        }
    }

    /// Whether another request may take a slot.
    pub(super) fn has_room(&self) -> bool {
        self.requests.len() < self.agreement.slots as usize
    }

    /// Whether as many capsules wait as a host may have sent that keeps to its queue's size: none of
    /// them is answered.
    pub(super) fn has_parked_enough(&self) -> bool {
        self.parked.len() >= self.agreement.entries as usize
    }

    /// A Fabrics Connect succeeded: the queue has this size from now on.
    pub(super) fn connected(&mut self, role: Role, entries: u32, sq_flow_control: bool) {
        self.role = role;
        self.queue_entries = entries.clamp(1, self.agreement.entries);
        self.sq_head %= self.queue_entries;
        self.sq_flow_control = sq_flow_control;
    }

    /// Counts a command in. False if the host has more outstanding than its queue has entries.
    pub(super) fn count_in(&mut self) -> bool {
        if self.outstanding >= self.queue_entries {
            return false;
        }
        self.outstanding += 1;
        self.sq_head = (self.sq_head + 1) % self.queue_entries;
        true
    }

    /// False if the identifier is outstanding already.
    pub(super) fn claim(&mut self, cid: CommandId) -> bool {
        self.cids.claim(cid)
    }

    /// Counts a command out, just before its response is posted: the host may send the next one
    /// as soon as it sees it.
    pub(super) fn count_out(&mut self, cid: CommandId, owns_cid: bool) {
        self.outstanding = self.outstanding.saturating_sub(1);
        if owns_cid {
            self.cids.free(cid);
        }
    }

    /// Commands received and not answered.
    #[cfg(test)]
    pub(super) const fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// What completions say of the submission queue's head (NVMe Base 2.1, 3.3.1.2.1; the field is
    /// FFFFh where the host does not want it).
    pub(super) fn sq_head(&self) -> u16 {
        if self.sq_flow_control { u16::try_from(self.sq_head).unwrap_or(0) } else { u16::MAX }
    }

    /// Tells the controller when nothing of a queue that has ended is in the storage any more.
    pub(super) fn note_storage_done(&self) {
        if let Role::Io(attachment) = &self.role
            && self.in_storage == 0
            && !self.is_live()
        {
            attachment.storage_is_done();
        }
    }

    /// When the peer will have held up what is posted for `patience`; [`Timestamp::NEVER`] if
    /// nothing is posted.
    pub(super) fn stalled_at(&self, patience: Duration) -> Timestamp {
        self.wire.stalled_since().map_or(Timestamp::NEVER, |since| since + patience)
    }

    /// A receive buffer is free again; it is posted with this turn's batch, before any response.
    pub(super) fn recycle(&mut self, key: u32, receive: u32) {
        self.to_receive.push(self.receives.request(key, receive));
    }
}

#[cfg(test)]
pub(in crate::transport) mod tests;

//! One NVMe queue over one RC connection: what was agreed, where its receive buffers lie, which
//! requests are its own, and the accounting that the specification asks for (submission queue
//! head, outstanding command identifiers, RDMA READ turns).
//!
//! Holds no fabric: the reactor's other files act on it. Calls `arena` and `nvme` types.

use core::time::Duration;
use std::collections::VecDeque;

use lariat_fabric::Timestamp;
use lariat_fabric::verbs::{ConnId, DeviceLimits, RecvRequest, RegionId, Sge, SgeList};
use lariat_wire::nvme::{COMMAND_BYTES, CommandId, Qid};
use lariat_wire::rdma_cm::{ConnectRequest, RejectStatus};

use super::arena::Piece;
use super::wr_id::WrId;
use crate::nvme::registry::ADMIN_QUEUE_ENTRIES;
use crate::nvme::{AdminController, IoAttachment, Limits};

const PAGE_BYTES: u32 = 4096;
/// A command on the wire, as the 32 bits that lengths have here.
pub(super) const CAPSULE_BYTES: u32 = 64;
const _: () = assert!(COMMAND_BYTES == 64);

/// Receives beyond the queue's size: for capsules that wait because the peer's acknowledgements
/// of responses are late.
const SPARE_RECEIVES: u32 = 8;

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
    /// and response; or an RDMA READ, which ends before the response starts).
    pub(super) const fn max_send(&self) -> u32 {
        self.slots * 2
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
        let slots = (entries + entries.clamp(16, 128)).min(device.max_queue_depth / 2);
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
    piece: Piece,
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

    /// Bytes of the arena that a connection needs.
    pub(super) fn bytes_needed(agreement: &Agreement) -> u64 {
        let (stride, _) = Self::layout(agreement.in_capsule_bytes);
        u64::from(stride) * u64::from(agreement.receives)
    }

    pub(super) fn new(piece: Piece, region: RegionId, in_capsule_bytes: u32) -> Self {
        let (stride, lead) = Self::layout(in_capsule_bytes);
        Self { piece, region, stride, lead, length: CAPSULE_BYTES + in_capsule_bytes }
    }

    /// Where a capsule starts, in bytes from the start of the arena.
    pub(super) fn capsule(&self, index: u32) -> u64 {
        self.piece.offset() + u64::from(index) * u64::from(self.stride) + u64::from(self.lead)
    }

    /// Where the data behind a command starts.
    pub(super) fn data(&self, index: u32) -> u64 {
        self.capsule(index) + u64::from(CAPSULE_BYTES)
    }

    /// The work request for a buffer.
    pub(super) fn request(&self, connection: u32, index: u32) -> RecvRequest {
        let sge = Sge { region: self.region, offset: self.capsule(index), length: self.length };
        RecvRequest { wr_id: WrId::receive(connection, index).encode(), sges: SgeList::one(sge) }
    }

    pub(super) fn into_piece(self) -> Piece {
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

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    /// The fabric's handle.
    pub(super) id: ConnId,
    /// What was agreed.
    pub(super) agreement: Agreement,
    /// Where it is in its life.
    pub(super) phase: Phase,
    /// What it is to NVMe.
    pub(super) role: Role,
    /// Its receive buffers.
    pub(super) receives: Receives,
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
    /// RDMA READs and responses posted and not completed.
    posted: u32,
    /// When the peer last let one of them complete, or the first of them was posted.
    progress: Timestamp,
    /// Operations that the storage has.
    pub(super) in_storage: u32,
    /// Capsules not looked at yet.
    pub(super) parked: VecDeque<Capsule>,
    /// Whether it stands in the reactor's list of connections with something to post.
    pub(super) listed: bool,
    /// When a Fabrics Connect has to have succeeded.
    pub(super) connect_deadline: Timestamp,
    cids: CommandIds,
    outstanding: u32,
    queue_entries: u32,
    sq_head: u32,
    sq_flow_control: bool,
}

impl Connection {
    pub(super) fn new(
        id: ConnId,
        agreement: Agreement,
        receives: Receives,
        connect_deadline: Timestamp,
    ) -> Self {
        // Everything at its largest, so that no command allocates.
        Self {
            id,
            agreement,
            phase: Phase::Live,
            role: Role::Fresh,
            receives,
            to_receive: Vec::with_capacity(agreement.receives as usize),
            requests: Vec::with_capacity(agreement.slots as usize),
            ready: Vec::with_capacity(agreement.slots as usize),
            read_queue: VecDeque::with_capacity(agreement.slots as usize),
            reads_in_flight: 0,
            read_depth: agreement.initiator_depth,
            posted: 0,
            progress: Timestamp::ZERO,
            in_storage: 0,
            parked: VecDeque::new(),
            listed: false,
            connect_deadline,
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

    /// Whether another request may take a slot.
    pub(super) fn has_room(&self) -> bool {
        self.requests.len() < self.agreement.slots as usize
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

    /// Counts an RDMA READ or a response that is given to the fabric.
    pub(super) fn count_posted(&mut self, now: Timestamp) {
        if self.posted == 0 {
            self.progress = now;
        }
        self.posted += 1;
    }

    /// Counts one that the fabric completed.
    pub(super) fn count_completed(&mut self, now: Timestamp) {
        self.posted = self.posted.saturating_sub(1);
        self.progress = now;
    }

    /// When the peer will have held up what is posted for `patience`; [`Timestamp::NEVER`] if
    /// nothing is posted.
    pub(super) fn stalled_at(&self, patience: Duration) -> Timestamp {
        if self.posted == 0 { Timestamp::NEVER } else { self.progress + patience }
    }

    /// A receive buffer is free again; it is posted with this turn's batch, before any response.
    pub(super) fn recycle(&mut self, key: u32, receive: u32) {
        self.to_receive.push(self.receives.request(key, receive));
    }
}

#[cfg(test)]
mod tests {
    use lariat_wire::nvme::{ControllerId, QueueSize};

    use super::super::arena::Arena;
    use super::*;

    fn device() -> DeviceLimits {
        DeviceLimits {
            max_queue_depth: 4096,
            max_sge: 2,
            max_initiator_depth: 16,
            max_responder_resources: 16,
            send_with_invalidate: true,
            read_sink_needs_remote_write: false,
            max_message_bytes: 1 << 30,
        }
    }

    fn request(qid: u16, entries: u32) -> [u8; 32] {
        let size = QueueSize::from_entries(entries).unwrap();
        ConnectRequest::new(Qid(qid), size, ControllerId(1)).to_bytes()
    }

    fn agree(private_data: &[u8]) -> Result<Agreement, RejectStatus> {
        Agreement::new(private_data, (16, 4), &Limits::default(), &device(), 16)
    }

    #[test]
    fn requests_that_cannot_be_met_are_refused() {
        assert_eq!(agree(&[0; 8]), Err(RejectStatus::INVALID_LENGTH));
        let mut other_format = request(1, 32);
        other_format[0] = 1;
        assert_eq!(agree(&other_format), Err(RejectStatus::INVALID_RECORD_FORMAT));
        assert_eq!(agree(&request(65, 32)), Err(RejectStatus::INVALID_QID));
        assert_eq!(agree(&request(1, 130)), Err(RejectStatus::INVALID_HSQSIZE));
        assert_eq!(agree(&request(1, 1)), Err(RejectStatus::INVALID_HSQSIZE));
        let mut no_receives = request(1, 32);
        no_receives[4] = 0;
        assert_eq!(agree(&no_receives), Err(RejectStatus::INVALID_HRQSIZE));
        let agreed = |peer: (u8, u8), device: &DeviceLimits| {
            Agreement::new(&request(1, 32), peer, &Limits::default(), device, 16)
        };
        assert_eq!(agreed((0, 4), &device()), Err(RejectStatus::INVALID_IRD));
        let small = DeviceLimits { max_queue_depth: 39, ..device() };
        assert_eq!(agreed((1, 0), &small), Err(RejectStatus::NO_RESOURCES));
        let enough = DeviceLimits { max_queue_depth: 66, ..device() };
        assert_eq!(agreed((1, 0), &enough).map(|a| (a.slots, a.initiator_depth)), Ok((33, 1)));
    }

    #[test]
    fn depths_from_2_to_1024() {
        let limits =
            Limits { max_queue_depth: QueueSize::from_zero_based(1023), ..Limits::default() };
        for entries in [2, 3, 128, 1024] {
            let agreed =
                Agreement::new(&request(1, entries), (16, 4), &limits, &device(), 16).unwrap();
            assert_eq!(agreed.entries, entries);
            assert!(agreed.receives > entries && agreed.slots > entries);
        }
        // An admin queue may be longer than what I/O queues are limited to.
        let limits = Limits { max_queue_depth: QueueSize::MIN_LEGAL, ..Limits::default() };
        assert!(Agreement::new(&request(0, 32), (16, 4), &limits, &device(), 16).is_ok());
    }

    #[test]
    fn in_capsule_data_is_page_aligned_and_inside() {
        for (in_capsule, stride) in [(0u32, 64u64), (16, 8192), (4096, 8192), (8192, 12_288)] {
            let limits = Limits { in_capsule_bytes: in_capsule, ..Limits::default() };
            let agreed = Agreement::new(&request(1, 2), (16, 4), &limits, &device(), 16).unwrap();
            let mut arena = Arena::new(1 << 20).unwrap();
            let _other = arena.take(1).unwrap();
            let piece = arena.take(Receives::bytes_needed(&agreed)).unwrap();
            let (start, end) = (piece.offset(), piece.offset() + piece.bytes());
            let receives = Receives::new(piece, RegionId(1), in_capsule);
            assert_eq!(receives.capsule(1) - receives.capsule(0), stride);
            for index in 0..agreed.receives {
                let request = receives.request(3, index);
                assert_eq!(WrId::decode(request.wr_id), Some(WrId::receive(3, index)));
                let sge = request.sges.iter().next().unwrap();
                assert_eq!(sge.length, 64 + in_capsule);
                assert!(sge.offset >= start && sge.offset + u64::from(sge.length) <= end);
                assert_eq!(receives.data(index), sge.offset + 64);
                if in_capsule != 0 {
                    assert_eq!(receives.data(index) % 4096, 0);
                }
            }
        }
    }

    fn connection(entries: u32) -> Connection {
        let agreement = agree(&request(1, entries)).unwrap();
        let piece = Arena::new(4096).unwrap().take(1).unwrap();
        let receives = Receives::new(piece, RegionId(0), 0);
        Connection::new(ConnId(9), agreement, receives, Timestamp::NEVER)
    }

    #[test]
    fn queue_head_wraps_and_is_withheld_where_not_wanted() {
        let mut connection = connection(4);
        assert!(connection.count_in());
        connection.count_out(CommandId(0), true);
        connection.connected(Role::Gone, 3, true);
        let mut heads = Vec::new();
        for _ in 0..4 {
            assert!(connection.count_in());
            heads.push(connection.sq_head());
            connection.count_out(CommandId(0), true);
        }
        assert_eq!(heads, [2, 0, 1, 2]);
        connection.connected(Role::Gone, 3, false);
        assert_eq!(connection.sq_head(), u16::MAX);
    }

    #[test]
    fn more_commands_than_entries_are_noticed() {
        let mut connection = connection(2);
        assert!(connection.count_in() && connection.count_in());
        assert!(!connection.count_in());
        assert_eq!(connection.outstanding(), 2);
        connection.count_out(CommandId(0), false);
        assert!(connection.count_in());
    }

    #[test]
    fn identifiers_are_claimed_once() {
        let mut connection = connection(2);
        for cid in [0, 63, 64, u16::MAX] {
            assert!(connection.claim(CommandId(cid)));
            assert!(!connection.claim(CommandId(cid)));
            connection.count_out(CommandId(cid), false);
            assert!(!connection.claim(CommandId(cid)));
            connection.count_out(CommandId(cid), true);
            assert!(connection.claim(CommandId(cid)));
        }
    }
}

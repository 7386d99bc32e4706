//! What the parts of the core say to each other: data references, failures, time stamps of stages.
//! Calls nothing; everything in the initiator calls it.

use core::time::Duration;

use lariat_fabric::verbs::{RegionId, Sge, WcStatus};
use lariat_fabric::{PostErrorKind, Timestamp};
use lariat_wire::nvme::{Qid, Status};

/// A piece of registered memory, as a command's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataRef {
    /// The region, registered with [`Access::REMOTE`](lariat_fabric::verbs::Access::REMOTE) on the
    /// fabric and in the domain of the queue.
    pub region: RegionId,
    /// Bytes from the region's start to the first byte.
    pub offset: u64,
    /// Virtual address of the first byte: the memory's address plus `offset`.
    pub address: u64,
    /// Length in bytes.
    pub length: u32,
}

impl DataRef {
    /// `length` bytes from `skip` on; `None` where that leaves this piece.
    #[must_use]
    pub fn slice(self, skip: u64, length: u32) -> Option<Self> {
        let end = skip.checked_add(u64::from(length))?;
        if end > u64::from(self.length) {
            return None;
        }
        Some(Self {
            region: self.region,
            offset: self.offset.checked_add(skip)?,
            address: self.address.checked_add(skip)?,
            length,
        })
    }

    /// As a scatter/gather element.
    #[must_use]
    pub fn sge(self) -> Sge {
        Sge { region: self.region, offset: self.offset, length: self.length }
    }
}

/// Which way a command's data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// No data.
    None,
    /// From the controller into our memory.
    ToHost(DataRef),
    /// From our memory to the controller.
    ToController(DataRef),
}

/// Why a connection, and with it its queue, is no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LossReason {
    /// This side closed it.
    #[error("it was closed on this side")]
    Local,
    /// The peer closed it.
    #[error("the peer closed it")]
    Peer,
    /// Nothing came back within the transport's retries.
    #[error("the peer does not answer any more (transport retries are used up)")]
    Unresponsive,
    /// The peer's process ended without a word: known at once where it ran on this host.
    #[error("the peer's process ended")]
    PeerEnded,
    /// The queue pair failed.
    #[error("the queue pair failed: {0:?}")]
    Transport(WcStatus),
    /// A work request could not be posted.
    #[error("a work request could not be posted: {0}")]
    Post(PostErrorKind),
    /// A command stayed without answer; the connection was closed so that the peer cannot touch the
    /// command's memory any more.
    #[error("command {opcode:#04x} on queue {qid} was not answered within {waited:.1?}")]
    CommandTimeout {
        /// The queue.
        qid: Qid,
        /// The command's opcode.
        opcode: u8,
        /// How long was waited.
        waited: Duration,
    },
    /// Keep Alive stayed without answer or was refused.
    #[error("Keep Alive was not answered within {waited:.1?}")]
    KeepAlive {
        /// How long was waited.
        waited: Duration,
    },
    /// The controller reports a fatal error (CSTS.CFS).
    #[error("the controller reports a fatal status (CSTS.CFS)")]
    ControllerFatal,
    /// The RDMA device went away.
    #[error("the RDMA device was removed")]
    DeviceRemoved,
    /// The peer broke the protocol.
    #[error("the peer broke the protocol: {0}")]
    Protocol(&'static str),
}

/// How a command ended other than well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The controller answered with an error status.
    #[error("NVMe status: {0}")]
    Status(Status),
    /// There was no answer: whether the command was executed is not known.
    #[error("the connection was lost: {0}")]
    Lost(LossReason),
    /// It could not be sent.
    #[error("not sent: {0}")]
    NotSent(SubmitError),
}

/// Why a command was not taken. Nothing was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// As many commands as the queue takes are outstanding.
    #[error("the queue is full: poll for completions first")]
    Full,
    /// The queue is not (any more) connected.
    #[error("the queue is closed: {0}")]
    Closed(LossReason),
    /// The queue is still on its way up.
    #[error("the queue is not connected yet")]
    NotReady,
    /// The memory is not registered with this queue's fabric.
    #[error("the data's memory is not registered with this queue")]
    BadMemory,
    /// More bytes than one command can name.
    #[error("{bytes} bytes in one command; this queue takes {limit}")]
    TooLarge {
        /// What was asked for.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// The blocks lie outside the namespace.
    #[error("blocks {start}..+{blocks} lie outside a namespace of {capacity} blocks")]
    OutOfRange {
        /// First block.
        start: u64,
        /// Number of blocks.
        blocks: u64,
        /// Blocks of the namespace.
        capacity: u64,
    },
    /// The data is not as long as the blocks.
    #[error("{blocks} blocks are {expected} bytes, the data has {given}")]
    LengthMismatch {
        /// Number of blocks.
        blocks: u64,
        /// Their size in bytes.
        expected: u64,
        /// The data's size in bytes.
        given: u64,
    },
    /// No block at all.
    #[error("a request of zero blocks")]
    Empty,
}

/// When a command passed which stage: the difference of two is where the time went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Stages {
    /// The user handed it over.
    pub submitted: Timestamp,
    /// Its capsule was given to the fabric.
    pub posted: Timestamp,
    /// Its response was seen.
    pub answered: Timestamp,
}

impl Stages {
    /// Time between hand-over and the capsule's posting: the queue was full, or nobody rang.
    #[must_use]
    pub fn queued(&self) -> Duration {
        self.posted.since(self.submitted)
    }

    /// Time between posting and response: network and target.
    #[must_use]
    pub fn remote(&self) -> Duration {
        self.answered.since(self.posted)
    }
}

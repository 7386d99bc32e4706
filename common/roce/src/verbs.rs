//! The verbs vocabulary: handles, work requests, completions, connection events.
//!
//! These types are what a provider of any kind (libibverbs, the soft RoCEv2 endpoint of this
//! crate, a simulation) and its user say to each other. They carry plain numbers: memory is named
//! by region and offset, never by pointer, so that users of a fabric need no unsafe code and a
//! provider can check every access. `lariat-fabric` re-exports them beside its traits.

use core::net::SocketAddr;
use core::time::Duration;

use lariat_wire::rocev2::Rkey;

/// A connection and its queue pair (what rdma_cm calls an id).
///
/// Never reused within the life of a fabric: a stale handle is an error, not another connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u64);

/// A listening address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerId(pub u32);

/// A protection domain: queue pairs reach only the regions of their own domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DomainId(pub u32);

/// A memory region. Never reused within the life of a fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionId(pub u64);

/// A receive queue that several queue pairs share (IBTA 10.2.9). Never reused within the life of a
/// fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SharedReceiveId(pub u64);

/// What a region allows (IBTA 10.6.3). Local read is always allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Access {
    /// The local device may write it: receives, and the sinks of RDMA READs.
    pub local_write: bool,
    /// A peer may RDMA READ it.
    pub remote_read: bool,
    /// A peer may RDMA WRITE it. Implies `local_write`.
    pub remote_write: bool,
}

impl Access {
    /// Send from it, nothing else.
    pub const LOCAL_READ: Self =
        Self { local_write: false, remote_read: false, remote_write: false };
    /// Send from it, receive into it; invisible to peers.
    pub const LOCAL: Self = Self { local_write: true, remote_read: false, remote_write: false };
    /// Everything: what an initiator's data buffers need.
    pub const REMOTE: Self = Self { local_write: true, remote_read: true, remote_write: true };
}

/// A piece of a region: what a scatter/gather element names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sge {
    /// The region.
    pub region: RegionId,
    /// Bytes from the region's start.
    pub offset: u64,
    /// Length in bytes.
    pub length: u32,
}

/// How many scatter/gather elements a work request can carry: a capsule and its in-capsule data.
pub const MAX_SGE: usize = 2;

/// Up to [`MAX_SGE`] elements, stored in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SgeList {
    first: Option<Sge>,
    second: Option<Sge>,
}

impl SgeList {
    /// No memory at all: a message of zero bytes.
    pub const EMPTY: Self = Self { first: None, second: None };

    /// One element.
    #[must_use]
    pub const fn one(sge: Sge) -> Self {
        Self { first: Some(sge), second: None }
    }

    /// Two elements, in order.
    #[must_use]
    pub const fn two(first: Sge, second: Sge) -> Self {
        Self { first: Some(first), second: Some(second) }
    }

    /// The first element.
    #[must_use]
    #[inline]
    pub(crate) const fn first(&self) -> Option<Sge> {
        self.first
    }

    /// The second element.
    #[must_use]
    #[inline]
    pub(crate) const fn second(&self) -> Option<Sge> {
        self.second
    }

    /// The elements in order.
    pub fn iter(&self) -> impl Iterator<Item = Sge> + '_ {
        self.first.into_iter().chain(self.second)
    }

    /// Sum of the lengths in bytes.
    #[must_use]
    #[inline]
    pub fn total_length(&self) -> u64 {
        let length = |sge: Option<Sge>| sge.map_or(0, |sge| u64::from(sge.length));
        length(self.first) + length(self.second)
    }
}

/// What a send work request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// SEND: consumes a receive of the peer.
    Send,
    /// SEND with Invalidate: the peer's region with this key becomes inaccessible.
    SendWithInvalidate {
        /// The peer's key.
        rkey: Rkey,
    },
    /// RDMA WRITE into the peer's memory.
    Write {
        /// The peer's virtual address.
        remote_address: u64,
        /// The peer's key.
        rkey: Rkey,
    },
    /// RDMA READ from the peer's memory into ours (which needs `local_write`).
    Read {
        /// The peer's virtual address.
        remote_address: u64,
        /// The peer's key.
        rkey: Rkey,
    },
}

/// A send work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendRequest {
    /// Returned in the completion.
    pub wr_id: u64,
    /// The operation.
    pub op: SendOp,
    /// The local memory. It must stay untouched until the completion, since it may be sent again.
    pub sges: SgeList,
    /// Whether success produces a completion. Errors always do. Unsignalled requests of a queue
    /// pair are complete when a later signalled one is.
    pub signaled: bool,
}

/// A receive work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvRequest {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Where the message goes; needs `local_write`.
    pub sges: SgeList,
}

/// How a work request ended (IBTA 11.6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WcStatus {
    /// Done.
    Success,
    /// The message did not fit the receive, or a local length was wrong.
    LocalLength,
    /// A local region, its bounds or its rights did not allow the access.
    LocalProtection,
    /// The queue pair was misused or is inconsistent.
    LocalQpOperation,
    /// The queue pair went to the error state first; the request may or may not have been executed.
    Flushed,
    /// The peer refused the request as invalid (NAK 61h).
    RemoteInvalidRequest,
    /// The peer refused the access (NAK 62h).
    RemoteAccess,
    /// The peer could not complete the request (NAK 63h).
    RemoteOperation,
    /// No answer within the retries: the peer or the path is gone.
    RetryExceeded,
    /// The peer stayed without a receive.
    RnrRetryExceeded,
    /// A status that a provider gave and we have no name for.
    Other(u32),
}

/// What a completion is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WcOpcode {
    /// A SEND, with or without Invalidate.
    Send,
    /// An RDMA WRITE.
    Write,
    /// An RDMA READ.
    Read,
    /// A receive.
    Recv,
}

/// A work completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkCompletion {
    /// The connection.
    pub conn: ConnId,
    /// The identifier of the request.
    pub wr_id: u64,
    /// How it ended.
    pub status: WcStatus,
    /// What it was. Not to be trusted by users where `status` is an error (libibverbs does not
    /// fill it in then): keep what a `wr_id` means on the user's side.
    pub opcode: WcOpcode,
    /// Received bytes (receives and READs that succeeded).
    pub byte_len: u32,
    /// The local key that a SEND with Invalidate invalidated.
    pub invalidated: Option<Rkey>,
}

/// The sizes of a queue pair to create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpConfig {
    /// The protection domain.
    pub domain: DomainId,
    /// Send work requests outstanding at most.
    pub max_send: u32,
    /// Receive work requests outstanding at most. Not looked at with a shared receive queue.
    pub max_recv: u32,
    /// Where its receives come from instead, of the same domain and device. It takes none of its
    /// own then.
    pub shared_receive: Option<SharedReceiveId>,
    /// Whether an RDMA WRITE of several packets may go out as so many WRITEs of one packet each.
    /// These are all of one size, where the first of a WRITE carries 16 bytes more than those that
    /// follow, so a provider that sends datagrams by the run sends longer runs. The difference to the
    /// peer: of a WRITE that it refuses for its length some may have arrived. Not done while the peer
    /// grants end-to-end credits, which count messages. Devices take no notice.
    pub divide_writes: bool,
}

impl QpConfig {
    /// A queue pair with receives of its own.
    #[must_use]
    pub const fn new(domain: DomainId, max_send: u32, max_recv: u32) -> Self {
        Self { domain, max_send, max_recv, shared_receive: None, divide_writes: false }
    }
}

/// What a device and path can do. Read before sizes are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Outstanding work requests of a queue, at most.
    pub max_queue_depth: u32,
    /// Elements of a scatter/gather list, at most.
    pub max_sge: u32,
    /// RDMA READs the device can have outstanding as requester.
    pub max_initiator_depth: u8,
    /// RDMA READs the device can serve at a time as responder.
    pub max_responder_resources: u8,
    /// Whether SEND with Invalidate may be sent.
    pub send_with_invalidate: bool,
    /// The sink of an RDMA READ needs remote write permission (iWARP).
    pub read_sink_needs_remote_write: bool,
    /// The peer's device acknowledges messages: the end of a SEND or RDMA WRITE says how it went there,
    /// and a SEND that finds no receive is tried again. Not on iWARP (RFC 5040):
    /// there it says that the memory is free again, and a SEND without a receive ends the connection.
    pub acknowledges: bool,
    /// Largest message in bytes.
    pub max_message_bytes: u32,
    /// Receives that a shared receive queue holds at most. 0: there is none; also where one that is
    /// empty would end the connection (iWARP) instead of asking the peer to try again.
    pub max_shared_receives: u32,
}

/// Private data of a connection message, stored in place: at most 196 bytes (REP).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PrivateData {
    length: u8,
    bytes: [u8; Self::MAX],
}

impl PrivateData {
    /// The largest private data of any message.
    pub const MAX: usize = 196;
    /// None.
    pub const EMPTY: Self = Self { length: 0, bytes: [0; Self::MAX] };

    /// Copies `bytes`; `None` if there are more than [`Self::MAX`].
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut data = Self::EMPTY;
        data.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        data.length = u8::try_from(bytes.len()).ok()?;
        Some(data)
    }

    /// The bytes. A received message has its whole private data field, padding included.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.length)).unwrap_or_default()
    }
}

impl core::fmt::Debug for PrivateData {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "PrivateData({:02x?})", self.as_bytes())
    }
}

/// What the two sides of a connection agree on. Used by `connect` and `accept`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectParams {
    /// RDMA READs of the peer we serve at a time.
    pub responder_resources: u8,
    /// RDMA READs we want to have outstanding.
    pub initiator_depth: u8,
    /// Transport retries (0-7) before the peer counts as gone.
    pub retry_count: u8,
    /// Receiver-not-ready retries (0-6; 7 is without end).
    pub rnr_retry_count: u8,
    /// What the upper layer says: for NVMe/RDMA, `lariat_wire::rdma_cm`. At most 56 bytes in
    /// `connect` (rdma_cm puts 36 of its own before them), 196 in `accept`.
    pub private_data: PrivateData,
}

/// Why a connection did not come to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectFailure {
    /// The peer refused: IBTA reason code (12.6.7.2; 8 is "invalid service ID", 28 "consumer") and
    /// what the consumer added.
    Rejected {
        /// The reason code.
        reason: u16,
        /// The consumer's words (NVMe/RDMA: `lariat_wire::rdma_cm::ConnectReject`).
        private_data: PrivateData,
    },
    /// No answer.
    Timeout {
        /// How long was waited.
        waited: Duration,
    },
    /// No route, no neighbour, no device, or a failure of the local side.
    Unreachable {
        /// The operating system's error number.
        errno: i32,
    },
}

/// Why an established connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DisconnectReason {
    /// We asked for it and it is done.
    Local,
    /// The peer said good-bye.
    Peer,
    /// The queue pair went to the error state; a completion tells of what.
    Error,
    /// The peer does not answer any more.
    Timeout,
    /// The device went away.
    DeviceRemoved,
}

/// What happens to connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmEvent {
    /// Active side: address and route are known; limits can be read, the queue pair created.
    Resolved {
        /// The connection.
        conn: ConnId,
    },
    /// Passive side: somebody wants to connect. Answer with `accept` or `reject`.
    ConnectRequest {
        /// The connection to be.
        conn: ConnId,
        /// The listener it came to.
        listener: ListenerId,
        /// The peer's address.
        peer: SocketAddr,
        /// Our address it came to.
        local: SocketAddr,
        /// RDMA READs the peer serves at a time (as offered; the most we may have outstanding).
        responder_resources: u8,
        /// RDMA READs the peer wants to have outstanding.
        initiator_depth: u8,
        /// The consumer's private data (rdma_cm's own header removed).
        private_data: PrivateData,
    },
    /// The connection stands.
    Established {
        /// The connection.
        conn: ConnId,
        /// RDMA READs we may have outstanding, as negotiated.
        initiator_depth: u8,
        /// RDMA READs we serve at a time, as negotiated.
        responder_resources: u8,
        /// Active side: the private data of the REP. Passive side: empty.
        private_data: PrivateData,
    },
    /// It did not come to be. `destroy` what is left.
    ConnectFailed {
        /// The connection.
        conn: ConnId,
        /// Why.
        failure: ConnectFailure,
    },
    /// It ended. Completions of what was outstanding (flushed) come before or with this event.
    /// `destroy` what is left.
    Disconnected {
        /// The connection.
        conn: ConnId,
        /// Why.
        reason: DisconnectReason,
    },
}

/// A list of work requests was not (wholly) posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("work request {index} of the list was not posted: {kind}")]
pub struct PostError {
    /// The first request that was not posted; those before it were.
    pub index: usize,
    /// Why.
    pub kind: PostErrorKind,
}

/// Why a work request was not posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostErrorKind {
    /// No such connection, or it has no queue pair.
    #[error("the connection has no queue pair (any more)")]
    NoQueuePair,
    /// No such shared receive queue.
    #[error("there is no such shared receive queue (any more)")]
    NoSharedReceive,
    /// The queue pair's state does not take requests of this kind.
    #[error("the queue pair is not in a state that takes it")]
    WrongState,
    /// The queue is full: more outstanding than `QpConfig` said.
    #[error("the work queue is full")]
    QueueFull,
    /// The list needs memory that is not registered so.
    #[error("the local memory is not registered for it")]
    BadMemory,
    /// Longer than the device's largest message.
    #[error("the message is longer than the device can send")]
    TooLong,
    /// The device's word.
    #[error("the device refused it (errno {0})")]
    Device(i32),
}

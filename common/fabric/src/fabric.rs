//! The trait every provider implements.
//!
//! One value is owned by one thread (a reactor, or an I/O queue of the initiator) and shares
//! nothing with others on the data path. Handles are plain numbers, memory is named by region and
//! offset; a provider checks both. The order of calls:
//!
//! ```text
//! active:   resolve -> Resolved -> create_qp -> post_recv.. -> connect -> Established -> post_*
//! passive:  listen  -> ConnectRequest -> create_qp -> post_recv.. -> accept -> Established -> post_*
//! the end:  disconnect -> Disconnected -> destroy        (destroy alone also works, at any time)
//! loop:     poll -> (work) -> post_* .. -> flush -> poll ...
//! sleep:    arm -> (a last poll) -> wait for wait_fds or the deadline -> poll
//! ```
//!
//! Batches are part of the contract: `post_send` only queues, [`Fabric::flush`] is the doorbell.
//! Users post all that one turn of their loop has, grouped so that equal packets stand together
//! (the WRITEs of all ready reads first, then their SENDs; all capsules together), and ring once.
//! A verbs device chains the requests under one doorbell; the soft provider sends runs of equal
//! packets in one system call. Order within a connection is the order of posting.

use core::net::SocketAddr;
use core::time::Duration;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use lariat_roce::time::Timestamp;
use lariat_roce::verbs::{
    Access, CmEvent, ConnId, ConnectParams, DeviceLimits, DomainId, ListenerId, PostError,
    PostErrorKind, QpConfig, RecvRequest, RegionId, SendRequest, SharedReceiveId, WorkCompletion,
};
use lariat_wire::rocev2::Rkey;

use crate::error::{CmError, ListenError, QpError, RegisterError, ResolveError, StaleHandle};
use crate::memory::Memory;

/// What [`Fabric::arm`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Armed {
    /// Something is ready already: poll, do not sleep.
    Ready,
    /// Sleep until one of `wait_fds` is readable or this time comes
    /// ([`Timestamp::NEVER`]: no deadline).
    Until(Timestamp),
}

/// What carries the packets of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// UDP.
    Udp,
    /// Shared memory of two processes on one host.
    SharedMemory,
}

impl core::fmt::Display for Medium {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Udp => "UDP",
            Self::SharedMemory => "shared memory",
        })
    }
}

/// What the packets of a connection travel over, as [`Fabric::path`] says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// What carries them.
    pub medium: Medium,
    /// Why it is not the other, if there is a reason to name.
    pub reason: Option<String>,
}

impl From<Medium> for Path {
    fn from(medium: Medium) -> Self {
        Self { medium, reason: None }
    }
}

impl core::fmt::Display for Path {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match &self.reason {
            Some(reason) => write!(f, "{} ({reason})", self.medium),
            None => self.medium.fmt(f),
        }
    }
}

/// What a provider counted since it was opened. What it does not know stays zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FabricCounters {
    /// Packets sent and received, retransmissions included.
    pub packets_sent: u64,
    /// Packets received that were valid.
    pub packets_received: u64,
    /// System calls that sent packets (the soft provider's batching: compare with `packets_sent`);
    /// on a device, doorbells.
    pub send_calls: u64,
    /// System calls that received packets; on a device, looks at its completion queues that found
    /// some.
    pub receive_calls: u64,
    /// Completions that a device gave.
    pub completions: u64,
    /// Packets, of those sent, that went through shared memory instead of a socket.
    pub shm_packets_sent: u64,
    /// Packets, of those received, that came through shared memory.
    pub shm_packets_received: u64,
    /// Packets sent again.
    pub retransmissions: u64,
    /// Datagrams dropped: too short or malformed.
    pub malformed: u64,
    /// Datagrams dropped: wrong ICRC.
    pub bad_icrc: u64,
    /// Datagrams dropped: no such queue pair, or not from its peer.
    pub unknown_queue_pair: u64,
    /// Negative acknowledgements sent.
    pub naks_sent: u64,
    /// Negative acknowledgements received.
    pub naks_received: u64,
    /// Congestion marks and notifications seen.
    pub congestion_marks: u64,
}

/// An RDMA provider, as one thread sees it.
pub trait Fabric {
    /// `"soft"`, `"ib"`, `"sim"`.
    fn name(&self) -> &'static str;

    /// Opens a protection domain.
    ///
    /// # Errors
    /// The provider's limit is reached.
    fn open_domain(&mut self) -> Result<DomainId, RegisterError>;

    /// Registers memory. The fabric holds the `Arc` until [`Fabric::deregister`].
    ///
    /// # Errors
    /// A limit (which, and what to do), or a stale domain.
    fn register(
        &mut self,
        domain: DomainId,
        memory: Arc<Memory>,
        access: Access,
    ) -> Result<RegionId, RegisterError>;

    /// Forgets a region. Requests that still name it fail; nothing touches the memory afterwards.
    ///
    /// # Errors
    /// There is no such region.
    fn deregister(&mut self, region: RegionId) -> Result<(), StaleHandle>;

    /// The key that the peer of `conn` uses for `region`. Virtual addresses of a region start at
    /// the memory's own address ([`Memory::address`]).
    ///
    /// # Errors
    /// A stale handle, or a region of another domain.
    fn rkey(&self, conn: ConnId, region: RegionId) -> Result<Rkey, StaleHandle>;

    /// Listens on `address` (an rdma_cm port, not a UDP port).
    ///
    /// # Errors
    /// In use, not ours, or the operating system's word.
    fn listen(&mut self, address: SocketAddr) -> Result<ListenerId, ListenError>;

    /// Stops listening. Connections that stand are not touched.
    fn close_listener(&mut self, listener: ListenerId);

    /// Active side, first step. Comes back as `Resolved` or `ConnectFailed`.
    ///
    /// # Errors
    /// What is known to fail at once.
    fn resolve(
        &mut self,
        now: Timestamp,
        remote: SocketAddr,
        timeout: Duration,
    ) -> Result<ConnId, ResolveError>;

    /// The limits of the device that `conn` runs on.
    ///
    /// # Errors
    /// A stale handle.
    fn limits(&self, conn: ConnId) -> Result<DeviceLimits, StaleHandle>;

    /// Creates the queue pair of a connection. Receives may be posted from now on.
    ///
    /// # Errors
    /// A limit, a stale handle, or the device's word.
    fn create_qp(&mut self, conn: ConnId, config: &QpConfig) -> Result<(), QpError>;

    /// Active side: asks the peer. Comes back as `Established` or `ConnectFailed` within `timeout`.
    ///
    /// # Errors
    /// What is wrong with the call itself.
    fn connect(
        &mut self,
        now: Timestamp,
        conn: ConnId,
        params: &ConnectParams,
        timeout: Duration,
    ) -> Result<(), CmError>;

    /// Passive side: says yes. Comes back as `Established` or `ConnectFailed`.
    ///
    /// # Errors
    /// What is wrong with the call itself.
    fn accept(
        &mut self,
        now: Timestamp,
        conn: ConnId,
        params: &ConnectParams,
    ) -> Result<(), CmError>;

    /// Passive side: says no, with private data of at most 148 bytes. The handle is gone.
    ///
    /// # Errors
    /// What is wrong with the call itself.
    fn reject(&mut self, now: Timestamp, conn: ConnId, private_data: &[u8]) -> Result<(), CmError>;

    /// Ends a connection: outstanding requests are flushed, the peer is told. `Disconnected` comes.
    ///
    /// # Errors
    /// A stale handle.
    fn disconnect(&mut self, now: Timestamp, conn: ConnId) -> Result<(), CmError>;

    /// Frees a connection and its queue pair in any state, without further completions. When this
    /// returns, nothing touches the memory of its requests any more. A peer that is still there is
    /// told as by `disconnect`. A stale handle is ignored.
    fn destroy(&mut self, now: Timestamp, conn: ConnId);

    /// Posts receives, in order. A queue pair with a shared receive queue takes none.
    ///
    /// # Errors
    /// Which was the first not posted, and why.
    fn post_recv(&mut self, conn: ConnId, requests: &[RecvRequest]) -> Result<(), PostError>;

    /// Makes a receive queue that connections of the device of `conn` can share, in `domain`, for so
    /// many receives at a time ([`DeviceLimits::max_shared_receives`] at most). Name it in
    /// [`QpConfig::shared_receive`].
    ///
    /// A queue pair takes a receive from it when a message begins to arrive; where it is empty the
    /// peer is told to try again (RNR NAK), as often as its `rnr_retry_count` says. Every receive
    /// posted completes once, under the connection that took it: with the message, or flushed if
    /// that connection breaks in the middle of it or is destroyed before the completion was polled;
    /// then under a handle that is gone. What no connection took stays where it is, whatever becomes
    /// of them. A device that loses receives of broken connections gives them back never; so end
    /// the queue when nobody uses it, and make another.
    ///
    /// # Errors
    /// The device has none or not as large ones; a stale handle; the device's word.
    fn create_shared_receive(
        &mut self,
        conn: ConnId,
        domain: DomainId,
        entries: u32,
    ) -> Result<SharedReceiveId, QpError> {
        let _ = (conn, domain);
        Err(QpError::Limit { what: "shared receives", wanted: entries, limit: 0 })
    }

    /// Whether a queue pair of `conn` can use this queue: both are there, on the same device.
    fn can_share(&self, conn: ConnId, shared: SharedReceiveId) -> bool {
        let _ = (conn, shared);
        false
    }

    /// Posts receives to a shared queue, in order.
    ///
    /// # Errors
    /// Which was the first not posted, and why.
    fn post_shared_receive(
        &mut self,
        shared: SharedReceiveId,
        requests: &[RecvRequest],
    ) -> Result<(), PostError> {
        let _ = (shared, requests);
        Err(PostError { index: 0, kind: PostErrorKind::NoSharedReceive })
    }

    /// Frees a shared queue. What is in it has no completions any more; of what was taken before,
    /// some may still come. Returns false, and nothing happens, while a connection that is not
    /// destroyed uses it. A stale handle is ignored.
    fn destroy_shared_receive(&mut self, shared: SharedReceiveId) -> bool {
        let _ = shared;
        true
    }

    /// Queues send requests, in order. They start with the next [`Fabric::flush`] at the latest.
    ///
    /// # Errors
    /// Which was the first not posted, and why.
    fn post_send(&mut self, conn: ConnId, requests: &[SendRequest]) -> Result<(), PostError>;

    /// The doorbell: starts all that was posted. What is too much for one turn goes on with the next
    /// [`Fabric::poll`], which [`Fabric::arm`] asks for.
    fn flush(&mut self, now: Timestamp);

    /// Receives, runs timers, and appends what happened: completions (at most about `budget` of
    /// them) and events, each in order. Does not sleep.
    fn poll(
        &mut self,
        now: Timestamp,
        budget: usize,
        completions: &mut Vec<WorkCompletion>,
        events: &mut Vec<CmEvent>,
    );

    /// Before sleeping, or before not polling for a while: sends what is held back (delayed
    /// acknowledgements), asks for a wake-up through `wait_fds`, and says whether sleep is right. The
    /// wake-up is asked for until a poll receives something (`packets_received` counts it).
    fn arm(&mut self, now: Timestamp) -> Armed;

    /// What becomes readable when there is something to poll, after [`Fabric::arm`]. Stays the same
    /// for the life of the fabric. Empty for `sim`.
    fn wait_fds(&self) -> Vec<BorrowedFd<'_>>;

    /// What the provider knows that may explain why `conn` does not come to be or fails: for error
    /// messages, in words that say what to do. Read it before `destroy`.
    fn diagnose(&self, conn: ConnId) -> Option<String> {
        let _ = conn;
        None
    }

    /// What the packets of `conn` travel over, where the provider has a choice.
    fn path(&self, conn: ConnId) -> Option<Path> {
        let _ = conn;
        None
    }

    /// With how many messages of several packets each under way on `conn` it costs less to let the
    /// peer fetch their data by RDMA READ than to send it along, although that takes another round
    /// trip. `None`: never.
    ///
    /// Where packets travel by UDP, a run of equal ones costs little more than a single one, and
    /// messages of two unequal packets make no runs; data that is fetched does.
    fn fetching_pays_from(&self, conn: ConnId) -> Option<u32> {
        let _ = conn;
        None
    }

    /// Whether the peer's process is known to have ended, and `conn` with it. Read it before
    /// `destroy`.
    fn peer_ended(&self, conn: ConnId) -> bool {
        let _ = conn;
        false
    }

    /// Since when the peer of `conn` owes answers of its transport (acknowledgements, READ data)
    /// without having given any, however often it was asked again. `None`: it owes none, or the
    /// provider does not know. For who wants to end and not wait for a peer that is gone.
    fn silent_since(&self, conn: ConnId) -> Option<Timestamp> {
        let _ = conn;
        None
    }

    /// What was counted.
    fn counters(&self) -> FabricCounters;
}

//! The traffic of one UDP socket: connections, their queue pairs, the connection manager, timers.
//!
//! Sans-IO: the owner of the socket hands in what arrives and the time, and takes out what is to
//! be sent and what happened. The order of calls:
//!
//! 1. [`Endpoint::handle_packet`] for each packet whose ICRC was right;
//! 2. [`Endpoint::handle_timeout`] once [`Endpoint::next_timeout`] has come;
//! 3. verbs ([`Endpoint::post_send`], [`Endpoint::connect`], ...) at any time;
//! 4. after any of these: [`Endpoint::poll_transmit`] until it returns less than its budget, then
//!    [`Endpoint::poll_completions`], [`Endpoint::poll_events`], [`Endpoint::next_timeout`].
//!
//! The providers of `lariat-fabric` call it; it calls `qp` and `cm`.

mod config;
mod counters;
mod error;

pub use config::{CmConfig, EndpointConfig, Member, RouteInfo};
pub use counters::EndpointCounters;
pub use error::EndpointError;

use core::net::SocketAddr;
use core::time::Duration;

use lariat_wire::rocev2::Packet;

use crate::memory::Memory;
use crate::time::Timestamp;
use crate::transmit::Transmit;
use crate::verbs::{
    CmEvent, ConnId, ConnectParams, DeviceLimits, DomainId, ListenerId, PostError, PostErrorKind,
    QpConfig, RecvRequest, SendRequest, WorkCompletion,
};

/// The traffic of one UDP socket.
#[derive(Debug)]
pub struct Endpoint {
    config: EndpointConfig,
    counters: EndpointCounters,
}

impl Endpoint {
    /// An endpoint without connections.
    #[must_use]
    pub fn new(config: EndpointConfig) -> Self {
        Self { config, counters: EndpointCounters::default() }
    }

    /// What the endpoint was told.
    #[must_use]
    pub fn config(&self) -> &EndpointConfig {
        &self.config
    }

    /// Takes connection requests for `port` (rdma_cm's, IBTA A11.2.1).
    ///
    /// # Errors
    /// Somebody listens there already.
    pub fn listen(&mut self, port: u16) -> Result<ListenerId, EndpointError> {
        Err(EndpointError::PortInUse { port })
    }

    /// Stops listening. Connections that stand are not touched; undecided requests neither.
    pub fn close_listener(&mut self, _listener: ListenerId) {}

    /// Makes the active side of a connection to `remote` (address and rdma_cm port) along a known
    /// route. [`CmEvent::Resolved`] follows at once.
    ///
    /// # Errors
    /// Too many connections, or addresses of different families.
    pub fn resolve(
        &mut self,
        _now: Timestamp,
        _remote: SocketAddr,
        _route: RouteInfo,
    ) -> Result<ConnId, EndpointError> {
        Err(EndpointError::TooManyConnections { limit: self.config.max_connections })
    }

    /// Whether the handle names a connection.
    #[must_use]
    pub fn contains(&self, _conn: ConnId) -> bool {
        false
    }

    /// The protection domain of a connection's queue pair; none without queue pair.
    ///
    /// # Errors
    /// A stale handle.
    pub fn domain(&self, _conn: ConnId) -> Result<Option<DomainId>, EndpointError> {
        Err(EndpointError::UnknownConnection)
    }

    /// Where the datagrams of a connection go (UDP).
    ///
    /// # Errors
    /// A stale handle.
    pub fn remote(&self, _conn: ConnId) -> Result<SocketAddr, EndpointError> {
        Err(EndpointError::UnknownConnection)
    }

    /// The limits of the device.
    ///
    /// # Errors
    /// A stale handle.
    pub fn limits(&self, _conn: ConnId) -> Result<DeviceLimits, EndpointError> {
        Err(EndpointError::UnknownConnection)
    }

    /// Creates the queue pair of a connection; receives may be posted from now on.
    ///
    /// # Errors
    /// A stale handle, a limit, or there is one already.
    pub fn create_qp(&mut self, _conn: ConnId, _config: &QpConfig) -> Result<(), EndpointError> {
        Err(EndpointError::UnknownConnection)
    }

    /// Active side: sends the REQ. [`CmEvent::Established`] or [`CmEvent::ConnectFailed`] comes
    /// within `timeout`.
    ///
    /// # Errors
    /// A stale handle, a wrong state, no queue pair, too much private data.
    pub fn connect(
        &mut self,
        _now: Timestamp,
        _conn: ConnId,
        _params: &ConnectParams,
        _timeout: Duration,
    ) -> Result<(), EndpointError> {
        Err(EndpointError::UnknownConnection)
    }

    /// Passive side: sends the REP. [`CmEvent::Established`] or [`CmEvent::ConnectFailed`] comes.
    ///
    /// # Errors
    /// A stale handle, a wrong state, no queue pair, too much private data, or the peer wants a
    /// path MTU that the route back does not carry.
    pub fn accept(
        &mut self,
        _now: Timestamp,
        _conn: ConnId,
        _params: &ConnectParams,
        _route: RouteInfo,
    ) -> Result<(), EndpointError> {
        Err(EndpointError::UnknownConnection)
    }

    /// Passive side: sends a REJ (reason 28) with at most 148 bytes of private data. The handle is
    /// gone.
    ///
    /// # Errors
    /// A stale handle, a wrong state, too much private data.
    pub fn reject(
        &mut self,
        _now: Timestamp,
        _conn: ConnId,
        _private_data: &[u8],
    ) -> Result<(), EndpointError> {
        Err(EndpointError::UnknownConnection)
    }

    /// Ends a connection: flushes what is outstanding, sends the DREQ.
    /// [`CmEvent::Disconnected`] comes when the peer has answered or has been given up.
    ///
    /// # Errors
    /// A stale handle, or there is no connection to end.
    pub fn disconnect(&mut self, _now: Timestamp, _conn: ConnId) -> Result<(), EndpointError> {
        Err(EndpointError::UnknownConnection)
    }

    /// Frees a connection and its queue pair in any state, without further completions or events.
    /// A peer that is still there is told. A stale handle is ignored.
    pub fn destroy(&mut self, _now: Timestamp, _conn: ConnId) {}

    /// Posts receives, in order.
    ///
    /// # Errors
    /// Which was the first not posted, and why.
    pub fn post_recv<M: Memory>(
        &mut self,
        _conn: ConnId,
        _requests: &[RecvRequest],
        _memory: &M,
    ) -> Result<(), PostError> {
        Err(PostError { index: 0, kind: PostErrorKind::NoQueuePair })
    }

    /// Queues send requests, in order. They start with the next [`Endpoint::poll_transmit`].
    ///
    /// # Errors
    /// Which was the first not posted, and why.
    pub fn post_send<M: Memory>(
        &mut self,
        _conn: ConnId,
        _requests: &[SendRequest],
        _memory: &M,
    ) -> Result<(), PostError> {
        Err(PostError { index: 0, kind: PostErrorKind::NoQueuePair })
    }

    /// Takes a packet that arrived from `source` with a right ICRC. `congestion_mark`: its IP
    /// header said CE (congestion experienced).
    pub fn handle_packet<M: Memory>(
        &mut self,
        _now: Timestamp,
        _source: SocketAddr,
        _packet: &Packet<'_>,
        _congestion_mark: bool,
        _memory: &mut M,
    ) {
    }

    /// Runs the timers that are due.
    pub fn handle_timeout<M: Memory>(&mut self, _now: Timestamp, _memory: &mut M) {}

    /// When [`Endpoint::handle_timeout`] wants to be called: [`Timestamp::NEVER`] if not at all.
    #[must_use]
    pub fn next_timeout(&self) -> Timestamp {
        Timestamp::NEVER
    }

    /// Makes acknowledgements that are held back leave with the next [`Endpoint::poll_transmit`]:
    /// for a caller that is going to sleep.
    pub fn send_held_acks(&mut self, _now: Timestamp) {}

    /// Appends packets to send, at most `budget`, and returns how many. Packets of one queue pair
    /// come in runs; queue pairs take turns.
    pub fn poll_transmit<M: Memory>(
        &mut self,
        _now: Timestamp,
        _budget: usize,
        _memory: &M,
        _out: &mut Vec<Transmit>,
    ) -> usize {
        0
    }

    /// Appends completions, at most `budget`, and returns how many. Those of one queue are in
    /// order; queue pairs take turns.
    pub fn poll_completions(&mut self, _budget: usize, _out: &mut Vec<WorkCompletion>) -> usize {
        0
    }

    /// Appends what happened to connections. [`CmEvent::Disconnected`] is held back until the
    /// completions of its connection have been taken: call [`Endpoint::poll_completions`] first.
    pub fn poll_events(&mut self, _out: &mut Vec<CmEvent>) {}

    /// Whether there are packets to send, completions or events to take.
    #[must_use]
    pub fn has_output(&self) -> bool {
        false
    }

    /// What was counted.
    #[must_use]
    pub fn counters(&self) -> EndpointCounters {
        self.counters
    }

    /// Connections that take up memory: those the caller owns, and those that are still saying
    /// good-bye.
    #[must_use]
    pub fn connections(&self) -> usize {
        0
    }
}

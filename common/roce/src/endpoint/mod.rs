//! The traffic of one UDP socket: connections, their queue pairs, the connection manager, timers.
//!
//! Sans-IO: the owner of the socket hands in what arrives and the time, and takes out what is to
//! be sent and what happened. The order of calls:
//!
//! 1. [`Endpoint::arrivals`] takes the packets whose ICRCs were right;
//! 2. [`Endpoint::handle_timeout`] once [`Endpoint::next_timeout`] has come;
//! 3. verbs ([`Endpoint::post_send`], [`Endpoint::connect`], ...) at any time;
//! 4. after any of these: [`Endpoint::poll_transmit`] until it returns less than its budget, then
//!    [`Endpoint::poll_completions`], [`Endpoint::poll_events`], [`Endpoint::next_timeout`].
//!
//! The providers of `lariat-fabric` call it; it calls `qp` and `cm`.

mod arrivals;
mod config;
mod connection;
mod counters;
mod error;
mod messages;
mod numbers;
mod shared;
mod timers;
mod traffic;
mod verbs;

pub use arrivals::Arrivals;
pub use config::{CmConfig, EndpointConfig, Member, RouteInfo};
pub use counters::EndpointCounters;
pub use error::EndpointError;

use core::net::IpAddr;
use std::collections::{BTreeMap, VecDeque};

use lariat_wire::rocev2::Psn;
use slab::Slab;

use crate::cm::Outbox;
use crate::time::Timestamp;
use crate::verbs::{CmEvent, ListenerId};
use connection::Connection;
use numbers::Numbers;
use shared::SharedQueues;
use timers::Timers;

/// Answers of the connection manager that may wait to be sent, beside one per connection.
const OUTBOX_SLACK: usize = 1024;

/// The traffic of one UDP socket.
#[derive(Debug)]
pub struct Endpoint {
    config: EndpointConfig,
    counters: EndpointCounters,
    numbers: Numbers,
    conns: Slab<Connection>,
    generation: u64,
    listeners: BTreeMap<u16, ListenerId>,
    last_listener: u32,
    /// By the peer's address, its communication id and its GUID: several processes may share an
    /// address, and each chooses its ids alone.
    by_remote_id: BTreeMap<(IpAddr, u32, u64), usize>,
    /// By the peer's address, GUID and queue pair number.
    by_peer_qp: BTreeMap<(IpAddr, u64, u32), usize>,
    timers: Timers,
    outbox: Outbox,
    events: VecDeque<CmEvent>,
    /// Slots whose queue pairs want to transmit, may have completions, hold acknowledgements.
    ready: VecDeque<usize>,
    completing: VecDeque<usize>,
    holding: Vec<usize>,
    shared: SharedQueues,
    /// Number of the last datagram of queue pair 1; nobody looks at it.
    datagram_psn: Psn,
    half_open: u32,
    /// Until then no half-open connection has to make room for another.
    next_unanswered: Timestamp,
    /// Connections without owner, which only say good-bye.
    orphans: u32,
}

impl Endpoint {
    /// An endpoint without connections.
    #[must_use]
    pub fn new(config: EndpointConfig) -> Self {
        Self {
            config,
            counters: EndpointCounters::default(),
            numbers: Numbers::new(config.seed, config.member, config.max_connections),
            conns: Slab::new(),
            generation: 0,
            listeners: BTreeMap::new(),
            last_listener: 0,
            by_remote_id: BTreeMap::new(),
            by_peer_qp: BTreeMap::new(),
            timers: Timers::default(),
            outbox: Outbox::new(OUTBOX_SLACK + config.max_connections as usize),
            events: VecDeque::new(),
            ready: VecDeque::new(),
            completing: VecDeque::new(),
            holding: Vec::new(),
            shared: SharedQueues::default(),
            datagram_psn: Psn::new(0),
            half_open: 0,
            next_unanswered: Timestamp::ZERO,
            orphans: 0,
        }
    }

    /// What the endpoint was told.
    #[must_use]
    pub fn config(&self) -> &EndpointConfig {
        &self.config
    }

    /// Whether there are packets to send, completions or events to take.
    #[must_use]
    pub fn has_output(&self) -> bool {
        !(self.outbox.is_empty()
            && self.ready.is_empty()
            && self.completing.is_empty()
            && self.shared.returned.is_empty()
            && self.events.is_empty())
    }

    /// What was counted.
    #[must_use]
    pub fn counters(&self) -> EndpointCounters {
        let mut counters = self.counters;
        counters.cm_repeated = self.outbox.repeated;
        counters.cm_overflow = self.outbox.overflow;
        for (_, conn) in &self.conns {
            if let Some(qp) = &conn.qp {
                counters.add(qp.counters());
            }
        }
        counters
    }

    /// Connections that take up memory: those the caller owns, and those that are still saying
    /// good-bye.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.conns.len()
    }

    /// Timers that run; none without connections.
    #[must_use]
    pub fn timers(&self) -> usize {
        self.timers.len()
    }
}

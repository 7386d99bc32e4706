//! The reliable-connected queue pair as a sans-IO state machine (IBTA volume 1, 9.7).
//!
//! [`QueuePair`] joins two halves that share nothing but the connection: the requester (our
//! requests out, acknowledges in) and the responder (the peer's requests in, acknowledges and
//! READ data out). Its owner (`endpoint`) hands in packets, time and memory and polls for packets,
//! completions and the next deadline. Steady state allocates nothing: queues have the capacity
//! that [`QpSetup`] said.
//!
//! Order of calls: any `handle_*`, `post_*`, `send_held_acks` or `fail` may produce completions,
//! packets and a new deadline; poll for all three after it. A queue pair that just failed may have
//! one last packet (the NAK that says why): poll once more before dropping it.

mod config;
mod state;

use crate::memory::Memory;
use crate::time::Timestamp;
use crate::transmit::Transmit;
use crate::verbs::{ConnId, PostErrorKind, RecvRequest, SendRequest, WorkCompletion};
use lariat_wire::rocev2::{Packet, Qpn};

pub use config::{MAX_MESSAGE_BYTES, QpCounters, QpFailure, QpParams, QpSetup};
pub use state::QpState;

/// One end of a reliable connection.
#[derive(Debug)]
pub struct QueuePair {
    setup: QpSetup,
    state: QpState,
    failure: Option<QpFailure>,
    counters: QpCounters,
}

impl QueuePair {
    /// A queue pair in INIT: receives may be posted.
    #[must_use]
    pub fn new(setup: QpSetup) -> Self {
        Self { setup, state: QpState::Init, failure: None, counters: QpCounters::default() }
    }

    /// INIT to RTS: the peer is known. Does nothing in any other state, and returns whether it did.
    pub fn activate(&mut self, _now: Timestamp, _params: &QpParams) -> bool {
        if self.state != QpState::Init {
            return false;
        }
        self.state = QpState::Rts;
        true
    }

    /// The connection.
    #[must_use]
    pub fn conn(&self) -> ConnId {
        self.setup.conn
    }

    /// Its own number.
    #[must_use]
    pub fn qpn(&self) -> Qpn {
        self.setup.qpn
    }

    /// The state.
    #[must_use]
    pub fn state(&self) -> QpState {
        self.state
    }

    /// Why it is in ERROR; `None` in every other state.
    #[must_use]
    pub fn failure(&self) -> Option<QpFailure> {
        self.failure
    }

    /// What it did so far.
    #[must_use]
    pub fn counters(&self) -> &QpCounters {
        &self.counters
    }

    /// Appends a request to the send queue. In ERROR it completes as flushed at once.
    ///
    /// # Errors
    /// The state takes none, the queue is full, the memory is not registered for it, or it is
    /// longer than [`MAX_MESSAGE_BYTES`]. `Device(EINVAL)` for a READ where the connection was
    /// negotiated without any.
    pub fn post_send<M: Memory + ?Sized>(
        &mut self,
        _request: &SendRequest,
        _mem: &M,
    ) -> Result<(), PostErrorKind> {
        Err(PostErrorKind::WrongState)
    }

    /// Appends a receive. In ERROR it completes as flushed at once.
    ///
    /// # Errors
    /// As [`Self::post_send`].
    pub fn post_recv<M: Memory + ?Sized>(
        &mut self,
        _request: &RecvRequest,
        _mem: &M,
    ) -> Result<(), PostErrorKind> {
        Err(PostErrorKind::WrongState)
    }

    /// Takes a packet that came for this queue pair, its ICRC already checked.
    /// `congestion_mark`: whether its IP header said CE.
    pub fn handle_packet<M: Memory + ?Sized>(
        &mut self,
        _now: Timestamp,
        _packet: &Packet<'_>,
        _congestion_mark: bool,
        _mem: &mut M,
    ) {
    }

    /// Acts on deadlines that have passed.
    pub fn handle_timeout(&mut self, _now: Timestamp) {}

    /// When [`Self::handle_timeout`] wants to be called; [`Timestamp::NEVER`] if it does not.
    #[must_use]
    pub fn next_timeout(&self) -> Timestamp {
        Timestamp::NEVER
    }

    /// Whether [`Self::poll_transmit`] would give a packet now.
    #[must_use]
    pub fn wants_transmit(&self) -> bool {
        false
    }

    /// Appends packets to `out`, `budget_packets` at most, and returns how many. An acknowledge
    /// that is due or held comes last.
    pub fn poll_transmit<M: Memory + ?Sized>(
        &mut self,
        _now: Timestamp,
        _budget_packets: usize,
        _mem: &M,
        _out: &mut Vec<Transmit>,
    ) -> usize {
        0
    }

    /// The next completion.
    pub fn poll_completion(&mut self) -> Option<WorkCompletion> {
        None
    }

    /// Whether an acknowledge is held back, waiting for data to ride behind.
    #[must_use]
    pub fn holds_acks(&self) -> bool {
        false
    }

    /// Makes held acknowledges due: the next [`Self::poll_transmit`] sends them.
    pub fn send_held_acks(&mut self, _now: Timestamp) {}

    /// RTS to SQD: no further message is begun. See [`Self::is_drained`].
    pub fn drain(&mut self) -> bool {
        false
    }

    /// SQD to RTS.
    pub fn resume(&mut self) -> bool {
        false
    }

    /// Whether no request of ours is on its way.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        true
    }

    /// To ERROR: everything outstanding completes as flushed. Nothing happens if it is there.
    pub fn fail(&mut self, _now: Timestamp, _cause: QpFailure) {}
}

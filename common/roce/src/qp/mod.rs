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

mod answers;
mod buffer;
mod completions;
mod config;
mod congestion;
mod early;
mod emit;
mod psn;
mod replies;
mod requester;
mod responder;
mod rtt;
mod shared;
mod state;
#[cfg(test)]
mod tests;

use core::time::Duration;

use lariat_wire::rocev2::{Opcode, PKey, Packet, Qpn};

use crate::memory::Memory;
use crate::time::Timestamp;
use crate::transmit::Transmit;
use crate::verbs::{
    Access, ConnId, PostErrorKind, RecvRequest, SendOp, SendRequest, SharedReceiveId, WcOpcode,
    WcStatus, WorkCompletion,
};

use buffer::LocalBuffer;
use completions::Completions;
use emit::{Outbox, Peer};
use requester::{Fault, Requester, Run};
use responder::{Receives, Refusal, Responder, Sinks};

pub use config::{MAX_MESSAGE_BYTES, QpCounters, QpFailure, QpParams, QpSetup};
pub use shared::SharedReceives;
pub use state::QpState;

/// `errno` for requests that the connection was not negotiated for.
const EINVAL: i32 = 22;
/// The last opcode of the RC service (IBTA 9.2.1).
const LAST_RC_OPCODE: u8 = 0x1f;
/// What exists once the peer is known.
#[derive(Debug)]
struct Link {
    peer: Peer,
    requester: Requester,
    responder: Responder,
}

/// One end of a reliable connection.
#[derive(Debug)]
pub struct QueuePair {
    setup: QpSetup,
    state: QpState,
    failure: Option<QpFailure>,
    receives: Receives,
    completions: Completions,
    link: Option<Box<Link>>,
    counters: QpCounters,
}

impl QueuePair {
    /// A queue pair in INIT: receives may be posted.
    #[must_use]
    pub fn new(setup: QpSetup) -> Self {
        let max_send = setup.max_send as usize;
        // Of a shared queue it holds one receive at a time; its completions grow as they have to.
        let max_recv = if setup.shared_receive.is_some() { 1 } else { setup.max_recv as usize };
        Self {
            setup,
            state: QpState::Init,
            failure: None,
            receives: Receives::new(max_recv),
            completions: Completions::new(setup.conn, max_send + max_recv),
            link: None,
            counters: QpCounters::default(),
        }
    }

    /// INIT to RTS: the peer is known. Does nothing in any other state; returns whether it did.
    pub fn activate(&mut self, now: Timestamp, params: &QpParams) -> bool {
        if !(self.move_to(QpState::Rtr) && self.move_to(QpState::Rts)) {
            return false;
        }
        let advertise_credits = params.advertise_credits && self.setup.shared_receive.is_none();
        let params = &QpParams { advertise_credits, ..*params };
        self.link = Some(Box::new(Link {
            peer: Peer { remote: params.remote, qpn: params.peer_qpn },
            requester: Requester::new(now, &self.setup, params),
            responder: Responder::new(self.setup.domain, params),
        }));
        true
    }

    fn move_to(&mut self, next: QpState) -> bool {
        let legal = self.state.may_become(next);
        if legal {
            self.state = next;
        }
        legal
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

    /// Where its receives come from, if not from its own queue.
    #[must_use]
    pub fn shared_receive(&self) -> Option<SharedReceiveId> {
        self.setup.shared_receive
    }

    /// The peer's number, once it is known.
    #[must_use]
    pub fn peer_qpn(&self) -> Option<Qpn> {
        self.link.as_ref().map(|link| link.peer.qpn)
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

    /// Bytes that the congestion window allows on their way; 0 before there is a connection.
    #[must_use]
    pub fn window_bytes(&self) -> u64 {
        self.link.as_ref().map_or(0, |link| link.requester.window.bytes())
    }

    /// The shortest time after which the peer has acknowledged something; `None` until it has.
    #[must_use]
    pub fn shortest_round_trip(&self) -> Option<Duration> {
        self.link.as_ref()?.requester.round_trip.shortest()
    }

    /// Since when the peer owes acknowledgements or READ data without having given any; `None` if it
    /// owes nothing, or the queue pair does not wait for it any more.
    #[must_use]
    pub fn silent_since(&self) -> Option<Timestamp> {
        self.link.as_ref().filter(|_| self.state.receives())?.requester.silent_since()
    }

    /// Appends a request to the send queue. In ERROR it completes as flushed at once.
    ///
    /// # Errors
    /// The state takes none, the queue is full, the memory is not registered for it, or it is
    /// longer than [`MAX_MESSAGE_BYTES`]. `Device(EINVAL)` for a READ where the connection was
    /// negotiated without any.
    #[inline(always)]
    pub fn post_send<M: Memory + ?Sized>(
        &mut self,
        request: &SendRequest,
        mem: &M,
    ) -> Result<(), PostErrorKind> {
        let queued = self.link.as_ref().map_or(0, |link| link.requester.queue.len());
        if queued + self.completions.sends() >= self.setup.max_send as usize {
            return Err(PostErrorKind::QueueFull);
        }
        if self.state == QpState::Error {
            let opcode = opcode_of(request.op);
            self.completions.push(request.wr_id, opcode, WcStatus::Flushed, 0, None);
            return Ok(());
        }
        let link = self.link.as_mut().ok_or(PostErrorKind::WrongState)?;
        if !self.state.sends() {
            return Err(PostErrorKind::WrongState);
        }
        let need = if let SendOp::Read { .. } = request.op {
            if !link.requester.takes_reads() {
                return Err(PostErrorKind::Device(EINVAL));
            }
            Access::LOCAL
        } else {
            Access::LOCAL_READ
        };
        let buffer = LocalBuffer::check(mem, self.setup.domain, &request.sges, need)?;
        link.requester.post(request, buffer);
        Ok(())
    }

    /// Appends a receive. In ERROR it completes as flushed at once.
    ///
    /// # Errors
    /// As [`Self::post_send`]; the state takes none too where receives come from a shared queue.
    #[inline(always)]
    pub fn post_recv<M: Memory + ?Sized>(
        &mut self,
        request: &RecvRequest,
        mem: &M,
    ) -> Result<(), PostErrorKind> {
        if self.setup.shared_receive.is_some() {
            return Err(PostErrorKind::WrongState);
        }
        if self.receives.len() + self.completions.receives() >= self.setup.max_recv as usize {
            return Err(PostErrorKind::QueueFull);
        }
        match self.state {
            QpState::Reset => return Err(PostErrorKind::WrongState),
            QpState::Error => {
                let status = WcStatus::Flushed;
                self.completions.push(request.wr_id, WcOpcode::Recv, status, 0, None);
                return Ok(());
            }
            QpState::Init | QpState::Rtr | QpState::Rts | QpState::Sqd => {}
        }
        let buffer = LocalBuffer::check(mem, self.setup.domain, &request.sges, Access::LOCAL)?;
        self.receives.post(request, buffer);
        Ok(())
    }

    /// Takes a packet that came for this queue pair from its peer, the ICRC already checked.
    /// `congestion_mark`: whether its IP header said CE. `shared`: the queue that
    /// [`Self::shared_receive`] names.
    #[inline]
    pub fn handle_packet<M: Memory + ?Sized>(
        &mut self,
        now: Timestamp,
        packet: &Packet<'_>,
        congestion_mark: bool,
        mem: &mut M,
        shared: Option<&mut SharedReceives>,
    ) {
        let Self { counters, completions, receives, state, .. } = self;
        counters.packets_received += 1;
        let Some(link) = self.link.as_mut().filter(|_| state.receives()) else {
            counters.packets_dropped += 1;
            return;
        };
        // IBTA 9.6.1: such packets are dropped silently.
        if packet.bth.version != 0 || !packet.bth.pkey.matches(PKey::DEFAULT) {
            counters.packets_dropped += 1;
            return;
        }
        let opcode = packet.bth.opcode;
        if opcode.is_response() {
            if congestion_mark && opcode.is_read_response() {
                // The peer is told; but what READ data comes is what we ask for, so the window
                // that slows it is ours.
                link.responder.replies.congestion_marked(now);
                link.requester.window.on_cnp(now);
            }
            let result = link.requester.handle_response(now, packet, mem, completions, counters);
            if let Err(fault) = result {
                self.enter_error(fault.failure, Some(fault), false);
            }
        } else if opcode == Opcode::Cnp {
            counters.cnps_received += 1;
            link.requester.window.on_cnp(now);
        } else if is_of_another_service(opcode) {
            counters.packets_dropped += 1;
        } else {
            if congestion_mark {
                link.responder.replies.congestion_marked(now);
            }
            let sinks = Sinks { receives, shared, completions };
            let result = link.responder.handle_request(now, packet, mem, sinks, counters);
            if let Err(Refusal(code)) = result {
                self.enter_error(QpFailure::Offended(code), None, true);
            }
        }
    }

    /// Acts on deadlines that have passed.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        let Some(link) = self.link.as_mut().filter(|_| self.state.receives()) else { return };
        link.responder.handle_timeout(now, &mut self.counters);
        if let Err(fault) = link.requester.handle_timeout(now, &mut self.counters) {
            self.enter_error(fault.failure, Some(fault), false);
        }
    }

    /// When [`Self::handle_timeout`] wants to be called; [`Timestamp::NEVER`] if it does not.
    #[must_use]
    pub fn next_timeout(&self) -> Timestamp {
        self.link.as_ref().filter(|_| self.state.receives()).map_or(Timestamp::NEVER, |link| {
            link.requester.next_timeout().min(link.responder.next_timeout())
        })
    }

    /// Whether [`Self::poll_transmit`] has work. After it gave nothing, this is `false`.
    #[must_use]
    pub fn wants_transmit(&self) -> bool {
        self.link.as_ref().is_some_and(|link| {
            link.responder.replies.wants_transmit()
                || (self.state.sends() && link.requester.wants_transmit(self.state == QpState::Rts))
        })
    }

    /// Whether all that [`Self::poll_transmit`] would send is an acknowledge.
    #[must_use]
    pub fn wants_only_to_acknowledge(&self) -> bool {
        self.link.as_ref().is_some_and(|link| {
            link.responder.replies.wants_only_to_acknowledge()
                && !(self.state.sends()
                    && link.requester.wants_transmit(self.state == QpState::Rts))
        })
    }

    /// Appends packets to `out`, `budget_packets` at most, and returns how many: READ data and
    /// requests of our own by halves. What acknowledges goes behind the first run of them whose
    /// packets do not grow, so that it is the last and shortest of the run.
    pub fn poll_transmit<M: Memory + ?Sized>(
        &mut self,
        now: Timestamp,
        budget_packets: usize,
        mem: &M,
        out: &mut Vec<Transmit>,
    ) -> usize {
        let Some(link) = self.link.as_mut().filter(|_| budget_packets > 0) else { return 0 };
        let Link { peer, requester, responder } = &mut **link;
        let standing = responder.standing(&self.receives);
        let mut outbox = Outbox { peer: *peer, counters: &mut self.counters, out };
        let replies = &mut responder.replies;
        replies.handle_timeout(now);
        // Room for the acknowledge; with room for one packet only, it goes when nothing else does.
        let reserve = usize::from(replies.owes() && budget_packets > 1);
        let budget = budget_packets - reserve;
        let may_begin = self.state == QpState::Rts;
        let sends = self.state.sends();
        let mut sent = 0;
        let mut refused = None;
        if self.state.receives() && replies.has_reads() {
            let others = sends && requester.wants_transmit(may_begin);
            let share = if others { budget.div_ceil(2) } else { budget };
            let (reads, result) = replies.transmit_reads(share, standing, mem, &mut outbox);
            sent = reads;
            refused = result.err();
        }
        if sends && refused.is_none() {
            // What acknowledges rides behind the first run of equal packets, not behind the last:
            // the peer may go on with what it frees while the rest is on its way.
            let run = if replies.owes() { Run::First } else { Run::All };
            sent += requester.transmit(now, budget - sent, may_begin, run, &mut outbox);
        }
        sent += replies.transmit_acks(budget_packets - sent, sent > 0, standing, &mut outbox);
        if sends && refused.is_none() {
            let rest = budget_packets - sent;
            sent += requester.transmit(now, rest, may_begin, Run::All, &mut outbox);
        }
        self.counters.packets_sent += sent as u64;
        if let Some(Refusal(code)) = refused {
            self.enter_error(QpFailure::Offended(code), None, true);
        }
        sent
    }

    /// Appends completions to `out`, the oldest first and `budget` at most; returns how many.
    pub fn poll_completions(&mut self, budget: usize, out: &mut Vec<WorkCompletion>) -> usize {
        self.completions.take(budget, out)
    }

    /// Whether [`Self::poll_completions`] has any.
    #[must_use]
    pub fn has_completions(&self) -> bool {
        !self.completions.is_empty()
    }

    /// Whether an acknowledge is held back, waiting for data to ride behind.
    #[must_use]
    pub fn holds_acks(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.responder.replies.holds_acks())
    }

    /// Makes held acknowledges due: the next [`Self::poll_transmit`] sends them.
    pub fn send_held_acks(&mut self, _now: Timestamp) {
        if let Some(link) = &mut self.link {
            link.responder.replies.send_held();
        }
    }

    /// RTS to SQD: no further message is begun, what was begun is finished; see
    /// [`Self::is_drained`]. Does nothing in any other state; returns whether it did.
    pub fn drain(&mut self) -> bool {
        self.move_to(QpState::Sqd)
    }

    /// SQD to RTS: what waited is sent. Does nothing in any other state; returns whether it did.
    pub fn resume(&mut self) -> bool {
        self.state == QpState::Sqd && self.move_to(QpState::Rts)
    }

    /// Whether no message of ours is under way. Messages not begun in SQD do not count.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.link.as_ref().is_none_or(|link| link.requester.is_between_messages())
    }

    /// To ERROR: everything outstanding completes as flushed. Nothing happens if it is there.
    pub fn fail(&mut self, _now: Timestamp, cause: QpFailure) {
        self.enter_error(cause, None, false);
    }

    /// The end, for a queue pair whose receives come from a shared queue: what it had taken from
    /// there, as flushed, also what completed and was not polled.
    pub(crate) fn give_back(&mut self, mut each: impl FnMut(WorkCompletion)) {
        self.receives.flush(&mut self.completions);
        self.completions.abandon(|completion| {
            if completion.opcode == WcOpcode::Recv {
                let status = WcStatus::Flushed;
                each(WorkCompletion { status, byte_len: 0, invalidated: None, ..completion });
            }
        });
    }

    #[cfg(test)]
    const fn setup(&self) -> &QpSetup {
        &self.setup
    }

    /// What all queues can hold without allocating.
    #[cfg(test)]
    fn capacities(&self) -> [usize; 5] {
        let link = self.link.as_ref().expect("a connection");
        [
            self.receives.capacity(),
            self.completions.capacity(),
            link.requester.queue.capacity(),
            link.requester.reads.capacity(),
            link.responder.replies.capacity(),
        ]
    }

    /// To ERROR (IBTA 10.3.1.5): the request at fault completes with its status, everything else as
    /// flushed. `say_why`: the refusal among the replies still goes out.
    fn enter_error(&mut self, failure: QpFailure, fault: Option<Fault>, say_why: bool) {
        if self.state == QpState::Error || !self.move_to(QpState::Error) {
            return;
        }
        self.failure = Some(failure);
        if let Some(link) = &mut self.link {
            link.requester.flush(fault, &mut self.completions);
            link.responder.silence(say_why);
        }
        self.receives.flush(&mut self.completions);
    }
}

/// Whether an opcode is not of the RC service, or not known at all.
fn is_of_another_service(opcode: Opcode) -> bool {
    match opcode {
        Opcode::UdSendOnly | Opcode::UdSendOnlyImm | Opcode::Cnp => true,
        Opcode::Unknown(number) => number > LAST_RC_OPCODE,
        _ => false,
    }
}

fn opcode_of(op: SendOp) -> WcOpcode {
    match op {
        SendOp::Send | SendOp::SendWithInvalidate { .. } => WcOpcode::Send,
        SendOp::Write { .. } => WcOpcode::Write,
        SendOp::Read { .. } => WcOpcode::Read,
    }
}

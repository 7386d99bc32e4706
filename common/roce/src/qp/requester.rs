//! The requester's sending side: the send queue, segmentation, READ requests, what may go out now
//! and what goes out again (IBTA 9.7.3, 9.7.6). Answers are taken in `answers`.
//!
//! Calls the window, the round-trip estimate and the emitter; called by the queue pair.

use core::time::Duration;
use std::collections::VecDeque;

use lariat_wire::rocev2::{Ieth, Opcode, Reth};

use crate::time::Timestamp;
use crate::transmit::Payload;
use crate::verbs::{SendOp, SendRequest, WcStatus};

use super::buffer::LocalBuffer;
use super::completions::Completions;
use super::config::{QpCounters, QpFailure, QpParams, QpSetup};
use super::congestion::Window;
use super::emit::{Extension, Label, Outbox};
use super::opcode_of;
use super::psn::{MAX_OUTSTANDING, Seq, bytes_before, packets_of};
use super::rtt::RoundTrip;

/// What a packet costs the window besides its payload.
const OVERHEAD_BYTES: u64 = 64;
/// The longest READ in one request, in answer packets. Longer ones are cut.
const MAX_READ_PACKETS: u64 = 1 << 20;

/// A request in the send queue.
#[derive(Debug)]
pub(super) struct SendWqe {
    wr_id: u64,
    pub(super) op: SendOp,
    signaled: bool,
    pub(super) buffer: LocalBuffer,
    /// Its first packet, and the one after its last. A READ occupies its answers' numbers.
    pub(super) first: Seq,
    pub(super) end: Seq,
    /// Bytes (with overhead) of all requests before it.
    first_byte: u64,
    /// Which message of the connection it is, counted from 1; set when its first packet goes out.
    message: u64,
    /// Each of its packets is a message of its own; set when its first packet goes out.
    divided: bool,
}

impl SendWqe {
    #[inline]
    pub(super) fn is_read(&self) -> bool {
        matches!(self.op, SendOp::Read { .. })
    }

    /// Payload bytes before the packet `seq`.
    #[inline]
    pub(super) fn offset(&self, seq: Seq, mtu: u32) -> u32 {
        if seq == self.first {
            return 0;
        }
        bytes_before(seq.since(self.first), mtu, self.buffer.len())
    }

    /// Bytes with overhead before the packet `seq`, counted from the connection's start.
    fn position(&self, seq: Seq, mtu: u32) -> u64 {
        let packets = seq.since(self.first);
        self.first_byte + u64::from(self.offset(seq, mtu)) + packets * OVERHEAD_BYTES
    }

    pub(super) fn complete(&self, status: WcStatus, completions: &mut Completions) {
        if self.signaled || status != WcStatus::Success {
            let success = status == WcStatus::Success;
            let length = if self.is_read() && success { self.buffer.len() } else { 0 };
            completions.push(self.wr_id, opcode_of(self.op), status, length, None);
        }
    }
}

/// A READ request on the wire: its answers' numbers. A repetition keeps within them, because the
/// responder may know the request already.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadRequest {
    first: Seq,
    pub(super) end: Seq,
}

/// Why the queue pair has to go to ERROR, and which request is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) at: Seq,
    pub(super) status: WcStatus,
    pub(super) failure: QpFailure,
}

/// What the next packet would be.
#[derive(Clone, Copy, Debug)]
enum Step {
    Data { offset: u32, length: u32, room_after: u64, limited: bool },
    Read { offset: u32, end: Seq },
}

/// How much [`Requester::transmit`] sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Run {
    /// Up to the first packet that carries more than the one before it: there a segmented message
    /// ends at the latest.
    First,
    /// Everything.
    All,
}

/// The requester half.
#[derive(Debug)]
pub(super) struct Requester {
    pub(super) queue: VecDeque<SendWqe>,
    pub(super) mtu: u32,
    read_depth: usize,
    divide_writes: bool,
    tail: Seq,
    tail_byte: u64,
    /// The oldest packet without answer.
    pub(super) unacked: Seq,
    /// The packet to send next; behind `newest` while sending again.
    pub(super) next: Seq,
    /// Bytes (with overhead) before `unacked` and before `next`, counted from the connection's
    /// start: what is between is on its way.
    acked_byte: u64,
    next_byte: u64,
    /// One past the newest packet sent.
    pub(super) newest: Seq,
    /// Which request `next` belongs to.
    pub(super) cursor: usize,
    pub(super) reads: VecDeque<ReadRequest>,
    messages: u64,
    /// Messages the peer completed, and the last message its credits allow (`None`: any).
    pub(super) peer_messages: u64,
    pub(super) message_limit: Option<u64>,
    pub(super) window: Window,
    pub(super) round_trip: RoundTrip,
    /// The packet whose answer is timed.
    pub(super) timed: Option<(Seq, Timestamp)>,
    pub(super) deadline: Timestamp,
    pub(super) progress_at: Timestamp,
    budget: Duration,
    pub(super) rnr_until: Option<Timestamp>,
    pub(super) rnr_tries: u32,
    /// RNR retries; `None` is without end.
    pub(super) rnr_limit: Option<u32>,
    /// The gap that was acted upon last.
    pub(super) gap: Option<(Seq, Timestamp)>,
    /// Until this is acknowledged the window is not cut for loss again.
    pub(super) recovery: Seq,
    bytes_since_ack_request: u64,
}

impl Requester {
    pub(super) fn new(now: Timestamp, setup: &QpSetup, params: &QpParams) -> Self {
        let mtu = u32::try_from(params.path_mtu.bytes()).unwrap_or(256);
        let first = Seq::first(params.send_psn);
        let depth = usize::from(params.initiator_depth);
        let tries = u32::from(params.retry_count) + 1;
        Self {
            queue: VecDeque::with_capacity(setup.max_send as usize),
            mtu,
            read_depth: depth,
            divide_writes: setup.divide_writes,
            tail: first,
            tail_byte: 0,
            unacked: first,
            next: first,
            acked_byte: 0,
            next_byte: 0,
            newest: first,
            cursor: 0,
            reads: VecDeque::with_capacity(depth),
            messages: 0,
            peer_messages: 0,
            message_limit: None,
            window: Window::new(mtu, params.max_inflight_bytes),
            round_trip: RoundTrip::new(params.rto_floor, params.rto_cap),
            timed: None,
            deadline: Timestamp::NEVER,
            progress_at: now,
            budget: params.ack_timeout.max(params.rto_floor).saturating_mul(tries),
            rnr_until: None,
            rnr_tries: 0,
            rnr_limit: (params.rnr_retry_count < 7).then(|| u32::from(params.rnr_retry_count)),
            gap: None,
            recovery: first,
            bytes_since_ack_request: 0,
        }
    }

    /// Whether READs may be posted at all.
    pub(super) fn takes_reads(&self) -> bool {
        self.read_depth > 0
    }

    /// Appends a request. The caller checked that there is room.
    #[inline]
    pub(super) fn post(&mut self, request: &SendRequest, buffer: LocalBuffer) {
        let packets = packets_of(buffer.len(), self.mtu);
        let first = self.tail;
        self.tail = first.plus(packets);
        let first_byte = self.tail_byte;
        self.tail_byte += u64::from(buffer.len()) + u64::from(packets) * OVERHEAD_BYTES;
        self.queue.push_back(SendWqe {
            wr_id: request.wr_id,
            op: request.op,
            signaled: request.signaled,
            buffer,
            first,
            end: self.tail,
            first_byte,
            message: 0,
            divided: false,
        });
    }

    /// Whether nothing is on its way.
    pub(super) fn is_idle(&self) -> bool {
        self.unacked == self.newest
    }

    /// Since when the peer owes an answer and has given none. A peer without receives has answered.
    pub(super) fn silent_since(&self) -> Option<Timestamp> {
        (!self.is_idle() && self.rnr_until.is_none()).then_some(self.progress_at)
    }

    /// Whether nothing is on its way and no message is half sent.
    pub(super) fn is_between_messages(&self) -> bool {
        self.is_idle() && self.queue.front().is_none_or(|wqe| wqe.first == self.next)
    }

    /// Bytes before `seq`, which belongs to the request at `index`.
    fn position(&self, index: usize, seq: Seq) -> u64 {
        self.queue.get(index).map_or(self.tail_byte, |wqe| wqe.position(seq, self.mtu))
    }

    /// Bytes before the oldest packet without answer.
    pub(super) fn acked_bytes(&self) -> u64 {
        self.acked_byte
    }

    /// Bytes on their way.
    pub(super) fn inflight(&self) -> u64 {
        self.next_byte.saturating_sub(self.acked_byte)
    }

    /// All before `upto` is acknowledged; the requests that are done have left the queue.
    pub(super) fn set_unacked(&mut self, upto: Seq) {
        self.unacked = upto;
        self.acked_byte = self.position(0, upto);
    }

    /// What was about to be sent again had arrived: goes on with what has not, of the first request.
    pub(super) fn skip_to_unacked(&mut self) {
        self.next = self.unacked;
        self.next_byte = self.acked_byte;
    }

    /// What goes out next, if anything may. `may_begin`: whether a new message may be begun.
    #[inline(always)]
    fn step(&self, may_begin: bool) -> Option<Step> {
        let wqe = self.queue.get(self.cursor)?;
        let fresh = self.next == self.newest;
        let begins = fresh && self.next == wqe.first;
        if self.rnr_until.is_some() || (begins && !may_begin) {
            return None;
        }
        if self.next.since(self.unacked) >= MAX_OUTSTANDING {
            return None;
        }
        // A single message may exceed a window that is smaller than it, or nothing would move.
        let alone = self.next == self.unacked;
        let room =
            if alone { u64::MAX } else { self.window.bytes().saturating_sub(self.inflight()) };
        let offset = wqe.offset(self.next, self.mtu);
        if wqe.is_read() {
            let end = self.read_end(wqe, fresh)?;
            let bytes = wqe.position(end, self.mtu) - self.next_byte;
            return (bytes <= room).then_some(Step::Read { offset, end });
        }
        let message = if begins { self.messages + 1 } else { wqe.message };
        let is_send = !matches!(wqe.op, SendOp::Write { .. });
        let limited = is_send && self.message_limit.is_some_and(|limit| message > limit);
        if limited && !alone {
            return None;
        }
        let length = self.mtu.min(wqe.buffer.len() - offset);
        let room_after = room.checked_sub(u64::from(length) + OVERHEAD_BYTES)?;
        Some(Step::Data { offset, length, room_after, limited })
    }

    /// Where the READ request that starts at `next` ends; none if it has to wait.
    fn read_end(&self, wqe: &SendWqe, fresh: bool) -> Option<Seq> {
        if !fresh {
            let known = self.reads.iter().find(|read| self.next < read.end)?;
            debug_assert!(known.first <= self.next);
            return Some(known.end);
        }
        if self.reads.len() >= self.read_depth {
            return None;
        }
        let window_packets = self.window.bytes() / (u64::from(self.mtu) + OVERHEAD_BYTES);
        let packets = wqe.end.since(self.next).min(window_packets.max(1)).min(MAX_READ_PACKETS);
        Some(self.next.plus(u32::try_from(packets).unwrap_or(1)))
    }

    /// Whether there is something to send.
    pub(super) fn wants_transmit(&self, may_begin: bool) -> bool {
        self.step(may_begin).is_some()
    }

    /// Sends what may be sent, `budget` packets at most; returns how many.
    pub(super) fn transmit(
        &mut self,
        now: Timestamp,
        budget: usize,
        may_begin: bool,
        run: Run,
        outbox: &mut Outbox<'_>,
    ) -> usize {
        let Outbox { peer, counters, out } = outbox;
        let mut sent = 0;
        let mut shortest = u32::MAX;
        while sent < budget {
            let Some(step) = self.step(may_begin) else { break };
            if run == Run::First {
                let bytes = match step {
                    Step::Data { length, .. } => length,
                    Step::Read { .. } => 0,
                };
                if bytes > shortest {
                    break;
                }
                shortest = bytes;
            }
            let fresh = self.next == self.newest;
            let half_window = self.window.bytes() / 2;
            let Some(wqe) = self.queue.get_mut(self.cursor) else { break };
            if fresh && self.next == wqe.first {
                // Where the peer counts messages (credits), the many would hold back the SEND behind.
                wqe.divided = self.divide_writes
                    && self.message_limit.is_none()
                    && matches!(wqe.op, SendOp::Write { .. });
            }
            let begins = fresh && (self.next == wqe.first || wqe.divided || wqe.is_read());
            if begins {
                self.messages += 1;
                wqe.message = self.messages;
            }
            let seq = self.next;
            let answered;
            match step {
                Step::Data { offset, length, room_after, limited } => {
                    let last = offset + length == wqe.buffer.len();
                    let bytes = u64::from(length) + OVERHEAD_BYTES;
                    self.bytes_since_ack_request += bytes;
                    let ack_request = last
                        || limited
                        || self.bytes_since_ack_request >= half_window
                        || room_after < u64::from(self.mtu) + OVERHEAD_BYTES;
                    if ack_request {
                        self.bytes_since_ack_request = 0;
                    }
                    answered = ack_request;
                    // The message that this packet is of: from where in the request, how many bytes.
                    let (begin, message_len) =
                        if wqe.divided { (offset, length) } else { (0, wqe.buffer.len()) };
                    let first = offset == begin;
                    let ends = offset + length == begin + message_len;
                    let (opcode, extension) =
                        data_headers(wqe.op, (begin, message_len), (first, ends));
                    let label = Label { opcode, psn: seq.psn(), ack_request };
                    out.push(peer.packet(label, extension, wqe.buffer.payload(offset, length)));
                    self.next = seq.next();
                    self.next_byte += bytes;
                }
                Step::Read { offset, end } => {
                    answered = true;
                    let until = bytes_before(end.since(wqe.first), self.mtu, wqe.buffer.len());
                    let SendOp::Read { remote_address, rkey } = wqe.op else { break };
                    let reth = Reth {
                        virtual_address: remote_address.wrapping_add(u64::from(offset)),
                        rkey,
                        length: until - offset,
                    };
                    let label =
                        Label { opcode: Opcode::ReadRequest, psn: seq.psn(), ack_request: false };
                    out.push(peer.packet(label, Extension::Reth(reth), Payload::Empty));
                    if fresh {
                        self.reads.push_back(ReadRequest { first: seq, end });
                    }
                    self.next_byte = wqe.position(end, self.mtu);
                    self.next = end;
                }
            }
            if self.next >= wqe.end {
                self.cursor += 1;
            }
            sent += 1;
            self.after_sending(now, seq, fresh, answered, counters);
        }
        sent
    }

    #[inline]
    fn after_sending(
        &mut self,
        now: Timestamp,
        seq: Seq,
        fresh: bool,
        answered: bool,
        counters: &mut QpCounters,
    ) {
        if fresh {
            if self.is_idle() {
                self.progress_at = now;
            }
            self.newest = self.next;
            if answered && self.timed.is_none() {
                self.timed = Some((seq, now));
            }
        } else {
            counters.packets_resent += 1;
        }
        if self.deadline == Timestamp::NEVER {
            self.arm(now);
        }
    }

    /// Sets the retransmission deadline, not later than the moment to give up.
    pub(super) fn arm(&mut self, now: Timestamp) {
        let give_up = self.progress_at + self.budget;
        let deadline = now + self.round_trip.timeout();
        self.deadline = if give_up > now { deadline.min(give_up) } else { deadline };
    }

    /// Goes back to `seq`, which must not be acknowledged yet: it and all after it go out again.
    pub(super) fn rewind(&mut self, seq: Seq) {
        self.next = seq;
        self.cursor = self.queue.partition_point(|wqe| wqe.end <= seq);
        self.next_byte = self.position(self.cursor, seq);
        self.timed = None;
        self.bytes_since_ack_request = 0;
    }

    /// Acts on deadlines that have passed.
    pub(super) fn handle_timeout(
        &mut self,
        now: Timestamp,
        counters: &mut QpCounters,
    ) -> Result<(), Fault> {
        if self.rnr_until.is_some_and(|until| until <= now) {
            self.rnr_until = None;
            self.progress_at = now;
        }
        if self.deadline > now {
            return Ok(());
        }
        if self.is_idle() {
            self.deadline = Timestamp::NEVER;
            return Ok(());
        }
        if now.since(self.progress_at) >= self.budget {
            return Err(Fault {
                at: self.unacked,
                status: WcStatus::RetryExceeded,
                failure: QpFailure::PeerSilent,
            });
        }
        counters.timeouts += 1;
        self.round_trip.back_off();
        self.window.on_timeout();
        self.recovery = self.newest;
        self.gap = None;
        self.rewind(self.unacked);
        self.arm(now);
        Ok(())
    }

    /// When [`Self::handle_timeout`] wants to be called.
    pub(super) fn next_timeout(&self) -> Timestamp {
        self.rnr_until.map_or(self.deadline, |until| until.min(self.deadline))
    }

    /// Completes everything: as flushed, but for the request at fault.
    pub(super) fn flush(&mut self, fault: Option<Fault>, completions: &mut Completions) {
        for wqe in self.queue.drain(..) {
            let status = fault
                .filter(|fault| wqe.first <= fault.at && fault.at < wqe.end)
                .map_or(WcStatus::Flushed, |fault| fault.status);
            wqe.complete(status, completions);
        }
        self.reads.clear();
        self.cursor = 0;
        self.deadline = Timestamp::NEVER;
        self.rnr_until = None;
    }
}

/// Opcode and extended header of a SEND's or WRITE's packet (IBTA 9.3.1, table 38): the first or last of
/// a message of `length` bytes that begins so far into the request.
#[inline]
fn data_headers(
    op: SendOp,
    (begin, length): (u32, u32),
    (first, last): (bool, bool),
) -> (Opcode, Extension) {
    let mut extension = Extension::None;
    let opcode = match op {
        SendOp::SendWithInvalidate { rkey } if last => {
            extension = Extension::Ieth(Ieth { rkey });
            if first { Opcode::SendOnlyInvalidate } else { Opcode::SendLastInvalidate }
        }
        SendOp::Write { remote_address, rkey } => {
            if first {
                let virtual_address = remote_address.wrapping_add(u64::from(begin));
                extension = Extension::Reth(Reth { virtual_address, rkey, length });
            }
            match (first, last) {
                (true, true) => Opcode::WriteOnly,
                (true, false) => Opcode::WriteFirst,
                (false, true) => Opcode::WriteLast,
                (false, false) => Opcode::WriteMiddle,
            }
        }
        SendOp::Send | SendOp::SendWithInvalidate { .. } | SendOp::Read { .. } => {
            match (first, last) {
                (true, true) => Opcode::SendOnly,
                (true, false) => Opcode::SendFirst,
                (false, true) => Opcode::SendLast,
                (false, false) => Opcode::SendMiddle,
            }
        }
    };
    (opcode, extension)
}

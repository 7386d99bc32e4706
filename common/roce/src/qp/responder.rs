//! The responder's receiving side: the peer's requests in order, receives, WRITE placement,
//! duplicates (IBTA 9.7.4). What goes back is kept by `replies`.
//!
//! Calls `Memory` and the replies; called by the queue pair for every request packet.

use std::collections::VecDeque;

use lariat_wire::rocev2::{NakCode, Opcode, Packet, Position, Reth, Rkey, RnrTimer, Syndrome};

use crate::memory::{AccessError, MemRange, Memory};
use crate::time::Timestamp;
use crate::verbs::{Access, DomainId, RecvRequest, WcOpcode, WcStatus};

use super::buffer::LocalBuffer;
use super::completions::Completions;
use super::config::{MAX_MESSAGE_BYTES, QpCounters, QpParams};
use super::early::Early;
use super::psn::{Seq, packets_of};
use super::replies::{ReadJob, Replies, Standing};
use super::shared::SharedReceives;

/// Where a SEND goes, and what is said when it is there.
pub(super) struct Sinks<'a> {
    pub(super) receives: &'a mut Receives,
    /// Where further receives come from, if the queue pair has none of its own.
    pub(super) shared: Option<&'a mut SharedReceives>,
    pub(super) completions: &'a mut Completions,
}

impl Sinks<'_> {
    fn lend(&mut self) -> Sinks<'_> {
        Sinks {
            receives: self.receives,
            shared: self.shared.as_deref_mut(),
            completions: self.completions,
        }
    }
}

pub(super) const REMOTE_READ: Access =
    Access { local_write: false, remote_read: true, remote_write: false };
const REMOTE_WRITE: Access = Access { local_write: false, remote_read: false, remote_write: true };

/// A receive in its queue.
#[derive(Debug)]
pub(super) struct RecvWqe {
    pub(super) wr_id: u64,
    pub(super) buffer: LocalBuffer,
}

/// The posted receives. They are there before the connection is. With a shared receive queue: the one
/// that was taken from there for the message that is coming in.
#[derive(Debug)]
pub(super) struct Receives {
    queue: VecDeque<RecvWqe>,
}

impl Receives {
    pub(super) fn new(max_recv: usize) -> Self {
        Self { queue: VecDeque::with_capacity(max_recv) }
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    /// What the queue can hold without allocating.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.queue.capacity()
    }

    /// Appends a receive. The caller checked that there is room.
    #[inline]
    pub(super) fn post(&mut self, request: &RecvRequest, buffer: LocalBuffer) {
        self.queue.push_back(RecvWqe { wr_id: request.wr_id, buffer });
    }

    /// Takes one from the shared queue, if there is one.
    fn fetch(&mut self, shared: Option<&mut SharedReceives>) -> bool {
        let taken = shared.and_then(SharedReceives::take);
        let any = taken.is_some();
        self.queue.extend(taken);
        any
    }

    #[inline]
    fn finish(
        &mut self,
        status: WcStatus,
        length: u32,
        invalidated: Option<Rkey>,
        completions: &mut Completions,
    ) {
        if let Some(wqe) = self.queue.pop_front() {
            completions.push(wqe.wr_id, WcOpcode::Recv, status, length, invalidated);
        }
    }

    pub(super) fn flush(&mut self, completions: &mut Completions) {
        while !self.queue.is_empty() {
            self.finish(WcStatus::Flushed, 0, None, completions);
        }
    }
}

/// The message whose packets are coming in.
#[derive(Clone, Copy, Debug)]
enum Message {
    None,
    /// A SEND into the first receive.
    Send {
        done: u32,
    },
    /// A WRITE; an empty one has no range.
    Write {
        range: Option<MemRange>,
        done: u32,
        length: u32,
    },
}

/// The peer's request was refused for good: a NAK goes out, the queue pair goes to ERROR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refusal(pub(super) NakCode);

const INVALID: Refusal = Refusal(NakCode::InvalidRequest);
const ACCESS: Refusal = Refusal(NakCode::RemoteAccess);

/// The responder half.
#[derive(Debug)]
pub(super) struct Responder {
    domain: DomainId,
    mtu: u32,
    /// The next packet in order.
    expected: Seq,
    message: Message,
    /// A NAK (gap, or no receive) was sent for `expected`: it is not repeated until that comes.
    told: bool,
    early: Early,
    rnr_timer: RnrTimer,
    pub(super) replies: Replies,
}

impl Responder {
    pub(super) fn new(domain: DomainId, params: &QpParams) -> Self {
        let mtu = u32::try_from(params.path_mtu.bytes()).unwrap_or(256);
        Self {
            domain,
            mtu,
            expected: Seq::first(params.expected_psn),
            message: Message::None,
            told: false,
            early: Early::new(params.gap_hold, params.path_mtu.bytes()),
            rnr_timer: params.rnr_timer,
            replies: Replies::new(domain, mtu, params),
        }
    }

    /// Takes a request packet.
    ///
    /// # Errors
    /// It was refused for good; the NAK is among the replies.
    #[inline(always)]
    pub(super) fn handle_request<M: Memory + ?Sized>(
        &mut self,
        now: Timestamp,
        packet: &Packet<'_>,
        mem: &mut M,
        mut sinks: Sinks<'_>,
        counters: &mut QpCounters,
    ) -> Result<(), Refusal> {
        let seq = self.expected.nearest(packet.bth.psn);
        if seq < self.expected {
            self.duplicate(seq, packet, counters);
            return Ok(());
        }
        if seq > self.expected {
            self.ahead(now, seq, packet, counters);
            return Ok(());
        }
        let told = std::mem::take(&mut self.told);
        let unsent = self.replies.cancel_nak();
        let mut result = self.in_order(now, packet, mem, sinks.lend(), counters);
        if result.is_ok() && !self.early.is_empty() {
            result = self.catch_up(now, mem, sinks, counters);
        }
        if told && !unsent && self.expected > seq && packet.bth.opcode != Opcode::ReadRequest {
            // Soft-RoCE goes back for one NAK only until an acknowledge comes, and then waits for
            // its timer: in a long message it would crawl from one loss to the next.
            self.replies.acknowledge_at_once();
        }
        if let Err(Refusal(code)) = result {
            self.replies.refuse(Syndrome::Nak(code), self.expected);
        }
        result
    }

    /// A packet that came before the one that is expected.
    #[cold]
    fn ahead(&mut self, now: Timestamp, seq: Seq, packet: &Packet<'_>, counters: &mut QpCounters) {
        if self.early.keep(now, seq, self.expected, packet) {
            counters.packets_early += 1;
        } else {
            counters.packets_dropped += 1;
        }
        if self.early.is_loss() {
            self.tell_gap(now, counters);
        }
    }

    /// Says that a packet is missing, once per gap (IBTA 9.7.5.2.5).
    fn tell_gap(&mut self, now: Timestamp, counters: &mut QpCounters) {
        if !self.told {
            self.told = true;
            counters.gaps_seen += 1;
            self.replies.nak(Syndrome::Nak(NakCode::PsnSequence), self.expected);
            self.early.was_told(now);
        }
    }

    /// Takes the packets behind a gap that has closed.
    #[cold]
    fn catch_up<M: Memory + ?Sized>(
        &mut self,
        now: Timestamp,
        mem: &mut M,
        mut sinks: Sinks<'_>,
        counters: &mut QpCounters,
    ) -> Result<(), Refusal> {
        while let Some((bth, ext, payload)) = self.early.take(self.expected) {
            let before = self.expected;
            let packet = Packet { bth, ext, payload: &payload, icrc: [0; 4] };
            self.in_order(now, &packet, mem, sinks.lend(), counters)?;
            if self.expected == before {
                // No receive is posted: the peer comes again with this and all behind it.
                self.early.clear();
                return Ok(());
            }
        }
        self.early.wait_anew(now);
        Ok(())
    }

    /// Acts on deadlines that have passed.
    pub(super) fn handle_timeout(&mut self, now: Timestamp, counters: &mut QpCounters) {
        self.replies.handle_timeout(now);
        if self.early.deadline() > now {
            return;
        }
        if self.told {
            self.early.clear();
        } else {
            self.tell_gap(now, counters);
        }
    }

    /// When [`Self::handle_timeout`] wants to be called.
    pub(super) fn next_timeout(&self) -> Timestamp {
        self.replies.next_timeout().min(self.early.deadline())
    }

    /// Nothing is taken any more; see [`Replies::silence`].
    pub(super) fn silence(&mut self, keep_nak: bool) {
        self.early.clear();
        self.replies.silence(keep_nak);
    }

    /// A packet that was here before (IBTA 9.7.5.1.3): READs are executed again, the rest is
    /// acknowledged again.
    fn duplicate(&mut self, seq: Seq, packet: &Packet<'_>, counters: &mut QpCounters) {
        counters.duplicates += 1;
        if packet.bth.opcode != Opcode::ReadRequest {
            if packet.bth.ack_request {
                self.replies.acknowledge_at_once();
            }
            return;
        }
        let Some(reth) = packet.ext.reth.filter(|reth| reth.length <= MAX_MESSAGE_BYTES) else {
            return;
        };
        let job = self.read_job(seq, reth, true);
        if job.end <= self.expected {
            self.replies.repeat_read(job);
        }
    }

    fn read_job(&self, seq: Seq, reth: Reth, repeated: bool) -> ReadJob {
        let end = seq.plus(packets_of(reth.length, self.mtu));
        ReadJob { first: seq, next: seq, end, reth, repeated }
    }

    #[inline(always)]
    fn in_order<M: Memory + ?Sized>(
        &mut self,
        now: Timestamp,
        packet: &Packet<'_>,
        mem: &mut M,
        sinks: Sinks<'_>,
        counters: &mut QpCounters,
    ) -> Result<(), Refusal> {
        let Sinks { receives, shared, completions } = sinks;
        let opcode = packet.bth.opcode;
        let position = opcode.position().ok_or(INVALID)?;
        // Immediate data and atomics are not supported (IBTA 9.7.4.1.5: invalid request).
        if opcode.has_imm() {
            return Err(INVALID);
        }
        if opcode == Opcode::ReadRequest {
            return self.read(packet, mem, counters);
        }
        let length = self.packet_length(packet, position)?;
        // A message begins where none is under way, and only there.
        let midway = !matches!(self.message, Message::None);
        if midway == position.starts() {
            return Err(INVALID);
        }
        if opcode.is_send() {
            if position.starts() && receives.len() == 0 && !receives.fetch(shared) {
                // Receiver not ready: nothing moves, the peer comes again.
                self.told = true;
                counters.rnr_sent += 1;
                let timer = self.rnr_timer;
                self.replies.nak(Syndrome::RnrNak { timer }, self.expected);
                return Ok(());
            }
            self.send(packet, length, position, mem, receives, completions)?;
        } else if opcode.is_write() {
            self.write(packet, length, position, mem)?;
        } else {
            return Err(INVALID);
        }
        self.expected = self.expected.next();
        let ends = position.ends();
        if ends {
            self.replies.message_done();
        }
        self.replies.packet_taken(now, packet.bth.ack_request, ends, length);
        Ok(())
    }

    /// The payload's length, which its place in the message allows (IBTA 9.7.4.1.6): full packets
    /// first and in the middle, at least a byte at the end of several.
    fn packet_length(&self, packet: &Packet<'_>, position: Position) -> Result<u32, Refusal> {
        let length = u32::try_from(packet.payload.len()).map_err(|_| INVALID)?;
        let fits = match position {
            Position::First | Position::Middle => length == self.mtu,
            Position::Last => (1..=self.mtu).contains(&length),
            Position::Only => length <= self.mtu,
        };
        if fits { Ok(length) } else { Err(INVALID) }
    }

    #[inline(always)]
    fn send<M: Memory + ?Sized>(
        &mut self,
        packet: &Packet<'_>,
        length: u32,
        position: Position,
        mem: &mut M,
        receives: &mut Receives,
        completions: &mut Completions,
    ) -> Result<(), Refusal> {
        let done = match self.message {
            Message::None => 0,
            Message::Send { done } => done,
            Message::Write { .. } => return Err(INVALID),
        };
        let wqe = receives.queue.front().ok_or(INVALID)?;
        if u64::from(done) + u64::from(length) > u64::from(wqe.buffer.len()) {
            // IBTA 9.7.4.1.6, 10.7.3.1: the peer hears of an invalid request, we of a length.
            receives.finish(WcStatus::LocalLength, 0, None, completions);
            return Err(INVALID);
        }
        if wqe.buffer.place(mem, done, packet.payload).is_err() {
            receives.finish(WcStatus::LocalProtection, 0, None, completions);
            return Err(Refusal(NakCode::RemoteOperational));
        }
        let done = done + length;
        if !position.ends() {
            self.message = Message::Send { done };
            return Ok(());
        }
        self.message = Message::None;
        let mut invalidated = None;
        if let Some(ieth) = packet.ext.ieth {
            mem.invalidate(self.domain, ieth.rkey).map_err(|_| ACCESS)?;
            invalidated = Some(ieth.rkey);
        }
        receives.finish(WcStatus::Success, done, invalidated, completions);
        Ok(())
    }

    /// A WRITE's first packet: the whole transfer is checked (IBTA 9.7.4.1.3; an empty one names no
    /// memory).
    fn write_begins<M: Memory + ?Sized>(
        &self,
        reth: Reth,
        mem: &M,
    ) -> Result<Option<MemRange>, Refusal> {
        let length = reth.length;
        if length > MAX_MESSAGE_BYTES {
            return Err(INVALID);
        }
        if length == 0 {
            return Ok(None);
        }
        let address = reth.virtual_address;
        let range = mem.check_remote(self.domain, reth.rkey, address, length, REMOTE_WRITE);
        range.map(Some).map_err(|_: AccessError| ACCESS)
    }

    #[inline(always)]
    fn write<M: Memory + ?Sized>(
        &mut self,
        packet: &Packet<'_>,
        packet_length: u32,
        position: Position,
        mem: &mut M,
    ) -> Result<(), Refusal> {
        let (range, done, length) = match self.message {
            Message::None => {
                let reth = packet.ext.reth.ok_or(INVALID)?;
                (self.write_begins(reth, mem)?, 0, reth.length)
            }
            Message::Write { range, done, length } => (range, done, length),
            Message::Send { .. } => return Err(INVALID),
        };
        let after = done.checked_add(packet_length).ok_or(INVALID)?;
        // The last packet ends the transfer, and no other does.
        if after > length || position.ends() != (after == length) {
            return Err(INVALID);
        }
        if let Some(range) = range {
            mem.place(range, done, packet.payload).map_err(|_| ACCESS)?;
        }
        self.message = if position.ends() {
            Message::None
        } else {
            Message::Write { range, done: after, length }
        };
        Ok(())
    }

    /// A new READ request.
    fn read<M: Memory + ?Sized>(
        &mut self,
        packet: &Packet<'_>,
        mem: &M,
        counters: &mut QpCounters,
    ) -> Result<(), Refusal> {
        let reth = packet.ext.reth.ok_or(INVALID)?;
        let midway = !matches!(self.message, Message::None);
        if midway || reth.length > MAX_MESSAGE_BYTES || !packet.payload.is_empty() {
            return Err(INVALID);
        }
        if reth.length > 0 {
            let address = reth.virtual_address;
            mem.check_remote(self.domain, reth.rkey, address, reth.length, REMOTE_READ)
                .map_err(|_| ACCESS)?;
        }
        let job = self.read_job(self.expected, reth, false);
        if !self.replies.new_read(job, counters) {
            return Err(INVALID);
        }
        self.expected = job.end;
        Ok(())
    }

    /// How far it is.
    pub(super) fn standing(&self, receives: &Receives) -> Standing {
        Standing { newest_taken: self.expected.previous(), receives: receives.len() }
    }
}

//! The responder's sending side: READ data, acknowledges, NAKs, in the order of the requests
//! (IBTA 9.7.5.1).
//!
//! Nothing overtakes READ data: an acknowledge of a later packet would tell the requester that the
//! data is lost. So acknowledges and NAKs wait until no READ is left to answer. Called by the
//! responder and the queue pair.

use core::time::Duration;
use std::collections::VecDeque;

use lariat_wire::rocev2::{Aeth, Credits, Msn, NakCode, Opcode, Reth, Syndrome};

use crate::memory::Memory;
use crate::time::Timestamp;
use crate::transmit::Payload;
use crate::verbs::DomainId;

use super::config::{QpCounters, QpParams};
use super::emit::{Extension, Label, Outbox};
use super::psn::{Seq, bytes_before};
use super::responder::{REMOTE_READ, Refusal};

/// Messages that may gather behind a held acknowledge.
const HELD_MESSAGES: u32 = 32;
/// Bytes that may: less than the window that a sender like ours starts with.
const HELD_BYTES: u32 = 96 << 10;
/// Between congestion notifications.
const CNP_INTERVAL: Duration = Duration::from_micros(50);

/// A READ that is being answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadJob {
    /// Its first answer, the next one to send, one past the last.
    pub(super) first: Seq,
    pub(super) next: Seq,
    pub(super) end: Seq,
    pub(super) reth: Reth,
    /// Answered before: the requester may not wait for it any more.
    pub(super) repeated: bool,
}

/// A NAK to send.
#[derive(Clone, Copy, Debug)]
struct Nak {
    syndrome: Syndrome,
    seq: Seq,
}

/// How far the responder is; acknowledges say it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    /// The newest packet that was taken in order.
    pub(super) newest_taken: Seq,
    /// Receives that are posted.
    pub(super) receives: usize,
}

/// What is to be sent back.
#[derive(Debug)]
pub(super) struct Replies {
    domain: DomainId,
    mtu: u32,
    resources: usize,
    reads: VecDeque<ReadJob>,
    nak: Option<Nak>,
    msn: Msn,
    advertise_credits: bool,
    hold: Duration,
    /// An acknowledge is owed: since some packet asked for it.
    owed: bool,
    due: bool,
    deadline: Timestamp,
    held_messages: u32,
    held_bytes: u32,
    cnp_wanted: bool,
    last_cnp: Option<Timestamp>,
}

impl Replies {
    pub(super) fn new(domain: DomainId, mtu: u32, params: &QpParams) -> Self {
        let resources = usize::from(params.responder_resources);
        Self {
            domain,
            mtu,
            resources,
            reads: VecDeque::with_capacity(resources * 2),
            nak: None,
            msn: Msn::new(0),
            advertise_credits: params.advertise_credits,
            hold: params.ack_hold,
            owed: false,
            due: false,
            deadline: Timestamp::NEVER,
            held_messages: 0,
            held_bytes: 0,
            cnp_wanted: false,
            last_cnp: None,
        }
    }

    /// A message of the peer is complete.
    pub(super) fn message_done(&mut self) {
        self.msn = self.msn.next();
    }

    /// A packet was taken in order: owes an acknowledge, now or a little later.
    #[inline]
    pub(super) fn packet_taken(
        &mut self,
        now: Timestamp,
        ack_request: bool,
        ends: bool,
        bytes: u32,
    ) {
        self.held_messages = self.held_messages.saturating_add(u32::from(ends));
        self.held_bytes = self.held_bytes.saturating_add(bytes);
        if !ack_request {
            return;
        }
        // Asked for in the middle of a message: the peer's window is full.
        if !ends
            || self.hold.is_zero()
            || self.held_messages >= HELD_MESSAGES
            || self.held_bytes >= HELD_BYTES
        {
            self.due = true;
        } else if !self.owed {
            self.deadline = now + self.hold;
        }
        self.owed = true;
    }

    /// A duplicate asked for an acknowledge: the one before was lost.
    pub(super) fn acknowledge_at_once(&mut self) {
        self.owed = true;
        self.due = true;
    }

    /// Whether an acknowledge waits for company.
    pub(super) fn holds_acks(&self) -> bool {
        self.owed && !self.due
    }

    /// Makes the acknowledge due.
    pub(super) fn send_held(&mut self) {
        self.due |= self.owed;
    }

    pub(super) fn handle_timeout(&mut self, now: Timestamp) {
        if self.deadline <= now {
            self.deadline = Timestamp::NEVER;
            self.send_held();
        }
    }

    pub(super) fn next_timeout(&self) -> Timestamp {
        if self.due { Timestamp::NEVER } else { self.deadline }
    }

    /// Everything up to the newest packet is acknowledged.
    fn acknowledged(&mut self) {
        self.owed = false;
        self.due = false;
        self.deadline = Timestamp::NEVER;
        self.held_messages = 0;
        self.held_bytes = 0;
    }

    /// A NAK after which the peer comes again.
    pub(super) fn nak(&mut self, syndrome: Syndrome, seq: Seq) {
        self.nak = Some(Nak { syndrome, seq });
    }

    /// The missing packet came; whether before the NAK went.
    pub(super) fn cancel_nak(&mut self) -> bool {
        self.nak.take().is_some()
    }

    /// The last word of this queue pair: READs under way are dropped.
    pub(super) fn refuse(&mut self, syndrome: Syndrome, seq: Seq) {
        self.reads.clear();
        self.nak(syndrome, seq);
    }

    /// Nothing is to be said any more, but for a refusal.
    pub(super) fn silence(&mut self, keep_nak: bool) {
        self.reads.clear();
        self.acknowledged();
        self.cnp_wanted = false;
        if !keep_nak {
            self.nak = None;
        }
    }

    /// Takes a READ that came for the first time; `false` if the peer exceeds what was negotiated.
    pub(super) fn new_read(&mut self, job: ReadJob, counters: &mut QpCounters) -> bool {
        if self.reads.len() >= self.resources {
            // Repetitions that nobody waits for (any more) make room.
            let Some(stale) = self.reads.iter().position(|job| job.repeated) else { return false };
            self.reads.remove(stale);
            counters.packets_dropped += 1;
        }
        self.reads.push_back(job);
        self.message_done();
        true
    }

    /// Takes a READ that was answered before, or is being answered: it starts (again) in its place.
    pub(super) fn repeat_read(&mut self, job: ReadJob) {
        let same = |known: &ReadJob| known.first == job.first && known.end == job.end;
        if self.reads.iter().any(|known| same(known) && known.next == known.first) {
            return;
        }
        self.reads.retain(|known| known.end <= job.first || job.end <= known.first);
        if self.reads.len() >= self.resources {
            return;
        }
        let place = self.reads.partition_point(|known| known.first < job.first);
        self.reads.insert(place, job);
    }

    /// What the list can hold without allocating.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.reads.capacity()
    }

    /// A packet came with a congestion mark.
    pub(super) fn congestion_marked(&mut self, now: Timestamp) {
        if self.last_cnp.is_none_or(|last| now.since(last) >= CNP_INTERVAL) {
            self.last_cnp = Some(now);
            self.cnp_wanted = true;
        }
    }

    /// Whether READ data is to be sent.
    pub(super) fn has_reads(&self) -> bool {
        !self.reads.is_empty()
    }

    /// Whether something is to be sent now.
    pub(super) fn wants_transmit(&self) -> bool {
        self.due || self.cnp_wanted || self.nak.is_some() || !self.reads.is_empty()
    }

    /// Whether that is a plain acknowledge and nothing else.
    pub(super) fn wants_only_to_acknowledge(&self) -> bool {
        self.due && !self.cnp_wanted && self.nak.is_none() && self.reads.is_empty()
    }

    /// Whether [`Self::transmit_acks`] would send something behind data.
    pub(super) fn owes(&self) -> bool {
        self.owed || self.nak.is_some() || self.cnp_wanted
    }

    fn aeth(&self, receives: usize) -> Aeth {
        let credits = if self.advertise_credits {
            Credits::at_most(u16::try_from(receives).unwrap_or(u16::MAX))
        } else {
            Credits::UNLIMITED
        };
        Aeth { syndrome: Syndrome::Ack { credits }, msn: self.msn }
    }

    /// Sends READ data, `budget` packets at most; returns how many.
    ///
    /// # Errors
    /// The memory is not there any more; the NAK is kept.
    pub(super) fn transmit_reads<M: Memory + ?Sized>(
        &mut self,
        budget: usize,
        standing: Standing,
        mem: &M,
        outbox: &mut Outbox<'_>,
    ) -> (usize, Result<(), Refusal>) {
        let mut sent = 0;
        while sent < budget {
            let Some(mut job) = self.reads.front().copied() else { break };
            let reth = job.reth;
            let range = if reth.length == 0 {
                None
            } else {
                // The key may have been withdrawn since the request came.
                let address = reth.virtual_address;
                match mem.check_remote(self.domain, reth.rkey, address, reth.length, REMOTE_READ) {
                    Ok(range) => Some(range),
                    // Asked for long ago and answered: its owner may have withdrawn the key.
                    Err(_) if job.repeated => {
                        outbox.counters.packets_dropped += 1;
                        self.reads.pop_front();
                        continue;
                    }
                    Err(_) => {
                        self.refuse(Syndrome::Nak(NakCode::RemoteAccess), job.next);
                        return (sent, Err(Refusal(NakCode::RemoteAccess)));
                    }
                }
            };
            let aeth = self.aeth(standing.receives);
            while sent < budget && job.next < job.end {
                let skip = bytes_before(job.next.since(job.first), self.mtu, reth.length);
                let length = self.mtu.min(reth.length - skip);
                let payload = match range {
                    Some(range) => Payload::Memory(range.slice(skip, length), None),
                    None => Payload::Empty,
                };
                let opcode = match (job.next == job.first, job.next.next() == job.end) {
                    (true, true) => Opcode::ReadResponseOnly,
                    (true, false) => Opcode::ReadResponseFirst,
                    (false, true) => Opcode::ReadResponseLast,
                    (false, false) => Opcode::ReadResponseMiddle,
                };
                let label = Label { opcode, psn: job.next.psn(), ack_request: false };
                let extension =
                    if opcode.has_aeth() { Extension::Aeth(aeth) } else { Extension::None };
                outbox.out.push(outbox.peer.packet(label, extension, payload));
                job.next = job.next.next();
                sent += 1;
            }
            if job.next < job.end {
                if let Some(front) = self.reads.front_mut() {
                    *front = job;
                }
            } else {
                self.reads.pop_front();
                if job.end.previous() == standing.newest_taken {
                    // READ data acknowledges all before it.
                    self.acknowledged();
                }
            }
        }
        (sent, Ok(()))
    }

    /// Sends what is owed besides READ data, `budget` packets (of 2) at most. `behind_data`: a held
    /// acknowledge may ride along.
    pub(super) fn transmit_acks(
        &mut self,
        budget: usize,
        behind_data: bool,
        standing: Standing,
        outbox: &mut Outbox<'_>,
    ) -> usize {
        let Outbox { peer, counters, out } = outbox;
        let before = out.len();
        if self.cnp_wanted && budget > 0 {
            self.cnp_wanted = false;
            counters.cnps_sent += 1;
            out.push(peer.congestion_notification());
        }
        if self.reads.is_empty() && out.len() - before < budget {
            if let Some(Nak { syndrome, seq }) = self.nak.take() {
                out.push(peer.acknowledge(seq.psn(), Aeth { syndrome, msn: self.msn }));
                self.acknowledged();
            } else if self.owed && (self.due || behind_data) {
                counters.acks_sent += 1;
                out.push(
                    peer.acknowledge(standing.newest_taken.psn(), self.aeth(standing.receives)),
                );
                self.acknowledged();
            }
        }
        out.len() - before
    }
}

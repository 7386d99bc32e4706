//! The requester's receiving side: acknowledges, NAKs, READ data (IBTA 9.7.5, 9.7.7).
//!
//! Calls the requester; called by the queue pair for every response packet.

use lariat_wire::rocev2::{Aeth, Msn, NakCode, Packet, RnrTimer, Syndrome};

use crate::memory::Memory;
use crate::time::Timestamp;
use crate::verbs::WcStatus;

use super::completions::Completions;
use super::config::{QpCounters, QpFailure};
use super::psn::Seq;
use super::requester::{Fault, Requester};

impl Requester {
    /// Takes an acknowledge or READ data.
    pub(super) fn handle_response<M: Memory + ?Sized>(
        &mut self,
        now: Timestamp,
        packet: &Packet<'_>,
        mem: &mut M,
        completions: &mut Completions,
        counters: &mut QpCounters,
    ) -> Result<(), Fault> {
        let seq = self.unacked.nearest(packet.bth.psn);
        // Answers to packets never sent are ghosts (IBTA 9.7.5.1.2), answers to acknowledged ones
        // come late. A NAK of the next packet to come is neither: it acknowledges all before.
        if seq >= self.newest || seq < self.unacked {
            // An old acknowledge may still bring new credits.
            if seq < self.newest
                && let Some(Aeth { syndrome: Syndrome::Ack { credits }, msn }) = packet.ext.aeth
            {
                self.take_credits(msn, credits.count());
            }
            counters.packets_dropped += 1;
            return Ok(());
        }
        if packet.bth.opcode.is_read_response() {
            if !packet.ext.aeth.is_none_or(|aeth| matches!(aeth.syndrome, Syndrome::Ack { .. })) {
                counters.packets_dropped += 1;
                return Ok(());
            }
            if let Some(Aeth { syndrome: Syndrome::Ack { credits }, msn }) = packet.ext.aeth {
                self.take_credits(msn, credits.count());
            }
            return self.take_read_data(now, seq, packet.payload, mem, completions, counters);
        }
        let Some(aeth) = packet.ext.aeth else {
            counters.packets_dropped += 1;
            return Ok(());
        };
        match aeth.syndrome {
            Syndrome::Ack { credits } => {
                self.take_credits(aeth.msn, credits.count());
                if self.acknowledge(now, seq.next(), completions) < seq.next() {
                    self.go_back(now, counters);
                }
            }
            Syndrome::RnrNak { timer } => {
                return self.not_ready(now, seq, timer, completions, counters);
            }
            Syndrome::Nak(NakCode::PsnSequence) => {
                self.acknowledge(now, seq, completions);
                self.go_back(now, counters);
            }
            Syndrome::Nak(code) => {
                let status = match code {
                    NakCode::InvalidRequest | NakCode::InvalidRd => WcStatus::RemoteInvalidRequest,
                    NakCode::RemoteAccess => WcStatus::RemoteAccess,
                    NakCode::RemoteOperational => WcStatus::RemoteOperation,
                    NakCode::PsnSequence | NakCode::Unknown(_) => {
                        counters.packets_dropped += 1;
                        return Ok(());
                    }
                };
                self.acknowledge(now, seq, completions);
                return Err(Fault { at: seq, status, failure: QpFailure::Refused(code) });
            }
            Syndrome::Reserved(_) => counters.packets_dropped += 1,
        }
        Ok(())
    }

    /// Takes the peer's message count and credits (IBTA 9.7.7.2.5). Counts only move forward.
    fn take_credits(&mut self, msn: Msn, credits: Option<u16>) {
        let known = Msn::new(u32::try_from(self.peer_messages & 0x00ff_ffff).unwrap_or(0));
        let ahead = msn.diff(known);
        let Ok(ahead) = u64::try_from(ahead) else { return };
        self.peer_messages += ahead;
        self.message_limit = credits.map(|credits| {
            let limit = self.peer_messages + u64::from(credits);
            self.message_limit.map_or(limit, |old| old.max(limit))
        });
    }

    /// All before `upto` arrived, if no READ stands between whose data did not: returns how far
    /// the acknowledge reached.
    fn acknowledge(&mut self, now: Timestamp, upto: Seq, completions: &mut Completions) -> Seq {
        let before = self.unacked;
        let (bytes, inflight) = (self.acked_bytes(), self.inflight());
        let mut completed = 0;
        let mut reached = before;
        while let Some(front) = self.queue.front() {
            if reached >= upto || front.is_read() {
                break;
            }
            if front.end > upto {
                reached = upto;
                break;
            }
            reached = front.end;
            front.complete(WcStatus::Success, completions);
            self.queue.pop_front();
            completed += 1;
        }
        if reached != before {
            self.set_unacked(reached);
            self.progressed(now, bytes, inflight, completed);
        }
        reached
    }

    /// `unacked` moved: timers, window and cursor follow.
    fn progressed(
        &mut self,
        now: Timestamp,
        bytes_before: u64,
        inflight_before: u64,
        completed: usize,
    ) {
        self.cursor = self.cursor.saturating_sub(completed);
        if self.next < self.unacked {
            // What was about to be sent again had arrived after all; its request is done or is
            // the first now.
            self.skip_to_unacked();
            self.window.undo_timeout();
        } else if self.unacked >= self.recovery {
            self.window.confirm_timeout();
        }
        // A window that was not used proves nothing about the path.
        if inflight_before * 2 >= self.window.bytes() {
            self.window.grow(self.acked_bytes().saturating_sub(bytes_before));
        }
        if let Some((seq, sent_at)) = self.timed
            && self.unacked > seq
        {
            self.round_trip.sample(now.since(sent_at));
            self.timed = None;
        }
        self.round_trip.progress();
        self.rnr_tries = 0;
        self.progress_at = now;
        if self.is_idle() {
            self.deadline = Timestamp::NEVER;
        } else {
            self.arm(now);
        }
    }

    /// A packet is missing at `unacked`: send again from there, once per gap and round trip.
    fn go_back(&mut self, now: Timestamp, counters: &mut QpCounters) {
        let seq = self.unacked;
        if let Some((gap, acted_at)) = self.gap {
            let passed = now.since(acted_at);
            let told_again = gap == seq && passed < self.round_trip.estimate() * 2;
            // Packets that were on their way when we went back find the next gap. What they miss
            // is on its way again, and an answer to that cannot be here yet.
            let echo = gap < seq && seq < self.next && passed < self.round_trip.no_answer_within();
            if told_again || echo {
                return;
            }
        }
        self.gap = Some((seq, now));
        counters.gaps_told += 1;
        if self.unacked >= self.recovery {
            self.recovery = self.newest;
            self.window.on_loss();
        }
        if self.next > seq {
            self.rewind(seq);
        }
    }

    /// The peer has no receive for the SEND at `seq` (IBTA 9.7.5.2.8).
    fn not_ready(
        &mut self,
        now: Timestamp,
        seq: Seq,
        timer: RnrTimer,
        completions: &mut Completions,
        counters: &mut QpCounters,
    ) -> Result<(), Fault> {
        counters.rnr_received += 1;
        let reached = self.acknowledge(now, seq, completions);
        if reached < seq {
            self.go_back(now, counters);
            return Ok(());
        }
        if self.rnr_until.is_some() {
            return Ok(());
        }
        self.rnr_tries += 1;
        if self.rnr_limit.is_some_and(|limit| self.rnr_tries > limit) {
            return Err(Fault {
                at: seq,
                status: WcStatus::RnrRetryExceeded,
                failure: QpFailure::PeerNotReady,
            });
        }
        self.rnr_until = Some(now + timer.duration());
        // The peer lives; silence is counted from the next try on.
        self.deadline = Timestamp::NEVER;
        self.progress_at = now;
        self.rewind(seq);
        Ok(())
    }

    /// READ data that answers the number `seq`. It also acknowledges everything before.
    fn take_read_data<M: Memory + ?Sized>(
        &mut self,
        now: Timestamp,
        seq: Seq,
        payload: &[u8],
        mem: &mut M,
        completions: &mut Completions,
        counters: &mut QpCounters,
    ) -> Result<(), Fault> {
        if self.acknowledge(now, seq, completions) < seq {
            // Data of an earlier READ is missing: an implied NAK (IBTA 9.7.5.2.7).
            counters.packets_dropped += 1;
            self.go_back(now, counters);
            return Ok(());
        }
        let Some(front) = self.queue.front().filter(|front| front.is_read()) else {
            counters.packets_dropped += 1;
            return Ok(());
        };
        let offset = front.offset(seq, self.mtu);
        let expected = self.mtu.min(front.buffer.len() - offset);
        let local = |status| Fault { at: seq, status, failure: QpFailure::Local(status) };
        if payload.len() != expected as usize {
            return Err(local(WcStatus::LocalLength));
        }
        if front.buffer.place(mem, offset, payload).is_err() {
            return Err(local(WcStatus::LocalProtection));
        }
        let (bytes, inflight) = (self.acked_bytes(), self.inflight());
        let mut completed = 0;
        if seq.next() == front.end {
            front.complete(WcStatus::Success, completions);
            self.queue.pop_front();
            completed = 1;
        }
        self.set_unacked(seq.next());
        while self.reads.front().is_some_and(|read| read.end <= self.unacked) {
            self.reads.pop_front();
        }
        self.progressed(now, bytes, inflight, completed);
        Ok(())
    }
}

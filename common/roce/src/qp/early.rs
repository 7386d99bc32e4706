//! Request packets that came before one that is missing. On a path that reorders, that one is only
//! late: they are kept for a while, and the gap is told (IBTA 9.7.5.2.5) when it has stayed open for
//! too long or too many packets have come behind it.
//!
//! Telling is dear where the peer is Soft-RoCE with a kernel's host on it. It goes back as it should,
//! but also repeats the local work requests in between, and a memory region that is registered a
//! second time is an error that ends the connection.
//!
//! Calls nothing; used by the responder.

use core::time::Duration;
use std::collections::VecDeque;

use lariat_wire::rocev2::{Bth, Ext, Packet};

use crate::time::Timestamp;

use super::psn::Seq;

/// Packets kept, at most.
const MOST: usize = 32;
/// So many behind a gap are no accident any more: what is missing is lost.
const MANY: usize = 16;
/// How far ahead of the missing packet they may be, in sequence numbers; READs take many.
const SPAN: u64 = 1 << 14;
/// How long they are kept once the gap was told, in multiples of the time before.
const AFTERWARDS: u32 = 16;

/// A packet, whole.
#[derive(Debug)]
struct Kept {
    seq: Seq,
    bth: Bth,
    ext: Ext,
    payload: Vec<u8>,
}

/// What came early. Takes up memory only while there is a gap.
#[derive(Debug)]
pub(super) struct Early {
    hold: Duration,
    /// Bytes of payload that a packet may have.
    mtu: usize,
    /// By number, each once.
    kept: VecDeque<Kept>,
    deadline: Timestamp,
}

impl Early {
    /// `hold`: how long a gap may stay open untold; with zero nothing is kept.
    pub(super) fn new(hold: Duration, mtu: usize) -> Self {
        Self { hold, mtu, kept: VecDeque::new(), deadline: Timestamp::NEVER }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Keeps a packet that is ahead of `expected`; `false` if it does not: it is to be dropped.
    pub(super) fn keep(
        &mut self,
        now: Timestamp,
        seq: Seq,
        expected: Seq,
        packet: &Packet<'_>,
    ) -> bool {
        let Packet { bth, ext, payload, .. } = *packet;
        if self.hold.is_zero() || seq.since(expected) > SPAN || payload.len() > self.mtu {
            return false;
        }
        let place = self.kept.partition_point(|kept| kept.seq < seq);
        if let Some(kept) = self.kept.get(place).filter(|kept| kept.seq == seq) {
            if kept.bth.opcode != bth.opcode || kept.ext != ext || kept.payload != payload {
                // One of them is not the peer's. Who knows which: it comes again.
                self.kept.remove(place);
                if self.kept.is_empty() {
                    self.clear();
                }
            }
            return false;
        }
        if self.kept.len() >= MOST {
            return false;
        }
        if self.kept.is_empty() {
            self.deadline = now + self.hold;
        }
        self.kept.insert(place, Kept { seq, bth, ext, payload: payload.to_vec() });
        true
    }

    /// Whether the gap is not to be waited for any longer.
    pub(super) fn is_loss(&self) -> bool {
        self.hold.is_zero() || self.kept.len() >= MANY
    }

    /// The packet of this number, if it is here. Those before it came again meanwhile.
    pub(super) fn take(&mut self, seq: Seq) -> Option<(Bth, Ext, Vec<u8>)> {
        while self.kept.front().is_some_and(|kept| kept.seq < seq) {
            self.kept.pop_front();
        }
        self.kept.front().filter(|kept| kept.seq == seq)?;
        self.kept.pop_front().map(|kept| (kept.bth, kept.ext, kept.payload))
    }

    /// Some were taken, and what is left is behind another gap.
    pub(super) fn wait_anew(&mut self, now: Timestamp) {
        if self.kept.is_empty() {
            self.clear();
        } else {
            self.deadline = now + self.hold;
        }
    }

    /// The gap was told.
    pub(super) fn was_told(&mut self, now: Timestamp) {
        if !self.kept.is_empty() {
            self.deadline = now + self.hold * AFTERWARDS;
        }
    }

    /// Forgets them; the peer sends them again.
    pub(super) fn clear(&mut self) {
        self.kept = VecDeque::new();
        self.deadline = Timestamp::NEVER;
    }

    pub(super) fn deadline(&self) -> Timestamp {
        self.deadline
    }
}

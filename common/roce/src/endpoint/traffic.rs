//! Packets out, timers, completions, events: what the owner of the socket calls.
//!
//! Calls the queue pairs. Nothing here allocates per packet.

use core::net::SocketAddr;

use lariat_wire::rocev2::{Bth, Deth, Ext, Headers, MAX_HEADER, Opcode, QKey, Qpn};

use super::Endpoint;
use super::config::Member;
use super::connection::canonical;
use crate::cm::State;
use crate::memory::Memory;
use crate::qp::{QpFailure, QpState};
use crate::time::Timestamp;
use crate::transmit::{Payload, Transmit};
use crate::verbs::{CmEvent, ConnId, WorkCompletion};

impl Endpoint {
    /// Runs the timers that are due.
    pub fn handle_timeout<M: Memory>(&mut self, now: Timestamp, _memory: &mut M) {
        // Each connection once: one that wants to be called again at once gets its turn later.
        let mut rounds = self.timers.len();
        while rounds > 0
            && let Some(key) = self.timers.due(now)
        {
            rounds -= 1;
            let slot = key as usize;
            let Some(conn) = self.conns.get_mut(slot) else {
                self.timers.set(key, Timestamp::NEVER);
                continue;
            };
            let reaction = conn.exchange.on_timeout(now, &self.config, &mut self.outbox);
            if let Some(qp) = &mut conn.qp
                && qp.next_timeout() <= now
            {
                qp.handle_timeout(now);
            }
            self.apply(now, slot, reaction);
            self.after(now, slot);
        }
    }

    /// The process at an address is known to have ended: its connections end now instead of when
    /// their timers do. `member` says which of its queue pairs are gone (all, of
    /// [`Member::ALONE`]).
    pub fn peer_is_gone(&mut self, now: Timestamp, remote: SocketAddr, member: Member) {
        let remote = canonical(remote);
        let count = u32::from(member.count.max(1));
        for slot in 0..self.conns.capacity() {
            let Some(conn) = self.conns.get_mut(slot) else { continue };
            let its = canonical(conn.exchange.remote()) == remote
                && conn.exchange.remote_qpn().get() % count == u32::from(member.index);
            if its
                && conn.exchange.state() == State::Established
                && let Some(qp) = &mut conn.qp
            {
                qp.fail(now, QpFailure::PeerSilent);
                conn.peer_ended = true;
                self.after(now, slot);
            }
        }
    }

    /// Whether a connection ended by [`Endpoint::peer_is_gone`].
    #[must_use]
    pub fn peer_ended(&self, conn: ConnId) -> bool {
        self.conn(conn).is_ok_and(|conn| conn.peer_ended)
    }

    /// When [`Endpoint::handle_timeout`] wants to be called: [`Timestamp::NEVER`] if not at all.
    #[must_use]
    pub fn next_timeout(&self) -> Timestamp {
        self.timers.next()
    }

    /// Makes acknowledgements that are held back leave with the next [`Endpoint::poll_transmit`]:
    /// for a caller that is going to sleep.
    pub fn send_held_acks(&mut self, now: Timestamp) {
        while let Some(slot) = self.holding.pop() {
            if let Some(conn) = self.conns.get_mut(slot) {
                conn.holding = false;
                if let Some(qp) = &mut conn.qp {
                    qp.send_held_acks(now);
                    if !qp.holds_acks() || qp.wants_transmit() {
                        self.list_ready(slot);
                    }
                }
            }
        }
    }

    /// Appends packets to send, at most `budget`, and returns how many. Packets of one queue pair
    /// come in runs; queue pairs take turns.
    pub fn poll_transmit<M: Memory>(
        &mut self,
        now: Timestamp,
        budget: usize,
        memory: &M,
        out: &mut Vec<Transmit>,
    ) -> usize {
        self.transmit(now, budget, true, memory, out)
    }

    /// As [`Endpoint::poll_transmit`], but acknowledgements that are due and would go alone stay
    /// for the next call of that: for a caller whose user is about to say what else there is to
    /// send.
    pub fn poll_transmit_but_acks<M: Memory>(
        &mut self,
        now: Timestamp,
        budget: usize,
        memory: &M,
        out: &mut Vec<Transmit>,
    ) -> usize {
        self.transmit(now, budget, false, memory, out)
    }

    fn transmit<M: Memory>(
        &mut self,
        now: Timestamp,
        budget: usize,
        lone_acks: bool,
        memory: &M,
        out: &mut Vec<Transmit>,
    ) -> usize {
        let mut sent = 0;
        // How many in the list were passed over.
        let mut kept = 0;
        while sent < budget
            && let Some((remote, mad)) = self.outbox.pop()
        {
            out.push(self.datagram(remote, mad));
            sent += 1;
        }
        while sent < budget
            && kept < self.ready.len()
            && let Some(slot) = self.ready.pop_front()
        {
            let Some(conn) = self.conns.get_mut(slot) else { continue };
            conn.ready = false;
            let Some(qp) = &mut conn.qp else { continue };
            if !lone_acks && qp.wants_only_to_acknowledge() {
                conn.ready = true;
                self.ready.push_back(slot);
                kept += 1;
                continue;
            }
            let share = self.config.transmit_quantum.clamp(1, budget - sent);
            let given = qp.poll_transmit(now, share, memory, out);
            sent += given;
            self.after(now, slot);
            if given == 0
                && let Some(conn) = self.conns.get_mut(slot)
                && conn.ready
            {
                // It wants to and does not: not before something happens to it.
                conn.ready = false;
                self.ready.pop_back();
            }
        }
        while sent < budget
            && let Some((remote, mad)) = self.outbox.pop_last()
        {
            out.push(self.datagram(remote, mad));
            sent += 1;
        }
        self.counters.packets_sent += sent as u64;
        sent
    }

    /// A message of the connection manager as a packet (IBTA 16.7, A17.4).
    fn datagram(&mut self, remote: SocketAddr, mad: Box<[u8; 256]>) -> Transmit {
        self.counters.cm_sent += 1;
        self.datagram_psn = self.datagram_psn.next();
        let deth = Deth { qkey: QKey::CM, source_qp: Qpn::CM };
        let headers = Headers {
            bth: Bth::new(Opcode::UdSendOnly, Qpn::CM, self.datagram_psn),
            ext: Ext { deth: Some(deth), ..Ext::default() },
        };
        let mut bytes = [0; MAX_HEADER];
        let header_len = headers.emit(&mut bytes);
        Transmit {
            remote,
            dest_qp: Qpn::CM,
            headers: bytes,
            header_len: u8::try_from(header_len).unwrap_or(0),
            payload: Payload::Mad(mad),
            pad: 0,
        }
    }

    /// Appends completions, at most `budget`, and returns how many. Those of one queue are in
    /// order; queue pairs take turns.
    pub fn poll_completions(&mut self, budget: usize, out: &mut Vec<WorkCompletion>) -> usize {
        let mut taken = self.shared.take_returned(budget, out);
        while let Some(slot) = self.completing.pop_front() {
            let Some(conn) = self.conns.get_mut(slot) else { continue };
            conn.completing = false;
            let Some(qp) = &mut conn.qp else { continue };
            let start = out.len();
            taken += qp.poll_completions(budget - taken, out);
            if let Some(shared) = qp.shared_receive() {
                self.shared.polled(shared, out.get(start..).unwrap_or_default());
            }
            if taken == budget {
                conn.completing = true;
                self.completing.push_front(slot);
                break;
            }
        }
        taken
    }

    /// Appends what happened to connections. [`CmEvent::Disconnected`] is held back until the
    /// completions of its connection have been taken: call [`Endpoint::poll_completions`] first.
    pub fn poll_events(&mut self, out: &mut Vec<CmEvent>) {
        while let Some(event) = self.events.front() {
            if let CmEvent::Disconnected { conn, .. } = event
                && self.conn(*conn).is_ok_and(|entry| entry.completing)
            {
                return;
            }
            out.extend(self.events.pop_front());
        }
    }

    /// After anything that a queue pair may have failed by.
    pub(super) fn after(&mut self, now: Timestamp, slot: usize) {
        self.touch(slot);
        if let Some(conn) = self.conns.get(slot)
            && !conn.told_end
            && let Some(qp) = &conn.qp
            && qp.state() == QpState::Error
            && let Some(failure) = qp.failure()
        {
            self.on_qp_failure(now, slot, failure);
        }
    }

    /// Lists a connection under what its queue pair wants, and sets its timer.
    pub(super) fn touch(&mut self, slot: usize) {
        let Some(conn) = self.conns.get_mut(slot) else { return };
        let mut deadline = conn.exchange.next_timeout();
        if let Some(qp) = &conn.qp {
            deadline = deadline.min(qp.next_timeout());
            if !conn.completing && qp.has_completions() {
                conn.completing = true;
                self.completing.push_back(slot);
            }
            if !conn.holding && qp.holds_acks() {
                conn.holding = true;
                self.holding.push(slot);
            }
            if !conn.ready && qp.wants_transmit() {
                conn.ready = true;
                self.ready.push_back(slot);
            }
        }
        self.timers.set(u32::try_from(slot).unwrap_or(u32::MAX), deadline);
    }

    fn list_ready(&mut self, slot: usize) {
        if let Some(conn) = self.conns.get_mut(slot)
            && !conn.ready
        {
            conn.ready = true;
            self.ready.push_back(slot);
        }
    }
}

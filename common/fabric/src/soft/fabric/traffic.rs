//! Packets in and out of all ports, and what a poll hands out. Called by the verbs in `fabric`; calls
//! the endpoints and the wires. Nothing here allocates per packet.

use lariat_roce::time::Timestamp;
use lariat_roce::verbs::{CmEvent, ConnId, WcStatus, WorkCompletion};
use lariat_wire::rocev2::Packet;

use super::{Port, SoftFabric, parts, tagged};
use crate::fabric::Fabric;
use crate::soft::network::{Forwarded, Network, Wire};
use crate::soft::steering::member_of;

/// Packets taken from an endpoint at a time.
pub(super) const TRANSMIT_BATCH: usize = 256;
/// Batches of an address at a time, of which there are two in a turn. READ data is sent as it was
/// asked for, up to gigabytes; what has come in meanwhile must not wait for the end of it.
const TRANSMIT_ROUNDS: usize = 8;
/// Full rounds of receiving in one poll.
const RECEIVE_ROUNDS: usize = 4;

/// Which acknowledgements to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Acks {
    /// All that are due.
    All,
    /// Those that ride behind data.
    WithData,
}

impl<N: Network> SoftFabric<N> {
    /// Takes what has arrived.
    fn receive(&mut self, now: Timestamp) {
        let Self { network, ports, regions, wire_counters, .. } = self;
        let member = network.member();
        for Port { endpoint, wire, .. } in ports.iter_mut() {
            let local = wire.local();
            let mut arrivals = endpoint.arrivals(now);
            for _ in 0..RECEIVE_ROUNDS {
                let more = wire.receive(now, wire_counters, |arrival| {
                    if member.count > 1 {
                        let owner = member_of(arrival.packet, member.count);
                        if owner != member.index {
                            let (source, congested) = (arrival.source, arrival.congested);
                            let datagram = arrival.datagram.into();
                            let packet = Forwarded { local, source, congested, datagram };
                            network.forward(owner, packet);
                            return;
                        }
                    }
                    let (source, congested) = (arrival.source, arrival.congested);
                    arrivals.packet(source, arrival.packet, congested, regions);
                });
                if !more {
                    break;
                }
            }
        }
        if member.count > 1 {
            while let Some(packet) = network.take_forwarded() {
                let port = ports.iter_mut().find(|port| port.wire.local() == packet.local);
                if let Some((port, parsed)) = port.zip(Packet::parse(&packet.datagram).ok()) {
                    let (source, congested) = (packet.source, packet.congested);
                    port.endpoint.handle_packet(now, source, &parsed, congested, regions);
                }
            }
        }
    }

    /// Sends what the endpoints have to send, or a turn's share of it.
    #[inline]
    pub(super) fn transmit(&mut self, now: Timestamp, acks: Acks) {
        let Self { ports, regions, wire_counters, .. } = self;
        for Port { endpoint, wire, outgoing } in ports.iter_mut() {
            for _ in 0..TRANSMIT_ROUNDS {
                if outgoing.len() < TRANSMIT_BATCH {
                    let budget = TRANSMIT_BATCH - outgoing.len();
                    match acks {
                        Acks::All => endpoint.poll_transmit(now, budget, regions, outgoing),
                        Acks::WithData => {
                            endpoint.poll_transmit_but_acks(now, budget, regions, outgoing)
                        }
                    };
                }
                if outgoing.is_empty() {
                    break;
                }
                let sent = wire.transmit(now, outgoing, regions, wire_counters);
                if sent < outgoing.len() {
                    outgoing.drain(..sent);
                    break;
                }
                outgoing.clear();
            }
        }
    }

    /// Looks after requests to connect that nobody answers.
    #[cold]
    fn knock(&mut self, now: Timestamp) {
        let Self { network, ports, knocks, .. } = self;
        loop {
            let found = |conn: ConnId| {
                let (place, inner) = parts(conn)?;
                Some((ports.get(place)?, inner))
            };
            let waits = |conn| {
                found(conn).is_some_and(|(port, inner)| port.endpoint.awaits_first_answer(inner))
            };
            let open = |conn| {
                let (port, inner) = found(conn)?;
                network.door(port.wire.local(), port.endpoint.remote(inner).ok()?)
            };
            let Some((conn, errno)) = knocks.turn(now, waits, open) else { break };
            if let Some((place, inner)) = parts(conn)
                && let Some(port) = ports.get_mut(place)
            {
                port.endpoint.give_up(now, inner, errno);
            }
        }
    }

    /// Takes what has arrived, and hands out what has ended and happened.
    pub(super) fn turn(
        &mut self,
        now: Timestamp,
        budget: usize,
        completions: &mut Vec<WorkCompletion>,
        events: &mut Vec<CmEvent>,
    ) {
        // What the last poll left and no flush took since: acknowledgements go alone only if the
        // caller had nothing to send that they could ride behind.
        self.transmit(now, Acks::All);
        self.receive(now);
        let Self { ports, regions, .. } = self;
        for port in ports.iter_mut() {
            while let Some(lost) = port.wire.take_lost() {
                port.endpoint.peer_is_gone(now, lost.address, lost.member);
            }
            if port.endpoint.next_timeout() <= now {
                port.endpoint.handle_timeout(now, regions);
            }
        }
        if self.knocks.next() <= now {
            self.knock(now);
        }
        self.transmit(now, Acks::WithData);
        let mut left = budget;
        let first = self.first_port;
        self.first_port = (first + 1).checked_rem(self.ports.len()).unwrap_or(0);
        for index in (first..self.ports.len()).chain(0..first) {
            let Some(port) = self.ports.get_mut(index) else { break };
            let start = completions.len();
            left = left.saturating_sub(port.endpoint.poll_completions(left, completions));
            let failed = |done: &WorkCompletion| done.status != WcStatus::Success;
            if !port.outgoing.is_empty() && completions.iter().skip(start).any(failed) {
                // The memory of failed requests is the user's again: their packets, if they found
                // no room yet, must not leave with what it holds by then. Others are sent again.
                port.outgoing.clear();
            }
            if index != 0 {
                for completion in completions.iter_mut().skip(start) {
                    completion.conn = tagged(index, completion.conn);
                }
            }
            let start = events.len();
            port.endpoint.poll_events(events);
            let mut place = start;
            while let Some(event) = events.get(place).copied() {
                match self.own_event(index, event) {
                    Some(event) => {
                        if let Some(slot) = events.get_mut(place) {
                            *slot = event;
                        }
                        place += 1;
                    }
                    // A request to a listener that is closed by now.
                    None => {
                        events.remove(place);
                        if let CmEvent::ConnectRequest { conn, .. } = event {
                            self.destroy(now, tagged(index, conn));
                        }
                    }
                }
            }
        }
    }
}

//! Packets that arrive together. Those of one connection come in runs: it is looked up once for a
//! run, and what it wants after that is worked out once.
//!
//! Made by the owner of the socket; calls the queue pairs and, for queue pair 1, `messages`.

use core::net::SocketAddr;

use lariat_wire::rocev2::{PKey, Packet, Qpn};

use super::Endpoint;
use super::connection::canonical;
use crate::cm::Reaction;
use crate::memory::Memory;
use crate::time::Timestamp;

/// Takes packets that arrive together. The endpoint is up to date when this is dropped.
#[derive(Debug)]
pub struct Arrivals<'a> {
    endpoint: &'a mut Endpoint,
    now: Timestamp,
    run: Option<Run>,
}

/// The last packets: where they came from, whose they were.
#[derive(Clone, Copy, Debug)]
struct Run {
    source: SocketAddr,
    qpn: Qpn,
    slot: usize,
}

impl Endpoint {
    /// Begins to take packets that arrive together.
    pub fn arrivals(&mut self, now: Timestamp) -> Arrivals<'_> {
        Arrivals { endpoint: self, now, run: None }
    }

    /// Takes a packet that arrived alone; see [`Arrivals::packet`].
    pub fn handle_packet<M: Memory>(
        &mut self,
        now: Timestamp,
        source: SocketAddr,
        packet: &Packet<'_>,
        congestion_mark: bool,
        memory: &mut M,
    ) {
        self.arrivals(now).packet(source, packet, congestion_mark, memory);
    }

    /// The connection that a packet from `source` to a queue pair of ours belongs to.
    fn receiver(&mut self, source: SocketAddr, qpn: Qpn) -> Option<usize> {
        let found = self.numbers.slot_of_qpn(qpn).and_then(|slot| {
            let conn = self.conns.get(slot)?;
            (conn.exchange.local().qpn == qpn && conn.qp.is_some()).then_some((slot, conn))
        });
        let Some((slot, conn)) = found else {
            self.counters.unknown_queue_pair += 1;
            return None;
        };
        if conn.exchange.remote().ip() != canonical(source).ip() {
            self.counters.wrong_peer += 1;
            return None;
        }
        Some(slot)
    }
}

impl Arrivals<'_> {
    /// Takes a packet that arrived from `source` with a right ICRC. `congestion_mark`: its IP
    /// header said CE (congestion experienced).
    pub fn packet<M: Memory>(
        &mut self,
        source: SocketAddr,
        packet: &Packet<'_>,
        congestion_mark: bool,
        memory: &mut M,
    ) {
        self.endpoint.counters.packets_received += 1;
        let qpn = packet.bth.dest_qp;
        let slot = match self.run {
            Some(run) if run.qpn == qpn && run.source == source => run.slot,
            _ => {
                self.end_run();
                if qpn == Qpn::CM {
                    self.endpoint.handle_datagram(self.now, source, packet);
                    return;
                }
                let Some(slot) = self.endpoint.receiver(source, qpn) else { return };
                slot
            }
        };
        if !packet.bth.pkey.matches(PKey::DEFAULT) {
            self.endpoint.counters.bad_pkey += 1;
            return;
        }
        if self.run.is_none() {
            self.run = Some(Run { source, qpn, slot });
            self.let_the_peer_in(slot);
        }
        let Endpoint { conns, shared, .. } = &mut *self.endpoint;
        if let Some(qp) = conns.get_mut(slot).and_then(|conn| conn.qp.as_mut()) {
            let shared = qp.shared_receive().and_then(|id| shared.get_mut(id));
            qp.handle_packet(self.now, packet, congestion_mark, memory, shared);
        }
    }

    /// The peer would not send without our REP: a packet is as good as the RTU.
    fn let_the_peer_in(&mut self, slot: usize) {
        if let Some(conn) = self.endpoint.conns.get_mut(slot)
            && conn.exchange.state().is_half_open()
        {
            let reaction = conn.exchange.on_data();
            if reaction != Reaction::None {
                self.endpoint.apply(self.now, slot, reaction);
            }
        }
    }

    fn end_run(&mut self) {
        if let Some(run) = self.run.take() {
            self.endpoint.after(self.now, run.slot);
        }
    }
}

impl Drop for Arrivals<'_> {
    fn drop(&mut self) {
        self.end_run();
    }
}

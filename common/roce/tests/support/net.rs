//! A network of datagrams, with faults: real bytes, ICRC included.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::SocketAddr;
use std::time::Duration;

use lariat_roce::time::Timestamp;
use lariat_roce::transmit::{Payload, Transmit};
use lariat_wire::rocev2::{Flow, FlowSeed, icrc};

use super::memory::TestMemory;
use super::rng::Rng;

/// What goes wrong, in thousandths of the packets.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub loss: u64,
    pub duplication: u64,
    pub corruption: u64,
    pub reordering: u64,
    pub congestion_marks: u64,
    /// Delay of every packet, and by how much it varies, in microseconds.
    pub delay: u64,
    pub jitter: u64,
}

/// A datagram on its way.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Datagram {
    pub from: SocketAddr,
    pub to: SocketAddr,
    pub bytes: Vec<u8>,
    pub congestion_mark: bool,
}

/// The network.
pub struct Network {
    pub faults: Faults,
    rng: Rng,
    queue: BinaryHeap<Reverse<(Timestamp, u64, Datagram)>>,
    order: u64,
    /// When the last packet of a direction arrives: without reordering none overtakes it.
    last: BTreeMap<(SocketAddr, SocketAddr), Timestamp>,
    /// Directions that are cut, and until when.
    cuts: BTreeMap<(SocketAddr, SocketAddr), Timestamp>,
    pub delivered: u64,
    pub dropped: u64,
}

impl Network {
    pub fn new(faults: Faults, rng: Rng) -> Self {
        Self {
            faults,
            rng,
            queue: BinaryHeap::new(),
            order: 0,
            last: BTreeMap::new(),
            cuts: BTreeMap::new(),
            delivered: 0,
            dropped: 0,
        }
    }

    /// Nothing passes from `from` to `to` until then.
    pub fn cut(&mut self, from: SocketAddr, to: SocketAddr, until: Timestamp) {
        self.cuts.insert((from, to), until);
    }

    /// Puts a packet on the wire.
    pub fn send(
        &mut self,
        now: Timestamp,
        from: SocketAddr,
        packet: &Transmit,
        memory: &TestMemory,
    ) {
        let datagram = Datagram {
            from,
            to: packet.remote,
            bytes: assemble(from, packet, memory),
            congestion_mark: false,
        };
        if self.rng.permille(self.faults.duplication) {
            self.enqueue(now, datagram.clone());
        }
        self.enqueue(now, datagram);
    }

    /// Puts bytes on the wire.
    pub fn enqueue(&mut self, now: Timestamp, mut datagram: Datagram) {
        let direction = (datagram.from, datagram.to);
        let cut = self.cuts.get(&direction).is_some_and(|until| now < *until);
        if cut || self.rng.permille(self.faults.loss) {
            self.dropped += 1;
            return;
        }
        if self.rng.permille(self.faults.corruption) {
            let bit = self.rng.below(datagram.bytes.len() as u64 * 8);
            // Byte 4 is what the ICRC leaves out (it covers no more than our headers do).
            let byte = usize::try_from(bit / 8).unwrap();
            let byte = if byte == 4 { 5 } else { byte };
            datagram.bytes[byte] ^= 1 << (bit % 8);
        }
        datagram.congestion_mark = self.rng.permille(self.faults.congestion_marks);
        let mut at =
            now + Duration::from_micros(self.faults.delay + self.rng.below(self.faults.jitter + 1));
        if self.rng.permille(self.faults.reordering) {
            at += Duration::from_micros(self.rng.below(self.faults.delay * 4 + 20));
        } else {
            let last = self.last.entry(direction).or_default();
            at = at.max(*last);
            *last = at;
        }
        self.order += 1;
        self.queue.push(Reverse((at, self.order, datagram)));
    }

    /// When the next datagram arrives.
    pub fn next(&self) -> Timestamp {
        self.queue.peek().map_or(Timestamp::NEVER, |Reverse((at, _, _))| *at)
    }

    /// The next datagram that has arrived by now, if its ICRC is right.
    pub fn receive(&mut self, now: Timestamp) -> Option<Datagram> {
        while self.next() <= now {
            let Reverse((_, _, datagram)) = self.queue.pop()?;
            let flow = Flow::new(datagram.from, datagram.to).map(|flow| FlowSeed::new(&flow));
            if flow.is_some_and(|flow| icrc::verify_with_id(&flow, 0, &datagram.bytes)) {
                self.delivered += 1;
                return Some(datagram);
            }
            self.dropped += 1;
        }
        None
    }
}

/// The bytes of a packet, as its sender's socket would send them.
pub fn assemble(from: SocketAddr, packet: &Transmit, memory: &TestMemory) -> Vec<u8> {
    let headers = &packet.headers[..usize::from(packet.header_len)];
    let (first, second): (&[u8], &[u8]) = match &packet.payload {
        Payload::Empty => (&[], &[]),
        Payload::Memory(first, second) => {
            (memory.range(*first), second.map_or(&[][..], |second| memory.range(second)))
        }
        Payload::Mad(mad) => (mad.as_slice(), &[]),
    };
    let flow = FlowSeed::new(&Flow::new(from, packet.remote).unwrap());
    let icrc = icrc::compute(&flow, 0, headers, &[first, second], packet.pad);
    let mut bytes = Vec::with_capacity(packet.datagram_len());
    bytes.extend_from_slice(headers);
    bytes.extend_from_slice(first);
    bytes.extend_from_slice(second);
    bytes.extend_from_slice(&[0; 3][..usize::from(packet.pad)]);
    bytes.extend_from_slice(&icrc);
    assert_eq!(bytes.len(), packet.datagram_len());
    bytes
}

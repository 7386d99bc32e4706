//! What the soft provider's wire can carry, without protocol: the limit of everything above it.
//!
//! Two threads on two cores exchange packets in the shape of reads: capsules out, one 4 KiB WRITE
//! and one response SEND back for each, with a window of so many. One 4 KiB copy at the receiver.
//!
//! `cargo run --release -p lariat-fabric --example wire_limit -- [SECONDS]`
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a measurement, run by hand")]

use core::net::SocketAddr;
use core::time::Duration;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use lariat_fabric::Timestamp;
use lariat_fabric::memory::Memory;
use lariat_fabric::random::Random;
use lariat_fabric::regions::RegionTable;
use lariat_fabric::soft::{Network, SoftConfig, UdpWire, Wire, WireCounters, udp};
use lariat_fabric::verbs::{Access, RegionId};
use lariat_roce::memory::{MemRange, Memory as _};
use lariat_roce::transmit::{Payload, Transmit};
use lariat_wire::rocev2::{Bth, Ext, Headers, MAX_HEADER, Opcode, Psn, Qpn, Reth, Rkey};

const BLOCK: u32 = 4096;
const SLOTS: u64 = 256;

struct Side {
    wire: UdpWire,
    regions: RegionTable,
    region: RegionId,
    counters: WireCounters,
}

fn side(address: &str) -> Side {
    let mut network = udp::open_group(1, &SoftConfig::default()).unwrap().pop().unwrap();
    let wire = network.open_listening(address.parse().unwrap()).unwrap();
    let mut regions = RegionTable::new(Random::system());
    let domain = regions.open_domain().unwrap();
    let memory = Memory::allocate(1 << 20).unwrap();
    memory.zero(0, 1 << 20).unwrap();
    let region = regions.register(domain, memory, Access::LOCAL).unwrap();
    Side { wire, regions, region, counters: WireCounters::default() }
}

fn packet(remote: SocketAddr, opcode: Opcode, payload: MemRange) -> Transmit {
    let mut ext = Ext::default();
    if opcode.has_reth() {
        ext.reth = Some(Reth { virtual_address: 0, rkey: Rkey(1), length: payload.length });
    }
    let mut headers = [0; MAX_HEADER];
    let header = Headers { bth: Bth::new(opcode, Qpn::new(5), Psn::new(0)), ext };
    let header_len = u8::try_from(header.emit(&mut headers)).unwrap();
    let payload = Payload::Memory(payload, None);
    Transmit { remote, dest_qp: Qpn::new(5), headers, header_len, payload, pad: 0 }
}

fn pin(core: usize) {
    let mut set = nix::sched::CpuSet::new();
    let _ = set.set(core);
    let _ = nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &set);
}

impl Side {
    fn range(&self, slot: u64, length: u32) -> MemRange {
        MemRange { region: self.region, offset: slot % SLOTS * u64::from(BLOCK), length }
    }

    fn send(&mut self, out: &mut Vec<Transmit>) {
        let sent = self.wire.transmit(Timestamp::ZERO, out, &self.regions, &mut self.counters);
        assert_eq!(sent, out.len());
        out.clear();
    }

    fn receive(&mut self) -> u64 {
        let (mut sends, mut slot) = (0, 0);
        let (region, regions) = (self.region, &mut self.regions);
        self.wire.receive(Timestamp::ZERO, &mut self.counters, |arrival| {
            if arrival.packet.bth.opcode == Opcode::WriteOnly {
                let offset = slot % SLOTS * u64::from(BLOCK);
                let range = MemRange { region, offset, length: BLOCK };
                regions.place(range, 0, arrival.packet.payload).unwrap();
                slot += 1;
            } else {
                sends += 1;
            }
        });
        sends
    }
}

fn serve(mut side: Side, peer: SocketAddr, stop: &AtomicBool) {
    pin(0);
    let mut out = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let requests = side.receive();
        for slot in 0..requests {
            out.push(packet(peer, Opcode::WriteOnly, side.range(slot, BLOCK)));
        }
        for slot in 0..requests {
            out.push(packet(peer, Opcode::SendOnly, side.range(slot, 16)));
        }
        if !out.is_empty() {
            side.send(&mut out);
        }
    }
}

fn main() {
    let seconds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(2);
    for (number, depth) in [1_u64, 8, 32, 128].into_iter().enumerate() {
        let target = side(&format!("127.91.{number}.1"));
        let mut host = side(&format!("127.91.{number}.2"));
        let (there, here) = (target.wire.local(), host.wire.local());
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        let server = std::thread::spawn(move || serve(target, here, &flag));
        pin(1);
        let mut out = Vec::new();
        let (mut pending, mut done) = (0, 0);
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(seconds) {
            for slot in pending..depth {
                out.push(packet(there, Opcode::SendOnly, host.range(slot, 64)));
            }
            pending = depth;
            if !out.is_empty() {
                host.send(&mut out);
            }
            let answered = host.receive();
            pending -= answered;
            done += answered;
        }
        let elapsed = start.elapsed().as_secs_f64();
        stop.store(true, Ordering::Relaxed);
        server.join().unwrap();
        let rate = done as f64 / elapsed;
        println!(
            "depth {depth:3}: {:7.0} k/s, {:6.1} us mean; {:.1} packets a send call, {:.1} a receive call",
            rate / 1e3,
            depth as f64 / rate * 1e6,
            host.counters.packets_sent as f64 / host.counters.send_calls as f64,
            host.counters.packets_received as f64 / host.counters.receive_calls as f64,
        );
    }
}

//! Datagrams that nobody of ours sent: noise, cut-off packets, and packets whose headers and checksum
//! are right while their contents are nonsense. Called by `world`.

use core::net::SocketAddr;

use lariat_fabric::sim::SimNet;
use lariat_wire::rocev2::{Bth, Opcode, Psn, Qpn, UDP_PORT, icrc};

use super::plan::{host_ip, hostile_ip, reactor_ip};
use super::random::Rng;
use super::trace::Trace;

/// Sends one, from somewhere to somewhere.
pub(super) fn send(rng: &mut Rng, net: &SimNet, reactors: usize, hosts: usize, trace: &mut Trace) {
    let address = |rng: &mut Rng| {
        let ip = match rng.below(3) {
            0 => reactor_ip(rng.index(reactors)),
            1 => host_ip(rng.index(hosts)),
            _ => hostile_ip(),
        };
        SocketAddr::new(ip, UDP_PORT)
    };
    let (source, destination) = (address(rng), address(rng));
    let mut bytes = vec![0; rng.index(300)];
    rng.fill(&mut bytes);
    match rng.below(4) {
        0 => trace.count("garbage: random bytes"),
        1 => {
            bytes.truncate(rng.index(20));
            trace.count("garbage: short");
        }
        kind => {
            // A base header that is right, and a checksum too: only the contents are nonsense.
            let qpn = match rng.below(3) {
                0 => Qpn::new(1),
                _ => Qpn::new(u32::try_from(rng.below(1 << 24)).unwrap_or(0)),
            };
            let opcode = Opcode::from(if qpn == Qpn::new(1) {
                0x64
            } else {
                u8::try_from(rng.below(0x20)).unwrap_or(0)
            });
            let psn = Psn::new(u32::try_from(rng.below(1 << 24)).unwrap_or(0));
            let mut datagram = Bth::new(opcode, qpn, psn).to_bytes().to_vec();
            bytes.truncate(bytes.len() & !3);
            if qpn == Qpn::new(1) {
                bytes.resize(8 + 256, 0);
                // A datagram header and a MAD of the connection manager.
                bytes[..8].copy_from_slice(&[0x80, 1, 0, 0, 0, 0, 0, 1]);
                bytes[8..12].copy_from_slice(&[1, 7, 2, 3]);
                bytes[12..24].fill(0);
                let attribute = u8::try_from(rng.range(0x10, 0x16)).unwrap_or(0x10);
                bytes[24..28].copy_from_slice(&[0, attribute, 0, 0]);
                trace.count("garbage: connection manager's message");
            } else {
                trace.count("garbage: stray packet");
            }
            datagram.extend_from_slice(&bytes);
            if let Some(flow) = icrc::Flow::new(source, destination) {
                let length = datagram.len() + 4;
                let crc = icrc::FlowSeed::new(&flow).seed(length, 0).over(&datagram);
                datagram.extend_from_slice(&crc);
            }
            if kind == 2 {
                let last = datagram.len() - 1;
                datagram[last] ^= 0x55;
            }
            bytes = datagram;
        }
    }
    net.inject(source, destination, &bytes);
}

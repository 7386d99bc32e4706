//! Every NVMe capsule and every Connect handshake of a real peer becomes a typed
//! value, and comes out of it as the same bytes again.

use std::path::Path;

use lariat_wire::nvme::{
    AdminCommand, COMMAND_BYTES, COMPLETION_BYTES, Command, Completion, ConnectData,
    FabricsCommand, IoCommand, Qid, Sgl,
};
use lariat_wire::rdma_cm::{ConnectAccept, ConnectRequest};

const ENHANCED_PACKET: u32 = 6;
const UDP_PORT: [u8; 2] = 4791u16.to_be_bytes();
const BTH: usize = 12;
const ICRC: usize = 4;

/// The RoCEv2 packets of a little-endian pcapng file of Ethernet frames, from
/// BTH to before the ICRC.
fn packets(file: &[u8]) -> Vec<&[u8]> {
    let size = |at: usize| {
        let bytes = file[at..at + 4].try_into().expect("four bytes");
        usize::try_from(u32::from_le_bytes(bytes)).expect("a size")
    };
    let mut packets = Vec::new();
    let mut at = 0;
    while at < file.len() {
        if file[at..at + 4] == ENHANCED_PACKET.to_le_bytes() {
            let frame = &file[at + 28..at + 28 + size(at + 20)];
            let udp = match frame[12..14] {
                [8, 0] if frame[23] == 17 => &frame[34..],
                [0x86, 0xdd] if frame[20] == 17 => &frame[54..],
                _ => &[],
            };
            if udp.get(2..4) == Some(&UDP_PORT) {
                packets.push(&udp[8..udp.len() - ICRC]);
            }
        }
        at += size(at + 4);
    }
    packets
}

#[derive(Default, PartialEq, Debug)]
struct Seen {
    fabrics: usize,
    admin: usize,
    io: usize,
    completions: usize,
    connect_data: usize,
    requests: usize,
    accepts: usize,
}

fn capsule(bytes: &[u8; COMMAND_BYTES], seen: &mut Seen) {
    let raw = Command::from_bytes(bytes);
    let cid = raw.command_id();
    let again = if raw.is_fabrics() {
        seen.fabrics += 1;
        FabricsCommand::parse(&raw).expect("a Fabrics command").to_command(cid)
    } else if raw.nsid.get() == 0 {
        seen.admin += 1;
        AdminCommand::parse(&raw).expect("an admin command").to_command(cid)
    } else {
        seen.io += 1;
        let command = IoCommand::parse(&raw).expect("an I/O command");
        assert!(!matches!(command, IoCommand::Unsupported(_)), "{command:?}");
        command.to_command(cid).expect("counts that came from the wire")
    };
    let sgl = raw.sgl();
    assert!(!matches!(sgl, Sgl::Unknown { .. } | Sgl::DataBlockAddress { .. }), "{sgl:?}");
    assert_eq!(&again.with_sgl(sgl).to_bytes(), bytes);
}

fn completion(bytes: &[u8; COMPLETION_BYTES], seen: &mut Seen) {
    let completion = Completion::from_bytes(bytes);
    assert!(completion.status().is_success(), "{}", completion.status());
    assert_eq!(&completion.to_bytes(), bytes);
    seen.completions += 1;
}

fn connect_data(bytes: &[u8; 1024], seen: &mut Seen) {
    let data = ConnectData::from_bytes(bytes);
    let (subsystem, host) = (data.subsystem_nqn(), data.host_nqn());
    let (subsystem, host) = (subsystem.expect("a name"), host.expect("a name"));
    let built = ConnectData::new(data.host(), data.controller(), &subsystem, &host);
    assert_eq!(built.as_bytes(), bytes);
    seen.connect_data += 1;
}

/// Connection manager messages: the NVMe part follows the 36-byte IP header in a
/// REQ (attribute 10h), and starts the private data of a REP (13h).
fn connection(mad: &[u8], seen: &mut Seen) {
    match mad[16..18] {
        [0, 0x10] => {
            let private = &mad[24 + 140 + 36..24 + 140 + 92];
            let request = ConnectRequest::parse(private).expect("a request");
            assert_eq!(request.to_bytes(), private[..32]);
            let size = request.hsqsize.entries();
            assert_eq!(u32::from(request.hrqsize), size, "one entry more than zero-based");
            assert_eq!(size == 32, request.qid == Qid::ADMIN);
            seen.requests += 1;
        }
        [0, 0x13] => {
            let private = &mad[24 + 36..24 + 36 + 32];
            let accept = ConnectAccept::parse(private).expect("a reply");
            assert_eq!(accept.to_bytes(), private);
            assert!(accept.crqsize == 32 || accept.crqsize == 64);
            seen.accepts += 1;
        }
        _ => {}
    }
}

fn read(name: &str) -> Seen {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name);
    let file = std::fs::read(path).expect("a capture");
    let mut seen = Seen::default();
    for packet in packets(&file) {
        // BTH opcodes: RC SEND only (and with invalidate), the last packet of a
        // SEND is data; RC READ response only; UD SEND only.
        match packet[0] {
            0x04 | 0x17 => {
                let data = &packet[if packet[0] == 0x17 { BTH + 4 } else { BTH }..];
                if let Ok(bytes) = data.try_into() {
                    capsule(bytes, &mut seen);
                } else {
                    completion(data.try_into().expect("16 or 64 bytes"), &mut seen);
                }
            }
            // A capsule with data starts with its command.
            0x00 => {
                let bytes = packet[BTH..].first_chunk().expect("a command");
                capsule(bytes, &mut seen);
            }
            0x10 => {
                if let Ok(bytes) = packet[BTH + 4..].try_into() {
                    connect_data(bytes, &mut seen);
                }
            }
            0x64 => connection(&packet[BTH + 8..], &mut seen),
            _ => {}
        }
    }
    seen
}

/// What `testdata` holds of either address family: an admin queue's whole
/// set-up, then a write with its data in the capsule and a flush.
const EXPECTED: Seen =
    Seen { fabrics: 6, admin: 2, io: 2, completions: 11, connect_data: 2, requests: 2, accepts: 2 };

#[test]
fn ipv4_capture() {
    assert_eq!(read("rxe-nvmet-ipv4.pcapng"), EXPECTED);
}

#[test]
fn ipv6_capture() {
    assert_eq!(read("rxe-nvmet-ipv6.pcapng"), EXPECTED);
}

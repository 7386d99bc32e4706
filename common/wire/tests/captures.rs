//! Every packet of a real peer parses, comes out as the same bytes again, and
//! has the ICRC that we compute, except the one sent with a wrong ICRC.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use lariat_wire::rocev2::cm::{CmMad, CmMessage, service_id};
use lariat_wire::rocev2::icrc::{compute, verify, verify_v4_hidden_id, verify_v6, verify_with_id};
use lariat_wire::rocev2::{
    CM_MAD_LEN, Flow, FlowSeed, ICRC_LEN, IdBasis, MAX_HEADER, Opcode, Packet, QKey, Qpn, UDP_PORT,
    pad_for,
};

const ENHANCED_PACKET: u32 = 6;

/// The frames of a little-endian pcapng file of Ethernet.
fn frames(file: &[u8]) -> Vec<&[u8]> {
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().expect("four bytes"));
    let size = |at: usize| usize::try_from(word(at)).expect("a size");
    let mut frames = Vec::new();
    let mut at = 0;
    while at < file.len() {
        if word(at) == ENHANCED_PACKET {
            frames.push(&file[at + 28..at + 28 + size(at + 20)]);
        }
        at += size(at + 4);
    }
    frames
}

struct Datagram<'a> {
    flow: Flow,
    /// IPv4's identification, which the capture shows.
    id: Option<u16>,
    payload: &'a [u8],
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// The frame's UDP datagram, if it goes to RoCEv2's port.
fn datagram(frame: &[u8]) -> Option<Datagram<'_>> {
    let ip = &frame[14..];
    let (udp, id, src, dst) = match be16(frame, 12) {
        0x0800 if ip[9] == 17 => {
            assert_eq!(ip[0], 0x45, "no IPv4 options");
            let address = |at: usize| {
                let octets: [u8; 4] = ip[at..at + 4].try_into().expect("an address");
                IpAddr::from(octets)
            };
            let end = usize::from(be16(ip, 2));
            (&ip[20..end], Some(be16(ip, 4)), address(12), address(16))
        }
        0x86dd if ip[6] == 17 => {
            let address = |at: usize| {
                let octets: [u8; 16] = ip[at..at + 16].try_into().expect("an address");
                IpAddr::from(octets)
            };
            let end = 40 + usize::from(be16(ip, 4));
            (&ip[40..end], None, address(8), address(24))
        }
        _ => return None,
    };
    let (src_port, dst_port) = (be16(udp, 0), be16(udp, 2));
    if dst_port != UDP_PORT {
        return None;
    }
    assert_eq!(usize::from(be16(udp, 4)), udp.len(), "a whole datagram");
    let flow = Flow::new(SocketAddr::new(src, src_port), SocketAddr::new(dst, dst_port));
    Some(Datagram { flow: flow.expect("one family"), id, payload: &udp[8..] })
}

#[derive(Default)]
struct Seen {
    packets: usize,
    messages: usize,
    bad_icrcs: usize,
    opcodes: BTreeMap<u8, usize>,
    nonzero_ids: usize,
}

impl Seen {
    fn datagram(&mut self, datagram: &Datagram<'_>, basis: &mut IdBasis) {
        let flow = FlowSeed::new(&datagram.flow);
        let bytes = datagram.payload;
        let packet = Packet::parse(bytes).expect("a packet");
        self.packets += 1;
        *self.opcodes.entry(packet.bth.opcode.into()).or_default() += 1;
        assert!(!matches!(packet.bth.opcode, Opcode::Unknown(_)));

        let mut header = [0; MAX_HEADER];
        let header_len = packet.headers().emit(&mut header);
        let headers = &header[..header_len];
        assert_eq!(packet.bth.pad, pad_for(packet.payload.len()));
        let pad = usize::from(packet.bth.pad);
        let emitted = [headers, packet.payload, &[0; 3][..pad], &packet.icrc].concat();
        assert_eq!(emitted, bytes, "{packet:?}");

        // A wrong ICRC is wrong by every way of looking at it.
        let id = datagram.id.unwrap_or(0);
        let computed = compute(&flow, id, headers, &[packet.payload], packet.bth.pad);
        let good = computed == packet.icrc;
        self.bad_icrcs += usize::from(!good);
        assert_eq!(verify_with_id(&flow, id, bytes), good);
        assert_eq!(verify(&flow, 0, bytes, basis), good);
        if datagram.id.is_some() {
            self.nonzero_ids += usize::from(id != 0);
            for hint in [0, id, id.wrapping_add(1)] {
                let found = verify_v4_hidden_id(&flow, hint, bytes, basis);
                assert_eq!(found, good.then_some(id));
            }
        } else {
            assert_eq!(verify_v6(&flow, bytes), good);
        }
        let mut assembled = [0; 8192];
        let len =
            packet.headers().assemble(packet.payload, &flow, id, &mut assembled).expect("room");
        let covered = len - ICRC_LEN;
        assert_eq!(assembled[..covered], bytes[..covered]);
        assert_eq!(assembled[..len] == *bytes, good);

        if packet.bth.dest_qp == Qpn::CM {
            self.message(&packet, &datagram.flow);
        }
    }

    fn message(&mut self, packet: &Packet<'_>, flow: &Flow) {
        self.messages += 1;
        let deth = packet.ext.deth.expect("a datagram");
        assert_eq!((deth.qkey, deth.source_qp), (QKey::CM, Qpn::CM));
        assert_eq!(packet.payload.len(), CM_MAD_LEN);
        let mad = CmMad::parse(packet.payload).expect("a message");
        assert_eq!(mad.emit(), packet.payload, "{mad:?}");
        match &mad.message {
            CmMessage::Req(req) => {
                let (src, dst) = match flow {
                    Flow::V4(flow) => (IpAddr::V4(flow.src), IpAddr::V4(flow.dst)),
                    Flow::V6(flow) => (IpAddr::V6(flow.src), IpAddr::V6(flow.dst)),
                };
                let ip = req.ip_header().expect("the IP CM service");
                assert_eq!((ip.source, ip.destination), (src, dst));
                assert_eq!(ip.to_bytes(), req.private_data[..36]);
                assert_eq!(IpAddr::from(req.primary.local_gid), src);
                assert_eq!(IpAddr::from(req.primary.remote_gid), dst);
                assert_eq!(req.primary.local_lid, 0xffff);
                assert_eq!(req.primary.hop_limit, 64);
                let port = req.service_id.port().expect("a port");
                assert_eq!(service_id(port), req.service_id);
                assert!(req.path_mtu().is_some());
                assert!(req.alternate.is_none());
            }
            CmMessage::Unknown { attribute } => panic!("attribute {attribute:#x}"),
            _ => {}
        }
    }

    fn file(path: &Path) -> Self {
        let file = std::fs::read(path).expect("a readable capture");
        let mut seen = Self::default();
        let mut basis = IdBasis::new();
        for frame in frames(&file) {
            if let Some(datagram) = datagram(frame) {
                seen.datagram(&datagram, &mut basis);
            }
        }
        seen
    }
}

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name)
}

#[test]
fn ipv4() {
    let seen = Seen::file(&testdata("rxe-nvmet-ipv4.pcapng"));
    assert_eq!(seen.bad_icrcs, 1);
    assert_eq!(seen.messages, 10);
    assert!(seen.nonzero_ids > 0, "the peer's identifications vary");
    let opcodes: Vec<u8> = seen.opcodes.into_keys().collect();
    assert_eq!(opcodes, [0, 1, 2, 4, 6, 7, 8, 12, 13, 14, 15, 16, 17, 23, 100]);
}

#[test]
fn ipv6() {
    let seen = Seen::file(&testdata("rxe-nvmet-ipv6.pcapng"));
    assert_eq!(seen.bad_icrcs, 1);
    assert_eq!(seen.messages, 10);
    let opcodes: Vec<u8> = seen.opcodes.into_keys().collect();
    assert_eq!(opcodes, [0, 2, 4, 6, 7, 8, 10, 12, 13, 14, 15, 16, 17, 23, 100]);
}

/// The captures in the folder that `LARIAT_CAPTURES` names, each with exactly
/// one wrong ICRC.
#[test]
fn whole_captures() {
    let Some(folder) = std::env::var_os("LARIAT_CAPTURES") else {
        eprintln!("SKIPPED: LARIAT_CAPTURES names no folder");
        return;
    };
    let mut files = 0;
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|extension| extension == "pcapng") {
            let seen = Seen::file(&path);
            eprintln!(
                "{}: {} packets, {} messages, {} bad ICRCs, {} IDs other than 0, opcodes {:?}",
                path.display(),
                seen.packets,
                seen.messages,
                seen.bad_icrcs,
                seen.nonzero_ids,
                seen.opcodes
            );
            assert_eq!(seen.bad_icrcs, 1);
            files += 1;
        }
    }
    assert_ne!(files, 0, "no captures in the folder");
}

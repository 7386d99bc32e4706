//! Packets there and back, and whatever bytes.

use super::*;
use crate::rocev2::icrc::verify_with_id;
use crate::rocev2::{Flow, Msn, PKey, Psn, QKey, Qpn, Rkey, Syndrome};
use proptest::prelude::*;

fn flow() -> FlowSeed {
    let flow = Flow::new(
        "192.0.2.1:50000".parse().expect("address"),
        "192.0.2.2:4791".parse().expect("address"),
    );
    FlowSeed::new(&flow.expect("one family"))
}

prop_compose! {
    fn bths()(
        opcode: u8, flags: [bool; 5], version in 0_u8..16, pkey: u16, qpn: u32, psn: u32,
    ) -> Bth {
        let [solicited, migreq, fecn, becn, ack_request] = flags;
        Bth {
            solicited,
            migreq,
            version,
            pkey: PKey(pkey),
            fecn,
            becn,
            ack_request,
            ..Bth::new(Opcode::from(opcode), Qpn::new(qpn), Psn::new(psn))
        }
    }
}

prop_compose! {
    fn headers()(
        bth in bths(), address: u64, keys: [u32; 5], syndrome: u8, imm: [u8; 4],
    ) -> Headers {
        let opcode = bth.opcode;
        let [rkey, length, qkey, qpn, msn] = keys;
        let ext = Ext {
            deth: opcode.has_deth().then_some(Deth {
                qkey: QKey(qkey),
                source_qp: Qpn::new(qpn),
            }),
            reth: opcode.has_reth().then_some(Reth {
                virtual_address: address,
                rkey: Rkey(rkey),
                length,
            }),
            aeth: opcode.has_aeth().then_some(Aeth {
                syndrome: Syndrome::from(syndrome),
                msn: Msn::new(msn),
            }),
            ieth: opcode.has_ieth().then_some(Ieth { rkey: Rkey(rkey) }),
            imm: opcode.has_imm().then_some(Imm(imm)),
        };
        Headers { bth, ext }
    }
}

proptest! {
    #[test]
    fn packets_survive(
        headers in headers(),
        payload in proptest::collection::vec(any::<u8>(), 0..200),
        id: u16,
    ) {
        let mut out = [0xee; 512];
        let len = headers.assemble(&payload, &flow(), id, &mut out).expect("room");
        prop_assert_eq!(len % 4, 0);
        let bytes = &out[..len];
        let packet = Packet::parse(bytes).expect("a packet");
        prop_assert_eq!(packet.payload, &payload[..]);
        let mut wanted = headers;
        wanted.bth.pad = pad_for(payload.len());
        prop_assert_eq!(packet.headers(), wanted);
        prop_assert!(verify_with_id(&flow(), id, bytes));
        prop_assert_eq!(
            headers.assemble(&payload, &flow(), id, &mut out[..len - 1]),
            Err(AssembleError::NoRoom { needed: len, available: len - 1 })
        );
    }

    /// Any bytes are a packet or an error; a packet's parts account for every
    /// byte of it.
    #[test]
    fn any_bytes_are_read(mut bytes in proptest::collection::vec(any::<u8>(), 0..120), known: bool) {
        if let (true, Some(opcode)) = (known, bytes.first_mut()) {
            *opcode %= 0x18;
        }
        match Packet::parse(&bytes) {
            Ok(packet) => {
                let mut out = [0; MAX_HEADER];
                let header = packet.headers().emit(&mut out);
                let pad = usize::from(packet.bth.pad);
                prop_assert_eq!(header + packet.payload.len() + pad + ICRC_LEN, bytes.len());
                prop_assert!(packet.ext.fits(packet.bth.opcode));
            }
            Err(PacketError::TooShort { len, .. }) => {
                prop_assert_eq!(len, bytes.len());
                prop_assert!(len < MAX_HEADER + ICRC_LEN);
            }
            Err(PacketError::PadTooLong { pad, available }) => {
                prop_assert!(usize::from(pad) > available);
            }
        }
    }
}

#[test]
fn too_short_packets_name_their_opcode() {
    let mut bytes = [0; 31];
    bytes[0] = 0x0a;
    assert_eq!(
        Packet::parse(&bytes),
        Err(PacketError::TooShort { opcode: Some(Opcode::WriteOnly), len: 31 })
    );
    assert_eq!(Packet::parse(&bytes[..15]), Err(PacketError::TooShort { opcode: None, len: 15 }));
    assert!(Packet::parse(&[0; 16]).is_ok());
}

//! The ICRC against a plain computation, a vector from a real peer, and errors.

use super::*;
use proptest::prelude::*;

/// An acknowledge that the kernel's Soft-RoCE sent: from the IP header on.
const VECTOR: &str = "450000309613400040119095 0a090001 0a090002 e17812b7001c0000 \
                      1100ffff00d4c5be00432cb3 1f000001 e138375f";

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .chars()
        .filter_map(|c| c.to_digit(16))
        .map(|digit| u8::try_from(digit).expect("a digit"))
        .collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

fn vector() -> (FlowSeed, Vec<u8>) {
    let flow = Flow::new(
        "10.9.0.1:57720".parse().expect("address"),
        "10.9.0.2:4791".parse().expect("address"),
    );
    let packet = unhex(VECTOR);
    (FlowSeed::new(&flow.expect("one family")), packet[28..].to_vec())
}

/// The definition, with no cleverness.
fn plain(flow: &Flow, id: u16, covered: &[u8]) -> [u8; 4] {
    let udp_len = u16::try_from(covered.len() + 4 + 8).expect("a datagram");
    let mut bytes = vec![0xff; 8];
    let (src_port, dst_port) = match flow {
        Flow::V4(flow) => {
            bytes.extend([0x45, 0xff]);
            bytes.extend((udp_len + 20).to_be_bytes());
            bytes.extend(id.to_be_bytes());
            bytes.extend([0x40, 0, 0xff, 17, 0xff, 0xff]);
            bytes.extend(flow.src.octets());
            bytes.extend(flow.dst.octets());
            (flow.src_port, flow.dst_port)
        }
        Flow::V6(flow) => {
            bytes.extend([0x6f, 0xff, 0xff, 0xff]);
            bytes.extend(udp_len.to_be_bytes());
            bytes.extend([17, 0xff]);
            bytes.extend(flow.src.octets());
            bytes.extend(flow.dst.octets());
            (flow.src_port, flow.dst_port)
        }
    };
    bytes.extend(src_port.to_be_bytes());
    bytes.extend(dst_port.to_be_bytes());
    bytes.extend(udp_len.to_be_bytes());
    bytes.extend([0xff, 0xff]);
    let bth = bytes.len();
    bytes.extend(covered);
    bytes[bth + 4] = 0xff;
    crc32fast::hash(&bytes).to_le_bytes()
}

#[test]
fn vector_of_the_kernel() {
    let (flow, packet) = vector();
    let icrc = [0xe1, 0x38, 0x37, 0x5f];
    let covered = &packet[..packet.len() - 4];
    assert_eq!(compute(&flow, 0x9613, &covered[..12], &[&covered[12..]], 0), icrc);
    assert!(verify_with_id(&flow, 0x9613, &packet));
    assert!(!verify_with_id(&flow, 0, &packet));
    let mut basis = IdBasis::new();
    for hint in [0, 1, 0x9613, 0xffff] {
        let found = verify_v4_hidden_id(&flow, hint, &packet, &mut basis);
        assert_eq!(found, Some(0x9613));
    }
}

#[test]
fn each_flipped_bit_is_noticed() {
    let (flow, packet) = vector();
    let mut basis = IdBasis::new();
    for bit in 0..packet.len() * 8 {
        let mut bad = packet.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        let masked = bit / 8 == 4;
        assert_eq!(verify_with_id(&flow, 0x9613, &bad), masked, "bit {bit}");
        let hidden = verify_v4_hidden_id(&flow, 0, &bad, &mut basis);
        assert_eq!(hidden.is_some(), masked, "bit {bit}");
    }
}

#[test]
fn mapped_addresses_are_ipv4() {
    let plain = Flow::new(
        "10.9.0.1:1".parse().expect("address"),
        "10.9.0.2:4791".parse().expect("address"),
    );
    let mapped = Flow::new(
        "[::ffff:10.9.0.1]:1".parse().expect("address"),
        "[::ffff:10.9.0.2]:4791".parse().expect("address"),
    );
    assert!(matches!(plain, Some(Flow::V4(_))));
    assert_eq!(plain, mapped);
    let mixed = Flow::new(
        "[2001:db8::1]:1".parse().expect("address"),
        "10.9.0.2:4791".parse().expect("address"),
    );
    assert_eq!(mixed, None);
}

fn flows() -> impl Strategy<Value = Flow> {
    let ports = (any::<u16>(), any::<u16>());
    prop_oneof![
        (any::<u32>(), any::<u32>(), ports).prop_map(|(src, dst, ports)| {
            Flow::V4(FlowV4 {
                src: src.into(),
                dst: dst.into(),
                src_port: ports.0,
                dst_port: ports.1,
            })
        }),
        (any::<u128>(), any::<u128>(), ports).prop_map(|(src, dst, ports)| {
            Flow::V6(FlowV6 {
                src: src.into(),
                dst: dst.into(),
                src_port: ports.0,
                dst_port: ports.1,
            })
        }),
    ]
}

proptest! {
    #[test]
    fn agrees_with_the_definition(
        flow in flows(),
        id in any::<u16>(),
        hint in any::<u16>(),
        covered in proptest::collection::vec(any::<u8>(), 12..5000),
        cut in any::<(usize, usize)>(),
    ) {
        let wanted = plain(&flow, id, &covered);
        let seed = FlowSeed::new(&flow);
        prop_assert_eq!(seed.seed(covered.len() + 4, id).over(&covered), wanted);
        prop_assert_eq!(seed.of_length(covered.len() + 4).seed(id).over(&covered), wanted);
        if seed.is_ipv4() {
            let from_zero = seed.seed(covered.len() + 4, 0).with_id(id);
            prop_assert_eq!(from_zero.over(&covered), wanted);
        }
        let (headers, payload) = covered.split_at(12 + cut.0 % (covered.len() - 11));
        let (left, right) = payload.split_at(cut.1 % (payload.len() + 1));
        prop_assert_eq!(compute(&seed, id, headers, &[left, right], 0), wanted);

        let mut packet = covered.clone();
        packet.extend(wanted);
        let mut basis = IdBasis::new();
        if seed.is_ipv4() {
            let found = verify_v4_hidden_id(&seed, hint, &packet, &mut basis);
            prop_assert_eq!(found, Some(id));
        } else {
            prop_assert!(verify_v6(&seed, &packet));
        }
        prop_assert!(verify(&seed, hint, &packet, &mut basis));
    }

    #[test]
    fn pad_counts_as_zeros(headers in proptest::collection::vec(any::<u8>(), 12..48), pad in 0_u8..4) {
        let flow = FlowSeed { base: 7, is_ipv4: true };
        let mut padded = headers.clone();
        padded.resize(headers.len() + usize::from(pad), 0);
        prop_assert_eq!(
            compute(&flow, 3, &headers, &[], pad),
            compute(&flow, 3, &padded, &[], 0)
        );
    }

    #[test]
    fn any_bytes_are_checked_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        let (flow, _) = vector();
        let _ = verify(&flow, 0, &bytes, &mut IdBasis::new());
    }
}

/// About as many wrong ICRCs pass as 16 bits of protection promise: of 2^20,
/// some 16.
#[test]
fn hidden_id_leaves_sixteen_bits() {
    let (flow, mut packet) = vector();
    let mut basis = IdBasis::new();
    let at = packet.len() - 4;
    let passed = (0..1_u32 << 20)
        .filter(|i| {
            packet[at..].copy_from_slice(&i.wrapping_mul(0x9e37_79b1).to_le_bytes());
            verify_v4_hidden_id(&flow, 0, &packet, &mut basis).is_some()
        })
        .count();
    assert!((4..40).contains(&passed), "{passed}");
}

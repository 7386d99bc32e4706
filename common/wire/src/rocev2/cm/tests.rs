//! Messages there and back, and whatever bytes.

use core::net::IpAddr;
use core::time::Duration;

use super::*;
use proptest::prelude::*;

#[test]
fn times_are_powers_of_two() {
    assert_eq!(CmTimeout::from_code(0).duration(), Duration::from_nanos(4096));
    assert_eq!(CmTimeout::from_code(20).duration(), Duration::from_nanos(4_294_967_296));
    assert_eq!(CmTimeout::from_code(31).duration().as_secs(), 8796);
    assert_eq!(CmTimeout::at_least(Duration::from_nanos(4097)).code(), 1);
    assert_eq!(CmTimeout::at_least(Duration::from_nanos(4096)).code(), 0);
    assert_eq!(CmTimeout::at_least(Duration::MAX).code(), 31);
}

#[test]
fn path_mtu_follows_the_network() {
    for mtu in PathMtu::ALL {
        assert_eq!(PathMtu::from_code(mtu.code()), Some(mtu));
        // Exactly enough, and one byte less.
        let exact = mtu.bytes() + 20 + 8 + 12 + 16 + 4 + 4;
        assert_eq!(PathMtu::for_ip_mtu(exact, true), Some(mtu));
        assert!(PathMtu::for_ip_mtu(exact - 1, true) < Some(mtu));
        assert!(PathMtu::for_ip_mtu(exact, false) < Some(mtu));
    }
    assert_eq!(PathMtu::for_ip_mtu(1500, true), Some(PathMtu::Mtu1024));
    assert_eq!(PathMtu::for_ip_mtu(9000, false), Some(PathMtu::Mtu4096));
    assert_eq!(PathMtu::for_ip_mtu(65536, true), Some(PathMtu::Mtu4096));
    assert_eq!(PathMtu::for_ip_mtu(60, true), None);
    assert_eq!(PathMtu::from_code(0), None);
    assert_eq!(PathMtu::from_code(6), None);
}

#[test]
fn ports_and_services() {
    assert_eq!(service_id(4420).0, 0x0000_0000_0106_1144);
    for port in [0, 1, 4420, u16::MAX] {
        assert_eq!(service_id(port).port(), Some(port));
    }
    assert_eq!(ServiceId(0x0111_1144).port(), None);
    assert_eq!(ServiceId(0x1144).port(), None);
}

#[test]
fn gids_are_addresses() {
    let ipv4: IpAddr = "10.9.0.1".parse().expect("address");
    let gid = Gid::from(ipv4);
    assert_eq!(gid.0, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 9, 0, 1]);
    assert_eq!(IpAddr::from(gid), ipv4);
    let ipv6: IpAddr = "fe80::1".parse().expect("address");
    assert_eq!(IpAddr::from(Gid::from(ipv6)), ipv6);
}

#[test]
fn reasons_speak() {
    let stale = RejReason::STALE_CONNECTION.to_string();
    assert!(stale.contains("stale") && stale.contains("10"), "{stale}");
    assert_eq!(RejReason(999).to_string(), "reason 999");
}

#[test]
fn other_datagrams_are_refused() {
    let mad = CmMad::new(5, CmMessage::Unknown { attribute: 0x19 });
    let bytes = mad.emit();
    assert_eq!(CmMad::parse(&bytes), Ok(mad.clone()));
    assert_eq!(CmMad::parse(&bytes[..232]), Ok(mad));
    assert_eq!(CmMad::parse(&bytes[..231]), Err(MadError::Length { len: 231 }));
    assert_eq!(CmMad::parse(&[0; 257]), Err(MadError::Length { len: 257 }));
    for (at, value) in [(0, 2), (1, 4), (2, 1), (3, 1)] {
        let mut other = bytes;
        other[at] = value;
        assert!(matches!(CmMad::parse(&other), Err(MadError::NotCm { .. })));
    }
}

proptest! {
    #[test]
    fn ip_header_survives(port: u16, ipv4: [u32; 2], ipv6: [u128; 2], of_ipv4: bool) {
        let [source, destination] = if of_ipv4 {
            ipv4.map(|address| IpAddr::V4(address.into()))
        } else {
            ipv6.map(|address| IpAddr::V6(address.into()))
        };
        let header = IpCmHeader { source_port: port, source, destination };
        prop_assert_eq!(IpCmHeader::parse(&header.to_bytes()), Ok(header));
    }

    #[test]
    fn ip_header_is_total(head: [u8; 2], rest: [u8; 32]) {
        let mut bytes = [0; IpCmHeader::LEN];
        bytes[..2].copy_from_slice(&head);
        bytes[4..].copy_from_slice(&rest);
        match IpCmHeader::parse(&bytes) {
            Ok(header) => prop_assert!(header.to_bytes()[1] >> 4 == head[1] >> 4),
            Err(IpCmError::Version(version)) => prop_assert_eq!(version, head[0]),
            Err(IpCmError::IpVersion(version)) => prop_assert_eq!(version, head[1] >> 4),
        }
    }

    /// Any body is a message, and a message once read survives.
    #[test]
    fn messages_survive(
        attribute in 0x0e_u16..0x1a,
        transaction_id: u64,
        body in proptest::collection::vec(any::<u8>(), BODY_LEN),
    ) {
        let mut bytes = [0; CM_MAD_LEN];
        bytes[..MadHeader::LEN]
            .copy_from_slice(&MadHeader::cm(attribute, transaction_id).to_bytes());
        bytes[MadHeader::LEN..].copy_from_slice(&body);
        let mad = CmMad::parse(&bytes).expect("a message");
        prop_assert_eq!(mad.transaction_id(), transaction_id);
        prop_assert_eq!(mad.message.attribute(), attribute);
        let emitted = mad.emit();
        prop_assert_eq!(CmMad::parse(&emitted).expect("emitted"), mad.clone());
        // What is emitted differs from what was read in reserved bits only.
        if !matches!(mad.message, CmMessage::Unknown { .. }) {
            let cleared = emitted.iter().zip(&bytes).all(|(out, read)| out & !read == 0);
            prop_assert!(cleared);
        }
    }

    #[test]
    fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = CmMad::parse(&bytes);
    }
}

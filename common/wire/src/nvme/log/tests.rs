//! Log pages: known bytes, round trips, totality.

use proptest::prelude::*;

use super::*;
use crate::nvme::ids::{CommandId, ControllerId, Lba, Qid};
use crate::nvme::nqn::Nqn;
use crate::nvme::status::Status;

#[test]
fn error_entry_bytes() {
    let entry = ErrorEntry::new(3, Qid(2), CommandId(0x1234), Status::LBA_OUT_OF_RANGE, Nsid(7))
        .with_lba(Lba(0x55))
        .with_parameter(40, 9);
    let mut expected = [0u8; 64];
    for (at, piece) in [(0, &[3u8][..]), (8, &[2, 0, 0x34, 0x12, 0, 1, 40, 1, 0x55]), (24, &[7])] {
        expected[at..at + piece.len()].copy_from_slice(piece);
    }
    assert_eq!(entry.as_bytes(), &expected);
    assert_eq!(entry.status(), Status::LBA_OUT_OF_RANGE);
    let vague = ErrorEntry::new(1, Qid(0), CommandId(0), Status::INTERNAL_ERROR, Nsid::NONE);
    assert_eq!(vague.parameter_location.get(), 0xffff);
}

#[test]
fn health_bytes() {
    let mut health = SmartHealth::default();
    health.critical_warning = CriticalWarning::SPARE;
    health.temperature.set(300);
    health.data_units_read.set(SmartHealth::data_units(512_001));
    assert_eq!(health.as_bytes()[..4], [1, 0x2c, 1, 0]);
    assert_eq!(health.as_bytes()[32..34], [2, 0]);
    assert_eq!(SmartHealth::data_units(0), 0);
    assert_eq!(SmartHealth::data_units(1), 1);
}

#[test]
fn firmware_slot_bytes() {
    let bytes = *FirmwareSlots::single("0.1").as_bytes();
    assert_eq!(bytes[0], 1);
    assert_eq!(&bytes[8..17], b"0.1     \0");
}

#[test]
fn changed_namespaces() {
    let some = ChangedNamespaces::new([Nsid(2), Nsid(5)]);
    assert!(!some.overflowed() && some.iter().eq([Nsid(2), Nsid(5)]));
    let full = ChangedNamespaces::new((1..=1024).map(Nsid));
    assert!(!full.overflowed() && full.iter().count() == 1024);
    let over = ChangedNamespaces::new((1..=1025).map(Nsid));
    assert!(over.overflowed() && over.iter().count() == 0);
    assert_eq!(over.as_bytes()[..5], [0xff, 0xff, 0xff, 0xff, 0]);
}

#[test]
fn effects() {
    let mut log = CommandEffects::default();
    log.set_io(1, Effects::SUPPORTED.with(Effects::BLOCK_CONTENT));
    log.set_admin(6, Effects::SUPPORTED);
    assert_eq!(log.as_bytes()[1024 + 4], 3);
    assert_eq!(log.as_bytes()[24], 1);
    assert!(log.io_effects(1).has(Effects::BLOCK_CONTENT));
    assert!(!log.admin_effects(6).has(Effects::BLOCK_CONTENT));
    assert_eq!(log.admin_effects(255), Effects(0));
}

#[test]
fn supported_pages() {
    let log = SupportedLogPages::new([LogPage::SMART_HEALTH, LogPage::DISCOVERY]);
    assert!(log.has(LogPage::DISCOVERY) && !log.has(LogPage::SANITIZE_STATUS));
    assert_eq!(log.as_bytes()[0x70 * 4], 1);
}

#[test]
fn ana_round_trip() {
    let mut page = AnaHeader::new(9, 2).as_bytes().to_vec();
    page.extend(AnaGroupHeader::new(1, AnaState::OPTIMIZED, 9, 2).as_bytes());
    page.extend([1, 0, 0, 0, 3, 0, 0, 0]);
    page.extend(AnaGroupHeader::new(2, AnaState::INACCESSIBLE, 4, 0).as_bytes());
    let (header, groups) = parse_ana_groups(&page).unwrap();
    assert_eq!(header.change_count.get(), 9);
    let groups: Vec<_> = groups.collect::<Result<_, _>>().unwrap();
    assert_eq!(groups.len(), 2);
    assert_eq!(groups[0].state(), AnaState::OPTIMIZED);
    assert!(groups[0].namespaces().eq([Nsid(1), Nsid(3)]));
    assert_eq!((groups[1].state(), groups[1].namespaces().len()), (AnaState::INACCESSIBLE, 0));

    let (_, mut groups) = parse_ana_groups(&page[..50]).unwrap();
    assert_eq!(groups.next(), Some(Err(AnaLogError::Truncated { at: 16, length: 50 })));
    assert_eq!(groups.next(), None);
    let error = parse_ana_groups(&page[..15]).map(|_| ()).unwrap_err();
    assert_eq!(error, AnaLogError::Truncated { at: 0, length: 15 });
}

#[test]
fn discovery_entry_bytes() {
    let nqn = Nqn::parse("nqn.2026-01.example:disk").unwrap();
    let address = "10.9.0.1:4420".parse().unwrap();
    let core::net::SocketAddr::V4(v4) = address else { unreachable!() };
    let entry = DiscoveryEntry::rdma(SubsystemType::NVM, &nqn, (*v4.ip()).into(), v4.port());
    let bytes = entry.as_bytes();
    assert_eq!(bytes[..12], [1, 1, 2, 2, 0, 0, 0xff, 0xff, 32, 0, 0, 0]);
    assert_eq!(&bytes[32..38], b"4420  ");
    assert_eq!(&bytes[512..522], b"10.9.0.1  ");
    assert_eq!(bytes[768..771], [1, 4, 1]);
    assert_eq!(entry.socket_address(), Some(address));
    assert_eq!(entry.subsystem_nqn().unwrap(), nqn);
    assert_eq!(entry.admin_queue().map(|size| size.entries()), Some(32));
    assert_eq!(ControllerId(entry.cntlid.get()), ControllerId::DYNAMIC);

    let v6 = DiscoveryEntry::rdma(SubsystemType::NVM, &nqn, "fd09::1".parse().unwrap(), 1);
    assert_eq!(v6.family(), AddressFamily::IPV6);
    assert_eq!(v6.socket_address(), Some("[fd09::1]:1".parse().unwrap()));
    let header = DiscoveryHeader::new(5, 2);
    assert_eq!(header.as_bytes()[..17], [5, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(discovery_log_bytes(2), Some(3072));
    assert_eq!(discovery_log_bytes(u64::MAX), None);
}

proptest! {
    #[test]
    fn ana_parser_is_total(
        groups in 0u16..5,
        body in proptest::collection::vec(prop_oneof![4 => Just(0u8), 1 => 0u8..4], 0..200),
    ) {
        let mut page = AnaHeader::new(0, groups).as_bytes().to_vec();
        page.extend(body);
        let (_, parsed) = parse_ana_groups(&page).unwrap();
        let parsed: Vec<_> = parsed.collect();
        prop_assert!(parsed.len() <= usize::from(groups));
        let whole: usize = parsed
            .iter()
            .flatten()
            .map(|group| AnaGroupHeader::BYTES + 4 * group.namespaces().len())
            .sum();
        prop_assert!(AnaHeader::BYTES + whole <= page.len());
    }

    #[test]
    fn discovery_reader_is_total(bytes in proptest::collection::vec(any::<u8>(), 1024)) {
        let entry = DiscoveryEntry::read_from(&bytes).unwrap();
        let _ = (entry.socket_address(), entry.subsystem_nqn(), entry.admin_queue());
        prop_assert!(entry.address().chars().all(|c| matches!(c, ' '..='~')));
        prop_assert_eq!(&entry.as_bytes()[..], bytes.as_slice());
    }
}

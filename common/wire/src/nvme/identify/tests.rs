//! Identify data against captured bytes, round trips, totality.

use proptest::prelude::*;

use super::*;
use crate::nvme::command::Csi;
use crate::nvme::ids::{ControllerId, Nsid};
use crate::nvme::property::Version;

/// What a kernel target (6.12) sent, without its zeros: offset and bytes.
fn captured_controller() -> [u8; 4096] {
    let pieces: [(usize, &[u8]); 14] = [
        (4, b"348427855143e58bfc42"),
        (24, b"Linux                                   "),
        (64, b"6.12.95+"),
        (72, &[6, 0, 0, 0, 0x0b, 8, 1, 0, 0, 3, 1, 0]),
        (92, &[0, 9, 0, 0, 0x41]),
        (111, &[1]),
        (258, &[3, 3, 3, 7, 0x7f]),
        (320, &[10, 0]),
        (342, &[10, 0x1f, 0x80, 0, 0, 0, 0x80, 0, 0, 0]),
        (512, &[0x66, 0x44, 0x80, 0, 0, 4, 0, 0, 0x0c, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1]),
        (536, &[5, 0, 0x10, 0, 0, 4, 0, 0]),
        (768, b"nqn.test"),
        (1792, &[4, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1]),
        (2048, &[0xc4, 9, 0, 0, 0x10, 0, 0, 0, 4, 0, 0, 0]),
    ];
    let mut bytes = [0; 4096];
    for (at, piece) in pieces {
        bytes[at..at + piece.len()].copy_from_slice(piece);
    }
    bytes
}

#[test]
fn captured_identify_controller() {
    let bytes = captured_controller();
    let data = IdentifyController::from_bytes(&bytes);
    assert_eq!(data.serial(), "348427855143e58bfc42");
    assert_eq!(data.model(), "Linux");
    assert_eq!(data.firmware(), "6.12.95+");
    assert_eq!(data.cmic, Cmic::MULTI_PORT | Cmic::MULTI_CONTROLLER | Cmic::ANA);
    assert_eq!(data.controller_id(), ControllerId(1));
    assert_eq!(data.version(), Version::V1_3);
    assert_eq!(data.controller_type(), ControllerType::IO);
    assert_eq!(
        data.oaes.get(),
        AsyncEventSupport::NAMESPACE_ATTRIBUTES | AsyncEventSupport::ANA_CHANGE
    );
    assert_eq!(data.transfer_limit().bytes(4096), Some(1 << 20));
    assert_eq!(data.keep_alive_granularity_ms(), 1000);
    assert_eq!((data.acl, data.aerl, data.elpe), (3, 3, 0x7f));
    assert_eq!((data.anatt, data.nanagrpid.get()), (10, 128));
    assert_eq!((data.maxcmd.get(), data.nn.get(), data.mnan.get()), (128, 1024, 1024));
    assert!(data.supports(Oncs::DATASET_MANAGEMENT | Oncs::WRITE_ZEROES));
    assert!(!data.supports(Oncs::COMPARE) && data.has_volatile_cache());
    assert_eq!(data.sgls.get(), SglSupport::RDMA);
    assert_eq!(data.subsystem_nqn().unwrap().as_str(), "nqn.test");
    assert_eq!(data.io_capsule_bytes(), 4160);
    assert_eq!(data.in_capsule_data_bytes(), 4096);
    assert_eq!(data.msdbd, 1);
    assert_eq!(data.psd[0].max_power.get(), 2500);
    assert_eq!(data.as_bytes(), &bytes);

    let mut built = IdentifyController::default();
    built.set_product("348427855143e58bfc42", "Linux", "6.12.95+");
    built.set_in_capsule_data(4096);
    assert_eq!(built.as_bytes()[4..72], bytes[4..72]);
    assert_eq!(built.as_bytes()[1792..1802], bytes[1792..1802]);
}

#[test]
fn capsules_without_data() {
    let mut data = IdentifyController::default();
    assert_eq!(data.in_capsule_data_bytes(), 0);
    data.set_in_capsule_data(0);
    assert_eq!((data.io_capsule_bytes(), data.in_capsule_data_bytes()), (64, 0));
}

#[test]
fn transfer_limits() {
    assert_eq!(TransferLimit::at_most(1 << 20), Some(TransferLimit(8)));
    assert_eq!(TransferLimit::at_most((1 << 20) - 1), Some(TransferLimit(7)));
    assert_eq!(TransferLimit::at_most(4096), None);
    assert_eq!(TransferLimit::at_most(0), None);
    assert_eq!(TransferLimit::UNLIMITED.bytes(4096), None);
    assert_eq!(TransferLimit(200).bytes(4096), Some(u64::MAX));
}

#[test]
fn namespace_sizes() {
    let data = IdentifyNamespace::new(1000, 12);
    assert_eq!(data.block_bytes(), Some(4096));
    assert_eq!(data.size_bytes(), Some(4_096_000));
    assert!(!data.is_inactive() && IdentifyNamespace::default().is_inactive());
    assert_eq!(data.as_bytes()[128..132], [0, 0, 12, 0]);

    let mut odd = data;
    odd.flbas = 0x73;
    assert_eq!(odd.format_index(), 0x33);
    assert_eq!(odd.block_bytes(), None);
    odd.lbaf[0x33] = LbaFormat::new(9);
    assert_eq!(odd.block_bytes(), Some(512));
    odd.nsze.set(u64::MAX);
    assert_eq!(odd.size_bytes(), None);
}

#[test]
fn namespace_lists_continue() {
    let all = || (1..=1500).map(Nsid);
    let first = NamespaceList::after(Nsid::NONE, all());
    assert_eq!(first.iter().count(), 1024);
    let second = NamespaceList::after(first.continue_after().unwrap(), all());
    assert_eq!(second.continue_after(), None);
    assert!(first.iter().chain(second.iter()).eq(all()));
}

#[test]
fn controller_lists() {
    let list = ControllerList::starting_at(ControllerId(3), (1..=5).map(ControllerId));
    assert_eq!(list.as_bytes()[..8], [3, 0, 3, 0, 4, 0, 5, 0]);
    assert!(list.iter().eq((3..=5).map(ControllerId)));
    let mut lying = list;
    lying.count.set(0xffff);
    assert_eq!(lying.iter().count(), 2047);
}

#[test]
fn descriptors_round_trip() {
    let descriptors = [
        NamespaceDescriptor::Uuid([7; 16]),
        NamespaceDescriptor::Nguid([8; 16]),
        NamespaceDescriptor::Eui64([9; 8]),
        NamespaceDescriptor::CommandSet(Csi::NVM),
        NamespaceDescriptor::Unknown { kind: 77, id: &[1, 2, 3] },
    ];
    let mut writer = NamespaceDescriptorWriter::default();
    assert!(descriptors.iter().all(|descriptor| writer.push(descriptor)));
    assert!(!writer.push(&NamespaceDescriptor::Unknown { kind: 0, id: &[] }));
    let data = writer.finish();
    assert_eq!(data[..5], [3, 16, 0, 0, 7]);
    assert!(parse_descriptors(&data).eq(descriptors.map(Ok)));
}

#[test]
fn full_and_broken_descriptor_lists() {
    let mut writer = NamespaceDescriptorWriter::default();
    let id = [1; 255];
    let big = NamespaceDescriptor::Unknown { kind: 9, id: &id };
    let fitting = core::iter::repeat_with(|| writer.push(&big)).take_while(|&fit| fit).count();
    assert_eq!(fitting, 4096 / 259);
    assert_eq!(parse_descriptors(&writer.finish()).count(), fitting);

    let short = [3, 16, 0, 0, 1, 2];
    let error = DescriptorError::Truncated { at: 0, needed: 20, left: 6 };
    assert!(parse_descriptors(&short).eq([Err(error)]));
    let wrong = [1, 1, 0, 0, 5, 4, 1, 0, 0, 0];
    let error = DescriptorError::WrongLength { at: 0, kind: 1, length: 1 };
    assert!(parse_descriptors(&wrong).eq([Err(error)]));
}

#[test]
fn command_sets() {
    assert_eq!(IoCommandSets::nvm_only().as_bytes()[..9], [1, 0, 0, 0, 0, 0, 0, 0, 0]);
    let mut controller = IdentifyNvmController::default();
    controller.dmrl = 255;
    controller.dmsl.set(2);
    assert_eq!(controller.as_bytes()[3..9], [255, 0, 0, 0, 0, 2]);
}

proptest! {
    #[test]
    fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 4096)) {
        let array: &[u8; 4096] = bytes.as_slice().try_into().unwrap();
        let controller = IdentifyController::from_bytes(array);
        prop_assert!(controller.serial().len() <= 20);
        let _ = (controller.subsystem_nqn(), controller.in_capsule_data_bytes());
        prop_assert_eq!(controller.as_bytes(), array);
        let namespace = IdentifyNamespace::from_bytes(array);
        let _ = namespace.size_bytes();
        prop_assert_eq!(namespace.as_bytes(), array);
        prop_assert!(NamespaceList::from_bytes(array).iter().count() <= 1024);
        prop_assert!(ControllerList::from_bytes(array).iter().count() <= 2047);
        prop_assert_eq!(IdentifyController::read_from(&bytes[..4095]), None);
    }

    #[test]
    fn descriptor_parser_is_total(data in proptest::collection::vec(0u8..20, 0..200)) {
        let mut writer = NamespaceDescriptorWriter::default();
        let parsed: Vec<_> = parse_descriptors(&data).collect();
        prop_assert!(parsed.iter().rev().skip(1).all(Result::is_ok));
        let good: Vec<_> = parsed.into_iter().flatten().collect();
        prop_assert!(good.iter().all(|descriptor| writer.push(descriptor)));
        prop_assert!(parse_descriptors(&writer.finish()).eq(good.into_iter().map(Ok)));
    }
}

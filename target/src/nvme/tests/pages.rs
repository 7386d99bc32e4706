//! Identify, log pages and features, each that a host may ask for.

use lariat_wire::nvme::identify::{
    ControllerList, IdentifyIndependentNamespace, IoCommandSets, parse_descriptors,
};
use lariat_wire::nvme::log::{
    CommandEffects, DiscoveryEntry, DiscoveryHeader, Effects, FirmwareSlots, SupportedLogPages,
};
use lariat_wire::nvme::{
    Cns, Csi, FeatureId, FeatureSelect, IdentifyController, IdentifyNamespace, LogPage,
    NamespaceDescriptor, NamespaceList, Numd, Version,
};

use super::*;

fn ready(subsystem: &str) -> Admin {
    let mut admin = Target::new().admin(subsystem, 0);
    admin.enable();
    admin
}

fn identify(admin: &mut Admin, cns: Cns, nsid: u32) -> Result<Vec<u8>, Status> {
    admin.run(AdminCommand::identify(cns, Nsid(nsid))).map(|(_, data)| data)
}

fn identify_csi(admin: &mut Admin, cns: Cns, nsid: u32, csi: Csi) -> Result<Vec<u8>, Status> {
    let mut command = AdminCommand::identify(cns, Nsid(nsid));
    if let AdminCommand::Identify { csi: field, .. } = &mut command {
        *field = csi;
    }
    admin.run(command).map(|(_, data)| data)
}

#[test]
fn identify_controller() {
    let mut admin = ready(DISK);
    let data = identify(&mut admin, Cns::CONTROLLER, 0).unwrap();
    let id = IdentifyController::read_from(&data).unwrap();
    assert_eq!((id.serial().as_str(), id.model().as_str()), ("S1", "Disk"));
    assert_eq!(id.subsystem_nqn(), Ok(nqn(DISK)));
    assert_eq!(id.version(), Version::V1_4);
    assert_eq!(id.transfer_limit().bytes(4096), Some(128 << 10));
    assert_eq!((id.cntrltype, id.sqes, id.cqes), (1, 0x66, 0x44));
    assert_eq!((id.nn.get(), id.maxcmd.get(), id.fuses.get()), (4, 128, 0));
    assert_eq!((id.ioccsz.get(), id.iorcsz.get(), id.icdoff.get()), ((64 + 8192) / 16, 1, 0));
    assert_eq!((id.msdbd, id.sgls.get(), id.ofcs.get()), (1, 0x0014_0005, 1));
    assert_eq!((id.aerl, id.acl, id.elpe, id.kas.get()), (3, 3, 63, 1));
    assert_eq!((id.vwc, id.oncs.get(), id.oacs.get()), (0b111, 0b101_1100, 0));
    assert_eq!((id.cmic, id.anacap, id.ctratt.get()), (3, 0, 0x41));
}

#[test]
fn no_in_capsule_data_is_told_so() {
    let target = Target::with_limits(Limits { in_capsule_bytes: 0, ..limits() });
    let mut admin = target.admin(DISK, 0);
    admin.enable();
    let data = identify(&mut admin, Cns::CONTROLLER, 0).unwrap();
    let id = IdentifyController::read_from(&data).unwrap();
    assert_eq!((id.ioccsz.get(), id.sgls.get()), (4, 0x4_0005));
    assert_eq!(id.in_capsule_data_bytes(), 0);
}

#[test]
fn identify_namespace() {
    let mut admin = ready(DISK);
    for cns in [Cns::NAMESPACE, Cns::ALLOCATED_NAMESPACE] {
        let data = identify(&mut admin, cns, 2).unwrap();
        let ns = IdentifyNamespace::read_from(&data).unwrap();
        assert_eq!((ns.nsze.get(), ns.block_bytes()), (500, Some(4096)));
        assert_eq!((ns.dlfeat, ns.nsattr, ns.nmic), (9, 0, 1));
        assert_eq!(ns.nguid[0], 2);
        let frozen = identify(&mut admin, cns, 4).unwrap();
        let frozen = IdentifyNamespace::read_from(&frozen).unwrap();
        assert_eq!((frozen.dlfeat, frozen.nsattr, frozen.block_bytes()), (0, 1, Some(512)));
        assert_eq!(frozen.npwg.get(), 7, "a page is eight blocks");
        assert_eq!(identify(&mut admin, cns, 3), Ok(vec![0; 4096]), "inactive");
        for nsid in [0, 5, u32::MAX] {
            let got = identify(&mut admin, cns, nsid);
            assert_refused(got, Status::INVALID_NAMESPACE_OR_FORMAT);
        }
    }
    let data = identify(&mut admin, Cns::INDEPENDENT_NAMESPACE, 4).unwrap();
    let ns = IdentifyIndependentNamespace::read_from(&data).unwrap();
    assert_eq!((ns.nstat, ns.nsattr), (1, 1));
    assert_eq!(identify(&mut admin, Cns::INDEPENDENT_NAMESPACE, 3), Ok(vec![0; 4096]));

    let data = identify(&mut admin, Cns::NAMESPACE_DESCRIPTORS, 1).unwrap();
    let descriptors: Result<Vec<_>, _> = parse_descriptors(&data).collect();
    let descriptors = descriptors.unwrap();
    assert!(descriptors.contains(&NamespaceDescriptor::CommandSet(Csi::NVM)));
    assert!(matches!(descriptors[0], NamespaceDescriptor::Uuid([1, 0xa0, ..])));
    let got = identify(&mut admin, Cns::NAMESPACE_DESCRIPTORS, 9);
    assert_refused(got, Status::INVALID_NAMESPACE_OR_FORMAT);
}

#[test]
fn identify_lists() {
    let mut admin = ready(DISK);
    for cns in
        [Cns::ACTIVE_NAMESPACE_LIST, Cns::ALLOCATED_NAMESPACE_LIST, Cns::CSI_ACTIVE_NAMESPACE_LIST]
    {
        let list = |admin: &mut Admin, after| {
            let data = identify(admin, cns, after).unwrap();
            let list = NamespaceList::read_from(&data).unwrap();
            list.iter().map(|nsid| nsid.0).collect::<Vec<_>>()
        };
        assert_eq!(list(&mut admin, 0), [1, 2, 4]);
        assert_eq!(list(&mut admin, 2), [4]);
        assert_eq!(list(&mut admin, 0xffff_fffd), []);
        for after in [0xffff_fffe, 0xffff_ffff] {
            let got = identify(&mut admin, cns, after);
            assert_refused(got, Status::INVALID_NAMESPACE_OR_FORMAT);
        }
    }
    for (cns, nsid) in [(Cns::SUBSYSTEM_CONTROLLER_LIST, 0), (Cns::NAMESPACE_CONTROLLER_LIST, 1)] {
        let data = identify(&mut admin, cns, nsid).unwrap();
        assert!(ControllerList::read_from(&data).unwrap().iter().eq([ControllerId(1)]));
    }
    let data = identify(&mut admin, Cns::IO_COMMAND_SETS, 0).unwrap();
    assert_eq!(IoCommandSets::read_from(&data).unwrap().vectors[0].get(), 1);
}

#[test]
fn identify_by_command_set_and_what_is_refused() {
    let mut admin = ready(DISK);
    for (cns, nsid) in [(Cns::CSI_CONTROLLER, 0), (Cns::CSI_NAMESPACE, 1)] {
        assert_eq!(identify_csi(&mut admin, cns, nsid, Csi::NVM), Ok(vec![0; 4096]));
        let got = identify_csi(&mut admin, cns, nsid, Csi::ZONED);
        assert_refused(got, Status::INVALID_FIELD);
    }
    for cns in [0x04, 0x09, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1d, 0x80, 0xff] {
        assert_refused(identify(&mut admin, Cns(cns), 1), Status::INVALID_FIELD);
    }
}

#[test]
fn discovery_identifies_itself_and_nothing_else() {
    let mut admin = ready(Nqn::DISCOVERY);
    let data = identify(&mut admin, Cns::CONTROLLER, 0).unwrap();
    let id = IdentifyController::read_from(&data).unwrap();
    assert_eq!((id.cntrltype, id.nn.get(), id.oaes.get()), (2, 0, 1 << 31));
    assert_eq!(id.subsystem_nqn(), Ok(Nqn::discovery()));
    assert_ne!(id.kas.get(), 0);
    for cns in [Cns::NAMESPACE, Cns::ACTIVE_NAMESPACE_LIST, Cns::INDEPENDENT_NAMESPACE] {
        assert_refused(identify(&mut admin, cns, 1), Status::INVALID_FIELD);
    }
    let smart = AdminCommand::log_page(2, Nsid::ALL, Numd::from_bytes(512).unwrap(), 0);
    assert_refused(admin.run(smart), Status::INVALID_LOG_PAGE);
    let queues = AdminCommand::set_feature(FeatureId::NUMBER_OF_QUEUES.0, Nsid::NONE, 0);
    assert_refused(admin.run(queues), Status::INVALID_FIELD);
}

fn log(admin: &mut Admin, page: LogPage, bytes: u64, offset: u64) -> Result<Vec<u8>, Status> {
    let numd = Numd::from_bytes(bytes).unwrap();
    admin.run(AdminCommand::log_page(page.0, Nsid::ALL, numd, offset)).map(|(_, data)| data)
}

#[test]
fn every_log_page_and_no_other() {
    let mut admin = ready(DISK);
    let data = log(&mut admin, LogPage::SUPPORTED_LOG_PAGES, 1024, 0).unwrap();
    let supported = SupportedLogPages::read_from(&data).unwrap();
    for lid in 0..=u8::MAX {
        let got = log(&mut admin, LogPage(lid), 4, 0);
        if supported.has(LogPage(lid)) {
            assert!(got.is_ok(), "{lid}");
        } else {
            assert_refused(got, Status::INVALID_LOG_PAGE);
        }
    }
    for page in [
        LogPage::ERROR_INFORMATION,
        LogPage::SMART_HEALTH,
        LogPage::FIRMWARE_SLOT,
        LogPage::CHANGED_NAMESPACES,
        LogPage::COMMAND_EFFECTS,
    ] {
        assert!(supported.has(page), "{page}");
    }
    let data = log(&mut admin, LogPage::FIRMWARE_SLOT, 512, 0).unwrap();
    assert_eq!(FirmwareSlots::read_from(&data).unwrap().active, 1);
    assert_eq!(log(&mut admin, LogPage::CHANGED_NAMESPACES, 4096, 0), Ok(vec![0; 4096]));
    let data = log(&mut admin, LogPage::COMMAND_EFFECTS, 4096, 0).unwrap();
    let effects = CommandEffects::read_from(&data).unwrap();
    assert!(effects.io_effects(1).has(Effects::SUPPORTED.with(Effects::BLOCK_CONTENT)));
    assert_eq!(effects.io_effects(5), Effects(0), "Compare is not there");

    let one = AdminCommand::log_page(2, Nsid(1), Numd::from_bytes(512).unwrap(), 0);
    assert_refused(admin.run(one), Status::INVALID_FIELD);
}

#[test]
fn log_pages_in_parts() {
    let mut admin = ready(DISK);
    let whole = log(&mut admin, LogPage::COMMAND_EFFECTS, 4096, 0).unwrap();
    let part = log(&mut admin, LogPage::COMMAND_EFFECTS, 100, 1024).unwrap();
    assert_eq!(part, whole[1024..1124]);
    let across = log(&mut admin, LogPage::COMMAND_EFFECTS, 16, 4092).unwrap();
    assert_eq!(across[..4], whole[4092..]);
    assert_eq!(across[4..], [0; 12]);
    assert_eq!(log(&mut admin, LogPage::COMMAND_EFFECTS, 8, 4096), Ok(vec![0; 8]));
    for offset in [4100, u64::MAX - 3] {
        let got = log(&mut admin, LogPage::COMMAND_EFFECTS, 4, offset);
        assert_refused(got, Status::INVALID_FIELD);
    }
    // MDTS holds for log pages too.
    assert!(log(&mut admin, LogPage::SMART_HEALTH, 128 << 10, 0).is_ok());
    let got = log(&mut admin, LogPage::SMART_HEALTH, (128 << 10) + 4, 0);
    assert_refused(got, Status::INVALID_FIELD);
    let got = log(&mut admin, LogPage::SMART_HEALTH, 1 << 34, 0);
    assert_refused(got, Status::INVALID_FIELD);
}

#[test]
fn the_error_log_keeps_the_newest() {
    let mut admin = ready(DISK);
    for _ in 0..100 {
        assert!(admin.run(AdminCommand::Unsupported(0x84.into())).is_err());
    }
    let data = log(&mut admin, LogPage::ERROR_INFORMATION, 4096, 0).unwrap();
    let counts: Vec<u64> =
        data.chunks(64).map(|entry| u64::from_le_bytes(entry[..8].try_into().unwrap())).collect();
    assert!(counts.into_iter().eq((37..=100).rev()));
    assert_eq!(data[31], 0x84, "the opcode");
}

#[test]
fn the_discovery_log_shows_what_the_host_may_use() {
    let target = Target::new();
    let mut admin = target.admin(Nqn::DISCOVERY, 0);
    admin.enable();
    let data = log(&mut admin, LogPage::DISCOVERY, 4096, 0).unwrap();
    let header = DiscoveryHeader::read_from(&data).unwrap();
    assert_eq!((header.generation.get(), header.entries.get()), (1, 2));
    let entries: Vec<DiscoveryEntry> =
        data[1024..].chunks(1024).map(|chunk| DiscoveryEntry::read_from(chunk).unwrap()).collect();
    let told: Vec<_> =
        entries[..2].iter().map(|e| (e.socket_address().unwrap(), e.portid.get())).collect();
    let want: Vec<_> = listeners().iter().map(|l| (l.address, l.port_id)).collect();
    assert_eq!(told, want);
    assert_eq!((entries[0].adrfam, entries[0].rdma_prtype), (1, RdmaProvider::ROCE_V2.0));
    assert_eq!((entries[1].adrfam, entries[1].rdma_prtype), (2, RdmaProvider::IWARP.0));
    for entry in &entries[..2] {
        assert_eq!(entry.subsystem_nqn(), Ok(nqn(DISK)));
        assert_eq!((entry.kind().0, entry.treq, entry.cntlid.get()), (2, 6, 0xffff));
        assert_eq!((entry.rdma_qptype, entry.rdma_cms, entry.asqsz.get()), (1, 1, 32));
    }
    assert_eq!(entries[2].as_bytes(), &[0; 1024]);

    // A host of the other list sees both subsystems.
    let friend = data_for_friend();
    let controller =
        target.registry.connect_admin(Timestamp::ZERO, &connect(0, 32), &friend).unwrap();
    let mut admin = Admin { controller, now: Timestamp::ZERO };
    admin.enable();
    let data = log(&mut admin, LogPage::DISCOVERY, 16, 0).unwrap();
    assert_eq!(data[8], 4);
}

fn data_for_friend() -> ConnectData {
    data(ControllerId::DYNAMIC, Nqn::DISCOVERY, "nqn.2026-01.io.lariat:friend")
}

#[test]
fn a_wildcard_listener_is_refused() {
    for address in ["0.0.0.0:4420", "[::]:4420"] {
        let address = address.parse().unwrap();
        let any = vec![ListenerAddress { address, port_id: 1, provider: RdmaProvider::ROCE_V2 }];
        let refused = SubsystemMap::new(limits(), [disk()], any).unwrap_err();
        assert_eq!(refused, ConfigError::Listener(address));
    }
}

fn get(
    admin: &mut Admin,
    fid: FeatureId,
    select: u8,
    cdw11: u32,
) -> Result<(u64, Vec<u8>), Status> {
    let select = FeatureSelect(select);
    admin.run(AdminCommand::GetFeatures {
        fid: fid.0,
        select,
        nsid: Nsid::NONE,
        cdw11,
        uuid_index: 0,
    })
}

fn set(admin: &mut Admin, fid: FeatureId, cdw11: u32) -> Result<u64, Status> {
    admin.run(AdminCommand::set_feature(fid.0, Nsid::NONE, cdw11)).map(|(result, _)| result)
}

#[test]
fn features_that_change() {
    let mut admin = ready(DISK);
    // Feature, a value to set, how it reads afterwards, its default.
    for (fid, value, reads, default) in [
        (FeatureId::ARBITRATION, 0x0102_0307, 0x0102_0307, 0),
        (FeatureId::TEMPERATURE_THRESHOLD, 350, 350, 0xffff),
        (FeatureId::VOLATILE_WRITE_CACHE, 0, 0, 1),
        (FeatureId::WRITE_ATOMICITY, 1, 1, 0),
        (FeatureId::ASYNC_EVENT_CONFIG, 0xffff_ffff, 0xff, 0),
        (FeatureId::KEEP_ALIVE_TIMER, 1950, 2000, 0),
        (FeatureId::NUMBER_OF_QUEUES, 0x0001_0001, 0x0003_0003, 0x0003_0003),
        (FeatureId::POWER_MANAGEMENT, 0x20, 0, 0),
    ] {
        assert_eq!(get(&mut admin, fid, 0, 0), Ok((default, vec![])), "{fid}");
        set(&mut admin, fid, value).unwrap();
        assert_eq!(get(&mut admin, fid, 0, 0).unwrap().0, reads, "{fid}");
        assert_eq!(get(&mut admin, fid, 1, 0).unwrap().0, default, "{fid} default");
        assert_eq!(get(&mut admin, fid, 2, 0).unwrap().0, default, "{fid} saved");
        assert_eq!(get(&mut admin, fid, 3, 0).unwrap().0, 4, "{fid} is changeable");
        assert_refused(get(&mut admin, fid, 4, 0), Status::INVALID_FIELD);
        let save = AdminCommand::SetFeatures {
            fid: fid.0,
            save: true,
            nsid: Nsid::NONE,
            cdw11: 0,
            cdw12: 0,
            cdw13: 0,
            cdw14: 0,
            cdw15: 0,
        };
        assert_refused(admin.run(save), Status::FEATURE_NOT_SAVEABLE);
        let of_one = AdminCommand::set_feature(fid.0, Nsid(1), 0);
        assert_refused(admin.run(of_one), Status::FEATURE_NOT_NAMESPACE_SPECIFIC);
    }
    // The under-temperature threshold is another value.
    set(&mut admin, FeatureId::TEMPERATURE_THRESHOLD, 1 << 20 | 300).unwrap();
    assert_eq!(get(&mut admin, FeatureId::TEMPERATURE_THRESHOLD, 0, 1 << 20).unwrap().0, 300);
    assert_eq!(get(&mut admin, FeatureId::TEMPERATURE_THRESHOLD, 0, 0).unwrap().0, 350);
}

#[test]
fn values_and_features_that_are_refused() {
    let target = Target::new();
    let (mut admin, _io) = target.ready();
    let invalid = Status::INVALID_FIELD;
    assert_refused(set(&mut admin, FeatureId::POWER_MANAGEMENT, 1), invalid);
    assert_refused(set(&mut admin, FeatureId::TEMPERATURE_THRESHOLD, 1 << 16), invalid);
    assert_refused(set(&mut admin, FeatureId::TEMPERATURE_THRESHOLD, 2 << 20), invalid);
    assert_refused(set(&mut admin, FeatureId::NUMBER_OF_QUEUES, 0xffff), invalid);
    assert_refused(set(&mut admin, FeatureId::NUMBER_OF_QUEUES, 0xffff_0000), invalid);
    // Queues exist already.
    let late = set(&mut admin, FeatureId::NUMBER_OF_QUEUES, 0);
    assert_refused(late, Status::COMMAND_SEQUENCE_ERROR);
    assert_eq!(set(&mut admin, FeatureId::ERROR_RECOVERY, 0), Ok(0));
    let fixed = set(&mut admin, FeatureId::ERROR_RECOVERY, 1);
    assert_refused(fixed, Status::FEATURE_NOT_CHANGEABLE);
    let host = set(&mut admin, FeatureId::HOST_IDENTIFIER, 1);
    assert_refused(host, Status::COMMAND_SEQUENCE_ERROR);
    for fid in [0x00, 0x03, 0x08, 0x09, 0x0c, 0x0d, 0x10, 0x16, 0x80, 0x82, 0x84, 0xc0, 0xff] {
        for select in 0..4 {
            assert_refused(get(&mut admin, FeatureId(fid), select, 0), invalid);
        }
        assert_refused(set(&mut admin, FeatureId(fid), 0), invalid);
    }
}

#[test]
fn features_with_data() {
    let mut admin = ready(DISK);
    let host = get(&mut admin, FeatureId::HOST_IDENTIFIER, 0, 1).unwrap();
    assert_eq!(host, (0, HOST_ID.0.to_vec()));
    let short = get(&mut admin, FeatureId::HOST_IDENTIFIER, 0, 0);
    assert_refused(short, Status::INVALID_FIELD);

    admin.now = seconds(3);
    let (_, before) = get(&mut admin, FeatureId::TIMESTAMP, 0, 0).unwrap();
    assert_eq!(before, [0xb8, 0x0b, 0, 0, 0, 0, 0, 0], "3,000 ms since the start");
    let set = AdminCommand::set_feature(FeatureId::TIMESTAMP.0, Nsid::NONE, 0);
    let stamp = vec![0, 0, 0, 0, 1, 0, 0, 0];
    admin.run_raw(&set.to_command(CommandId(1)), stamp).unwrap();
    admin.now = seconds(4);
    let (_, after) = get(&mut admin, FeatureId::TIMESTAMP, 0, 0).unwrap();
    assert_eq!(after, [0xe8, 0x03, 0, 0, 1, 0, 2, 0], "1,000 ms later, by a host's clock");
}

#[test]
fn without_a_volatile_cache_there_is_no_cache_to_switch() {
    let steady = Geometry { volatile_write_cache: false, ..geometry(512, 8) };
    let subsystem = Subsystem::builder(nqn(DISK)).namespace(namespace(1, steady));
    let map = SubsystemMap::new(limits(), [subsystem], listeners()).unwrap();
    let target = Target::new();
    target.registry.replace_map(Arc::new(map));
    let mut admin = target.admin(DISK, 0);
    admin.enable();
    assert_refused(get(&mut admin, FeatureId::VOLATILE_WRITE_CACHE, 0, 0), Status::INVALID_FIELD);
    assert_refused(set(&mut admin, FeatureId::VOLATILE_WRITE_CACHE, 1), Status::INVALID_FIELD);
    let data = identify(&mut admin, Cns::CONTROLLER, 0).unwrap();
    assert_eq!(data[525], 0b110);
}

//! Connects, refused for each reason there is, and the life of identifiers.

use super::*;

#[track_caller]
fn refused<T: std::fmt::Debug>(got: Result<T, ConnectError>, status: Status, result: u64) {
    let error = got.unwrap_err();
    assert_eq!((error.status(), error.result()), (status, result), "{error}");
}

const INVALID: Status = Status::CONNECT_INVALID_PARAMETERS.with_dnr();
const IN_DATA: u64 = 1 << 16;

#[test]
fn only_a_connect_may_come_first() {
    for command in [
        Command::flush(Nsid(1)),
        AdminCommand::KeepAlive.to_command(CommandId(0)),
        FabricsCommand::Disconnect { recfmt: 0 }.to_command(CommandId(0)),
        FabricsCommand::PropertyGet { size: PropertySize::Eight, offset: 0 }
            .to_command(CommandId(0)),
    ] {
        assert_refused(ConnectCommand::parse(&command), Status::COMMAND_SEQUENCE_ERROR);
    }
}

#[test]
fn each_field_of_an_admin_connect_is_checked() {
    let target = Target::new();
    let dynamic = |subsystem| data(ControllerId::DYNAMIC, subsystem, HOST);
    let try_admin = |command: &ConnectCommand, data: &ConnectData| {
        target.registry.connect_admin(Timestamp::ZERO, command, data)
    };

    let old = ConnectCommand { recfmt: 1, ..connect(0, 32) };
    refused(try_admin(&old, &dynamic(DISK)), Status::CONNECT_INCOMPATIBLE_FORMAT.with_dnr(), 0);
    refused(try_admin(&connect(1, 32), &dynamic(DISK)), INVALID, 42);
    refused(try_admin(&connect(0, 1), &dynamic(DISK)), INVALID, 44);
    refused(try_admin(&connect(0, 129), &dynamic(DISK)), INVALID, 44);
    let static_id = data(ControllerId(1), DISK, HOST);
    refused(try_admin(&connect(0, 32), &static_id), INVALID, IN_DATA | 16);
    let any_static = data(ControllerId::STATIC_ANY, DISK, HOST);
    refused(try_admin(&connect(0, 32), &any_static), INVALID, IN_DATA | 16);
    let unknown = dynamic("nqn.2026-01.io.lariat:nothing");
    refused(try_admin(&connect(0, 32), &unknown), INVALID, IN_DATA | 256);
    let mut nameless = dynamic(DISK);
    nameless.subnqn = [b'x'; 256];
    refused(try_admin(&connect(0, 32), &nameless), INVALID, IN_DATA | 256);
    let mut hostless = dynamic(DISK);
    hostless.hostnqn = [0; 256];
    refused(try_admin(&connect(0, 32), &hostless), INVALID, IN_DATA | 512);
    refused(
        try_admin(&connect(0, 32), &dynamic(PRIVATE)),
        Status::CONNECT_INVALID_HOST.with_dnr(),
        IN_DATA | 512,
    );
    assert_eq!(target.registry.controllers(), 0);

    let friend = data(ControllerId::DYNAMIC, PRIVATE, "nqn.2026-01.io.lariat:friend");
    assert!(try_admin(&connect(0, 2), &friend).is_ok());
    assert!(try_admin(&connect(0, 128), &dynamic(DISK)).is_ok());
}

#[test]
fn a_small_depth_limit_still_leaves_the_admin_queue_that_hosts_make() {
    let small = Limits { max_queue_depth: QueueSize::from_entries(2).unwrap(), ..limits() };
    let target = Target::with_limits(small);
    let mut admin = target.admin(DISK, 0);
    admin.enable();
    assert_eq!(admin.controller.size().entries(), 32);
    let id = admin.controller.shared().id();
    let got = target.registry.attach_io(Timestamp::ZERO, &connect(1, 3), &data(id, DISK, HOST));
    refused(got, INVALID, 44);
    let io = target.registry.attach_io(Timestamp::ZERO, &connect(1, 2), &data(id, DISK, HOST));
    assert_eq!(io.unwrap().size().entries(), 2);
}

#[test]
fn each_field_of_an_io_connect_is_checked() {
    let target = Target::new();
    let mut admin = target.admin(DISK, 0);
    let id = admin.controller.shared().id();
    let try_io = |command: &ConnectCommand, data: &ConnectData| {
        target.registry.attach_io(Timestamp::ZERO, command, data)
    };
    let good = data(id, DISK, HOST);
    refused(try_io(&connect(1, 32), &good), Status::COMMAND_SEQUENCE_ERROR.with_dnr(), 0);
    admin.enable();
    refused(try_io(&connect(0, 32), &good), INVALID, 42);
    refused(try_io(&connect(5, 32), &good), INVALID, 42);
    refused(try_io(&connect(1, 1), &good), INVALID, 44);
    refused(try_io(&connect(1, 129), &good), INVALID, 44);
    refused(try_io(&connect(1, 32), &data(ControllerId(999), DISK, HOST)), INVALID, IN_DATA | 16);
    let stranger = data(id, DISK, "nqn.2026-01.io.lariat:friend");
    refused(try_io(&connect(1, 32), &stranger), INVALID, IN_DATA | 512);
    let mut twin = good;
    twin.host_id = [8; 16];
    refused(try_io(&connect(1, 32), &twin), INVALID, IN_DATA);

    let first = try_io(&connect(1, 32), &good).unwrap();
    assert_eq!(first.connect_result(), u64::from(id.0));
    refused(try_io(&connect(1, 32), &good), Status::COMMAND_SEQUENCE_ERROR.with_dnr(), 0);
    let fourth = try_io(&connect(4, 128), &good).unwrap();
    assert_eq!(admin.controller.shared().queues(), 2);
    drop((first, fourth));
    assert_eq!(admin.controller.shared().queues(), 0);
    assert!(try_io(&connect(1, 32), &good).is_ok());
}

#[test]
fn discovery_has_no_io_queues() {
    let target = Target::new();
    let mut admin = target.admin(Nqn::DISCOVERY, 120_000);
    admin.enable();
    let data = data(admin.controller.shared().id(), Nqn::DISCOVERY, HOST);
    let got = target.registry.attach_io(Timestamp::ZERO, &connect(1, 32), &data);
    refused(got, INVALID, 42);
}

#[test]
fn the_limit_of_hosts_is_a_reason_to_come_back_later() {
    let target = Target::new();
    let mut hosts: Vec<Admin> = (0..3).map(|_| target.admin(DISK, 0)).collect();
    let mut ids: Vec<u16> = hosts.iter().map(|host| host.controller.shared().id().0).collect();
    ids.dedup();
    assert_eq!(ids, [1, 2, 3]);
    let again = |target: &Target| {
        let data = data(ControllerId::DYNAMIC, DISK, HOST);
        target.registry.connect_admin(Timestamp::ZERO, &connect(0, 32), &data)
    };
    refused(again(&target), Status::CONNECT_CONTROLLER_BUSY, 0);
    // Another subsystem has places of its own.
    drop(target.admin(Nqn::DISCOVERY, 0));

    drop(hosts.remove(1));
    let next = again(&target).unwrap();
    assert_eq!(next.shared().id(), ControllerId(4), "2 is not used again at once");
    target.registry.close();
    drop(hosts);
    refused(again(&target), Status::CONNECT_CONTROLLER_BUSY, 0);
}

#[test]
fn controller_ids_wrap_around_those_in_use() {
    let target = Target::new();
    let keeper = target.admin(DISK, 0);
    for _ in 0..u32::from(ControllerId::MAX.0) {
        drop(target.admin(DISK, 0));
    }
    // 1 is in use, so the next round starts at 2; and 3 follows.
    assert_eq!(keeper.controller.shared().id(), ControllerId(1));
    let next = target.admin(DISK, 0);
    assert_eq!(next.controller.shared().id(), ControllerId(3));
}

#[test]
fn flow_control_can_be_switched_off() {
    let target = Target::new();
    let (admin, io) = target.ready();
    assert!(admin.controller.sq_flow_control() && io.sq_flow_control());
    let data = data(admin.controller.shared().id(), DISK, HOST);
    let command = ConnectCommand { cattr: 1 << 2, ..connect(2, 32) };
    let io = target.registry.attach_io(Timestamp::ZERO, &command, &data).unwrap();
    assert!(!io.sq_flow_control());
}

#[test]
fn descriptions_that_cannot_be_served_say_why() {
    let build = |limits, subsystems: Vec<SubsystemBuilder>| {
        SubsystemMap::new(limits, subsystems, listeners()).map(|_| ()).unwrap_err()
    };
    let bad = |change: fn(&mut Limits)| {
        let mut limits = limits();
        change(&mut limits);
        build(limits, vec![])
    };
    assert_eq!(bad(|l| l.max_queues = 0), ConfigError::MaxQueues(0));
    assert_eq!(
        bad(|l| l.max_queue_depth = QueueSize::from_zero_based(0)),
        ConfigError::MaxQueueDepth(1)
    );
    assert_eq!(
        bad(|l| l.max_queue_depth = QueueSize::from_zero_based(1025)),
        ConfigError::MaxQueueDepth(1026)
    );
    for bytes in [0, 512, 4096, 12288, 16 << 20] {
        let limits = Limits { mdts_bytes: bytes, ..limits() };
        assert_eq!(build(limits, vec![]), ConfigError::Mdts(bytes));
    }
    assert_eq!(bad(|l| l.in_capsule_bytes = 8), ConfigError::InCapsule(8));
    assert_eq!(bad(|l| l.max_hosts = 0), ConfigError::MaxHosts(0));

    let own = |builder| build(limits(), vec![builder]);
    let nqn_of_disk = nqn(DISK);
    let one = |namespace| Subsystem::builder(nqn(DISK)).namespace(namespace);
    assert_eq!(own(Subsystem::builder(Nqn::discovery())), ConfigError::DiscoveryNqn);
    assert!(matches!(own(disk().serial("")), ConfigError::Text { field: "serial", max: 20, .. }));
    assert!(matches!(own(disk().model("ü")), ConfigError::Text { field: "model", .. }));
    let duplicate = disk().namespace(namespace(2, geometry(512, 8)));
    assert_eq!(own(duplicate), ConfigError::DuplicateNsid { nqn: nqn_of_disk, nsid: Nsid(2) });
    for nsid in [0, 1025] {
        let namespace = Namespace { nsid: Nsid(nsid), ..namespace(1, geometry(512, 8)) };
        assert!(matches!(own(one(namespace)), ConfigError::Nsid { .. }));
    }
    for geometry in [geometry(520, 8), geometry(512, 0)] {
        assert!(matches!(own(one(namespace(1, geometry))), ConfigError::Geometry { .. }));
    }
    let twins =
        vec![disk(), Subsystem::builder(nqn(PRIVATE)).namespace(namespace(1, geometry(512, 8)))];
    assert_eq!(
        build(limits(), twins),
        ConfigError::DuplicateIdentifier {
            first: (nqn(DISK), Nsid(1)),
            second: (nqn(PRIVATE), Nsid(1)),
        }
    );
    assert_eq!(build(limits(), vec![disk(), disk()]), ConfigError::DuplicateNqn(nqn(DISK)));
}

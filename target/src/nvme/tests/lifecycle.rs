//! Bring-up, reset, shutdown, keep alive, events and aborts.

use std::time::Duration;

use lariat_wire::nvme::{
    AsyncEvent, Capabilities, Cns, FeatureId, IdentifyController, LogPage, Numd,
    ShutdownNotification, Version,
};
use proptest::prelude::*;

use super::*;

/// What Linux 6.x sends from the Connect of the admin queue to the first I/O queue.
#[test]
fn bring_up_as_linux_does_it() {
    let target = Target::new();
    let mut admin = target.admin(DISK, 5000);
    assert_eq!(admin.controller.connect_result(), 1);
    let cap = Capabilities(admin.get(PropertySize::Eight, 0).unwrap());
    assert_eq!(cap.max_queue().entries(), 128);
    assert_eq!((cap.command_sets(), cap.min_page_bytes()), (1, 4096));
    assert!(cap.contiguous_queues() && !cap.ready_timeout().is_zero());
    assert_eq!(admin.get(PropertySize::Four, 8), Ok(u64::from(Version::V1_4.0)));
    assert_eq!(admin.csts(), 0);
    assert!(!admin.controller.shared().is_ready());
    admin.enable();
    assert!(admin.controller.shared().is_ready());

    let (_, identify) = admin.run(AdminCommand::identify(Cns::CONTROLLER, Nsid::NONE)).unwrap();
    let identify = IdentifyController::read_from(&identify).unwrap();
    assert_eq!(identify.controller_id(), ControllerId(1));
    assert!(u32::from(identify.maxcmd.get()) >= 128);
    assert_ne!(identify.kas.get(), 0);

    let effects = AdminCommand::log_page(
        LogPage::COMMAND_EFFECTS.0,
        Nsid::ALL,
        Numd::from_bytes(4096).unwrap(),
        0,
    );
    admin.run(effects).unwrap();
    let queues = AdminCommand::set_feature(FeatureId::NUMBER_OF_QUEUES.0, Nsid::NONE, 0x0007_0007);
    assert_eq!(admin.run(queues).unwrap().0, 0x0003_0003);
    let mut io: Vec<_> = (1..=4).map(|qid| target.io(&admin, qid).unwrap()).collect();
    admin.run(AdminCommand::KeepAlive).unwrap();

    // And down again: the queues go first, then the shutdown, then the admin connection.
    io.clear();
    let leaving = ControllerConfig::enable_nvm().with_shutdown(ShutdownNotification::NORMAL);
    admin.set_cc(leaving);
    assert_eq!(admin.csts() >> 2 & 3, 2, "shutdown is complete");
    assert_refused(admin.run(AdminCommand::KeepAlive), Status::COMMAND_SEQUENCE_ERROR);
    assert_eq!(target.registry.controllers(), 1);
    let shared = Arc::clone(admin.controller.shared());
    drop(admin);
    assert_eq!(target.registry.controllers(), 0);
    assert_eq!(shared.terminated(), Some(TerminateReason::AdminGone));
}

#[test]
fn properties_are_exact() {
    let mut admin = Target::new().admin(DISK, 0);
    let (four, eight) = (PropertySize::Four, PropertySize::Eight);
    for (size, offset) in [
        (four, 0),      // CAP is 8 bytes
        (four, 4),      // its upper half
        (eight, 8),     // VS is 4
        (eight, 0x14),  // CC is 4
        (eight, 0x1c),  // CSTS is 4
        (four, 0x0c),   // interrupts do not exist here
        (four, 0x20),   // nor does a subsystem reset
        (four, 0x15),   // unaligned
        (eight, 0x28),  // queue addresses
        (four, 0x1000), // doorbells
        (four, u32::MAX),
    ] {
        assert_refused(admin.get(size, offset), Status::INVALID_FIELD);
        assert_refused(admin.set(size, offset, 1), Status::INVALID_FIELD);
    }
    for (size, offset) in [(eight, 0), (four, 8), (four, CSTS_OFFSET)] {
        assert_refused(admin.set(size, offset, 1), Status::INVALID_FIELD);
    }
    admin.enable();
    assert_eq!(admin.get(four, CC_OFFSET), Ok(0x0046_0001));
}

#[test]
fn a_configuration_that_cannot_be_is_fatal_until_the_next_try() {
    let mut admin = Target::new().admin(DISK, 0);
    let good = ControllerConfig::enable_nvm();
    for bad in [
        ControllerConfig(good.0 & !(0xf << 16)), // 1-byte commands
        ControllerConfig(good.0 & !(0xf << 20)), // 1-byte completions
        ControllerConfig(good.0 | 1 << 7),       // 8 KiB pages
        ControllerConfig(good.0 | 1 << 11),      // weighted arbitration
        good.with_command_set(6),
    ] {
        admin.set_cc(bad);
        assert_eq!(admin.csts(), 2, "{bad:?}");
        assert!(!admin.controller.shared().is_ready());
        assert_refused(admin.run(AdminCommand::KeepAlive), Status::COMMAND_SEQUENCE_ERROR);
        admin.set_cc(ControllerConfig::default());
        assert_eq!(admin.csts(), 0);
    }
    admin.enable();
    // Discovery has no I/O queues whose entries could have a size.
    let mut discovery = Target::new().admin(Nqn::DISCOVERY, 0);
    discovery.set_cc(ControllerConfig::default().with_enabled(true));
    assert_eq!(discovery.csts(), 1);
}

#[test]
fn before_it_is_enabled_a_controller_has_properties_alone() {
    let mut admin = Target::new().admin(DISK, 0);
    for command in [
        AdminCommand::identify(Cns::CONTROLLER, Nsid::NONE),
        AdminCommand::KeepAlive,
        AdminCommand::get_feature(7, Nsid::NONE),
        AdminCommand::AsyncEventRequest,
    ] {
        assert_refused(admin.run(command), Status::COMMAND_SEQUENCE_ERROR);
    }
    let again = FabricsCommand::Connect {
        recfmt: 0,
        qid: Qid(0),
        sqsize: QueueSize::from_zero_based(31),
        cattr: 0,
        kato_ms: 0,
    };
    for (command, status) in [
        (again, Status::COMMAND_SEQUENCE_ERROR),
        (FabricsCommand::Disconnect { recfmt: 0 }, Status::INVALID_QUEUE_TYPE),
        (FabricsCommand::Unsupported(5.into()), Status::INVALID_OPCODE),
    ] {
        assert_refused(admin.run_raw(&command.to_command(CommandId(1)), vec![]), status);
    }
}

#[test]
fn a_reset_takes_the_io_queues_and_frees_their_identifiers() {
    let target = Target::new();
    let (mut admin, old) = target.ready();
    let off = AdminCommand::set_feature(FeatureId::VOLATILE_WRITE_CACHE.0, Nsid::NONE, 0);
    admin.run(off).unwrap();
    admin.hold_event_request(40).unwrap();
    assert!(old.is_live() && old.admit(&Command::flush(Nsid(1))).is_ok());
    target.wakes();

    admin.set_cc(ControllerConfig::default());
    assert!(!old.is_live());
    assert!(target.wakes() > 0, "reactors have to look");
    assert_eq!(admin.csts(), 1, "its commands may be in the storage: the reset is under way");
    old.storage_is_done();
    assert_eq!(admin.csts(), 0);
    let aborted =
        AdminEvent::CompleteHeld { cid: CommandId(40), result: 0, status: Status::ABORT_REQUESTED };
    assert_eq!(admin.poll(), [aborted]);
    assert_eq!(target.io(&admin, 1).unwrap_err(), ConnectError::NotReady(ControllerId(1)));

    admin.enable();
    let new = target.io(&admin, 1).unwrap();
    // The old queue's connection may stand a while longer: nothing of it counts any more.
    let late = old.admit(&Command::flush(Nsid(1))).unwrap_err();
    assert!(late.same_code(Status::ABORTED_SQ_DELETION));
    drop(old);
    assert_eq!(admin.controller.shared().queues(), 1);
    assert!(new.is_live() && new.admit(&Command::flush(Nsid(1))).is_ok());
    let cache = AdminCommand::get_feature(FeatureId::VOLATILE_WRITE_CACHE.0, Nsid::NONE);
    assert_eq!(admin.run(cache).unwrap().0, 1, "features are at their defaults");
}

#[test]
fn a_host_that_comes_back_waits_for_what_it_left_behind() {
    let target = Target::new();
    let (admin, io) = target.ready();
    let (second, _other) = target.ready();
    let id = admin.controller.shared().id();
    drop(admin);
    let again = |name, host_id| {
        let data = ConnectData::new(host_id, ControllerId::DYNAMIC, &nqn(DISK), &nqn(name));
        target.registry.connect_admin(Timestamp::ZERO, &connect(0, 32), &data).map(drop)
    };
    let refused = again(HOST, HOST_ID).unwrap_err();
    assert_eq!(refused, ConnectError::Predecessor(id));
    assert!(!refused.status().dnr(), "it will be possible soon");
    assert_eq!(again("nqn.2026-01.io.lariat:another", HOST_ID), Ok(()));
    assert_eq!(again(HOST, HostId([8; 16])), Ok(()));
    io.storage_is_done();
    assert_eq!(again(HOST, HOST_ID), Ok(()));
    // Its other controller never mattered.
    drop(second);
}

#[test]
fn after_a_shutdown_only_a_reset_helps() {
    let target = Target::new();
    let (mut admin, io) = target.ready();
    let enabled = ControllerConfig::enable_nvm();
    admin.set_cc(enabled.with_shutdown(ShutdownNotification::ABRUPT));
    assert_eq!(admin.csts(), 0b1001);
    assert_refused(io.admit(&Command::flush(Nsid(1))), Status::COMMAND_SEQUENCE_ERROR);
    admin.set_cc(enabled);
    assert_eq!(admin.csts(), 0b1001, "taking the notification back changes nothing");
    admin.set_cc(ControllerConfig::default());
    admin.enable();
    assert!(admin.run(AdminCommand::KeepAlive).is_ok());
}

#[test]
fn a_discovery_host_that_dies_without_keep_alive_is_given_up() {
    let target = Target::new();
    let mut admin = target.admin(Nqn::DISCOVERY, 0);
    admin.enable();
    admin.now = seconds(100);
    admin.run(AdminCommand::identify(Cns::CONTROLLER, Nsid::NONE)).unwrap();
    admin.now = seconds(120);
    assert_eq!(admin.poll(), [], "it was there meanwhile");
    assert_eq!(admin.controller.next_timeout(), seconds(240));
    admin.now = seconds(240);
    assert_eq!(admin.poll(), [AdminEvent::Fatal(TerminateReason::KeepAliveExpired)]);
    // A controller with disks is kept as long as the host wants.
    let mut admin = target.admin(DISK, 0);
    admin.enable();
    assert_eq!(admin.controller.next_timeout(), Timestamp::NEVER);
}

#[test]
fn a_silent_host_is_given_up_after_its_timeout() {
    let target = Target::new();
    let mut admin = target.admin(DISK, 5000);
    admin.enable();
    admin.run(AdminCommand::KeepAlive).unwrap();
    let io = target.io(&admin, 1).unwrap();
    assert_eq!(admin.controller.next_timeout(), seconds(5));
    admin.now = seconds(4);
    assert_eq!(admin.poll(), []);
    admin.run(AdminCommand::KeepAlive).unwrap();
    assert_eq!(admin.controller.next_timeout(), seconds(9));

    // Traffic keeps it alive as well (NVMe Base 2.1, 3.9.4).
    admin.now = seconds(8);
    io.admit(&Command::flush(Nsid(1))).unwrap();
    admin.now = seconds(9);
    assert_eq!(admin.poll(), []);
    assert_eq!(admin.controller.next_timeout(), seconds(14));
    admin.now = seconds(14) + Duration::from_nanos(1);
    assert!(io.is_live());
    target.wakes();
    assert_eq!(admin.poll(), [AdminEvent::Fatal(TerminateReason::KeepAliveExpired)]);
    assert!(!io.is_live() && target.wakes() > 0);
    assert_eq!(io.controller().terminated(), Some(TerminateReason::KeepAliveExpired));
    assert_eq!(admin.poll(), [], "it is told once");
    assert_eq!(admin.controller.next_timeout(), Timestamp::NEVER);
    assert_eq!(
        target.io(&admin, 2).unwrap_err(),
        ConnectError::ControllerId(ControllerId(1)),
        "no queue for a controller that is gone"
    );
}

#[test]
fn without_a_timeout_silence_is_no_fault() {
    let target = Target::new();
    let mut admin = target.admin(DISK, 0);
    admin.enable();
    admin.now = seconds(1_000_000);
    assert_eq!(admin.controller.next_timeout(), Timestamp::NEVER);
    assert_eq!(admin.poll(), []);
    // Set Features can start one; it counts in units of 100 ms.
    let set = AdminCommand::set_feature(FeatureId::KEEP_ALIVE_TIMER.0, Nsid::NONE, 1001);
    admin.run(set).unwrap();
    assert_eq!(admin.controller.next_timeout(), admin.now + Duration::from_millis(1100));
    let get = AdminCommand::get_feature(FeatureId::KEEP_ALIVE_TIMER.0, Nsid::NONE);
    assert_eq!(admin.run(get).unwrap().0, 1100);
}

#[test]
fn a_stopping_target_ends_its_controllers() {
    let target = Target::new();
    let (mut admin, io) = target.ready();
    target.registry.terminate_all(TerminateReason::Shutdown);
    assert!(!io.is_live());
    assert_eq!(admin.poll(), [AdminEvent::Fatal(TerminateReason::Shutdown)]);
}

#[test]
fn four_event_requests_wait_the_fifth_is_too_many() {
    let mut admin = Target::new().admin(DISK, 0);
    admin.enable();
    for cid in 1..=4 {
        admin.hold_event_request(cid).unwrap();
    }
    assert_refused(admin.hold_event_request(5), Status::ASYNC_EVENT_LIMIT_EXCEEDED);
    assert_eq!(admin.poll(), []);

    // Abort takes one of them; what does not wait cannot be aborted.
    let abort = |qid, cid| AdminCommand::Abort { sqid: Qid(qid), cid: CommandId(cid) };
    assert_eq!(admin.run(abort(0, 77)).unwrap().0, 1);
    assert_eq!(admin.run(abort(1, 3)).unwrap().0, 1);
    assert_eq!(admin.controller.next_timeout(), Timestamp::NEVER);
    assert_eq!(admin.run(abort(0, 3)).unwrap().0, 0);
    assert_eq!(admin.controller.next_timeout(), Timestamp::ZERO, "poll has something");
    let aborted =
        AdminEvent::CompleteHeld { cid: CommandId(3), result: 0, status: Status::ABORT_REQUESTED };
    assert_eq!(admin.poll(), [aborted]);
    assert_eq!(admin.run(abort(0, 3)).unwrap().0, 1);
    admin.hold_event_request(5).unwrap();
}

#[test]
fn a_changed_discovery_log_is_told_once_until_it_is_read() {
    let target = Target::new();
    let mut admin = target.admin(Nqn::DISCOVERY, 60_000);
    admin.enable();
    let change = |target: &Target| {
        let map = SubsystemMap::new(limits(), [disk()], listeners()).unwrap();
        target.registry.replace_map(Arc::new(map));
    };
    let read = |rae| {
        let mut command = AdminCommand::log_page(0x70, Nsid::NONE, Numd::from_zero_based(3), 0);
        if let AdminCommand::GetLogPage { rae: field, .. } = &mut command {
            *field = rae;
        }
        command
    };
    let told = |cid| AdminEvent::CompleteHeld {
        cid: CommandId(cid),
        result: AsyncEvent::DISCOVERY_CHANGED.to_result(),
        status: Status::SUCCESS,
    };
    admin.hold_event_request(1).unwrap();
    admin.hold_event_request(2).unwrap();
    change(&target);
    assert_eq!(admin.poll(), [], "nobody asked for it");

    let config = AdminCommand::set_feature(FeatureId::ASYNC_EVENT_CONFIG.0, Nsid::NONE, 1 << 31);
    admin.run(config).unwrap();
    target.wakes();
    change(&target);
    assert!(target.wakes() > 0);
    assert_eq!(admin.poll(), [told(1)]);
    change(&target);
    assert_eq!(admin.poll(), []);
    admin.run(read(true)).unwrap();
    assert_eq!(admin.poll(), [], "a read that retains the event");
    let (_, header) = admin.run(read(false)).unwrap();
    assert_eq!(header[0], 4, "the generation counts the changes");
    assert_eq!(admin.poll(), [told(2)]);
}

fn ready_controller() -> Admin {
    let mut admin = Target::new().admin(DISK, 0);
    admin.enable();
    admin
}

proptest! {
    /// Any command gets an answer, whatever its bytes, and no answer is longer than was planned.
    #[test]
    fn any_admin_command_is_answered(
        commands in proptest::collection::vec(
            (any::<[[u8; 32]; 2]>(), 0u8..0x20, any::<bool>(), 0u8..0x90), 1..20),
    ) {
        let mut admin = ready_controller();
        for (bytes, opcode, known, selector) in commands {
            let mut bytes: [u8; 64] = *bytes.as_flattened().first_chunk().unwrap();
            if known {
                bytes[0] = if opcode == 0x1f { 0x7f } else { opcode };
                bytes[1] = 0x40;
                bytes[40] = selector;
                bytes[4] &= 0xf;
            }
            let command = Command::from_bytes(&bytes);
            let Ok(plan) = admin.controller.prepare(&command) else { continue };
            prop_assert!(plan.transfer.bytes() <= limits().mdts_bytes);
            let mut data = vec![0; usize::try_from(plan.transfer.bytes()).unwrap()];
            match admin.controller.execute(admin.now, &plan, &mut data) {
                AdminOutcome::Complete { bytes, .. } => prop_assert!(bytes <= plan.transfer.bytes()),
                AdminOutcome::Hold => prop_assert_eq!(command.opcode, 0x0c),
            }
            admin.poll();
        }
    }
}

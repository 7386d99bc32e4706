//! Hosts that misbehave or die, disks that fail or are slow, buffers that are short.

use lariat_fabric::Armed;
use lariat_fabric::verbs::{DisconnectReason, SendOp};
use lariat_wire::nvme::{ControllerId, IoCommand, Sgl, Status};
use lariat_wire::rdma_cm::{ConnectReject, RejectStatus};

use super::mock::address_of;
use super::*;
use crate::storage::StorageError;

#[test]
fn a_short_capsule_ends_the_connection() {
    let mut rig = Rig::new();
    let (admin, cntlid) = rig.controller();
    let conn = rig.queue(cntlid, 1, 32, 16);
    rig.fabric().capsule(conn, &[0; 63]);
    rig.settle();
    assert!(!rig.is_there(conn));
    assert!(rig.is_there(admin));
    assert_eq!(rig.reactor.statistics().violations, 1);
}

#[test]
fn more_commands_than_entries_end_the_connection() {
    let mut rig = Rig::new();
    let (_, cntlid) = rig.controller();
    let conn = rig.queue(cntlid, 1, 4, 16);
    rig.storage().held = true;
    for key in 0..4 {
        let sgl = rig.memory(conn, key, vec![0; 512]);
        let command = rig.read_command(0, 1, sgl);
        rig.send(conn, &command);
    }
    rig.settle();
    assert!(rig.is_there(conn));
    let sgl = rig.memory(conn, 4, vec![0; 512]);
    let command = rig.read_command(0, 1, sgl);
    rig.send(conn, &command);
    rig.settle();
    assert_eq!(rig.reactor.statistics().violations, 1);
    // It waits for the disk, then it is gone.
    assert_eq!(rig.reactor.connections(), 2);
    rig.storage().held = false;
    rig.settle();
    assert!(!rig.is_there(conn));
    assert_eq!(rig.reactor.connections(), 1);
}

#[test]
fn what_is_wrong_with_a_command_becomes_its_status() {
    let mut rig = Rig::new();
    let (_, cntlid) = rig.controller();
    let conn = rig.queue(cntlid, 1, 32, 16);
    let sgl = rig.memory(conn, 1, vec![0; 512]);
    let short = rig.read_command(0, 2, sgl);
    let null = rig.read_command(0, 1, Sgl::Null);
    let kind = Sgl::Unknown { kind: 3, subtype: 0, body: [1; 15] };
    let unknown = rig.read_command(0, 1, kind);
    let capsule = rig.write_command(0, 1, Sgl::InCapsule { offset: 0, length: 512 });
    let beyond = rig.read_command(mock_storage::BLOCKS, 1, sgl);
    let cid = rig.next_cid();
    let opcode = Command::new(0x7d).with_cid(cid);
    rig.storage().held = true;
    for (command, status) in [
        (short, Status::DATA_SGL_LENGTH_INVALID),
        (null, Status::DATA_SGL_LENGTH_INVALID),
        (unknown, Status::SGL_INVALID_TYPE),
        (capsule, Status::DATA_SGL_LENGTH_INVALID),
        (beyond, Status::LBA_OUT_OF_RANGE),
        (opcode, Status::INVALID_OPCODE),
    ] {
        rig.send(conn, &command);
        rig.settle();
        let completion = rig.response(conn);
        assert!(completion.status().same_code(status), "{} for {command:?}", completion.status());
        assert_eq!(completion.command_id(), command.command_id());
    }
    // Nothing was touched.
    assert!(rig.storage().pending.is_empty());
    assert_eq!(rig.reactor.statistics().error_responses, 6);
}

#[test]
fn a_duplicate_identifier_is_refused_and_the_first_goes_on() {
    let mut rig = Rig::new();
    let (_, cntlid) = rig.controller();
    let conn = rig.queue(cntlid, 1, 32, 16);
    rig.storage().held = true;
    let sgl = rig.memory(conn, 1, vec![0; 512]);
    let command = rig.read_command(0, 1, sgl);
    for _ in 0..3 {
        rig.send(conn, &command);
        rig.settle();
    }
    for _ in 0..2 {
        assert!(rig.response(conn).status().same_code(Status::COMMAND_ID_CONFLICT));
    }
    rig.storage().held = false;
    rig.settle();
    assert!(rig.response(conn).status().is_success());
    rig.send(conn, &command);
    rig.settle();
    assert!(rig.response(conn).status().is_success());
}

#[test]
fn storage_errors_become_statuses() {
    let mut rig = Rig::new();
    let (_, cntlid) = rig.controller();
    let conn = rig.queue(cntlid, 1, 32, 16);
    rig.storage().fail = Some(StorageError::Read { errno: 5 });
    let sgl = rig.memory(conn, 1, vec![3; 512]);
    let command = rig.read_command(0, 1, sgl);
    rig.fabric().log.clear();
    rig.send(conn, &command);
    rig.settle();
    assert!(rig.response(conn).status().same_code(Status::UNRECOVERED_READ_ERROR));
    // No data goes with it.
    assert_eq!(rig.fabric().log, ["response"]);
    assert_eq!(rig.host(conn).host[&1], vec![3; 512]);
    rig.storage().fail = Some(StorageError::NoSpace);
    let command = rig.write_command(0, 1, sgl);
    rig.send(conn, &command);
    rig.settle();
    assert!(rig.response(conn).status().same_code(Status::CAPACITY_EXCEEDED));
}

#[test]
fn a_wrong_key_ends_the_connection_quietly() {
    for write in [false, true] {
        let mut rig = Rig::new();
        let (_, cntlid) = rig.controller();
        let conn = rig.queue(cntlid, 1, 32, 16);
        let sgl = Sgl::Keyed { address: address_of(77), length: 512, key: 77, invalidate: false };
        let command =
            if write { rig.write_command(0, 1, sgl) } else { rig.read_command(0, 1, sgl) };
        rig.send(conn, &command);
        rig.settle();
        assert!(!rig.is_there(conn));
        assert_eq!(rig.reactor.resources().requests, 0);
        assert_eq!(rig.reactor.statistics().anomalies, 0);
    }
}

#[test]
fn a_connection_that_dies_keeps_its_buffers_until_the_disk_is_done() {
    let mut rig = Rig::new();
    let (admin, cntlid) = rig.controller();
    let conn = rig.queue(cntlid, 1, 32, 16);
    rig.storage().held = true;
    let sgl = rig.memory(conn, 1, vec![0; 4096]);
    let read = rig.read_command(0, 8, sgl);
    rig.send(conn, &read);
    let write = rig.write_command(0, 1, Sgl::InCapsule { offset: 0, length: 512 });
    let mut capsule = write.to_bytes().to_vec();
    capsule.resize(64 + 512, 0x77);
    rig.fabric().capsule(conn, &capsule);
    rig.settle();
    rig.fabric().cut(conn, DisconnectReason::Peer);
    rig.settle();
    rig.pass(Duration::from_secs(60));
    let resources = rig.reactor.resources();
    assert_eq!(resources.requests, 2);
    assert!(resources.buffer_bytes_free < resources.buffer_bytes);
    assert!(rig.is_there(conn), "destroyed under the disk's feet");
    // The identifier is not free yet: a successor must not be overtaken by the old write.
    let next = rig.dial(1, 32, 16);
    let completion = rig.connect(next, 1, 32, cntlid);
    assert!(completion.status().same_code(Status::COMMAND_SEQUENCE_ERROR));
    rig.storage().held = false;
    rig.settle();
    assert!(!rig.is_there(conn));
    assert!(rig.connect(next, 1, 32, cntlid).status().is_success());
    for conn in [next, admin] {
        rig.fabric().cut(conn, DisconnectReason::Timeout);
    }
    rig.settle();
    rig.check_nothing_leaked();
}

/// A controller that died with a write in the storage, and its host's next Connect.
fn reconnect_over_a_slow_disk() -> (Rig, ConnId) {
    let mut rig = Rig::new();
    let (admin, cntlid) = rig.controller();
    let conn = rig.queue(cntlid, 1, 32, 16);
    rig.storage().held = true;
    let sgl = rig.memory(conn, 1, vec![1; 512]);
    let write = rig.write_command(0, 1, sgl);
    rig.send(conn, &write);
    rig.settle();
    assert_eq!(rig.storage().pending.len(), 1);
    rig.fabric().cut(admin, DisconnectReason::Peer);
    rig.pass(Duration::from_millis(2));
    let next = rig.dial(0, 32, 16);
    let data = Rig::connect_data(ControllerId::DYNAMIC).to_vec();
    rig.host(next).host.insert(CONNECT_KEY, data);
    let connect = rig.connect_command(0, 32);
    rig.send(next, &connect);
    rig.pass(Duration::from_secs(1));
    assert!(rig.host(next).responses.is_empty(), "the old write could overtake what comes now");
    (rig, next)
}

#[test]
fn a_host_that_comes_back_is_not_overtaken_by_what_it_sent_before() {
    let (mut rig, next) = reconnect_over_a_slow_disk();
    let Armed::Until(look) = rig.reactor.arm(rig.now) else { panic!("nothing to do") };
    assert!(look <= rig.now + Duration::from_millis(10));
    rig.storage().held = false;
    rig.pass(Duration::from_millis(2));
    assert!(rig.response(next).status().is_success());
    rig.fabric().cut(next, DisconnectReason::Peer);
    rig.settle();
    rig.check_nothing_leaked();
}

#[test]
fn a_host_that_comes_back_does_not_wait_for_ever() {
    let (mut rig, next) = reconnect_over_a_slow_disk();
    rig.pass(config().connect_timeout / 2);
    let status = rig.response(next).status();
    assert!(status.same_code(Status::CONNECT_CONTROLLER_BUSY) && !status.dnr(), "{status}");
    // One that dies while it waits leaves nothing behind either.
    let connect = rig.connect_command(0, 32);
    rig.send(next, &connect);
    rig.settle();
    rig.fabric().cut(next, DisconnectReason::Peer);
    rig.storage().held = false;
    rig.pass(Duration::from_millis(2));
    rig.check_nothing_leaked();
}

#[test]
fn a_host_that_dies_in_its_connect_leaks_nothing() {
    let mut rig = Rig::new();
    let conn = rig.dial(0, 32, 16);
    rig.host(conn).credit = Some(0);
    let data = Rig::connect_data(ControllerId::DYNAMIC).to_vec();
    rig.host(conn).host.insert(CONNECT_KEY, data);
    let command = rig.connect_command(0, 32);
    rig.send(conn, &command);
    rig.settle();
    assert!(matches!(rig.host(conn).sends[0].op, SendOp::Read { .. }));
    assert_eq!(rig.reactor.resources().requests, 1);
    // The fabric never says a word: the reactor's own timer ends it.
    let Armed::Until(deadline) = rig.reactor.arm(rig.now) else { panic!("nothing to do") };
    assert!(deadline <= rig.now + config().connect_timeout);
    rig.pass(config().connect_timeout);
    rig.check_nothing_leaked();
    assert_eq!(rig.reactor.statistics().connect_timeouts, 1);
}

#[test]
fn a_failed_connect_does_not_stop_the_clock() {
    let mut rig = Rig::new();
    let conn = rig.dial(1, 32, 16);
    let completion = rig.connect(conn, 1, 32, ControllerId(99));
    assert!(completion.status().same_code(Status::CONNECT_INVALID_PARAMETERS));
    rig.pass(config().connect_timeout);
    rig.check_nothing_leaked();
}

#[test]
fn when_data_has_all_buffers_admin_and_connect_go_on() {
    let mut rig = Rig::new();
    let (admin, cntlid) = rig.controller();
    let conn = rig.queue(cntlid, 1, 128, 16);
    rig.storage().held = true;
    // 1 MiB of buffers, 64 KiB each.
    for key in 0..20 {
        let sgl = rig.memory(conn, key, vec![0; 64 << 10]);
        let command = rig.read_command(0, 128, sgl);
        rig.send(conn, &command);
    }
    rig.settle();
    assert_eq!(rig.storage().pending.len(), 16);
    assert_eq!(rig.reactor.resources().waiting_for_buffers, 4);
    let second = rig.queue(cntlid, 2, 32, 16);
    let sgl = rig.memory(admin, 1, vec![0; 4096]);
    let cid = rig.next_cid();
    let mut identify = Command::new(0x06).with_cid(cid).with_sgl(sgl);
    identify.cdw10.set(1);
    rig.send(admin, &identify);
    rig.settle();
    assert!(rig.response(admin).status().is_success());
    // A small read waits behind the large ones, and gets its turn.
    let sgl = rig.memory(second, 1, vec![0; 512]);
    let small = rig.read_command(0, 1, sgl);
    rig.send(second, &small);
    rig.settle();
    assert!(rig.host(second).responses.is_empty());
    rig.storage().held = false;
    rig.settle();
    assert_eq!(rig.host(conn).responses.len(), 20);
    assert!(rig.response(second).status().is_success());
    assert_eq!(rig.reactor.statistics().buffer_waits, 5);
}

#[test]
fn a_full_storage_queue_is_waited_for_in_order() {
    let mut rig = Rig::new();
    let (_, cntlid) = rig.controller();
    let conn = rig.queue(cntlid, 1, 32, 16);
    rig.storage().capacity = 2;
    rig.storage().held = true;
    let mut sent = Vec::new();
    for key in 0..10 {
        let sgl = rig.memory(conn, key, vec![0; 512]);
        let command = rig.read_command(u64::from(key), 1, sgl);
        sent.push(command.command_id());
        rig.send(conn, &command);
    }
    rig.settle();
    assert_eq!(rig.reactor.resources().waiting_for_storage, 8);
    rig.storage().held = false;
    rig.settle();
    let answered: Vec<_> =
        rig.host(conn).responses.iter().map(|response| response.command_id()).collect();
    assert_eq!(answered, sent);
}

#[test]
fn what_waits_for_the_storage_is_not_started_for_a_dead_connection() {
    let mut rig = Rig::new();
    let (_, cntlid) = rig.controller();
    let conn = rig.queue(cntlid, 1, 32, 16);
    rig.storage().capacity = 1;
    rig.storage().held = true;
    for key in 0..3 {
        let sgl = rig.memory(conn, key, vec![0; 512]);
        let command = rig.read_command(u64::from(key), 1, sgl);
        rig.send(conn, &command);
    }
    rig.settle();
    rig.fabric().cut(conn, DisconnectReason::Peer);
    rig.settle();
    assert_eq!(rig.reactor.resources().waiting_for_storage, 0);
    rig.storage().held = false;
    rig.settle();
    assert_eq!(rig.storage().done.len(), 1);
    assert_eq!(rig.reactor.statistics().anomalies, 0);
    assert_eq!(rig.reactor.resources().requests, 0);
}

#[test]
fn a_peer_that_does_not_acknowledge_is_slowed_down_not_cut() {
    let mut rig = Rig::new();
    let (_, cntlid) = rig.controller();
    let conn = rig.queue(cntlid, 1, 2, 16);
    rig.host(conn).credit = Some(0);
    // 2 entries have 18 slots; the host goes on sending as if it had seen the responses.
    for round in 0..20u32 {
        if rig.host(conn).receives.is_empty() {
            panic!("receives ran out in round {round}");
        }
        let cid = rig.next_cid();
        let command = IoCommand::Flush { nsid: NSID }.to_command(cid).unwrap();
        rig.send(conn, &command);
        rig.settle();
    }
    assert_eq!(rig.reactor.statistics().parked_capsules, 2);
    assert_eq!(rig.reactor.resources().requests, 18);
    rig.host(conn).credit = None;
    rig.settle();
    assert_eq!(rig.host(conn).responses.len(), 20);
    assert_eq!(rig.reactor.resources().requests, 0);
}

#[test]
fn a_peer_that_takes_nothing_is_given_up_with_its_buffers() {
    let mut rig = Rig::with(ReactorConfig { starve_timeout: Duration::ZERO, ..config() });
    let (admin, cntlid) = rig.controller();
    let (reader, writer) = (rig.queue(cntlid, 1, 128, 16), rig.queue(cntlid, 2, 32, 16));
    let patience = config().stall_timeout;
    for conn in [reader, writer] {
        rig.host(conn).credit = Some(0);
    }
    for key in 0..16 {
        let sgl = rig.memory(reader, key, vec![0; 64 << 10]);
        let command = rig.read_command(0, 128, sgl);
        rig.send(reader, &command);
    }
    rig.settle();
    let sgl = rig.memory(writer, 1, vec![0; 512]);
    let command = rig.write_command(0, 1, sgl);
    rig.send(writer, &command);
    rig.settle();
    assert_eq!(rig.reactor.resources().waiting_for_buffers, 8, "the reader has half of them");
    let Armed::Until(deadline) = rig.reactor.arm(rig.now) else { panic!("nothing to do") };
    assert!(deadline <= rig.now + patience);
    // One response taken counts as progress. (All data goes before the responses.)
    rig.pass(patience / 2);
    rig.host(reader).credit = Some(9);
    rig.settle();
    rig.pass(patience / 2);
    assert!(rig.is_there(reader));
    rig.pass(patience);
    assert!(!rig.is_there(reader));
    rig.pass(patience);
    assert!(!rig.is_there(writer), "its data cannot be fetched");
    assert!(rig.is_there(admin), "an idle queue is not a stalled one");
    assert_eq!(rig.reactor.statistics().stalls, 2);
    let resources = rig.reactor.resources();
    assert_eq!(resources.buffer_bytes_free, resources.buffer_bytes);
}

#[test]
fn a_turn_that_posts_or_frees_is_not_slept_over() {
    let mut rig = Rig::with(ReactorConfig { data_bytes: 64 << 10, ..config() });
    let (_, cntlid) = rig.controller();
    let (dead, conn) = (rig.queue(cntlid, 1, 32, 16), rig.queue(cntlid, 2, 32, 16));
    rig.host(dead).credit = Some(0);
    let sgl = rig.memory(dead, 0, vec![0; 64 << 10]);
    let command = rig.read_command(0, 128, sgl);
    rig.send(dead, &command);
    rig.settle();
    let sgl = rig.memory(conn, 1, vec![0; 512]);
    let write = rig.write_command(0, 1, sgl);
    rig.send(conn, &write);
    rig.settle();
    assert_eq!(rig.reactor.resources().waiting_for_buffers, 1);
    rig.host(conn).credit = Some(0);
    // Its end frees the buffers; the turn after that fetches the other's data.
    rig.fabric().cut(dead, DisconnectReason::Peer);
    let mut idle_turns = 0;
    while rig.host(conn).sends.is_empty() {
        idle_turns += u32::from(!rig.turn());
        assert_eq!(idle_turns, 0, "it would sleep before the RDMA READ is posted, or just after");
    }
}

#[test]
fn posts_that_fail_end_the_connection() {
    let mut rig = Rig::new();
    let (_, cntlid) = rig.controller();
    let conn = rig.queue(cntlid, 1, 32, 16);
    let sgl = rig.memory(conn, 1, vec![0; 512]);
    for command in [rig.read_command(0, 1, sgl), rig.write_command(0, 1, sgl)] {
        rig.send(conn, &command);
    }
    rig.fabric().fail_posts = true;
    rig.settle();
    assert!(!rig.is_there(conn));
    assert_eq!(rig.reactor.resources().requests, 0);
    assert_eq!(rig.reactor.statistics().anomalies, 0);
}

#[test]
fn connections_are_refused_with_the_reason() {
    let mut rig = Rig::with(ReactorConfig { max_requests: 64, ..config() });
    let refused = |rig: &mut Rig, private_data: &[u8], reads| {
        let conn = rig.fabric().dial(private_data, reads);
        rig.settle();
        let words = rig.host(conn).rejected.clone().expect("refused");
        ConnectReject::parse(&words).unwrap().status
    };
    let request = |entries| {
        let size = QueueSize::from_entries(entries).unwrap();
        ConnectRequest::new(Qid(1), size, ControllerId(0)).to_bytes()
    };
    assert_eq!(refused(&mut rig, &[0; 4], 1), RejectStatus::INVALID_LENGTH);
    assert_eq!(refused(&mut rig, &request(1025), 1), RejectStatus::INVALID_HSQSIZE);
    assert_eq!(refused(&mut rig, &request(16), 0), RejectStatus::INVALID_IRD);
    assert_eq!(refused(&mut rig, &request(64), 1), RejectStatus::NO_RESOURCES);
    rig.dial(0, 32, 1);
    assert_eq!(refused(&mut rig, &request(2), 1), RejectStatus::NO_RESOURCES);
    assert_eq!(rig.reactor.statistics().rejected, 5);
    assert_eq!(rig.reactor.statistics().accepted, 1);
    // Without receive buffers too.
    let mut rig =
        Rig::with(ReactorConfig { receive_bytes: 4096, receive_max_bytes: 0, ..config() });
    assert_eq!(refused(&mut rig, &request(16), 1), RejectStatus::NO_RESOURCES);
    assert_eq!(rig.reactor.resources().receive_bytes_free, 4096);
}

#[test]
fn a_controller_reset_ends_its_io_queues() {
    let mut rig = Rig::new();
    let (admin, cntlid) = rig.controller();
    let conn = rig.queue(cntlid, 1, 32, 16);
    let set = FabricsCommand::PropertySet { size: PropertySize::Four, offset: 0x14, value: 0 };
    let cid = rig.next_cid();
    rig.send(admin, &set.to_command(cid));
    rig.pass(Duration::from_millis(2));
    assert!(!rig.is_there(conn));
    assert!(rig.is_there(admin));
}

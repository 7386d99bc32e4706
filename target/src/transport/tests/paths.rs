//! The ways of commands when nothing goes wrong.

use lariat_fabric::verbs::DisconnectReason;
use lariat_wire::nvme::{ControllerId, IoCommand, IoOpcode, Sgl, Status};
use proptest::prelude::*;

use super::mock::address_of;
use super::*;
use crate::storage::{BlockOp, BlockRange, StorageError};
use crate::transport::Stage;

#[test]
fn read_writes_data_before_the_response() {
    let mut rig = Rig::new();
    let (_, cntlid) = rig.controller();
    let conn = rig.queue(cntlid, 1, 32, 16);
    let sgl = rig.memory(conn, 1, vec![0; 4096]);
    let command = rig.read_command(8, 8, sgl);
    rig.fabric().log.clear();
    rig.send(conn, &command);
    rig.settle();
    let completion = rig.response(conn);
    assert!(completion.status().is_success());
    assert_eq!(completion.command_id(), command.command_id());
    // The Connect was the first command, this is the second.
    assert_eq!(completion.sq_head.get(), 2);
    assert_eq!(rig.fabric().log, ["write 4096", "response"]);
    let expected = rig.storage().disk[8 * 512..16 * 512].to_vec();
    assert_eq!(rig.host(conn).host[&1], expected);
    let statistics = *rig.reactor.statistics();
    assert_eq!(statistics.read_bytes, 4096);
    assert_eq!(statistics.stage(Stage::Storage).count, 1);
    assert_eq!(statistics.anomalies, 0);
}

#[test]
fn equal_packets_of_a_turn_stand_together() {
    let mut rig = Rig::new();
    let (_, cntlid) = rig.controller();
    let conn = rig.queue(cntlid, 1, 32, 16);
    rig.fabric().log.clear();
    for key in 1..=3 {
        let sgl = rig.memory(conn, key, vec![0; 512]);
        let command = rig.read_command(u64::from(key), 1, sgl);
        rig.send(conn, &command);
    }
    rig.turn();
    let expected = ["write 512", "write 512", "write 512", "response", "response", "response"];
    assert_eq!(rig.fabric().log, expected);
}

#[test]
fn a_few_reads_go_in_halves_while_the_host_has_nothing_to_do() {
    let mut rig = Rig::new();
    let (_, cntlid) = rig.controller();
    let conn = rig.queue(cntlid, 1, 32, 16);
    let batch = |rig: &mut Rig, first: u32| {
        rig.fabric().log.clear();
        for key in first..first + 8 {
            let sgl = rig.memory(conn, key, vec![0; 512]);
            let command = rig.read_command(u64::from(key), 1, sgl);
            rig.send(conn, &command);
        }
        rig.turn();
        rig.fabric().log.clone()
    };
    let run = |packet: &str, count: usize| vec![packet.to_owned(); count];
    // The host acknowledges nothing for now.
    rig.host(conn).credit = Some(0);
    let halves = [run("write 512", 4), run("response", 4)].concat();
    assert_eq!(batch(&mut rig, 1), [halves.clone(), halves].concat());
    // It has those to work on, so the next come as one.
    assert_eq!(batch(&mut rig, 11), [run("write 512", 8), run("response", 8)].concat());
}

#[test]
fn keyed_write_fetches_within_the_agreed_depth() {
    for depth in [1, 3] {
        let mut rig = Rig::new();
        let (_, cntlid) = rig.controller();
        let conn = rig.queue(cntlid, 1, 32, depth);
        for key in 1..=8u32 {
            let sgl = rig.memory(conn, key, vec![u8::try_from(key).unwrap() | 0x80; 1024]);
            let command = rig.write_command(u64::from(key) * 2, 2, sgl);
            rig.send(conn, &command);
        }
        rig.fabric().log.clear();
        // Nothing completes: only the depth is posted (the mock checks every post, too).
        rig.host(conn).credit = Some(0);
        rig.turn();
        assert_eq!(rig.fabric().log.len(), usize::from(depth));
        rig.host(conn).credit = None;
        rig.settle();
        for key in 1..=8u32 {
            assert!(rig.response(conn).status().is_success());
            let at = key as usize * 1024;
            assert!(rig.storage().disk[at..at + 1024].iter().all(|&b| u32::from(b) == key | 0x80));
        }
        assert!(rig.reactor.statistics().read_waits >= 8 - u64::from(depth));
        assert_eq!(rig.reactor.statistics().written_bytes, 8192);
    }
}

#[test]
fn in_capsule_data_goes_to_the_disk_from_where_it_lies() {
    let mut rig = Rig::new();
    let (_, cntlid) = rig.controller();
    let conn = rig.queue(cntlid, 1, 32, 16);
    rig.fabric().log.clear();
    // At offset 0 in place, at 512 by way of a buffer (the mock disk checks the alignment).
    for (offset, start) in [(0u64, 4u64), (512, 9)] {
        let command = rig.write_command(start, 3, Sgl::InCapsule { offset, length: 1536 });
        let mut capsule = command.to_bytes().to_vec();
        capsule.resize(64 + usize::try_from(offset).unwrap(), 0);
        capsule.resize(capsule.len() + 1536, 0xee);
        rig.fabric().capsule(conn, &capsule);
        rig.settle();
        assert!(rig.response(conn).status().is_success());
        let at = usize::try_from(start).unwrap() * 512;
        assert!(rig.storage().disk[at..at + 1536].iter().all(|&byte| byte == 0xee));
    }
    assert_eq!(rig.fabric().log, ["response", "response"]);
}

#[test]
fn a_receive_with_data_in_it_is_not_reused_while_the_disk_has_it() {
    let mut rig = Rig::new();
    let (_, cntlid) = rig.controller();
    let conn = rig.queue(cntlid, 1, 4, 16);
    let before = rig.host(conn).receives.len();
    rig.storage().held = true;
    for start in 0..4 {
        let command = rig.write_command(start, 1, Sgl::InCapsule { offset: 0, length: 512 });
        let mut capsule = command.to_bytes().to_vec();
        capsule.resize(64 + 512, 0xdd);
        rig.fabric().capsule(conn, &capsule);
    }
    rig.settle();
    assert_eq!(rig.host(conn).receives.len(), before - 4);
    rig.storage().held = false;
    rig.settle();
    assert_eq!(rig.host(conn).receives.len(), before);
}

#[test]
fn invalidates_where_the_host_asks() {
    for (can, expected) in [(true, vec![5]), (false, vec![])] {
        let mut rig = Rig::new();
        rig.fabric().limits.send_with_invalidate = can;
        let (_, cntlid) = rig.controller();
        let conn = rig.queue(cntlid, 1, 32, 16);
        rig.memory(conn, 5, vec![0; 512]);
        let sgl = Sgl::Keyed { address: address_of(5), length: 512, key: 5, invalidate: true };
        let command = rig.read_command(0, 1, sgl);
        rig.send(conn, &command);
        let sgl = rig.memory(conn, 6, vec![0; 512]);
        let command = rig.read_command(0, 1, sgl);
        rig.send(conn, &command);
        rig.settle();
        assert_eq!(rig.host(conn).invalidated, expected);
        assert_eq!(rig.host(conn).responses.len(), 2);
    }
}

#[test]
fn connect_in_capsule_and_without_in_capsule_data() {
    // I/O queues of Linux hosts send the Connect's data in the capsule.
    let mut rig = Rig::new();
    let (_, cntlid) = rig.controller();
    let conn = rig.dial(1, 32, 16);
    let command = rig.connect_command(1, 32).with_sgl(Sgl::InCapsule { offset: 0, length: 1024 });
    let mut capsule = command.to_bytes().to_vec();
    capsule.extend(Rig::connect_data(cntlid));
    rig.fabric().capsule(conn, &capsule);
    rig.settle();
    let completion = rig.response(conn);
    assert!(completion.status().is_success());
    assert_eq!(completion.result32(), u32::from(cntlid.0));

    let limits = Limits { in_capsule_bytes: 0, ..limits() };
    let mut rig = Rig::with(ReactorConfig { limits, ..config() });
    let (_, cntlid) = rig.controller();
    let conn = rig.queue(cntlid, 1, 2, 1);
    let sgl = rig.memory(conn, 1, vec![0xaa; 512]);
    let command = rig.write_command(0, 1, sgl);
    rig.send(conn, &command);
    rig.settle();
    assert!(rig.response(conn).status().is_success());
    assert_eq!(rig.storage().disk[0], 0xaa);
}

#[test]
fn queues_from_2_to_1024_entries_take_all_their_commands() {
    let mut rig = Rig::new();
    let (_, cntlid) = rig.controller();
    for (qid, entries) in [(1, 2), (2, 3), (3, 128), (4, 1024)] {
        let conn = rig.queue(cntlid, qid, entries, 16);
        for round in 0..3 {
            for key in 0..entries {
                let sgl = rig.memory(conn, key, vec![0; 512]);
                let command = rig.read_command(u64::from(key), 1, sgl);
                rig.send(conn, &command);
            }
            rig.settle();
            for _ in 0..entries {
                let completion = rig.response(conn);
                assert!(completion.status().is_success(), "round {round}");
                assert!(u32::from(completion.sq_head.get()) < entries);
            }
        }
    }
    assert_eq!(rig.reactor.statistics().violations, 0);
}

#[test]
fn flush_and_deallocate_go_range_by_range() {
    let mut rig = Rig::new();
    let (_, cntlid) = rig.controller();
    let conn = rig.queue(cntlid, 1, 32, 16);
    for nsid in [NSID, Nsid::ALL] {
        let cid = rig.next_cid();
        let command = IoCommand::Flush { nsid }.to_command(cid).unwrap();
        rig.send(conn, &command);
        rig.settle();
        assert!(rig.response(conn).status().is_success());
        assert_eq!(rig.storage().done.pop(), Some(BlockOp::Flush));
    }
    let mut list = Vec::new();
    for (start, blocks) in [(5u64, 2u32), (100, 0), (64, 8)] {
        list.extend(0u32.to_le_bytes());
        list.extend(blocks.to_le_bytes());
        list.extend(start.to_le_bytes());
    }
    let sgl = rig.memory(conn, 1, list);
    let dsm = IoCommand::DatasetManagement {
        nsid: NSID,
        ranges: 3,
        deallocate: true,
        integral_read: false,
        integral_write: false,
    };
    let cid = rig.next_cid();
    let command = dsm.to_command(cid).unwrap().with_sgl(sgl);
    rig.send(conn, &command);
    rig.settle();
    assert!(rig.response(conn).status().is_success());
    let range = |start, blocks| BlockOp::Deallocate { range: BlockRange { start, blocks } };
    assert_eq!(rig.storage().done, [range(5, 2), range(64, 8)]);
}

#[test]
fn admin_commands_bring_data() {
    let mut rig = Rig::new();
    let (admin, _) = rig.controller();
    let sgl = rig.memory(admin, 3, vec![0; 4096]);
    // Identify Controller.
    let cid = rig.next_cid();
    let mut command = Command::new(0x06).with_cid(cid).with_sgl(sgl);
    command.cdw10.set(1);
    rig.send(admin, &command);
    rig.settle();
    assert!(rig.response(admin).status().is_success());
    let nqn = subsystem_nqn();
    assert_eq!(&rig.host(admin).host[&3][768..][..nqn.as_str().len()], nqn.as_str().as_bytes());
}

#[test]
fn disconnect_command_ends_the_queue_and_frees_its_identifier() {
    let mut rig = Rig::new();
    let (admin, cntlid) = rig.controller();
    let conn = rig.queue(cntlid, 1, 32, 16);
    let cid = rig.next_cid();
    rig.send(conn, &FabricsCommand::Disconnect { recfmt: 0 }.to_command(cid));
    rig.turn();
    assert!(rig.response(conn).status().is_success());
    rig.settle();
    assert!(!rig.is_there(conn));
    let conn = rig.queue(cntlid, 1, 32, 16);
    // The end of the admin queue is the end of the I/O queues.
    rig.fabric().cut(admin, DisconnectReason::Peer);
    rig.pass(Duration::from_millis(2));
    assert!(!rig.is_there(conn));
    rig.check_nothing_leaked();
}

#[test]
fn before_connect_nothing_else_is_done() {
    let mut rig = Rig::new();
    let conn = rig.dial(1, 32, 16);
    let cid = rig.next_cid();
    rig.send(conn, &Command::new(IoOpcode::FLUSH.0).with_cid(cid));
    rig.settle();
    assert!(rig.response(conn).status().same_code(Status::COMMAND_SEQUENCE_ERROR));
    // A Connect for another queue than the connection was made for.
    let completion = rig.connect(conn, 2, 32, ControllerId(1));
    assert!(completion.status().same_code(Status::CONNECT_INVALID_PARAMETERS));
    assert_eq!(completion.result32(), 42);
    let completion = rig.connect(conn, 1, 64, ControllerId(1));
    assert!(completion.status().same_code(Status::CONNECT_INVALID_PARAMETERS));
    assert_eq!(completion.result32(), 44);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_capsules_are_answered_or_end_the_connection(
        capsules in prop::collection::vec((0u8..10, prop::collection::vec(any::<u8>(), 0..200)), 1..20),
    ) {
        let mut rig = Rig::new();
        let (_, cntlid) = rig.controller();
        let conn = rig.queue(cntlid, 1, 32, 16);
        for (opcode, mut bytes) in capsules {
            if let [first, flags, ..] = &mut bytes[..] {
                *first = opcode;
                *flags = 0x40;
            }
            if !rig.is_there(conn) {
                break;
            }
            let whole = bytes.len() >= 64;
            rig.fabric().capsule(conn, &bytes);
            rig.settle();
            if whole && rig.is_there(conn) {
                rig.response(conn);
            }
        }
        prop_assert_eq!(rig.reactor.statistics().anomalies, 0);
    }
}

#[test]
fn a_forced_read_makes_durable_first_what_it_reads() {
    let mut rig = Rig::new();
    let (_, cntlid) = rig.controller();
    let conn = rig.queue(cntlid, 1, 32, 16);
    let sgl = rig.memory(conn, 1, vec![0; 512]);
    let command = rig.read_forced(true, 3, 1, sgl);
    rig.send(conn, &command);
    rig.settle();
    assert!(rig.response(conn).status().is_success());
    assert!(matches!(rig.storage().done[..], [BlockOp::Flush, BlockOp::Read { start: 3, .. }]));
    assert_eq!(rig.host(conn).host[&1], vec![3; 512]);
    // A flush that fails fails the read.
    rig.storage().fail = Some(StorageError::Write { errno: 5 });
    rig.send(conn, &command);
    rig.settle();
    assert!(rig.response(conn).status().same_code(Status::WRITE_FAULT));
    assert_eq!(rig.storage().done.len(), 3);
}

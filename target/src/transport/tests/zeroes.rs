//! Reads of blocks that the storage knows to be zeroes.

use lariat_fabric::verbs::DisconnectReason;

use super::*;
use crate::storage::BlockOp;
use crate::transport::Stage;

/// A host's queue, on a disk that knows its first half to be zeroes.
fn rig(config: ReactorConfig, prepare: impl FnOnce(&mut MockFabric)) -> (Rig, ConnId) {
    let mut rig = Rig::on(config, prepare);
    rig.storage().zeroes = 0..1024;
    let (_, cntlid) = rig.controller();
    let conn = rig.queue(cntlid, 1, 128, 16);
    (rig, conn)
}

/// Reads; what is left in the host's memory, which was all ones before.
fn read(rig: &mut Rig, conn: ConnId, start: u64, blocks: u32) -> Vec<u8> {
    let sgl = rig.memory(conn, 7, vec![0xff; blocks as usize * 512]);
    let command = rig.read_command(start, blocks, sgl);
    rig.send(conn, &command);
    rig.settle();
    let completion = rig.response(conn);
    assert!(completion.status().is_success());
    assert_eq!(completion.command_id(), command.command_id());
    rig.host(conn).host[&7].clone()
}

#[test]
fn zeroes_take_neither_a_buffer_nor_the_storage() {
    let (mut rig, conn) = rig(config(), |_| {});
    rig.fabric().log.clear();
    // The storage answers nothing, and the host takes nothing for now.
    rig.storage().held = true;
    rig.host(conn).credit = Some(0);
    let free_bytes = rig.reactor.resources().buffer_bytes_free;
    let lengths = [1, 8, 33, 128];
    for (key, blocks) in (1..).zip(lengths) {
        let sgl = rig.memory(conn, key, vec![0xff; blocks as usize * 512]);
        let command = rig.read_command(1024 - u64::from(blocks), blocks, sgl);
        rig.send(conn, &command);
    }
    rig.settle();
    assert_eq!(rig.reactor.resources().buffer_bytes_free, free_bytes);
    let writes = ["write 512", "write 4096", "write 16896", "write 65536"];
    assert!(writes.iter().all(|write| rig.fabric().log.iter().any(|posted| posted == write)));
    rig.host(conn).credit = None;
    rig.settle();
    for (key, blocks) in (1..).zip(lengths) {
        assert!(rig.response(conn).status().is_success());
        assert_eq!(rig.host(conn).host[&key], vec![0; blocks as usize * 512]);
    }
    let statistics = *rig.reactor.statistics();
    assert_eq!((statistics.zero_reads, statistics.read_bytes), (4, 170 * 512));
    assert_eq!((statistics.stage(Stage::Storage).count, statistics.anomalies), (0, 0));
    assert_eq!((rig.storage().pending.len(), rig.storage().done.len()), (0, 0));
    rig.fabric().cut(conn, DisconnectReason::Peer);
    rig.settle();
    assert_eq!(rig.ledger.held(), 32 + 8, "receives of the admin queue");
}

#[test]
fn what_is_not_known_is_read() {
    let (mut rig, conn) = rig(config(), |_| {});
    // Half of it is said to be zeroes.
    let expected = rig.storage().disk[1020 * 512..1028 * 512].to_vec();
    assert_eq!(read(&mut rig, conn, 1020, 8), expected);
    assert_eq!(read(&mut rig, conn, 1016, 8), [0; 4096]);
    // A forced read flushes first, and then looks.
    let sgl = rig.memory(conn, 7, vec![0xff; 4096]);
    let command = rig.read_forced(true, 16, 8, sgl);
    rig.storage().done.clear();
    rig.send(conn, &command);
    rig.settle();
    assert!(rig.response(conn).status().is_success());
    assert!(matches!(rig.storage().done[..], [BlockOp::Flush, BlockOp::Read { start: 16, .. }]));
    let expected = rig.storage().disk[16 * 512..24 * 512].to_vec();
    assert_eq!(rig.host(conn).host[&7], expected);
    assert_eq!(rig.reactor.statistics().zero_reads, 1);
}

#[test]
fn zeroes_do_not_wait_behind_others_for_buffers() {
    let small = ReactorConfig { data_bytes: 64 << 10, ..config() };
    let (mut rig, conn) = rig(small, |_| {});
    rig.storage().held = true;
    for key in 1..=4 {
        let sgl = rig.memory(conn, key, vec![0xff; 64 << 10]);
        let command = rig.read_command(1024 + u64::from(key), 128, sgl);
        rig.send(conn, &command);
    }
    rig.settle();
    assert!(rig.reactor.resources().waiting_for_buffers > 0);
    assert_eq!(read(&mut rig, conn, 0, 128), vec![0; 64 << 10]);
}

#[test]
fn where_no_region_is_left_buffers_are_filled() {
    // Pool, receives and responses.
    let (mut rig, conn) = rig(config(), |fabric| fabric.max_regions = 3);
    let expected = rig.storage().disk[..4096].to_vec();
    assert_eq!(read(&mut rig, conn, 0, 8), expected);
    let statistics = *rig.reactor.statistics();
    assert_eq!((statistics.zero_reads, statistics.stage(Stage::Storage).count), (0, 1));
}

#[test]
fn what_is_ready_at_once_goes_over_several_turns() {
    let (mut rig, conn) = rig(config(), |_| {});
    rig.host(conn).credit = Some(0);
    rig.fabric().log.clear();
    for key in 1..=12 {
        let sgl = rig.memory(conn, key, vec![0xff; 64 << 10]);
        let command = rig.read_command(u64::from(key), 128, sgl);
        rig.send(conn, &command);
    }
    let mut posted = Vec::new();
    for _ in 0..4 {
        rig.turn();
        posted.push(rig.fabric().log.iter().filter(|what| *what == "write 65536").count());
    }
    assert_eq!(posted, [4, 8, 12, 12]);
    rig.host(conn).credit = None;
    rig.settle();
    assert_eq!(rig.host(conn).responses.len(), 12);
    assert_eq!(rig.host(conn).host[&12], vec![0; 64 << 10]);
}

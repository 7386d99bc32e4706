//! Receives that queues share: who shares, who does not, and where they are when hosts take more
//! than there are, stop to answer, or die.

use lariat_fabric::verbs::DisconnectReason;
use lariat_wire::nvme::Sgl;

use super::*;

const ENTRIES: u32 = 32;
/// Half of the receive memory, in receives of 8 KiB.
const RECEIVES: u32 = 128;
const KIB: u32 = 1 << 10;

fn sharing() -> ReactorConfig {
    let limits = Limits { max_queue_depth: QueueSize::from_entries(ENTRIES).unwrap(), ..limits() };
    ReactorConfig {
        limits,
        receive_bytes: 2 << 20,
        receive_max_bytes: 2 << 20,
        shared_receive: true,
        ..config()
    }
}

fn rig(config: ReactorConfig) -> Rig {
    let mut rig = Rig::with(config);
    rig.fabric().limits.max_shared_receives = 1 << 15;
    rig
}

fn shares(rig: &mut Rig, conn: ConnId) -> bool {
    rig.host(conn).qp.unwrap().shared_receive.is_some()
}

/// All shared receives, and those that no connection holds.
fn counts(rig: &Rig) -> (u32, u32) {
    let resources = rig.reactor.resources();
    (resources.shared_receives, resources.shared_receives_free)
}

/// A write of a block with its data in the capsule.
fn write(rig: &mut Rig, block: u64) -> Vec<u8> {
    let sgl = Sgl::InCapsule { offset: 0, length: 512 };
    let mut capsule = rig.write_command(block, 1, sgl).to_bytes().to_vec();
    capsule.resize(64 + 512, byte_of(block));
    capsule
}

fn byte_of(block: u64) -> u8 {
    u8::try_from(block % 251).unwrap() + 1
}

fn check_block(rig: &mut Rig, block: u64) {
    let at = usize::try_from(block).unwrap() * 512;
    assert!(rig.storage().disk[at..at + 512].iter().all(|&byte| byte == byte_of(block)));
}

/// Ends all connections: nothing is left, not even the shared queue.
fn end(mut rig: Rig, conns: &[ConnId]) {
    for &conn in conns {
        if rig.is_there(conn) {
            rig.fabric().cut(conn, DisconnectReason::Peer);
        }
    }
    rig.pass(Duration::from_millis(2));
    assert!(rig.fabric().shared.is_empty());
    let resources = rig.reactor.resources();
    assert_eq!(resources.receive_bytes_free, 2 << 20);
    assert_eq!((resources.shared_receives, resources.requests), (0, 0));
    assert_eq!(resources.buffer_bytes_free, resources.buffer_bytes);
    assert_eq!((rig.ledger.held(), rig.reactor.statistics().anomalies), (0, 0));
}

#[test]
fn queues_of_known_hosts_share() {
    let mut rig = rig(sharing());
    // An address without a controller has receives of its own, whatever it asks for.
    let stranger = rig.dial(1, ENTRIES, 16);
    assert!(!shares(&mut rig, stranger));
    let (admin, cntlid) = rig.controller();
    assert!(!shares(&mut rig, admin));
    let before = rig.reactor.resources().receive_bytes_free;
    let queue = rig.queue(cntlid, 2, ENTRIES, 16);
    assert!(shares(&mut rig, queue));
    assert_eq!(counts(&rig), (RECEIVES, RECEIVES));
    let taken = before - rig.reactor.resources().receive_bytes_free;
    assert_eq!(taken, u64::from(RECEIVES * 8 * KIB));
    // The next one costs nothing.
    let other = rig.queue(cntlid, 3, ENTRIES, 16);
    assert!(shares(&mut rig, other));
    assert_eq!(before - rig.reactor.resources().receive_bytes_free, taken);
    for (block, conn) in [(7, queue), (8, other), (9, queue)] {
        let capsule = write(&mut rig, block);
        rig.fabric().capsule(conn, &capsule);
        rig.settle();
        assert!(rig.response(conn).status().is_success());
        check_block(&mut rig, block);
    }
    assert_eq!(counts(&rig), (RECEIVES, RECEIVES));
    // When the controller is gone its address is a stranger's again.
    rig.fabric().cut(admin, DisconnectReason::Peer);
    rig.pass(Duration::from_millis(2));
    let late = rig.dial(1, ENTRIES, 16);
    assert!(!shares(&mut rig, late));
    end(rig, &[stranger, queue, other, late]);
}

#[test]
fn without_the_device_or_the_wish_queues_have_their_own() {
    for (config, limit) in [
        (sharing(), 0),
        // Too few to be worth sharing: not for four queues.
        (sharing(), 2 * ENTRIES - 1),
        (ReactorConfig { shared_receive: false, ..sharing() }, 1 << 15),
    ] {
        let mut rig = Rig::with(config);
        rig.fabric().limits.max_shared_receives = limit;
        let (admin, cntlid) = rig.controller();
        let queue = rig.queue(cntlid, 1, ENTRIES, 16);
        assert!(!shares(&mut rig, queue));
        end(rig, &[queue, admin]);
    }
}

#[test]
fn hosts_wait_for_receives_and_lose_nothing() {
    // Eight queues would need more than all the memory for receives of their own.
    let mut rig = rig(ReactorConfig { data_bytes: 64 * KIB, ..sharing() });
    let (admin, cntlid) = rig.controller();
    let queues: Vec<_> = (1..=8).map(|qid| rig.queue(cntlid, qid, ENTRIES, 16)).collect();
    rig.storage().held = true;
    let mut waiting = Vec::new();
    for number in 0..u64::from(ENTRIES - 1) * 8 {
        let conn = queues[usize::try_from(number % 8).unwrap()];
        let capsule = write(&mut rig, number);
        if !rig.fabric().try_capsule(conn, &capsule) {
            waiting.push((conn, capsule));
        }
        rig.turn();
    }
    assert_eq!(counts(&rig), (RECEIVES, 0));
    // The pool took what it had for the host; the rest is written from where it lies.
    assert!((8..=16).contains(&rig.reactor.statistics().shared_copies));
    assert!(!waiting.is_empty());
    rig.storage().held = false;
    while !waiting.is_empty() {
        rig.turn();
        waiting.retain(|(conn, capsule)| !rig.fabric().try_capsule(*conn, capsule));
    }
    rig.settle();
    for &conn in &queues {
        let answers = core::mem::take(&mut rig.host(conn).responses);
        assert_eq!(answers.len(), ENTRIES as usize - 1);
        assert!(answers.iter().all(|answer| answer.status().is_success()));
    }
    for block in 0..u64::from(ENTRIES - 1) * 8 {
        check_block(&mut rig, block);
    }
    assert_eq!(counts(&rig), (RECEIVES, RECEIVES));
    end(rig, &[queues, vec![admin]].concat());
}

#[test]
fn who_takes_all_does_not_keep_others_out() {
    let mut rig = rig(ReactorConfig { data_bytes: 64 * KIB, ..sharing() });
    let (admin, cntlid) = rig.controller();
    let queues: Vec<_> = (1..=8).map(|qid| rig.queue(cntlid, qid, ENTRIES, 16)).collect();
    rig.storage().held = true;
    let capsule = |rig: &mut Rig| write(rig, 1);
    'full: loop {
        for &conn in &queues {
            let capsule = capsule(&mut rig);
            if !rig.fabric().try_capsule(conn, &capsule) {
                break 'full;
            }
            rig.turn();
        }
    }
    assert_eq!(counts(&rig), (RECEIVES, 0));
    // Another host makes a controller and asks what there is.
    rig.fabric().peer = 2;
    let (other, other_id) = rig.controller();
    let sgl = rig.memory(other, 5, vec![0; 4096]);
    // Identify Controller.
    let mut identify = Command::new(0x06).with_cid(rig.next_cid()).with_sgl(sgl);
    identify.cdw10.set(1);
    rig.send(other, &identify);
    rig.settle();
    assert!(rig.response(other).status().is_success());
    // Its I/O queue is there; its first command gets through when the disk has done something.
    let queue = rig.dial(1, ENTRIES, 16);
    assert!(shares(&mut rig, queue));
    rig.host(queue).host.insert(CONNECT_KEY, Rig::connect_data(other_id).to_vec());
    let connect = rig.connect_command(1, ENTRIES).to_bytes();
    assert!(!rig.fabric().try_capsule(queue, &connect));
    rig.storage().finish(0);
    rig.settle();
    assert!(rig.fabric().try_capsule(queue, &connect));
    rig.settle();
    assert!(rig.response(queue).status().is_success());
    rig.storage().held = false;
    rig.settle();
    end(rig, &[queues, vec![admin, other, queue]].concat());
}

#[test]
fn receives_of_the_dead_come_back() {
    let mut rig = rig(sharing());
    let (admin, cntlid) = rig.controller();
    let stays = rig.queue(cntlid, 1, ENTRIES, 16);
    let before = rig.reactor.resources();
    for round in 0..60_u64 {
        let conn = rig.queue(cntlid, 2, ENTRIES, 16);
        rig.storage().held = true;
        for block in 0..20 {
            let capsule = write(&mut rig, block);
            rig.fabric().capsule(conn, &capsule);
            // Of some the reactor hears only together with the end.
            if block < round % 21 {
                rig.turn();
            }
        }
        match round % 3 {
            0 => rig.fabric().cut(conn, DisconnectReason::Timeout),
            // Its first message after the writes is no capsule.
            1 => rig.fabric().capsule(conn, &[0; 8]),
            _ => {
                let too_long = vec![0; 64 + 4096 + 1];
                rig.fabric().capsule(conn, &too_long);
            }
        }
        rig.turn();
        rig.storage().held = false;
        rig.pass(Duration::from_secs(6));
        assert!(!rig.is_there(conn), "round {round}");
        assert_eq!(counts(&rig), (RECEIVES, RECEIVES), "round {round}");
        assert_eq!(rig.reactor.resources(), before);
    }
    end(rig, &[stays, admin]);
}

#[test]
fn who_acknowledges_nothing_holds_a_queues_worth() {
    let mut rig = rig(sharing());
    let (admin, cntlid) = rig.controller();
    let stays = rig.queue(cntlid, 1, ENTRIES, 16);
    let conn = rig.queue(cntlid, 2, ENTRIES, 16);
    rig.host(conn).credit = Some(0);
    // It goes on sending although it has seen no answer: first slots are used up, then capsules
    // wait, as many as the queue has entries.
    let slots = 2 * ENTRIES;
    for number in 0..slots + ENTRIES {
        let capsule = write(&mut rig, u64::from(number));
        rig.fabric().capsule(conn, &capsule);
        rig.settle();
    }
    assert_eq!(rig.reactor.statistics().violations, 0);
    assert_eq!(counts(&rig), (RECEIVES, RECEIVES - ENTRIES));
    let capsule = write(&mut rig, 0);
    rig.fabric().capsule(conn, &capsule);
    rig.pass(Duration::from_millis(2));
    assert_eq!(rig.reactor.statistics().violations, 1);
    assert!(!rig.is_there(conn));
    assert_eq!(counts(&rig), (RECEIVES, RECEIVES));
    end(rig, &[stays, admin]);
}

//! Room for connections: who gets it, who has to go, and how it grows.

use lariat_wire::nvme::{ControllerId, Sgl};

use super::*;

#[test]
fn io_queues_leave_room_for_admin_queues() {
    for config in [
        ReactorConfig { receive_bytes: 2 << 20, receive_max_bytes: 0, ..config() },
        ReactorConfig { max_requests: 1024, ..config() },
        ReactorConfig { max_connections: 8, ..config() },
    ] {
        let mut rig = Rig::with(config);
        let size = QueueSize::from_entries(32).unwrap();
        let request = ConnectRequest::new(Qid(1), size, ControllerId(0)).to_bytes();
        let mut accepted = 0;
        loop {
            let conn = rig.fabric().dial(&request, 16);
            rig.settle();
            if rig.host(conn).accepted.is_none() {
                break;
            }
            accepted += 1;
        }
        assert!(accepted > 2);
        rig.controller();
    }
}

#[test]
fn who_only_knocks_leaves_room_for_others() {
    let mut rig = Rig::new();
    let size = QueueSize::from_entries(32).unwrap();
    let request = ConnectRequest::new(Qid(0), size, ControllerId(0)).to_bytes();
    let all = rig.reactor.resources().receive_bytes_free;
    // Connections that never send Fabrics Connect, until one is refused.
    loop {
        let conn = rig.fabric().dial(&request, 1);
        rig.settle();
        if rig.host(conn).rejected.is_some() {
            break;
        }
    }
    assert!(rig.reactor.resources().receive_bytes_free >= all / 8);
    // Another address still gets in.
    rig.fabric().peer = 2;
    rig.dial(0, 32, 1);
}

#[test]
fn who_never_answered_makes_room() {
    let mut rig =
        Rig::with(ReactorConfig { receive_bytes: 2 << 20, receive_max_bytes: 0, ..config() });
    let size = QueueSize::from_entries(32).unwrap();
    let request = ConnectRequest::new(Qid(1), size, ControllerId(0)).to_bytes();
    rig.fabric().answer = false;
    // Each in another name, until there is no room.
    let mut forged = Vec::new();
    loop {
        rig.fabric().peer = u8::try_from(forged.len()).unwrap() + 10;
        let conn = rig.fabric().dial(&request, 16);
        rig.settle();
        if rig.host(conn).rejected.is_some() {
            break;
        }
        forged.push(conn);
    }
    assert!(forged.len() > 2);
    rig.pass(Duration::from_millis(20));
    rig.fabric().answer = true;
    rig.fabric().peer = 1;
    let conn = rig.fabric().dial(&request, 16);
    rig.settle();
    assert!(rig.host(conn).accepted.is_some());
    assert_eq!(rig.reactor.statistics().unanswered, 1);
    assert!(!rig.is_there(forged[0]), "the oldest");
    assert!(rig.is_there(forged[1]));
    // Those that are there stay, whatever comes.
    rig.pass(Duration::from_millis(20));
    for peer in 100..120 {
        rig.fabric().peer = peer;
        rig.fabric().dial(&request, 16);
        rig.settle();
    }
    assert!(rig.is_there(conn));
}

#[test]
fn many_queues_get_more_receive_buffers() {
    let mut rig = Rig::with(ReactorConfig {
        receive_bytes: 512 << 10,
        receive_max_bytes: 8 << 20,
        ..config()
    });
    let (_, cntlid) = rig.controller();
    let all = rig.reactor.resources();
    assert_eq!(all.receive_memories, 1);
    for qid in 1..=8 {
        let conn = rig.queue(cntlid, qid, 32, 16);
        // In-capsule data lands in the memory that the queue got.
        let byte = u8::try_from(qid).unwrap();
        let sgl = Sgl::InCapsule { offset: 0, length: 512 };
        let mut capsule = rig.write_command(u64::from(qid), 1, sgl).to_bytes().to_vec();
        capsule.resize(64 + 512, byte);
        rig.fabric().capsule(conn, &capsule);
        rig.settle();
        assert!(rig.response(conn).status().is_success());
        let at = usize::from(qid) * 512;
        assert!(rig.storage().disk[at..at + 512].iter().all(|&there| there == byte));
    }
    let now = rig.reactor.resources();
    assert!(now.receive_memories > 3, "{now:?}");
    assert!(now.receive_bytes_free < all.receive_bytes_free);
}

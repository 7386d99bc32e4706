//! The life of connections.

use core::time::Duration;

use lariat_fabric::verbs::{
    Access, CmEvent, ConnId, ConnectFailure, QpConfig, RecvRequest, SendOp, SendRequest, SgeList,
    WcStatus,
};
use lariat_fabric::{Armed, CmError, Fabric, ListenError, Memory, PostErrorKind, QpError};

use super::pair::{Harness, Host, Pair, Target, params};

pub fn connects_with_private_data<H: Harness>(pair: &mut Pair<H>) {
    let (host, target) = pair.request(b"recfmt 0, qid 7");
    let config = pair.config(Target);
    pair.fabric(Target).create_qp(target, &config).unwrap();
    let now = pair.harness.now();
    let answer: Vec<u8> = (0..32).collect();
    pair.fabric(Target).accept(now, target, &params(&answer)).unwrap();
    match pair.event(Host) {
        CmEvent::Established { conn, private_data, .. } => {
            assert_eq!(conn, host);
            assert!(private_data.as_bytes().starts_with(&answer));
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(pair.event(Target), CmEvent::Established { conn, .. } if conn == target));
}

pub fn rejects_with_private_data<H: Harness>(pair: &mut Pair<H>) {
    let (host, target) = pair.request(b"please");
    let now = pair.harness.now();
    pair.fabric(Target).reject(now, target, b"no, status 4").unwrap();
    match pair.event(Host) {
        CmEvent::ConnectFailed {
            conn,
            failure: ConnectFailure::Rejected { reason, private_data },
        } => {
            assert_eq!((conn, reason), (host, 28));
            assert!(private_data.as_bytes().starts_with(b"no, status 4"));
        }
        other => panic!("{other:?}"),
    }
    pair.fabric(Host).destroy(now, host);
    assert!(matches!(pair.fabric(Target).reject(now, target, b""), Err(CmError::Stale(_))));
}

pub fn refuses_where_nobody_listens<H: Harness>(pair: &mut Pair<H>) {
    let mut address = pair.harness.address();
    address.set_port(address.port() + 1);
    let conn = pair.resolve(address);
    let now = pair.harness.now();
    pair.fabric(Host).connect(now, conn, &params(b""), Duration::from_secs(5)).unwrap();
    match pair.event(Host) {
        CmEvent::ConnectFailed {
            conn: failed,
            failure: ConnectFailure::Rejected { reason, .. },
        } => assert_eq!((failed, reason), (conn, 8)),
        other => panic!("{other:?}"),
    }
}

pub fn gives_up_on_silence<H: Harness>(pair: &mut Pair<H>) {
    let address = pair.harness.silent_address();
    let conn = pair.resolve(address);
    if !pair.acknowledges(Host, conn) {
        eprintln!("SKIPPED: Soft-iWARP's connect returns when TCP has given up, minutes later");
        return;
    }
    let start = pair.harness.now();
    let timeout = Duration::from_millis(700);
    pair.fabric(Host).connect(start, conn, &params(b""), timeout).unwrap();
    match pair.event(Host) {
        CmEvent::ConnectFailed { conn: failed, failure: ConnectFailure::Timeout { waited } } => {
            assert_eq!(failed, conn);
            assert!(waited >= timeout && waited < timeout * 3, "{waited:?}");
        }
        other => panic!("{other:?}"),
    }
    let passed = pair.harness.now().since(start);
    assert!(passed >= timeout && passed < timeout * 3, "{passed:?}");
}

pub fn disconnects_either_way<H: Harness>(pair: &mut Pair<H>) {
    for side in [Host, Target] {
        let (host, target) = pair.connect();
        let now = pair.harness.now();
        let conn = if side == Host { host } else { target };
        pair.fabric(side).disconnect(now, conn).unwrap();
        assert!(matches!(pair.event(Host), CmEvent::Disconnected { conn, .. } if conn == host));
        assert!(matches!(pair.event(Target), CmEvent::Disconnected { conn, .. } if conn == target));
        pair.fabric(Host).destroy(now, host);
        pair.fabric(Target).destroy(now, target);
    }
}

pub fn flushes_on_disconnect<H: Harness>(pair: &mut Pair<H>) {
    let (host, target) = pair.connect();
    for wr_id in 0..10 {
        let sge = pair.sge(Host, 0, 64);
        pair.recv(Host, host, wr_id, SgeList::one(sge));
        let sge = pair.sge(Target, 0, 64);
        pair.recv(Target, target, 100 + wr_id, SgeList::one(sge));
    }
    let now = pair.harness.now();
    pair.fabric(Target).disconnect(now, target).unwrap();
    for (side, first) in [(Host, 0), (Target, 100)] {
        let flushed = pair.completions(side, 10);
        let ids: Vec<_> = flushed.iter().map(|completion| completion.wr_id).collect();
        assert_eq!(ids, (first..first + 10).collect::<Vec<_>>());
        assert!(flushed.iter().all(|completion| completion.status == WcStatus::Flushed));
        assert!(matches!(pair.event(side), CmEvent::Disconnected { .. }));
    }
    pair.run_for(Duration::from_millis(50));
    assert!(pair.nothing_completed(Host) && pair.nothing_completed(Target));
}

pub fn destroys_in_flight<H: Harness>(pair: &mut Pair<H>) {
    let (host, target) = pair.connect();
    let domain = pair.side(Host).domain;
    let memory = Memory::allocate(1 << 16).unwrap();
    let region = pair.fabric(Host).register(domain, memory.clone(), Access::REMOTE).unwrap();
    // No receive is posted, so these cannot complete.
    let sges = SgeList::one(lariat_fabric::verbs::Sge { region, offset: 0, length: 1 << 16 });
    for wr_id in 0..4 {
        pair.post(Host, host, wr_id, SendOp::Send, sges);
    }
    pair.poll();
    let waits = pair.acknowledges(Host, host);
    let now = pair.harness.now();
    pair.fabric(Host).destroy(now, host);
    pair.fabric(Host).deregister(region).unwrap();
    assert_eq!(std::sync::Arc::strong_count(&memory), 1);
    if !waits {
        // The connection may have ended before it was destroyed.
        pair.side(Host).completions.clear();
        pair.side(Host).events.clear();
    }
    assert!(matches!(pair.event(Target), CmEvent::Disconnected { conn, .. } if conn == target));
    pair.run_for(Duration::from_millis(50));
    assert!(pair.nothing_completed(Host));
    // The fabric goes on.
    let _ = pair.connect();
}

pub fn destroys_before_connecting<H: Harness>(pair: &mut Pair<H>) {
    let address = pair.harness.address();
    let conn = pair.resolve(address);
    let now = pair.harness.now();
    pair.fabric(Host).destroy(now, conn);
    let (host, target) = pair.request(b"second");
    pair.fabric(Host).destroy(now, host);
    // The target may answer a request whose host is gone, or hear at once that it is; it must not
    // be left hanging.
    let config = pair.config(Target);
    let created = pair.fabric(Target).create_qp(target, &config).is_ok();
    let now = pair.harness.now();
    if created && pair.fabric(Target).accept(now, target, &params(b"")).is_ok() {
        match pair.event(Target) {
            CmEvent::ConnectFailed { conn, .. } | CmEvent::Disconnected { conn, .. } => {
                assert_eq!(conn, target);
            }
            other => panic!("{other:?}"),
        }
    }
    pair.fabric(Target).destroy(now, target);
    pair.side(Target).events.retain(|event| match event {
        CmEvent::ConnectFailed { conn, .. } => *conn != target,
        _ => true,
    });
    let _ = pair.connect();
    assert!(pair.nothing_completed(Host));
}

pub fn refuses_stale_handles<H: Harness>(pair: &mut Pair<H>) {
    let (host, _) = pair.connect();
    let now = pair.harness.now();
    pair.fabric(Host).destroy(now, host);
    assert!(matches!(pair.event(Target), CmEvent::Disconnected { .. }));
    let (second, _) = pair.connect();
    assert_ne!(host, second);
    let domain = pair.side(Host).domain;
    let region = pair.side(Host).region;
    let sge = pair.sge(Host, 0, 8);
    let config = QpConfig::new(domain, 1, 1);
    let fabric = pair.fabric(Host);
    let send = SendRequest { wr_id: 1, op: SendOp::Send, sges: SgeList::one(sge), signaled: true };
    let recv = RecvRequest { wr_id: 1, sges: SgeList::one(sge) };
    for stale in [host, ConnId(host.0 ^ 1 << 60), ConnId(u64::MAX)] {
        assert!(fabric.limits(stale).is_err());
        assert!(fabric.rkey(stale, region).is_err());
        assert!(matches!(fabric.create_qp(stale, &config), Err(QpError::Stale(_))));
        assert_eq!(fabric.post_send(stale, &[send]).unwrap_err().kind, PostErrorKind::NoQueuePair);
        assert_eq!(fabric.post_recv(stale, &[recv]).unwrap_err().kind, PostErrorKind::NoQueuePair);
        let timeout = Duration::from_secs(1);
        assert!(matches!(
            fabric.connect(now, stale, &params(b""), timeout),
            Err(CmError::Stale(_))
        ));
        assert!(matches!(fabric.accept(now, stale, &params(b"")), Err(CmError::Stale(_))));
        assert!(matches!(fabric.disconnect(now, stale), Err(CmError::Stale(_))));
        fabric.destroy(now, stale);
    }
    fabric.deregister(region).unwrap();
    assert!(fabric.deregister(region).is_err());
    assert!(fabric.rkey(second, region).is_err());
}

pub fn limits_are_kept<H: Harness>(pair: &mut Pair<H>) {
    let address = pair.harness.address();
    let now = pair.harness.now();
    let conn = pair.fabric(Host).resolve(now, address, Duration::from_secs(1)).unwrap();
    let _ = pair.event(Host);
    let limits = pair.fabric(Host).limits(conn).unwrap();
    let domain = pair.side(Host).domain;
    let config = QpConfig::new(domain, limits.max_queue_depth + 1, 1);
    assert!(matches!(
        pair.fabric(Host).create_qp(conn, &config),
        Err(QpError::Limit { .. } | QpError::Io(_))
    ));
    pair.fabric(Host).destroy(now, conn);

    let (host, _target) = pair.connect();
    let sge = pair.sge(Host, 0, 8);
    let send = SendRequest { wr_id: 1, op: SendOp::Send, sges: SgeList::one(sge), signaled: true };
    let recv = RecvRequest { wr_id: 1, sges: SgeList::one(sge) };
    // At least what was asked for, and not without end.
    let fabric = pair.fabric(Host);
    fabric.post_send(host, &[send; 32]).unwrap();
    fabric.post_recv(host, &[recv; 32]).unwrap();
    let error = fabric.post_send(host, &vec![send; 20_000]).unwrap_err();
    assert_eq!(error.kind, PostErrorKind::QueueFull);
    assert!(error.index < 20_000);
    let error = fabric.post_recv(host, &vec![recv; 20_000]).unwrap_err();
    assert_eq!(error.kind, PostErrorKind::QueueFull);
}

pub fn many_connections_share_a_fabric<H: Harness>(pair: &mut Pair<H>) {
    let ends: Vec<_> = (0..40).map(|_| pair.connect()).collect();
    for (index, (_, target)) in ends.iter().enumerate() {
        let index = index as u64;
        let sge = pair.sge(Target, 500_000 + index * 1000, 1000);
        pair.recv(Target, *target, index, SgeList::one(sge));
    }
    for (index, (host, _)) in ends.iter().enumerate() {
        let index = index as u64;
        let sge = pair.sge(Host, index * 777, 900);
        pair.post(Host, *host, index, SendOp::Send, SgeList::one(sge));
    }
    for completion in pair.completions(Target, 40) {
        let index = completion.wr_id;
        assert_eq!((completion.status, completion.byte_len), (WcStatus::Success, 900));
        assert_eq!(completion.conn, ends[index as usize].1);
        let sent = pair.bytes(Host, index * 777, 900);
        assert_eq!(pair.bytes(Target, 500_000 + index * 1000, 900), sent);
    }
    for completion in pair.completions(Host, 40) {
        assert_eq!(completion.conn, ends[completion.wr_id as usize].0);
    }
    let now = pair.harness.now();
    for (host, target) in ends {
        pair.fabric(Host).destroy(now, host);
        pair.fabric(Target).destroy(now, target);
    }
}

pub fn sleeps_until_something_comes<H: Harness>(pair: &mut Pair<H>) {
    let (host, target) = pair.connect();
    let sge = pair.sge(Target, 0, 64);
    pair.recv(Target, target, 1, SgeList::one(sge));
    pair.run_for(Duration::from_millis(20));
    let now = pair.harness.now();
    assert!(matches!(pair.fabric(Target).arm(now), Armed::Until(until) if until > now));
    let sge = pair.sge(Host, 0, 64);
    pair.post(Host, host, 2, SendOp::Send, SgeList::one(sge));
    // Whatever it waits for now wakes it: the harness's `advance` is that wait.
    let mut turns = 0;
    while pair.side(Target).completions.is_empty() {
        let now = pair.harness.now();
        if matches!(pair.fabric(Target).arm(now), Armed::Until(_)) {
            pair.harness.advance(Duration::from_secs(1));
        }
        pair.poll();
        turns += 1;
        assert!(turns < 10);
    }
    pair.success(Target, 1);
    // The acknowledgement is not held back by a sleeping side.
    let now = pair.harness.now();
    pair.fabric(Target).arm(now);
    pair.success(Host, 2);
}

pub fn listener_is_alone_and_closes<H: Harness>(pair: &mut Pair<H>) {
    let address = pair.harness.address();
    assert!(matches!(pair.fabric(Target).listen(address), Err(ListenError::InUse { .. })));
    let listener = pair.listener;
    let (host, target) = pair.connect();
    pair.fabric(Target).close_listener(listener);
    let conn = pair.resolve(address);
    let now = pair.harness.now();
    pair.fabric(Host).connect(now, conn, &params(b""), Duration::from_secs(5)).unwrap();
    assert!(matches!(
        pair.event(Host),
        CmEvent::ConnectFailed { failure: ConnectFailure::Rejected { reason: 8, .. }, .. }
    ));
    let sge = pair.sge(Target, 0, 64);
    pair.recv(Target, target, 1, SgeList::one(sge));
    let sge = pair.sge(Host, 0, 64);
    pair.post(Host, host, 2, SendOp::Send, SgeList::one(sge));
    pair.success(Target, 1);
    pair.fabric(Target).listen(address).unwrap();
    let _ = pair.connect();
}

//! Receives that connections share. A provider without shared receive queues says so in its limits.

use core::time::Duration;

use lariat_fabric::verbs::{
    CmEvent, ConnId, QpConfig, RecvRequest, SendOp, SgeList, SharedReceiveId, WcStatus,
    WorkCompletion,
};
use lariat_fabric::{Fabric, PostErrorKind, QpError};

use super::pair::{Harness, Host, Pair, Target};

/// Bytes of a receive, and where those of number `n` start.
const LENGTH: u32 = 6000;
const fn place(n: u64) -> u64 {
    500_000 + n * 8192
}

/// `count` connections whose ends at the target take from one queue; `None` if there are none.
fn connect<H: Harness>(
    pair: &mut Pair<H>,
    count: usize,
) -> Option<(SharedReceiveId, Vec<(ConnId, ConnId)>)> {
    let mut shared = None;
    let mut ends = Vec::new();
    for _ in 0..count {
        let (host, target) = pair.request(b"hello");
        let domain = pair.side(Target).domain;
        if shared.is_none() {
            let most = pair.fabric(Target).limits(target).unwrap().max_shared_receives;
            let fabric = pair.fabric(Target);
            let refused = fabric.create_shared_receive(target, domain, most + 1);
            assert!(matches!(refused, Err(QpError::Limit { .. })), "{refused:?}");
            if most == 0 {
                return None;
            }
            shared = Some(fabric.create_shared_receive(target, domain, 8).unwrap());
        }
        assert!(pair.fabric(Target).can_share(target, shared?));
        let config = QpConfig { shared_receive: shared, ..QpConfig::new(domain, 32, 0) };
        pair.finish_connect(host, target, &config);
        ends.push((host, target));
    }
    Some((shared?, ends))
}

fn post<H: Harness>(pair: &mut Pair<H>, shared: SharedReceiveId, numbers: &[u64]) {
    let requests: Vec<_> = numbers
        .iter()
        .map(|&wr_id| {
            let sges = SgeList::one(pair.sge(Target, place(wr_id), LENGTH));
            RecvRequest { wr_id, sges }
        })
        .collect();
    pair.fabric(Target).post_shared_receive(shared, &requests).unwrap();
}

fn send<H: Harness>(pair: &mut Pair<H>, host: ConnId, wr_id: u64, length: u32) {
    let source = pair.sge(Host, wr_id * 100, length);
    pair.post(Host, host, wr_id, SendOp::Send, SgeList::one(source));
}

/// What arrived is what was sent.
fn check<H: Harness>(pair: &mut Pair<H>, sent: u64, received: u64, length: u32) {
    let bytes = pair.bytes(Host, sent * 100, length as usize);
    assert!(pair.bytes(Target, place(received), length as usize) == bytes);
}

pub fn shared_receives_serve_whoever_sends<H: Harness>(pair: &mut Pair<H>) {
    let Some((shared, ends)) = connect(pair, 3) else { return };
    let own = SgeList::one(pair.sge(Target, 0, 64));
    let request = RecvRequest { wr_id: 77, sges: own };
    let refused = pair.fabric(Target).post_recv(ends[0].1, &[request]).unwrap_err();
    assert_eq!(refused.kind, PostErrorKind::WrongState);
    post(pair, shared, &[0, 1, 2, 3, 4, 5, 6, 7]);
    let full = pair.fabric(Target).post_shared_receive(shared, &[request]).unwrap_err();
    assert_eq!((full.index, full.kind), (0, PostErrorKind::QueueFull));
    for round in 0..60_u64 {
        let (host, target) = ends[(round % 5 % 3) as usize];
        let length = [0, 64, 4096, 5000, LENGTH][(round % 5) as usize];
        send(pair, host, 100 + round, length);
        let received = pair.completions(Target, 1).remove(0);
        assert_eq!(
            (received.conn, received.status, received.byte_len),
            (target, WcStatus::Success, length)
        );
        assert!(received.wr_id < 8, "{received:?}");
        check(pair, 100 + round, received.wr_id, length);
        assert_eq!(pair.success(Host, 100 + round).conn, host);
        post(pair, shared, &[received.wr_id]);
    }
}

pub fn an_empty_shared_queue_makes_peers_wait<H: Harness>(pair: &mut Pair<H>) {
    let Some((shared, ends)) = connect(pair, 3) else { return };
    post(pair, shared, &[7]);
    for (number, (host, _)) in (1..).zip(&ends) {
        send(pair, *host, number, 5000);
    }
    let first = pair.completions(Target, 1).remove(0);
    pair.run_for(Duration::from_millis(30));
    assert!(pair.side(Target).completions.is_empty());
    let mut served = vec![first];
    for wr_id in [3, 4] {
        post(pair, shared, &[wr_id]);
        served.push(pair.completions(Target, 1).remove(0));
    }
    let mut seen = Vec::new();
    for received in served {
        assert_eq!((received.status, received.byte_len), (WcStatus::Success, 5000));
        let sender = ends.iter().position(|(_, target)| *target == received.conn).unwrap();
        check(pair, sender as u64 + 1, received.wr_id, 5000);
        seen.push(sender);
    }
    seen.sort_unstable();
    assert_eq!(seen, [0, 1, 2]);
    assert!(pair.completions(Host, 3).iter().all(|sent| sent.status == WcStatus::Success));
}

pub fn shared_receives_outlive_connections<H: Harness>(pair: &mut Pair<H>) {
    let Some((shared, ends)) = connect(pair, 3) else { return };
    post(pair, shared, &[0, 1, 2]);
    let now = pair.harness.now();
    pair.fabric(Target).disconnect(now, ends[0].1).unwrap();
    pair.fabric(Host).disconnect(now, ends[1].0).unwrap();
    let gone = |pair: &mut Pair<H>| {
        let over = |event: &CmEvent| matches!(event, CmEvent::Disconnected { .. });
        pair.side(Target).events.iter().filter(|event| over(event)).count()
    };
    pair.run_until("both ends", |pair| gone(pair) == 2);
    // They belong to the queue: nothing is flushed.
    assert!(pair.side(Target).completions.is_empty(), "{:?}", pair.side(Target).completions);
    let now = pair.harness.now();
    pair.fabric(Target).destroy(now, ends[0].1);
    pair.fabric(Target).destroy(now, ends[1].1);
    pair.run_for(Duration::from_millis(1));
    assert!(pair.side(Target).completions.is_empty());
    assert!(!pair.fabric(Target).can_share(ends[0].1, shared));
    for number in 0..3 {
        send(pair, ends[2].0, 10 + number, 4096);
    }
    let mut taken: Vec<u64> =
        pair.completions(Target, 3).iter().map(|received| received.wr_id).collect();
    taken.sort_unstable();
    assert_eq!(taken, [0, 1, 2]);
    assert!(!pair.fabric(Target).destroy_shared_receive(shared), "it is used");
    let now = pair.harness.now();
    pair.fabric(Target).destroy(now, ends[2].1);
    assert!(pair.fabric(Target).destroy_shared_receive(shared));
    assert!(pair.fabric(Target).destroy_shared_receive(shared));
    let own = SgeList::one(pair.sge(Target, 0, 64));
    let request = RecvRequest { wr_id: 77, sges: own };
    let refused = pair.fabric(Target).post_shared_receive(shared, &[request]).unwrap_err();
    assert_eq!(refused.kind, PostErrorKind::NoSharedReceive);
}

pub fn taken_receives_come_back<H: Harness>(pair: &mut Pair<H>) {
    let Some((shared, ends)) = connect(pair, 2) else { return };
    post(pair, shared, &[0, 1, 2, 3]);
    for number in 0..2 {
        send(pair, ends[0].0, 10 + number, 4096);
    }
    // The messages arrive, without the target's help where a device takes them; it sees none.
    let (mut completions, mut events) = (Vec::new(), Vec::new());
    for _ in 0..30 {
        let now = pair.harness.now();
        if pair.fabric(Target).name() != "ib" {
            pair.fabric(Target).poll(now, 0, &mut completions, &mut events);
        }
        let host = pair.fabric(Host);
        let (mut sent, mut rest) = (Vec::new(), Vec::new());
        host.poll(now, 64, &mut sent, &mut rest);
        pair.harness.advance(Duration::from_millis(1));
    }
    assert_eq!(completions, []);
    let now = pair.harness.now();
    pair.fabric(Target).destroy(now, ends[0].1);
    for _ in 0..3 {
        let now = pair.harness.now();
        pair.fabric(Target).poll(now, 64, &mut completions, &mut events);
    }
    let mut back: Vec<u64> = completions.iter().map(|taken| taken.wr_id).collect();
    let is_right =
        |taken: &WorkCompletion| (taken.conn, taken.status) == (ends[0].1, WcStatus::Flushed);
    assert!(completions.len() == 2 && completions.iter().all(is_right), "{completions:?}");
    pair.side(Host).completions.clear();
    for number in 0..2 {
        send(pair, ends[1].0, 20 + number, 4096);
    }
    for received in pair.completions(Target, 2) {
        assert_eq!((received.conn, received.status), (ends[1].1, WcStatus::Success));
        back.push(received.wr_id);
    }
    back.sort_unstable();
    assert_eq!(back, [0, 1, 2, 3], "each once");
    // Their places in the queue are free again too.
    post(pair, shared, &[0, 1, 2, 3, 4, 5, 6, 7]);
}

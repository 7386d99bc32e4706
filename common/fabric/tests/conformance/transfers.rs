//! Messages that arrive.

use core::time::Duration;

use lariat_fabric::Fabric;
use lariat_fabric::verbs::{CmEvent, SendOp, SendRequest, SgeList, WcOpcode, WcStatus};

use super::pair::{Harness, Host, Pair, Target};

const SIZES: [u32; 9] = [0, 1, 3, 64, 4095, 4096, 4097, 65_536, 200_001];

pub fn sends_and_receives<H: Harness>(pair: &mut Pair<H>) {
    let (host, target) = pair.connect();
    for (from, to, sender, receiver) in [(Host, Target, host, target), (Target, Host, target, host)]
    {
        for (wr_id, size) in (10..).zip(SIZES) {
            let sink = pair.sge(to, 500_000, 200_100);
            pair.recv(to, receiver, wr_id, SgeList::one(sink));
            let source = pair.sge(from, 7, size);
            pair.post(from, sender, 100 + wr_id, SendOp::Send, SgeList::one(source));
            let received = pair.success(to, wr_id);
            assert_eq!(
                (received.opcode, received.byte_len, received.conn, received.invalidated),
                (WcOpcode::Recv, size, receiver, None)
            );
            let sent = pair.success(from, 100 + wr_id);
            assert_eq!((sent.opcode, sent.conn), (WcOpcode::Send, sender));
            let bytes = pair.bytes(from, 7, size as usize);
            assert!(pair.bytes(to, 500_000, size as usize) == bytes, "{size} bytes");
        }
    }
}

pub fn sends_from_two_pieces_into_two<H: Harness>(pair: &mut Pair<H>) {
    let (host, target) = pair.connect();
    for (first, second, third) in [(64, 4096, 64), (1, 10_001, 5000), (5000, 3, 4999)] {
        let (a, b) = (pair.sge(Target, 500_000, third), pair.sge(Target, 700_000, 50_000));
        pair.recv(Target, target, 1, SgeList::two(a, b));
        let (c, d) = (pair.sge(Host, 11, first), pair.sge(Host, 20_000, second));
        pair.post(Host, host, 2, SendOp::Send, SgeList::two(c, d));
        assert_eq!(pair.success(Target, 1).byte_len, first + second);
        pair.success(Host, 2);
        let mut sent = pair.bytes(Host, 11, first as usize);
        sent.extend(pair.bytes(Host, 20_000, second as usize));
        let head = sent.len().min(third as usize);
        let mut got = pair.bytes(Target, 500_000, head);
        got.extend(pair.bytes(Target, 700_000, sent.len() - head));
        assert!(got == sent);
    }
}

pub fn waits_for_a_late_receive<H: Harness>(pair: &mut Pair<H>) {
    let (host, target) = pair.connect();
    let source = pair.sge(Host, 0, 5000);
    pair.post(Host, host, 1, SendOp::Send, SgeList::one(source));
    if !pair.acknowledges(Host, host) {
        for (side, end) in [(Host, host), (Target, target)] {
            let event = pair.event(side);
            assert!(
                matches!(event, CmEvent::Disconnected { conn, .. } if conn == end),
                "{event:?}"
            );
        }
        return;
    }
    pair.run_for(Duration::from_millis(30));
    assert!(pair.nothing_completed(Host) && pair.nothing_completed(Target));
    let sink = pair.sge(Target, 500_000, 5000);
    pair.recv(Target, target, 2, SgeList::one(sink));
    pair.success(Target, 2);
    pair.success(Host, 1);
    let sent = pair.bytes(Host, 0, 5000);
    assert!(pair.bytes(Target, 500_000, 5000) == sent);
}

pub fn writes<H: Harness>(pair: &mut Pair<H>) {
    let (host, target) = pair.connect();
    for (wr_id, size) in (1..).zip(SIZES) {
        let source = pair.sge(Target, 3, size);
        let op = pair.write_op(Target, host, 500_001);
        let before = pair.bytes(Host, 500_001 + u64::from(size), 16);
        pair.post(Target, target, wr_id, op, SgeList::one(source));
        assert_eq!(pair.success(Target, wr_id).opcode, WcOpcode::Write);
        let sent = pair.bytes(Target, 3, size as usize);
        assert!(pair.bytes(Host, 500_001, size as usize) == sent, "{size} bytes");
        assert_eq!(pair.bytes(Host, 500_001 + u64::from(size), 16), before);
    }
    assert!(pair.nothing_completed(Host));
}

pub fn write_then_send_keeps_order<H: Harness>(pair: &mut Pair<H>) {
    let (host, target) = pair.connect();
    for round in 0..20_u64 {
        let count = 1 + round % 8;
        let mut requests = Vec::new();
        for slot in 0..count {
            let sink = pair.sge(Host, slot * 16, 16);
            pair.recv(Host, host, slot, SgeList::one(sink));
            let op = pair.write_op(Target, host, 100_000 + slot * 20_000);
            let source = pair.sge(Target, (round * 31 + slot) * 100, 4096 + 1000 * slot as u32);
            requests.push(SendRequest {
                wr_id: slot,
                op,
                sges: SgeList::one(source),
                signaled: false,
            });
        }
        for slot in 0..count {
            let source = pair.sge(Target, slot, 16);
            let op = SendOp::Send;
            requests.push(SendRequest {
                wr_id: 50 + slot,
                op,
                sges: SgeList::one(source),
                signaled: true,
            });
        }
        pair.fabric(Target).post_send(target, &requests).unwrap();
        let now = pair.harness.now();
        pair.fabric(Target).flush(now);
        // At the first response, all data that was posted before it is there.
        pair.success(Host, 0);
        for slot in 0..count {
            let length = 4096 + 1000 * slot as usize;
            let sent = pair.bytes(Target, (round * 31 + slot) * 100, length);
            assert!(pair.bytes(Host, 100_000 + slot * 20_000, length) == sent);
        }
        for slot in 1..count {
            pair.success(Host, slot);
        }
        for slot in 0..count {
            pair.success(Target, 50 + slot);
        }
    }
}

pub fn reads<H: Harness>(pair: &mut Pair<H>) {
    let (host, target) = pair.connect();
    for (wr_id, size) in (1..).zip(SIZES) {
        let sink = pair.sge(Target, 500_000, size);
        let op = pair.read_op(Target, host, 9);
        pair.post(Target, target, wr_id, op, SgeList::one(sink));
        let completion = pair.success(Target, wr_id);
        assert_eq!((completion.opcode, completion.byte_len), (WcOpcode::Read, size));
        let there = pair.bytes(Host, 9, size as usize);
        assert!(pair.bytes(Target, 500_000, size as usize) == there, "{size} bytes");
    }
    assert!(pair.nothing_completed(Host));
}

pub fn reads_beyond_the_negotiated_depth<H: Harness>(pair: &mut Pair<H>) {
    let (host, target) = pair.connect();
    let mut requests = Vec::new();
    for slot in 0..24_u64 {
        let sink = pair.sge(Target, 500_000 + slot * 9000, 9000);
        let op = pair.read_op(Target, host, slot * 1000);
        requests.push(SendRequest { wr_id: slot, op, sges: SgeList::one(sink), signaled: true });
    }
    pair.fabric(Target).post_send(target, &requests).unwrap();
    let now = pair.harness.now();
    pair.fabric(Target).flush(now);
    for slot in 0..24_u64 {
        pair.success(Target, slot);
        let there = pair.bytes(Host, slot * 1000, 9000);
        assert!(pair.bytes(Target, 500_000 + slot * 9000, 9000) == there);
    }
}

pub fn unsignalled_requests_complete_silently<H: Harness>(pair: &mut Pair<H>) {
    let (host, target) = pair.connect();
    let sge = pair.sge(Target, 500_000, 64);
    let source = pair.sge(Host, 0, 64);
    // More than the queue holds, in rounds: those before a signalled one are done with it.
    for round in 0..10 {
        for wr_id in 0..16 {
            pair.recv(Target, target, wr_id, SgeList::one(sge));
            let request = SendRequest {
                wr_id: 100 + wr_id,
                op: SendOp::Send,
                sges: SgeList::one(source),
                signaled: wr_id == 15,
            };
            pair.fabric(Host).post_send(host, &[request]).unwrap_or_else(|e| panic!("{round} {e}"));
        }
        let now = pair.harness.now();
        pair.fabric(Host).flush(now);
        pair.success(Host, 115);
        let received = pair.completions(Target, 16);
        assert!(received.iter().all(|completion| completion.status == WcStatus::Success));
    }
    assert!(pair.nothing_completed(Host));
}

pub fn mixes_in_posting_order<H: Harness>(pair: &mut Pair<H>) {
    let (host, target) = pair.connect();
    let sink = pair.sge(Host, 0, 64);
    for wr_id in 0..5 {
        pair.recv(Host, host, wr_id, SgeList::one(sink));
    }
    let mut requests = Vec::new();
    for wr_id in 0..15_u64 {
        let (op, offset, length) = match wr_id % 3 {
            0 => (SendOp::Send, 0, 64),
            1 => (pair.read_op(Target, host, wr_id * 100), 500_000 + wr_id * 10_000, 8000),
            _ => (pair.write_op(Target, host, 800_000 + wr_id * 5000), 0, 5000),
        };
        let sges = SgeList::one(pair.sge(Target, offset, length));
        requests.push(SendRequest { wr_id, op, sges, signaled: true });
    }
    pair.fabric(Target).post_send(target, &requests).unwrap();
    let now = pair.harness.now();
    pair.fabric(Target).flush(now);
    let ends = pair.completions(Target, 15);
    assert!(ends.iter().all(|end| end.status == WcStatus::Success), "{ends:?}");
    let mut order: Vec<u64> = ends.iter().map(|end| end.wr_id).collect();
    if !pair.acknowledges(Target, target) {
        // Soft-iWARP tells of what was posted behind an RDMA READ before that.
        order.sort_unstable();
    }
    assert_eq!(order, (0..15).collect::<Vec<_>>());
    for wr_id in 0..5 {
        pair.success(Host, wr_id);
    }
    for wr_id in (1..15).step_by(3) {
        let there = pair.bytes(Host, wr_id * 100, 8000);
        assert!(pair.bytes(Target, 500_000 + wr_id * 10_000, 8000) == there);
    }
}

//! What messages look like on a wire that works, and what completes.

use lariat_wire::rocev2::pad_for;

use super::*;
use crate::verbs::PostErrorKind;

const OK: WcStatus = WcStatus::Success;

#[test]
fn empty_messages() {
    let mut pair = Pair::new(PathMtu::Mtu1024, |_, _| {});
    pair.recv(1, 9, SgeList::EMPTY);
    // No memory is named, so keys and addresses do not matter (IBTA 9.7.4.1.3).
    let (remote_address, rkey) = (7, Rkey(7));
    pair.send(0, 1, SendOp::Write { remote_address, rkey }, SgeList::EMPTY);
    pair.send(0, 2, SendOp::Read { remote_address, rkey }, SgeList::EMPTY);
    pair.send(0, 3, SendOp::Send, SgeList::EMPTY);
    pair.settle();
    let sent =
        [(1, WcOpcode::Write, OK, 0), (2, WcOpcode::Read, OK, 0), (3, WcOpcode::Send, OK, 0)];
    assert_eq!(pair.done(0), sent);
    assert_eq!(pair.done(1), [(9, WcOpcode::Recv, OK, 0)]);
}

#[test]
fn segmentation_at_every_mtu() {
    for mtu in PathMtu::ALL {
        let size = u32::try_from(mtu.bytes()).unwrap();
        let (first, middle, last, only) =
            (Opcode::SendFirst, Opcode::SendMiddle, Opcode::SendLast, Opcode::SendOnly);
        let cases = [
            (1, vec![only]),
            (size, vec![only]),
            (size + 1, vec![first, last]),
            (3 * size, vec![first, middle, last]),
            (3 * size + 3, vec![first, middle, middle, last]),
        ];
        for (length, opcodes) in cases {
            let mut pair = Pair::new(mtu, |_, _| {});
            let bytes = pattern(length.into(), 4 * size as usize);
            let source = pair.region(0, bytes.clone(), Access::LOCAL_READ);
            let sink = pair.region(1, vec![0; 4 * size as usize], Access::LOCAL);
            pair.recv(1, 5, at(sink, 0, 4 * size));
            pair.send(0, 6, SendOp::Send, at(source, 0, length));
            pair.settle();
            let seen: Vec<_> = pair.log.iter().filter(|(from, ..)| *from == 0).collect();
            assert_eq!(seen.iter().map(|(_, opcode, _)| *opcode).collect::<Vec<_>>(), opcodes);
            for (index, (_, _, psn)) in seen.iter().enumerate() {
                assert_eq!(psn.diff(Psn::new(0xff_fff0)), i32::try_from(index).unwrap());
            }
            assert_eq!(pair.done(1), [(5, WcOpcode::Recv, OK, length)]);
            let got = &pair.sides[1].mem.bytes(sink)[..length as usize];
            assert_eq!(got, &bytes[..length as usize]);
            assert_eq!(pair.count(1, Opcode::Acknowledge), 1);
            assert_eq!((pad_for(length as usize) + u8::try_from(length % 4).unwrap()) % 4, 0);
        }
    }
}

#[test]
fn divided_writes_are_packets_of_one_kind() {
    for mtu in PathMtu::ALL {
        let size = u32::try_from(mtu.bytes()).unwrap();
        for (length, packets) in [(0, 1), (size, 1), (3 * size, 3), (3 * size + 5, 4)] {
            let mut pair = Pair::with(mtu, true, |_, params| params.advertise_credits = true);
            let bytes = pattern(length.into(), 4 * size as usize);
            let source = pair.region(0, bytes.clone(), Access::LOCAL_READ);
            let sink = pair.region(1, vec![0; 5 * size as usize], Access::REMOTE);
            let op = SendOp::Write { remote_address: BASE + 3, rkey: key_of(sink) };
            pair.recv(1, 5, SgeList::EMPTY);
            pair.send(0, 6, op, at(source, 0, length));
            pair.send(0, 7, SendOp::Send, SgeList::EMPTY);
            pair.settle();
            assert_eq!(pair.count(0, Opcode::WriteOnly), packets, "{length} at {size}");
            assert_eq!(pair.log.iter().filter(|(from, ..)| *from == 0).count(), packets + 1);
            let ended = [(6, WcOpcode::Write, OK, 0), (7, WcOpcode::Send, OK, 0)];
            assert_eq!(pair.done(0), ended);
            let mut wanted = vec![0; 5 * size as usize];
            wanted[3..][..length as usize].copy_from_slice(&bytes[..length as usize]);
            assert_eq!(pair.sides[1].mem.bytes(sink), wanted);
        }
    }
}

/// A peer that grants credits by the message gets whole WRITEs, once that is known.
#[test]
fn writes_are_not_divided_for_who_counts_messages() {
    let mut pair = Pair::with(PathMtu::Mtu1024, true, |_, params| params.advertise_credits = true);
    let source = pair.region(0, vec![7; 64 << 10], Access::LOCAL_READ);
    let sink = pair.region(1, vec![0; 64 << 10], Access::REMOTE);
    let op = SendOp::Write { remote_address: BASE, rkey: key_of(sink) };
    for slot in 0..20 {
        pair.recv(1, slot, SgeList::EMPTY);
    }
    pair.send(0, 0, SendOp::Send, SgeList::EMPTY);
    pair.settle();
    let start = pair.now;
    for slot in 0..8 {
        pair.send(0, 2 * slot, op, at(source, 0, 64 << 10));
        pair.send(0, 2 * slot + 1, SendOp::Send, SgeList::EMPTY);
    }
    pair.settle();
    assert_eq!((pair.count(0, Opcode::WriteFirst), pair.count(0, Opcode::WriteOnly)), (8, 0));
    assert_eq!(pair.done(1).len(), 9);
    assert!(pair.now.since(start) < 8 * ONE_WAY, "{:?}", pair.now.since(start));
}

/// Each is checked by itself: those before the one that leaves the region have arrived.
#[test]
fn a_divided_write_beyond_its_region_is_refused_there() {
    let mut pair = Pair::with(PathMtu::Mtu256, true, |_, _| {});
    let source = pair.region(0, vec![7; 1024], Access::LOCAL_READ);
    let sink = pair.region(1, vec![0; 600], Access::REMOTE);
    let op = SendOp::Write { remote_address: BASE, rkey: key_of(sink) };
    pair.send(0, 6, op, at(source, 0, 1024));
    pair.settle();
    assert_eq!(pair.done(0), [(6, WcOpcode::Write, WcStatus::RemoteAccess, 0)]);
    let bytes = pair.sides[1].mem.bytes(sink);
    assert!(bytes[..512].iter().all(|byte| *byte == 7) && bytes[512..].iter().all(|b| *b == 0));
}

#[test]
fn sixteen_mebibytes_and_more_each_way() {
    let length = (16 << 20) + 5;
    let mut pair = Pair::new(PathMtu::Mtu4096, |_, _| {});
    let bytes = pattern(1, length);
    let size = u32::try_from(length).unwrap();
    let source = pair.region(0, bytes.clone(), Access::LOCAL_READ);
    let sink = pair.region(0, vec![0; length], Access::LOCAL);
    let far = pair.region(1, vec![0; length], Access::REMOTE);
    let (remote_address, rkey) = (BASE, key_of(far));
    pair.recv(1, 7, at(far, 0, size));
    pair.send(0, 1, SendOp::Write { remote_address, rkey }, at(source, 0, size));
    pair.send(0, 2, SendOp::Read { remote_address, rkey }, at(sink, 0, size));
    pair.send(0, 3, SendOp::Send, at(source, 0, size));
    pair.settle();
    let done = pair.done(0);
    assert_eq!(done.len(), 3);
    assert_eq!(done[1], (2, WcOpcode::Read, OK, size));
    assert_eq!(pair.done(1), [(7, WcOpcode::Recv, OK, size)]);
    assert!(pair.sides[0].mem.bytes(sink) == bytes);
    // Cut into requests that fit the window of 4 MiB; nothing was sent twice.
    assert!(pair.count(0, Opcode::ReadRequest) >= 4);
    assert_eq!(pair.counters(0).packets_resent, 0);
    assert!(pair.sides[0].qp.window_bytes() > 1 << 20);
}

#[test]
fn invalidation_takes_the_key() {
    let mut pair = Pair::new(PathMtu::Mtu256, |_, _| {});
    let source = pair.region(0, vec![7; 600], Access::LOCAL_READ);
    let sink = pair.region(1, vec![0; 600], Access::LOCAL);
    let gone = pair.region(1, vec![0; 8], Access::REMOTE);
    for (wr_id, length) in [(1, 16), (2, 600)] {
        pair.recv(1, wr_id, at(sink, 0, 600));
        pair.sides[1].mem.regions[1].rkey = Some(key_of(gone));
        let op = SendOp::SendWithInvalidate { rkey: key_of(gone) };
        pair.send(0, wr_id, op, at(source, 0, length));
        pair.settle();
        let seen = pair.sides[1].done.pop().unwrap();
        assert_eq!((seen.byte_len, seen.invalidated), (length, Some(key_of(gone))));
        assert_eq!(pair.sides[1].mem.regions[1].rkey, None);
    }
    assert_eq!(pair.count(0, Opcode::SendOnlyInvalidate), 1);
    assert_eq!(pair.count(0, Opcode::SendLastInvalidate), 1);
}

#[test]
fn reads_beyond_the_depth_wait() {
    for depth in 1..=4_u8 {
        let mut pair = Pair::new(PathMtu::Mtu1024, |_, params| {
            params.initiator_depth = depth;
            params.responder_resources = depth;
        });
        let far = pair.region(1, pattern(2, 8192), Access::REMOTE);
        let sink = pair.region(0, vec![0; 8 * 8192], Access::LOCAL);
        let op = SendOp::Read { remote_address: BASE, rkey: key_of(far) };
        for wr_id in 0..8 {
            pair.send(0, wr_id, op, at(sink, 8192 * wr_id, 8192));
        }
        pair.settle();
        assert_eq!(pair.done(0).len(), 8);
        let mut outstanding = 0;
        let mut most = 0;
        for (_, opcode, _) in &pair.log {
            match opcode {
                Opcode::ReadRequest => outstanding += 1,
                Opcode::ReadResponseLast => outstanding -= 1,
                _ => {}
            }
            most = most.max(outstanding);
        }
        assert_eq!(most, i32::from(depth));
        assert_eq!(pair.counters(0).packets_resent, 0);
    }
}

#[test]
fn queues_are_bounded_until_completions_are_polled() {
    let mut pair = Pair::new(PathMtu::Mtu1024, |_, _| {});
    let op = SendOp::Write { remote_address: 0, rkey: Rkey(0) };
    let mut request = SendRequest { wr_id: 0, op, sges: SgeList::EMPTY, signaled: true };
    for wr_id in 0..64 {
        request.wr_id = wr_id;
        pair.send(0, wr_id, op, SgeList::EMPTY);
        pair.recv(0, wr_id, SgeList::EMPTY);
    }
    let side = &mut pair.sides[0];
    assert_eq!(side.qp.post_send(&request, &side.mem), Err(PostErrorKind::QueueFull));
    let recv = RecvRequest { wr_id: 1, sges: SgeList::EMPTY };
    assert_eq!(side.qp.post_recv(&recv, &side.mem), Err(PostErrorKind::QueueFull));
    side.qp.fail(pair.now, super::super::QpFailure::Closed);
    assert_eq!(side.qp.post_send(&request, &side.mem), Err(PostErrorKind::QueueFull));
    pair.settle();
    assert_eq!(pair.done(0).len(), 128);
    assert!(pair.done(0).iter().all(|(_, _, status, _)| *status == WcStatus::Flushed));
}

#[test]
fn what_cannot_be_posted() {
    let mut pair = Pair::new(PathMtu::Mtu1024, |_, params| params.initiator_depth = 0);
    let region = pair.region(0, vec![0; 64], Access::LOCAL_READ);
    let side = &mut pair.sides[0];
    let mut post = |op, sges| {
        side.qp.post_send(&SendRequest { wr_id: 0, op, sges, signaled: true }, &side.mem)
    };
    let read = SendOp::Read { remote_address: 0, rkey: Rkey(0) };
    assert_eq!(post(read, SgeList::EMPTY), Err(PostErrorKind::Device(22)));
    assert_eq!(post(SendOp::Send, at(region, 60, 5)), Err(PostErrorKind::BadMemory));
    let half = Sge { region, offset: 0, length: (1 << 30) + 1 };
    assert_eq!(post(SendOp::Send, SgeList::two(half, half)), Err(PostErrorKind::TooLong));
    let recv = RecvRequest { wr_id: 0, sges: at(region, 0, 8) };
    assert_eq!(side.qp.post_recv(&recv, &side.mem), Err(PostErrorKind::BadMemory));

    let setup = QpSetup {
        conn: ConnId(0),
        qpn: Qpn::new(2),
        domain: DOMAIN,
        max_send: 1,
        max_recv: 1,
        shared_receive: None,
        divide_writes: false,
    };
    let mut qp = QueuePair::new(setup);
    let request = SendRequest { wr_id: 0, op: SendOp::Send, sges: SgeList::EMPTY, signaled: true };
    assert_eq!(qp.post_send(&request, &side.mem), Err(PostErrorKind::WrongState));
    qp.post_recv(&RecvRequest { wr_id: 3, sges: SgeList::EMPTY }, &side.mem).unwrap();
    assert!(qp.activate(Timestamp::ZERO, &params(PathMtu::Mtu256)));
    assert!(!qp.activate(Timestamp::ZERO, &params(PathMtu::Mtu256)));
    assert_eq!(qp.state(), QpState::Rts);
}

#[test]
fn draining_finishes_what_was_begun() {
    let mut pair = Pair::new(PathMtu::Mtu256, |_, _| {});
    let source = pair.region(0, vec![1; 64 << 10], Access::LOCAL_READ);
    let sink = pair.region(1, vec![0; 64 << 10], Access::LOCAL);
    for wr_id in 0..4 {
        pair.recv(1, wr_id, at(sink, 0, 64 << 10));
        pair.send(0, wr_id, SendOp::Send, at(source, 0, 64 << 10));
    }
    pair.flush();
    assert!(!pair.sides[0].qp.is_drained());
    assert!(pair.sides[0].qp.drain());
    assert!(!pair.sides[0].qp.drain());
    pair.settle();
    let before = pair.done(0).len();
    assert!((1..4).contains(&before), "{before}");
    assert!(pair.sides[0].qp.is_drained());
    assert!(pair.sides[0].qp.resume());
    pair.settle();
    assert_eq!(pair.done(0).len(), 4);
}

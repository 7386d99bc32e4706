//! Acknowledges, losses, windows, credits, time.

use lariat_wire::rocev2::{NakCode, RnrTimer, Syndrome};

use super::*;
use crate::qp::QpFailure;

const OK: WcStatus = WcStatus::Success;

pub(super) fn syndrome(bytes: &[u8]) -> Option<Syndrome> {
    Packet::parse(bytes).unwrap().ext.aeth.map(|aeth| aeth.syndrome)
}

/// A pair with `count` receives on side 1 and small messages from side 0 posted.
pub(super) fn small_messages(mut pair: Pair, count: u64) -> Pair {
    let source = pair.region(0, pattern(1, 4096), Access::LOCAL_READ);
    let sink = pair.region(1, vec![0; 4096], Access::LOCAL);
    for wr_id in 0..count {
        pair.recv(1, wr_id, at(sink, 64 * wr_id, 64));
        pair.send(0, wr_id, SendOp::Send, at(source, 64 * wr_id, 64));
    }
    pair
}

pub(super) fn delivered(pair: &Pair, count: u64) {
    let ids = |side: usize| pair.sides[side].done.iter().map(|c| c.wr_id).collect::<Vec<_>>();
    let all: Vec<_> = (0..count).collect();
    assert_eq!(ids(0), all);
    assert_eq!(ids(1), all);
    assert!(pair.sides.iter().flat_map(|side| &side.done).all(|c| c.status == OK));
    let sent = pair.sides[0].mem.bytes(RegionId(0));
    let got = pair.sides[1].mem.bytes(RegionId(0));
    let length = usize::try_from(count).unwrap() * 64;
    assert_eq!(sent[..length], got[..length]);
}

#[test]
fn acknowledges_are_held_and_coalesced() {
    let mut pair = small_messages(Pair::new(PathMtu::Mtu1024, |_, _| {}), 8);
    let start = pair.now;
    pair.settle();
    delivered(&pair, 8);
    assert_eq!(pair.count(1, Opcode::Acknowledge), 1);
    assert_eq!(pair.now.since(start), ONE_WAY * 2 + Duration::from_micros(50));

    // The thirty-second does not wait, and neither does one that is asked to go.
    let mut pair = small_messages(Pair::new(PathMtu::Mtu1024, |_, _| {}), 32);
    let start = pair.now;
    pair.settle();
    assert_eq!(pair.now.since(start), ONE_WAY * 2);

    let mut pair = small_messages(Pair::new(PathMtu::Mtu1024, |_, _| {}), 1);
    let start = pair.now;
    pair.step();
    assert!(pair.sides[1].qp.holds_acks());
    pair.sides[1].qp.send_held_acks(pair.now);
    pair.settle();
    assert_eq!(pair.now.since(start), ONE_WAY * 2);
}

#[test]
fn held_acknowledges_ride_behind_data() {
    let mut pair = small_messages(Pair::new(PathMtu::Mtu1024, |_, _| {}), 3);
    let back = pair.region(1, vec![3; 64], Access::REMOTE);
    let sink = pair.region(0, vec![3; 64], Access::LOCAL);
    pair.recv(0, 77, at(sink, 0, 64));
    pair.step();
    assert!(!pair.sides[1].qp.wants_transmit());
    pair.send(1, 78, SendOp::Send, at(back, 0, 64));
    pair.log.clear();
    pair.flush();
    let kinds: Vec<_> = pair.log.iter().map(|(from, opcode, _)| (*from, *opcode)).collect();
    assert_eq!(kinds, [(1, Opcode::SendOnly), (1, Opcode::Acknowledge)]);
}

#[test]
fn a_held_acknowledge_rides_behind_the_first_run() {
    let mut pair = small_messages(Pair::new(PathMtu::Mtu1024, |_, _| {}), 3);
    let back = pair.region(1, vec![3; 1024], Access::REMOTE);
    let sink = pair.region(0, vec![3; 1024], Access::REMOTE);
    pair.recv(0, 77, at(sink, 0, 64));
    pair.recv(0, 78, at(sink, 64, 64));
    pair.step();
    let write = SendOp::Write { remote_address: 0, rkey: key_of(sink) };
    for wr_id in [80, 81] {
        pair.send(1, wr_id, write, at(back, 0, 512));
        pair.send(1, wr_id, SendOp::Send, at(back, 0, 16));
    }
    pair.log.clear();
    pair.flush();
    let kinds: Vec<_> = pair.log.iter().map(|(from, opcode, _)| (*from, *opcode)).collect();
    let (write, send) = ((1, Opcode::WriteOnly), (1, Opcode::SendOnly));
    assert_eq!(kinds, [write, send, (1, Opcode::Acknowledge), write, send]);
}

#[test]
fn a_gap_is_told_once() {
    let mut pair = small_messages(Pair::new(PathMtu::Mtu1024, |_, _| {}), 20);
    let mut seen = 0;
    pair.script = Box::new(move |from, _| {
        seen += usize::from(from == 0);
        if from == 0 && seen == 5 { Fate::Drop } else { Fate::Deliver }
    });
    pair.settle();
    delivered(&pair, 20);
    assert_eq!((pair.counters(1).gaps_seen, pair.counters(0).gaps_told), (1, 1));
    assert_eq!(pair.counters(0).packets_resent, 16);
    assert_eq!(pair.counters(0).timeouts, 0);
}

#[test]
fn packets_under_way_do_not_make_a_new_gap() {
    let mut pair = small_messages(Pair::new(PathMtu::Mtu1024, |_, _| {}), 60);
    // A round trip is known by then.
    pair.settle();
    assert_eq!(pair.counters(0).packets_resent, 0);

    // The first of twenty comes late, between two others of the same batch, so that those behind it
    // find two gaps: the second is an echo of the first.
    let source = RegionId(0);
    let sink = RegionId(0);
    for wr_id in 0..20 {
        pair.recv(1, wr_id, at(sink, 64 * wr_id, 64));
        pair.send(0, wr_id, SendOp::Send, at(source, 64 * wr_id, 64));
    }
    let mut seen = 0;
    pair.script = Box::new(move |from, _| {
        seen += usize::from(from == 0);
        match seen {
            1 if from == 0 => Fate::Late(Duration::from_micros(2)),
            10..=20 if from == 0 => Fate::Late(Duration::from_micros(4)),
            _ => Fate::Deliver,
        }
    });
    pair.settle();
    assert!(pair.both_alive());
    assert_eq!((pair.counters(1).gaps_seen, pair.counters(0).gaps_told), (2, 1));
    assert_eq!(pair.counters(0).packets_resent, 20);
}

#[test]
fn a_timeout_for_a_sleeping_peer_leaves_the_window() {
    let mut pair = small_messages(Pair::new(PathMtu::Mtu1024, |_, _| {}), 60);
    pair.script =
        Box::new(
            move |from, _| {
                if from == 1 { Fate::Late(Duration::from_millis(20)) } else { Fate::Deliver }
            },
        );
    pair.settle();
    delivered(&pair, 60);
    assert_eq!(pair.counters(0).timeouts, 1);
    assert!(pair.counters(0).packets_resent < 20, "{:?}", pair.counters(0));
    assert!(pair.sides[0].qp.window_bytes() >= 128 << 10);
}

#[test]
fn a_lost_acknowledge_is_repeated() {
    let mut pair = small_messages(Pair::new(PathMtu::Mtu1024, |_, _| {}), 5);
    let mut lost = false;
    pair.script = Box::new(move |from, _| {
        if from == 1 && !std::mem::replace(&mut lost, true) { Fate::Drop } else { Fate::Deliver }
    });
    pair.settle();
    delivered(&pair, 5);
    assert_eq!(pair.counters(0).timeouts, 1);
    assert!(pair.counters(1).duplicates > 0);
}

#[test]
fn a_lost_last_packet_takes_a_timeout() {
    let mut pair = small_messages(Pair::new(PathMtu::Mtu1024, |_, _| {}), 2);
    let mut seen = 0;
    pair.script = Box::new(move |from, _| {
        seen += usize::from(from == 0);
        if from == 0 && (2..5).contains(&seen) { Fate::Drop } else { Fate::Deliver }
    });
    let start = pair.now;
    pair.settle();
    delivered(&pair, 2);
    assert_eq!(pair.counters(0).timeouts, 3);
    assert!(pair.sides[0].qp.window_bytes() < 128 << 10);
    // Backed off, but by round trips, not by the negotiated half second.
    assert!(pair.now.since(start) < Duration::from_millis(150), "{:?}", pair.now.since(start));
}

/// READ of 10 packets whose answer number `lost` does not come: what is asked for again.
fn read_with_a_loss(lost: usize) -> (Pair, Vec<(u64, u32)>) {
    let mut pair = Pair::new(PathMtu::Mtu1024, |_, _| {});
    let far = pair.region(1, pattern(4, 20_000), Access::REMOTE);
    let sink = pair.region(0, vec![0; 20_000], Access::LOCAL);
    let op = SendOp::Read { remote_address: BASE + 100, rkey: key_of(far) };
    pair.send(0, 1, op, at(sink, 0, 9_500));
    let asked = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let notes = asked.clone();
    let mut answers = 0;
    pair.script = Box::new(move |from, bytes| {
        if from == 0 {
            if let Some(reth) = Packet::parse(bytes).unwrap().ext.reth {
                notes.borrow_mut().push((reth.virtual_address - BASE, reth.length));
            }
            return Fate::Deliver;
        }
        answers += 1;
        if answers == lost { Fate::Drop } else { Fate::Deliver }
    });
    pair.settle();
    assert_eq!(pair.done(0), [(1, WcOpcode::Read, OK, 9_500)]);
    let want = pattern(4, 20_000);
    assert_eq!(pair.sides[0].mem.bytes(sink)[..9_500], want[100..9_600]);
    let asked = asked.borrow().clone();
    (pair, asked)
}

#[test]
fn a_lost_answer_is_asked_for_from_there() {
    let (pair, asked) = read_with_a_loss(4);
    assert_eq!(asked, [(100, 9_500), (100 + 3 * 1024, 9_500 - 3 * 1024)]);
    assert_eq!((pair.counters(0).timeouts, pair.counters(1).duplicates), (0, 1));
    let (pair, asked) = read_with_a_loss(10);
    assert_eq!(asked, [(100, 9_500), (100 + 9 * 1024, 9_500 - 9 * 1024)]);
    assert_eq!(pair.counters(0).timeouts, 1);
}

#[test]
fn an_acknowledge_behind_lost_read_data_does_not_complete_it() {
    let mut pair = Pair::new(PathMtu::Mtu1024, |_, _| {});
    let far = pair.region(1, pattern(4, 4096), Access::REMOTE);
    let sink = pair.region(0, vec![0; 4096], Access::LOCAL);
    let (remote_address, rkey) = (BASE, key_of(far));
    pair.send(0, 1, SendOp::Read { remote_address, rkey }, at(sink, 0, 512));
    let write = SendOp::Write { remote_address: BASE + 2048, rkey };
    pair.send(0, 2, write, at(sink, 2048, 16));
    let mut lost = false;
    pair.script = Box::new(move |_, bytes| {
        let read = bth(bytes).opcode == Opcode::ReadResponseOnly;
        if read && !std::mem::replace(&mut lost, true) { Fate::Drop } else { Fate::Deliver }
    });
    pair.settle();
    let done = [(1, WcOpcode::Read, OK, 512), (2, WcOpcode::Write, OK, 0)];
    assert_eq!(pair.done(0), done);
    assert_eq!(pair.sides[0].mem.bytes(sink)[..512], pattern(4, 4096)[..512]);
    assert_eq!(pair.counters(0).timeouts, 0, "the acknowledge shows the gap");
}

#[test]
fn receiver_not_ready_waits_and_comes_again() {
    let mut pair = Pair::new(PathMtu::Mtu1024, |_, params| {
        params.rnr_timer = RnrTimer::at_least(Duration::from_millis(1));
    });
    let source = pair.region(0, pattern(1, 4096), Access::LOCAL_READ);
    let sink = pair.region(1, vec![0; 4096], Access::LOCAL);
    pair.send(0, 1, SendOp::Send, at(source, 0, 4096));
    pair.send(0, 2, SendOp::Send, at(source, 0, 64));
    for _ in 0..4 {
        pair.step();
    }
    assert!(pair.counters(1).rnr_sent >= 1);
    assert!(pair.done(0).is_empty());
    let waits = pair.now;
    pair.recv(1, 1, at(sink, 0, 4096));
    pair.recv(1, 2, at(sink, 0, 64));
    pair.settle();
    assert_eq!(pair.done(0).len(), 2);
    assert_eq!(pair.done(1).len(), 2);
    assert!(pair.now.since(waits) >= Duration::from_micros(900));
    assert_eq!(pair.counters(0).timeouts, 0);
}

#[test]
fn a_repeated_rnr_nak_counts_once() {
    let mut pair = Pair::new(PathMtu::Mtu1024, |_, params| params.rnr_retry_count = 1);
    pair.script = Box::new(|_, _| Fate::Twice(Duration::from_micros(5)));
    pair.send(0, 1, SendOp::Send, SgeList::EMPTY);
    for _ in 0..6 {
        pair.step();
    }
    // The SEND came twice, and each of its refusals did.
    assert_eq!(pair.counters(0).rnr_received, 4);
    pair.recv(1, 1, SgeList::EMPTY);
    pair.settle();
    assert_eq!((pair.done(0).len(), pair.done(1).len()), (1, 1));
    assert!(pair.both_alive());
}

#[test]
fn receiver_never_ready() {
    let mut pair = Pair::new(PathMtu::Mtu1024, |_, params| params.rnr_retry_count = 3);
    pair.send(0, 1, SendOp::Send, SgeList::EMPTY);
    pair.send(0, 2, SendOp::Send, SgeList::EMPTY);
    pair.settle();
    let status = |side: usize| pair.done(side).iter().map(|c| c.2).collect::<Vec<_>>();
    assert_eq!(status(0), [WcStatus::RnrRetryExceeded, WcStatus::Flushed]);
    assert_eq!(pair.counters(0).rnr_received, 4);
    assert_eq!(pair.sides[0].qp.failure(), Some(QpFailure::PeerNotReady));
}

#[test]
fn credits_hold_sends_back() {
    let mut pair = Pair::new(PathMtu::Mtu1024, |_, params| params.advertise_credits = true);
    for wr_id in 0..3 {
        pair.recv(1, wr_id, SgeList::EMPTY);
    }
    // The first acknowledge tells that two receives are left.
    pair.send(0, 0, SendOp::Send, SgeList::EMPTY);
    pair.settle();
    for wr_id in 1..10 {
        pair.send(0, wr_id, SendOp::Send, SgeList::EMPTY);
    }
    pair.log.clear();
    pair.flush();
    assert_eq!(pair.count(0, Opcode::SendOnly), 2);
    for _ in 0..20 {
        pair.step();
    }
    assert_eq!(pair.done(1).len(), 3);
    for wr_id in 3..10 {
        pair.recv(1, wr_id, SgeList::EMPTY);
    }
    pair.settle();
    delivered(&pair_with_regions(pair), 10);
}

/// For `delivered`, which compares bytes that such messages do not have.
fn pair_with_regions(mut pair: Pair) -> Pair {
    pair.region(0, vec![0; 640], Access::LOCAL);
    pair.region(1, vec![0; 640], Access::LOCAL);
    pair
}

#[test]
fn marks_are_answered_and_slow_the_sender() {
    let mut pair = Pair::new(PathMtu::Mtu1024, |_, _| {});
    let source = pair.region(0, vec![1; 1 << 20], Access::LOCAL_READ);
    let far = pair.region(1, vec![0; 1 << 20], Access::REMOTE);
    let op = SendOp::Write { remote_address: BASE, rkey: key_of(far) };
    pair.script = Box::new(|from, _| if from == 0 { Fate::Marked } else { Fate::Deliver });
    let start = pair.now;
    pair.send(0, 1, op, at(source, 0, 1 << 20));
    pair.settle();
    let took = pair.now.since(start);
    let cnps = pair.counters(1).cnps_sent;
    assert_eq!(pair.count(1, Opcode::Cnp) as u64, cnps);
    assert_eq!(pair.counters(0).cnps_received, cnps);
    assert!(cnps >= 2 && u128::from(cnps) <= 1 + took.as_micros() / 50, "{cnps} in {took:?}");
    assert!(pair.sides[0].qp.window_bytes() < 128 << 10);
    assert_eq!(pair.done(0).len(), 1);
}

#[test]
fn marked_read_data_slows_the_reader() {
    let mut pair = Pair::new(PathMtu::Mtu1024, |_, _| {});
    let far = pair.region(1, vec![1; 1 << 20], Access::REMOTE);
    let sink = pair.region(0, vec![0; 1 << 20], Access::LOCAL);
    let before = pair.sides[0].qp.window_bytes();
    pair.script = Box::new(|from, _| if from == 1 { Fate::Marked } else { Fate::Deliver });
    let op = SendOp::Read { remote_address: BASE, rkey: key_of(far) };
    pair.send(0, 1, op, at(sink, 0, 64 << 10));
    pair.settle();
    assert!(pair.sides[0].qp.window_bytes() < before);
    assert_eq!(pair.counters(0).cnps_sent, 1);
}

#[test]
fn a_late_repetition_of_a_read_harms_nobody() {
    let mut pair = Pair::new(PathMtu::Mtu1024, |_, params| params.responder_resources = 1);
    let far = pair.region(1, vec![1; 4096], Access::REMOTE);
    let sink = pair.region(0, vec![0; 8192], Access::LOCAL);
    let op = SendOp::Read { remote_address: BASE, rkey: key_of(far) };
    pair.send(0, 1, op, at(sink, 0, 4096));
    let copy = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let notes = copy.clone();
    pair.script = Box::new(move |from, bytes| {
        if from == 0 {
            notes.borrow_mut().push(bytes.to_vec());
        }
        Fate::Deliver
    });
    pair.settle();
    // Once while another READ needs its place, and once when the key is gone.
    let copy = copy.borrow()[0].clone();
    pair.inject(1, &copy);
    pair.send(0, 2, op, at(sink, 4096, 4096));
    let side = &mut pair.sides[0];
    let mut out = Vec::new();
    assert_eq!(side.qp.poll_transmit(pair.now, 9, &side.mem, &mut out), 1);
    let second = wire_bytes(&out[0], &side.mem);
    pair.inject(1, &second);
    pair.settle();
    assert_eq!(pair.done(0).len(), 2);
    pair.sides[1].mem.revoke(far);
    pair.inject(1, &copy);
    pair.settle();
    assert!(pair.both_alive());
    assert_eq!((pair.counters(0).timeouts, pair.counters(1).duplicates), (0, 2));
}

#[test]
fn no_more_than_the_window_is_on_its_way() {
    let mut pair = Pair::new(PathMtu::Mtu1024, |_, p| p.max_inflight_bytes = 32 << 10);
    let source = pair.region(0, vec![1; 1 << 20], Access::REMOTE);
    let far = pair.region(1, vec![0; 1 << 20], Access::REMOTE);
    let (remote_address, rkey) = (BASE, key_of(far));
    pair.send(0, 1, SendOp::Write { remote_address, rkey }, at(source, 0, 1 << 20));
    pair.flush();
    assert_eq!(pair.log.len(), (32 << 10) / (1024 + 64));
    let start = pair.now;
    pair.settle();
    // Acknowledges in the middle of a message are not held: a window takes a round trip.
    let windows = u32::try_from(1024_usize.div_ceil(30)).unwrap();
    assert!(pair.now.since(start) <= ONE_WAY * 2 * (windows + 1) + Duration::from_micros(50));
    assert_eq!(pair.done(0).len(), 1);
    assert_eq!(pair.counters(0).timeouts, 0);
    // READ answers count as well.
    pair.log.clear();
    for wr_id in 2..6 {
        let at_once = SendOp::Read { remote_address, rkey };
        pair.send(0, wr_id, at_once, at(source, 0, 20 << 10));
    }
    pair.flush();
    assert_eq!(pair.count(0, Opcode::ReadRequest), 1);
    pair.settle();
    assert_eq!(pair.done(0).len(), 5);
}

#[test]
fn silence_is_given_up_on_in_time() {
    let mut pair = Pair::new(PathMtu::Mtu1024, |_, params| {
        params.retry_count = 2;
        params.ack_timeout = Duration::from_millis(100);
    });
    pair.script = Box::new(|_, _| Fate::Drop);
    let start = pair.now;
    pair.recv(0, 9, SgeList::EMPTY);
    pair.send(0, 1, SendOp::Send, SgeList::EMPTY);
    pair.send(0, 2, SendOp::Send, SgeList::EMPTY);
    pair.settle();
    assert_eq!(pair.now.since(start), Duration::from_millis(300));
    let done = pair.done(0);
    let all: Vec<_> = done.iter().map(|c| (c.0, c.2)).collect();
    let flushed = WcStatus::Flushed;
    assert_eq!(all, [(1, WcStatus::RetryExceeded), (2, flushed), (9, flushed)]);
    assert_eq!(pair.sides[0].qp.failure(), Some(QpFailure::PeerSilent));
    assert!(pair.counters(0).timeouts >= 3);
}

#[test]
fn a_nak_that_waited_is_cancelled_by_the_packet() {
    let mut pair = small_messages(Pair::new(PathMtu::Mtu1024, |_, _| {}), 2);
    let side = &mut pair.sides[0];
    let mut out = Vec::new();
    assert_eq!(side.qp.poll_transmit(pair.now, 9, &side.mem, &mut out), 2);
    let packets: Vec<_> = out.iter().map(|transmit| wire_bytes(transmit, &side.mem)).collect();
    pair.inject(1, &packets[1]);
    assert_eq!(pair.counters(1).gaps_seen, 1);
    assert!(pair.sides[1].qp.wants_transmit());
    // The missing packet comes before the NAK went: there is no gap any more.
    pair.inject(1, &packets[0]);
    assert!(!pair.sides[1].qp.wants_transmit());
    pair.inject(1, &packets[1]);
    pair.settle();
    delivered(&pair, 2);
    assert_eq!(pair.counters(0).gaps_told, 0);
}

#[test]
fn a_gap_that_closes_is_acknowledged_at_once() {
    let mut pair = small_messages(Pair::new(PathMtu::Mtu1024, |_, _| {}), 2);
    let side = &mut pair.sides[0];
    let mut out = Vec::new();
    assert_eq!(side.qp.poll_transmit(pair.now, 9, &side.mem, &mut out), 2);
    let packets: Vec<_> = out.iter().map(|transmit| wire_bytes(transmit, &side.mem)).collect();
    let answer = |pair: &mut Pair| {
        let side = &mut pair.sides[1];
        let mut out = Vec::new();
        side.qp.poll_transmit(pair.now, 9, &side.mem, &mut out);
        out.iter().map(|transmit| wire_bytes(transmit, &side.mem)).collect::<Vec<_>>()
    };
    pair.inject(1, &packets[1]);
    let naks = answer(&mut pair);
    assert_eq!(naks.len(), 1);
    assert_eq!(syndrome(&naks[0]), Some(Syndrome::Nak(NakCode::PsnSequence)));
    // The peer went back: it may count on its next gap being told only if this is acknowledged.
    pair.inject(1, &packets[0]);
    let acks = answer(&mut pair);
    assert_eq!(acks.len(), 1);
    assert!(matches!(syndrome(&acks[0]), Some(Syndrome::Ack { .. })), "{:?}", syndrome(&acks[0]));
    assert_eq!(bth(&acks[0]).psn, bth(&packets[0]).psn);
    // What was in order all the time is acknowledged a little later, as ever.
    pair.inject(1, &packets[1]);
    assert!(answer(&mut pair).is_empty());
}

#[test]
fn naks_of_a_sequence_error_name_the_expected_packet() {
    let mut pair = small_messages(Pair::new(PathMtu::Mtu1024, |_, _| {}), 4);
    let naks = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let notes = naks.clone();
    let mut seen = 0;
    pair.script = Box::new(move |from, bytes| {
        if from == 1 && syndrome(bytes) == Some(Syndrome::Nak(NakCode::PsnSequence)) {
            notes.borrow_mut().push(bth(bytes).psn);
        }
        seen += usize::from(from == 0);
        if from == 0 && seen == 2 { Fate::Drop } else { Fate::Deliver }
    });
    pair.settle();
    assert_eq!(*naks.borrow(), [Psn::new(0xff_fff1)]);
}

//! Requests that come before one that is missing.

use super::flow::{delivered, small_messages, syndrome};
use super::*;
use lariat_wire::rocev2::{NakCode, Syndrome};

/// `count` small messages to a side that waits for missing ones, for so many microseconds.
fn patient(hold_micros: u64, count: u64) -> Pair {
    let hold = Duration::from_micros(hold_micros);
    small_messages(Pair::new(PathMtu::Mtu1024, |_, params| params.gap_hold = hold), count)
}

/// The first packets of side 0.
fn packets(pair: &mut Pair) -> Vec<Vec<u8>> {
    let side = &mut pair.sides[0];
    let mut out = Vec::new();
    side.qp.poll_transmit(pair.now, 64, &side.mem, &mut out);
    out.iter().map(|transmit| wire_bytes(transmit, &side.mem)).collect()
}

fn received(pair: &mut Pair) -> Vec<u64> {
    let side = &mut pair.sides[1];
    side.qp.poll_completions(usize::MAX, &mut side.done);
    side.done.iter().map(|done| done.wr_id).collect()
}

#[test]
fn late_packets_cost_nothing() {
    let mut pair = patient(1000, 40);
    let mut seen = 0_u64;
    pair.script = Box::new(move |from, _| {
        seen += u64::from(from == 0);
        // Three of four are overtaken by the fourth.
        if from == 0 && !seen.is_multiple_of(4) {
            Fate::Late(Duration::from_micros(20 + seen / 8))
        } else {
            Fate::Deliver
        }
    });
    pair.settle();
    delivered(&pair, 40);
    assert!(pair.counters(1).packets_early > 5, "{:?}", pair.counters(1));
    let told = (pair.counters(1).gaps_seen, pair.counters(1).packets_dropped);
    assert_eq!(told, (0, 0));
    assert_eq!(pair.counters(0).packets_resent, 0);
}

#[test]
fn a_gap_that_stays_open_is_told() {
    let mut pair = patient(1000, 8);
    let mut seen = 0;
    pair.script = Box::new(move |from, _| {
        seen += usize::from(from == 0);
        if from == 0 && seen == 5 { Fate::Drop } else { Fate::Deliver }
    });
    let start = pair.now;
    pair.settle();
    delivered(&pair, 8);
    assert_eq!((pair.counters(1).gaps_seen, pair.counters(0).gaps_told), (1, 1));
    assert_eq!((pair.counters(1).packets_early, pair.counters(0).timeouts), (3, 0));
    assert!(pair.now.since(start) >= Duration::from_millis(1));
    // The others were there when the missing one came.
    assert_eq!(pair.counters(1).duplicates, 3);
}

#[test]
fn many_packets_behind_a_gap_are_told_at_once() {
    // Longer than the sender waits.
    let mut pair = patient(1_000_000, 40);
    let mut seen = 0;
    pair.script = Box::new(move |from, _| {
        seen += usize::from(from == 0);
        if from == 0 && seen == 5 { Fate::Drop } else { Fate::Deliver }
    });
    pair.settle();
    delivered(&pair, 40);
    assert_eq!((pair.counters(1).gaps_seen, pair.counters(0).timeouts), (1, 0));
}

#[test]
fn what_came_early_is_bounded_and_forgotten() {
    let mut pair = patient(1000, 40);
    let packets = packets(&mut pair);
    assert_eq!(packets.len(), 40);
    for packet in &packets[1..] {
        pair.inject(1, packet);
        pair.inject(1, packet);
    }
    let counters = pair.counters(1);
    assert_eq!((counters.packets_early, counters.packets_dropped, counters.gaps_seen), (32, 46, 1));
    // Told by number, then nothing comes for a long time.
    let forgotten = pair.sides[1].qp.next_timeout();
    assert_eq!(forgotten.since(pair.now), Duration::from_millis(16));
    pair.now = forgotten;
    pair.sides[1].qp.handle_timeout(forgotten);
    assert_eq!(pair.sides[1].qp.next_timeout(), Timestamp::NEVER);
    pair.inject(1, &packets[0]);
    assert_eq!(received(&mut pair), [0]);
    for packet in &packets[1..] {
        pair.inject(1, packet);
    }
    assert_eq!(received(&mut pair), (0..40).collect::<Vec<_>>());
}

#[test]
fn a_gap_behind_a_gap_has_its_own_time() {
    let mut pair = patient(1000, 8);
    let packets = packets(&mut pair);
    for early in [1, 3, 4] {
        pair.inject(1, &packets[early]);
    }
    let first = pair.sides[1].qp.next_timeout();
    pair.now = first - Duration::from_micros(1);
    pair.inject(1, &packets[0]);
    assert_eq!(received(&mut pair), [0, 1]);
    pair.now = first;
    pair.sides[1].qp.handle_timeout(first);
    assert_eq!(pair.counters(1).gaps_seen, 0);
    let second = first + Duration::from_micros(999);
    pair.now = second;
    pair.sides[1].qp.handle_timeout(second);
    let side = &mut pair.sides[1];
    let mut out = Vec::new();
    side.qp.poll_transmit(second, 9, &side.mem, &mut out);
    let nak = out.iter().map(|transmit| wire_bytes(transmit, &side.mem)).next().unwrap();
    assert_eq!(syndrome(&nak), Some(Syndrome::Nak(NakCode::PsnSequence)));
    assert_eq!(bth(&nak).psn, bth(&packets[2]).psn);
    pair.inject(1, &packets[2]);
    assert_eq!(received(&mut pair), [0, 1, 2, 3, 4]);
}

#[test]
fn a_missing_receive_behind_a_gap_sends_all_back() {
    let mut pair = patient(1000, 0);
    let source = pair.region(0, vec![7; 256], Access::LOCAL_READ);
    let sink = pair.region(1, vec![0; 256], Access::LOCAL);
    for wr_id in 0..4 {
        pair.send(0, wr_id, SendOp::Send, at(source, 64 * wr_id, 64));
    }
    pair.recv(1, 0, at(sink, 0, 64));
    let packets = packets(&mut pair);
    for place in [1, 2, 3, 0] {
        pair.inject(1, &packets[place]);
    }
    assert_eq!(received(&mut pair), [0]);
    assert_eq!(pair.counters(1).rnr_sent, 1);
    for wr_id in 1..4 {
        pair.recv(1, wr_id, at(sink, 64 * wr_id, 64));
    }
    pair.settle();
    assert_eq!(received(&mut pair), [0, 1, 2, 3]);
    assert_eq!(pair.sides[1].mem.bytes(sink), [7; 256]);
}

#[test]
fn a_packet_of_more_than_the_path_takes_is_not_kept() {
    let mut pair = patient(1000, 4);
    let packets = packets(&mut pair);
    let stretched = |payload_bytes: usize| {
        let parsed = Packet::parse(&packets[1]).unwrap();
        let at = packets[1].len() - 4;
        let more = vec![7; payload_bytes - parsed.payload.len()];
        [&packets[1][..at], &more, &packets[1][at..]].concat()
    };
    pair.inject(1, &stretched(1028));
    pair.inject(1, &stretched(65_000));
    assert_eq!(pair.counters(1).packets_early, 0);
    pair.inject(1, &stretched(1024));
    assert_eq!((pair.counters(1).packets_early, pair.counters(1).packets_dropped), (1, 2));
}

#[test]
fn of_two_that_differ_none_is_taken() {
    let mut pair = patient(1000, 4);
    let packets = packets(&mut pair);
    let mut forged = packets[2].clone();
    let at = forged.len() - 5;
    forged[at] ^= 1;
    for packet in [&forged, &packets[2], &packets[0], &packets[1]] {
        pair.inject(1, packet);
    }
    assert_eq!(received(&mut pair), [0, 1]);
    for packet in &packets[2..] {
        pair.inject(1, packet);
    }
    assert_eq!(received(&mut pair), [0, 1, 2, 3]);
    pair.settle();
    delivered(&pair, 4);
}

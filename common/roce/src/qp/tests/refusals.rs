//! What is refused, by whom, with which words, and what then completes.

use lariat_wire::rocev2::{Ext, Headers, Ieth, Imm, MAX_HEADER, NakCode, Reth, Syndrome};
use proptest::prelude::*;

use super::*;
use crate::qp::QpFailure;

fn statuses(pair: &Pair, side: usize) -> Vec<(u64, WcStatus)> {
    pair.sides[side].done.iter().map(|c| (c.wr_id, c.status)).collect()
}

/// Side 0 posts a request between two harmless ones; side 1 has a receive. Returns what became of it.
fn refused(op: SendOp, length: u32, code: NakCode, status: WcStatus) -> Pair {
    let mut pair = Pair::new(PathMtu::Mtu256, |_, _| {});
    let local = pair.region(0, vec![1; 4096], Access::REMOTE);
    let sink = pair.region(1, vec![0; 1024], Access::LOCAL);
    pair.region(1, vec![0; 1024], Access::REMOTE);
    pair.recv(1, 10, at(sink, 0, 512));
    pair.recv(1, 11, at(sink, 512, 512));
    let fine = SendOp::Write { remote_address: BASE, rkey: Rkey(0x1001) };
    pair.send(0, 1, fine, at(local, 0, 700));
    pair.send(0, 2, op, at(local, 0, length));
    pair.send(0, 3, fine, at(local, 0, 700));
    pair.settle();
    let sent = [(1, WcStatus::Success), (2, status), (3, WcStatus::Flushed)];
    assert_eq!(statuses(&pair, 0), sent);
    assert_eq!(pair.sides[0].qp.failure(), Some(QpFailure::Refused(code)));
    assert_eq!(pair.sides[1].qp.failure(), Some(QpFailure::Offended(code)));
    assert!(pair.sides.iter().all(|side| side.qp.state() == QpState::Error));
    assert_eq!(pair.counters(0).timeouts, 0);
    pair
}

#[test]
fn accesses_without_right() {
    let flushed = [(10, WcStatus::Flushed), (11, WcStatus::Flushed)];
    let good = Rkey(0x1001);
    let cases = [
        SendOp::Write { remote_address: BASE, rkey: Rkey(0x9999) },
        // Local only; out of bounds at the end, at the start, by overflow.
        SendOp::Write { remote_address: BASE, rkey: Rkey(0x1000) },
        SendOp::Write { remote_address: BASE + 1024 - 599, rkey: good },
        SendOp::Write { remote_address: BASE - 1, rkey: good },
        SendOp::Write { remote_address: u64::MAX, rkey: good },
        SendOp::Read { remote_address: BASE, rkey: Rkey(0x9999) },
        SendOp::Read { remote_address: BASE, rkey: Rkey(0x1000) },
        SendOp::Read { remote_address: BASE + 1024 - 599, rkey: good },
        SendOp::Read { remote_address: u64::MAX, rkey: good },
    ];
    for op in cases {
        let pair = refused(op, 600, NakCode::RemoteAccess, WcStatus::RemoteAccess);
        assert_eq!(statuses(&pair, 1), flushed, "{op:?}");
    }
    let op = SendOp::SendWithInvalidate { rkey: Rkey(0x9999) };
    let pair = refused(op, 512, NakCode::RemoteAccess, WcStatus::RemoteAccess);
    assert_eq!(statuses(&pair, 1), flushed);
}

#[test]
fn a_send_longer_than_the_receive() {
    for length in [513, 2000] {
        let status = WcStatus::RemoteInvalidRequest;
        let pair = refused(SendOp::Send, length, NakCode::InvalidRequest, status);
        assert_eq!(statuses(&pair, 1), [(10, WcStatus::LocalLength), (11, WcStatus::Flushed)]);
        assert!(pair.sides[1].mem.bytes(RegionId(0))[512..].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn a_key_withdrawn_while_its_read_is_answered() {
    let mut pair = Pair::new(PathMtu::Mtu256, |_, _| {});
    let sink = pair.region(0, vec![0; 8192], Access::LOCAL);
    let far = pair.region(1, vec![1; 8192], Access::REMOTE);
    pair.budget = 4;
    let op = SendOp::Read { remote_address: BASE, rkey: key_of(far) };
    pair.send(0, 1, op, at(sink, 0, 8192));
    pair.flush();
    // The request arrives, and before the first answer goes out the key is gone.
    let mut request = None;
    pair.now += ONE_WAY;
    if let Some(entry) = pair.flying.first_entry() {
        request = Some(entry.remove().1);
    }
    pair.inject(1, &request.unwrap());
    let side = &mut pair.sides[1];
    let mut out = Vec::new();
    assert_eq!(side.qp.poll_transmit(pair.now, 4, &side.mem, &mut out), 4);
    pair.sides[1].mem.revoke(far);
    let answers: Vec<_> = out.iter().map(|t| wire_bytes(t, &pair.sides[1].mem)).collect();
    for answer in answers {
        pair.inject(0, &answer);
    }
    pair.settle();
    assert_eq!(statuses(&pair, 0), [(1, WcStatus::RemoteAccess)]);
    assert_eq!(pair.sides[1].qp.state(), QpState::Error);
    assert!(pair.sides[0].mem.bytes(sink)[1024..].iter().all(|byte| *byte == 0));
}

/// The bytes of a packet from side 0 to side 1, `ahead` packets after its first.
fn forged(opcode: Opcode, ahead: u32, reth: Reth, payload: &[u8]) -> Vec<u8> {
    let mut bth = Bth::new(opcode, Qpn::new(0x101), Psn::new(0xff_fff0).add(ahead));
    bth.ack_request = true;
    bth.pad = lariat_wire::rocev2::pad_for(payload.len());
    let ext = Ext {
        reth: opcode.has_reth().then_some(reth),
        ieth: opcode.has_ieth().then_some(Ieth { rkey: Rkey(1) }),
        imm: opcode.has_imm().then_some(Imm::parse(&[0; 4])),
        ..Ext::default()
    };
    let mut bytes = [0; MAX_HEADER];
    let length = Headers { bth, ext }.emit(&mut bytes);
    let mut packet = bytes[..length].to_vec();
    packet.extend_from_slice(payload);
    packet.resize(packet.len() + usize::from(bth.pad) + 4, 0);
    packet
}

/// The NAK that the last of some packets meets, if any.
fn answer_to(packets: &[(Opcode, u32, usize)]) -> Option<NakCode> {
    let mut pair = Pair::new(PathMtu::Mtu256, |_, params| params.responder_resources = 2);
    let sink = pair.region(1, vec![0; 4096], Access::LOCAL);
    pair.region(1, vec![0; 4096], Access::REMOTE);
    pair.recv(1, 1, at(sink, 0, 2048));
    let (last, before) = packets.split_last().unwrap();
    for (index, (opcode, length, payload)) in before.iter().enumerate() {
        let reth = Reth { virtual_address: BASE, rkey: Rkey(0x1001), length: *length };
        let ahead = u32::try_from(index).unwrap();
        pair.inject(1, &forged(*opcode, ahead, reth, &vec![5; *payload]));
        assert_eq!(pair.sides[1].qp.state(), QpState::Rts, "{packets:?}");
    }
    let reth = Reth { virtual_address: BASE, rkey: Rkey(0x1001), length: last.1 };
    let ahead = u32::try_from(before.len()).unwrap();
    pair.inject(1, &forged(last.0, ahead, reth, &vec![5; last.2]));
    let side = &mut pair.sides[1];
    if side.qp.state() == QpState::Rts {
        return None;
    }
    let mut out = Vec::new();
    assert!(side.qp.wants_transmit());
    assert_eq!(side.qp.poll_transmit(pair.now, 9, &side.mem, &mut out), 1);
    assert!(!side.qp.wants_transmit());
    let bytes = wire_bytes(&out[0], &side.mem);
    let nak = Packet::parse(&bytes).unwrap();
    assert_eq!(nak.bth.psn, Psn::new(0xff_fff0).add(ahead));
    match nak.ext.aeth.unwrap().syndrome {
        Syndrome::Nak(code) => Some(code),
        other => panic!("{other:?}"),
    }
}

#[test]
fn senseless_requests() {
    use Opcode::*;
    let invalid = Some(NakCode::InvalidRequest);
    let fine: &[&[(Opcode, u32, usize)]] = &[
        &[(SendOnly, 0, 256)],
        &[(SendFirst, 0, 256), (SendMiddle, 0, 256), (SendLast, 0, 1)],
        &[(WriteOnly, 0, 0)],
        &[(WriteFirst, 257, 256), (WriteLast, 0, 1)],
        &[(ReadRequest, 1, 0)],
        &[(ReadRequest, 1, 0), (ReadRequest, 1, 0)],
        // Other services' packets and notifications are no requests.
        &[(Unknown(0x26), 0, 0)],
        &[(Cnp, 0, 16)],
    ];
    for packets in fine {
        assert_eq!(answer_to(packets), None, "{packets:?}");
    }
    let bad: &[&[(Opcode, u32, usize)]] = &[
        // Not supported.
        &[(SendOnlyImm, 0, 8)],
        &[(SendFirst, 0, 256), (SendLastImm, 0, 8)],
        &[(WriteOnlyImm, 8, 8)],
        &[(WriteFirst, 264, 256), (WriteLastImm, 0, 8)],
        &[(CompareSwap, 0, 28)],
        &[(FetchAdd, 0, 28)],
        &[(Unknown(0x15), 0, 0)],
        &[(Unknown(0x1f), 0, 0)],
        // Out of turn.
        &[(SendMiddle, 0, 256)],
        &[(SendLast, 0, 1)],
        &[(WriteMiddle, 0, 256)],
        &[(WriteLast, 0, 1)],
        &[(SendFirst, 0, 256), (SendFirst, 0, 256)],
        &[(SendFirst, 0, 256), (SendOnly, 0, 1)],
        &[(SendFirst, 0, 256), (WriteMiddle, 0, 256)],
        &[(SendFirst, 0, 256), (WriteOnly, 1, 1)],
        &[(SendFirst, 0, 256), (ReadRequest, 1, 0)],
        &[(WriteFirst, 600, 256), (SendMiddle, 0, 256)],
        &[(WriteFirst, 600, 256), (SendOnly, 0, 1)],
        &[(WriteFirst, 600, 256), (ReadRequest, 1, 0)],
        // Lengths.
        &[(SendFirst, 0, 255)],
        &[(SendFirst, 0, 0)],
        &[(SendOnly, 0, 257)],
        &[(SendFirst, 0, 256), (SendMiddle, 0, 1)],
        &[(SendFirst, 0, 256), (SendLast, 0, 0)],
        &[(WriteOnly, 2, 1)],
        &[(WriteOnly, 0, 1)],
        &[(WriteFirst, 256, 256)],
        &[(WriteFirst, 100, 256)],
        &[(WriteFirst, 600, 256), (WriteLast, 0, 100)],
        &[(WriteFirst, 300, 256), (WriteMiddle, 0, 256)],
        &[(WriteOnly, u32::MAX, 256)],
        &[(ReadRequest, u32::MAX, 0)],
        &[(ReadRequest, 1, 4)],
        // More READs than negotiated.
        &[(ReadRequest, 1, 0), (ReadRequest, 1, 0), (ReadRequest, 1, 0)],
    ];
    for packets in bad {
        assert_eq!(answer_to(packets), invalid, "{packets:?}");
    }
}

#[test]
fn repetitions_keep_to_what_was_asked() {
    let mut pair = Pair::new(PathMtu::Mtu256, |_, _| {});
    pair.region(1, vec![1; 4096], Access::REMOTE);
    let reth = |length| Reth { virtual_address: BASE, rkey: Rkey(0x1000), length };
    pair.inject(1, &forged(Opcode::ReadRequest, 0, reth(600), &[]));
    pair.flush();
    assert_eq!(pair.count(1, Opcode::ReadResponseLast), 1);
    // The same again is answered again; from the middle too; what reaches beyond it is not.
    pair.inject(1, &forged(Opcode::ReadRequest, 0, reth(600), &[]));
    pair.inject(1, &forged(Opcode::ReadRequest, 1, reth(300), &[]));
    pair.flush();
    assert_eq!(pair.count(1, Opcode::ReadResponseLast), 2);
    pair.inject(1, &forged(Opcode::ReadRequest, 1, reth(600), &[]));
    assert!(!pair.sides[1].qp.wants_transmit());
    assert!(pair.both_alive());
}

#[test]
fn a_repetition_is_answered_in_its_place() {
    let mut pair = Pair::new(PathMtu::Mtu256, |_, _| {});
    pair.region(1, vec![1; 4096], Access::REMOTE);
    let reth = Reth { virtual_address: BASE, rkey: Rkey(0x1000), length: 512 };
    let first = forged(Opcode::ReadRequest, 0, reth, &[]);
    pair.inject(1, &first);
    pair.inject(1, &forged(Opcode::ReadRequest, 2, reth, &[]));
    let side = &mut pair.sides[1];
    assert_eq!(side.qp.poll_transmit(pair.now, 1, &side.mem, &mut Vec::new()), 1);
    pair.inject(1, &first);
    pair.flush();
    let psns: Vec<_> = pair.log.iter().map(|(_, _, psn)| psn.diff(Psn::new(0xff_fff0))).collect();
    assert_eq!(psns, [0, 1, 2, 3]);
}

#[test]
fn an_unasked_length_of_read_data() {
    let mut pair = Pair::new(PathMtu::Mtu256, |_, _| {});
    let sink = pair.region(0, vec![0; 1024], Access::LOCAL);
    let far = pair.region(1, vec![1; 1024], Access::REMOTE);
    let op = SendOp::Read { remote_address: BASE, rkey: key_of(far) };
    pair.send(0, 1, op, at(sink, 0, 600));
    pair.flush();
    let mut bth = Bth::new(Opcode::ReadResponseMiddle, Qpn::new(0x100), Psn::new(0xff_fff0));
    bth.pad = 0;
    let mut packet = bth.to_bytes().to_vec();
    packet.resize(12 + 128 + 4, 9);
    pair.inject(0, &packet);
    assert_eq!(pair.sides[0].qp.state(), QpState::Error);
    pair.settle();
    assert_eq!(statuses(&pair, 0), [(1, WcStatus::LocalLength)]);
    assert!(pair.sides[0].mem.bytes(sink).iter().all(|byte| *byte == 0));
}

#[test]
fn closing_flushes_everything_once() {
    let mut pair = Pair::new(PathMtu::Mtu256, |_, _| {});
    let local = pair.region(0, vec![0; 8192], Access::REMOTE);
    for wr_id in 0..5 {
        pair.recv(0, 100 + wr_id, at(local, 0, 10));
        pair.send(0, wr_id, SendOp::Send, at(local, 0, 8192));
    }
    pair.flush();
    let side = &mut pair.sides[0];
    side.qp.fail(pair.now, QpFailure::Closed);
    side.qp.fail(pair.now, QpFailure::PeerSilent);
    assert_eq!(side.qp.failure(), Some(QpFailure::Closed));
    pair.send(0, 5, SendOp::Send, at(local, 0, 8192));
    pair.recv(0, 105, at(local, 0, 8192));
    pair.flush();
    let mut ids: Vec<_> = pair.sides[0].done.iter().map(|c| c.wr_id).collect();
    ids.sort_unstable();
    assert_eq!(ids, [0, 1, 2, 3, 4, 5, 100, 101, 102, 103, 104, 105]);
    assert!(pair.sides[0].done.iter().all(|c| c.status == WcStatus::Flushed));
    assert_eq!(pair.sides[0].qp.next_timeout(), Timestamp::NEVER);
    let dropped = pair.counters(0).packets_dropped;
    pair.inject(0, &forged(Opcode::SendOnly, 0, Reth::parse(&[0; 16]), &[]));
    assert_eq!(pair.counters(0).packets_dropped, dropped + 1);
    pair.flush();
    assert_eq!(pair.sides[0].done.len(), 12);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    /// Whatever comes in, nothing panics and every request completes once.
    #[test]
    fn any_bytes_are_survived(
        packets in prop::collection::vec((any::<u8>(), -4_i32..12, any::<u64>(), 0..300_usize), 1..40),
    ) {
        let mut pair = Pair::new(PathMtu::Mtu256, |_, params| {
            params.ack_timeout = Duration::from_millis(1);
            params.rnr_retry_count = 2;
        });
        let local = pair.region(0, vec![0; 4096], Access::REMOTE);
        for wr_id in 0..4 {
            pair.recv(0, 100 + wr_id, at(local, 0, 600));
            let (remote_address, rkey) = (BASE, Rkey(0x1000));
            let op = [SendOp::Send, SendOp::Read { remote_address, rkey }][usize::from(wr_id % 2 == 1)];
            pair.send(0, wr_id, op, at(local, 0, 600));
        }
        pair.script = Box::new(|_, _| Fate::Drop);
        pair.flush();
        for (opcode, ahead, noise, length) in packets {
            let mut bytes = pattern(noise, 12 + length);
            let opcode = if opcode & 0x40 == 0 { opcode & 0x1f } else { opcode };
            let response = Opcode::from(opcode).is_response();
            let base = Psn::new(if response { 0xff_fff0 } else { 0x12_3456 });
            let mut head = Bth::new(Opcode::from(opcode), Qpn::new(0x100), base.add(ahead.cast_unsigned()));
            head.ack_request = noise & 1 == 0;
            bytes[..12].copy_from_slice(&head.to_bytes());
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            if noise & 2 == 0 && bytes.len() >= 28 {
                let reth = Reth { virtual_address: BASE, rkey: Rkey(0x1000), length: 300 };
                bytes[12..28].copy_from_slice(&reth.to_bytes());
            }
            if Packet::parse(&bytes).is_ok() {
                pair.inject(0, &bytes);
                pair.flush();
            }
        }
        pair.sides[0].qp.fail(pair.now, QpFailure::Closed);
        pair.settle();
        let mut ids: Vec<_> = pair.sides[0].done.iter().map(|c| c.wr_id).collect();
        ids.sort_unstable();
        prop_assert_eq!(ids, [0, 1, 2, 3, 100, 101, 102, 103]);
    }
}

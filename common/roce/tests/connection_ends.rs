//! How connections end, message by message: nobody answers, good-byes, rejections in every state, peers
//! that come back with old numbers. How they come to be: `connection_manager`.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::time::Duration;

use lariat_roce::endpoint::EndpointError;
use lariat_roce::verbs::{CmEvent, ConnectFailure, DisconnectReason, SendOp, SendRequest, SgeList};
use lariat_wire::rocev2::cm::{CmMessage, CmTimeout, CommId, Drep, Mra, Path, RefersTo, RejReason};
use lariat_wire::rocev2::{Bth, Headers, Opcode, Psn};
use support::lab::*;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn nobody_answers_a_req_for_as_long_as_the_consumer_waits() {
    let mut lab = Lab::new(|_| {});
    let (conn, req, _) = lab.connect(10 * SECOND);
    let messages = lab.wait(20 * SECOND);
    // Every 0.54 s, whatever the number of retries that the peer is told.
    assert_eq!(messages.len(), 19);
    assert!(messages[..18].iter().all(|mad| mad.message == CmMessage::Req(req.clone())));
    let rej = rejection(&messages[18].message);
    assert_eq!((rej.reason, rej.local_comm_id), (RejReason::TIMEOUT, req.local_comm_id));
    assert_eq!(rej.additional_info[..8], 0x0a0b_0c0d_0e0f_1011_u64.to_be_bytes());
    let CmEvent::ConnectFailed { failure: ConnectFailure::Timeout { waited }, .. } = lab.event()
    else {
        panic!()
    };
    assert_eq!(waited, 10 * SECOND);
    lab.endpoint.destroy(lab.now, conn);
    assert!(lab.is_empty());
}

#[test]
fn only_a_req_without_answer_is_given_up() {
    let mut lab = Lab::new(|_| {});
    let (conn, req, _) = lab.connect(10 * SECOND);
    assert!(lab.endpoint.awaits_first_answer(conn) && !lab.endpoint.is_answered(conn));
    lab.endpoint.give_up(lab.now, conn, 111);
    let failure = ConnectFailure::Unreachable { errno: 111 };
    assert_eq!(lab.event(), CmEvent::ConnectFailed { conn, failure });
    // What comes late is refused, and nothing is sent by itself.
    lab.hear(CmMessage::Rep(rep(req.local_comm_id)));
    assert!(matches!(lab.message().message, CmMessage::Rej(_)));
    assert!(lab.events().is_empty() && !lab.endpoint.awaits_first_answer(conn));

    let (conn, req, _) = lab.connect(10 * SECOND);
    lab.hear(CmMessage::Rep(rep(req.local_comm_id)));
    assert!(matches!(lab.message().message, CmMessage::Rtu(_)));
    assert!(matches!(lab.event(), CmEvent::Established { .. }));
    assert!(!lab.endpoint.awaits_first_answer(conn) && lab.endpoint.is_answered(conn));
    lab.endpoint.give_up(lab.now, conn, 111);
    assert!(lab.events().is_empty() && lab.endpoint.is_answered(conn));
}

#[test]
fn the_consumers_patience_ends_first_even_with_mras() {
    let mut lab = Lab::new(|_| {});
    let (_, req, _) = lab.connect(3 * SECOND);
    let mra = Mra {
        local_comm_id: PEER_ID,
        remote_comm_id: req.local_comm_id,
        refers_to: RefersTo::Req,
        service_timeout: CmTimeout::from_code(19),
        private_data: [0; Mra::PRIVATE_LEN],
    };
    lab.hear(CmMessage::Mra(mra.clone()));
    assert!(lab.wait(2 * SECOND).is_empty(), "patience was asked for");
    lab.hear(CmMessage::Mra(mra));
    let messages = lab.wait(SECOND);
    assert_eq!(rejection(&messages[0].message).reason, RejReason::TIMEOUT);
    let waited = 3 * SECOND;
    assert!(matches!(
        lab.event(),
        CmEvent::ConnectFailed { failure: ConnectFailure::Timeout { waited: w }, .. } if w == waited
    ));
}

#[test]
fn a_peer_cannot_ask_to_be_waited_for_for_hours() {
    for code in [0, 1, 17, 25, 31] {
        let mut lab = Lab::new(|_| {});
        let mut asking = req();
        asking.primary = Path::roce(ip(PEER), ip(US), CmTimeout::from_code(code));
        lab.hear(CmMessage::Req(Box::new(asking)));
        let CmEvent::ConnectRequest { conn, .. } = lab.event() else { panic!() };
        lab.create_qp(conn);
        lab.endpoint.accept(lab.now, conn, &Lab::params(b""), Lab::route()).unwrap();
        let CmMessage::Rep(rep) = lab.message().message else { panic!() };
        lab.hear(rtu(rep.local_comm_id));
        assert!(matches!(lab.event(), CmEvent::Established { .. }));
        let send = SendRequest { wr_id: 1, op: SendOp::Send, sges: SgeList::EMPTY, signaled: true };
        lab.endpoint.post_send(conn, &[send], &lab.memory).unwrap();
        lab.silence();
        lab.wait(60 * SECOND);
        let reason = DisconnectReason::Timeout;
        assert_eq!(lab.events(), [CmEvent::Disconnected { conn, reason }], "code {code}");
    }
}

#[test]
fn nobody_answers_a_rep() {
    let mut lab = Lab::new(|_| {});
    let (conn, first) = lab.accepted();
    let messages = lab.wait(10 * SECOND);
    assert_eq!(messages.len(), 4);
    assert!(messages[..3].iter().all(|mad| mad.message == CmMessage::Rep(first.clone())));
    assert_eq!(rejection(&messages[3].message).reason, RejReason::TIMEOUT);
    assert!(matches!(lab.event(), CmEvent::ConnectFailed { .. }));
    lab.endpoint.destroy(lab.now, conn);
    assert!(lab.is_empty());
}

#[test]
fn nobody_answers_a_dreq() {
    let mut lab = Lab::new(|_| {});
    let (conn, _) = lab.connected();
    lab.endpoint.disconnect(lab.now, conn).unwrap();
    assert!(matches!(lab.message().message, CmMessage::Dreq(_)));
    let messages = lab.wait(10 * SECOND);
    assert_eq!(messages.len(), 2);
    let reason = DisconnectReason::Local;
    assert_eq!(lab.event(), CmEvent::Disconnected { conn, reason });
    lab.endpoint.destroy(lab.now, conn);
    assert!(lab.is_empty());
}

#[test]
fn both_say_good_bye_at_once() {
    let mut lab = Lab::new(|_| {});
    let (conn, req) = lab.connected();
    lab.endpoint.disconnect(lab.now, conn).unwrap();
    assert!(matches!(lab.message().message, CmMessage::Dreq(_)));
    lab.hear(dreq(req.local_comm_id, req.local_qpn));
    assert!(matches!(lab.message().message, CmMessage::Drep(_)));
    let reason = DisconnectReason::Local;
    assert_eq!(lab.event(), CmEvent::Disconnected { conn, reason });
}

#[test]
fn a_stale_rejection_is_met_with_other_numbers() {
    let mut lab = Lab::new(|_| {});
    let (conn, mut last, _) = lab.connect(10 * SECOND);
    for _ in 0..3 {
        lab.hear(rej(CommId(0), last.local_comm_id, RejReason::STALE_CONNECTION));
        let CmMessage::Req(next) = lab.message().message else { panic!() };
        assert_ne!(next.local_comm_id, last.local_comm_id);
        assert_ne!(next.local_qpn, last.local_qpn);
        assert_eq!(next.private_data, last.private_data);
        last = next;
    }
    lab.hear(CmMessage::Rep(rep(last.local_comm_id)));
    assert!(matches!(lab.event(), CmEvent::Established { .. }));
    // Packets find the queue pair under its last number.
    lab.hear_packet(Headers::new(Bth::new(Opcode::SendOnly, last.local_qpn, Psn::new(0))), &[]);
    assert_eq!(lab.endpoint.counters().unknown_queue_pair, 0);
    assert!(lab.endpoint.contains(conn));

    // Not for ever.
    let mut lab = Lab::new(|_| {});
    let (_, mut last, _) = lab.connect(10 * SECOND);
    for _ in 0..3 {
        lab.hear(rej(CommId(0), last.local_comm_id, RejReason::STALE_CONNECTION));
        for (_, mad) in lab.messages() {
            if let CmMessage::Req(next) = mad.message {
                last = next;
            }
        }
    }
    lab.hear(rej(CommId(0), last.local_comm_id, RejReason::STALE_CONNECTION));
    assert!(matches!(
        lab.event(),
        CmEvent::ConnectFailed { failure: ConnectFailure::Rejected { reason: 10, .. }, .. }
    ));
}

#[test]
fn rejections_in_every_state() {
    // Of a REQ, with the consumer's words.
    let mut lab = Lab::new(|_| {});
    let (_, req, _) = lab.connect(SECOND);
    lab.hear(rej(CommId(0), req.local_comm_id, RejReason::CONSUMER));
    assert!(matches!(
        lab.event(),
        CmEvent::ConnectFailed { failure: ConnectFailure::Rejected { reason: 28, .. }, .. }
    ));
    // Of a REP: the active side gave up, knowing our id or not.
    for to_known in [true, false] {
        let mut lab = Lab::new(|_| {});
        let (_, first) = lab.accepted();
        let to = if to_known { first.local_comm_id } else { CommId(0) };
        lab.hear(rej(PEER_ID, to, RejReason::TIMEOUT));
        assert!(matches!(
            lab.event(),
            CmEvent::ConnectFailed { failure: ConnectFailure::Rejected { reason: 4, .. }, .. }
        ));
    }
    // While the consumer decides; its decision comes too late.
    let mut lab = Lab::new(|_| {});
    let conn = lab.requested();
    lab.create_qp(conn);
    lab.hear(rej(PEER_ID, CommId(0), RejReason::TIMEOUT));
    assert!(matches!(lab.event(), CmEvent::ConnectFailed { .. }));
    let accepted = lab.endpoint.accept(lab.now, conn, &Lab::params(b""), Lab::route());
    assert!(matches!(accepted, Err(EndpointError::WrongState { .. })));
    lab.endpoint.reject(lab.now, conn, b"late").unwrap();
    lab.silence();
    assert!(lab.is_empty());
    // After we thought it stood: the passive side never got our RTU.
    let mut lab = Lab::new(|_| {});
    let (conn, req) = lab.connected();
    lab.hear(rej(CommId(0x9999), req.local_comm_id, RejReason::TIMEOUT));
    assert!(lab.events().is_empty(), "from somebody else");
    lab.hear(rej(PEER_ID, req.local_comm_id, RejReason::TIMEOUT));
    let reason = DisconnectReason::Peer;
    assert_eq!(lab.event(), CmEvent::Disconnected { conn, reason });
}

#[test]
fn a_good_bye_may_overtake_the_rtu() {
    let mut lab = Lab::new(|_| {});
    let (conn, first) = lab.accepted();
    lab.hear(dreq(first.local_comm_id, first.local_qpn));
    assert!(matches!(lab.message().message, CmMessage::Drep(_)));
    let events = lab.events();
    assert!(matches!(events[0], CmEvent::Established { .. }));
    let reason = DisconnectReason::Peer;
    assert_eq!(events[1], CmEvent::Disconnected { conn, reason });
}

#[test]
fn destroy_in_every_state_tells_the_peer() {
    let reason_of = |lab: &mut Lab| rejection(&lab.message().message).reason;
    let mut lab = Lab::new(|_| {});
    let (conn, ..) = lab.connect(SECOND);
    lab.endpoint.destroy(lab.now, conn);
    assert_eq!(reason_of(&mut lab), RejReason::TIMEOUT);
    assert!(lab.is_empty());
    let conn = lab.requested();
    lab.endpoint.destroy(lab.now, conn);
    assert_eq!(reason_of(&mut lab), RejReason::CONSUMER);
    assert!(lab.is_empty());
    let (conn, first) = lab.accepted();
    lab.endpoint.destroy(lab.now, conn);
    assert_eq!(reason_of(&mut lab), RejReason::CONSUMER);
    // It was lost, and the RTU comes.
    lab.hear(rtu(first.local_comm_id));
    assert_eq!(reason_of(&mut lab), RejReason::CONSUMER);
    lab.wait(SECOND);
    assert!(lab.is_empty());
    let (conn, _) = lab.connected();
    lab.endpoint.destroy(lab.now, conn);
    assert!(matches!(lab.message().message, CmMessage::Dreq(_)));
    lab.wait(10 * SECOND);
    assert!(lab.is_empty());
    assert!(lab.events().is_empty());
    assert_eq!(lab.endpoint.disconnect(lab.now, conn), Err(EndpointError::UnknownConnection));
}

#[test]
fn stale_connections_make_way() {
    let mut lab = Lab::new(|_| {});
    let (conn, first) = lab.accepted();
    lab.hear(rtu(first.local_comm_id));
    lab.events();
    // The peer died and came back with the same queue pair number.
    let mut again = req();
    again.local_comm_id = CommId(0x78);
    lab.hear(CmMessage::Req(Box::new(again.clone())));
    let messages = lab.messages();
    assert_eq!(messages.len(), 2);
    let rej = rejection(&messages[0].1.message);
    assert_eq!((rej.reason, rej.remote_comm_id), (RejReason::STALE_CONNECTION, CommId(0x78)));
    let CmMessage::Dreq(bye) = &messages[1].1.message else { panic!() };
    assert_eq!((bye.remote_comm_id, bye.remote_qpn), (PEER_ID, PEER_QPN));
    let reason = DisconnectReason::Peer;
    assert_eq!(lab.event(), CmEvent::Disconnected { conn, reason });
    // It does not know the old one.
    lab.hear(CmMessage::Drep(Drep {
        local_comm_id: PEER_ID,
        remote_comm_id: first.local_comm_id,
        private_data: [0; Drep::PRIVATE_LEN],
    }));
    again.local_comm_id = CommId(0x79);
    lab.hear(CmMessage::Req(Box::new(again)));
    assert!(matches!(lab.event(), CmEvent::ConnectRequest { .. }));
    assert_eq!(lab.endpoint.counters().stale_connections, 1);
}

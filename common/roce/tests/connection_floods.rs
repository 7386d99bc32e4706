//! More connection requests than there are places, from peers that are not there or that are.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::net::SocketAddr;
use std::time::Duration;

use lariat_roce::endpoint::EndpointError;
use lariat_roce::verbs::{CmEvent, ConnId, ConnectFailure};
use lariat_wire::rocev2::Qpn;
use lariat_wire::rocev2::cm::{CmMessage, CommId, RejReason};
use support::lab::*;

/// A request of its own, in whoever's name.
fn request(number: u32) -> CmMessage {
    let mut request = req();
    request.local_comm_id = CommId(1000 + number);
    request.local_qpn = Qpn::new(5000 + number);
    CmMessage::Req(Box::new(request))
}

fn is_refused(message: &CmMessage) -> bool {
    matches!(message, CmMessage::Rej(rej) if rej.reason == RejReason::NO_QP)
}

/// Hears a request that the consumer accepts; its handle, and our id in the REP.
fn accepted(lab: &mut Lab, number: u32) -> (ConnId, CommId) {
    lab.hear(request(number));
    lab.silence();
    let CmEvent::ConnectRequest { conn, .. } = lab.event() else { panic!() };
    lab.create_qp(conn);
    lab.endpoint.accept(lab.now, conn, &Lab::params(b""), Lab::route()).unwrap();
    let CmMessage::Rep(rep) = lab.message().message else { panic!() };
    (conn, rep.local_comm_id)
}

#[test]
fn a_flood_of_requests_is_bounded() {
    let mut lab = Lab::new(|config| {
        config.cm.max_half_open = 10;
        config.max_connections = 16;
    });
    let mut rejected = 0;
    for at in 0..5000 {
        lab.hear(request(at));
        rejected += lab.messages().iter().filter(|(_, mad)| is_refused(&mad.message)).count();
    }
    assert_eq!(rejected, 4990);
    assert_eq!(lab.endpoint.connections(), 10);
    // Nobody takes the answers out: they do not pile up either.
    for at in 0..5000 {
        let mut flood = req();
        flood.local_comm_id = CommId(9000 + at);
        lab.hear(CmMessage::Req(Box::new(flood)));
    }
    assert!(lab.endpoint.counters().cm_overflow > 3000);
    // The active side still has its places.
    for _ in 0..6 {
        let service = SocketAddr::new(ip(PEER), PORT);
        lab.endpoint.resolve(lab.now, service, Lab::route()).unwrap();
    }
    let service = SocketAddr::new(ip(PEER), PORT);
    let more = lab.endpoint.resolve(lab.now, service, Lab::route());
    assert_eq!(more, Err(EndpointError::TooManyConnections { limit: 16 }));
}

#[test]
fn who_does_not_answer_makes_room_for_others() {
    let mut lab = Lab::new(|config| config.cm.max_half_open = 3);
    let grace = lab.endpoint.config().cm.half_open_grace;
    let (first, _) = accepted(&mut lab, 0);
    lab.wait(Duration::from_millis(5));
    let (second, _) = accepted(&mut lab, 1);
    let (third, our_id) = accepted(&mut lab, 2);
    // Each has its grace.
    lab.hear(request(3));
    assert!(is_refused(&lab.message().message));
    lab.wait(grace - Duration::from_millis(5));
    // The oldest goes, without a word.
    lab.hear(request(4));
    lab.silence();
    let events = lab.events();
    assert!(
        matches!(
            events[..],
            [
                CmEvent::ConnectFailed { conn, failure: ConnectFailure::Timeout { waited } },
                CmEvent::ConnectRequest { .. }
            ] if conn == first && waited == grace
        ),
        "{events:?}"
    );
    lab.endpoint.destroy(lab.now, first);
    assert_eq!(lab.endpoint.counters().unanswered_dropped, 1);
    // Who answered has nothing to fear; who waits for the consumer neither.
    let mut ready = rtu(our_id);
    if let CmMessage::Rtu(ready) = &mut ready {
        ready.local_comm_id = CommId(1002);
    }
    lab.hear(ready);
    assert!(matches!(lab.event(), CmEvent::Established { conn, .. } if conn == third));
    lab.wait(grace);
    lab.hear(request(5));
    assert!(matches!(lab.event(), CmEvent::ConnectRequest { .. }));
    lab.hear(request(6));
    let events = lab.events();
    assert!(
        matches!(events[0], CmEvent::ConnectFailed { conn, .. } if conn == second),
        "{events:?}"
    );
    lab.hear(request(7));
    assert!(is_refused(&lab.message().message));
}

#[test]
fn a_request_in_a_false_name_draws_few_answers() {
    let mut lab = Lab::new(|_| {});
    lab.hear({
        let mut greedy = req();
        greedy.max_cm_retries = 15;
        CmMessage::Req(Box::new(greedy))
    });
    lab.silence();
    let CmEvent::ConnectRequest { conn, .. } = lab.event() else { panic!() };
    lab.create_qp(conn);
    lab.endpoint.accept(lab.now, conn, &Lab::params(b""), Lab::route()).unwrap();
    assert!(matches!(lab.message().message, CmMessage::Rep(_)));
    let answers = lab.wait(Duration::from_secs(60));
    let repeated = answers.iter().filter(|mad| matches!(mad.message, CmMessage::Rep(_))).count();
    assert_eq!(repeated, usize::from(lab.endpoint.config().cm.accept_retries));
    assert_eq!(answers.len(), repeated + 1, "and one REJ: {answers:?}");
}

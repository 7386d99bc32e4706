//! How connections come to be, message by message, against a peer that behaves as Linux does, or not;
//! and what is refused. How they end: `connection_ends`.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::net::SocketAddr;
use std::time::Duration;

use lariat_roce::endpoint::EndpointError;
use lariat_roce::verbs::{CmEvent, DisconnectReason, PrivateData, RecvRequest, SgeList};
use lariat_wire::rocev2::cm::{
    CmMessage, CommId, Drep, IpCmHeader, PathMtu, RefersTo, RejReason, Rep, Req, TransportService,
};
use lariat_wire::rocev2::{Bth, Headers, Opcode, PKey, QKey, Qpn};
use support::lab::*;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn req_is_what_the_kernel_wants() {
    let mut lab = Lab::new(|_| {});
    let (_, req, _) = lab.connect(SECOND);
    assert_eq!(req.service_id.0, 0x0000_0000_0106_1144);
    assert_eq!((req.primary.local_lid, req.primary.remote_lid), (0xffff, 0xffff));
    assert_eq!(req.primary.local_gid, ip(US).into());
    assert_eq!(req.primary.remote_gid, ip(PEER).into());
    assert_eq!((req.primary.subnet_local, req.primary.hop_limit), (false, 64));
    assert_eq!(req.ip_header().unwrap().source, ip(US));
    assert_eq!(req.ip_header().unwrap().destination, ip(PEER));
    assert_eq!(req.path_mtu(), Some(PathMtu::Mtu1024));
    assert_eq!(req.transport_service, TransportService::Reliable);
    assert_eq!((req.responder_resources, req.initiator_depth), (16, 32));
    assert_eq!((req.retry_count, req.rnr_retry_count, req.max_cm_retries), (7, 7, 3));
    assert_eq!(req.pkey, PKey::DEFAULT);
    assert_eq!(&req.ip_private_data()[..6], b"hello\0");
    assert_eq!(&req.private_data[76..84], b"LARIAT\0\x01");
}

#[test]
fn no_req_offers_nothing_to_read_from() {
    let mut lab = Lab::new(|_| {});
    let service = SocketAddr::new(ip(PEER), PORT);
    let conn = lab.endpoint.resolve(lab.now, service, Lab::route()).unwrap();
    lab.create_qp(conn);
    let mut params = Lab::params(b"");
    params.responder_resources = 0;
    lab.endpoint.connect(lab.now, conn, &params, SECOND).unwrap();
    let CmMessage::Req(req) = lab.message().message else { panic!() };
    assert_eq!(req.responder_resources, 1);
}

#[test]
fn active_side_connects_and_parts() {
    let mut lab = Lab::new(|_| {});
    let (conn, req, transaction) = lab.connect(SECOND);
    let mut answer = rep(req.local_comm_id);
    answer.private_data[..3].copy_from_slice(b"yes");
    lab.hear_as(ip(PEER), QKey::CM, PKey::DEFAULT, transaction, CmMessage::Rep(answer.clone()));
    let mad = lab.message();
    assert_eq!(mad.transaction_id(), transaction);
    let CmMessage::Rtu(ready) = &mad.message else { panic!("{mad:?}") };
    assert_eq!((ready.local_comm_id, ready.remote_comm_id), (req.local_comm_id, PEER_ID));
    let CmEvent::Established { initiator_depth, responder_resources, private_data, .. } =
        lab.event()
    else {
        panic!()
    };
    // nvmet serves no READs of ours.
    assert_eq!((initiator_depth, responder_resources), (0, 16));
    assert_eq!(&private_data.as_bytes()[..4], b"yes\0");
    assert_eq!(private_data.as_bytes().len(), 196);
    // The RTU was lost, the REP comes again.
    lab.hear(CmMessage::Rep(answer));
    assert!(matches!(lab.message().message, CmMessage::Rtu(_)));
    assert!(lab.events().is_empty());

    lab.endpoint.disconnect(lab.now, conn).unwrap();
    let CmMessage::Dreq(bye) = lab.message().message else { panic!() };
    assert_eq!((bye.local_comm_id, bye.remote_comm_id), (req.local_comm_id, PEER_ID));
    assert_eq!(bye.remote_qpn, PEER_QPN);
    assert!(lab.events().is_empty());
    lab.hear(CmMessage::Drep(Drep {
        local_comm_id: PEER_ID,
        remote_comm_id: req.local_comm_id,
        private_data: [0; Drep::PRIVATE_LEN],
    }));
    let reason = DisconnectReason::Local;
    assert_eq!(lab.event(), CmEvent::Disconnected { conn, reason });
    lab.endpoint.destroy(lab.now, conn);
    assert!(!lab.is_empty(), "time-wait");
    assert!(lab.wait(SECOND).is_empty());
    assert!(lab.is_empty());
}

#[test]
fn passive_side_answers_again_and_again() {
    let mut lab = Lab::new(|_| {});
    let conn = lab.requested();
    // The consumer takes its time.
    lab.hear(CmMessage::Req(Box::new(req())));
    let CmMessage::Mra(mra) = lab.message().message else { panic!() };
    assert_eq!((mra.remote_comm_id, mra.refers_to), (PEER_ID, RefersTo::Req));
    assert!(lab.events().is_empty(), "asked once");
    lab.create_qp(conn);
    lab.endpoint.accept(lab.now, conn, &Lab::params(b"welcome"), Lab::route()).unwrap();
    let CmMessage::Rep(first) = lab.message().message else { panic!() };
    assert_eq!(first.remote_comm_id, PEER_ID);
    // Linux' initiator serves 128 READs and wants none.
    assert_eq!((first.responder_resources, first.initiator_depth), (0, 32));
    assert_eq!(
        (first.target_ack_delay.code(), first.flow_control, first.rnr_retry_count),
        (15, true, 7)
    );
    assert_eq!(&first.private_data[..8], b"welcome\0");
    assert_eq!(first.private_data[180..], [0; 16], "no marker for strangers");
    lab.hear(CmMessage::Req(Box::new(req())));
    assert_eq!(lab.message().message, CmMessage::Rep(first.clone()));
    // And by the clock.
    let again = lab.wait(Duration::from_millis(600));
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].message, CmMessage::Rep(first.clone()));
    lab.hear(rtu(first.local_comm_id));
    assert!(matches!(lab.event(), CmEvent::Established { .. }));
    lab.hear(rtu(first.local_comm_id));
    lab.hear(CmMessage::Req(Box::new(req())));
    lab.silence();
    assert!(lab.events().is_empty());
    // The peer's good-bye, twice.
    let qpn = first.local_qpn;
    lab.hear(dreq(first.local_comm_id, qpn));
    assert!(matches!(lab.message().message, CmMessage::Drep(_)));
    let reason = DisconnectReason::Peer;
    assert_eq!(lab.event(), CmEvent::Disconnected { conn, reason });
    lab.hear(dreq(first.local_comm_id, qpn));
    assert!(matches!(lab.message().message, CmMessage::Drep(_)));
    lab.endpoint.destroy(lab.now, conn);
    lab.wait(SECOND);
    assert!(lab.is_empty());
}

#[test]
fn data_is_as_good_as_an_rtu() {
    let mut lab = Lab::new(|_| {});
    let (conn, rep) = lab.accepted();
    let receive = RecvRequest { wr_id: 5, sges: SgeList::EMPTY };
    lab.endpoint.post_recv(conn, &[receive], &lab.memory).unwrap();
    let mut bth = Bth::new(Opcode::SendOnly, rep.local_qpn, rep.starting_psn);
    bth.ack_request = true;
    lab.hear_packet(Headers::new(bth), &[]);
    assert!(matches!(lab.event(), CmEvent::Established { .. }));
    assert_eq!(lab.completions.len(), 1);
    assert_eq!(lab.completions[0].wr_id, 5);
    lab.hear(rtu(rep.local_comm_id));
    assert!(lab.events().is_empty());
}

#[test]
fn strangers_are_answered() {
    let mut lab = Lab::new(|_| {});
    lab.hear(dreq(CommId(0x55), Qpn::new(9)));
    let messages = lab.messages();
    let CmMessage::Drep(bye) = &messages[0].1.message else { panic!() };
    assert_eq!((bye.local_comm_id, bye.remote_comm_id), (CommId(0x55), PEER_ID));
    assert_eq!(messages[0].0, SocketAddr::new(ip(PEER), 4791));
    assert_eq!(messages[0].1.transaction_id(), 99);
    lab.hear(CmMessage::Rep(rep(CommId(0x55))));
    assert_eq!(rejection(&lab.message().message).reason, RejReason::INVALID_COMM_ID);
    lab.hear(rtu(CommId(0x55)));
    lab.hear(rej(PEER_ID, CommId(0x55), RejReason::CONSUMER));
    lab.silence();
    assert_eq!(lab.endpoint.counters().cm_ignored, 4);
    assert!(lab.is_empty());
}

#[test]
fn processes_that_share_an_address_may_choose_the_same_id() {
    let mut lab = Lab::new(|_| {});
    let (first, rep) = lab.accepted();
    lab.hear(rtu(rep.local_comm_id));
    assert!(matches!(lab.event(), CmEvent::Established { .. }));
    let mut other = req();
    other.ca_guid = PEER_GUID + 1;
    other.local_qpn = Qpn::new(0x4321);
    lab.hear(CmMessage::Req(Box::new(other.clone())));
    lab.silence();
    let CmEvent::ConnectRequest { conn: second, .. } = lab.event() else { panic!() };
    // It withdraws, which does not concern the first.
    let withdraw = |info_len_bytes: u8| {
        let CmMessage::Rej(mut rej) = rej(PEER_ID, CommId(0), RejReason::TIMEOUT) else { panic!() };
        rej.info_len_bytes = info_len_bytes;
        rej.additional_info[..8].copy_from_slice(&(PEER_GUID + 1).to_be_bytes());
        CmMessage::Rej(rej)
    };
    lab.hear(withdraw(0));
    assert!(lab.events().is_empty(), "of which?");
    lab.hear(withdraw(8));
    assert!(matches!(lab.event(), CmEvent::ConnectFailed { conn, .. } if conn == second));
    assert!(lab.endpoint.contains(first));
    lab.endpoint.destroy(lab.now, second);
    lab.endpoint.destroy(lab.now, first);
    assert!(matches!(lab.message().message, CmMessage::Dreq(_)));
    lab.wait(10 * SECOND);
    assert!(lab.is_empty());
}

#[test]
fn wrong_keys_and_senders_are_ignored_and_counted() {
    let mut lab = Lab::new(|_| {});
    let message = CmMessage::Req(Box::new(req()));
    lab.hear_as(ip(PEER), QKey(0x1234), PKey::DEFAULT, 1, message.clone());
    lab.hear_as(ip(PEER), QKey::CM, PKey(0x8001), 1, message.clone());
    lab.hear_bytes(ip(PEER), QKey::CM, PKey::DEFAULT, &[0; 256]);
    lab.hear_bytes(ip(PEER), QKey::CM, PKey::DEFAULT, &[1; 12]);
    lab.silence();
    assert!(lab.events().is_empty() && lab.is_empty());
    let counters = lab.endpoint.counters();
    assert_eq!((counters.bad_qkey, counters.bad_pkey, counters.bad_mad), (1, 1, 2));
    // A limited member may talk to us.
    lab.hear_as(ip(PEER), QKey::CM, PKey(0x7fff), 1, message);
    assert_eq!(lab.events().len(), 1);
    // Somebody else cannot end it.
    let (conn, req) = lab.connected();
    let (to, qpn) = (req.local_comm_id, req.local_qpn);
    lab.hear_as(ip("10.9.0.3"), QKey::CM, PKey::DEFAULT, 1, dreq(to, qpn));
    lab.hear(dreq(to, Qpn::new(qpn.get() ^ 1)));
    assert!(lab.events().is_empty() && lab.endpoint.contains(conn));
    assert_eq!(lab.endpoint.counters().wrong_peer, 1);
}

type Change<'a> = &'a dyn Fn(&mut Req);

#[test]
fn requests_are_checked() {
    let header = |source: &str, destination: &str| IpCmHeader {
        source_port: 1,
        source: ip(source),
        destination: ip(destination),
    };
    let with = |header: IpCmHeader| Req::private_data_for_ip(&header, [0; Req::IP_PRIVATE_LEN]);
    let cases: [(RejReason, Change<'_>); 9] = [
        (RejReason::INVALID_SERVICE_ID, &|req| req.service_id.0 += 1),
        (RejReason::INVALID_SERVICE_ID, &|req| req.service_id.0 = 1),
        (RejReason::INVALID_TRANSPORT_SERVICE, &|req| {
            req.transport_service = TransportService::Unreliable;
        }),
        (RejReason::INVALID_GID, &|req| req.primary.remote_gid = ip("10.9.0.7").into()),
        (RejReason::INVALID_GID, &|req| req.primary.local_gid.0 = [0; 16]),
        (RejReason::CONSUMER, &|req| req.private_data = with(header(PEER, "10.9.0.7"))),
        (RejReason::CONSUMER, &|req| req.private_data[0] = 1),
        (RejReason::INVALID_MTU, &|req| req.path_mtu_code = 6),
        (RejReason::UNSUPPORTED, &|req| req.local_qpn = Qpn::new(1)),
    ];
    let mut lab = Lab::new(|_| {});
    for (at, (reason, change)) in cases.iter().enumerate() {
        let mut bad = req();
        change(&mut bad);
        lab.hear(CmMessage::Req(Box::new(bad)));
        let mad = lab.message();
        let rej = rejection(&mad.message);
        assert_eq!(rej.reason, *reason, "case {at}");
        assert_eq!((rej.local_comm_id, rej.remote_comm_id), (CommId(0), PEER_ID));
        if *reason == RejReason::INVALID_GID {
            assert_eq!(rej.info_len_bytes, 16);
            assert_eq!(rej.additional_info[12..16], [10, 9, 0, 1]);
        }
        assert!(lab.events().is_empty() && lab.is_empty(), "case {at}");
    }
    assert_eq!(lab.endpoint.counters().requests_rejected, 9);
}

#[test]
fn soft_peers_find_each_other_off_the_usual_port() {
    let mut lab = Lab::new(|config| config.local.set_port(6000));
    let service = SocketAddr::new(ip(PEER), PORT);
    let conn = lab.endpoint.resolve(lab.now, service, Lab::route()).unwrap();
    lab.create_qp(conn);
    // The marker needs its place.
    let too_long = Lab::params(&[1; 41]);
    let refused = lab.endpoint.connect(lab.now, conn, &too_long, SECOND);
    assert_eq!(refused, Err(EndpointError::PrivateData { given: 41, limit: 40 }));
    lab.endpoint.connect(lab.now, conn, &Lab::params(&[1; 40]), SECOND).unwrap();
    let CmMessage::Req(out) = lab.message().message else { panic!() };
    assert_eq!(out.private_data[84..87], [0x17, 0x70, 1]);
    // A passive side that understands it answers there, and says where it is.
    let mut answer = rep(out.local_comm_id);
    answer.private_data[180..191].copy_from_slice(b"LARIAT\0\x01\x13\x88\x04");
    lab.hear(CmMessage::Rep(answer));
    let messages = lab.messages();
    assert_eq!(messages[0].0, SocketAddr::new(ip(PEER), 5000));
    let CmEvent::Established { private_data, .. } = lab.events().remove(1) else { panic!() };
    assert_eq!(private_data.as_bytes(), [0; Rep::PRIVATE_LEN], "not the consumer's");
    // The other way.
    let mut asked = req();
    asked.local_comm_id = CommId(0x99);
    asked.local_qpn = Qpn::new(0x99);
    asked.private_data[76..87].copy_from_slice(b"LARIAT\0\x01\x13\x89\x01");
    lab.hear(CmMessage::Req(Box::new(asked)));
    let CmEvent::ConnectRequest { conn, private_data, .. } = lab.event() else { panic!() };
    assert_eq!(&private_data.as_bytes()[..5], b"nvme\0");
    assert_eq!(private_data.as_bytes()[40..], [0; 16]);
    lab.create_qp(conn);
    let too_long = Lab::params(&[1; 181]);
    let refused = lab.endpoint.accept(lab.now, conn, &too_long, Lab::route());
    assert_eq!(refused, Err(EndpointError::PrivateData { given: 181, limit: 180 }));
    lab.endpoint.accept(lab.now, conn, &Lab::params(&[1; 180]), Lab::route()).unwrap();
    let messages = lab.messages();
    assert_eq!(messages[0].0, SocketAddr::new(ip(PEER), 5001));
    let CmMessage::Rep(answer) = &messages[0].1.message else { panic!() };
    assert_eq!(&answer.private_data[180..191], b"LARIAT\0\x01\x17\x70\x01");
}

#[test]
fn strangers_may_fill_their_private_data() {
    let mut lab = Lab::new(|_| {});
    let service = SocketAddr::new(ip(PEER), PORT);
    let conn = lab.endpoint.resolve(lab.now, service, Lab::route()).unwrap();
    lab.create_qp(conn);
    let mut params = Lab::params(&[1; 57]);
    let refused = lab.endpoint.connect(lab.now, conn, &params, SECOND);
    assert_eq!(refused, Err(EndpointError::PrivateData { given: 57, limit: 56 }));
    params.private_data = PrivateData::new(&[1; 56]).unwrap();
    lab.endpoint.connect(lab.now, conn, &params, SECOND).unwrap();
    let CmMessage::Req(out) = lab.message().message else { panic!() };
    assert_eq!(out.private_data[36..], [1; 56]);
}

#[test]
fn a_path_that_is_too_narrow_is_refused() {
    let mut lab = Lab::new(|_| {});
    let mut wide = req();
    wide.path_mtu_code = PathMtu::Mtu4096.code();
    lab.hear(CmMessage::Req(Box::new(wide)));
    let CmEvent::ConnectRequest { conn, .. } = lab.event() else { panic!() };
    lab.create_qp(conn);
    let refused = lab.endpoint.accept(lab.now, conn, &Lab::params(b""), Lab::route());
    let (asked, possible) = (PathMtu::Mtu4096, PathMtu::Mtu1024);
    assert_eq!(refused, Err(EndpointError::PathMtu { asked, possible }));
    assert_eq!(rejection(&lab.message().message).reason, RejReason::INVALID_MTU);
    lab.endpoint.destroy(lab.now, conn);
    lab.silence();
    assert!(lab.is_empty());
}

//! Whatever a peer sends, in whatever state: no panic, nothing left behind, bounded memory.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::collections::BTreeSet;
use std::time::Duration;

use lariat_roce::verbs::{
    Access, CmEvent, ConnId, DomainId, RecvRequest, SendOp, SendRequest, Sge, SgeList,
};
use lariat_wire::rocev2::cm::CmTimeout;
use lariat_wire::rocev2::cm::{CmMad, CmMessage, CommId, Drep, Mra, RefersTo, RejReason};
use lariat_wire::rocev2::{Bth, Ext, Headers, Opcode, PKey, Packet, Psn, QKey, Qpn};
use support::lab::*;
use support::rng::Rng;

/// What the endpoint showed of itself: a hostile peer knows it.
#[derive(Default)]
struct Known {
    ids: Vec<CommId>,
    qpns: Vec<Qpn>,
}

impl Known {
    fn learn(&mut self, messages: Vec<CmMad>) {
        for mad in messages {
            match mad.message {
                CmMessage::Req(req) => {
                    self.ids.push(req.local_comm_id);
                    self.qpns.push(req.local_qpn);
                }
                CmMessage::Rep(rep) => {
                    self.ids.push(rep.local_comm_id);
                    self.qpns.push(rep.local_qpn);
                }
                CmMessage::Mra(mra) => self.ids.push(mra.local_comm_id),
                _ => {}
            }
        }
    }
}

fn pick<T: Copy>(rng: &mut Rng, list: &[T], otherwise: T) -> T {
    let at = usize::try_from(rng.below(list.len() as u64 + 1)).unwrap();
    list.get(at).copied().unwrap_or(otherwise)
}

fn message(rng: &mut Rng, known: &Known) -> CmMessage {
    let to = pick(rng, &known.ids, CommId(0));
    let qpn = pick(rng, &known.qpns, Qpn::new(5));
    let small = u32::try_from(rng.below(6)).unwrap();
    match rng.below(8) {
        0 => {
            let mut req = req();
            req.local_comm_id = CommId(PEER_ID.0 + small);
            req.local_qpn = Qpn::new(PEER_QPN.get() + u32::try_from(rng.below(4)).unwrap());
            CmMessage::Req(Box::new(req))
        }
        1 => {
            let mut rep = rep(to);
            rep.local_comm_id = CommId(PEER_ID.0 + small / 3);
            CmMessage::Rep(rep)
        }
        2 => rtu(to),
        3 => {
            let reason =
                pick(rng, &[RejReason::STALE_CONNECTION, RejReason::TIMEOUT], RejReason::CONSUMER);
            rej(CommId(PEER_ID.0 + small), to, reason)
        }
        4 => CmMessage::Drep(Drep {
            local_comm_id: PEER_ID,
            remote_comm_id: to,
            private_data: [0; Drep::PRIVATE_LEN],
        }),
        5 => CmMessage::Mra(Mra {
            local_comm_id: PEER_ID,
            remote_comm_id: to,
            refers_to: RefersTo::from_code(u8::try_from(small).unwrap()),
            service_timeout: CmTimeout::from_code(u8::try_from(rng.below(32)).unwrap()),
            private_data: [0; Mra::PRIVATE_LEN],
        }),
        _ => dreq(to, qpn),
    }
}

fn hear_garbage(lab: &mut Lab, rng: &mut Rng, known: &Known) {
    match rng.below(4) {
        0 | 1 => {
            let message = message(rng, known);
            lab.hear(message);
        }
        // The same with a few bits wrong.
        2 => {
            let mut bytes = CmMad::new(rng.next(), message(rng, known)).emit();
            for _ in 0..rng.between(1, 4) {
                bytes[usize::try_from(rng.between(16, 255)).unwrap()] =
                    u8::try_from(rng.below(256)).unwrap();
            }
            lab.hear_bytes(ip(PEER), QKey::CM, PKey::DEFAULT, &bytes);
        }
        // A packet of any kind on a queue pair.
        _ => {
            let length = usize::try_from(rng.between(16, 80)).unwrap();
            let mut bytes = rng.bytes(length);
            bytes[0] = u8::try_from(rng.below(0x18)).unwrap();
            bytes[2..4].copy_from_slice(&[0xff, 0xff]);
            let qpn = pick(rng, &known.qpns, Qpn::new(5)).get().to_be_bytes();
            bytes[5..8].copy_from_slice(&qpn[1..]);
            if let Ok(packet) = Packet::parse(&bytes) {
                lab.hear_packet(packet.headers(), packet.payload);
            }
        }
    }
}

/// Returns how many connections stood.
fn run(seed: u64) -> u64 {
    let mut stood = 0;
    let mut rng = Rng::new(seed);
    let mut lab = Lab::new(|config| {
        config.max_connections = 8;
        config.cm.max_half_open = 4;
    });
    let region = lab.memory.register(DomainId(1), Access::REMOTE, vec![0; 4096]);
    let mut known = Known::default();
    let mut conns: BTreeSet<ConnId> = BTreeSet::new();
    let mut ended = BTreeSet::new();
    for step in 0..150 {
        let conn = conns.iter().nth(usize::try_from(rng.below(8)).unwrap()).copied();
        match (rng.below(14), conn) {
            (0, None) => {
                let to = std::net::SocketAddr::new(ip(PEER), PORT);
                conns.extend(lab.endpoint.resolve(lab.now, to, Lab::route()));
            }
            (0 | 1, Some(conn)) => {
                let config = lariat_roce::verbs::QpConfig::new(DomainId(1), 8, 8);
                let _ = lab.endpoint.create_qp(conn, &config);
                let _ =
                    lab.endpoint.connect(lab.now, conn, &Lab::params(b"x"), Duration::from_secs(9));
            }
            (2, Some(conn)) => {
                let _ = lab.endpoint.accept(lab.now, conn, &Lab::params(b"x"), Lab::route());
            }
            (3, Some(conn)) => {
                let sges = SgeList::one(Sge { region, offset: rng.below(3000), length: 1000 });
                let _ =
                    lab.endpoint.post_recv(conn, &[RecvRequest { wr_id: step, sges }], &lab.memory);
                let request = SendRequest { wr_id: step, op: SendOp::Send, sges, signaled: true };
                let _ = lab.endpoint.post_send(conn, &[request], &lab.memory);
            }
            (4, Some(conn)) if rng.permille(300) => {
                let _ = lab.endpoint.disconnect(lab.now, conn);
            }
            (5, Some(conn)) if rng.permille(300) => {
                lab.endpoint.destroy(lab.now, conn);
                conns.remove(&conn);
            }
            (6, Some(conn)) if rng.permille(300) => {
                if lab.endpoint.reject(lab.now, conn, b"no").is_ok() {
                    conns.remove(&conn);
                }
            }
            (7, _) => {
                let waited = lab.wait(Duration::from_micros(rng.below(2_000_000)));
                known.learn(waited);
            }
            _ => hear_garbage(&mut lab, &mut rng, &known),
        }
        let messages = lab.messages().into_iter().map(|(_, mad)| mad).collect();
        known.learn(messages);
        for event in lab.events() {
            match event {
                CmEvent::ConnectRequest { conn, .. } => assert!(conns.insert(conn)),
                CmEvent::ConnectFailed { conn, .. } | CmEvent::Disconnected { conn, .. } => {
                    assert!(conns.contains(&conn), "an event of nobody");
                    assert!(ended.insert(conn), "ended twice");
                }
                CmEvent::Established { conn, .. } => {
                    assert!(conns.contains(&conn) && !ended.contains(&conn));
                    stood += 1;
                }
                CmEvent::Resolved { conn } => assert!(conns.contains(&conn)),
            }
        }
        assert!(lab.endpoint.connections() <= 8);
    }
    for conn in conns {
        lab.endpoint.destroy(lab.now, conn);
    }
    lab.wait(Duration::from_secs(100));
    lab.messages();
    assert!(lab.is_empty() && lab.events().is_empty() && !lab.endpoint.has_output());
    stood
}

#[test]
fn hostile_peers_do_no_harm() {
    let mut stood = 0;
    for seed in 0..3000 {
        let run = std::panic::AssertUnwindSafe(|| run(seed));
        match std::panic::catch_unwind(run) {
            Ok(connections) => stood += connections,
            Err(_) => panic!("seed {seed}"),
        }
    }
    assert!(stood > 3000, "only {stood} connections got anywhere");
}

/// Queue pairs take turns, whoever has more to say.
#[test]
fn transmission_is_fair() {
    let mut lab = Lab::new(|config| {
        config.transmit_quantum = 4;
        config.max_inflight_bytes = 1 << 20;
    });
    let region = lab.memory.register(DomainId(1), Access::REMOTE, vec![0; 1 << 16]);
    let (mut qpns, mut conns) = (Vec::new(), Vec::new());
    for at in 0..3 {
        let (conn, req, _) = lab.connect(Duration::from_secs(1));
        let mut rep = rep(req.local_comm_id);
        rep.local_qpn = Qpn::new(100 + at);
        rep.local_comm_id = CommId(500 + at);
        lab.hear(CmMessage::Rep(rep));
        lab.messages();
        lab.events();
        conns.push(conn);
        qpns.push(Qpn::new(100 + at));
    }
    for conn in conns {
        let sges = SgeList::one(Sge { region, offset: 0, length: 1 << 16 });
        let request = SendRequest { wr_id: 0, op: SendOp::Send, sges, signaled: true };
        lab.endpoint.post_send(conn, &[request], &lab.memory).unwrap();
    }
    let mut out = Vec::new();
    assert_eq!(lab.endpoint.poll_transmit(lab.now, 24, &lab.memory, &mut out), 24);
    let order: Vec<Qpn> = out.iter().map(|packet| packet.dest_qp).collect();
    let turns: Vec<Qpn> = order.chunks(4).map(|run| run[0]).collect();
    assert!(order.chunks(4).all(|run| run.iter().all(|qpn| *qpn == run[0])), "{order:?}");
    assert_eq!(turns, [qpns.clone(), qpns].concat());
}

/// Packets that nobody waits for are counted, not served.
#[test]
fn packets_find_their_queue_pair_or_none() {
    let mut lab = Lab::new(|_| {});
    let (_, req) = lab.connected();
    let headers =
        |qpn| Headers { bth: Bth::new(Opcode::SendOnly, qpn, Psn::new(1)), ext: Ext::default() };
    lab.hear_packet(headers(Qpn::new(req.local_qpn.get() + 1)), &[]);
    lab.hear_packet(headers(Qpn::new(0)), &[]);
    assert_eq!(lab.endpoint.counters().unknown_queue_pair, 2);
    let mut foreign = headers(req.local_qpn);
    foreign.bth.pkey = PKey(0x8123);
    lab.hear_packet(foreign, &[]);
    assert_eq!(lab.endpoint.counters().bad_pkey, 1);
    let packet =
        Packet { bth: headers(req.local_qpn).bth, ext: Ext::default(), payload: &[], icrc: [0; 4] };
    let source = std::net::SocketAddr::new(ip("10.9.0.3"), 4791);
    lab.endpoint.handle_packet(lab.now, source, &packet, false, &mut lab.memory);
    assert_eq!(lab.endpoint.counters().wrong_peer, 1);
}

//! Wires on loopback, without the protocol above them: what is sent arrives as it was, in as few
//! calls as it should take.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use lariat_roce::endpoint::Member;
use lariat_roce::memory::MemRange;
use lariat_roce::time::Timestamp;
use lariat_roce::transmit::{Payload, Transmit};
use lariat_roce::verbs::{Access, RegionId};
use lariat_wire::rocev2::cm::PathMtu;
use lariat_wire::rocev2::{Bth, Headers, MAX_HEADER, Opcode, Psn, Qpn, pad_for};

use super::*;
use crate::memory::Memory;
use crate::soft::steering::member_of;

struct Side {
    wire: UdpWire,
    regions: RegionTable,
    memory: Arc<Memory>,
    region: RegionId,
    counters: WireCounters,
}

fn side(address: &str) -> Side {
    side_with(address, &SoftConfig::default())
}

fn side_with(address: &str, config: &SoftConfig) -> Side {
    let mut network = open_group(1, config).unwrap().pop().unwrap();
    let wire = network.open_listening(address.parse().unwrap()).unwrap();
    let mut regions = RegionTable::new(Random::seeded([1; 32]));
    let domain = regions.open_domain().unwrap();
    let memory = Memory::allocate(1 << 20).unwrap();
    let bytes: Vec<u8> =
        (0..1 << 20).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    memory.write_at(0, &bytes).unwrap();
    let region = regions.register(domain, memory.clone(), Access::LOCAL).unwrap();
    Side { wire, regions, memory, region, counters: WireCounters::default() }
}

fn packet(from: &Side, remote: SocketAddr, qpn: u32, psn: u32, payload: Payload) -> Transmit {
    let _ = from;
    let mut bth = Bth::new(Opcode::SendOnly, Qpn::new(qpn), Psn::new(psn));
    let pad = pad_for(payload.len() as usize);
    bth.pad = pad;
    let mut headers = [0; MAX_HEADER];
    let header_len = u8::try_from(Headers::new(bth).emit(&mut headers)).unwrap();
    Transmit { remote, dest_qp: Qpn::new(qpn), headers, header_len, payload, pad }
}

impl Side {
    fn send(&mut self, batch: &[Transmit]) {
        let sent = self.wire.transmit(Timestamp::ZERO, batch, &self.regions, &mut self.counters);
        assert_eq!(sent, batch.len());
    }

    fn range(&self, offset: u64, length: u32) -> MemRange {
        MemRange { region: self.region, offset, length }
    }

    /// What arrives, until `count` packets have or a second has passed.
    fn receive(&mut self, count: usize) -> Vec<(u32, Vec<u8>)> {
        let mut got = Vec::new();
        for _ in 0..1000 {
            self.wire.receive(Timestamp::ZERO, &mut self.counters, |arrival| {
                got.push((arrival.packet.bth.psn.get(), arrival.packet.payload.to_vec()));
            });
            if got.len() >= count {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        got
    }

    fn bytes(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.memory.read_at(offset, &mut bytes).unwrap();
        bytes
    }
}

fn check_mixture(from: &str, to: &str, config: &SoftConfig) -> (WireCounters, WireCounters) {
    let mut from = side_with(from, config);
    let mut to = side(to);
    let remote = to.wire.local();
    let mut batch = Vec::new();
    let mut wanted = Vec::new();
    let mut add = |batch: &mut Vec<Transmit>, bytes: Vec<u8>, qpn: u32, payload: Payload| {
        let psn = u32::try_from(wanted.len()).unwrap();
        batch.push(packet(&from, remote, qpn, psn, payload));
        wanted.push((psn, bytes));
    };
    // A long run of full packets with a short one behind, for one queue pair ...
    for index in 0..40 {
        let range = from.range(index * 4096, 4096);
        add(&mut batch, from.bytes(index * 4096, 4096), 7, Payload::Memory(range, None));
    }
    add(&mut batch, Vec::new(), 7, Payload::Empty);
    // ... small ones that need pads, two pieces, and runs for several queue pairs.
    for index in 0..100_u32 {
        let offset = u64::from(index) * 300;
        let (first, second) = (from.range(offset, 65 + index % 3), from.range(90_000 + offset, 31));
        let mut bytes = from.bytes(offset, 65 + index as usize % 3);
        bytes.extend(from.bytes(90_000 + offset, 31));
        add(&mut batch, bytes, 7 + index / 10, Payload::Memory(first, Some(second)));
    }
    for index in 0..3 {
        let (first, second) = (from.range(index, 1001), from.range(50_000, 2002));
        let mut bytes = from.bytes(index, 1001);
        bytes.extend(from.bytes(50_000, 2002));
        add(&mut batch, bytes, 9, Payload::Memory(first, Some(second)));
    }
    let mad = Box::new([0x5a; 256]);
    add(&mut batch, vec![0x5a; 256], 9, Payload::Mad(mad));
    from.send(&batch);
    let got = to.receive(wanted.len());
    assert!(got == wanted, "{} of {} packets as they were", got.len(), wanted.len());
    assert_eq!(to.counters.bad_icrc + to.counters.malformed, 0);
    assert_eq!(from.counters.packets_sent, wanted.len() as u64);
    (from.counters, to.counters)
}

#[test]
fn packets_arrive_whole_ipv4() {
    let (sent, received) = check_mixture("127.90.3.1", "127.90.3.2", &SoftConfig::default());
    // 170 KB in calls of 48 KiB at least, one of which ends early behind a small packet.
    assert!(sent.send_calls <= 5, "{sent:?}");
    assert!(received.receive_calls <= 40, "{received:?}");
}

#[test]
fn packets_arrive_whole_without_segmentation() {
    let config = SoftConfig { segmentation: false, ..SoftConfig::default() };
    check_mixture("127.90.3.3", "127.90.3.4", &config);
}

#[test]
fn packets_arrive_whole_ipv6() {
    let _turn = ipv6();
    // Both ends at the one loopback address: one with the well-known port, one beside it.
    let mut to = side("::1");
    let mut network = open_group(1, &SoftConfig::default()).unwrap().pop().unwrap();
    let route = network.route("[::1]:4420".parse().unwrap()).unwrap();
    assert_eq!(route.path_mtu, PathMtu::Mtu4096);
    let mut wire = network.open_connecting(route.source, "[::1]:4420".parse().unwrap()).unwrap();
    assert_ne!(wire.local().port(), UDP_PORT);
    let batch: Vec<_> = (0..10)
        .map(|psn| {
            let range = to.range(u64::from(psn) * 5000, 4096);
            packet(&to, to.wire.local(), 3, psn, Payload::Memory(range, None))
        })
        .collect();
    let mut counters = WireCounters::default();
    let sent = wire.transmit(Timestamp::ZERO, &batch, &to.regions, &mut counters);
    assert_eq!((sent, counters.send_calls), (10, 1));
    let got = to.receive(10);
    let wanted: Vec<_> = (0..10).map(|psn| (psn, to.bytes(u64::from(psn) * 5000, 4096))).collect();
    assert!(got == wanted);
}

#[test]
fn garbage_is_counted_and_memory_that_is_gone_is_not_sent() {
    let mut from = side("127.90.3.5");
    let mut to = side("127.90.3.6");
    let stranger = UdpSocket::bind("127.90.3.7:4791").unwrap();
    stranger.send_to(&[0; 15], to.wire.local()).unwrap();
    stranger.send_to(&[0; 300], to.wire.local()).unwrap();
    let remote = to.wire.local();
    let range = from.range(0, 4096);
    let other = MemRange { region: RegionId(12345), offset: 0, length: 4096 };
    let outside = from.range((1 << 20) - 1, 4096);
    let batch = [
        packet(&from, remote, 2, 0, Payload::Memory(range, None)),
        packet(&from, remote, 2, 1, Payload::Memory(other, None)),
        packet(&from, remote, 2, 2, Payload::Memory(range, Some(outside))),
        packet(&from, remote, 2, 3, Payload::Memory(range, None)),
        packet(&from, "[::1]:4791".parse().unwrap(), 2, 4, Payload::Empty),
        packet(&from, "127.90.3.99:0".parse().unwrap(), 2, 5, Payload::Empty),
        packet(&from, remote, 2, 6, Payload::Empty),
    ];
    from.send(&batch);
    let got: Vec<_> = to.receive(3).into_iter().map(|(psn, _)| psn).collect();
    assert_eq!(got, [0, 3, 6]);
    assert_eq!((to.counters.malformed, to.counters.bad_icrc), (1, 1));
    assert_eq!((from.counters.packets_sent, from.counters.send_failures), (3, 4));
    // The system's word on a packet is kept, for error messages.
    assert_eq!(from.wire.refusal(), Some(("127.90.3.99".parse().unwrap(), libc::EINVAL)));
    assert_eq!(to.wire.refusal(), None);
}

#[test]
fn an_address_has_one_owner() {
    let ip: IpAddr = "127.90.3.20".parse().unwrap();
    let mut first = open_group(2, &SoftConfig::default()).unwrap();
    let mut second = open_group(1, &SoftConfig::default()).unwrap();
    let wire = first[0].open_listening(ip).unwrap();
    match second[0].open_listening(ip) {
        Err(BindError::InUse { holder, .. }) => {
            assert!(holder.contains(&std::process::id().to_string()), "{holder}");
        }
        other => panic!("{other:?}"),
    }
    // The sibling takes its own socket of the same address, once.
    let sibling = first[1].open_listening(ip).unwrap();
    assert_eq!(sibling.local(), wire.local());
    assert!(first[1].open_listening(ip).is_err());
    drop((wire, sibling, first));
    assert!(second[0].open_listening(ip).is_ok());
    assert!(matches!(
        second[0].open_listening("203.0.113.7".parse().unwrap()),
        Err(BindError::NotLocal { .. })
    ));
    assert!(matches!(
        second[0].open_listening("0.0.0.0".parse().unwrap()),
        Err(BindError::Io { .. })
    ));
}

#[test]
fn initiators_take_loopback_addresses_of_their_own() {
    let remote = "127.0.0.1:4420".parse().unwrap();
    let mut taken = std::collections::BTreeSet::new();
    let mut groups = Vec::new();
    for _ in 0..20 {
        let mut network = open_group(1, &SoftConfig::default()).unwrap().pop().unwrap();
        let source = network.route(remote).unwrap().source;
        let wire = network.open_connecting(source, remote).unwrap();
        assert_eq!(wire.local().port(), UDP_PORT);
        assert!(!wire.local().ip().to_string().starts_with("127.0.0."));
        assert!(taken.insert(wire.local()));
        groups.push((network, wire));
    }
}

/// Whoever took the well-known port of the very address that it wants to reach would answer itself,
/// and keep the target that starts there from its port.
#[test]
fn a_peers_own_address_keeps_its_well_known_port_free() {
    let ip = IpAddr::from([127, 90, 3, 60]);
    let remote = SocketAddr::new(ip, 4420);
    let mut network = open_group(1, &SoftConfig::default()).unwrap().pop().unwrap();
    let wire = network.open_connecting(Source::Address(ip), remote).unwrap();
    assert_eq!(wire.local().ip(), ip);
    assert_ne!(wire.local().port(), UDP_PORT);
    assert_eq!(network.holder(ip), None);
    let _target = side("127.90.3.60");
    // From elsewhere the well-known port is taken, as foreign peers want it.
    let other = IpAddr::from([127, 90, 3, 61]);
    let mut network = open_group(1, &SoftConfig::default()).unwrap().pop().unwrap();
    let wire = network.open_connecting(Source::Address(other), remote).unwrap();
    assert_eq!(wire.local(), SocketAddr::new(other, UDP_PORT));
}

#[test]
fn groups_are_steered_and_forward_what_is_not_theirs() {
    let config = SoftConfig::default();
    let mut networks = open_group(3, &config).unwrap();
    let ip: IpAddr = "127.90.3.30".parse().unwrap();
    let mut wires: Vec<_> =
        networks.iter_mut().map(|network| network.open_listening(ip).unwrap()).collect();
    let mut from = side("127.90.3.31");
    let remote = wires[0].local();
    let batch: Vec<_> =
        (0..30).map(|index| packet(&from, remote, 2 + index / 2, index, Payload::Empty)).collect();
    from.send(&batch);
    let mut counters = WireCounters::default();
    for (index, wire) in wires.iter_mut().enumerate() {
        let mut got = 0;
        for _ in 0..20 {
            wire.receive(Timestamp::ZERO, &mut counters, |arrival| {
                assert_eq!(usize::from(member_of(arrival.packet, 3)), index);
                got += 1;
            });
        }
        assert_eq!(got, 10);
    }
    let member = networks[2].member();
    assert_eq!(member, Member { index: 2, count: 3 });
    assert!(!networks[2].arm());
    let packet = Forwarded { local: remote, source: remote, congested: true, datagram: [1].into() };
    networks[0].forward(2, packet);
    let readable = |network: &UdpNetwork| {
        let mut events = [EpollEvent::empty(); 4];
        network.epoll.wait(&mut events, 0_u8).unwrap()
    };
    assert!(readable(&networks[2]) > 0);
    assert!(networks[2].arm());
    assert_eq!(networks[2].take_forwarded().unwrap().datagram.as_ref(), [1]);
    assert!(!networks[2].arm());
}

#[test]
fn members_that_open_the_same_address_at_once_share_it() {
    for round in 0..20 {
        let address = SocketAddr::from(([127, 90, 4, round + 1], UDP_PORT));
        let members = open_group(4, &SoftConfig::default()).unwrap();
        let together = std::sync::Barrier::new(members.len());
        let mut wires = Vec::new();
        std::thread::scope(|scope| {
            let threads: Vec<_> = members
                .into_iter()
                .map(|mut member| {
                    let together = &together;
                    scope.spawn(move || {
                        together.wait();
                        member.open_listening(address.ip())
                    })
                })
                .collect();
            wires.extend(threads.into_iter().map(|thread| thread.join().unwrap()));
        });
        for wire in wires {
            assert_eq!(wire.unwrap().local, address);
        }
    }
}

/// There is one loopback address of IPv6, for one test at a time.
fn ipv6() -> std::sync::MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a congested router does to the IP header, done by the sender: the mark arrives, with merged
/// datagrams too, and no other value of the field counts as one.
#[test]
fn congestion_marks_are_seen() {
    let _turn = ipv6();
    for (from, to) in [("127.90.3.40", "127.90.3.41"), ("::1", "::1")] {
        let mut to = side(to);
        let mut network = open_group(1, &SoftConfig::default()).unwrap().pop().unwrap();
        let from: IpAddr = from.parse().unwrap();
        let remote = to.wire.local();
        let mut wire = network.open_connecting(Source::Address(from), remote).unwrap();
        for (class, marked) in [(0, false), (1, false), (2, false), (3, true), (0xb7, true)] {
            let socket = socket2::SockRef::from(&wire.socket);
            let set =
                if from.is_ipv4() { socket.set_tos_v4(class) } else { socket.set_tclass_v6(class) };
            set.unwrap();
            let batch: Vec<_> = (0..3)
                .map(|psn| packet(&to, remote, 3, psn, Payload::Memory(to.range(0, 512), None)))
                .collect();
            let mut counters = WireCounters::default();
            let sent = wire.transmit(Timestamp::ZERO, &batch, &to.regions, &mut counters);
            assert_eq!((sent, counters.send_calls), (3, 1));
            let mut marks = Vec::new();
            for _ in 0..1000 {
                to.wire.receive(Timestamp::ZERO, &mut to.counters, |arrival| {
                    marks.push(arrival.congested);
                });
                if marks.len() == 3 {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(marks, [marked; 3], "{from} {class:#x}");
        }
    }
}

//! Wires with links, without the protocol above them (where nothing else is said).

use core::net::SocketAddr;
use core::time::Duration;

use lariat_roce::time::Timestamp;
use lariat_roce::transmit::{Payload, Transmit};
use lariat_wire::rocev2::{Bth, Headers, MAX_HEADER, Opcode, Psn, Qpn};

use super::super::agree;
use super::super::link::{Peer, Sent};
use super::super::{HostNetwork, HostWire, open_group};
use crate::fabric::Fabric;
use crate::random::Random;
use crate::regions::RegionTable;
use crate::soft::network::{LostPeer, Network, SoftConfig, Wire, WireChoice, WireCounters};

struct Side {
    network: HostNetwork,
    wire: HostWire,
    regions: RegionTable,
    counters: WireCounters,
}

fn config(wire: WireChoice) -> SoftConfig {
    SoftConfig { wire, ring_bytes: 64 << 10, ..SoftConfig::default() }
}

fn sides(count: u8, listening: bool, last: u8, choice: WireChoice) -> Vec<Side> {
    let ip = [127, 90, 7, last].into();
    let networks = open_group(count, &config(choice)).unwrap();
    let side = |mut network: HostNetwork| {
        let source = crate::soft::Source::Address(ip);
        let wire = match listening {
            true => network.open_listening(ip),
            false => network.open_connecting(source, "127.90.7.254:4791".parse().unwrap()),
        };
        let regions = RegionTable::new(Random::seeded([5; 32]));
        Side { network, wire: wire.unwrap(), regions, counters: WireCounters::default() }
    };
    networks.into_iter().map(side).collect()
}

fn one(listening: bool, last: u8, choice: WireChoice) -> Side {
    sides(1, listening, last, choice).remove(0)
}

fn packet(remote: SocketAddr, qpn: u32, psn: u32, bytes: usize) -> Transmit {
    let bth = Bth::new(Opcode::SendOnly, Qpn::new(qpn), Psn::new(psn));
    let mut headers = [0; MAX_HEADER];
    let header_len = u8::try_from(Headers::new(bth).emit(&mut headers)).unwrap();
    let payload = match bytes {
        0 => Payload::Empty,
        _ => Payload::Mad(Box::new([7; 256])),
    };
    Transmit { remote, dest_qp: Qpn::new(qpn), headers, header_len, payload, pad: 0 }
}

impl Side {
    fn agree(&mut self, with: &Self) -> Result<(), String> {
        self.network.agree(&mut self.wire, with.wire.local())
    }

    fn send_at(&mut self, now: Timestamp, batch: &[Transmit]) -> usize {
        self.wire.transmit(now, batch, &self.regions, &mut self.counters)
    }

    fn send(&mut self, batch: &[Transmit]) {
        assert_eq!(self.send_at(Timestamp::ZERO, batch), batch.len());
    }

    fn take(&mut self) -> Vec<u32> {
        self.take_at(Timestamp::ZERO)
    }

    fn take_at(&mut self, now: Timestamp) -> Vec<u32> {
        let mut got = Vec::new();
        for _ in 0..100 {
            self.wire.receive(now, &mut self.counters, |arrival| {
                got.push(arrival.packet.bth.psn.get());
            });
        }
        got
    }

    fn path(&self, to: &Self) -> String {
        self.wire.path(to.wire.local()).unwrap().to_string()
    }
}

#[test]
fn packets_get_to_the_members_that_own_them() {
    let mut targets = sides(3, true, 1, WireChoice::Auto);
    let mut hosts = sides(2, false, 2, WireChoice::Auto);
    let (to, from) = (targets[0].wire.local(), hosts[0].wire.local());
    for host in &mut hosts {
        host.agree(&targets[0]).unwrap();
        // Once is enough.
        host.agree(&targets[0]).unwrap();
        let batch: Vec<_> = (30..60).map(|n| packet(to, n, n, n as usize % 2)).collect();
        host.send(&batch);
    }
    for (member, target) in targets.iter_mut().enumerate() {
        let got = target.take();
        assert_eq!(got.len(), 20);
        assert!(got.iter().all(|number| *number as usize % 3 == member), "{got:?}");
        assert_eq!(target.counters.shm_packets_received, 20);
        let batch: Vec<_> = (30..34).map(|n| packet(from, n, n, 0)).collect();
        target.send(&batch);
    }
    for (member, host) in (0_u32..).zip(&mut hosts) {
        let mut got = host.take();
        got.sort_unstable();
        assert_eq!(
            got,
            [30 + member, 30 + member, 30 + member, 32 + member, 32 + member, 32 + member]
        );
    }
}

#[test]
fn those_without_a_link_are_reached_by_udp() {
    let mut target = one(true, 3, WireChoice::Auto);
    let mut near = one(false, 4, WireChoice::Auto);
    let mut far = one(false, 5, WireChoice::Udp);
    near.agree(&target).unwrap();
    far.agree(&target).unwrap();
    assert_eq!(near.path(&target), "shared memory");
    assert_eq!(far.path(&target), "UDP");
    let to = target.wire.local();
    near.send(&[packet(to, 2, 1, 0), packet(to, 2, 2, 9)]);
    far.send(&[packet(to, 3, 3, 0), packet(to, 3, 4, 9)]);
    let mut got = target.take();
    got.sort_unstable();
    assert_eq!(got, [1, 2, 3, 4]);
    assert_eq!((target.counters.packets_received, target.counters.shm_packets_received), (4, 2));
    let (a, b) = (near.wire.local(), far.wire.local());
    let mixed = [packet(a, 2, 1, 0), packet(b, 2, 2, 0), packet(b, 2, 3, 0), packet(a, 2, 4, 0)];
    target.send(&mixed);
    assert_eq!(near.take(), [1, 4]);
    assert_eq!(far.take(), [2, 3]);
    assert_eq!((target.counters.packets_sent, target.counters.shm_packets_sent), (4, 2));
}

#[test]
fn where_there_is_nobody_to_ask_it_is_udp_or_nothing() {
    let udp = one(true, 6, WireChoice::Udp);
    let mut auto = one(false, 7, WireChoice::Auto);
    auto.agree(&udp).unwrap();
    assert!(auto.path(&udp).starts_with("UDP (no shared memory with 127.90.7.6: nobody"));
    let mut shm = one(false, 8, WireChoice::Shm);
    let error = shm.agree(&udp).unwrap_err();
    assert!(error.contains("another network namespace"), "{error}");
    // Not by the back door either.
    shm.send(&[packet(udp.wire.local(), 2, 1, 0)]);
    assert_eq!((shm.counters.send_failures, shm.counters.packets_sent), (1, 0));
}

#[test]
fn a_peer_that_takes_nothing_loses_what_does_not_fit() {
    let mut target = one(true, 9, WireChoice::Auto);
    let mut stopped = one(false, 10, WireChoice::Auto);
    let mut other = one(false, 11, WireChoice::Auto);
    stopped.agree(&target).unwrap();
    other.agree(&target).unwrap();
    target.take();
    let to = stopped.wire.local();
    let flood: Vec<_> = (0..1000).map(|psn| packet(to, 2, psn, 9)).collect();
    let at = |millis| Timestamp::ZERO + Duration::from_millis(millis);
    let fitted = target.send_at(at(0), &flood);
    assert!((100..1000).contains(&fitted), "{fitted}");
    // There is some patience, and none any more.
    assert_eq!(target.send_at(at(5), &flood[fitted..]), 0);
    let mut rest = flood[fitted..].to_vec();
    rest.push(packet(other.wire.local(), 2, 7, 0));
    assert_eq!(target.send_at(at(15), &rest), rest.len());
    assert_eq!(other.take(), [7]);
    assert_eq!(target.counters.send_failures, 1000 - fitted as u64);
    // It wakes up: what was in the ring is there, and there is room.
    assert_eq!(stopped.take(), (0..u32::try_from(fitted).unwrap()).collect::<Vec<_>>());
    target.send(&[packet(to, 2, 5000, 0)]);
    assert_eq!(stopped.take(), [5000]);
}

#[test]
fn a_peer_that_ends_is_noticed_and_may_come_back() {
    let mut host = one(false, 13, WireChoice::Auto);
    for round in 0..3 {
        let mut target = one(true, 12, WireChoice::Auto);
        host.agree(&target).unwrap();
        target.send(&[packet(host.wire.local(), 2, 1, 0)]);
        // It knew nothing of the link before its first look: that went by UDP.
        let local = target.wire.local();
        let _ = target.take();
        target.send(&[packet(host.wire.local(), 2, 2, 0), packet(host.wire.local(), 2, 3, 0)]);
        assert_eq!(host.wire.take_lost(), None);
        drop(target);
        // What it sent is read first.
        let now = Timestamp::ZERO + Duration::from_secs(round + 1);
        let mut got = host.take_at(now);
        got.sort_unstable();
        assert_eq!(got, [1, 2, 3]);
        assert!(host.wire.arm());
        let lost = host.wire.take_lost().map(|lost: LostPeer| lost.address);
        assert_eq!(lost, Some(local));
        assert_eq!(host.wire.take_lost(), None);
        assert!(!host.wire.arm());
    }
}

#[test]
fn a_link_that_its_peer_breaks_is_given_up() {
    let mut target = one(true, 14, WireChoice::Auto);
    let us = Peer { address: "127.90.7.15:4791".parse().unwrap(), member: 0, members: 1 };
    let mut links = agree::ask(us, target.wire.local(), 64 << 10).unwrap();
    assert_eq!(target.take(), []);
    let send = |links: &mut [super::super::link::Link]| {
        let regions = RegionTable::new(Random::seeded([1; 32]));
        let packet = packet(target.wire.local(), 2, 1, 9);
        let sent = links[0].send(Timestamp::ZERO, &packet, &regions);
        links[0].publish();
        sent
    };
    assert_eq!(send(&mut links), Ok(Sent::Yes));
    links[0].break_it();
    assert_eq!(target.take(), []);
    assert!(target.wire.links.is_empty());
    assert!(!links[0].hear());
}

/// Packets on the wrong link are passed on to the member that owns them.
#[test]
fn strays_are_forwarded() {
    let config = config(WireChoice::Auto);
    let address: SocketAddr = "127.90.7.16:4420".parse().unwrap();
    let mut targets = crate::soft::open_group(2, &config).unwrap();
    for target in &mut targets {
        target.listen(address).unwrap();
    }
    let us = Peer { address: "127.90.7.17:4791".parse().unwrap(), member: 0, members: 1 };
    let to = SocketAddr::new(address.ip(), 4791);
    let mut links = agree::ask(us, to, 64 << 10).unwrap();
    let regions = RegionTable::new(Random::seeded([1; 32]));
    let stray = packet(to, 3, 1, 0);
    assert_eq!(links[0].send(Timestamp::ZERO, &stray, &regions), Ok(Sent::Yes));
    links[0].publish();
    for target in &mut targets {
        target.poll(Timestamp::ZERO, 8, &mut Vec::new(), &mut Vec::new());
    }
    let unknown: Vec<_> = targets.iter().map(|one| one.counters().unknown_queue_pair).collect();
    assert_eq!(unknown, [0, 1]);
}

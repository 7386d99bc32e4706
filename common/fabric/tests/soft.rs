//! The soft provider on loopback, over UDP and through shared memory, held to what every provider
//! must do.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod conformance;

use core::net::SocketAddr;
use core::sync::atomic::{AtomicU8, Ordering};
use core::time::Duration;
use std::net::UdpSocket;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use conformance::{Harness, Pair, conformance};
use lariat_fabric::soft::{self, HostNetwork, SoftConfig, SoftFabric, WireChoice};
use lariat_fabric::verbs::{
    Access, CmEvent, ConnId, ConnectFailure, DisconnectReason, QpConfig, RecvRequest, SendOp,
    SendRequest, Sge, SgeList, WcStatus,
};
use lariat_fabric::{Fabric, FabricCounters, ListenError, Medium, Memory, Timestamp};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

struct Loopback {
    host: SoftFabric<HostNetwork>,
    target: SoftFabric<HostNetwork>,
    address: SocketAddr,
    start: Instant,
    wire: WireChoice,
}

fn over(wire: WireChoice) -> SoftConfig {
    SoftConfig { wire, ..SoftConfig::default() }
}

fn loopback(wire: WireChoice) -> Loopback {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let third = std::process::id() % 250;
    let address = format!("127.92.{third}.{number}:4420").parse().unwrap();
    let config = over(wire);
    Loopback {
        host: soft::open(&config).unwrap(),
        target: soft::open(&config).unwrap(),
        address,
        start: Instant::now(),
        wire,
    }
}

impl Harness for Loopback {
    type Fabric = SoftFabric<HostNetwork>;

    fn host(&mut self) -> &mut Self::Fabric {
        &mut self.host
    }

    fn target(&mut self) -> &mut Self::Fabric {
        &mut self.target
    }

    fn address(&self) -> SocketAddr {
        self.address
    }

    fn silent_address(&self) -> SocketAddr {
        "127.93.255.1:4420".parse().unwrap()
    }

    fn now(&self) -> Timestamp {
        let nanos = self.start.elapsed().as_nanos();
        Timestamp::from_nanos(u64::try_from(nanos).unwrap())
    }

    fn advance(&mut self, limit: Duration) {
        let fds: Vec<BorrowedFd<'_>> =
            self.host.wait_fds().into_iter().chain(self.target.wait_fds()).collect();
        let mut polled: Vec<_> =
            fds.iter().map(|fd| PollFd::new(fd.as_fd(), PollFlags::POLLIN)).collect();
        // Timers of the fabrics are not waited for here: a short sleep instead.
        let limit = limit.min(Duration::from_millis(1));
        let timeout = PollTimeout::try_from(limit).unwrap_or(PollTimeout::ZERO);
        poll(&mut polled, timeout).unwrap();
    }
}

mod udp {
    use super::*;
    conformance!(loopback(WireChoice::Udp));
}

mod shm {
    use super::*;
    conformance!(loopback(WireChoice::Auto));
}

impl Drop for Loopback {
    fn drop(&mut self) {
        let counters = self.target.counters();
        let (all, shm) = (counters.packets_received, counters.shm_packets_received);
        let wanted = if self.wire == WireChoice::Udp { 0 } else { all };
        assert!(std::thread::panicking() || shm == wanted, "{:?} {counters:?}", self.wire);
    }
}

/// Both ends at the one loopback address of IPv6: the host takes another UDP port and announces it
/// by the marker.
#[test]
fn ipv6_beside_the_well_known_port() {
    for wire in [WireChoice::Udp, WireChoice::Shm] {
        ipv6_beside_the_well_known_port_over(wire);
    }
}

fn ipv6_beside_the_well_known_port_over(wire: WireChoice) {
    let harness = || {
        let mut harness = loopback(wire);
        harness.address = "[::1]:4420".parse().unwrap();
        harness
    };
    let mut pair = Pair::new(harness());
    let address = pair.harness.address;
    let conn = pair.resolve(address);
    let ports: Vec<_> = pair.harness.host.addresses().collect();
    assert_ne!(ports[0].port(), 4791);
    let advice = pair.harness.host.diagnose(conn).unwrap();
    assert!(advice.contains(&format!("process {}", std::process::id())), "{advice}");
    conformance::sends_and_receives(&mut pair);
    drop(pair);
    conformance::reads(&mut Pair::new(harness()));
}

/// Two groups, as two processes have them: requests and data get to the members that own them.
#[test]
fn groups_do_not_mix() {
    groups_do_not_mix_over(WireChoice::Udp, 1);
}

#[test]
fn groups_do_not_mix_in_shared_memory() {
    let counters = groups_do_not_mix_over(WireChoice::Shm, 5);
    for counters in counters {
        assert_eq!(counters.shm_packets_received, counters.packets_received);
        assert_eq!(counters.receive_calls, 0);
    }
}

fn groups_do_not_mix_over(wire: WireChoice, last: u8) -> Vec<FabricCounters> {
    const MEMBERS: u8 = 3;
    let start = Instant::now();
    let now = || Timestamp::from_nanos(u64::try_from(start.elapsed().as_nanos()).unwrap());
    let config = over(wire);
    let address: SocketAddr =
        format!("127.94.{}.{last}:4420", std::process::id() % 250).parse().unwrap();
    let mut targets = soft::open_group(MEMBERS, &config).unwrap();
    let mut groups: Vec<_> = (0..2).map(|_| soft::open_group(2, &config).unwrap()).collect();
    for target in &mut targets {
        target.listen(address).unwrap();
    }
    let params = conformance::params(b"");
    let mut ends = Vec::new();
    for fabric in groups.iter_mut().flatten() {
        let domain = fabric.open_domain().unwrap();
        let memory = Memory::allocate(4096).unwrap();
        let region = fabric.register(domain, memory, Access::LOCAL).unwrap();
        for _ in 0..6 {
            let conn = fabric.resolve(now(), address, Duration::from_secs(1)).unwrap();
            let qp = QpConfig::new(domain, 4, 4);
            fabric.create_qp(conn, &qp).unwrap();
            fabric.connect(now(), conn, &params, Duration::from_secs(5)).unwrap();
        }
        ends.push(region);
    }
    let mut served = [0; MEMBERS as usize];
    let (mut sent, mut received) = (0, 0);
    let setups: Vec<_> = targets
        .iter_mut()
        .map(|target| {
            let domain = target.open_domain().unwrap();
            let memory = Memory::allocate(4096).unwrap();
            (domain, target.register(domain, memory, Access::LOCAL).unwrap())
        })
        .collect();
    while received < 24 || sent < 24 {
        assert!(start.elapsed() < Duration::from_secs(10), "{served:?} {sent} {received}");
        for (index, target) in targets.iter_mut().enumerate() {
            let (mut completions, mut events) = (Vec::new(), Vec::new());
            target.poll(now(), 64, &mut completions, &mut events);
            received += completions.len();
            assert!(completions.iter().all(|done| done.status == WcStatus::Success));
            for event in events {
                if let CmEvent::ConnectRequest { conn, .. } = event {
                    let (domain, region) = setups[index];
                    let qp = QpConfig::new(domain, 4, 4);
                    target.create_qp(conn, &qp).unwrap();
                    let sges = SgeList::one(Sge { region, offset: 0, length: 64 });
                    target.post_recv(conn, &[RecvRequest { wr_id: 1, sges }]).unwrap();
                    target.accept(now(), conn, &params).unwrap();
                    served[index] += 1;
                }
            }
        }
        for (fabric, region) in groups.iter_mut().flatten().zip(&ends) {
            let (mut completions, mut events) = (Vec::new(), Vec::new());
            fabric.poll(now(), 64, &mut completions, &mut events);
            sent += completions.len();
            for event in events {
                if let CmEvent::Established { conn, .. } = event {
                    let sges = SgeList::one(Sge { region: *region, offset: 0, length: 64 });
                    let op = SendOp::Send;
                    let request = SendRequest { wr_id: 2, op, sges, signaled: true };
                    fabric.post_send(conn, &[request]).unwrap();
                    fabric.flush(now());
                }
            }
        }
    }
    assert_eq!(served.iter().sum::<u32>(), 24);
    let fabrics = targets.iter().chain(groups.iter().flatten());
    let counters: Vec<_> = fabrics.map(Fabric::counters).collect();
    for counters in &counters {
        assert_eq!((counters.unknown_queue_pair, counters.bad_icrc), (0, 0));
    }
    counters
}

/// A busy address does not use up the budget of every poll.
#[test]
fn addresses_take_turns() {
    const SENDS: usize = 4;
    let start = Instant::now();
    let now = || Timestamp::from_nanos(u64::try_from(start.elapsed().as_nanos()).unwrap());
    let config = SoftConfig::default();
    let params = conformance::params(b"");
    let mut target = soft::open(&config).unwrap();
    let domain = target.open_domain().unwrap();
    let qp = QpConfig::new(domain, 8, 8);
    let mut hosts = Vec::new();
    for last in [2, 3] {
        let address: SocketAddr =
            format!("127.94.{}.{last}:4420", std::process::id() % 250).parse().unwrap();
        target.listen(address).unwrap();
        let mut host = soft::open(&config).unwrap();
        let conn = host.resolve(now(), address, Duration::from_secs(1)).unwrap();
        let domain = host.open_domain().unwrap();
        host.create_qp(conn, &QpConfig { domain, ..qp }).unwrap();
        host.connect(now(), conn, &params, Duration::from_secs(5)).unwrap();
        hosts.push(host);
    }
    let (mut completions, mut sent) = (Vec::new(), 0);
    while sent < 2 * SENDS {
        assert!(start.elapsed() < Duration::from_secs(10), "{sent} sent");
        let mut events = Vec::new();
        // Takes in, gives out nothing.
        target.poll(now(), 0, &mut completions, &mut events);
        for event in events {
            if let CmEvent::ConnectRequest { conn, .. } = event {
                target.create_qp(conn, &qp).unwrap();
                let request = RecvRequest { wr_id: 1, sges: SgeList::EMPTY };
                target.post_recv(conn, &[request; SENDS]).unwrap();
                target.accept(now(), conn, &params).unwrap();
            }
        }
        for host in &mut hosts {
            let (mut done, mut events) = (Vec::new(), Vec::new());
            host.poll(now(), 64, &mut done, &mut events);
            sent += done.len();
            for event in events {
                if let CmEvent::Established { conn, .. } = event {
                    let (op, sges) = (SendOp::Send, SgeList::EMPTY);
                    let request = SendRequest { wr_id: 2, op, sges, signaled: true };
                    host.post_send(conn, &[request; SENDS]).unwrap();
                    host.flush(now());
                }
            }
        }
    }
    for _ in 0..SENDS {
        target.poll(now(), 1, &mut completions, &mut Vec::new());
    }
    let first = completions[0].conn;
    let share = completions.iter().filter(|done| done.conn == first).count();
    assert_eq!((completions.len(), share), (SENDS, SENDS / 2));
}

/// Through shared memory the end of a process is known at once; the host it talked to may come
/// back, and others are not disturbed.
#[test]
fn a_peer_that_is_gone_is_told_at_once() {
    let mut pair = Pair::new(loopback(WireChoice::Auto));
    let (host, _) = pair.connect();
    assert_eq!(pair.harness.host.path(host), Some(Medium::SharedMemory.into()));
    pair.recv(conformance::Host, host, 5, SgeList::EMPTY);
    let start = Instant::now();
    // A fabric that goes without a word, as a killed process does.
    pair.harness.target = soft::open(&over(WireChoice::Auto)).unwrap();
    let gone = pair.completions(conformance::Host, 1).remove(0);
    assert_eq!((gone.wr_id, gone.status), (5, WcStatus::Flushed));
    let event = pair.event(conformance::Host);
    let reason = DisconnectReason::Timeout;
    assert_eq!(event, CmEvent::Disconnected { conn: host, reason });
    assert!(start.elapsed() < Duration::from_millis(500), "{:?}", start.elapsed());
    assert!(pair.harness.host.peer_ended(host));
    let now = pair.harness.now();
    pair.harness.host.destroy(now, host);
    let address = pair.harness.address;
    pair.listener = pair.harness.target.listen(address).unwrap();
    pair.side(conformance::Target).domain = pair.harness.target.open_domain().unwrap();
    let (host, _) = pair.connect();
    assert_eq!(pair.harness.host.path(host), Some(Medium::SharedMemory.into()));
    assert!(!pair.harness.host.peer_ended(host));
}

#[test]
fn an_address_of_another_machine_is_named_with_a_remedy() {
    let mut fabric = soft::open(&over(WireChoice::Udp)).unwrap();
    let address: SocketAddr = "203.0.113.7:4420".parse().unwrap();
    let error = fabric.listen(address).unwrap_err();
    assert!(matches!(error, ListenError::NotLocal { .. }));
    let words = error.to_string();
    assert!(words.contains("203.0.113.7 is not an address of this machine"), "{words}");
    assert!(words.contains("`ip address`"), "{words}");
}

/// Sends a REQ to `pair`'s target with all the time in the world.
fn ask(pair: &mut Pair<Loopback>) -> (ConnId, Instant) {
    let address = pair.harness.address;
    let conn = pair.resolve(address);
    let (now, patience) = (pair.harness.now(), Duration::from_secs(30));
    pair.harness.host.connect(now, conn, &conformance::params(b""), patience).unwrap();
    (conn, Instant::now())
}

#[test]
fn who_asks_where_nothing_listens_is_told_soon() {
    for wire in [WireChoice::Auto, WireChoice::Udp] {
        let mut pair = Pair::new(loopback(wire));
        pair.harness.target = soft::open(&over(wire)).unwrap();
        let (conn, start) = ask(&mut pair);
        let event = pair.event(conformance::Host);
        let failure = ConnectFailure::Unreachable { errno: 111 };
        assert_eq!(event, CmEvent::ConnectFailed { conn, failure });
        let took = start.elapsed();
        assert!(took > Duration::from_secs(1) && took < Duration::from_secs(5), "{took:?}");
        let words = pair.harness.host.diagnose(conn).unwrap();
        let named = format!("{} is this machine's own, and nothing", pair.harness.address.ip());
        assert!(words.starts_with(&named), "{words}");
    }
}

/// As long as it takes to restart, a target is waited for.
#[test]
fn a_target_that_comes_back_within_a_second_is_reached() {
    let mut pair = Pair::new(loopback(WireChoice::Udp));
    pair.harness.target = soft::open(&over(WireChoice::Udp)).unwrap();
    let (conn, start) = ask(&mut pair);
    while start.elapsed() < Duration::from_millis(700) {
        pair.poll();
        pair.harness.advance(Duration::from_millis(1));
    }
    let address = pair.harness.address;
    pair.listener = pair.harness.target.listen(address).unwrap();
    let CmEvent::ConnectRequest { conn: asked, .. } = pair.event(conformance::Target) else {
        panic!("another event")
    };
    let now = pair.harness.now();
    pair.harness.target.reject(now, asked, b"").unwrap();
    let event = pair.event(conformance::Host);
    let CmEvent::ConnectFailed { conn: failed, failure } = event else { panic!("{event:?}") };
    assert_eq!(failed, conn);
    assert!(matches!(failure, ConnectFailure::Rejected { .. }), "{failure:?}");
}

/// A socket that says nothing is not taken for none.
#[test]
fn a_silent_socket_is_waited_for() {
    let mut pair = Pair::new(loopback(WireChoice::Udp));
    pair.harness.target = soft::open(&over(WireChoice::Udp)).unwrap();
    let silent = UdpSocket::bind((pair.harness.address.ip(), 4791)).unwrap();
    let (conn, start) = ask(&mut pair);
    while start.elapsed() < Duration::from_millis(1700) {
        pair.poll();
        assert_eq!(pair.side(conformance::Host).events, []);
        pair.harness.advance(Duration::from_millis(1));
    }
    let advice = pair.harness.host.diagnose(conn).unwrap_or_default();
    assert!(!advice.contains("nothing listens"), "{advice}");
    drop(silent);
}

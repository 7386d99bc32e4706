//! The provider for RDMA devices, held to what every provider must do. The tests need a device with
//! an address; without one they are skipped, and say so.
//!
//! `LARIAT_IB_ADDRESS` names the address (default: the first of an active Ethernet port), which both
//! ends use. `LARIAT_IB_REQUIRED=1` makes a missing device a failure.
#![cfg(feature = "ib")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod conformance;

use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::{AtomicU16, Ordering};
use core::time::Duration;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use conformance::{Harness, Pair, conformance};
use lariat_fabric::ib::{self, IbConfig, IbFabric};
use lariat_fabric::verbs::{
    Access, CmEvent, ConnId, DisconnectReason, QpConfig, RecvRequest, SendOp, SendRequest, Sge,
    SgeList, WcStatus,
};
use lariat_fabric::{Fabric, ListenError, Memory, ResolveError, Timestamp};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

struct Devices {
    host: IbFabric,
    target: IbFabric,
    address: SocketAddr,
    start: Instant,
}

/// The address to use, if there is a device.
fn device_address() -> Option<IpAddr> {
    let wanted = std::env::var("LARIAT_IB_ADDRESS").ok().map(|text| text.parse().unwrap());
    let found = wanted.or_else(|| {
        let own = nix::ifaddrs::getifaddrs().unwrap();
        own.filter_map(|one| one.address?.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip())))
            .find(|ip| ib::cover_local(*ip).is_ok())
    });
    if found.is_none() {
        assert!(std::env::var_os("LARIAT_IB_REQUIRED").is_none(), "there is no RDMA device");
        eprintln!("SKIPPED: no RDMA device serves an address of this machine");
    }
    found
}

/// Each test has rdma_cm ports of its own.
fn address_of(ip: IpAddr) -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let number = NEXT.fetch_add(2, Ordering::Relaxed);
    SocketAddr::new(ip, 20_000 + u16::try_from(std::process::id() % 100).unwrap() * 300 + number)
}

fn devices() -> Option<Devices> {
    let address = address_of(device_address()?);
    let config = IbConfig::default();
    let (host, target) = (ib::open(&config).unwrap(), ib::open(&config).unwrap());
    Some(Devices { host, target, address, start: Instant::now() })
}

impl Harness for Devices {
    type Fabric = IbFabric;

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
        // In the same subnet; a neighbour entry without ARP is assumed (a dummy interface).
        let ip = match self.address.ip() {
            IpAddr::V4(ip) => {
                let [a, b, c, _] = ip.octets();
                IpAddr::from([a, b, c, 253])
            }
            IpAddr::V6(ip) => {
                let mut octets = ip.octets();
                octets[15] = 0xfd;
                IpAddr::from(octets)
            }
        };
        SocketAddr::new(ip, 4420)
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_nanos(u64::try_from(self.start.elapsed().as_nanos()).unwrap())
    }

    fn invalidates(&self) -> bool {
        false
    }

    fn too_long(&self) -> &[(WcStatus, WcStatus)] {
        &[
            (WcStatus::RemoteInvalidRequest, WcStatus::LocalLength),
            (WcStatus::RemoteOperation, WcStatus::LocalQpOperation),
        ]
    }

    fn advance(&mut self, limit: Duration) {
        let fds: Vec<BorrowedFd<'_>> =
            self.host.wait_fds().into_iter().chain(self.target.wait_fds()).collect();
        let mut polled: Vec<_> =
            fds.iter().map(|fd| PollFd::new(fd.as_fd(), PollFlags::POLLIN)).collect();
        // Most turns do not arm, so nothing is sure to wake.
        let limit = limit.min(Duration::from_millis(1));
        poll(&mut polled, PollTimeout::try_from(limit).unwrap_or(PollTimeout::ZERO)).unwrap();
    }
}

conformance!(optional devices());

/// A wake-up comes through the descriptor alone, and stops coming when all is taken.
#[test]
fn sleeps_without_polling() {
    let Some(harness) = devices() else { return };
    let mut pair = Pair::new(harness);
    let (host, target) = pair.connect();
    let sge = pair.sge(conformance::Target, 0, 64);
    for round in 0..20 {
        pair.recv(conformance::Target, target, round, SgeList::one(sge));
        let now = pair.harness.now();
        let armed = pair.harness.target.arm(now);
        assert!(matches!(armed, lariat_fabric::Armed::Until(_)), "round {round}: {armed:?}");
        let asleep = |fabric: &IbFabric, limit: u16| {
            let fds = fabric.wait_fds();
            let mut polled = [PollFd::new(fds[0], PollFlags::POLLIN)];
            poll(&mut polled, PollTimeout::from(limit)).unwrap() == 0
        };
        assert!(asleep(&pair.harness.target, 0), "round {round}");
        let source = pair.sge(conformance::Host, 0, 64);
        pair.post(conformance::Host, host, 100 + round, SendOp::Send, SgeList::one(source));
        assert!(!asleep(&pair.harness.target, 5000), "round {round}");
        pair.success(conformance::Target, round);
        pair.success(conformance::Host, 100 + round);
    }
}

/// Nobody is woken for the end of a SEND alone, but it is told soon; that of an RDMA READ wakes.
#[test]
fn a_sleeper_hears_of_what_it_sent() {
    use lariat_fabric::Armed;
    let Some(harness) = devices() else { return };
    let mut pair = Pair::new(harness);
    let (host, target) = pair.connect();
    let sge = pair.sge(conformance::Host, 0, 64);
    let sink = pair.sge(conformance::Target, 0, 64);
    let read_op = pair.read_op(conformance::Host, target, 0);
    for round in 0..10 {
        let read = round % 2 == 1;
        if !read {
            pair.recv(conformance::Target, target, round, SgeList::one(sink));
        }
        let op = if read { read_op } else { SendOp::Send };
        pair.post(conformance::Host, host, 100 + round, op, SgeList::one(sge));
        let end = Instant::now() + Duration::from_secs(20);
        while pair.side(conformance::Host).completions.is_empty() {
            assert!(Instant::now() < end, "round {round}");
            let now = pair.harness.now();
            if let Armed::Until(until) = pair.harness.host.arm(now) {
                let deadline = (until != Timestamp::NEVER).then(|| until.since(now));
                // An RDMA READ has the descriptor alone, a SEND the deadline at first.
                assert!(!read || deadline.is_none(), "round {round}: {deadline:?}");
                let limit = deadline.unwrap_or(Duration::from_secs(5)) + Duration::from_millis(1);
                let fds = pair.harness.host.wait_fds();
                let mut polled = [PollFd::new(fds[0], PollFlags::POLLIN)];
                poll(&mut polled, PollTimeout::try_from(limit).unwrap()).unwrap();
            }
            pair.poll();
        }
        pair.success(conformance::Host, 100 + round);
        if !read {
            pair.success(conformance::Target, round);
        }
    }
}

/// The peer's end dies without a word of its own: its queue pair is destroyed under ours.
#[test]
fn many_rounds_leave_nothing() {
    let Some(mut harness) = devices() else { return };
    let limit = std::fs::read_dir("/proc/self/fd").unwrap().count() + 40;
    let mut pair = Pair::new({
        harness.start = Instant::now();
        harness
    });
    for round in 0..60 {
        let (host, target) = pair.connect();
        let sge = pair.sge(conformance::Target, 0, 64);
        pair.recv(conformance::Target, target, 1, SgeList::one(sge));
        let now = pair.harness.now();
        if round % 2 == 0 {
            pair.harness.host.destroy(now, host);
            let flushed = pair.completions(conformance::Target, 1);
            assert_eq!(flushed[0].status, WcStatus::Flushed);
            let told = pair.acknowledges(conformance::Target, target);
            match pair.event(conformance::Target) {
                CmEvent::Disconnected { reason: DisconnectReason::Peer, .. } => {}
                // On iWARP all that comes may be the end of TCP's connection.
                CmEvent::Disconnected { reason: DisconnectReason::Error, .. } if !told => {}
                other => panic!("{other:?}"),
            }
        } else {
            pair.harness.host.destroy(now, host);
        }
        pair.harness.target.destroy(now, target);
        pair.side(conformance::Target).events.clear();
    }
    assert_eq!((pair.harness.host.connections(), pair.harness.target.connections()), (0, 0));
    assert!(std::fs::read_dir("/proc/self/fd").unwrap().count() < limit);
}

/// Members that listen at one port get the requests in turn, also after the owner has left.
#[test]
fn members_take_turns() {
    let Some(ip) = device_address() else { return };
    let address = address_of(ip);
    let start = Instant::now();
    let now = || Timestamp::from_nanos(u64::try_from(start.elapsed().as_nanos()).unwrap());
    let config = IbConfig::default();
    let mut targets = ib::open_group(3, &config).unwrap();
    let mut host = ib::open(&config).unwrap();
    let listeners: Vec<_> = targets.iter_mut().map(|one| one.listen(address).unwrap()).collect();
    assert!(matches!(targets[1].listen(address), Err(ListenError::InUse { .. })));
    assert!(matches!(host.listen(address), Err(ListenError::InUse { .. })));
    let setups: Vec<_> = targets
        .iter_mut()
        .chain([&mut host])
        .map(|fabric| {
            let domain = fabric.open_domain().unwrap();
            let memory = Memory::allocate(4096).unwrap();
            (domain, fabric.register(domain, memory, Access::LOCAL).unwrap())
        })
        .collect();
    let qp = |place: usize| QpConfig::new(setups[place].0, 4, 4);
    let sges = |place: usize| SgeList::one(Sge { region: setups[place].1, offset: 0, length: 64 });
    let params = conformance::params(b"");
    let mut served = [0; 3];
    let mut received = [0; 3];
    for round in 0..2 {
        for _ in 0..6 {
            host.resolve(now(), address, Duration::from_secs(2)).unwrap();
        }
        let wanted = received.iter().sum::<i32>() + 6;
        while received.iter().sum::<i32>() < wanted {
            assert!(start.elapsed() < Duration::from_secs(60), "{served:?} {received:?}");
            let (mut completions, mut events) = (Vec::new(), Vec::new());
            host.poll(now(), 64, &mut completions, &mut events);
            for event in events {
                match event {
                    CmEvent::Resolved { conn } => {
                        host.create_qp(conn, &qp(3)).unwrap();
                        host.connect(now(), conn, &params, Duration::from_secs(10)).unwrap();
                    }
                    CmEvent::Established { conn, .. } => {
                        let (op, sges) = (SendOp::Send, sges(3));
                        let send = SendRequest { wr_id: 2, op, sges, signaled: true };
                        host.post_send(conn, &[send]).unwrap();
                        host.flush(now());
                    }
                    other => panic!("{other:?}"),
                }
            }
            for (place, target) in targets.iter_mut().enumerate() {
                let (mut completions, mut events) = (Vec::new(), Vec::new());
                target.poll(now(), 64, &mut completions, &mut events);
                received[place] += i32::try_from(completions.len()).unwrap();
                assert!(completions.iter().all(|done| done.status == WcStatus::Success));
                for event in events {
                    if let CmEvent::ConnectRequest { conn, .. } = event {
                        served[place] += 1;
                        target.create_qp(conn, &qp(place)).unwrap();
                        let request = RecvRequest { wr_id: 1, sges: sges(place) };
                        target.post_recv(conn, &[request]).unwrap();
                        target.accept(now(), conn, &params).unwrap();
                    }
                }
            }
        }
        if round == 0 {
            assert_eq!((served, received), ([2, 2, 2], [2, 2, 2]));
            targets[0].close_listener(listeners[0]);
        }
    }
    assert_eq!((served, received), ([2, 5, 5], [2, 5, 5]));
    drop(targets);
    let (mut completions, mut events): (Vec<_>, Vec<CmEvent>) = (Vec::new(), Vec::new());
    let mut gone: Vec<ConnId> = Vec::new();
    while gone.len() < 12 {
        assert!(start.elapsed() < Duration::from_secs(60), "{gone:?}");
        host.poll(now(), 64, &mut completions, &mut events);
        gone.extend(events.drain(..).filter_map(|event| match event {
            CmEvent::Disconnected { conn, .. } => Some(conn),
            _ => None,
        }));
    }
}

/// Addresses that no device has are refused in words that say what there is.
#[test]
fn other_addresses_are_refused() {
    let Some(ip) = device_address() else { return };
    let mut fabric = ib::open(&IbConfig::default()).unwrap();
    let error = fabric.listen("203.0.113.7:4420".parse().unwrap()).unwrap_err();
    let ListenError::Io { source, .. } = error else { panic!("{error}") };
    assert!(source.to_string().contains("the RDMA devices are"), "{source}");
    let now = Timestamp::ZERO;
    match fabric.resolve(now, "127.0.0.1:4420".parse().unwrap(), Duration::from_secs(1)) {
        Err(ResolveError::NoRoute { reason, .. }) => {
            assert!(reason.contains("the RDMA devices are"), "{reason}");
        }
        Err(error) => panic!("{error}"),
        Ok(conn) => {
            let (mut completions, mut events) = (Vec::new(), Vec::new());
            let start = Instant::now();
            while events.is_empty() {
                assert!(start.elapsed() < Duration::from_secs(10));
                fabric.poll(now + start.elapsed(), 1, &mut completions, &mut events);
            }
            assert!(matches!(events[0], CmEvent::ConnectFailed { .. }), "{events:?}");
            assert!(fabric.diagnose(conn).unwrap().contains("the RDMA devices are"));
        }
    }
    assert!(ib::cover_local(ip).is_ok());
    assert!(ib::cover_remote(SocketAddr::new(ip, 1)).is_ok());
    assert!(ib::cover_local("127.0.0.1".parse().unwrap()).is_err());
}

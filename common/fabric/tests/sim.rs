//! The simulated provider, held to what every provider must do: on a good network, and on one
//! that loses, repeats, reorders and damages packets.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod conformance;

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use conformance::pair::{Host, Target};
use conformance::{Harness, Pair, conformance};
use lariat_fabric::sim::{Faults, SimNet, SimNetwork};
use lariat_fabric::soft::{SoftConfig, SoftFabric};
use lariat_fabric::verbs::{CmEvent, SgeList, WcStatus};
use lariat_fabric::{Armed, Fabric, Timestamp};
use lariat_wire::rocev2::cm::PathMtu;

struct Simulated {
    net: SimNet,
    host: SoftFabric<SimNetwork>,
    target: SoftFabric<SimNetwork>,
    lossy: bool,
    /// Sockets are full now and then, by this chance.
    pressed: Option<u64>,
}

const HOST: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(10, 0, 0, 1));
const TARGET: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(10, 0, 0, 2));

fn simulated(seed: u64, faults: Faults) -> Simulated {
    let net = SimNet::new(seed);
    net.set_faults(faults);
    let host = net.node(HOST);
    let target = net.node(TARGET);
    Simulated { net, host, target, lossy: faults.loss_ppm != 0, pressed: None }
}

impl Harness for Simulated {
    type Fabric = SoftFabric<SimNetwork>;

    fn host(&mut self) -> &mut Self::Fabric {
        &mut self.host
    }

    fn target(&mut self) -> &mut Self::Fabric {
        &mut self.target
    }

    fn address(&self) -> SocketAddr {
        SocketAddr::new(TARGET, 4420)
    }

    fn silent_address(&self) -> SocketAddr {
        "10.0.0.77:4420".parse().unwrap()
    }

    fn now(&self) -> Timestamp {
        self.net.now()
    }

    fn lossy(&self) -> bool {
        self.lossy
    }

    fn advance(&mut self, limit: Duration) {
        let now = self.net.now();
        if let Some(random) = &mut self.pressed {
            *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            self.net.fill(HOST, *random >> 63 != 0);
            self.net.fill(TARGET, *random >> 62 & 1 != 0);
        }
        let mut next = (now + limit).min(self.net.next_event_time());
        for fabric in [&mut self.host, &mut self.target] {
            match fabric.arm(now) {
                Armed::Ready => next = now,
                Armed::Until(time) => next = next.min(time),
            }
        }
        // Sending may have started a datagram that arrives sooner.
        next = next.min(self.net.next_event_time()).max(now + Duration::from_nanos(1));
        self.net.step(next);
    }
}

mod good {
    use super::*;
    conformance!(simulated(1, Faults::NONE));
}

mod faulty {
    use super::*;
    pub(super) const FAULTY: Faults = Faults {
        loss_ppm: 20_000,
        duplicate_ppm: 20_000,
        reorder_ppm: 20_000,
        corrupt_ppm: 10_000,
        mark_ppm: 10_000,
        max_delay: Duration::from_micros(50),
        ..Faults::NONE
    };
    conformance!(simulated(2, FAULTY));
}

/// The faulty network again, with many more seeds.
#[test]
fn many_seeds() {
    for seed in 0..40 {
        let pair = &mut Pair::new(simulated(1000 + seed, faulty::FAULTY));
        conformance::write_then_send_keeps_order(pair);
        conformance::mixes_in_posting_order(&mut Pair::new(simulated(2000 + seed, faulty::FAULTY)));
        conformance::flushes_on_disconnect(&mut Pair::new(simulated(3000 + seed, faulty::FAULTY)));
    }
}

/// Sockets that are full every other time.
#[test]
fn many_seeds_with_full_sockets() {
    let pressed = |seed: u64, faults| {
        let mut simulated = simulated(seed, faults);
        simulated.pressed = Some(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        Pair::new(simulated)
    };
    for seed in 0..10 {
        for faults in [Faults::NONE, faulty::FAULTY] {
            conformance::write_then_send_keeps_order(&mut pressed(4000 + seed, faults));
            conformance::mixes_in_posting_order(&mut pressed(5000 + seed, faults));
            conformance::reads(&mut pressed(6000 + seed, faults));
            conformance::flushes_on_disconnect(&mut pressed(7000 + seed, faults));
        }
    }
}

/// One seed, one history: times, sizes and base headers of all datagrams.
#[test]
fn equal_seeds_make_equal_runs() {
    let trace = |seed: u64| {
        let mut pair = Pair::new(simulated(seed, faulty::FAULTY));
        conformance::write_then_send_keeps_order(&mut pair);
        (pair.harness.net.trace(), pair.harness.net.counters(), pair.harness.net.now())
    };
    assert_eq!(trace(5), trace(5));
    assert_ne!(trace(5), trace(6));
}

/// READ data for megabytes goes out in turns, so that the fabric looks at what comes in between.
#[test]
fn a_long_answer_leaves_turns() {
    let net = SimNet::new(7);
    net.set_path_mtu(PathMtu::Mtu256);
    let config = SoftConfig { max_inflight_bytes: 16 << 20, ..SoftConfig::default() };
    let host = net.node_with(HOST, &config);
    let target = net.node(TARGET);
    let mut pair = Pair::new(Simulated { net, host, target, lossy: false, pressed: None });
    let (host, target) = pair.connect();
    let (read, sink) = (pair.read_op(Host, target, 0), pair.sge(Host, 0, 1 << 20));
    let post = |pair: &mut Pair<Simulated>| {
        for wr_id in 0..4 {
            pair.post(Host, host, wr_id, read, SgeList::one(sink));
        }
    };
    // The reader's window opens.
    for _ in 0..3 {
        post(&mut pair);
        pair.completions(Host, 4);
    }
    post(&mut pair);
    let (mut most, mut all) = (0, 0);
    while pair.side(Host).completions.len() < 4 {
        let before = pair.harness.target.counters().packets_sent;
        pair.poll();
        let sent = pair.harness.target.counters().packets_sent - before;
        (most, all) = (most.max(sent), all + sent);
        pair.harness.advance(Duration::from_millis(10));
    }
    assert!(all > 2000, "{all}");
    assert!(most <= 4096, "{most} packets in one turn");
}

/// A request that was flushed is over: its packets that found no room in the socket do not leave
/// later, when its memory holds something else.
#[test]
fn what_was_flushed_is_not_sent() {
    let mut pair = Pair::new(simulated(9, Faults::NONE));
    let (host, target) = pair.connect();
    let before = pair.bytes(Target, 0, 4096);
    pair.harness.net.fill(HOST, true);
    let (write, source) = (pair.write_op(Host, target, 0), pair.sge(Host, 0, 4096));
    pair.post(Host, host, 1, write, SgeList::one(source));
    let now = pair.harness.now();
    pair.harness.host.disconnect(now, host).unwrap();
    assert_eq!(pair.completions(Host, 1)[0].status, WcStatus::Flushed);
    // Another's secret.
    pair.side(Host).memory.write_at(0, &[0x5e; 4096]).unwrap();
    pair.harness.net.fill(HOST, false);
    for side in [Host, Target] {
        assert!(matches!(pair.event(side), CmEvent::Disconnected { .. }));
    }
    assert!(pair.bytes(Target, 0, 4096) == before);
}

//! The simulated provider, held to what every provider must do: on a good network, and on one
//! that loses, repeats, reorders and damages packets.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod conformance;

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use conformance::{Harness, Pair, conformance};
use lariat_fabric::sim::{Faults, SimNet, SimNetwork};
use lariat_fabric::soft::SoftFabric;
use lariat_fabric::{Armed, Fabric, Timestamp};

struct Simulated {
    net: SimNet,
    host: SoftFabric<SimNetwork>,
    target: SoftFabric<SimNetwork>,
    lossy: bool,
}

const TARGET: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(10, 0, 0, 2));

fn simulated(seed: u64, faults: Faults) -> Simulated {
    let net = SimNet::new(seed);
    net.set_faults(faults);
    let host = net.node("10.0.0.1".parse().unwrap());
    let target = net.node(TARGET);
    Simulated { net, host, target, lossy: faults.loss_ppm != 0 }
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

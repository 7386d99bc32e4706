//! The simulated provider, held to what every provider must do: on a good network, and on one
//! that loses, repeats, reorders and damages packets.

mod conformance;

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use conformance::{Harness, conformance};
use lariat_fabric::sim::{Faults, SimNet, SimNetwork};
use lariat_fabric::soft::SoftFabric;
use lariat_fabric::{Armed, Fabric, Timestamp};

struct Simulated {
    net: SimNet,
    host: SoftFabric<SimNetwork>,
    target: SoftFabric<SimNetwork>,
}

const TARGET: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(10, 0, 0, 2));

fn simulated(seed: u64, faults: Faults) -> Simulated {
    let net = SimNet::new(seed);
    net.set_faults(faults);
    let host = net.node("10.0.0.1".parse().unwrap());
    let target = net.node(TARGET);
    Simulated { net, host, target }
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
    const FAULTY: Faults = Faults {
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

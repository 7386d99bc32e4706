//! The soft provider over UDP on loopback, held to what every provider must do.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod conformance;

use core::net::SocketAddr;
use core::sync::atomic::{AtomicU8, Ordering};
use core::time::Duration;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use conformance::{Harness, conformance};
use lariat_fabric::soft::{self, SoftConfig, SoftFabric, UdpNetwork};
use lariat_fabric::{Fabric, Timestamp};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

struct Loopback {
    host: SoftFabric<UdpNetwork>,
    target: SoftFabric<UdpNetwork>,
    address: SocketAddr,
    start: Instant,
}

fn loopback() -> Loopback {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let third = std::process::id() % 250;
    let address = format!("127.92.{third}.{number}:4420").parse().unwrap();
    let config = SoftConfig::default();
    Loopback {
        host: soft::open(&config).unwrap(),
        target: soft::open(&config).unwrap(),
        address,
        start: Instant::now(),
    }
}

impl Harness for Loopback {
    type Fabric = SoftFabric<UdpNetwork>;

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

conformance!(loopback());

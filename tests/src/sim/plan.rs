//! What a seed decides before anything runs: sizes, the network, the disks, who comes, what goes
//! wrong and when.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;

use lariat_fabric::sim::Faults;
use lariat_target::nvme::Limits;
use lariat_target::storage::Geometry;
use lariat_target::transport::ReactorConfig;
use lariat_wire::nvme::QueueSize;
use lariat_wire::rocev2::cm::PathMtu;

use super::disk::{Defect, DiskConfig};
use super::random::Rng;

/// The port that targets listen at.
pub const PORT: u16 = 4420;

/// One thing that goes wrong, or is done on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The network is worse for a while.
    BadNetwork(Faults, Duration),
    /// Nothing gets from a host to the target, or back, or both, for a while.
    Cut {
        /// Which host.
        host: usize,
        /// From the host to the target.
        out: bool,
        /// From the target to the host.
        back: bool,
        /// How long.
        time: Duration,
    },
    /// A host dies without a word; another takes its place after a while.
    HostKilled(usize, Duration),
    /// A host leaves in good order and comes again.
    HostLeaves(usize),
    /// A host drops its connections at once and comes again.
    HostDrops(usize),
    /// A host does nothing for a while.
    HostSleeps(usize, Duration),
    /// The target stops in good order and comes again after a while.
    TargetStops(Duration),
    /// The target's process dies; it comes again after a while.
    TargetKilled(Duration),
    /// The target's power is cut.
    PowerCut(Duration),
    /// Reactors do nothing for a while.
    TargetSleeps(Duration),
    /// The disks are slow for a while.
    SlowDisk(Duration),
    /// Datagrams out of nowhere.
    Garbage(u32),
}

/// A host.
#[derive(Clone, Copy, Debug)]
pub struct HostPlan {
    /// I/O queues to the first reactor.
    pub queues: u16,
    /// I/O queues to the second reactor.
    pub far_queues: u16,
    /// Commands outstanding on a queue.
    pub depth: u32,
    /// Requests in all.
    pub quota: u64,
    /// Data it would put into capsules.
    pub in_capsule_bytes: u32,
    /// Its own limit of a transfer.
    pub transfer_bytes: u32,
    /// Its keep alive timeout.
    pub kato: Duration,
    /// The largest request, in bytes.
    pub request_bytes: u32,
    /// Reads in a hundred of its requests.
    pub read_percent: u64,
}

/// All that a seed decides.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// Chance, from here on.
    pub rng: Rng,
    /// Reactors of the target, each at an address of its own.
    pub reactors: usize,
    /// Their sizes.
    pub reactor: ReactorConfig,
    /// The namespaces' disks; the last one is the hostile host's, if there is one.
    pub geometries: Vec<Geometry>,
    /// How disks behave.
    pub disk: DiskConfig,
    /// How the network is.
    pub network: Faults,
    /// Path MTU.
    pub path_mtu: PathMtu,
    /// The time between two looks of a busy thread.
    pub turn: Duration,
    /// Who comes.
    pub hosts: Vec<HostPlan>,
    /// Whether a hostile host comes too.
    pub hostile: bool,
    /// What happens after so many requests of all hosts.
    pub events: Vec<(u64, Event)>,
    /// Whether the power is cut once all is done.
    pub final_power_cut: bool,
}

/// Address of a reactor.
#[must_use]
pub fn reactor_ip(index: usize) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, u8::try_from(1 + index).unwrap_or(0)).into()
}

/// Where a reactor listens.
#[must_use]
pub fn reactor_address(index: usize) -> SocketAddr {
    SocketAddr::new(reactor_ip(index), PORT)
}

/// Address of a host.
#[must_use]
pub fn host_ip(index: usize) -> IpAddr {
    Ipv4Addr::new(10, 0, 1, u8::try_from(1 + index).unwrap_or(0)).into()
}

/// Address of the hostile host.
#[must_use]
pub fn hostile_ip() -> IpAddr {
    Ipv4Addr::new(10, 0, 2, 1).into()
}

impl Plan {
    /// What `seed` decides. With a defect the disks break a promise, and nothing else goes wrong
    /// that could hide it.
    #[must_use]
    pub fn new(seed: u64, defect: Option<Defect>) -> Self {
        let mut rng = Rng::new(seed);
        let rng = &mut rng;
        let calm = rng.percent(30);
        let mdts_bytes = rng.pick(&[8, 8, 16, 16, 32, 64, 128]) << 10;
        let reactors = if rng.percent(35) { 2 } else { 1 };
        let limits = Limits {
            max_queues: 8,
            max_queue_depth: QueueSize::from_entries(129).unwrap_or(QueueSize::MIN_LEGAL),
            mdts_bytes,
            in_capsule_bytes: rng.pick(&[0, 4096, 8192, 8192, 512]),
            max_hosts: 64,
        };
        // Of its own, so that what else a seed decides stays as it was.
        let shared_receive = Rng::new(seed ^ 0x5a).percent(40);
        let reactor = ReactorConfig {
            limits,
            data_bytes: mdts_bytes * rng.pick(&[2, 8, 32]),
            reserve_bytes: 64 << 10,
            receive_bytes: rng.pick(&[3 << 20, 8 << 20, 48 << 20]),
            receive_max_bytes: 48 << 20,
            shared_receive,
            max_connections: 256,
            max_requests: 16 << 10,
            read_depth: rng.pick(&[1, 1, 2, 4, 16]),
            remote_invalidate: rng.percent(70),
            connect_timeout: Duration::from_secs(3),
            close_timeout: Duration::from_secs(2),
            drain_timeout: Duration::from_secs(5),
            idle_probe: rng.pick(&[1, 2, 5]) * Duration::from_secs(1),
            ..ReactorConfig::default()
        };
        let hostile = defect.is_none() && rng.percent(25);
        let spaces = rng.range(1, 3) + u64::from(hostile);
        let geometries = (0..spaces).map(|_| {
            let block_bytes = rng.pick(&[512, 4096]);
            let sectors = rng.range(64, 600);
            Geometry {
                block_bytes,
                capacity_blocks: (sectors * 512 / u64::from(block_bytes)).max(16),
                volatile_write_cache: defect.is_some() || rng.percent(85),
                deallocate: rng.percent(80),
                read_only: false,
            }
        });
        let geometries: Vec<_> = geometries.collect();
        let min_latency = rng.micros(1, 60);
        let disk = DiskConfig {
            min_latency,
            max_latency: min_latency + rng.micros(0, 400),
            slots: rng.pick(&[2, 8, 64, 256]),
            error_ppm: if defect.is_none() && rng.percent(30) { 20_000 } else { 0 },
            defect,
        };
        let count = rng.range(1, 3);
        let hosts: Vec<_> = (0..count).map(|_| host(rng, reactors, mdts_bytes)).collect();
        let total: u64 = hosts.iter().map(|host| host.quota).sum();
        let mut events = Vec::new();
        if defect.is_none() {
            for _ in 0..rng.range(0, 2) {
                events.push((rng.below(total), harmless(rng)));
            }
        }
        if defect.is_none() && !calm {
            for _ in 0..rng.range(1, 4) {
                events.push((rng.below(total), harmful(rng, hosts.len())));
            }
        }
        events.sort_by_key(|(at, _)| *at);
        Self {
            seed,
            reactors,
            reactor,
            geometries,
            disk,
            network: if defect.is_some() { Faults::NONE } else { network(rng) },
            path_mtu: rng.pick(&[
                PathMtu::Mtu1024,
                PathMtu::Mtu4096,
                PathMtu::Mtu4096,
                PathMtu::Mtu2048,
            ]),
            turn: rng.micros(1, 20),
            hosts,
            hostile,
            events,
            final_power_cut: match defect {
                Some(Defect::FlushLies | Defect::ForceLies) => true,
                Some(_) => false,
                None => rng.percent(50),
            },
            rng: rng.fork(),
        }
    }
}

fn host(rng: &mut Rng, reactors: usize, mdts_bytes: u32) -> HostPlan {
    HostPlan {
        queues: u16::try_from(rng.range(1, 3)).unwrap_or(1),
        far_queues: if reactors == 2 { u16::try_from(rng.range(0, 2)).unwrap_or(0) } else { 0 },
        depth: rng.pick(&[1, 2, 4, 16, 32, 127, 128]),
        quota: rng.range(30, 130),
        in_capsule_bytes: rng.pick(&[0, 4096, 8192, 8192]),
        transfer_bytes: rng.pick(&[4096, mdts_bytes, mdts_bytes, 1 << 20]),
        kato: rng.pick(&[Duration::ZERO, Duration::from_secs(1), Duration::from_secs(4)]),
        request_bytes: rng.pick(&[4096, 8192, mdts_bytes, 2 * mdts_bytes]).min(128 << 10),
        read_percent: rng.pick(&[20, 40, 70]),
    }
}

/// A network that connections survive.
fn network(rng: &mut Rng) -> Faults {
    let min_delay = rng.micros(1, 50);
    let faulty = rng.percent(60);
    let mut rate = |chance: u64, most: u64| {
        if faulty && rng.percent(chance) { u32::try_from(rng.below(most)).unwrap_or(0) } else { 0 }
    };
    Faults {
        loss_ppm: rate(70, 10_000),
        duplicate_ppm: rate(50, 10_000),
        reorder_ppm: rate(50, 10_000),
        corrupt_ppm: rate(30, 5_000),
        mark_ppm: rate(20, 50_000),
        min_delay,
        max_delay: min_delay + rng.micros(0, 100),
        reorder_delay: rng.micros(10, 2000),
    }
}

fn harmless(rng: &mut Rng) -> Event {
    match rng.below(4) {
        0 => Event::SlowDisk(rng.micros(1000, 300_000)),
        1 => Event::TargetSleeps(rng.micros(100, 20_000)),
        2 => Event::BadNetwork(
            Faults {
                loss_ppm: 30_000,
                duplicate_ppm: 20_000,
                reorder_ppm: 50_000,
                corrupt_ppm: 10_000,
                ..network(rng)
            },
            rng.micros(1000, 50_000),
        ),
        _ => Event::Garbage(u32::try_from(rng.range(1, 60)).unwrap_or(1)),
    }
}

fn harmful(rng: &mut Rng, hosts: usize) -> Event {
    let host = rng.index(hosts);
    match rng.below(11) {
        0 => Event::BadNetwork(
            Faults {
                loss_ppm: 300_000,
                duplicate_ppm: 100_000,
                reorder_ppm: 200_000,
                corrupt_ppm: 50_000,
                ..network(rng)
            },
            rng.micros(10_000, 500_000),
        ),
        1 | 2 => {
            let way = rng.below(3);
            Event::Cut { host, out: way != 0, back: way != 1, time: rng.micros(100_000, 9_000_000) }
        }
        3 => Event::HostKilled(host, rng.micros(0, 3_000_000)),
        4 => Event::HostLeaves(host),
        5 => Event::HostDrops(host),
        6 => Event::HostSleeps(host, rng.micros(100_000, 8_000_000)),
        7 => Event::HostKilled(host, Duration::ZERO),
        8 => Event::TargetStops(rng.micros(1000, 2_000_000)),
        9 => Event::TargetKilled(rng.micros(1000, 2_000_000)),
        _ => Event::PowerCut(rng.micros(1000, 2_000_000)),
    }
}

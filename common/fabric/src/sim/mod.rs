//! The same [`SoftFabric`] over a network in memory: virtual time, faults from a seed.
//!
//! Tests own a [`SimNet`], make a fabric for each address ([`SimNet::node`]), and drive all of it
//! from one thread:
//!
//! ```text
//! let time = earliest of net.next_event_time() and what the fabrics' arm() says;
//! net.step(time);                      // datagrams that arrive until then reach their nodes
//! let now = net.now();
//! poll every fabric, let its user work, flush it;
//! ```
//!
//! Datagrams fly as the bytes that a socket would send, ICRC included, so a damaged one is found
//! as it would be in life. Nothing here depends on the clock, on threads or on addresses of memory
//! (the keys and virtual addresses inside of packets do; no decision is made on them).
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod network;

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use lariat_roce::time::Timestamp;
use lariat_wire::rocev2::cm::PathMtu;

pub use network::{SimNetwork, SimWire};

use self::network::Datagram;
use crate::random::Random;
use crate::soft::{SoftConfig, SoftFabric};

/// What goes wrong on a link, in one direction. Rates are parts per million of the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faults {
    /// Never arrives.
    pub loss_ppm: u32,
    /// Arrives twice.
    pub duplicate_ppm: u32,
    /// Is held up for up to `reorder_delay` while later ones pass.
    pub reorder_ppm: u32,
    /// One to three bits flip.
    pub corrupt_ppm: u32,
    /// Is marked by a congested router (ECN).
    pub mark_ppm: u32,
    /// Shortest time on the way.
    pub min_delay: Duration,
    /// Longest time on the way. Order is kept all the same.
    pub max_delay: Duration,
    /// How long a reordered packet is held up, at most.
    pub reorder_delay: Duration,
}

impl Faults {
    /// A good network: 5 us, nothing lost.
    pub const NONE: Self = Self {
        loss_ppm: 0,
        duplicate_ppm: 0,
        reorder_ppm: 0,
        corrupt_ppm: 0,
        mark_ppm: 0,
        min_delay: Duration::from_micros(5),
        max_delay: Duration::from_micros(5),
        reorder_delay: Duration::from_micros(100),
    };
}

/// What happened to datagrams so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SimCounters {
    /// Sent by nodes.
    pub sent: u64,
    /// Put into a node's inbox.
    pub delivered: u64,
    /// Lost by rate.
    pub lost: u64,
    /// Lost on a cut link or for want of a node at the address.
    pub unreachable: u64,
    /// Sent twice by the network.
    pub duplicated: u64,
    /// Held up.
    pub reordered: u64,
    /// Damaged.
    pub corrupted: u64,
    /// Marked.
    pub marked: u64,
}

#[derive(Debug)]
struct Node {
    /// Tells a node from an earlier one at the same address.
    incarnation: u64,
    inbox: VecDeque<Datagram>,
    open: bool,
    /// Whether its socket takes no more packets now.
    full: bool,
}

#[derive(Debug)]
struct World {
    now: Timestamp,
    random: Random,
    faults: Faults,
    links: BTreeMap<(IpAddr, IpAddr), Faults>,
    cuts: BTreeSet<(IpAddr, IpAddr)>,
    nodes: BTreeMap<IpAddr, Node>,
    incarnations: u64,
    /// By time of arrival, then in the order of sending.
    flying: BTreeMap<(Timestamp, u64), Datagram>,
    sequence: u64,
    last_arrival: BTreeMap<(IpAddr, IpAddr), Timestamp>,
    path_mtu: PathMtu,
    counters: SimCounters,
    trace: u64,
    spare: Vec<Vec<u8>>,
}

/// A network in memory. Clones are the same network.
#[derive(Clone, Debug)]
pub struct SimNet(Rc<RefCell<World>>);

impl SimNet {
    /// An empty network at time zero, whose chance comes from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut bytes = [0; 32];
        if let Some(first) = bytes.first_chunk_mut() {
            *first = seed.to_le_bytes();
        }
        Self(Rc::new(RefCell::new(World {
            now: Timestamp::ZERO,
            random: Random::seeded(bytes),
            faults: Faults::NONE,
            links: BTreeMap::new(),
            cuts: BTreeSet::new(),
            nodes: BTreeMap::new(),
            incarnations: 0,
            flying: BTreeMap::new(),
            sequence: 0,
            last_arrival: BTreeMap::new(),
            path_mtu: PathMtu::Mtu4096,
            counters: SimCounters::default(),
            trace: 0xcbf2_9ce4_8422_2325,
            spare: Vec::new(),
        })))
    }

    /// A machine at `ip`, with the default settings. An earlier one at this address is killed.
    #[must_use]
    pub fn node(&self, ip: IpAddr) -> SoftFabric<SimNetwork> {
        self.node_with(ip, &SoftConfig::default())
    }

    /// A machine at `ip`. An earlier one at this address is killed.
    #[must_use]
    pub fn node_with(&self, ip: IpAddr, config: &SoftConfig) -> SoftFabric<SimNetwork> {
        let mut world = self.0.borrow_mut();
        world.incarnations += 1;
        let incarnation = world.incarnations;
        world
            .nodes
            .insert(ip, Node { incarnation, inbox: VecDeque::new(), open: false, full: false });
        let random = world.random.fork();
        drop(world);
        SoftFabric::new(SimNetwork::new(self.clone(), ip, incarnation), config, random)
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.0.borrow().now
    }

    /// When the next datagram is to be looked at: now, if one waits in an inbox;
    /// [`Timestamp::NEVER`] if none is on its way.
    #[must_use]
    pub fn next_event_time(&self) -> Timestamp {
        let world = self.0.borrow();
        if world.nodes.values().any(|node| !node.inbox.is_empty()) {
            return world.now;
        }
        world.flying.first_key_value().map_or(Timestamp::NEVER, |((time, _), _)| *time)
    }

    /// When the next datagram arrives somewhere; [`Timestamp::NEVER`] if none is on its way. For
    /// those who let nodes wait with what is in their inbox.
    #[must_use]
    pub fn next_arrival(&self) -> Timestamp {
        let world = self.0.borrow();
        world.flying.first_key_value().map_or(Timestamp::NEVER, |((time, _), _)| *time)
    }

    /// Lets time pass until `until` (it never goes back), delivering what arrives.
    pub fn step(&self, until: Timestamp) {
        let mut world = self.0.borrow_mut();
        while let Some(entry) = world.flying.first_entry() {
            if entry.key().0 > until {
                break;
            }
            let datagram = entry.remove();
            world.deliver(datagram);
        }
        world.now = world.now.max(until);
    }

    /// Sets what goes wrong everywhere (except on links with faults of their own).
    pub fn set_faults(&self, faults: Faults) {
        self.0.borrow_mut().faults = faults;
    }

    /// Sets what goes wrong from one node to another; `None`: as everywhere.
    pub fn set_link_faults(&self, from: IpAddr, to: IpAddr, faults: Option<Faults>) {
        let links = &mut self.0.borrow_mut().links;
        match faults {
            Some(faults) => links.insert((from, to), faults),
            None => links.remove(&(from, to)),
        };
    }

    /// Cuts the way from one node to another, or mends it. The way back is not touched.
    pub fn cut(&self, from: IpAddr, to: IpAddr, cut: bool) {
        let cuts = &mut self.0.borrow_mut().cuts;
        if cut {
            cuts.insert((from, to));
        } else {
            cuts.remove(&(from, to));
        }
    }

    /// Mends all cuts.
    pub fn mend(&self) {
        self.0.borrow_mut().cuts.clear();
    }

    /// Lets a node's socket take no more packets, as one whose buffer is full, or lets it go on.
    pub fn fill(&self, ip: IpAddr, full: bool) {
        if let Some(node) = self.0.borrow_mut().nodes.get_mut(&ip) {
            node.full = full;
        }
    }

    /// Switches a node off: what its fabric sends goes nowhere, what comes for it is lost. Its
    /// fabric should be dropped; a new node may take the address. Its datagrams that are on their
    /// way still arrive.
    pub fn kill(&self, ip: IpAddr) {
        self.0.borrow_mut().nodes.remove(&ip);
    }

    /// Puts a datagram on the way as if the node at `source` had sent it, whether there is one or
    /// not: what a stranger with a raw socket can do.
    pub fn inject(&self, source: SocketAddr, destination: SocketAddr, bytes: &[u8]) {
        let mut world = self.0.borrow_mut();
        let now = world.now;
        let bytes = bytes.to_vec();
        world.send(now, Datagram { source, destination, congested: false, bytes });
    }

    /// The path MTU of all routes looked up from now on.
    pub fn set_path_mtu(&self, path_mtu: PathMtu) {
        self.0.borrow_mut().path_mtu = path_mtu;
    }

    /// What was counted.
    #[must_use]
    pub fn counters(&self) -> SimCounters {
        self.0.borrow().counters
    }

    /// A fingerprint of all datagrams so far (times, addresses, base headers, lengths): equal for
    /// equal runs.
    #[must_use]
    pub fn trace(&self) -> u64 {
        self.0.borrow().trace
    }
}

impl World {
    fn chance(&mut self, ppm: u32) -> bool {
        ppm != 0 && self.random.next_u64() % 1_000_000 < u64::from(ppm)
    }

    fn up_to(&mut self, duration: Duration) -> Duration {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(self.random.next_u64() % nanos.saturating_add(1).max(1))
    }

    /// Takes a datagram that a node sends.
    fn send(&mut self, now: Timestamp, mut datagram: Datagram) {
        self.now = self.now.max(now);
        self.counters.sent += 1;
        self.note(&datagram);
        let link = (datagram.source.ip(), datagram.destination.ip());
        let faults = self.links.get(&link).copied().unwrap_or(self.faults);
        if self.cuts.contains(&link) {
            self.counters.unreachable += 1;
            self.spare.push(datagram.bytes);
            return;
        }
        if self.chance(faults.loss_ppm) {
            self.counters.lost += 1;
            self.spare.push(datagram.bytes);
            return;
        }
        if self.chance(faults.mark_ppm) {
            self.counters.marked += 1;
            datagram.congested = true;
        }
        let copy = self.chance(faults.duplicate_ppm).then(|| datagram.clone());
        if self.chance(faults.corrupt_ppm) {
            self.counters.corrupted += 1;
            self.damage(&mut datagram.bytes);
        }
        self.launch(&faults, link, datagram);
        if let Some(copy) = copy {
            self.counters.duplicated += 1;
            self.launch(&faults, link, copy);
        }
    }

    fn launch(&mut self, faults: &Faults, link: (IpAddr, IpAddr), datagram: Datagram) {
        let jitter = self.up_to(faults.max_delay.saturating_sub(faults.min_delay));
        let arrival = self.now + faults.min_delay + jitter;
        let last = self.last_arrival.get(&link).copied().unwrap_or(Timestamp::ZERO);
        let mut arrival = arrival.max(last);
        if self.chance(faults.reorder_ppm) {
            self.counters.reordered += 1;
            arrival += self.up_to(faults.reorder_delay);
        } else {
            self.last_arrival.insert(link, arrival);
        }
        self.sequence += 1;
        self.flying.insert((arrival, self.sequence), datagram);
    }

    fn damage(&mut self, bytes: &mut [u8]) {
        let flips = 1 + self.random.next_u64() % 3;
        for _ in 0..flips {
            let random = self.random.next_u64();
            let Some(place) = (random >> 3).checked_rem(bytes.len() as u64) else { return };
            if let Some(byte) = usize::try_from(place).ok().and_then(|place| bytes.get_mut(place)) {
                *byte ^= 1 << (random & 7);
            }
        }
    }

    fn deliver(&mut self, datagram: Datagram) {
        match self.nodes.get_mut(&datagram.destination.ip()) {
            Some(node) if node.open => {
                node.inbox.push_back(datagram);
                self.counters.delivered += 1;
            }
            _ => {
                self.counters.unreachable += 1;
                self.spare.push(datagram.bytes);
            }
        }
    }

    /// FNV-1a over what is the same in equal runs.
    fn note(&mut self, datagram: &Datagram) {
        let mut put = |byte: u8| {
            self.trace = (self.trace ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        };
        self.now.as_nanos().to_le_bytes().into_iter().for_each(&mut put);
        (datagram.bytes.len() as u64).to_le_bytes().into_iter().for_each(&mut put);
        datagram.bytes.iter().take(12).copied().for_each(&mut put);
    }
}

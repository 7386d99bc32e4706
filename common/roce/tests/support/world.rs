//! The simulation of one seed: nodes, connections, faults, and what must hold.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use lariat_roce::endpoint::{Endpoint, EndpointConfig, Member};
use lariat_roce::time::Timestamp;
use lariat_wire::rocev2::Packet;
use lariat_wire::rocev2::cm::{CmTimeout, PathMtu};

use super::link::{Link, Mode, Phase, Side};
use super::memory::TestMemory;
use super::net::{Faults, Network};
use super::rng::Rng;

const PORT: u16 = 4420;
/// Longer than everything that waits for a peer takes.
const PATIENCE: Duration = Duration::from_secs(12);
/// Virtual time in which all must be over.
const END_OF_TIME: Duration = Duration::from_secs(120);

pub struct Node {
    pub address: SocketAddr,
    pub endpoint: Endpoint,
    pub alive: bool,
}

pub struct World {
    pub now: Timestamp,
    pub(super) verbose: bool,
    pub(super) rng: Rng,
    pub(super) net: Network,
    pub(super) nodes: Vec<Node>,
    pub(super) memories: Vec<TestMemory>,
    pub(super) links: Vec<Link>,
    pub(super) path_mtu: PathMtu,
    /// A node that vanishes, and when.
    pub(super) vanish: Option<(usize, Timestamp)>,
    /// When whoever still waits for a lost peer is told to give up.
    pub(super) give_up: Timestamp,
    pub(super) next_tick: Timestamp,
}

/// What a run was like.
#[derive(Clone, Copy, Debug, Default)]
pub struct Summary {
    pub packets: u64,
    pub messages: u64,
    pub retransmissions: u64,
    pub virtual_time: Duration,
}

/// Says what happens, when one seed is replayed.
macro_rules! trace {
    ($world:expr, $($words:tt)*) => {
        if $world.verbose {
            println!("{:?} {}", $world.now, format_args!($($words)*));
        }
    };
}
pub(super) use trace;

impl World {
    pub fn new(seed: u64, verbose: bool) -> Self {
        let mut rng = Rng::new(seed);
        let ipv6 = rng.permille(500);
        let path_mtu = PathMtu::ALL[usize::try_from(rng.below(5)).unwrap()];
        let perfect = rng.permille(150);
        let faults = if perfect {
            Faults { delay: rng.between(1, 50), ..Faults::default() }
        } else {
            Faults {
                loss: [0, 10, 50, 120][usize::try_from(rng.below(4)).unwrap()],
                duplication: rng.below(60),
                corruption: rng.below(30),
                reordering: [0, 20, 200][usize::try_from(rng.below(3)).unwrap()],
                congestion_marks: [0, 0, 50][usize::try_from(rng.below(3)).unwrap()],
                delay: rng.between(1, 300),
                jitter: rng.below(60),
            }
        };
        let count = usize::try_from(rng.between(2, 3)).unwrap();
        let nodes: Vec<Node> = (0..count).map(|at| Self::node(at, ipv6, &mut rng)).collect();
        let mut memories: Vec<TestMemory> = nodes.iter().map(|_| TestMemory::default()).collect();
        let mut fragile = false;
        let mut vanish = None;
        let mut net = Network::new(faults, Rng::new(rng.next()));
        match rng.below(12) {
            0 => {
                fragile = true;
                vanish =
                    Some((usize::try_from(rng.below(count as u64)).unwrap(), at(&mut rng, 20_000)));
            }
            1 => {
                fragile = true;
                net.cut(nodes[0].address, nodes[1].address, Timestamp::NEVER);
            }
            2 => {
                // Passes: shorter than what the connection manager and the queue pairs put up with.
                net.cut(nodes[1].address, nodes[0].address, at(&mut rng, 60_000));
            }
            _ => {}
        }
        let links = (0..usize::try_from(rng.between(1, 4)).unwrap())
            .map(|index| {
                let active = usize::try_from(rng.below(count as u64)).unwrap();
                let passive =
                    (active + 1 + usize::try_from(rng.below(count as u64 - 1)).unwrap()) % count;
                let side = usize::try_from(rng.below(2)).unwrap();
                let mode = match rng.below(16) {
                    0 => Mode::Rejected,
                    1 => Mode::NoListener,
                    2..=4 => Mode::Disconnect { side, at: at(&mut rng, 8_000) },
                    5..=6 => Mode::Destroy { side, at: at(&mut rng, 8_000) },
                    7 => Mode::CleanDestroy { side },
                    _ => Mode::Clean { first: side, both: rng.permille(300) },
                };
                let port = if mode == Mode::NoListener { PORT + 1 } else { PORT };
                let service = SocketAddr::new(nodes[passive].address.ip(), port);
                let mut link =
                    Link::new(index, mode, [active, passive], service, &mut memories, &mut rng);
                link.fragile = fragile;
                link
            })
            .collect();
        let mut world = Self {
            now: Timestamp::ZERO,
            verbose,
            rng,
            net,
            nodes,
            memories,
            links,
            path_mtu,
            vanish,
            give_up: Timestamp::ZERO + PATIENCE,
            next_tick: Timestamp::ZERO,
        };
        for node in &mut world.nodes {
            node.endpoint.listen(PORT).unwrap();
        }
        trace!(world, "{faults:?} {path_mtu:?} vanish {vanish:?} fragile {fragile}");
        for link in &world.links {
            let plans = [0, 1].map(|side| link.sides[side].plan.len());
            trace!(world, "link {} {:?} plans {plans:?}", link.index, link.mode);
        }
        world
    }

    fn node(at: usize, ipv6: bool, rng: &mut Rng) -> Node {
        let last = u8::try_from(at).unwrap() + 1;
        let ip: IpAddr = if ipv6 {
            IpAddr::from([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last])
        } else {
            IpAddr::from([10, 0, 0, last])
        };
        let address = SocketAddr::new(ip, 4791);
        let mut seed = [0; 32];
        seed.copy_from_slice(&rng.bytes(32));
        let mut config = EndpointConfig::new(address, rng.next(), seed);
        config.max_connections = 32;
        config.member = Member { index: 1, count: 3 };
        config.cm.response_timeout = CmTimeout::from_code(12);
        config.cm.disconnect_retries = 15;
        config.cm.time_wait = Duration::from_millis(20);
        config.transmit_quantum = usize::try_from(rng.between(1, 16)).unwrap();
        config.max_inflight_bytes = u32::try_from(rng.between(8 * 1024, 64 * 1024)).unwrap();
        if rng.permille(200) {
            config.ack_hold = Duration::ZERO;
        }
        Node { address, endpoint: Endpoint::new(config), alive: true }
    }

    /// Runs until nothing happens any more, and checks what is left.
    pub fn run(mut self) -> Summary {
        for index in 0..self.links.len() {
            self.resolve(index);
        }
        loop {
            self.tick();
            self.pump();
            let mut next = self.net.next();
            for node in self.nodes.iter().filter(|node| node.alive) {
                next = next.min(node.endpoint.next_timeout());
            }
            if !self.is_finished() {
                next = next.min(self.next_tick);
            }
            if next == Timestamp::NEVER {
                break;
            }
            assert!(next.since(Timestamp::ZERO) < END_OF_TIME, "hangs: {}", self.describe());
            assert!(next >= self.now, "a deadline in the past: {next:?} at {:?}", self.now);
            self.now = next;
            self.deliver();
            let now = self.now;
            for (node, memory) in self.nodes.iter_mut().zip(&mut self.memories) {
                if node.alive && node.endpoint.next_timeout() <= now {
                    node.endpoint.handle_timeout(now, memory);
                }
            }
        }
        self.check_end()
    }

    pub(super) fn describe(&self) -> String {
        use std::fmt::Write;
        let mut words = String::new();
        for link in &self.links {
            let _ = write!(words, "link {} {:?}:", link.index, link.mode);
            for side in &link.sides {
                let _ = write!(
                    words,
                    " [{:?} posted {} done {} of {}, received {} of {}]",
                    side.phase,
                    side.posted,
                    side.done,
                    side.plan.len(),
                    side.received,
                    side.expected
                );
            }
        }
        words
    }

    fn is_finished(&self) -> bool {
        self.links.iter().all(|link| {
            let [active, passive] = [0, 1].map(|side| {
                let this: &Side = &link.sides[side];
                this.phase == Phase::Gone || !self.nodes[this.node].alive
            });
            active && (passive || link.sides[1].conn.is_none())
        })
    }

    fn check_end(&self) -> Summary {
        assert!(self.is_finished(), "stuck: {}", self.describe());
        let mut summary = Summary {
            packets: self.net.delivered,
            virtual_time: self.now.since(Timestamp::ZERO),
            ..Summary::default()
        };
        for link in &self.links {
            for side in 0..2 {
                summary.messages += link.sides[side].done as u64;
                assert!(
                    !link.mode.is_clean() || link.fragile || link.is_satisfied(side),
                    "{}",
                    self.describe()
                );
            }
        }
        for node in self.nodes.iter().filter(|node| node.alive) {
            let endpoint = &node.endpoint;
            let counters = endpoint.counters();
            summary.retransmissions += counters.retransmissions;
            assert_eq!(endpoint.connections(), 0, "connections leaked: {counters:?}");
            assert_eq!(endpoint.timers(), 0, "timers leaked: {counters:?}");
            assert!(!endpoint.has_output(), "something is left to send: {counters:?}");
            assert_eq!(counters.wrong_peer + counters.bad_mad + counters.bad_qkey, 0);
        }
        summary
    }

    fn deliver(&mut self) {
        let due: Vec<_> = std::iter::from_fn(|| self.net.receive(self.now)).collect();
        for (node, memory) in self.nodes.iter_mut().zip(&mut self.memories) {
            if !node.alive {
                continue;
            }
            let mut arrivals = node.endpoint.arrivals(self.now);
            for datagram in due.iter().filter(|datagram| datagram.to == node.address) {
                let packet = Packet::parse(&datagram.bytes).expect("a packet with a right ICRC");
                if self.verbose {
                    println!(
                        "{:?}   {} > {}: {:?} {} {:?} +{}",
                        self.now,
                        datagram.from.ip(),
                        datagram.to.ip(),
                        packet.bth.opcode,
                        packet.bth.dest_qp,
                        packet.bth.psn,
                        packet.payload.len()
                    );
                }
                arrivals.packet(datagram.from, &packet, datagram.congestion_mark, memory);
            }
        }
    }

    /// Takes out all that the endpoints have to say.
    fn pump(&mut self) {
        let (mut packets, mut completions, mut events) = (Vec::new(), Vec::new(), Vec::new());
        for at in 0..self.nodes.len() {
            let mut turns = 0;
            while self.nodes[at].alive && self.nodes[at].endpoint.has_output() {
                turns += 1;
                assert!(turns < 10_000, "never done: {}", self.describe());
                let node = &mut self.nodes[at];
                let budget = usize::try_from(self.rng.between(1, 40)).unwrap();
                if self.rng.permille(50) {
                    node.endpoint.send_held_acks(self.now);
                }
                let sent =
                    node.endpoint.poll_transmit(self.now, budget, &self.memories[at], &mut packets);
                assert_eq!(sent, packets.len());
                assert!(sent <= budget);
                for packet in packets.drain(..) {
                    self.net.send(self.now, node.address, &packet, &self.memories[at]);
                }
                node.endpoint.poll_completions(budget, &mut completions);
                for wc in completions.drain(..) {
                    let index = Link::of_wr_id(wc.wr_id).0;
                    self.links[index].complete(&wc, &self.memories);
                }
                self.nodes[at].endpoint.poll_events(&mut events);
                for event in events.drain(..) {
                    trace!(self, "node {at}: {event:?}");
                    self.on_event(at, &event);
                }
            }
        }
    }
}

fn at(rng: &mut Rng, microseconds: u64) -> Timestamp {
    Timestamp::ZERO + Duration::from_micros(rng.below(microseconds))
}

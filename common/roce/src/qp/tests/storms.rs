//! Random mixes of messages over a wire that loses, delays, duplicates and reorders: every message
//! once, in order, byte for byte, and every completion.

use super::*;

/// Bounds of one storm.
#[derive(Clone, Copy, Debug)]
struct Weather {
    mtu: PathMtu,
    depth: u8,
    messages: usize,
    /// One in so many packets; 0 is never.
    loss: u64,
    duplicates: u64,
    late: u64,
    marks: u64,
    credits: bool,
    budget: usize,
    /// Receives that the application keeps posted.
    receives: u64,
    inflight: u32,
    lazy: bool,
    /// How long a gap may stay untold.
    gap_hold: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Planned {
    op: SendOp,
    length: u32,
    signaled: bool,
}

const RECV_SLOTS: u64 = 16;

struct Player {
    plan: Vec<Planned>,
    posted: usize,
    source: RegionId,
    recv: RegionId,
    sink: RegionId,
    next_recv: u64,
    received: usize,
    completed: usize,
}

struct Storm {
    pair: Pair,
    players: [Player; 2],
    slot: u64,
    seed: u64,
}

impl Storm {
    fn new(seed: u64, weather: Weather) -> Self {
        let mut dice = Dice(seed);
        let psns = [0xff_ff00 + dice.below(0x200), dice.below(1 << 24)]
            .map(|psn| Psn::new(u32::try_from(psn).unwrap()));
        let mut pair = Pair::with(weather.mtu, seed % 2 == 1, |me, params| {
            params.send_psn = psns[me];
            params.expected_psn = psns[1 - me];
            params.initiator_depth = weather.depth;
            params.responder_resources = weather.depth;
            params.advertise_credits = weather.credits;
            params.max_inflight_bytes = weather.inflight;
            params.rto_floor = Duration::from_micros(200);
            params.rto_cap = Duration::from_millis(5);
            params.gap_hold = weather.gap_hold;
        });
        pair.budget = weather.budget;
        pair.lazy = weather.lazy;
        let slot = weather.mtu.bytes() as u64 * 6;
        let total = usize::try_from(slot).unwrap() * weather.messages;
        let recv_total = usize::try_from(slot * RECV_SLOTS).unwrap();
        let players = [0, 1].map(|me| {
            let mem = &mut pair.sides[me].mem;
            let source = mem.add(pattern(seed + me as u64, total), Access::REMOTE);
            let recv = mem.add(vec![0; recv_total], Access::LOCAL);
            let sink = mem.add(vec![0; total], Access::LOCAL);
            mem.add(vec![0; total], Access::REMOTE);
            let plan = (0..weather.messages)
                .map(|index| {
                    let length = match dice.below(6) {
                        0 => 0,
                        1 => slot,
                        2 => {
                            dice.below(slot / weather.mtu.bytes() as u64)
                                * weather.mtu.bytes() as u64
                        }
                        3 => dice.below(100),
                        _ => dice.below(slot),
                    };
                    let remote_address = BASE + slot * index as u64;
                    let op = match dice.below(4) {
                        0 => SendOp::Read { remote_address, rkey: Rkey(0x1000) },
                        1 => SendOp::Write { remote_address, rkey: Rkey(0x1003) },
                        _ => SendOp::Send,
                    };
                    let signaled = dice.below(3) > 0;
                    Planned { op, length: u32::try_from(length).unwrap(), signaled }
                })
                .collect();
            Player { plan, posted: 0, source, recv, sink, next_recv: 0, received: 0, completed: 0 }
        });
        pair.script = Box::new(move |_, _| {
            if dice.one_in(weather.loss) {
                Fate::Drop
            } else if dice.one_in(weather.duplicates) {
                Fate::Twice(Duration::from_micros(dice.below(300)))
            } else if dice.one_in(weather.late) {
                Fate::Late(Duration::from_micros(dice.below(100)))
            } else if dice.one_in(weather.marks) {
                Fate::Marked
            } else {
                Fate::Deliver
            }
        });
        let mut storm = Self { pair, players, slot, seed };
        for me in 0..2 {
            for _ in 0..weather.receives {
                storm.post_recv(me);
            }
        }
        storm
    }

    fn post_recv(&mut self, me: usize) {
        let number = self.players[me].next_recv;
        self.players[me].next_recv += 1;
        let slot = u32::try_from(self.slot).unwrap();
        let offset = number % RECV_SLOTS * self.slot;
        let recv = self.players[me].recv;
        // Two pieces, to have packets that span them.
        let piece = |offset, length| Sge { region: recv, offset, length };
        let sges = SgeList::two(piece(offset, 100), piece(offset + 100, slot - 100));
        self.pair.recv(me, number, sges);
    }

    fn post_sends(&mut self, me: usize) {
        let player = &mut self.players[me];
        while let Some(planned) = player.plan.get(player.posted) {
            let is_read = matches!(planned.op, SendOp::Read { .. });
            let region = if is_read { player.sink } else { player.source };
            let request = SendRequest {
                wr_id: player.posted as u64,
                op: planned.op,
                sges: at(region, self.slot * player.posted as u64, planned.length),
                signaled: planned.signaled,
            };
            let side = &mut self.pair.sides[me];
            match side.qp.post_send(&request, &side.mem) {
                Ok(()) => player.posted += 1,
                Err(crate::verbs::PostErrorKind::QueueFull) => break,
                Err(other) => panic!("{other}"),
            }
        }
    }

    fn slice(&self, side: usize, region: RegionId, index: usize, length: u32) -> &[u8] {
        let from = usize::try_from(self.slot).unwrap() * index;
        &self.pair.sides[side].mem.bytes(region)[from..from + length as usize]
    }

    fn check(&mut self, me: usize) {
        for completion in std::mem::take(&mut self.pair.sides[me].done) {
            assert_eq!(completion.status, WcStatus::Success, "{completion:?}");
            if completion.opcode == WcOpcode::Recv {
                let sends = self.players[1 - me].plan.iter().enumerate();
                let mut sends = sends.filter(|(_, planned)| planned.op == SendOp::Send);
                let number = self.players[me].received;
                let (index, planned) = sends.nth(number).expect("a message nobody sent");
                assert_eq!(
                    (completion.wr_id, completion.byte_len),
                    (number as u64, planned.length)
                );
                let place = usize::try_from(number as u64 % RECV_SLOTS).unwrap();
                let got = self.slice(me, self.players[me].recv, place, planned.length);
                let source = self.players[1 - me].source;
                assert!(got == self.slice(1 - me, source, index, planned.length), "bytes differ");
                self.players[me].received += 1;
                self.post_recv(me);
            } else {
                let player = &mut self.players[me];
                while !player.plan[player.completed].signaled {
                    player.completed += 1;
                }
                assert_eq!(completion.wr_id, player.completed as u64, "out of order");
                player.completed += 1;
            }
        }
    }

    fn finish(&mut self) {
        for me in 0..2 {
            let player = &self.players[me];
            let planned = &player.plan;
            let rest = &planned[player.completed..];
            assert!(rest.iter().all(|planned| !planned.signaled), "not everything completed");
            let sends = self.players[1 - me].plan.iter();
            assert_eq!(player.received, sends.filter(|p| p.op == SendOp::Send).count());
            for (index, planned) in planned.iter().enumerate() {
                let (from, to) = match planned.op {
                    SendOp::Read { .. } => ((1 - me, RegionId(0)), (me, player.sink)),
                    SendOp::Write { .. } => ((me, player.source), (1 - me, RegionId(3))),
                    _ => continue,
                };
                let want = self.slice(from.0, from.1, index, planned.length);
                let got = self.slice(to.0, to.1, index, planned.length);
                assert!(want == got, "{:?} {index} of {me}: bytes differ", planned.op);
            }
        }
    }

    fn capacities(&self) -> [[usize; 5]; 2] {
        [0, 1].map(|me| self.pair.sides[me].qp.capacities())
    }

    fn run(&mut self) {
        struct Tell(u64);
        impl Drop for Tell {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    eprintln!("seed {}", self.0);
                }
            }
        }
        let _tell = Tell(self.seed);
        let capacities = self.capacities();
        let mut steps = 0;
        loop {
            self.post_sends(0);
            self.post_sends(1);
            let more = self.pair.step();
            self.check(0);
            self.check(1);
            let posted = self.players.iter().all(|player| player.posted == player.plan.len());
            if !more && posted {
                break;
            }
            steps += 1;
            assert!(steps < 1_000_000, "does not come to rest");
        }
        assert!(self.pair.both_alive());
        assert_eq!(self.capacities(), capacities, "a queue grew");
        self.finish();
    }
}

fn weather(dice: &mut Dice) -> Weather {
    let mtu = PathMtu::ALL[usize::try_from(dice.below(5)).unwrap()];
    let rough = [0, 100, 20, 8];
    let pick = |dice: &mut Dice| rough[usize::try_from(dice.below(4)).unwrap()];
    Weather {
        mtu,
        depth: 1 + u8::try_from(dice.below(16)).unwrap(),
        messages: 40,
        loss: pick(dice),
        duplicates: pick(dice),
        late: pick(dice),
        marks: pick(dice),
        credits: dice.one_in(2),
        budget: 1 + usize::try_from(dice.below(40)).unwrap(),
        receives: 1 + dice.below(RECV_SLOTS),
        inflight: 1 << (13 + dice.below(8)),
        lazy: dice.one_in(2),
        gap_hold: Duration::from_micros([0, 30, 1000][usize::try_from(dice.below(3)).unwrap()]),
    }
}

#[test]
fn storms() {
    let count = std::env::var("LARIAT_QP_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(400);
    for seed in 0..count {
        let mut dice = Dice(seed ^ 0x5eed);
        Storm::new(seed, weather(&mut dice)).run();
    }
}

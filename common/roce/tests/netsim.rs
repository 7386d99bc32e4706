//! Endpoints on a faulty network, seed by seed: every message once, in order, whole; every request
//! completes; nothing hangs and nothing is left behind.
//!
//! `LARIAT_SEEDS=n` sets how many seeds are run, `LARIAT_SEED=s` replays one and shows its packets.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a failing seed is shown")]

mod support;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use support::world::{Summary, World};

const SEEDS: u64 = 10_000;
const PARTS: u64 = 8;

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
}

/// Runs every `PARTS`th seed.
fn part(part: u64) {
    if let Some(seed) = variable("LARIAT_SEED") {
        if seed % PARTS == part {
            println!("seed {seed}: {:?}", World::new(seed, true).run());
        }
        return;
    }
    let seeds = variable("LARIAT_SEEDS").unwrap_or(SEEDS);
    let mut total = Summary::default();
    for seed in (part..seeds).step_by(usize::try_from(PARTS).unwrap()) {
        match catch_unwind(AssertUnwindSafe(|| World::new(seed, false).run())) {
            Ok(summary) => {
                total.packets += summary.packets;
                total.messages += summary.messages;
                total.retransmissions += summary.retransmissions;
                total.virtual_time += summary.virtual_time;
            }
            Err(panic) => {
                println!(
                    "seed {seed} failed; replay: LARIAT_SEED={seed} cargo test -p lariat-roce \
                     --test netsim -- --nocapture"
                );
                resume_unwind(panic);
            }
        }
    }
    println!("part {part}: {total:?}");
    // A run in which nothing passes proves nothing.
    assert!(seeds < 1000 || (total.messages > seeds / PARTS && total.retransmissions > 0));
}

macro_rules! parts {
    ($($name:ident = $part:literal,)*) => {
        $(#[test]
        fn $name() {
            part($part);
        })*
    };
}

parts! {
    seeds_0 = 0,
    seeds_1 = 1,
    seeds_2 = 2,
    seeds_3 = 3,
    seeds_4 = 4,
    seeds_5 = 5,
    seeds_6 = 6,
    seeds_7 = 7,
}

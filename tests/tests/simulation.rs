//! The whole stack, simulated: 1,200 seeds, or `LARIAT_SEEDS`; `LARIAT_SEED=S` runs that one alone.
//! And proofs that the simulation is the same for the same seed, that it meets with what it is for,
//! and that it sees disks that break their promises.

use lariat_tests::sim::runner::run_seed;
use lariat_tests::sim::trace::Coverage;
use lariat_tests::sim::{Defect, run_seeds};

/// Each part is a test, so that they run beside each other.
const PARTS: u64 = 6;
const SEEDS: u64 = 1200;

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Runs one part of the seeds, and gives what happened.
fn part(number: u64) -> Coverage {
    if let Some(seed) = variable("LARIAT_SEED") {
        if number == 0
            && let Err(what) = run_seed(seed, None, true)
        {
            panic!("{what}");
        }
        return Coverage::new();
    }
    let count = variable("LARIAT_SEEDS").unwrap_or(SEEDS).div_ceil(PARTS);
    let summary = run_seeds(number * count, count, 1, |_| {});
    if let Some((seed, what)) = summary.failure {
        panic!("{what}\nreplay: cargo xtask sim --seed {seed}");
    }
    assert_eq!(summary.seeds, count);
    summary.coverage
}

#[test]
fn seeds_of_part_0_which_meet_with_all_there_is() {
    let coverage = part(0);
    if coverage.is_empty() || variable("LARIAT_SEEDS").is_some_and(|seeds| seeds < SEEDS) {
        return;
    }
    for what in [
        "disk: error",
        "disk: queue full",
        "disk: slow request",
        "disk: torn write",
        "disk: unflushed sector survived",
        "disk: unflushed sector vanished",
        "event: bad network",
        "event: host cut off",
        "event: host does not hear",
        "event: host drops its connections",
        "event: host killed",
        "event: host leaves in good order",
        "event: host not heard",
        "event: host sleeps",
        "event: power cut",
        "event: target killed",
        "event: target sleeps",
        "event: target stops",
        "event: terrible network",
        "garbage: connection manager's message",
        "garbage: random bytes",
        "garbage: short",
        "garbage: stray packet",
        "host: killed with requests under way",
        "host: lost an I/O queue alone",
        "host: target did not answer",
        "hostile: RDMA READ at a guessed key",
        "hostile: RDMA WRITE at a guessed key",
        "hostile: SEND of any length",
        "hostile: broken connection request",
        "hostile: capsule of random bytes",
        "hostile: capsule that is nearly right",
        "hostile: connected",
        "hostile: falls silent",
        "hostile: thrown out",
        "hostile: wants much",
        "model: lost writes are over",
        "model: sectors with several possible values",
        "network: damaged",
        "network: duplicated",
        "network: lost",
        "network: marked",
        "network: reordered",
        "request: failed on the disk",
        "request: flush of all namespaces",
        "request: lost with its connection",
        "request: needed several commands",
        "request: refused as it should be",
        "request: write of unknown outcome",
        "target: died with requests in the disks",
        "target: idle host probed",
        "target: requests orphaned",
        "target: silent connection ended for the sake of others",
        "target: stopped without waiting for a host",
        "target: waited for a buffer",
        "target: waited for a turn to RDMA READ",
        "target: waited for the disk's queue",
    ] {
        assert!(coverage.contains_key(what), "{what:?} never happened: {coverage:#?}");
    }
}

#[test]
fn seeds_of_part_1() {
    part(1);
}

#[test]
fn seeds_of_part_2() {
    part(2);
}

#[test]
fn seeds_of_part_3() {
    part(3);
}

#[test]
fn seeds_of_part_4() {
    part(4);
}

#[test]
fn seeds_of_part_5() {
    part(5);
}

#[test]
fn the_same_seed_is_the_same_run() {
    let mut hashes = Vec::new();
    for seed in 0..20 {
        let [first, second] = [0; 2].map(|_| run_seed(seed, None, false).unwrap());
        assert_eq!(first.hash, second.hash, "seed {seed}");
        hashes.push(first.hash);
    }
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), 20, "another seed is another run");
}

/// In how many of 20 runs a defect of the disks is seen.
fn detections(defect: Defect) -> usize {
    let seen: Vec<_> =
        (0..20).filter_map(|seed| run_seed(seed, Some(defect), false).err()).collect();
    if let Some(first) = seen.first() {
        // It is the checker's finding, not an accident.
        assert!(!first.contains("panic"), "{first}");
    }
    seen.len()
}

#[test]
fn a_disk_that_forgets_what_was_flushed_is_seen() {
    assert!(detections(Defect::FlushLies) >= 5);
}

#[test]
fn a_disk_that_forgets_what_was_forced_is_seen() {
    assert!(detections(Defect::ForceLies) >= 5);
}

#[test]
fn writes_acknowledged_before_they_are_applied_are_seen() {
    assert!(detections(Defect::EarlyWrite) >= 10);
}

#[test]
fn reads_that_complete_before_their_data_is_there_are_seen() {
    assert!(detections(Defect::EarlyRead) >= 15);
}

#[test]
fn writes_that_were_not_applied_are_seen() {
    assert!(detections(Defect::LostWrite) >= 10);
}

#[test]
fn writes_to_the_wrong_block_are_seen() {
    assert!(detections(Defect::Misplaced) >= 10);
}

#[test]
fn requests_that_never_end_are_seen() {
    assert!(detections(Defect::Forgotten) >= 10);
}

#[test]
fn blocks_that_are_wrongly_said_to_be_zeroes_are_seen() {
    assert!(detections(Defect::FalseZeroes) >= 10);
}

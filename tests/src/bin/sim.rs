//! `sim --seeds N [--from M]`: the whole stack under many seeds; `sim --seed S`: one, with its
//! trace. `cargo xtask sim` calls it.
#![expect(clippy::print_stdout, reason = "this is a command line tool")]

use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use clap::Parser;
use lariat_tests::sim::run_seeds;
use lariat_tests::sim::runner::run_seed;

/// Simulates hosts, target, network and disks, each run decided by a seed.
#[derive(Parser)]
struct Options {
    /// How many seeds to run.
    #[arg(long, default_value_t = 1000, conflicts_with = "seed")]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0, conflicts_with = "seed")]
    from: u64,
    /// Replay this seed, with its trace.
    #[arg(long)]
    seed: Option<u64>,
    /// With `--seed`: only its end, not its trace.
    #[arg(long, requires = "seed")]
    quiet: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    match options.seed {
        Some(seed) => replay(seed, !options.quiet),
        None => many(options.from, options.seeds),
    }
}

fn replay(seed: u64, echo: bool) -> ExitCode {
    match run_seed(seed, None, echo) {
        Ok(report) => {
            println!(
                "seed {seed}: good; {} requests, {} sectors checked, {:?} of virtual time, trace {:016x}",
                report.requests, report.sectors, report.time, report.hash
            );
            ExitCode::SUCCESS
        }
        Err(what) => {
            println!("{what}");
            ExitCode::FAILURE
        }
    }
}

fn many(from: u64, seeds: u64) -> ExitCode {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let started = Instant::now();
    let last = Mutex::new(started);
    let summary = run_seeds(from, seeds, threads, |done| {
        let Ok(mut last) = last.lock() else { return };
        if last.elapsed() >= Duration::from_secs(2) {
            *last = Instant::now();
            let rate = done as f64 / started.elapsed().as_secs_f64();
            println!("{done} of {seeds} seeds, {rate:.0} a second");
        }
    });
    println!(
        "{} seeds in {:.1} s: {} requests ended well, {} sectors checked, {:.0} s of virtual time",
        summary.seeds,
        started.elapsed().as_secs_f64(),
        summary.requests,
        summary.sectors,
        summary.time.as_secs_f64(),
    );
    for (what, times) in &summary.coverage {
        println!("{times:>12}  {what}");
    }
    match summary.failure {
        None => ExitCode::SUCCESS,
        Some((seed, what)) => {
            println!("\n{what}\nreplay: cargo xtask sim --seed {seed}");
            ExitCode::FAILURE
        }
    }
}

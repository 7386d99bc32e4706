//! `cargo xtask lab`: our two ends against Linux's own, in a guest with a stock Debian kernel.
//!
//! Each scenario is a script in tests/lab that runs as root in a virtual machine on a copy-on-write
//! view of this machine's file system. Needs no RDMA device, no KVM, no modules on this machine.
//! docs/lab.md says what each scenario proves.

mod bench;
mod guest;
mod kernel;
mod parts;
mod scenario;

use std::cmp::Reverse;
use std::fs;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};

use crate::spdk::Build;
use crate::table::Table;
use crate::{cluster, setup, shell};
use guest::{Guest, Verdict};
use parts::Part;
use scenario::Scenario;

/// What can be chosen.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Names of scenarios, files of tests/lab without .sh; all that CI runs if none is given.
    scenarios: Vec<String>,
    /// The guest's kernel, from Debian: 6.12 or 6.1.
    #[arg(long, default_value = "6.12")]
    kernel: kernel::Series,
    /// Name the scenarios and stop.
    #[arg(long)]
    list: bool,
    /// Take the programs from this folder instead of building them.
    #[arg(long, value_name = "FOLDER")]
    binaries: Option<PathBuf>,
    /// Show all that the guest prints, not only what failed.
    #[arg(long, short)]
    verbose: bool,
    /// Multiply each scenario's time limit, for slow or busy machines.
    #[arg(long, default_value_t = 1.0, value_name = "FACTOR")]
    patience: f64,
    /// So many scenarios at a time, each in a guest of its own.
    #[arg(long, default_value = "1", value_name = "N")]
    jobs: NonZeroUsize,
    /// End after so many minutes; what has not passed by then counts as failed.
    #[arg(long, value_name = "MINUTES")]
    within: Option<u64>,
    /// The guest's clock counts instructions instead of the time of this machine, so that a busy
    /// machine makes it slow but lets no time limit in the guest pass. A guest then takes one
    /// processor of this machine. Without KVM.
    #[arg(long)]
    steady: bool,
    /// Where SPDK was built: the scenario bench measures its RDMA target too.
    #[arg(long, value_name = "DIR")]
    spdk: Option<PathBuf>,
    /// Print what the scenario bench measured, leave docs as it is.
    #[arg(long)]
    no_write: bool,
}

/// The scenario that measures.
const BENCH: &str = "bench";

/// Where the lab keeps what it downloads and writes.
fn folder() -> PathBuf {
    shell::root().join("build/lab")
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let all = scenario::all()?;
    if options.list {
        for scenario in &all {
            println!("{:<18} {:>4} s  {}", scenario.name, scenario.limit.as_secs(), scenario.about);
        }
        return Ok(());
    }
    if options.steady && options.kernel == kernel::Series::Bookworm {
        bail!(
            "kernel 6.1 does not start its second processor where the clock counts instructions: \
             leave --steady out, and give it --patience on a busy machine"
        );
    }
    let spdk = options.spdk.as_deref().map(Build::open).transpose()?;
    let chosen = scenario::choose(all, &options.scenarios)?;
    setup::install(setup::LAB)?;
    let measures = chosen.iter().any(|scenario| scenario.name == BENCH);
    if measures {
        setup::install(&[setup::OPEN_ISCSI])?;
    }
    let binaries = match &options.binaries {
        Some(folder) => fs::canonicalize(folder)?,
        None => cluster::Binaries::build()?.folder().to_owned(),
    };
    let kernel = kernel::fetch(options.kernel)?;
    let mut parts = parts::make(&chosen, options.kernel, &kernel)?;
    if let Some(build) = &spdk {
        parts.push(Part { variable: "LAB_SPDK", path: build.root().to_owned() });
    }
    let guest = Guest::prepare(kernel, binaries, parts, options.steady)?;
    println!("kernel {}, {}", guest.kernel.version, guest.speed());

    let outcomes = run_all(&guest, &chosen, options)?;
    let mut table = Table::new(&["scenario", "verdict", "checks", "seconds"]);
    for (scenario, outcome) in chosen.iter().zip(&outcomes) {
        table.row(vec![
            scenario.name.clone(),
            outcome.verdict.to_string(),
            outcome.checks.clone(),
            format!("{:.0}", outcome.took.as_secs_f64()),
        ]);
    }
    let passed = outcomes.iter().filter(|outcome| outcome.verdict == Verdict::Passed).count();
    let failed = outcomes.len() - passed;
    println!("\n{}", table.markdown());
    if measures && failed == 0 {
        bench::publish(&folder().join("out/bench"), &guest.kernel.version, !options.no_write)?;
    }
    println!("{passed} passed, {failed} failed");
    if failed > 0 {
        bail!("{failed} of {} scenarios failed on kernel {}", chosen.len(), guest.kernel.version);
    }
    Ok(())
}

/// Runs the scenarios, `jobs` at a time, those that may take longest first; the outcomes are in
/// the order of `chosen`.
fn run_all(guest: &Guest, chosen: &[Scenario], options: &Options) -> Result<Vec<Outcome>> {
    let end = options.within.map(|minutes| Instant::now() + Duration::from_secs(60 * minutes));
    let mut order: Vec<usize> = (0..chosen.len()).collect();
    if options.jobs.get() > 1 {
        order.sort_by_key(|&index| Reverse(chosen.get(index).map(|scenario| scenario.limit)));
    }
    let queue = Mutex::new(order.into_iter());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    let workers = options.jobs.get().min(chosen.len());
    let mut outcomes = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..workers)
            .map(|_| {
                scope.spawn(|| {
                    let mut done = Vec::new();
                    while let Some(index) = next() {
                        let Some(scenario) = chosen.get(index) else { break };
                        done.push((index, run_one(guest, scenario, options, end)?));
                    }
                    Ok::<_, anyhow::Error>(done)
                })
            })
            .collect();
        let mut outcomes = Vec::new();
        for thread in threads {
            outcomes.extend(thread.join().map_err(|_| anyhow!("a thread of the lab panicked"))??);
        }
        Ok::<_, anyhow::Error>(outcomes)
    })?;
    outcomes.sort_by_key(|(index, _)| *index);
    Ok(outcomes.into_iter().map(|(_, outcome)| outcome).collect())
}

/// Runs one scenario and prints how it went; with others beside it, each line has its name.
fn run_one(
    guest: &Guest,
    scenario: &Scenario,
    options: &Options,
    end: Option<Instant>,
) -> Result<Outcome> {
    println!("\n== {}: {}", scenario.name, scenario.about);
    let prefix =
        if options.jobs.get() > 1 { format!("{}: ", scenario.name) } else { String::new() };
    let mut limit = scenario.limit.mul_f64(options.patience);
    if let Some(end) = end {
        limit = limit.min(end.saturating_duration_since(Instant::now()));
    }
    let outcome = if limit.is_zero() {
        Outcome::not_run(scenario, "no time was left for it")
    } else {
        let show = |line: &str| println!("{prefix}{line}");
        guest.run(scenario, options.patience, limit, options.verbose, show)?
    };
    match &outcome.verdict {
        Verdict::Passed if options.jobs.get() > 1 => {
            println!("{prefix}passed in {:.0} s", outcome.took.as_secs_f64());
        }
        Verdict::Passed => {}
        Verdict::Failed(why) => {
            println!("{prefix}FAILED: {why}; the whole log: {}", outcome.log.display());
        }
    }
    Ok(outcome)
}

/// Everything of one scenario's run.
#[derive(Debug)]
struct Outcome {
    verdict: Verdict,
    /// How many checks there were, as the script counted them.
    checks: String,
    took: Duration,
    log: PathBuf,
}

impl Outcome {
    /// Of a scenario that was not started.
    fn not_run(scenario: &Scenario, why: &str) -> Self {
        Self {
            verdict: Verdict::Failed(why.into()),
            checks: "-".into(),
            took: Duration::ZERO,
            log: scenario.script.clone(),
        }
    }
}

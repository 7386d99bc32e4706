//! `cargo xtask lab`: our two ends against Linux's own, in a guest with a stock Debian kernel.
//!
//! Each scenario is a script in tests/lab that runs as root in a virtual machine on a copy-on-write
//! view of this machine's file system. Needs no RDMA device, no KVM, no modules on this machine.
//! docs/lab.md says what each scenario proves.

mod guest;
mod kernel;
mod parts;
mod scenario;

use std::fs;
use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::table::Table;
use crate::{cluster, setup, shell};
use guest::{Guest, Verdict};

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
}

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
    let chosen = scenario::choose(all, &options.scenarios)?;
    setup::install(setup::LAB)?;
    let binaries = match &options.binaries {
        Some(folder) => fs::canonicalize(folder)?,
        None => cluster::Binaries::build()?.folder().to_owned(),
    };
    let kernel = kernel::fetch(options.kernel)?;
    let parts = parts::make(&chosen, options.kernel, &kernel)?;
    let guest = Guest::prepare(kernel, binaries, parts)?;
    println!("kernel {}, {}", guest.kernel.version, guest.speed());

    let mut table = Table::new(&["scenario", "verdict", "checks", "seconds"]);
    let (mut passed, mut failed) = (0, 0);
    for scenario in &chosen {
        println!("\n== {}: {}", scenario.name, scenario.about);
        let outcome = guest.run(scenario, options.patience, options.verbose)?;
        match &outcome.verdict {
            Verdict::Passed => passed += 1,
            Verdict::Failed(why) => {
                failed += 1;
                println!("FAILED: {why}; the whole log: {}", outcome.log.display());
            }
        }
        table.row(vec![
            scenario.name.clone(),
            outcome.verdict.to_string(),
            outcome.checks.clone(),
            format!("{:.0}", outcome.took.as_secs_f64()),
        ]);
    }
    println!("\n{}", table.markdown());
    println!("{passed} passed, {failed} failed");
    if failed > 0 {
        bail!("{failed} of {} scenarios failed on kernel {}", chosen.len(), guest.kernel.version);
    }
    Ok(())
}

/// Everything of one scenario's run.
#[derive(Debug)]
struct Outcome {
    verdict: Verdict,
    /// How many checks there were, as the script counted them.
    checks: String,
    took: std::time::Duration,
    log: PathBuf,
}

//! `cargo xtask bench`: Lariat beside local disks and the peers that people would pick instead, in
//! one run on one machine.
//!
//! Repetitions are interleaved (one measurement of each system, then the next repetition), since
//! machines drift; medians, their spread and ratios are reported: as JSON, as one HTML page, and as a
//! table in docs/benchmarks.md.

mod goals;
mod machine;
mod page;
mod peer;
mod peers;
mod process;
mod report;
mod results;
mod run;
mod stats;
mod tools;
mod workload;

use std::path::PathBuf;

use anyhow::{Result, bail};

use results::Results;

/// What can be chosen.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// A second for each of a few workloads, once: to see that it works.
    #[arg(long)]
    quick: bool,
    /// Whom to measure: local, limits, lariat, lariat-sleep, lariat-net, tgt, nbdkit, spdk.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    peers: Vec<String>,
    /// Seconds per measurement [default: 2].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: Option<u32>,
    /// Interleaved repetitions; the median counts [default: 3].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=99))]
    repeat: Option<u32>,
    /// A build tree of SPDK, to measure its NVMe/TCP target.
    #[arg(long, value_name = "DIR")]
    spdk: Option<PathBuf>,
    /// Do not tie servers and clients to cores of their own.
    #[arg(long)]
    free: bool,
    /// Hold this lock file (flock) during each measurement.
    #[arg(long, value_name = "FILE")]
    lock: Option<PathBuf>,
    /// Print the tables, leave docs/benchmarks.md and docs/benchmarks/ as they are.
    #[arg(long)]
    no_write: bool,
    /// Write results.json and report.html to this folder instead, and leave docs/ as it is.
    #[arg(long, value_name = "DIR", conflicts_with = "no_write")]
    output: Option<PathBuf>,
    /// Measure nothing: make the pages from the results of an earlier run.
    #[arg(long, value_name = "FILE")]
    report_only: Option<PathBuf>,
    /// Put the results of `cargo xtask lab bench` beside ours.
    #[arg(long, value_name = "FILE")]
    lab: Option<PathBuf>,
}

impl Options {
    fn seconds(&self) -> u32 {
        self.seconds.unwrap_or(if self.quick { 1 } else { 2 })
    }

    fn repeat(&self) -> u32 {
        self.repeat.unwrap_or(if self.quick { 1 } else { 3 })
    }

    fn peers(&self) -> Vec<String> {
        if self.peers.is_empty() {
            peers::NAMES.map(str::to_owned).into()
        } else {
            self.peers.clone()
        }
    }

    /// How to do it again.
    fn command(&self) -> String {
        let mut command = String::from("cargo xtask bench");
        if self.quick {
            command.push_str(" --quick");
        }
        if !self.peers.is_empty() {
            command.push_str(&format!(" --peers {}", self.peers.join(",")));
        }
        command.push_str(&format!(" --seconds {} --repeat {}", self.seconds(), self.repeat()));
        if self.free {
            command.push_str(" --free");
        }
        command
    }
}

pub(crate) fn run(options: &Options) -> Result<()> {
    for name in &options.peers {
        if !peers::NAMES.contains(&name.as_str()) {
            bail!("there is no peer {name:?}; there are {}", peers::NAMES.join(", "));
        }
    }
    let mut results = match &options.report_only {
        Some(file) => Results::read(file)?,
        None => run::run(options)?,
    };
    if let Some(file) = &options.lab {
        results.lab = Some(Box::new(Results::read(file)?));
    }
    println!("\n{}", page::tables(&results));
    let interrupted = process::interrupted();
    if !options.no_write && (!interrupted || options.output.is_some()) {
        let folder = options.output.clone().unwrap_or_else(run::output_folder);
        std::fs::create_dir_all(&folder)?;
        results.write(&folder.join("results.json"))?;
        let report = folder.join("report.html");
        std::fs::write(&report, report::html(&results)?)?;
        println!("written to {}", report.display());
        if options.output.is_none() {
            page::write(&results)?;
        }
    }
    if interrupted {
        bail!("interrupted; the figures are those up to then");
    }
    let failed: Vec<&str> = results
        .runs
        .iter()
        .filter(|run| run.error.is_some())
        .map(|run| run.system.as_str())
        .collect();
    if !failed.is_empty() && options.report_only.is_none() {
        bail!("{} measurements failed, the first of {}", failed.len(), failed[0]);
    }
    Ok(())
}

//! `cargo xtask bench`: Lariat beside local disks and the peers that people would pick instead, in
//! one run on one machine.
//!
//! Repetitions are interleaved (one measurement of each system, then the next repetition), since
//! machines drift; medians, their spread and ratios are reported: as JSON, as one HTML page, and as a
//! table in docs/benchmarks.md.

mod goals;
pub(crate) mod machine;
pub(crate) mod page;
mod peer;
mod peers;
mod process;
pub(crate) mod profile;
mod report;
pub(crate) mod results;
mod run;
pub(crate) mod stats;
pub(crate) mod tools;
pub(crate) mod workload;

use std::path::PathBuf;

use anyhow::{Result, bail};

use results::Results;
use workload::Workload;

/// What can be chosen.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// A second for each of a few workloads, once: to see that it works.
    #[arg(long)]
    quick: bool,
    /// Whom to measure: local, limits, lariat, lariat-sleep, lariat-shm, lariat-net, tgt, nbdkit, spdk.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    peers: Vec<String>,
    /// Which workloads, by id (they are in results.json), such as randread-4k-qd1.
    #[arg(long, value_delimiter = ',', value_name = "IDS", conflicts_with = "quick")]
    workloads: Vec<String>,
    /// Seconds per measurement [default: 2].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: Option<u32>,
    /// Interleaved repetitions; the median counts [default: 3].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=99))]
    repeat: Option<u32>,
    /// Where SPDK was built, to measure its NVMe/TCP target with its own client.
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

    /// Those that were named, or all, or those of a quick run.
    fn workloads(&self) -> Result<Vec<Workload>> {
        let mut list = workload::list(self.quick);
        let unknown =
            self.workloads.iter().find(|id| list.iter().all(|workload| workload.id != **id));
        if let Some(id) = unknown {
            let ids: Vec<&str> = list.iter().map(|workload| workload.id.as_str()).collect();
            bail!("there is no workload {id:?}; there are {}", ids.join(", "));
        }
        if !self.workloads.is_empty() {
            list.retain(|workload| self.workloads.contains(&workload.id));
        }
        Ok(list)
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
        if !self.workloads.is_empty() {
            command.push_str(&format!(" --workloads {}", self.workloads.join(",")));
        }
        if self.spdk.is_some() {
            command.push_str(" --spdk DIR");
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
    options.workloads()?;
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn parse(words: &[&str]) -> Options {
        Line::try_parse_from([&["bench"], words].concat()).unwrap().options
    }

    #[test]
    fn the_command_in_the_report_does_the_same_again() {
        let words = ["--peers", "local,lariat", "--workloads", "randread-4k-qd1", "--free"];
        let options = parse(&words);
        let command = options.command();
        let again: Vec<&str> = command.split(' ').skip(3).collect();
        let again = parse(&again);
        assert_eq!(again.peers(), ["local", "lariat"]);
        assert_eq!((again.seconds(), again.repeat(), again.free), (2, 3, true));
        assert_eq!(again.workloads().unwrap(), options.workloads().unwrap());
        assert_eq!(again.workloads().unwrap().len(), 1);
    }

    #[test]
    fn unknown_names_are_told_those_that_exist() {
        let error = parse(&["--workloads", "randread"]).workloads().unwrap_err().to_string();
        assert!(error.contains("\"randread\"; there are randread-4k-qd1,"), "{error}");
        let error = run(&parse(&["--peers", "nvmet"])).unwrap_err().to_string();
        assert!(error.contains("\"nvmet\"; there are local,"), "{error}");
    }

    #[test]
    fn a_quick_run_is_short_unless_told_otherwise() {
        let quick = parse(&["--quick"]);
        assert_eq!((quick.seconds(), quick.repeat()), (1, 1));
        assert_eq!(parse(&["--quick", "--repeat", "5"]).repeat(), 5);
    }
}

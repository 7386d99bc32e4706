//! The command line `lariat`: NVMe over RDMA from user space, with nvme-cli's verbs and flags.
//!
//! Exit codes: 0 done; 1 a run-time error (network, target, file); 2 arguments that make no sense or
//! do not fit the target or its namespace; 130 ended by SIGINT or SIGTERM before the work was done; 141
//! stdout was closed at the other end. Errors are one line on stderr. Calls one module for each verb.
#![forbid(unsafe_code)]

mod advice;
mod bench;
mod connect_args;
mod copy;
mod discover;
mod failure;
mod flush;
mod id_ctrl;
mod id_ns;
mod list_ns;
mod output;
mod signals;
mod units;

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::bench::BenchArgs;
use crate::connect_args::{ConnectArgs, NamespaceArgs, SubsystemArgs};
use crate::copy::{ReadOptions, WriteOptions};
use crate::flush::FlushOptions;
use crate::output::OutputFormat;
use crate::signals::Stop;

const AFTER_HELP: &str = "\
`lariat COMMAND --help` has each command's options. Each command connects, does its work and ends; no
block device appears. Flags are nvme-cli's, but -n is the subsystem everywhere (see --namespace-id).
Sizes take suffixes: 4k, 1MiB, 2G (powers of 1024), 4kB, 1MB (powers of 1000); times: 10, 1.5s, 500ms.
Exit codes: 0 done; 1 run-time error; 2 wrong arguments; 130 interrupted; 141 stdout closed.
LARIAT_LOG=debug shows what the library does.

Examples:
  lariat discover -t rdma -a 192.0.2.7
  lariat id-ctrl -t rdma -a 192.0.2.7 -n nqn.2026-11.io.lariat:demo
  lariat write -t rdma -a 192.0.2.7 -n nqn.2026-11.io.lariat:demo --input disk.img
  lariat read -t rdma -a 192.0.2.7 -n nqn.2026-11.io.lariat:demo --length 64M --output - | file -
  lariat bench -t rdma -a 192.0.2.7 -n nqn.2026-11.io.lariat:demo --rw randread --bs 4k --iodepth 32";

/// NVMe over RDMA (RoCEv2) from user space: discover, identify, read, write, measure.
#[derive(Debug, Parser)]
#[command(name = "lariat", version, after_help = AFTER_HELP)]
struct Line {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List the subsystems that a target offers this host
    Discover(DiscoverArgs),
    /// Show what a controller is and can do (Identify Controller)
    IdCtrl(SubsystemVerb),
    /// Show a namespace's size, formats and features (Identify Namespace)
    IdNs(NamespaceVerb),
    /// List the namespaces of a subsystem
    ListNs(SubsystemVerb),
    /// Copy from a namespace to a file or stdout
    Read(ReadOptions),
    /// Copy a file or stdin to a namespace, then flush
    Write(WriteOptions),
    /// Make all that was written before durable
    Flush(FlushOptions),
    /// Measure IOPS, throughput and latency
    Bench(BenchArgs),
}

#[derive(Debug, clap::Args)]
struct DiscoverArgs {
    /// How the log is printed.
    #[arg(short, long, value_enum, default_value = "normal")]
    output_format: OutputFormat,
    #[command(flatten)]
    connect: ConnectArgs,
}

#[derive(Debug, clap::Args)]
struct SubsystemVerb {
    /// How the data is printed.
    #[arg(short, long, value_enum, default_value = "normal")]
    output_format: OutputFormat,
    #[command(flatten)]
    subsystem: SubsystemArgs,
}

#[derive(Debug, clap::Args)]
struct NamespaceVerb {
    /// How the data is printed.
    #[arg(short, long, value_enum, default_value = "normal")]
    output_format: OutputFormat,
    #[command(flatten)]
    namespace: NamespaceArgs,
}

fn main() -> ExitCode {
    // Usage errors end here, with code 2.
    let line = Line::try_parse().unwrap_or_else(|error| advice::exit(&error));
    log_to_stderr();
    match run(&line.verb) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let (code, words) = failure::verdict(&error);
            if let Some(words) = words {
                let _ = writeln!(std::io::stderr(), "lariat: {words}");
            }
            ExitCode::from(code)
        }
    }
}

fn run(verb: &Verb) -> Result<()> {
    match verb {
        Verb::Discover(args) => discover::run(&args.connect, args.output_format),
        Verb::IdCtrl(args) => id_ctrl::run(&args.subsystem, args.output_format),
        Verb::IdNs(args) => id_ns::run(&args.namespace, args.output_format),
        Verb::ListNs(args) => list_ns::run(&args.subsystem, args.output_format),
        Verb::Read(options) => copy::read(options, &Stop::install()?),
        Verb::Write(options) => copy::write(options, &Stop::install()?),
        Verb::Flush(options) => flush::run(options),
        Verb::Bench(args) => bench::bench(args, &Stop::install()?),
    }
}

fn log_to_stderr() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("LARIAT_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("error"));
    // Without the internal errors: to tell stderr that stderr cannot be written is a panic.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .log_internal_errors(false)
        .try_init();
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Line::command().debug_assert();
    }

    #[test]
    fn limits_stand_in_the_help() {
        for (verb, limits) in [
            ("read", &["1 to 1024", "up to 64 MiB"][..]),
            ("write", &["1 to 1024", "up to 64 MiB"]),
            ("bench", &["1 to 1024", "up to 64 MiB", "1 to 128"]),
        ] {
            let mut line = Line::command();
            let help = line.find_subcommand_mut(verb).unwrap().render_long_help().to_string();
            for limit in limits {
                assert!(help.contains(limit), "{verb}: {limit}: {help}");
            }
            let own = help.find("--iodepth").unwrap();
            assert!(own < help.find("Connection:").unwrap(), "the verb's own come first: {help}");
        }
    }

    #[test]
    fn nvme_clis_lines_are_understood() {
        for line in [
            "lariat discover -t rdma -a 10.0.0.1 -s 4420",
            "lariat id-ctrl -t rdma -a 10.0.0.1 -s 4420 -n nqn.2026-11.io.lariat:demo -o json",
            "lariat id-ns -t rdma -a ::1 -n nqn.2026-11.io.lariat:demo --namespace-id 1",
            "lariat list-ns --transport rdma --traddr h --trsvcid 1 --nqn nqn.2026-11.io.lariat:d",
            "lariat flush -a ::1 -n nqn.2026-11.io.lariat:demo",
        ] {
            Line::try_parse_from(line.split(' ')).unwrap();
        }
    }
}

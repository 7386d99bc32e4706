//! Every chore of the project, one entry point: `cargo xtask help`.
//!
//! Each verb installs what it needs (Debian packages by apt-get, as root or through sudo) and never
//! asks anything.
#![forbid(unsafe_code)]

mod bench;
mod cluster;
mod demo;
mod fio_abi;
mod instructions;
mod lab;
mod lint;
mod measure;
mod setup;
mod shell;
mod spdk;
mod table;
mod test;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// The chores of the Lariat project.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version, about)]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Start a target, connect to it over RoCEv2, move and verify real data, show figures.
    Demo(demo::Options),
    /// Run every test: unit, property, simulation, end-to-end, wire capture, documentation.
    Test(test::Options),
    /// Run whole-stack simulations from seeds, or replay one.
    Sim(test::SimOptions),
    /// Measure Lariat beside local disks and its peers; write docs/benchmarks.md and docs/benchmarks/.
    Bench(bench::Options),
    /// Draw flame graphs of target and initiator under load.
    Profile(bench::profile::Options),
    /// Count the instructions of a request, by function; fail if they have grown.
    Instructions(instructions::Options),
    /// Print where the fields that the fio engine touches lie, from source trees of fio.
    FioAbi(fio_abi::Options),
    /// Both of our ends with Linux's own, in a virtual machine with a stock Debian kernel.
    Lab(lab::Options),
    /// Formatting, clippy, dependency policy, spelling.
    Lint,
    /// Install the Debian packages that the other verbs need.
    Setup,
}

fn main() -> ExitCode {
    match run(Cli::parse().chore) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(chore: Chore) -> Result<()> {
    match chore {
        Chore::Demo(options) => demo::run(&options),
        Chore::Test(options) => test::run(&options),
        Chore::Sim(options) => test::sim(&options),
        Chore::Bench(options) => bench::run(&options),
        Chore::Profile(options) => bench::profile::run(&options),
        Chore::Instructions(options) => instructions::run(&options),
        Chore::FioAbi(options) => fio_abi::run(&options),
        Chore::Lab(options) => lab::run(&options),
        Chore::Lint => lint::run(),
        Chore::Setup => setup::install(setup::EVERYTHING),
    }
}

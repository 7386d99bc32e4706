//! `cargo xtask bench`: the soft provider on loopback beside the local limit, in one run.
//!
//! Repetitions are interleaved (remote, local, remote, local ...), since machines drift; medians
//! and ratios are reported.

use std::fmt::Write as _;

use anyhow::Result;

use crate::cluster::{Backend, Binaries, Target};
use crate::measure::{self, Figures, WORKLOADS};
use crate::table::Table;
use crate::{demo, setup, shell};

/// What can be chosen.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Seconds per measurement.
    #[arg(long, default_value_t = 4)]
    seconds: u32,
    /// Interleaved repetitions; the median counts.
    #[arg(long, default_value_t = 3)]
    repeat: u32,
    /// Print the table, leave docs/benchmarks.md as it is.
    #[arg(long)]
    no_write: bool,
}

const DISK_MIB: u64 = 1024;
const MEMORY_MIB: u64 = 512;

pub(crate) fn run(options: &Options) -> Result<()> {
    setup::install(setup::BUILD)?;
    setup::install(&[setup::FIO])?;
    let binaries = Binaries::build()?;
    let folder =
        tempfile::Builder::new().prefix("lariat-bench-").tempdir_in(shell::root().join("build"))?;
    let disk = folder.path().join("disk.img");
    demo::allocate(&disk, DISK_MIB << 20)?;
    measure::fill(&disk)?;
    let backends = [Backend::File(&disk), Backend::Memory(MEMORY_MIB), Backend::Null(MEMORY_MIB)];
    let target = Target::start(&binaries, folder.path(), &backends)?;

    let mut table = Table::new(&[
        "workload",
        "file, remote",
        "file, local",
        "ratio",
        "p50 us remote",
        "p50 us local",
        "memory, remote",
        "p50 us",
        "null, remote",
        "p50 us",
    ]);
    for &workload in WORKLOADS {
        let mut runs: [Vec<Figures>; 4] = Default::default();
        for _ in 0..options.repeat {
            for (nsid, remote) in (1..).zip(&mut runs[..3]) {
                remote.push(measure::remote(&binaries, &target, nsid, workload, options.seconds)?);
            }
            runs[3].push(measure::local(&disk, workload, options.seconds)?);
        }
        let [file, memory, null, local] = runs.map(|runs| measure::median(&runs));
        table.row(vec![
            workload.name.into(),
            measure::throughput(workload, file),
            measure::throughput(workload, local),
            format!("{:.2}", file.iops / local.iops),
            format!("{:.1}", file.p50_us),
            format!("{:.1}", local.p50_us),
            measure::throughput(workload, memory),
            format!("{:.1}", memory.p50_us),
            measure::throughput(workload, null),
            format!("{:.1}", null.p50_us),
        ]);
        println!("{}: done", workload.name);
    }
    target.stop()?;
    let table = table.markdown();
    println!("\n{table}");
    if !options.no_write {
        write_page(options, &table)?;
    }
    Ok(())
}

/// Replaces the measured part of docs/benchmarks.md, between its two markers.
fn write_page(options: &Options, table: &str) -> Result<()> {
    const BEGIN: &str = "<!-- measured: begin -->";
    const END: &str = "<!-- measured: end -->";
    let page = shell::root().join("docs/benchmarks.md");
    let text = std::fs::read_to_string(&page)?;
    let (Some(begin), Some(end)) = (text.find(BEGIN), text.find(END)) else {
        anyhow::bail!("{} has lost its markers {BEGIN} and {END}", page.display());
    };
    let mut measured = String::new();
    writeln!(
        measured,
        "Measured with `cargo xtask bench --seconds {} --repeat {}` on {}.\n\n{table}",
        options.seconds,
        options.repeat,
        machine()
    )?;
    let page_text = format!("{}\n{measured}\n{}", &text[..begin + BEGIN.len()], &text[end..]);
    std::fs::write(&page, page_text)?;
    println!("written to {}", page.display());
    Ok(())
}

/// Processor, cores, kernel: what a reader needs to place the figures.
fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .map_or("unknown processor", |rest| rest.trim_start_matches(['\t', ' ', ':']));
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{cores} cores ({model}), Linux {}", kernel.trim())
}

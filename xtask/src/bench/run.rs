//! The order of a run: the ground, the peers, then for each workload and repetition one measurement
//! of each system, then the idle times. Calls `peers`; called by `mod`.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::Options;
use super::peer::{Ground, Peer};
use super::process::{self, Lock, Placing};
use super::results::{FORMAT, Idle, Results, Run, Settings, Skipped, System};
use super::workload::{READ_32, Workload};
use super::{machine, peers};
use crate::cluster::Binaries;
use crate::spdk::Build;
use crate::{demo, measure, setup, shell};

const DISK_MIB: u64 = 1024;
const MEMORY_MIB: u64 = 512;
/// Idle times hardly move: no need to look at them in every repetition.
const IDLE_REPETITIONS: u32 = 2;

/// A peer that runs, and its systems.
struct Started {
    peer: Box<dyn Peer>,
    systems: Vec<System>,
}

/// Measures everything that was asked for.
pub(crate) fn run(options: &Options) -> Result<Results> {
    let spdk = options.spdk.as_deref().map(Build::open).transpose()?;
    setup::install(setup::BUILD)?;
    setup::install(&[setup::FIO])?;
    let names = options.peers();
    if names.iter().any(|name| name == "tgt" || name == "nbdkit") {
        // Without them the benchmark has less to say, but it goes on.
        if let Err(error) = setup::install(setup::PEERS) {
            println!("not all peers can be installed: {error:#}");
        }
    }
    let binaries = Binaries::build_for_bench()?;
    process::catch_signals()?;

    // Both are removed when they go out of scope, on errors too.
    let folder =
        tempfile::Builder::new().prefix("lariat-bench-").tempdir_in(shell::root().join("build"))?;
    let memory = tempfile::Builder::new().prefix("lariat-bench-").tempdir_in("/dev/shm")?;
    let ground = Ground {
        folder: folder.path().to_owned(),
        disk: folder.path().join("disk.img"),
        cached: folder.path().join("cached.img"),
        memory: memory.path().join("memory.img"),
        disk_mib: DISK_MIB,
        memory_mib: MEMORY_MIB,
        placing: if options.free { Placing { cores: None } } else { Placing::pinned() },
        binaries,
        spdk,
    };
    prepare(&ground)?;

    let mut results = Results {
        format: FORMAT,
        date: machine::date(),
        command: options.command(),
        machine: machine::machine(),
        programs: machine::programs(ground.spdk.as_ref()),
        settings: Settings {
            seconds: options.seconds(),
            repeat: options.repeat(),
            placing: ground.placing.describe(),
            disk_mib: DISK_MIB,
            memory_mib: MEMORY_MIB,
        },
        workloads: options.workloads()?,
        systems: Vec::new(),
        runs: Vec::new(),
        idle: Vec::new(),
        skipped: Vec::new(),
        lab: None,
    };
    let mut started = start(&names, &ground, &mut results)?;
    let measured = measure_all(options, &ground, &mut started, &mut results);
    for one in &mut started {
        if let Err(error) = one.peer.stop() {
            println!("{} did not stop in order: {error:#}", one.peer.name());
        }
    }
    match measured {
        // What was measured until then is worth having.
        Err(_) if process::interrupted() && !results.runs.is_empty() => {}
        measured => measured?,
    }
    results.machine.load_after = machine::load();
    Ok(results)
}

/// The files, written from end to end: blocks that were never written cost no disk.
fn prepare(ground: &Ground) -> Result<()> {
    println!("filling {} MiB twice, and {} MiB of memory", ground.disk_mib, ground.memory_mib);
    for (file, mib) in [
        (&ground.disk, ground.disk_mib),
        (&ground.cached, ground.disk_mib),
        (&ground.memory, ground.memory_mib),
    ] {
        demo::allocate(file, mib << 20)?;
        fill(file, file != &ground.memory)?;
        process::check_signals()?;
    }
    Ok(())
}

fn fill(file: &Path, direct: bool) -> Result<()> {
    if direct {
        return measure::fill(file);
    }
    let filename = format!("--filename={}", file.display());
    let words = ["--name=fill", &filename, "--ioengine=psync", "--rw=write", "--bs=1m"];
    process::prepare("fio", &words)
}

fn start(names: &[String], ground: &Ground, results: &mut Results) -> Result<Vec<Started>> {
    let mut started = Vec::new();
    for name in names {
        let mut peer = peers::by_name(name).with_context(|| {
            format!("there is no peer {name:?}; there are {}", peers::NAMES.join(", "))
        })?;
        process::check_signals()?;
        match peer.start(ground) {
            Ok(systems) => {
                results.systems.extend(systems.iter().cloned());
                started.push(Started { peer, systems });
            }
            Err(error) => {
                let _ = peer.stop();
                process::check_signals()?;
                let reason = format!("not measured: {error:#}");
                println!("{name}: {reason}");
                let skipped = Skipped { system: name.clone(), workload: None, reason };
                results.skipped.push(skipped);
            }
        }
    }
    if started.is_empty() {
        bail!("no peer can be measured");
    }
    Ok(started)
}

fn measure_all(
    options: &Options,
    ground: &Ground,
    started: &mut [Started],
    results: &mut Results,
) -> Result<()> {
    for workload in &results.workloads.clone() {
        for repetition in 0..options.repeat() {
            for one in started.iter_mut() {
                for system in &one.systems {
                    if let Some(reason) = one.peer.lacks(&system.id, workload) {
                        if repetition == 0 {
                            results.skipped.push(Skipped {
                                system: system.id.clone(),
                                workload: Some(workload.id.clone()),
                                reason,
                            });
                        }
                        continue;
                    }
                    let place = (system.id.as_str(), workload, repetition);
                    let run = measure_one(options, ground, one.peer.as_mut(), place)?;
                    results.runs.push(run);
                    if workload.id == READ_32 && repetition < IDLE_REPETITIONS {
                        idle(one.peer.as_ref(), &system.id, repetition, results)?;
                    }
                }
            }
            println!("{}: {} of {}", workload.name, repetition + 1, options.repeat());
        }
    }
    Ok(())
}

/// One measurement. What fails is recorded and does not end the run; only a signal does.
fn measure_one(
    options: &Options,
    ground: &Ground,
    peer: &mut dyn Peer,
    (system, workload, repetition): (&str, &Workload, u32),
) -> Result<Run> {
    let quiet = options.lock.as_deref().map(Lock::claim).transpose()?;
    let measured = peer.measure(ground, system, workload, options.seconds());
    drop(quiet);
    process::check_signals()?;
    if workload.pattern.writes() {
        // What the page cache still has to write would slow the next measurement down.
        for file in [&ground.cached, &ground.disk] {
            File::open(file)?.sync_all()?;
        }
    }
    let run = |command, sample, error| Run {
        system: system.into(),
        workload: workload.id.clone(),
        repetition,
        command,
        sample,
        error,
    };
    Ok(match measured {
        Ok(measured) => run(measured.command, Some(measured.sample), None),
        Err(error) => {
            println!("{system}, {}: {error:#}", workload.name);
            run(String::new(), None, Some(format!("{error:#}")))
        }
    })
}

fn idle(peer: &dyn Peer, system: &str, repetition: u32, results: &mut Results) -> Result<()> {
    if let Some(percent) = peer.idle_percent(system)? {
        results.idle.push(Idle { system: system.into(), repetition, percent });
    }
    Ok(())
}

/// Where a run leaves its files.
pub(crate) fn output_folder() -> PathBuf {
    shell::root().join("docs/benchmarks")
}

//! Jobs that end: again and again without a trace, by a signal, with a target that dies.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lariat_tests::process::{Backend, Running, Scratch, Target, TargetConfig, bounded, run, until};
use nix::sys::signal::Signal;

use super::LIMIT;
use super::setting::{fio, job, report};

fn target(scratch: &Scratch) -> Result<Target> {
    Target::start(scratch, &TargetConfig::new().disk(Backend::Memory(16 << 20), 4096))
}

#[test]
fn twenty_rounds_leave_nothing_behind() -> Result<()> {
    let Some(fio) = fio()? else { return Ok(()) };
    bounded(LIMIT, move || {
        let scratch = Scratch::new()?;
        let target = target(&scratch)?;
        let count = |what: &str| -> Result<usize> {
            Ok(std::fs::read_dir(format!("/proc/{}/{what}", target.pid()))?.count())
        };
        let mut before = None;
        for round in 0..20 {
            let thread = if round % 2 == 0 { "--thread=0" } else { "--thread=1" };
            let options = ["--rw=randrw", "--bs=4k", "--size=256k", "--iodepth=8", "--numjobs=2"];
            report(job(&fio, &scratch, &target)?, &[&options[..], &[thread]].concat())?;
            let now = (count("fd")?, count("task")?);
            // The first round may make what is kept.
            let first = *before.get_or_insert(now);
            ensure!(now == first, "round {round}: descriptors, threads {now:?}, first {first:?}");
        }
        target.stop().map(drop)
    })
}

#[test]
fn an_interrupt_ends_a_job_with_its_report() -> Result<()> {
    let Some(fio) = fio()? else { return Ok(()) };
    bounded(LIMIT, move || {
        let scratch = Scratch::new()?;
        let target = target(&scratch)?;
        let output = scratch.join("report");
        let mut command = job(&fio, &scratch, &target)?;
        command.args(["--rw=randread", "--bs=4k", "--iodepth=32", "--time_based", "--runtime=60"]);
        // A report each second, so that it can be seen that the job is under way.
        command.arg(format!("--output={}", output.display())).arg("--status-interval=1");
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut running = Running::spawn(&mut command)?;
        let said = || std::fs::read_to_string(&output).unwrap_or_default();
        until("a first report", Duration::from_secs(30), || {
            Ok(said().contains("\n}").then_some(()))
        })?;
        let start = Instant::now();
        running.signal(Signal::SIGINT)?;
        running.wait(Duration::from_secs(20))?;
        ensure!(start.elapsed() < Duration::from_secs(10), "it took {:?}", start.elapsed());
        let text = said();
        let last = text.rfind("\n{").context("no last report")?;
        let json = text.get(last..).unwrap_or_default();
        let value: serde_json::Value = serde_json::from_str(json)?;
        ensure!(value["jobs"][0]["read"]["total_ios"].as_u64() > Some(0), "{text}");
        target.stop().map(drop)
    })
}

#[test]
fn a_target_that_dies_ends_the_job_with_an_error() -> Result<()> {
    let Some(fio) = fio()? else { return Ok(()) };
    bounded(LIMIT, move || {
        let scratch = Scratch::new()?;
        let mut target = target(&scratch)?;
        let mut command = job(&fio, &scratch, &target)?;
        command.args(["--rw=randread", "--bs=4k", "--iodepth=32", "--time_based", "--runtime=60"]);
        command.args(["--io_timeout=3", "--keep_alive_tmo=3", "--status-interval=1"]);
        let output = scratch.join("report");
        command.arg(format!("--output={}", output.display()));
        let fio = std::thread::spawn(move || run(&mut command, Duration::from_secs(50)));
        let said = || std::fs::read_to_string(&output).unwrap_or_default();
        until("a first report", Duration::from_secs(30), || {
            Ok(said().contains("\n}").then_some(()))
        })?;
        let start = Instant::now();
        target.kill()?;
        let done = fio.join().map_err(|_| anyhow::anyhow!("the thread died"))??;
        ensure!(done.code != 0, "fio took it for a success");
        ensure!(start.elapsed() < Duration::from_secs(30), "it took {:?}", start.elapsed());
        let ours = done.stderr.lines().filter(|line| line.starts_with("lariat: ")).count();
        ensure!(ours == 1, "not one line: {}", done.stderr);
        Ok(())
    })
}

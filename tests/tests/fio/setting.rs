//! A target, and fio with the engine: what all of these tests start from.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lariat_tests::process::{Finished, NQN, Scratch, Target, engine, run};
use serde_json::Value;

const RUN_LIMIT: Duration = Duration::from_secs(60);

/// fio, where there is one; a test without it says that it was skipped. Also builds the engine, so
/// that this does not count as the test's time.
pub(crate) fn fio() -> Result<Option<PathBuf>> {
    let fio = std::env::var_os("LARIAT_TEST_FIO").map_or_else(|| "fio".into(), PathBuf::from);
    let found = Command::new(&fio).arg("--version").output().is_ok_and(|out| out.status.success());
    if !found {
        let test = std::thread::current().name().unwrap_or("a test").to_owned();
        eprintln!("SKIPPED: {test}: there is no fio ({} --version)", fio.display());
    }
    engine()?;
    Ok(found.then_some(fio))
}

/// fio with the engine, without a job yet. Its files go to the scratch folder.
pub(crate) fn command(fio: &PathBuf, scratch: &Scratch) -> Result<Command> {
    let mut command = Command::new(fio);
    command.current_dir(scratch.path()).stdin(Stdio::null()).env_remove("LARIAT_FIO_VERSION");
    command.args(["--output-format=json", "--name=test"]);
    command.arg(format!("--ioengine=external:{}", engine()?.display()));
    Ok(command)
}

/// As [`command`], with the target named by options.
pub(crate) fn job(fio: &PathBuf, scratch: &Scratch, target: &Target) -> Result<Command> {
    let mut command = command(fio, scratch)?;
    command.arg(format!("--traddr={}", target.ip())).arg(format!("--subnqn={NQN}"));
    Ok(command)
}

/// The report of a run that went well and said nothing besides.
pub(crate) fn report<S: AsRef<OsStr>>(mut command: Command, options: &[S]) -> Result<Report> {
    let done = run(command.args(options), RUN_LIMIT)?.success()?;
    ensure!(done.stderr.is_empty(), "fio went well and said: {}", done.stderr);
    Report::new(&done)
}

/// fio's JSON.
#[derive(Debug)]
pub(crate) struct Report(Vec<Value>);

impl Report {
    /// Nothing but the report is in what fio wrote.
    pub(crate) fn new(done: &Finished) -> Result<Self> {
        let text = done.text();
        let report: Value =
            serde_json::from_str(&text).with_context(|| format!("no JSON: {text}"))?;
        let jobs = report["jobs"].as_array().context("no jobs")?.clone();
        Ok(Self(jobs))
    }

    /// Of how many jobs.
    pub(crate) fn jobs(&self) -> usize {
        self.0.len()
    }

    /// Sum over all jobs of a number in a section (`read`, `write`, `trim`, `sync`).
    pub(crate) fn sum(&self, section: &str, number: &str) -> u64 {
        self.0.iter().filter_map(|job| job[section][number].as_u64()).sum()
    }

    /// Sum of the jobs' errors.
    pub(crate) fn errors(&self) -> Vec<u64> {
        self.0.iter().filter_map(|job| job["error"].as_u64()).collect()
    }

    /// A job's rate of requests.
    pub(crate) fn iops(&self, section: &str) -> f64 {
        self.0.iter().filter_map(|job| job[section]["iops"].as_f64()).sum()
    }
}

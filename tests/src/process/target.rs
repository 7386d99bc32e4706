//! A running `lariatd`: started, watched, signalled, ended. Calls `binaries` and `bound`; called by
//! tests.

use std::fs::File;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::Signal;

use super::binaries::binary;
use super::bound::until;
use super::command::Running;
use super::config::{PORT, TargetConfig};
use super::scratch::Scratch;

const START_LIMIT: Duration = Duration::from_secs(20);
const STOP_LIMIT: Duration = Duration::from_secs(20);

/// A target. Dropping it kills it; if the test fails its log is printed.
#[derive(Debug)]
pub struct Target {
    process: Running,
    address: IpAddr,
    log: PathBuf,
}

impl Target {
    /// Starts one and waits until it is ready. Its configuration and log lie in `scratch`.
    ///
    /// # Errors
    /// It does not get ready; with its log.
    pub fn start(scratch: &Scratch, config: &TargetConfig) -> Result<Self> {
        let command = Command::new(binary("lariatd")?);
        Self::start_by(command, scratch, config)
    }

    /// As [`Self::start`], through a command that runs what its arguments say (`sh -c ... lariatd`).
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_by(
        mut command: Command,
        scratch: &Scratch,
        config: &TargetConfig,
    ) -> Result<Self> {
        // Names of their own, so that a test may start several in one folder.
        let stem = tempfile::Builder::new().prefix("lariatd-").tempfile_in(scratch.path())?;
        let (_, stem) = stem.keep()?;
        let file = stem.with_extension("toml");
        std::fs::write(&file, config.toml())?;
        let log = stem.with_extension("log");
        let output = stem.with_extension("out");
        command
            .arg("--config")
            .arg(file)
            .stdin(Stdio::null())
            .stdout(File::create(&output)?)
            .stderr(File::create(&log)?);
        let process = Running::spawn(&mut command)?;
        let mut target = Self { process, address: config.address, log };
        let ready = until("ready", START_LIMIT, || {
            if let Some(status) = target.process.try_wait()? {
                bail!("lariatd ended with {status}");
            }
            let said = std::fs::read_to_string(&output)?;
            Ok((said == "ready\n").then_some(()))
        });
        ready.with_context(|| format!("lariatd did not start:\n{}", target.log_text()))?;
        Ok(target)
    }

    /// Its process identifier.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Where it listens.
    #[must_use]
    pub fn ip(&self) -> IpAddr {
        self.address
    }

    /// Where it listens, with the port.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(self.address, PORT)
    }

    /// What it logged so far.
    #[must_use]
    pub fn log_text(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Its log's file.
    #[must_use]
    pub fn log_file(&self) -> &Path {
        &self.log
    }

    /// Waits until the log has `count` lines with these words.
    ///
    /// # Errors
    /// They do not come within `limit`.
    pub fn wait_for_log(&self, words: &str, count: usize, limit: Duration) -> Result<()> {
        until(&format!("{count} x {words:?} in the log"), limit, || {
            let found = self.log_text().lines().filter(|line| line.contains(words)).count();
            Ok((found >= count).then_some(()))
        })
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// The operating system's word.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.process.signal(signal)
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// It does not end within `limit`.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        self.process.wait(limit).with_context(|| format!("lariatd's log:\n{}", self.log_text()))
    }

    /// Kills it.
    ///
    /// # Errors
    /// The operating system's word.
    pub fn kill(&mut self) -> Result<()> {
        self.signal(Signal::SIGKILL)?;
        self.wait(STOP_LIMIT).map(drop)
    }

    /// Stops it by SIGTERM, wants a clean end, returns its log.
    ///
    /// # Errors
    /// It ends otherwise, or not in time.
    pub fn stop(mut self) -> Result<String> {
        self.signal(Signal::SIGTERM)?;
        let status = self.wait(STOP_LIMIT)?;
        let log = self.log_text();
        ensure!(status.success(), "lariatd ended with {status}:\n{log}");
        ensure!(!log.contains("panicked"), "lariatd panicked:\n{log}");
        Ok(log)
    }

    /// The sum of a fabric counter over all reactors, from the log of a target that has ended.
    ///
    /// # Errors
    /// The log does not have it.
    pub fn counter(log: &str, name: &str) -> Result<u64> {
        let mut sum = None;
        for line in log.lines().filter(|line| line.contains("the reactor has ended")) {
            let key = format!(" {name}: ");
            let Some((_, rest)) = line.split_once(&key) else { continue };
            let digits = rest.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
            sum = Some(sum.unwrap_or(0) + digits.parse::<u64>()?);
        }
        sum.with_context(|| format!("no counter {name} in the log:\n{log}"))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("lariatd {} at {} logged:\n{}", self.pid(), self.address, self.log_text());
        }
    }
}

//! Processes that are watched: they end in time, or are killed. Calls `binaries` and `bound`; called
//! by tests and `target`.

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::binaries::binary;
use super::bound;
use super::config::{NQN, PORT};
use super::target::Target;

/// A process. Dropping it kills it and waits for it.
#[derive(Debug)]
pub struct Running {
    child: Child,
    ended: bool,
}

/// What a process left behind.
#[derive(Debug)]
pub struct Finished {
    /// Its exit code, or minus the signal that ended it.
    pub code: i32,
    /// What it wrote to stdout.
    pub stdout: Vec<u8>,
    /// What it wrote to stderr.
    pub stderr: String,
    /// How long it took.
    pub took: Duration,
}

impl Finished {
    /// Wants success.
    ///
    /// # Errors
    /// It failed, with what it said.
    pub fn success(self) -> Result<Self> {
        ensure!(self.code == 0, "exit code {}: {}", self.code, self.stderr);
        Ok(self)
    }

    /// Wants an exit code and words in stderr.
    ///
    /// # Errors
    /// It ended otherwise, with what it said.
    pub fn failure(self, code: i32, words: &[&str]) -> Result<Self> {
        ensure!(self.code == code, "exit code {}, not {code}: {}", self.code, self.stderr);
        for words in words {
            ensure!(self.stderr.contains(words), "{words:?} is not in: {}", self.stderr);
        }
        Ok(self)
    }

    /// Stdout as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

impl Running {
    /// Starts a process.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn spawn(command: &mut Command) -> Result<Self> {
        let child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        let running = Self { child, ended: false };
        bound::started(running.id());
        Ok(running)
    }

    fn id(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// Its process identifier.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// The operating system's word.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        ensure!(!self.ended, "the process has ended already");
        kill(self.id(), signal)?;
        // A thread that runs on another core goes on for a moment after a stop was sent.
        let end = Instant::now() + Duration::from_secs(5);
        while signal == Signal::SIGSTOP && !self.stands_still()? {
            ensure!(Instant::now() < end, "SIGSTOP does not stop the process");
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Whether the kernel says of all its threads that they are stopped.
    fn stands_still(&self) -> Result<bool> {
        for task in fs::read_dir(format!("/proc/{}/task", self.id()))? {
            let stat = fs::read_to_string(task?.path().join("stat"))?;
            if !stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" T")) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether the processes that it started itself have ended, and it has taken note of that.
    ///
    /// # Errors
    /// The operating system's word.
    pub fn is_childless(&self) -> Result<bool> {
        for task in fs::read_dir(format!("/proc/{}/task", self.id()))? {
            if !fs::read_to_string(task?.path().join("children"))?.is_empty() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// How it ended, if it has.
    ///
    /// # Errors
    /// The operating system's word.
    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>> {
        let status = self.child.try_wait()?;
        if status.is_some() && !self.ended {
            self.ended = true;
            bound::ended(self.id());
        }
        Ok(status)
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// It does not come within `limit`.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let what = format!("the end of process {}", self.pid());
        bound::until(&what, limit, || self.try_wait())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.child.kill();
            let _ = self.child.wait();
            bound::ended(self.id());
        }
    }
}

fn collect(stream: Option<impl Read + Send + 'static>) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut stream) = stream {
            let _ = stream.read_to_end(&mut bytes);
        }
        bytes
    })
}

/// Runs a command to its end, with its output collected.
///
/// # Errors
/// It cannot be started, or takes longer than `limit`.
pub fn run(command: &mut Command, limit: Duration) -> Result<Finished> {
    let start = Instant::now();
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Running::spawn(command)?;
    let stdout = collect(running.child.stdout.take());
    let stderr = collect(running.child.stderr.take());
    let ended = running.wait(limit);
    let took = start.elapsed();
    // Closes the streams, should it still run.
    drop(running);
    let stdout = stdout.join().unwrap_or_default();
    let stderr = String::from_utf8_lossy(&stderr.join().unwrap_or_default()).into_owned();
    match ended {
        Ok(status) => {
            let code = status.code().unwrap_or_else(|| -status.signal().unwrap_or(0));
            Ok(Finished { code, stdout, stderr, took })
        }
        Err(error) => bail!("{command:?}: {error:#}; it said: {stderr}"),
    }
}

/// `lariat` with the flags that name the target and, but for `discover`, its subsystem.
///
/// # Errors
/// There is no such binary.
pub fn lariat<S: AsRef<OsStr>>(target: &Target, verb: &str, rest: &[S]) -> Result<Command> {
    let mut command = Command::new(binary("lariat")?);
    command.args([verb, "-t", "rdma", "-a"]).arg(target.ip().to_string());
    command.args(["-s", &PORT.to_string()]);
    if verb != "discover" {
        command.args(["-n", NQN]);
    }
    command.args(rest).stdin(Stdio::null()).env_remove("LARIAT_LOG");
    Ok(command)
}

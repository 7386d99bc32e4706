//! One guest: QEMU started by virtme-ng, a script in it, its verdict and log.

use std::fmt;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::Outcome;
use super::kernel::Kernel;
use super::parts::Part;
use super::scenario::Scenario;
use crate::shell;

const VIRTME: &str = "virtme-ng==1.42";
/// How long the kernel may take to run the script's first line, under emulation.
const BOOT_LIMIT: Duration = Duration::from_secs(180);
/// A kernel that KVM can start says so within a few seconds.
const PROBE_LIMIT: Duration = Duration::from_secs(30);
/// With a steady clock, an instruction takes 2^STEADY_SHIFT ns of the guest's time: about what
/// emulation takes on a machine at rest.
const STEADY_SHIFT: u8 = 2;
/// What a script prints last.
const SUMMARY: &str = "checks: ";
const STARTED: &str = "lab: the guest is up";

/// How a scenario ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Passed,
    /// In words.
    Failed(String),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Passed => "passed",
            Self::Failed(_) => "FAILED",
        })
    }
}

/// All that is needed to start guests.
pub(crate) struct Guest {
    pub(crate) kernel: Kernel,
    binaries: PathBuf,
    parts: Vec<Part>,
    virtme: PathBuf,
    kvm: bool,
    steady: bool,
}

impl Guest {
    /// Installs virtme-ng into the lab's folder and finds out what the machine can do.
    pub(crate) fn prepare(
        kernel: Kernel,
        binaries: PathBuf,
        parts: Vec<Part>,
        steady: bool,
    ) -> Result<Self> {
        let environment = super::folder().join("venv");
        let virtme = environment.join("bin/vng");
        if !virtme.is_file() {
            println!("installing virtme-ng");
            let to = environment.display().to_string();
            shell::capture(&mut shell::command("/usr/bin/python3", &["-m", "venv", &to]))?;
            let pip = environment.join("bin/pip").display().to_string();
            shell::capture(&mut shell::command(&pip, &["install", "--quiet", VIRTME]))?;
        }
        fs::create_dir_all(super::folder().join("out"))?;
        let mut guest = Self { kernel, binaries, parts, virtme, kvm: false, steady };
        guest.kvm = !steady && Path::new("/dev/kvm").exists() && guest.boots_with_kvm()?;
        Ok(guest)
    }

    /// How fast it will be, in words.
    pub(crate) fn speed(&self) -> &'static str {
        match (self.kvm, self.steady) {
            (true, _) => "with KVM",
            (false, false) => "emulated (no KVM that can start it)",
            (false, true) => "emulated, its clock counts instructions",
        }
    }

    /// There may be a /dev/kvm that cannot start a kernel: try, once per machine boot.
    fn boots_with_kvm(&self) -> Result<bool> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let note = super::folder().join(format!("kvm-{}", boot.trim()));
        if let Ok(known) = fs::read_to_string(&note) {
            return Ok(known.trim() == "works");
        }
        let mut child = self
            .command(true, "2G", &format!("echo {STARTED}"), PROBE_LIMIT)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start virtme-ng")?;
        let mut works = false;
        follow(&mut child, PROBE_LIMIT, |line| works |= line.contains(STARTED));
        fs::write(note, if works { "works" } else { "does not work" })?;
        Ok(works)
    }

    /// The command that boots a guest and runs a line of shell in it as root. Not even the end of
    /// this process leaves a guest running for longer than `limit` and a little.
    fn command(&self, kvm: bool, memory: &str, line: &str, limit: Duration) -> Command {
        let image = self.kernel.image.display().to_string();
        let out = super::folder().join("out").display().to_string();
        let mut command = shell::command("setsid", &["--wait", "timeout", "--kill-after=5"]);
        command.arg((limit.as_secs() + 10).to_string());
        // vng starts its siblings by name.
        let mut path = vec![self.virtme.parent().unwrap_or(Path::new("/")).to_owned()];
        path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
        if let Ok(path) = std::env::join_paths(path) {
            command.env("PATH", path);
        }
        command.arg(&self.virtme).args(["--run", &image, "--cpus", "2", "--memory", memory]);
        command.args(["--user", "root", "--rwdir", &out]);
        if !kvm {
            // QEMU's cmpxchg16b leaves garbage in the flags once in a while when it emulates it alone
            // (the guest's kernel then dies in its allocator); the kernel can do without.
            command.args(["--disable-kvm", "--append", "clearcpuid=cx16"]);
        }
        if self.steady {
            command.arg(format!("--qemu-opts=-icount shift={STEADY_SHIFT}"));
        }
        command.args(["--", line]).stdin(Stdio::null());
        command
    }

    /// Boots, runs the scenario for at most `limit` after the boot (waits inside it multiplied
    /// by `patience`), gives its verdict; each line worth reading goes to `show`. Errors are the lab's own, not the scenario's.
    pub(crate) fn run(
        &self,
        scenario: &Scenario,
        patience: f64,
        limit: Duration,
        verbose: bool,
        mut show: impl FnMut(&str),
    ) -> Result<Outcome> {
        let logs = super::folder().join("logs");
        fs::create_dir_all(&logs)?;
        // A copy, so that editing a script does not disturb a run: bash reads as it goes.
        let scripts = tempfile::tempdir_in(super::folder())?;
        for entry in fs::read_dir(scenario.script.parent().unwrap_or(Path::new("/")))? {
            let from = entry?.path();
            fs::copy(&from, scripts.path().join(from.file_name().unwrap_or_default()))?;
        }
        let script = scripts.path().join(scenario.script.file_name().unwrap_or_default());
        let log = logs.join(format!("{}-{}.log", scenario.name, self.kernel.version));
        let mut file = File::create(&log)?;
        let parts: String = self
            .parts
            .iter()
            .map(|part| format!("{}='{}' ", part.variable, part.path.display()))
            .collect();
        let line = format!(
            "echo {STARTED}; {parts}LAB_STEADY={} LAB_PATIENCE={:.0} LAB_BIN='{}' LAB_OUT='{}' bash \
             '{}' 2>&1",
            u8::from(self.steady),
            // A steady clock already is as slow as the machine.
            if self.steady { 1.0 } else { patience.ceil() },
            self.binaries.display(),
            super::folder().join("out").display(),
            script.display(),
        );
        let start = Instant::now();
        let complaints = log.with_extension("stderr");
        let limit = BOOT_LIMIT + limit;
        let mut child = self
            .command(self.kvm, &scenario.memory, &line, limit)
            .stdout(Stdio::piped())
            .stderr(File::create(&complaints)?)
            .spawn()
            .context("cannot start virtme-ng")?;
        let (mut up, mut checks, mut last, mut shown) = (false, None, String::new(), false);
        let ended = follow(&mut child, limit, |line| {
            // A log that cannot be written is no reason to stop; the verdict does not need it.
            let _ = writeln!(file, "{line}");
            up |= line.contains(STARTED);
            if let Some(summary) = line.strip_prefix(SUMMARY) {
                checks = Some(summary.to_owned());
            }
            // What follows a failure, up to the next check, explains it.
            if line.starts_with('[') {
                shown = line.contains("] FAILED");
                last.clone_from(&line);
            }
            if verbose || shown {
                show(&line);
            }
        });
        let verdict = match (ended, &checks) {
            (Some(true), Some(_)) => Verdict::Passed,
            (Some(_), Some(checks)) => Verdict::Failed(checks.clone()),
            (Some(_), None) if up => {
                Verdict::Failed(format!("the guest ended early, after: {last}"))
            }
            (None, _) if up => {
                let seconds = limit.as_secs();
                Verdict::Failed(format!("not done within {seconds} s; the last check: {last}"))
            }
            _ => {
                let said = fs::read_to_string(&complaints).unwrap_or_default();
                let said = said.trim().lines().last().unwrap_or("nothing").to_owned();
                Verdict::Failed(format!("the guest did not boot; virtme-ng said: {said}"))
            }
        };
        let checks = checks.unwrap_or_else(|| "-".into());
        Ok(Outcome { verdict, checks, took: start.elapsed(), log })
    }
}

/// Hands on each line that the child prints until it ends; `Some(success)`. At the time limit the
/// child and all that it started are ended: `None`.
fn follow(child: &mut Child, limit: Duration, mut each: impl FnMut(String)) -> Option<bool> {
    let deadline = Instant::now() + limit;
    let (send, receive) = mpsc::channel();
    if let Some(output) = child.stdout.take() {
        std::thread::spawn(move || {
            for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line).trim_end().to_owned();
                if send.send(line).is_err() {
                    break;
                }
            }
        });
    }
    loop {
        match receive.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => each(line),
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                end(child);
                return None;
            }
        }
    }
    while Instant::now() < deadline {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status.success());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    end(child);
    None
}

/// Ends the child's whole session: `setsid` made it the leader of one, QEMU is in it.
fn end(child: &mut Child) {
    let group = format!("-{}", child.id());
    let _ = shell::run(&mut shell::command("kill", &["-KILL", "--", &group]));
    let _ = child.kill();
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(line: &str) -> Child {
        shell::command("setsid", &["--wait", "sh", "-c", line])
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell")
    }

    #[test]
    fn lines_and_success_come_back() {
        let mut lines = Vec::new();
        let ended = follow(&mut shell("echo one; echo two; exit 3"), BOOT_LIMIT, |line| {
            lines.push(line);
        });
        assert_eq!(ended, Some(false));
        assert_eq!(lines, ["one", "two"]);
    }

    #[test]
    fn a_child_that_does_not_end_is_ended_with_its_children() {
        let mut pid = String::new();
        let mut child = shell("sleep 100 & echo $!; wait");
        let ended = follow(&mut child, Duration::from_millis(500), |line| pid = line);
        assert_eq!(ended, None);
        // The signal was sent; a busy machine takes a moment to carry it out.
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            if state.is_empty() || state.contains(") Z ") {
                break;
            }
            assert!(Instant::now() < end, "{pid} still runs: {state}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

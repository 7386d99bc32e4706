//! A target daemon on loopback, for as long as a chore needs it.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::shell;

/// The subsystem that chores serve.
pub(crate) const NQN: &str = "nqn.2026-11.io.lariat:demo";

const PORT: &str = "4420";
const START_LIMIT: Duration = Duration::from_secs(10);
const STOP_LIMIT: Duration = Duration::from_secs(20);

/// The two release binaries.
pub(crate) struct Binaries {
    folder: PathBuf,
}

impl Binaries {
    /// Builds them.
    pub(crate) fn build() -> Result<Self> {
        let packages = ["build", "--release", "--package", "lariat-target", "--package", "lariat"];
        shell::run(&mut shell::cargo(&packages))?;
        Ok(Self { folder: shell::root().join("build/release") })
    }

    /// Builds them, the engine for fio, and the bare programs that the benchmark compares with.
    pub(crate) fn build_for_bench() -> Result<Self> {
        let mut words = vec!["build", "--release", "--lib", "--bins", "--example", "udp_limit"];
        for package in ["lariat-target", "lariat", "lariat-fio", "lariat-tests"] {
            words.extend(["--package", package]);
        }
        shell::run(&mut shell::cargo(&words))?;
        Ok(Self { folder: shell::root().join("build/release") })
    }

    /// Where they are.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// `lariat`, the initiator's command line.
    pub(crate) fn lariat(&self, verb: &str, address: &str, rest: &[&str]) -> Command {
        let mut command = Command::new(self.folder.join("lariat"));
        command.args([verb, "-t", "rdma", "-a", address, "-s", PORT]).args(rest);
        command
    }
}

/// A running lariatd. Dropping it without [`Target::stop`] kills it.
pub(crate) struct Target {
    child: Option<Child>,
    pub(crate) address: String,
    log: PathBuf,
}

impl Target {
    /// Starts a target that serves a file (nsid 1) on a free loopback address.
    pub(crate) fn start(binaries: &Binaries, folder: &Path, file: &Path) -> Result<Self> {
        // Port 4791 of 127.0.0.1 may be taken by another target on this machine; the other
        // addresses of 127.0.0.0/8 are as good.
        let pid = std::process::id();
        let mut last = None;
        for attempt in 0..8 {
            let address = if attempt == 0 {
                "127.0.0.1".to_owned()
            } else {
                format!("127.77.{}.{}", pid % 250, (pid / 250 + attempt) % 250 + 1)
            };
            match Self::start_at(binaries, folder, &address, file) {
                Ok(target) => return Ok(target),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| anyhow::anyhow!("no free address")))
    }

    fn start_at(binaries: &Binaries, folder: &Path, address: &str, file: &Path) -> Result<Self> {
        let config = folder.join("lariatd.toml");
        std::fs::write(&config, configuration(address, file))?;
        let log = folder.join("lariatd.log");
        let mut child = Command::new(binaries.folder.join("lariatd"))
            .arg("--config")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(&log)?)
            .spawn()
            .context("cannot start lariatd")?;
        let stdout = child.stdout.take().context("lariatd has no stdout")?;
        let (said, ready) = mpsc::channel();
        // Ends when lariatd closes its stdout.
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if line.trim() == "ready" {
                    let _ = said.send(());
                }
            }
        });
        let target = Self { child: Some(child), address: address.to_owned(), log };
        if ready.recv_timeout(START_LIMIT).is_err() {
            bail!("lariatd did not start on {address}; it said:\n{}", target.log_text());
        }
        Ok(target)
    }

    /// What the daemon logged so far.
    pub(crate) fn log_text(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Stops it with SIGTERM and waits for the clean end.
    pub(crate) fn stop(mut self) -> Result<()> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        shell::run(&mut shell::command("kill", &["-TERM", &child.id().to_string()]))?;
        let start = Instant::now();
        loop {
            if let Some(status) = child.try_wait()? {
                if !status.success() {
                    bail!("lariatd ended with {status}; it said:\n{}", self.log_text());
                }
                return Ok(());
            }
            if start.elapsed() > STOP_LIMIT {
                let _ = child.kill();
                let _ = child.wait();
                bail!("lariatd did not stop within {STOP_LIMIT:?} of SIGTERM");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn configuration(address: &str, file: &Path) -> String {
    format!(
        "[[listener]]\naddress = \"{address}\"\nport = {PORT}\nfabric = \"soft\"\n\n\
         [[subsystem]]\nnqn = \"{NQN}\"\nserial = \"DEMO\"\nallow_any_host = true\n\n\
         [[subsystem.namespace]]\nnsid = 1\n[subsystem.namespace.backend]\ntype = \"file\"\n\
         path = \"{}\"\nblock_size = 4096\n",
        file.display()
    )
}

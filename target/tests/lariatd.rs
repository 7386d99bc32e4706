//! The daemon as a process: its one line, its exit codes, its signals.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A daemon that does not outlive the test.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Daemon {
    /// Starts it and waits for its first line.
    fn start(config: &Path) -> Self {
        let mut child = command(config).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        child.stdout = Some(out.into_inner());
        let daemon = Self(child);
        assert_eq!(line, "ready\n");
        daemon
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id().try_into().unwrap()), signal).unwrap();
    }

    /// Its exit code and what else it printed.
    fn end(mut self) -> (Option<i32>, String) {
        let limit = Instant::now() + Duration::from_secs(30);
        while self.0.try_wait().unwrap().is_none() {
            assert!(Instant::now() < limit, "lariatd does not end");
            thread::sleep(Duration::from_millis(10));
        }
        let mut rest = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut rest).unwrap();
        (self.0.wait().unwrap().code(), rest)
    }
}

fn command(config: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lariatd"));
    command.arg("--config").arg(config).stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

fn run(config: &Path, more: &[&str]) -> Output {
    command(config).args(more).output().unwrap()
}

/// A configuration on an address of this process's own.
fn write_config(folder: &Path, name: &str, disk: &Path, last: u8) -> PathBuf {
    let pid = std::process::id();
    let address = format!("127.{}.{}.{last}", 100 + pid / 250 % 100, pid % 250);
    let path = folder.join(name);
    let text = format!(
        "[[listener]]\naddress = \"{address}\"\n\
         [[subsystem]]\nnqn = \"nqn.2026-11.io.lariat:test\"\nallow_any_host = true\n\
         [[subsystem.namespace]]\nnsid = 1\n[subsystem.namespace.backend]\ntype = \"file\"\n\
         path = \"{}\"\nsize = \"1MiB\"\ncreate = true\n\
         [target]\nreactors = 2\nbuffers_mib = 1\nreceive_mib = 2\n",
        disk.display()
    );
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn it_says_ready_and_ends_by_sigterm_not_by_sighup() {
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk");
    let config = write_config(folder.path(), "a.toml", &disk, 1);
    let daemon = Daemon::start(&config);
    assert_eq!(std::fs::metadata(&disk).unwrap().len(), 1 << 20);

    // A second one cannot have the file, nor the address.
    let second = run(&write_config(folder.path(), "c.toml", &disk, 4), &[]);
    let text = String::from_utf8_lossy(&second.stderr).into_owned();
    assert_eq!(second.status.code(), Some(1), "{text}");
    let pid = daemon.0.id();
    assert!(text.contains(&format!("is in use by process {pid} (lariatd)")), "{text}");
    let other = folder.path().join("other");
    let second = run(&write_config(folder.path(), "b.toml", &other, 1), &[]);
    let text = String::from_utf8_lossy(&second.stderr).into_owned();
    assert_eq!((second.status.code(), second.stdout.len()), (Some(1), 0), "{text}");
    assert!(text.contains(":4420 is already served: "), "{text}");
    assert!(!other.exists(), "made for a target that cannot listen");

    daemon.signal(Signal::SIGHUP);
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.end(), (Some(0), String::new()));
    // All is free again.
    let daemon = Daemon::start(&config);
    daemon.signal(Signal::SIGINT);
    assert_eq!(daemon.end().0, Some(0));
}

#[test]
fn a_wrong_configuration_is_exit_code_2() {
    let folder = tempfile::tempdir().unwrap();
    let config = write_config(folder.path(), "a.toml", &folder.path().join("disk"), 2);
    let checked = run(&config, &["--check"]);
    assert_eq!(checked.status.code(), Some(0));
    assert_eq!(checked.stdout, format!("{}: ok\n", config.display()).into_bytes());
    assert!(!folder.path().join("disk").exists(), "a check makes nothing");

    let wrong = command(&config).env("LARIATD_TARGET__REACTORS", "0").output().unwrap();
    let text = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert_eq!(wrong.status.code(), Some(2), "{text}");
    assert!(text.starts_with("lariatd: environment variable LARIATD_TARGET__REACTORS: "), "{text}");
    assert_eq!(run(&config, &["--log", "=/="]).status.code(), Some(2));
    assert_eq!(run(&folder.path().join("none.toml"), &[]).status.code(), Some(2));
}

#[test]
fn an_address_of_another_machine_is_told_once_with_a_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let config = write_config(folder.path(), "a.toml", &folder.path().join("disk"), 3);
    let foreign = command(&config).env("LARIATD_LISTENER__0__ADDRESS", "203.0.113.7").output();
    let foreign = foreign.unwrap();
    let text = String::from_utf8_lossy(&foreign.stderr).into_owned();
    assert_eq!(foreign.status.code(), Some(1), "{text}");
    let line = text.lines().find(|line| line.starts_with("lariatd: ")).unwrap();
    assert!(line.contains("203.0.113.7 is not an address of this machine"), "{line}");
    assert!(line.contains("`ip address`"), "{line}");
    assert!(!folder.path().join("disk").exists(), "made for a target that cannot listen");
    assert_eq!(line.matches("cannot listen").count(), 1, "{line}");
}

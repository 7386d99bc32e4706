//! The daemon as a process: its one line, its exit codes, its signals.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs::Permissions;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
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
fn all_faults_are_told_a_line_each() {
    let folder = tempfile::tempdir().unwrap();
    let config = write_config(folder.path(), "a.toml", &folder.path().join("disk"), 5);
    let text = std::fs::read_to_string(&config).unwrap();
    let text = text
        .replace("nsid = 1", "nsid = 1.0")
        .replace("reactors = 2", "reactors = 0")
        .replace("address = \"127", "address = \"127:");
    std::fs::write(&config, text).unwrap();
    for more in [&["--check"][..], &[]] {
        let wrong = run(&config, more);
        let text = String::from_utf8_lossy(&wrong.stderr).into_owned();
        assert_eq!((wrong.status.code(), wrong.stdout.len()), (Some(2), 0), "{text}");
        let keys = ["listener[0].address", "subsystem[0].namespace[0].nsid", "target.reactors"];
        assert_eq!(text.lines().count(), keys.len(), "{text}");
        for (line, key) in text.lines().zip(keys) {
            let start = format!("lariatd: {}: {key}: ", config.display());
            assert!(line.starts_with(&start) && line.contains("; write "), "{text}");
        }
    }
}

/// A `lariatd` of a user whom rights bind.
struct Bound {
    folder: tempfile::TempDir,
    program: PathBuf,
}

impl Bound {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        // Where it was built may be closed to others.
        let program = folder.path().join("lariatd");
        std::fs::copy(env!("CARGO_BIN_EXE_lariatd"), &program).unwrap();
        Self { folder, program }
    }

    /// What it has to say in the end.
    fn failure(&self, config: &Path, code: i32) -> String {
        let mut command = Command::new(&self.program);
        command.arg("--config").arg(config).stdin(Stdio::null());
        if nix::unistd::geteuid().is_root() {
            command.uid(65534).gid(65534);
        }
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert!(!text.contains("os error"), "{text}");
        text.lines().find_map(|line| line.strip_prefix("lariatd: ")).unwrap().to_owned()
    }
}

#[test]
fn missing_rights_are_told_with_the_user_and_a_remedy() {
    let bound = Bound::new();
    let folder = bound.folder.path();
    let disk = folder.join("disk");
    let config = write_config(folder, "a.toml", &disk, 6);
    let closed = |path: &Path, mode| {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    };
    closed(&config, 0);
    let text = bound.failure(&config, 2);
    assert!(text.starts_with(&format!("{}: the user of this", config.display())), "{text}");
    assert!(text.contains(") may not read it; give it the rights on the file and on"), "{text}");
    closed(&config, 0o644);

    // To the folder, to the way there, to the file.
    closed(folder, 0o555);
    let text = bound.failure(&config, 1);
    let made = format!("may not make {}; give it the rights on the folders above", disk.display());
    assert!(text.contains(&made), "{text}");
    closed(folder, 0o755);
    let inner = folder.join("inner");
    std::fs::create_dir(&inner).unwrap();
    let hidden = inner.join("disk");
    std::fs::write(&hidden, [0; 8192]).unwrap();
    closed(&inner, 0);
    let other = write_config(folder, "b.toml", &hidden, 6);
    let text = std::fs::read_to_string(&other).unwrap().replace("create = true", "");
    std::fs::write(&other, text.replace("size = \"1MiB\"", "")).unwrap();
    let text = bound.failure(&other, 1);
    let seen = format!("may not look at {}; give it the rights on the folders", hidden.display());
    assert!(text.contains(&seen), "{text}");
    closed(&inner, 0o755);
    closed(&hidden, 0);
    let text = bound.failure(&other, 1);
    let opened = format!("may not read and write {}; give it the rights (`ls -l", hidden.display());
    assert!(text.contains(&opened) && text.ends_with("as a user who has them"), "{text}");
    closed(&hidden, 0o444);
    let text = bound.failure(&other, 1);
    assert!(text.ends_with("who has them, or serve it with read_only = true"), "{text}");
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

//! The command line's errors, on the real binary: what users see when something is wrong. Needs no
//! target; the one connection attempt goes to a loopback address where nobody listens.

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const NQN: &str = "nqn.2026-11.io.lariat:test";

fn lariat(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lariat"))
        .args(words)
        .stdin(Stdio::null())
        .env_remove("LARIAT_LOG")
        .output()
        .expect("the binary runs")
}

/// Runs it, wants an exit code, returns stderr.
fn refused(code: i32, words: &[&str]) -> String {
    let output = lariat(words);
    let stderr = String::from_utf8(output.stderr).expect("words are UTF-8");
    assert_eq!(output.status.code(), Some(code), "{words:?}: {stderr}");
    assert!(output.stdout.is_empty(), "{words:?} printed to stdout");
    stderr
}

#[test]
fn bad_arguments_are_usage_errors() {
    let target = ["-a", "127.0.0.1", "-n", NQN];
    for (words, expected) in [
        (vec!["frobnicate"], "frobnicate"),
        (vec!["connect"], "nvme connect -t rdma -a 192.0.2.7"),
        (vec!["disconnect", "-n", NQN], "nothing stays connected"),
        (vec!["discover"], "--traddr"),
        (vec!["discover"], "\nExample:\n  lariat discover -t rdma -a 192.0.2.7\n"),
        (vec!["list-ns"], "\n  lariat list-ns -t rdma -a 192.0.2.7 -n nqn."),
        ([&["bench"], &target[..], &["-Q", "16"]].concat(), "-Q 16 has room for 15 requests"),
        (vec!["id-ctrl", "-a", "127.0.0.1"], "--nqn"),
        (vec!["discover", "-t", "tcp", "-a", "127.0.0.1"], "NVMe over RDMA only, not tcp"),
        (vec!["discover", "-a", "127.0.0.1", "-s", "70000"], "70000"),
        (vec!["id-ctrl", "-a", "127.0.0.1", "-n", "disk1"], "nqn."),
        ([&["read"], &target[..]].concat(), "--output"),
        ([&["read"], &target[..], &["--output", "-", "--length", "4x"]].concat(), "suffix"),
        ([&["write"], &target[..]].concat(), "--input"),
        ([&["bench"], &target[..], &["--rw", "sideways"]].concat(), "sideways"),
        ([&["bench"], &target[..], &["--runtime", "0"]].concat(), "--runtime 0"),
        ([&["flush"], &target[..], &["--fabric", "carrier"]].concat(), "carrier"),
    ] {
        let stderr = refused(2, &words);
        assert!(stderr.contains(expected), "{words:?} said {stderr}");
    }
}

#[test]
fn an_input_that_is_not_there_is_told_before_connecting() {
    let start = Instant::now();
    let words = ["write", "-a", "127.213.7.9", "-n", NQN, "--input", "/nonexistent/disk.img"];
    let stderr = refused(1, &words);
    assert_eq!(
        stderr,
        "lariat: cannot read /nonexistent/disk.img: No such file or directory (os error 2)\n"
    );
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn nobody_listening_is_told_within_the_time_allowed() {
    for verb in
        [&["discover"][..], &["id-ctrl", "-n", NQN], &["bench", "-n", NQN, "--runtime", "1"]]
    {
        let start = Instant::now();
        let words = [verb, &["-a", "127.213.7.9", "--connect-timeout", "700ms"]].concat();
        let stderr = refused(1, &words);
        let took = start.elapsed();
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        assert!(stderr.starts_with("lariat: 127.213.7.9:4420 gave no answer within"), "{stderr}");
        assert!(stderr.contains("127.213.7.9 is this machine's own"), "{stderr}");
        assert!(stderr.contains("no target serves it"), "{stderr}");
        assert!(took < Duration::from_secs(5), "{verb:?} took {took:?}");
    }
}

/// The one loopback address of IPv6 is the host's own address too: it must not answer itself.
#[test]
fn nobody_at_the_hosts_own_address_is_told_as_such() {
    let start = Instant::now();
    loop {
        let words = ["discover", "-a", "::1", "-s", "4499", "--connect-timeout", "300ms"];
        let stderr = refused(1, &words);
        if stderr.contains("gave no answer") && stderr.contains("::1 is this machine's own") {
            return;
        }
        // Another test may be there for a while.
        assert!(start.elapsed() < Duration::from_secs(20), "{stderr}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn help_and_version_are_no_errors() {
    for words in [&["--help"][..], &["--version"], &["bench", "--help"]] {
        let output = lariat(words);
        assert_eq!(output.status.code(), Some(0));
        assert!(!output.stdout.is_empty() && output.stderr.is_empty());
    }
}

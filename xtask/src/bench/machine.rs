//! What a reader needs to place the figures: machine, versions, date. Calls the operating system;
//! used by `run`.

use super::results::{Machine, Program};
use crate::shell;
use crate::spdk::Build;

/// This machine; the load after the run is filled in at its end.
pub(crate) fn machine() -> Machine {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let processor = info
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .map_or("unknown processor", |rest| rest.trim_start_matches(['\t', ' ', ':']));
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let memory_kib: u64 = memory
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or(0);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    Machine {
        processor: processor.into(),
        cores: std::thread::available_parallelism().map_or(0, usize::from),
        memory_mib: memory_kib >> 10,
        kernel: kernel.trim().into(),
        load_before: load(),
        load_after: 0.0,
    }
}

/// The load average of the last minute.
pub(crate) fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0.0)
}

/// Now, in UTC.
pub(crate) fn date() -> String {
    let mut date = shell::command("date", &["-u", "+%Y-%m-%d %H:%M UTC"]);
    shell::capture(&mut date).unwrap_or_default().trim().to_owned()
}

/// The programs that may take part, those that are there.
pub(crate) fn programs(spdk: Option<&Build>) -> Vec<Program> {
    let mut programs = Vec::new();
    let mut add = |name: &str, version: Option<String>| {
        if let Some(version) = version {
            programs.push(Program { name: name.into(), version });
        }
    };
    let first_line = |program: &str, arguments: &[&str]| {
        let found = shell::find(program)?;
        let text =
            shell::capture(&mut shell::command(&found.display().to_string(), arguments)).ok()?;
        text.lines().next().map(|line| line.trim().to_owned())
    };
    let git = first_line("git", &["describe", "--always", "--dirty"]);
    let version = env!("CARGO_PKG_VERSION");
    add("Lariat", Some(git.map_or(version.into(), |commit| format!("{version} ({commit})"))));
    add("fio", first_line("fio", &["--version"]));
    add("tgt", first_line("tgtd", &["--version"]));
    add("nbdkit", first_line("nbdkit", &["--version"]));
    add("iscsi-perf", package("libiscsi-bin"));
    add("SPDK", spdk.map(Build::version));
    add("rustc", first_line("rustc", &["--version"]));
    programs
}

/// The version of a Debian package.
fn package(name: &str) -> Option<String> {
    let mut query = shell::command("dpkg-query", &["-W", "-f", "${Version}", name]);
    shell::capture(&mut query).ok().map(|version| format!("{name} {}", version.trim()))
}

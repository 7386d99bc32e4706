//! What cannot work is refused in one line that says why; a fio that the engine does not know, too.

use std::time::Duration;

use anyhow::{Result, ensure};
use lariat_tests::process::{Backend, NQN, Scratch, Target, TargetConfig, bounded, engine, run};

use super::LIMIT;
use super::setting::{command, fio, job};

const RUN: [&str; 3] = ["--rw=randread", "--bs=4k", "--size=1m"];
const RUN_LIMIT: Duration = Duration::from_secs(30);

/// Our lines among what fio said.
fn ours(said: &str) -> Vec<&str> {
    said.lines().filter(|line| line.starts_with("lariat: ")).collect()
}

#[test]
fn each_wrong_option_gives_one_line() -> Result<()> {
    let Some(fio) = fio()? else { return Ok(()) };
    bounded(LIMIT, move || {
        let scratch = Scratch::new()?;
        let disk = Backend::Memory(4 << 20);
        let config = TargetConfig::new().disk(disk.clone(), 4096).disk(disk, 4096);
        let target = Target::start(&scratch, &config)?;
        let traddr = format!("--traddr={}", target.ip());
        let (traddr, subnqn) = (traddr.as_str(), format!("--subnqn={NQN}"));
        let subnqn = subnqn.as_str();
        let unescaped = format!("--filename=subnqn={NQN} ns=1");
        let cases: &[(&[&str], &str)] = &[
            (&[], "no traddr"),
            (&[traddr], "no subnqn"),
            (&[traddr, subnqn], "has 2 namespaces; name one: 1, 2 (nsid="),
            (&[traddr, subnqn, "--nsid=9"], "no namespace 9 that can be used here"),
            (
                &[traddr, "--subnqn=nqn.2026-11.io.lariat:other", "--nsid=1"],
                "no subsystem of this name: `lariat discover -a",
            ),
            (&[traddr, "--subnqn=disk", "--nsid=1"], "does not start with \"nqn.\""),
            (&[subnqn, "--traddr=127.0.0.254"], "nothing listens at UDP port 4791"),
            (&[subnqn, "--traddr=127.0.0.254:4420"], "traddr=127.0.0.254 trsvcid=4420"),
            (&[subnqn, "--filename=traddr=127.0.0.254:4420 ns=1"], "trsvcid=4420"),
            (&[traddr, subnqn, "--trsvcid=4421", "--nsid=1"], "fio: trsvcid"),
            (&[traddr, subnqn, "--nsid=1", "--hostnqn=me"], "hostnqn: "),
            (&[traddr, subnqn, "--nsid=1", "--hostid=me"], "a UUID is expected"),
            (&[traddr, subnqn, "--nsid=1", "--fabric=tcp"], "there are auto, soft and ib"),
            (&[traddr, subnqn, "--nsid=1", "--write_mode=no"], "there are write and zeroes"),
            (&[traddr, subnqn, "--nsid=1", "--nrfiles=3"], "name each namespace in filename"),
            (&[traddr, &unescaped], "write \"\\:\""),
            (&[traddr, subnqn, "--filename=/dev/nvme0n1"], "is not key=value"),
            (&[traddr, subnqn, "--filename=trtype=tcp ns=1"], "not rdma"),
            (&[traddr, subnqn, "--filename=ns=1 color=red"], "no key \"color\""),
            (&[traddr, subnqn, "--nsid=1", "--lariat_abi_check=1"], "lays out engine options"),
            (&[traddr, subnqn, "--nsid=1", "--bs=512"], "not a multiple of the block size"),
        ];
        for (options, words) in cases {
            let mut command = command(&fio, &scratch)?;
            let done = run(command.args(RUN).args(*options), RUN_LIMIT)?;
            ensure!(done.code == 1, "{options:?}: exit code {}: {}", done.code, done.stderr);
            let said = format!("{}{}", done.stderr, done.text());
            let lines = ours(&said);
            ensure!(lines.len() == 1, "{options:?}: {said}");
            ensure!(lines.iter().any(|line| line.contains(words)), "{options:?}: {lines:?}");
        }
        target.stop().map(drop)
    })
}

#[test]
fn who_may_not_connect_is_told_by_which_name() -> Result<()> {
    let Some(fio) = fio()? else { return Ok(()) };
    bounded(LIMIT, move || {
        let scratch = Scratch::new()?;
        let mut config = TargetConfig::new().disk(Backend::Memory(4 << 20), 4096);
        config.allowed_host = Some("nqn.2026-11.io.lariat:friend".to_owned());
        let target = Target::start(&scratch, &config)?;
        for (host, words) in [
            (Some("nqn.2026-11.io.lariat:me"), "lariat:me, the NQN of this host, is not among"),
            (Some("nqn.2026-11.io.lariat:me"), "it is what hostnqn= says"),
            (None, "hostnqn= sets another"),
        ] {
            let mut command = job(&fio, &scratch, &target)?;
            command.args(RUN).args(host.map(|host| format!("--hostnqn={host}")));
            let done = run(&mut command, RUN_LIMIT)?;
            let said = format!("{}{}", done.stderr, done.text());
            let lines = ours(&said);
            ensure!(lines.len() == 1 && said.contains(words), "{words}: {said}");
        }
        target.stop().map(drop)
    })
}

/// fio lists the engine's options where its library is named by path alone.
#[test]
fn fio_lists_the_options() -> Result<()> {
    let Some(fio) = fio()? else { return Ok(()) };
    let mut command = std::process::Command::new(fio);
    command.arg(format!("--enghelp={}", engine()?.display()));
    let text = run(&mut command, RUN_LIMIT)?.success()?.text();
    for option in ["traddr", "trsvcid", "subnqn", "nsid", "hostnqn", "write_mode"] {
        ensure!(text.lines().any(|line| line.starts_with(option)), "{option}: {text}");
    }
    Ok(())
}

#[test]
fn memory_of_fios_own_is_refused() -> Result<()> {
    let Some(fio) = fio()? else { return Ok(()) };
    bounded(LIMIT, move || {
        let scratch = Scratch::new()?;
        let config = TargetConfig::new().disk(Backend::Memory(4 << 20), 4096);
        let target = Target::start(&scratch, &config)?;
        let mut command = command(&fio, &scratch)?;
        command.args(["--rw=write", "--size=1m", "--mem=malloc"]);
        command.arg(format!("--traddr={}", target.ip())).arg(format!("--subnqn={NQN}"));
        let done = run(&mut command, RUN_LIMIT)?;
        ensure!(done.code == 1, "exit code {}: {}", done.code, done.stderr);
        ensure!(done.stderr.contains("conflicts with specified IO engine"), "{}", done.stderr);
        target.stop().map(drop)
    })
}

#[test]
fn a_fio_that_is_not_known_is_named() -> Result<()> {
    let Some(fio) = fio()? else { return Ok(()) };
    if !cfg!(debug_assertions) {
        eprintln!("SKIPPED: a_fio_that_is_not_known_is_named: only a debug build can be told so");
        return Ok(());
    }
    bounded(LIMIT, move || {
        let scratch = Scratch::new()?;
        let mut command = command(&fio, &scratch)?;
        let done = run(command.args(RUN).env("LARIAT_FIO_VERSION", "fio-9.9"), RUN_LIMIT)?;
        ensure!(done.code == 1, "exit code {}: {}", done.code, done.stderr);
        let said = format!("{}{}", done.stderr, done.text());
        let lines = ours(&said);
        let [line] = lines.as_slice() else { anyhow::bail!("not one line: {said}") };
        ensure!(line.contains("fio-9.9") && line.contains("fio-3.33, fio-3.34"), "{line}");
        Ok(())
    })
}

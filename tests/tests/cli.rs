//! The command line's main job on a real target: files and pipes in and out, a file system, figures.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lariat_tests::process::{
    Backend, NQN, Running, Scratch, Target, TargetConfig, binary, bounded, fill, first_difference,
    lariat, run,
};
use nix::sys::signal::Signal;
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);
const DISK_BYTES: u64 = 64 << 20;

fn json(target: &Target, verb: &str, rest: &[&str]) -> Result<Value> {
    let words = [rest, &["--output-format", "json"]].concat();
    let done = run(&mut lariat(target, verb, &words)?, LIMIT)?.success()?;
    serde_json::from_slice(&done.stdout).with_context(|| format!("{verb}: {}", done.text()))
}

#[test]
fn files_and_pipes() -> Result<()> {
    bounded(LIMIT, || {
        let scratch = Scratch::new()?;
        let disk = scratch.disk("disk", DISK_BYTES)?;
        let config = TargetConfig::new().disk(Backend::File(disk.clone()), 512);
        let target = Target::start(&scratch, &config)?;
        // Not a multiple of a request's size.
        let mut bytes = vec![0; (5 << 20) + 3 * 512];
        fill(1, 0, &mut bytes);
        let length = bytes.len().to_string();
        let image = scratch.join("image");
        std::fs::write(&image, &bytes)?;

        let words = ["--input", &image.display().to_string(), "--offset", "1536"];
        let wrote = run(&mut lariat(&target, "write", &words)?, LIMIT)?.success()?.text();
        let copy = scratch.join("copy");
        let words =
            ["--output", &copy.display().to_string(), "--offset", "1536", "--length", &length];
        let read = run(&mut lariat(&target, "read", &words)?, LIMIT)?.success()?.text();
        ensure!(first_difference(&std::fs::read(&copy)?, &bytes).is_none(), "the copy differs");
        // Both say the same checksum.
        let checksum = |text: &str| text.split("crc32 ").nth(1).map(str::to_owned);
        ensure!(checksum(&wrote).is_some() && checksum(&wrote) == checksum(&read), "{wrote}{read}");

        // From a pipe that comes in pieces, to stdout; the summary goes to stderr then.
        let words = ["--input", "-", "--offset", "16M", "--output-format", "json"];
        let mut command = lariat(&target, "write", &words)?;
        let mut cat = Command::new("cat").arg(&image).stdout(Stdio::piped()).spawn()?;
        command.stdin(cat.stdout.take().context("cat's stdout")?);
        let wrote = run(&mut command, LIMIT)?.success()?;
        cat.wait()?;
        let summary: Value = serde_json::from_slice(&wrote.stdout)?;
        ensure!(summary["bytes"] == bytes.len(), "{summary}");
        let words = ["--output", "-", "--offset", "16M", "--length", &length];
        let read = run(&mut lariat(&target, "read", &words)?, LIMIT)?.success()?;
        ensure!(first_difference(&read.stdout, &bytes).is_none(), "stdout differs");
        let crc32 = summary["crc32"].as_str().context("a checksum")?;
        ensure!(read.stderr.contains(crc32), "{}", read.stderr);

        // The part of a block that is missing is kept with --pad, refused without.
        let odd = scratch.join("odd");
        std::fs::write(&odd, &bytes[..1000])?;
        let path = odd.display().to_string();
        let words = ["--input", &path, "--offset", "16M"];
        run(&mut lariat(&target, "write", &words)?, LIMIT)?.failure(2, &["--pad"])?;
        run(&mut lariat(&target, "write", &[&words[..], &["--pad"]].concat())?, LIMIT)?
            .success()?;
        run(&mut lariat(&target, "flush", &[] as &[&str])?, LIMIT)?.success()?;
        target.stop()?;

        let found = std::fs::read(disk)?;
        for start in [1536, 16 << 20] {
            let part = found.get(start..start + bytes.len()).context("the file is too short")?;
            ensure!(first_difference(part, &bytes).is_none(), "the file differs behind {start}");
        }
        Ok(())
    })
}

#[test]
fn what_a_target_says_of_itself() -> Result<()> {
    bounded(LIMIT, || {
        let scratch = Scratch::new()?;
        let config = TargetConfig::new()
            .disk(Backend::Memory(1 << 20), 512)
            .disk(Backend::Null(1 << 40), 4096);
        let target = Target::start(&scratch, &config)?;
        let log = json(&target, "discover", &[])?.to_string();
        for words in [NQN, &target.ip().to_string(), "4420", "rdma"] {
            ensure!(log.contains(words), "{words} is not in {log}");
        }
        let controller = json(&target, "id-ctrl", &[])?;
        ensure!(controller["subnqn"] == NQN, "{controller}");
        ensure!(controller["sn"].as_str().is_some_and(|sn| sn.trim() == "E2E"), "{controller}");
        let list = json(&target, "list-ns", &[])?.to_string();
        ensure!(list.contains('1') && list.contains('2'), "{list}");
        let second = json(&target, "id-ns", &["--namespace-id", "2"])?;
        ensure!(second["nsze"] == 1_u64 << 28, "{second}");
        // Which of the two is to be read must be said.
        let words = ["--output", "-"];
        run(&mut lariat(&target, "read", &words)?, LIMIT)?.failure(2, &["--namespace-id"])?;
        target.stop().map(drop)
    })
}

#[test]
fn a_file_system_stays_whole() -> Result<()> {
    bounded(LIMIT, || {
        let scratch = Scratch::new()?;
        let run_tool = |name: &str, words: &[&str]| {
            let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
            run(Command::new(name).args(words).env("PATH", path), LIMIT)
        };
        if run_tool("mke2fs", &["-V"]).is_err() || run_tool("e2fsck", &["-V"]).is_err() {
            eprintln!("SKIPPED a_file_system_stays_whole: no e2fsprogs here");
            return Ok(());
        }
        let disk = scratch.disk("disk", DISK_BYTES)?;
        let image = scratch.join("image");
        let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
        let (image, copy) =
            (image.display().to_string(), scratch.join("copy").display().to_string());
        run_tool("mke2fs", &["-q", "-t", "ext4", "-d", sources, &image, "32M"])?.success()?;

        let config = TargetConfig::new().disk(Backend::File(disk.clone()), 4096);
        let target = Target::start(&scratch, &config)?;
        run(&mut lariat(&target, "write", &["--input", &image])?, LIMIT)?.success()?;
        let words = ["--output", &copy, "--length", "32M"];
        run(&mut lariat(&target, "read", &words)?, LIMIT)?.success()?;
        target.stop()?;
        ensure!(std::fs::read(&image)? == std::fs::read(&copy)?, "the copy differs");
        // On the disk, which is larger than the file system, and on the copy.
        for file in [&disk.display().to_string(), &copy] {
            run_tool("e2fsck", &["-fn", file])?.success()?;
        }
        Ok(())
    })
}

#[test]
fn figures_make_sense() -> Result<()> {
    bounded(LIMIT, || {
        let scratch = Scratch::new()?;
        let disk = scratch.disk("disk", DISK_BYTES)?;
        let config = TargetConfig::new().disk(Backend::File(disk), 4096);
        let target = Target::start(&scratch, &config)?;
        for (rw, block, depth, reads, writes) in [
            ("randread", 4096, 1, true, false),
            ("randwrite", 4096, 32, false, true),
            ("read", 131_072, 16, true, false),
            ("randrw", 8192, 8, true, true),
        ] {
            let (bs, iodepth) = (f64::from(block), depth.to_string());
            let words = ["--rw", rw, "--bs", &block.to_string(), "--iodepth", &iodepth];
            let words = [&words[..], &["--runtime", "0.4"]].concat();
            let report = json(&target, "bench", &words)?;
            ensure!(report["wire"] == "shm", "{report:#}");
            let runtime = report["runtime_seconds"].as_f64().context("runtime_seconds")?;
            ensure!((0.3..3.0).contains(&runtime), "{report:#}");
            for (side, expected) in [("read", reads), ("write", writes)] {
                let side = &report[side];
                let figure =
                    |name: &str| side[name].as_f64().with_context(|| format!("{report:#}"));
                let (ios, iops, rate) =
                    (figure("ios")?, figure("iops")?, figure("bytes_per_second")?);
                if !expected {
                    ensure!(ios == 0.0, "{rw}: {report:#}");
                    continue;
                }
                ensure!(ios > 50.0, "{rw}: {report:#}");
                ensure!((iops * runtime / ios - 1.0).abs() < 0.05, "{rw}: {report:#}");
                ensure!((rate / (iops * bs) - 1.0).abs() < 0.01, "{rw}: {report:#}");
                let latency = |name: &str| side["latency_ns"][name].as_f64().context("latency");
                let (p50, p99, max) = (latency("p50")?, latency("p99")?, latency("max")?);
                ensure!(1000.0 < p50 && p50 <= p99 && p99 <= max, "{rw}: {report:#}");
                // Little's law: no more under way at a time than the depth says.
                let mean = latency("mean")?;
                let under_way = mean / 1e9 * iops / f64::from(depth);
                ensure!(under_way < 1.1, "{rw}: {report:#}");
                // Nor much less, or time that a request took is left out.
                ensure!(reads && writes || under_way > 0.4, "{rw}: {report:#}");
            }
        }
        target.stop().map(drop)
    })
}

#[test]
fn an_interrupted_write_ends_cleanly() -> Result<()> {
    bounded(LIMIT, || {
        let scratch = Scratch::new()?;
        let config = TargetConfig::new().disk(Backend::Null(1 << 40), 4096);
        let target = Target::start(&scratch, &config)?;
        let mut command = lariat(&target, "write", &["--input", "-", "--quiet"])?;
        let (input, mut feed) = io::pipe()?;
        let words = scratch.path().join("stderr");
        command.stdin(input).stderr(File::create(&words)?);
        let mut running = Running::spawn(&mut command)?;
        // Our copy of the pipe's other end.
        drop(command);
        let status = thread::scope(|scope| {
            let (reads, it_reads) = mpsc::channel();
            // Ends when nobody reads any more.
            scope.spawn(move || {
                let zeroes = vec![0; 1 << 20];
                while feed.write_all(&zeroes).is_ok() {
                    let _ = reads.send(());
                }
            });
            for _ in 0..16 {
                it_reads.recv_timeout(LIMIT).context("nobody reads")?;
            }
            running.signal(Signal::SIGINT)?;
            // As `timeout` has it, which signals the process and then its group.
            thread::sleep(Duration::from_millis(1));
            let _ = running.signal(Signal::SIGINT);
            running.wait(LIMIT)
        })?;
        let said = fs::read_to_string(words)?;
        ensure!(status.code() == Some(130), "{status}: {said}");
        ensure!(said.contains("interrupted") && said.contains("written"), "{said}");
        // Said good-bye: the place is free at once.
        target.wait_for_log("queue connected qid=1", 1, LIMIT)?;
        let log = target.stop()?;
        ensure!(!log.contains("WARN") && !log.contains("ERROR"), "{log}");
        Ok(())
    })
}

/// A size is the same to `lariat` and to configurations of `lariatd`. (How many bytes it is: the tests of
/// both.)
#[test]
fn sizes_are_taken_or_refused_by_both() -> Result<()> {
    bounded(LIMIT, || {
        let scratch = Scratch::new()?;
        let file = scratch.join("a.toml");
        fs::write(&file, TargetConfig::new().disk(Backend::Null(4096), 4096).toml())?;
        let taken = [
            "4096", "4096B", "4096b", "4k", " 4 K ", "4Ki", "4kiB", "4KiB", "1m", "1M", "1Mi",
            "1MiB", "2g", "2G", "2Gi", "2GiB", "1t", "1T", "1Ti", "1TiB", "512kB", "512KB",
            "512MB", "512GB", "512TB",
        ];
        let refused = ["", "k", "-1", "4x", "1.5M", "4 k k", "1 gib", "16777216T", "4096 bytes"];
        let cases = taken.map(|text| (text, true)).into_iter();
        for (text, is_size) in cases.chain(refused.map(|text| (text, false))) {
            let mut check = Command::new(binary("lariatd")?);
            check.arg("--config").arg(&file).arg("--check");
            check.env("LARIATD_SUBSYSTEM__0__NAMESPACE__0__BACKEND__SIZE", text);
            let done = run(&mut check, LIMIT)?;
            ensure!((done.code == 0) == is_size, "lariatd, {text:?}: {}", done.stderr);
            ensure!(is_size || done.stderr.contains("is not a size"), "{}", done.stderr);
            // It has no other argument that it needs; but what is wrong with this one comes first.
            let mut read = Command::new(binary("lariat")?);
            let done = run(read.args(["read", &format!("--length={text}")]), LIMIT)?;
            let invalid = done.stderr.contains("invalid value");
            ensure!(done.code == 2 && invalid != is_size, "lariat, {text:?}: {}", done.stderr);
        }
        Ok(())
    })
}

/// As docs/operating.md says: stop, make the file larger, start.
#[test]
fn a_disk_that_grew_is_larger_after_a_restart() -> Result<()> {
    bounded(LIMIT, || {
        let scratch = Scratch::new()?;
        let disk = scratch.join("disk");
        let file = File::create(&disk)?;
        file.set_len(1 << 20)?;
        let config = TargetConfig::new().disk(Backend::File(disk.clone()), 4096);
        let blocks =
            |target: &Target| Ok::<_, anyhow::Error>(json(target, "id-ns", &[])?["nsze"].clone());
        let target = Target::start(&scratch, &config)?;
        let name = json(&target, "id-ns", &[])?["uuid"].clone();
        file.set_len(2 << 20)?;
        ensure!(blocks(&target)? == 256, "while it is served it keeps its size");
        target.stop()?;
        let target = Target::start(&scratch, &config)?;
        ensure!(blocks(&target)? == 512, "{}", blocks(&target)?);
        ensure!(name.is_string() && json(&target, "id-ns", &[])?["uuid"] == name, "another disk");
        let words = ["--offset", "1M", "--length", "1M", "--output", "-"];
        let read = run(&mut lariat(&target, "read", &words)?, LIMIT)?.success()?;
        ensure!(read.stdout == vec![0; 1 << 20], "what was added reads as zeroes");
        target.stop().map(drop)
    })
}

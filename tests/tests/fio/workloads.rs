//! What fio can ask for is done, completely, and the bytes are right.

use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lariat_tests::process::{
    Backend, NQN, Running, Scratch, Target, TargetConfig, bounded, engine, run, until,
};

use super::LIMIT;
use super::setting::{Report, command, fio, job, report};

const MIB: u64 = 1 << 20;

#[test]
fn depths_up_to_what_the_controller_takes_and_beyond() -> Result<()> {
    let Some(fio) = fio()? else { return Ok(()) };
    bounded(LIMIT, move || {
        let scratch = Scratch::new()?;
        let config = TargetConfig::new().disk(Backend::Memory(32 * MIB), 4096);
        let target = Target::start(&scratch, &config)?;
        // The target's queues have 128 entries: what is more waits.
        for depth in [1, 2, 7, 32, 128, 1024] {
            for extra in ["--iodepth_batch_submit=1", "--iodepth_batch_submit=16"] {
                let depth_option = format!("--iodepth={depth}");
                let options = ["--rw=randread", "--bs=4k", "--size=16m", &depth_option, extra];
                let report = report(job(&fio, &scratch, &target)?, &options)?;
                ensure!(report.sum("read", "total_ios") == 4096, "depth {depth}: {report:?}");
                ensure!(report.sum("read", "io_bytes") == 16 * MIB, "depth {depth}: {report:?}");
            }
        }
        target.stop().map(drop)
    })
}

#[test]
fn what_was_written_is_verified_and_a_corruption_is_caught() -> Result<()> {
    let Some(fio) = fio()? else { return Ok(()) };
    bounded(LIMIT, move || {
        let scratch = Scratch::new()?;
        let disk = scratch.disk("disk", 16 * MIB)?;
        let config = TargetConfig::new().disk(Backend::File(disk.clone()), 4096);
        let target = Target::start(&scratch, &config)?;
        let options = ["--rw=randwrite", "--bs=4k", "--size=8m", "--iodepth=32", "--verify=crc32c"];
        let whole = report(job(&fio, &scratch, &target)?, &options)?;
        ensure!(whole.sum("read", "total_ios") == 2048, "all was read back: {whole:?}");
        let written = [&options[..], &["--do_verify=0"]].concat();
        report(job(&fio, &scratch, &target)?, &written)?;
        // One byte in the middle of a block's data, behind fio's back.
        let file = std::fs::File::options().read(true).write(true).open(&disk)?;
        let at = 3 * MIB + 2000;
        let mut byte = [0];
        file.read_exact_at(&mut byte, at)?;
        let before = byte;
        byte[0] ^= 0x10;
        file.write_all_at(&byte, at)?;
        file.sync_all()?;
        let verify = [&options[..], &["--verify_only", "--verify_fatal=1"]].concat();
        let caught = run(job(&fio, &scratch, &target)?.args(&verify), Duration::from_secs(60))?;
        ensure!(caught.code != 0, "a wrong byte was taken for right: {}", caught.stderr);
        let told = format!("{}{}", caught.text(), caught.stderr);
        ensure!(told.contains("crc32c: verify failed"), "{told}");
        file.write_all_at(&before, at)?;
        file.sync_all()?;
        report(job(&fio, &scratch, &target)?, &verify)?;
        target.stop().map(drop)
    })
}

#[test]
fn large_blocks_are_split_and_arrive_whole() -> Result<()> {
    let Some(fio) = fio()? else { return Ok(()) };
    bounded(LIMIT, move || {
        let scratch = Scratch::new()?;
        let config = TargetConfig::new().disk(Backend::Memory(48 * MIB), 512);
        let target = Target::start(&scratch, &config)?;
        for (size, depth) in [("16m", "2"), ("1536k", "4"), ("512", "32")] {
            let (bs, depth) = (format!("--bs={size}"), format!("--iodepth={depth}"));
            let total = if size == "512" { "--size=1m" } else { "--size=48m" };
            let options = ["--rw=write", &bs, &depth, total, "--verify=crc32c"];
            let report = report(job(&fio, &scratch, &target)?, &options)?;
            let (read, written) = (report.sum("read", "io_bytes"), report.sum("write", "io_bytes"));
            ensure!(read == written && written > 0, "{size}: {report:?}");
        }
        target.stop().map(drop)
    })
}

#[test]
fn trim_gives_space_back_and_zeroes_are_written() -> Result<()> {
    let Some(fio) = fio()? else { return Ok(()) };
    bounded(LIMIT, move || {
        let scratch = Scratch::new()?;
        let disk = scratch.disk("disk", 8 * MIB)?;
        let config = TargetConfig::new().disk(Backend::File(disk.clone()), 4096);
        let target = Target::start(&scratch, &config)?;
        let fill = ["--rw=write", "--bs=64k", "--iodepth=4", "--end_fsync=1"];
        report(job(&fio, &scratch, &target)?, &fill)?;
        let zeroes = || -> Result<bool> { Ok(std::fs::read(&disk)?.iter().all(|byte| *byte == 0)) };
        ensure!(!zeroes()?, "nothing was written");
        let full = std::fs::metadata(&disk)?.blocks();
        let trim = ["--rw=randtrim", "--bs=64k", "--iodepth=8"];
        let trimmed = report(job(&fio, &scratch, &target)?, &trim)?;
        ensure!(trimmed.sum("trim", "total_ios") == 128, "{trimmed:?}");
        ensure!(zeroes()?, "trimmed blocks are not zero");
        let left = std::fs::metadata(&disk)?.blocks();
        ensure!(left < full / 2, "{full} blocks before, {left} after");
        report(job(&fio, &scratch, &target)?, &fill)?;
        let zero = ["--rw=write", "--bs=64k", "--iodepth=4", "--write_mode=zeroes"];
        report(job(&fio, &scratch, &target)?, &zero)?;
        ensure!(zeroes()?, "Write Zeroes left something");
        target.stop().map(drop)
    })
}

#[test]
fn fsync_is_done_as_often_as_asked() -> Result<()> {
    let Some(fio) = fio()? else { return Ok(()) };
    bounded(LIMIT, move || {
        let scratch = Scratch::new()?;
        let disk = scratch.disk("disk", 8 * MIB)?;
        let target = Target::start(&scratch, &TargetConfig::new().disk(Backend::File(disk), 4096))?;
        let options = ["--rw=randwrite", "--bs=4k", "--size=2m", "--iodepth=16", "--fsync=8"];
        let report = report(job(&fio, &scratch, &target)?, &options)?;
        let syncs = report.sum("sync", "total_ios");
        // Once after each 8 of 512 writes; not once more for each that was under way.
        ensure!((60..=66).contains(&syncs), "{syncs} syncs");
        target.stop().map(drop)
    })
}

#[test]
fn jobs_as_processes_and_as_threads() -> Result<()> {
    let Some(fio) = fio()? else { return Ok(()) };
    bounded(LIMIT, move || {
        let scratch = Scratch::new()?;
        let config = TargetConfig::new().disk(Backend::Memory(32 * MIB), 4096);
        let target = Target::start(&scratch, &config)?;
        for kind in [&[][..], &["--thread"], &["--create_serialize=0"]] {
            let options = ["--rw=randrw", "--bs=4k", "--size=4m", "--iodepth=16", "--numjobs=2"];
            let options =
                [&options[..], &["--offset_increment=8m", "--verify=crc32c"], kind].concat();
            let report = report(job(&fio, &scratch, &target)?, &options)?;
            ensure!(report.jobs() == 2 && report.errors() == [0, 0], "{kind:?}: {report:?}");
            ensure!(report.sum("read", "total_ios") >= 2048, "{kind:?}: {report:?}");
        }
        target.stop().map(drop)
    })
}

#[test]
fn several_namespaces_in_one_job_by_name() -> Result<()> {
    let Some(fio) = fio()? else { return Ok(()) };
    bounded(LIMIT, move || {
        let scratch = Scratch::new()?;
        let disks = [scratch.disk("one", 4 * MIB)?, scratch.disk("two", 4 * MIB)?];
        let [one, two] = disks.clone().map(Backend::File);
        let target = Target::start(&scratch, &TargetConfig::new().disk(one, 4096).disk(two, 512))?;
        let name = NQN.replace(':', "\\:");
        let full = format!(
            "trtype=rdma adrfam=ipv4 traddr={} trsvcid=4420 subnqn={name} ns=",
            target.ip()
        );
        let filename = format!("--filename={full}1:{full}2");
        let options = ["--rw=write", "--bs=64k", "--iodepth=8", "--verify=crc32c", &filename];
        let by_name = report(command(&fio, &scratch)?, &options)?;
        ensure!(by_name.sum("write", "io_bytes") == 8 * MIB, "{by_name:?}");
        for disk in &disks {
            let bytes = std::fs::read(disk)?;
            ensure!(bytes.chunks(4096).all(|block| block.iter().any(|byte| *byte != 0)), "a gap");
        }
        let short = ["--rw=randread", "--bs=4k", "--iodepth=8", "--filename=ns=1:ns=2"];
        let by_both = report(job(&fio, &scratch, &target)?, &short)?;
        ensure!(by_both.sum("read", "total_ios") == 2048, "{by_both:?}");
        target.stop().map(drop)
    })
}

#[test]
fn rates_and_latency_targets_are_kept() -> Result<()> {
    let Some(fio) = fio()? else { return Ok(()) };
    bounded(LIMIT, move || {
        let scratch = Scratch::new()?;
        let config = TargetConfig::new().disk(Backend::Memory(16 * MIB), 4096);
        let target = Target::start(&scratch, &config)?;
        let options = ["--rw=randread", "--bs=4k", "--iodepth=4", "--time_based", "--runtime=2"];
        let limited = [&options[..], &["--rate_iops=500"]].concat();
        let limited = report(job(&fio, &scratch, &target)?, &limited)?.iops("read");
        ensure!((300.0..600.0).contains(&limited), "{limited} IOPS of 500");
        let aimed = ["--latency_target=100ms", "--latency_window=200ms", "--latency_percentile=90"];
        let aimed = report(job(&fio, &scratch, &target)?, &[&options[..], &aimed].concat())?;
        ensure!(aimed.sum("read", "total_ios") > 0, "{aimed:?}");
        target.stop().map(drop)
    })
}

#[test]
fn a_server_does_it_for_a_client() -> Result<()> {
    let Some(fio) = fio()? else { return Ok(()) };
    bounded(LIMIT, move || {
        let scratch = Scratch::new()?;
        let config = TargetConfig::new().disk(Backend::Memory(16 * MIB), 4096);
        let target = Target::start(&scratch, &config)?;
        let socket = scratch.join("server");
        let mut server = Command::new(&fio);
        server.arg(format!("--server=sock:{}", socket.display())).current_dir(scratch.path());
        server.stdout(std::process::Stdio::null());
        let server = Running::spawn(&mut server)?;
        until("the server's socket", Duration::from_secs(10), || {
            Ok(socket.exists().then_some(()))
        })?;
        let file = scratch.join("job.fio");
        let lines = format!(
            "[test]\nioengine=external:{}\ntraddr={}\nsubnqn={NQN}\nrw=randwrite\nbs=4k\nsize=4m\n\
             iodepth=16\nverify=crc32c\n",
            engine()?.display(),
            target.ip()
        );
        std::fs::write(&file, lines)?;
        let mut client = Command::new(&fio);
        client.args(["--output-format=json", "--client"]).arg(format!("sock:{}", socket.display()));
        client.arg(&file).current_dir(scratch.path());
        let done = run(&mut client, Duration::from_secs(60))?.success()?;
        let text = done.text();
        let json = text.find('{').and_then(|at| text.get(at..)).context("no JSON")?;
        let report: serde_json::Value = serde_json::from_str(json)?;
        let stats = report["client_stats"].as_array().context("no jobs")?;
        ensure!(stats.iter().any(|job| job["write"]["total_ios"] == 1024), "{text}");
        // The server's process for this client lingers for a second, and would outlive the test.
        until("the end of the server's connection", Duration::from_secs(20), || {
            Ok(server.is_childless()?.then_some(()))
        })?;
        drop(server);
        target.stop().map(drop)
    })
}

/// The job files that the repository has do what they say.
#[test]
fn the_job_files_run() -> Result<()> {
    let Some(fio) = fio()? else { return Ok(()) };
    bounded(LIMIT, move || {
        let scratch = Scratch::new()?;
        let config = TargetConfig::new().disk(Backend::Memory(16 * MIB), 4096);
        let target = Target::start(&scratch, &config)?;
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/fio");
        let mut count = 0;
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            let text = std::fs::read_to_string(&path)?;
            ensure!(text.contains("ioengine=external:build/release/liblariat_fio.so"), "{path:?}");
            // As it is, only quicker.
            let engine = format!("ioengine=external:{}", engine()?.display());
            let text = text
                .replace("ioengine=external:build/release/liblariat_fio.so", &engine)
                .replace("ramp_time=2\n", "");
            let quick: Vec<&str> = text
                .lines()
                .map(|l| if l.starts_with("runtime=") { "runtime=1" } else { l })
                .collect();
            let file = scratch.join("job.fio");
            std::fs::write(&file, quick.join("\n"))?;
            let mut command = Command::new(&fio);
            command.arg("--output-format=json").arg(&file).current_dir(scratch.path());
            command.env("TARGET", target.ip().to_string()).env("SUBNQN", NQN).env("SIZE", "8m");
            let done = run(&mut command, Duration::from_secs(60))?.success();
            let done = done.with_context(|| format!("{path:?}"))?;
            let report = Report::new(&done)?;
            let total = report.sum("read", "total_ios") + report.sum("write", "total_ios");
            ensure!(done.stderr.is_empty() && total > 0, "{path:?}: {} {report:?}", done.stderr);
            count += 1;
        }
        ensure!(count == 6, "{count} job files");
        target.stop().map(drop)
    })
}

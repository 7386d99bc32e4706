//! A disk that is full: the write that finds no room says so.

use std::fs::File;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use lariat::{IoError, Status};
use lariat_tests::process::{
    Backend, Scratch, Target, TargetConfig, binary, bounded, connect, run,
};

use crate::LIMIT;

const DISK_BYTES: u64 = 32 << 20;
const PIECE_BYTES: usize = 256 << 10;

/// Writes until it fails: how many bytes, and the error.
fn write_until_full(target: &Target) -> Result<(u64, IoError)> {
    let controller = connect(target, 1)?;
    let disk = controller.only_namespace()?;
    let bytes = vec![0x77; PIECE_BYTES];
    let mut offset = 0;
    while offset < DISK_BYTES {
        if let Err(error) = disk.write_at(&bytes, offset) {
            // The connection stands, and what was written is there.
            let mut back = vec![0; PIECE_BYTES];
            disk.read_at(&mut back, 0)?;
            ensure!(back == bytes, "the first bytes are there");
            return Ok((offset, error));
        }
        offset += PIECE_BYTES as u64;
    }
    anyhow::bail!("all {DISK_BYTES} bytes were written")
}

#[test]
fn a_full_file_system_is_a_capacity_error() -> Result<()> {
    bounded(LIMIT, || {
        let scratch = Scratch::new()?;
        let folder = scratch.join("small");
        std::fs::create_dir(&folder)?;
        let folder = folder.display();
        let mount = format!("mount -t tmpfs -o size=8M none {folder}");
        // A file system in a mount namespace of the target's own: needs root.
        let mut trial = Command::new("unshare");
        let trial = run(trial.args(["-m", "sh", "-c", &mount]), Duration::from_secs(10));
        if !trial.is_ok_and(|trial| trial.code == 0) {
            eprintln!("SKIPPED a_full_file_system_is_a_capacity_error: no mount namespaces here");
            return Ok(());
        }
        let config = TargetConfig::new().disk(Backend::File(scratch.join("small/disk")), 4096);
        let mut command = Command::new("unshare");
        let script =
            format!("{mount} && truncate -s {DISK_BYTES} {folder}/disk && exec \"$0\" \"$@\"");
        command.args(["-m", "sh", "-c", &script]).arg(binary("lariatd")?);
        let target = Target::start_by(command, &scratch, &config)?;
        let (written, error) = write_until_full(&target)?;
        let status = error.status().unwrap_or(Status::SUCCESS);
        ensure!(status.same_code(Status::CAPACITY_EXCEEDED), "{error}");
        ensure!((4 << 20..=8 << 20).contains(&written), "{written} bytes found room");
        target.stop().map(drop)
    })
}

#[test]
fn a_file_size_limit_is_a_write_fault() -> Result<()> {
    bounded(LIMIT, || {
        let scratch = Scratch::new()?;
        let path = scratch.join("disk");
        File::create(&path)?.set_len(DISK_BYTES)?;
        let config = TargetConfig::new().disk(Backend::File(path), 4096);
        let mut command = Command::new("sh");
        // In blocks of 512 bytes. The signal that comes with the limit must not end the process.
        let script = "ulimit -f 16384 && exec \"$0\" \"$@\"";
        command.args(["-c", script]).arg(binary("lariatd")?);
        let target = Target::start_by(command, &scratch, &config)?;
        let (written, error) = write_until_full(&target)?;
        let status = error.status().unwrap_or(Status::SUCCESS);
        ensure!(status.same_code(Status::WRITE_FAULT), "{error}");
        ensure!(written == 8 << 20, "{written} bytes found room");
        target.stop().map(drop)
    })
}

#[test]
fn a_log_that_cannot_be_written_stops_nothing() -> Result<()> {
    bounded(LIMIT, || {
        let scratch = Scratch::new()?;
        let path = scratch.join("disk");
        File::create(&path)?.set_len(4 << 20)?;
        let config = TargetConfig::new().disk(Backend::File(path), 4096);
        let mut command = Command::new("sh");
        let script = "exec \"$0\" --log trace \"$@\" 2>/dev/full";
        command.args(["-c", script]).arg(binary("lariatd")?);
        let target = Target::start_by(command, &scratch, &config)?;
        let controller = connect(&target, 1)?;
        let disk = controller.only_namespace()?;
        let bytes = vec![0x33; PIECE_BYTES];
        disk.write_at(&bytes, 0)?;
        let mut back = vec![0; PIECE_BYTES];
        disk.read_at(&mut back, 0)?;
        ensure!(back == bytes, "what was written is there");
        let log = target.stop()?;
        ensure!(log.is_empty(), "it was to be written to /dev/full: {log}");
        Ok(())
    })
}

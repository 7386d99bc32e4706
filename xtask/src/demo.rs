//! `cargo xtask demo`: the main job from end to end, on any Linux machine.
//!
//! A target serves a file over user-space RoCEv2 on loopback; the initiator discovers it, writes a
//! real ext4 image, reads it back; checksums and `e2fsck` on the target's own file say whether the
//! data is whole; a short benchmark stands beside the same one on the local file.

use std::fs::{self, File};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::cluster::{Binaries, NQN, Target};
use crate::measure::{self, WORKLOADS};
use crate::table::Table;
use crate::{setup, shell};

/// What can be chosen.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Seconds per measurement.
    #[arg(long, default_value_t = 2)]
    seconds: u32,
    /// Move and verify the data, measure nothing.
    #[arg(long)]
    no_bench: bool,
}

const IMAGE_MIB: u64 = 64;
const DISK_MIB: u64 = 512;

pub(crate) fn run(options: &Options) -> Result<()> {
    setup::install(setup::BUILD)?;
    setup::install(&[setup::MKE2FS, setup::FIO])?;
    let binaries = Binaries::build()?;
    let folder = tempfile::Builder::new().prefix("lariat-demo-").tempdir_in(scratch()?)?;
    let disk = folder.path().join("disk.img");
    allocate(&disk, DISK_MIB << 20)?;

    step("start a target that serves a file over RoCEv2 in user space, no RDMA hardware, no root");
    let target = Target::start(&binaries, folder.path(), &disk)?;
    println!("lariatd serves {} at {}", disk.display(), target.address);

    step("discover it");
    shell::run(&mut binaries.lariat("discover", &target.address, &[]))?;
    step("identify the controller");
    let identity = shell::capture(&mut binaries.lariat("id-ctrl", &target.address, &["-n", NQN]))?;
    for line in identity.lines().take(8) {
        println!("{line}");
    }

    step("make an ext4 image from real files and write it to the remote disk");
    let image = folder.path().join("image.ext4");
    make_image(&image)?;
    let moved = move_image(&binaries, &target, &image)?;
    println!("{moved}");

    step("read it back and compare");
    let copy = folder.path().join("copy.ext4");
    let length = (IMAGE_MIB << 20).to_string();
    shell::run(&mut binaries.lariat(
        "read",
        &target.address,
        &[
            "-n",
            NQN,
            "--namespace-id",
            "1",
            "--offset",
            "0",
            "--length",
            &length,
            "--output",
            &copy.display().to_string(),
        ],
    ))?;
    let (sent, received) = (sha256(&image)?, sha256(&copy)?);
    println!("sent      {sent}\nread back {received}");
    if sent != received {
        bail!("the data that came back differs from the data that was sent");
    }

    step("check the file system on the target's own file");
    let check = shell::capture(&mut shell::command("e2fsck", &["-fn", &path(&disk)]))
        .context("the file system on the target's file is damaged")?;
    println!("{}", check.lines().last().unwrap_or_default());

    if !options.no_bench {
        step("a short benchmark, beside fio's io_uring engine on the same file");
        measure::fill(&disk)?;
        let mut table = Table::new(&[
            "workload",
            "remote",
            "local",
            "remote p50 us",
            "local p50 us",
            "remote p99 us",
            "local p99 us",
        ]);
        for &workload in WORKLOADS {
            let remote = measure::remote(&binaries, &target, 1, workload, options.seconds)?;
            let local = measure::local(&disk, workload, options.seconds)?;
            table.row(vec![
                workload.name.into(),
                measure::throughput(workload, remote),
                measure::throughput(workload, local),
                format!("{:.1}", remote.p50_us),
                format!("{:.1}", local.p50_us),
                format!("{:.1}", remote.p99_us),
                format!("{:.1}", local.p99_us),
            ]);
        }
        println!("{}", table.markdown());
    }

    target.stop()?;
    println!("The data is whole, the target stopped cleanly. Next: README.md, docs/operating.md");
    Ok(())
}

fn step(what: &str) {
    println!("\n== {what}");
}

fn path(file: &Path) -> String {
    file.display().to_string()
}

/// A folder on a real disk: /tmp is often memory, which does not do O_DIRECT everywhere.
fn scratch() -> Result<std::path::PathBuf> {
    let folder = shell::root().join("build/demo");
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// A file whose space is there, so that the benchmark does not measure allocation.
pub(crate) fn allocate(file: &Path, bytes: u64) -> Result<()> {
    File::create(file)?;
    let size = bytes.to_string();
    shell::run(&mut shell::command("fallocate", &["-l", &size, &path(file)]))
        .or_else(|_| Ok(File::options().write(true).open(file)?.set_len(bytes)?))
}

fn make_image(image: &Path) -> Result<()> {
    // Real files: this repository's own sources.
    let size = format!("{IMAGE_MIB}M");
    let tree = tempfile::tempdir()?;
    for part in ["common", "target", "initiator", "docs"] {
        let from = shell::root().join(part);
        if from.is_dir() {
            shell::run(&mut shell::command("cp", &["-r", &path(&from), &path(tree.path())]))?;
        }
    }
    shell::capture(&mut shell::command(
        "mke2fs",
        &["-q", "-t", "ext4", "-d", &path(tree.path()), &path(image), &size],
    ))?;
    Ok(())
}

fn move_image(binaries: &Binaries, target: &Target, image: &Path) -> Result<String> {
    let start = Instant::now();
    shell::run(&mut binaries.lariat(
        "write",
        &target.address,
        &["-n", NQN, "--namespace-id", "1", "--offset", "0", "--input", &path(image)],
    ))?;
    Ok(format!("{IMAGE_MIB} MiB written and flushed in {:.2} s", start.elapsed().as_secs_f64()))
}

fn sha256(file: &Path) -> Result<String> {
    let text = shell::capture(&mut shell::command("sha256sum", &[&path(file)]))?;
    Ok(text.split_whitespace().next().unwrap_or_default().to_owned())
}

//! Data goes to the disk and back unharmed, whatever its size, place, depth, and number of queues
//! and hosts: real processes, compared with the backing file.

use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lariat::{IoQueue, Namespace, Nsid, WireChoice};
use lariat_tests::process::{
    Backend, Content, Ipv6Loopback, Scratch, Target, TargetConfig, bounded, connect, fill,
    first_difference, host_options, keep_busy, lariat, run,
};

const LIMIT: Duration = Duration::from_secs(60);
const DISK_BYTES: u64 = 16 << 20;

fn size(bytes: u64) -> Result<usize> {
    Ok(usize::try_from(bytes)?)
}

/// Sizes in blocks: the small ones, those around powers of two, and beyond one command (1 MiB).
fn sizes(block: u64) -> Vec<u64> {
    let mut sizes = vec![1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129];
    let mib = (1 << 20) / block;
    sizes.extend([mib / 2 - 1, mib / 2 + 1, mib - 1, mib, mib + 1, 3 * mib + 3]);
    sizes
}

/// Writes and reads at offsets that are multiples of nothing but the block, wants what was written
/// then and at the end in `file`.
fn sizes_and_offsets(disk: &Namespace, file: Option<&PathBuf>, seed: u64) -> Result<()> {
    let block = u64::from(disk.block_bytes());
    let blocks = disk.size_bytes() / block;
    let mut content = Content::zeroes(disk.size_bytes())?;
    let mut start = 1;
    let mut back = Vec::new();
    for (turn, count) in (1..).zip(sizes(block)) {
        start = (start * 7 + 13) % (blocks - count);
        let (offset, length) = (start * block, size(count * block)?);
        let bytes = content.at(offset, length)?;
        fill(seed + turn, offset, bytes);
        let told = || format!("{length} bytes at {offset}");
        if turn % 3 == 0 {
            disk.write_at_durably(bytes, offset).with_context(told)?;
        } else {
            disk.write_at(bytes, offset).with_context(told)?;
        }
        // With the neighbours, which must be as they were.
        let from = offset.saturating_sub(block);
        let to = (offset + count * block + block).min(disk.size_bytes());
        back.clear();
        back.resize(size(to - from)?, 0xa5);
        disk.read_at(&mut back, from).with_context(told)?;
        let differs = first_difference(content.at(from, back.len())?, &back);
        ensure!(differs.is_none(), "{}: differs at {from} + {differs:?}", told());
    }
    disk.flush()?;
    back.resize(size(disk.size_bytes())?, 0xa5);
    disk.read_at(&mut back, 0)?;
    ensure!(first_difference(content.at(0, back.len())?, &back).is_none(), "the whole disk");
    file.map_or(Ok(()), |file| content.same_as_file(file))
}

fn with_capsules_of(in_capsule_bytes: u64) -> Result<()> {
    bounded(LIMIT, move || {
        let scratch = Scratch::new()?;
        let files = [scratch.disk("small", DISK_BYTES)?, scratch.disk("large", DISK_BYTES)?];
        let config = TargetConfig::new()
            .disk(Backend::File(files[0].clone()), 512)
            .disk(Backend::File(files[1].clone()), 4096)
            .set("in_capsule_bytes", in_capsule_bytes);
        let target = Target::start(&scratch, &config)?;
        let mut options = host_options(&target, 1)?;
        options.in_capsule_bytes = 65_536;
        let controller = lariat::Controller::connect(options)?;
        for (nsid, (file, block)) in (1..).zip(files.iter().zip([512, 4096])) {
            let disk = controller.namespace(Nsid(nsid))?;
            assert_eq!(disk.block_bytes(), block);
            assert_eq!(disk.size_bytes(), DISK_BYTES);
            sizes_and_offsets(&disk, Some(file), in_capsule_bytes + 1000 * u64::from(nsid))?;
        }
        drop(controller);
        target.stop().map(drop)
    })
}

#[test]
fn sizes_and_offsets_without_data_in_capsules() -> Result<()> {
    with_capsules_of(0)
}

#[test]
fn sizes_and_offsets_with_4096_bytes_in_capsules() -> Result<()> {
    with_capsules_of(4096)
}

#[test]
fn sizes_and_offsets_with_16384_bytes_in_capsules() -> Result<()> {
    with_capsules_of(16_384)
}

#[test]
fn memory_and_null_disks() -> Result<()> {
    bounded(LIMIT, || {
        let scratch = Scratch::new()?;
        let config = TargetConfig::new()
            .disk(Backend::Memory(DISK_BYTES), 512)
            .disk(Backend::Null(1 << 40), 4096);
        let target = Target::start(&scratch, &config)?;
        let controller = connect(&target, 1)?;
        sizes_and_offsets(&controller.namespace(Nsid(1))?, None, 7)?;
        let null = controller.namespace(Nsid(2))?;
        assert_eq!(null.size_bytes(), 1 << 40);
        let mut bytes = vec![0x5a; 1 << 20];
        null.write_at(&bytes, (1 << 40) - (1 << 20))?;
        null.read_at(&mut bytes, (1 << 40) - (1 << 20))?;
        ensure!(bytes.iter().all(|byte| *byte == 0), "a null disk reads as zeroes");
        null.flush()?;
        null.deallocate(0, 1 << 20)?;
        drop((null, controller));
        target.stop().map(drop)
    })
}

#[test]
fn over_ipv6() -> Result<()> {
    bounded(LIMIT * 2, || {
        let Some(_turn) = Ipv6Loopback::take()? else {
            eprintln!("SKIPPED over_ipv6: this machine has no IPv6 loopback address");
            return Ok(());
        };
        let scratch = Scratch::new()?;
        let file = scratch.disk("disk", DISK_BYTES)?;
        let mut config = TargetConfig::new().disk(Backend::File(file.clone()), 512);
        config.address = Ipv6Loopback::ADDRESS;
        let target = Target::start(&scratch, &config)?;
        // The target has port 4791 of the only address: both hosts announce one of their own.
        let (one, two) = (connect(&target, 1)?, connect(&target, 2)?);
        sizes_and_offsets(&one.only_namespace()?, Some(&file), 66)?;
        let mut bytes = vec![0; 512];
        two.only_namespace()?.read_at(&mut bytes, 0)?;
        let copy = scratch.join("copy");
        let words = ["--length", "16M", "--output", &copy.display().to_string()];
        run(&mut lariat(&target, "read", &words)?, LIMIT)?.success()?;
        ensure!(std::fs::read(copy)? == std::fs::read(&file)?, "the copy differs");
        drop((one, two));
        target.stop().map(drop)
    })
}

#[test]
fn depths_from_1_to_128() -> Result<()> {
    bounded(LIMIT, || {
        let scratch = Scratch::new()?;
        let file = scratch.disk("disk", DISK_BYTES)?;
        // As it comes, a target takes 128 commands at a time.
        let config = TargetConfig::new().disk(Backend::File(file), 512);
        let target = Target::start(&scratch, &config)?;
        for depth in [1, 2, 3, 8, 32, 128] {
            let mut options = host_options(&target, 1)?;
            options.queue_depth = depth;
            let controller = lariat::Controller::connect(options)?;
            let geometry = controller.only_namespace()?.geometry();
            let mut queue = controller.io_queue()?;
            assert_eq!(queue.depth(), depth);
            keep_busy(&mut queue, geometry, 0, depth, 4 + 64 / u64::from(depth))
                .with_context(|| format!("depth {depth}"))?;
        }
        target.stop().map(drop)
    })
}

#[test]
fn several_hosts_with_several_queues() -> Result<()> {
    const PART_BYTES: u64 = 2 << 20;
    bounded(LIMIT, || {
        let scratch = Scratch::new()?;
        let file = scratch.disk("disk", 10 * PART_BYTES)?;
        let config = TargetConfig::new().disk(Backend::File(file.clone()), 512).set("reactors", 2);
        let target = Target::start(&scratch, &config)?;
        // Two processes have the last parts, threads of three hosts the first ones.
        let mut images = Vec::new();
        for part in 8..10 {
            let mut bytes = vec![0; size(PART_BYTES)?];
            fill(part, part * PART_BYTES, &mut bytes);
            let image = scratch.join(&format!("image{part}"));
            std::fs::write(&image, &bytes)?;
            images.push((part * PART_BYTES, image, bytes));
        }
        let controllers = [connect(&target, 1)?, connect(&target, 2)?, connect(&target, 3)?];
        thread::scope(|scope| {
            let mut workers = Vec::new();
            for part in 0..8 {
                let controller = &controllers[part % 3];
                workers.push(scope.spawn(move || {
                    let geometry = controller.only_namespace()?.geometry();
                    let mut queue = controller.io_queue()?;
                    keep_busy(&mut queue, geometry, part as u64 * PART_BYTES, 32, 8)
                }));
            }
            for (offset, image, _) in &images {
                let words =
                    ["--offset", &offset.to_string(), "--input", &image.display().to_string()];
                let mut command = lariat(&target, "write", &words)?;
                workers.push(scope.spawn(move || run(&mut command, LIMIT)?.success().map(drop)));
            }
            for worker in workers {
                worker.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
            }
            anyhow::Ok(())
        })?;
        drop(controllers);
        target.stop()?;
        let found = std::fs::read(&file)?;
        for (offset, image, bytes) in images {
            let start = size(offset)?;
            let part = found.get(start..start + bytes.len()).context("the file is too short")?;
            ensure!(first_difference(part, &bytes).is_none(), "{} is damaged", image.display());
        }
        Ok(())
    })
}

/// Queues of three hosts, as many as `QUEUES` or as the target takes.
fn queues_of_three_hosts(target: &Target) -> Result<(Vec<lariat::Controller>, Vec<IoQueue>)> {
    let mut controllers = Vec::new();
    let mut queues = Vec::new();
    for host in 1..=3 {
        let mut options = host_options(target, host)?;
        options.queues = 8;
        options.queue_depth = 32;
        let controller = lariat::Controller::connect(options)?;
        for _ in 0..8 {
            queues.push(controller.io_queue()?);
        }
        controllers.push(controller);
    }
    Ok((controllers, queues))
}

/// A queue of 32 commands takes 41 receives of 12 KiB where it has its own, so that 24 queues would
/// need 11.5 MiB. They get 4.
fn many_queues_with_few_receives(udp: bool) -> Result<()> {
    const PART_BYTES: u64 = 2 << 20;
    bounded(LIMIT, move || {
        let config = || {
            let config = TargetConfig { udp, ..TargetConfig::new() };
            config
                .disk(Backend::Memory(24 * PART_BYTES), 512)
                .set("reactors", 1)
                .set("max_queue_depth", 32)
                .set("receive_mib", 4)
                .set("receive_max_mib", 4)
        };
        let scratch = Scratch::new()?;
        let target = Target::start(&scratch, &config())?;
        ensure!(queues_of_three_hosts(&target).is_err(), "they would fit without sharing");
        target.stop()?;

        let scratch = Scratch::new()?;
        let target = Target::start(&scratch, &config().set("shared_receive", true))?;
        let (controllers, mut queues) = queues_of_three_hosts(&target)
            .with_context(|| format!("the target's log:\n{}", target.log_text()))?;
        target.wait_for_log("share receives", 1, LIMIT)?;
        thread::scope(|scope| {
            let mut workers = Vec::new();
            for (part, queue) in (0..).zip(&mut queues) {
                let controller = &controllers[usize::try_from(part / 8).unwrap_or(0)];
                workers.push(scope.spawn(move || {
                    let geometry = controller.only_namespace()?.geometry();
                    keep_busy(queue, geometry, part * PART_BYTES, 32, 8)
                }));
            }
            for worker in workers {
                worker.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
            }
            anyhow::Ok(())
        })?;
        drop((queues, controllers));
        target.stop().map(drop)
    })
}

#[test]
fn many_queues_share_few_receives_by_udp() -> Result<()> {
    many_queues_with_few_receives(true)
}

#[test]
fn many_queues_share_few_receives_by_shared_memory() -> Result<()> {
    many_queues_with_few_receives(false)
}

#[test]
fn zeroes_flush_and_holes() -> Result<()> {
    bounded(LIMIT, || {
        let scratch = Scratch::new()?;
        let files = [scratch.disk("small", DISK_BYTES)?, scratch.disk("large", DISK_BYTES)?];
        let config = TargetConfig::new()
            .disk(Backend::File(files[0].clone()), 512)
            .disk(Backend::File(files[1].clone()), 4096);
        let target = Target::start(&scratch, &config)?;
        let controller = connect(&target, 1)?;
        for (nsid, file) in (1..).zip(&files) {
            let disk = controller.namespace(Nsid(nsid))?;
            let block = u64::from(disk.block_bytes());
            let mut content = Content::zeroes(DISK_BYTES)?;
            let all = content.at(0, size(DISK_BYTES)?)?;
            fill(u64::from(nsid), 0, all);
            disk.write_at(all, 0)?;
            disk.flush()?;
            content.same_as_file(file)?;
            let full = file.metadata()?.blocks();
            ensure!(full * 512 >= DISK_BYTES, "{full} sectors are there");

            // Odd in blocks; the file keeps its space.
            let (offset, length) = (3 * block, 37 * block);
            disk.write_zeroes(offset, length, false)?;
            content.at(offset, size(length)?)?.fill(0);
            content.same_as_file(file)?;

            let (offset, length) = (1 << 20, 4 << 20);
            disk.deallocate(offset, length)?;
            content.at(offset, size(length)?)?.fill(0);
            disk.flush()?;
            content.same_as_file(file)?;
            let punched = file.metadata()?.blocks();
            ensure!(
                punched + length / 512 <= full + 64,
                "deallocating {length} bytes left {punched} of {full} sectors"
            );

            let (offset, length) = (8 << 20, 1 << 20);
            disk.write_zeroes(offset, length, true)?;
            content.at(offset, size(length)?)?.fill(0);
            let mut back = vec![1; size(DISK_BYTES)?];
            disk.read_at(&mut back, 0)?;
            ensure!(first_difference(&back, content.at(0, back.len())?).is_none(), "read back");
            ensure!(file.metadata()?.blocks() < punched, "write zeroes may free space, and does");
        }
        drop(controller);
        target.stop().map(drop)
    })
}

/// What `lariat` says when it insists on shared memory and there is none.
const NO_SHARED_MEMORY: i32 = 1;

/// The same by UDP, which is what most hosts have.
#[test]
fn sizes_and_offsets_by_udp() -> Result<()> {
    bounded(LIMIT, || {
        let scratch = Scratch::new()?;
        let file = scratch.disk("disk", DISK_BYTES)?;
        let config = TargetConfig::new().udp().disk(Backend::File(file.clone()), 512);
        let target = Target::start(&scratch, &config)?;
        let controller = connect(&target, 1)?;
        sizes_and_offsets(&controller.only_namespace()?, Some(&file), 77)?;
        drop(controller);
        let words = ["--length", "1M", "--output", "/dev/null"];
        run(&mut lariat(&target, "read", &words)?, LIMIT)?.success()?;
        // Nobody offers it there.
        let shm = [&words[..], &["--wire", "shm"]].concat();
        let words = ["no shared memory", "nobody on this host offers it"];
        run(&mut lariat(&target, "read", &shm)?, LIMIT)?.failure(NO_SHARED_MEMORY, &words)?;
        target.stop().map(drop)
    })
}

/// Hosts on both wires at the same target, reactors and all.
#[test]
fn both_wires_at_one_target() -> Result<()> {
    bounded(LIMIT, || {
        let scratch = Scratch::new()?;
        let mut config = TargetConfig::new().set("reactors", 2);
        let file = scratch.disk("disk 1", DISK_BYTES)?;
        config = config.disk(Backend::File(file.clone()), 512);
        for disk in ["disk 2", "disk 3"] {
            config = config.disk(Backend::File(scratch.disk(disk, DISK_BYTES)?), 512);
        }
        let target = Target::start(&scratch, &config)?;
        for (host, wire) in [(1, WireChoice::Shm), (2, WireChoice::Udp), (3, WireChoice::Auto)] {
            let mut options = host_options(&target, host)?;
            options.wire = wire;
            let controller = lariat::Controller::connect(options)?;
            let disk = controller.namespace(Nsid(u32::from(host)))?;
            sizes_and_offsets(&disk, None, u64::from(host))?;
            let mut queues = vec![controller.io_queue()?, controller.io_queue()?];
            for queue in &mut queues {
                keep_busy(queue, disk.geometry(), 0, 16, 16)?;
                let counters = queue.counters();
                let shm = if wire == WireChoice::Udp { 0 } else { counters.packets_sent };
                ensure!(counters.shm_packets_sent == shm, "{wire:?}: {counters:?}");
            }
        }
        for wire in ["shm", "udp", "auto"] {
            let copy = scratch.join(wire);
            let path = copy.display().to_string();
            let words = ["--nsid", "1", "--length", "16M", "--wire", wire, "--output", &path];
            let told = run(&mut lariat(&target, "read", &words)?, LIMIT)?.success()?.text();
            let way = if wire == "udp" { "(soft, UDP)" } else { "(soft, shared memory)" };
            ensure!(told.contains(way), "{way} is not in {told}");
            ensure!(std::fs::read(copy)? == std::fs::read(&file)?, "the copy by {wire} differs");
        }
        target.stop().map(drop)
    })
}

/// One thread, several queues: it sleeps until any of them has something, on either wire.
#[test]
fn a_thread_sleeps_on_several_queues() -> Result<()> {
    bounded(LIMIT, || {
        let scratch = Scratch::new()?;
        // The file answers after the host has fallen asleep.
        let file = scratch.disk("disk", DISK_BYTES)?;
        let config = TargetConfig::new().disk(Backend::File(file), 512);
        let target = Target::start(&scratch, &config)?;
        for (host, wire) in [(1, WireChoice::Shm), (2, WireChoice::Udp)] {
            let mut options = host_options(&target, host)?;
            options.wire = wire;
            options.spin = Duration::ZERO;
            let controller = lariat::Controller::connect(options)?;
            let geometry = controller.only_namespace()?.geometry();
            let mut queues = vec![controller.io_queue()?, controller.io_queue()?];
            let pool = lariat::BufferPool::new(1, 4096)?;
            let (mut done, mut slept) = (Vec::new(), Duration::ZERO);
            for round in 0..50 {
                // The other queue has nothing, and must not stand in the way.
                let buffer = pool.take().context("the buffer is not back")?;
                let busy = &mut queues[round % 2];
                busy.submit_read(7, geometry, 4096 * round as u64, buffer)
                    .map_err(|rejected| rejected.error)?;
                let start = Instant::now();
                while done.is_empty() {
                    for queue in &mut queues {
                        queue.poll(&mut done);
                    }
                    if done.is_empty() {
                        lariat::wait_any(&mut queues, Duration::from_secs(1));
                    }
                    ensure!(start.elapsed() < Duration::from_secs(20), "nobody woke it");
                }
                slept += start.elapsed();
                for ended in done.drain(..) {
                    ended.result?;
                }
            }
            // Not once for the 50 ms after which it looks by itself.
            ensure!(slept < Duration::from_secs(2), "{wire:?}: 50 reads took {slept:?}");
            // Late acknowledges may wake it a few times; then it sleeps its time.
            let slept = (0..20).any(|_| {
                for queue in &mut queues {
                    queue.poll(&mut done);
                }
                let start = Instant::now();
                lariat::wait_any(&mut queues, Duration::from_millis(20));
                start.elapsed() >= Duration::from_millis(15)
            });
            ensure!(slept, "it is woken for nothing");
        }
        target.stop().map(drop)
    })
}

/// Another user's process gets UDP, and is told why.
#[test]
fn another_user_is_served_by_udp() -> Result<()> {
    bounded(LIMIT, || {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("SKIPPED another_user_is_served_by_udp: only root can be another user");
            return Ok(());
        }
        let scratch = Scratch::new()?;
        let config = TargetConfig::new().disk(Backend::Memory(DISK_BYTES), 512);
        let target = Target::start(&scratch, &config)?;
        let mut words = vec!["--length", "1M", "--output", "/dev/null"];
        let command = lariat(&target, "read", &words)?;
        // Where any user finds it.
        let folder = tempfile::tempdir()?;
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(folder.path(), open)?;
        let program = folder.path().join("lariat");
        std::fs::copy(command.get_program(), &program)?;
        let stranger = |command: Command| {
            let mut other = Command::new(&program);
            other.args(command.get_args()).uid(65_534).stdin(Stdio::null());
            other.env_remove("LARIAT_LOG").env("HOME", "/");
            other
        };
        run(&mut stranger(command), LIMIT)?.success()?;
        words.extend(["--wire", "shm"]);
        let told = ["no shared memory", "another user"];
        let command = lariat(&target, "read", &words)?;
        run(&mut stranger(command), LIMIT)?.failure(NO_SHARED_MEMORY, &told)?;
        target.stop().map(drop)
    })
}

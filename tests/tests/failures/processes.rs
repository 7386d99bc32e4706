//! Processes that die or stand still.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lariat::{Controller, IoError};
use lariat_tests::process::{
    Backend, PLACE_BYTES, Running, Scratch, Target, TargetConfig, bounded, connect, fill,
    first_difference, host_options, keep_busy, lariat, run, until,
};
use nix::sys::signal::Signal;

use crate::LIMIT;

/// By UDP nobody tells: the keep alive does.
#[test]
fn a_killed_host_frees_its_place_and_disturbs_nobody() -> Result<()> {
    killed_host(true)
}

/// Through shared memory the end of a process is seen.
#[test]
fn a_killed_host_on_this_host_frees_its_place_at_once() -> Result<()> {
    killed_host(false)
}

fn killed_host(udp: bool) -> Result<()> {
    bounded(LIMIT, move || {
        let scratch = Scratch::new()?;
        let file = scratch.disk("disk", 64 << 20)?;
        // Room for two hosts.
        let mut config = TargetConfig::new().disk(Backend::File(file), 4096).set("max_hosts", 2);
        config.udp = udp;
        let target = Target::start(&scratch, &config)?;

        let survivor = connect(&target, 1)?;
        let geometry = survivor.only_namespace()?.geometry();
        let mut queue = survivor.io_queue()?;
        // Writes on the second half of the disk, and dies of it.
        let words = ["--rw", "write", "--bs", "1M", "--iodepth", "16", "--offset", "32M"];
        // Through shared memory it is told before any keep alive could be.
        let kato = if udp { "1" } else { "60" };
        let rest = ["--runtime", "60", "-k", kato, "--quiet"];
        let mut victim =
            Running::spawn(&mut lariat(&target, "bench", &[&words[..], &rest].concat())?)?;
        target.wait_for_log("queue connected qid=1", 2, LIMIT)?;
        thread::sleep(Duration::from_millis(300));

        let put_away = AtomicBool::new(false);
        thread::scope(|scope| {
            let busy = scope.spawn(|| {
                while !put_away.load(Ordering::Relaxed) {
                    keep_busy(&mut queue, geometry, 0, 16, 16)?;
                }
                // And after the dead host was put away.
                keep_busy(&mut queue, geometry, 0, 16, 64)
            });
            victim.signal(Signal::SIGKILL)?;
            let killed = Instant::now();
            victim.wait(Duration::from_secs(5))?;

            // No place yet, and then, in time, there is one.
            if udp {
                let refused = Controller::connect(host_options(&target, 3)?);
                let error = refused.map(drop).expect_err("the dead host's place is taken");
                ensure!(error.to_string().contains("no free controller"), "{error}");
            }
            let late = until("a place for a new host", Duration::from_secs(15), || {
                Ok(Controller::connect(host_options(&target, 3)?).ok())
            })?;
            let limit = Duration::from_secs(if udp { 10 } else { 5 });
            ensure!(killed.elapsed() < limit, "{:?}", killed.elapsed());
            put_away.store(true, Ordering::Relaxed);
            let mut block = [0; 4096];
            late.only_namespace()?.read_at(&mut block, 0)?;
            busy.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?
        })?;
        drop((queue, survivor));
        target.stop().map(drop)
    })
}

#[test]
fn a_killed_target_is_told_in_time_and_can_be_restarted() -> Result<()> {
    bounded(LIMIT, || {
        let scratch = Scratch::new()?;
        let file = scratch.disk("disk", 16 << 20)?;
        let config = TargetConfig::new().disk(Backend::File(file), 4096);
        let mut target = Target::start(&scratch, &config)?;
        let mut options = host_options(&target, 1)?;
        options.kato = Duration::from_secs(4);
        let controller = Controller::connect(options)?;
        let disk = controller.only_namespace()?;
        let mut bytes = vec![0; 64 << 10];
        fill(5, 0, &mut bytes);
        disk.write_at(&bytes, 0)?;
        disk.flush()?;

        // Writes behind what is to be found again: the kernel has some under way when the target dies.
        let words = ["--rw", "randwrite", "--bs", "64k", "--iodepth", "32", "--offset", "8M"];
        let words = [&words[..], &["--runtime", "60", "--quiet"]].concat();
        let mut bench = lariat(&target, "bench", &words)?;
        thread::scope(|scope| {
            let bench = scope.spawn(move || run(&mut bench, LIMIT));
            target.wait_for_log("queue connected qid=1", 2, LIMIT)?;
            thread::sleep(Duration::from_millis(200));
            target.kill()?;
            let killed = Instant::now();

            let error = disk.read_at(&mut bytes, 0).expect_err("nobody is there to answer");
            let took = killed.elapsed();
            ensure!(error.is_connection_lost(), "{error}");
            ensure!(took < Duration::from_secs(10), "told after {took:?}");
            until("the loss of the controller", Duration::from_secs(10), || Ok(controller.lost()))?;
            // What follows fails at once.
            let again = Instant::now();
            let error = disk.flush().expect_err("nobody is there to answer");
            ensure!(error.is_connection_lost(), "{error}");
            ensure!(again.elapsed() < Duration::from_secs(1), "{:?}", again.elapsed());

            let bench = bench.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
            let bench =
                bench.failure(1, &["the connection is lost", "the peer's process ended"])?;
            let figures = bench.text();
            ensure!(figures.contains("IOPS"), "what was measured until then is shown: {figures}");
            ensure!(bench.took < Duration::from_secs(15), "lariat ended after {:?}", bench.took);
            anyhow::Ok(())
        })?;
        drop((disk, controller));

        // On the same address, from the same file.
        let target = Target::start(&scratch, &config)?;
        let controller = connect(&target, 1)?;
        let mut back = vec![0; bytes.len()];
        controller.only_namespace()?.read_at(&mut back, 0)?;
        fill(5, 0, &mut bytes);
        ensure!(first_difference(&bytes, &back).is_none(), "what was flushed is there");
        drop(controller);
        target.stop().map(drop)
    })
}

#[test]
fn a_target_that_stood_still_goes_on() -> Result<()> {
    bounded(LIMIT, || {
        let scratch = Scratch::new()?;
        let file = scratch.disk("disk", 16 << 20)?;
        let config = TargetConfig::new().disk(Backend::File(file), 4096);
        let target = Target::start(&scratch, &config)?;
        let controller = connect(&target, 1)?;
        let geometry = controller.only_namespace()?.geometry();
        let mut queue = controller.io_queue()?;
        thread::scope(|scope| {
            let busy = scope.spawn(move || {
                let start = Instant::now();
                let mut rounds = 0;
                while start.elapsed() < Duration::from_secs(3) {
                    keep_busy(&mut queue, geometry, 0, 32, 8)?;
                    rounds += 1;
                }
                anyhow::Ok(rounds)
            });
            thread::sleep(Duration::from_millis(300));
            target.signal(Signal::SIGSTOP)?;
            thread::sleep(Duration::from_millis(2200));
            target.signal(Signal::SIGCONT)?;
            let rounds = busy.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
            ensure!(rounds > 0, "{rounds} rounds");
            anyhow::Ok(())
        })?;
        ensure!(controller.lost().is_none());
        let mut bytes = vec![0; usize::try_from(PLACE_BYTES)?];
        controller.only_namespace()?.read_at(&mut bytes, 0)?;
        drop(controller);
        target.stop().map(drop)
    })
}

#[test]
fn a_request_that_takes_too_long_is_given_up() -> Result<()> {
    bounded(LIMIT, || {
        let scratch = Scratch::new()?;
        let config = TargetConfig::new().disk(Backend::Memory(1 << 20), 4096);
        let target = Target::start(&scratch, &config)?;
        let mut options = host_options(&target, 1)?;
        options.io_timeout = Duration::from_millis(700);
        options.shutdown_timeout = Duration::from_millis(500);
        let controller = Controller::connect(options)?;
        let disk = controller.only_namespace()?;
        let mut block = vec![0; 4096];
        disk.read_at(&mut block, 0)?;
        target.signal(Signal::SIGSTOP)?;
        let start = Instant::now();
        let error = disk.read_at(&mut block, 0).expect_err("the target stands still");
        let took = start.elapsed();
        target.signal(Signal::SIGCONT)?;
        ensure!(matches!(error, IoError::TimedOut { opcode: 2, .. }), "{error:?}");
        ensure!((0.6..3.0).contains(&took.as_secs_f64()), "given up after {took:?}");
        drop((disk, controller));
        // The target has no grudge.
        connect(&target, 2)?.only_namespace()?.read_at(&mut block, 0)?;
        target.stop().map(drop)
    })
}

/// Over UDP the loss is known after seconds, when the time of the measurement may be over.
#[test]
fn figures_of_a_target_that_died_end_with_its_last_answer() -> Result<()> {
    bounded(LIMIT, || {
        let scratch = Scratch::new()?;
        let config = TargetConfig::new().disk(Backend::Memory(16 << 20), 4096);
        let mut target = Target::start(&scratch, &config)?;
        let words = ["--runtime", "3", "--wire", "udp", "--quiet", "-o", "json"];
        let mut bench = lariat(&target, "bench", &words)?;
        thread::scope(|scope| {
            let bench = scope.spawn(move || run(&mut bench, LIMIT));
            target.wait_for_log("queue connected qid=1", 1, LIMIT)?;
            thread::sleep(Duration::from_millis(500));
            target.kill()?;
            let killed = Instant::now();
            let bench = bench.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
            // The transport's retries take 4.3 s; then nobody waits for the target any more.
            let took = killed.elapsed();
            ensure!(took < Duration::from_millis(5500), "it ended {took:?} after its target");
            let bench = bench.failure(1, &["the figures are those up to this failure"])?;
            let report: serde_json::Value = serde_json::from_str(&bench.text())?;
            let seconds = report["runtime_seconds"].as_f64().context("runtime_seconds")?;
            ensure!(seconds < 2.0, "{report:#}");
            ensure!(
                report["error"].as_str().is_some_and(|error| error.contains("lost")),
                "{report:#}"
            );
            anyhow::Ok(())
        })
    })
}

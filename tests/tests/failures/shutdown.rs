//! SIGTERM under load: a clean end, and nothing that was acknowledged is lost.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lariat::{BufferPool, Geometry, IoQueue};
use lariat_tests::process::{
    Backend, Running, Scratch, Target, TargetConfig, bounded, connect, fill, first_difference,
    lariat,
};
use nix::sys::signal::Signal;

use crate::LIMIT;

const REQUEST_BYTES: usize = 8192;

/// Writes one place after the other, until the connection goes; returns the offsets acknowledged.
fn write_until_the_end(
    queue: &mut IoQueue,
    geometry: Geometry,
    part: core::ops::Range<u64>,
) -> Result<Vec<u64>> {
    let pool = BufferPool::new(16, REQUEST_BYTES)?;
    let mut bytes = vec![0; REQUEST_BYTES];
    let mut acknowledged = Vec::new();
    let mut next = part.start;
    let mut done = Vec::new();
    let mut lost = false;
    loop {
        while !lost
            && next < part.end
            && let Some(mut buffer) = pool.take()
        {
            fill(9, next, &mut bytes);
            buffer.write(0, &bytes)?;
            if let Err(rejected) = queue.submit_write(next, geometry, next, buffer, false) {
                ensure!(rejected.error.is_connection_lost(), "{}", rejected.error);
                lost = true;
            }
            next += REQUEST_BYTES as u64;
        }
        ensure!(next < part.end, "the part was written before the signal came");
        if queue.outstanding() == 0 {
            ensure!(lost, "nothing is under way, yet the connection stands");
            return Ok(acknowledged);
        }
        queue.wait(&mut done, Duration::from_secs(1));
        for ended in done.drain(..) {
            match ended.result {
                Ok(_) => acknowledged.push(ended.user_data),
                Err(error) => {
                    ensure!(error.is_connection_lost(), "{error}");
                    lost = true;
                }
            }
        }
    }
}

/// What [`write_until_the_end`] wrote is there.
fn check_written(file: &Path, acknowledged: &[u64]) -> Result<()> {
    let file = std::fs::File::open(file)?;
    let (mut expected, mut found) = (vec![0; REQUEST_BYTES], vec![0; REQUEST_BYTES]);
    for &offset in acknowledged {
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut found, offset)
            .with_context(|| format!("at {offset}"))?;
        fill(9, offset, &mut expected);
        let differs = first_difference(&expected, &found);
        ensure!(differs.is_none(), "the write at {offset} is lost (byte {differs:?})");
    }
    Ok(())
}

/// `timeout` signals the process and then its group.
#[test]
fn a_signal_that_comes_twice_at_once_is_one() -> Result<()> {
    bounded(LIMIT, || {
        let scratch = Scratch::new()?;
        let config = TargetConfig::new().disk(Backend::Memory(16 << 20), 4096);
        let mut target = Target::start(&scratch, &config)?;
        // Hosts have to be told good-bye, which takes the second one's time.
        let _controllers = [connect(&target, 2)?, connect(&target, 2)?];
        for _ in 0..3 {
            target.signal(Signal::SIGTERM)?;
            thread::sleep(Duration::from_millis(1));
        }
        let status = target.wait(Duration::from_secs(20))?;
        ensure!(status.code() == Some(0), "{status}:\n{}", target.log_text());
        Ok(())
    })
}

#[test]
fn sigterm_under_load_loses_nothing_acknowledged() -> Result<()> {
    const PART_BYTES: u64 = 4 << 30;
    bounded(LIMIT, || {
        let scratch = Scratch::new()?;
        let file = scratch.disk("disk", 4 * PART_BYTES)?;
        let config = TargetConfig::new().disk(Backend::File(file.clone()), 4096).set("reactors", 2);
        let target = Target::start(&scratch, &config)?;
        let controllers = [connect(&target, 1)?, connect(&target, 2)?];
        let mut acknowledged = Vec::new();
        thread::scope(|scope| {
            let mut workers = Vec::new();
            for part in 0..4 {
                let controller = &controllers[usize::from(part % 2 == 1)];
                workers.push(scope.spawn(move || {
                    let geometry = controller.only_namespace()?.geometry();
                    let mut queue = controller.io_queue()?;
                    let part = part * PART_BYTES..(part + 1) * PART_BYTES;
                    write_until_the_end(&mut queue, geometry, part)
                }));
            }
            target.wait_for_log("queue connected qid=2", 2, LIMIT)?;
            thread::sleep(Duration::from_millis(300));
            target.signal(Signal::SIGTERM)?;
            for worker in workers {
                acknowledged.extend(worker.join().map_err(|_| anyhow::anyhow!("panicked"))??);
            }
            anyhow::Ok(())
        })?;
        let mut target = target;
        let status = target.wait(Duration::from_secs(20))?;
        ensure!(status.code() == Some(0), "{status}:\n{}", target.log_text());
        ensure!(acknowledged.len() > 100, "{} writes only", acknowledged.len());

        check_written(&file, &acknowledged)
    })
}

/// By UDP nobody tells that a host is gone; a live one beside it still gets its answers.
#[test]
fn a_host_that_was_killed_does_not_hold_up_the_end() -> Result<()> {
    bounded(LIMIT, || {
        // While its last responses are sent again and again; and when only its admin queue is left.
        for gone_for in [Duration::from_millis(100), Duration::from_millis(4800)] {
            end_beside_a_killed_host(gone_for)?;
        }
        Ok(())
    })
}

fn end_beside_a_killed_host(gone_for: Duration) -> Result<()> {
    const PART_BYTES: u64 = 16 << 30;
    let scratch = Scratch::new()?;
    let file = scratch.disk("disk", PART_BYTES)?;
    let config = TargetConfig::new().disk(Backend::File(file.clone()), 4096).udp();
    let mut target = Target::start(&scratch, &config.set("reactors", 2))?;
    let controller = connect(&target, 1)?;
    let words = ["--rw", "randread", "--queues", "3", "--runtime", "60", "--quiet"];
    let mut victim = Running::spawn(&mut lariat(&target, "bench", &words)?)?;
    target.wait_for_log("queue connected qid=3", 1, LIMIT)?;
    thread::sleep(Duration::from_millis(300));
    victim.signal(Signal::SIGKILL)?;
    victim.wait(LIMIT)?;
    thread::sleep(gone_for);
    let (took, acknowledged) = thread::scope(|scope| {
        let live = scope.spawn(|| {
            let geometry = controller.only_namespace()?.geometry();
            write_until_the_end(&mut controller.io_queue()?, geometry, 0..PART_BYTES)
        });
        target.wait_for_log("queue connected qid=1", 2, LIMIT)?;
        thread::sleep(Duration::from_millis(200));
        target.signal(Signal::SIGTERM)?;
        let start = Instant::now();
        let status = target.wait(Duration::from_secs(20))?;
        let took = start.elapsed();
        ensure!(status.code() == Some(0), "{status}:\n{}", target.log_text());
        let acknowledged = live.join().map_err(|_| anyhow::anyhow!("panicked"))??;
        anyhow::Ok((took, acknowledged))
    })?;
    // Some 2 s; a busy machine may take longer.
    ensure!(took < Duration::from_millis(3500), "{took:?} for a host gone for {gone_for:?}");
    ensure!(acknowledged.len() > 20, "{} writes only", acknowledged.len());
    check_written(&file, &acknowledged)
}

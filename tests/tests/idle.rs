//! Who has nothing to do takes no time, and is awake at once when there is something. The one test of
//! its binary: it reads this process's own time, too.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lariat_tests::process::{Backend, Scratch, Target, TargetConfig, bounded, connect};

/// Processor time a process has used, user and system (proc_pid_stat(5), fields 14 and 15).
fn used(process: &str) -> Result<Duration> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    let (_, fields) = text.rsplit_once(") ").context("no command name")?;
    let ticks =
        fields.split(' ').skip(11).take(2).map(str::parse::<u64>).sum::<Result<u64, _>>()?;
    let rate = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK)?.context("no tick rate")?;
    Ok(Duration::from_secs(ticks) / u32::try_from(rate)?)
}

#[test]
fn idle_ends_sleep_and_wake_at_once() -> Result<()> {
    bounded(Duration::from_secs(60), || {
        let scratch = Scratch::new()?;
        let file = scratch.disk("disk", 16 << 20)?;
        let config = TargetConfig::new().disk(Backend::File(file), 4096).set("reactors", 2);
        let target = Target::start(&scratch, &config)?;
        let controller = connect(&target, 1)?;
        let disk = controller.only_namespace()?;
        // An I/O queue that stands and was used.
        let queue = controller.io_queue()?;
        let mut block = vec![0; 4096];
        disk.read_at(&mut block, 0)?;
        thread::sleep(Duration::from_millis(300));

        let pid = target.pid().to_string();
        let before = (used(&pid)?, used("self")?);
        thread::sleep(Duration::from_secs(2));
        let (theirs, ours) = (used(&pid)? - before.0, used("self")? - before.1);
        // One percent of one processor.
        ensure!(theirs <= Duration::from_millis(20), "the idle target used {theirs:?} in 2 s");
        ensure!(ours <= Duration::from_millis(20), "the idle host used {ours:?} in 2 s");

        // The best of some: other tests may keep the processors busy.
        let mut best = Duration::MAX;
        for _ in 0..5 {
            thread::sleep(Duration::from_millis(100));
            let start = Instant::now();
            disk.read_at(&mut block, 0)?;
            best = best.min(start.elapsed());
        }
        ensure!(best < Duration::from_millis(20), "an I/O after idling took {best:?}");
        drop((queue, disk, controller));
        target.stop().map(drop)
    })
}

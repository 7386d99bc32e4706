//! Runs a workload: threads that keep queues full, each its own or several, and one that keeps time.
//! Nothing is allocated per request. Calls the library, `pattern`, `report`; called by `bench`.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use std::io::{IsTerminal, Write};
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use lariat::{Buffer, BufferPool, Controller, Geometry, IoCompletion, IoQueue, wait_any};
use lariat_fabric::waiting::YIELD_AFTER;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

use super::options::{BenchOptions, Region};
use super::pattern::{Next, Random, Requests, fill};
use super::report::{Report, Side};
use crate::failure::usage;
use crate::signals::Stop;
use crate::units::{show_count, show_rate, to_f64};

/// Between two looks at the clock and at signals.
const TICK: Duration = Duration::from_millis(50);

/// What the threads and the time keeper share.
struct Shared {
    /// Completions count from now on.
    measuring: AtomicBool,
    /// Submit no more.
    over: AtomicBool,
    reads: AtomicU64,
    writes: AtomicU64,
}

/// One queue's work.
struct Worker<'a> {
    queue: IoQueue,
    geometry: Geometry,
    requests: Requests,
    /// For reads, and for writes: so that what was read is never what is written.
    pools: [BufferPool; 2],
    shared: &'a Shared,
    depth: u32,
    submitted: u64,
    sides: Sides,
}

/// A worker's result.
struct Sides {
    read: Side,
    write: Side,
}

/// Runs it. What was counted comes back also where it ended before its time, with the reason.
pub(crate) fn run(
    controller: &Controller,
    geometry: Geometry,
    options: &BenchOptions,
    region: Region,
    stop: &Stop,
    quiet: bool,
) -> Result<(Report, Result<()>)> {
    let shared = Shared {
        measuring: AtomicBool::new(false),
        over: AtomicBool::new(false),
        reads: AtomicU64::new(0),
        writes: AtomicU64::new(0),
    };
    let mut workers = Vec::new();
    for index in 0..options.queues {
        workers.push(Worker::new(controller, geometry, options, region, index, &shared)?);
    }
    let paths = workers.iter().map(|worker| worker.queue.path()).collect();
    // Only now are signals looked at.
    stop.orderly();
    let poll_time = controller.poll_time();
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for left in (1..=usize::from(options.thread_count())).rev() {
            let share = workers.split_off(workers.len() - workers.len() / left);
            let thread = std::thread::Builder::new()
                .name("queue".into())
                .spawn_scoped(scope, move || work(share, poll_time))
                .context("cannot start a thread")?;
            threads.push(thread);
        }
        let kept = keep_time(&shared, options, stop, quiet, || {
            threads.iter().any(std::thread::ScopedJoinHandle::is_finished)
        });
        shared.over.store(true, Ordering::Relaxed);
        let mut report = Report {
            read: Side::new()?,
            write: Side::new()?,
            elapsed: kept.elapsed,
            cpu: kept.cpu,
            paths,
        };
        let mut all = Ok(());
        for thread in threads {
            let (sides, ended) = thread.join().map_err(|_| anyhow!("a queue's thread died"))??;
            report.read.add(&sides.read)?;
            report.write.add(&sides.write)?;
            all = all.and(ended);
        }
        if all.is_err() {
            // Until it is known that a target is gone, nothing is answered for seconds: longer than
            // the time that was left, maybe.
            report.elapsed = kept.answered;
        }
        Ok((report, all))
    })
}

struct Kept {
    elapsed: Duration,
    /// Until the last answer, to a tick.
    answered: Duration,
    cpu: Duration,
}

/// Ramp, measurement, live line; ends early when a thread has ended or the user wants it.
fn keep_time(
    shared: &Shared,
    options: &BenchOptions,
    stop: &Stop,
    quiet: bool,
    failed: impl Fn() -> bool,
) -> Kept {
    let ramp_end = Instant::now() + options.ramp_time;
    let sleep_until = |end: Instant| {
        let left = end.saturating_duration_since(Instant::now());
        std::thread::sleep(left.min(TICK));
        !left.is_zero() && !stop.requested() && !failed()
    };
    while sleep_until(ramp_end) {}
    let start = Instant::now();
    let cpu = cpu_time();
    shared.measuring.store(true, Ordering::Relaxed);
    let end = start + options.runtime;
    let mut live = Live::new(options, start, quiet);
    let (mut last, mut answered) = (0, Duration::ZERO);
    while sleep_until(end) {
        live.show(shared);
        let count = shared.reads.load(Ordering::Relaxed) + shared.writes.load(Ordering::Relaxed);
        if count != last {
            (last, answered) = (count, start.elapsed());
        }
    }
    shared.measuring.store(false, Ordering::Relaxed);
    let elapsed = start.elapsed();
    live.clear();
    Kept { elapsed, answered, cpu: cpu_time().saturating_sub(cpu) }
}

/// Processor time of this process, user and system.
fn cpu_time() -> Duration {
    getrusage(UsageWho::RUSAGE_SELF).map_or(Duration::ZERO, |usage| {
        let microseconds =
            usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
        Duration::from_micros(u64::try_from(microseconds).unwrap_or(0))
    })
}

impl<'a> Worker<'a> {
    fn new(
        controller: &Controller,
        geometry: Geometry,
        options: &BenchOptions,
        region: Region,
        index: u16,
        shared: &'a Shared,
    ) -> Result<Self> {
        let mut queue = controller.io_queue()?;
        let depth = options.iodepth;
        if queue.depth() < depth {
            return Err(usage(format!(
                "the target takes {most} requests on a queue, --iodepth {depth} is more: use \
                 --iodepth {most} with more --queues, or let it take more (lariatd: \
                 max_queue_depth in [target])",
                most = queue.depth()
            )));
        }
        let count = usize::try_from(depth)?;
        let request_bytes = usize::try_from(region.request_bytes)?;
        let mut pool = |wanted: bool| -> Result<BufferPool> {
            let pool = BufferPool::new(if wanted { count } else { 1 }, request_bytes)
                .context("no memory for the buffers")?;
            queue.register(pool.memory())?;
            Ok(pool)
        };
        let pools = [pool(options.rw.reads())?, pool(options.rw.writes())?];
        let [_, payloads] = &pools;
        paint(payloads, Random::new(options.seed, u64::from(index) + 0x1_0000))?;
        let requests = Requests::new(options, region, index);
        let sides = Sides { read: Side::new()?, write: Side::new()? };
        Ok(Self { queue, geometry, requests, pools, shared, depth, submitted: 0, sides })
    }

    /// Fills the queue.
    fn fill(&mut self) -> Result<()> {
        while self.queue.outstanding() < self.depth {
            self.submit()?;
        }
        Ok(())
    }

    /// Counts what has ended.
    fn count(&mut self, done: &mut Vec<IoCompletion>) -> Result<()> {
        let measuring = self.shared.measuring.load(Ordering::Relaxed);
        let (mut reads, mut writes) = (0, 0);
        for ended in done.drain(..) {
            let is_read = ended.user_data == READ;
            ended.result.context(if is_read { "read" } else { "write" })?;
            if !measuring {
                continue;
            }
            let latency = ended.stages.answered.since(ended.stages.submitted);
            if is_read {
                reads += 1;
                self.sides.read.record(latency);
            } else {
                writes += 1;
                self.sides.write.record(latency);
            }
        }
        for (counter, count) in [(&self.shared.reads, reads), (&self.shared.writes, writes)] {
            if count > 0 {
                counter.fetch_add(count, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    fn submit(&mut self) -> Result<()> {
        self.submitted += 1;
        let Next { offset_bytes, is_read } = self.requests.next();
        let [reads, writes] = &self.pools;
        let pool = if is_read { reads } else { writes };
        let mut buffer = pool.take().context("a buffer is missing")?;
        let sent = if is_read {
            self.queue.submit_read(READ, self.geometry, offset_bytes, buffer)
        } else {
            mark(&mut buffer, self.submitted)?;
            self.queue.submit_write(WRITE, self.geometry, offset_bytes, buffer, false)
        };
        sent.map_err(|rejected| rejected.error)
            .with_context(|| format!("request at byte {offset_bytes}"))
    }
}

/// A thread's work: its queues, until it is over.
/// What was counted comes back also where it ended before its time.
fn work(mut workers: Vec<Worker<'_>>, poll_time: Duration) -> Result<(Sides, Result<()>)> {
    let ended = keep_full(&mut workers, poll_time);
    let mut sides = Sides { read: Side::new()?, write: Side::new()? };
    for worker in &workers {
        sides.read.add(&worker.sides.read)?;
        sides.write.add(&worker.sides.write)?;
    }
    Ok((sides, ended))
}

fn keep_full(workers: &mut [Worker<'_>], poll_time: Duration) -> Result<()> {
    let mut done = Vec::with_capacity(128);
    let over = |workers: &[Worker<'_>]| {
        workers.first().is_none_or(|worker| worker.shared.over.load(Ordering::Relaxed))
    };
    while !over(workers) {
        turn(workers, poll_time, &mut done, true)?;
    }
    // What is still in flight is not counted, but waited for: a target that went away before the
    // end leaves nothing but that.
    while workers.iter().any(|worker| worker.queue.outstanding() > 0) {
        turn(workers, poll_time, &mut done, false)?;
    }
    Ok(())
}

/// Fills the queues (if they are to be filled) and waits until something has ended, at most for a
/// tick.
fn turn(
    workers: &mut [Worker<'_>],
    poll_time: Duration,
    done: &mut Vec<IoCompletion>,
    fill: bool,
) -> Result<()> {
    if let [worker] = workers {
        if fill {
            worker.fill()?;
        }
        worker.queue.wait(done, TICK);
        return worker.count(done);
    }
    let start = Instant::now();
    loop {
        let mut any = false;
        for worker in workers.iter_mut() {
            if fill {
                worker.fill()?;
            }
            any |= worker.queue.poll(done) > 0;
            worker.count(done)?;
        }
        let waited = start.elapsed();
        if any || waited >= TICK {
            return Ok(());
        }
        if waited >= poll_time {
            wait_any(workers.iter_mut().map(|worker| &mut worker.queue), TICK - waited);
        } else if waited >= YIELD_AFTER {
            // The target may need this very core.
            std::thread::yield_now();
        }
    }
}

/// `user_data` of the two kinds.
const READ: u64 = 0;
const WRITE: u64 = 1;

/// Fills all buffers of a pool.
fn paint(pool: &BufferPool, mut random: Random) -> Result<()> {
    let mut bytes = vec![0; pool.buffer_bytes()];
    let mut buffers: Vec<Buffer> = std::iter::from_fn(|| pool.take()).collect();
    for buffer in &mut buffers {
        fill(&mut bytes, &mut random);
        buffer.write(0, &bytes).context("a buffer is shorter than it says")?;
    }
    Ok(())
}

/// Makes a payload differ from the one before, at little cost: a counter in each 4 KiB.
fn mark(buffer: &mut Buffer, count: u64) -> Result<()> {
    for at in (0..buffer.len()).step_by(4096) {
        buffer.write(at, &count.to_le_bytes()).context("a buffer is shorter than it says")?;
    }
    Ok(())
}

/// The line on the terminal.
struct Live {
    active: bool,
    start: Instant,
    shown: Instant,
    runtime: f64,
    request_bytes: f64,
    /// Which sides there are.
    sides: [bool; 2],
    /// Requests of both sides when the line was last shown.
    counts: [u64; 2],
}

impl Live {
    fn new(options: &BenchOptions, start: Instant, quiet: bool) -> Self {
        Self {
            active: !quiet && std::io::stderr().is_terminal(),
            start,
            shown: start,
            runtime: options.runtime.as_secs_f64(),
            request_bytes: to_f64(options.bs),
            sides: [options.rw.reads(), options.rw.writes()],
            counts: [0; 2],
        }
    }

    /// Once a second.
    fn show(&mut self, shared: &Shared) {
        let passed = self.shown.elapsed().as_secs_f64();
        if !self.active || passed < 1.0 {
            return;
        }
        let counts = [&shared.reads, &shared.writes].map(|count| count.load(Ordering::Relaxed));
        let mut line = String::new();
        let sides =
            ["read", "write"].into_iter().zip(self.sides).zip(counts.into_iter().zip(self.counts));
        for ((name, used), (now, before)) in sides {
            if used {
                let rate = to_f64(now - before) / passed;
                let bytes = show_rate(rate * self.request_bytes);
                line.push_str(&format!("  {name} {} IOPS, {bytes}", show_count(rate)));
            }
        }
        let seconds = self.start.elapsed().as_secs_f64();
        let _ = write!(std::io::stderr(), "\r\x1b[K[{seconds:.0}/{:.0} s]{line}", self.runtime);
        (self.counts, self.shown) = (counts, Instant::now());
    }

    fn clear(&self) {
        if self.active {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

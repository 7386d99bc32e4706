//! No allocation per I/O on either end: a whole target and a host in this process, over real UDP, and
//! an allocator that counts. The one test of its binary.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::net::SocketAddr;
use std::ops::RangeBounds;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lariat::{BufferPool, ConnectOptions, Controller, Geometry, IoQueue, Nqn, Nsid};
use lariat_target::daemon::{self, Config};
use lariat_tests::process::{Backend, NQN, PORT, Scratch, TargetConfig, bounded};

struct Counting;

/// What each thread has allocated, in the order of their first allocations.
static COUNTS: [AtomicU64; THREADS] = [const { AtomicU64::new(0) }; THREADS];
static NEXT: AtomicUsize = AtomicUsize::new(0);
const THREADS: usize = 64;

thread_local! {
    static PLACE: Cell<usize> = const { Cell::new(usize::MAX) };
}

fn count() {
    if PLACE.get() == usize::MAX {
        PLACE.set(NEXT.fetch_add(1, Ordering::Relaxed));
    }
    if let Some(count) = COUNTS.get(PLACE.get()) {
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// What the threads of these places have allocated.
fn allocated(places: impl RangeBounds<usize>) -> u64 {
    let counts = COUNTS.iter().enumerate().filter(|(place, _)| places.contains(place));
    counts.map(|(_, count)| count.load(Ordering::Relaxed)).sum()
}

// SAFETY: hands everything on to the system's allocator, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise about `layout` is the one needed here.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer comes from `System`, by the functions here.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the pointer comes from `System`; the rest is the caller's promise.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Moves `count` requests through the queue, half of them writes, `depth` at a time.
fn exchange(
    queue: &mut IoQueue,
    geometry: Geometry,
    pool: &BufferPool,
    done: &mut Vec<lariat::IoCompletion>,
    depth: u32,
    count: u64,
) -> Result<()> {
    let places = geometry.capacity_bytes() / pool.buffer_bytes() as u64;
    let (mut sent, mut ended) = (0, 0);
    while ended < count {
        while sent < count && queue.outstanding() < depth {
            let buffer = pool.take().context("a buffer")?;
            let offset = sent * 7 % places * pool.buffer_bytes() as u64;
            if sent % 2 == 0 {
                queue.submit_write(sent, geometry, offset, buffer, false)?;
            } else {
                queue.submit_read(sent, geometry, offset, buffer)?;
            }
            sent += 1;
        }
        ensure!(queue.wait(done, Duration::from_secs(10)) > 0, "nothing ends");
        for one in done.drain(..) {
            one.result?;
            ended += 1;
        }
    }
    Ok(())
}

#[test]
fn steady_state_allocates_nothing() -> Result<()> {
    bounded(Duration::from_secs(60), || {
        let scratch = Scratch::new()?;
        let file = scratch.disk("disk", 16 << 20)?;
        let config = TargetConfig::new()
            .disk(Backend::Memory(16 << 20), 4096)
            .disk(Backend::File(file), 4096)
            .set("reactors", 1);
        let parsed = Config::parse(Path::new("alloc.toml"), &config.toml(), [])?;
        let (sender, ready) = mpsc::channel();
        // Runs to the process's end: it waits for a signal.
        let target = std::thread::spawn(move || {
            let told = sender.clone();
            let ended = daemon::run(&parsed, move || drop(told.send(None)));
            let _ = sender.send(Some(format!("{ended:?}")));
        });
        let said = ready.recv_timeout(Duration::from_secs(20))?;
        ensure!(said.is_none(), "the target ended: {said:?}");

        let address = SocketAddr::new(config.address, PORT);
        let mut options = ConnectOptions::new(address, Nqn::parse(NQN)?);
        options.queues = 2;
        // The threads up to here are the target's and this one. What comes is the host's caring
        // thread, which serves no I/O: it allocates a little each time it sleeps.
        let data_path = ..NEXT.load(Ordering::Relaxed);
        let controller = Controller::connect(options)?;
        let elsewhere = data_path.end..;
        let mut queue = controller.io_queue()?;
        let mut done = Vec::with_capacity(64);
        for nsid in [1, 2] {
            let geometry = controller.namespace(Nsid(nsid))?.geometry();
            for (depth, buffer_bytes) in [(1, 4096), (32, 4096), (16, 131_072)] {
                let pool = BufferPool::new(32, buffer_bytes)?;
                queue.register(pool.memory())?;
                let mut measure = |count| {
                    let before = (allocated(data_path), allocated(elsewhere.clone()));
                    exchange(&mut queue, geometry, &pool, &mut done, depth, count)?;
                    let after = (allocated(data_path), allocated(elsewhere.clone()));
                    anyhow::Ok((after.0 - before.0, after.1 - before.1))
                };
                measure(2000)?;
                let started = Instant::now();
                let (here, others) = measure(4000)?;
                // By the clock, not by requests: a busy machine only makes these slower.
                let few = 400 + u64::try_from(started.elapsed().as_millis())?;
                let told = format!(
                    "namespace {nsid}, depth {depth}, {buffer_bytes} B: {here} allocations in 4,000 \
                     requests, {others} by other threads"
                );
                println!("{told}");
                ensure!(here == 0 && others < few, "{told}");
            }
        }
        ensure!(!target.is_finished());
        Ok(())
    })
}

//! In the steady state neither the queue nor the fabric under it allocates: a counting allocator
//! looks at the thread that owns the queue.

#![allow(clippy::unwrap_used, reason = "a panic here is a failing test")]

mod stub;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lariat::{Buffer, BufferPool, ConnectOptions, Controller, Geometry, IoQueue, Nqn};
use lariat_fabric::Timestamp;
use lariat_fabric::soft::{self, SoftConfig};
use stub::{Knobs, SUBSYSTEM, Stub};

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: everything is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = COUNT.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps to the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps to the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Keeps 16 requests under way until `count` more have ended, a third of them writes.
fn run(
    queue: &mut IoQueue,
    geometry: Geometry,
    spare: &mut Vec<Buffer>,
    done: &mut Vec<lariat::IoCompletion>,
    count: u64,
) {
    let (mut next, mut ended) = (0, 0);
    while ended < count {
        while next < count
            && let Some(buffer) = spare.pop()
        {
            let offset = next % 512 * 4096;
            if next % 3 == 0 {
                queue.submit_write(next, geometry, offset, buffer, false).unwrap();
            } else {
                queue.submit_read(next, geometry, offset, buffer).unwrap();
            }
            next += 1;
        }
        queue.wait(done, Duration::from_secs(5));
        for completion in done.drain(..) {
            completion.result.unwrap();
            spare.extend(completion.buffer);
            ended += 1;
        }
    }
}

#[test]
fn requests_do_not_allocate() {
    let address = SocketAddr::from(([127, 79, 1, 1], 4420));
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let (up, is_up) = std::sync::mpsc::channel();
    let target = std::thread::spawn(move || {
        let start = Instant::now();
        let fabric = soft::open_group(1, &SoftConfig::default()).unwrap().remove(0);
        let mut stub = Stub::new(fabric, address, Knobs::default());
        up.send(()).unwrap();
        while !stopped.load(Ordering::Relaxed) {
            stub.poll(Timestamp::ZERO + start.elapsed());
        }
    });
    is_up.recv().unwrap();
    let options = ConnectOptions::new(address, Nqn::parse(SUBSYSTEM).unwrap());
    let controller = Controller::connect(options).unwrap();
    let geometry = controller.only_namespace().unwrap().geometry();
    let mut queue = controller.io_queue().unwrap();
    let pool = BufferPool::new(16, 4096).unwrap();
    let mut spare: Vec<Buffer> = std::iter::from_fn(|| pool.take()).collect();
    let mut done = Vec::with_capacity(64);
    run(&mut queue, geometry, &mut spare, &mut done, 4_000);
    let (before, start) = (COUNT.with(Cell::get), Instant::now());
    run(&mut queue, geometry, &mut spare, &mut done, 4_000);
    let (allocations, elapsed) = (COUNT.with(Cell::get) - before, start.elapsed());
    println!("4000 requests in {elapsed:?}, {allocations} allocations");
    // Lists that grow to a size they had not seen before may still do so once or twice.
    assert!(allocations < 20, "{allocations} allocations for 4,000 requests");
    drop(queue);
    drop(controller);
    stop.store(true, Ordering::Relaxed);
    target.join().unwrap();
}

//! What ends a reactor's sleep, and how completions and requests come in batches.

use std::os::fd::AsFd;

use nix::sys::eventfd::{EfdFlags, EventFd};

use super::*;

#[test]
fn sleep_ends_by_deadline() {
    let mut bench = Bench::new(&[]);
    let start = Instant::now();
    let woken = bench.storage.sleep(NO_FDS, Some(Duration::from_millis(20))).unwrap();
    assert_eq!(woken, Woken::Nothing);
    assert!(start.elapsed() >= Duration::from_millis(20), "{:?}", start.elapsed());
    // A deadline that has passed only looks.
    assert_eq!(bench.storage.sleep(NO_FDS, Some(Duration::ZERO)).unwrap(), Woken::Nothing);
}

#[test]
fn sleep_ends_by_the_waker() {
    let mut bench = Bench::new(&[]);
    // Before it is armed, while it is armed, after it has fired.
    for _ in 0..3 {
        bench.waker.wake();
        bench.waker.wake();
        assert_eq!(bench.storage.sleep(NO_FDS, None).unwrap(), Woken::Waker);
        assert_eq!(
            bench.storage.sleep(NO_FDS, Some(Duration::from_millis(1))).unwrap(),
            Woken::Nothing
        );
    }
    let waker = bench.waker.clone();
    let other = thread::spawn(move || {
        thread::sleep(Duration::from_millis(20));
        waker.wake();
    });
    let woken = bench.storage.sleep(NO_FDS, Some(Duration::from_secs(20))).unwrap();
    assert_eq!(woken, Woken::Waker);
    other.join().unwrap();
}

#[test]
fn sleep_ends_by_a_descriptor_however_busy_the_reactor_was() {
    let mut bench = Bench::new(&[memory(4096, 4096)]);
    let flags = EfdFlags::EFD_NONBLOCK;
    let event = Arc::new(EventFd::from_value_and_flags(0, flags).unwrap());
    let quiet = EventFd::from_value_and_flags(0, flags).unwrap();
    let short = Some(Duration::from_millis(1));
    let both = [quiet.as_fd(), event.as_fd()];
    let mut done = Vec::new();
    for round in 0..3 {
        assert_eq!(bench.storage.sleep(&both, short).unwrap(), Woken::Nothing, "round {round}");
        // Fires while the reactor is busy; its completion is taken by a poll.
        event.write(1).unwrap();
        bench.read(0, 4096).unwrap();
        bench.storage.poll(Timestamp::ZERO, &mut done);
        // Still readable: must not sleep. Again, because nobody read it.
        assert_eq!(bench.storage.sleep(&both, None).unwrap(), Woken::Readable, "round {round}");
        assert_eq!(bench.storage.sleep(&both, None).unwrap(), Woken::Readable, "round {round}");
        event.read().unwrap();
        // At most one stale wake-up, then quiet.
        let stale = bench.storage.sleep(&both, short).unwrap();
        assert!(matches!(stale, Woken::Readable | Woken::Nothing));
        assert_eq!(bench.storage.sleep(&both, short).unwrap(), Woken::Nothing, "round {round}");
    }
    let writer = Arc::clone(&event);
    let other = thread::spawn(move || {
        thread::sleep(Duration::from_millis(20));
        writer.write(1).unwrap();
    });
    let woken = bench.storage.sleep(&both, Some(Duration::from_secs(20))).unwrap();
    assert_eq!(woken, Woken::Readable);
    other.join().unwrap();
}

/// Reads so many blocks; says how many were handed out in each poll that had any.
fn read_crowd(bench: &mut Bench, count: u64) -> Vec<usize> {
    for tag in 0..count {
        let op = BlockOp::Read { start: tag, buffer: piece(tag * 4096, 4096) };
        bench.storage.submit(BlockRequest { backend: BackendId(0), op, tag }).unwrap();
    }
    assert!(bench.storage.disks_work());
    // Starts them; by the end of the nap all of them are done, or most.
    let (mut done, mut parts) = (Vec::new(), Vec::new());
    bench.storage.poll(Timestamp::ZERO, &mut done);
    parts.extend((!done.is_empty()).then_some(done.len()));
    thread::sleep(Duration::from_millis(200));
    let limit = Instant::now() + Duration::from_secs(20);
    while bench.storage.in_flight() > 0 {
        let before = done.len();
        bench.storage.poll(Timestamp::ZERO, &mut done);
        parts.extend((done.len() > before).then_some(done.len() - before));
        assert!(Instant::now() < limit, "they do not complete");
    }
    assert!(!bench.storage.disks_work());
    assert_eq!(done.len() as u64, count);
    parts
}

#[test]
fn a_batch_of_completions_is_handed_out_in_parts() {
    let folder = tempfile::tempdir().unwrap();
    let mut bench = Bench::new(&[file(&folder.path().join("disk"), BLOCKS * 4096, 4096)]);
    let parts = read_crowd(&mut bench, 60);
    assert!(parts[0] <= 4 && parts.iter().all(|part| *part <= 8), "{parts:?}");
}

#[test]
fn a_handful_of_requests_is_started_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut bench = Bench::new(&[file(&folder.path().join("disk"), BLOCKS * 4096, 4096)]);
    let mut queued = Vec::new();
    for tag in 0..5 {
        let op = BlockOp::Read { start: tag, buffer: piece(tag * 4096, 4096) };
        bench.storage.submit(BlockRequest { backend: BackendId(0), op, tag }).unwrap();
        queued.push(bench.storage.queued());
    }
    assert_eq!(queued, [1, 2, 3, 0, 1]);
}

#[test]
fn the_first_request_after_a_crowd_waits_for_company_and_no_sleep_loses_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut bench = Bench::new(&[file(&folder.path().join("disk"), BLOCKS * 4096, 4096)]);
    let read = |tag| {
        let op = BlockOp::Read { start: tag, buffer: piece(tag * 4096, 4096) };
        BlockRequest { backend: BackendId(0), op, tag }
    };
    for by_sleep in [false, true] {
        read_crowd(&mut bench, 32);
        bench.storage.submit(read(1)).unwrap();
        let start = Timestamp::ZERO + Duration::from_secs(1);
        let mut done = Vec::new();
        for micros in 0..10 {
            bench.storage.poll(start + Duration::from_micros(micros), &mut done);
            assert_eq!((bench.storage.queued(), done.len()), (1, 0), "after {micros} us");
        }
        if by_sleep {
            let woken = bench.storage.sleep(NO_FDS, Some(Duration::from_secs(20))).unwrap();
            assert_eq!(woken, Woken::Storage);
        }
        let limit = Instant::now() + Duration::from_secs(20);
        while done.is_empty() {
            bench.storage.poll(start + Duration::from_micros(20), &mut done);
            assert!(Instant::now() < limit, "it is never started");
        }
        assert_eq!(done.len(), 1);
    }
}

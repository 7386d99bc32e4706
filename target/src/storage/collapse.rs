//! Huge pages for the parts of a memory disk that are in use: a thread of low effort that looks once a
//! second for pieces of 2 MiB that were written as often as they are large. Called by `memory`.
//!
//! (With huge pages from the start the first write to each piece would wait until the system has found
//! and zeroed 2 MiB in a row, milliseconds, and would take 2 MiB for a write of one block. So the disk
//! refuses those that the system gives unasked, too.)

use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;

use lariat_fabric::Memory;

use super::sys;

const PIECE: usize = 2 << 20;
const PIECE_BYTES: u64 = PIECE as u64;
/// What writes are counted in.
const UNIT_BYTES: u64 = 512;
/// So many units written to a piece, and it is worth a huge page.
const FULL: u32 = 4096;
/// It has one, or cannot have one.
const DONE: u32 = u32::MAX;
const INTERVAL: Duration = Duration::from_secs(1);

/// What was written to each piece of the memory, as addresses have it, and the thread.
#[derive(Debug)]
pub(super) struct Collapser {
    pieces: Arc<[AtomicU32]>,
    /// Bytes of the first piece that lie in front of the memory.
    skew: u64,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Collapser {
    pub(super) fn start(memory: Arc<Memory>) -> io::Result<Self> {
        let skew = memory.address().as_ptr().addr() as u64 % PIECE_BYTES;
        let count = (skew + memory.len() as u64).div_ceil(PIECE_BYTES);
        let pieces: Arc<[AtomicU32]> = (0..count).map(|_| AtomicU32::new(0)).collect();
        let (stop, stopped) = channel();
        let theirs = Arc::clone(&pieces);
        let thread = std::thread::Builder::new()
            .name("huge-pages".into())
            .spawn(move || look(&memory, &theirs, skew, &stopped))?;
        Ok(Self { pieces, skew, stop: Some(stop), thread: Some(thread) })
    }

    fn pieces(&self, at: u64, length: u64) -> impl Iterator<Item = (&AtomicU32, u64)> {
        let (start, end) = (at + self.skew, at + self.skew + length);
        (start / PIECE_BYTES..end.div_ceil(PIECE_BYTES)).filter_map(move |index| {
            let piece = self.pieces.get(usize::try_from(index).ok()?)?;
            let from = start.max(index * PIECE_BYTES);
            Some((piece, end.min((index + 1) * PIECE_BYTES) - from))
        })
    }

    /// A range inside the memory was written.
    #[inline]
    pub(super) fn written(&self, at: u64, length: u64) {
        for (piece, bytes) in self.pieces(at, length) {
            // Hosts that write at the same time may be counted once: then it takes a little longer.
            let before = piece.load(Ordering::Relaxed);
            if before < FULL {
                let units = u32::try_from(bytes / UNIT_BYTES).unwrap_or(FULL);
                piece.store(before.saturating_add(units).min(FULL), Ordering::Relaxed);
            }
        }
    }

    /// A range inside the memory was given back to the system.
    pub(super) fn discarded(&self, at: u64, length: u64) {
        for (piece, _) in self.pieces(at, length) {
            piece.store(0, Ordering::Relaxed);
        }
    }
}

impl Drop for Collapser {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The thread: until the disk is gone.
fn look(memory: &Memory, pieces: &[AtomicU32], skew: u64, stopped: &Receiver<()>) {
    while stopped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
        for (index, piece) in (0..).zip(pieces) {
            if piece.load(Ordering::Relaxed) != FULL {
                continue;
            }
            // Before the memory or beyond its end there is no whole piece.
            let whole = (index * PIECE_BYTES)
                .checked_sub(skew)
                .filter(|at| at.saturating_add(PIECE_BYTES) <= memory.len() as u64);
            // What is discarded meanwhile starts anew.
            let mark = |to| piece.compare_exchange(FULL, to, Ordering::Relaxed, Ordering::Relaxed);
            let Some(at) = whole else {
                let _ = mark(DONE);
                continue;
            };
            // What does not work out starts anew: it was discarded meanwhile, or no memory stands in a
            // row, or the kernel (before 6.1) cannot do it, which costs a call for each 2 MiB written.
            let result = sys::collapse(memory, at, PIECE);
            let _ = mark(if result.is_ok() { DONE } else { 0 });
            if stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Disconnected) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(collapser: &Collapser) -> Vec<u32> {
        collapser.pieces.iter().map(|piece| piece.load(Ordering::Relaxed)).collect()
    }

    #[test]
    fn writes_are_counted_where_they_fall() {
        let memory = Memory::allocate(6 << 20).unwrap();
        let collapser = Collapser::start(memory).unwrap();
        let first = PIECE_BYTES - collapser.skew;
        collapser.written(first - 4096, 8192);
        assert_eq!(counts(&collapser)[..2], [8, 8]);
        collapser.written(first, PIECE_BYTES);
        let full = counts(&collapser)[1];
        assert!(full == FULL || full == DONE, "{full}");
        collapser.discarded(first, 512);
        assert_eq!(counts(&collapser)[..2], [8, 0]);
    }

    #[test]
    fn a_piece_that_was_discarded_ends_nothing() {
        let memory = Memory::allocate(6 << 20).unwrap();
        let collapser = Collapser::start(Arc::clone(&memory)).unwrap();
        let first = PIECE_BYTES - collapser.skew;
        let patience = std::time::Instant::now() + Duration::from_secs(20);
        let looked_at = |collapser: &Collapser| {
            while counts(collapser)[1] == FULL {
                assert!(std::time::Instant::now() < patience, "nobody looks");
                std::thread::sleep(Duration::from_millis(50));
            }
        };
        // Counted as written, but there is no page: what a trim during a look leaves.
        collapser.written(first, PIECE_BYTES);
        looked_at(&collapser);
        // The thread is there for the next.
        memory.write_at(first, &vec![1; PIECE]).unwrap();
        collapser.written(first, PIECE_BYTES);
        looked_at(&collapser);
        assert!(collapser.thread.as_ref().is_some_and(|thread| !thread.is_finished()));
    }

    #[test]
    fn what_was_written_stays_when_it_gets_a_huge_page() {
        let memory = Memory::allocate(6 << 20).unwrap();
        let collapser = Collapser::start(Arc::clone(&memory)).unwrap();
        let pattern: Vec<u8> = (0..6_u32 << 20).map(|n| (n % 251).to_le_bytes()[0]).collect();
        memory.write_at(0, &pattern).unwrap();
        collapser.written(0, 6 << 20);
        let patience = std::time::Instant::now() + Duration::from_secs(20);
        let waits = |collapser: &Collapser| counts(collapser).contains(&FULL);
        while waits(&collapser) {
            assert!(std::time::Instant::now() < patience, "nobody looks");
            std::thread::sleep(Duration::from_millis(50));
        }
        let mut back = vec![0; 6 << 20];
        memory.read_at(0, &mut back).unwrap();
        assert!(back == pattern);
        let start = std::time::Instant::now();
        drop(collapser);
        assert!(start.elapsed() < Duration::from_secs(5), "the thread ends with the disk");
    }
}

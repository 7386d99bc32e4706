//! How the owner of queues waits: by polling first, then asleep. Called by users and by the queue's own
//! end; calls `care` for the sleep itself.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use lariat_fabric::Timestamp;
use lariat_fabric::waiting::YIELD_AFTER;
use nix::poll::{PollFd, PollFlags};

use super::{IoCompletion, IoQueue};
use crate::care::{Lane, lock, sleep_on};
use crate::clock;
use crate::patience::Looking;

/// The longest sleep of a waiting owner: how late he may notice that the controller is gone.
pub(super) const LONGEST_SLEEP: Duration = Duration::from_millis(50);

impl IoQueue {
    /// Descriptors that become readable when there is something to poll, for an event loop of the
    /// user's own: after [`Self::arm`] said that it may sleep.
    ///
    /// # Errors
    /// The operating system's word.
    pub fn wait_fds(&self) -> std::io::Result<Vec<OwnedFd>> {
        self.cell.fds().iter().map(OwnedFd::try_clone).collect()
    }

    /// Before a sleep on [`Self::wait_fds`]: sends what was submitted, has the fabric wake the
    /// descriptors for what comes from now on, and says how long to sleep at most. `None`: there is
    /// something to poll already. (The first poll after the sleep takes all that back.)
    pub fn arm(&mut self) -> Option<Duration> {
        let now = clock::now();
        let mut lane = lock(&self.cell.lane);
        self.cell.touch(now, &self.shared);
        let armed = lane.arm(now)?;
        if lane.block.has_done() {
            return None;
        }
        let until = armed.min(now + LONGEST_SLEEP);
        self.cell.back_at(until);
        Some(until.since(now))
    }

    /// As [`Self::poll`], but waits until something has ended, at most `timeout`; polling for a
    /// while first, then asleep. Returns how many; 0 at once if nothing is outstanding.
    pub fn wait(&mut self, done: &mut Vec<IoCompletion>, timeout: Duration) -> usize {
        let cell = Arc::clone(&self.cell);
        let mut lane = lock(&cell.lane);
        let start = clock::now();
        let end = start + timeout;
        let least = self.shared.options.spin;
        let look_end = start + self.patience.limit(least);
        let yield_after = start + YIELD_AFTER;
        let mut now = start;
        cell.touch(now, &self.shared);
        let mut looking = None;
        loop {
            let count = self.look(now, &mut lane, done);
            if count > 0 || self.outstanding() == 0 || now >= end {
                if count > 0 {
                    self.patience.learn(least, now.since(start));
                }
                cell.touch(now, &self.shared);
                return count;
            }
            let looking = looking.get_or_insert_with(Looking::start);
            if now >= look_end || looking.is_crowded() {
                let until = end.min(now + LONGEST_SLEEP);
                cell.back_at(until);
                sleep_lane(&mut lane, cell.fds(), now, until);
            } else if now > yield_after {
                // The target may need this very core.
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
            now = clock::now();
        }
    }
}

/// Sleeps until one of a thread's queues may have something to poll, or for `timeout` (at most 50
/// milliseconds, so that what ended meanwhile is noticed). For a thread that serves several queues:
/// poll each, and when none had anything, call this.
pub fn wait_any<'a>(queues: impl IntoIterator<Item = &'a mut IoQueue>, timeout: Duration) {
    let mut time = timeout.min(LONGEST_SLEEP);
    let mut armed: Vec<&IoQueue> = Vec::new();
    for queue in queues {
        match queue.arm() {
            Some(longest) => time = time.min(longest),
            None => return,
        }
        armed.push(queue);
    }
    let mut list: Vec<_> = armed.iter().flat_map(|queue| queue.cell.fds()).map(readable).collect();
    let now = clock::now();
    sleep_on(&mut list, now, now + time);
}

fn readable(fd: &OwnedFd) -> PollFd<'_> {
    PollFd::new(fd.as_fd(), PollFlags::POLLIN)
}

/// Sleeps until the lane has something to poll, or `until`. `fds` are those of its fabric.
pub(super) fn sleep_lane(lane: &mut Lane, fds: &[OwnedFd], now: Timestamp, until: Timestamp) {
    let Some(armed) = lane.arm(now) else { return };
    let until = until.min(armed);
    if until <= now || lane.block.has_done() {
        return;
    }
    match fds {
        // What the providers have; the others pay for a list.
        [fd] => sleep_on(&mut [readable(fd)], now, until),
        fds => sleep_on(&mut fds.iter().map(readable).collect::<Vec<_>>(), now, until),
    }
}

//! The loop of a reactor thread: polls while there is work, and for a while after; then sleeps
//! in the ring. Called by `run`; generic, so that tests drive it without a fabric.

use core::time::Duration;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use lariat_fabric::waiting::YIELD_AFTER;
use lariat_fabric::{Armed, Fabric, Timestamp};

use crate::storage::{UringStorage, processor_time};
use crate::transport::Reactor;

/// The monotonic clock that all reactors share: the registry compares their times.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    origin: Instant,
}

impl Clock {
    pub(super) fn start() -> Self {
        Self { origin: Instant::now() }
    }

    pub(super) fn now(self) -> Timestamp {
        Timestamp::ZERO + self.origin.elapsed()
    }
}

/// A disk that takes longer is not worth to stay awake for.
const LONGEST_WATCH: Duration = Duration::from_micros(500);

/// How long to poll on after the last work.
///
/// To sleep for less than the disks take means to pay for the wake-up at every request (on a virtual
/// machine some 35 us, and 20 us for who wakes), while their answer is known to come soon: as long as
/// they work, polling goes on for twice the time that such waits took lately. Waits that are too long
/// for that are slept through.
///
/// Hosts are polled for as long as it was configured, or as long as a sleep costs where that is longer:
/// this thread's own part of it is measured, and who wakes it pays about as much. (Under emulation a
/// sleep costs hundreds of microseconds, on a machine five to ten.) Nor does it pay to poll for hosts that
/// are known to be slower than that: where several waits in
/// a row outlasted the polling, the next ones are slept through nearly at once. How long such a wait
/// would have been without the sleep (and what wakes from it) nobody knows: when it was short enough
/// that polling may have covered it, polling is tried again, and the less often the more such attempts
/// were for nothing.
struct Patience {
    idle_poll: Duration,
    watch: Duration,
    /// Waits for hosts in a row that polling did not cover.
    missed: u8,
    /// Since then, sleeps that were short enough to try polling again, and how many it takes.
    short_sleeps: u16,
    doubt: u16,
    /// Processor time of this thread that a sleep takes, and how many sleeps there were.
    sleep_cost: Duration,
    sleeps: u32,
}

/// So many misses make the next one likely.
const MISSES: u8 = 8;
/// So many are enough when polling is tried again.
const MISSES_ON_TRIAL: u8 = 2;
/// Short sleeps before another trial, at most.
const MOST_DOUBT: u16 = 1024;

/// One sleep of so many is measured: it takes two system calls.
const MEASURED_SLEEPS: u32 = 16;
/// No sleep is taken to cost more.
const DEAREST_SLEEP: Duration = Duration::from_micros(500);

impl Patience {
    fn new(idle_poll: Duration) -> Self {
        let (watch, sleep_cost) = (Duration::ZERO, Duration::ZERO);
        Self { idle_poll, watch, missed: 0, short_sleeps: 0, doubt: 1, sleep_cost, sleeps: 0 }
    }

    /// How long hosts are worth to be polled for.
    fn for_hosts(&self) -> Duration {
        // Who wants no polling gets none.
        if self.idle_poll.is_zero() {
            Duration::ZERO
        } else {
            self.idle_poll.max(self.sleep_cost * 2)
        }
    }

    /// Whether the next sleep is to be measured.
    fn measures(&mut self) -> bool {
        self.sleeps = self.sleeps.wrapping_add(1);
        self.sleeps % MEASURED_SLEEPS == 1
    }

    /// A sleep has taken so much processor time.
    fn slept(&mut self, cost: Duration) {
        let cost = cost.min(DEAREST_SLEEP);
        self.sleep_cost =
            if self.sleep_cost.is_zero() { cost } else { (self.sleep_cost * 7 + cost) / 8 };
    }

    /// How long to poll on.
    fn limit(&self, disks_work: bool) -> Duration {
        if disks_work {
            self.watch.max(self.idle_poll)
        } else if self.missed >= MISSES {
            self.idle_poll.min(YIELD_AFTER)
        } else {
            self.for_hosts()
        }
    }

    /// A wait for the disks (or what came before them) has ended after that time.
    fn learn(&mut self, disks_work: bool, waited: Duration) {
        if !disks_work {
            // The shortest are covered in any case.
            if waited > YIELD_AFTER {
                self.learn_of_hosts(waited);
            }
            return;
        }
        self.watch = if self.idle_poll.is_zero() || waited > LONGEST_WATCH {
            Duration::ZERO
        } else {
            // A batch is one long wait and many short ones.
            (waited * 2).max(self.watch - self.watch / 32).min(LONGEST_WATCH)
        };
    }

    fn learn_of_hosts(&mut self, waited: Duration) {
        if self.missed < MISSES {
            if waited <= self.for_hosts() {
                (self.missed, self.doubt) = (0, 1);
            } else {
                self.missed += 1;
                self.short_sleeps = 0;
            }
        } else if waited <= self.for_hosts() * 2 {
            self.short_sleeps += 1;
            if self.short_sleeps >= self.doubt {
                self.missed = MISSES - MISSES_ON_TRIAL;
                self.doubt = (self.doubt * 2).min(MOST_DOUBT);
            }
        }
    }
}

/// What the loop drives.
pub(super) trait Turn {
    fn poll(&mut self, now: Timestamp) -> bool;
    fn arm(&mut self, now: Timestamp) -> Armed;
    /// A poll after `arm`. Says whether anything happened at all: what it said may not hold then.
    fn last_look(&mut self, now: Timestamp) -> bool;
    fn sleep(&mut self, timeout: Option<Duration>) -> io::Result<()>;
    /// Whether disks have something to do.
    fn disks_work(&self) -> bool;
    fn shutdown(&mut self, now: Timestamp);
    fn is_drained(&self) -> bool;
}

/// A reactor with the descriptors that wake it.
pub(super) struct Sleeper<F: Fabric> {
    reactor: Reactor<F, UringStorage>,
    /// Twins of the fabric's own, which stay the same for its life.
    wait_fds: Vec<OwnedFd>,
}

impl<F: Fabric> Sleeper<F> {
    pub(super) fn new(reactor: Reactor<F, UringStorage>) -> io::Result<Self> {
        let fds = reactor.fabric().wait_fds();
        let wait_fds = fds.iter().map(|fd| fd.try_clone_to_owned()).collect::<Result<_, _>>()?;
        drop(fds);
        Ok(Self { reactor, wait_fds })
    }

    pub(super) fn reactor(&self) -> &Reactor<F, UringStorage> {
        &self.reactor
    }
}

impl<F: Fabric> Turn for Sleeper<F> {
    fn poll(&mut self, now: Timestamp) -> bool {
        self.reactor.poll(now)
    }

    fn arm(&mut self, now: Timestamp) -> Armed {
        self.reactor.arm(now)
    }

    fn last_look(&mut self, now: Timestamp) -> bool {
        // A packet that completes nothing (part of a message, a refusal) sets timers all the same.
        let before = self.reactor.fabric().counters().packets_received;
        self.reactor.poll(now) || self.reactor.fabric().counters().packets_received != before
    }

    fn sleep(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.reactor.storage_mut().sleep(&self.wait_fds, timeout).map(drop)
    }

    fn disks_work(&self) -> bool {
        self.reactor.storage().disks_work()
    }

    fn shutdown(&mut self, now: Timestamp) {
        self.reactor.shutdown(now);
    }

    fn is_drained(&self) -> bool {
        self.reactor.is_drained()
    }
}

/// Runs until `stop` is set (its setter wakes the thread) and nothing is left to do.
pub(super) fn drive(
    turn: &mut impl Turn,
    clock: Clock,
    idle_poll: Duration,
    stop: &AtomicBool,
) -> io::Result<()> {
    let mut stopping = false;
    let mut last_work = clock.now();
    let mut patience = Patience::new(idle_poll);
    // Whether disks had something to do since the last work.
    let mut disks_work = false;
    loop {
        let now = clock.now();
        if !stopping && stop.load(Ordering::Acquire) {
            stopping = true;
            turn.shutdown(now);
        }
        if turn.poll(now) {
            patience.learn(core::mem::take(&mut disks_work), now.since(last_work));
            last_work = now;
            continue;
        }
        if stopping && turn.is_drained() {
            return Ok(());
        }
        disks_work = turn.disks_work();
        let idle = now.since(last_work);
        if idle < patience.limit(disks_work) {
            if idle > YIELD_AFTER {
                // Whoever is about to give us work may need this very core.
                std::thread::yield_now();
            }
            continue;
        }
        let before = patience.measures().then(processor_time).flatten();
        let Armed::Until(deadline) = turn.arm(now) else { continue };
        // What came before the fabric was armed wakes nobody: the last look.
        if turn.last_look(now) {
            last_work = now;
            disks_work = false;
            continue;
        }
        let timeout = (deadline != Timestamp::NEVER).then(|| deadline.since(clock.now()));
        turn.sleep(timeout)?;
        if let Some((before, after)) = before.zip(before.and_then(|_| processor_time())) {
            patience.slept(after.saturating_sub(before));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::EventWaker;
    use std::sync::Arc;
    use std::thread;

    /// Counts what the loop does; sleeps on a real ring.
    struct Script {
        storage: UringStorage,
        work: u32,
        polls: u32,
        sleeps: u32,
        shut_down: bool,
        /// Sets the flag when this many sleeps are over.
        stop_at_sleep: Option<(u32, Arc<AtomicBool>)>,
        until: Timestamp,
        /// Set when it goes to sleep for the first time.
        tired: Arc<AtomicBool>,
    }

    impl Turn for Script {
        fn poll(&mut self, _: Timestamp) -> bool {
            self.polls += 1;
            let worked = self.work > 0;
            self.work = self.work.saturating_sub(1);
            worked
        }

        fn arm(&mut self, _: Timestamp) -> Armed {
            Armed::Until(self.until)
        }

        fn last_look(&mut self, now: Timestamp) -> bool {
            self.poll(now)
        }

        fn sleep(&mut self, timeout: Option<Duration>) -> io::Result<()> {
            self.sleeps += 1;
            self.tired.store(true, Ordering::Release);
            self.storage.sleep(&[] as &[OwnedFd], timeout)?;
            if let Some((sleeps, stop)) = &self.stop_at_sleep
                && self.sleeps >= *sleeps
            {
                stop.store(true, Ordering::Release);
            }
            Ok(())
        }

        fn disks_work(&self) -> bool {
            false
        }

        fn shutdown(&mut self, _: Timestamp) {
            assert!(!self.shut_down);
            self.shut_down = true;
        }

        fn is_drained(&self) -> bool {
            self.shut_down
        }
    }

    fn script(waker: &EventWaker, until: Timestamp) -> Script {
        let set = crate::storage::StorageSet::open(&[]).unwrap();
        let storage = UringStorage::new(set, waker.clone(), Default::default()).unwrap();
        let (stop_at_sleep, tired) = (None, Arc::default());
        let (work, polls, sleeps, shut_down) = (100, 0, 0, false);
        Script { storage, work, polls, sleeps, shut_down, stop_at_sleep, until, tired }
    }

    const fn us(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    #[test]
    fn working_disks_are_watched_as_long_as_they_usually_take() {
        let mut patience = Patience::new(us(50));
        let limits = |patience: &Patience| [false, true].map(|work| patience.limit(work));
        assert_eq!(limits(&patience), [us(50); 2]);
        patience.learn(true, us(90));
        assert_eq!(limits(&patience), [us(50), us(180)]);
        // The short waits of a batch do not undo that.
        for _ in 0..8 {
            patience.learn(true, us(5));
        }
        assert!((us(130)..us(180)).contains(&patience.limit(true)));
        for _ in 0..50 {
            patience.learn(true, us(5));
        }
        assert_eq!(limits(&patience), [us(50); 2]);
        patience.learn(true, us(400));
        assert_eq!(patience.limit(true), us(500));
        // A slow disk is slept through.
        patience.learn(true, us(8000));
        assert_eq!(limits(&patience), [us(50); 2]);
    }

    #[test]
    fn slow_hosts_are_not_polled_for() {
        let mut patience = Patience::new(us(50));
        for _ in 0..MISSES {
            assert_eq!(patience.limit(false), us(50));
            patience.learn(false, us(60));
        }
        assert_eq!(patience.limit(false), YIELD_AFTER);
        // Neither disks nor what comes at once says anything of hosts.
        patience.learn(true, us(20));
        patience.learn(false, us(3));
        patience.learn(false, us(400));
        assert_eq!(patience.limit(false), YIELD_AFTER);
        assert_eq!(patience.limit(true), us(50));
        // One that seems to be quick is tried.
        patience.learn(false, us(90));
        assert_eq!(patience.limit(false), us(50));
        patience.learn(false, us(40));
        for _ in 0..MISSES - 1 {
            patience.learn(false, us(60));
        }
        assert_eq!(patience.limit(false), us(50));
    }

    #[test]
    fn where_a_sleep_is_dear_hosts_are_polled_for_longer() {
        let mut patience = Patience::new(us(50));
        patience.slept(us(8));
        assert_eq!(patience.limit(false), us(50));
        // An emulated machine.
        for _ in 0..64 {
            patience.slept(us(250));
        }
        let limit = patience.limit(false);
        assert!((us(480)..=us(500)).contains(&limit), "{limit:?}");
        for _ in 0..100 {
            patience.learn(false, us(400));
            assert_eq!(patience.limit(false), limit);
        }
        for _ in 0..MISSES {
            patience.learn(false, us(2000));
        }
        assert_eq!(patience.limit(false), YIELD_AFTER);
        // It sleeps now: what took 700 us with a sleep may take 400 without.
        patience.learn(false, us(700));
        assert_eq!(patience.limit(false), limit);
        // One sleep that took for ever says little.
        patience.slept(Duration::from_secs(1));
        assert!(patience.limit(false) < us(600));
        assert_eq!((0..64).filter(|_| patience.measures()).count(), 4);
        let mut never = Patience::new(Duration::ZERO);
        never.slept(us(250));
        assert_eq!(never.limit(false), Duration::ZERO);
    }

    #[test]
    fn hosts_that_only_seem_quick_are_polled_for_ever_more_rarely() {
        let mut patience = Patience::new(us(50));
        let mut polled = 0;
        for _ in 0..10_000 {
            polled += u32::from(patience.limit(false) == us(50));
            // What was a sleep looks short, and polling would have missed it by little.
            patience.learn(false, us(70));
        }
        // 8, then 2 each after 1, 2, 4, ... 1,024 sleeps, and every 1,024.
        assert!((20..=50).contains(&polled), "{polled} of 10,000");
        // A host that is quick indeed is polled for from the next trial on.
        let mut slept = 0;
        while patience.limit(false) != us(50) {
            patience.learn(false, us(70));
            slept += 1;
        }
        assert!(slept <= MOST_DOUBT);
        patience.learn(false, us(30));
        for _ in 0..MISSES {
            assert_eq!(patience.limit(false), us(50));
            patience.learn(false, us(300));
        }
        assert_eq!(patience.limit(false), YIELD_AFTER);
        patience.learn(false, us(70));
        assert_eq!(patience.limit(false), us(50));
    }

    #[test]
    fn without_idle_polling_disks_are_not_watched() {
        let mut patience = Patience::new(Duration::ZERO);
        patience.learn(true, us(90));
        assert_eq!(patience.limit(true), Duration::ZERO);
    }

    #[test]
    fn an_idle_reactor_sleeps_and_a_stop_wakes_it() {
        let waker = EventWaker::new().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (their_waker, their_stop) = (waker.clone(), Arc::clone(&stop));
        let tired = Arc::new(AtomicBool::new(false));
        let their_tired = Arc::clone(&tired);
        let thread = thread::spawn(move || {
            let mut script = script(&their_waker, Timestamp::NEVER);
            script.tired = their_tired;
            drive(&mut script, Clock::start(), Duration::ZERO, &their_stop).unwrap();
            (script.polls, script.sleeps, script.shut_down)
        });
        let patience = Instant::now() + Duration::from_secs(20);
        while !tired.load(Ordering::Acquire) && Instant::now() < patience {
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_millis(50));
        stop.store(true, Ordering::Release);
        waker.wake();
        let (polls, sleeps, shut_down) = thread.join().unwrap();
        assert!(shut_down);
        assert!((1..=3).contains(&sleeps), "{sleeps} sleeps");
        assert!((100..120).contains(&polls), "{polls} polls");
    }

    #[test]
    fn a_deadline_ends_the_sleep() {
        let waker = EventWaker::new().unwrap();
        let clock = Clock::start();
        let deadline = clock.now() + Duration::from_millis(30);
        let mut script = script(&waker, deadline);
        let stop = Arc::new(AtomicBool::new(false));
        script.stop_at_sleep = Some((2, Arc::clone(&stop)));
        // Nobody wakes it: it comes back by the deadline, or never.
        drive(&mut script, clock, Duration::ZERO, &stop).unwrap();
        assert_eq!(script.sleeps, 2);
        assert!(clock.now() >= deadline);
    }
}

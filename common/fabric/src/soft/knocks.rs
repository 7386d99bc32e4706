//! Whether anything listens where a request to connect (REQ) stays unanswered.
//!
//! The sockets that carry packets do not hear of ICMP errors: those would end calls of the data
//! path, and anybody can make them up. Only who connects needs to know, and only when no answer
//! comes: then it knocks at the peer's UDP port with a socket of its own ([`Door`]), and gives up
//! when the peer's system said twice that nothing is there, the last time a second or more after the
//! REQ (which was sent again meanwhile). A target that is being restarted has that long; one that
//! answers within [`FIRST_KNOCK`] is never knocked at. Connections that stand are judged by their own
//! packets alone. Owned by `soft::fabric`; calls the doors.

use core::net::IpAddr;
use core::time::Duration;
use std::io;

use lariat_roce::time::Timestamp;
use lariat_roce::verbs::ConnId;
use lariat_wire::rocev2::UDP_PORT;

/// A REQ that has no answer after this is looked into.
const FIRST_KNOCK: Duration = Duration::from_millis(100);
/// From one knock to the next. Systems limit how often they answer.
const BETWEEN_KNOCKS: Duration = Duration::from_millis(500);
/// From a knock to the look for the answer to it.
const LOOK_AFTER: Duration = Duration::from_millis(50);
/// Refusals that it takes ...
const ENOUGH_REFUSALS: u32 = 2;
/// ... and how long after the REQ the last must come.
const LEAST_TIME: Duration = Duration::from_secs(1);

/// A peer's UDP port, to knock at.
pub trait Door {
    /// Sends a packet that no peer minds.
    fn knock(&mut self);

    /// What the peer's system (or a firewall) said against the knocks, if anything since the last
    /// time this was asked: the operating system's error number.
    fn refusal(&mut self) -> Option<i32>;
}

/// What came of a look at an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Wait,
    /// There is nothing to be learned.
    Leave,
    /// Nothing listens there.
    Refused(i32),
}

/// A REQ that was sent.
struct Attempt {
    conn: ConnId,
    started: Timestamp,
    next: Timestamp,
    /// The next thing to do is to look for the answer.
    knocked: bool,
    door: Option<Box<dyn Door + Send>>,
    refusals: u32,
    errno: i32,
}

impl Attempt {
    fn step(
        &mut self,
        now: Timestamp,
        open: impl FnOnce() -> Option<Box<dyn Door + Send>>,
    ) -> Verdict {
        if now < self.next {
            return Verdict::Wait;
        }
        if self.door.is_none() {
            self.door = open();
        }
        let Some(door) = &mut self.door else { return Verdict::Leave };
        if let Some(errno) = door.refusal() {
            self.refusals += 1;
            self.errno = errno;
            if self.refusals >= ENOUGH_REFUSALS && now.since(self.started) >= LEAST_TIME {
                return Verdict::Refused(errno);
            }
        }
        if self.knocked {
            self.next = now + (BETWEEN_KNOCKS - LOOK_AFTER);
        } else {
            door.knock();
            self.next = now + LOOK_AFTER;
        }
        self.knocked = !self.knocked;
        Verdict::Wait
    }
}

/// The attempts of a fabric to connect.
pub(super) struct Knocks {
    attempts: Vec<Attempt>,
    next: Timestamp,
    /// The attempt that was refused last, and how.
    refused: Option<(ConnId, i32)>,
}

impl Default for Knocks {
    fn default() -> Self {
        Self { attempts: Vec::new(), next: Timestamp::NEVER, refused: None }
    }
}

impl Knocks {
    /// A REQ was sent.
    pub(super) fn add(&mut self, now: Timestamp, conn: ConnId) {
        let next = now + FIRST_KNOCK;
        self.attempts.push(Attempt {
            conn,
            started: now,
            next,
            knocked: false,
            door: None,
            refusals: 0,
            errno: 0,
        });
        self.next = self.next.min(next);
    }

    /// When [`Self::turn`] wants to be called.
    #[inline]
    pub(super) fn next(&self) -> Timestamp {
        self.next
    }

    /// Knocks and looks where it is time. `waits` says whether a connection's REQ is still without
    /// any answer, `open` opens the door to its peer. Gives one that is refused, and how: to be
    /// called until there is none.
    pub(super) fn turn(
        &mut self,
        now: Timestamp,
        waits: impl Fn(ConnId) -> bool,
        open: impl Fn(ConnId) -> Option<Box<dyn Door + Send>>,
    ) -> Option<(ConnId, i32)> {
        let mut place = 0;
        while let Some(attempt) = self.attempts.get_mut(place) {
            let conn = attempt.conn;
            let verdict =
                if waits(conn) { attempt.step(now, || open(conn)) } else { Verdict::Leave };
            let known = (attempt.refusals > 0).then_some((conn, attempt.errno));
            match verdict {
                Verdict::Wait => place += 1,
                Verdict::Leave => {
                    self.refused = known.or(self.refused);
                    self.attempts.swap_remove(place);
                }
                Verdict::Refused(errno) => {
                    self.refused = Some((conn, errno));
                    self.attempts.swap_remove(place);
                    return self.refused;
                }
            }
        }
        self.next = self.attempts.iter().map(|one| one.next).min().unwrap_or(Timestamp::NEVER);
        None
    }

    /// What the peer's system said against an attempt, however it ended.
    pub(super) fn refusal(&self, conn: ConnId) -> Option<i32> {
        let under_way = self.attempts.iter().find(|attempt| attempt.conn == conn);
        let under_way = under_way.filter(|attempt| attempt.refusals > 0);
        let ended = self.refused.filter(|(refused, _)| *refused == conn);
        under_way.map(|attempt| attempt.errno).or(ended.map(|(_, errno)| errno))
    }
}

/// What a refused knock means, and what to do.
pub(super) fn in_words(peer: IpAddr, own: bool, errno: i32) -> String {
    if errno == libc::ECONNREFUSED && own {
        return format!(
            "{peer} is this machine's own, and nothing listens at UDP port {UDP_PORT} there: no target \
             serves it; start lariatd, or check the address"
        );
    }
    if errno == libc::ECONNREFUSED {
        return format!(
            "nothing listens at UDP port {UDP_PORT} of {peer}, its system says: start lariatd there, \
             or check the address and whether a firewall there rejects UDP {UDP_PORT}; for a target \
             that only an RDMA device reaches choose the provider ib"
        );
    }
    let error = io::Error::from_raw_os_error(errno);
    format!(
        "{peer}, or a firewall on the way, refuses packets to UDP port {UDP_PORT} ({error}): let them \
         pass, or check the address"
    )
}

#[cfg(test)]
mod tests {
    use core::cell::{Cell, RefCell};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

    use super::*;

    /// A peer's system.
    #[derive(Default)]
    struct Peer {
        /// What it answers, 0 for nothing.
        answer: AtomicI32,
        waiting: AtomicI32,
        knocks: AtomicU32,
    }

    struct Front(Arc<Peer>);

    impl Door for Front {
        fn knock(&mut self) {
            self.0.knocks.fetch_add(1, Ordering::Relaxed);
            self.0.waiting.store(self.0.answer.load(Ordering::Relaxed), Ordering::Relaxed);
        }

        fn refusal(&mut self) -> Option<i32> {
            Some(self.0.waiting.swap(0, Ordering::Relaxed)).filter(|errno| *errno != 0)
        }
    }

    const CONN: ConnId = ConnId(7);

    fn at(millis: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_millis(millis)
    }

    struct Run {
        knocks: Knocks,
        peer: Arc<Peer>,
        waits: Cell<bool>,
        now: Timestamp,
        opened: RefCell<u32>,
    }

    impl Run {
        fn new() -> Self {
            let mut knocks = Knocks::default();
            assert_eq!(knocks.next(), Timestamp::NEVER);
            knocks.add(at(0), CONN);
            let (peer, waits) = (Arc::default(), Cell::new(true));
            Self { knocks, peer, waits, now: at(0), opened: RefCell::new(0) }
        }

        /// Goes on until then; when an attempt was refused, if one was.
        fn until(&mut self, end: Timestamp) -> Option<(Timestamp, i32)> {
            while self.knocks.next() <= end {
                self.now = self.now.max(self.knocks.next());
                let refused = self.knocks.turn(
                    self.now,
                    |conn| conn == CONN && self.waits.get(),
                    |_| {
                        *self.opened.borrow_mut() += 1;
                        Some(Box::new(Front(Arc::clone(&self.peer))) as Box<dyn Door + Send>)
                    },
                );
                if let Some((conn, errno)) = refused {
                    assert_eq!(conn, CONN);
                    return Some((self.now, errno));
                }
            }
            None
        }

        fn answer(&self, errno: i32) {
            self.peer.answer.store(errno, Ordering::Relaxed);
        }

        fn knocks(&self) -> u32 {
            self.peer.knocks.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn two_refusals_and_a_second_end_an_attempt() {
        let mut run = Run::new();
        run.answer(libc::ECONNREFUSED);
        assert_eq!(run.until(at(999)), None);
        assert_eq!(run.knocks.refusal(CONN), Some(libc::ECONNREFUSED), "known, not enough");
        let (when, errno) = run.until(at(60_000)).unwrap();
        assert_eq!((when, errno), (at(1150), libc::ECONNREFUSED));
        assert_eq!(run.knocks.refusal(CONN), Some(libc::ECONNREFUSED));
        assert_eq!(run.knocks.refusal(ConnId(8)), None);
        assert_eq!(run.until(at(60_000)), None);
        assert_eq!((run.knocks.next(), *run.opened.borrow()), (Timestamp::NEVER, 1));
    }

    #[test]
    fn silence_ends_nothing() {
        let mut run = Run::new();
        assert_eq!(run.until(at(9_900)), None);
        assert_eq!((run.knocks(), run.knocks.refusal(CONN)), (20, None));
        // One refusal that comes late does not either.
        run.answer(libc::ECONNREFUSED);
        assert_eq!(run.until(at(10_300)), None);
        run.answer(0);
        assert_eq!(run.until(at(20_000)), None);
        assert_eq!(run.knocks.refusal(CONN), Some(libc::ECONNREFUSED));
    }

    #[test]
    fn who_is_answered_does_not_knock() {
        let mut run = Run::new();
        run.answer(libc::ECONNREFUSED);
        run.waits.set(false);
        assert_eq!(run.until(at(60_000)), None);
        assert_eq!((run.knocks(), *run.opened.borrow()), (0, 0));
        assert_eq!(run.knocks.next(), Timestamp::NEVER);
    }

    /// A target that comes back within a second finds the REQ still being sent.
    #[test]
    fn a_target_that_comes_back_in_time_is_waited_for() {
        let mut run = Run::new();
        run.answer(libc::ECONNREFUSED);
        assert_eq!(run.until(at(900)), None);
        run.answer(0);
        assert_eq!(run.until(at(9_000)), None);
        assert!(run.knocks() > 10);
    }

    #[test]
    fn refusals_say_what_to_do() {
        let peer = IpAddr::from([192, 0, 2, 7]);
        let words = in_words(peer, false, libc::ECONNREFUSED);
        assert!(words.contains("nothing listens at UDP port 4791 of 192.0.2.7"), "{words}");
        assert!(words.contains("start lariatd") && words.contains("provider ib"), "{words}");
        let words = in_words(peer, true, libc::ECONNREFUSED);
        assert!(words.starts_with("192.0.2.7 is this machine's own"), "{words}");
        assert!(words.contains("start lariatd"), "{words}");
        let words = in_words(peer, false, libc::EHOSTUNREACH);
        assert!(words.contains("firewall") && !words.contains("nothing listens"), "{words}");
    }
}

//! Time limits: no test runs without end, and what it started does not outlive it. Called by all
//! tests; `target` and `command` enter their processes here.

use std::cell::RefCell;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Processes that run: the test that started each, and its identifier.
static CHILDREN: Mutex<Vec<(String, i32)>> = Mutex::new(Vec::new());

thread_local! {
    static TEST: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Enters a process that was started.
pub(super) fn started(pid: Pid) {
    let test = TEST.with_borrow(Clone::clone);
    CHILDREN.lock().unwrap_or_else(PoisonError::into_inner).push((test, pid.as_raw()));
}

/// A process has been waited for.
pub(super) fn ended(pid: Pid) {
    let mut children = CHILDREN.lock().unwrap_or_else(PoisonError::into_inner);
    children.retain(|(_, other)| *other != pid.as_raw());
}

/// Runs a test's body; after `limit` kills what it started and fails.
///
/// # Errors
/// The body's.
///
/// # Panics
/// As the body does, and when the time is over.
pub fn bounded(limit: Duration, body: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
    let name = thread::current().name().unwrap_or("test").to_owned();
    let (sender, receiver) = channel();
    let thread = thread::Builder::new().name(name.clone()).spawn({
        let name = name.clone();
        move || {
            TEST.set(name);
            let result = body();
            let _ = sender.send(());
            result
        }
    })?;
    if receiver.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
        let children = CHILDREN.lock().unwrap_or_else(PoisonError::into_inner);
        for (_, pid) in children.iter().filter(|(test, _)| *test == name) {
            let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
        }
        drop(children);
        // With its processes gone the body most likely comes to an end and tells where it was.
        let _ = receiver.recv_timeout(Duration::from_secs(5));
        panic!("{name} took longer than {limit:?}; its processes were killed");
    }
    match thread.join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Asks again and again until there is an answer.
///
/// # Errors
/// None came within `limit`, or the question's own.
pub fn until<T>(
    what: &str,
    limit: Duration,
    mut question: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let start = Instant::now();
    loop {
        if let Some(answer) = question()? {
            return Ok(answer);
        }
        if start.elapsed() > limit {
            bail!("{what}: not within {limit:?}");
        }
        thread::sleep(Duration::from_millis(5));
    }
}

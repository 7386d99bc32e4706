//! SIGINT and SIGTERM as a flag, so that a transfer can end in order. Calls the operating system;
//! `main` installs it before any thread starts, `copy` and `bench` look at it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, Result};
use lariat_fabric::waiting::SAME_SIGNAL;
use nix::sys::signal::{SigSet, Signal};

use crate::failure::EXIT_INTERRUPTED;

/// Whether the user wants an end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop {
    requested: Arc<AtomicBool>,
    orderly: Arc<AtomicBool>,
}

impl Stop {
    /// Takes SIGINT and SIGTERM. Call it before other threads start: they inherit the mask.
    ///
    /// Until [`Stop::orderly`] a signal ends the process; after it the first signal sets the flag,
    /// and the second ends the process if it is not the same one ([`SAME_SIGNAL`]).
    pub(crate) fn install() -> Result<Self> {
        let stop = Self::default();
        let mut signals = SigSet::empty();
        signals.add(Signal::SIGINT);
        signals.add(Signal::SIGTERM);
        signals.thread_block().context("cannot block SIGINT and SIGTERM")?;
        let seen = stop.clone();
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                let mut first: Option<Instant> = None;
                while signals.wait().is_ok() {
                    let since_first = first.get_or_insert_with(Instant::now).elapsed();
                    let again = seen.requested.swap(true, Ordering::Relaxed);
                    if !seen.orderly.load(Ordering::Relaxed) || again && since_first > SAME_SIGNAL {
                        std::process::exit(i32::from(EXIT_INTERRUPTED));
                    }
                }
            })
            .context("cannot start a thread")?;
        Ok(stop)
    }

    /// From now on the flag is looked at often enough.
    pub(crate) fn orderly(&self) {
        self.orderly.store(true, Ordering::Relaxed);
    }

    /// Whether to end.
    pub(crate) fn requested(&self) -> bool {
        self.requested.load(Ordering::Relaxed)
    }
}

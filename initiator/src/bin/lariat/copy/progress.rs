//! The progress bar on a terminal's stderr. Calls `indicatif`; called by `copy`.

use core::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar where the total is known, a counter where not; nothing where stderr is no terminal.
#[derive(Debug)]
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// Starts at zero.
    pub(crate) fn new(total: Option<u64>, quiet: bool) -> Self {
        if quiet {
            return Self(ProgressBar::hidden());
        }
        // Both draw to stderr, and nothing where that is no terminal.
        let (bar, template) = match total {
            Some(total) => (
                ProgressBar::new(total),
                "{wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}",
            ),
            None => (ProgressBar::no_length(), "{spinner} {binary_bytes} {binary_bytes_per_sec}"),
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        if total.is_none() {
            bar.enable_steady_tick(Duration::from_millis(200));
        }
        Self(bar)
    }

    /// So many more bytes are done.
    pub(crate) fn add(&self, bytes: u64) {
        self.0.inc(bytes);
    }

    /// Takes the bar away.
    pub(crate) fn end(&self) {
        self.0.finish_and_clear();
    }
}

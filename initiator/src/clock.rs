//! The process's monotonic clock, as the core's time stamps. Called by the blocking layer only.

use std::sync::LazyLock;
use std::time::Instant;

use lariat_fabric::Timestamp;

static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Now. All threads of a process see the same clock.
pub(crate) fn now() -> Timestamp {
    Timestamp::ZERO + ORIGIN.elapsed()
}

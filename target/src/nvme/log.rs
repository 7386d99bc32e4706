//! Log pages (NVMe Base 2.1, 5.1.12). Called by `controller`.

use lariat_wire::nvme::{CommandId, Lba, Nsid, Qid, Status};

/// A failed command, for the Error Information log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ErrorReport {
    pub(super) qid: Qid,
    pub(super) cid: CommandId,
    pub(super) status: Status,
    pub(super) nsid: Nsid,
    pub(super) lba: Lba,
}

/// Entries kept of the Error Information log.
pub(super) const ERROR_ENTRIES: usize = 64;

/// The last failed commands.
#[derive(Debug, Default)]
pub(super) struct ErrorRing {
    entries: std::collections::VecDeque<ErrorReport>,
    /// Errors ever seen: the newest entry's count.
    count: u64,
}

impl ErrorRing {
    pub(super) fn push(&mut self, report: ErrorReport) {
        self.entries.truncate(ERROR_ENTRIES - 1);
        self.entries.push_front(report);
        self.count += 1;
    }

    /// Newest first, each with its error count.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &ErrorReport)> {
        (1..=self.count).rev().zip(&self.entries)
    }

    /// Errors ever seen.
    pub(super) const fn count(&self) -> u64 {
        self.count
    }
}

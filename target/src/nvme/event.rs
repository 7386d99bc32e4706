//! Asynchronous events: requests held until something happens. Called by `controller`.

use lariat_wire::nvme::{AsyncEvent, CommandId, LogPage, Qid, Status};

use super::abort;
use super::controller::AdminEvent;

/// Asynchronous Event Requests that may be outstanding, zero-based (AERL).
pub(super) const ASYNC_EVENT_LIMIT: u8 = 3;

/// Events on their way to the host. One of a kind is told at a time: the next follows when the
/// host has read the log page that the last one named (NVMe Base 2.1, 5.1.2).
#[derive(Debug, Default)]
pub(super) struct AsyncEvents {
    /// Requests that wait for an event, oldest first.
    held: Vec<CommandId>,
    /// Completions that `poll` has to hand out.
    done: Vec<AdminEvent>,
    discovery_changed: bool,
    discovery_masked: bool,
}

impl AsyncEvents {
    /// Keeps a request until something happens.
    pub(super) fn hold(&mut self, cid: CommandId) -> Result<(), Status> {
        if self.held.len() > usize::from(ASYNC_EVENT_LIMIT) {
            return Err(Status::ASYNC_EVENT_LIMIT_EXCEEDED.with_dnr());
        }
        self.held.push(cid);
        Ok(())
    }

    /// The discovery log changed, and the host wants to know.
    pub(super) const fn discovery_changed(&mut self) {
        self.discovery_changed = true;
    }

    /// Whether completions wait to be taken.
    pub(super) const fn has_done(&self) -> bool {
        !self.done.is_empty()
    }

    /// Hands out what is complete.
    pub(super) fn take(&mut self, events: &mut Vec<AdminEvent>) {
        self.send_discovery();
        events.append(&mut self.done);
    }

    /// All held requests end without an event.
    pub(super) fn abort_all(&mut self) {
        let aborted = self.held.drain(..).map(|cid| AdminEvent::CompleteHeld {
            cid,
            result: 0,
            status: Status::ABORT_REQUESTED,
        });
        self.done.extend(aborted);
        self.discovery_changed = false;
        self.discovery_masked = false;
    }

    pub(super) fn abort(&mut self, sqid: Qid, cid: CommandId) -> bool {
        let found = abort::take_held(&mut self.held, sqid, cid);
        if found {
            let status = Status::ABORT_REQUESTED;
            self.done.push(AdminEvent::CompleteHeld { cid, result: 0, status });
        }
        found
    }

    fn send_discovery(&mut self) {
        if self.discovery_changed && !self.discovery_masked && !self.held.is_empty() {
            let cid = self.held.remove(0);
            let result = AsyncEvent::DISCOVERY_CHANGED.to_result();
            self.done.push(AdminEvent::CompleteHeld { cid, result, status: Status::SUCCESS });
            self.discovery_changed = false;
            self.discovery_masked = true;
        }
    }

    pub(super) fn log_was_read(&mut self, page: LogPage) {
        if page == LogPage::DISCOVERY {
            self.discovery_masked = false;
        }
    }
}

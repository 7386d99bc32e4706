//! One controller's admin queue: from command to completion. Holds the state that only the admin
//! connection touches: properties, features, the keep-alive timer, held event requests. Calls
//! `property`, `identify`, `feature`, `log` and `abort`; `transport` owns it with the admin
//! connection.

use std::sync::Arc;

use lariat_fabric::Timestamp;
use lariat_wire::nvme::{Command, CommandId, QueueSize, Status};

use super::attachment::{ControllerShared, TerminateReason};
use super::fabrics::ConnectCommand;
use super::registry::Registry;
use super::subsystem::Subsystem;

/// The data that goes with a command, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// None.
    None,
    /// From the target to the host.
    ToHost(u32),
    /// From the host to the target.
    FromHost(u32),
}

impl Transfer {
    /// The length, whatever the direction.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        match self {
            Self::None => 0,
            Self::ToHost(bytes) | Self::FromHost(bytes) => bytes,
        }
    }
}

/// An admin command that was found good: what it transfers, and what it does.
#[derive(Clone, Copy, Debug)]
pub struct AdminPlan {
    /// The command.
    pub cid: CommandId,
    /// The data that goes with it; check the SGL against it, and give `execute` a slice of
    /// exactly this length.
    pub transfer: Transfer,
}

/// How an admin command ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdminOutcome {
    /// Complete it now.
    Complete {
        /// Result, dwords 0 and 1.
        result: u64,
        /// Status.
        status: Status,
        /// Bytes of `data` to send to the host before the completion: all of a successful
        /// transfer to the host, else 0.
        bytes: u32,
    },
    /// Keep it: [`AdminEvent::CompleteHeld`] will complete it.
    Hold,
}

/// Something that happens to the admin queue by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdminEvent {
    /// Complete a held command.
    CompleteHeld {
        /// Which.
        cid: CommandId,
        /// Result, dwords 0 and 1.
        result: u64,
        /// Status.
        status: Status,
    },
    /// The controller is gone: close the admin connection. Comes once.
    Fatal(FatalReason),
}

/// Why a controller ended.
pub type FatalReason = TerminateReason;

/// A controller, as its admin connection sees it. Dropping it ends the controller and with it the
/// I/O queues.
#[derive(Debug)]
pub struct AdminController {
    registry: Arc<Registry>,
    subsystem: Arc<Subsystem>,
    shared: Arc<ControllerShared>,
    size: QueueSize,
    sq_flow_control: bool,
}

impl AdminController {
    pub(super) fn new(
        _now: Timestamp,
        registry: Arc<Registry>,
        subsystem: Arc<Subsystem>,
        shared: Arc<ControllerShared>,
        command: &ConnectCommand,
    ) -> Self {
        let sq_flow_control = command.sq_flow_control();
        Self { registry, subsystem, shared, size: command.sqsize, sq_flow_control }
    }

    /// What all queues of the controller share.
    #[must_use]
    pub const fn shared(&self) -> &Arc<ControllerShared> {
        &self.shared
    }

    /// The subsystem.
    #[must_use]
    pub const fn subsystem(&self) -> &Arc<Subsystem> {
        &self.subsystem
    }

    /// Entries of the admin queue.
    #[must_use]
    pub const fn size(&self) -> QueueSize {
        self.size
    }

    /// Whether completions carry the submission queue head (else it is FFFFh).
    #[must_use]
    pub const fn sq_flow_control(&self) -> bool {
        self.sq_flow_control
    }

    /// Result of the Connect that made it.
    #[must_use]
    pub fn connect_result(&self) -> u64 {
        u64::from(self.shared.id().0)
    }

    /// Checks a command of the admin queue.
    ///
    /// # Errors
    /// The status to complete it with; it is in the error log already.
    pub fn prepare(&mut self, command: &Command) -> Result<AdminPlan, Status> {
        Ok(AdminPlan { cid: command.command_id(), transfer: Transfer::None })
    }

    /// Executes a prepared command. `data` holds [`AdminPlan::transfer`]'s bytes: the host's for
    /// `FromHost`, room for the answer (all of it is written) for `ToHost`.
    pub fn execute(
        &mut self,
        _now: Timestamp,
        _plan: &AdminPlan,
        _data: &mut [u8],
    ) -> AdminOutcome {
        AdminOutcome::Complete { result: 0, status: Status::SUCCESS, bytes: 0 }
    }

    /// Puts an admin command that failed outside of `prepare` and `execute` (its SGL, say) into the
    /// error log. Gives the status to complete it with.
    pub fn log(&mut self, _command: &Command, status: Status) -> Status {
        status
    }

    /// What happened by itself: the keep-alive timer, asynchronous events, the end. To be called
    /// each turn in which the reactor was woken, something was executed here, or
    /// [`next_timeout`](Self::next_timeout) came.
    pub fn poll(&mut self, _now: Timestamp, _events: &mut Vec<AdminEvent>) {}

    /// When `poll` has something to do at the latest; [`Timestamp::NEVER`] for never.
    #[must_use]
    pub fn next_timeout(&self) -> Timestamp {
        Timestamp::NEVER
    }
}

impl Drop for AdminController {
    fn drop(&mut self) {
        self.shared.terminate(TerminateReason::AdminGone);
        self.registry.remove(self.subsystem.nqn(), self.shared.id());
    }
}

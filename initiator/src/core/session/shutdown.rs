//! A session's orderly end: drain, Disconnect, shutdown notification, disconnect; all within one
//! time limit. Called by `session`.

use lariat_fabric::{Fabric, Timestamp};
use lariat_wire::nvme::{
    CommandId, ControllerConfig, ControllerStatus, FabricsCommand, Property, PropertySize,
    ShutdownNotification, ShutdownStatus,
};

use core::time::Duration;

use super::{Phase, Session, SessionState, tag};
use crate::core::queue::QueueCompletion;
use crate::core::types::{LossReason, Transfer};

/// Time between two looks at CSTS.SHST.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Tag of the Property Set of CC.
const SET: u64 = 0;
/// Tag of a Property Get of CSTS.
const LOOK: u64 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Requests are finishing.
    Draining,
    /// Disconnect commands are out.
    Leaving,
    /// CC.SHN is to be set.
    Notify,
    /// CC.SHN is being set, or CSTS read.
    Waiting,
    /// CSTS is to be read.
    Look,
    /// All is said.
    Done,
}

/// An orderly end under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Closing {
    stage: Stage,
    deadline: Timestamp,
    look_at: Timestamp,
    /// When a peer will have been silent for too long, if it goes on.
    silent_at: Timestamp,
}

impl Closing {
    pub(super) fn next_timeout(&self) -> Timestamp {
        let latest = self.deadline.min(self.silent_at);
        match self.stage {
            Stage::Look => self.look_at.min(latest),
            _ => latest,
        }
    }
}

impl Session {
    /// Begins the orderly end: nothing new is taken, what is outstanding may finish, queues are
    /// deleted, the controller is told, connections close. Done when the state is `Closed`, at the
    /// latest after the configured time. A target that acknowledges nothing is not waited for that
    /// long, see [`PARTING_SILENCE`](lariat_fabric::waiting::PARTING_SILENCE).
    pub fn shutdown<F: Fabric + ?Sized>(&mut self, now: Timestamp, fabric: &mut F) {
        self.shutdown_within(now, fabric, self.config.shutdown_timeout);
    }

    /// As [`Self::shutdown`], but within a time of the caller's.
    pub fn shutdown_within<F: Fabric + ?Sized>(
        &mut self,
        now: Timestamp,
        fabric: &mut F,
        time: Duration,
    ) {
        match self.state() {
            SessionState::Closing | SessionState::Closed(_) => return,
            SessionState::Connecting => {
                self.end(now, fabric, LossReason::Local);
                return;
            }
            SessionState::Ready => {}
        }
        self.step = None;
        self.step_at = Timestamp::NEVER;
        self.phase = Phase::Closing(Closing {
            stage: Stage::Draining,
            deadline: now + time,
            look_at: now,
            silent_at: Timestamp::NEVER,
        });
        self.run_shutdown(now, fabric);
        self.post(now, fabric);
    }

    /// One look at an orderly end.
    pub(super) fn run_shutdown<F: Fabric + ?Sized>(&mut self, now: Timestamp, fabric: &mut F) {
        let Phase::Closing(mut closing) = self.phase else { return };
        let admin_silent_at = self.admin.silent_at(fabric);
        if now >= closing.deadline.min(admin_silent_at) {
            self.end(now, fabric, LossReason::Local);
            return;
        }
        closing.silent_at = admin_silent_at;
        for queue in &mut self.io {
            let silent_at = queue.silent_at(fabric);
            if now >= silent_at {
                queue.close(now, fabric, LossReason::Unresponsive);
            } else {
                closing.silent_at = closing.silent_at.min(silent_at);
            }
        }
        if closing.stage == Stage::Draining && self.io.iter().all(|queue| queue.outstanding() == 0)
        {
            if self.info.as_ref().is_some_and(super::ControllerInfo::supports_disconnect) {
                for queue in &mut self.io {
                    queue.leave(now, fabric);
                }
            }
            closing.stage = Stage::Leaving;
        }
        if closing.stage == Stage::Leaving && self.io.iter().all(super::BlockQueue::has_left) {
            for queue in &mut self.io {
                queue.close(now, fabric, LossReason::Local);
            }
            closing.stage = Stage::Notify;
        }
        if closing.stage == Stage::Notify {
            let config = ControllerConfig::enable_nvm().with_shutdown(ShutdownNotification::NORMAL);
            let command = FabricsCommand::PropertySet {
                size: PropertySize::Four,
                offset: Property::CC.0,
                value: u64::from(config.0),
            };
            closing.stage = self.send(now, fabric, command, SET);
        }
        if closing.stage == Stage::Look && now >= closing.look_at {
            let command =
                FabricsCommand::PropertyGet { size: PropertySize::Four, offset: Property::CSTS.0 };
            closing.stage = self.send(now, fabric, command, LOOK);
        }
        let done = closing.stage == Stage::Done;
        self.phase = Phase::Closing(closing);
        if done {
            self.end(now, fabric, LossReason::Local);
        }
    }

    fn send<F: Fabric + ?Sized>(
        &mut self,
        now: Timestamp,
        fabric: &mut F,
        command: FabricsCommand,
        what: u64,
    ) -> Stage {
        let timeout = self.config.shutdown_timeout;
        let command = command.to_command(CommandId(0));
        let sent = self.admin.live().map(|queue| {
            queue.submit(now, fabric, command, Transfer::None, tag::SHUTDOWN, what, timeout)
        });
        if matches!(sent, Some(Ok(()))) { Stage::Waiting } else { Stage::Done }
    }

    /// The answer to a property command of the shutdown.
    pub(super) fn shutdown_done(&mut self, now: Timestamp, done: &QueueCompletion) {
        let Phase::Closing(closing) = &mut self.phase else { return };
        closing.stage = match done.success() {
            Err(_) => Stage::Done,
            Ok(_) if done.tag == SET => {
                closing.look_at = now;
                Stage::Look
            }
            Ok(answer) => {
                let status = ControllerStatus(answer.result32());
                if status.shutdown() == ShutdownStatus::COMPLETE {
                    Stage::Done
                } else {
                    closing.look_at = now + LOOK_EVERY;
                    Stage::Look
                }
            }
        };
    }
}

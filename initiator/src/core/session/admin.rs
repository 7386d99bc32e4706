//! A session's admin queue: users' commands, Keep Alive, what each completion is of. Called by
//! `session`.

use core::time::Duration;

use lariat_fabric::{Fabric, Timestamp};
use lariat_wire::nvme::{AdminCommand, AdminOpcode, Command, CommandId};

use super::{ADMIN_DATA_BYTES, AdminData, AdminDone, AdminUser, Phase, Session, bringup, tag};
use crate::core::link::LinkStatus;
use crate::core::queue::{HostQueue, QueueCompletion};
use crate::core::types::{Failure, LossReason, SubmitError, Transfer};

impl Session {
    /// Queues an admin command.
    ///
    /// # Errors
    /// Why it was not taken.
    pub fn submit_admin<F: Fabric + ?Sized>(
        &mut self,
        now: Timestamp,
        fabric: &F,
        command: Command,
        data: AdminData<'_>,
        user_data: u64,
    ) -> Result<(), SubmitError> {
        self.check_open()?;
        let timeout = self.config.admin_timeout;
        let queue = self.admin.live().ok_or(SubmitError::NotReady)?;
        let index = self.users.iter().position(Option::is_none).ok_or(SubmitError::Full)?;
        let length = match data {
            AdminData::None => 0,
            AdminData::ToHost(length) => length,
            AdminData::ToController(bytes) => u32::try_from(bytes.len()).unwrap_or(u32::MAX),
        };
        if length > ADMIN_DATA_BYTES {
            let limit = u64::from(ADMIN_DATA_BYTES);
            return Err(SubmitError::TooLarge { bytes: u64::from(length), limit });
        }
        let target = queue.scratch(piece_offset(index + 1), length);
        let (transfer, to_host) = match (data, target) {
            (AdminData::ToHost(length), Some(target)) => (Transfer::ToHost(target), length),
            (AdminData::ToController(bytes), Some(target)) => {
                let written = queue.scratch_memory().write_at(target.offset, bytes);
                written.map_err(|_| SubmitError::BadMemory)?;
                (Transfer::ToController(target), 0)
            }
            _ => (Transfer::None, 0),
        };
        queue.submit(now, fabric, command, transfer, index as u64, 0, timeout)?;
        if let Some(user) = self.users.get_mut(index) {
            *user = Some(AdminUser { user_data, to_host });
        }
        Ok(())
    }

    /// Looks after the admin queue: its coming up, its completions, its loss.
    pub(super) fn admin_turn<F: Fabric + ?Sized>(&mut self, now: Timestamp, fabric: &mut F) {
        if matches!(self.phase, Phase::AdminConnecting) && self.admin.status() == LinkStatus::Live {
            self.phase = Phase::Bringup;
            if !self.config.kato.is_zero() {
                self.keep_alive_at = now + self.config.kato / 2;
            }
            self.begin(now, fabric, bringup::Step::Capabilities);
        }
        while let Some(done) = self.admin.queue().and_then(HostQueue::poll_completion) {
            self.admin_completion(now, fabric, &done);
        }
        if let LinkStatus::Closed(reason) = self.admin.status() {
            let reason = match reason {
                LossReason::CommandTimeout { opcode, waited, .. }
                    if opcode == AdminOpcode::KEEP_ALIVE.0 =>
                {
                    LossReason::KeepAlive { waited }
                }
                other => other,
            };
            if self.error.is_none() {
                self.error = self.admin.take_error();
            }
            self.end(now, fabric, reason);
        }
    }

    fn admin_completion<F: Fabric + ?Sized>(
        &mut self,
        now: Timestamp,
        fabric: &mut F,
        done: &QueueCompletion,
    ) {
        match done.user_data {
            tag::STEP => self.step_done(now, fabric, done),
            tag::KEEP_ALIVE => match done.success() {
                Ok(_) => self.keep_alive_at = now + self.config.kato / 2,
                Err(Failure::Status(_)) => {
                    let waited = done.stages.remote();
                    self.end(now, fabric, LossReason::KeepAlive { waited });
                }
                Err(_) => {}
            },
            tag::ASYNC_EVENT => self.async_event(now, fabric, done),
            tag::SHUTDOWN => self.shutdown_done(now, done),
            index => self.user_done(index, done),
        }
    }

    pub(super) fn user_done(&mut self, index: u64, done: &QueueCompletion) {
        let Ok(index) = usize::try_from(index) else { return };
        let Some(user) = self.users.get_mut(index).and_then(Option::take) else { return };
        let result = done.success();
        let mut data = Vec::new();
        if result.is_ok() && user.to_host > 0 {
            data.resize(usize::try_from(user.to_host).unwrap_or(0), 0);
            if let Some(queue) = self.admin.queue() {
                let _ = queue.scratch_memory().read_at(piece_offset(index + 1), &mut data);
            }
        }
        self.admin_done.push_back(AdminDone { user_data: user.user_data, result, data });
    }

    pub(super) fn keep_alive<F: Fabric + ?Sized>(&mut self, now: Timestamp, fabric: &mut F) {
        // Armed again when the answer comes; its own timeout sees to the case that none does.
        self.keep_alive_at = Timestamp::NEVER;
        let timeout = self.config.kato;
        let Some(queue) = self.admin.live() else { return };
        let command = AdminCommand::KeepAlive.to_command(CommandId(0));
        let sent = queue.submit(now, fabric, command, Transfer::None, tag::KEEP_ALIVE, 0, timeout);
        if sent == Err(SubmitError::Full) {
            self.keep_alive_at = now + Duration::from_millis(10);
        }
    }
}

/// Where piece `index` of the admin queue's scratch memory starts; piece 0 is the session's own.
fn piece_offset(index: usize) -> u64 {
    index as u64 * u64::from(ADMIN_DATA_BYTES)
}

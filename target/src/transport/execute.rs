//! What commands do once their data (or a place for it) is there: storage operations, admin
//! commands, Connect. Called by the reactor's turn.

use std::sync::Arc;

use lariat_fabric::{Fabric, Timestamp};
use lariat_wire::nvme::fabrics::CONNECT_DATA_BYTES;
use lariat_wire::nvme::{CommandId, ConnectData, Status};

use super::connection::Role;
use super::reactor::Reactor;
use super::request::{Request, State, Work};
use crate::nvme::admission::volatile_backends;
use crate::nvme::{
    AdminOutcome, AdminPlan, ConnectCommand, ConnectError, IoAttachment, IoPlan, Transfer,
    storage_status,
};
use crate::storage::{BlockCompletion, BlockOp, BlockRequest, BufferRange, Storage};

impl<F: Fabric, S: Storage> Reactor<F, S> {
    /// Executes a request that has all it needs.
    pub(super) fn run(&mut self, now: Timestamp, slot: u32) {
        let Some(request) = self.requests.get_mut(slot as usize) else {
            self.stats.anomalies += 1;
            return;
        };
        match request.work {
            Work::Answer => self.complete(now, slot, 0, Status::SUCCESS),
            Work::Connect(command) => self.connect(now, slot, &command),
            Work::Admin(plan) => self.execute_admin(now, slot, &plan),
            Work::Io(IoPlan::Nothing) => self.finish_io(now, slot, Status::SUCCESS),
            Work::Io(IoPlan::Disconnect) => {
                request.close_after = true;
                self.finish_io(now, slot, Status::SUCCESS);
            }
            Work::Io(IoPlan::Deallocate { .. }) => match self.read_ranges(slot) {
                Ok(true) => self.submit(now, slot),
                Ok(false) => self.finish_io(now, slot, Status::SUCCESS),
                // It is in the error log already.
                Err(status) => self.complete(now, slot, 0, status),
            },
            Work::Io(_) if request.zeroes => {
                self.stats.zero_reads += 1;
                self.finish_io(now, slot, Status::SUCCESS);
            }
            Work::Io(_) => self.submit(now, slot),
        }
    }

    /// Copies a request's data into the scratch buffer.
    fn load(&mut self, slot: u32) -> Result<usize, Status> {
        let data = self.requests.get(slot as usize).and_then(|request| request.data);
        let data = data.ok_or(Status::INTERNAL_ERROR)?;
        let length = data.length as usize;
        let memory = self.buffers(data.memory).ok_or(Status::INTERNAL_ERROR)?;
        let memory = Arc::clone(memory);
        let into = self.scratch.get_mut(..length).ok_or(Status::INTERNAL_ERROR)?;
        memory.read_at(data.offset, into).map_err(|_| Status::INTERNAL_ERROR)?;
        Ok(length)
    }

    fn connect(&mut self, now: Timestamp, slot: u32, command: &ConnectCommand) {
        let data = self
            .load(slot)
            .ok()
            .and_then(|_| self.scratch.first_chunk::<CONNECT_DATA_BYTES>())
            .copied();
        let key = self.requests.get(slot as usize).map(|request| request.connection);
        let (Some(data), Some(key)) = (data, key) else {
            return self.complete(now, slot, 0, Status::INTERNAL_ERROR);
        };
        let outcome = self.try_connect(now, key, command, ConnectData::from_bytes(&data));
        let Some(connection) = self.connections.get_mut(key as usize) else { return };
        match outcome {
            Ok((role, result)) => {
                let (entries, flow) = (command.sqsize.entries(), command.sq_flow_control());
                if self.config.shared_receive && matches!(role, Role::Admin(_)) {
                    connection.guest = Some(self.registry.guests().enter(connection.peer));
                }
                connection.connected(role, entries, flow);
                tracing::info!(qid = %command.qid, entries, controller = result, "queue connected");
                self.complete(now, slot, result, Status::SUCCESS);
            }
            Err(ConnectError::Predecessor(_))
                if now + self.config.connect_timeout / 2 < connection.connect_deadline =>
            {
                if self.requests.get(slot as usize).map(Request::state) != Some(State::AwaitStorage)
                {
                    self.advance(now, slot, State::AwaitStorage);
                }
                self.waiting_connects.push(slot);
            }
            Err(error) => {
                connection.role = Role::Fresh;
                tracing::info!(%error, "Connect refused");
                self.complete(now, slot, error.result(), error.status());
            }
        }
    }

    /// Tries again the Connects that wait for the end of what their hosts did before.
    pub(super) fn retry_connects(&mut self, now: Timestamp) {
        for slot in core::mem::take(&mut self.waiting_connects) {
            if let Some(Work::Connect(command)) = self.requests.get(slot as usize).map(|r| r.work) {
                self.connect(now, slot, &command);
            }
        }
    }

    fn try_connect(
        &mut self,
        now: Timestamp,
        key: u32,
        command: &ConnectCommand,
        data: &ConnectData,
    ) -> Result<(Role, u64), ConnectError> {
        if let Some(connection) = self.connections.get(key as usize) {
            // What the connection manager was told has to be what is asked for now.
            let agreement = &connection.agreement;
            if command.qid != agreement.qid {
                return Err(ConnectError::Qid { qid: command.qid, max: agreement.qid.0 });
            }
            let (entries, max) = (command.sqsize.entries(), agreement.entries);
            if entries > max {
                return Err(ConnectError::QueueSize { entries, max });
            }
        }
        if command.qid.is_admin() {
            let controller = self.registry.connect_admin(now, command, data)?;
            let result = controller.connect_result();
            Ok((Role::Admin(Box::new(controller)), result))
        } else {
            let attachment = self.registry.attach_io(now, command, data)?;
            let result = attachment.connect_result();
            Ok((Role::Io(attachment), result))
        }
    }

    fn execute_admin(&mut self, now: Timestamp, slot: u32, plan: &AdminPlan) {
        let length = plan.transfer.bytes() as usize;
        if matches!(plan.transfer, Transfer::FromHost(1..))
            && let Err(status) = self.load(slot)
        {
            return self.complete(now, slot, 0, status);
        }
        let Some(request) = self.requests.get_mut(slot as usize) else { return };
        let role = self.connections.get_mut(request.connection as usize).map(|c| &mut c.role);
        let (Some(Role::Admin(controller)), Some(data)) = (role, self.scratch.get_mut(..length))
        else {
            return self.complete(now, slot, 0, Status::INTERNAL_ERROR);
        };
        if matches!(plan.transfer, Transfer::ToHost(_)) {
            data.fill(0);
        }
        // It may have made events, or have ended the controller.
        self.sweep_due = true;
        match controller.execute(now, plan, data) {
            AdminOutcome::Hold => {
                self.release_receive(slot);
                self.advance(now, slot, State::Held);
            }
            AdminOutcome::Complete { result, mut status, bytes } => {
                request.send_data = request.send_data && bytes > 0;
                request.bytes = request.bytes.min(bytes);
                if request.send_data {
                    let answer = data.get(..request.bytes as usize).unwrap_or_default();
                    let at = request.data.map_or(u64::MAX, |data| data.offset);
                    if self.pool.memory().write_at(at, answer).is_err() {
                        self.stats.anomalies += 1;
                        status = Status::INTERNAL_ERROR;
                    }
                }
                self.complete(now, slot, result, status);
            }
        }
    }

    /// Completes a held asynchronous event request.
    pub(super) fn complete_held(
        &mut self,
        now: Timestamp,
        key: u32,
        cid: CommandId,
        result: u64,
        status: Status,
    ) {
        let held = |&slot: &u32| {
            self.requests.get(slot as usize).is_some_and(|request| {
                request.state() == State::Held && request.command.command_id() == cid
            })
        };
        let slot = self
            .connections
            .get(key as usize)
            .and_then(|connection| connection.requests.iter().copied().find(held));
        match slot {
            Some(slot) => self.complete(now, slot, result, status),
            None => self.stats.anomalies += 1,
        }
    }

    /// Reads the list of a Deallocate; false if there is nothing in it.
    fn read_ranges(&mut self, slot: u32) -> Result<bool, Status> {
        let length = self.load(slot)?;
        let Some(request) = self.requests.get_mut(slot as usize) else {
            return Err(Status::INTERNAL_ERROR);
        };
        let role = self.connections.get(request.connection as usize).map(|c| &c.role);
        let Some(Role::Io(attachment)) = role else { return Err(Status::INTERNAL_ERROR) };
        let list = self.scratch.get(..length).unwrap_or_default();
        request.ranges = self.spare_ranges.pop().unwrap_or_default();
        attachment.parse_ranges(&request.command, list, &mut request.ranges)?;
        let any = !request.ranges.is_empty();
        request.data = None;
        if let Some(buffer) = request.buffer.take() {
            self.pool.release(buffer);
        }
        self.release_receive(slot);
        Ok(any)
    }

    fn submit(&mut self, now: Timestamp, slot: u32) {
        self.advance(now, slot, State::AwaitStorage);
        if !self.storage_queue.is_empty() || !self.try_submit(now, slot) {
            self.stats.storage_waits += 1;
            self.storage_queue.push_back(slot);
        }
    }

    /// Submits what had to wait, as far as there is room now.
    pub(super) fn resubmit(&mut self, now: Timestamp) {
        while let Some(&slot) = self.storage_queue.front() {
            if !self.try_submit(now, slot) {
                break;
            }
            self.storage_queue.pop_front();
        }
    }

    /// False if the storage has no room.
    fn try_submit(&mut self, now: Timestamp, slot: u32) -> bool {
        let Some(request) = self.requests.get_mut(slot as usize) else {
            self.stats.anomalies += 1;
            return true;
        };
        let Some(connection) = self.connections.get_mut(request.connection as usize) else {
            self.stats.anomalies += 1;
            return true;
        };
        let Role::Io(attachment) = &connection.role else {
            self.stats.anomalies += 1;
            return true;
        };
        let Some(operation) = operation(request, attachment, slot) else {
            // Cannot be: every plan that comes here has at least one operation.
            self.stats.anomalies += 1;
            return true;
        };
        if self.storage.submit(operation).is_err() {
            return false;
        }
        connection.in_storage += 1;
        request.advance(now, State::InStorage, &mut self.stats);
        self.unsubmitted = true;
        true
    }

    /// The storage finished an operation.
    pub(super) fn on_storage(&mut self, now: Timestamp, completion: &BlockCompletion) {
        let found = u32::try_from(completion.tag)
            .ok()
            .and_then(|slot| Some((slot, self.requests.get_mut(slot as usize)?)));
        let Some((slot, request)) = found else {
            self.stats.anomalies += 1;
            return;
        };
        let Some(connection) = self.connections.get_mut(request.connection as usize) else {
            self.stats.anomalies += 1;
            return;
        };
        connection.in_storage = connection.in_storage.saturating_sub(1);
        connection.note_storage_done();
        if let Err(error) = completion.result {
            self.stats.storage_errors += 1;
            // A disk that fails may fail a million times a second.
            if let Some(unsaid) = self.storage_failures.due(now) {
                let subsystem = match &connection.role {
                    Role::Io(attachment) => Some(attachment.subsystem().nqn().as_str()),
                    _ => None,
                };
                let nsid = request.command.nsid.get();
                tracing::warn!(%error, subsystem, nsid, unsaid, "storage operation failed");
            }
        }
        match (request.state(), completion.result) {
            (State::Orphaned, _) => self.free(now, slot),
            (State::InStorage, Err(error)) => self.finish_io(now, slot, storage_status(error)),
            (State::InStorage, Ok(())) => {
                request.step += 1;
                let more = match (&connection.role, &request.work) {
                    (
                        Role::Io(attachment),
                        Work::Io(IoPlan::FlushAll | IoPlan::Deallocate { .. }),
                    ) => operation(request, attachment, slot).is_some(),
                    (Role::Io(_), Work::Io(IoPlan::Read { flush: true, .. })) => request.step == 1,
                    _ => false,
                };
                if more {
                    self.submit(now, slot);
                } else {
                    self.finish_io(now, slot, Status::SUCCESS);
                }
            }
            _ => self.stats.anomalies += 1,
        }
    }

    fn finish_io(&mut self, now: Timestamp, slot: u32, status: Status) {
        let Some(request) = self.requests.get(slot as usize) else { return };
        let role = self.connections.get(request.connection as usize).map(|c| &c.role);
        let status = match (role, &request.work) {
            (Some(Role::Io(attachment)), Work::Io(plan)) => {
                if status.is_success() {
                    match *plan {
                        IoPlan::Read { bytes, .. } => self.stats.read_bytes += u64::from(bytes),
                        IoPlan::Write { bytes, .. } => self.stats.written_bytes += u64::from(bytes),
                        _ => {}
                    }
                }
                attachment.finish(&request.command, plan, status)
            }
            _ => status,
        };
        self.complete(now, slot, 0, status);
    }
}

/// The storage operation that a request stands at; `None` if it has no more.
fn operation(request: &Request, attachment: &IoAttachment, slot: u32) -> Option<BlockRequest> {
    let Work::Io(plan) = request.work else { return None };
    let buffer = || -> Option<BufferRange> { request.data };
    let (backend, op) = match plan {
        IoPlan::Read { backend, flush: true, .. } if request.step == 0 => (backend, BlockOp::Flush),
        IoPlan::Read { backend, start, .. } => {
            (backend, BlockOp::Read { start, buffer: buffer()? })
        }
        IoPlan::Write { backend, start, fua, .. } => {
            (backend, BlockOp::Write { start, buffer: buffer()?, fua })
        }
        IoPlan::Flush { backend } => (backend, BlockOp::Flush),
        IoPlan::FlushAll => {
            (volatile_backends(attachment.subsystem()).nth(request.step)?, BlockOp::Flush)
        }
        IoPlan::WriteZeroes { backend, range, deallocate, fua } => {
            (backend, BlockOp::WriteZeroes { range, deallocate, fua })
        }
        IoPlan::Deallocate { backend, .. } => {
            (backend, BlockOp::Deallocate { range: *request.ranges.get(request.step)? })
        }
        IoPlan::Nothing | IoPlan::Disconnect => return None,
    };
    Some(BlockRequest { backend, op, tag: u64::from(slot) })
}

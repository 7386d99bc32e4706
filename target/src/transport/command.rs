//! From a received capsule to a request that has all it needs: parse, account, admit, check the
//! SGL, get a buffer. What is wrong with a command becomes the status of its completion; what is
//! wrong with the transport's rules ends the connection. Called by the reactor's turn.

use lariat_fabric::{Fabric, Memory, Timestamp};
use lariat_wire::nvme::fabrics::CONNECT_DATA_BYTES;
use lariat_wire::nvme::{COMMAND_BYTES, Command, Status};

use super::buffer::{Buffer, Class};
use super::connection::{CAPSULE_BYTES, Capsule, Role};
use super::reactor::{POOL_MEMORY, Reactor, key_of};
use super::request::{Request, State, Work};
use super::sgl::{self, HostMemory};
use super::share::Waiter;
use crate::nvme::{ConnectCommand, IoPlan, Transfer};
use crate::storage::{BlockRange, BufferRange, Storage};

const CONNECT_BYTES: u32 = 1024;
const _: () = assert!(CONNECT_DATA_BYTES == 1024);
/// `O_DIRECT` wants memory aligned to the logical block size, which is 4,096 at most.
const DATA_ALIGNMENT: u64 = 4096;

impl<F: Fabric, S: Storage> Reactor<F, S> {
    /// A capsule arrived.
    pub(super) fn on_capsule(&mut self, now: Timestamp, key: u32, capsule: Capsule) {
        let Some(connection) = self.connections.get_mut(key as usize) else { return };
        if !connection.is_live() {
            return self.give_back(key, capsule.receive);
        }
        // While the target drains nothing is started; the host will see the disconnect and send
        // the command again elsewhere or later.
        if self.drain_deadline.is_some() || !connection.has_room() {
            // Beyond receives of its own nothing comes; of shared ones it must not hold more.
            if connection.shared.is_some() && connection.has_parked_enough() {
                self.give_back(key, capsule.receive);
                return self.violation(now, key, "more commands than the queue has entries");
            }
            self.stats.parked_capsules += 1;
            connection.parked.push_back(capsule);
            return;
        }
        self.start(now, key, capsule);
    }

    /// Slots are free again: starts what waited for them.
    pub(super) fn unpark(&mut self, now: Timestamp, key: u32) {
        while let Some(connection) = self.connections.get_mut(key as usize)
            && self.drain_deadline.is_none()
            && connection.is_live()
            && connection.has_room()
            && let Some(capsule) = connection.parked.pop_front()
        {
            self.start(now, key, capsule);
        }
    }

    fn start(&mut self, now: Timestamp, key: u32, capsule: Capsule) {
        let Some(connection) = self.connections.get_mut(key as usize) else { return };
        self.stats.commands += 1;
        if capsule.bytes < CAPSULE_BYTES {
            self.give_back(key, capsule.receive);
            return self.violation(now, key, "a capsule shorter than a command");
        }
        let mut bytes = [0; COMMAND_BYTES];
        if connection
            .receives
            .memory()
            .read_at(connection.receives.capsule(capsule.receive), &mut bytes)
            .is_err()
        {
            self.stats.anomalies += 1;
            return self.give_back(key, capsule.receive);
        }
        let command = Command::from_bytes(&bytes);
        if !connection.count_in() {
            self.give_back(key, capsule.receive);
            return self.violation(now, key, "more commands than the queue has entries");
        }
        let position = key_of(connection.requests.len());
        let mut request = Request::new(now, key, position, command);
        request.receive = Some(capsule.receive);
        request.owns_cid = connection.claim(command.command_id());
        let duplicate = !request.owns_cid;
        let slot = key_of(self.requests.insert(request));
        connection.requests.push(slot);
        if duplicate {
            self.complete(now, slot, 0, Status::COMMAND_ID_CONFLICT.with_dnr());
        } else if let Err(status) =
            self.admit(now, slot, key, &command, capsule.bytes - CAPSULE_BYTES)
        {
            self.complete(now, slot, 0, status);
        }
    }

    /// Finds out what a command needs, and gets it or queues for it.
    fn admit(
        &mut self,
        now: Timestamp,
        slot: u32,
        key: u32,
        command: &Command,
        capsule_bytes: u32,
    ) -> Result<(), Status> {
        let Some(connection) = self.connections.get_mut(key as usize) else {
            return Err(Status::INTERNAL_ERROR);
        };
        let (work, transfer, class) = match &mut connection.role {
            Role::Fresh => {
                let connect = ConnectCommand::parse(command)?;
                (Work::Connect(connect), Transfer::FromHost(CONNECT_BYTES), Class::Admin)
            }
            Role::Connecting | Role::Gone => {
                return Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr());
            }
            Role::Admin(controller) => {
                let plan = controller.prepare(command)?;
                (Work::Admin(plan), plan.transfer, Class::Admin)
            }
            Role::Io(attachment) => {
                let plan = attachment.admit(command)?;
                (Work::Io(plan), plan.transfer(), Class::Data)
            }
        };
        let host = match transfer {
            Transfer::None | Transfer::ToHost(0) | Transfer::FromHost(0) => Ok(HostMemory::None),
            Transfer::ToHost(bytes) => sgl::to_host(command.sgl(), bytes),
            Transfer::FromHost(bytes) => sgl::from_host(command.sgl(), bytes, capsule_bytes),
        };
        let bytes = transfer.bytes();
        let host = host.and_then(|host| {
            let fits = bytes <= self.pool.max_buffer_bytes();
            if fits { Ok(host) } else { Err(Status::INVALID_FIELD.with_dnr()) }
        });
        let host = match (host, &mut connection.role) {
            (Ok(host), _) => host,
            (Err(status), Role::Admin(controller)) => {
                return Err(controller.log(command, status));
            }
            (Err(status), Role::Io(attachment)) => return Err(attachment.log(command, status)),
            (Err(status), _) => return Err(status),
        };
        if matches!(work, Work::Connect(_)) {
            connection.role = Role::Connecting;
        }
        let Some(request) = self.requests.get_mut(slot as usize) else {
            return Err(Status::INTERNAL_ERROR);
        };
        request.work = work;
        request.host = host;
        request.bytes = bytes;
        request.send_data = matches!(transfer, Transfer::ToHost(_)) && bytes > 0;
        request.zeroes = match (self.regions.zeroes, work) {
            // A forced read has to flush first.
            (Some(zeroes), Work::Io(IoPlan::Read { backend, start, blocks, flush: false, .. })) => {
                let range = BlockRange { start, blocks: u64::from(blocks) };
                bytes <= zeroes.bytes && self.storage.reads_zeroes(backend, range)
            }
            _ => false,
        };
        let needs_buffer = match (host, request.receive) {
            (HostMemory::InCapsule { offset }, Some(receive)) => {
                let at = connection.receives.data(receive) + u64::from(offset);
                request.data = Some(BufferRange {
                    memory: connection.receives.buffers(),
                    offset: at,
                    length: bytes,
                });
                let is_write = matches!(work, Work::Io(IoPlan::Write { .. }));
                if let Some(shared) = connection.shared
                    && is_write
                    && self.shared.is_low(shared)
                    && let Some(buffer) = self.pool.take(key, class, bytes)
                {
                    self.stats.shared_copies += 1;
                    self.use_buffer(now, slot, buffer);
                    return Ok(());
                }
                // Data that the storage cannot take from where it lies is copied.
                is_write && !at.is_multiple_of(DATA_ALIGNMENT)
            }
            (HostMemory::Keyed { .. }, _) => {
                let needs_buffer = !request.zeroes;
                self.release_receive(slot);
                needs_buffer
            }
            _ => {
                self.release_receive(slot);
                false
            }
        };
        if !needs_buffer {
            self.run(now, slot);
            return Ok(());
        }
        match self.pool.take(key, class, bytes) {
            Some(buffer) => self.use_buffer(now, slot, buffer),
            None => {
                self.stats.buffer_waits += 1;
                self.advance(now, slot, State::AwaitBuffer);
                self.pool.wait(key, Waiter { slot, bytes, class, since: now });
            }
        }
        Ok(())
    }

    /// Serves those who wait for buffers, as far as there are any.
    pub(super) fn grant_buffers(&mut self, now: Timestamp) {
        while let Some((waiter, buffer)) = self.pool.grant() {
            if self.requests.contains(waiter.slot as usize) {
                self.use_buffer(now, waiter.slot, buffer);
            } else {
                self.stats.anomalies += 1;
                self.pool.release(buffer);
            }
        }
    }

    fn use_buffer(&mut self, now: Timestamp, slot: u32, buffer: Buffer) {
        let Some(request) = self.requests.get_mut(slot as usize) else {
            self.pool.release(buffer);
            return;
        };
        let key = request.connection;
        let range =
            BufferRange { memory: POOL_MEMORY, offset: buffer.offset(), length: request.bytes };
        request.buffer = Some(buffer);
        let in_capsule = request.data.replace(range);
        match request.host {
            HostMemory::Keyed { .. } if !request.send_data => {
                request.advance(now, State::AwaitRead, &mut self.stats);
                if let Some(connection) = self.connections.get_mut(key as usize) {
                    let before_it =
                        usize::from(connection.reads_in_flight) + connection.read_queue.len();
                    if before_it >= usize::from(connection.read_depth) {
                        self.stats.read_waits += 1;
                    }
                    connection.read_queue.push_back(slot);
                }
                self.list(key);
            }
            HostMemory::InCapsule { .. } => {
                let copied = in_capsule.is_some_and(|from| {
                    let Some(memory) = self.buffers(from.memory) else { return false };
                    Memory::copy(
                        memory,
                        from.offset,
                        self.pool.memory(),
                        range.offset,
                        range.length as usize,
                    )
                    .is_ok()
                });
                self.release_receive(slot);
                if copied {
                    self.run(now, slot);
                } else {
                    self.stats.anomalies += 1;
                    self.complete(now, slot, 0, Status::INTERNAL_ERROR);
                }
            }
            HostMemory::Keyed { .. } | HostMemory::None => self.run(now, slot),
        }
    }

    /// The capsule is not needed any more: its buffer takes the next one.
    pub(super) fn release_receive(&mut self, slot: u32) {
        let Some(request) = self.requests.get_mut(slot as usize) else { return };
        let key = request.connection;
        if let Some(receive) = request.receive.take() {
            self.give_back(key, receive);
        }
    }

    /// A receive takes the next capsule: of its connection if that is live, of anyone's if it is
    /// shared.
    pub(super) fn give_back(&mut self, key: u32, receive: u32) {
        let Some(connection) = self.connections.get_mut(key as usize) else { return };
        if let Some(shared) = connection.shared {
            self.shared.give_back(shared, receive);
        } else if connection.is_live() {
            connection.recycle(key, receive);
            self.list(key);
        }
    }

    /// Moves a request on.
    pub(super) fn advance(&mut self, now: Timestamp, slot: u32, to: State) {
        match self.requests.get_mut(slot as usize) {
            Some(request) => request.advance(now, to, &mut self.stats),
            None => self.stats.anomalies += 1,
        }
    }

    /// The answer to a command is known; it is posted with this turn's batch.
    pub(super) fn complete(&mut self, now: Timestamp, slot: u32, result: u64, status: Status) {
        self.release_receive(slot);
        let Some(request) = self.requests.get_mut(slot as usize) else {
            self.stats.anomalies += 1;
            return;
        };
        request.result = result;
        request.status = status;
        request.send_data &= status.is_success();
        request.advance(now, State::Ready, &mut self.stats);
        let key = request.connection;
        if let Some(connection) = self.connections.get_mut(key as usize) {
            connection.ready.push(slot);
        }
        self.list(key);
    }
}

//! An I/O queue that belongs to one thread: submit, ring, poll.
//!
//! Submitting only queues; [`IoQueue::ring`] (or the next poll) sends all of it at once, which is
//! what makes many small requests cheap. Completions come in any order. Calls the core's
//! [`BlockQueue`](crate::core::BlockQueue) on a fabric of its own; called by users and `namespace`.

use std::sync::Arc;

use lariat_fabric::verbs::{Access, RegionId};
use lariat_fabric::{FabricCounters, Memory, Path, RegisterError, Timestamp};
use lariat_wire::nvme::{Command, Lba, Qid};

use crate::buffer::Buffer;
use crate::care::{Cell, Lane, Shared, duplicate, linger, lock};
use crate::clock;
use crate::core::{
    BlockQueue, DataRef, Geometry, IoRequest, LinkStatus, LossReason, Operation, Stages,
    SubmitError, Transfer,
};
use crate::error::{ConnectError, IoError, RejectedIo};
use crate::patience::Patience;

mod waiting;

pub use waiting::wait_any;
use waiting::{LONGEST_SLEEP, sleep_lane};

/// A request that ended.
#[derive(Debug)]
pub struct IoCompletion {
    /// What the submitter gave.
    pub user_data: u64,
    /// The command's result dwords (0 for reads and writes), or how it failed.
    pub result: Result<u64, IoError>,
    /// The request's buffer; a read's data is in it.
    pub buffer: Option<Buffer>,
    /// When it passed which stage.
    pub stages: Stages,
}

/// Data of a raw command.
#[derive(Debug)]
pub enum RawData {
    /// None.
    None,
    /// The controller fills the buffer.
    ToHost(Buffer),
    /// The controller gets the buffer's bytes.
    ToController(Buffer),
}

impl RawData {
    fn into_buffer(self) -> Option<Buffer> {
        match self {
            Self::None => None,
            Self::ToHost(buffer) | Self::ToController(buffer) => Some(buffer),
        }
    }
}

#[derive(Debug, Default)]
struct Ticket {
    user_data: u64,
    buffer: Option<Buffer>,
}

/// An I/O queue. See the module. Dropping it disconnects politely, within the configured time.
pub struct IoQueue {
    shared: Arc<Shared>,
    cell: Arc<Cell>,
    qid: Qid,
    regions: Vec<(Arc<Memory>, RegionId)>,
    tickets: Vec<Ticket>,
    free: Vec<u32>,
    depth: u32,
    patience: Patience,
}

impl std::fmt::Debug for IoQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IoQueue").field("qid", &self.qid).field("depth", &self.depth).finish()
    }
}

impl IoQueue {
    /// Connects a free queue of the controller.
    pub(crate) fn connect(shared: &Arc<Shared>) -> Result<Self, ConnectError> {
        let (mut member, qid) = shared.take_spare()?;
        let facts = shared.facts.get().and_then(|facts| facts.link.clone());
        let Some((mut link, limits)) = facts else {
            shared.give_back(member, qid);
            let asked = shared.options.queues;
            return Err(ConnectError::NoQueueLeft { asked, granted: 0 });
        };
        link.qid = qid;
        link.domain = member.domain;
        let block = match BlockQueue::start(clock::now(), member.fabric.as_mut(), link, limits) {
            Ok(block) => block,
            Err(error) => {
                shared.give_back(member, qid);
                return Err(error.into());
            }
        };
        let fds = duplicate(member.fabric.as_ref());
        let mut lane = Lane::new(member, block);
        let fds = match fds {
            Ok(fds) => fds,
            Err(error) => {
                let Lane { member, block, .. } = &mut lane;
                block.close(clock::now(), member.fabric.as_mut(), LossReason::Local);
                shared.give_back(lane.member, qid);
                return Err(error.into());
            }
        };
        let status = loop {
            let now = clock::now();
            lane.turn(now);
            if let Some(reason) = shared.lost() {
                let Lane { member, block, .. } = &mut lane;
                block.close(now, member.fabric.as_mut(), reason);
            }
            match lane.block.status() {
                LinkStatus::Connecting => sleep_lane(&mut lane, &fds, now, now + LONGEST_SLEEP),
                status => break status,
            }
        };
        if let LinkStatus::Closed(reason) = status {
            let error = lane.block.take_error();
            linger(&mut lane.member.fabric);
            shared.give_back(lane.member, qid);
            return Err(error.map_or(ConnectError::Closed(reason), ConnectError::Session));
        }
        shared.found_silent(false);
        let depth = lane.block.depth();
        let cell = Cell::new(lane, fds);
        shared.add(&cell);
        let count = usize::try_from(depth).unwrap_or(0);
        let tickets = std::iter::repeat_with(Ticket::default).take(count).collect();
        let free = (0..depth).rev().collect();
        let shared = Arc::clone(shared);
        let regions = Vec::new();
        let patience = Patience::default();
        Ok(Self { shared, cell, qid, regions, tickets, free, depth, patience })
    }

    /// The queue's identifier.
    #[must_use]
    pub fn qid(&self) -> Qid {
        self.qid
    }

    /// Requests that may be outstanding at a time.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Requests submitted whose completions were not taken yet.
    #[must_use]
    pub fn outstanding(&self) -> u32 {
        self.depth - u32::try_from(self.free.len()).unwrap_or(0)
    }

    /// What this queue's packets travel over, where the provider has a choice.
    #[must_use]
    pub fn path(&self) -> Option<Path> {
        let lane = lock(&self.cell.lane);
        lane.member.fabric.path(lane.block.conn()?)
    }

    /// What the queue's fabric counted.
    #[must_use]
    pub fn counters(&self) -> FabricCounters {
        lock(&self.cell.lane).member.fabric.counters()
    }

    /// Registers memory for use by this queue; it stays registered until the queue is dropped or
    /// [`Self::deregister`]. Memory of buffers is registered by itself at its first use; doing it
    /// before keeps that time out of the first request.
    ///
    /// # Errors
    /// The device's or the process's limits, with what to do.
    pub fn register(&mut self, memory: &Arc<Memory>) -> Result<(), RegisterError> {
        self.region(memory).map(drop)
    }

    /// Forgets memory. Outstanding requests that use it fail.
    pub fn deregister(&mut self, memory: &Arc<Memory>) {
        let Some(at) = self.regions.iter().position(|(known, _)| Arc::ptr_eq(known, memory)) else {
            return;
        };
        let (_, region) = self.regions.swap_remove(at);
        let _ = lock(&self.cell.lane).member.fabric.deregister(region);
    }

    fn region(&mut self, memory: &Arc<Memory>) -> Result<RegionId, RegisterError> {
        let known = self.regions.iter().find(|(known, _)| Arc::ptr_eq(known, memory));
        if let Some((_, region)) = known {
            return Ok(*region);
        }
        let mut lane = lock(&self.cell.lane);
        let domain = lane.member.domain;
        let region = lane.member.fabric.register(domain, Arc::clone(memory), Access::REMOTE)?;
        drop(lane);
        self.regions.push((Arc::clone(memory), region));
        Ok(region)
    }

    /// Queues a read of the buffer's length from `offset` (bytes).
    ///
    /// # Errors
    /// Why it was not taken, with the buffer.
    pub fn submit_read(
        &mut self,
        user_data: u64,
        geometry: Geometry,
        offset: u64,
        buffer: Buffer,
    ) -> Result<(), RejectedIo> {
        let length = buffer.len() as u64;
        self.submit(user_data, geometry, Operation::Read, (offset, length), Some(buffer))
    }

    /// Queues a write of the buffer's bytes to `offset` (bytes). With `fua` it completes when the
    /// bytes are on media.
    ///
    /// # Errors
    /// Why it was not taken, with the buffer.
    pub fn submit_write(
        &mut self,
        user_data: u64,
        geometry: Geometry,
        offset: u64,
        buffer: Buffer,
        fua: bool,
    ) -> Result<(), RejectedIo> {
        let length = buffer.len() as u64;
        self.submit(user_data, geometry, Operation::Write { fua }, (offset, length), Some(buffer))
    }

    /// Queues a flush: what completed before it was submitted is on media when it completes.
    ///
    /// # Errors
    /// Why it was not taken.
    pub fn submit_flush(&mut self, user_data: u64, geometry: Geometry) -> Result<(), RejectedIo> {
        self.submit(user_data, geometry, Operation::Flush, (0, 0), None)
    }

    /// Queues zeroing of a range (bytes). With `deallocate` the target may free the space.
    ///
    /// # Errors
    /// Why it was not taken.
    pub fn submit_write_zeroes(
        &mut self,
        user_data: u64,
        geometry: Geometry,
        offset: u64,
        length: u64,
        deallocate: bool,
    ) -> Result<(), RejectedIo> {
        let operation = Operation::WriteZeroes { deallocate, fua: false };
        self.submit(user_data, geometry, operation, (offset, length), None)
    }

    /// Queues the deallocation of a range (bytes): its content is not needed any more.
    ///
    /// # Errors
    /// Why it was not taken.
    pub fn submit_deallocate(
        &mut self,
        user_data: u64,
        geometry: Geometry,
        offset: u64,
        length: u64,
    ) -> Result<(), RejectedIo> {
        self.submit(user_data, geometry, Operation::Deallocate, (offset, length), None)
    }

    /// Queues one command as it is; its identifier and data pointer are filled in. Nothing is
    /// checked on this side, the controller's answer counts.
    ///
    /// # Errors
    /// Why it was not taken, with the buffer.
    pub fn submit_raw(
        &mut self,
        user_data: u64,
        command: Command,
        data: RawData,
    ) -> Result<(), RejectedIo> {
        let reference = match &data {
            RawData::None => None,
            RawData::ToHost(buffer) | RawData::ToController(buffer) => {
                match self.reference(buffer) {
                    Ok(reference) => Some(reference),
                    Err(error) => return Err(RejectedIo { error, buffer: data.into_buffer() }),
                }
            }
        };
        let transfer = match (&data, reference) {
            (RawData::ToHost(_), Some(reference)) => Transfer::ToHost(reference),
            (RawData::ToController(_), Some(reference)) => Transfer::ToController(reference),
            _ => Transfer::None,
        };
        self.enqueue(user_data, data.into_buffer(), |now, lane, ticket| {
            lane.block.submit_raw(now, lane.member.fabric.as_ref(), command, transfer, ticket)
        })
    }

    fn submit(
        &mut self,
        user_data: u64,
        geometry: Geometry,
        operation: Operation,
        (offset, length): (u64, u64),
        buffer: Option<Buffer>,
    ) -> Result<(), RejectedIo> {
        let planned =
            check_range(geometry, operation, offset, length).and_then(|(start, blocks)| {
                let data = buffer.as_ref().map(|buffer| self.reference(buffer)).transpose()?;
                Ok(IoRequest { operation, geometry, start, blocks, data })
            });
        let request = match planned {
            Ok(request) => request,
            Err(error) => return Err(RejectedIo { error, buffer }),
        };
        self.enqueue(user_data, buffer, |now, lane, ticket| {
            lane.block.submit(now, lane.member.fabric.as_ref(), &request, ticket)
        })
    }

    fn reference(&mut self, buffer: &Buffer) -> Result<DataRef, IoError> {
        let region = self.region(buffer.memory())?;
        let length = u32::try_from(buffer.len()).map_err(|_| SubmitError::TooLarge {
            bytes: buffer.len() as u64,
            limit: u64::from(u32::MAX),
        })?;
        let start = buffer.memory().range(buffer.offset(), buffer.len());
        let start = start.map_err(|_| SubmitError::BadMemory)?;
        let address = start.as_ptr().addr() as u64;
        Ok(DataRef { region, offset: buffer.offset(), address, length })
    }

    fn enqueue(
        &mut self,
        user_data: u64,
        buffer: Option<Buffer>,
        send: impl FnOnce(Timestamp, &mut Lane, u64) -> Result<(), SubmitError>,
    ) -> Result<(), RejectedIo> {
        let Some(ticket) = self.free.pop() else {
            return Err(RejectedIo { error: SubmitError::Full.into(), buffer });
        };
        let now = clock::now();
        let mut lane = lock(&self.cell.lane);
        self.cell.touch(now, &self.shared);
        let sent = send(now, &mut lane, u64::from(ticket));
        drop(lane);
        if let Err(error) = sent {
            self.free.push(ticket);
            return Err(RejectedIo { error: error.into(), buffer });
        }
        if let Some(slot) = usize::try_from(ticket).ok().and_then(|at| self.tickets.get_mut(at)) {
            *slot = Ticket { user_data, buffer };
        }
        Ok(())
    }

    /// Sends what was submitted.
    pub fn ring(&mut self) {
        let now = clock::now();
        let mut lane = lock(&self.cell.lane);
        self.cell.touch(now, &self.shared);
        let Lane { member, block, .. } = &mut *lane;
        if block.post(now, member.fabric.as_mut()) {
            member.fabric.flush(now);
        }
    }

    /// Sends what was submitted and appends what has ended; does not wait. Returns how many.
    pub fn poll(&mut self, done: &mut Vec<IoCompletion>) -> usize {
        let now = clock::now();
        let cell = Arc::clone(&self.cell);
        let mut lane = lock(&cell.lane);
        cell.touch(now, &self.shared);
        self.look(now, &mut lane, done)
    }

    fn look(&mut self, now: Timestamp, lane: &mut Lane, done: &mut Vec<IoCompletion>) -> usize {
        lane.turn(now);
        if let Some(reason) = self.shared.lost() {
            let Lane { member, block, .. } = lane;
            block.close(now, member.fabric.as_mut(), reason);
        }
        let mut count = 0;
        while let Some(ended) = lane.block.poll_done() {
            let Ok(ticket) = u32::try_from(ended.user_data) else { continue };
            let slot = usize::try_from(ticket).ok().and_then(|at| self.tickets.get_mut(at));
            let Some(Ticket { user_data, buffer }) = slot.map(std::mem::take) else {
                continue;
            };
            self.free.push(ticket);
            let result = ended.result.map_err(IoError::from);
            done.push(IoCompletion { user_data, result, buffer, stages: ended.stages });
            count += 1;
        }
        count
    }
}

/// Turns a range in bytes into blocks.
pub(crate) fn check_range(
    geometry: Geometry,
    operation: Operation,
    offset: u64,
    length: u64,
) -> Result<(Lba, u64), IoError> {
    if operation == Operation::Flush {
        return Ok((Lba(0), 0));
    }
    let block_bytes = geometry.block_bytes;
    let block = u64::from(block_bytes.max(1));
    if !offset.is_multiple_of(block) || !length.is_multiple_of(block) {
        return Err(IoError::Unaligned { offset, length, block_bytes });
    }
    let capacity = geometry.capacity_bytes();
    if offset.checked_add(length).is_none_or(|end| end > capacity) {
        return Err(IoError::OutOfRange { offset, length, capacity });
    }
    Ok((Lba(offset / block), length / block))
}

impl Drop for IoQueue {
    fn drop(&mut self) {
        self.shared.remove(&self.cell);
        let supported =
            self.shared.facts.get().is_some_and(|facts| facts.info.supports_disconnect());
        let end = clock::now() + self.shared.parting_time();
        let mut lane = lock(&self.cell.lane);
        let mut left = !supported;
        loop {
            let now = clock::now();
            lane.turn(now);
            while lane.block.poll_done().is_some() {}
            let Lane { member, block, .. } = &mut *lane;
            let silent_at = match block.status() {
                LinkStatus::Closed(LossReason::Unresponsive) => now,
                _ => block.silent_at(member.fabric.as_ref()),
            };
            if now >= silent_at {
                self.shared.found_silent(true);
            }
            let live = block.status() == LinkStatus::Live && self.shared.lost().is_none();
            if !live || now >= end.min(silent_at) {
                break;
            }
            if block.outstanding() == 0 && !left {
                left = true;
                block.leave(now, member.fabric.as_mut());
                member.fabric.flush(now);
            } else if block.outstanding() == 0 && block.has_left() {
                break;
            }
            sleep_lane(&mut lane, self.cell.fds(), now, end.min(silent_at));
        }
        let now = clock::now();
        let Lane { member, block, .. } = &mut *lane;
        block.close(now, member.fabric.as_mut(), LossReason::Local);
        for (_, region) in self.regions.drain(..) {
            let _ = member.fabric.deregister(region);
        }
        linger(&mut member.fabric);
        drop(lane);
        self.shared.retire(&self.cell, self.qid);
    }
}

//! Block requests on one I/O queue: splitting, the commands of each, one completion for each.
//!
//! A request may need many commands; they are sent as slots come free, in ascending order, and
//! finish in any order. Nothing is allocated per request. Calls `link`, `queue` and `split`; called
//! by `session` and by the blocking [`IoQueue`](crate::IoQueue).

use std::collections::VecDeque;

use lariat_fabric::verbs::{CmEvent, ConnId, WorkCompletion};
use lariat_fabric::{Fabric, Timestamp};
use lariat_wire::nvme::{Command, CommandId, FabricsCommand, Lba, Nsid};

use super::error::ConnectError;
use super::link::{Link, LinkConfig, LinkStatus};
use super::queue::{HostQueue, MAX_KEYED_BYTES};
use super::request::{
    BlockLimits, IoDone, IoFailure, IoRequest, Operation, RANGE_BYTES, Request, opcode_of, settle,
    start_chunk,
};
use super::split::{Chunks, max_blocks};
use super::types::{Failure, LossReason, Stages, SubmitError, Transfer};

/// An I/O queue. See the module.
#[derive(Debug)]
pub struct BlockQueue {
    link: Link,
    limits: BlockLimits,
    requests: Vec<Request>,
    free: Vec<u32>,
    backlog: VecDeque<u32>,
    done: VecDeque<IoDone>,
    /// A Disconnect command was sent (its completion is not a request's).
    leaving: bool,
    /// The Disconnect command waits for a capsule.
    farewell_due: bool,
}

/// The `user_data` of a Disconnect.
const DISCONNECT: u64 = u64::MAX;

impl BlockQueue {
    /// Starts connecting an I/O queue.
    ///
    /// # Errors
    /// What fails at once.
    pub fn start<F: Fabric + ?Sized>(
        now: Timestamp,
        fabric: &mut F,
        mut config: LinkConfig,
        limits: BlockLimits,
    ) -> Result<Self, ConnectError> {
        let slots = config.size.entries().saturating_sub(1).max(1);
        let count = usize::try_from(slots).unwrap_or(1);
        config.scratch_bytes = count.saturating_mul(RANGE_BYTES as usize);
        let empty = Request {
            user_data: 0,
            operation: None,
            nsid: Nsid(0),
            chunks: Chunks::NONE,
            data: None,
            in_flight: 0,
            result: 0,
            failure: None,
            stages: Stages::default(),
            first: true,
        };
        Ok(Self {
            link: Link::start(now, fabric, config)?,
            limits,
            requests: vec![empty; count],
            free: (0..slots).rev().collect(),
            backlog: VecDeque::with_capacity(count),
            done: VecDeque::with_capacity(count),
            leaving: false,
            farewell_due: false,
        })
    }

    /// Where the queue stands.
    #[must_use]
    pub fn status(&self) -> LinkStatus {
        self.link.status()
    }

    /// The connection, while there is one.
    #[must_use]
    pub fn conn(&self) -> Option<ConnId> {
        self.link.conn()
    }

    /// As [`Link::silent_at`].
    #[must_use]
    pub fn silent_at<F: Fabric + ?Sized>(&self, fabric: &F) -> Timestamp {
        self.link.silent_at(fabric)
    }

    /// Why it did not come up; given once.
    pub fn take_error(&mut self) -> Option<ConnectError> {
        self.link.take_error()
    }

    /// Requests that may be outstanding at a time.
    #[must_use]
    pub fn depth(&self) -> u32 {
        let requests = u32::try_from(self.requests.len()).unwrap_or(u32::MAX);
        self.link.peek().map_or(requests, |queue| queue.depth().min(requests))
    }

    /// Requests outstanding (completions that wait to be taken not counted).
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.requests.len() - self.free.len()
    }

    /// Whether there are completions to take.
    #[must_use]
    pub fn has_done(&self) -> bool {
        !self.done.is_empty()
    }

    /// Queues a request. It starts with the next [`Self::post`], or when slots come free, and ends
    /// with exactly one [`IoDone`].
    ///
    /// # Errors
    /// Why it was not taken; nothing was sent then.
    pub fn submit<F: Fabric + ?Sized>(
        &mut self,
        now: Timestamp,
        fabric: &F,
        request: &IoRequest,
        user_data: u64,
    ) -> Result<(), SubmitError> {
        self.check_open()?;
        let chunks = self.plan(request)?;
        if let (Some(data), Some(conn)) = (request.data, self.link.conn()) {
            fabric.rkey(conn, data.region).map_err(|_| SubmitError::BadMemory)?;
        }
        let index = self.reserve(now, user_data)?;
        if let Some(slot) = self.request_mut(index) {
            slot.operation = Some(request.operation);
            slot.nsid = request.geometry.nsid;
            slot.chunks = chunks;
            slot.data = request.data;
        }
        self.backlog.push_back(index);
        self.pump(now, fabric);
        Ok(())
    }

    /// Queues one command as it is (its identifier and data pointer are filled in).
    ///
    /// # Errors
    /// Why it was not taken; `Full` also where only the queue's slots are taken.
    pub fn submit_raw<F: Fabric + ?Sized>(
        &mut self,
        now: Timestamp,
        fabric: &F,
        command: Command,
        transfer: Transfer,
        user_data: u64,
    ) -> Result<(), SubmitError> {
        self.check_open()?;
        let timeout = self.limits.io_timeout;
        let index = self.reserve(now, user_data)?;
        let queue = self.link.live().ok_or(SubmitError::NotReady)?;
        let tag = u64::from(command.cdw10.get()) | u64::from(command.cdw11.get()) << 32;
        let sent = queue.submit(now, fabric, command, transfer, u64::from(index), tag, timeout);
        if let Err(error) = sent {
            self.free.push(index);
            return Err(error);
        }
        if let Some(slot) = self.request_mut(index) {
            slot.nsid = command.namespace();
            slot.in_flight = 1;
        }
        Ok(())
    }

    fn check_open(&self) -> Result<(), SubmitError> {
        match self.link.status() {
            LinkStatus::Live if self.leaving => Err(SubmitError::Closed(LossReason::Local)),
            LinkStatus::Live => Ok(()),
            LinkStatus::Connecting => Err(SubmitError::NotReady),
            LinkStatus::Closed(reason) => Err(SubmitError::Closed(reason)),
        }
    }

    /// Checks a request and cuts it up.
    fn plan(&self, request: &IoRequest) -> Result<Chunks, SubmitError> {
        let geometry = request.geometry;
        if request.operation == Operation::Flush {
            return Ok(Chunks::new(Lba(0), 1, 0, 1));
        }
        let IoRequest { start, blocks, .. } = *request;
        if blocks == 0 {
            return Err(SubmitError::Empty);
        }
        if start.0.checked_add(blocks).is_none_or(|end| end > geometry.blocks) {
            let capacity = geometry.blocks;
            return Err(SubmitError::OutOfRange { start: start.0, blocks, capacity });
        }
        let needs_data = matches!(request.operation, Operation::Read | Operation::Write { .. });
        let expected =
            if needs_data { blocks.saturating_mul(u64::from(geometry.block_bytes)) } else { 0 };
        let given = request.data.map_or(0, |data| u64::from(data.length));
        if given != expected {
            return Err(SubmitError::LengthMismatch { blocks, expected, given });
        }
        let transfer = self.limits.max_transfer_bytes.min(MAX_KEYED_BYTES);
        if needs_data && transfer < geometry.block_bytes {
            return Err(SubmitError::TooLarge {
                bytes: u64::from(geometry.block_bytes),
                limit: u64::from(transfer),
            });
        }
        let most = match request.operation {
            Operation::Deallocate => u32::MAX,
            Operation::WriteZeroes { .. } => 65_536,
            _ => max_blocks(transfer, geometry.block_bytes),
        };
        Ok(Chunks::new(start, blocks, geometry.block_bytes, most))
    }

    fn reserve(&mut self, now: Timestamp, user_data: u64) -> Result<u32, SubmitError> {
        let held = self.outstanding() + self.done.len();
        if held >= usize::try_from(self.depth()).unwrap_or(usize::MAX) {
            return Err(SubmitError::Full);
        }
        let index = self.free.pop().ok_or(SubmitError::Full)?;
        if let Some(slot) = self.request_mut(index) {
            *slot = Request {
                user_data,
                operation: None,
                nsid: Nsid(0),
                chunks: Chunks::NONE,
                data: None,
                in_flight: 0,
                result: 0,
                failure: None,
                stages: Stages { submitted: now, posted: now, answered: now },
                first: true,
            };
        }
        Ok(index)
    }

    fn request_mut(&mut self, index: u32) -> Option<&mut Request> {
        self.requests.get_mut(usize::try_from(index).ok()?)
    }

    /// Turns waiting requests into commands while there are slots.
    fn pump<F: Fabric + ?Sized>(&mut self, now: Timestamp, fabric: &F) {
        while let Some(&index) = self.backlog.front() {
            let timeout = self.limits.io_timeout;
            let Some(queue) = self.link.live() else { return };
            let at = usize::try_from(index).unwrap_or(usize::MAX);
            let Some(request) = self.requests.get_mut(at) else { return };
            // The range list of a deallocation is used by one command at a time.
            let serial = request.operation == Some(Operation::Deallocate);
            while queue.vacant() > 0
                && request.failure.is_none()
                && !(serial && request.in_flight > 0)
            {
                let Some(chunk) = request.chunks.next() else { break };
                if let Err(failure) =
                    start_chunk(now, fabric, queue, request, chunk, index, timeout)
                {
                    request.failure = Some(failure);
                    break;
                }
                request.in_flight += 1;
            }
            if request.failure.is_none() && !request.chunks.is_empty() {
                return;
            }
            self.backlog.pop_front();
            self.finish(index);
        }
    }

    /// Completes a request of which nothing is left.
    fn finish(&mut self, index: u32) {
        let Some(request) = self.request_mut(index) else { return };
        let waiting = request.failure.is_none() && !request.chunks.is_empty();
        if request.in_flight > 0 || waiting {
            return;
        }
        let done = IoDone {
            user_data: request.user_data,
            result: request.failure.map_or(Ok(request.result), Err),
            stages: request.stages,
        };
        self.done.push_back(done);
        self.free.push(index);
    }

    /// Collects what the queue has finished.
    fn collect(&mut self) {
        loop {
            let Some(done) = self.link.queue().and_then(HostQueue::poll_completion) else { return };
            if done.user_data == DISCONNECT {
                continue;
            }
            let Ok(index) = u32::try_from(done.user_data) else { continue };
            let Some(request) = self.request_mut(index) else { continue };
            settle(request, &done);
            // Only the front of the backlog can have commands out; it is finished from there.
            if self.backlog.front() != Some(&index) {
                self.finish(index);
            }
        }
    }

    /// Takes an event of this queue's connection.
    pub fn handle_event<F: Fabric + ?Sized>(
        &mut self,
        now: Timestamp,
        fabric: &mut F,
        event: &CmEvent,
    ) {
        self.link.handle_event(now, fabric, event);
        self.settle_loss();
    }

    /// Takes a work completion of this queue's connection.
    pub fn handle_completion<F: Fabric + ?Sized>(
        &mut self,
        now: Timestamp,
        fabric: &mut F,
        completion: &WorkCompletion,
    ) {
        self.link.handle_completion(now, fabric, completion);
    }

    /// After a turn's completions were handed in: finishes requests, starts waiting ones, gives the
    /// fabric what is queued. The caller rings. Returns whether anything was posted.
    pub fn post<F: Fabric + ?Sized>(&mut self, now: Timestamp, fabric: &mut F) -> bool {
        self.collect();
        self.pump(now, fabric);
        if self.farewell_due {
            self.say_farewell(now, fabric);
        }
        let posted = self.link.post(now, fabric);
        self.settle_loss();
        posted
    }

    /// When [`Self::handle_timeout`] wants to be called.
    #[must_use]
    pub fn next_timeout(&self) -> Timestamp {
        self.link.next_timeout()
    }

    /// Runs the deadlines.
    pub fn handle_timeout<F: Fabric + ?Sized>(&mut self, now: Timestamp, fabric: &mut F) {
        self.link.handle_timeout(now, fabric);
        self.settle_loss();
    }

    /// The next request that ended.
    pub fn poll_done(&mut self) -> Option<IoDone> {
        self.done.pop_front()
    }

    /// Asks the controller to delete the queue (Fabrics Disconnect, NVMe Base 2.1, 6.4). New
    /// requests are refused from now on. Follow with [`Self::close`] once [`Self::has_left`].
    pub fn leave<F: Fabric + ?Sized>(&mut self, now: Timestamp, fabric: &mut F) {
        if self.leaving {
            return;
        }
        self.leaving = true;
        self.farewell_due = true;
        self.post(now, fabric);
    }

    /// Submits the Disconnect as soon as there is a capsule for it.
    fn say_farewell<F: Fabric + ?Sized>(&mut self, now: Timestamp, fabric: &F) {
        let timeout = self.limits.io_timeout;
        let sent = self.link.live().map(|queue| {
            let command = FabricsCommand::Disconnect { recfmt: 0 }.to_command(CommandId(0));
            queue.submit(now, fabric, command, Transfer::None, DISCONNECT, 0, timeout)
        });
        self.farewell_due = sent == Some(Err(SubmitError::Full));
    }

    /// Whether nothing is outstanding, a Disconnect neither.
    #[must_use]
    pub fn has_left(&self) -> bool {
        self.link.peek().is_none_or(|queue| queue.outstanding() == 0 && !self.farewell_due)
            && self.outstanding() == 0
    }

    /// Ends it: the connection is destroyed, what was outstanding fails with `reason`.
    pub fn close<F: Fabric + ?Sized>(
        &mut self,
        now: Timestamp,
        fabric: &mut F,
        reason: LossReason,
    ) {
        self.link.close(now, fabric, reason);
        self.settle_loss();
    }

    /// Once the connection is gone: fails what waited.
    fn settle_loss(&mut self) {
        let LinkStatus::Closed(reason) = self.link.status() else { return };
        self.collect();
        while let Some(index) = self.backlog.pop_front() {
            if let Some(request) = self.request_mut(index) {
                let nsid = request.nsid;
                let lba = request.chunks.next().map_or(Lba(0), |chunk| chunk.start);
                request.failure.get_or_insert(IoFailure {
                    opcode: opcode_of(request.operation),
                    nsid,
                    lba,
                    failure: Failure::Lost(reason),
                });
            }
            self.finish(index);
        }
    }
}

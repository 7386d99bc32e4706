//! Requests of an I/O queue: what users ask for, what is kept while one is under way, and the
//! commands it turns into. Calls `queue` and `split`; called by `block`.

use core::time::Duration;

use lariat_fabric::{Fabric, Timestamp};
use lariat_wire::nvme::{Command, CommandId, DsmRange, IoCommand, Lba, Nsid, ProtectionAction};

use super::queue::{HostQueue, QueueCompletion};
use super::split::{Chunk, Chunks, Geometry};
use super::types::{DataRef, Failure, Stages, SubmitError, Transfer};

/// Bytes of a range list with one range.
pub(super) const RANGE_BYTES: u32 = 16;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reads blocks into the data.
    Read,
    /// Writes the data to blocks.
    Write {
        /// Force Unit Access: on media before it completes.
        fua: bool,
    },
    /// What was written and completed before is on media when this completes.
    Flush,
    /// Makes blocks read as zeros.
    WriteZeroes {
        /// The target may free the space.
        deallocate: bool,
        /// Force Unit Access.
        fua: bool,
    },
    /// Tells that the content of blocks is not needed any more.
    Deallocate,
}

/// A request on a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoRequest {
    /// What to do.
    pub operation: Operation,
    /// Where.
    pub geometry: Geometry,
    /// First block; not used by a flush.
    pub start: Lba,
    /// Number of blocks; not used by a flush.
    pub blocks: u64,
    /// Data of reads and writes, of exactly that many blocks.
    pub data: Option<DataRef>,
}

/// A request that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoDone {
    /// What the submitter gave.
    pub user_data: u64,
    /// Result dwords of the command (of the last one, where a request needed several).
    pub result: Result<u64, IoFailure>,
    /// When it passed which stage; for a split request: first hand-over, first posting, last answer.
    pub stages: Stages,
}

/// How a request failed: the first command's failure that was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("opcode {opcode:#04x}, namespace {nsid}, block {lba}: {failure}")]
pub struct IoFailure {
    /// The command's opcode.
    pub opcode: u8,
    /// The namespace.
    pub nsid: Nsid,
    /// The command's first block.
    pub lba: Lba,
    /// What happened.
    pub failure: Failure,
}

/// What a queue's commands may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockLimits {
    /// Most bytes of one command (MDTS and the configured limit).
    pub max_transfer_bytes: u32,
    /// Time for each command.
    pub io_timeout: Duration,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) user_data: u64,
    pub(super) operation: Option<Operation>,
    pub(super) nsid: Nsid,
    pub(super) chunks: Chunks,
    pub(super) data: Option<DataRef>,
    pub(super) in_flight: u32,
    pub(super) result: u64,
    pub(super) failure: Option<IoFailure>,
    pub(super) stages: Stages,
    pub(super) first: bool,
}

/// Books a command's end on its request.
pub(super) fn settle(request: &mut Request, done: &QueueCompletion) {
    request.in_flight = request.in_flight.saturating_sub(1);
    if request.first {
        request.first = false;
        request.stages.posted = done.stages.posted;
    }
    request.stages.answered = request.stages.answered.max(done.stages.answered);
    match done.success() {
        Ok(completion) => request.result = completion.result.get(),
        Err(failure) => {
            request.failure.get_or_insert(IoFailure {
                opcode: done.opcode,
                nsid: request.nsid,
                lba: Lba(done.tag),
                failure,
            });
        }
    }
}

pub(super) fn opcode_of(operation: Option<Operation>) -> u8 {
    use lariat_wire::nvme::IoOpcode;
    match operation {
        Some(Operation::Read) => IoOpcode::READ.0,
        Some(Operation::Write { .. }) => IoOpcode::WRITE.0,
        Some(Operation::WriteZeroes { .. }) => IoOpcode::WRITE_ZEROES.0,
        Some(Operation::Deallocate) => IoOpcode::DATASET_MANAGEMENT.0,
        Some(Operation::Flush) | None => IoOpcode::FLUSH.0,
    }
}

/// Sends one command of a request.
pub(super) fn start_chunk<F: Fabric + ?Sized>(
    now: Timestamp,
    fabric: &F,
    queue: &mut HostQueue,
    request: &Request,
    chunk: Chunk,
    index: u32,
    timeout: Duration,
) -> Result<(), IoFailure> {
    let fail = |why| IoFailure {
        opcode: opcode_of(request.operation),
        nsid: request.nsid,
        lba: chunk.start,
        failure: Failure::NotSent(why),
    };
    let Some((command, transfer)) = build(queue, request, chunk, index) else {
        return Err(fail(SubmitError::BadMemory));
    };
    queue
        .submit(now, fabric, command, transfer, u64::from(index), chunk.start.0, timeout)
        .map_err(fail)
}

/// The command of a chunk and its data.
pub(super) fn build(
    queue: &HostQueue,
    request: &Request,
    chunk: Chunk,
    index: u32,
) -> Option<(Command, Transfer)> {
    let Request { nsid, data, operation, .. } = *request;
    let Chunk { start: slba, blocks, data_offset } = chunk;
    let block_bytes = request.chunks.block_bytes();
    let piece = |data: Option<DataRef>| data?.slice(data_offset, blocks.checked_mul(block_bytes)?);
    let prinfo = ProtectionAction::NONE;
    let (command, transfer) = match operation? {
        Operation::Read => (
            IoCommand::Read {
                nsid,
                slba,
                blocks,
                fua: false,
                limited_retry: false,
                prinfo,
                access_hints: 0,
            },
            Transfer::ToHost(piece(data)?),
        ),
        Operation::Write { fua } => (
            IoCommand::Write {
                nsid,
                slba,
                blocks,
                fua,
                limited_retry: false,
                prinfo,
                access_hints: 0,
                directive_type: 0,
                directive_specific: 0,
            },
            Transfer::ToController(piece(data)?),
        ),
        Operation::Flush => (IoCommand::Flush { nsid }, Transfer::None),
        Operation::WriteZeroes { deallocate, fua } => {
            (IoCommand::WriteZeroes { nsid, slba, blocks, deallocate, fua, prinfo }, Transfer::None)
        }
        Operation::Deallocate => {
            // One range, in this request's own piece of the scratch memory.
            let target = queue.scratch(u64::from(index) * u64::from(RANGE_BYTES), RANGE_BYTES)?;
            let range = DsmRange::new(slba, blocks);
            queue.scratch_memory().write_at(target.offset, bytemuck::bytes_of(&range)).ok()?;
            (
                IoCommand::DatasetManagement {
                    nsid,
                    ranges: 1,
                    deallocate: true,
                    integral_read: false,
                    integral_write: false,
                },
                Transfer::ToController(target),
            )
        }
    };
    Some((command.to_command(CommandId(0)).ok()?, transfer))
}

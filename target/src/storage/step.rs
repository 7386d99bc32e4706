//! How a request on a file goes on: a slot with a step, one operation of the kernel at a time,
//! continued until it is done in full. No system calls: `uring` queues what a step says and hands
//! in what came back.

use super::{BlockOp, BlockRange, BlockRequest, Geometry, StorageError};

/// How often an operation that was interrupted or found no resources is tried.
const MAX_RETRIES: u8 = 100;

/// What a slot's operation in the kernel is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A read or write, from `done_bytes` on.
    Transfer,
    /// The flush that was asked for, or the one that makes zeroes durable.
    Sync,
    /// `fallocate` with this mode.
    Allocate(Mode),
    /// Zeroes written by hand, from `done_bytes` on.
    Zeroes,
}

/// Ways to have the kernel make zeroes, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// The space stays allocated.
    ZeroRange,
    /// The space is given back.
    PunchHole,
}

impl Mode {
    pub(super) const fn flags(self) -> i32 {
        match self {
            Self::ZeroRange => libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE,
            Self::PunchHole => libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
        }
    }
}

/// What a file was found not to do; remembered, so that it is tried once.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lacks {
    pub(super) zero_range: bool,
    pub(super) punch_hole: bool,
}

/// A request in flight on a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) request: BlockRequest,
    pub(super) file: u32,
    pub(super) block_bytes: u32,
    /// Whether it bypasses the page cache.
    pub(super) direct: bool,
    pub(super) step: Step,
    pub(super) done_bytes: u64,
    pub(super) retries: u8,
}

/// What is to be done with a slot after an operation.
pub(super) enum Next {
    Again,
    Finished(Result<(), StorageError>),
}

impl Slot {
    /// First byte and length of what the request names; nothing for a flush.
    pub(super) fn extent(&self) -> (u64, u64) {
        let block = u64::from(self.block_bytes);
        match self.request.op {
            BlockOp::Read { start, buffer } | BlockOp::Write { start, buffer, .. } => {
                (start * block, u64::from(buffer.length))
            }
            BlockOp::WriteZeroes { range, .. } | BlockOp::Deallocate { range } => {
                (range.start * block, range.blocks * block)
            }
            BlockOp::Flush => (0, 0),
        }
    }

    pub(super) fn fua(&self) -> bool {
        matches!(
            self.request.op,
            BlockOp::Write { fua: true, .. } | BlockOp::WriteZeroes { fua: true, .. }
        )
    }

    /// Whether its writes are to be durable by themselves. Through the page cache they are written
    /// first and synced then: one error could not tell a write that was not taken (the file system
    /// is full, say) from earlier ones that are lost.
    pub(super) fn durable(&self) -> bool {
        self.fua() && self.direct
    }

    /// What follows from an operation's result.
    pub(super) fn advance(&mut self, result: i32, lacks: &mut Lacks) -> Next {
        let Ok(bytes) = u32::try_from(result) else {
            return self.failed(result.saturating_neg(), lacks);
        };
        match self.step {
            Step::Transfer | Step::Zeroes => {
                // Direct I/O goes by whole blocks: a part of one is done again.
                let whole = bytes - bytes % self.block_bytes;
                self.done_bytes += u64::from(whole);
                if self.done_bytes >= self.extent().1 {
                    return self.written();
                }
                if whole == 0 {
                    // The end of the file inside the capacity, or a medium that takes nothing.
                    return Next::Finished(Err(self.error(libc::EIO)));
                }
                self.retries = 0;
                Next::Again
            }
            Step::Sync => Next::Finished(Ok(())),
            Step::Allocate(_) => self.written(),
        }
    }

    /// Everything is in place; what has to be durable and is not yet is synced.
    fn written(&mut self) -> Next {
        if !self.fua() || (self.durable() && !matches!(self.step, Step::Allocate(_))) {
            return Next::Finished(Ok(()));
        }
        self.step = Step::Sync;
        Next::Again
    }

    fn failed(&mut self, errno: i32, lacks: &mut Lacks) -> Next {
        if matches!(errno, libc::EAGAIN | libc::EINTR) && self.retries < MAX_RETRIES {
            self.retries += 1;
            return Next::Again;
        }
        let Step::Allocate(mode) = self.step else {
            return Next::Finished(Err(self.error(errno)));
        };
        let unsupported = matches!(errno, libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY);
        if !unsupported {
            return Next::Finished(Err(self.error(errno)));
        }
        match mode {
            Mode::ZeroRange => lacks.zero_range = true,
            Mode::PunchHole => lacks.punch_hole = true,
        }
        match self.request.op {
            BlockOp::WriteZeroes { deallocate, .. } => {
                self.step = zeroing(deallocate, *lacks);
                Next::Again
            }
            // A hint: nothing has to happen (NVM Command Set 1.0, 3.2.3).
            _ => Next::Finished(Ok(())),
        }
    }

    fn error(&self, errno: i32) -> StorageError {
        match errno {
            libc::ENOSPC | libc::EDQUOT => StorageError::NoSpace,
            libc::EOPNOTSUPP | libc::ENOSYS => StorageError::Unsupported,
            libc::EAGAIN
            | libc::EINTR
            | libc::ECANCELED
            | libc::ENOMEM
            | libc::EINVAL
            | libc::EFAULT => StorageError::Other { errno },
            _ if matches!(self.request.op, BlockOp::Read { .. }) => StorageError::Read { errno },
            _ => StorageError::Write { errno },
        }
    }
}

/// The best way left to make zeroes.
const fn zeroing(deallocate: bool, lacks: Lacks) -> Step {
    match (deallocate, lacks.zero_range, lacks.punch_hole) {
        (true, _, false) | (false, true, false) => Step::Allocate(Mode::PunchHole),
        (_, false, _) => Step::Allocate(Mode::ZeroRange),
        (_, true, true) => Step::Zeroes,
    }
}

/// How a request on a file starts; none if there is nothing to do.
pub(super) fn first_step(op: &BlockOp, geometry: &Geometry, lacks: Lacks) -> Option<Step> {
    match *op {
        BlockOp::Read { buffer, .. } | BlockOp::Write { buffer, .. } => {
            (buffer.length > 0).then_some(Step::Transfer)
        }
        // Nothing was written.
        BlockOp::Flush => (!geometry.read_only).then_some(Step::Sync),
        BlockOp::WriteZeroes { range, deallocate, .. } => {
            (range.blocks > 0).then(|| zeroing(deallocate, lacks))
        }
        BlockOp::Deallocate { range } => {
            let possible = geometry.deallocate && !lacks.punch_hole && range.blocks > 0;
            possible.then_some(Step::Allocate(Mode::PunchHole))
        }
    }
}

/// The core has checked this already; a storage that is told otherwise must not corrupt anything.
pub(super) fn check(op: &BlockOp, geometry: &Geometry) -> Result<(), StorageError> {
    let invalid = StorageError::Other { errno: libc::EINVAL };
    let (start, blocks, writes) = match *op {
        BlockOp::Read { start, buffer } | BlockOp::Write { start, buffer, .. } => {
            if !buffer.length.is_multiple_of(geometry.block_bytes) {
                return Err(invalid);
            }
            let blocks = u64::from(buffer.length / geometry.block_bytes);
            (start, blocks, matches!(op, BlockOp::Write { .. }))
        }
        BlockOp::WriteZeroes { range: BlockRange { start, blocks }, .. }
        | BlockOp::Deallocate { range: BlockRange { start, blocks } } => (start, blocks, true),
        BlockOp::Flush => return Ok(()),
    };
    if writes && geometry.read_only {
        return Err(StorageError::ReadOnly);
    }
    if fits(BlockRange { start, blocks }, geometry.capacity_blocks) { Ok(()) } else { Err(invalid) }
}

/// Whether a range lies in a disk of so many blocks.
pub(super) fn fits(range: BlockRange, capacity_blocks: u64) -> bool {
    range.start.checked_add(range.blocks).is_some_and(|end| end <= capacity_blocks)
}

#[cfg(test)]
mod tests {
    use super::super::{BackendId, BufferRange};
    use super::*;

    /// The steps of a forced request, if the kernel does everything.
    fn steps(direct: bool, op: BlockOp, step: Step) -> Vec<Step> {
        let request = BlockRequest { backend: BackendId(0), op, tag: 0 };
        let mut slot =
            Slot { request, file: 0, block_bytes: 512, direct, step, done_bytes: 0, retries: 0 };
        let mut steps = vec![step];
        while let Next::Again = slot.advance(4096, &mut Lacks::default()) {
            steps.push(slot.step);
        }
        steps
    }

    #[test]
    fn forced_writes_through_the_page_cache_are_synced_apart() {
        let buffer = BufferRange { memory: 0, offset: 0, length: 4096 };
        let write = BlockOp::Write { start: 0, buffer, fua: true };
        assert_eq!(steps(true, write, Step::Transfer), [Step::Transfer]);
        assert_eq!(steps(false, write, Step::Transfer), [Step::Transfer, Step::Sync]);
        let range = BlockRange { start: 0, blocks: 8 };
        let zeroes = BlockOp::WriteZeroes { range, deallocate: false, fua: true };
        assert_eq!(steps(true, zeroes, Step::Zeroes), [Step::Zeroes]);
        assert_eq!(steps(false, zeroes, Step::Zeroes), [Step::Zeroes, Step::Sync]);
        let by_kernel = Step::Allocate(Mode::ZeroRange);
        for direct in [true, false] {
            assert_eq!(steps(direct, zeroes, by_kernel), [by_kernel, Step::Sync]);
        }
        let write = BlockOp::Write { start: 0, buffer, fua: false };
        assert_eq!(steps(false, write, Step::Transfer), [Step::Transfer]);
    }
}

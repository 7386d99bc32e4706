//! Requests that must be refused: before they are sent where this side can know, and by the
//! controller with the right NVMe status.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lariat::core::SubmitError;
use lariat::{Buffer, BufferPool, IoError, IoQueue, RawData, Status};
use lariat_tests::process::{
    Backend, Scratch, Target, TargetConfig, bounded, connect, fill, first_difference, host_options,
    lariat, run,
};
use lariat_wire::nvme::{Command, CommandId, DsmRange, IoCommand, Lba, Nsid};

use crate::LIMIT;

const BLOCKS: u64 = 1024;
const BLOCK_BYTES: usize = 4096;

/// Sends a command as it is; its status, and the buffer.
fn status_of(
    queue: &mut IoQueue,
    command: Command,
    data: RawData,
) -> Result<(Status, Option<Buffer>)> {
    queue.submit_raw(0, command, data).map_err(|rejected| rejected.error)?;
    let mut done = Vec::new();
    ensure!(queue.wait(&mut done, Duration::from_secs(10)) == 1, "no answer");
    let ended = done.pop().context("one ended")?;
    match ended.result {
        Ok(_) => Ok((Status::SUCCESS, ended.buffer)),
        Err(IoError::Status { status, .. }) => Ok((status, ended.buffer)),
        Err(error) => Err(error.into()),
    }
}

fn io(command: IoCommand) -> Result<Command> {
    Ok(command.to_command(CommandId(0))?)
}

#[test]
fn the_controller_refuses_with_the_right_status() -> Result<()> {
    bounded(LIMIT, || {
        let scratch = Scratch::new()?;
        let file = scratch.disk("disk", BLOCKS * BLOCK_BYTES as u64)?;
        let config =
            TargetConfig::new().disk(Backend::File(file.clone()), 4096).set("mdts_kib", 128);
        let target = Target::start(&scratch, &config)?;
        let controller = connect(&target, 1)?;
        let disk = controller.only_namespace()?;
        let mut content = vec![0; usize::try_from(disk.size_bytes())?];
        fill(3, 0, &mut content);
        disk.write_at(&content, 0)?;
        disk.flush()?;

        let mut queue = controller.io_queue()?;
        let pool = BufferPool::new(1, 1 << 20)?;
        let (one, end) = (Nsid(1), Lba(BLOCKS));
        let last = Lba(BLOCKS - 1);
        let read = |lba, blocks| IoCommand::read(one, lba, blocks);
        let write = |lba, blocks| IoCommand::write(one, lba, blocks);
        let of = |nsid| IoCommand::read(nsid, Lba(0), 1);
        // What is asked, blocks of data that go with it (and which way), what it gives.
        let range = Status::LBA_OUT_OF_RANGE;
        let sgl = Status::DATA_SGL_LENGTH_INVALID;
        let namespace = Status::INVALID_NAMESPACE_OR_FORMAT;
        let field = Status::INVALID_FIELD;
        for (command, blocks, status) in [
            (read(end, 1), 1, range),
            (read(last, 2), 2, range),
            (read(Lba(u64::MAX), 2), 2, range),
            (write(end, 1), 1, range),
            (write(last, 2), 2, range),
            (write(Lba(u64::MAX), 1), 1, range),
            (IoCommand::write_zeroes(one, last, 2, false), 0, range),
            (IoCommand::write_zeroes(one, Lba(u64::MAX), 65_536, true), 0, range),
            // More than MDTS allows.
            (read(Lba(0), 33), 33, field),
            (write(Lba(0), 33), 33, field),
            // Data for less than all blocks, and none at all.
            (read(Lba(0), 2), 1, sgl),
            (write(Lba(0), 2), 1, sgl),
            (read(Lba(0), 1), 0, sgl),
            (write(Lba(0), 1), 0, sgl),
            (of(Nsid(2)), 1, namespace),
            (of(Nsid(0)), 1, namespace),
            (of(Nsid(0xffff_ffff)), 1, namespace),
            (IoCommand::Flush { nsid: Nsid(77) }, 0, namespace),
        ] {
            let told = format!("{command:?} with {blocks} blocks of data");
            let is_write = matches!(command, IoCommand::Write { .. });
            let mut buffer = pool.take().context("the one buffer")?;
            buffer.set_len(blocks * BLOCK_BYTES);
            buffer.write(0, &vec![0xc3; buffer.len()])?;
            let data = match (blocks, is_write) {
                (0, _) => RawData::None,
                (_, true) => RawData::ToController(buffer),
                (_, false) => RawData::ToHost(buffer),
            };
            let (found, buffer) =
                status_of(&mut queue, io(command)?, data).context(told.clone())?;
            ensure!(found.same_code(status), "{told}: {found}");
            ensure!(found.dnr(), "{told}: trying again would be of no use, but: {found}");
            let untouched = buffer.is_none_or(|buffer| buffer.to_vec().iter().all(|b| *b == 0xc3));
            ensure!(untouched, "{told}: the buffer was written to");
        }

        // Opcodes that are none, and fused commands, which are not offered.
        let (found, _) = status_of(&mut queue, Command::new(0x7d).with_nsid(one), RawData::None)?;
        ensure!(found.same_code(Status::INVALID_OPCODE), "{found}");
        let mut fused = io(read(Lba(0), 1))?;
        fused.flags |= 1;
        let (found, _) = status_of(&mut queue, fused, RawData::None)?;
        ensure!(found.same_code(field), "{found}");

        // A deallocation is all or nothing.
        let mut buffer = pool.take().context("the one buffer")?;
        let ranges = [DsmRange::new(Lba(0), 8), DsmRange::new(last, 2)];
        buffer.set_len(32);
        for (index, range) in ranges.iter().enumerate() {
            buffer.write(index * 16, bytemuck::bytes_of(range))?;
        }
        let command = io(IoCommand::deallocate(one, 2))?;
        let (found, _) = status_of(&mut queue, command, RawData::ToController(buffer))?;
        ensure!(found.same_code(range), "{found}");

        // The queue still works, and nothing has changed.
        let mut back = vec![0; content.len()];
        disk.read_at(&mut back, 0)?;
        ensure!(first_difference(&content, &back).is_none(), "a refused command changed the disk");
        let buffer = pool.take().context("the one buffer")?;
        queue.submit_read(1, disk.geometry(), 0, buffer)?;
        let mut done = Vec::new();
        ensure!(queue.wait(&mut done, Duration::from_secs(10)) == 1);
        ensure!(done.pop().context("one")?.result.is_ok());
        drop((queue, disk, controller));
        target.stop().map(drop)
    })
}

#[test]
fn the_library_refuses_with_typed_errors() -> Result<()> {
    bounded(LIMIT, || {
        let scratch = Scratch::new()?;
        let config = TargetConfig::new().disk(Backend::Memory(BLOCKS * BLOCK_BYTES as u64), 4096);
        let target = Target::start(&scratch, &config)?;
        let mut options = host_options(&target, 1)?;
        options.queue_depth = 2;
        let controller = lariat::Controller::connect(options)?;
        let disk = controller.only_namespace()?;
        let capacity = disk.size_bytes();
        let mut block = vec![0; BLOCK_BYTES];

        let error = disk.read_at(&mut block, 512).expect_err("unaligned");
        ensure!(
            matches!(error, IoError::Unaligned { offset: 512, block_bytes: 4096, .. }),
            "{error}"
        );
        let error = disk.write_at(&block[..100], 0).expect_err("not whole blocks");
        ensure!(matches!(error, IoError::Unaligned { length: 100, .. }), "{error}");
        let error = disk.read_at(&mut block, capacity).expect_err("behind the end");
        ensure!(matches!(error, IoError::OutOfRange { .. }), "{error}");
        let top = u64::MAX - 4095;
        let error = disk.write_at(&block, top).expect_err("beyond everything");
        ensure!(matches!(error, IoError::OutOfRange { offset, .. } if offset == top), "{error}");
        let error = disk.deallocate(0, capacity + 4096).expect_err("more than there is");
        ensure!(matches!(error, IoError::OutOfRange { .. }), "{error}");
        // Nothing to do is done.
        disk.read_at(&mut [], 0)?;
        disk.write_at(&[], capacity)?;
        disk.write_zeroes(4096, 0, false)?;

        let mut queue = controller.io_queue()?;
        let pool = BufferPool::new(3, BLOCK_BYTES)?;
        let mut empty = pool.take().context("a buffer")?;
        empty.set_len(0);
        let rejected = queue.submit_read(0, disk.geometry(), 0, empty).expect_err("zero blocks");
        ensure!(matches!(rejected.error, IoError::NotTaken(SubmitError::Empty)), "{rejected}");
        ensure!(rejected.buffer.is_some(), "the buffer comes back");
        drop(rejected);
        for user_data in 0..2 {
            let buffer = pool.take().context("a buffer")?;
            queue.submit_read(user_data, disk.geometry(), 0, buffer)?;
        }
        let buffer = pool.take().context("a buffer")?;
        let rejected = queue.submit_read(2, disk.geometry(), 0, buffer).expect_err("full");
        ensure!(matches!(rejected.error, IoError::NotTaken(SubmitError::Full)), "{rejected}");

        // The same on the command line: nothing is sent, and it is the arguments' fault.
        for (words, told) in [
            (["--offset", "100", "--length", "4096"], "4096"),
            (["--offset", "0", "--length", "100"], "4096"),
            (["--offset", "4M", "--length", "4096"], "4194304"),
            (["--offset", "0", "--length", "8M"], "4194304"),
        ] {
            let words = [&words[..], &["--output", "-"]].concat();
            let refused = run(&mut lariat(&target, "read", &words)?, LIMIT)?;
            refused.failure(2, &[told]).with_context(|| format!("{words:?}"))?;
        }
        drop((queue, disk, controller));
        target.stop().map(drop)
    })
}

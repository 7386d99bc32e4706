//! A queue kept busy with writes that are read back and compared. Called by tests.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lariat::{BufferPool, Geometry, IoQueue};

use super::data::{fill, first_difference};

/// What each request under way has of the disk.
pub const PLACE_BYTES: u64 = 64 << 10;

/// Keeps `depth` requests under way, each in a place of its own: write, read, compare, anew with
/// another seed and size, `turns` times. `base` is where the queue's part of the disk begins; it takes
/// [`PLACE_BYTES`] for each.
///
/// # Errors
/// A request fails, nothing comes back, or not what was written.
pub fn keep_busy(
    queue: &mut IoQueue,
    geometry: Geometry,
    base: u64,
    depth: u32,
    turns: u64,
) -> Result<()> {
    let block = u64::from(geometry.block_bytes);
    let pool = BufferPool::new(usize::try_from(depth)?, usize::try_from(PLACE_BYTES)?)?;
    queue.register(pool.memory())?;
    // A request: its slot, whether it is the read, and how many were before it there.
    let code = |slot: u64, read: bool, turn: u64| slot << 32 | u64::from(read) << 31 | turn;
    let extent = |slot: u64, turn: u64| {
        let blocks = (slot * 31 + turn * 17) % (PLACE_BYTES / block / 2) + 1;
        let skip = (slot + turn * 5) % (PLACE_BYTES / block / 2);
        (base + slot * PLACE_BYTES + skip * block, blocks * block)
    };
    let mut scratch = vec![0; usize::try_from(PLACE_BYTES)?];
    let write =
        |queue: &mut IoQueue, scratch: &mut Vec<u8>, mut buffer: lariat::Buffer, slot, turn| {
            let (offset, length) = extent(slot, turn);
            buffer.set_len(usize::try_from(length)?);
            scratch.resize(buffer.len(), 0);
            fill(base + turn, offset, scratch);
            buffer.write(0, scratch)?;
            queue.submit_write(code(slot, false, turn), geometry, offset, buffer, turn % 8 == 7)?;
            anyhow::Ok(())
        };
    for slot in 0..u64::from(depth) {
        let buffer = pool.take().context("a buffer for each slot")?;
        write(queue, &mut scratch, buffer, slot, 0)?;
    }
    let mut done = Vec::new();
    let mut finished = 0;
    while finished < depth {
        ensure!(queue.wait(&mut done, Duration::from_secs(30)) > 0, "nothing ends in 30 s");
        for ended in done.drain(..) {
            let (slot, read) = (ended.user_data >> 32, ended.user_data >> 31 & 1 == 1);
            let turn = ended.user_data & 0x7fff_ffff;
            ended.result.with_context(|| format!("slot {slot}, turn {turn}"))?;
            let mut buffer = ended.buffer.context("the buffer comes back")?;
            let (offset, length) = extent(slot, turn);
            if !read {
                buffer.write(0, &vec![0xee; buffer.len()])?;
                queue.submit_read(code(slot, true, turn), geometry, offset, buffer)?;
                continue;
            }
            scratch.resize(usize::try_from(length)?, 0);
            fill(base + turn, offset, &mut scratch);
            let differs = first_difference(&scratch, &buffer.to_vec());
            ensure!(differs.is_none(), "slot {slot}, turn {turn}: differs at byte {differs:?}");
            if turn + 1 < turns {
                write(queue, &mut scratch, buffer, slot, turn + 1)?;
            } else {
                finished += 1;
            }
        }
    }
    ensure!(queue.outstanding() == 0);
    Ok(())
}

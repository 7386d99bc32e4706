//! What no safe wrapper offers: `statx` for the alignment of direct I/O, `madvise` to give memory
//! back and to have huge pages, and the processor's prefetch. Called by `open`, `memory`, `collapse`.
#![allow(unsafe_code, reason = "system calls and an instruction")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use lariat_fabric::Memory;
use nix::sys::mman::{MmapAdvise, madvise};

/// What direct I/O on a file asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DirectAlignment {
    /// Of addresses in memory, in bytes. 0: the file has no direct I/O.
    pub(super) memory_bytes: u32,
    /// Of offsets and lengths, in bytes. 0: the file has no direct I/O.
    pub(super) offset_bytes: u32,
}

/// Asks the kernel for the alignment that direct I/O on `file` needs; none if the kernel (before
/// 6.1) or the file system does not say.
pub(super) fn direct_alignment(file: &File) -> io::Result<Option<DirectAlignment>> {
    // SAFETY: all zeros is a valid `statx`: it holds nothing but integers.
    let mut answer: libc::statx = unsafe { core::mem::zeroed() };
    // SAFETY: the descriptor is open for the call, the path is a NUL-terminated empty string, and
    // `answer` is a `statx` that the kernel may write.
    let result = unsafe {
        libc::statx(
            file.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            libc::STATX_DIOALIGN,
            &raw mut answer,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((answer.stx_mask & libc::STATX_DIOALIGN != 0).then_some(DirectAlignment {
        memory_bytes: answer.stx_dio_mem_align,
        offset_bytes: answer.stx_dio_offset_align,
    }))
}

/// Gives the whole pages of a range back to the system; they read as zeroes afterwards. Bytes
/// outside whole pages are zeroed in place. A range outside the memory is an error.
///
/// Right for [`Memory::allocate`]d memory only: an anonymous private mapping.
pub(super) fn discard(memory: &Memory, offset: u64, length: usize) -> io::Result<()> {
    let outside = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let start = memory.range(offset, length).map_err(outside)?;
    let page = 4096;
    let head = start.as_ptr().align_offset(page).min(length);
    let whole = (length - head) / page * page;
    let tail = length - head - whole;
    memory.zero(offset, head).map_err(outside)?;
    memory.zero(offset + (head + whole) as u64, tail).map_err(outside)?;
    if whole == 0 {
        return Ok(());
    }
    let pages = memory.range(offset + head as u64, whole).map_err(outside)?;
    // SAFETY: the pages lie inside an anonymous private mapping (checked range; the caller's
    // promise), whose bytes are reached by raw copies only, so that they may change to zeroes.
    unsafe { madvise(pages.cast(), whole, MmapAdvise::MADV_DONTNEED) }.map_err(io::Error::from)
}

/// Backs a range by huge pages, now. The range is to hold whole ones (2 MiB, aligned).
///
/// # Errors
/// The system's word: `EINVAL` where it knows no such request (before 6.1) or has no huge pages,
/// others where it did not work out this time.
pub(super) fn collapse(memory: &Memory, offset: u64, length: usize) -> io::Result<()> {
    let start = memory.range(offset, length).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the range lies inside the memory (`range`); the request changes how it is backed, not
    // what it holds.
    let result = unsafe { libc::madvise(start.as_ptr().cast(), length, libc::MADV_COLLAPSE) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Asks the processor for bytes that are going to be used soon; nothing where they lie outside of the
/// memory, or the processor is of another kind.
pub(super) fn prefetch(memory: &Memory, offset: u64, length: usize) {
    #[cfg(target_arch = "x86_64")]
    if let Ok(start) = memory.range(offset, length) {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        for line in (0..length).step_by(64) {
            // SAFETY: the address lies inside the memory (`range`), and a prefetch neither reads nor
            // writes as far as a program can tell.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(start.as_ptr().add(line).cast()) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (memory, offset, length);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn discarded_bytes_are_zero_and_their_neighbours_stay() {
        let memory = Memory::allocate(5 * 4096).unwrap();
        memory.write_at(0, &vec![0xaa; 5 * 4096]).unwrap();
        discard(&memory, 4096 - 512, 3 * 4096).unwrap();
        let mut bytes = vec![0; 5 * 4096];
        memory.read_at(0, &mut bytes).unwrap();
        for (at, byte) in bytes.iter().enumerate() {
            let inside = (4096 - 512..4 * 4096 - 512).contains(&at);
            assert_eq!(*byte, if inside { 0 } else { 0xaa }, "at {at}");
        }
        assert!(discard(&memory, 4 * 4096, 4097).is_err());
        discard(&memory, 512, 512).unwrap();
        memory.read_at(0, &mut bytes).unwrap();
        assert_eq!((bytes[511], bytes[512], bytes[1023], bytes[1024]), (0xaa, 0, 0, 0xaa));
    }
}

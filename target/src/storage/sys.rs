//! What no safe wrapper offers: `statx` for the alignment of direct I/O, `madvise` to give memory
//! back and to have huge pages, a thread's clock, the processor's prefetch and its stores past the
//! caches. Called by `open`, `memory`, `collapse`, and the loop of a reactor thread.
#![allow(unsafe_code, reason = "system calls and instructions")]

use core::time::Duration;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use lariat_fabric::{Memory, OutOfRange};
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

/// Has the memory take small pages, whatever the system does otherwise (`always` in
/// /sys/kernel/mm/transparent_hugepage/enabled, as Debian has it). A system without huge pages
/// refuses, and need not be asked.
pub(super) fn take_small_pages(memory: &Memory) {
    let _ = advise(memory, 0, memory.len(), Pages::Small);
}

/// Backs a range of such memory by huge pages, now. The range is to hold whole ones (2 MiB, aligned).
/// What is written there after it was discarded takes small pages again.
///
/// # Errors
/// The system's word: `EINVAL` where it knows no such request (before 6.1) or has no huge pages,
/// others where it did not work out this time.
pub(super) fn collapse(memory: &Memory, offset: u64, length: usize) -> io::Result<()> {
    advise(memory, offset, length, Pages::Huge)?;
    let result = advise(memory, offset, length, Pages::HugeNow);
    // That the whole is one mapping again: a process may have so many.
    let _ = advise(memory, offset, length, Pages::Small);
    result
}

/// Processor time that the calling thread has used so far.
pub(crate) fn processor_time() -> Option<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a place for the answer.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    let (seconds, nanos) = (u64::try_from(time.tv_sec).ok()?, u32::try_from(time.tv_nsec).ok()?);
    (result == 0).then(|| Duration::new(seconds, nanos))
}

/// How memory is to be backed.
#[derive(Clone, Copy, Debug)]
enum Pages {
    Small,
    Huge,
    HugeNow,
}

fn advise(memory: &Memory, offset: u64, length: usize, pages: Pages) -> io::Result<()> {
    let start = memory.range(offset, length).map_err(|_| io::ErrorKind::InvalidInput)?;
    let advice = match pages {
        Pages::Small => libc::MADV_NOHUGEPAGE,
        Pages::Huge => libc::MADV_HUGEPAGE,
        Pages::HugeNow => libc::MADV_COLLAPSE,
    };
    // SAFETY: the range lies inside the memory (`range`); each advice changes how it is backed, not
    // what it holds.
    match unsafe { libc::madvise(start.as_ptr().cast(), length, advice) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
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

/// Copies past the caches: right for bytes that are not read soon, which then neither have to be
/// fetched before they are overwritten nor push out others. The memories are different ones.
///
/// # Errors
/// A range leaves its memory; nothing is copied.
pub(super) fn copy_past_caches(
    from: &Memory,
    from_offset: u64,
    to: &Memory,
    to_offset: u64,
    length: usize,
) -> Result<(), OutOfRange> {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

        const LINE: usize = 64;
        const PART: usize = size_of::<__m128i>();
        let source = from.range(from_offset, length)?;
        let sink = to.range(to_offset, length)?;
        // Lines that are not written as a whole are slow so.
        if sink.as_ptr().align_offset(LINE) == 0 && length.is_multiple_of(LINE) {
            for at in (0..length).step_by(PART) {
                // SAFETY: `at + PART <= length`, since that is a multiple of a line, so both addresses
                // lie in the ranges checked; the sink's is aligned, as the range is to a line.
                unsafe {
                    let part = _mm_loadu_si128(source.as_ptr().add(at).cast());
                    _mm_stream_si128(sink.as_ptr().add(at).cast(), part);
                }
            }
            // SAFETY: it has no conditions. Such stores are in no order with others before it.
            unsafe { _mm_sfence() };
            return Ok(());
        }
    }
    Memory::copy(from, from_offset, to, to_offset, length)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the system says of the mapping that has this address: a line of /proc/self/smaps.
    fn mapping(address: usize, line: &str) -> String {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut inside = false;
        for text in smaps.lines() {
            let range = text.split(' ').next().and_then(|range| range.split_once('-'));
            if let Some((from, to)) = range
                && let Ok(from) = usize::from_str_radix(from, 16)
                && let Ok(to) = usize::from_str_radix(to, 16)
            {
                inside = (from..to).contains(&address);
            } else if inside && text.starts_with(line) {
                return text.to_owned();
            }
        }
        panic!("no {line} of {address:x}");
    }

    #[test]
    fn huge_pages_come_when_asked_for_alone() {
        if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
            return;
        }
        let memory = Memory::allocate(6 << 20).unwrap();
        take_small_pages(&memory);
        let start = memory.address().as_ptr().addr();
        let piece = start.next_multiple_of(2 << 20);
        let at = (piece - start) as u64;
        let refuses = |address| mapping(address, "VmFlags:").split(' ').any(|flag| flag == "nh");
        assert!(refuses(start) && refuses(piece));
        memory.write_at(at, &vec![0xaa; 2 << 20]).unwrap();
        assert!(mapping(piece, "AnonHugePages:").ends_with(" 0 kB"));
        let result = collapse(&memory, at, 2 << 20);
        assert!(refuses(start) && refuses(piece), "{result:?}");
        // A kernel of before 6.1, or no memory in a row.
        if result.is_ok() {
            assert!(mapping(piece, "AnonHugePages:").ends_with(" 2048 kB"));
        }
        let mut bytes = vec![0; 2 << 20];
        memory.read_at(at, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0xaa));
    }

    #[test]
    fn copies_past_the_caches_arrive_whole_and_leave_their_neighbours() {
        let pattern: Vec<u8> = (0..16_384_u32).map(|n| (n % 251).to_le_bytes()[0]).collect();
        let from = Memory::allocate(16_384).unwrap();
        from.write_at(0, &pattern).unwrap();
        for (source, sink, length) in
            [(0, 0, 16_384), (3, 64, 4096), (512, 100, 4096), (0, 4096, 4100), (7, 9, 1), (0, 0, 0)]
        {
            let to = Memory::allocate(16_384).unwrap();
            copy_past_caches(&from, source as u64, &to, sink as u64, length).unwrap();
            let mut bytes = vec![0; 16_384];
            to.read_at(0, &mut bytes).unwrap();
            let mut wanted = vec![0; 16_384];
            wanted[sink..sink + length].copy_from_slice(&pattern[source..source + length]);
            assert!(bytes == wanted, "{source} {sink} {length}");
        }
        let to = Memory::allocate(4096).unwrap();
        assert!(copy_past_caches(&from, 16_000, &to, 0, 512).is_err());
        assert!(copy_past_caches(&from, 0, &to, 4096 - 64, 128).is_err());
    }

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

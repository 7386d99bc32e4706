//! The io_uring: the only place that hands addresses to the kernel. Called by `uring` alone.
//!
//! [`Ring`] keeps alive whatever an operation in flight may touch: it holds the memories and files
//! that operations name by number, and its drop waits for the operations that touch memory. So its
//! methods are safe, and `uring` is a plain state machine above it.
#![allow(unsafe_code, reason = "io_uring entries carry addresses")]

use core::time::Duration;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use io_uring::types::{Fd, Fixed, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, opcode, squeue};
use lariat_fabric::Memory;

/// Bytes of zeroes that one operation can write.
pub(super) const ZEROES_BYTES: u32 = 256 << 10;

/// The kernel pins a registered buffer as one piece of at most this size.
const MAX_FIXED_BYTES: usize = 1 << 30;

/// Marks the user data of polls; the rest is the caller's token.
const POLL: u64 = 1 << 63;

/// A place in a file and a piece of memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    /// Which of the ring's files.
    pub(super) file: u32,
    /// Bytes from the file's start.
    pub(super) at: u64,
    /// Which of the ring's memories.
    pub(super) memory: u16,
    /// Bytes from the memory's start.
    pub(super) offset: u64,
    /// Bytes.
    pub(super) length: u32,
}

/// An operation was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// No room: enter the kernel, or reap, and try again.
    Full,
    /// It names memory or a file that is not there.
    Invalid,
}

/// What came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// An operation's end: what the system call would have returned, or a negative errno.
    Operation {
        /// As given.
        token: u32,
        /// The result.
        result: i32,
    },
    /// A poll fired (or failed) and is not armed any more.
    Poll {
        /// As given.
        token: u32,
    },
}

/// Operations given to the kernel, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingCounters {
    /// Reads.
    pub reads: u64,
    /// Writes, without the next two.
    pub writes: u64,
    /// Writes that complete when they are durable.
    pub durable_writes: u64,
    /// Writes of zeroes, for want of a better way.
    pub zero_writes: u64,
    /// Reads and writes with registered buffers.
    pub fixed: u64,
    /// `fdatasync`s.
    pub syncs: u64,
    /// `fallocate`s that zero a range.
    pub zero_ranges: u64,
    /// `fallocate`s that make a hole.
    pub holes: u64,
}

/// One ring.
pub(super) struct Ring {
    // Dropped first: closing the ring ends what is left (polls), before files and memory go.
    inner: IoUring,
    files: Vec<Arc<File>>,
    files_registered: bool,
    memories: Vec<Arc<Memory>>,
    fixed: Vec<bool>,
    zeroes: Arc<Memory>,
    /// Operations but polls that are queued or with the kernel.
    outstanding: usize,
    /// Whether the kernel says that it has completions to make (else they come unasked).
    says_taskrun: bool,
    counters: RingCounters,
}

impl Ring {
    /// Makes a ring. To be called by the thread that will use it.
    pub(super) fn new(entries: u32, files: Vec<Arc<File>>) -> io::Result<Self> {
        let (inner, says_taskrun) = build(entries)?;
        if !inner.params().is_feature_ext_arg() || !inner.params().is_feature_nodrop() {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "this kernel's io_uring is too old; 5.15 or newer is needed",
            ));
        }
        let descriptors: Vec<_> = files.iter().map(|file| file.as_raw_fd()).collect();
        let files_registered = !descriptors.is_empty()
            && inner
                .submitter()
                .register_files(&descriptors)
                .inspect_err(|error| {
                    tracing::warn!(%error, "io_uring takes no registered files: going on without");
                })
                .is_ok();
        Ok(Self {
            inner,
            files,
            files_registered,
            memories: Vec::new(),
            fixed: Vec::new(),
            zeroes: Memory::allocate(ZEROES_BYTES as usize)?,
            outstanding: 0,
            says_taskrun,
            counters: RingCounters::default(),
        })
    }

    /// Takes the memories that spans name. To be called once.
    ///
    /// With `fix`, they are registered: pinned once instead of at every operation.
    ///
    /// # Errors
    /// Why the kernel did not register them; they are in use unregistered then.
    pub(super) fn use_memories(&mut self, memories: &[Arc<Memory>], fix: bool) -> io::Result<()> {
        self.memories = memories.to_vec();
        self.fixed = vec![false; memories.len()];
        if !fix || memories.is_empty() {
            return Ok(());
        }
        if memories.iter().any(|memory| memory.len() > MAX_FIXED_BYTES || memory.is_empty()) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let pieces: Vec<_> = memories
            .iter()
            .map(|memory| libc::iovec {
                iov_base: memory.address().as_ptr().cast(),
                iov_len: memory.len(),
            })
            .collect();
        // SAFETY: `self.memories` keeps every range mapped until after `self.inner`, and with it
        // the registration, is gone (drop order of the fields).
        unsafe { self.inner.submitter().register_buffers(&pieces) }?;
        self.fixed.fill(true);
        Ok(())
    }

    /// One more memory that spans may name. It is not registered.
    pub(super) fn add_memory(&mut self, memory: Arc<Memory>) {
        self.memories.push(memory);
        self.fixed.push(false);
    }

    /// The memories that spans name.
    pub(super) fn memories(&self) -> &[Arc<Memory>] {
        &self.memories
    }

    #[cfg(test)]
    pub(super) fn is_fixed(&self) -> bool {
        self.fixed.iter().all(|fixed| *fixed)
    }

    /// What was given to the kernel so far.
    pub(super) fn counters(&self) -> RingCounters {
        self.counters
    }

    /// Queues a read.
    pub(super) fn read(&mut self, token: u32, span: Span) -> Result<(), Refused> {
        let (address, fixed) = self.address(&span)?;
        let Span { at, memory, length, .. } = span;
        let entry = match (self.file(span.file)?, fixed) {
            (Target::Index(file), true) => {
                opcode::ReadFixed::new(file, address, length, memory).offset(at).build()
            }
            (Target::Index(file), false) => {
                opcode::Read::new(file, address, length).offset(at).build()
            }
            (Target::Raw(file), true) => {
                opcode::ReadFixed::new(file, address, length, memory).offset(at).build()
            }
            (Target::Raw(file), false) => {
                opcode::Read::new(file, address, length).offset(at).build()
            }
        };
        self.push(token, entry)?;
        self.counters.reads += 1;
        self.counters.fixed += u64::from(fixed);
        Ok(())
    }

    /// Queues a write; with `durable`, one that completes when the bytes are on the medium.
    pub(super) fn write(&mut self, token: u32, span: Span, durable: bool) -> Result<(), Refused> {
        let (address, fixed) = self.address(&span)?;
        let Span { at, memory, length, .. } = span;
        let flags = rw_flags(durable);
        let entry = match (self.file(span.file)?, fixed) {
            (Target::Index(file), true) => opcode::WriteFixed::new(file, address, length, memory)
                .offset(at)
                .rw_flags(flags)
                .build(),
            (Target::Index(file), false) => {
                opcode::Write::new(file, address, length).offset(at).rw_flags(flags).build()
            }
            (Target::Raw(file), true) => opcode::WriteFixed::new(file, address, length, memory)
                .offset(at)
                .rw_flags(flags)
                .build(),
            (Target::Raw(file), false) => {
                opcode::Write::new(file, address, length).offset(at).rw_flags(flags).build()
            }
        };
        self.push(token, entry)?;
        let counter =
            if durable { &mut self.counters.durable_writes } else { &mut self.counters.writes };
        *counter += 1;
        self.counters.fixed += u64::from(fixed);
        Ok(())
    }

    /// Queues a write of at most [`ZEROES_BYTES`] zeroes.
    pub(super) fn write_zeroes(
        &mut self,
        token: u32,
        file: u32,
        at: u64,
        length: u32,
        durable: bool,
    ) -> Result<(), Refused> {
        let address = self.zeroes.range(0, length as usize).map_err(|_| Refused::Invalid)?.as_ptr();
        let flags = rw_flags(durable);
        let entry = match self.file(file)? {
            Target::Index(file) => {
                opcode::Write::new(file, address, length).offset(at).rw_flags(flags).build()
            }
            Target::Raw(file) => {
                opcode::Write::new(file, address, length).offset(at).rw_flags(flags).build()
            }
        };
        self.push(token, entry)?;
        self.counters.zero_writes += 1;
        Ok(())
    }

    /// Queues an `fdatasync`.
    pub(super) fn sync(&mut self, token: u32, file: u32) -> Result<(), Refused> {
        let entry = match self.file(file)? {
            Target::Index(file) => opcode::Fsync::new(file).flags(FsyncFlags::DATASYNC).build(),
            Target::Raw(file) => opcode::Fsync::new(file).flags(FsyncFlags::DATASYNC).build(),
        };
        self.push(token, entry)?;
        self.counters.syncs += 1;
        Ok(())
    }

    /// Queues an `fallocate`.
    pub(super) fn fallocate(
        &mut self,
        token: u32,
        file: u32,
        mode: i32,
        at: u64,
        length: u64,
    ) -> Result<(), Refused> {
        let entry = match self.file(file)? {
            Target::Index(file) => {
                opcode::Fallocate::new(file, length).offset(at).mode(mode).build()
            }
            Target::Raw(file) => opcode::Fallocate::new(file, length).offset(at).mode(mode).build(),
        };
        self.push(token, entry)?;
        let hole = mode & libc::FALLOC_FL_PUNCH_HOLE != 0;
        let counter = if hole { &mut self.counters.holes } else { &mut self.counters.zero_ranges };
        *counter += 1;
        Ok(())
    }

    /// Queues a one-shot poll for readability. The descriptor may be closed meanwhile: the kernel
    /// holds its file.
    pub(super) fn poll_readable(&mut self, token: u32, fd: BorrowedFd<'_>) -> Result<(), Refused> {
        let flags = u32::from(libc::POLLIN.unsigned_abs());
        let entry = opcode::PollAdd::new(Fd(fd.as_raw_fd()), flags)
            .build()
            .user_data(u64::from(token) | POLL);
        // SAFETY: a poll carries no address.
        unsafe { self.inner.submission().push(&entry) }.map_err(|_| Refused::Full)
    }

    /// Operations that are queued and were not started yet.
    pub(super) fn queued(&mut self) -> usize {
        self.inner.submission().len()
    }

    /// Starts what was queued and has the kernel make the completions it is ready to make; no
    /// system call if there is neither.
    pub(super) fn enter(&mut self) -> io::Result<()> {
        let queue = self.inner.submission();
        let needed =
            !queue.is_empty() || queue.cq_overflow() || (self.says_taskrun && queue.taskrun());
        drop(queue);
        if needed { self.inner.submit().map(drop) } else { Ok(()) }
    }

    /// Starts what was queued and sleeps until something completes, the time is over, or a signal
    /// comes.
    pub(super) fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        // A sleeping target is idle, not waiting for a disk: do not count it as iowait.
        let flags = if self.inner.params().is_feature_no_iowait() {
            EnterFlags::NO_IOWAIT
        } else {
            EnterFlags::empty()
        };
        let timespec = timeout.map(Timespec::from);
        let mut arguments = SubmitArgs::new();
        if let Some(timespec) = &timespec {
            arguments = arguments.timespec(timespec);
        }
        match self.inner.submitter().submit_with_args_and_flags(1, &arguments, flags) {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                Some(libc::ETIME | libc::EINTR | libc::EAGAIN | libc::EBUSY) => Ok(()),
                _ => Err(error),
            },
        }
    }

    /// The next completion.
    pub(super) fn next_event(&mut self) -> Option<Event> {
        let entry = self.inner.completion().next()?;
        let data = entry.user_data();
        // Tokens are 32 bits wide (`push`, `poll_readable`).
        let token = u32::try_from(data & !POLL).unwrap_or(u32::MAX);
        if data & POLL != 0 {
            return Some(Event::Poll { token });
        }
        self.outstanding = self.outstanding.saturating_sub(1);
        Some(Event::Operation { token, result: entry.result() })
    }

    /// The address of a span and whether it is registered.
    fn address(&self, span: &Span) -> Result<(*mut u8, bool), Refused> {
        let index = usize::from(span.memory);
        let memory = self.memories.get(index).ok_or(Refused::Invalid)?;
        let address =
            memory.range(span.offset, span.length as usize).map_err(|_| Refused::Invalid)?;
        Ok((address.as_ptr(), self.fixed.get(index).copied().unwrap_or(false)))
    }

    fn file(&self, index: u32) -> Result<Target, Refused> {
        let file = self.files.get(index as usize).ok_or(Refused::Invalid)?;
        Ok(if self.files_registered {
            Target::Index(Fixed(index))
        } else {
            Target::Raw(Fd(file.as_raw_fd()))
        })
    }

    /// Queues an operation whose addresses, if any, came from `address` or `zeroes`.
    fn push(&mut self, token: u32, entry: squeue::Entry) -> Result<(), Refused> {
        let entry = entry.user_data(u64::from(token));
        // SAFETY: the entry's address range was checked against memory that `self` holds, and
        // `self` keeps it (and the file) until the operation has completed: `drop` waits for
        // `outstanding`, or leaks the memory. Memory is reached by raw copies only (see
        // `lariat_fabric::memory`), so the kernel's access aliases no reference.
        unsafe { self.inner.submission().push(&entry) }.map_err(|_| Refused::Full)?;
        self.outstanding += 1;
        Ok(())
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        while self.outstanding > 0 {
            if let Err(error) = self.wait(None) {
                // The kernel may still write: the memory must never be used for something else.
                tracing::error!(%error, operations = self.outstanding, "io_uring does not end");
                core::mem::forget(self.memories.clone());
                core::mem::forget(Arc::clone(&self.zeroes));
                return;
            }
            while self.next_event().is_some() {}
        }
    }
}

enum Target {
    Index(Fixed),
    Raw(Fd),
}

fn rw_flags(durable: bool) -> i32 {
    if durable { libc::RWF_DSYNC } else { 0 }
}

/// The best ring that the kernel has, and whether it flags completions to be fetched.
fn build(entries: u32) -> io::Result<(IoUring, bool)> {
    // 6.1: completions are made when this thread asks, never by interrupting it.
    let mut builder = IoUring::builder();
    builder.dontfork().setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
    if let Ok(ring) = builder.build(entries) {
        return Ok((ring, true));
    }
    // 5.19: at the next system call.
    let mut builder = IoUring::builder();
    builder.dontfork().setup_coop_taskrun().setup_taskrun_flag();
    if let Ok(ring) = builder.build(entries) {
        return Ok((ring, true));
    }
    let ring = IoUring::builder().dontfork().build(entries)?;
    Ok((ring, false))
}

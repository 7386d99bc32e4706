//! The two system calls of the data path, past the C library's own wrappers: those are points at which
//! a thread can be cancelled, and to say so before and after costs some 30 ns a call in a process with
//! several threads. No thread here is ever cancelled. Called by `receive` and `send`.

use core::ptr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// How many of the messages were received, without waiting.
///
/// # Errors
/// The system's word; `WouldBlock`: nothing is there.
///
/// # Safety
/// What the headers point to may be written to their lengths during the call.
#[inline]
pub(super) unsafe fn receive_messages(
    socket: BorrowedFd<'_>,
    messages: &mut [libc::mmsghdr],
) -> io::Result<usize> {
    // SAFETY: the descriptor is open, the headers are a slice of that length, which the call may
    // write; the caller vouches for what they point to. No time limit is given.
    let count = unsafe {
        libc::syscall(
            libc::SYS_recvmmsg,
            socket.as_raw_fd(),
            messages.as_mut_ptr(),
            messages.len(),
            libc::MSG_DONTWAIT,
            ptr::null_mut::<libc::timespec>(),
        )
    };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// How many of the messages were sent, without waiting.
///
/// # Errors
/// The system's word on the first; `WouldBlock`: there is no room.
///
/// # Safety
/// What the headers point to may be read to their lengths during the call.
#[inline]
pub(super) unsafe fn send_messages(
    socket: BorrowedFd<'_>,
    messages: &mut [libc::mmsghdr],
) -> io::Result<usize> {
    // SAFETY: the descriptor is open, the headers are a slice of that length, in which the call
    // writes the lengths sent; the caller vouches for what they point to.
    let count = unsafe {
        libc::syscall(
            libc::SYS_sendmmsg,
            socket.as_raw_fd(),
            messages.as_mut_ptr(),
            messages.len(),
            libc::MSG_DONTWAIT,
        )
    };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

//! Who in this process has a device open, and how it is let go once it is removed. Called by `device`.
//!
//! librdmacm opens a device once for the process and closes it only when it finds, at some later call,
//! that the device is gone from the list of devices; a list that has become empty it takes for an
//! error and leaves all as it was. Drivers that cannot part from their users (Soft-RoCE, Soft-iWARP)
//! wait for that in the removal, maybe for ever. So the last of us who used a removed device puts
//! /dev/null in the place of its descriptors: the kernel frees what is left, and librdmacm closes
//! /dev/null when it comes to that.

use core::ptr::NonNull;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Mutex, PoisonError};

use rdma_sys::ibv_context;

#[derive(Debug)]
struct Users {
    /// Address of the context.
    context: usize,
    count: usize,
    removed: bool,
}

static USERS: Mutex<Vec<Users>> = Mutex::new(Vec::new());

/// One user's share in a device. To be dropped when that user has nothing on it any more, and while
/// an identifier still keeps the context alive.
#[derive(Debug)]
pub(super) struct Hold {
    context: usize,
    descriptors: [RawFd; 2],
}

impl Hold {
    /// # Safety
    /// The context is alive, and lives longer than this value.
    pub(super) unsafe fn new(context: NonNull<ibv_context>) -> Self {
        // SAFETY: a live context.
        let descriptors = unsafe { [(*context.as_ptr()).cmd_fd, (*context.as_ptr()).async_fd] };
        Self::count_in(context.as_ptr().addr(), descriptors)
    }

    fn count_in(context: usize, descriptors: [RawFd; 2]) -> Self {
        let mut users = USERS.lock().unwrap_or_else(PoisonError::into_inner);
        match users.iter_mut().find(|one| one.context == context) {
            Some(known) => known.count += 1,
            None => users.push(Users { context, count: 1, removed: false }),
        }
        Self { context, descriptors }
    }

    /// The device is gone: the last user closes it.
    pub(super) fn removed(&self) {
        let mut users = USERS.lock().unwrap_or_else(PoisonError::into_inner);
        for known in users.iter_mut().filter(|one| one.context == self.context) {
            known.removed = true;
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut users = USERS.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(place) = users.iter().position(|one| one.context == self.context) else { return };
        let Some(known) = users.get_mut(place) else { return };
        known.count -= 1;
        if known.count > 0 {
            return;
        }
        if users.swap_remove(place).removed {
            for descriptor in self.descriptors {
                if let Err(error) = silence(descriptor) {
                    tracing::warn!(%error, "a removed RDMA device stays open");
                }
            }
        }
    }
}

/// Closes what a descriptor stands for; its number stays taken.
fn silence(descriptor: RawFd) -> io::Result<()> {
    let nothing = File::options().read(true).write(true).open("/dev/null")?;
    // SAFETY: only replaces what a descriptor stands for: its owner uses and closes it as before.
    match unsafe { libc::dup3(nothing.as_raw_fd(), descriptor, libc::O_CLOEXEC) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn the_last_user_of_a_removed_device_closes_it() {
        let (mut reader, writer) = io::pipe().unwrap();
        let (_other_reader, other) = io::pipe().unwrap();
        let descriptors = [writer.as_raw_fd(), other.as_raw_fd()];
        // No context has such an address.
        let (first, second) = (Hold::count_in(1, descriptors), Hold::count_in(1, descriptors));
        first.removed();
        drop(first);
        (&writer).write_all(b"open").unwrap();
        drop(second);
        (&writer).write_all(b"to nobody").unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "open");
    }

    #[test]
    fn a_device_that_is_still_there_stays_open() {
        let (mut reader, writer) = io::pipe().unwrap();
        drop(Hold::count_in(2, [writer.as_raw_fd(); 2]));
        (&writer).write_all(b"open").unwrap();
        drop(writer);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "open");
    }
}

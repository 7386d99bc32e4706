//! What wakes a sleeping reactor from another thread: an eventfd, polled through its ring.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};

/// Wakes one reactor. Clones wake the same one.
#[derive(Clone, Debug)]
pub struct EventWaker {
    event: Arc<EventFd>,
}

impl EventWaker {
    /// Makes one, to be given to the reactor's [`UringStorage`](super::UringStorage).
    ///
    /// # Errors
    /// Out of file descriptors or memory.
    pub fn new() -> std::io::Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Ok(Self { event: Arc::new(EventFd::from_value_and_flags(0, flags)?) })
    }

    /// Wakes the reactor, or has its next sleep return at once.
    pub fn wake(&self) {
        // The only failure of an eventfd write is a full counter, which is as good as a wake-up.
        let _ = self.event.write(1);
    }

    /// Takes what was signalled; whether there was anything.
    pub(super) fn drain(&self) -> bool {
        loop {
            match self.event.read() {
                Ok(_) => return true,
                Err(Errno::EINTR) => {}
                Err(_) => return false,
            }
        }
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

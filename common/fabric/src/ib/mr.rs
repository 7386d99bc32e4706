//! Protection domains and memory regions of a device. Safe wrappers; called by `fabric` and
//! `regions`.

use core::ffi::c_int;
use core::ptr::NonNull;
use std::io;
use std::sync::Arc;

use lariat_roce::verbs::Access;
use lariat_wire::rocev2::Rkey;
use rdma_sys::{ibv_access_flags, ibv_context, ibv_mr, ibv_pd};

use crate::memory::Memory;

/// A protection domain of one device.
#[derive(Debug)]
pub(super) struct Pd {
    raw: NonNull<ibv_pd>,
}

// SAFETY: libibverbs may be called from any thread; this value alone owns the domain.
unsafe impl Send for Pd {}

impl Pd {
    /// # Errors
    /// The device's word.
    ///
    /// # Safety
    /// The context lives longer than the domain.
    pub(super) unsafe fn allocate(context: NonNull<ibv_context>) -> io::Result<Self> {
        // SAFETY: a live context.
        let raw = unsafe { rdma_sys::ibv_alloc_pd(context.as_ptr()) };
        Ok(Self { raw: NonNull::new(raw).ok_or_else(io::Error::last_os_error)? })
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_pd {
        self.raw.as_ptr()
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: regions and queue pairs of the domain are gone before it (see `fabric`).
        let result = unsafe { rdma_sys::ibv_dealloc_pd(self.raw.as_ptr()) };
        if result != 0 {
            let error = io::Error::from_raw_os_error(result);
            tracing::debug!(%error, "a protection domain could not be freed");
        }
    }
}

/// Registered memory.
#[derive(Debug)]
pub(super) struct Mr {
    raw: NonNull<ibv_mr>,
    memory: Arc<Memory>,
    pub(super) lkey: u32,
    pub(super) rkey: Rkey,
}

// SAFETY: as for `Pd`; the keys are copies.
unsafe impl Send for Mr {}

fn flags(access: Access) -> u32 {
    let mut flags = ibv_access_flags(0);
    if access.local_write || access.remote_write {
        flags |= ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
    }
    if access.remote_write {
        flags |= ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
    }
    if access.remote_read {
        flags |= ibv_access_flags::IBV_ACCESS_REMOTE_READ;
    }
    flags.0
}

impl Mr {
    pub(super) fn register(pd: &Pd, memory: &Arc<Memory>, access: Access) -> io::Result<Self> {
        let flags = c_int::try_from(flags(access)).map_err(io::Error::other)?;
        // SAFETY: the range is that of `memory`, which stays alive because the region holds it; it
        // is reached by raw copies only, so the device may write it at any time.
        let raw = unsafe {
            rdma_sys::ibv_reg_mr(pd.as_ptr(), memory.address().as_ptr().cast(), memory.len(), flags)
        };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: a live region.
        let (lkey, rkey) = unsafe { ((*raw.as_ptr()).lkey, (*raw.as_ptr()).rkey) };
        Ok(Self { raw, memory: Arc::clone(memory), lkey, rkey: Rkey(rkey) })
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // SAFETY: ours, dropped once; the device uses the memory no more when this returns 0.
        let result = unsafe { rdma_sys::ibv_dereg_mr(self.raw.as_ptr()) };
        if result != 0 {
            let error = io::Error::from_raw_os_error(result);
            tracing::warn!(%error, "memory stays registered and is therefore never freed");
            core::mem::forget(Arc::clone(&self.memory));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remote_write_needs_local_write() {
        assert_eq!(flags(Access::LOCAL_READ), 0);
        assert_eq!(flags(Access::LOCAL), 1);
        assert_eq!(flags(Access::REMOTE), 1 | 2 | 4);
        let write = Access { local_write: false, remote_read: false, remote_write: true };
        assert_eq!(flags(write), 1 | 2);
    }
}

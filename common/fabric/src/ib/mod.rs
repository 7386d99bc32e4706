//! RDMA devices through libibverbs and librdmacm: InfiniBand, RoCE, iWARP, and the kernel's
//! Soft-RoCE and Soft-iWARP. [`IbFabric`] implements [`Fabric`](crate::Fabric) on them.
//!
//! Each object of the C libraries has its wrapper in a file of its own (`cm`, `device`, `cq`, `mr`,
//! `qp`, `srq`, `news`): only these contain unsafe code. `fabric` owns them, `verbs` is the trait,
//! `shared` its part about shared receive queues, `events` says what connection events do, `group`
//! shares listeners between threads, `cover` finds the device of an address.

mod cm;
mod conn;
mod cover;
mod cq;
mod device;
mod events;
mod fabric;
mod group;
mod hold;
mod inventory;
mod memory;
mod mr;
mod news;
mod qp;
mod ring;
mod shared;
mod srq;
mod verbs;

pub use cover::{Cover, local as cover_local, remote as cover_remote};
pub use fabric::IbFabric;

use std::io;

/// What can be set about the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IbConfig {
    /// Send with Invalidate where the device says it can.
    pub remote_invalidate: bool,
    /// Messages up to so many bytes are copied into the request, if the device can do that: it need
    /// not fetch them. 0 for none.
    pub max_inline_bytes: u32,
}

impl Default for IbConfig {
    fn default() -> Self {
        Self { remote_invalidate: true, max_inline_bytes: 128 }
    }
}

/// RDMA devices cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is none.
    #[error(
        "this machine has no RDMA device, which fabric \"ib\" needs: load the driver of one (for a \
         software device on eth0: modprobe rdma_rxe; rdma link add rxe0 type rxe netdev eth0), or \
         stay with fabric \"soft\""
    )]
    NoDevice,
    /// There is one, but user space is not served.
    #[error(
        "{file} does not exist although there are RDMA devices: load the modules that serve user \
         space (modprobe rdma_ucm ib_uverbs); in a container, pass the files of /dev/infiniband in"
    )]
    NoDeviceFile {
        /// The file.
        file: &'static str,
    },
    /// This user may not use it.
    #[error(
        "no permission on {file}: let this user read and write /dev/infiniband/rdma_cm and uverbs* \
         (a udev rule, or a group that owns them), or run as root"
    )]
    Permission {
        /// The file.
        file: String,
    },
    /// Something else.
    #[error("cannot use RDMA devices")]
    Io(#[source] io::Error),
}

const CM_FILE: &str = "/dev/infiniband/rdma_cm";

impl OpenError {
    /// What stands behind an error of the first call to librdmacm.
    fn explain(error: io::Error) -> Self {
        let nothing = inventory::ports().is_empty();
        let forbidden = inventory::forbidden();
        match error.raw_os_error() {
            Some(libc::EACCES | libc::EPERM) => Self::Permission { file: CM_FILE.to_owned() },
            Some(libc::ENODEV | libc::ENOENT | libc::ENOSYS | libc::ENXIO) if nothing => {
                Self::NoDevice
            }
            known => match (forbidden, known) {
                // libibverbs leaves devices out that it may not open.
                (Some(file), _) => Self::Permission { file },
                (None, Some(libc::ENODEV | libc::ENOENT | libc::ENOSYS | libc::ENXIO)) => {
                    Self::NoDeviceFile { file: CM_FILE }
                }
                (None, _) => Self::Io(error),
            },
        }
    }
}

/// Opens the provider for `count` threads (1 to 255), one fabric for each. Members that are to get
/// connection requests all listen, at the same addresses and ports; they get them in turn.
///
/// # Errors
/// Why RDMA devices cannot be used, and what to do.
pub fn open_group(count: u8, config: &IbConfig) -> Result<Vec<IbFabric>, OpenError> {
    let members = group::open(count).map_err(OpenError::explain)?;
    members
        .into_iter()
        .map(|member| IbFabric::new(member, *config).map_err(OpenError::Io))
        .collect()
}

/// Opens the provider for one thread.
///
/// # Errors
/// Why RDMA devices cannot be used, and what to do.
pub fn open(config: &IbConfig) -> Result<IbFabric, OpenError> {
    let fabric = open_group(1, config)?.pop();
    fabric.ok_or_else(|| OpenError::Io(io::ErrorKind::InvalidInput.into()))
}

//! The NVMe-oF/RDMA target: library behind the daemon `lariatd`.
//!
//! - [`nvme`]: what the target is;
//! - [`transport`]: NVMe over RDMA as the target speaks it;
//! - [`storage`]: block storage as the core sees it, and the io_uring behind it;
//! - [`daemon`]: configuration, threads and signals.
#![deny(unsafe_code)]

pub mod daemon;
pub mod nvme;
pub mod storage;
pub mod transport;

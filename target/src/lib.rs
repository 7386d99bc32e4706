//! The NVMe-oF/RDMA target: library behind the daemon `lariatd`.
//!
//! - [`nvme`]: what the target is;
//! - [`storage`]: block storage as the core sees it, and the io_uring behind it.
#![deny(unsafe_code)]

pub mod nvme;
pub mod storage;
pub mod transport;

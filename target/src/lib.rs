//! The NVMe-oF/RDMA target: library behind the daemon `lariatd`.

pub mod nvme;
pub mod storage;
pub mod transport;

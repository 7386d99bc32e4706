//! NVMe over Fabrics from the host's side, over RDMA, in user space.
//!
//! - [`core`]: the protocol as state machines that their owner drives;
//! - on top of it a blocking API.
#![deny(unsafe_code)]

pub mod core;

//! Lariat's wire formats: bytes to types and back, no I/O.
//!
//! Every parser is total: any bytes give a value or a typed error, never a
//! panic. Values that a newer peer may send and we do not know are kept, not
//! refused, unless acting on them would be wrong.
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod ascii;
pub mod endian;
pub mod nvme;
pub mod rdma_cm;
pub mod rocev2;

mod layout;
mod open_enum;

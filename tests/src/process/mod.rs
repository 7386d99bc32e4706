//! Real processes on loopback: `lariatd` and `lariat` as users run them, each test on an address of
//! its own and bounded in time. Calls the operating system; the tests in `tests/tests` call it.

mod binaries;
mod bound;
mod command;
mod config;
mod data;
mod host;
mod load;
mod scratch;
mod target;

pub use binaries::{binary, engine};
pub use bound::{bounded, until};
pub use command::{Finished, Running, lariat, run};
pub use config::{Backend, DiskConfig, NQN, PORT, TargetConfig};
pub use data::{Content, fill, first_difference};
pub use host::{connect, host_options};
pub use load::{PLACE_BYTES, keep_busy};
pub use scratch::{Ipv6Loopback, Scratch, free_address};
pub use target::Target;

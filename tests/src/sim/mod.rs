//! The whole stack in one thread from one seed: hosts, target, RoCEv2, a faulty network and disks
//! that lose power, on a virtual clock.
//!
//! ```text
//! plan      what the seed decides: sizes, network, disks, hosts, what goes wrong and when
//! world     the clock, the order of turns, the things that go wrong, the questions at the end
//! target    reactors over simulated fabrics and disks; stops, dies, comes again
//! host      a good host: random requests over `lariat::core`, sessions made anew
//! hostile   a host that speaks RoCE well and NVMe badly
//! garbage   datagrams out of nowhere
//! disk      storage with a volatile cache and power cuts
//! model     what each read may return
//! trace     what happened, hashed and counted
//! runner    many seeds on all cores
//! ```
//!
//! Nothing here but the runner's threads depends on anything but the seed, so a failing seed fails
//! again, with the same trace.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod content;
pub mod disk;
mod garbage;
pub mod host;
pub mod hostile;
pub mod model;
pub mod plan;
pub mod random;
#[expect(
    clippy::disallowed_methods,
    reason = "a thread for each core, and a world for each thread"
)]
pub mod runner;
mod target;
pub mod trace;
mod workload;
pub mod world;

pub use disk::Defect;
pub use runner::{Outcome, Summary, run_seeds};
pub use world::{Report, run};

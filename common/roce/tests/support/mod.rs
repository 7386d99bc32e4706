//! What the tests of this folder share: a faulty network, memory, a seeded generator, a simulation.
#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test file uses its own part")]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test's helpers fail by panic")]

pub mod consumer;
pub mod lab;
pub mod link;
pub mod memory;
pub mod net;
pub mod rng;
pub mod world;

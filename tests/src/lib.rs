//! End-to-end, simulation and interop tests of the whole stack. Calls all other crates; nothing but
//! tests (and the `sim` binary) calls it.

pub mod process;
pub mod sim;

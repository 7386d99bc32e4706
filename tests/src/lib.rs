//! End-to-end, simulation and interop tests of the whole stack. Calls all other crates; nothing but
//! tests calls it.

pub mod process;

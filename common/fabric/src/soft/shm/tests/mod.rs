//! Rings, agreements and wires within one process.

mod agreement;
mod rings;
mod wires;

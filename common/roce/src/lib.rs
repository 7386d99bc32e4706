//! RoCEv2's reliable-connected transport and connection manager as sans-IO state machines.
//!
//! No sockets, no clock, no threads, no unsafe code: datagrams, time, memory and randomness come in
//! as arguments, packets and events go out by polling. [`endpoint::Endpoint`] is the whole of one
//! UDP socket's traffic; the `soft` provider of `lariat-fabric` drives it with a socket, its `sim`
//! provider with a simulated network.
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod cm;
pub mod endpoint;
pub mod memory;
pub mod qp;
pub mod time;
pub mod transmit;
pub mod verbs;

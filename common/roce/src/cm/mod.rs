//! The RoCEv2 connection manager (IBTA volume 1, 12.9 to 12.11): messages in, messages out, timers.
//!
//! `Exchange` is one connection's share: a state machine along the table of `state`. Which
//! connection a message is for, listeners, and the numbers that identify connections are the
//! endpoint's, which is the only caller.

mod exchange;
mod marker;
mod messages;
mod outbox;
mod state;

pub(crate) use exchange::{Exchange, Reaction, Setup};
pub(crate) use marker::Marker;
pub(crate) use messages::{reject_request, reply_to_unknown};
pub(crate) use outbox::Outbox;
pub use state::{State, Trigger};

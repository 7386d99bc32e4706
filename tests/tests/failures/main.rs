//! What goes wrong, goes wrong in a way that is bounded, told, and harmless to others: real processes
//! that are killed, stopped and restarted, requests and connects that must be refused, a disk that is
//! full, and strangers' datagrams.

use std::time::Duration;

mod configuration;
mod full_disk;
mod garbage;
mod processes;
mod refused_connects;
mod refused_requests;
mod shutdown;

const LIMIT: Duration = Duration::from_secs(60);

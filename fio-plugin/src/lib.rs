//! The fio ioengine of Lariat: `fio --ioengine=external:/path/liblariat_fio.so`.
//!
//! Built without fio's headers. What is known of fio's structures is a table of offsets per release
//! ([`abi`]); which row holds is decided once, at load, by fio's own version string, and checked by
//! canaries ([`canary`]) before any I/O. From outside to inside:
//!
//! - [`load`]: the one exported symbol, and the two statics that fio reads and writes;
//! - [`ffi`]: typed, checked-by-contract views of fio's structures; fio's log; catching panics;
//! - [`engine`]: fio's callbacks; translates between `ffi` and `job`;
//! - [`options`], [`filename`]: what the user said, as settings and names of namespaces;
//! - [`job`]: the connections and requests of one fio job, without any unsafe code.
//!
//! Panics: each callback catches unwinding ([`ffi::guard`]) and reports an I/O error, so a fault of
//! ours ends a job with a message and not the whole of fio with a signal. `panic = "abort"` would be
//! simpler, but Cargo sets it per workspace, and a daemon wants to survive a faulty connection.
//!
//! Global state: the two statics that fio writes to, and which row of the table holds, written once
//! before fio knows of them. All else hangs on fio's own per-job pointer.

mod abi;
mod canary;
mod engine;
mod errors;
mod ffi;
mod filename;
mod job;
mod load;
mod options;
mod settings;

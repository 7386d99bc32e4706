//! What can go wrong on the local side of a fabric: one type per operation, each with the facts
//! needed to mend it. What a peer does wrong arrives as a completion status or a `CmEvent`.

use core::net::SocketAddr;
use std::io;

/// The handle names nothing (any more), or not something in a state that allows the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the {what} does not exist (any more)")]
pub struct StaleHandle {
    /// What kind of handle it was.
    pub what: &'static str,
}

/// Memory could not be registered.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// The protection domain does not exist.
    #[error(transparent)]
    Stale(#[from] StaleHandle),
    /// The device's or the process's limit.
    #[error("cannot register {bytes} bytes: {limit}; {remedy}")]
    Limit {
        /// Size asked for.
        bytes: usize,
        /// Which limit, with its value.
        limit: String,
        /// What to do.
        remedy: &'static str,
    },
    /// Something else.
    #[error("cannot register {bytes} bytes")]
    Io {
        /// Size asked for.
        bytes: usize,
        /// The operating system's word.
        #[source]
        source: io::Error,
    },
}

/// A listener could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Somebody else listens there.
    #[error(
        "{address} is already served: {holder}; give this target another address (on an RDMA device another port does as well)"
    )]
    InUse {
        /// The address.
        address: SocketAddr,
        /// Who has it, as far as can be told.
        holder: String,
    },
    /// The address is not one of this machine.
    #[error(
        "cannot listen on {address}: {} is not an address of this machine; give the listener one of \
         those that `ip address` shows, or add it to an interface",
        .address.ip()
    )]
    NotLocal {
        /// The address asked for.
        address: SocketAddr,
    },
    /// Something else.
    #[error("cannot listen on {address}")]
    Io {
        /// The address.
        address: SocketAddr,
        /// The operating system's word.
        #[source]
        source: io::Error,
    },
}

/// The active side could not start.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// No way to get there from here.
    #[error("no route to {remote}: {reason}")]
    NoRoute {
        /// The peer.
        remote: SocketAddr,
        /// Why.
        reason: String,
    },
    /// Something else.
    #[error("cannot resolve {remote}")]
    Io {
        /// The peer.
        remote: SocketAddr,
        /// The operating system's word.
        #[source]
        source: io::Error,
    },
}

/// A queue pair could not be created.
#[derive(Debug, thiserror::Error)]
pub enum QpError {
    /// The connection or domain does not exist, or has a queue pair already.
    #[error(transparent)]
    Stale(#[from] StaleHandle),
    /// More than the device can do.
    #[error("queue pair needs {what} = {wanted}, the device's limit is {limit}")]
    Limit {
        /// Which size.
        what: &'static str,
        /// What was asked for.
        wanted: u32,
        /// What there is.
        limit: u32,
    },
    /// Something else.
    #[error("cannot create a queue pair")]
    Io(#[source] io::Error),
}

/// `connect`, `accept`, `reject`, `disconnect` were refused locally.
#[derive(Debug, thiserror::Error)]
pub enum CmError {
    /// The connection does not exist or is not in a state for this.
    #[error(transparent)]
    Stale(#[from] StaleHandle),
    /// Too much private data.
    #[error("{given} bytes of private data, the message takes {limit}")]
    PrivateData {
        /// What was given.
        given: usize,
        /// What fits.
        limit: usize,
    },
    /// Something else.
    #[error("connection manager")]
    Io(#[source] io::Error),
}

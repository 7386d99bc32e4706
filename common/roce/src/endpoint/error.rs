//! Why a call of an endpoint was refused. What a peer does wrong arrives as an event or a
//! completion instead. `lariat-fabric` turns these into its own errors.

use lariat_wire::rocev2::cm::PathMtu;

/// A call was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// The connection does not exist (any more).
    #[error("the connection does not exist (any more)")]
    UnknownConnection,
    /// The connection is not in a state for this call.
    #[error("the connection is {state}, which does not allow to {call}")]
    WrongState {
        /// The state.
        state: &'static str,
        /// What was asked for.
        call: &'static str,
    },
    /// `connect` and `accept` need a queue pair.
    #[error("the connection has no queue pair yet")]
    NoQueuePair,
    /// It has one already.
    #[error("the connection has a queue pair already")]
    HasQueuePair,
    /// As many connections as the endpoint was made for.
    #[error("{limit} connections exist, which is the limit")]
    TooManyConnections {
        /// The limit.
        limit: u32,
    },
    /// More than the device can do.
    #[error("queue pair needs {what} = {wanted}, the limit is {limit}")]
    Limit {
        /// Which size.
        what: &'static str,
        /// What was asked for.
        wanted: u32,
        /// What there is.
        limit: u32,
    },
    /// No such shared receive queue, or it is of another protection domain.
    #[error("there is no such shared receive queue in this protection domain")]
    NoSharedReceive,
    /// Too much private data.
    #[error("{given} bytes of private data, the message takes {limit}")]
    PrivateData {
        /// What was given.
        given: usize,
        /// What fits.
        limit: usize,
    },
    /// The peer asked for larger packets than the way back can carry. It has been rejected
    /// (reason 26); what is left is to `destroy` the connection.
    #[error("the peer wants a path MTU of {asked:?}, the route carries {possible:?}")]
    PathMtu {
        /// What the REQ says.
        asked: PathMtu,
        /// What the route can do.
        possible: PathMtu,
    },
    /// Somebody listens on the port already.
    #[error("port {port} has a listener already")]
    PortInUse {
        /// The port (rdma_cm's, not UDP's).
        port: u16,
    },
    /// IPv4 here and IPv6 there.
    #[error("the addresses of both ends are not of one family")]
    AddressFamily,
}

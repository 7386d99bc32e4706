//! What an endpoint is told when it is made, and what it is told of a route.
//!
//! Plain values; read by everything in this folder, filled in by the providers of `lariat-fabric`.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use lariat_wire::rocev2::cm::{CmTimeout, PathMtu};
use lariat_wire::rocev2::{Psn, Qpn, RnrTimer, UDP_PORT};

use crate::cm::Marker;
use crate::qp::QpParams;
use crate::verbs::DeviceLimits;

/// Which member of a group of sockets an endpoint is. Queue pair numbers and communication ids of
/// a member are congruent to its index modulo the count, so that the kernel can steer datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// From 0 to `count - 1`.
    pub index: u8,
    /// Members of the group, at least 1.
    pub count: u8,
}

impl Member {
    /// A socket that is alone.
    pub const ALONE: Self = Self { index: 0, count: 1 };
}

/// The way to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteInfo {
    /// Our address on it; it names us in the connection manager's messages.
    pub local_ip: IpAddr,
    /// The payload that a packet may carry (see [`PathMtu::for_ip_mtu`]).
    pub path_mtu: PathMtu,
}

/// Times and limits of the connection manager (IBTA 12.9.8 and 12.10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmConfig {
    /// How long an answer is waited for before a message is repeated: 4.096 us * 2^n.
    pub response_timeout: CmTimeout,
    /// How often the peer may repeat its answer to our REQ, 0 to 15. The REQ itself is repeated until
    /// the consumer's time is over.
    pub max_retries: u8,
    /// How often a REP is repeated at most, whatever the peer asks for: it goes to an address that
    /// nobody has proven yet, which must not get much more than somebody sent in its name.
    pub accept_retries: u8,
    /// How often DREQ is repeated.
    pub disconnect_retries: u8,
    /// The patience that our MRA asks for while the consumer decides.
    pub service_timeout: CmTimeout,
    /// How long a connection that ended still answers stray messages (IBTA 12.9.8.4).
    pub time_wait: Duration,
    /// Connection requests that wait for the consumer or for the peer's RTU, at most. One beyond
    /// takes the place of the one that has waited longest for its RTU, if that is more than
    /// `half_open_grace`; else it is rejected (reason 1, no queue pair available).
    pub max_half_open: u32,
    /// How long a peer has in any case to answer a REP: some round trips. Requests in others' names
    /// are never answered, so a flood of them cannot keep real peers out for longer.
    pub half_open_grace: Duration,
}

impl Default for CmConfig {
    fn default() -> Self {
        Self {
            response_timeout: CmTimeout::from_code(17),
            max_retries: 15,
            accept_retries: 4,
            disconnect_retries: 7,
            service_timeout: CmTimeout::from_code(20),
            time_wait: Duration::from_millis(500),
            max_half_open: 256,
            half_open_grace: Duration::from_millis(20),
        }
    }
}

/// What an endpoint is told when it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointConfig {
    /// The UDP address of the socket. With an unspecified IP address requests to any are taken.
    pub local: SocketAddr,
    /// Which socket of a group this is.
    pub member: Member,
    /// The UDP port of peers that do not name another: 4791.
    pub peer_udp_port: u16,
    /// Our node's globally unique identifier, in REQ and REP.
    pub ca_guid: u64,
    /// Seed of the generator of queue pair numbers, sequence numbers and communication ids.
    pub seed: [u8; 32],
    /// Connections at most, in whatever state; 1 to 65,536.
    pub max_connections: u32,
    /// What [`super::Endpoint::limits`] says and [`super::Endpoint::create_qp`] checks.
    pub device: DeviceLimits,
    /// The connection manager's times.
    pub cm: CmConfig,
    /// How long peers shall wait for our acknowledgements: 4.096 us * 2^n, in our REQ.
    pub ack_timeout: CmTimeout,
    /// Unacknowledged bytes of a queue pair, at most.
    pub max_inflight_bytes: u32,
    /// The shortest retransmission timeout of queue pairs.
    pub rto_floor: Duration,
    /// The longest.
    pub rto_cap: Duration,
    /// How long an acknowledgement may wait for data to ride behind.
    pub ack_hold: Duration,
    /// How long a missing request packet of a foreign peer is waited for before the peer is told; see
    /// [`QpParams::gap_hold`]. Peers like us are told at once: they lose little by it.
    pub gap_hold: Duration,
    /// What a peer is told to wait when no receive is posted.
    pub rnr_timer: RnrTimer,
    /// Packets that one queue pair may send before it is another's turn.
    pub transmit_quantum: usize,
}

impl EndpointConfig {
    /// Usual values for a socket bound to `local`.
    #[must_use]
    pub fn new(local: SocketAddr, ca_guid: u64, seed: [u8; 32]) -> Self {
        Self {
            local,
            member: Member::ALONE,
            peer_udp_port: UDP_PORT,
            ca_guid,
            seed,
            max_connections: 4096,
            device: DeviceLimits {
                max_queue_depth: 16_384,
                max_sge: 2,
                max_initiator_depth: 128,
                max_responder_resources: 128,
                send_with_invalidate: true,
                read_sink_needs_remote_write: false,
                acknowledges: true,
                max_message_bytes: 1 << 31,
                max_shared_receives: 1 << 15,
            },
            cm: CmConfig::default(),
            ack_timeout: CmTimeout::from_code(17),
            max_inflight_bytes: 1 << 20,
            rto_floor: Duration::from_millis(1),
            rto_cap: Duration::from_millis(500),
            ack_hold: Duration::from_micros(50),
            gap_hold: Duration::from_millis(2),
            rnr_timer: RnrTimer::from_code(12),
            transmit_quantum: 64,
        }
    }

    /// What all queue pairs of the endpoint have in common.
    pub(crate) fn qp_params(
        &self,
        remote: SocketAddr,
        peer_qpn: Qpn,
        path_mtu: PathMtu,
        send_psn: Psn,
        expected_psn: Psn,
    ) -> QpParams {
        QpParams {
            max_inflight_bytes: self.max_inflight_bytes,
            rto_floor: self.rto_floor,
            rto_cap: self.rto_cap,
            ack_hold: self.ack_hold,
            gap_hold: self.gap_hold,
            rnr_timer: self.rnr_timer,
            ..QpParams::new(remote, peer_qpn, path_mtu, send_psn, expected_psn)
        }
    }

    /// Where our sockets are, for peers that understand it.
    pub(crate) fn marker(&self) -> Marker {
        Marker { udp_port: self.local.port(), sockets: self.member.count }
    }
}

//! What a queue pair is told at its creation and activation, and what it tells about itself.
//!
//! Plain data; used by the queue pair and its owner.

use core::net::SocketAddr;
use core::time::Duration;

use lariat_wire::rocev2::cm::PathMtu;
use lariat_wire::rocev2::{NakCode, Psn, Qpn, RnrTimer};

use crate::verbs::{ConnId, DomainId, SharedReceiveId, WcStatus};

/// The largest message in bytes (IBTA 9.7.2: 2^31).
pub const MAX_MESSAGE_BYTES: u32 = 1 << 31;

/// What is known when a queue pair is created. Its queues are allocated then, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpSetup {
    /// The connection; stands in every completion.
    pub conn: ConnId,
    /// Its own number.
    pub qpn: Qpn,
    /// The protection domain whose regions it reaches.
    pub domain: DomainId,
    /// Send work requests outstanding at most. A request counts until its completion was polled.
    pub max_send: u32,
    /// Receive work requests outstanding at most, counted likewise.
    pub max_recv: u32,
    /// The shared queue that its receives come from; then it takes none of its own.
    pub shared_receive: Option<SharedReceiveId>,
    /// Whether WRITEs of several packets go out as WRITEs of one packet each, unless the peer grants
    /// credits by the message.
    pub divide_writes: bool,
}

/// What is known when the connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpParams {
    /// Where packets go (UDP).
    pub remote: SocketAddr,
    /// The peer's queue pair.
    pub peer_qpn: Qpn,
    /// Payload per packet (IBTA 9.6).
    pub path_mtu: PathMtu,
    /// Our first packet's number.
    pub send_psn: Psn,
    /// The peer's first packet's number.
    pub expected_psn: Psn,
    /// RDMA READs we may have outstanding.
    pub initiator_depth: u8,
    /// RDMA READs of the peer we serve at a time.
    pub responder_resources: u8,
    /// Transport retries (0-7): with `ack_timeout`, how long the peer may stay silent.
    pub retry_count: u8,
    /// Receiver-not-ready retries (0-6; 7 is without end).
    pub rnr_retry_count: u8,
    /// The negotiated acknowledge timeout. A request without any progress for
    /// `(retry_count + 1) * ack_timeout` fails the queue pair; retransmission itself goes by
    /// measured round trips. Less than `rto_floor` counts as that.
    pub ack_timeout: Duration,
    /// Bytes on their way at most, READs' answers included: the congestion window's ceiling.
    pub max_inflight_bytes: u32,
    /// The shortest retransmission timeout.
    pub rto_floor: Duration,
    /// The longest, which exponential backoff reaches.
    pub rto_cap: Duration,
    /// How long an acknowledge may wait for data to ride behind. Zero: not at all.
    pub ack_hold: Duration,
    /// How long a missing request packet is waited for before the peer is told, unless many come
    /// behind it; these are kept. Zero: it is told at once, and nothing is kept.
    pub gap_hold: Duration,
    /// What the peer is told to wait when no receive is posted.
    pub rnr_timer: RnrTimer,
    /// Whether acknowledges count the posted receives (end-to-end credits, IBTA 9.7.7.2) or grant
    /// without limit, as Soft-RoCE does. The count limits messages of every kind that precede a
    /// SEND, WRITEs too, so a storage target's WRITE + SEND pairs are held back by it although each
    /// has its receive; a protocol with its own flow control, as NVMe/RDMA, should not ask for it.
    /// A queue pair with a shared receive queue has nothing to count: it grants without limit.
    pub advertise_credits: bool,
}

impl QpParams {
    /// Parameters with the values that suit most connections, to be refined field by field.
    #[must_use]
    pub const fn new(
        remote: SocketAddr,
        peer_qpn: Qpn,
        path_mtu: PathMtu,
        send_psn: Psn,
        expected_psn: Psn,
    ) -> Self {
        Self {
            remote,
            peer_qpn,
            path_mtu,
            send_psn,
            expected_psn,
            initiator_depth: 16,
            responder_resources: 16,
            retry_count: 7,
            rnr_retry_count: 7,
            // 4.096 us * 2^17, what Linux's connection manager asks for.
            ack_timeout: Duration::from_micros(536_871),
            max_inflight_bytes: 4 << 20,
            rto_floor: Duration::from_millis(1),
            rto_cap: Duration::from_millis(500),
            ack_hold: Duration::from_micros(50),
            gap_hold: Duration::ZERO,
            rnr_timer: RnrTimer::from_code(12),
            advertise_credits: false,
        }
    }
}

/// Why a queue pair is in the error state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpFailure {
    /// Its owner ended it.
    Closed,
    /// The peer did not answer within the retries.
    PeerSilent,
    /// The peer stayed without a receive.
    PeerNotReady,
    /// The peer refused a request of ours.
    Refused(NakCode),
    /// We refused a request of the peer.
    Offended(NakCode),
    /// A request of ours, or the memory it named, was at fault.
    Local(WcStatus),
}

/// What a queue pair did since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QpCounters {
    /// Packets sent, of all kinds.
    pub packets_sent: u64,
    /// Packets received, of all kinds.
    pub packets_received: u64,
    /// Request packets sent again.
    pub packets_resent: u64,
    /// Packets that were dropped: stale, out of order, or senseless.
    pub packets_dropped: u64,
    /// Request packets kept because one before them was missing.
    pub packets_early: u64,
    /// Requests of the peer that came twice.
    pub duplicates: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Gaps that the peer told us of (NAK), or that a READ's answer showed.
    pub gaps_told: u64,
    /// Gaps that we told the peer of (NAK).
    pub gaps_seen: u64,
    /// RNR NAKs received.
    pub rnr_received: u64,
    /// RNR NAKs sent.
    pub rnr_sent: u64,
    /// Acknowledges sent, apart from those that READ answers carry.
    pub acks_sent: u64,
    /// Congestion notifications received.
    pub cnps_received: u64,
    /// Congestion notifications sent.
    pub cnps_sent: u64,
}

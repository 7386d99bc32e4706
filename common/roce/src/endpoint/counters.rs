//! What an endpoint counts. Never reset; read with `Endpoint::counters`.

use crate::qp::QpCounters;

/// Counts since the endpoint was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointCounters {
    /// Packets handed out to be sent.
    pub packets_sent: u64,
    /// Packets handed in.
    pub packets_received: u64,
    /// Packets for a queue pair number that is not in use.
    pub unknown_queue_pair: u64,
    /// Packets for a queue pair from an address that is not its peer's.
    pub wrong_peer: u64,
    /// Packets with a partition key that is not ours.
    pub bad_pkey: u64,
    /// Datagrams to queue pair 1 with another queue key.
    pub bad_qkey: u64,
    /// Datagrams to queue pair 1 that are not the connection manager's.
    pub bad_mad: u64,
    /// Messages of the connection manager that came.
    pub cm_received: u64,
    /// Messages of the connection manager that were sent, repetitions included.
    pub cm_sent: u64,
    /// Messages of the connection manager that were sent again.
    pub cm_repeated: u64,
    /// Messages of the connection manager that fitted no connection or not its state.
    pub cm_ignored: u64,
    /// Answers of the connection manager that were dropped because too many waited.
    pub cm_overflow: u64,
    /// Connection requests rejected by the endpoint itself, without asking the consumer.
    pub requests_rejected: u64,
    /// Connection requests for a queue pair that was still in use (reason 10).
    pub stale_connections: u64,
    /// Connections given up because another wanted to come and their peer had not answered the REP.
    pub unanswered_dropped: u64,
    /// Packets sent again by queue pairs.
    pub retransmissions: u64,
    /// Negative acknowledgements sent.
    pub naks_sent: u64,
    /// Negative acknowledgements received.
    pub naks_received: u64,
    /// Congestion marks and notifications seen.
    pub congestion_marks: u64,
}

impl EndpointCounters {
    /// Adds what a queue pair counted.
    pub(super) fn add(&mut self, qp: &QpCounters) {
        self.retransmissions += qp.packets_resent;
        self.naks_sent += qp.gaps_seen + qp.rnr_sent;
        self.naks_received += qp.gaps_told + qp.rnr_received;
        self.congestion_marks += qp.cnps_received + qp.cnps_sent;
    }
}

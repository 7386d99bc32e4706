//! REP: the reply that accepts a connection.
//!
//! Uses `fields`, `ids`, `types`; used by `cm`.

use super::{BODY_LEN, CmTimeout, CommId};
use crate::rocev2::fields::Fields;
use crate::rocev2::{Psn, QKey, Qpn};

/// Reply to a request for communication (IBTA 12.6.8). What only the RD service
/// needs is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rep {
    /// The sender's name for the connection.
    pub local_comm_id: CommId,
    /// The receiver's.
    pub remote_comm_id: CommId,
    /// Queue key; zero for connected services.
    pub qkey: QKey,
    /// The sender's queue pair.
    pub local_qpn: Qpn,
    /// What the RECEIVER of the REP shall send first.
    pub starting_psn: Psn,
    /// RDMA READs and atomics that the sender serves at a time.
    pub responder_resources: u8,
    /// RDMA READs and atomics that the sender will have outstanding.
    pub initiator_depth: u8,
    /// How long the sender's ACKs may take.
    pub target_ack_delay: CmTimeout,
    /// Whether an alternate path was accepted, 2 bits.
    pub failover_accepted: u8,
    /// Whether the sender does end-to-end flow control.
    pub flow_control: bool,
    /// Retries after "receiver not ready", 3 bits; 7 means without end.
    pub rnr_retry_count: u8,
    /// Whether the sender's queue pair has a shared receive queue.
    pub srq: bool,
    /// GUID of the sender's adapter.
    pub ca_guid: u64,
    /// For the consumer.
    pub private_data: [u8; Self::PRIVATE_LEN],
}

impl Rep {
    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 196;

    pub(super) fn parse(body: &[u8; BODY_LEN]) -> Self {
        let delay = body.u8_at::<26>();
        let retry = body.u8_at::<27>();
        Self {
            local_comm_id: CommId(body.be32_at::<0>()),
            remote_comm_id: CommId(body.be32_at::<4>()),
            qkey: QKey(body.be32_at::<8>()),
            local_qpn: Qpn::new(body.be24_at::<12>()),
            starting_psn: Psn::new(body.be24_at::<20>()),
            responder_resources: body.u8_at::<24>(),
            initiator_depth: body.u8_at::<25>(),
            target_ack_delay: CmTimeout::from_code(delay >> 3),
            failover_accepted: (delay >> 1) & 3,
            flow_control: delay & 1 != 0,
            rnr_retry_count: retry >> 5,
            srq: retry & 0x10 != 0,
            ca_guid: body.be64_at::<28>(),
            private_data: body.array_at::<36, { Self::PRIVATE_LEN }>(),
        }
    }

    pub(super) fn to_body(&self) -> [u8; BODY_LEN] {
        let mut out = [0; BODY_LEN];
        out.put_be32::<0>(self.local_comm_id.0);
        out.put_be32::<4>(self.remote_comm_id.0);
        out.put_be32::<8>(self.qkey.0);
        out.put_be24::<12>(self.local_qpn.get());
        out.put_be24::<20>(self.starting_psn.get());
        out.put_u8::<24>(self.responder_resources);
        out.put_u8::<25>(self.initiator_depth);
        out.put_u8::<26>(
            self.target_ack_delay.code() << 3
                | (self.failover_accepted & 3) << 1
                | u8::from(self.flow_control),
        );
        out.put_u8::<27>(self.rnr_retry_count << 5 | u8::from(self.srq) << 4);
        out.put_be64::<28>(self.ca_guid);
        out.put_array::<36, { Self::PRIVATE_LEN }>(self.private_data);
        out
    }
}

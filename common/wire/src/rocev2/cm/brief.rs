//! The shorter messages: MRA, REJ, RTU, DREQ, DREP.
//!
//! Uses `fields`, `ids`, `types`; used by `cm`.

use super::{BODY_LEN, CmTimeout, CommId, RefersTo, RejReason};
use crate::rocev2::Qpn;
use crate::rocev2::fields::Fields;

/// Message receipt acknowledgement: the answer will take longer (IBTA 12.6.6).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mra {
    /// The sender's name for the connection.
    pub local_comm_id: CommId,
    /// The receiver's.
    pub remote_comm_id: CommId,
    /// The message received.
    pub refers_to: RefersTo,
    /// How long the answer may take from now.
    pub service_timeout: CmTimeout,
    /// For the consumer.
    pub private_data: [u8; Self::PRIVATE_LEN],
}

impl Mra {
    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 222;

    pub(super) fn parse(body: &[u8; BODY_LEN]) -> Self {
        Self {
            local_comm_id: CommId(body.be32_at::<0>()),
            remote_comm_id: CommId(body.be32_at::<4>()),
            refers_to: RefersTo::from_code(body.u8_at::<8>() >> 6),
            service_timeout: CmTimeout::from_code(body.u8_at::<9>() >> 3),
            private_data: body.array_at::<10, { Self::PRIVATE_LEN }>(),
        }
    }

    pub(super) fn to_body(&self) -> [u8; BODY_LEN] {
        let mut out = [0; BODY_LEN];
        out.put_be32::<0>(self.local_comm_id.0);
        out.put_be32::<4>(self.remote_comm_id.0);
        out.put_u8::<8>(self.refers_to.code() << 6);
        out.put_u8::<9>(self.service_timeout.code() << 3);
        out.put_array::<10, { Self::PRIVATE_LEN }>(self.private_data);
        out
    }
}

/// Rejection (IBTA 12.6.7).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rej {
    /// The sender's name for the connection; 0 when it rejects a REQ.
    pub local_comm_id: CommId,
    /// The receiver's.
    pub remote_comm_id: CommId,
    /// The message rejected.
    pub refers_to: RefersTo,
    /// Bytes of `additional_info` that count, 7 bits.
    pub info_len_bytes: u8,
    /// Why.
    pub reason: RejReason,
    /// What the reason says more: the right GID, say.
    pub additional_info: [u8; Self::INFO_LEN],
    /// For the consumer.
    pub private_data: [u8; Self::PRIVATE_LEN],
}

impl Rej {
    /// Bytes of additional information.
    pub const INFO_LEN: usize = 72;
    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 148;

    pub(super) fn parse(body: &[u8; BODY_LEN]) -> Self {
        Self {
            local_comm_id: CommId(body.be32_at::<0>()),
            remote_comm_id: CommId(body.be32_at::<4>()),
            refers_to: RefersTo::from_code(body.u8_at::<8>() >> 6),
            info_len_bytes: body.u8_at::<9>() >> 1,
            reason: RejReason(body.be16_at::<10>()),
            additional_info: body.array_at::<12, { Self::INFO_LEN }>(),
            private_data: body.array_at::<84, { Self::PRIVATE_LEN }>(),
        }
    }

    pub(super) fn to_body(&self) -> [u8; BODY_LEN] {
        let mut out = [0; BODY_LEN];
        out.put_be32::<0>(self.local_comm_id.0);
        out.put_be32::<4>(self.remote_comm_id.0);
        out.put_u8::<8>(self.refers_to.code() << 6);
        out.put_u8::<9>(self.info_len_bytes << 1);
        out.put_be16::<10>(self.reason.0);
        out.put_array::<12, { Self::INFO_LEN }>(self.additional_info);
        out.put_array::<84, { Self::PRIVATE_LEN }>(self.private_data);
        out
    }
}

/// Ready to use: the REP has arrived (IBTA 12.6.9).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rtu {
    /// The sender's name for the connection.
    pub local_comm_id: CommId,
    /// The receiver's.
    pub remote_comm_id: CommId,
    /// For the consumer.
    pub private_data: [u8; Self::PRIVATE_LEN],
}

impl Rtu {
    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 224;

    pub(super) fn parse(body: &[u8; BODY_LEN]) -> Self {
        Self {
            local_comm_id: CommId(body.be32_at::<0>()),
            remote_comm_id: CommId(body.be32_at::<4>()),
            private_data: body.array_at::<8, { Self::PRIVATE_LEN }>(),
        }
    }

    pub(super) fn to_body(&self) -> [u8; BODY_LEN] {
        let mut out = [0; BODY_LEN];
        out.put_be32::<0>(self.local_comm_id.0);
        out.put_be32::<4>(self.remote_comm_id.0);
        out.put_array::<8, { Self::PRIVATE_LEN }>(self.private_data);
        out
    }
}

/// Request to disconnect (IBTA 12.6.10).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dreq {
    /// The sender's name for the connection.
    pub local_comm_id: CommId,
    /// The receiver's.
    pub remote_comm_id: CommId,
    /// The receiver's queue pair.
    pub remote_qpn: Qpn,
    /// For the consumer.
    pub private_data: [u8; Self::PRIVATE_LEN],
}

impl Dreq {
    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 220;

    pub(super) fn parse(body: &[u8; BODY_LEN]) -> Self {
        Self {
            local_comm_id: CommId(body.be32_at::<0>()),
            remote_comm_id: CommId(body.be32_at::<4>()),
            remote_qpn: Qpn::new(body.be24_at::<8>()),
            private_data: body.array_at::<12, { Self::PRIVATE_LEN }>(),
        }
    }

    pub(super) fn to_body(&self) -> [u8; BODY_LEN] {
        let mut out = [0; BODY_LEN];
        out.put_be32::<0>(self.local_comm_id.0);
        out.put_be32::<4>(self.remote_comm_id.0);
        out.put_be24::<8>(self.remote_qpn.get());
        out.put_array::<12, { Self::PRIVATE_LEN }>(self.private_data);
        out
    }
}

/// Reply to a request to disconnect (IBTA 12.6.11).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drep {
    /// The sender's name for the connection.
    pub local_comm_id: CommId,
    /// The receiver's.
    pub remote_comm_id: CommId,
    /// For the consumer.
    pub private_data: [u8; Self::PRIVATE_LEN],
}

impl Drep {
    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 224;

    pub(super) fn parse(body: &[u8; BODY_LEN]) -> Self {
        Self {
            local_comm_id: CommId(body.be32_at::<0>()),
            remote_comm_id: CommId(body.be32_at::<4>()),
            private_data: body.array_at::<8, { Self::PRIVATE_LEN }>(),
        }
    }

    pub(super) fn to_body(&self) -> [u8; BODY_LEN] {
        let mut out = [0; BODY_LEN];
        out.put_be32::<0>(self.local_comm_id.0);
        out.put_be32::<4>(self.remote_comm_id.0);
        out.put_array::<8, { Self::PRIVATE_LEN }>(self.private_data);
        out
    }
}

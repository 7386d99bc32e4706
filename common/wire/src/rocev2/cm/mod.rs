//! The connection manager's messages, as management datagrams on queue pair 1.
//!
//! Uses `mad`, `fields`, `ids`; called by the connection manager of
//! `lariat-roce`. Reserved fields are ignored when parsed and sent as zero.
//! Specification: IBTA 12.6 (messages), A11 (RDMA IP CM service).

mod brief;
mod ip;
mod rep;
mod req;
mod types;

pub use brief::{Drep, Dreq, Mra, Rej, Rtu};
pub use ip::{IpCmError, IpCmHeader, ServiceId, service_id};
pub use rep::Rep;
pub use req::{Path, Req};
pub use types::{
    CmTimeout, CommId, Gid, PathMtu, RefersTo, RejReason, TransportService, private_data,
};

use super::mad::{CM_MAD_LEN, CM_MAD_MIN_LEN, MadError, MadHeader};

/// Bytes of a message behind the MAD header.
const BODY_LEN: usize = CM_MAD_LEN - MadHeader::LEN;

/// A message of the connection manager with the header it travels under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CmMad {
    /// The datagram's header. Its attribute is that of `message`: what is
    /// emitted is taken from there.
    pub header: MadHeader,
    /// The message.
    pub message: CmMessage,
}

impl CmMad {
    /// A message under the usual header. Answers carry the transaction of the
    /// message that they answer.
    #[must_use]
    pub const fn new(transaction_id: u64, message: CmMessage) -> Self {
        Self { header: MadHeader::cm(message.attribute(), transaction_id), message }
    }

    /// Reads the payload of a datagram to queue pair 1.
    ///
    /// # Errors
    /// When it has the wrong length or is not of the connection manager.
    pub fn parse(bytes: &[u8]) -> Result<Self, MadError> {
        let len = bytes.len();
        if !(CM_MAD_MIN_LEN..=CM_MAD_LEN).contains(&len) {
            return Err(MadError::Length { len });
        }
        let (header, rest) =
            bytes.split_first_chunk::<{ MadHeader::LEN }>().ok_or(MadError::Length { len })?;
        let header = MadHeader::parse(header);
        header.check_cm()?;
        let body = private_data::<BODY_LEN>(rest).ok_or(MadError::Length { len })?;
        let message = CmMessage::parse(header.attribute, &body);
        Ok(Self { header, message })
    }

    /// The datagram's bytes.
    #[must_use]
    pub fn emit(&self) -> [u8; CM_MAD_LEN] {
        let header = MadHeader { attribute: self.message.attribute(), ..self.header };
        let mut out = [0; CM_MAD_LEN];
        let (head, body) = out.split_at_mut(MadHeader::LEN);
        head.copy_from_slice(&header.to_bytes());
        body.copy_from_slice(&self.message.to_body());
        out
    }

    /// Names the exchange that the message belongs to.
    #[must_use]
    pub const fn transaction_id(&self) -> u64 {
        self.header.transaction_id
    }
}

/// A message of the connection manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CmMessage {
    /// Request for a connection.
    Req(Box<Req>),
    /// Message receipt acknowledgement: have patience.
    Mra(Mra),
    /// Rejection.
    Rej(Rej),
    /// Reply to a request: accepted.
    Rep(Rep),
    /// Ready to use.
    Rtu(Rtu),
    /// Request to disconnect.
    Dreq(Dreq),
    /// Reply to that.
    Drep(Drep),
    /// Another message, its body left out.
    Unknown {
        /// What it is (IBTA 16.7.3).
        attribute: u16,
    },
}

impl CmMessage {
    const REQ: u16 = 0x10;
    const MRA: u16 = 0x11;
    const REJ: u16 = 0x12;
    const REP: u16 = 0x13;
    const RTU: u16 = 0x14;
    const DREQ: u16 = 0x15;
    const DREP: u16 = 0x16;

    /// The attribute that stands for the message in the MAD header (IBTA 16.7.3).
    #[must_use]
    pub const fn attribute(&self) -> u16 {
        match self {
            Self::Req(_) => Self::REQ,
            Self::Mra(_) => Self::MRA,
            Self::Rej(_) => Self::REJ,
            Self::Rep(_) => Self::REP,
            Self::Rtu(_) => Self::RTU,
            Self::Dreq(_) => Self::DREQ,
            Self::Drep(_) => Self::DREP,
            Self::Unknown { attribute } => *attribute,
        }
    }

    fn parse(attribute: u16, body: &[u8; BODY_LEN]) -> Self {
        match attribute {
            Self::REQ => Self::Req(Box::new(Req::parse(body))),
            Self::MRA => Self::Mra(Mra::parse(body)),
            Self::REJ => Self::Rej(Rej::parse(body)),
            Self::REP => Self::Rep(Rep::parse(body)),
            Self::RTU => Self::Rtu(Rtu::parse(body)),
            Self::DREQ => Self::Dreq(Dreq::parse(body)),
            Self::DREP => Self::Drep(Drep::parse(body)),
            attribute => Self::Unknown { attribute },
        }
    }

    fn to_body(&self) -> [u8; BODY_LEN] {
        match self {
            Self::Req(req) => req.to_body(),
            Self::Mra(mra) => mra.to_body(),
            Self::Rej(rej) => rej.to_body(),
            Self::Rep(rep) => rep.to_body(),
            Self::Rtu(rtu) => rtu.to_body(),
            Self::Dreq(dreq) => dreq.to_body(),
            Self::Drep(drep) => drep.to_body(),
            Self::Unknown { .. } => [0; BODY_LEN],
        }
    }
}

#[cfg(test)]
mod tests;

//! Private data of the RDMA connection manager for NVMe queues (NVMe RDMA
//! transport 1.1, 3.2): what a host says in its request, a controller in its
//! reply or reject. Calls `nvme::ids`; the connection set-up of both ends calls
//! it.
//!
//! # Which sizes are zero-based
//!
//! | field | wire | here |
//! |---|---|---|
//! | HRQSIZE | number of entries | `hrqsize: u16`, number of entries |
//! | HSQSIZE | zero-based, equal to Connect's SQSIZE | `hsqsize: QueueSize` |
//! | CRQSIZE | number of entries (kernel targets answer HSQSIZE + 1) | `crqsize: u16`, number of entries |
//!
//! A kernel host sends hrqsize 32 and hsqsize 31 for its admin queue of 32.

use thiserror::Error;

use crate::endian::le16;
use crate::nvme::ids::{ControllerId, Qid, QueueSize};
use crate::open_enum::open_enum;

/// The only record format that exists.
pub const RECORD_FORMAT: u16 = 0;

/// Size of a request's private data.
pub const CONNECT_REQUEST_BYTES: usize = 32;
/// Size of a reply's private data.
pub const CONNECT_ACCEPT_BYTES: usize = 32;
/// Size of a reject's private data.
pub const CONNECT_REJECT_BYTES: usize = 4;

open_enum! {
    /// Why a controller rejected a connection.
    RejectStatus(u16) {
        INVALID_LENGTH = 1, "Invalid Private Data Length";
        INVALID_RECORD_FORMAT = 2, "Invalid RECFMT";
        INVALID_QID = 3, "Invalid QID";
        INVALID_HSQSIZE = 4, "Invalid HSQSIZE";
        INVALID_HRQSIZE = 5, "Invalid HRQSIZE";
        NO_RESOURCES = 6, "No Resources";
        INVALID_IRD = 7, "Invalid IRD";
        INVALID_ORD = 8, "Invalid ORD";
        INVALID_CNTLID = 9, "Invalid CNTLID";
    }
}

/// Why private data cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum PrivateDataError {
    /// Too few bytes.
    #[error("{got} bytes of private data, at least {needed} are needed")]
    TooShort {
        /// Bytes that are there.
        got: usize,
        /// Bytes that must be.
        needed: usize,
    },
    /// A record format other than 0.
    #[error("private data record format {0} is unknown")]
    RecordFormat(u16),
}

impl PrivateDataError {
    /// The status to reject a request with.
    #[must_use]
    pub const fn reject_status(self) -> RejectStatus {
        match self {
            Self::TooShort { .. } => RejectStatus::INVALID_LENGTH,
            Self::RecordFormat(_) => RejectStatus::INVALID_RECORD_FORMAT,
        }
    }
}

/// Checks the length and the record format, which come first in all three.
fn check(bytes: &[u8], needed: usize) -> Result<(), PrivateDataError> {
    let short = PrivateDataError::TooShort { got: bytes.len(), needed };
    if bytes.len() < needed {
        return Err(short);
    }
    match le16(bytes, 0).ok_or(short)? {
        RECORD_FORMAT => Ok(()),
        other => Err(PrivateDataError::RecordFormat(other)),
    }
}

fn field(bytes: &[u8], at: usize, needed: usize) -> Result<u16, PrivateDataError> {
    le16(bytes, at).ok_or(PrivateDataError::TooShort { got: bytes.len(), needed })
}

/// A host's request: 32 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ConnectRequest {
    /// The queue to connect.
    pub qid: Qid,
    /// Entries of the host's receive queue: a true count.
    pub hrqsize: u16,
    /// Entries of the host's send queue, the size of the submission queue;
    /// zero-based on the wire.
    pub hsqsize: QueueSize,
    /// The controller that an I/O queue is meant for. Older hosts send 0.
    pub cntlid: ControllerId,
}

impl ConnectRequest {
    /// The request of a host whose queues both have `size` entries. (A count of
    /// 65,536 has no HRQSIZE; 65,535 is sent then.)
    #[must_use]
    pub fn new(qid: Qid, size: QueueSize, cntlid: ControllerId) -> Self {
        let hrqsize = u16::try_from(size.entries()).unwrap_or(u16::MAX);
        Self { qid, hrqsize, hsqsize: size, cntlid }
    }

    /// Reads private data; bytes after the first 32 are padding.
    ///
    /// # Errors
    /// Too short, or a record format other than 0;
    /// [`PrivateDataError::reject_status`] is the answer.
    pub fn parse(bytes: &[u8]) -> Result<Self, PrivateDataError> {
        check(bytes, CONNECT_REQUEST_BYTES)?;
        let at = |offset| field(bytes, offset, CONNECT_REQUEST_BYTES);
        Ok(Self {
            qid: Qid(at(2)?),
            hrqsize: at(4)?,
            hsqsize: QueueSize::from_zero_based(at(6)?),
            cntlid: ControllerId(at(8)?),
        })
    }

    /// As private data.
    #[must_use]
    pub fn to_bytes(self) -> [u8; CONNECT_REQUEST_BYTES] {
        let mut bytes = [0; CONNECT_REQUEST_BYTES];
        bytes[2..4].copy_from_slice(&self.qid.0.to_le_bytes());
        bytes[4..6].copy_from_slice(&self.hrqsize.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.hsqsize.zero_based().to_le_bytes());
        bytes[8..10].copy_from_slice(&self.cntlid.0.to_le_bytes());
        bytes
    }
}

/// A controller's reply: 32 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ConnectAccept {
    /// Entries of the controller's receive queue: a true count, and the number
    /// of capsules that the host may have outstanding.
    pub crqsize: u16,
}

impl ConnectAccept {
    /// The reply of a controller that posts a receive for each of `size`
    /// entries. (65,535 is sent for 65,536.)
    #[must_use]
    pub fn new(size: QueueSize) -> Self {
        Self { crqsize: u16::try_from(size.entries()).unwrap_or(u16::MAX) }
    }

    /// Reads private data; only its first 4 bytes are needed.
    ///
    /// # Errors
    /// Too short, or a record format other than 0.
    pub fn parse(bytes: &[u8]) -> Result<Self, PrivateDataError> {
        check(bytes, 4)?;
        Ok(Self { crqsize: field(bytes, 2, 4)? })
    }

    /// As private data.
    #[must_use]
    pub fn to_bytes(self) -> [u8; CONNECT_ACCEPT_BYTES] {
        let mut bytes = [0; CONNECT_ACCEPT_BYTES];
        bytes[2..4].copy_from_slice(&self.crqsize.to_le_bytes());
        bytes
    }
}

/// A controller's reject: 4 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ConnectReject {
    /// Why.
    pub status: RejectStatus,
}

impl ConnectReject {
    /// Reads private data; bytes after the first 4 are padding.
    ///
    /// # Errors
    /// Too short, or a record format other than 0.
    pub fn parse(bytes: &[u8]) -> Result<Self, PrivateDataError> {
        check(bytes, CONNECT_REJECT_BYTES)?;
        Ok(Self { status: RejectStatus(field(bytes, 2, CONNECT_REJECT_BYTES)?) })
    }

    /// As private data.
    #[must_use]
    pub fn to_bytes(self) -> [u8; CONNECT_REJECT_BYTES] {
        let [low, high] = self.status.0.to_le_bytes();
        [0, 0, low, high]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn captured_admin_queue_handshake() {
        let size = QueueSize::from_entries(32).unwrap();
        let mut request = [0u8; 56];
        request[4] = 0x20;
        request[6] = 0x1f;
        let parsed = ConnectRequest::parse(&request).unwrap();
        assert_eq!(parsed, ConnectRequest::new(Qid::ADMIN, size, ControllerId(0)));
        assert_eq!(parsed.to_bytes(), request[..32]);
        assert_eq!(ConnectAccept::new(size).to_bytes()[..4], [0, 0, 0x20, 0]);
    }

    #[test]
    fn what_is_wrong_becomes_a_reject() {
        let error = ConnectRequest::parse(&[0; 31]).unwrap_err();
        assert_eq!(error, PrivateDataError::TooShort { got: 31, needed: 32 });
        assert_eq!(error.reject_status(), RejectStatus::INVALID_LENGTH);
        let mut bytes = [0; 32];
        bytes[0] = 1;
        let error = ConnectRequest::parse(&bytes).unwrap_err();
        assert_eq!(error.reject_status().0, 2);
        assert_eq!(RejectStatus::INVALID_HSQSIZE.0, 4);
        assert_eq!(RejectStatus(77).to_string(), "RejectStatus 0x4d");
    }

    proptest! {
        #[test]
        fn round_trips(qid: u16, hrqsize: u16, hsqsize: u16, cntlid: u16, crqsize: u16, status: u16) {
            let request = ConnectRequest {
                qid: Qid(qid),
                hrqsize,
                hsqsize: QueueSize::from_zero_based(hsqsize),
                cntlid: ControllerId(cntlid),
            };
            prop_assert_eq!(ConnectRequest::parse(&request.to_bytes()), Ok(request));
            let accept = ConnectAccept { crqsize };
            prop_assert_eq!(ConnectAccept::parse(&accept.to_bytes()), Ok(accept));
            let reject = ConnectReject { status: RejectStatus(status) };
            prop_assert_eq!(ConnectReject::parse(&reject.to_bytes()), Ok(reject));
        }

        #[test]
        fn parsers_are_total(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let short = bytes.len() < 32;
            let known = bytes.starts_with(&[0, 0]);
            prop_assert_eq!(ConnectRequest::parse(&bytes).is_ok(), !short && known);
            prop_assert_eq!(ConnectAccept::parse(&bytes).is_ok(), bytes.len() >= 4 && known);
            prop_assert_eq!(ConnectReject::parse(&bytes).is_ok(), bytes.len() >= 4 && known);
        }
    }
}

//! Answers of the connection manager that need no connection, and shapes that the others share.
//!
//! Called by `exchange` and the endpoint.

use lariat_wire::rocev2::cm::{
    CmMad, CmMessage, CmTimeout, CommId, Drep, Gid, Mra, RefersTo, Rej, RejReason, Rtu,
};

/// A rejection. `info` is the additional rejection information (IBTA 12.6.7.2), at most 72 bytes.
pub(super) fn rej(
    transaction: u64,
    (local, remote): (CommId, CommId),
    refers_to: RefersTo,
    reason: RejReason,
    info: &[u8],
    private_data: [u8; Rej::PRIVATE_LEN],
) -> CmMad {
    let mut additional_info = [0; Rej::INFO_LEN];
    let mut info_len_bytes = 0;
    if let Some(into) = additional_info.get_mut(..info.len()) {
        into.copy_from_slice(info);
        info_len_bytes = u8::try_from(info.len()).unwrap_or(0);
    }
    CmMad::new(
        transaction,
        CmMessage::Rej(Rej {
            local_comm_id: local,
            remote_comm_id: remote,
            refers_to,
            info_len_bytes,
            reason,
            additional_info,
            private_data,
        }),
    )
}

/// Rejects a REQ for which no connection was made. `gid` goes with reason 12: the right address.
pub(crate) fn reject_request(
    transaction: u64,
    requester: CommId,
    reason: RejReason,
    gid: Option<Gid>,
) -> CmMad {
    let gid = gid.map(|gid| gid.0);
    let info = gid.as_ref().map_or(&[][..], |gid| gid);
    rej(transaction, (CommId(0), requester), RefersTo::Req, reason, info, [0; Rej::PRIVATE_LEN])
}

/// The answer to a message that names a connection which we do not know: a peer shall not wait for
/// what will not come (IBTA 12.9.8.3.1: DREP even then; 12.6.7.2: reason 6).
pub(crate) fn reply_to_unknown(mad: &CmMad) -> Option<CmMad> {
    let transaction = mad.transaction_id();
    match &mad.message {
        CmMessage::Dreq(dreq) => Some(drep(transaction, dreq.remote_comm_id, dreq.local_comm_id)),
        CmMessage::Rep(rep) => Some(rej(
            transaction,
            (rep.remote_comm_id, rep.local_comm_id),
            RefersTo::Rep,
            RejReason::INVALID_COMM_ID,
            &[],
            [0; Rej::PRIVATE_LEN],
        )),
        _ => None,
    }
}

pub(super) fn drep(transaction: u64, local: CommId, remote: CommId) -> CmMad {
    CmMad::new(
        transaction,
        CmMessage::Drep(Drep {
            local_comm_id: local,
            remote_comm_id: remote,
            private_data: [0; Drep::PRIVATE_LEN],
        }),
    )
}

pub(super) fn rtu(transaction: u64, local: CommId, remote: CommId) -> CmMad {
    CmMad::new(
        transaction,
        CmMessage::Rtu(Rtu {
            local_comm_id: local,
            remote_comm_id: remote,
            private_data: [0; Rtu::PRIVATE_LEN],
        }),
    )
}

pub(super) fn mra(transaction: u64, local: CommId, remote: CommId, patience: CmTimeout) -> CmMad {
    CmMad::new(
        transaction,
        CmMessage::Mra(Mra {
            local_comm_id: local,
            remote_comm_id: remote,
            refers_to: RefersTo::Req,
            service_timeout: patience,
            private_data: [0; Mra::PRIVATE_LEN],
        }),
    )
}

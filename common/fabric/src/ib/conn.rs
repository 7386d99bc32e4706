//! One connection: its rdma_cm identifier, its queue pair, and how far it has come. Called by
//! `fabric` and `events`, which own all moves of the state.

use core::time::Duration;

use lariat_roce::time::Timestamp;
use lariat_roce::verbs::{ConnId, DisconnectReason, DomainId, WcOpcode, WcStatus, WorkCompletion};
use rdma_sys::{ibv_wc, ibv_wc_flags, ibv_wc_status};

use super::cm::CmId;
use super::events::CLOSE_TIMEOUT;
use super::qp::{Awaited, QueuePair, Tag};

/// How long a device may take to say that a broken queue pair takes no more receives of a shared
/// queue, which it should do at once; Soft-RoCE of Linux 6.1 never does.
const LAST_RECEIVE_TIMEOUT: Duration = Duration::from_millis(100);

/// Where a connection is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Active side: address and route are asked for.
    Resolving {
        remote: core::net::SocketAddr,
        deadline: Timestamp,
    },
    /// Active side: a queue pair can be made.
    Resolved,
    /// Passive side: RDMA READs the peer serves, and wants to have outstanding.
    Requested {
        offer: (u8, u8),
    },
    /// Active side: the REQ is out; what it asks for (READs out, READs in).
    Connecting {
        asked: (u8, u8),
        since: Timestamp,
        deadline: Timestamp,
    },
    /// Passive side: the REP is out; what it says (READs out, READs in).
    Accepting {
        agreed: (u8, u8),
    },
    Established,
    /// Flushing. `told`: the good-byes are exchanged, or nobody would answer.
    Closing {
        reason: DisconnectReason,
        told: bool,
        deadline: Timestamp,
    },
    /// The user was told that it is over.
    Dead,
}

/// A connection. The order of the fields is that of destruction.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) qp: Option<QueuePair>,
    pub(super) id: CmId,
    pub(super) generation: u32,
    pub(super) state: State,
    /// Number of the device, from resolution on.
    pub(super) device: Option<usize>,
    pub(super) max_message_bytes: u32,
    pub(super) domain: Option<DomainId>,
    /// It stands in the list of those that have something to send.
    pub(super) listed: bool,
    /// What may explain a failure.
    pub(super) note: Option<String>,
}

/// The slot and generation of a handle.
pub(super) fn parts(conn: ConnId) -> (usize, u64) {
    (usize::try_from(conn.0 & 0xffff).unwrap_or(usize::MAX), conn.0 >> 16)
}

pub(super) fn handle(slot: usize, generation: u32) -> ConnId {
    ConnId(u64::from(generation) << 16 | (slot as u64 & 0xffff))
}

impl Conn {
    pub(super) fn new(id: CmId, generation: u32, state: State) -> Self {
        Self {
            qp: None,
            id,
            generation,
            state,
            device: None,
            max_message_bytes: 0,
            domain: None,
            listed: false,
            note: None,
        }
    }

    /// Whether a failed request ends something.
    pub(super) fn is_up(&self) -> bool {
        matches!(
            self.state,
            State::Connecting { .. } | State::Accepting { .. } | State::Established
        )
    }

    /// What the user waits for; all that there is once it ends.
    pub(super) fn awaited(&self) -> Awaited {
        let Some(qp) = &self.qp else { return Awaited::default() };
        match self.state {
            State::Closing { .. } => Awaited { sends: 0, others: 1 },
            State::Dead => Awaited::default(),
            _ => qp.awaited(),
        }
    }

    /// Whether it is being set up: events of it are due soon.
    pub(super) fn is_starting(&self) -> bool {
        matches!(
            self.state,
            State::Resolving { .. } | State::Connecting { .. } | State::Accepting { .. }
        )
    }

    /// Takes a completion of the device. `None`: it says nothing to the user.
    #[inline]
    pub(super) fn complete(&mut self, tag: Tag, wc: &ibv_wc) -> Option<WorkCompletion> {
        let entry = self.qp.as_mut()?.retire(tag)?;
        let conn = handle(usize::from(tag.slot), self.generation);
        let mut completion = completion_of(conn, entry.wr_id, entry.opcode, wc, tag.receive);
        let success = completion.status == WcStatus::Success;
        if success && !entry.signaled {
            return None;
        }
        if success && entry.opcode == WcOpcode::Read {
            completion.byte_len = entry.length;
        }
        Some(completion)
    }

    /// Whether its queue pair may still have a receive of a shared queue: the device has not said
    /// otherwise.
    pub(super) fn may_hold_shared(&self) -> bool {
        self.qp.as_ref().is_some_and(|qp| qp.shared.is_some() && !qp.took_last)
    }

    /// When its end is reported whatever is missing, by the `deadline` of [`State::Closing`]: long
    /// before that if it is the device's word about the shared queue alone.
    pub(super) fn end_by(&self, deadline: Timestamp) -> Timestamp {
        let told = matches!(self.state, State::Closing { told: true, .. });
        let drained = self.qp.as_ref().is_none_or(QueuePair::is_drained);
        if told && drained && self.may_hold_shared() {
            deadline - (CLOSE_TIMEOUT - LAST_RECEIVE_TIMEOUT)
        } else {
            deadline
        }
    }

    /// Takes the queue pair from the device; what was outstanding comes as flushed.
    pub(super) fn flush_all(&mut self, slot: usize, out: &mut Vec<WorkCompletion>) {
        let conn = handle(slot, self.generation);
        if let Some(qp) = &mut self.qp {
            qp.abandon(|entry| {
                out.push(WorkCompletion {
                    conn,
                    wr_id: entry.wr_id,
                    status: WcStatus::Flushed,
                    opcode: entry.opcode,
                    byte_len: 0,
                    invalidated: None,
                });
            });
        }
    }
}

/// What the device says, in our words; of an RDMA READ it does not say the length.
#[inline]
pub(super) fn completion_of(
    conn: ConnId,
    wr_id: u64,
    opcode: WcOpcode,
    wc: &ibv_wc,
    receive: bool,
) -> WorkCompletion {
    let status = status_of(wc.status, receive);
    let success = status == WcStatus::Success;
    let byte_len = if success && opcode == WcOpcode::Recv { wc.byte_len } else { 0 };
    let invalidated = receive && success && wc.wc_flags & ibv_wc_flags::IBV_WC_WITH_INV.0 != 0;
    // SAFETY: both members of the union are 32 bits of integer.
    let key = unsafe { wc.imm_data_invalidated_rkey_union.invalidated_rkey };
    let invalidated = invalidated.then_some(lariat_wire::rocev2::Rkey(key));
    WorkCompletion { conn, wr_id, status, opcode, byte_len, invalidated }
}

/// Our word for a status of libibverbs.
fn status_of(status: ibv_wc_status::Type, receive: bool) -> WcStatus {
    match status {
        ibv_wc_status::IBV_WC_SUCCESS => WcStatus::Success,
        ibv_wc_status::IBV_WC_LOC_LEN_ERR => WcStatus::LocalLength,
        ibv_wc_status::IBV_WC_LOC_QP_OP_ERR => WcStatus::LocalQpOperation,
        ibv_wc_status::IBV_WC_LOC_PROT_ERR => WcStatus::LocalProtection,
        ibv_wc_status::IBV_WC_WR_FLUSH_ERR => WcStatus::Flushed,
        // No status of a receive; Soft-RoCE's name for a message that did not fit.
        ibv_wc_status::IBV_WC_REM_INV_REQ_ERR if receive => WcStatus::LocalLength,
        ibv_wc_status::IBV_WC_REM_INV_REQ_ERR => WcStatus::RemoteInvalidRequest,
        ibv_wc_status::IBV_WC_REM_ACCESS_ERR => WcStatus::RemoteAccess,
        ibv_wc_status::IBV_WC_REM_OP_ERR => WcStatus::RemoteOperation,
        ibv_wc_status::IBV_WC_RETRY_EXC_ERR => WcStatus::RetryExceeded,
        ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR => WcStatus::RnrRetryExceeded,
        other => WcStatus::Other(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_a_meaning_or_is_kept() {
        for status in 0..64 {
            let ours = status_of(status, false);
            assert_eq!(ours == WcStatus::Success, status == 0);
            if let WcStatus::Other(kept) = ours {
                assert_eq!(kept, status);
            }
        }
        assert_eq!(status_of(9, true), WcStatus::LocalLength);
        assert_eq!(status_of(9, false), WcStatus::RemoteInvalidRequest);
        assert_eq!(status_of(u32::MAX, true), WcStatus::Other(u32::MAX));
    }

    #[test]
    fn handles_take_apart() {
        let conn = handle(0xfffe, Tag::MAX_GENERATION);
        assert_eq!(parts(conn), (0xfffe, u64::from(Tag::MAX_GENERATION)));
    }
}

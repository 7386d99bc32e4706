//! The states of a connection and the moves between them (IBTA 12.9.7 and 12.9.8).
//!
//! Calls nothing; `exchange` moves only along [`State::after`].

/// Where a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Nothing was said yet.
    Idle,
    /// Active: REQ sent.
    ReqSent,
    /// Active: the peer asked for patience (MRA) with its answer to the REQ.
    MraReqReceived,
    /// Passive: REQ received, the consumer decides.
    ReqReceived,
    /// Passive: the same, and the peer was asked for patience.
    MraReqSent,
    /// Passive: REP sent.
    RepSent,
    /// Passive: the peer asked for patience with its answer to the REP.
    MraRepReceived,
    /// The connection stands.
    Established,
    /// DREQ sent.
    DreqSent,
    /// It ended; stray messages are still answered.
    TimeWait,
    /// Over.
    Closed,
}

/// What moves a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "a message sent or received each")]
pub enum Trigger {
    SendReq,
    ReceiveReq,
    SendMra,
    ReceiveMra,
    SendRep,
    ReceiveRep,
    ReceiveRtu,
    /// A packet on the queue pair: the peer has the REP, whatever became of its RTU (IBTA 12.9.7.2).
    ReceiveData,
    SendRej,
    ReceiveRej,
    SendDreq,
    ReceiveDreq,
    ReceiveDrep,
    /// The last retry stayed without answer, or the time of waiting is over.
    Expire,
}

/// Every legal move.
const MOVES: &[(State, Trigger, State)] = {
    use State::{
        Closed, DreqSent, Established, Idle, MraRepReceived, MraReqReceived, MraReqSent, RepSent,
        ReqReceived, ReqSent, TimeWait,
    };
    use Trigger::{
        Expire, ReceiveData, ReceiveDrep, ReceiveDreq, ReceiveMra, ReceiveRej, ReceiveRep,
        ReceiveReq, ReceiveRtu, SendDreq, SendMra, SendRej, SendRep, SendReq,
    };
    &[
        (Idle, SendReq, ReqSent),
        (Idle, ReceiveReq, ReqReceived),
        // Active.
        (ReqSent, ReceiveMra, MraReqReceived),
        (ReqSent, ReceiveRep, Established),
        (ReqSent, ReceiveRej, Closed),
        (ReqSent, SendRej, Closed),
        (ReqSent, Expire, Closed),
        // A stale connection was in the way: again, under other numbers.
        (ReqSent, SendReq, ReqSent),
        (MraReqReceived, SendReq, ReqSent),
        (MraReqReceived, ReceiveMra, MraReqReceived),
        (MraReqReceived, ReceiveRep, Established),
        (MraReqReceived, ReceiveRej, Closed),
        (MraReqReceived, SendRej, Closed),
        (MraReqReceived, Expire, Closed),
        // Passive.
        (ReqReceived, SendMra, MraReqSent),
        (ReqReceived, SendRep, RepSent),
        (ReqReceived, SendRej, Closed),
        (ReqReceived, ReceiveRej, Closed),
        (MraReqSent, SendMra, MraReqSent),
        (MraReqSent, SendRep, RepSent),
        (MraReqSent, SendRej, Closed),
        (MraReqSent, ReceiveRej, Closed),
        (RepSent, ReceiveMra, MraRepReceived),
        (RepSent, ReceiveRtu, Established),
        (RepSent, ReceiveData, Established),
        (RepSent, ReceiveRej, Closed),
        (RepSent, SendRej, TimeWait),
        (RepSent, ReceiveDreq, TimeWait),
        (RepSent, Expire, Closed),
        (MraRepReceived, ReceiveMra, MraRepReceived),
        (MraRepReceived, ReceiveRtu, Established),
        (MraRepReceived, ReceiveData, Established),
        (MraRepReceived, ReceiveRej, Closed),
        (MraRepReceived, SendRej, TimeWait),
        (MraRepReceived, ReceiveDreq, TimeWait),
        (MraRepReceived, Expire, Closed),
        // Both.
        (Established, SendDreq, DreqSent),
        (Established, ReceiveDreq, TimeWait),
        // The passive side gave up on our RTU, or its consumer changed its mind.
        (Established, ReceiveRej, TimeWait),
        (DreqSent, ReceiveDrep, TimeWait),
        // Both ends at the same time.
        (DreqSent, ReceiveDreq, TimeWait),
        (DreqSent, ReceiveRej, TimeWait),
        (DreqSent, Expire, TimeWait),
        (TimeWait, Expire, Closed),
    ]
};

impl State {
    /// The state after `trigger`; none where the move is not legal.
    #[must_use]
    pub fn after(self, trigger: Trigger) -> Option<Self> {
        MOVES.iter().find(|(from, by, _)| (*from, *by) == (self, trigger)).map(|(_, _, to)| *to)
    }

    /// The state in words that complete "the connection is ...".
    #[must_use]
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Idle => "not connected",
            Self::ReqSent | Self::MraReqReceived => "waiting for the peer's answer",
            Self::ReqReceived | Self::MraReqSent => "waiting to be accepted",
            Self::RepSent | Self::MraRepReceived => "accepted but not established yet",
            Self::Established => "established",
            Self::DreqSent => "being disconnected",
            Self::TimeWait | Self::Closed => "over",
        }
    }

    /// Whether it takes a place among the half-open ones.
    #[must_use]
    pub const fn is_half_open(self) -> bool {
        matches!(self, Self::ReqReceived | Self::MraReqSent | Self::RepSent | Self::MraRepReceived)
    }
}

#[cfg(test)]
mod tests;

//! The states of a queue pair and the moves between them (IBTA 10.3.1).
//!
//! Calls nothing; used by the queue pair and its owner.

/// A queue pair's state (IBTA 10.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpState {
    /// Nothing is set up; nothing may be posted.
    Reset,
    /// Receives may be posted; packets are dropped.
    Init,
    /// Ready to receive: the peer is known, packets are served, nothing is sent of our own.
    Rtr,
    /// Ready to send: everything works.
    Rts,
    /// Send queue drained: messages that were begun are finished, no other is begun.
    Sqd,
    /// Something failed or the owner ended it: all requests complete as flushed, packets are
    /// dropped.
    Error,
}

impl QpState {
    /// All states, in the order of their declaration.
    pub const ALL: [Self; 6] =
        [Self::Reset, Self::Init, Self::Rtr, Self::Rts, Self::Sqd, Self::Error];

    /// Whether the move is legal (IBTA 10.3.1, figure 124, without the states that only unreliable
    /// services know).
    #[must_use]
    pub const fn may_become(self, next: Self) -> bool {
        match (self, next) {
            (_, Self::Reset | Self::Error)
            | (Self::Reset, Self::Init)
            | (Self::Init, Self::Rtr)
            | (Self::Rtr | Self::Sqd, Self::Rts)
            | (Self::Rts, Self::Sqd) => true,
            (_, Self::Init | Self::Rtr | Self::Rts | Self::Sqd) => false,
        }
    }

    /// Whether packets of the peer are served.
    #[must_use]
    pub const fn receives(self) -> bool {
        matches!(self, Self::Rtr | Self::Rts | Self::Sqd)
    }

    /// Whether requests of our own are sent, or at least finished.
    #[must_use]
    pub const fn sends(self) -> bool {
        matches!(self, Self::Rts | Self::Sqd)
    }
}

#[cfg(test)]
mod tests {
    use super::QpState::{self, Error, Init, Reset, Rtr, Rts, Sqd};

    #[test]
    fn table_of_moves() {
        let table = [
            (Reset, &[Reset, Init, Error][..]),
            (Init, &[Reset, Rtr, Error][..]),
            (Rtr, &[Reset, Rts, Error][..]),
            (Rts, &[Reset, Sqd, Error][..]),
            (Sqd, &[Reset, Rts, Error][..]),
            (Error, &[Reset, Error][..]),
        ];
        for (from, to) in table {
            for next in QpState::ALL {
                assert_eq!(from.may_become(next), to.contains(&next), "{from:?} -> {next:?}");
            }
        }
    }
}

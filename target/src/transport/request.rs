//! One command in flight: its state with the table of legal moves, a timestamp per state, and what
//! it owns (buffer, receive slot) until both the storage and the fabric are done with it.
//!
//! A request is a slot in the reactor's slab; the slot number is what completions carry. Called by
//! the reactor; calls nothing.

use lariat_fabric::Timestamp;
use lariat_wire::nvme::{Command, Status};

use super::buffer::Buffer;
use super::sgl::HostMemory;
use super::stats::{Stage, Statistics};
use crate::nvme::{AdminPlan, ConnectCommand, IoPlan};
use crate::storage::{BlockRange, BufferRange};

/// Where a request is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// The capsule is parsed; what it needs is being found out.
    Admitted,
    /// Waits for a buffer.
    AwaitBuffer,
    /// Waits for a turn to RDMA READ the host's data.
    AwaitRead,
    /// The fabric fills the buffer.
    Fetching,
    /// Waits for room in the storage's queue; a Connect: for what its host left behind there.
    AwaitStorage,
    /// The storage has it, and its buffer.
    InStorage,
    /// An asynchronous event request, held until there is an event.
    Held,
    /// The response is to be posted with this turn's batch.
    Ready,
    /// The fabric has the response, and the buffer.
    Sending,
    /// The connection is gone; the storage still has the buffer.
    Orphaned,
    /// Nobody has anything of it: the slot is free.
    Done,
}

impl State {
    /// All states, in the order of declaration.
    pub const ALL: [Self; 11] = [
        Self::Admitted,
        Self::AwaitBuffer,
        Self::AwaitRead,
        Self::Fetching,
        Self::AwaitStorage,
        Self::InStorage,
        Self::Held,
        Self::Ready,
        Self::Sending,
        Self::Orphaned,
        Self::Done,
    ];

    /// Whether a request may go from here to `to`.
    ///
    /// From `Fetching` and `Sending` to `Done` only when the fabric reported the work request's
    /// end or destroyed the connection; from `InStorage` and `Orphaned` onwards only when the
    /// storage completed the operation.
    #[must_use]
    pub const fn may_become(self, to: Self) -> bool {
        use State::{
            Admitted, AwaitBuffer, AwaitRead, AwaitStorage, Done, Fetching, Held, InStorage,
            Orphaned, Ready, Sending,
        };
        matches!(
            (self, to),
            (Admitted, AwaitBuffer | AwaitRead | AwaitStorage | Held | Ready | Done)
                | (AwaitBuffer, AwaitRead | AwaitStorage | Held | Ready | Done)
                | (AwaitRead, Fetching | Done)
                | (Fetching, AwaitStorage | Held | Ready | Done)
                | (AwaitStorage, InStorage | Ready | Done)
                | (InStorage, AwaitStorage | Ready | Orphaned)
                | (Held, Ready | Done)
                | (Ready, Sending | Done)
                | (Sending | Orphaned, Done)
        )
    }

    /// What time spent here is counted as.
    const fn stage(self) -> Option<Stage> {
        match self {
            Self::AwaitBuffer => Some(Stage::Buffer),
            Self::AwaitRead => Some(Stage::ReadTurn),
            Self::Fetching => Some(Stage::Fetch),
            Self::AwaitStorage => Some(Stage::StorageQueue),
            Self::InStorage => Some(Stage::Storage),
            Self::Sending => Some(Stage::Send),
            Self::Admitted | Self::Held | Self::Ready | Self::Orphaned | Self::Done => None,
        }
    }
}

/// What a request is to do.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    /// Nothing but be answered.
    Answer,
    /// Fabrics Connect.
    Connect(ConnectCommand),
    /// An admin queue's command.
    Admin(AdminPlan),
    /// An I/O queue's command.
    Io(IoPlan),
}

/// One command in flight.
#[derive(Debug)]
pub(super) struct Request {
    /// Key of its connection.
    pub(super) connection: u32,
    /// Where in the connection's list of requests it stands.
    pub(super) position: u32,
    state: State,
    stamps: [Timestamp; State::ALL.len()],
    /// The command as received.
    pub(super) command: Command,
    /// What it is to do.
    pub(super) work: Work,
    /// The host's memory.
    pub(super) host: HostMemory,
    /// Bytes to transfer.
    pub(super) bytes: u32,
    /// The pool's buffer it owns.
    pub(super) buffer: Option<Buffer>,
    /// The receive it owns, because its in-capsule data is still needed.
    pub(super) receive: Option<u32>,
    /// Where its data is, in terms of the storage; see `zeroes`.
    pub(super) data: Option<BufferRange>,
    /// Whether its data is zeroes, which need no buffer.
    pub(super) zeroes: bool,
    /// The ranges of a Deallocate.
    pub(super) ranges: Vec<BlockRange>,
    /// Which storage operation of several is under way.
    pub(super) step: usize,
    /// Whether its command identifier counts as outstanding (not so for a duplicate).
    pub(super) owns_cid: bool,
    /// Whether data goes to the host with the response.
    pub(super) send_data: bool,
    /// Whether the connection is to be closed once the response is out.
    pub(super) close_after: bool,
    /// Result of the completion.
    pub(super) result: u64,
    /// Status of the completion.
    pub(super) status: Status,
}

impl Request {
    pub(super) fn new(now: Timestamp, connection: u32, position: u32, command: Command) -> Self {
        let mut stamps = [Timestamp::NEVER; State::ALL.len()];
        stamps[State::Admitted as usize] = now;
        Self {
            connection,
            position,
            state: State::Admitted,
            stamps,
            command,
            work: Work::Answer,
            host: HostMemory::None,
            bytes: 0,
            buffer: None,
            receive: None,
            data: None,
            zeroes: false,
            ranges: Vec::new(),
            step: 0,
            owns_cid: true,
            send_data: false,
            close_after: false,
            result: 0,
            status: Status::SUCCESS,
        }
    }

    pub(super) const fn state(&self) -> State {
        self.state
    }

    /// When the request entered `state` last; [`Timestamp::NEVER`] if it never did.
    #[cfg(test)]
    pub(super) fn entered(&self, state: State) -> Timestamp {
        self.stamps[state as usize]
    }

    /// Moves on, and counts the time spent in the state that is left.
    pub(super) fn advance(&mut self, now: Timestamp, to: State, stats: &mut Statistics) {
        let from = self.state;
        if !from.may_become(to) {
            debug_assert!(false, "a request went from {from:?} to {to:?}");
            stats.anomalies += 1;
        }
        if let Some(stage) = from.stage() {
            stats.record(stage, now.since(self.stamps[from as usize]));
        }
        if to == State::Sending {
            stats.record(Stage::Total, now.since(self.stamps[State::Admitted as usize]));
        }
        self.state = to;
        self.stamps[to as usize] = now;
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use core::time::Duration;

    use super::*;

    /// The whole table: a change of it has to be seen here.
    const TABLE: &str = "\
Admitted -> AwaitBuffer AwaitRead AwaitStorage Held Ready Done
AwaitBuffer -> AwaitRead AwaitStorage Held Ready Done
AwaitRead -> Fetching Done
Fetching -> AwaitStorage Held Ready Done
AwaitStorage -> InStorage Ready Done
InStorage -> AwaitStorage Ready Orphaned
Held -> Ready Done
Ready -> Sending Done
Sending -> Done
Orphaned -> Done
Done ->
";

    #[test]
    fn table_of_legal_moves() {
        let mut table = String::new();
        for from in State::ALL {
            write!(table, "{from:?} ->").unwrap();
            for to in State::ALL.into_iter().filter(|&to| from.may_become(to)) {
                write!(table, " {to:?}").unwrap();
            }
            table.push('\n');
        }
        assert_eq!(table, TABLE);
    }

    #[test]
    fn states_are_their_own_index() {
        for (index, state) in State::ALL.into_iter().enumerate() {
            assert_eq!(state as usize, index);
        }
    }

    #[test]
    fn time_goes_to_the_state_that_was_left() {
        let mut stats = Statistics::default();
        let at = |micros| Timestamp::ZERO + Duration::from_micros(micros);
        let mut request = Request::new(at(0), 0, 0, Command::new(2));
        for (micros, state) in [
            (1, State::AwaitBuffer),
            (4, State::AwaitStorage),
            (4, State::InStorage),
            (54, State::Ready),
            (55, State::Sending),
            (65, State::Done),
        ] {
            request.advance(at(micros), state, &mut stats);
        }
        let mean = |stage| stats.stage(stage).mean();
        assert_eq!(mean(Stage::Buffer), Duration::from_micros(3));
        assert_eq!(mean(Stage::StorageQueue), Duration::ZERO);
        assert_eq!(mean(Stage::Storage), Duration::from_micros(50));
        assert_eq!(mean(Stage::Send), Duration::from_micros(10));
        assert_eq!(mean(Stage::Total), Duration::from_micros(55));
        assert_eq!(stats.stage(Stage::Fetch).count, 0);
        assert_eq!(request.entered(State::Fetching), Timestamp::NEVER);
        assert_eq!(request.entered(State::InStorage), at(4));
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "from InStorage to Done")]
    fn storage_cannot_be_robbed() {
        let mut stats = Statistics::default();
        let mut request = Request::new(Timestamp::ZERO, 0, 0, Command::new(1));
        for state in [State::AwaitStorage, State::InStorage, State::Done] {
            request.advance(Timestamp::ZERO, state, &mut stats);
        }
    }
}

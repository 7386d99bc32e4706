//! What can go wrong, one type for each group of operations, and [`Error`] over all of them. A
//! controller's refusal carries its NVMe status; a lost connection says why it was lost.

use std::io;
use std::time::Duration;

use lariat_fabric::RegisterError;
use lariat_wire::nvme::{AdminOpcode, IoOpcode, Lba, NqnError, Nsid, Status};

use crate::buffer::Buffer;
use crate::core::{self, Failure, IoFailure, LossReason, SubmitError};

/// Connecting failed.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No RDMA provider could be opened.
    #[error("cannot open the {provider} fabric: {source}")]
    Fabric {
        /// Which.
        provider: &'static str,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The controller could not be reached or brought up.
    #[error(transparent)]
    Session(#[from] core::ConnectError),
    /// Threads or event descriptors could not be had.
    #[error("operating system: {0}")]
    System(#[from] io::Error),
    /// All queues of the controller are taken.
    #[error("all {granted} I/O queues of this controller are in use; {}", more_queues(*.asked, *.granted))]
    NoQueueLeft {
        /// What was asked for ([`ConnectOptions::queues`](crate::ConnectOptions::queues)).
        asked: u16,
        /// What the controller granted.
        granted: u16,
    },
    /// The controller is gone.
    #[error("the controller's connection is lost: {0}")]
    Closed(LossReason),
}

impl ConnectError {
    /// Whether the subsystem does not let this host in, by its name.
    #[must_use]
    pub fn is_host_refused(&self) -> bool {
        matches!(self, Self::Session(core::ConnectError::Refused { status, .. })
            if status.same_code(Status::CONNECT_INVALID_HOST))
    }
}

/// Who sets the limit, and how it is raised.
fn more_queues(asked: u16, granted: u16) -> String {
    if granted < asked {
        let raise = "let the target grant more (lariatd: max_queues in [target])";
        format!("{asked} were asked for: use fewer, or {raise}")
    } else {
        "ask for more when connecting".to_owned()
    }
}

/// Namespaces that a message names at most.
const NAMED_NAMESPACES: usize = 16;

/// Numbers of namespaces: "1, 2, 3".
fn list(known: &[Nsid]) -> String {
    let names: Vec<String> = known.iter().take(NAMED_NAMESPACES).map(Nsid::to_string).collect();
    let more = if known.len() > NAMED_NAMESPACES { ", ..." } else { "" };
    names.join(", ") + more
}

fn known_words(known: &[Nsid]) -> String {
    match known {
        [] => "the subsystem shows this host none (`lariat list-ns` asks)".to_owned(),
        known => format!("those of the subsystem, which `lariat list-ns` shows: {}", list(known)),
    }
}

fn one_expected(known: &[Nsid]) -> String {
    match known {
        [] => "the subsystem shows this host no namespace that can be used".to_owned(),
        known => format!("the subsystem has {} namespaces; name one: {}", known.len(), list(known)),
    }
}

/// An admin command failed.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// The controller answered with an error status.
    #[error("{} failed: {status}", AdminOpcode(*.opcode))]
    Status {
        /// The command's opcode.
        opcode: u8,
        /// The status.
        status: Status,
    },
    /// There was no answer.
    #[error("the controller's connection is lost: {0}")]
    ConnectionLost(LossReason),
    /// It was not sent.
    #[error("{} was not sent: {source}", AdminOpcode(*.opcode))]
    NotSent {
        /// The command's opcode.
        opcode: u8,
        /// Why.
        source: SubmitError,
    },
    /// The data cannot be understood.
    #[error("the answer cannot be used: {0}")]
    Malformed(&'static str),
    /// There is no such namespace.
    #[error("there is no namespace {nsid} that can be used here; {}", known_words(.known))]
    NoNamespace {
        /// The namespace.
        nsid: Nsid,
        /// Those there are.
        known: Vec<Nsid>,
    },
    /// One namespace was expected.
    #[error("{}", one_expected(.known))]
    NotOneNamespace {
        /// Those there are.
        known: Vec<Nsid>,
    },
    /// The discovery log kept changing while it was read.
    #[error("the log page changed again and again while it was read")]
    Unstable,
}

/// An I/O request failed, or was not taken.
#[derive(Debug, thiserror::Error)]
pub enum IoError {
    /// The controller answered with an error status.
    #[error("{} at block {lba} of namespace {nsid} failed: {status}", IoOpcode(*.opcode))]
    Status {
        /// The command's opcode.
        opcode: u8,
        /// The namespace.
        nsid: Nsid,
        /// First block of the command that failed.
        lba: Lba,
        /// The status.
        status: Status,
    },
    /// The connection is lost: whether the request was executed is not known.
    #[error("the connection is lost: {reason}")]
    ConnectionLost {
        /// Why.
        reason: LossReason,
    },
    /// The command was not answered in time; its connection was given up.
    #[error("no answer within {waited:.1?} ({}); the connection was given up", IoOpcode(*.opcode))]
    TimedOut {
        /// The command's opcode.
        opcode: u8,
        /// How long was waited.
        waited: Duration,
    },
    /// Offset or length is not a multiple of the block size.
    #[error(
        "offset {offset} or length {length} is not a multiple of the block size, {block_bytes}"
    )]
    Unaligned {
        /// Offset asked for, in bytes.
        offset: u64,
        /// Length asked for, in bytes.
        length: u64,
        /// Block size of the namespace in bytes.
        block_bytes: u32,
    },
    /// The range leaves the namespace.
    #[error("bytes {offset}..+{length} lie outside the namespace of {capacity} bytes")]
    OutOfRange {
        /// Offset asked for, in bytes.
        offset: u64,
        /// Length asked for, in bytes.
        length: u64,
        /// Size of the namespace in bytes.
        capacity: u64,
    },
    /// It was not taken for another reason ([`SubmitError::Full`]: poll first).
    #[error(transparent)]
    NotTaken(#[from] SubmitError),
    /// The buffer's memory could not be registered.
    #[error(transparent)]
    Memory(#[from] RegisterError),
    /// A queue for the synchronous call could not be connected.
    #[error("no queue: {0}")]
    Queue(#[source] Box<ConnectError>),
    /// Memory for buffers could not be had.
    #[error("no memory for buffers: {0}")]
    Buffers(#[from] io::Error),
}

impl IoError {
    /// The NVMe status, where the controller gave one.
    #[must_use]
    pub fn status(&self) -> Option<Status> {
        match self {
            Self::Status { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// Whether the connection is gone.
    #[must_use]
    pub fn is_connection_lost(&self) -> bool {
        matches!(
            self,
            Self::ConnectionLost { .. }
                | Self::TimedOut { .. }
                | Self::NotTaken(SubmitError::Closed(_))
        )
    }
}

impl From<IoFailure> for IoError {
    fn from(failure: IoFailure) -> Self {
        let IoFailure { opcode, nsid, lba, failure } = failure;
        match failure {
            Failure::Status(status) => Self::Status { opcode, nsid, lba, status },
            Failure::Lost(LossReason::CommandTimeout { opcode: late, waited, .. })
                if late == opcode =>
            {
                Self::TimedOut { opcode, waited }
            }
            Failure::Lost(reason) => Self::ConnectionLost { reason },
            Failure::NotSent(error) => Self::NotTaken(error),
        }
    }
}

/// A request that was not taken, with its buffer.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct RejectedIo {
    /// Why.
    pub error: IoError,
    /// The caller's buffer, if the request had one.
    pub buffer: Option<Buffer>,
}

/// Any of this crate's errors.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Connecting failed.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// An admin command failed.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// An I/O request failed.
    #[error(transparent)]
    Io(#[from] IoError),
    /// A name is none.
    #[error(transparent)]
    Name(#[from] NqnError),
}

impl From<RejectedIo> for Error {
    fn from(rejected: RejectedIo) -> Self {
        Self::Io(rejected.error)
    }
}

impl From<RejectedIo> for IoError {
    fn from(rejected: RejectedIo) -> Self {
        rejected.error
    }
}

impl Error {
    /// The NVMe status, where the controller gave one.
    #[must_use]
    pub fn status(&self) -> Option<Status> {
        match self {
            Self::Io(error) => error.status(),
            Self::Admin(AdminError::Status { status, .. }) => Some(*status),
            Self::Connect(ConnectError::Session(
                core::ConnectError::Refused { status, .. }
                | core::ConnectError::Command { status, .. },
            )) => Some(*status),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_there_are_get_named() {
        let known: Vec<Nsid> = (1..=20).map(Nsid).collect();
        let told = |error: AdminError| error.to_string();
        let missing = |known| told(AdminError::NoNamespace { nsid: Nsid(9), known });
        let words = missing(vec![Nsid(1), Nsid(3)]);
        assert!(
            words.contains("no namespace 9 ") && words.ends_with("`lariat list-ns` shows: 1, 3")
        );
        assert!(missing(Vec::new()).contains("shows this host none"));
        let several = |known| told(AdminError::NotOneNamespace { known });
        assert!(several(vec![Nsid(1), Nsid(3)]).ends_with("has 2 namespaces; name one: 1, 3"));
        assert!(several(known).ends_with("has 20 namespaces; name one: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, ..."));
        assert!(several(Vec::new()).contains("no namespace that can be used"));
    }
}

//! The Connect command and all that can be wrong with it, with the status and the result dword of
//! each fault in one table (NVMe Base 2.1, 6.3). Calls nothing; `registry` checks with it,
//! `transport` parses the first capsule of a queue with it.

use lariat_wire::nvme::command::CATTR_DISABLE_SQ_FLOW;
use lariat_wire::nvme::{
    Command, ConnectInvalidParameter, ControllerId, FabricsCommand, Nqn, NqnError, Qid, QueueSize,
    Status,
};

/// A parsed Connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectCommand {
    /// Record format; 0 is the only one there is.
    pub recfmt: u16,
    /// The queue to be made; 0 makes a controller too.
    pub qid: Qid,
    /// Entries of the queue.
    pub sqsize: QueueSize,
    /// Connect attributes.
    pub cattr: u8,
    /// Keep-alive timeout in milliseconds, 0 for none; counts on the admin queue alone.
    pub kato_ms: u32,
}

impl ConnectCommand {
    /// Reads the first command of a queue, which has to be a Connect.
    ///
    /// # Errors
    /// The status to refuse with: Command Sequence Error for any other command.
    pub fn parse(command: &Command) -> Result<Self, Status> {
        if !command.is_fabrics() {
            return Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr());
        }
        match FabricsCommand::parse(command)? {
            FabricsCommand::Connect { recfmt, qid, sqsize, cattr, kato_ms } => {
                Ok(Self { recfmt, qid, sqsize, cattr, kato_ms })
            }
            _ => Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr()),
        }
    }

    /// Whether completions shall carry the submission queue head.
    #[must_use]
    pub const fn sq_flow_control(&self) -> bool {
        self.cattr & CATTR_DISABLE_SQ_FLOW == 0
    }
}

/// Why a Connect is refused. [`status`](Self::status) and [`result`](Self::result) say it to the
/// host, the display form to the operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// A record format other than 0.
    #[error("Connect has record format {0}, only 0 is known")]
    RecordFormat(u16),
    /// `connect_admin` for an I/O queue or the reverse, or a queue beyond the limit.
    #[error("queue {qid} is refused: queues 1 to {max} may be made here")]
    Qid {
        /// As asked for.
        qid: Qid,
        /// Highest there is.
        max: u16,
    },
    /// One entry, or more than the limit.
    #[error("a queue of {entries} entries is refused: 2 to {max} are possible")]
    QueueSize {
        /// As asked for.
        entries: u32,
        /// Largest there is.
        max: u32,
    },
    /// Not FFFFh on the admin queue, or no such controller on an I/O queue.
    #[error("controller {0} is not to be had")]
    ControllerId(ControllerId),
    /// The subsystem's name cannot be read.
    #[error("the subsystem's name cannot be read: {0}")]
    SubsystemName(NqnError),
    /// No subsystem of this name.
    #[error("there is no subsystem {0}")]
    UnknownSubsystem(Nqn),
    /// The host's name cannot be read.
    #[error("the host's name cannot be read: {0}")]
    HostName(NqnError),
    /// Another host than the controller's, by name.
    #[error("{host} is not the host of controller {controller}")]
    OtherHost {
        /// Who asks.
        host: Nqn,
        /// Whose controller was asked for.
        controller: ControllerId,
    },
    /// The host's name is the controller's, its identifier is not.
    #[error("the host identifier differs from that of controller {0}")]
    OtherHostId(ControllerId),
    /// Not in the subsystem's list.
    #[error("{host} is not allowed to use {subsystem}")]
    HostNotAllowed {
        /// Who asks.
        host: Nqn,
        /// For what.
        subsystem: Nqn,
    },
    /// As many controllers as the limits allow.
    #[error("{subsystem} has its {max} controllers already")]
    TooManyHosts {
        /// For what.
        subsystem: Nqn,
        /// The limit.
        max: u16,
    },
    /// The target stops.
    #[error("the target is shutting down")]
    ShuttingDown,
    /// The host had a controller that is gone, but commands of it are still in the storage: what
    /// the host sends again must not be overtaken by them. It is over soon, or the disk is slow.
    #[error("commands of the same host's controller {0}, which is gone, are still under way")]
    Predecessor(ControllerId),
    /// An I/O queue of this identifier is connected.
    #[error("queue {0} is connected already")]
    QueueInUse(Qid),
    /// An I/O queue before the controller is ready.
    #[error("controller {0} is not enabled")]
    NotReady(ControllerId),
}

impl ConnectError {
    /// What to answer. Do Not Retry unless waiting may help.
    #[must_use]
    pub const fn status(&self) -> Status {
        match self {
            Self::RecordFormat(_) => Status::CONNECT_INCOMPATIBLE_FORMAT.with_dnr(),
            Self::Qid { .. }
            | Self::QueueSize { .. }
            | Self::ControllerId(_)
            | Self::SubsystemName(_)
            | Self::UnknownSubsystem(_)
            | Self::HostName(_)
            | Self::OtherHost { .. }
            | Self::OtherHostId(_) => Status::CONNECT_INVALID_PARAMETERS.with_dnr(),
            Self::HostNotAllowed { .. } => Status::CONNECT_INVALID_HOST.with_dnr(),
            Self::TooManyHosts { .. } | Self::ShuttingDown | Self::Predecessor(_) => {
                Status::CONNECT_CONTROLLER_BUSY
            }
            Self::QueueInUse(_) | Self::NotReady(_) => Status::COMMAND_SEQUENCE_ERROR.with_dnr(),
        }
    }

    /// The field at fault, where it is one.
    #[must_use]
    pub const fn parameter(&self) -> Option<ConnectInvalidParameter> {
        match self {
            Self::Qid { .. } => Some(ConnectInvalidParameter::QID),
            Self::QueueSize { .. } => Some(ConnectInvalidParameter::SQSIZE),
            Self::ControllerId(_) => Some(ConnectInvalidParameter::CNTLID),
            Self::SubsystemName(_) | Self::UnknownSubsystem(_) => {
                Some(ConnectInvalidParameter::SUBNQN)
            }
            Self::HostName(_) | Self::OtherHost { .. } | Self::HostNotAllowed { .. } => {
                Some(ConnectInvalidParameter::HOSTNQN)
            }
            Self::OtherHostId(_) => Some(ConnectInvalidParameter::HOSTID),
            Self::RecordFormat(_)
            | Self::TooManyHosts { .. }
            | Self::ShuttingDown
            | Self::Predecessor(_)
            | Self::QueueInUse(_)
            | Self::NotReady(_) => None,
        }
    }

    /// The result dword to answer with: the offset of the field at fault (bits 15:0), bit 16 set if
    /// it stands in the data; else 0.
    #[must_use]
    pub fn result(&self) -> u64 {
        self.parameter().map_or(0, |parameter| u64::from(parameter.to_result()))
    }
}

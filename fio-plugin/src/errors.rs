//! Which error number of the operating system stands for which failure: all that fio understands.
//! Pure; called by `engine`.
#![forbid(unsafe_code)]

use lariat::core::SubmitError;
use lariat::{AdminError, ConnectError, IoError, Status, core};

use crate::job::StartError;

/// Of a request.
pub(crate) fn errno_of_io(error: &IoError) -> i32 {
    match error {
        IoError::Status { status, .. } => errno_of_status(*status),
        IoError::TimedOut { .. } => libc::ETIMEDOUT,
        IoError::Unaligned { .. } => libc::EINVAL,
        IoError::OutOfRange { .. } => libc::ENOSPC,
        IoError::NotTaken(SubmitError::BadMemory) => libc::EFAULT,
        IoError::NotTaken(SubmitError::Empty | SubmitError::LengthMismatch { .. }) => libc::EINVAL,
        IoError::NotTaken(SubmitError::OutOfRange { .. }) => libc::ENOSPC,
        IoError::Memory(_) | IoError::Buffers(_) => libc::ENOMEM,
        error if error.is_connection_lost() => libc::ENOTCONN,
        _ => libc::EIO,
    }
}

fn errno_of_status(status: Status) -> i32 {
    let is = |known: Status| status.same_code(known);
    if is(Status::CAPACITY_EXCEEDED) || is(Status::LBA_OUT_OF_RANGE) {
        libc::ENOSPC
    } else if is(Status::NAMESPACE_WRITE_PROTECTED) || is(Status::WRITE_TO_READ_ONLY_RANGE) {
        libc::EROFS
    } else if is(Status::ACCESS_DENIED) || is(Status::OPERATION_DENIED) {
        libc::EACCES
    } else if is(Status::INVALID_OPCODE) {
        libc::EOPNOTSUPP
    } else if is(Status::INVALID_FIELD) {
        libc::EINVAL
    } else {
        libc::EIO
    }
}

/// Of a job that does not start.
pub(crate) fn errno_of_start(error: &StartError) -> i32 {
    match error {
        StartError::Connect(ConnectError::Session(error)) => match error {
            core::ConnectError::TimedOut { .. } | core::ConnectError::NotReady { .. } => {
                libc::ETIMEDOUT
            }
            core::ConnectError::Rejected { .. } | core::ConnectError::Refused { .. } => {
                libc::ECONNREFUSED
            }
            core::ConnectError::Unreachable { errno, .. } => *errno,
            core::ConnectError::Resolve(_) => libc::EHOSTUNREACH,
            core::ConnectError::Register(_) => libc::ENOMEM,
            core::ConnectError::Authentication { .. } => libc::EACCES,
            _ => libc::EIO,
        },
        StartError::Connect(ConnectError::System(error)) => {
            error.raw_os_error().unwrap_or(libc::EIO)
        }
        StartError::Connect(ConnectError::Closed(_)) => libc::ENOTCONN,
        StartError::Connect(ConnectError::NoQueueLeft { .. }) => libc::EBUSY,
        StartError::Connect(ConnectError::Fabric { .. }) => libc::EIO,
        StartError::Namespace(
            AdminError::NoNamespace { .. } | AdminError::NotOneNamespace { .. },
        ) => libc::ENODEV,
        StartError::HostRefused { .. } => libc::ECONNREFUSED,
        StartError::Namespace(_) => libc::EIO,
        StartError::Memory { .. } | StartError::Register(_) => libc::ENOMEM,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_become_what_a_local_disk_would_say() {
        assert_eq!(errno_of_status(Status::CAPACITY_EXCEEDED), libc::ENOSPC);
        assert_eq!(errno_of_status(Status::CAPACITY_EXCEEDED.with_dnr()), libc::ENOSPC);
        assert_eq!(errno_of_status(Status::NAMESPACE_WRITE_PROTECTED), libc::EROFS);
        assert_eq!(errno_of_status(Status::INTERNAL_ERROR), libc::EIO);
        let outside = IoError::OutOfRange { offset: 0, length: 1, capacity: 0 };
        assert_eq!(errno_of_io(&outside), libc::ENOSPC);
        let gone = IoError::ConnectionLost { reason: lariat::LossReason::Peer };
        assert_eq!(errno_of_io(&gone), libc::ENOTCONN);
    }
}

//! What went wrong below, as a status: the one table from [`StorageError`] to NVMe. Whether a host
//! shall retry is decided here too. Called by `transport`.

use lariat_wire::nvme::Status;

use crate::storage::StorageError;

/// The status that a failed storage request gives its command (NVMe Base 2.1, 4.2.3; NVM Command
/// Set 1.1, 3.1.2).
///
/// Do Not Retry is set where the same command would fail again: the medium said so, the file system
/// is full, or the backend cannot do it. Unknown errors may pass, so a host may retry those.
#[must_use]
pub const fn storage_status(error: StorageError) -> Status {
    match error {
        StorageError::NoSpace => Status::CAPACITY_EXCEEDED.with_dnr(),
        StorageError::Read { .. } => Status::UNRECOVERED_READ_ERROR.with_dnr(),
        StorageError::Write { .. } => Status::WRITE_FAULT.with_dnr(),
        StorageError::ReadOnly => Status::NAMESPACE_WRITE_PROTECTED.with_dnr(),
        StorageError::Unsupported => Status::INVALID_OPCODE.with_dnr(),
        StorageError::Other { .. } => Status::INTERNAL_ERROR,
    }
}

/// How a storage request ended, as a status.
#[must_use]
pub const fn result_status(result: Result<(), StorageError>) -> Status {
    match result {
        Ok(()) => Status::SUCCESS,
        Err(error) => storage_status(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_faults_are_final_and_unknown_ones_are_not() {
        assert_eq!(result_status(Ok(())), Status::SUCCESS);
        let table = [
            (StorageError::NoSpace, Status::CAPACITY_EXCEEDED, true),
            (StorageError::Read { errno: 5 }, Status::UNRECOVERED_READ_ERROR, true),
            (StorageError::Write { errno: 5 }, Status::WRITE_FAULT, true),
            (StorageError::ReadOnly, Status::NAMESPACE_WRITE_PROTECTED, true),
            (StorageError::Unsupported, Status::INVALID_OPCODE, true),
            (StorageError::Other { errno: 12 }, Status::INTERNAL_ERROR, false),
        ];
        for (error, status, dnr) in table {
            let got = result_status(Err(error));
            assert!(got.same_code(status), "{error:?} gave {got}");
            assert_eq!(got.dnr(), dnr, "{error:?}");
        }
    }
}

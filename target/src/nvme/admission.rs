//! Admission of I/O commands: a command and the subsystem it came to, to what storage shall do, or
//! the status to refuse with. Pure, allocates nothing. Called by `attachment`.
//!
//! Order of checks: flags (fused, PSDT), controller state, opcode, namespace, then the command's
//! own fields: protection information, transfer size, range, write protection (NVM Command Set
//! 1.1, 3.3). The SGL is checked by `transport`, against [`IoPlan::transfer`].

use lariat_wire::nvme::dsm::DSM_RANGE_BYTES;
use lariat_wire::nvme::{
    Command, DsmRange, FabricsCommand, FabricsType, IoCommand, Lba, Nsid, ProtectionAction, Status,
};

use super::attachment::ControllerShared;
use super::controller::Transfer;
use super::subsystem::{Namespace, Subsystem};
use crate::storage::{BackendId, BlockRange, Geometry};

/// What an admitted command is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoPlan {
    /// Blocks to the host.
    Read {
        /// Where.
        backend: BackendId,
        /// First block.
        start: u64,
        /// Number of blocks, 1 to 65,536.
        blocks: u32,
        /// The same in bytes, at most the transfer limit.
        bytes: u32,
        /// What was written before is to be durable first (a forced read, where there is a
        /// volatile cache): flush, then read.
        flush: bool,
    },
    /// Blocks from the host.
    Write {
        /// Where.
        backend: BackendId,
        /// First block.
        start: u64,
        /// Number of blocks, 1 to 65,536.
        blocks: u32,
        /// The same in bytes, at most the transfer limit.
        bytes: u32,
        /// Durable before the completion.
        fua: bool,
    },
    /// What was written becomes durable.
    Flush {
        /// Where.
        backend: BackendId,
    },
    /// What was written to any namespace of the subsystem becomes durable: flush each backend in
    /// [`volatile_backends`], then complete.
    FlushAll,
    /// The blocks read as zeroes.
    WriteZeroes {
        /// Where.
        backend: BackendId,
        /// Which, 1 to 65,536 blocks.
        range: BlockRange,
        /// The space may be given back.
        deallocate: bool,
        /// Durable before the completion.
        fua: bool,
    },
    /// Ranges of blocks that are not needed any more: fetch the list, read it by
    /// [`parse_ranges`], submit range by range.
    Deallocate {
        /// Where.
        backend: BackendId,
        /// Length of the list, 16 to 4,096 bytes.
        bytes: u32,
    },
    /// Nothing: complete with success at once, no data moves.
    Nothing,
    /// Disconnect: complete with success, then close this queue's connection.
    Disconnect,
}

impl IoPlan {
    /// The data that goes with the command; the SGL has to describe this much.
    #[must_use]
    pub const fn transfer(&self) -> Transfer {
        match *self {
            Self::Read { bytes, .. } => Transfer::ToHost(bytes),
            Self::Write { bytes, .. } | Self::Deallocate { bytes, .. } => Transfer::FromHost(bytes),
            _ => Transfer::None,
        }
    }
}

/// The backends that a flush of all namespaces has to reach: each once, those with a volatile
/// cache.
pub fn volatile_backends(subsystem: &Subsystem) -> impl Iterator<Item = BackendId> + '_ {
    let namespaces = subsystem.namespaces();
    namespaces.iter().enumerate().filter_map(move |(at, namespace)| {
        let seen = namespaces.iter().take(at).any(|other| other.backend == namespace.backend);
        (namespace.geometry.volatile_write_cache && !seen).then_some(namespace.backend)
    })
}

/// Decides what a command of an I/O queue is to do.
///
/// # Errors
/// The status to complete it with.
pub fn admit(
    subsystem: &Subsystem,
    controller: &ControllerShared,
    command: &Command,
) -> Result<IoPlan, Status> {
    if command.is_fabrics() {
        return admit_fabrics(command);
    }
    let parsed = IoCommand::parse(command)?;
    if !controller.is_ready() {
        return Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr());
    }
    let forced = !controller.write_cache_enabled();
    match parsed {
        IoCommand::Read { nsid, slba, blocks, fua, prinfo, .. } => {
            let namespace = find(subsystem, nsid)?;
            check_protection(prinfo)?;
            let bytes = transfer_bytes(subsystem, namespace, blocks)?;
            let range = check_range(&namespace.geometry, slba, u64::from(blocks))?;
            let flush = fua && namespace.geometry.volatile_write_cache;
            let (backend, start) = (namespace.backend, range.start);
            Ok(IoPlan::Read { backend, start, blocks, bytes, flush })
        }
        IoCommand::Write { nsid, slba, blocks, fua, prinfo, .. } => {
            let namespace = find(subsystem, nsid)?;
            check_protection(prinfo)?;
            let bytes = transfer_bytes(subsystem, namespace, blocks)?;
            let range = check_range(&namespace.geometry, slba, u64::from(blocks))?;
            check_writable(namespace)?;
            let (backend, fua) = (namespace.backend, fua || forced);
            Ok(IoPlan::Write { backend, start: range.start, blocks, bytes, fua })
        }
        IoCommand::Flush { nsid: Nsid::ALL } => {
            Ok(if subsystem.has_volatile_cache() { IoPlan::FlushAll } else { IoPlan::Nothing })
        }
        IoCommand::Flush { nsid } => {
            let namespace = find(subsystem, nsid)?;
            Ok(if namespace.geometry.volatile_write_cache {
                IoPlan::Flush { backend: namespace.backend }
            } else {
                IoPlan::Nothing
            })
        }
        IoCommand::WriteZeroes { nsid, slba, blocks, deallocate, fua, prinfo } => {
            let namespace = find(subsystem, nsid)?;
            check_protection(prinfo)?;
            let range = check_range(&namespace.geometry, slba, u64::from(blocks))?;
            check_writable(namespace)?;
            let (backend, fua) = (namespace.backend, fua || forced);
            let deallocate = deallocate && namespace.geometry.deallocate;
            Ok(IoPlan::WriteZeroes { backend, range, deallocate, fua })
        }
        IoCommand::DatasetManagement { nsid, ranges, deallocate, .. } => {
            let namespace = find(subsystem, nsid)?;
            // The integral-dataset attributes are hints about future access; a deallocation too
            // is advice that may be passed over where the backend has no way to follow it.
            if !deallocate {
                return Ok(IoPlan::Nothing);
            }
            check_writable(namespace)?;
            if !namespace.geometry.deallocate {
                return Ok(IoPlan::Nothing);
            }
            let bytes = u32::from(ranges) * RANGE_BYTES;
            Ok(IoPlan::Deallocate { backend: namespace.backend, bytes })
        }
        IoCommand::Unsupported(_) => Err(Status::INVALID_OPCODE.with_dnr()),
    }
}

const RANGE_BYTES: u32 = 16;
const _: () = assert!(DSM_RANGE_BYTES == 16);

/// Reads the range list of a [`IoPlan::Deallocate`] into `out` (cleared first): all ranges lie in
/// the namespace, empty ones are left out. Nothing is to be done unless all are good.
///
/// # Errors
/// The status to complete the command with.
pub fn parse_ranges(
    data: &[u8],
    geometry: &Geometry,
    out: &mut Vec<BlockRange>,
) -> Result<(), Status> {
    out.clear();
    for range in DsmRange::parse_list(data) {
        let checked = check_range(geometry, range.start(), u64::from(range.blocks.get()));
        match checked {
            Ok(BlockRange { blocks: 0, .. }) => {}
            Ok(range) => out.push(range),
            Err(status) => {
                out.clear();
                return Err(status);
            }
        }
    }
    Ok(())
}

/// Fabrics commands on an I/O queue: Disconnect alone (NVMe Base 2.1, 6.4).
fn admit_fabrics(command: &Command) -> Result<IoPlan, Status> {
    match FabricsCommand::parse(command)? {
        FabricsCommand::Disconnect { recfmt: 0 } => Ok(IoPlan::Disconnect),
        FabricsCommand::Disconnect { .. } => Err(Status::CONNECT_INCOMPATIBLE_FORMAT.with_dnr()),
        FabricsCommand::Connect { .. } => Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr()),
        FabricsCommand::PropertyGet { .. } | FabricsCommand::PropertySet { .. } => {
            Err(Status::INVALID_QUEUE_TYPE.with_dnr())
        }
        FabricsCommand::Unsupported(FabricsType(_)) => Err(Status::INVALID_OPCODE.with_dnr()),
    }
}

/// The namespace of a command. An identifier that could be used but is not is an invalid field;
/// one that could not be is an invalid namespace (NVMe Base 2.1, 3.2.1.5).
pub(super) fn find(subsystem: &Subsystem, nsid: Nsid) -> Result<&Namespace, Status> {
    subsystem.namespace(nsid).ok_or_else(|| {
        if nsid.is_valid() && nsid <= subsystem.max_nsid() {
            Status::INVALID_FIELD.with_dnr()
        } else {
            Status::INVALID_NAMESPACE_OR_FORMAT.with_dnr()
        }
    })
}

/// No namespace is formatted with protection information: a command that asks for checks would be
/// told that they were made.
const fn check_protection(prinfo: ProtectionAction) -> Result<(), Status> {
    if prinfo.is_none() { Ok(()) } else { Err(Status::INVALID_PROTECTION_INFORMATION.with_dnr()) }
}

const fn check_writable(namespace: &Namespace) -> Result<(), Status> {
    if namespace.geometry.read_only {
        Err(Status::NAMESPACE_WRITE_PROTECTED.with_dnr())
    } else {
        Ok(())
    }
}

/// Length in bytes, in the namespace's own blocks; beyond MDTS it is an invalid field.
fn transfer_bytes(
    subsystem: &Subsystem,
    namespace: &Namespace,
    blocks: u32,
) -> Result<u32, Status> {
    match blocks.checked_mul(namespace.geometry.block_bytes) {
        Some(bytes) if bytes <= subsystem.limits().mdts_bytes => Ok(bytes),
        _ => Err(Status::INVALID_FIELD.with_dnr()),
    }
}

fn check_range(geometry: &Geometry, slba: Lba, blocks: u64) -> Result<BlockRange, Status> {
    match slba.checked_add(blocks) {
        Some(end) if end.0 <= geometry.capacity_blocks => Ok(BlockRange { start: slba.0, blocks }),
        _ => Err(Status::LBA_OUT_OF_RANGE.with_dnr()),
    }
}

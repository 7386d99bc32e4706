//! The 64-byte submission queue entry as it lies on the wire, and what is
//! common to its typed forms in `admin`, `io` and `fabrics` (NVMe Base 2.1,
//! 4.1). The target parses with it, the initiator builds with it.

mod admin;
mod fabrics;
mod io;
mod opcode;
#[cfg(test)]
mod tests;

use core::mem::offset_of;

use bytemuck::{Pod, Zeroable};
use thiserror::Error;

pub use admin::{AdminCommand, Cns, Csi, FeatureSelect};
pub use fabrics::{CATTR_DISABLE_SQ_FLOW, FabricsCommand, PropertySize};
pub use io::{IoCommand, ProtectionAction};
pub use opcode::{AdminOpcode, FABRICS_OPCODE, FabricsType, IoOpcode};

use super::ids::{CommandId, Nsid};
use super::sgl::Sgl;
use super::status::Status;
use crate::endian::{U16Le, U32Le, U64Le};

/// Size of a command on the wire.
pub const COMMAND_BYTES: usize = 64;

/// Bits 7:6 of the flags byte: SGL with a metadata buffer address (01b), the
/// only form NVMe over Fabrics allows.
const PSDT_SGL: u8 = 1 << 6;

/// A submission queue entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Command {
    /// Opcode.
    pub opcode: u8,
    /// Fused operation (bits 1:0) and PRP-or-SGL selector (bits 7:6).
    pub flags: u8,
    /// Command identifier.
    pub cid: U16Le,
    /// Namespace identifier; for Fabrics commands byte 0 is their type.
    pub nsid: U32Le,
    /// Command dword 2.
    pub cdw2: U32Le,
    /// Command dword 3.
    pub cdw3: U32Le,
    /// Metadata pointer.
    pub mptr: U64Le,
    /// Data pointer: one SGL descriptor.
    pub dptr: [u8; 16],
    /// Command dword 10.
    pub cdw10: U32Le,
    /// Command dword 11.
    pub cdw11: U32Le,
    /// Command dword 12.
    pub cdw12: U32Le,
    /// Command dword 13.
    pub cdw13: U32Le,
    /// Command dword 14.
    pub cdw14: U32Le,
    /// Command dword 15.
    pub cdw15: U32Le,
}

const _: () = {
    assert!(size_of::<Command>() == COMMAND_BYTES && align_of::<Command>() == 1);
    assert!(offset_of!(Command, flags) == 1);
    assert!(offset_of!(Command, cid) == 2);
    assert!(offset_of!(Command, nsid) == 4);
    assert!(offset_of!(Command, cdw2) == 8);
    assert!(offset_of!(Command, cdw3) == 12);
    assert!(offset_of!(Command, mptr) == 16);
    assert!(offset_of!(Command, dptr) == 24);
    assert!(offset_of!(Command, cdw10) == 40);
    assert!(offset_of!(Command, cdw15) == 60);
};

impl Default for Command {
    fn default() -> Self {
        Self::new(0)
    }
}

impl Command {
    /// A command with `opcode`, the SGL flag and a null keyed SGL; all else 0.
    #[must_use]
    pub fn new(opcode: u8) -> Self {
        Self { opcode, flags: PSDT_SGL, dptr: Sgl::Null.to_bytes(), ..Self::zeroed() }
    }

    /// From wire bytes; every 64 bytes are a command.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; COMMAND_BYTES]) -> Self {
        bytemuck::cast(*bytes)
    }

    /// As wire bytes.
    #[must_use]
    pub fn to_bytes(self) -> [u8; COMMAND_BYTES] {
        bytemuck::cast(self)
    }

    /// With a command identifier.
    #[must_use]
    pub fn with_cid(mut self, cid: CommandId) -> Self {
        self.cid.set(cid.0);
        self
    }

    /// With a namespace.
    #[must_use]
    pub fn with_nsid(mut self, nsid: Nsid) -> Self {
        self.nsid.set(nsid.0);
        self
    }

    /// With a data pointer.
    #[must_use]
    pub fn with_sgl(mut self, sgl: Sgl) -> Self {
        self.dptr = sgl.to_bytes();
        self
    }

    /// Command identifier.
    #[must_use]
    pub fn command_id(&self) -> CommandId {
        CommandId(self.cid.get())
    }

    /// Namespace identifier.
    #[must_use]
    pub fn namespace(&self) -> Nsid {
        Nsid(self.nsid.get())
    }

    /// The data pointer as an SGL descriptor.
    #[must_use]
    pub fn sgl(&self) -> Sgl {
        Sgl::from_bytes(&self.dptr)
    }

    /// Whether this is a Fabrics command; on the admin and on I/O queues alike.
    #[must_use]
    pub const fn is_fabrics(&self) -> bool {
        self.opcode == FABRICS_OPCODE
    }

    /// Fused operation: 0 none, 1 first, 2 second.
    #[must_use]
    pub const fn fuse(&self) -> u8 {
        self.flags & 3
    }

    /// PRP or SGL selector: 0 PRP, 1 SGL with a metadata buffer, 2 SGL with a
    /// metadata segment.
    #[must_use]
    pub const fn psdt(&self) -> u8 {
        self.flags >> 6
    }

    /// What must hold for every command over fabrics before its fields count:
    /// not fused, and an SGL with a metadata buffer pointer.
    fn check_flags(&self) -> Result<(), CommandError> {
        if self.fuse() != 0 {
            return Err(CommandError::Fused(self.fuse()));
        }
        if self.flags & !3 != PSDT_SGL {
            return Err(CommandError::NotSgl(self.psdt()));
        }
        Ok(())
    }
}

/// Why a command cannot be understood. Converts to the status to answer with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum CommandError {
    /// The command belongs to a fused pair, which is not supported.
    #[error("fused commands are not supported (FUSE {0})")]
    Fused(u8),
    /// PRPs, or a metadata segment, or reserved flags: fabrics needs SGLs.
    #[error("data pointer is not an SGL with a metadata buffer (PSDT {0})")]
    NotSgl(u8),
    /// A log page offset that is not a multiple of four.
    #[error("log page offset {0} is not a multiple of 4 bytes")]
    LogOffsetUnaligned(u64),
    /// A property size other than 4 and 8 bytes.
    #[error("property size code {0} is neither 4 nor 8 bytes")]
    PropertySize(u8),
    /// Not a Fabrics command where one is required.
    #[error("opcode {0:#04x} is not the Fabrics opcode")]
    NotFabrics(u8),
}

impl From<CommandError> for Status {
    fn from(error: CommandError) -> Self {
        match error {
            CommandError::Fused(_)
            | CommandError::NotSgl(_)
            | CommandError::LogOffsetUnaligned(_)
            | CommandError::PropertySize(_) => Self::INVALID_FIELD.with_dnr(),
            CommandError::NotFabrics(_) => Self::INVALID_OPCODE.with_dnr(),
        }
    }
}

/// Why a typed command cannot be put on the wire: our own fault, not a peer's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum EncodeError {
    /// The block count has no zero-based 16-bit form.
    #[error("{0} blocks in one command; 1 to 65536 are possible")]
    Blocks(u32),
    /// The range count has no zero-based 8-bit form.
    #[error("{0} ranges in one Dataset Management command; 1 to 256 are possible")]
    Ranges(u16),
}

//! I/O commands of the NVM command set as typed values (NVM Command Set 1.1,
//! 3.2 and 3.3). Calls the raw command; the target's I/O path parses with it,
//! the initiator builds with it.

use super::opcode::IoOpcode;
use super::{Command, CommandError, EncodeError};
use crate::endian::{byte_of, join32, low16, split32};
use crate::nvme::ids::{CommandId, Lba, Nsid};

/// Protection information field PRINFO, 4 bits (NVM Command Set 1.1, 5.2.2.1):
/// bit 3 is PRACT, bits 2:0 are PRCHK.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ProtectionAction(pub u8);

impl ProtectionAction {
    /// Nothing asked for.
    pub const NONE: Self = Self(0);

    /// Whether anything is asked for.
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.0 & 0xf == 0
    }
}

/// A parsed I/O command. Block counts are true counts, 1 to 65,536.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoCommand {
    /// Read.
    Read {
        /// Namespace.
        nsid: Nsid,
        /// First block.
        slba: Lba,
        /// Number of blocks, 1 to 65,536.
        blocks: u32,
        /// Force Unit Access: from media, not from a volatile cache.
        fua: bool,
        /// Limited Retry.
        limited_retry: bool,
        /// Protection information handling.
        prinfo: ProtectionAction,
        /// Dataset Management hints about this range (DSM, 8 bits).
        access_hints: u8,
    },
    /// Write.
    Write {
        /// Namespace.
        nsid: Nsid,
        /// First block.
        slba: Lba,
        /// Number of blocks, 1 to 65,536.
        blocks: u32,
        /// Force Unit Access: on media before the completion.
        fua: bool,
        /// Limited Retry.
        limited_retry: bool,
        /// Protection information handling.
        prinfo: ProtectionAction,
        /// Dataset Management hints about this range (DSM, 8 bits).
        access_hints: u8,
        /// Directive type (4 bits), 0 for none.
        directive_type: u8,
        /// Directive-specific value.
        directive_specific: u16,
    },
    /// Flush: everything written before is on media afterwards.
    Flush {
        /// Namespace, or all.
        nsid: Nsid,
    },
    /// Write Zeroes.
    WriteZeroes {
        /// Namespace.
        nsid: Nsid,
        /// First block.
        slba: Lba,
        /// Number of blocks, 1 to 65,536.
        blocks: u32,
        /// The range may be deallocated if it reads as zeros afterwards.
        deallocate: bool,
        /// Force Unit Access.
        fua: bool,
        /// Protection information handling.
        prinfo: ProtectionAction,
    },
    /// Dataset Management; its data is a list of [`DsmRange`]s.
    ///
    /// [`DsmRange`]: crate::nvme::dsm::DsmRange
    DatasetManagement {
        /// Namespace.
        nsid: Nsid,
        /// Number of ranges, 1 to 256.
        ranges: u16,
        /// Attribute Deallocate (AD).
        deallocate: bool,
        /// Attribute Integral Dataset for Read (IDR).
        integral_read: bool,
        /// Attribute Integral Dataset for Write (IDW).
        integral_write: bool,
    },
    /// Any other opcode.
    Unsupported(IoOpcode),
}

const LIMITED_RETRY: u32 = 1 << 31;
const FUA: u32 = 1 << 30;
const PRINFO_SHIFT: u32 = 26;
const DEAC: u32 = 1 << 25;
const DTYPE_SHIFT: u32 = 20;
const IDR: u32 = 1;
const IDW: u32 = 1 << 1;
const AD: u32 = 1 << 2;

fn bit(condition: bool, mask: u32) -> u32 {
    if condition { mask } else { 0 }
}

/// Dword 12's zero-based block count.
fn zero_based_blocks(blocks: u32) -> Result<u32, EncodeError> {
    match blocks.checked_sub(1) {
        Some(value) if value <= u32::from(u16::MAX) => Ok(value),
        _ => Err(EncodeError::Blocks(blocks)),
    }
}

impl IoCommand {
    /// Reads a raw command of an I/O queue.
    ///
    /// # Errors
    /// Flags that fabrics does not allow. Unknown opcodes are a value.
    pub fn parse(command: &Command) -> Result<Self, CommandError> {
        command.check_flags()?;
        let nsid = command.namespace();
        let cdw10 = command.cdw10.get();
        let cdw12 = command.cdw12.get();
        let cdw13 = command.cdw13.get();
        let slba = Lba(join32(cdw10, command.cdw11.get()));
        let blocks = u32::from(low16(cdw12)) + 1;
        let fua = cdw12 & FUA != 0;
        let limited_retry = cdw12 & LIMITED_RETRY != 0;
        let prinfo = ProtectionAction(byte_of(cdw12 >> PRINFO_SHIFT, 0) & 0xf);
        let access_hints = byte_of(cdw13, 0);
        Ok(match IoOpcode(command.opcode) {
            IoOpcode::READ => {
                Self::Read { nsid, slba, blocks, fua, limited_retry, prinfo, access_hints }
            }
            IoOpcode::WRITE => Self::Write {
                nsid,
                slba,
                blocks,
                fua,
                limited_retry,
                prinfo,
                access_hints,
                directive_type: byte_of(cdw12 >> DTYPE_SHIFT, 0) & 0xf,
                directive_specific: low16(cdw13 >> 16),
            },
            IoOpcode::FLUSH => Self::Flush { nsid },
            IoOpcode::WRITE_ZEROES => {
                Self::WriteZeroes { nsid, slba, blocks, deallocate: cdw12 & DEAC != 0, fua, prinfo }
            }
            IoOpcode::DATASET_MANAGEMENT => {
                let attributes = command.cdw11.get();
                Self::DatasetManagement {
                    nsid,
                    ranges: u16::from(byte_of(cdw10, 0)) + 1,
                    deallocate: attributes & AD != 0,
                    integral_read: attributes & IDR != 0,
                    integral_write: attributes & IDW != 0,
                }
            }
            other => Self::Unsupported(other),
        })
    }

    /// The raw command; its data pointer is the null SGL, see
    /// [`Command::with_sgl`].
    ///
    /// # Errors
    /// A count that the wire cannot express.
    pub fn to_command(self, cid: CommandId) -> Result<Command, EncodeError> {
        let raw =
            |opcode: IoOpcode, nsid: Nsid| Command::new(opcode.0).with_cid(cid).with_nsid(nsid);
        let set_lba = |command: &mut Command, slba: Lba| {
            let (low, high) = split32(slba.0);
            command.cdw10.set(low);
            command.cdw11.set(high);
        };
        let prinfo_bits = |prinfo: ProtectionAction| u32::from(prinfo.0 & 0xf) << PRINFO_SHIFT;
        Ok(match self {
            Self::Read { nsid, slba, blocks, fua, limited_retry, prinfo, access_hints } => {
                let mut command = raw(IoOpcode::READ, nsid);
                set_lba(&mut command, slba);
                let flags = bit(fua, FUA) | bit(limited_retry, LIMITED_RETRY) | prinfo_bits(prinfo);
                command.cdw12.set(zero_based_blocks(blocks)? | flags);
                command.cdw13.set(u32::from(access_hints));
                command
            }
            Self::Write {
                nsid,
                slba,
                blocks,
                fua,
                limited_retry,
                prinfo,
                access_hints,
                directive_type,
                directive_specific,
            } => {
                let mut command = raw(IoOpcode::WRITE, nsid);
                set_lba(&mut command, slba);
                let flags = bit(fua, FUA)
                    | bit(limited_retry, LIMITED_RETRY)
                    | prinfo_bits(prinfo)
                    | u32::from(directive_type & 0xf) << DTYPE_SHIFT;
                command.cdw12.set(zero_based_blocks(blocks)? | flags);
                command.cdw13.set(u32::from(access_hints) | u32::from(directive_specific) << 16);
                command
            }
            Self::Flush { nsid } => raw(IoOpcode::FLUSH, nsid),
            Self::WriteZeroes { nsid, slba, blocks, deallocate, fua, prinfo } => {
                let mut command = raw(IoOpcode::WRITE_ZEROES, nsid);
                set_lba(&mut command, slba);
                let flags = bit(fua, FUA) | bit(deallocate, DEAC) | prinfo_bits(prinfo);
                command.cdw12.set(zero_based_blocks(blocks)? | flags);
                command
            }
            Self::DatasetManagement { nsid, ranges, deallocate, integral_read, integral_write } => {
                let mut command = raw(IoOpcode::DATASET_MANAGEMENT, nsid);
                let count = ranges
                    .checked_sub(1)
                    .and_then(|value| u8::try_from(value).ok())
                    .ok_or(EncodeError::Ranges(ranges))?;
                command.cdw10.set(u32::from(count));
                let attributes =
                    bit(deallocate, AD) | bit(integral_read, IDR) | bit(integral_write, IDW);
                command.cdw11.set(attributes);
                command
            }
            Self::Unsupported(opcode) => raw(opcode, Nsid::NONE),
        })
    }

    /// A plain read.
    #[must_use]
    pub const fn read(nsid: Nsid, slba: Lba, blocks: u32) -> Self {
        Self::Read {
            nsid,
            slba,
            blocks,
            fua: false,
            limited_retry: false,
            prinfo: ProtectionAction::NONE,
            access_hints: 0,
        }
    }

    /// A plain write.
    #[must_use]
    pub const fn write(nsid: Nsid, slba: Lba, blocks: u32) -> Self {
        Self::Write {
            nsid,
            slba,
            blocks,
            fua: false,
            limited_retry: false,
            prinfo: ProtectionAction::NONE,
            access_hints: 0,
            directive_type: 0,
            directive_specific: 0,
        }
    }

    /// A Write Zeroes that allows deallocation where `deallocate` says so.
    #[must_use]
    pub const fn write_zeroes(nsid: Nsid, slba: Lba, blocks: u32, deallocate: bool) -> Self {
        Self::WriteZeroes {
            nsid,
            slba,
            blocks,
            deallocate,
            fua: false,
            prinfo: ProtectionAction::NONE,
        }
    }

    /// A Dataset Management that deallocates `ranges` ranges.
    #[must_use]
    pub const fn deallocate(nsid: Nsid, ranges: u16) -> Self {
        Self::DatasetManagement {
            nsid,
            ranges,
            deallocate: true,
            integral_read: false,
            integral_write: false,
        }
    }
}

impl Command {
    /// A plain read with command identifier 0 and the null SGL.
    ///
    /// # Errors
    /// A block count outside 1 to 65,536.
    pub fn read(nsid: Nsid, slba: Lba, blocks: u32) -> Result<Self, EncodeError> {
        IoCommand::read(nsid, slba, blocks).to_command(CommandId(0))
    }

    /// A plain write with command identifier 0 and the null SGL.
    ///
    /// # Errors
    /// A block count outside 1 to 65,536.
    pub fn write(nsid: Nsid, slba: Lba, blocks: u32) -> Result<Self, EncodeError> {
        IoCommand::write(nsid, slba, blocks).to_command(CommandId(0))
    }

    /// A flush with command identifier 0.
    #[must_use]
    pub fn flush(nsid: Nsid) -> Self {
        Self::new(IoOpcode::FLUSH.0).with_nsid(nsid)
    }
}

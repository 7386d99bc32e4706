//! Fabrics commands as typed values (NVMe Base 2.1, 6). Calls the raw command;
//! the target's connect and property paths parse with it, the initiator builds
//! with it.

use super::opcode::{FABRICS_OPCODE, FabricsType};
use super::{Command, CommandError};
use crate::endian::{byte_of, high16, join16, join32, low16, split32};
use crate::nvme::ids::{CommandId, Qid, QueueSize};

/// Size of a property access.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PropertySize {
    /// 4 bytes.
    Four,
    /// 8 bytes.
    Eight,
}

impl PropertySize {
    /// From bits 2:0 of ATTRIB.
    fn from_code(attrib: u8) -> Result<Self, CommandError> {
        match attrib & 7 {
            0 => Ok(Self::Four),
            1 => Ok(Self::Eight),
            other => Err(CommandError::PropertySize(other)),
        }
    }

    const fn code(self) -> u32 {
        match self {
            Self::Four => 0,
            Self::Eight => 1,
        }
    }

    /// The size in bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        match self {
            Self::Four => 4,
            Self::Eight => 8,
        }
    }
}

/// A parsed Fabrics command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FabricsCommand {
    /// Connect (6.3); its data is a [`ConnectData`](crate::nvme::ConnectData).
    Connect {
        /// Record format; only 0 is defined.
        recfmt: u16,
        /// Queue to create: 0 is the admin queue, which creates the controller.
        qid: Qid,
        /// Size of the submission queue.
        sqsize: QueueSize,
        /// Connect attributes: bits 1:0 priority class, bit 2 disable SQ flow
        /// control, bit 3 individual I/O queue deletion.
        cattr: u8,
        /// Keep Alive Timeout in milliseconds, 0 for none; admin queue only.
        kato_ms: u32,
    },
    /// Property Get (6.5).
    PropertyGet {
        /// Size of the property.
        size: PropertySize,
        /// Offset of the property in bytes.
        offset: u32,
    },
    /// Property Set (6.6).
    PropertySet {
        /// Size of the property.
        size: PropertySize,
        /// Offset of the property in bytes.
        offset: u32,
        /// The value; the upper half counts for 8-byte properties only.
        value: u64,
    },
    /// Disconnect (6.4): deletes the I/O queue it is sent on.
    Disconnect {
        /// Record format; only 0 is defined.
        recfmt: u16,
    },
    /// Any other Fabrics command type.
    Unsupported(FabricsType),
}

/// Connect attribute: do not maintain the submission queue head.
pub const CATTR_DISABLE_SQ_FLOW: u8 = 1 << 2;

impl FabricsCommand {
    /// Reads a raw Fabrics command, from whichever queue.
    ///
    /// # Errors
    /// Not a Fabrics command, flags that fabrics does not allow, or a property
    /// size that does not exist. Unknown command types are a value.
    pub fn parse(command: &Command) -> Result<Self, CommandError> {
        if !command.is_fabrics() {
            return Err(CommandError::NotFabrics(command.opcode));
        }
        command.check_flags()?;
        let cdw10 = command.cdw10.get();
        let cdw11 = command.cdw11.get();
        Ok(match FabricsType(byte_of(command.nsid.get(), 0)) {
            FabricsType::CONNECT => Self::Connect {
                recfmt: low16(cdw10),
                qid: Qid(high16(cdw10)),
                sqsize: QueueSize::from_zero_based(low16(cdw11)),
                cattr: byte_of(cdw11, 2),
                kato_ms: command.cdw12.get(),
            },
            FabricsType::PROPERTY_GET => Self::PropertyGet {
                size: PropertySize::from_code(byte_of(cdw10, 0))?,
                offset: cdw11,
            },
            FabricsType::PROPERTY_SET => {
                let size = PropertySize::from_code(byte_of(cdw10, 0))?;
                let high = match size {
                    PropertySize::Four => 0,
                    PropertySize::Eight => command.cdw13.get(),
                };
                Self::PropertySet { size, offset: cdw11, value: join32(command.cdw12.get(), high) }
            }
            FabricsType::DISCONNECT => Self::Disconnect { recfmt: low16(cdw10) },
            other => Self::Unsupported(other),
        })
    }

    /// The raw command; its data pointer is the null SGL, see
    /// [`Command::with_sgl`].
    #[must_use]
    pub fn to_command(self, cid: CommandId) -> Command {
        let raw = |fctype: FabricsType| {
            let mut command = Command::new(FABRICS_OPCODE).with_cid(cid);
            command.nsid.set(u32::from(fctype.0));
            command
        };
        match self {
            Self::Connect { recfmt, qid, sqsize, cattr, kato_ms } => {
                let mut command = raw(FabricsType::CONNECT);
                command.cdw10.set(join16(recfmt, qid.0));
                command.cdw11.set(join16(sqsize.zero_based(), u16::from(cattr)));
                command.cdw12.set(kato_ms);
                command
            }
            Self::PropertyGet { size, offset } => {
                let mut command = raw(FabricsType::PROPERTY_GET);
                command.cdw10.set(size.code());
                command.cdw11.set(offset);
                command
            }
            Self::PropertySet { size, offset, value } => {
                let mut command = raw(FabricsType::PROPERTY_SET);
                let (low, high) = split32(value);
                command.cdw10.set(size.code());
                command.cdw11.set(offset);
                command.cdw12.set(low);
                if size == PropertySize::Eight {
                    command.cdw13.set(high);
                }
                command
            }
            Self::Disconnect { recfmt } => {
                let mut command = raw(FabricsType::DISCONNECT);
                command.cdw10.set(u32::from(recfmt));
                command
            }
            Self::Unsupported(fctype) => raw(fctype),
        }
    }

    /// Whether a Connect asks for no submission queue flow control.
    #[must_use]
    pub const fn disables_sq_flow(self) -> bool {
        matches!(self, Self::Connect { cattr, .. } if cattr & CATTR_DISABLE_SQ_FLOW != 0)
    }
}

//! Admin commands as typed values (NVMe Base 2.1, 5). Calls the raw command;
//! the target's admin path parses with it, the initiator builds with it.

use super::opcode::AdminOpcode;
use super::{Command, CommandError};
use crate::endian::{byte_of, high16, join16, join32, low16, split32};
use crate::nvme::ids::{CommandId, ControllerId, Nsid, Numd, Qid};
use crate::open_enum::open_enum;

open_enum! {
    /// Controller or Namespace Structure: what an Identify asks for (NVMe Base
    /// 2.1, 5.1.13).
    Cns(u8) {
        NAMESPACE = 0x00, "Identify Namespace";
        CONTROLLER = 0x01, "Identify Controller";
        ACTIVE_NAMESPACE_LIST = 0x02, "Active Namespace ID list";
        NAMESPACE_DESCRIPTORS = 0x03, "Namespace Identification Descriptor list";
        NVM_SET_LIST = 0x04, "NVM Set List";
        CSI_NAMESPACE = 0x05, "I/O Command Set specific Identify Namespace";
        CSI_CONTROLLER = 0x06, "I/O Command Set specific Identify Controller";
        CSI_ACTIVE_NAMESPACE_LIST = 0x07, "I/O Command Set specific Active Namespace ID list";
        INDEPENDENT_NAMESPACE = 0x08, "I/O Command Set Independent Identify Namespace";
        ALLOCATED_NAMESPACE_LIST = 0x10, "Allocated Namespace ID list";
        ALLOCATED_NAMESPACE = 0x11, "Identify Namespace of an allocated namespace";
        NAMESPACE_CONTROLLER_LIST = 0x12, "Controller list of a namespace";
        SUBSYSTEM_CONTROLLER_LIST = 0x13, "Controller list of the NVM subsystem";
        PRIMARY_CONTROLLER_CAPABILITIES = 0x14, "Primary Controller Capabilities";
        SECONDARY_CONTROLLER_LIST = 0x15, "Secondary Controller list";
        NAMESPACE_GRANULARITY_LIST = 0x16, "Namespace Granularity List";
        UUID_LIST = 0x17, "UUID List";
        DOMAIN_LIST = 0x18, "Domain List";
        ENDURANCE_GROUP_LIST = 0x19, "Endurance Group List";
        CSI_ALLOCATED_NAMESPACE_LIST = 0x1a, "I/O Command Set specific Allocated Namespace ID list";
        CSI_ALLOCATED_NAMESPACE = 0x1b, "I/O Command Set specific Identify of an allocated namespace";
        IO_COMMAND_SETS = 0x1c, "Identify I/O Command Set";
    }
}

open_enum! {
    /// Command Set Identifier (NVMe Base 2.1, 3.1.3.5.1).
    Csi(u8) {
        NVM = 0x00, "NVM Command Set";
        KEY_VALUE = 0x01, "Key Value Command Set";
        ZONED = 0x02, "Zoned Namespace Command Set";
    }
}

open_enum! {
    /// Which value of a feature Get Features returns (NVMe Base 2.1, 5.1.11).
    FeatureSelect(u8) {
        CURRENT = 0, "Current";
        DEFAULT = 1, "Default";
        SAVED = 2, "Saved";
        SUPPORTED_CAPABILITIES = 3, "Supported Capabilities";
    }
}

/// A parsed admin command. Fabrics commands are not among them: see
/// [`Command::is_fabrics`] and [`super::FabricsCommand`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AdminCommand {
    /// Identify.
    Identify {
        /// What is asked for.
        cns: Cns,
        /// Controller, for those CNS values that take one.
        cntid: ControllerId,
        /// CNS-specific identifier (an NVM set, a domain).
        cns_specific: u16,
        /// I/O command set, for those CNS values that take one.
        csi: Csi,
        /// Index into the UUID list; 0 means none.
        uuid_index: u8,
        /// Namespace, or where a namespace list starts after.
        nsid: Nsid,
    },
    /// Get Log Page.
    GetLogPage {
        /// Log page identifier.
        lid: u8,
        /// Log-specific parameter, 7 bits.
        lsp: u8,
        /// Log-specific identifier.
        lsi: u16,
        /// Length of the transfer.
        numd: Numd,
        /// Where in the log page to start: bytes, a multiple of 4; or an index
        /// of entries where `index_offset` says so.
        offset_bytes: u64,
        /// Offset type: `offset_bytes` is an index.
        index_offset: bool,
        /// I/O command set.
        csi: Csi,
        /// Index into the UUID list; 0 means none.
        uuid_index: u8,
        /// Namespace of the log page.
        nsid: Nsid,
        /// Retain Asynchronous Event: reading does not clear the event.
        rae: bool,
    },
    /// Get Features.
    GetFeatures {
        /// Feature identifier.
        fid: u8,
        /// Which of its values.
        select: FeatureSelect,
        /// Namespace of the feature.
        nsid: Nsid,
        /// Feature-specific dword.
        cdw11: u32,
        /// Index into the UUID list; 0 means none.
        uuid_index: u8,
    },
    /// Set Features.
    SetFeatures {
        /// Feature identifier.
        fid: u8,
        /// Keep the value across resets and power cycles.
        save: bool,
        /// Namespace of the feature.
        nsid: Nsid,
        /// Feature-specific dword.
        cdw11: u32,
        /// Feature-specific dword.
        cdw12: u32,
        /// Feature-specific dword.
        cdw13: u32,
        /// Feature-specific dword (bits 6:0 may be a UUID index).
        cdw14: u32,
        /// Feature-specific dword.
        cdw15: u32,
    },
    /// Abort.
    Abort {
        /// Queue of the command to abort.
        sqid: Qid,
        /// The command to abort.
        cid: CommandId,
    },
    /// Asynchronous Event Request.
    AsyncEventRequest,
    /// Keep Alive.
    KeepAlive,
    /// Any other opcode.
    Unsupported(AdminOpcode),
}

const SAVE: u32 = 1 << 31;
const RAE: u32 = 1 << 15;
const INDEX_OFFSET: u32 = 1 << 23;

fn with_csi(csi: Csi) -> u32 {
    u32::from(csi.0) << 24
}

impl AdminCommand {
    /// Reads a raw command of the admin queue.
    ///
    /// # Errors
    /// Flags that fabrics does not allow, or a log page offset that is not a
    /// multiple of 4. Unknown opcodes are a value, not an error.
    pub fn parse(command: &Command) -> Result<Self, CommandError> {
        command.check_flags()?;
        let nsid = command.namespace();
        let cdw10 = command.cdw10.get();
        let cdw11 = command.cdw11.get();
        let cdw14 = command.cdw14.get();
        let uuid_index = byte_of(cdw14, 0) & 0x7f;
        Ok(match AdminOpcode(command.opcode) {
            AdminOpcode::IDENTIFY => Self::Identify {
                cns: Cns(byte_of(cdw10, 0)),
                cntid: ControllerId(high16(cdw10)),
                cns_specific: low16(cdw11),
                csi: Csi(byte_of(cdw11, 3)),
                uuid_index,
                nsid,
            },
            AdminOpcode::GET_LOG_PAGE => {
                let offset_bytes = join32(command.cdw12.get(), command.cdw13.get());
                let index_offset = cdw14 & INDEX_OFFSET != 0;
                if !index_offset && !offset_bytes.is_multiple_of(4) {
                    return Err(CommandError::LogOffsetUnaligned(offset_bytes));
                }
                Self::GetLogPage {
                    lid: byte_of(cdw10, 0),
                    lsp: byte_of(cdw10, 1) & 0x7f,
                    lsi: high16(cdw11),
                    numd: Numd::from_zero_based(join16(high16(cdw10), low16(cdw11))),
                    offset_bytes,
                    index_offset,
                    csi: Csi(byte_of(cdw14, 3)),
                    uuid_index,
                    nsid,
                    rae: cdw10 & RAE != 0,
                }
            }
            AdminOpcode::GET_FEATURES => Self::GetFeatures {
                fid: byte_of(cdw10, 0),
                select: FeatureSelect(byte_of(cdw10, 1) & 7),
                nsid,
                cdw11,
                uuid_index,
            },
            AdminOpcode::SET_FEATURES => Self::SetFeatures {
                fid: byte_of(cdw10, 0),
                save: cdw10 & SAVE != 0,
                nsid,
                cdw11,
                cdw12: command.cdw12.get(),
                cdw13: command.cdw13.get(),
                cdw14,
                cdw15: command.cdw15.get(),
            },
            AdminOpcode::ABORT => {
                Self::Abort { sqid: Qid(low16(cdw10)), cid: CommandId(high16(cdw10)) }
            }
            AdminOpcode::ASYNC_EVENT_REQUEST => Self::AsyncEventRequest,
            AdminOpcode::KEEP_ALIVE => Self::KeepAlive,
            other => Self::Unsupported(other),
        })
    }

    /// The raw command; its data pointer is the null SGL, see
    /// [`Command::with_sgl`]. Fields narrower than their type here lose their
    /// upper bits (LSP and UUID index 7 bits, feature select 3).
    #[must_use]
    pub fn to_command(self, cid: CommandId) -> Command {
        let raw = |opcode: AdminOpcode| Command::new(opcode.0).with_cid(cid);
        match self {
            Self::Identify { cns, cntid, cns_specific, csi, uuid_index, nsid } => {
                let mut command = raw(AdminOpcode::IDENTIFY).with_nsid(nsid);
                command.cdw10.set(join16(u16::from(cns.0), cntid.0));
                command.cdw11.set(u32::from(cns_specific) | with_csi(csi));
                command.cdw14.set(u32::from(uuid_index & 0x7f));
                command
            }
            Self::GetLogPage {
                lid,
                lsp,
                lsi,
                numd,
                offset_bytes,
                index_offset,
                csi,
                uuid_index,
                nsid,
                rae,
            } => {
                let mut command = raw(AdminOpcode::GET_LOG_PAGE).with_nsid(nsid);
                let numd = numd.zero_based();
                let low = u16::from_le_bytes([lid, lsp & 0x7f | if rae { 0x80 } else { 0 }]);
                command.cdw10.set(join16(low, low16(numd)));
                command.cdw11.set(join16(high16(numd), lsi));
                let (offset_low, offset_high) = split32(offset_bytes);
                command.cdw12.set(offset_low);
                command.cdw13.set(offset_high);
                let kind = if index_offset { INDEX_OFFSET } else { 0 };
                command.cdw14.set(u32::from(uuid_index & 0x7f) | kind | with_csi(csi));
                command
            }
            Self::GetFeatures { fid, select, nsid, cdw11, uuid_index } => {
                let mut command = raw(AdminOpcode::GET_FEATURES).with_nsid(nsid);
                command.cdw10.set(u32::from(fid) | u32::from(select.0 & 7) << 8);
                command.cdw11.set(cdw11);
                command.cdw14.set(u32::from(uuid_index & 0x7f));
                command
            }
            Self::SetFeatures { fid, save, nsid, cdw11, cdw12, cdw13, cdw14, cdw15 } => {
                let mut command = raw(AdminOpcode::SET_FEATURES).with_nsid(nsid);
                command.cdw10.set(u32::from(fid) | if save { SAVE } else { 0 });
                command.cdw11.set(cdw11);
                command.cdw12.set(cdw12);
                command.cdw13.set(cdw13);
                command.cdw14.set(cdw14);
                command.cdw15.set(cdw15);
                command
            }
            Self::Abort { sqid, cid: victim } => {
                let mut command = raw(AdminOpcode::ABORT);
                command.cdw10.set(join16(sqid.0, victim.0));
                command
            }
            Self::AsyncEventRequest => raw(AdminOpcode::ASYNC_EVENT_REQUEST),
            Self::KeepAlive => raw(AdminOpcode::KEEP_ALIVE),
            Self::Unsupported(opcode) => raw(opcode),
        }
    }

    /// An Identify without controller, command set and UUID.
    #[must_use]
    pub const fn identify(cns: Cns, nsid: Nsid) -> Self {
        Self::Identify {
            cns,
            cntid: ControllerId(0),
            cns_specific: 0,
            csi: Csi::NVM,
            uuid_index: 0,
            nsid,
        }
    }

    /// A Get Log Page of `numd` dwords from `offset_bytes`, without parameters.
    #[must_use]
    pub const fn log_page(lid: u8, nsid: Nsid, numd: Numd, offset_bytes: u64) -> Self {
        Self::GetLogPage {
            lid,
            lsp: 0,
            lsi: 0,
            numd,
            offset_bytes,
            index_offset: false,
            csi: Csi::NVM,
            uuid_index: 0,
            nsid,
            rae: false,
        }
    }

    /// A Get Features of the current value.
    #[must_use]
    pub const fn get_feature(fid: u8, nsid: Nsid) -> Self {
        Self::GetFeatures { fid, select: FeatureSelect::CURRENT, nsid, cdw11: 0, uuid_index: 0 }
    }

    /// A Set Features of one dword, not saved.
    #[must_use]
    pub const fn set_feature(fid: u8, nsid: Nsid, cdw11: u32) -> Self {
        Self::SetFeatures { fid, save: false, nsid, cdw11, cdw12: 0, cdw13: 0, cdw14: 0, cdw15: 0 }
    }
}

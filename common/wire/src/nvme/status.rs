//! The 15-bit status of a completion and its table of names (NVMe Base 2.1,
//! 4.2.3; NVM Command Set 1.1, 3.1.2). Calls nothing; completions, command
//! errors and both ends call it.

use core::fmt;

use crate::open_enum::open_enum;

open_enum! {
    /// Status code type, bits 10:8 of the status.
    StatusKind(u8) {
        GENERIC = 0, "Generic Command Status";
        COMMAND_SPECIFIC = 1, "Command Specific Status";
        MEDIA = 2, "Media and Data Integrity Errors";
        PATH = 3, "Path Related Status";
        VENDOR = 7, "Vendor Specific";
    }
}

/// A completion's status: SC (bits 7:0), SCT (10:8), CRD (12:11), More (13),
/// Do Not Retry (14). The phase bit is not part of it.
///
/// Constants have CRD, More and DNR clear; compare with [`Status::same_code`]
/// where a peer may have set them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Status(u16);

const CODE_MASK: u16 = 0x07ff;
const CRD_SHIFT: u32 = 11;
const MORE: u16 = 1 << 13;
const DNR: u16 = 1 << 14;

impl Status {
    /// From the 15 bits; bit 15 is dropped.
    #[must_use]
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits & 0x7fff)
    }

    /// From a type (0 to 7, higher bits dropped) and a code.
    #[must_use]
    pub const fn new(kind: StatusKind, code: u8) -> Self {
        Self(u16::from_le_bytes([code, kind.0 & 7]))
    }

    /// The 15 bits.
    #[must_use]
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// From the completion's status field: the status and the phase bit.
    #[must_use]
    pub const fn from_field(field: u16) -> (Self, bool) {
        (Self(field >> 1), field & 1 != 0)
    }

    /// As the completion's status field.
    #[must_use]
    pub const fn to_field(self, phase: bool) -> u16 {
        (self.0 << 1) | if phase { 1 } else { 0 }
    }

    /// With Do Not Retry set: the same command would fail again.
    #[must_use]
    pub const fn with_dnr(self) -> Self {
        Self(self.0 | DNR)
    }

    /// With Do Not Retry clear.
    #[must_use]
    pub const fn without_dnr(self) -> Self {
        Self(self.0 & !DNR)
    }

    /// Do Not Retry.
    #[must_use]
    pub const fn dnr(self) -> bool {
        self.0 & DNR != 0
    }

    /// More: the Error Information log has details.
    #[must_use]
    pub const fn more(self) -> bool {
        self.0 & MORE != 0
    }

    /// With More set.
    #[must_use]
    pub const fn with_more(self) -> Self {
        Self(self.0 | MORE)
    }

    /// Command Retry Delay index, 0 to 3: 0 is no delay, n is Identify
    /// Controller's CRDTn.
    #[must_use]
    pub const fn retry_delay_index(self) -> u8 {
        self.0.to_le_bytes()[1] >> (CRD_SHIFT - 8) & 3
    }

    /// With a Command Retry Delay index (0 to 3, higher bits dropped).
    #[must_use]
    pub const fn with_retry_delay_index(self, index: u8) -> Self {
        let crd = u16::from_le_bytes([0, (index & 3) << (CRD_SHIFT - 8)]);
        Self((self.0 & !(3 << CRD_SHIFT)) | crd)
    }

    /// Status code type.
    #[must_use]
    pub const fn kind(self) -> StatusKind {
        StatusKind(self.0.to_le_bytes()[1] & 7)
    }

    /// Status code within its type.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0.to_le_bytes()[0]
    }

    /// Whether the command succeeded.
    #[must_use]
    pub const fn is_success(self) -> bool {
        self.0 & CODE_MASK == 0
    }

    /// Whether type and code are the same, whatever CRD, More and DNR say.
    #[must_use]
    pub const fn same_code(self, other: Self) -> bool {
        (self.0 ^ other.0) & CODE_MASK == 0
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name)?,
            None => write!(f, "{}", self.kind())?,
        }
        write!(f, " (sct {:#x}, sc {:#04x}", self.kind().0, self.code())?;
        if self.dnr() {
            f.write_str(", do not retry")?;
        }
        f.write_str(")")
    }
}

/// Declares constants and the name table in one go. A row of several names has
/// several meanings on the wire, told apart by the command only.
macro_rules! statuses {
    ($( $sct:literal { $( $sc:literal => $( $konst:ident $name:literal )|+; )* } )*) => {
        impl Status {
            $($($(
                #[doc = $name]
                pub const $konst: Self = Self(($sct << 8) | $sc);
            )+)*)*

            /// The specification's name, if this is a known code. Codes that
            /// mean different things to different commands give all names.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.0 & CODE_MASK {
                    $($( code if code == (($sct << 8) | $sc) => {
                        Some(statuses!(@join $($name),+))
                    } )*)*
                    _ => None,
                }
            }

            /// One status for each code known here, in table order.
            pub const KNOWN: &'static [Self] = &[
                $($( Self(($sct << 8) | $sc), )*)*
            ];
        }
    };
    (@join $name:literal) => { $name };
    (@join $name:literal, $($more:literal),+) => { concat!($name $(, " / ", $more)+) };
}

statuses! {
    0x0 {
        0x00 => SUCCESS "Successful Completion";
        0x01 => INVALID_OPCODE "Invalid Command Opcode";
        0x02 => INVALID_FIELD "Invalid Field in Command";
        0x03 => COMMAND_ID_CONFLICT "Command ID Conflict";
        0x04 => DATA_TRANSFER_ERROR "Data Transfer Error";
        0x05 => ABORTED_POWER_LOSS "Commands Aborted due to Power Loss Notification";
        0x06 => INTERNAL_ERROR "Internal Error";
        0x07 => ABORT_REQUESTED "Command Abort Requested";
        0x08 => ABORTED_SQ_DELETION "Command Aborted due to SQ Deletion";
        0x09 => ABORTED_FAILED_FUSED "Command Aborted due to Failed Fused Command";
        0x0a => ABORTED_MISSING_FUSED "Command Aborted due to Missing Fused Command";
        0x0b => INVALID_NAMESPACE_OR_FORMAT "Invalid Namespace or Format";
        0x0c => COMMAND_SEQUENCE_ERROR "Command Sequence Error";
        0x0d => INVALID_SGL_SEGMENT "Invalid SGL Segment Descriptor";
        0x0e => INVALID_SGL_COUNT "Invalid Number of SGL Descriptors";
        0x0f => DATA_SGL_LENGTH_INVALID "Data SGL Length Invalid";
        0x10 => METADATA_SGL_LENGTH_INVALID "Metadata SGL Length Invalid";
        0x11 => SGL_INVALID_TYPE "SGL Descriptor Type Invalid";
        0x12 => INVALID_USE_OF_CMB "Invalid Use of Controller Memory Buffer";
        0x13 => PRP_OFFSET_INVALID "PRP Offset Invalid";
        0x14 => ATOMIC_WRITE_UNIT_EXCEEDED "Atomic Write Unit Exceeded";
        0x15 => OPERATION_DENIED "Operation Denied";
        0x16 => SGL_OFFSET_INVALID "SGL Offset Invalid";
        0x18 => HOST_ID_INCONSISTENT "Host Identifier Inconsistent Format";
        0x19 => KEEP_ALIVE_EXPIRED "Keep Alive Timer Expired";
        0x1a => KEEP_ALIVE_INVALID "Keep Alive Timeout Invalid";
        0x1b => ABORTED_PREEMPT "Command Aborted due to Preempt and Abort";
        0x1c => SANITIZE_FAILED "Sanitize Failed";
        0x1d => SANITIZE_IN_PROGRESS "Sanitize In Progress";
        0x1e => SGL_GRANULARITY_INVALID "SGL Data Block Granularity Invalid";
        0x1f => COMMAND_NOT_SUPPORTED_IN_CMB "Command Not Supported for Queue in CMB";
        0x20 => NAMESPACE_WRITE_PROTECTED "Namespace is Write Protected";
        0x21 => COMMAND_INTERRUPTED "Command Interrupted";
        0x22 => TRANSIENT_TRANSPORT_ERROR "Transient Transport Error";
        0x23 => PROHIBITED_BY_LOCKDOWN "Command Prohibited by Command and Feature Lockdown";
        0x24 => MEDIA_NOT_READY "Admin Command Media Not Ready";
        0x25 => INVALID_KEY_TAG "Invalid Key Tag";
        0x26 => HOST_DISPERSED_NS_NOT_ENABLED "Host Dispersed Namespace Support Not Enabled";
        0x27 => HOST_ID_NOT_INITIALIZED "Host Identifier Not Initialized";
        0x28 => INCORRECT_KEY "Incorrect Key";
        0x29 => FDP_DISABLED "FDP Disabled";
        0x2a => INVALID_PLACEMENT_HANDLE_LIST "Invalid Placement Handle List";
        0x80 => LBA_OUT_OF_RANGE "LBA Out of Range";
        0x81 => CAPACITY_EXCEEDED "Capacity Exceeded";
        0x82 => NAMESPACE_NOT_READY "Namespace Not Ready";
        0x83 => RESERVATION_CONFLICT "Reservation Conflict";
        0x84 => FORMAT_IN_PROGRESS "Format In Progress";
        0x85 => INVALID_VALUE_SIZE "Invalid Value Size";
        0x86 => INVALID_KEY_SIZE "Invalid Key Size";
        0x87 => KEY_DOES_NOT_EXIST "KV Key Does Not Exist";
        0x88 => UNRECOVERED_ERROR "Unrecovered Error";
        0x89 => KEY_EXISTS "Key Exists";
    }
    0x1 {
        0x00 => COMPLETION_QUEUE_INVALID "Completion Queue Invalid";
        0x01 => INVALID_QUEUE_ID "Invalid Queue Identifier";
        0x02 => INVALID_QUEUE_SIZE "Invalid Queue Size";
        0x03 => ABORT_LIMIT_EXCEEDED "Abort Command Limit Exceeded";
        0x05 => ASYNC_EVENT_LIMIT_EXCEEDED "Asynchronous Event Request Limit Exceeded";
        0x06 => INVALID_FIRMWARE_SLOT "Invalid Firmware Slot";
        0x07 => INVALID_FIRMWARE_IMAGE "Invalid Firmware Image";
        0x08 => INVALID_INTERRUPT_VECTOR "Invalid Interrupt Vector";
        0x09 => INVALID_LOG_PAGE "Invalid Log Page";
        0x0a => INVALID_FORMAT "Invalid Format";
        0x0b => FIRMWARE_NEEDS_CONVENTIONAL_RESET "Firmware Activation Requires Conventional Reset";
        0x0c => INVALID_QUEUE_DELETION "Invalid Queue Deletion";
        0x0d => FEATURE_NOT_SAVEABLE "Feature Identifier Not Saveable";
        0x0e => FEATURE_NOT_CHANGEABLE "Feature Not Changeable";
        0x0f => FEATURE_NOT_NAMESPACE_SPECIFIC "Feature Not Namespace Specific";
        0x10 => FIRMWARE_NEEDS_SUBSYSTEM_RESET "Firmware Activation Requires NVM Subsystem Reset";
        0x11 => FIRMWARE_NEEDS_CONTROLLER_RESET "Firmware Activation Requires Controller Level Reset";
        0x12 => FIRMWARE_MAX_TIME_VIOLATION "Firmware Activation Requires Maximum Time Violation";
        0x13 => FIRMWARE_ACTIVATION_PROHIBITED "Firmware Activation Prohibited";
        0x14 => OVERLAPPING_RANGE "Overlapping Range";
        0x15 => NAMESPACE_INSUFFICIENT_CAPACITY "Namespace Insufficient Capacity";
        0x16 => NAMESPACE_ID_UNAVAILABLE "Namespace Identifier Unavailable";
        0x18 => NAMESPACE_ALREADY_ATTACHED "Namespace Already Attached";
        0x19 => NAMESPACE_IS_PRIVATE "Namespace Is Private";
        0x1a => NAMESPACE_NOT_ATTACHED "Namespace Not Attached";
        0x1b => THIN_PROVISIONING_NOT_SUPPORTED "Thin Provisioning Not Supported";
        0x1c => CONTROLLER_LIST_INVALID "Controller List Invalid";
        0x1d => SELF_TEST_IN_PROGRESS "Device Self-test In Progress";
        0x1e => BOOT_PARTITION_WRITE_PROHIBITED "Boot Partition Write Prohibited";
        0x1f => INVALID_CONTROLLER_ID "Invalid Controller Identifier";
        0x20 => INVALID_SECONDARY_CONTROLLER_STATE "Invalid Secondary Controller State";
        0x21 => INVALID_CONTROLLER_RESOURCE_COUNT "Invalid Number of Controller Resources";
        0x22 => INVALID_RESOURCE_ID "Invalid Resource Identifier";
        0x23 => SANITIZE_PROHIBITED_PMR "Sanitize Prohibited While Persistent Memory Region is Enabled";
        0x24 => ANA_GROUP_ID_INVALID "ANA Group Identifier Invalid";
        0x25 => ANA_ATTACH_FAILED "ANA Attach Failed";
        0x26 => INSUFFICIENT_CAPACITY "Insufficient Capacity";
        0x27 => NAMESPACE_ATTACHMENT_LIMIT_EXCEEDED "Namespace Attachment Limit Exceeded";
        0x28 => PROHIBITION_NOT_SUPPORTED "Prohibition of Command Execution Not Supported";
        0x29 => IO_COMMAND_SET_NOT_SUPPORTED "I/O Command Set Not Supported";
        0x2a => IO_COMMAND_SET_NOT_ENABLED "I/O Command Set Not Enabled";
        0x2b => IO_COMMAND_SET_COMBINATION_REJECTED "I/O Command Set Combination Rejected";
        0x2c => INVALID_IO_COMMAND_SET "Invalid I/O Command Set";
        0x2d => IDENTIFIER_UNAVAILABLE "Identifier Unavailable";
        0x2e => NAMESPACE_IS_DISPERSED "Namespace Is Dispersed";
        0x2f => INVALID_DISCOVERY_INFORMATION "Invalid Discovery Information";
        0x30 => ZONING_LOCKED "Zoning Data Structure Locked";
        0x31 => ZONING_NOT_FOUND "Zoning Data Structure Not Found";
        0x32 => INSUFFICIENT_DISCOVERY_RESOURCES "Insufficient Discovery Resources";
        0x33 => REQUESTED_FUNCTION_DISABLED "Requested Function Disabled";
        0x34 => ZONEGROUP_ORIGINATOR_INVALID "ZoneGroup Originator Invalid";
        0x35 => INVALID_HOST "Invalid Host";
        0x36 => INVALID_NVM_SUBSYSTEM "Invalid NVM Subsystem";
        0x37 => INVALID_CONTROLLER_DATA_QUEUE "Invalid Controller Data Queue";
        0x38 => NOT_ENOUGH_RESOURCES "Not Enough Resources";
        0x39 => CONTROLLER_SUSPENDED "Controller Suspended";
        0x3a => CONTROLLER_NOT_SUSPENDED "Controller Not Suspended";
        0x3b => CONTROLLER_DATA_QUEUE_FULL "Controller Data Queue Full";
        0x80 => CONNECT_INCOMPATIBLE_FORMAT "Connect Incompatible Format"
            | CONFLICTING_ATTRIBUTES "Conflicting Attributes";
        0x81 => CONNECT_CONTROLLER_BUSY "Connect Controller Busy"
            | INVALID_PROTECTION_INFORMATION "Invalid Protection Information";
        0x82 => CONNECT_INVALID_PARAMETERS "Connect Invalid Parameters"
            | WRITE_TO_READ_ONLY_RANGE "Attempted Write to Read Only Range";
        0x83 => CONNECT_RESTART_DISCOVERY "Connect Restart Discovery"
            | COMMAND_SIZE_LIMIT_EXCEEDED "Command Size Limit Exceeded";
        0x84 => CONNECT_INVALID_HOST "Connect Invalid Host";
        0x85 => INVALID_QUEUE_TYPE "Invalid Queue Type"
            | INCOMPATIBLE_NAMESPACE "Incompatible Namespace or Format";
        0x90 => DISCOVER_RESTART "Discover Restart";
        0x91 => AUTHENTICATION_REQUIRED "Authentication Required";
    }
    0x2 {
        0x80 => WRITE_FAULT "Write Fault";
        0x81 => UNRECOVERED_READ_ERROR "Unrecovered Read Error";
        0x82 => GUARD_CHECK_ERROR "End-to-end Guard Check Error";
        0x83 => APPLICATION_TAG_CHECK_ERROR "End-to-end Application Tag Check Error";
        0x84 => REFERENCE_TAG_CHECK_ERROR "End-to-end Reference Tag Check Error";
        0x85 => COMPARE_FAILURE "Compare Failure";
        0x86 => ACCESS_DENIED "Access Denied";
        0x87 => DEALLOCATED_OR_UNWRITTEN "Deallocated or Unwritten Logical Block";
        0x88 => STORAGE_TAG_CHECK_ERROR "End-to-End Storage Tag Check Error";
    }
    0x3 {
        0x00 => INTERNAL_PATH_ERROR "Internal Path Error";
        0x01 => ANA_PERSISTENT_LOSS "Asymmetric Access Persistent Loss";
        0x02 => ANA_INACCESSIBLE "Asymmetric Access Inaccessible";
        0x03 => ANA_TRANSITION "Asymmetric Access Transition";
        0x60 => CONTROLLER_PATHING_ERROR "Controller Pathing Error";
        0x70 => HOST_PATHING_ERROR "Host Pathing Error";
        0x71 => ABORTED_BY_HOST "Command Aborted By Host";
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn known_bits() {
        assert_eq!(Status::LBA_OUT_OF_RANGE.bits(), 0x080);
        assert_eq!(Status::CONNECT_INVALID_PARAMETERS.with_dnr().bits(), 0x4182);
        assert_eq!(Status::INVALID_FIELD.with_dnr().to_field(false), 0x8004);
        // What the kernel answers to a command whose SGL is not keyed.
        assert_eq!(Status::INVALID_FIELD.with_dnr().with_more().bits(), 0x6002);
        assert!(Status::SUCCESS.is_success());
        assert!(!Status::INTERNAL_PATH_ERROR.is_success());
    }

    #[test]
    fn display_names_known_values_and_numbers_others() {
        assert_eq!(
            Status::LBA_OUT_OF_RANGE.with_dnr().to_string(),
            "LBA Out of Range (sct 0x0, sc 0x80, do not retry)"
        );
        assert_eq!(
            Status::new(StatusKind(5), 0x42).to_string(),
            "StatusKind 0x05 (sct 0x5, sc 0x42)"
        );
        assert_eq!(
            Status::CONFLICTING_ATTRIBUTES.name(),
            Some("Connect Incompatible Format / Conflicting Attributes")
        );
    }

    #[test]
    fn every_known_code_has_a_name_and_appears_once() {
        let mut codes: Vec<u16> = Status::KNOWN.iter().map(|s| s.bits()).collect();
        assert!(Status::KNOWN.iter().all(|s| s.name().is_some()));
        codes.sort_unstable();
        let before = codes.len();
        codes.dedup();
        assert_eq!(codes.len(), before);
    }

    proptest! {
        #[test]
        fn field_round_trip(field: u16) {
            let (status, phase) = Status::from_field(field);
            prop_assert_eq!(status.to_field(phase), field);
            let rebuilt = Status::new(status.kind(), status.code())
                .with_retry_delay_index(status.retry_delay_index());
            let rebuilt = if status.more() { rebuilt.with_more() } else { rebuilt };
            let rebuilt = if status.dnr() { rebuilt.with_dnr() } else { rebuilt };
            prop_assert_eq!(rebuilt, status);
            prop_assert!(!status.to_string().is_empty());
        }
    }
}

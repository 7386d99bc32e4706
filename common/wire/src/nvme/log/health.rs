//! Error Information, SMART / Health and Firmware Slot log pages (NVMe Base
//! 2.1, 5.1.12.1.2 to 5.1.12.1.4). Called by the target's log pages and by the
//! initiator.

use crate::ascii;
use crate::endian::{U16Le, U32Le, U64Le, U128Le};
use crate::layout::layout;
use crate::nvme::ids::{CommandId, Lba, Nsid, Qid};
use crate::nvme::status::Status;

layout! {
    /// An entry of the Error Information log, LID 01h; newest first.
    ErrorEntry[64] {
        /// Number of this error over the controller's life; 0 is no entry.
        0 pub error_count: U64Le,
        /// Submission queue of the command.
        8 pub sqid: U16Le,
        /// The command; FFFFh where none caused the error.
        10 pub cid: U16Le,
        /// Status field, with the phase bit.
        12 pub status_field: U16Le,
        /// Where the wrong parameter stands: byte in bits 7:0, bit in 10:8;
        /// FFFFh where no parameter was wrong.
        14 pub parameter_location: U16Le,
        /// First block in error.
        16 pub lba: U64Le,
        /// Namespace.
        24 pub nsid: U32Le,
        /// Vendor log page with more, or 0.
        28 pub vendor_log: u8,
        /// Transport type.
        29 pub trtype: u8,
        /// Command set.
        30 pub csi: u8,
        /// Opcode, where the controller records it.
        31 pub opcode: u8,
        /// Command-specific information.
        32 pub command_specific: U64Le,
        /// Transport-specific information.
        40 pub transport_specific: U16Le,
        42 reserved_42: [u8; 21],
        /// Version of the entry's format: 1 where `opcode` counts.
        63 pub version: u8,
    }
}

impl ErrorEntry {
    /// An entry about a command.
    #[must_use]
    pub fn new(error_count: u64, qid: Qid, cid: CommandId, status: Status, nsid: Nsid) -> Self {
        Self {
            error_count: U64Le::new(error_count),
            sqid: U16Le::new(qid.0),
            cid: U16Le::new(cid.0),
            status_field: U16Le::new(status.to_field(false)),
            parameter_location: U16Le::new(0xffff),
            nsid: U32Le::new(nsid.0),
            ..Self::default()
        }
    }

    /// With the first block in error.
    #[must_use]
    pub fn with_lba(mut self, lba: Lba) -> Self {
        self.lba.set(lba.0);
        self
    }

    /// With the byte and bit of the command where the wrong parameter stands;
    /// bits above 7 are dropped.
    #[must_use]
    pub fn with_parameter(mut self, byte: u8, bit: u8) -> Self {
        self.parameter_location.set(u16::from_le_bytes([byte, bit & 7]));
        self
    }

    /// The status.
    #[must_use]
    pub fn status(&self) -> Status {
        Status::from_field(self.status_field.get()).0
    }
}

/// Bits of the health log's critical warning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CriticalWarning;

impl CriticalWarning {
    /// Spare capacity is below its threshold.
    pub const SPARE: u8 = 1;
    /// Temperature left its limits.
    pub const TEMPERATURE: u8 = 1 << 1;
    /// Reliability is degraded.
    pub const RELIABILITY: u8 = 1 << 2;
    /// All media are read-only.
    pub const READ_ONLY: u8 = 1 << 3;
    /// The volatile memory backup failed.
    pub const BACKUP_FAILED: u8 = 1 << 4;
}

layout! {
    /// SMART / Health Information, LID 02h.
    SmartHealth[512] {
        /// See [`CriticalWarning`].
        0 pub critical_warning: u8,
        /// Composite temperature in kelvins.
        1 pub temperature: U16Le,
        /// Spare capacity left in percent.
        3 pub available_spare: u8,
        /// Threshold of the spare capacity in percent.
        4 pub available_spare_threshold: u8,
        /// Life used in percent, up to 255.
        5 pub percentage_used: u8,
        /// Endurance groups' critical warnings.
        6 pub endurance_group_warning: u8,
        7 reserved_7: [u8; 25],
        /// Data read, in units of 1,000 x 512 bytes, rounded up.
        32 pub data_units_read: U128Le,
        /// Data written, likewise.
        48 pub data_units_written: U128Le,
        /// Read commands.
        64 pub host_read_commands: U128Le,
        /// Write commands.
        80 pub host_write_commands: U128Le,
        /// Time busy with I/O in minutes.
        96 pub controller_busy_minutes: U128Le,
        /// Power cycles.
        112 pub power_cycles: U128Le,
        /// Hours of operation.
        128 pub power_on_hours: U128Le,
        /// Unsafe shutdowns.
        144 pub unsafe_shutdowns: U128Le,
        /// Media and data integrity errors.
        160 pub media_errors: U128Le,
        /// Error Information entries over the controller's life.
        176 pub error_log_entries: U128Le,
        /// Minutes above the warning temperature.
        192 pub warning_temperature_minutes: U32Le,
        /// Minutes above the critical temperature.
        196 pub critical_temperature_minutes: U32Le,
        /// Temperature sensors 1 to 8 in kelvins; 0 is none.
        200 pub temperature_sensors: [U16Le; 8],
        /// Transitions to thermal management temperatures 1 and 2.
        216 pub thermal_transitions: [U32Le; 2],
        /// Seconds in thermal management temperatures 1 and 2.
        224 pub thermal_seconds: [U32Le; 2],
        232 reserved_232: [u8; 280],
    }
}

impl SmartHealth {
    /// Data units for a number of bytes: thousands of 512 bytes, rounded up.
    #[must_use]
    pub const fn data_units(bytes: u128) -> u128 {
        bytes.div_ceil(512_000)
    }
}

layout! {
    /// Firmware Slot Information, LID 03h.
    FirmwareSlots[512] {
        /// Active slot in bits 2:0, slot after the next reset in bits 6:4.
        0 pub active: u8,
        1 reserved_1: [u8; 7],
        /// Revisions of slots 1 to 7, ASCII; zeros are an empty slot.
        8 pub revisions: [[u8; 8]; 7],
        64 reserved_64: [u8; 448],
    }
}

impl FirmwareSlots {
    /// A controller with one slot.
    #[must_use]
    pub fn single(revision: &str) -> Self {
        let mut data = Self { active: 1, ..Self::default() };
        if let Some(first) = data.revisions.first_mut() {
            *first = ascii::padded(revision);
        }
        data
    }
}

//! Features: identifiers and the encodings of their values (NVMe Base 2.1,
//! 5.1.25). Calls `ids`; Get and Set Features of both ends call it.

use bytemuck::Zeroable;

use super::ids::Nsid;
use crate::endian::{high16, join16, low16};
use crate::layout::layout;
use crate::open_enum::open_enum;

open_enum! {
    /// Feature identifier.
    FeatureId(u8) {
        ARBITRATION = 0x01, "Arbitration";
        POWER_MANAGEMENT = 0x02, "Power Management";
        LBA_RANGE_TYPE = 0x03, "LBA Range Type";
        TEMPERATURE_THRESHOLD = 0x04, "Temperature Threshold";
        ERROR_RECOVERY = 0x05, "Error Recovery";
        VOLATILE_WRITE_CACHE = 0x06, "Volatile Write Cache";
        NUMBER_OF_QUEUES = 0x07, "Number of Queues";
        INTERRUPT_COALESCING = 0x08, "Interrupt Coalescing";
        INTERRUPT_VECTOR = 0x09, "Interrupt Vector Configuration";
        WRITE_ATOMICITY = 0x0a, "Write Atomicity Normal";
        ASYNC_EVENT_CONFIG = 0x0b, "Asynchronous Event Configuration";
        AUTONOMOUS_POWER_STATE = 0x0c, "Autonomous Power State Transition";
        HOST_MEMORY_BUFFER = 0x0d, "Host Memory Buffer";
        TIMESTAMP = 0x0e, "Timestamp";
        KEEP_ALIVE_TIMER = 0x0f, "Keep Alive Timer";
        THERMAL_MANAGEMENT = 0x10, "Host Controlled Thermal Management";
        NON_OPERATIONAL_POWER_STATE = 0x11, "Non-Operational Power State Config";
        READ_RECOVERY_LEVEL = 0x12, "Read Recovery Level Config";
        PREDICTABLE_LATENCY_CONFIG = 0x13, "Predictable Latency Mode Config";
        PREDICTABLE_LATENCY_WINDOW = 0x14, "Predictable Latency Mode Window";
        HOST_BEHAVIOR = 0x16, "Host Behavior Support";
        SANITIZE_CONFIG = 0x17, "Sanitize Config";
        ENDURANCE_GROUP_EVENTS = 0x18, "Endurance Group Event Configuration";
        IO_COMMAND_SET_PROFILE = 0x19, "I/O Command Set Profile";
        SPINUP_CONTROL = 0x1a, "Spinup Control";
        ENHANCED_CONTROLLER_METADATA = 0x7d, "Enhanced Controller Metadata";
        CONTROLLER_METADATA = 0x7e, "Controller Metadata";
        NAMESPACE_METADATA = 0x7f, "Namespace Metadata";
        SOFTWARE_PROGRESS = 0x80, "Software Progress Marker";
        HOST_IDENTIFIER = 0x81, "Host Identifier";
        RESERVATION_NOTIFICATION = 0x82, "Reservation Notification Mask";
        RESERVATION_PERSISTENCE = 0x83, "Reservation Persistence";
        NAMESPACE_WRITE_PROTECTION = 0x84, "Namespace Write Protection Config";
    }
}

impl FeatureId {
    /// Interrupts do not exist over fabrics; these features are refused there.
    #[must_use]
    pub const fn is_interrupt(self) -> bool {
        matches!(self, Self::INTERRUPT_COALESCING | Self::INTERRUPT_VECTOR)
    }
}

/// Number of Queues, of one direction, zero-based on the wire. FFFFh does not
/// exist there, so the count is 1 to 65,535.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NumberOfQueues {
    /// I/O submission queues, a true count.
    pub submission: u32,
    /// I/O completion queues, a true count.
    pub completion: u32,
}

impl NumberOfQueues {
    /// As many of both.
    #[must_use]
    pub const fn both(count: u32) -> Self {
        Self { submission: count, completion: count }
    }

    /// From dword 11 (asked for) or the result (granted). A host that sends
    /// FFFFh gets a count of 65,536 here, which a controller refuses with
    /// Invalid Field in Command.
    #[must_use]
    pub fn from_dword(dword: u32) -> Self {
        Self { submission: u32::from(low16(dword)) + 1, completion: u32::from(high16(dword)) + 1 }
    }

    /// As dword 11 or the result; counts are brought into 1 to 65,536.
    #[must_use]
    pub fn to_dword(self) -> u32 {
        let zero_based = |count: u32| u16::try_from(count.saturating_sub(1)).unwrap_or(u16::MAX);
        join16(zero_based(self.submission), zero_based(self.completion))
    }

    /// Whether both counts may be asked for: neither field is FFFFh.
    #[must_use]
    pub const fn is_valid(self) -> bool {
        self.submission <= 65_535 && self.completion <= 65_535
    }
}

/// Asynchronous Event Configuration: which events a host wants.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct AsyncEventConfig(pub u32);

impl AsyncEventConfig {
    /// SMART / Health critical warnings, 8 bits as in the health log.
    pub const HEALTH: u32 = 0xff;
    /// Namespace attribute notices.
    pub const NAMESPACE_ATTRIBUTES: u32 = 1 << 8;
    /// Firmware activation notices.
    pub const FIRMWARE_ACTIVATION: u32 = 1 << 9;
    /// ANA change notices.
    pub const ANA_CHANGE: u32 = 1 << 11;
    /// Discovery log page change notices.
    pub const DISCOVERY_CHANGE: u32 = 1 << 31;

    /// Whether all of `bits` are enabled.
    #[must_use]
    pub const fn has(self, bits: u32) -> bool {
        self.0 & bits == bits
    }
}

/// Keep Alive Timer in milliseconds; 0 is off. Controllers round it up to their
/// granularity.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct KeepAliveTimer {
    /// The timeout.
    pub timeout_ms: u32,
}

impl KeepAliveTimer {
    /// Rounded up to a multiple of `granularity_ms` (0 rounds nothing); the
    /// largest multiple where that overflows.
    #[must_use]
    pub fn rounded_up(self, granularity_ms: u32) -> Self {
        let timeout_ms = self
            .timeout_ms
            .checked_next_multiple_of(granularity_ms)
            .or_else(|| Some(u32::MAX - u32::MAX.checked_rem(granularity_ms)?))
            .unwrap_or(self.timeout_ms);
        Self { timeout_ms }
    }
}

/// Volatile Write Cache: bit 0 enables it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct VolatileWriteCache {
    /// Whether the cache is used.
    pub enabled: bool,
}

impl VolatileWriteCache {
    /// From dword 11 or the result.
    #[must_use]
    pub const fn from_dword(dword: u32) -> Self {
        Self { enabled: dword & 1 != 0 }
    }

    /// As dword 11 or the result.
    #[must_use]
    pub const fn to_dword(self) -> u32 {
        if self.enabled { 1 } else { 0 }
    }
}

/// Dword 11 of Host Identifier: bit 0, the identifier has 128 bits (must be set
/// over fabrics).
pub const HOST_IDENTIFIER_EXTENDED: u32 = 1;

/// Arbitration: dword 11 is kept whole, its parts named.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Arbitration(pub u32);

impl Arbitration {
    /// Burst in commands as an exponent of 2; 7 is no limit.
    #[must_use]
    pub const fn burst(self) -> u8 {
        self.0.to_le_bytes()[0] & 7
    }

    /// Weights of low, medium and high priority, zero-based.
    #[must_use]
    pub const fn weights(self) -> [u8; 3] {
        let [_, low, medium, high] = self.0.to_le_bytes();
        [low, medium, high]
    }
}

/// Temperature Threshold in dword 11.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TemperatureThreshold {
    /// Threshold in kelvins.
    pub kelvins: u16,
    /// Sensor: 0 composite, 1 to 8 one sensor, Fh all (Set Features only).
    pub sensor: u8,
    /// Threshold type: 0 over, 1 under.
    pub kind: u8,
    /// Hysteresis, 3 bits.
    pub hysteresis: u8,
}

impl TemperatureThreshold {
    /// From dword 11.
    #[must_use]
    pub const fn from_dword(dword: u32) -> Self {
        let high = high16(dword).to_le_bytes();
        Self {
            kelvins: low16(dword),
            sensor: high[0] & 0xf,
            kind: high[0] >> 4 & 3,
            hysteresis: low16(dword >> 22).to_le_bytes()[0] & 7,
        }
    }

    /// As dword 11.
    #[must_use]
    pub fn to_dword(self) -> u32 {
        u32::from(self.kelvins)
            | u32::from(self.sensor & 0xf) << 16
            | u32::from(self.kind & 3) << 20
            | u32::from(self.hysteresis & 7) << 22
    }
}

/// Error Recovery in dword 11.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ErrorRecovery {
    /// Time limit for retries in units of 100 ms; 0 is none.
    pub time_limit: u16,
    /// Report reads of deallocated blocks as an error.
    pub deallocated_error: bool,
}

impl ErrorRecovery {
    /// From dword 11.
    #[must_use]
    pub const fn from_dword(dword: u32) -> Self {
        Self { time_limit: low16(dword), deallocated_error: dword & 1 << 16 != 0 }
    }

    /// As dword 11.
    #[must_use]
    pub const fn to_dword(self) -> u32 {
        join16(self.time_limit, if self.deallocated_error { 1 } else { 0 })
    }
}

/// Power Management in dword 11.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct PowerManagement {
    /// Power state, 5 bits.
    pub state: u8,
    /// Workload hint, 3 bits.
    pub workload: u8,
}

impl PowerManagement {
    /// From dword 11.
    #[must_use]
    pub const fn from_dword(dword: u32) -> Self {
        let byte = dword.to_le_bytes()[0];
        Self { state: byte & 0x1f, workload: byte >> 5 }
    }

    /// As dword 11.
    #[must_use]
    pub fn to_dword(self) -> u32 {
        u32::from(self.state & 0x1f) | u32::from(self.workload & 7) << 5
    }
}

/// Write Atomicity Normal: bit 0 turns AWUN and NAWUN off.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct WriteAtomicity {
    /// Whether only the units at power failure are wanted.
    pub disable_normal: bool,
}

impl WriteAtomicity {
    /// From dword 11.
    #[must_use]
    pub const fn from_dword(dword: u32) -> Self {
        Self { disable_normal: dword & 1 != 0 }
    }

    /// As dword 11.
    #[must_use]
    pub const fn to_dword(self) -> u32 {
        if self.disable_normal { 1 } else { 0 }
    }
}

layout! {
    /// Data of Host Behavior Support, 512 bytes.
    HostBehavior[512] {
        /// 1: the host understands Command Interrupted and retry delays.
        0 pub acre: u8,
        /// 1: extended telemetry data area 4.
        1 pub etdas: u8,
        /// 1: LBA format extension (more than 16 formats).
        2 pub lbafee: u8,
        /// 1: the host understands dispersed namespaces.
        3 pub hdisns: u8,
        4 reserved_4: [u8; 508],
    }
}

impl HostBehavior {
    /// A host that knows retry delays.
    #[must_use]
    pub fn with_retry_delays() -> Self {
        Self { acre: 1, ..Self::zeroed() }
    }
}

/// Namespace Write Protection states, dword 11 bits 2:0.
pub const WRITE_PROTECT_NONE: u32 = 0;
/// Write protection until it is lifted.
pub const WRITE_PROTECT: u32 = 1;

/// Whether a features command names no single namespace: NSID 0 or all.
#[must_use]
pub const fn is_controller_wide(nsid: Nsid) -> bool {
    nsid.0 == 0 || nsid.0 == Nsid::ALL.0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn captured_number_of_queues() {
        // A kernel target that grants 128 of each.
        assert_eq!(NumberOfQueues::from_dword(0x007f_007f), NumberOfQueues::both(128));
        assert_eq!(NumberOfQueues::both(128).to_dword(), 0x007f_007f);
        assert_eq!(NumberOfQueues::both(0).to_dword(), 0);
        assert!(!NumberOfQueues::from_dword(0xffff).is_valid());
        assert!(NumberOfQueues::from_dword(0xfffe).is_valid());
    }

    #[test]
    fn keep_alive_rounds_up() {
        let round = |timeout_ms, granularity| {
            KeepAliveTimer { timeout_ms }.rounded_up(granularity).timeout_ms
        };
        assert_eq!(round(5001, 1000), 6000);
        assert_eq!(round(5000, 1000), 5000);
        assert_eq!(round(0, 1000), 0);
        assert_eq!(round(77, 0), 77);
        assert_eq!(round(u32::MAX, 1000), 4_294_967_000);
    }

    #[test]
    fn small_encodings() {
        assert!(FeatureId::INTERRUPT_VECTOR.is_interrupt());
        assert!(!FeatureId::NUMBER_OF_QUEUES.is_interrupt());
        assert!(AsyncEventConfig(0x8000_0100).has(AsyncEventConfig::DISCOVERY_CHANGE));
        assert!(!AsyncEventConfig(0x100).has(AsyncEventConfig::DISCOVERY_CHANGE));
        assert_eq!(Arbitration(0x0302_0107).burst(), 7);
        assert_eq!(Arbitration(0x0302_0107).weights(), [1, 2, 3]);
        assert_eq!(HostBehavior::with_retry_delays().as_bytes()[..2], [1, 0]);
        assert!(is_controller_wide(Nsid::ALL) && !is_controller_wide(Nsid(1)));
    }

    proptest! {
        #[test]
        fn dwords_round_trip(dword: u32) {
            prop_assert_eq!(NumberOfQueues::from_dword(dword).to_dword(), dword);
            let temperature = TemperatureThreshold::from_dword(dword);
            prop_assert_eq!(temperature.to_dword(), dword & 0x01ff_ffff);
            prop_assert_eq!(ErrorRecovery::from_dword(dword).to_dword(), dword & 0x0001_ffff);
            prop_assert_eq!(PowerManagement::from_dword(dword).to_dword(), dword & 0xff);
            prop_assert_eq!(VolatileWriteCache::from_dword(dword).to_dword(), dword & 1);
            prop_assert_eq!(WriteAtomicity::from_dword(dword).to_dword(), dword & 1);
        }
    }
}

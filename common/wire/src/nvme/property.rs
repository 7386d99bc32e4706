//! Controller properties (NVMe Base 2.1, 3.1.4). Calls `ids`; the target's
//! property commands and the initiator's enable sequence call it.

use core::fmt;
use core::time::Duration;

use super::command::PropertySize;
use super::ids::QueueSize;
use crate::endian::low16;
use crate::open_enum::open_enum;

open_enum! {
    /// Offset of a property in bytes.
    Property(u32) {
        CAP = 0x00, "Controller Capabilities";
        VS = 0x08, "Version";
        CC = 0x14, "Controller Configuration";
        CSTS = 0x1c, "Controller Status";
        NSSR = 0x20, "NVM Subsystem Reset";
        CRTO = 0x68, "Controller Ready Timeouts";
    }
}

impl Property {
    /// The size with which the property must be accessed; `None` for unknown ones.
    #[must_use]
    pub const fn size(self) -> Option<PropertySize> {
        match self {
            Self::CAP => Some(PropertySize::Eight),
            Self::VS | Self::CC | Self::CSTS | Self::NSSR | Self::CRTO => Some(PropertySize::Four),
            _ => None,
        }
    }

    /// Whether a host may set it.
    #[must_use]
    pub const fn is_writable(self) -> bool {
        matches!(self, Self::CC | Self::CSTS | Self::NSSR)
    }
}

/// Eight bits of `value` from `shift` on.
const fn byte_at(value: u64, shift: u32) -> u8 {
    (value >> shift).to_le_bytes()[0]
}

/// CAP, the controller's capabilities (3.1.4.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Capabilities(pub u64);

impl Capabilities {
    const CQR: u64 = 1 << 16;
    const TO_SHIFT: u32 = 24;
    const TO_MASK: u64 = 0xff << Self::TO_SHIFT;
    const NSSRS: u64 = 1 << 36;
    const CSS_NVM: u64 = 1 << 37;
    const CSS_IOCSS: u64 = 1 << 43;
    const CRMS_SHIFT: u32 = 59;

    /// What a fabrics controller with queues of `max_queue` entries has: queues
    /// contiguous, the NVM command set, memory pages of 4 KiB, no doorbells.
    #[must_use]
    pub fn fabrics(max_queue: QueueSize) -> Self {
        Self(u64::from(max_queue.zero_based()) | Self::CQR | Self::CSS_NVM)
    }

    /// With a ready timeout, rounded up to 500 ms, at most 127.5 s.
    #[must_use]
    pub fn with_ready_timeout(self, timeout: Duration) -> Self {
        let units = u8::try_from(timeout.as_millis().div_ceil(500)).unwrap_or(u8::MAX);
        Self((self.0 & !Self::TO_MASK) | u64::from(units) << Self::TO_SHIFT)
    }

    /// With support for choosing among I/O command sets (CSS bit 6).
    #[must_use]
    pub const fn with_io_command_sets(self) -> Self {
        Self(self.0 | Self::CSS_IOCSS)
    }

    /// With controller ready modes (2 bits: 1 media, 2 independent of media).
    #[must_use]
    pub const fn with_ready_modes(self, modes: u8) -> Self {
        let bits = ((modes & 3) as u64) << Self::CRMS_SHIFT;
        Self((self.0 & !(3 << Self::CRMS_SHIFT)) | bits)
    }

    /// Largest queue (MQES, zero-based on the wire).
    #[must_use]
    pub const fn max_queue(self) -> QueueSize {
        let [low, high, ..] = self.0.to_le_bytes();
        QueueSize::from_zero_based(u16::from_le_bytes([low, high]))
    }

    /// Contiguous Queues Required; always set over fabrics.
    #[must_use]
    pub const fn contiguous_queues(self) -> bool {
        self.0 & Self::CQR != 0
    }

    /// Longest time from CC.EN to CSTS.RDY, or back (TO).
    #[must_use]
    pub fn ready_timeout(self) -> Duration {
        Duration::from_millis(500) * u32::from(byte_at(self.0, Self::TO_SHIFT))
    }

    /// Doorbell stride exponent (DSTRD); 0 over fabrics.
    #[must_use]
    pub const fn doorbell_stride(self) -> u8 {
        byte_at(self.0, 32) & 0xf
    }

    /// NVM Subsystem Reset Supported.
    #[must_use]
    pub const fn subsystem_reset(self) -> bool {
        self.0 & Self::NSSRS != 0
    }

    /// Command Sets Supported, 8 bits: bit 0 NVM, 6 several by CC.CSS 110b, 7
    /// none.
    #[must_use]
    pub const fn command_sets(self) -> u8 {
        byte_at(self.0, 37)
    }

    /// Smallest memory page in bytes (MPSMIN).
    #[must_use]
    pub const fn min_page_bytes(self) -> u64 {
        4096 << (byte_at(self.0, 48) & 0xf)
    }

    /// Largest memory page in bytes (MPSMAX).
    #[must_use]
    pub const fn max_page_bytes(self) -> u64 {
        4096 << (byte_at(self.0, 52) & 0xf)
    }

    /// Controller Ready Modes Supported, 2 bits.
    #[must_use]
    pub const fn ready_modes(self) -> u8 {
        byte_at(self.0, Self::CRMS_SHIFT) & 3
    }
}

/// VS, the version of the specification (3.1.4.2).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Version(pub u32);

impl Version {
    /// 1.3.
    pub const V1_3: Self = Self::new(1, 3, 0);
    /// 1.4.
    pub const V1_4: Self = Self::new(1, 4, 0);
    /// 2.0.
    pub const V2_0: Self = Self::new(2, 0, 0);
    /// 2.1.
    pub const V2_1: Self = Self::new(2, 1, 0);

    /// From its parts.
    #[must_use]
    pub const fn new(major: u16, minor: u8, tertiary: u8) -> Self {
        let [low, high] = major.to_le_bytes();
        Self(u32::from_le_bytes([tertiary, minor, low, high]))
    }

    /// Major version.
    #[must_use]
    pub const fn major(self) -> u16 {
        let [_, _, low, high] = self.0.to_le_bytes();
        u16::from_le_bytes([low, high])
    }

    /// Minor version.
    #[must_use]
    pub const fn minor(self) -> u8 {
        self.0.to_le_bytes()[1]
    }

    /// Tertiary version.
    #[must_use]
    pub const fn tertiary(self) -> u8 {
        self.0.to_le_bytes()[0]
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major(), self.minor(), self.tertiary())
    }
}

open_enum! {
    /// CC.SHN, shutdown notification, 2 bits.
    ShutdownNotification(u8) {
        NONE = 0, "No notification";
        NORMAL = 1, "Normal shutdown";
        ABRUPT = 2, "Abrupt shutdown";
    }
}

/// CC, the controller's configuration (3.1.4.5).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ControllerConfig(pub u32);

impl ControllerConfig {
    const ENABLE: u32 = 1;
    const CSS_SHIFT: u32 = 4;
    const SHN_SHIFT: u32 = 14;
    const SQES_SHIFT: u32 = 16;
    const CQES_SHIFT: u32 = 20;

    /// Queue entries of 64 and 16 bytes, NVM command set, 4 KiB pages, enabled.
    #[must_use]
    pub const fn enable_nvm() -> Self {
        Self(Self::ENABLE | 6 << Self::SQES_SHIFT | 4 << Self::CQES_SHIFT)
    }

    /// With EN as given.
    #[must_use]
    pub const fn with_enabled(self, enabled: bool) -> Self {
        Self(if enabled { self.0 | Self::ENABLE } else { self.0 & !Self::ENABLE })
    }

    /// With a shutdown notification.
    #[must_use]
    pub const fn with_shutdown(self, shutdown: ShutdownNotification) -> Self {
        let bits = ((shutdown.0 & 3) as u32) << Self::SHN_SHIFT;
        Self((self.0 & !(3 << Self::SHN_SHIFT)) | bits)
    }

    /// With a command set selection (3 bits: 0 NVM, 6 all supported, 7 admin only).
    #[must_use]
    pub const fn with_command_set(self, css: u8) -> Self {
        let bits = ((css & 7) as u32) << Self::CSS_SHIFT;
        Self((self.0 & !(7 << Self::CSS_SHIFT)) | bits)
    }

    /// EN.
    #[must_use]
    pub const fn enabled(self) -> bool {
        self.0 & Self::ENABLE != 0
    }

    /// Command set selected, 3 bits.
    #[must_use]
    pub const fn command_set(self) -> u8 {
        self.0.to_le_bytes()[0] >> Self::CSS_SHIFT & 7
    }

    /// Memory page size in bytes (MPS).
    #[must_use]
    pub const fn page_bytes(self) -> u64 {
        4096 << (low16(self.0 >> 7).to_le_bytes()[0] & 0xf)
    }

    /// Arbitration mechanism selected, 3 bits; 0 is round robin.
    #[must_use]
    pub const fn arbitration(self) -> u8 {
        low16(self.0 >> 11).to_le_bytes()[0] & 7
    }

    /// Shutdown notification.
    #[must_use]
    pub const fn shutdown(self) -> ShutdownNotification {
        ShutdownNotification(low16(self.0 >> Self::SHN_SHIFT).to_le_bytes()[0] & 3)
    }

    /// Exponent of the I/O submission queue entry size; must be 6 (64 bytes).
    #[must_use]
    pub const fn sqes(self) -> u8 {
        self.0.to_le_bytes()[2] & 0xf
    }

    /// Exponent of the I/O completion queue entry size; must be 4 (16 bytes).
    #[must_use]
    pub const fn cqes(self) -> u8 {
        self.0.to_le_bytes()[2] >> 4
    }
}

open_enum! {
    /// CSTS.SHST, shutdown status, 2 bits.
    ShutdownStatus(u8) {
        NORMAL = 0, "Normal operation";
        OCCURRING = 1, "Shutdown processing occurring";
        COMPLETE = 2, "Shutdown processing complete";
    }
}

/// CSTS, the controller's status (3.1.4.6).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ControllerStatus(pub u32);

impl ControllerStatus {
    const READY: u32 = 1;
    const FATAL: u32 = 1 << 1;
    const SHST_SHIFT: u32 = 2;
    const PAUSED: u32 = 1 << 5;

    /// With RDY as given.
    #[must_use]
    pub const fn with_ready(self, ready: bool) -> Self {
        Self(if ready { self.0 | Self::READY } else { self.0 & !Self::READY })
    }

    /// With Controller Fatal Status as given.
    #[must_use]
    pub const fn with_fatal(self, fatal: bool) -> Self {
        Self(if fatal { self.0 | Self::FATAL } else { self.0 & !Self::FATAL })
    }

    /// With a shutdown status.
    #[must_use]
    pub const fn with_shutdown(self, shutdown: ShutdownStatus) -> Self {
        let bits = ((shutdown.0 & 3) as u32) << Self::SHST_SHIFT;
        Self((self.0 & !(3 << Self::SHST_SHIFT)) | bits)
    }

    /// RDY.
    #[must_use]
    pub const fn ready(self) -> bool {
        self.0 & Self::READY != 0
    }

    /// CFS, Controller Fatal Status.
    #[must_use]
    pub const fn fatal(self) -> bool {
        self.0 & Self::FATAL != 0
    }

    /// Shutdown status.
    #[must_use]
    pub const fn shutdown(self) -> ShutdownStatus {
        ShutdownStatus(self.0.to_le_bytes()[0] >> Self::SHST_SHIFT & 3)
    }

    /// PP, Processing Paused.
    #[must_use]
    pub const fn paused(self) -> bool {
        self.0 & Self::PAUSED != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn captured_capabilities() {
        // A kernel target's CAP; it leaves out CQR, which fabrics wants set.
        let captured = Capabilities(0x0000_0820_0f00_007f);
        assert!(!captured.contiguous_queues());
        let cap = Capabilities(captured.0 | 1 << 16);
        assert_eq!(cap.max_queue().entries(), 128);
        assert_eq!(cap.ready_timeout(), Duration::from_millis(7500));
        assert_eq!(cap.command_sets(), 0x41);
        assert!(cap.contiguous_queues() && !cap.subsystem_reset());
        assert_eq!(cap.min_page_bytes(), 4096);
        let built = Capabilities::fabrics(QueueSize::from_entries(128).unwrap())
            .with_ready_timeout(Duration::from_millis(7001))
            .with_io_command_sets();
        assert_eq!(built, cap);
        assert_eq!(cap.with_ready_modes(1).ready_modes(), 1);
        assert_eq!(
            cap.with_ready_timeout(Duration::from_secs(1000)).ready_timeout(),
            Duration::from_millis(127_500)
        );
    }

    #[test]
    fn captured_configuration_and_version() {
        let cc = ControllerConfig(0x0046_0001);
        assert_eq!(cc, ControllerConfig::enable_nvm());
        assert!(cc.enabled());
        assert_eq!((cc.sqes(), cc.cqes()), (6, 4));
        assert_eq!(cc.page_bytes(), 4096);
        assert_eq!(cc.shutdown(), ShutdownNotification::NONE);
        let leaving = cc.with_shutdown(ShutdownNotification::NORMAL);
        assert_eq!(leaving.0, 0x0046_4001);
        assert_eq!(leaving.shutdown(), ShutdownNotification::NORMAL);
        assert_eq!(cc.with_command_set(6).0, 0x0046_0061);
        assert_eq!(cc.with_command_set(6).command_set(), 6);
        assert_eq!(ControllerConfig(1 << 7).page_bytes(), 8192);
        assert_eq!(ControllerConfig(0xf << 7).page_bytes(), 4096 << 15);
        assert_eq!(ControllerConfig(0b101 << 11).arbitration(), 5);
        assert!(!cc.with_enabled(false).enabled());
        // The same kernel's VS.
        assert_eq!(Version(0x0001_0300), Version::V1_3);
        assert_eq!(Version::V2_1.to_string(), "2.1.0");
        assert_eq!((Version::V2_1.major(), Version::V2_1.minor()), (2, 1));
        assert_eq!(Version::new(1, 2, 3).tertiary(), 3);
    }

    #[test]
    fn status_bits() {
        let ready = ControllerStatus::default().with_ready(true);
        assert_eq!(ready.0, 1);
        let gone = ready.with_shutdown(ShutdownStatus::COMPLETE);
        assert_eq!(gone.0, 9);
        assert_eq!(gone.shutdown(), ShutdownStatus::COMPLETE);
        assert!(gone.ready() && !gone.fatal() && gone.with_fatal(true).fatal());
    }

    #[test]
    fn sizes() {
        assert_eq!(Property::CAP.size(), Some(PropertySize::Eight));
        assert_eq!(Property::CSTS.size(), Some(PropertySize::Four));
        assert_eq!(Property(0x30).size(), None);
        assert!(Property::CC.is_writable() && !Property::CAP.is_writable());
    }
}

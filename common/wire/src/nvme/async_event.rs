//! The result of an Asynchronous Event Request, and the mask that enables
//! events (NVMe Base 2.1, 5.1.2). Calls `log` for its page numbers; the
//! target's event queue and the initiator's event loop call it.

use super::log::LogPage;
use crate::endian::byte_of;
use crate::open_enum::open_enum;

open_enum! {
    /// Type of an event, 3 bits.
    AsyncEventType(u8) {
        ERROR = 0, "Error status";
        SMART_HEALTH = 1, "SMART / Health status";
        NOTICE = 2, "Notice";
        IMMEDIATE = 3, "Immediate";
        ONE_SHOT = 4, "One-Shot";
        IO_COMMAND_SET = 6, "I/O Command Set specific status";
        VENDOR = 7, "Vendor specific";
    }
}

/// An asynchronous event: dwords 0 and 1 of the completion.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AsyncEvent {
    /// Type.
    pub kind: AsyncEventType,
    /// Information, by type.
    pub info: u8,
    /// Log page to read, which clears the event.
    pub log_page: LogPage,
    /// Dword 1, by type.
    pub parameter: u32,
}

impl AsyncEvent {
    /// Attached namespaces changed: read the Changed Namespace list.
    pub const NAMESPACE_CHANGED: Self =
        Self::new(AsyncEventType::NOTICE, 0x00, LogPage::CHANGED_NAMESPACES);
    /// Firmware activation starts: read the firmware slot log.
    pub const FIRMWARE_ACTIVATION: Self =
        Self::new(AsyncEventType::NOTICE, 0x01, LogPage::FIRMWARE_SLOT);
    /// ANA states changed: read the ANA log.
    pub const ANA_CHANGED: Self =
        Self::new(AsyncEventType::NOTICE, 0x03, LogPage::ASYMMETRIC_NAMESPACE_ACCESS);
    /// The discovery log changed: read it again.
    pub const DISCOVERY_CHANGED: Self = Self::new(AsyncEventType::NOTICE, 0xf0, LogPage::DISCOVERY);
    /// Spare capacity is below its threshold: read the health log.
    pub const SPARE_BELOW_THRESHOLD: Self =
        Self::new(AsyncEventType::SMART_HEALTH, 0x02, LogPage::SMART_HEALTH);
    /// Temperature left its limits: read the health log.
    pub const TEMPERATURE: Self =
        Self::new(AsyncEventType::SMART_HEALTH, 0x01, LogPage::SMART_HEALTH);
    /// Reliability is degraded: read the health log.
    pub const RELIABILITY: Self =
        Self::new(AsyncEventType::SMART_HEALTH, 0x00, LogPage::SMART_HEALTH);
    /// An internal error that persists: read the error log.
    pub const PERSISTENT_INTERNAL_ERROR: Self =
        Self::new(AsyncEventType::ERROR, 0x03, LogPage::ERROR_INFORMATION);

    /// An event without a parameter.
    #[must_use]
    pub const fn new(kind: AsyncEventType, info: u8, log_page: LogPage) -> Self {
        Self { kind, info, log_page, parameter: 0 }
    }

    /// From a completion's 64-bit result.
    #[must_use]
    pub const fn from_result(result: u64) -> Self {
        let (dword0, parameter) = crate::endian::split32(result);
        Self {
            kind: AsyncEventType(byte_of(dword0, 0) & 7),
            info: byte_of(dword0, 1),
            log_page: LogPage(byte_of(dword0, 2)),
            parameter,
        }
    }

    /// As a completion's 64-bit result.
    #[must_use]
    pub const fn to_result(self) -> u64 {
        let dword0 = u32::from_le_bytes([self.kind.0 & 7, self.info, self.log_page.0, 0]);
        crate::endian::join32(dword0, self.parameter)
    }

    /// The bit of Asynchronous Event Configuration that must be set for a
    /// notice to be sent; `None` for events that need none.
    #[must_use]
    pub const fn enable_bit(self) -> Option<u32> {
        match (self.kind, self.info) {
            (AsyncEventType::NOTICE, 0x00) => Some(1 << 8),
            (AsyncEventType::NOTICE, 0x01) => Some(1 << 9),
            (AsyncEventType::NOTICE, 0x03) => Some(1 << 11),
            (AsyncEventType::NOTICE, 0xf0) => Some(1 << 31),
            (AsyncEventType::SMART_HEALTH, 0x00) => Some(1 << 2),
            (AsyncEventType::SMART_HEALTH, 0x01) => Some(1 << 1),
            (AsyncEventType::SMART_HEALTH, 0x02) => Some(1),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn known_results() {
        assert_eq!(AsyncEvent::NAMESPACE_CHANGED.to_result(), 0x0004_0002);
        assert_eq!(AsyncEvent::ANA_CHANGED.to_result(), 0x000c_0302);
        assert_eq!(AsyncEvent::DISCOVERY_CHANGED.to_result(), 0x0070_f002);
        assert_eq!(AsyncEvent::from_result(0x0070_f002), AsyncEvent::DISCOVERY_CHANGED);
        assert_eq!(AsyncEvent::DISCOVERY_CHANGED.enable_bit(), Some(0x8000_0000));
        assert_eq!(AsyncEvent::PERSISTENT_INTERNAL_ERROR.enable_bit(), None);
    }

    proptest! {
        #[test]
        fn round_trip(result: u64) {
            let event = AsyncEvent::from_result(result);
            // Bits 7:3 and 31:24 are reserved.
            prop_assert_eq!(event.to_result(), result & !0xff00_00f8);
            prop_assert_eq!(AsyncEvent::from_result(event.to_result()), event);
        }
    }
}

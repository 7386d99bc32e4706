//! Log pages (NVMe Base 2.1, 5.1.12.1). Calls `ids`, `nqn`, `status` and
//! `ascii`; the target fills them, the initiator reads them.

mod ana;
mod discovery;
mod health;
#[cfg(test)]
mod tests;

pub use ana::{AnaGroup, AnaGroupHeader, AnaHeader, AnaLogError, AnaState, parse_ana_groups};
pub use discovery::{
    AddressFamily, DISCOVERY_RECORD_FORMAT, DiscoveryEntry, DiscoveryHeader, RdmaCms, RdmaProvider,
    RdmaQpType, SubsystemType, TransportType, discovery_log_bytes,
};
pub use health::{CriticalWarning, ErrorEntry, FirmwareSlots, SmartHealth};

use crate::endian::U32Le;
use crate::layout::layout;
use crate::nvme::ids::Nsid;
use crate::open_enum::open_enum;

open_enum! {
    /// Log page identifier.
    LogPage(u8) {
        SUPPORTED_LOG_PAGES = 0x00, "Supported Log Pages";
        ERROR_INFORMATION = 0x01, "Error Information";
        SMART_HEALTH = 0x02, "SMART / Health Information";
        FIRMWARE_SLOT = 0x03, "Firmware Slot Information";
        CHANGED_NAMESPACES = 0x04, "Changed Attached Namespace List";
        COMMAND_EFFECTS = 0x05, "Commands Supported and Effects";
        DEVICE_SELF_TEST = 0x06, "Device Self-test";
        TELEMETRY_HOST = 0x07, "Telemetry Host-Initiated";
        TELEMETRY_CONTROLLER = 0x08, "Telemetry Controller-Initiated";
        ENDURANCE_GROUP = 0x09, "Endurance Group Information";
        PREDICTABLE_LATENCY_SET = 0x0a, "Predictable Latency Per NVM Set";
        PREDICTABLE_LATENCY_EVENTS = 0x0b, "Predictable Latency Event Aggregate";
        ASYMMETRIC_NAMESPACE_ACCESS = 0x0c, "Asymmetric Namespace Access";
        PERSISTENT_EVENT = 0x0d, "Persistent Event Log";
        LBA_STATUS = 0x0e, "LBA Status Information";
        ENDURANCE_GROUP_EVENTS = 0x0f, "Endurance Group Event Aggregate";
        MEDIA_UNIT_STATUS = 0x10, "Media Unit Status";
        FEATURE_EFFECTS = 0x12, "Feature Identifiers Supported and Effects";
        NVME_MI_EFFECTS = 0x13, "NVMe-MI Commands Supported and Effects";
        DISCOVERY = 0x70, "Discovery";
        HOST_DISCOVERY = 0x71, "Host Discovery";
        RESERVATION_NOTIFICATION = 0x80, "Reservation Notification";
        SANITIZE_STATUS = 0x81, "Sanitize Status";
    }
}

layout! {
    /// Changed Attached Namespace List, LID 04h: up to 1,024 namespaces in
    /// ascending order; FFFFFFFFh alone means more than fit.
    ChangedNamespaces[4096] {
        /// The identifiers; zeros end the list.
        0 pub entries: [U32Le; 1024],
    }
}

impl ChangedNamespaces {
    /// The list of `changed`, or the overflow mark if they are more than 1,024.
    #[must_use]
    pub fn new(changed: impl IntoIterator<Item = Nsid>) -> Self {
        let mut list = Self::default();
        let mut changed = changed.into_iter();
        for (entry, nsid) in list.entries.iter_mut().zip(changed.by_ref()) {
            entry.set(nsid.0);
        }
        // `zip` asked the list first, so what is left did not fit.
        if changed.next().is_none() {
            return list;
        }
        let mut overflow = Self::default();
        if let Some(first) = overflow.entries.first_mut() {
            first.set(Nsid::ALL.0);
        }
        overflow
    }

    /// Whether more namespaces changed than fit: look at all of them.
    #[must_use]
    pub fn overflowed(&self) -> bool {
        self.entries.first().is_some_and(|entry| entry.get() == Nsid::ALL.0)
    }

    /// The namespaces; empty where the list overflowed.
    pub fn iter(&self) -> impl Iterator<Item = Nsid> + '_ {
        self.entries.iter().map(|entry| Nsid(entry.get())).take_while(|nsid| nsid.is_valid())
    }
}

/// What a command does, an entry of [`CommandEffects`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Effects(pub u32);

impl Effects {
    /// The command is supported (CSUPP).
    pub const SUPPORTED: Self = Self(1);
    /// Logical block content changes (LBCC).
    pub const BLOCK_CONTENT: Self = Self(1 << 1);
    /// Namespace capability changes (NCC).
    pub const NAMESPACE_CAPABILITY: Self = Self(1 << 2);
    /// Namespace inventory changes (NIC).
    pub const NAMESPACE_INVENTORY: Self = Self(1 << 3);
    /// Controller capability changes (CCC).
    pub const CONTROLLER_CAPABILITY: Self = Self(1 << 4);

    /// Both.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `other` apply.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

layout! {
    /// Commands Supported and Effects, LID 05h.
    CommandEffects[4096] {
        /// Admin commands, by opcode.
        0 pub admin: [U32Le; 256],
        /// I/O commands, by opcode.
        1024 pub io: [U32Le; 256],
        2048 reserved_2048: [[u8; 32]; 64],
    }
}

impl CommandEffects {
    /// Sets the effects of an admin command.
    pub fn set_admin(&mut self, opcode: u8, effects: Effects) {
        if let Some(entry) = self.admin.get_mut(usize::from(opcode)) {
            entry.set(effects.0);
        }
    }

    /// Sets the effects of an I/O command.
    pub fn set_io(&mut self, opcode: u8, effects: Effects) {
        if let Some(entry) = self.io.get_mut(usize::from(opcode)) {
            entry.set(effects.0);
        }
    }

    /// Effects of an admin command.
    #[must_use]
    pub fn admin_effects(&self, opcode: u8) -> Effects {
        Effects(self.admin.get(usize::from(opcode)).map_or(0, |entry| entry.get()))
    }

    /// Effects of an I/O command.
    #[must_use]
    pub fn io_effects(&self, opcode: u8) -> Effects {
        Effects(self.io.get(usize::from(opcode)).map_or(0, |entry| entry.get()))
    }
}

layout! {
    /// Supported Log Pages, LID 00h.
    SupportedLogPages[1024] {
        /// By identifier; bit 0: supported, bit 1: index offsets.
        0 pub pages: [U32Le; 256],
    }
}

impl SupportedLogPages {
    /// The page that says which of the log pages exist.
    #[must_use]
    pub fn new(pages: impl IntoIterator<Item = LogPage>) -> Self {
        let mut data = Self::default();
        for page in pages {
            if let Some(entry) = data.pages.get_mut(usize::from(page.0)) {
                entry.set(1);
            }
        }
        data
    }

    /// Whether a log page exists.
    #[must_use]
    pub fn has(&self, page: LogPage) -> bool {
        self.pages.get(usize::from(page.0)).is_some_and(|entry| entry.get() & 1 != 0)
    }
}

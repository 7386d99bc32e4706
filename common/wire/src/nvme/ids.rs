//! Identifiers of the NVMe world as newtypes, and the one place where queue
//! sizes and log lengths turn from zero-based to counts. Calls nothing; all
//! other modules call it.

use core::fmt;

/// Namespace identifier (NVMe Base 2.1, 3.2.1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Nsid(pub u32);

impl Nsid {
    /// No namespace: the value of commands that name none.
    pub const NONE: Self = Self(0);
    /// The broadcast value: all namespaces.
    pub const ALL: Self = Self(0xffff_ffff);

    /// Whether this can name one namespace: neither 0 nor above FFFFFFFEh.
    #[must_use]
    pub const fn is_valid(self) -> bool {
        self.0 != 0 && self.0 != Self::ALL.0
    }
}

impl fmt::Display for Nsid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Queue identifier; 0 is the admin queue (NVMe Base 2.1, 3.3).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Qid(pub u16);

impl Qid {
    /// The admin queue.
    pub const ADMIN: Self = Self(0);

    /// Whether this is the admin queue.
    #[must_use]
    pub const fn is_admin(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for Qid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Controller identifier (NVMe Base 2.1, 3.1.1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ControllerId(pub u16);

impl ControllerId {
    /// In a Connect: let the subsystem choose (dynamic controller model).
    pub const DYNAMIC: Self = Self(0xffff);
    /// In a Connect: any free controller of the static model.
    pub const STATIC_ANY: Self = Self(0xfffe);
    /// The highest value that may name a controller.
    pub const MAX: Self = Self(0xffef);
}

impl fmt::Display for ControllerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Command identifier, unique among the outstanding commands of one queue.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct CommandId(pub u16);

impl fmt::Display for CommandId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Logical block address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Lba(pub u64);

impl Lba {
    /// The address `blocks` further on; `None` on overflow.
    #[must_use]
    pub const fn checked_add(self, blocks: u64) -> Option<Self> {
        match self.0.checked_add(blocks) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }
}

impl fmt::Display for Lba {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Number of entries of a queue, 1 to 65,536. The wire holds it zero-based in
/// SQSIZE, HSQSIZE and CAP.MQES; this type is the only place that converts.
///
/// A queue of one entry can be expressed on the wire but is not legal (NVMe
/// Base 2.1, 3.3.3.1 wants at least 2); the controller refuses it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct QueueSize(u16);

impl QueueSize {
    /// The smallest queue the specification allows.
    pub const MIN_LEGAL: Self = Self(1);

    /// From a zero-based wire field: 31 means 32 entries.
    #[must_use]
    pub const fn from_zero_based(value: u16) -> Self {
        Self(value)
    }

    /// As a zero-based wire field.
    #[must_use]
    pub const fn zero_based(self) -> u16 {
        self.0
    }

    /// From a number of entries; `None` outside 1 to 65,536.
    #[must_use]
    pub fn from_entries(entries: u32) -> Option<Self> {
        u16::try_from(entries.checked_sub(1)?).ok().map(Self)
    }

    /// The number of entries.
    #[must_use]
    pub fn entries(self) -> u32 {
        u32::from(self.0) + 1
    }
}

impl fmt::Display for QueueSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.entries())
    }
}

/// Length of a log page transfer in dwords, 1 to 2^32; zero-based on the wire
/// (NUMDU and NUMDL, NVMe Base 2.1, 5.1.12).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Numd(u32);

impl Numd {
    /// From the 32 zero-based bits of NUMDU and NUMDL.
    #[must_use]
    pub const fn from_zero_based(value: u32) -> Self {
        Self(value)
    }

    /// The 32 zero-based bits of NUMDU and NUMDL.
    #[must_use]
    pub const fn zero_based(self) -> u32 {
        self.0
    }

    /// From a length in bytes: a multiple of 4, from 4 to 2^34; else `None`.
    #[must_use]
    pub fn from_bytes(bytes: u64) -> Option<Self> {
        if !bytes.is_multiple_of(4) {
            return None;
        }
        u32::try_from((bytes / 4).checked_sub(1)?).ok().map(Self)
    }

    /// The number of dwords.
    #[must_use]
    pub fn dwords(self) -> u64 {
        u64::from(self.0) + 1
    }

    /// The length in bytes.
    #[must_use]
    pub fn bytes(self) -> u64 {
        self.dwords() * 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_size_converts_at_both_ends() {
        assert_eq!(QueueSize::from_zero_based(0).entries(), 1);
        assert_eq!(QueueSize::from_zero_based(0xffff).entries(), 65_536);
        assert_eq!(QueueSize::from_entries(0), None);
        assert_eq!(QueueSize::from_entries(65_537), None);
        assert_eq!(QueueSize::from_entries(32).map(QueueSize::zero_based), Some(31));
        assert_eq!(QueueSize::from_entries(65_536).map(QueueSize::zero_based), Some(0xffff));
    }

    #[test]
    fn log_length_converts_at_both_ends() {
        assert_eq!(Numd::from_bytes(0), None);
        assert_eq!(Numd::from_bytes(6), None);
        assert_eq!(Numd::from_bytes(4096).map(Numd::zero_based), Some(1023));
        assert_eq!(Numd::from_zero_based(u32::MAX).bytes(), 1 << 34);
        assert_eq!(Numd::from_bytes(1 << 34).map(Numd::zero_based), Some(u32::MAX));
        assert_eq!(Numd::from_bytes((1 << 34) + 4), None);
    }

    #[test]
    fn valid_namespaces() {
        assert!(!Nsid::NONE.is_valid() && !Nsid::ALL.is_valid());
        assert!(Nsid(1).is_valid() && Nsid(0xffff_fffe).is_valid());
    }
}

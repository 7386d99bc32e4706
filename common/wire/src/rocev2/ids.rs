//! The identifiers of the RoCEv2 transport, each its own type.
//!
//! Calls nothing; used by every header of this folder and by all above it.

use core::fmt;

const MASK_24: u32 = 0x00ff_ffff;

/// A queue pair number, 24 bits (IBTA 3.5.10).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Qpn(u32);

impl Qpn {
    /// The general services queue pair, which carries the connection manager.
    pub const CM: Self = Self(1);

    /// A queue pair number from the low 24 bits of `value`.
    #[must_use]
    pub const fn new(value: u32) -> Self {
        Self(value & MASK_24)
    }

    /// The number, below 2^24.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "qp {:#08x}", self.0)
    }
}

/// A packet sequence number, 24 bits, wrapping (IBTA 9.7.2).
///
/// There is no `Ord`: order is only defined between two numbers less than
/// 2^23 apart, see [`Psn::diff`] and [`Psn::is_before`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Psn(u32);

impl Psn {
    /// A sequence number from the low 24 bits of `value`.
    #[must_use]
    pub const fn new(value: u32) -> Self {
        Self(value & MASK_24)
    }

    /// The number, below 2^24.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The number `packets` later, modulo 2^24.
    #[must_use]
    pub const fn add(self, packets: u32) -> Self {
        Self::new(self.0.wrapping_add(packets))
    }

    /// The number `packets` earlier, modulo 2^24.
    #[must_use]
    pub const fn sub(self, packets: u32) -> Self {
        Self::new(self.0.wrapping_sub(packets))
    }

    /// The number that follows.
    #[must_use]
    pub const fn next(self) -> Self {
        self.add(1)
    }

    /// How far `self` is ahead of `other`: from -2^23 to 2^23 - 1, negative
    /// when `self` is older.
    #[must_use]
    pub const fn diff(self, other: Self) -> i32 {
        // Move bit 23 of the difference to bit 31, so that the arithmetic
        // shift extends it.
        (self.0.wrapping_sub(other.0) << 8).cast_signed() >> 8
    }

    /// The same as [`Psn::diff`], as a name that reads well in sentences.
    #[must_use]
    pub const fn distance_from(self, other: Self) -> i32 {
        self.diff(other)
    }

    /// Whether `self` is older than `other`.
    #[must_use]
    pub const fn is_before(self, other: Self) -> bool {
        self.diff(other) < 0
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "psn {:#08x}", self.0)
    }
}

/// A message sequence number, 24 bits, wrapping: how many messages the
/// responder has completed (IBTA 9.7.7.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Msn(u32);

impl Msn {
    /// A message sequence number from the low 24 bits of `value`.
    #[must_use]
    pub const fn new(value: u32) -> Self {
        Self(value & MASK_24)
    }

    /// The number, below 2^24.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The number that follows, modulo 2^24.
    #[must_use]
    pub const fn next(self) -> Self {
        Self::new(self.0.wrapping_add(1))
    }

    /// How far `self` is ahead of `other`: from -2^23 to 2^23 - 1.
    #[must_use]
    pub const fn diff(self, other: Self) -> i32 {
        (self.0.wrapping_sub(other.0) << 8).cast_signed() >> 8
    }
}

impl fmt::Display for Msn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "msn {:#08x}", self.0)
    }
}

/// A remote key: the right to reach a memory region from afar (IBTA 10.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rkey(pub u32);

impl Rkey {
    /// The key as the wire carries it.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Rkey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rkey {:#010x}", self.0)
    }
}

/// A partition key (IBTA 10.9.1). RoCE uses the default one only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PKey(pub u16);

impl PKey {
    /// The default partition, full member.
    pub const DEFAULT: Self = Self(0xffff);

    /// Whether two keys name the same partition and at least one of them is
    /// that of a full member (IBTA 10.9.1.1). The invalid keys (a partition
    /// number of zero) match nothing.
    #[must_use]
    pub const fn matches(self, other: Self) -> bool {
        const NUMBER: u16 = 0x7fff;
        self.0 & NUMBER == other.0 & NUMBER
            && self.0 & NUMBER != 0
            && (self.0 | other.0) & !NUMBER != 0
    }
}

impl Default for PKey {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// A queue key: what a datagram must show to enter a UD queue pair (IBTA 3.5.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct QKey(pub u32);

impl QKey {
    /// The well-known key of the general services queue pair (IBTA 3.5.3).
    pub const CM: Self = Self(0x8001_0000);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn psn_order_wraps() {
        let last = Psn::new(0x00ff_ffff);
        assert_eq!(last.next(), Psn::new(0));
        assert_eq!(last.next().diff(last), 1);
        assert_eq!(last.diff(last.next()), -1);
        assert!(last.is_before(Psn::new(3)));
        assert!(!Psn::new(3).is_before(last));
        assert!(!last.is_before(last));
        assert_eq!(Psn::new(0x0080_0000).diff(Psn::new(0)), -0x0080_0000);
        assert_eq!(Psn::new(0x007f_ffff).diff(Psn::new(0)), 0x007f_ffff);
        assert_eq!(Psn::new(2).sub(5), Psn::new(0x00ff_fffd));
    }

    #[test]
    fn only_full_members_meet_limited_ones() {
        assert!(PKey::DEFAULT.matches(PKey(0x7fff)));
        assert!(PKey(0x7fff).matches(PKey::DEFAULT));
        assert!(!PKey(0x7fff).matches(PKey(0x7fff)));
        assert!(!PKey(0x8001).matches(PKey::DEFAULT));
        assert!(!PKey(0x8000).matches(PKey(0x8000)));
    }

    proptest! {
        #[test]
        fn diff_undoes_add(base in any::<u32>(), step in -0x0080_0000_i32..0x0080_0000) {
            let base = Psn::new(base);
            let moved = base.add(step.cast_unsigned());
            prop_assert_eq!(moved.diff(base), step);
            prop_assert_eq!(moved.is_before(base), step < 0);
        }
    }
}

//! Packet sequence numbers without wrapping: 64 bits inside, 24 on the wire.
//!
//! Calls nothing; used by both halves of the queue pair. At most [`MAX_OUTSTANDING`] packets are
//! ever between the two ends of a window, so the 24 bits always name one of them (IBTA 9.7.2).

use lariat_wire::rocev2::Psn;

/// Packets unacknowledged at most; well below 2^23, so that old and new can be told apart.
pub(super) const MAX_OUTSTANDING: u64 = 1 << 22;

/// A packet's place in all that one side ever sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Seq(u64);

impl Seq {
    /// The place of the first packet. Starts a lap later than zero: there is always room before it.
    pub(super) fn first(psn: Psn) -> Self {
        Self((1 << 24) + u64::from(psn.get()))
    }

    /// What the wire carries.
    pub(super) fn psn(self) -> Psn {
        // The upper half of the low 32 bits is cut by the constructor; the mask makes it fit.
        Psn::new(u32::try_from(self.0 & 0x00ff_ffff).unwrap_or(0))
    }

    /// The place nearest to this one that the wire would call `psn`.
    pub(super) fn nearest(self, psn: Psn) -> Self {
        // No further than half a lap, and the first place is a whole one from zero.
        Self(self.0.wrapping_add_signed(i64::from(psn.diff(self.psn()))))
    }

    /// `packets` later.
    pub(super) fn plus(self, packets: u32) -> Self {
        Self(self.0 + u64::from(packets))
    }

    /// The next one.
    pub(super) fn next(self) -> Self {
        self.plus(1)
    }

    /// The one before.
    pub(super) fn previous(self) -> Self {
        Self(self.0.saturating_sub(1))
    }

    /// Packets from `earlier` to this; zero where it is not earlier.
    pub(super) fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// Packets that a message of `bytes` takes; an empty one takes one as well.
pub(super) fn packets_of(bytes: u32, mtu: u32) -> u32 {
    bytes.div_ceil(mtu.max(1)).max(1)
}

/// Bytes before a message's packet number `packets`.
pub(super) fn bytes_before(packets: u64, mtu: u32, length: u32) -> u32 {
    let bytes = packets.saturating_mul(u64::from(mtu)).min(u64::from(length));
    u32::try_from(bytes).unwrap_or(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn laps_are_counted() {
        let start = Seq::first(Psn::new(0xff_fffe));
        let later = start.plus(5);
        assert_eq!(later.psn(), Psn::new(3));
        assert_eq!(start.nearest(Psn::new(3)), later);
        assert_eq!(later.nearest(Psn::new(0xff_fffe)), start);
        assert_eq!(Seq::first(Psn::new(0)).nearest(Psn::new(0xff_ffff)).next().psn(), Psn::new(0));
        assert_eq!(later.since(start), 5);
        assert_eq!(start.since(later), 0);
    }

    #[test]
    fn packets_and_bytes() {
        assert_eq!(packets_of(0, 256), 1);
        assert_eq!(packets_of(256, 256), 1);
        assert_eq!(packets_of(257, 256), 2);
        assert_eq!(packets_of(1 << 31, 256), 1 << 23);
        assert_eq!(bytes_before(3, 1024, 2500), 2500);
        assert_eq!(bytes_before(2, 1024, 2500), 2048);
    }
}

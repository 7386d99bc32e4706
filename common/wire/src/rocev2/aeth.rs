//! The acknowledge extended transport header: ACK with credits, receiver not
//! ready, NAK.
//!
//! Uses `fields`, `ids`; used by `packet` and by the queue pairs.

use core::time::Duration;

use super::Msn;
use super::fields::Fields;

/// Acknowledge extended transport header (IBTA 9.3.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// What the responder says.
    pub syndrome: Syndrome,
    /// How many messages the responder has completed.
    pub msn: Msn,
}

impl Aeth {
    /// Length in bytes.
    pub const LEN: usize = 4;

    /// Reads the header; every value of the bytes is one.
    #[must_use]
    #[inline]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        Self { syndrome: Syndrome::from(bytes.u8_at::<0>()), msn: Msn::new(bytes.be24_at::<1>()) }
    }

    /// The header's bytes.
    #[must_use]
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out.put_u8::<0>(self.syndrome.into());
        out.put_be24::<1>(self.msn.get());
        out
    }
}

/// The AETH syndrome (IBTA 9.7.5.2.1, table 45).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// All up to this packet is accepted.
    Ack {
        /// How many receives the responder has ready.
        credits: Credits,
    },
    /// The receiver has no buffer; all before this packet is accepted.
    RnrNak {
        /// How long to wait before sending again.
        timer: RnrTimer,
    },
    /// The packet is refused; all before it is accepted.
    Nak(NakCode),
    /// A reserved value, kept.
    Reserved(u8),
}

impl From<u8> for Syndrome {
    #[inline]
    fn from(value: u8) -> Self {
        let code = value & 0x1f;
        match value >> 5 {
            0 => Self::Ack { credits: Credits(code) },
            1 => Self::RnrNak { timer: RnrTimer(code) },
            3 => Self::Nak(NakCode::from_code(code)),
            _ => Self::Reserved(value),
        }
    }
}

impl From<Syndrome> for u8 {
    #[inline]
    fn from(syndrome: Syndrome) -> Self {
        match syndrome {
            Syndrome::Ack { credits } => credits.0,
            Syndrome::RnrNak { timer } => 0x20 | timer.0,
            Syndrome::Nak(code) => 0x60 | code.code(),
            Syndrome::Reserved(value) => value,
        }
    }
}

/// End-to-end flow control credits as a 5-bit code (IBTA 9.7.7.2, table 46).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credits(u8);

const CREDIT_COUNTS: [u16; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
];

impl Credits {
    /// No limit: the responder does no end-to-end flow control.
    pub const UNLIMITED: Self = Self(31);

    /// The credits of a code; the low 5 bits are taken.
    #[must_use]
    pub const fn from_code(code: u8) -> Self {
        Self(code & 0x1f)
    }

    /// The largest credit that promises no more than `receives`.
    #[must_use]
    pub fn at_most(receives: u16) -> Self {
        let above = CREDIT_COUNTS.partition_point(|count| *count <= receives);
        Self(u8::try_from(above.saturating_sub(1)).unwrap_or(0))
    }

    /// The 5-bit code.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// How many messages may be sent beyond the acknowledged one; none means
    /// no limit.
    #[must_use]
    pub fn count(self) -> Option<u16> {
        CREDIT_COUNTS.get(usize::from(self.0)).copied()
    }
}

/// How long a requester waits after "receiver not ready", as a 5-bit code
/// (IBTA 9.7.5.2.8, table 47).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RnrTimer(u8);

/// In units of 10 microseconds.
const RNR_TIMES: [u64; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

impl RnrTimer {
    /// The timer of a code; the low 5 bits are taken.
    #[must_use]
    pub const fn from_code(code: u8) -> Self {
        Self(code & 0x1f)
    }

    /// The shortest timer of at least `wait`; the longest, 655.36 ms (code 0),
    /// where none is long enough.
    #[must_use]
    pub fn at_least(wait: Duration) -> Self {
        let code = (1..32).find(|code| Self(*code).duration() >= wait);
        Self(code.unwrap_or(0))
    }

    /// The 5-bit code.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The wait that the code stands for.
    #[must_use]
    pub fn duration(self) -> Duration {
        let tens = RNR_TIMES.get(usize::from(self.0)).copied().unwrap_or(0);
        Duration::from_micros(tens * 10)
    }
}

/// Why a packet was refused (IBTA 9.7.5.2.1, table 45).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NakCode {
    /// A packet is missing: go back to the expected sequence number.
    PsnSequence,
    /// The request makes no sense to the responder, or has the wrong length.
    InvalidRequest,
    /// The remote key does not permit it.
    RemoteAccess,
    /// The responder failed while executing it.
    RemoteOperational,
    /// Invalid reliable datagram request.
    InvalidRd,
    /// A reserved code, 5 bits, kept.
    Unknown(u8),
}

impl NakCode {
    /// The meaning of a code; the low 5 bits are taken.
    #[must_use]
    pub const fn from_code(code: u8) -> Self {
        match code & 0x1f {
            0 => Self::PsnSequence,
            1 => Self::InvalidRequest,
            2 => Self::RemoteAccess,
            3 => Self::RemoteOperational,
            4 => Self::InvalidRd,
            other => Self::Unknown(other),
        }
    }

    /// The 5-bit code.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::PsnSequence => 0,
            Self::InvalidRequest => 1,
            Self::RemoteAccess => 2,
            Self::RemoteOperational => 3,
            Self::InvalidRd => 4,
            Self::Unknown(code) => code & 0x1f,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_syndrome_survives() {
        for byte in 0..=u8::MAX {
            assert_eq!(u8::from(Syndrome::from(byte)), byte);
        }
        assert_eq!(Syndrome::from(0x1f), Syndrome::Ack { credits: Credits::UNLIMITED });
        assert_eq!(Syndrome::from(0x62), Syndrome::Nak(NakCode::RemoteAccess));
        assert_eq!(Syndrome::from(0xe0), Syndrome::Reserved(0xe0));
    }

    #[test]
    fn credits_never_promise_too_much() {
        assert_eq!(Credits::UNLIMITED.count(), None);
        for receives in 0..=u16::MAX {
            let credits = Credits::at_most(receives);
            let count = credits.count().expect("a counted credit");
            assert!(count <= receives);
            let next = Credits::from_code(credits.code() + 1).count();
            assert!(next.is_none_or(|next| next > receives), "{receives}");
        }
    }

    #[test]
    fn rnr_timers() {
        assert_eq!(RnrTimer::from_code(0).duration(), Duration::from_micros(655_360));
        assert_eq!(RnrTimer::from_code(1).duration(), Duration::from_micros(10));
        assert_eq!(RnrTimer::from_code(31).duration(), Duration::from_micros(491_520));
        assert_eq!(RnrTimer::at_least(Duration::ZERO).code(), 1);
        assert_eq!(RnrTimer::at_least(Duration::from_micros(641)).code(), 13);
        assert_eq!(RnrTimer::at_least(Duration::from_secs(9)).code(), 0);
    }
}

//! The values that the connection manager's messages share.
//!
//! Calls nothing; used by the messages of this folder.

use core::fmt;
use core::net::{IpAddr, Ipv6Addr};
use core::time::Duration;

/// One end's name for a connection (IBTA 12.6.6); unique at that end only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommId(pub u32);

/// A port's global identifier; in RoCEv2 its IP address (IBTA A17.4.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gid(pub [u8; 16]);

impl From<IpAddr> for Gid {
    /// IPv4 addresses take their IPv6-mapped form, `::ffff:a.b.c.d`.
    fn from(address: IpAddr) -> Self {
        Self(match address {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        })
    }
}

impl From<Gid> for IpAddr {
    /// IPv6-mapped addresses become IPv4.
    fn from(gid: Gid) -> Self {
        Ipv6Addr::from(gid.0).to_canonical()
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

/// A time as a 5-bit exponent: 4.096 us * 2^n (IBTA 12.7.16 and others). For
/// the ACK timeout of a queue pair, 0 means "never".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct CmTimeout(u8);

impl CmTimeout {
    /// The time of an exponent; the low 5 bits are taken.
    #[must_use]
    pub const fn from_code(code: u8) -> Self {
        Self(code & 0x1f)
    }

    /// The shortest time of at least `wait`, or the longest there is (2.4 hours).
    #[must_use]
    pub fn at_least(wait: Duration) -> Self {
        let code = (0..31).find(|code| Self(*code).duration() >= wait);
        Self(code.unwrap_or(31))
    }

    /// The exponent, 0 to 31.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The time.
    #[must_use]
    pub const fn duration(self) -> Duration {
        Duration::from_nanos(4096 << self.0)
    }
}

/// How much payload a packet of a path may carry (IBTA 12.7.28).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the names say it")]
pub enum PathMtu {
    Mtu256,
    Mtu512,
    Mtu1024,
    Mtu2048,
    Mtu4096,
}

impl PathMtu {
    /// All of them, the smallest first.
    pub const ALL: [Self; 5] =
        [Self::Mtu256, Self::Mtu512, Self::Mtu1024, Self::Mtu2048, Self::Mtu4096];

    /// The value of a code, 1 to 5; none for others.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Mtu256,
            2 => Self::Mtu512,
            3 => Self::Mtu1024,
            4 => Self::Mtu2048,
            5 => Self::Mtu4096,
            _ => return None,
        })
    }

    /// The code, 1 to 5.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Mtu256 => 1,
            Self::Mtu512 => 2,
            Self::Mtu1024 => 3,
            Self::Mtu2048 => 4,
            Self::Mtu4096 => 5,
        }
    }

    /// Payload bytes of a packet.
    #[must_use]
    pub const fn bytes(self) -> usize {
        128 << self.code()
    }

    /// The largest whose packets fit a network that carries IP packets of
    /// `ip_mtu_bytes`, headers, pad and ICRC included; none where not even the
    /// smallest does.
    #[must_use]
    pub fn for_ip_mtu(ip_mtu_bytes: usize, is_ipv4: bool) -> Option<Self> {
        let ip_header = if is_ipv4 { 20 } else { 40 };
        // UDP, and the longest of an RC packet's headers with a payload: BTH,
        // RETH and immediate data. The payload of all sizes here needs no pad.
        let overhead = ip_header + 8 + 12 + 16 + 4 + super::super::ICRC_LEN;
        let room = ip_mtu_bytes.checked_sub(overhead)?;
        Self::ALL.into_iter().rfind(|mtu| mtu.bytes() <= room)
    }
}

/// Which message a REJ or an MRA speaks of (IBTA 12.6.6, 12.6.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefersTo {
    /// A REQ.
    Req,
    /// A REP.
    Rep,
    /// In a REJ: no message (a timeout, say); in an MRA: a path change.
    Other,
    /// The reserved value.
    Reserved,
}

impl RefersTo {
    /// The meaning of a code; the low 2 bits are taken.
    #[must_use]
    pub const fn from_code(code: u8) -> Self {
        match code & 3 {
            0 => Self::Req,
            1 => Self::Rep,
            2 => Self::Other,
            _ => Self::Reserved,
        }
    }

    /// The 2-bit code.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Req => 0,
            Self::Rep => 1,
            Self::Other => 2,
            Self::Reserved => 3,
        }
    }
}

/// The service that a REQ asks for (IBTA 12.7.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportService {
    /// Reliable connected (RC).
    Reliable,
    /// Unreliable connected (UC).
    Unreliable,
    /// Reliable datagram (RD).
    ReliableDatagram,
    /// See the extended transport type.
    Extended,
}

impl TransportService {
    /// The meaning of a code; the low 2 bits are taken.
    #[must_use]
    pub const fn from_code(code: u8) -> Self {
        match code & 3 {
            0 => Self::Reliable,
            1 => Self::Unreliable,
            2 => Self::ReliableDatagram,
            _ => Self::Extended,
        }
    }

    /// The 2-bit code.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Reliable => 0,
            Self::Unreliable => 1,
            Self::ReliableDatagram => 2,
            Self::Extended => 3,
        }
    }
}

/// Why a connection was rejected (IBTA 12.6.7.2, table 108).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RejReason(pub u16);

macro_rules! reasons {
    ($($name:ident = $value:literal, $text:literal;)*) => {
        impl RejReason {
            $(#[doc = concat!("Code ", $value, ": ", $text, ".")]
            pub const $name: Self = Self($value);)*

            /// What the code says; none for codes that the table does not have.
            #[must_use]
            pub const fn text(self) -> Option<&'static str> {
                Some(match self.0 {
                    $($value => $text,)*
                    _ => return None,
                })
            }
        }
    };
}

reasons! {
    NO_QP = 1, "no queue pair available";
    NO_EEC = 2, "no end-to-end context available";
    NO_RESOURCES = 3, "no resources available";
    TIMEOUT = 4, "timeout";
    UNSUPPORTED = 5, "unsupported request";
    INVALID_COMM_ID = 6, "invalid communication ID";
    INVALID_COMM_INSTANCE = 7, "invalid communication instance";
    INVALID_SERVICE_ID = 8, "invalid service ID: nobody listens there";
    INVALID_TRANSPORT_SERVICE = 9, "invalid transport service type";
    STALE_CONNECTION = 10, "stale connection: the queue pair is still in use";
    RDC_NOT_EXISTENT = 11, "reliable datagram channel does not exist";
    INVALID_GID = 12, "primary remote GID (address) rejected";
    INVALID_LID = 13, "primary remote LID rejected";
    INVALID_SL = 14, "invalid primary service level";
    INVALID_TRAFFIC_CLASS = 15, "invalid primary traffic class";
    INVALID_HOP_LIMIT = 16, "invalid primary hop limit";
    INVALID_PACKET_RATE = 17, "invalid primary packet rate";
    INVALID_ALT_GID = 18, "alternate remote GID rejected";
    INVALID_ALT_LID = 19, "alternate remote LID rejected";
    INVALID_ALT_SL = 20, "invalid alternate service level";
    INVALID_ALT_TRAFFIC_CLASS = 21, "invalid alternate traffic class";
    INVALID_ALT_HOP_LIMIT = 22, "invalid alternate hop limit";
    INVALID_ALT_PACKET_RATE = 23, "invalid alternate packet rate";
    PORT_CM_REDIRECT = 24, "redirected: port and connection manager";
    PORT_REDIRECT = 25, "redirected: port";
    INVALID_MTU = 26, "invalid path MTU";
    INSUFFICIENT_RESPONDER_RESOURCES = 27, "insufficient responder resources";
    CONSUMER = 28, "rejected by the consumer";
    INVALID_RNR_RETRY = 29, "invalid RNR retry count";
    DUPLICATE_COMM_ID = 30, "duplicate local communication ID";
    INVALID_CLASS_VERSION = 31, "invalid class version";
    INVALID_FLOW_LABEL = 32, "invalid primary flow label";
    INVALID_ALT_FLOW_LABEL = 33, "invalid alternate flow label";
}

impl fmt::Display for RejReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text() {
            Some(text) => write!(f, "{text} (reason {})", self.0),
            None => write!(f, "reason {}", self.0),
        }
    }
}

/// `data` followed by zeros, to the fixed length of a message's private data;
/// none when there is more of it.
#[must_use]
pub fn private_data<const LEN: usize>(data: &[u8]) -> Option<[u8; LEN]> {
    let mut out = [0; LEN];
    out.get_mut(..data.len())?.copy_from_slice(data);
    Some(out)
}

//! The messages by which two processes agree on links, as bytes. Used by `agree`; calls nothing.
//!
//! Whoever listens says first whether it will talk ([`Answer`]); the side that connects says
//! [`Hello`] and is answered; then one message for each member of the other side brings the
//! descriptors of a link, and a last [`Answer`] says that they were taken. Each is one packet of a
//! `SOCK_SEQPACKET` socket.

use core::net::{IpAddr, Ipv6Addr, SocketAddr};

const MAGIC: [u8; 8] = *b"lariatsm";
/// Layout of the rings and of these messages. Both ends must have the same.
pub(super) const VERSION: u16 = 1;

/// What the side that connects is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) version: u16,
    /// Its UDP address.
    pub(super) address: SocketAddr,
    /// Which member of its group, and of how many.
    pub(super) member: u8,
    pub(super) members: u8,
    /// Bytes of records in each ring.
    pub(super) capacity: u32,
}

impl Hello {
    pub(super) const LEN: usize = 36;

    pub(super) fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let (family, ip) = match self.address.ip() {
            IpAddr::V4(ip) => (4, ip.to_ipv6_mapped().octets()),
            IpAddr::V6(ip) => (6, ip.octets()),
        };
        let [v0, v1] = self.version.to_le_bytes();
        let [p0, p1] = self.address.port().to_le_bytes();
        let mut rest: &mut [u8] = &mut bytes;
        put(&mut rest, &MAGIC);
        put(&mut rest, &[v0, v1, self.member, self.members]);
        put(&mut rest, &self.capacity.to_le_bytes());
        put(&mut rest, &[family, 0, p0, p1]);
        put(&mut rest, &ip);
        bytes
    }

    /// `None` if it is none. Of another version only the version is to be trusted.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        if take::<8>(&mut rest)? != MAGIC {
            return None;
        }
        let [v0, v1, member, members] = take::<4>(&mut rest)?;
        let capacity = u32::from_le_bytes(take(&mut rest)?);
        let [family, _, p0, p1] = take::<4>(&mut rest)?;
        let ip = Ipv6Addr::from(take::<16>(&mut rest)?);
        let ip = match family {
            4 => ip.to_ipv4_mapped()?.into(),
            _ => IpAddr::V6(ip),
        };
        let address = SocketAddr::new(ip, u16::from_le_bytes([p0, p1]));
        let version = u16::from_le_bytes([v0, v1]);
        Some(Self { version, address, member, members, capacity })
    }
}

/// What the other side says to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) version: u16,
    pub(super) verdict: Verdict,
    /// Members of the group that answers.
    pub(super) members: u8,
}

/// Yes, or why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Verdict(pub(super) u8);

impl Verdict {
    pub(super) const YES: Self = Self(0);
    pub(super) const OTHER_VERSION: Self = Self(1);
    pub(super) const MALFORMED: Self = Self(2);
    pub(super) const OTHER_USER: Self = Self(3);
    pub(super) const TOO_MANY: Self = Self(4);
    // 5 was never said.
    pub(super) const NOT_YOURS: Self = Self(6);

    pub(super) fn in_words(self) -> &'static str {
        match self {
            Self::YES => "it agrees",
            Self::OTHER_VERSION => "it has another version of Lariat's shared-memory wire",
            Self::MALFORMED => "it does not understand our request",
            Self::OTHER_USER => "it belongs to another user",
            Self::TOO_MANY => "it has as many links as it can have",
            Self::NOT_YOURS => "the address that we speak from belongs to another process",
            Self(_) => "it refuses for an unknown reason",
        }
    }
}

impl Answer {
    pub(super) const LEN: usize = 12;

    pub(super) fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let [v0, v1] = self.version.to_le_bytes();
        let mut rest: &mut [u8] = &mut bytes;
        put(&mut rest, &MAGIC);
        put(&mut rest, &[v0, v1, self.verdict.0, self.members]);
        bytes
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        if take::<8>(&mut rest)? != MAGIC {
            return None;
        }
        let [v0, v1, verdict, members] = take::<4>(&mut rest)?;
        let version = u16::from_le_bytes([v0, v1]);
        Some(Self { version, verdict: Verdict(verdict), members })
    }
}

fn put(rest: &mut &mut [u8], bytes: &[u8]) {
    if let Some((room, left)) = core::mem::take(rest).split_at_mut_checked(bytes.len()) {
        room.copy_from_slice(bytes);
        *rest = left;
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (first, left) = rest.split_first_chunk::<N>()?;
    *rest = left;
    Some(*first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_was_said_is_heard(
            v6: bool, ip: u128, port: u16, member: u8, members: u8, capacity: u32, version: u16,
        ) {
            let ip = if v6 {
                IpAddr::V6(Ipv6Addr::from(ip))
            } else {
                let [.., a, b, c, d] = ip.to_be_bytes();
                IpAddr::from([a, b, c, d])
            };
            let address = SocketAddr::new(ip, port);
            let hello = Hello { version, address, member, members, capacity };
            prop_assert_eq!(Hello::parse(&hello.to_bytes()), Some(hello));
            let answer = Answer { version, verdict: Verdict(member), members };
            prop_assert_eq!(Answer::parse(&answer.to_bytes()), Some(answer));
        }

        #[test]
        fn anything_may_come(bytes: Vec<u8>, magic: bool) {
            let bytes = if magic { [MAGIC.as_slice(), &bytes].concat() } else { bytes };
            if let Some(hello) = Hello::parse(&bytes) {
                let short = Hello::parse(bytes.get(..Hello::LEN - 1).unwrap());
                prop_assert_eq!(short, None);
                prop_assert_eq!(Hello::parse(&hello.to_bytes()), Some(hello));
            }
            if let Some(answer) = Answer::parse(&bytes) {
                prop_assert_eq!(Answer::parse(&answer.to_bytes()), Some(answer));
            }
        }
    }
}

//! NVMe Qualified Names (NVMe Base 2.1, 4.7). Calls nothing; configuration uses
//! the strict parser, the wire the lenient one.

use core::fmt;
use core::str::FromStr;

use thiserror::Error;

/// Size of a name's field in Connect data, Identify Controller and discovery.
pub const NQN_FIELD_BYTES: usize = 256;

/// Longest name, without the terminating NUL.
pub const MAX_NQN_BYTES: usize = 223;

const UUID_PREFIX: &str = "nqn.2014-08.org.nvmexpress:uuid:";

/// A qualified name: 1 to 223 bytes of UTF-8 without control characters.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Nqn(String);

/// Why something is not a qualified name.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum NqnError {
    /// No bytes.
    #[error("the NQN is empty")]
    Empty,
    /// More than 223 bytes.
    #[error("the NQN has {0} bytes, at most {MAX_NQN_BYTES} are allowed")]
    TooLong(usize),
    /// The 256-byte field has no NUL.
    #[error("the NQN field is not NUL-terminated")]
    NotTerminated,
    /// Not UTF-8.
    #[error("the NQN is not UTF-8 from byte {0} on")]
    NotUtf8(usize),
    /// A control character.
    #[error("the NQN has a control character at byte {0}")]
    ControlCharacter(usize),
    /// Does not start with `nqn.`.
    #[error("the NQN {0:?} does not start with \"nqn.\"")]
    NoPrefix(String),
    /// No `yyyy-mm.` after the prefix.
    #[error("the NQN {0:?} has no date \"yyyy-mm.\" after \"nqn.\"")]
    BadDate(String),
    /// The reverse domain name is empty or not made of labels.
    #[error("the NQN {0:?} has no valid reverse domain name after the date")]
    BadDomain(String),
    /// Nothing after the colon.
    #[error("the NQN {0:?} ends with its colon")]
    EmptySuffix(String),
    /// The UUID form without a UUID.
    #[error("the NQN {0:?} does not end with a UUID (8-4-4-4-12 hexadecimal digits)")]
    BadUuid(String),
}

impl Nqn {
    /// The well-known name of every discovery service.
    pub const DISCOVERY: &'static str = "nqn.2014-08.org.nvmexpress.discovery";

    /// The discovery service's name.
    #[must_use]
    pub fn discovery() -> Self {
        Self(Self::DISCOVERY.to_owned())
    }

    /// Parses a name by the book: `nqn.yyyy-mm.reverse.domain[:anything]`, or
    /// the UUID form.
    ///
    /// # Errors
    /// What is wrong with the name.
    pub fn parse(name: &str) -> Result<Self, NqnError> {
        check_text(name)?;
        let rest = name.strip_prefix("nqn.").ok_or_else(|| NqnError::NoPrefix(name.to_owned()))?;
        let domain = strip_date(rest).ok_or_else(|| NqnError::BadDate(name.to_owned()))?;
        let (domain, suffix) = match domain.split_once(':') {
            Some((domain, suffix)) => (domain, Some(suffix)),
            None => (domain, None),
        };
        if !domain.split('.').all(is_label) {
            return Err(NqnError::BadDomain(name.to_owned()));
        }
        if suffix == Some("") {
            return Err(NqnError::EmptySuffix(name.to_owned()));
        }
        if let Some(uuid) = name.strip_prefix(UUID_PREFIX)
            && !is_uuid(uuid)
        {
            return Err(NqnError::BadUuid(name.to_owned()));
        }
        Ok(Self(name.to_owned()))
    }

    /// Takes a name as peers send it: any text, NUL-terminated, that is not
    /// empty, not too long, UTF-8 and free of control characters. Bytes after
    /// the NUL are not looked at.
    ///
    /// # Errors
    /// What is wrong with the field.
    pub fn from_wire_field(field: &[u8; NQN_FIELD_BYTES]) -> Result<Self, NqnError> {
        let end = field.iter().position(|&byte| byte == 0).ok_or(NqnError::NotTerminated)?;
        let bytes = field.get(..end).unwrap_or_default();
        // Length first: it is the error that tells most about a long name.
        if bytes.len() > MAX_NQN_BYTES {
            return Err(NqnError::TooLong(bytes.len()));
        }
        let name =
            core::str::from_utf8(bytes).map_err(|error| NqnError::NotUtf8(error.valid_up_to()))?;
        check_text(name)?;
        Ok(Self(name.to_owned()))
    }

    /// The name padded with NULs.
    #[must_use]
    pub fn to_wire_field(&self) -> [u8; NQN_FIELD_BYTES] {
        let mut field = [0; NQN_FIELD_BYTES];
        for (to, from) in field.iter_mut().zip(self.0.bytes()) {
            *to = from;
        }
        field
    }

    /// The UUID form of a name.
    #[must_use]
    pub fn from_uuid(uuid: [u8; 16]) -> Self {
        let hex = format!("{:032x}", u128::from_be_bytes(uuid));
        let (a, rest) = hex.split_at(8);
        let (b, rest) = rest.split_at(4);
        let (c, rest) = rest.split_at(4);
        let (d, e) = rest.split_at(4);
        Self(format!("{UUID_PREFIX}{a}-{b}-{c}-{d}-{e}"))
    }

    /// Whether this names the discovery service.
    #[must_use]
    pub fn is_discovery(&self) -> bool {
        self.0 == Self::DISCOVERY
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl AsRef<str> for Nqn {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl FromStr for Nqn {
    type Err = NqnError;

    fn from_str(name: &str) -> Result<Self, NqnError> {
        Self::parse(name)
    }
}

impl TryFrom<String> for Nqn {
    type Error = NqnError;

    fn try_from(name: String) -> Result<Self, NqnError> {
        Self::parse(&name)
    }
}

fn check_text(name: &str) -> Result<(), NqnError> {
    if name.is_empty() {
        return Err(NqnError::Empty);
    }
    if name.len() > MAX_NQN_BYTES {
        return Err(NqnError::TooLong(name.len()));
    }
    match name.char_indices().find(|(_, c)| c.is_control()) {
        Some((at, _)) => Err(NqnError::ControlCharacter(at)),
        None => Ok(()),
    }
}

/// What follows `yyyy-mm.`, if the text starts so with a month of 01 to 12.
fn strip_date(text: &str) -> Option<&str> {
    let (date, rest) = text.split_once('.')?;
    let (year, month) = date.split_once('-')?;
    let digits =
        |part: &str, length| part.len() == length && part.bytes().all(|byte| byte.is_ascii_digit());
    let month_is_real = matches!(month.parse::<u8>(), Ok(1..=12));
    (digits(year, 4) && digits(month, 2) && month_is_real).then_some(rest)
}

/// A label of a domain name: letters, digits, hyphens inside.
fn is_label(label: &str) -> bool {
    !label.is_empty()
        && !label.starts_with('-')
        && !label.ends_with('-')
        && label.chars().all(|c| c.is_alphanumeric() || c == '-')
}

fn is_uuid(text: &str) -> bool {
    let groups = [8, 4, 4, 4, 12];
    text.split('-').count() == groups.len()
        && text.split('-').zip(groups).all(|(group, length)| {
            group.len() == length && group.bytes().all(|byte| byte.is_ascii_hexdigit())
        })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn strict_accepts() {
        for name in [
            Nqn::DISCOVERY,
            "nqn.2014-08.com.example:nvme:nvm-subsystem-sn-d78432",
            "nqn.2014-08.org.nvmexpress:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
            "nqn.2016-06.io.spdk:cnode1",
            "nqn.2026-12.example",
        ] {
            assert_eq!(Nqn::parse(name).map(|nqn| nqn.to_string()), Ok(name.to_owned()));
        }
    }

    #[test]
    fn strict_refuses() {
        let owned = str::to_owned;
        for (name, error) in [
            ("", NqnError::Empty),
            ("iqn.2014-08.com.example", NqnError::NoPrefix(owned("iqn.2014-08.com.example"))),
            ("nqn.test", NqnError::BadDate(owned("nqn.test"))),
            ("nqn.2014-13.com.x", NqnError::BadDate(owned("nqn.2014-13.com.x"))),
            ("nqn.14-08.com.x", NqnError::BadDate(owned("nqn.14-08.com.x"))),
            ("nqn.2014-+8.com.x", NqnError::BadDate(owned("nqn.2014-+8.com.x"))),
            ("nqn.2014-08.", NqnError::BadDomain(owned("nqn.2014-08."))),
            ("nqn.2014-08.com..x", NqnError::BadDomain(owned("nqn.2014-08.com..x"))),
            ("nqn.2014-08.com.x:", NqnError::EmptySuffix(owned("nqn.2014-08.com.x:"))),
            (
                "nqn.2014-08.org.nvmexpress:uuid:spike",
                NqnError::BadUuid(owned("nqn.2014-08.org.nvmexpress:uuid:spike")),
            ),
            ("nqn.2014-08.com.x:a\nb", NqnError::ControlCharacter(19)),
        ] {
            assert_eq!(Nqn::parse(name), Err(error), "{name:?}");
        }
        let long = format!("nqn.2014-08.com.x:{}", "y".repeat(206));
        assert_eq!(Nqn::parse(&long), Err(NqnError::TooLong(224)));
        assert!(Nqn::parse(&long[..223]).is_ok());
    }

    fn field(text: &[u8]) -> [u8; 256] {
        let mut field = [0; 256];
        field[..text.len()].copy_from_slice(text);
        field
    }

    #[test]
    fn wire_is_lenient_but_not_blind() {
        // Both names stand in a captured Connect that a kernel target accepted.
        for name in ["nqn.test", "nqn.2014-08.org.nvmexpress:uuid:spike"] {
            let parsed = Nqn::from_wire_field(&field(name.as_bytes())).unwrap();
            assert_eq!(parsed.as_str(), name);
            assert_eq!(parsed.to_wire_field(), field(name.as_bytes()));
        }
        assert_eq!(Nqn::from_wire_field(&[b'a'; 256]), Err(NqnError::NotTerminated));
        assert_eq!(Nqn::from_wire_field(&[0; 256]), Err(NqnError::Empty));
        assert_eq!(Nqn::from_wire_field(&field(&[b'a'; 224])), Err(NqnError::TooLong(224)));
        assert!(Nqn::from_wire_field(&field(&[b'a'; 223])).is_ok());
        assert_eq!(Nqn::from_wire_field(&field(b"ab\xff")), Err(NqnError::NotUtf8(2)));
        assert_eq!(Nqn::from_wire_field(&field(b"a\x1b[2J")), Err(NqnError::ControlCharacter(1)));
    }

    proptest! {
        #[test]
        fn uuid_form_is_strictly_valid(uuid: [u8; 16]) {
            let nqn = Nqn::from_uuid(uuid);
            prop_assert_eq!(Nqn::parse(nqn.as_str()), Ok(nqn.clone()));
            prop_assert_eq!(Nqn::from_wire_field(&nqn.to_wire_field()), Ok(nqn));
        }

        #[test]
        fn wire_parser_is_total(text in proptest::collection::vec(any::<u8>(), 0..=256)) {
            if let Ok(nqn) = Nqn::from_wire_field(&field(&text)) {
                prop_assert_eq!(Nqn::from_wire_field(&nqn.to_wire_field()), Ok(nqn));
            }
        }

        #[test]
        fn strict_parser_is_total(text in "(nqn\\.)?([0-9]{4}-[0-9]{2}\\.)?\\PC{0,40}") {
            if let Ok(nqn) = Nqn::parse(&text) {
                prop_assert_eq!(nqn.as_str(), text);
            }
        }
    }
}

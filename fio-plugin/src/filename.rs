//! Names of namespaces in fio's `filename`: `trtype=rdma adrfam=ipv4 traddr=192.0.2.7 trsvcid=4420
//! subnqn=nqn.2026-11.io.example\:disk ns=1`, the form of SPDK's engine. fio cuts `filename` at each
//! `:` that has no `\` before it, and takes the `\` away; what comes here is one piece. Pure; used by
//! `settings`.
#![forbid(unsafe_code)]

/// What a name says. What it leaves out, the engine's options say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Keys {
    pub(crate) family: Option<Family>,
    pub(crate) traddr: Option<String>,
    pub(crate) trsvcid: Option<u16>,
    pub(crate) subnqn: Option<String>,
    pub(crate) nsid: Option<u32>,
    pub(crate) hostnqn: Option<String>,
}

/// Kind of address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    Ipv4,
    Ipv6,
}

/// Why a name cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FilenameError {
    #[error(
        "filename: {0:?} is not key=value; fio cuts names at each colon, so write \"\\:\" for the \
         colons of NQNs and IPv6 addresses"
    )]
    NotAKey(String),
    #[error(
        "filename: {0:?} stands behind a colon; a port goes with trsvcid (traddr=ADDRESS trsvcid={0}), \
         and the colons of IPv6 addresses are written \"\\:\""
    )]
    LonePort(String),
    #[error(
        "filename: there is no key {0:?}; there are trtype, adrfam, traddr, trsvcid, subnqn, ns, hostnqn"
    )]
    UnknownKey(String),
    #[error("filename: {0} stands there twice")]
    Twice(&'static str),
    #[error("filename: {key}={value:?} is not {expected}")]
    BadValue { key: &'static str, value: String, expected: &'static str },
}

/// Reads a name.
pub(crate) fn parse(name: &str) -> Result<Keys, FilenameError> {
    let mut keys = Keys::default();
    let mut transport = None;
    for word in name.split_whitespace() {
        let Some((key, value)) = word.split_once('=').filter(|(_, value)| !value.is_empty()) else {
            // fio has cut the name before it.
            let digits = word.len() <= 5 && word.bytes().all(|byte| byte.is_ascii_digit());
            let lone = digits && keys == Keys::default();
            let refused = if lone { FilenameError::LonePort } else { FilenameError::NotAKey };
            return Err(refused(word.to_owned()));
        };
        match key.to_ascii_lowercase().as_str() {
            "trtype" => once("trtype", &mut transport, rdma(value)?)?,
            "adrfam" => once("adrfam", &mut keys.family, family(value)?)?,
            "traddr" => once("traddr", &mut keys.traddr, value.to_owned())?,
            "trsvcid" => {
                let port = number("trsvcid", value, "a port, 1 to 65535")?;
                once("trsvcid", &mut keys.trsvcid, port)?;
            }
            "subnqn" => once("subnqn", &mut keys.subnqn, value.to_owned())?,
            "ns" | "nsid" => {
                let nsid = number("ns", value, "a namespace, 1 to 4294967294")?;
                once("ns", &mut keys.nsid, nsid)?;
            }
            "hostnqn" => once("hostnqn", &mut keys.hostnqn, value.to_owned())?,
            _ => return Err(FilenameError::UnknownKey(key.to_owned())),
        }
    }
    Ok(keys)
}

fn once<T>(key: &'static str, slot: &mut Option<T>, value: T) -> Result<(), FilenameError> {
    if slot.is_some() {
        return Err(FilenameError::Twice(key));
    }
    *slot = Some(value);
    Ok(())
}

fn rdma(value: &str) -> Result<(), FilenameError> {
    let expected = "rdma, the one transport of this engine";
    let bad = || FilenameError::BadValue { key: "trtype", value: value.to_owned(), expected };
    value.eq_ignore_ascii_case("rdma").then_some(()).ok_or_else(bad)
}

fn family(value: &str) -> Result<Family, FilenameError> {
    match value.to_ascii_lowercase().as_str() {
        "ipv4" => Ok(Family::Ipv4),
        "ipv6" => Ok(Family::Ipv6),
        _ => Err(FilenameError::BadValue {
            key: "adrfam",
            value: value.to_owned(),
            expected: "ipv4 or ipv6",
        }),
    }
}

/// A number that is neither 0 nor the highest of its type but one that the key can have.
fn number<T: std::str::FromStr + PartialEq + From<u8>>(
    key: &'static str,
    value: &str,
    expected: &'static str,
) -> Result<T, FilenameError> {
    let bad = || FilenameError::BadValue { key, value: value.to_owned(), expected };
    let digits = value.bytes().all(|byte| byte.is_ascii_digit());
    let number = value.parse::<T>().ok().filter(|number| digits && *number != T::from(0));
    // No namespace has the highest number: it means all of them.
    number.filter(|_| key != "ns" || value != "4294967295").ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_form_of_spdk_is_read() {
        let name = "trtype=RDMA adrfam=IPv4 traddr=192.0.2.7 trsvcid=4420 \
                    subnqn=nqn.2026-11.io.example:disk ns=3";
        let expected = Keys {
            family: Some(Family::Ipv4),
            traddr: Some("192.0.2.7".into()),
            trsvcid: Some(4420),
            subnqn: Some("nqn.2026-11.io.example:disk".into()),
            nsid: Some(3),
            hostnqn: None,
        };
        assert_eq!(parse(name), Ok(expected));
        let v6 = parse("traddr=fe80::1 adrfam=ipv6").unwrap();
        assert_eq!((v6.family, v6.traddr.as_deref()), (Some(Family::Ipv6), Some("fe80::1")));
        assert_eq!(parse("ns=7").unwrap().nsid, Some(7));
        assert_eq!(parse("  "), Ok(Keys::default()));
    }

    #[test]
    fn mistakes_are_named() {
        let told = |name: &str| parse(name).unwrap_err().to_string();
        assert!(told("disk ns=1").contains("\"\\:\""), "an unescaped colon");
        assert!(told("4420 subnqn=nqn.2026-11.io.example").contains("trsvcid=4420"));
        assert!(told("traddr=").contains("not key=value"));
        assert!(told("trtype=tcp").contains("not rdma"));
        assert!(told("adrfam=fc").contains("ipv4 or ipv6"));
        assert!(told("color=red").contains("no key \"color\""));
        assert!(told("ns=1 nsid=2").contains("twice"));
        for bad in ["ns=0", "ns=4294967295", "ns=x", "ns=+1", "trsvcid=0", "trsvcid=65536"] {
            assert!(told(bad).contains("is not a "), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(name in ".{0,80}") {
            let _ = parse(&name);
        }

        #[test]
        fn what_was_written_is_read(port in 1..=u16::MAX, nsid in 1..u32::MAX, nqn in "nqn\\.[!-~]{1,40}") {
            let keys = parse(&format!("trsvcid={port} ns={nsid} subnqn={nqn}")).unwrap();
            prop_assert_eq!((keys.trsvcid, keys.nsid, keys.subnqn), (Some(port), Some(nsid), Some(nqn)));
        }
    }
}

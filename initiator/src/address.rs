//! What users write where an address is meant, for programs that have the port apart: the command line
//! and the fio engine. Pure.

use std::net::{Ipv4Addr, Ipv6Addr};

/// An address with the port behind it, `host:port`, taken apart: the host (without the brackets of
/// IPv6, maybe empty) and the digits. `None`: there is no port; a bare IPv6 address has none.
#[must_use]
pub fn split_port(text: &str) -> Option<(&str, &str)> {
    let (host, port) = text.rsplit_once(':')?;
    if port.is_empty() || !port.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(bare) => Some((bare, port)),
        None => (!host.contains(':')).then_some((host, port)),
    }
}

/// A bare IPv6 address that ends like one with the usual port behind it: `fe80::1:4420`, which is
/// another address than `fe80::1`.
#[must_use]
pub fn hidden_port(text: &str) -> Option<(&str, &str)> {
    let (host, port) = text.rsplit_once(':').filter(|(_, port)| *port == "4420")?;
    host.parse::<Ipv6Addr>().is_ok().then_some((host, port))
}

/// Whether a text is meant as an IPv4 address and is none, such as `10.0.0.300`.
#[must_use]
pub fn is_bad_ipv4(text: &str) -> bool {
    let numbers = text.split('.');
    let digits = |number: &str| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    numbers.clone().count() == 4 && numbers.clone().all(digits) && text.parse::<Ipv4Addr>().is_err()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_port_is_told_from_an_address() {
        for (text, parts) in [
            ("10.0.0.1:4420", Some(("10.0.0.1", "4420"))),
            ("storage.example:99999", Some(("storage.example", "99999"))),
            ("[::1]:4420", Some(("::1", "4420"))),
            (":4420", Some(("", "4420"))),
            ("::1", None),
            ("fe80::1:4420", None),
            ("[::1]", None),
            ("10.0.0.1", None),
            ("10.0.0.1:", None),
            ("host:port", None),
            ("", None),
        ] {
            assert_eq!(split_port(text), parts, "{text}");
        }
    }

    #[test]
    fn a_port_that_is_part_of_the_address_is_suspected() {
        assert_eq!(hidden_port("::1:4420"), Some(("::1", "4420")));
        assert_eq!(hidden_port("fe80::7:4420"), Some(("fe80::7", "4420")));
        for text in ["::1", "::4420", "[::1]:4420", "10.0.0.1:4420", "1:2:3:4:5:6:7:4420", ":4420"]
        {
            assert_eq!(hidden_port(text), None, "{text}");
        }
    }

    #[test]
    fn four_numbers_are_meant_as_an_address() {
        assert!(is_bad_ipv4("10.0.0.300") && is_bad_ipv4("1.2.3.99999"));
        assert!(!is_bad_ipv4("10.0.0.30") && !is_bad_ipv4("10.1") && !is_bad_ipv4("a.b.c.d"));
        assert!(!is_bad_ipv4("1..2.3") && !is_bad_ipv4(""));
    }

    proptest! {
        #[test]
        fn any_text_is_taken(text in ".{0,40}") {
            let _ = is_bad_ipv4(&text);
            if let Some((host, port)) = split_port(&text) {
                prop_assert!(text.contains(host) && text.ends_with(port));
            }
        }
    }
}

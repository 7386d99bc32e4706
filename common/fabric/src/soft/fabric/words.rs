//! What the soft provider can say of a connection that does not come to be, and what to do. Called by
//! `verbs`, for error messages.

use core::net::{IpAddr, SocketAddr};
use std::io;

use lariat_wire::rocev2::UDP_PORT;

use crate::soft::network::UNSEEN;

/// What can be said of a silent peer at an address of this machine.
pub(super) fn at_home(ip: IpAddr, local: SocketAddr, holder: Option<String>) -> String {
    let Some(holder) = holder else {
        return format!(
            "{ip} is this machine's own, and nobody is seen to have UDP port {UDP_PORT} there: no \
             target serves it"
        );
    };
    let mut words = format!("UDP port {UDP_PORT} of {ip} is held by {holder}");
    if local.port() != UDP_PORT {
        words.push_str(&format!(
            "; if that is not Lariat's own soft provider, it answers to port {UDP_PORT} only, and this \
             process, at the same address, speaks from port {}",
            local.port()
        ));
    }
    words
}

/// What it means to speak from a port that is not the well-known one.
pub(super) fn beside(local: SocketAddr, holder: Option<String>) -> String {
    format!(
        "this process speaks from UDP port {}, because port {UDP_PORT} of {} is held by {}; peers \
         other than Lariat's own soft provider answer to port {UDP_PORT} only: end that process, or \
         give this one another local address",
        local.port(),
        local.ip(),
        holder.as_deref().unwrap_or(UNSEEN),
    )
}

/// What it means that the system refused to send.
pub(super) fn refused(to: IpAddr, errno: i32) -> String {
    let remedy = match errno {
        libc::EPERM | libc::EACCES => ": a firewall of this machine forbids it (let UDP 4791 pass)",
        libc::EMSGSIZE => ": the path carries smaller packets than before (connect again)",
        _ => "",
    };
    let error = io::Error::from_raw_os_error(errno);
    format!("the system refused to send packets to {to}: {error}{remedy}")
}

#[cfg(test)]
mod tests {
    use super::{at_home, refused};

    #[test]
    fn a_silent_peer_on_this_machine_is_told_of() {
        let ip = core::net::IpAddr::from(core::net::Ipv6Addr::LOCALHOST);
        let beside = core::net::SocketAddr::new(ip, 50_000);
        let words = at_home(ip, beside, None);
        assert!(words.contains("no target serves it") && !words.contains("held"), "{words}");
        let words = at_home(ip, beside, Some("process 7".to_owned()));
        assert!(words.contains("held by process 7") && words.contains("50000"), "{words}");
        let well_known = core::net::SocketAddr::new(ip, 4791);
        let words = at_home(ip, well_known, Some("process 7".to_owned()));
        assert_eq!(words, "UDP port 4791 of ::1 is held by process 7");
    }

    #[test]
    fn refusals_say_what_to_do() {
        let to = core::net::IpAddr::from([192, 0, 2, 7]);
        for (errno, remedy) in [(libc::EPERM, "firewall"), (libc::EMSGSIZE, "connect again")] {
            let words = refused(to, errno);
            assert!(words.contains("192.0.2.7") && words.contains(remedy), "{words}");
        }
        assert!(!refused(to, libc::ENETUNREACH).contains("firewall"));
    }
}

//! The peers, by name. Called by `run`.

pub(crate) mod lariat;
mod limits;
mod local;
mod nbdkit;
mod netns;
mod spdk;
mod tgt;

use super::peer::Peer;

/// Names for `--peers`, in the order of the report.
pub(crate) const NAMES: [&str; 9] = [
    "local",
    "limits",
    "lariat",
    "lariat-sleep",
    "lariat-shm",
    "lariat-net",
    "tgt",
    "nbdkit",
    "spdk",
];

/// The peer of this name.
pub(crate) fn by_name(name: &str) -> Option<Box<dyn Peer>> {
    Some(match name {
        "local" => Box::new(local::Local),
        "limits" => Box::new(limits::Limits),
        "lariat" => Box::new(lariat::Lariat::default()),
        "lariat-sleep" => Box::new(lariat::Lariat::sleeping()),
        "lariat-shm" => Box::new(lariat::Lariat::shared()),
        "lariat-net" => Box::new(netns::Pair::default()),
        "tgt" => Box::new(tgt::Tgt::default()),
        "nbdkit" => Box::new(nbdkit::Nbdkit::default()),
        "spdk" => Box::new(spdk::Spdk::default()),
        _ => return None,
    })
}

/// A TCP port of loopback that is free now.
fn free_port() -> anyhow::Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Whether something answers there.
fn answers(port: u16) -> bool {
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    std::net::TcpStream::connect_timeout(&address, std::time::Duration::from_secs(1)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_its_peer() {
        for name in NAMES {
            assert_eq!(by_name(name).map(|peer| peer.name()), Some(name));
        }
        assert!(by_name("nobody").is_none());
    }
}

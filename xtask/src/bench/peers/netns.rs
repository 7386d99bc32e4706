//! Lariat across a pair of network namespaces: a veth pair with the MTU of plain Ethernet and one of
//! jumbo frames. Needs root; the namespaces are removed at the end. Called by `run`.

use anyhow::{Context, Result, bail};

use super::lariat::{Daemon, Setup};
use crate::bench::peer::{Ground, Measured, Peer};
use crate::bench::results::System;
use crate::bench::workload::{MIXED_32, READ_1, READ_32, READ_128, Workload};
use crate::bench::workload::{SEQUENTIAL_READ, SEQUENTIAL_WRITE, WRITE_32};
use crate::shell;

/// Both pairs.
#[derive(Default)]
pub(crate) struct Pair {
    nets: Vec<(String, Namespace, Daemon)>,
}

const WORKLOADS: [&str; 7] =
    [READ_1, READ_32, READ_128, WRITE_32, SEQUENTIAL_READ, SEQUENTIAL_WRITE, MIXED_32];

impl Peer for Pair {
    fn name(&self) -> &'static str {
        "lariat-net"
    }

    fn start(&mut self, ground: &Ground) -> Result<Vec<System>> {
        let root = shell::capture(&mut shell::command("id", &["-u"]))?;
        if root.trim() != "0" {
            bail!("network namespaces need root");
        }
        let mut systems = Vec::new();
        for (index, mtu) in [1500, 9000].into_iter().enumerate() {
            let id = format!("lariat-net-{mtu}-memory");
            let namespace = Namespace::new(index, mtu)?;
            let prefix = ["ip", "netns", "exec", &namespace.name].map(str::to_owned).into();
            let daemon = Daemon::start(ground, &id, &namespace.address, prefix, Setup::default())?;
            daemon.fill(ground, &namespace.address)?;
            systems.push(System {
                id: id.clone(),
                name: format!("Lariat memory, veth, MTU {mtu}"),
                peer: self.name().into(),
                storage: "memory of the target".into(),
                server: daemon.server.show(),
            });
            self.nets.push((id, namespace, daemon));
        }
        Ok(systems)
    }

    fn lacks(&self, _: &str, workload: &Workload) -> Option<String> {
        (!WORKLOADS.contains(&workload.id.as_str()))
            .then(|| "left out to keep the run short".to_owned())
    }

    fn measure(
        &mut self,
        ground: &Ground,
        system: &str,
        workload: &Workload,
        seconds: u32,
    ) -> Result<Measured> {
        self.daemon(system)?.measure(ground, "2", workload, seconds, &["--wire", "udp"])
    }

    fn idle_percent(&self, system: &str) -> Result<Option<f64>> {
        self.daemon(system)?.server.idle_percent().map(Some)
    }

    fn stop(&mut self) -> Result<()> {
        for (_, namespace, daemon) in self.nets.drain(..) {
            daemon.server.stop()?;
            drop(namespace);
        }
        Ok(())
    }
}

impl Pair {
    fn daemon(&self, system: &str) -> Result<&Daemon> {
        let found = self.nets.iter().find(|(id, ..)| id == system);
        found.map(|(_, _, daemon)| daemon).context("lariatd is not running")
    }
}

/// A network namespace with one end of a veth pair; the other end is here.
struct Namespace {
    name: String,
    /// Of the end inside.
    address: String,
}

impl Namespace {
    fn new(index: usize, mtu: u32) -> Result<Self> {
        let pid = std::process::id();
        let name = format!("lariat-{pid}-{index}");
        // 198.18.0.0/15 is for benchmarks (RFC 2544).
        let net = format!("198.18.{}.{}", pid % 250, 8 * index);
        let (here, there) = (format!("lt{pid}h{index}"), format!("lt{pid}t{index}"));
        let (base, host) = net.rsplit_once('.').context("no address")?;
        let host: usize = host.parse()?;
        let (local, address) = (format!("{base}.{}", host + 1), format!("{base}.{}", host + 2));
        ip(&["netns", "add", &name])?;
        // From here on dropping it removes all, the pair with the end inside.
        let namespace = Self { name, address };
        let mtu = mtu.to_string();
        ip(&[
            "link", "add", &here, "mtu", &mtu, "type", "veth", "peer", "name", &there, "mtu", &mtu,
        ])?;
        ip(&["link", "set", &there, "netns", &namespace.name])?;
        ip(&["address", "add", &format!("{local}/29"), "dev", &here])?;
        ip(&["link", "set", &here, "up"])?;
        let inside = ["-n", &namespace.name];
        ip(&[
            &inside[..],
            &["address", "add", &format!("{}/29", namespace.address), "dev", &there],
        ]
        .concat())?;
        ip(&[&inside[..], &["link", "set", &there, "up"]].concat())?;
        ip(&[&inside[..], &["link", "set", "lo", "up"]].concat())?;
        Ok(namespace)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = ip(&["netns", "delete", &self.name]);
    }
}

fn ip(arguments: &[&str]) -> Result<()> {
    shell::capture(&mut shell::command("ip", arguments))?;
    Ok(())
}

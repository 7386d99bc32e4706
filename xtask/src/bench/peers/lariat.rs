//! Lariat on loopback: `lariatd`, driven by `lariat bench` or by fio with our engine; as it comes, or
//! with both ends sleeping instead of polling. Called by `run`; `netns` borrows the daemon.

use anyhow::{Context, Result};

use crate::bench::peer::{Ground, Measured, Peer};
use crate::bench::process::{Line, Server, prepare, run_client};
use crate::bench::results::System;
use crate::bench::tools::{fio_arguments, lariat_arguments, parse_fio, parse_lariat};
use crate::bench::workload::{Pattern, Workload};
use crate::cluster::NQN;

/// A daemon on an address of its own.
pub(crate) struct Lariat {
    kind: Kind,
    daemon: Option<Daemon>,
}

/// What both ends are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// UDP, as between two hosts; else what they do by themselves.
    Udp,
    /// UDP, and nobody polls: both ends sleep as soon as there is nothing to do.
    Sleeping,
    /// Shared memory, which the two ends of one host agree on by themselves.
    Shared,
}

impl Default for Lariat {
    fn default() -> Self {
        Self { kind: Kind::Udp, daemon: None }
    }
}

impl Lariat {
    /// Nobody polls.
    pub(crate) fn sleeping() -> Self {
        Self { kind: Kind::Sleeping, daemon: None }
    }

    /// Through shared memory.
    pub(crate) fn shared() -> Self {
        Self { kind: Kind::Shared, daemon: None }
    }
}

const BACKENDS: [(&str, &str); 3] =
    [("file", "file on disk, direct I/O"), ("memory", "memory of the target"), ("null", "none")];

impl Peer for Lariat {
    fn name(&self) -> &'static str {
        match self.kind {
            Kind::Udp => "lariat",
            Kind::Sleeping => "lariat-sleep",
            Kind::Shared => "lariat-shm",
        }
    }

    fn start(&mut self, ground: &Ground) -> Result<Vec<System>> {
        // Any address of 127.0.0.0/8 is loopback: one that nobody else has.
        let [_, _, high, low] = std::process::id().to_be_bytes();
        let (net, setup) = match self.kind {
            Kind::Udp => (77, Setup { with_file: true, ..Setup::default() }),
            Kind::Sleeping => (78, Setup { idle_poll_us: Some(0), ..Setup::default() }),
            Kind::Shared => (79, Setup { wire: "auto", ..Setup::default() }),
        };
        let at = format!("127.{net}.{high}.{}", low.clamp(1, 254));
        let daemon = Daemon::start(ground, self.name(), &at, Vec::new(), setup)?;
        daemon.fill(ground, &at)?;
        let system = |id: String, name: String, storage: &str| System {
            id,
            name,
            peer: self.name().into(),
            storage: storage.into(),
            server: daemon.server.show(),
        };
        let mut systems = Vec::new();
        match self.kind {
            Kind::Udp => {
                for (client, words) in [("lariat", ""), ("lariat-fio", ", fio engine")] {
                    systems.extend(BACKENDS.map(|(backend, storage)| {
                        let name = format!("Lariat {backend}{words}");
                        system(format!("{client}-{backend}"), name, storage)
                    }));
                }
            }
            Kind::Sleeping => {
                let name = "Lariat memory, both ends sleeping".into();
                systems.push(system("lariat-sleep-memory".into(), name, "memory of the target"));
            }
            Kind::Shared => {
                for (backend, storage) in &BACKENDS[1..] {
                    let name = format!("Lariat {backend}, shared memory wire");
                    systems.push(system(format!("lariat-shm-{backend}"), name, storage));
                }
            }
        }
        self.daemon = Some(daemon);
        Ok(systems)
    }

    fn lacks(&self, system: &str, workload: &Workload) -> Option<String> {
        let few = workload.connections > 1 && !system.ends_with("memory");
        let sleeping = self.kind == Kind::Sleeping
            && (workload.connections > 1 || workload.pattern != Pattern::RandomRead);
        (few || sleeping).then(|| "left out to keep the run short".to_owned())
    }

    fn measure(
        &mut self,
        ground: &Ground,
        system: &str,
        workload: &Workload,
        seconds: u32,
    ) -> Result<Measured> {
        let daemon = self.daemon.as_ref().context("lariatd is not running")?;
        let nsid = match system.rsplit('-').next() {
            Some("file") => "1",
            Some("memory") => "2",
            _ => "3",
        };
        if system.starts_with("lariat-fio") {
            daemon.measure_fio(ground, nsid, workload, seconds)
        } else {
            let more: &[&str] = match self.kind {
                Kind::Udp => &["--wire", "udp"],
                Kind::Sleeping => &["--wire", "udp", "--poll-us", "0"],
                Kind::Shared => &["--wire", "shm"],
            };
            daemon.measure(ground, nsid, workload, seconds, more)
        }
    }

    fn idle_percent(&self, _: &str) -> Result<Option<f64>> {
        self.daemon.as_ref().map(|daemon| daemon.server.idle_percent()).transpose()
    }

    fn stop(&mut self) -> Result<()> {
        self.daemon.take().map_or(Ok(()), |daemon| daemon.server.stop())
    }
}

/// How a daemon differs from one that is told nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) idle_poll_us: Option<u32>,
    /// A target locks its file: only one of them can have it.
    pub(crate) with_file: bool,
    /// `udp`: as between two hosts; `auto`: shared memory where both ends are on one.
    pub(crate) wire: &'static str,
}

impl Default for Setup {
    fn default() -> Self {
        Self { idle_poll_us: None, with_file: false, wire: "udp" }
    }
}

/// A running `lariatd` with up to three namespaces: file, memory, null.
pub(crate) struct Daemon {
    pub(crate) server: Server,
    address: String,
}

impl Daemon {
    /// Starts it; `prefix` goes before the program (a network namespace, say).
    pub(crate) fn start(
        ground: &Ground,
        name: &str,
        address: &str,
        prefix: Vec<String>,
        setup: Setup,
    ) -> Result<Self> {
        let config = ground.folder.join(format!("{name}.toml"));
        std::fs::write(&config, configuration(ground, address, setup))?;
        let mut words = prefix;
        words.extend(ground.placing.server());
        let program = ground.binaries.folder().join("lariatd");
        let line = Line::new(
            words,
            &program.display().to_string(),
            ["--config".to_owned(), config.display().to_string()],
        );
        let mut server = Server::start(line, &ground.folder, name)?;
        server.wait_ready(|said| said.lines().any(|line| line.trim() == "ready"))?;
        Ok(Self { server, address: address.to_owned() })
    }

    /// Measures a namespace with `lariat bench`.
    pub(crate) fn measure(
        &self,
        ground: &Ground,
        nsid: &str,
        workload: &Workload,
        seconds: u32,
        more: &[&str],
    ) -> Result<Measured> {
        let program = ground.binaries.folder().join("lariat");
        let mut arguments: Vec<String> =
            ["bench", "--traddr", &self.address, "--nqn", NQN, "--fabric", "soft", "--quiet"]
                .map(str::to_owned)
                .into();
        arguments.extend(["--namespace-id".into(), nsid.into()]);
        arguments.extend(lariat_arguments(workload, seconds));
        arguments.extend(more.iter().map(ToString::to_string));
        let line = Line::new(ground.placing.client(), &program.display().to_string(), arguments);
        let ran = run_client(&line, &ground.folder, seconds, Some(self.server.pid()))?;
        ran.measured(|report| parse_lariat(report, workload))
    }

    fn measure_fio(
        &self,
        ground: &Ground,
        nsid: &str,
        workload: &Workload,
        seconds: u32,
    ) -> Result<Measured> {
        let engine = self.engine(ground, &self.address, nsid);
        let arguments = fio_arguments(&engine, workload, seconds);
        let line = Line::new(ground.placing.client(), "fio", arguments);
        let ran = run_client(&line, &ground.folder, seconds, Some(self.server.pid()))?;
        ran.measured(|report| parse_fio(report, workload))
    }

    fn engine(&self, ground: &Ground, address: &str, nsid: &str) -> [String; 6] {
        [
            format!(
                "--ioengine=external:{}",
                ground.binaries.folder().join("liblariat_fio.so").display()
            ),
            format!("--traddr={address}"),
            format!("--subnqn={NQN}"),
            format!("--nsid={nsid}"),
            "--fabric=soft".into(),
            "--wire=udp".into(),
        ]
    }

    /// Writes the memory namespace once: pages that were never written are all one page of zeroes.
    pub(crate) fn fill(&self, ground: &Ground, address: &str) -> Result<()> {
        let mut arguments = vec!["--name=fill".to_owned()];
        arguments.extend(self.engine(ground, address, "2"));
        arguments.extend(["--rw=write", "--bs=1m", "--iodepth=8"].map(str::to_owned));
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        prepare("fio", &words)
    }
}

fn configuration(ground: &Ground, address: &str, setup: Setup) -> String {
    let mut text = format!(
        "[[listener]]\naddress = \"{address}\"\nfabric = \"soft\"\n\n\
         [[subsystem]]\nnqn = \"{NQN}\"\nallow_any_host = true\n"
    );
    let file = format!("type = \"file\"\npath = \"{}\"", ground.disk.display());
    let sized = |kind: &str| format!("type = \"{kind}\"\nsize = \"{}MiB\"", ground.memory_mib);
    for (nsid, backend) in [(1, file), (2, sized("memory")), (3, sized("null"))] {
        if nsid == 1 && !setup.with_file {
            continue;
        }
        text.push_str(&format!(
            "\n[[subsystem.namespace]]\nnsid = {nsid}\n[subsystem.namespace.backend]\n{backend}\n\
             block_size = 4096\n"
        ));
    }
    text.push_str(&format!("\n[target]\nwire = \"{}\"\nlog = \"warn\"\n", setup.wire));
    if let Some(idle_poll_us) = setup.idle_poll_us {
        text.push_str(&format!("idle_poll_us = {idle_poll_us}\n"));
    }
    text
}

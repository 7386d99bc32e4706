//! SPDK's NVMe/TCP target and its own client, `spdk_nvme_perf`, from a build that the user names.
//! Its reactors never sleep, so the target is stopped while others are measured. Called by `run`.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::{answers, free_port};
use crate::bench::peer::{Ground, Measured, Peer};
use crate::bench::process::{Line, Server, prepare, run_client};
use crate::bench::results::System;
use crate::bench::tools::{parse_perf, perf_arguments};
use crate::bench::workload::Workload;
use crate::spdk::{Build, NOT_GIVEN};

const NQN: &str = "nqn.2026-11.io.lariat:spdk";
/// What the target gets beside the disk in memory; most of it is its pool of buffers.
const TARGET_MIB: u64 = 768;
const CLIENT_MIB: &str = "512";
/// Of the client's requests that fill the disk in memory: the largest that the target takes whole.
const FILL_BYTES: u64 = 128 << 10;

/// The disks, in the order of their namespaces: what we call them, what stands behind them.
const DISKS: [(&str, &str, &str); 3] = [
    ("memory", "malloc", "memory of the target (malloc bdev)"),
    ("null", "null", "none (null bdev)"),
    ("file", "file", "file on disk, direct I/O (aio bdev)"),
];

/// One target with three disks.
#[derive(Default)]
pub(crate) struct Spdk {
    running: Option<(Server, u16)>,
}

impl Peer for Spdk {
    fn name(&self) -> &'static str {
        "spdk"
    }

    fn start(&mut self, ground: &Ground) -> Result<Vec<System>> {
        let Some(build) = &ground.spdk else { bail!(NOT_GIVEN) };
        let port = free_port()?;
        let config = ground.folder.join("spdk.json");
        std::fs::write(&config, configuration(ground, port).to_string())?;
        let line = Line::new(
            prefix(ground, ground.placing.server()),
            &build.nvmf_tgt().display().to_string(),
            [
                "-m".to_owned(),
                mask(ground.placing.cores.map_or(0, |(server, _)| server)),
                "--no-huge".into(),
                "-s".into(),
                (ground.memory_mib + TARGET_MIB).to_string(),
                "--no-pci".into(),
                "--disable-cpumask-locks".into(),
                "--num-trace-entries".into(),
                "0".into(),
                "-r".into(),
                ground.folder.join("spdk.sock").display().to_string(),
                "-c".into(),
                config.display().to_string(),
            ],
        );
        let mut server = Server::start(line, &ground.folder, "nvmf_tgt")?;
        server.wait_ready(|_| answers(port))?;
        fill(ground, build, port)?;
        server.pause(true)?;
        let systems = DISKS.map(|(disk, name, storage)| System {
            id: format!("spdk-{disk}"),
            name: format!("SPDK NVMe/TCP {name}"),
            peer: self.name().into(),
            storage: storage.into(),
            server: build.portable(&server.show()),
        });
        self.running = Some((server, port));
        Ok(systems.into())
    }

    fn lacks(&self, system: &str, workload: &Workload) -> Option<String> {
        let few = workload.connections > 1 && !system.ends_with("memory");
        few.then(|| "left out to keep the run short".to_owned())
    }

    fn measure(
        &mut self,
        ground: &Ground,
        system: &str,
        workload: &Workload,
        seconds: u32,
    ) -> Result<Measured> {
        let build = ground.spdk.as_ref().context(NOT_GIVEN)?;
        let (server, port) = self.running.as_ref().context("nvmf_tgt is not running")?;
        let nsid = nsid(system).context("there is no such disk")?;
        let line = client(ground, build, *port, nsid, perf_arguments(workload, seconds));
        server.pause(false)?;
        let ran = run_client(&line, &ground.folder, seconds, Some(server.pid()));
        server.pause(true)?;
        let mut measured = ran?.measured(|report| parse_perf(report, workload))?;
        measured.command = build.portable(&measured.command);
        Ok(measured)
    }

    fn idle_percent(&self, _: &str) -> Result<Option<f64>> {
        let Some((server, _)) = &self.running else { return Ok(None) };
        server.pause(false)?;
        let percent = server.idle_percent();
        server.pause(true)?;
        percent.map(Some)
    }

    fn stop(&mut self) -> Result<()> {
        let Some((server, _)) = self.running.take() else { return Ok(()) };
        server.pause(false)?;
        server.stop()
    }
}

/// The namespace of a system.
fn nsid(system: &str) -> Option<usize> {
    let disk = system.strip_prefix("spdk-")?;
    Some(DISKS.iter().position(|(name, ..)| *name == disk)? + 1)
}

/// SPDK wants its reactors' cores as a mask; it ties them to one even where nothing else is tied.
fn mask(core: usize) -> String {
    format!("{:#x}", 1_u128.checked_shl(u32::try_from(core).unwrap_or(u32::MAX)).unwrap_or(1))
}

/// What SPDK's environment leaves on a disk goes to the scratch folder.
fn prefix(ground: &Ground, placing: Vec<String>) -> Vec<String> {
    let mut words = vec!["env".into(), format!("RUNTIME_DIRECTORY={}", ground.folder.display())];
    words.extend(placing);
    words
}

fn client(ground: &Ground, build: &Build, port: u16, nsid: usize, what: Vec<String>) -> Line {
    let mut arguments = vec![
        "-c".to_owned(),
        mask(ground.placing.cores.map_or(1, |(_, client)| client)),
        "--no-huge".into(),
        "-s".into(),
        CLIENT_MIB.into(),
        "-r".into(),
        format!("trtype:TCP adrfam:IPv4 traddr:127.0.0.1 trsvcid:{port} subnqn:{NQN} ns:{nsid}"),
    ];
    arguments.extend(what);
    let words = prefix(ground, ground.placing.client());
    Line::new(words, &build.perf().display().to_string(), arguments)
}

/// Writes the disk in memory once: pages that were never written are all one page of zeroes.
fn fill(ground: &Ground, build: &Build, port: u16) -> Result<()> {
    let requests = (ground.memory_mib << 20) / FILL_BYTES;
    let what = format!("-w write -o {FILL_BYTES} -q 8 -t 60 -d {requests}");
    let what = what.split(' ').map(str::to_owned).collect();
    let Line(words) = client(ground, build, port, 1, what);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (program, arguments) = words.split_first().context("there is no client")?;
    prepare(program, arguments)
}

/// nvmf_tgt's configuration: what its own RPC would be told.
fn configuration(ground: &Ground, port: u16) -> Value {
    let call = |method: &str, params: Value| json!({"method": method, "params": params});
    let blocks = ground.memory_mib << 20 >> 12;
    let sized = |name: &str| json!({"name": name, "block_size": 4096, "num_blocks": blocks});
    let mut target = vec![
        // Its default, 128, would keep one request less than that under way.
        call("nvmf_create_transport", json!({"trtype": "TCP", "max_queue_depth": 256})),
        call(
            "nvmf_create_subsystem",
            json!({"nqn": NQN, "allow_any_host": true, "serial_number": "LARIATBENCH"}),
        ),
    ];
    target.extend(DISKS.iter().enumerate().map(|(index, (disk, ..))| {
        let namespace = json!({"bdev_name": disk, "nsid": index + 1});
        call("nvmf_subsystem_add_ns", json!({"nqn": NQN, "namespace": namespace}))
    }));
    let address = json!({
        "trtype": "TCP", "adrfam": "IPv4", "traddr": "127.0.0.1", "trsvcid": port.to_string(),
    });
    target
        .push(call("nvmf_subsystem_add_listener", json!({"nqn": NQN, "listen_address": address})));
    let file = json!({"name": "file", "filename": ground.disk, "block_size": 4096});
    let disks = [
        call("bdev_malloc_create", sized("memory")),
        call("bdev_null_create", sized("null")),
        call("bdev_aio_create", file),
    ];
    json!({"subsystems": [
        {"subsystem": "bdev", "config": disks},
        {"subsystem": "nvmf", "config": target},
    ]})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_disk_has_its_namespace() {
        let of = |disk: &str| nsid(&format!("spdk-{disk}"));
        assert_eq!(DISKS.map(|(disk, ..)| of(disk)), [Some(1), Some(2), Some(3)]);
        assert_eq!(of("tape"), None);
    }

    #[test]
    fn cores_become_masks() {
        assert_eq!([0, 1, 70].map(mask), ["0x1", "0x2", "0x400000000000000000"]);
    }
}

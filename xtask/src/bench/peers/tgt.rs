//! iSCSI: tgt in the foreground with a control socket of its own, driven by `iscsi-perf`. Called by
//! `run`.

use std::path::Path;

use anyhow::{Context, Result};

use super::{answers, free_port};
use crate::bench::peer::{Ground, Measured, Peer};
use crate::bench::process::{Line, Server, prepare, run_client};
use crate::bench::results::System;
use crate::bench::tools::{iscsi_arguments, parse_iscsi};
use crate::bench::workload::Workload;
use crate::shell;

const TARGET: &str = "iqn.2026-11.io.lariat:bench";
const BLOCK_BYTES: u32 = 512;
const FILE: &str = "tgt-file";

/// One daemon with two LUNs.
#[derive(Default)]
pub(crate) struct Tgt {
    running: Option<Running>,
}

struct Running {
    server: Server,
    control: String,
    port: u16,
}

impl Peer for Tgt {
    fn name(&self) -> &'static str {
        "tgt"
    }

    fn start(&mut self, ground: &Ground) -> Result<Vec<System>> {
        let control = (1000 + std::process::id() % 30_000).to_string();
        let port = free_port()?;
        let program = shell::find("tgtd").context("tgtd is not installed (package tgt)")?;
        let portal = format!("portal=127.0.0.1:{port}");
        let line = Line::new(
            ground.placing.server(),
            &program.display().to_string(),
            ["-f", "-C", &control, "--iscsi", &portal],
        );
        let mut server = Server::start(line, &ground.folder, "tgtd")?;
        server.wait_ready(|_| answers(port))?;
        let running = self.running.insert(Running { server, control, port });
        running.admin("target", &["--op", "new", "-T", TARGET])?;
        for (lun, file) in [("1", &ground.cached), ("2", &ground.memory)] {
            let file = file.display().to_string();
            running.admin("logicalunit", &["--op", "new", "--lun", lun, "-b", &file])?;
        }
        running.admin("target", &["--op", "bind", "-I", "ALL"])?;
        let system = |id: &str, name: &str, storage: &str| System {
            id: id.into(),
            name: name.into(),
            peer: "tgt".into(),
            storage: storage.into(),
            server: running.server.show(),
        };
        Ok(vec![
            system(FILE, "tgt iSCSI file", "file on disk, page cache (bstype rdwr)"),
            system("tgt-memory", "tgt iSCSI memory", "file on /dev/shm (bstype rdwr)"),
        ])
    }

    fn lacks(&self, _: &str, workload: &Workload) -> Option<String> {
        iscsi_arguments(workload, BLOCK_BYTES, 1).err()
    }

    fn measure(
        &mut self,
        ground: &Ground,
        system: &str,
        workload: &Workload,
        seconds: u32,
    ) -> Result<Measured> {
        let running = self.running.as_ref().context("tgtd is not running")?;
        let lun = if system == FILE { 1 } else { 2 };
        let mut arguments =
            iscsi_arguments(workload, BLOCK_BYTES, seconds).map_err(anyhow::Error::msg)?;
        arguments.push(format!("iscsi://127.0.0.1:{}/{TARGET}/{lun}", running.port));
        let line = Line::new(ground.placing.client(), "iscsi-perf", arguments);
        let ran = run_client(&line, &ground.folder, seconds, Some(running.server.pid()))?;
        ran.measured(|report| parse_iscsi(report, workload))
    }

    fn idle_percent(&self, _: &str) -> Result<Option<f64>> {
        self.running.as_ref().map(|running| running.server.idle_percent()).transpose()
    }

    fn stop(&mut self) -> Result<()> {
        let Some(running) = self.running.take() else { return Ok(()) };
        let socket = format!("/var/run/tgtd/socket.{}", running.control);
        // It keeps nothing, and ignores SIGTERM.
        running.server.end();
        for file in [socket.clone(), format!("{socket}.lock")] {
            if Path::new(&file).exists() {
                std::fs::remove_file(file)?;
            }
        }
        Ok(())
    }
}

impl Running {
    fn admin(&self, mode: &str, rest: &[&str]) -> Result<()> {
        let program = shell::find("tgtadm").context("tgtadm is not installed (package tgt)")?;
        let mut arguments =
            vec!["-C", &self.control, "--lld", "iscsi", "--mode", mode, "--tid", "1"];
        arguments.extend_from_slice(rest);
        prepare(&program.display().to_string(), &arguments)
    }
}

//! NBD: nbdkit with its memory and its file plugin, driven by fio's nbd engine. Called by `run`.

use anyhow::{Context, Result};

use super::{answers, free_port};
use crate::bench::peer::{Ground, Measured, Peer};
use crate::bench::process::{Line, Server, prepare, run_client};
use crate::bench::results::System;
use crate::bench::tools::{fio_arguments, parse_fio};
use crate::bench::workload::Workload;

/// A server for each plugin: system, server, port.
#[derive(Default)]
pub(crate) struct Nbdkit {
    servers: Vec<(String, Server, u16)>,
}

impl Peer for Nbdkit {
    fn name(&self) -> &'static str {
        "nbdkit"
    }

    fn start(&mut self, ground: &Ground) -> Result<Vec<System>> {
        let mut systems = Vec::new();
        let size = format!("{}M", ground.memory_mib);
        let file = ground.cached.display().to_string();
        for (plugin, argument, storage) in
            [("memory", &size, "memory of the server"), ("file", &file, "file on disk, page cache")]
        {
            let port = free_port()?;
            let port_word = port.to_string();
            let line = Line::new(
                ground.placing.server(),
                "nbdkit",
                ["-f", "-i", "127.0.0.1", "-p", &port_word, plugin, argument],
            );
            let id = format!("nbdkit-{plugin}");
            let mut server = Server::start(line, &ground.folder, &id)?;
            server.wait_ready(|_| answers(port))?;
            systems.push(System {
                id: id.clone(),
                name: format!("nbdkit {plugin}"),
                peer: self.name().into(),
                storage: storage.into(),
                server: server.show(),
            });
            self.servers.push((id, server, port));
            if plugin == "memory" {
                let [engine, uri] = engine(port);
                let fill = ["--name=fill", &engine, &uri, "--rw=write", "--bs=1m", "--iodepth=8"];
                prepare("fio", &fill)?;
            }
        }
        Ok(systems)
    }

    fn lacks(&self, _: &str, workload: &Workload) -> Option<String> {
        (workload.connections > 16).then(|| "left out to keep the run short".to_owned())
    }

    fn measure(
        &mut self,
        ground: &Ground,
        system: &str,
        workload: &Workload,
        seconds: u32,
    ) -> Result<Measured> {
        let (server, port) = self.find(system)?;
        let arguments = fio_arguments(&engine(port), workload, seconds);
        let line = Line::new(ground.placing.client(), "fio", arguments);
        let ran = run_client(&line, &ground.folder, seconds, Some(server.pid()))?;
        ran.measured(|report| parse_fio(report, workload))
    }

    fn idle_percent(&self, system: &str) -> Result<Option<f64>> {
        self.find(system)?.0.idle_percent().map(Some)
    }

    fn stop(&mut self) -> Result<()> {
        for (_, server, _) in self.servers.drain(..) {
            server.stop()?;
        }
        Ok(())
    }
}

impl Nbdkit {
    fn find(&self, system: &str) -> Result<(&Server, u16)> {
        let found = self.servers.iter().find(|(id, ..)| id == system);
        found.map(|(_, server, port)| (server, *port)).context("nbdkit is not running")
    }
}

fn engine(port: u16) -> [String; 2] {
    ["--ioengine=nbd".into(), format!("--uri=nbd://127.0.0.1:{port}")]
}

//! What UDP on loopback carries without any protocol: our bare programs (`tests/examples`), in the
//! shape of batched reads and as a stream. Called by `run`.

use anyhow::Result;

use crate::bench::peer::{Ground, Measured, Peer};
use crate::bench::process::{Line, Server, run_client};
use crate::bench::results::System;
use crate::bench::tools::parse_lariat;
use crate::bench::workload::{Pattern, Workload};

/// Both; their servers spin, so they run only while they are measured.
pub(crate) struct Limits;

const BATCH: &str = "limit-batch";

impl Peer for Limits {
    fn name(&self) -> &'static str {
        "limits"
    }

    fn start(&mut self, ground: &Ground) -> Result<Vec<System>> {
        let system = |id: &str, name: &str, mode: &str| System {
            id: id.into(),
            name: name.into(),
            peer: self.name().into(),
            storage: "none".into(),
            server: server(ground, mode, 10).show(),
        };
        Ok(vec![
            system(BATCH, "bare UDP batches", "batch"),
            system("limit-stream", "bare UDP stream", "stream"),
        ])
    }

    fn lacks(&self, system: &str, workload: &Workload) -> Option<String> {
        let fits = if system == BATCH {
            workload.pattern == Pattern::RandomRead && workload.connections == 1
        } else {
            workload.pattern == Pattern::Read
        };
        (!fits).then(|| "the bare program has no such shape".to_owned())
    }

    fn measure(
        &mut self,
        ground: &Ground,
        system: &str,
        workload: &Workload,
        seconds: u32,
    ) -> Result<Measured> {
        let mode = if system == BATCH { "batch" } else { "stream" };
        let mut server = Server::start(server(ground, mode, seconds + 10), &ground.folder, system)?;
        server.wait_ready(|said| said.contains("ready"))?;
        let (seconds_word, depth) = (seconds.to_string(), workload.depth.to_string());
        let line = Line::new(
            ground.placing.client(),
            &program(ground),
            [mode, "--depth", &depth, "--seconds", &seconds_word],
        );
        let ran = run_client(&line, &ground.folder, seconds, Some(server.pid()))?;
        server.stop()?;
        ran.measured(|report| parse_lariat(report, workload))
    }

    fn idle_percent(&self, _: &str) -> Result<Option<f64>> {
        Ok(None)
    }

    fn stop(&mut self) -> Result<()> {
        Ok(())
    }
}

fn program(ground: &Ground) -> String {
    ground.binaries.folder().join("examples/udp_limit").display().to_string()
}

fn server(ground: &Ground, mode: &str, seconds: u32) -> Line {
    let seconds = seconds.to_string();
    Line::new(ground.placing.server(), &program(ground), [mode, "--serve", "--seconds", &seconds])
}

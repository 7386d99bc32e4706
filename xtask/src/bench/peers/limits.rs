//! What UDP on loopback carries without any protocol: our bare programs (`tests/examples`), in the
//! shape of batched reads and as a stream. Called by `run`.

use anyhow::Result;

use crate::bench::peer::{Ground, Measured, Peer};
use crate::bench::process::{Line, Server, run_client};
use crate::bench::results::System;
use crate::bench::tools::parse_lariat;
use crate::bench::workload::{Pattern, Workload};

/// All; their servers spin, so they run only while they are measured.
pub(crate) struct Limits;

const BATCH: &str = "limit-batch";
/// The same out of as much memory as the disks in memory have, at random.
const BATCH_MEMORY: &str = "limit-batch-memory";
/// A stream that is copied once at either end.
const STREAM_MEMORY: &str = "limit-stream-memory";

impl Peer for Limits {
    fn name(&self) -> &'static str {
        "limits"
    }

    fn start(&mut self, ground: &Ground) -> Result<Vec<System>> {
        let system = |id: &str, name: &str, storage: &str| System {
            id: id.into(),
            name: name.into(),
            peer: self.name().into(),
            storage: storage.into(),
            server: server(ground, id, 10).show(),
        };
        Ok(vec![
            system(BATCH, "bare UDP batches", "1 MiB of memory"),
            system(BATCH_MEMORY, "bare UDP batches, much memory", "memory of the server"),
            system("limit-stream", "bare UDP stream", "none"),
            system(STREAM_MEMORY, "bare UDP stream, copied", "memory of the server"),
        ])
    }

    fn lacks(&self, system: &str, workload: &Workload) -> Option<String> {
        let fits = if mode_of(system) == "batch" {
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
        let mode = mode_of(system);
        let line = server(ground, system, seconds + 10);
        let mut server = Server::start(line, &ground.folder, system)?;
        server.wait_ready(|said| said.contains("ready"))?;
        let (seconds_word, depth) = (seconds.to_string(), workload.depth.to_string());
        let mut words = vec![mode, "--depth", &depth, "--seconds", &seconds_word];
        if system == STREAM_MEMORY {
            words.push("--copy");
        }
        let line = Line::new(ground.placing.client(), &program(ground), words);
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

fn mode_of(system: &str) -> &'static str {
    if system.starts_with(BATCH) { "batch" } else { "stream" }
}

fn server(ground: &Ground, system: &str, seconds: u32) -> Line {
    let seconds = seconds.to_string();
    let memory_mib = ground.memory_mib.to_string();
    let mut words = vec![mode_of(system), "--serve", "--seconds", &seconds];
    if matches!(system, BATCH_MEMORY | STREAM_MEMORY) {
        words.extend(["--memory-mib", &memory_mib]);
    }
    if system == STREAM_MEMORY {
        words.push("--copy");
    }
    Line::new(ground.placing.server(), &program(ground), words)
}

//! The local limit: fio's io_uring engine on a file, without any network. Called by `run`.

use anyhow::Result;

use crate::bench::peer::{Ground, Measured, Peer};
use crate::bench::process::{Line, run_client};
use crate::bench::results::System;
use crate::bench::tools::{fio_arguments, parse_fio};
use crate::bench::workload::Workload;

/// No server; the same file as Lariat's, and one in memory.
pub(crate) struct Local;

const FILE: &str = "local-file";

impl Peer for Local {
    fn name(&self) -> &'static str {
        "local"
    }

    fn start(&mut self, _: &Ground) -> Result<Vec<System>> {
        let system = |id: &str, name: &str, storage: &str| System {
            id: id.into(),
            name: name.into(),
            peer: self.name().into(),
            storage: storage.into(),
            server: String::new(),
        };
        Ok(vec![
            system(FILE, "local io_uring file", "file on disk, direct I/O"),
            system("local-memory", "local io_uring memory", "file on /dev/shm"),
        ])
    }

    fn lacks(&self, _: &str, _: &Workload) -> Option<String> {
        None
    }

    fn measure(
        &mut self,
        ground: &Ground,
        system: &str,
        workload: &Workload,
        seconds: u32,
    ) -> Result<Measured> {
        let is_file = system == FILE;
        let file = if is_file { &ground.disk } else { &ground.memory };
        let engine = [
            "--ioengine=io_uring".to_owned(),
            format!("--filename={}", file.display()),
            format!("--direct={}", u8::from(is_file)),
            "--registerfiles=1".into(),
            "--fixedbufs=1".into(),
        ];
        let arguments = fio_arguments(&engine, workload, seconds);
        // Where the others' servers ask the same disk from: cores differ in how far its interrupt is.
        let line = Line::new(ground.placing.server(), "fio", arguments);
        let ran = run_client(&line, &ground.folder, seconds, None)?;
        ran.measured(|report| parse_fio(report, workload))
    }

    fn idle_percent(&self, _: &str) -> Result<Option<f64>> {
        Ok(None)
    }

    fn stop(&mut self) -> Result<()> {
        Ok(())
    }
}

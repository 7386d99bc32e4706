//! What a peer is to the benchmark. Implemented in `peers` and `limits`; called by `run`.

use std::path::PathBuf;

use anyhow::Result;

use super::process::Placing;
use super::results::{Sample, System};
use super::workload::Workload;
use crate::cluster::Binaries;
use crate::spdk::Build;

/// What all peers stand on.
pub(crate) struct Ground {
    /// Logs and configurations; removed at the end.
    pub(crate) folder: PathBuf,
    /// A file on a disk for direct I/O: local fio and Lariat.
    pub(crate) disk: PathBuf,
    /// A file on the same disk for those who go through the page cache.
    pub(crate) cached: PathBuf,
    /// A file in memory (/dev/shm).
    pub(crate) memory: PathBuf,
    pub(crate) disk_mib: u64,
    pub(crate) memory_mib: u64,
    pub(crate) placing: Placing,
    pub(crate) binaries: Binaries,
    pub(crate) spdk: Option<Build>,
}

/// What came out of a measurement.
pub(crate) struct Measured {
    /// The client's command line.
    pub(crate) command: String,
    pub(crate) sample: Sample,
}

/// Servers that belong together, and the client that drives them.
pub(crate) trait Peer {
    /// What goes by this name in `--peers`.
    fn name(&self) -> &'static str;

    /// Starts what has to run while it is measured and gives the systems that can be.
    fn start(&mut self, ground: &Ground) -> Result<Vec<System>>;

    /// Why a system cannot do a workload; None where it can.
    fn lacks(&self, system: &str, workload: &Workload) -> Option<String>;

    /// Measures a system that was started.
    fn measure(
        &mut self,
        ground: &Ground,
        system: &str,
        workload: &Workload,
        seconds: u32,
    ) -> Result<Measured>;

    /// Processor time in percent of a core that the server of a system uses without load, over
    /// some seconds; None where there is no server.
    fn idle_percent(&self, system: &str) -> Result<Option<f64>>;

    /// Ends what was started.
    fn stop(&mut self) -> Result<()>;
}

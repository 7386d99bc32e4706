//! The JSON of a run: everything that the report shows can be computed from it. Calls nothing;
//! filled by `run`, read by `stats`, `goals` and `report`.

use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::workload::Workload;

/// The version of the format.
pub(crate) const FORMAT: u32 = 1;

/// A whole run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Results {
    pub(crate) format: u32,
    /// UTC.
    pub(crate) date: String,
    /// How the benchmark was called.
    pub(crate) command: String,
    pub(crate) machine: Machine,
    pub(crate) programs: Vec<Program>,
    pub(crate) settings: Settings,
    pub(crate) workloads: Vec<Workload>,
    pub(crate) systems: Vec<System>,
    /// In the order in which they were made.
    pub(crate) runs: Vec<Run>,
    pub(crate) idle: Vec<Idle>,
    /// Systems and cells that were not measured, and why.
    pub(crate) skipped: Vec<Skipped>,
    /// What `cargo xtask lab bench` found in its virtual machine, in the same format.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lab: Option<Box<Results>>,
}

/// Where it ran.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) memory_mib: u64,
    pub(crate) kernel: String,
    /// Load average over a minute, before the first and after the last measurement.
    pub(crate) load_before: f64,
    pub(crate) load_after: f64,
}

/// A program that took part.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Program {
    pub(crate) name: String,
    pub(crate) version: String,
}

/// How it was measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Settings {
    /// Length of each measurement.
    pub(crate) seconds: u32,
    /// Interleaved repetitions.
    pub(crate) repeat: u32,
    /// Which cores servers and clients were tied to.
    pub(crate) placing: String,
    pub(crate) disk_mib: u64,
    pub(crate) memory_mib: u64,
}

/// Something that was measured: a server, what is behind it, and what drives it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct System {
    /// Short and stable: what runs refer to.
    pub(crate) id: String,
    pub(crate) name: String,
    /// What goes by one name in `--peers`.
    pub(crate) peer: String,
    /// The backing, and what caches it: direct I/O, page cache, memory, none.
    pub(crate) storage: String,
    /// The command line of the server; empty where there is none.
    pub(crate) server: String,
}

/// One measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) system: String,
    pub(crate) workload: String,
    /// From 0.
    pub(crate) repetition: u32,
    /// The client's command line.
    pub(crate) command: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sample: Option<Sample>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

/// The figures of one measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sample {
    pub(crate) iops: f64,
    pub(crate) bytes_per_second: f64,
    pub(crate) latency_us: Latency,
    /// Cores that the client kept busy (user and system time per second).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) client_cores: Option<f64>,
    /// As that, for the server; 0 where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) server_cores: Option<f64>,
}

/// Latencies in microseconds; of the reads where there are reads and writes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Latency {
    /// None where nothing of the kind exists, as in a stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mean: Option<f64>,
    /// The tool gives no latencies: the mean is depth / IOPS, which holds for a full queue.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) mean_is_computed: bool,
    /// Percentage and latency, ascending; empty where the tool has none.
    pub(crate) percentiles: Vec<(f64, f64)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) max: Option<f64>,
}

impl Latency {
    /// A percentile that was asked for.
    pub(crate) fn percentile(&self, percent: f64) -> Option<f64> {
        self.percentiles
            .iter()
            .find(|(at, _)| (at - percent).abs() < 1e-6)
            .map(|&(_, latency)| latency)
    }
}

/// What a server used when nobody asked anything of it any more.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Idle {
    pub(crate) system: String,
    pub(crate) repetition: u32,
    /// Percent of a core, over some seconds after a load.
    pub(crate) percent: f64,
}

/// What was not measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Skipped {
    /// A system, or the name of a peer.
    pub(crate) system: String,
    /// None: no workload of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) workload: Option<String>,
    pub(crate) reason: String,
}

impl Results {
    /// Reads a file.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let results: Self = serde_json::from_str(&text)
            .with_context(|| format!("{} holds no results", path.display()))?;
        if results.format != FORMAT {
            bail!("{} has format {}, this is for {FORMAT}", path.display(), results.format);
        }
        Ok(results)
    }

    /// Writes a file, a line for each measurement, so that a change to it can be looked at.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        std::fs::write(path, format!("{}\n", serde_json::to_string_pretty(self)?))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    pub(crate) fn system(&self, id: &str) -> Option<&System> {
        self.systems.iter().find(|system| system.id == id)
    }

    pub(crate) fn workload(&self, id: &str) -> Option<&Workload> {
        self.workloads.iter().find(|workload| workload.id == id)
    }

    /// Why a cell is empty.
    pub(crate) fn why_not(&self, system: &str, workload: &str) -> Option<&str> {
        self.skipped
            .iter()
            .find(|skipped| {
                skipped.system == system
                    && skipped.workload.as_deref().is_none_or(|id| id == workload)
            })
            .map(|skipped| skipped.reason.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::report::fixture;

    #[test]
    fn what_is_written_is_read_to_the_last_digit() {
        // A hasty parser is off by one in the last place of such a number.
        let results = fixture::results(&[("a", "randread-4k-qd1", &[0.374_289_750_576_479_23])]);
        let folder = tempfile::tempdir().expect("a folder");
        let (first, second) = (folder.path().join("first"), folder.path().join("second"));
        results.write(&first).expect("it is written");
        Results::read(&first).and_then(|read| read.write(&second)).expect("it is read");
        let text = |path| std::fs::read_to_string(path).expect("it is there");
        assert!(text(&first).contains("0.37428975057647923"));
        assert_eq!(text(&first), text(&second));
    }
}

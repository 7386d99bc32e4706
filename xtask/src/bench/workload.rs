//! What is measured: the list of workloads. Calls nothing; used by all of the benchmark.

use serde::{Deserialize, Serialize};

/// The access pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Pattern {
    RandomRead,
    RandomWrite,
    Read,
    Write,
    /// Random, 70 % reads.
    Mixed,
}

impl Pattern {
    /// fio's name, which `lariat bench` shares.
    pub(crate) fn fio(self) -> &'static str {
        match self {
            Self::RandomRead => "randread",
            Self::RandomWrite => "randwrite",
            Self::Read => "read",
            Self::Write => "write",
            Self::Mixed => "randrw",
        }
    }

    /// Whether anything is written.
    pub(crate) fn writes(self) -> bool {
        !matches!(self, Self::RandomRead | Self::Read)
    }

    /// Whether offsets are random.
    pub(crate) fn is_random(self) -> bool {
        !matches!(self, Self::Read | Self::Write)
    }

    /// The side of a tool's report whose latencies count: reads, unless there are none.
    pub(crate) fn side(self) -> &'static str {
        if matches!(self, Self::RandomWrite | Self::Write) { "write" } else { "read" }
    }
}

/// The share of reads in [`Pattern::Mixed`].
pub(crate) const MIXED_READ_PERCENT: u32 = 70;

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Workload {
    /// Short and stable: what runs refer to.
    pub(crate) id: String,
    /// For people.
    pub(crate) name: String,
    pub(crate) pattern: Pattern,
    pub(crate) block_bytes: u32,
    /// Requests under way on each connection.
    pub(crate) depth: u32,
    pub(crate) connections: u16,
}

impl Workload {
    fn new(pattern: Pattern, block_kib: u32, depth: u32, connections: u16) -> Self {
        let (short, long) = match pattern {
            Pattern::RandomRead => ("randread", "random read"),
            Pattern::RandomWrite => ("randwrite", "random write"),
            Pattern::Read => ("read", "sequential read"),
            Pattern::Write => ("write", "sequential write"),
            Pattern::Mixed => ("mixed", "70/30 mixed"),
        };
        let mut id = format!("{short}-{block_kib}k-qd{depth}");
        let mut name = format!("{block_kib} KiB {long}, depth {depth}");
        if connections > 1 {
            id.push_str(&format!("-c{connections}"));
            name.push_str(&format!(", {connections} connections"));
        }
        Self { id, name, pattern, block_bytes: block_kib << 10, depth, connections }
    }

    /// IOPS for small blocks, MB/s for large ones: what people quote.
    pub(crate) fn is_small(&self) -> bool {
        self.block_bytes <= 16 << 10
    }

    /// Requests under way on all connections.
    pub(crate) fn total_depth(&self) -> u32 {
        self.depth * u32::from(self.connections)
    }
}

/// Names that goals and plots refer to.
pub(crate) const READ_1: &str = "randread-4k-qd1";
pub(crate) const READ_32: &str = "randread-4k-qd32";
pub(crate) const READ_128: &str = "randread-4k-qd128";
pub(crate) const WRITE_32: &str = "randwrite-4k-qd32";
pub(crate) const MIXED_32: &str = "mixed-4k-qd32";
pub(crate) const SEQUENTIAL_READ: &str = "read-128k-qd16";
pub(crate) const SEQUENTIAL_WRITE: &str = "write-128k-qd16";
/// 4 KiB random read at depth 32 on each of 1 to 64 connections.
pub(crate) const CONNECTIONS: [&str; 4] =
    [READ_32, "randread-4k-qd32-c4", "randread-4k-qd32-c16", "randread-4k-qd32-c64"];

/// All of them, or those of a quick run.
pub(crate) fn list(quick: bool) -> Vec<Workload> {
    use Pattern::{Mixed, RandomRead, RandomWrite, Read, Write};
    let mut list: Vec<Workload> = Vec::new();
    for pattern in [RandomRead, RandomWrite] {
        list.extend([1, 32, 128].map(|depth| Workload::new(pattern, 4, depth, 1)));
    }
    list.push(Workload::new(Read, 128, 16, 1));
    list.push(Workload::new(Write, 128, 16, 1));
    list.push(Workload::new(Mixed, 4, 32, 1));
    list.extend([4, 16, 64].map(|connections| Workload::new(RandomRead, 4, 32, connections)));
    if quick {
        const QUICK: [&str; 5] = [READ_1, READ_32, WRITE_32, SEQUENTIAL_READ, CONNECTIONS[2]];
        list.retain(|workload| QUICK.contains(&workload.id.as_str()));
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_that_others_use_exist() {
        let all = list(false);
        for id in [READ_1, READ_32, READ_128, WRITE_32, MIXED_32]
            .into_iter()
            .chain([SEQUENTIAL_READ, SEQUENTIAL_WRITE])
            .chain(CONNECTIONS)
        {
            assert_eq!(all.iter().filter(|workload| workload.id == id).count(), 1, "{id}");
        }
        assert_eq!(list(true).len(), 5);
        assert_eq!(all.last().map(Workload::total_depth), Some(2048));
    }
}

//! What `lariat bench` can be told, and the check of it against a namespace. Calls `units`; called by
//! `bench`.

use core::time::Duration;

use anyhow::Result;

use crate::failure::usage;
use crate::units::{parse_duration, parse_size, show_size};

/// The access pattern, under fio's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Pattern {
    /// Sequential reads.
    Read,
    /// Sequential writes.
    Write,
    /// Random reads.
    Randread,
    /// Random writes.
    Randwrite,
    /// Sequential, reads and writes mixed.
    #[value(alias = "readwrite")]
    Rw,
    /// Random, reads and writes mixed.
    Randrw,
}

impl Pattern {
    /// fio's name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Randread => "randread",
            Self::Randwrite => "randwrite",
            Self::Rw => "rw",
            Self::Randrw => "randrw",
        }
    }

    /// Whether offsets are random.
    pub(crate) fn is_random(self) -> bool {
        matches!(self, Self::Randread | Self::Randwrite | Self::Randrw)
    }

    /// Whether anything is read.
    pub(crate) fn reads(self) -> bool {
        !matches!(self, Self::Write | Self::Randwrite)
    }

    /// Whether anything is written.
    pub(crate) fn writes(self) -> bool {
        !matches!(self, Self::Read | Self::Randread)
    }

    /// The share of reads in percent, where `mix` is that of mixed patterns.
    pub(crate) fn read_percent(self, mix: u8) -> u8 {
        match self {
            Self::Read | Self::Randread => 100,
            Self::Write | Self::Randwrite => 0,
            Self::Rw | Self::Randrw => mix,
        }
    }
}

/// Options of the workload.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct BenchOptions {
    /// Access pattern. Patterns that write destroy what is in the region.
    #[arg(long, value_enum, default_value = "randread")]
    pub(crate) rw: Pattern,
    /// Percentage of reads in rw and randrw; other patterns ignore it.
    #[arg(long, value_name = "PERCENT", default_value_t = 50,
          value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) rwmixread: u8,
    /// Size of each request: a multiple of the namespace's block size, up to 64 MiB.
    #[arg(long, visible_alias = "block-size", value_name = "SIZE", default_value = "4k",
          value_parser = parse_size)]
    pub(crate) bs: u64,
    /// Requests in flight on each queue, 1 to 1024.
    #[arg(long, visible_alias = "depth", value_name = "N", default_value_t = 32,
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) iodepth: u32,
    /// I/O queues, 1 to 128.
    #[arg(long, visible_alias = "numjobs", value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=128))]
    pub(crate) queues: u16,
    /// Threads that serve the queues [default: one for each queue, but no more than there are cores
    /// to run on].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=128))]
    pub(crate) threads: Option<u16>,
    /// How long to measure: seconds, or with a suffix (500ms, 2m).
    #[arg(long, value_name = "TIME", default_value = "10", value_parser = parse_duration)]
    pub(crate) runtime: Duration,
    /// How long to run before measuring; what is done meanwhile does not count.
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = parse_duration)]
    pub(crate) ramp_time: Duration,
    /// Where the region that is read and written starts, in bytes (suffixes as in 4k, 1GiB).
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = parse_size)]
    pub(crate) offset: u64,
    /// Size of the region [default: up to the namespace's end].
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) size: Option<u64>,
    /// Seed of the offsets and of the mix: the same seed gives the same sequence.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
}

/// The part of the namespace that is used, in requests of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    /// First byte.
    pub(crate) offset_bytes: u64,
    /// Size of a request in bytes.
    pub(crate) request_bytes: u32,
    /// Requests that fit, at least one for each queue.
    pub(crate) requests: u64,
}

impl BenchOptions {
    /// How many threads serve the queues.
    pub(crate) fn thread_count(&self) -> u16 {
        let cores = || {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            u16::try_from(cores).unwrap_or(u16::MAX)
        };
        self.threads.unwrap_or_else(cores).min(self.queues)
    }

    /// What does not depend on the namespace.
    pub(crate) fn check(&self) -> Result<()> {
        if self.runtime.is_zero() {
            return Err(usage("--runtime 0 measures nothing: give a time, such as 10 or 500ms"));
        }
        if self.bs == 0 || self.bs > 64 << 20 {
            return Err(usage(format!("--bs {} is not between one block and 64 MiB", self.bs)));
        }
        Ok(())
    }

    /// The region in a namespace of blocks of `block_bytes`.
    pub(crate) fn region(&self, block_bytes: u32, namespace_bytes: u64) -> Result<Region> {
        let block = u64::from(block_bytes);
        for (flag, value) in [("--bs", self.bs), ("--offset", self.offset)] {
            if !value.is_multiple_of(block) {
                return Err(usage(format!(
                    "{flag} {value} is not a multiple of the namespace's block size, {block}"
                )));
            }
        }
        let rest =
            namespace_bytes.checked_sub(self.offset).filter(|&rest| rest > 0).ok_or_else(|| {
                usage(format!(
                    "--offset {} is not within the namespace of {}",
                    self.offset,
                    show_size(namespace_bytes)
                ))
            })?;
        let size = self.size.unwrap_or(rest);
        if size > rest {
            return Err(usage(format!(
                "--offset {} and --size {size} end beyond the namespace of {namespace_bytes} bytes",
                self.offset
            )));
        }
        let requests = size / self.bs.max(1);
        if requests < u64::from(self.queues) {
            return Err(usage(format!(
                "a region of {} holds {requests} requests of {}: too few for {} queues",
                show_size(size),
                show_size(self.bs),
                self.queues
            )));
        }
        let request_bytes =
            u32::try_from(self.bs).map_err(|_| usage("--bs is too large".to_owned()))?;
        Ok(Region { offset_bytes: self.offset, request_bytes, requests })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: BenchOptions,
    }

    fn parse(words: &[&str]) -> BenchOptions {
        Line::try_parse_from([&["bench"], words].concat()).unwrap().options
    }

    #[test]
    fn the_chores_flags_are_understood() {
        let options =
            parse(&["--rw", "randwrite", "--bs", "128k", "--iodepth", "16", "--runtime", "2"]);
        assert_eq!(options.rw, Pattern::Randwrite);
        assert_eq!((options.bs, options.iodepth), (131_072, 16));
        assert_eq!(options.runtime, Duration::from_secs(2));
        options.check().unwrap();
        assert!(Line::try_parse_from(["bench", "--rw", "sideways"]).is_err());
        assert!(Line::try_parse_from(["bench", "--rwmixread", "101"]).is_err());
        assert!(Line::try_parse_from(["bench", "--iodepth", "0"]).is_err());
    }

    #[test]
    fn the_region_is_checked_against_the_namespace() {
        const MIB: u64 = 1 << 20;
        let region = parse(&["--bs", "8k", "--offset", "1M"]).region(4096, 4 * MIB).unwrap();
        assert_eq!(
            region,
            Region { offset_bytes: MIB, request_bytes: 8192, requests: 3 * MIB / 8192 }
        );
        let words =
            |options: &[&str]| parse(options).region(4096, 4 * MIB).unwrap_err().to_string();
        assert!(words(&["--bs", "512"]).contains("--bs 512 is not a multiple"));
        assert!(words(&["--offset", "100"]).contains("--offset 100 is not a multiple"));
        assert!(words(&["--offset", "4M"]).contains("not within the namespace of 4 MiB"));
        assert!(words(&["--size", "8M"]).contains("beyond the namespace"));
        assert!(words(&["--size", "4k", "--queues", "2"]).contains("too few for 2 queues"));
    }

    #[test]
    fn no_more_threads_than_queues() {
        let threads = |words: &[&str]| parse(words).thread_count();
        assert_eq!(threads(&[]), 1);
        assert_eq!(threads(&["--queues", "3", "--threads", "2"]), 2);
        assert_eq!(threads(&["--queues", "3", "--threads", "5"]), 3);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        assert_eq!(usize::from(threads(&["--queues", "128"])), cores.min(128));
    }

    #[test]
    fn a_run_of_no_time_or_size_is_refused() {
        assert!(parse(&["--runtime", "0"]).check().is_err());
        assert!(parse(&["--bs", "0"]).check().is_err());
        assert!(parse(&["--bs", "1G"]).check().is_err());
    }

    #[test]
    fn shares_of_reads() {
        assert_eq!(Pattern::Randread.read_percent(30), 100);
        assert_eq!(Pattern::Write.read_percent(30), 0);
        assert_eq!(Pattern::Randrw.read_percent(30), 30);
        assert!(!Pattern::Write.reads() && Pattern::Rw.reads());
        assert!(!Pattern::Read.writes() && Pattern::Rw.writes());
        assert!(Pattern::Randrw.is_random() && !Pattern::Rw.is_random());
    }
}

//! What a benchmark found: counts and latencies, as text and as JSON. Calls `units`; called by `run`
//! (which records) and `bench` (which prints).

use core::time::Duration;
use std::fmt::Write as _;

use anyhow::{Context, Error, Result};
use hdrhistogram::Histogram;
use lariat::Path;
use serde_json::{Value, json};

use super::options::BenchOptions;
use crate::output::{provider_words, wires_json};
use crate::units::{show_count, show_latency, show_rate, show_size, to_f64};

/// Longest latency that is told apart, in nanoseconds.
const MAX_NANOSECONDS: u64 = 60_000_000_000;

/// Those that are listed in the JSON's `percentiles`.
const PERCENTILES: [(&str, f64); 12] = [
    ("1", 0.01),
    ("5", 0.05),
    ("10", 0.1),
    ("25", 0.25),
    ("50", 0.5),
    ("75", 0.75),
    ("90", 0.9),
    ("95", 0.95),
    ("99", 0.99),
    ("99.5", 0.995),
    ("99.9", 0.999),
    ("99.99", 0.9999),
];

/// One direction: requests and their latencies. Recording allocates nothing.
#[derive(Clone, Debug)]
pub(crate) struct Side {
    latency_ns: Histogram<u64>,
}

impl Side {
    /// Nothing recorded yet.
    pub(crate) fn new() -> Result<Self> {
        let latency_ns = Histogram::new_with_bounds(1, MAX_NANOSECONDS, 3)
            .context("cannot set a histogram up")?;
        Ok(Self { latency_ns })
    }

    /// One request that took so long.
    pub(crate) fn record(&mut self, latency: Duration) {
        let nanoseconds = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.latency_ns.saturating_record(nanoseconds);
    }

    /// Adds what another queue recorded.
    pub(crate) fn add(&mut self, other: &Self) -> Result<()> {
        self.latency_ns.add(&other.latency_ns).context("cannot add histograms")
    }

    /// Requests recorded.
    pub(crate) fn ios(&self) -> u64 {
        self.latency_ns.len()
    }

    fn quantile(&self, quantile: f64) -> u64 {
        // The histogram answers with the upper end of a bucket, which may lie above the maximum.
        self.latency_ns.value_at_quantile(quantile).min(self.max())
    }

    fn max(&self) -> u64 {
        if self.ios() == 0 { 0 } else { self.latency_ns.max() }
    }

    fn mean(&self) -> f64 {
        if self.ios() == 0 { 0.0 } else { self.latency_ns.mean() }
    }

    fn json(&self, request_bytes: u64, seconds: f64) -> Value {
        let rate = per_second(self.ios(), seconds);
        json!({
            "ios": self.ios(),
            "iops": rate,
            "bytes_per_second": rate * to_f64(request_bytes),
            "latency_ns": {
                "mean": self.mean(),
                "p50": self.quantile(0.5),
                "p90": self.quantile(0.9),
                "p99": self.quantile(0.99),
                "p99.9": self.quantile(0.999),
                "p99.99": self.quantile(0.9999),
                "max": self.max(),
                "percentiles": self.percentiles(),
            },
        })
    }

    /// The whole distribution, for plots.
    fn percentiles(&self) -> Value {
        let entries = PERCENTILES
            .iter()
            .map(|&(name, quantile)| (name.to_owned(), self.quantile(quantile).into()));
        Value::Object(entries.collect())
    }

    fn human(&self, name: &str, request_bytes: u64, seconds: f64) -> String {
        let rate = per_second(self.ios(), seconds);
        let latency = |nanoseconds: u64| show_latency(to_f64(nanoseconds));
        format!(
            "{name:<5} {} IOPS, {} ({} requests)\n      latency mean {}, p50 {}, p90 {}, p99 {}, \
             p99.9 {}, max {}\n",
            show_count(rate),
            show_rate(rate * to_f64(request_bytes)),
            self.ios(),
            show_latency(self.mean()),
            latency(self.quantile(0.5)),
            latency(self.quantile(0.9)),
            latency(self.quantile(0.99)),
            latency(self.quantile(0.999)),
            latency(self.max()),
        )
    }
}

fn per_second(count: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { to_f64(count) / seconds } else { 0.0 }
}

/// All of it.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    /// Reads.
    pub(crate) read: Side,
    /// Writes.
    pub(crate) write: Side,
    /// Time measured.
    pub(crate) elapsed: Duration,
    /// Processor time of this process in it, user and system.
    pub(crate) cpu: Duration,
    /// What the packets of each queue travelled over.
    pub(crate) paths: Vec<Option<Path>>,
}

/// Where it was measured.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// Address and port.
    pub(crate) address: String,
    /// Subsystem.
    pub(crate) nqn: String,
    /// Namespace.
    pub(crate) nsid: u32,
    /// `soft` or `ib`.
    pub(crate) fabric: String,
}

impl Report {
    /// Whether nothing was counted.
    pub(crate) fn is_empty(&self) -> bool {
        self.read.ios() + self.write.ios() == 0
    }

    /// One object.
    pub(crate) fn json(
        &self,
        options: &BenchOptions,
        place: &Place,
        failure: Option<&Error>,
    ) -> Value {
        let seconds = self.elapsed.as_secs_f64();
        json!({
            "read": self.read.json(options.bs, seconds),
            "write": self.write.json(options.bs, seconds),
            "runtime_seconds": seconds,
            "error": failure.map(|error| format!("{error:#}")),
            "cpu_seconds": self.cpu.as_secs_f64(),
            "options": {
                "rw": options.rw.name(),
                "rwmixread": options.rw.read_percent(options.rwmixread),
                "bs": options.bs,
                "iodepth": options.iodepth,
                "queues": options.queues,
                "runtime_seconds": options.runtime.as_secs_f64(),
                "ramp_time_seconds": options.ramp_time.as_secs_f64(),
                "offset": options.offset,
                "size": options.size,
                "seed": options.seed,
            },
            "address": place.address,
            "nqn": place.nqn,
            "namespace_id": place.nsid,
            "fabric": place.fabric,
            "wire": wires_json(&self.paths),
        })
    }

    /// For people.
    pub(crate) fn human(&self, options: &BenchOptions, place: &Place) -> String {
        let seconds = self.elapsed.as_secs_f64();
        let mut text = format!(
            "{} {}, depth {}, {} queue{} on {} ({}), {seconds:.1} s\n",
            options.rw.name(),
            show_size(options.bs),
            options.iodepth,
            options.queues,
            if options.queues == 1 { "" } else { "s" },
            place.address,
            provider_words(&place.fabric, &self.paths),
        );
        for (name, side) in [("read", &self.read), ("write", &self.write)] {
            if side.ios() > 0 {
                text.push_str(&side.human(name, options.bs, seconds));
            }
        }
        let ios = self.read.ios() + self.write.ios();
        if ios == 0 {
            text.push_str("no request was completed\n");
        } else {
            let cpu = self.cpu.as_secs_f64();
            let _ = writeln!(
                text,
                "cpu   {:.1} us per request, {:.0} % of one core",
                cpu * 1e6 / to_f64(ios),
                if seconds > 0.0 { cpu / seconds * 100.0 } else { 0.0 },
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use lariat::Medium;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: BenchOptions,
    }

    fn sample() -> (Report, BenchOptions, Place) {
        let mut read = Side::new().unwrap();
        for microseconds in 1..=1000 {
            read.record(Duration::from_micros(microseconds));
        }
        let report = Report {
            read,
            write: Side::new().unwrap(),
            elapsed: Duration::from_secs(2),
            cpu: Duration::from_millis(500),
            paths: vec![Some(Medium::SharedMemory.into())],
        };
        let options = Line::try_parse_from(["bench", "--iodepth", "4"]).unwrap().options;
        let place = Place {
            address: "127.0.0.1:4420".into(),
            nqn: "nqn.2026-11.io.lariat:demo".into(),
            nsid: 1,
            fabric: "soft".into(),
        };
        (report, options, place)
    }

    #[test]
    fn json_has_what_the_chores_read() {
        let (report, options, place) = sample();
        let json = report.json(&options, &place, None);
        assert!(json["error"].is_null());
        let failure = anyhow::anyhow!("why").context("what");
        assert_eq!(report.json(&options, &place, Some(&failure))["error"], "what: why");
        assert_eq!(json["read"]["ios"], 1000);
        assert_eq!(json["read"]["iops"], 500.0);
        assert_eq!(json["read"]["bytes_per_second"], 500.0 * 4096.0);
        for (name, exact) in
            [("p50", 500e3), ("p90", 900e3), ("p99", 990e3), ("p99.9", 999e3), ("max", 1e6)]
        {
            let found = json["read"]["latency_ns"][name].as_f64().unwrap();
            assert!((found - exact).abs() <= exact * 0.002, "{name}: {found}");
        }
        let mean = json["read"]["latency_ns"]["mean"].as_f64().unwrap();
        assert!((mean - 500.5e3).abs() < 1e3, "{mean}");
        let percentiles = &json["read"]["latency_ns"]["percentiles"];
        assert_eq!(percentiles["50"], json["read"]["latency_ns"]["p50"]);
        assert_eq!(percentiles["99.9"], json["read"]["latency_ns"]["p99.9"]);
        assert_eq!(json["write"]["ios"], 0);
        assert_eq!(json["write"]["latency_ns"]["p99"], 0);
        assert_eq!(json["write"]["latency_ns"]["max"], 0);
        assert_eq!(json["cpu_seconds"], 0.5);
        assert_eq!(json["options"]["iodepth"], 4);
        assert_eq!(json["fabric"], "soft");
        assert_eq!(json["wire"], "shm");
    }

    #[test]
    fn text_names_only_what_happened() {
        let (report, options, place) = sample();
        let text = report.human(&options, &place);
        assert!(
            text.starts_with(
                "randread 4 KiB, depth 4, 1 queue on 127.0.0.1:4420 (soft, shared memory), 2.0 s\n\
                 read  500 IOPS, 2.0 MB/s (1000 requests)\n      latency mean 500."
            ),
            "{text}"
        );
        assert!(text.ends_with("cpu   500.0 us per request, 25 % of one core\n"), "{text}");
        assert!(!text.contains("write"), "{text}");
    }

    #[test]
    fn queues_add_up_and_long_latencies_saturate() {
        let mut one = Side::new().unwrap();
        let mut two = Side::new().unwrap();
        one.record(Duration::from_micros(10));
        two.record(Duration::from_secs(3600));
        one.add(&two).unwrap();
        assert_eq!(one.ios(), 2);
        assert!(one.max() >= MAX_NANOSECONDS);
    }
}

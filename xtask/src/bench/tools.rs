//! The clients: their command lines from a workload, and their reports into samples. Calls nothing;
//! used by `peers`.

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::process::RAMP;
use super::results::{Latency, Sample};
use super::workload::{MIXED_READ_PERCENT, Pattern, Workload};

/// The percentiles that are asked for.
pub(crate) const PERCENTILES: [f64; 12] =
    [1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.99];

/// fio's arguments: those of the engine, then the workload. Everything else is fio's default, for
/// all engines alike.
pub(crate) fn fio_arguments(engine: &[String], workload: &Workload, seconds: u32) -> Vec<String> {
    let percentiles: Vec<String> = PERCENTILES.iter().map(ToString::to_string).collect();
    let mut arguments = vec![format!("--name={}", workload.id)];
    arguments.extend_from_slice(engine);
    arguments.extend([
        format!("--rw={}", workload.pattern.fio()),
        format!("--bs={}", workload.block_bytes),
        format!("--iodepth={}", workload.depth),
        format!("--numjobs={}", workload.connections),
        "--thread=1".into(),
        "--group_reporting=1".into(),
        "--norandommap=1".into(),
        "--randrepeat=0".into(),
        "--time_based=1".into(),
        format!("--runtime={seconds}"),
        format!("--ramp_time={}ms", RAMP.as_millis()),
        "--lat_percentiles=1".into(),
        "--clat_percentiles=0".into(),
        format!("--percentile_list={}", percentiles.join(":")),
        "--output-format=json".into(),
    ]);
    if workload.pattern == Pattern::Mixed {
        arguments.push(format!("--rwmixread={MIXED_READ_PERCENT}"));
    }
    arguments
}

/// fio's JSON.
pub(crate) fn parse_fio(text: &str, workload: &Workload) -> Result<Sample> {
    // fio may print notes before its JSON.
    let json = text.get(text.find('{').unwrap_or(0)..).unwrap_or_default();
    let report: Value = serde_json::from_str(json).context("fio printed no JSON")?;
    let job = report.pointer("/jobs/0").context("fio's report has no job")?;
    if let Some(error) = job["error"].as_i64().filter(|&error| error != 0) {
        bail!("fio's job ended with error {error}");
    }
    let latency = &job[workload.pattern.side()]["lat_ns"];
    let percentiles = PERCENTILES.iter().filter_map(|&percent| {
        let value = latency["percentile"][&format!("{percent:.6}")].as_f64()?;
        Some((percent, value / 1e3))
    });
    sample(
        both(job, "iops")?,
        both(job, "bw_bytes")?,
        Latency {
            mean: number(latency, "mean")? / 1e3,
            mean_is_computed: false,
            percentiles: percentiles.collect(),
            max: Some(number(latency, "max")? / 1e3),
        },
    )
}

/// The arguments of `lariat bench` for a workload.
pub(crate) fn lariat_arguments(workload: &Workload, seconds: u32) -> Vec<String> {
    let mut arguments: Vec<String> = vec![
        "--rw".into(),
        workload.pattern.fio().into(),
        "--bs".into(),
        workload.block_bytes.to_string(),
        "--iodepth".into(),
        workload.depth.to_string(),
        "--queues".into(),
        workload.connections.to_string(),
        "--runtime".into(),
        seconds.to_string(),
        "--ramp-time".into(),
        format!("{}ms", RAMP.as_millis()),
        "--output-format".into(),
        "json".into(),
    ];
    if workload.pattern == Pattern::Mixed {
        arguments.extend(["--rwmixread".into(), MIXED_READ_PERCENT.to_string()]);
    }
    arguments
}

/// The JSON of `lariat bench`, and of our bare programs, which print the same.
pub(crate) fn parse_lariat(text: &str, workload: &Workload) -> Result<Sample> {
    let report: Value = serde_json::from_str(text).context("there is no JSON in the report")?;
    let latency = &report[workload.pattern.side()]["latency_ns"];
    let percentiles = PERCENTILES.iter().filter_map(|&percent| {
        let value = latency["percentiles"][&percent.to_string()].as_f64()?;
        Some((percent, value / 1e3))
    });
    sample(
        both(&report, "iops")?,
        both(&report, "bytes_per_second")?,
        Latency {
            mean: number(latency, "mean")? / 1e3,
            mean_is_computed: false,
            percentiles: percentiles.collect(),
            max: Some(number(latency, "max")? / 1e3),
        },
    )
}

/// The arguments of `iscsi-perf`, or why it cannot do a workload.
pub(crate) fn iscsi_arguments(
    workload: &Workload,
    block_bytes: u32,
    seconds: u32,
) -> Result<Vec<String>, String> {
    if workload.pattern.writes() {
        return Err("iscsi-perf only reads".into());
    }
    if workload.connections > 1 {
        return Err("iscsi-perf has one connection".into());
    }
    let mut arguments: Vec<String> = vec![
        "-m".into(),
        workload.depth.to_string(),
        "-b".into(),
        (workload.block_bytes / block_bytes).to_string(),
        "-t".into(),
        seconds.to_string(),
    ];
    if workload.pattern.is_random() {
        arguments.push("-r".into());
    }
    Ok(arguments)
}

/// What `iscsi-perf` prints at its end: `iops average 16543 (64 MB/s)`. It knows no latencies: a
/// queue that is always full has its depth divided by the rate.
pub(crate) fn parse_iscsi(text: &str, workload: &Workload) -> Result<Sample> {
    let last = text
        .split(['\r', '\n'])
        .rev()
        .find_map(|line| line.trim().strip_prefix("iops average "))
        .context("iscsi-perf printed no result")?;
    let iops: f64 = last.split_whitespace().next().unwrap_or_default().parse()?;
    sample(
        iops,
        iops * f64::from(workload.block_bytes),
        Latency {
            mean: f64::from(workload.depth) / iops * 1e6,
            mean_is_computed: true,
            percentiles: Vec::new(),
            max: None,
        },
    )
}

fn sample(iops: f64, bytes_per_second: f64, latency_us: Latency) -> Result<Sample> {
    if iops <= 0.0 || !iops.is_finite() {
        bail!("nothing was completed");
    }
    Ok(Sample { iops, bytes_per_second, latency_us, client_cores: None, server_cores: None })
}

/// A figure of reads and writes together.
fn both(report: &Value, name: &str) -> Result<f64> {
    Ok(number(&report["read"], name)? + number(&report["write"], name)?)
}

fn number(value: &Value, name: &str) -> Result<f64> {
    value[name].as_f64().with_context(|| format!("the report has no {name}"))
}

//! One workload, measured remotely with `lariat bench` and locally with fio's io_uring engine.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::cluster::{Binaries, NQN, Target};
use crate::shell;

/// What to measure.
#[derive(Clone, Copy)]
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    /// fio's name of the pattern.
    pub(crate) pattern: &'static str,
    pub(crate) block: &'static str,
    pub(crate) depth: u32,
}

/// 4 KiB random at depth 1 and 32, 128 KiB sequential at depth 16.
pub(crate) const WORKLOADS: &[Workload] = &[
    Workload { name: "4 KiB random read, depth 1", pattern: "randread", block: "4k", depth: 1 },
    Workload { name: "4 KiB random read, depth 32", pattern: "randread", block: "4k", depth: 32 },
    Workload { name: "4 KiB random write, depth 1", pattern: "randwrite", block: "4k", depth: 1 },
    Workload { name: "4 KiB random write, depth 32", pattern: "randwrite", block: "4k", depth: 32 },
    Workload { name: "128 KiB seq. read, depth 16", pattern: "read", block: "128k", depth: 16 },
    Workload { name: "128 KiB seq. write, depth 16", pattern: "write", block: "128k", depth: 16 },
];

/// What came out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    pub(crate) iops: f64,
    pub(crate) bytes_per_second: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
}

/// Measures a namespace of a running target.
pub(crate) fn remote(
    binaries: &Binaries,
    target: &Target,
    nsid: u32,
    workload: Workload,
    seconds: u32,
) -> Result<Figures> {
    let (nsid, depth, seconds) =
        (nsid.to_string(), workload.depth.to_string(), seconds.to_string());
    let text = shell::capture(&mut binaries.lariat(
        "bench",
        &target.address,
        &[
            "-n",
            NQN,
            "--namespace-id",
            &nsid,
            "--rw",
            workload.pattern,
            "--bs",
            workload.block,
            "--iodepth",
            &depth,
            "--runtime",
            &seconds,
            "--output-format",
            "json",
        ],
    ))?;
    let report: Value = serde_json::from_str(&text).context("lariat bench printed no JSON")?;
    let side = &report[side(workload)];
    Ok(Figures {
        iops: number(side, "/iops")?,
        bytes_per_second: number(side, "/bytes_per_second")?,
        p50_us: number(side, "/latency_ns/p50")? / 1e3,
        p99_us: number(side, "/latency_ns/p99")? / 1e3,
    })
}

/// Writes a local file once from end to end: blocks that were never written are answered without
/// the disk.
pub(crate) fn fill(file: &Path) -> Result<()> {
    shell::capture(&mut shell::command(
        "fio",
        &[
            "--name=fill",
            &format!("--filename={}", file.display()),
            "--ioengine=io_uring",
            "--direct=1",
            "--rw=write",
            "--bs=1m",
            "--iodepth=8",
        ],
    ))?;
    Ok(())
}

/// Measures a local file with fio.
pub(crate) fn local(file: &Path, workload: Workload, seconds: u32) -> Result<Figures> {
    let text = shell::capture(&mut shell::command(
        "fio",
        &[
            "--name=local",
            &format!("--filename={}", file.display()),
            "--ioengine=io_uring",
            "--direct=1",
            "--thread=1",
            "--registerfiles=1",
            "--fixedbufs=1",
            "--time_based=1",
            "--randrepeat=0",
            &format!("--rw={}", workload.pattern),
            &format!("--bs={}", workload.block),
            &format!("--iodepth={}", workload.depth),
            &format!("--runtime={seconds}"),
            "--percentile_list=50:99",
            "--output-format=json",
        ],
    ))?;
    // fio may print notes before its JSON.
    let json = text.get(text.find('{').unwrap_or(0)..).unwrap_or_default();
    let report: Value = serde_json::from_str(json).context("fio printed no JSON")?;
    let side = &report["jobs"][0][side(workload)];
    Ok(Figures {
        iops: number(side, "/iops")?,
        bytes_per_second: number(side, "/bw_bytes")?,
        p50_us: number(side, "/clat_ns/percentile/50.000000")? / 1e3,
        p99_us: number(side, "/clat_ns/percentile/99.000000")? / 1e3,
    })
}

fn side(workload: Workload) -> &'static str {
    if workload.pattern.contains("write") { "write" } else { "read" }
}

fn number(value: &Value, pointer: &str) -> Result<f64> {
    value
        .pointer(pointer)
        .and_then(Value::as_f64)
        .with_context(|| format!("the report has no {pointer}"))
}

/// IOPS for small blocks, MB/s for large ones: what people quote.
pub(crate) fn throughput(workload: Workload, figures: Figures) -> String {
    if workload.block == "4k" {
        format!("{:.1} k IOPS", figures.iops / 1e3)
    } else {
        format!("{:.0} MB/s", figures.bytes_per_second / 1e6)
    }
}

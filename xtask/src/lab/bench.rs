//! What the scenario `bench` measured: read from the tools' own JSON, summed up as medians, kept in
//! docs/benchmarks/lab.json and shown in docs/benchmarks.md.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::shell;
use crate::table::Table;

/// Hosts and targets, as the script names them and as people do.
const PEERS: [(&str, &str); 6] = [
    ("nvmet", "kernel host, nvmet-rdma"),
    ("lariatd", "kernel host, lariatd"),
    ("ours-lariatd", "lariat, lariatd"),
    ("ours-kernel", "lariat, nvmet-rdma"),
    ("iscsi", "iSCSI over TCP"),
    ("iser", "iSER"),
];
const BEGIN: &str = "<!-- lab: begin -->";
const END: &str = "<!-- lab: end -->";
/// Of a line of cost.tsv, in the unit of /proc: 10 ms.
const TICK_US: f64 = 10_000.0;

/// One run of one tool.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Run {
    iops: f64,
    bytes_per_second: f64,
    p50_us: f64,
    p99_us: f64,
    requests: f64,
    /// Processor time of the whole guest (both ends and the network) and of the client's process,
    /// per request.
    guest_cpu_us: f64,
    client_cpu_us: f64,
    /// Of lariatd's process; 0 where it did nothing.
    lariatd_cpu_us: f64,
}

/// A workload on one of the disks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Job {
    /// First null, then memory.
    disk: String,
    pattern: String,
    block: String,
    depth: u32,
}

type Measured = BTreeMap<(Job, &'static str), Vec<Run>>;

/// Reads what the guest left in `folder`, prints the tables, and unless told not to writes them
/// down.
pub(super) fn publish(folder: &Path, kernel: &str, write: bool) -> Result<()> {
    let measured = read(folder)?;
    let page = tables(&measured, kernel);
    println!("\n{page}");
    if !write {
        return Ok(());
    }
    let docs = shell::root().join("docs");
    fs::create_dir_all(docs.join("benchmarks"))?;
    let text = serde_json::to_string_pretty(&as_json(&measured, kernel))?;
    fs::write(docs.join("benchmarks/lab.json"), text + "\n")?;
    let path = docs.join("benchmarks.md");
    let text = fs::read_to_string(&path)?;
    let (Some(begin), Some(end)) = (text.find(BEGIN), text.find(END)) else {
        bail!("{} has lost its markers {BEGIN} and {END}", path.display());
    };
    fs::write(&path, format!("{}\n{page}\n{}", &text[..begin + BEGIN.len()], &text[end..]))?;
    println!("written to {} and beside it", path.display());
    Ok(())
}

fn read(folder: &Path) -> Result<Measured> {
    let costs = folder.join("cost.tsv");
    let costs = fs::read_to_string(&costs).with_context(|| format!("{}", costs.display()))?;
    let mut measured = Measured::new();
    for line in costs.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let &[peer, disk, pattern, block, depth, round, guest, lariatd, client] = &fields[..]
        else {
            bail!("cost.tsv has a line that is none: {line}");
        };
        let report = folder.join(format!("{peer}-{disk}-{pattern}-{block}-{depth}-{round}.json"));
        let text = fs::read_to_string(&report).with_context(|| format!("{}", report.display()))?;
        let (peer, _) = PEERS
            .into_iter()
            .find(|(known, _)| *known == peer)
            .with_context(|| format!("an unknown peer: {peer}"))?;
        let costs = [guest, client, lariatd].map(|ticks| ticks.parse::<f64>().unwrap_or(f64::NAN));
        let run = run(&text, costs).with_context(|| format!("{}", report.display()))?;
        let job = Job {
            disk: disk.to_owned(),
            pattern: pattern.to_owned(),
            block: block.to_owned(),
            depth: depth.parse()?,
        };
        measured.entry((job, peer)).or_default().push(run);
    }
    Ok(measured)
}

/// A run from the JSON of fio or of `lariat bench`, and what it cost in ticks: guest, client,
/// lariatd.
fn run(text: &str, [guest, client, lariatd]: [f64; 3]) -> Result<Run> {
    // fio may print notes before its JSON.
    let report: Value = serde_json::from_str(text.get(text.find('{').unwrap_or(0)..).unwrap_or(""))
        .context("no JSON")?;
    let is_fio = report.get("jobs").is_some();
    let sides = if is_fio { &report["jobs"][0] } else { &report };
    let number = |side: &Value, pointer: &str| {
        side.pointer(pointer).and_then(Value::as_f64).with_context(|| format!("no {pointer}"))
    };
    let worked = |name: &str| number(&sides[name], "/iops").is_ok_and(|iops| iops > 0.0);
    let side = &sides[if worked("read") { "read" } else { "write" }];
    let (bytes, requests, p50, p99) = if is_fio {
        (
            "/bw_bytes",
            "/total_ios",
            "/clat_ns/percentile/50.000000",
            "/clat_ns/percentile/99.000000",
        )
    } else {
        ("/bytes_per_second", "/requests", "/latency_ns/p50", "/latency_ns/p99")
    };
    let requests = number(side, requests)?;
    let each = |ticks: f64| ticks * TICK_US / requests;
    Ok(Run {
        iops: number(side, "/iops")?,
        bytes_per_second: number(side, bytes)?,
        p50_us: number(side, p50)? / 1e3,
        p99_us: number(side, p99)? / 1e3,
        requests,
        guest_cpu_us: each(guest),
        client_cpu_us: each(client),
        lariatd_cpu_us: each(lariatd),
    })
}

fn median(runs: &[Run], figure: impl Fn(&Run) -> f64) -> f64 {
    let mut values: Vec<f64> = runs.iter().map(figure).collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        even if even % 2 == 0 => (values[middle - 1] + values[middle]) / 2.0,
        _ => values[middle],
    }
}

fn title(job: &Job) -> String {
    format!("{}, {} {}, depth {}", job.disk, job.block, job.pattern, job.depth)
}

fn tables(measured: &Measured, kernel: &str) -> String {
    let mut jobs: Vec<&Job> = measured.keys().map(|(job, _)| job).collect();
    jobs.dedup();
    let mut page = format!(
        "Measured with `cargo xtask lab bench` in a guest with kernel {kernel}, two virtual \
         processors, everything over one Soft-RoCE device.\n"
    );
    let mut head = vec!["workload"];
    head.extend(PEERS.map(|(_, words)| words));
    for (what, figure) in [
        ("Throughput (IOPS; MB/s for 128 KiB) and, in brackets, its ratio to the kernel's pair", 0),
        ("p50 latency in us", 1),
        ("Processor time of the whole guest per request in us", 2),
        ("... of it all but the client's process", 3),
    ] {
        let mut table = Table::new(&head);
        for job in &jobs {
            let runs = |peer| measured.get(&((*job).clone(), peer)).map_or(&[][..], Vec::as_slice);
            let base = median(runs(PEERS[0].0), |run| run.iops);
            let mut row = vec![title(job)];
            row.extend(PEERS.map(|(peer, _)| {
                let runs = runs(peer);
                if runs.is_empty() {
                    return "-".to_owned();
                }
                match figure {
                    0 => {
                        let iops = median(runs, |run| run.iops);
                        let shown = if job.block == "4k" {
                            format!("{iops:.0}")
                        } else {
                            format!("{:.1}", median(runs, |run| run.bytes_per_second) / 1e6)
                        };
                        format!("{shown} ({:.2})", iops / base)
                    }
                    1 => format!("{:.0}", median(runs, |run| run.p50_us)),
                    2 => format!("{:.0}", median(runs, |run| run.guest_cpu_us)),
                    _ => {
                        format!("{:.0}", median(runs, |run| run.guest_cpu_us - run.client_cpu_us))
                    }
                }
            }));
            table.row(row);
        }
        let _ = writeln!(page, "\n{what}:\n\n{}", table.markdown().trim_end());
    }
    page
}

fn as_json(measured: &Measured, kernel: &str) -> Value {
    let runs = measured.iter().flat_map(|((job, peer), runs)| {
        runs.iter().map(move |run| {
            json!({
                "peer": peer, "disk": job.disk, "pattern": job.pattern, "block": job.block,
                "depth": job.depth, "iops": run.iops, "bytes_per_second": run.bytes_per_second,
                "p50_us": run.p50_us, "p99_us": run.p99_us, "requests": run.requests,
                "guest_cpu_us_per_request": run.guest_cpu_us,
                "client_cpu_us_per_request": run.client_cpu_us,
                "lariatd_cpu_us_per_request": run.lariatd_cpu_us,
            })
        })
    });
    json!({
        "command": "cargo xtask lab bench",
        "kernel": kernel,
        "peers": BTreeMap::from(PEERS),
        "runs": runs.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIO: &str = r#"note: both iodepth >= 1 and synchronous I/O engine are selected
        {"jobs": [{"read": {"iops": 0.0}, "write": {"iops": 2000.0, "bw_bytes": 8192000,
        "total_ios": 6000, "clat_ns": {"percentile": {"50.000000": 400000, "99.000000": 900000}}}}]}"#;
    const OURS: &str = r#"{"read": {"iops": 3000.0, "bytes_per_second": 12288000.0,
        "requests": 9000, "latency_ns": {"p50": 300000, "p99": 500000}}}"#;

    #[test]
    fn both_tools_are_understood() {
        let fio = run(FIO, [300.0, 60.0, 0.0]).expect("fio's");
        assert_eq!((fio.iops, fio.p50_us, fio.p99_us), (2000.0, 400.0, 900.0));
        assert_eq!((fio.guest_cpu_us, fio.client_cpu_us), (500.0, 100.0));
        let ours = run(OURS, [0.0, 0.0, 90.0]).expect("ours");
        assert_eq!((ours.iops, ours.p50_us, ours.lariatd_cpu_us), (3000.0, 300.0, 100.0));
        assert!(run("{}", [0.0; 3]).is_err());
    }

    #[test]
    fn tables_have_medians_and_ratios() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut costs = String::new();
        for (peer, text) in [("nvmet", FIO), ("ours-lariatd", OURS)] {
            for round in [1, 2] {
                let name = format!("{peer}-null-randwrite-4k-1-{round}.json");
                fs::write(folder.path().join(name), text).expect("it is written");
                costs += &format!("{peer}\tnull\trandwrite\t4k\t1\t{round}\t300\t0\t60\n");
            }
        }
        fs::write(folder.path().join("cost.tsv"), costs).expect("it is written");
        let measured = read(folder.path()).expect("it is complete");
        let page = tables(&measured, "6.12");
        assert!(page.contains("2000 (1.00)"), "{page}");
        assert!(page.contains("3000 (1.50)"), "{page}");
        let json = as_json(&measured, "6.12");
        assert_eq!(json["runs"].as_array().map(Vec::len), Some(4));
    }
}

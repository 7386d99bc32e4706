//! What the scenario `bench` measured: the tools' own reports, in the format of `cargo xtask bench`.
//! Kept in docs/benchmarks/lab.json, shown in docs/benchmarks.md; `cargo xtask bench --lab` puts it
//! into the report.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::bench::results::{FORMAT, Results, Run, Settings, Skipped, System};
use crate::bench::stats::Figure;
use crate::bench::tools::{parse_fio, parse_lariat};
use crate::bench::workload::{self, Workload};
use crate::bench::{machine, page};
use crate::shell;
use crate::spdk::NOT_GIVEN;
use crate::table::Table;

/// Host and target: as the script names them, as people do, and in the head of a table.
const PEERS: [(&str, &str, &str); 7] = [
    ("nvmet", "kernel host, nvmet-rdma", "nvmet-rdma"),
    ("lariatd", "kernel host, lariatd", "lariatd"),
    (SPDK, "kernel host, SPDK nvmf_tgt", "SPDK nvmf_tgt"),
    ("ours-lariatd", "lariat, lariatd", "lariat + lariatd"),
    ("ours-kernel", "lariat, nvmet-rdma", "lariat + nvmet-rdma"),
    ("iscsi", "open-iscsi over TCP, LIO", "iSCSI"),
    ("iser", "open-iscsi over iSER, LIO", "iSER"),
];
/// The one that is only there if a build was named.
const SPDK: &str = "spdk";
const DISKS: [&str; 2] = ["null", "memory"];

/// Reads what the guest left in `folder`, prints the tables, and unless told not to writes them
/// down.
pub(super) fn publish(folder: &Path, kernel: &str, write: bool) -> Result<()> {
    let results = read(folder, kernel)?;
    let tables = tables(&results);
    println!("\n{tables}");
    if !write {
        return Ok(());
    }
    let docs = shell::root().join("docs");
    fs::create_dir_all(docs.join("benchmarks"))?;
    results.write(&docs.join("benchmarks/lab.json"))?;
    page::replace("lab", &tables)
}

/// The folder has a file `seconds`, a line of `cost.tsv` for each run (peer, disk, workload, round,
/// microseconds of the whole guest's processors and of the client's process), and the client's report of each.
fn read(folder: &Path, kernel: &str) -> Result<Results> {
    let text = |name: &str| {
        let path = folder.join(name);
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    let seconds: u32 = text("seconds")?.trim().parse().context("the file seconds")?;
    let known = workload::list(false);
    let (mut runs, mut workloads) = (Vec::new(), Vec::<Workload>::new());
    for line in text("cost.tsv")?.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let &[peer, disk, id, round, guest, client] = &fields[..] else {
            bail!("cost.tsv has a line that is none: {line}");
        };
        let workload = known.iter().find(|workload| workload.id == id);
        let workload = workload.with_context(|| format!("there is no workload {id}"))?;
        let name = format!("{peer}-{disk}-{id}-{round}.json");
        let report = text(&name)?;
        let sample = match peer.starts_with("ours-") {
            true => parse_lariat(&report, workload),
            false => parse_fio(&report, workload),
        };
        let mut sample = sample.with_context(|| format!("in {name}"))?;
        let cores = |micros: f64| micros / 1e6 / f64::from(seconds);
        let (guest, client) = (guest.parse::<f64>()?, client.parse::<f64>()?);
        sample.client_cores = Some(cores(client));
        sample.server_cores = Some(cores(guest - client));
        runs.push(Run {
            system: format!("{peer}-{disk}"),
            workload: id.to_owned(),
            repetition: round.parse()?,
            command: text(&format!("{peer}-{disk}-{id}-{round}.command"))?.trim().to_owned(),
            sample: Some(sample),
            error: None,
        });
        if !workloads.contains(workload) {
            workloads.push(workload.clone());
        }
    }
    let repeat = runs.iter().map(|run| run.repetition + 1).max().unwrap_or(0);
    let measured = |peer: &str| peer != SPDK || runs.iter().any(|run| run.system.starts_with(SPDK));
    let (there, missing): (Vec<_>, Vec<_>) = PEERS.iter().partition(|(peer, ..)| measured(peer));
    let systems = there.iter().flat_map(|(peer, name, _)| {
        DISKS.iter().map(move |disk| System {
            id: format!("{peer}-{disk}"),
            name: format!("{name}, {disk}"),
            peer: (*peer).to_owned(),
            storage: (*disk).to_owned(),
            server: String::new(),
        })
    });
    let mut machine = machine::machine();
    machine.kernel = format!("{kernel} in a virtual machine");
    machine.cores = 2;
    Ok(Results {
        format: FORMAT,
        date: machine::date(),
        command: "cargo xtask lab bench".into(),
        machine,
        programs: Vec::new(),
        settings: Settings {
            seconds,
            repeat,
            placing: "free; the server's processor time is all of the guest's but the client's \
                      process"
                .into(),
            disk_mib: 0,
            memory_mib: 256,
        },
        workloads,
        systems: systems.collect(),
        runs,
        idle: Vec::new(),
        skipped: missing
            .iter()
            .map(|(_, name, _)| Skipped {
                system: (*name).to_owned(),
                workload: None,
                reason: format!("not measured: {NOT_GIVEN}"),
            })
            .collect(),
        lab: None,
    })
}

fn tables(results: &Results) -> String {
    let has = |peer: &str| results.systems.iter().any(|system| system.peer == peer);
    let peers: Vec<_> = PEERS.iter().filter(|(peer, ..)| has(peer)).collect();
    let mut page = format!(
        "Measured with `cargo xtask lab bench` ({} rounds of {} s, {}, kernel {}).\n",
        results.settings.repeat, results.settings.seconds, results.date, results.machine.kernel,
    );
    for (title, cell) in [
        (
            "IOPS (MB/s at 128 KiB), and in brackets the ratio to the kernel's pair in the same round",
            throughput as fn(&Results, &str, &str, &Workload) -> Option<String>,
        ),
        ("Median latency in us", latency),
        ("Processor time of the guest per request in us, but for the client's process", cost),
    ] {
        let mut head = vec!["workload"];
        head.extend(peers.iter().map(|(_, _, short)| short));
        let mut table = Table::new(&head);
        for disk in DISKS {
            for workload in &results.workloads {
                let mut row = vec![format!("{disk}, {}", workload.name)];
                row.extend(peers.iter().map(|(peer, ..)| {
                    cell(results, peer, disk, workload).unwrap_or_else(|| "-".into())
                }));
                table.row(row);
            }
        }
        page.push_str(&format!("\n{title}:\n\n{}\n", table.markdown().trim_end()));
    }
    for skipped in &results.skipped {
        page.push_str(&format!("\n{}: {}\n", skipped.system, skipped.reason));
    }
    page
}

fn throughput(results: &Results, peer: &str, disk: &str, workload: &Workload) -> Option<String> {
    let system = format!("{peer}-{disk}");
    let base = format!("{}-{disk}", PEERS[0].0);
    let at = workload.id.as_str();
    let ratio = results.ratio((&system, at), (&base, at), Figure::Iops)?.median;
    let shown = if workload.is_small() {
        format!("{:.0}", results.figure(&system, at, Figure::Iops)?.median)
    } else {
        format!("{:.1}", results.figure(&system, at, Figure::BytesPerSecond)?.median / 1e6)
    };
    Some(format!("{shown} ({ratio:.2})"))
}

fn latency(results: &Results, peer: &str, disk: &str, workload: &Workload) -> Option<String> {
    let figure = Figure::PercentileUs(50.0);
    let median = results.figure(&format!("{peer}-{disk}"), &workload.id, figure)?.median;
    Some(format!("{median:.0}"))
}

fn cost(results: &Results, peer: &str, disk: &str, workload: &Workload) -> Option<String> {
    let system = format!("{peer}-{disk}");
    // Seconds per million requests are microseconds per request.
    let median = results.figure(&system, &workload.id, Figure::ServerCpu)?.median;
    Some(format!("{median:.0}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIO: &str = r#"note: both iodepth >= 1 and synchronous I/O engine are selected
        {"jobs": [{"error": 0, "read": {"iops": 0.0, "bw_bytes": 0}, "write": {"iops": 2000.0,
        "bw_bytes": 8192000, "lat_ns": {"mean": 400000.0, "max": 1000000,
        "percentile": {"50.000000": 400000, "99.000000": 900000}}}}]}"#;
    const OURS: &str = r#"{"read": {"iops": 0.0, "bytes_per_second": 0.0}, "write": {"iops": 3000.0,
        "bytes_per_second": 12288000.0, "latency_ns": {"mean": 300000.0,
        "percentiles": {"50": 300000, "99": 500000}}}}"#;

    #[test]
    fn what_the_guest_left_becomes_results_and_tables() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| {
            fs::write(folder.path().join(name), text).expect("it is written");
        };
        let mut costs = String::new();
        for (peer, text) in [("nvmet", FIO), ("ours-lariatd", OURS)] {
            for round in 0..2 {
                let stem = format!("{peer}-null-randwrite-4k-qd1-{round}");
                write(&format!("{stem}.json"), text);
                write(&format!("{stem}.command"), "a tool\n");
                costs += &format!("{peer}\tnull\trandwrite-4k-qd1\t{round}\t8000000\t2000000\n");
            }
        }
        write("cost.tsv", &costs);
        write("seconds", "3\n");
        let results = read(folder.path(), "6.12").expect("it is complete");
        assert_eq!((results.runs.len(), results.settings.repeat), (4, 2));
        let page = tables(&results);
        for cell in ["2000 (1.00)", "3000 (1.50)", " 400 ", " 1000 "] {
            // 6 s of processor time in 3 s for 2,000 requests a second.
            assert!(page.contains(cell), "{cell} is missing:\n{page}");
        }
        assert!(page.contains("kernel host, SPDK nvmf_tgt: not measured: no build given"));
        assert!(!page.contains("SPDK nvmf_tgt |"), "{page}");
        // With one, it has a column.
        write("spdk-null-randwrite-4k-qd1-0.json", FIO);
        write("spdk-null-randwrite-4k-qd1-0.command", "a tool\n");
        costs += "spdk\tnull\trandwrite-4k-qd1\t0\t800\t200\n";
        write("cost.tsv", &costs);
        let page = tables(&read(folder.path(), "6.12").expect("it is complete"));
        assert!(page.contains("SPDK nvmf_tgt |") && !page.contains("not measured"), "{page}");
        write("seconds", "");
        assert!(read(folder.path(), "6.12").is_err());
    }
}

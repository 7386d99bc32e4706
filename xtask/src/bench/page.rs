//! docs/benchmarks.md: the goals and the main table between its markers, and the same for the
//! terminal. Calls `goals` and `stats`; called by `mod`.

use std::fmt::Write as _;

use anyhow::Result;

use super::goals;
use super::results::{Results, System};
use super::stats::{Figure, Spread};
use super::workload::Workload;
use crate::shell;
use crate::table::Table;

/// The figure that people quote of a workload.
pub(crate) fn headline(workload: &Workload, value: f64) -> String {
    if workload.is_small() {
        format!("{:.1} k", value / 1e3)
    } else {
        format!("{:.0} MB/s", value / 1e6)
    }
}

/// Which figure [`headline`] shows.
pub(crate) fn headline_figure(workload: &Workload) -> Figure {
    if workload.is_small() { Figure::Iops } else { Figure::BytesPerSecond }
}

/// What stands in a cell of latencies: the median where the tool has one, else the mean.
pub(crate) fn typical(results: &Results, system: &System, workload: &Workload) -> Option<String> {
    let of = |figure| results.figure(&system.id, &workload.id, figure);
    if let Some(Spread { median, .. }) = of(Figure::PercentileUs(50.0)) {
        return Some(format!("{median:.1} us"));
    }
    of(Figure::MeanUs).map(|Spread { median, .. }| format!("{median:.1} us"))
}

/// The columns of the main table; the report has the others.
const MAIN: [&str; 9] = [
    "lariat-memory",
    "lariat-shm-memory",
    "lariat-file",
    "local-file",
    "limit-batch",
    "limit-stream",
    "nbdkit-memory",
    "tgt-memory",
    "spdk-memory",
];

/// The goals, then throughput and latency of the main systems.
pub(crate) fn tables(results: &Results) -> String {
    let mut text = String::from("Goals, as ratios within this run:\n\n");
    let mut table = Table::new(&["goal", "wanted", "measured", ""]);
    for goal in goals::judge(results) {
        let place =
            if goal.place.is_empty() { String::new() } else { format!(" ({})", goal.place) };
        table.row(vec![
            format!("{}{place}", goal.name),
            goal.wanted(),
            goal.found(),
            goal.verdict().into(),
        ]);
    }
    text.push_str(&table.markdown());
    text.push_str(
        "\nMain figures: IOPS (4 KiB) or MB/s (128 KiB), and the typical latency (p50, or the mean \
         where the tool has no percentiles) in microseconds:\n\n",
    );
    let systems: Vec<&System> = MAIN.iter().filter_map(|id| results.system(id)).collect();
    // Of a run without any of these, whatever there is.
    let systems = if systems.is_empty() { results.systems.iter().collect() } else { systems };
    let header: Vec<&str> = std::iter::once("workload")
        .chain(systems.iter().map(|system| system.name.as_str()))
        .collect();
    let mut table = Table::new(&header);
    for workload in &results.workloads {
        let cells = systems.iter().map(|system| {
            let throughput = throughput(results, system, workload).unwrap_or_else(|| "-".into());
            match typical(results, system, workload) {
                Some(latency) => format!("{throughput}, {latency}"),
                None => throughput,
            }
        });
        table.row(std::iter::once(workload.name.clone()).chain(cells).collect());
    }
    text.push_str(&table.markdown());
    for skipped in results.skipped.iter().filter(|skipped| skipped.workload.is_none()) {
        let _ = writeln!(text, "\n{}: {}", skipped.system, skipped.reason);
    }
    text
}

fn throughput(results: &Results, system: &System, workload: &Workload) -> Option<String> {
    let spread = results.figure(&system.id, &workload.id, headline_figure(workload))?;
    Some(headline(workload, spread.median))
}

/// Replaces a part of docs/benchmarks.md: what stands between its markers of that name.
pub(crate) fn replace(part: &str, with: &str) -> Result<()> {
    let begin = format!("<!-- {part}: begin -->");
    let end = format!("<!-- {part}: end -->");
    let page = shell::root().join("docs/benchmarks.md");
    let text = std::fs::read_to_string(&page)?;
    let Some(((before, _), (_, after))) = text.split_once(&begin).zip(text.split_once(&end)) else {
        anyhow::bail!("{} has lost its markers {begin} and {end}", page.display());
    };
    std::fs::write(&page, format!("{before}{begin}\n{with}\n{end}{after}"))?;
    println!("written to {}", page.display());
    Ok(())
}

/// Writes the measured part of docs/benchmarks.md.
pub(crate) fn write(results: &Results) -> Result<()> {
    let machine = &results.machine;
    let measured = format!(
        "Measured {} with `{}` on {} cores ({}), Linux {}; {}.\n\n{}",
        results.date,
        results.command,
        machine.cores,
        machine.processor,
        machine.kernel,
        results.settings.placing,
        tables(results)
    );
    replace("measured", &measured)
}

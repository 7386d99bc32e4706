//! The page: goals, plots, tables, and how it was measured. Calls `plot`, `goals`, `stats`; called by
//! `mod`.

use std::fmt::Write as _;

use anyhow::Result;

use super::plot::{self, Axis, Bar, Curve, Scale};
use crate::bench::goals::{self, Outcome};
use crate::bench::page::{headline, headline_figure};
use crate::bench::results::{Results, System};
use crate::bench::stats::{Figure, Spread};
use crate::bench::workload::{CONNECTIONS, Pattern, READ_1, READ_32, Workload};

const STYLE: &str = include_str!("style.css");

/// Those that the curves show, the rest would only clutter them. Colours follow the order.
const SHOWN: [&str; 11] = [
    "lariat-memory",
    "lariat-file",
    "limit-batch",
    "local-file",
    "local-memory",
    "lariat-fio-memory",
    "nbdkit-memory",
    "tgt-memory",
    "lariat-net-9000-memory",
    "spdk-memory",
    "lariat-shm-memory",
];

/// The whole page.
pub(crate) fn html(results: &Results) -> Result<String> {
    let mut page = String::new();
    let machine = &results.machine;
    write!(
        page,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Lariat: benchmark</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         <h1>Lariat beside its peers</h1>\n\
         <p>{} on {} cores ({}), {:.0} GiB of memory, Linux {}. One run; interleaved \
         repetitions: {}, of {} s each; figures are medians, in parentheses the least and the most. \
         Placing: {}. Load average {:.1} before and {:.1} after.</p>\n",
        escape(&results.date),
        machine.cores,
        escape(&machine.processor),
        f64::from(u32::try_from(machine.memory_mib)?) / 1024.0,
        escape(&machine.kernel),
        results.settings.repeat,
        results.settings.seconds,
        escape(&results.settings.placing),
        machine.load_before,
        machine.load_after,
    )?;
    goals_section(&mut page, results)?;
    curves_section(&mut page, results)?;
    bars_section(&mut page, results)?;
    tables_section(&mut page, results)?;
    method_section(&mut page, results)?;
    if let Some(lab) = &results.lab {
        writeln!(
            page,
            "<h2 id=\"lab\">In the lab's virtual machine</h2>\n<p>{}; {} cores ({}), Linux {}.</p>",
            escape(&lab.date),
            lab.machine.cores,
            escape(&lab.machine.processor),
            escape(&lab.machine.kernel)
        )?;
        bars_section(&mut page, lab)?;
        tables_section(&mut page, lab)?;
    }
    page.push_str("</body>\n</html>\n");
    Ok(page)
}

fn goals_section(page: &mut String, results: &Results) -> Result<()> {
    page.push_str(
        "<h2>Goals</h2>\n<p>Ratios within this run: the median of those of each repetition, in \
         parentheses the least and the most.</p>\n<table class=\"goals\">\n<thead><tr><th>goal</th>\
         <th>wanted</th><th>measured</th><th></th></tr></thead>\n<tbody>\n",
    );
    for goal in goals::judge(results) {
        let class = match goal.outcome() {
            Outcome::Reached => "reached",
            Outcome::Missed => "missed",
            Outcome::Unknown => "unknown",
        };
        let place = if goal.place.is_empty() {
            String::new()
        } else {
            format!("<br><small>{}</small>", escape(&goal.place))
        };
        writeln!(
            page,
            "<tr><td>{}{place}</td><td>{}</td><td>{}</td><td class=\"{class}\">{}</td></tr>",
            escape(&goal.name),
            goal.wanted(),
            goal.found(),
            goal.verdict()
        )?;
    }
    page.push_str("</tbody>\n</table>\n");
    Ok(())
}

/// What the legend names, with its colour.
fn shown(results: &Results) -> Vec<(usize, &System)> {
    let systems = SHOWN.iter().enumerate();
    systems.filter_map(|(index, id)| Some((index, results.system(id)?))).collect()
}

fn legend(page: &mut String, systems: &[(usize, &System)]) -> Result<()> {
    page.push_str("<p class=\"legend\">");
    for (index, system) in systems {
        let color = plot::css(plot::color(*index));
        write!(page, "<span><i style=\"background:{color}\"></i>{}</span> ", escape(&system.name))?;
    }
    page.push_str("</p>\n");
    Ok(())
}

fn figure(page: &mut String, caption: &str, svg: Option<String>) -> Result<()> {
    let Some(svg) = svg else { return Ok(()) };
    writeln!(page, "<figure>\n<figcaption>{}</figcaption>\n{svg}\n</figure>", escape(caption))?;
    Ok(())
}

fn curves_section(page: &mut String, results: &Results) -> Result<()> {
    let systems = shown(results);
    if systems.is_empty() {
        return Ok(());
    }
    page.push_str("<h2>Throughput and latency</h2>\n");
    legend(page, &systems)?;
    page.push_str("<div class=\"figures\">\n");
    let iops = Axis { title: "IOPS", format: |value| count(*value), scale: Scale::Logarithmic };
    let latency = Axis {
        title: "latency, p50 in us",
        format: |value| count(*value),
        scale: Scale::Logarithmic,
    };
    for (pattern, caption) in [
        (
            Pattern::RandomRead,
            "4 KiB random read, depth 1, 32 and 128: further right and lower is better",
        ),
        (Pattern::RandomWrite, "4 KiB random write, depth 1, 32 and 128"),
    ] {
        let of = |system: &System| -> Vec<(f64, f64)> {
            let workloads = results.workloads.iter().filter(|workload| {
                workload.pattern == pattern && workload.is_small() && workload.connections == 1
            });
            workloads
                .filter_map(|workload| {
                    let at = |figure| results.figure(&system.id, &workload.id, figure);
                    let latency = at(Figure::PercentileUs(50.0)).or_else(|| at(Figure::MeanUs))?;
                    Some((at(Figure::Iops)?.median, latency.median))
                })
                .collect()
        };
        figure(page, caption, plot::curves(&curves(&systems, of), iops, latency)?)?;
    }
    let percent = Axis {
        title: "percentile",
        format: |value| format!("{}", (value * 1e4).round() / 1e4),
        scale: Scale::Nines,
    };
    let latency = Axis { title: "latency in us", ..latency };
    for (workload, caption) in [
        (READ_1, "Latency distribution, 4 KiB random read, depth 1"),
        (READ_32, "Latency distribution, 4 KiB random read, depth 32"),
    ] {
        let of = |system: &System| -> Vec<(f64, f64)> {
            let mut percents: Vec<f64> = results
                .samples(&system.id, workload)
                .flat_map(|(_, sample)| sample.latency_us.percentiles.iter().map(|pair| pair.0))
                .collect();
            percents.sort_by(f64::total_cmp);
            percents.dedup();
            percents
                .into_iter()
                .filter_map(|percent| {
                    let at = Figure::PercentileUs(percent);
                    Some((percent, results.figure(&system.id, workload, at)?.median))
                })
                .collect()
        };
        figure(page, caption, plot::curves(&curves(&systems, of), percent, latency)?)?;
    }
    let connections = Axis {
        title: "connections, depth 32 on each",
        format: |value| count(*value),
        scale: Scale::Fours,
    };
    let iops = Axis { scale: Scale::Linear, ..iops };
    let of = |system: &System| -> Vec<(f64, f64)> {
        let points = CONNECTIONS.iter().filter_map(|id| {
            let workload = results.workload(id)?;
            let iops = results.figure(&system.id, id, Figure::Iops)?.median;
            Some((f64::from(workload.connections), iops))
        });
        let points: Vec<(f64, f64)> = points.collect();
        if points.len() > 1 { points } else { Vec::new() }
    };
    let caption = "4 KiB random read by the number of connections";
    figure(page, caption, plot::curves(&curves(&systems, of), connections, iops)?)?;
    page.push_str("</div>\n");
    Ok(())
}

fn curves(systems: &[(usize, &System)], points: impl Fn(&System) -> Vec<(f64, f64)>) -> Vec<Curve> {
    systems
        .iter()
        .map(|(index, system)| Curve { color: plot::color(*index), points: points(system) })
        .collect()
}

/// Ours in one colour, others in another.
fn bar_color(system: &System) -> plotters::style::RGBColor {
    plot::color(if system.id.starts_with("lariat") { 0 } else { 8 })
}

fn bars_section(page: &mut String, results: &Results) -> Result<()> {
    page.push_str("<h2>Every workload</h2>\n<div class=\"figures\">\n");
    for workload in &results.workloads {
        let bars: Vec<Bar> = results
            .systems
            .iter()
            .filter_map(|system| {
                let spread = results.figure(&system.id, &workload.id, headline_figure(workload))?;
                Some(Bar {
                    label: system.name.clone(),
                    parts: vec![(spread.median, bar_color(system))],
                    figure: headline(workload, spread.median),
                    spread: Some((spread.least, spread.most)),
                })
            })
            .collect();
        let unit = if workload.is_small() { "IOPS" } else { "MB/s" };
        figure(page, &format!("{}: {unit}", workload.name), plot::bars(&bars)?)?;
    }
    for workload in results
        .workloads
        .iter()
        .filter(|workload| [READ_1, READ_32].contains(&workload.id.as_str()))
    {
        let bars: Vec<Bar> = results
            .systems
            .iter()
            .filter_map(|system| {
                let of = |figure| results.figure(&system.id, &workload.id, figure);
                let client = of(Figure::ClientCpu)?.median;
                let server = of(Figure::ServerCpu).map_or(0.0, |spread| spread.median);
                Some(Bar {
                    label: system.name.clone(),
                    parts: vec![(client, plot::color(0)), (server, plot::color(1))],
                    figure: format!("{client:.1} + {server:.1}"),
                    spread: None,
                })
            })
            .collect();
        let caption = format!(
            "{}: CPU seconds per million requests, client (blue) and server (orange)",
            workload.name
        );
        figure(page, &caption, plot::bars(&bars)?)?;
    }
    page.push_str("</div>\n");
    Ok(())
}

/// The columns of the tables: title, figure, digits after the point, what it is divided by.
const COLUMNS: [(&str, Figure, usize, f64); 10] = [
    ("k IOPS", Figure::Iops, 1, 1e3),
    ("MB/s", Figure::BytesPerSecond, 0, 1e6),
    ("mean us", Figure::MeanUs, 1, 1.0),
    ("p50", Figure::PercentileUs(50.0), 1, 1.0),
    ("p90", Figure::PercentileUs(90.0), 1, 1.0),
    ("p99", Figure::PercentileUs(99.0), 1, 1.0),
    ("p99.9", Figure::PercentileUs(99.9), 1, 1.0),
    ("max", Figure::MaxUs, 0, 1.0),
    ("client CPU s/M", Figure::ClientCpu, 2, 1.0),
    ("server CPU s/M", Figure::ServerCpu, 2, 1.0),
];

fn tables_section(page: &mut String, results: &Results) -> Result<()> {
    page.push_str(
        "<h2>All figures</h2>\n<p>Latencies in microseconds, of the reads in the mixed load. CPU: \
         seconds of user and system time per million requests. A dash: the tool does not say.</p>\n",
    );
    for workload in &results.workloads {
        table(page, results, workload)?;
    }
    let idle: Vec<(&System, Spread)> = results
        .systems
        .iter()
        .filter_map(|system| Some((system, results.idle_percent(&system.id)?)))
        .collect();
    if !idle.is_empty() {
        page.push_str(
            "<h3>Idle CPU of the server, in the seconds after a load</h3>\n<table>\n<thead><tr>\
             <th>system</th><th>percent of a core</th></tr></thead>\n<tbody>\n",
        );
        for (system, spread) in idle {
            writeln!(
                page,
                "<tr><td>{}</td><td data-system=\"{}\" data-figure=\"idle\">{:.2} <small>({:.2} to \
                 {:.2})</small></td></tr>",
                escape(&system.name),
                escape(&system.id),
                spread.median,
                spread.least,
                spread.most
            )?;
        }
        page.push_str("</tbody>\n</table>\n");
    }
    Ok(())
}

fn table(page: &mut String, results: &Results, workload: &Workload) -> Result<()> {
    writeln!(page, "<h3>{}</h3>\n<div class=\"wide\"><table>", escape(&workload.name))?;
    page.push_str("<thead><tr><th>system</th>");
    for (title, ..) in COLUMNS {
        write!(page, "<th>{title}</th>")?;
    }
    page.push_str("</tr></thead>\n<tbody>\n");
    for system in &results.systems {
        write!(page, "<tr><td>{}</td>", escape(&system.name))?;
        let errors = results.runs.iter().filter(|run| {
            run.system == system.id && run.workload == workload.id && run.error.is_some()
        });
        let errors = errors.count();
        if results.figure(&system.id, &workload.id, Figure::Iops).is_none() {
            let reason = if errors > 0 { "failed" } else { "not measured" };
            let reason = results.why_not(&system.id, &workload.id).unwrap_or(reason);
            writeln!(page, "<td colspan=\"10\" class=\"why\">{}</td></tr>", escape(reason))?;
            continue;
        }
        for (title, figure, digits, divisor) in COLUMNS {
            let Some(spread) = results.figure(&system.id, &workload.id, figure) else {
                page.push_str("<td>-</td>");
                continue;
            };
            let show = |value: f64| format!("{:.digits$}", value / divisor);
            write!(
                page,
                "<td data-system=\"{}\" data-workload=\"{}\" data-figure=\"{title}\">{}",
                escape(&system.id),
                escape(&workload.id),
                show(spread.median)
            )?;
            if figure == Figure::Iops && spread.least < spread.most {
                write!(page, " <small>({} to {})</small>", show(spread.least), show(spread.most))?;
            }
            if figure == Figure::MeanUs && is_computed(results, system, workload) {
                page.push_str(" <small>(depth / IOPS)</small>");
            }
            page.push_str("</td>");
        }
        if errors > 0 {
            write!(page, "<td class=\"why\">{errors} failed</td>")?;
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody>\n</table></div>\n");
    Ok(())
}

fn is_computed(results: &Results, system: &System, workload: &Workload) -> bool {
    let mut samples = results.samples(&system.id, &workload.id);
    samples.any(|(_, sample)| sample.latency_us.mean_is_computed)
}

const METHOD: &str = "\
<ul>\n\
<li>All programs run on one machine; server and client have a core each, the same for all systems. \
On loopback the kernel's share of the network is paid by whoever sends.</li>\n\
<li>For each workload and repetition every system is measured once, one after the other. Servers run \
all the time and are idle while others are measured; those of bare UDP spin and run only then.</li>\n\
<li>Files are written from end to end first. Lariat and local fio use the same file with direct I/O; \
tgt and nbdkit go through the page cache, as they do by default; after each write load the file is \
synchronised before anything else is measured.</li>\n\
<li>Lariat is driven by <code>lariat bench</code> where no other client is named.</li>\n\
<li>fio has its defaults (one request per submission) with every engine. Depth is per connection. \
Latency is from submission to completion.</li>\n\
<li>CPU time is user and system time of the processes (/proc), taken in the midst of each \
measurement. A polling client uses its core to the full, whatever it does.</li>\n\
<li>iscsi-perf only reads, on one connection, and tells no latencies: the mean is depth / IOPS.</li>\n\
<li>SPDK is driven by its own client, <code>spdk_nvme_perf</code>, without a ramp; its latencies of a \
mixed load are those of reads and writes together. Its target polls without an end, so it is stopped \
while others are measured.</li>\n\
<li>Bare UDP: two processes that spin, with no protocol; batches in the shape of reads (96 bytes out, \
4,128 and 32 bytes back, a copy of 4 KiB at each end), and a stream of segmented packets of 4,112 \
bytes.</li>\n\
</ul>\n";

fn method_section(page: &mut String, results: &Results) -> Result<()> {
    writeln!(
        page,
        "<h2>How it was measured</h2>\n<p><code>{}</code></p>\n{METHOD}<h3>Programs</h3>\n<ul>",
        escape(&results.command)
    )?;
    for program in &results.programs {
        let (name, version) = (escape(&program.name), escape(&program.version));
        writeln!(page, "<li>{name}: {version}</li>")?;
    }
    page.push_str("</ul>\n");
    let mut missing: Vec<(&str, &str)> = results
        .skipped
        .iter()
        .filter(|skipped| skipped.workload.is_none())
        .map(|skipped| (skipped.system.as_str(), skipped.reason.as_str()))
        .collect();
    missing.extend(results.runs.iter().filter_map(|run| {
        let error = run.error.as_deref()?.lines().next()?;
        Some((run.system.as_str(), error))
    }));
    if !missing.is_empty() {
        page.push_str("<h3>Not measured</h3>\n<ul>\n");
        for (system, reason) in missing {
            writeln!(page, "<li>{}: {}</li>", escape(system), escape(reason))?;
        }
        page.push_str("</ul>\n");
    }
    page.push_str("<h3>Command lines</h3>\n");
    for system in &results.systems {
        writeln!(
            page,
            "<details><summary>{} <small>({})</small></summary>\n<pre>",
            escape(&system.name),
            escape(&system.storage)
        )?;
        if !system.server.is_empty() {
            writeln!(page, "{}", escape(&system.server))?;
        }
        for workload in &results.workloads {
            let first = results.runs.iter().find(|run| {
                run.system == system.id && run.workload == workload.id && run.sample.is_some()
            });
            if let Some(run) = first {
                writeln!(page, "{}", escape(&run.command))?;
            }
        }
        page.push_str("</pre></details>\n");
    }
    Ok(())
}

/// A number that people can read: 950, 20k, 1.5M.
fn count(value: f64) -> String {
    let (value, unit) = match value {
        value if value >= 0.9995e6 => (value / 1e6, "M"),
        value if value >= 999.5 => (value / 1e3, "k"),
        value => (value, ""),
    };
    format!("{}{unit}", (value * 10.0).round() / 10.0)
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
#[path = "html_tests.rs"]
mod tests;

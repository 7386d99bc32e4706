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
            mean: latency["mean"].as_f64().filter(|&mean| mean > 0.0).map(|mean| mean / 1e3),
            mean_is_computed: false,
            percentiles: percentiles.collect(),
            max: latency["max"].as_f64().filter(|&max| max > 0.0).map(|max| max / 1e3),
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
            mean: latency["mean"].as_f64().filter(|&mean| mean > 0.0).map(|mean| mean / 1e3),
            mean_is_computed: false,
            percentiles: percentiles.collect(),
            max: latency["max"].as_f64().filter(|&max| max > 0.0).map(|max| max / 1e3),
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
            mean: Some(f64::from(workload.total_depth()) / iops * 1e6),
            mean_is_computed: true,
            percentiles: Vec::new(),
            max: None,
        },
    )
}

/// The arguments of `spdk_nvme_perf` for a workload. Its depth is that of all connections together,
/// and its ramp is a whole second or none: none.
pub(crate) fn perf_arguments(workload: &Workload, seconds: u32) -> Vec<String> {
    let mut arguments: Vec<String> = vec![
        "-w".into(),
        workload.pattern.fio().into(),
        "-o".into(),
        workload.block_bytes.to_string(),
        "-q".into(),
        workload.total_depth().to_string(),
        "-P".into(),
        workload.connections.to_string(),
        "-t".into(),
        seconds.to_string(),
        // Percentiles.
        "-L".into(),
    ];
    if workload.pattern == Pattern::Mixed {
        arguments.extend(["-M".into(), MIXED_READ_PERCENT.to_string()]);
    }
    arguments
}

/// What `spdk_nvme_perf -L` prints: a line `Total : IOPS MiB/s average min max` (microseconds), and
/// after it a summary of percentiles, `50.00000% : 12.345us`; of reads and writes together.
pub(crate) fn parse_perf(text: &str, workload: &Workload) -> Result<Sample> {
    let total = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("Total"))
        .context("spdk_nvme_perf printed no total")?;
    let figures: Vec<f64> = total.split([':', ' ']).filter_map(|word| word.parse().ok()).collect();
    let [iops, _, mean, _, max] = figures[..] else {
        bail!("spdk_nvme_perf's total is not understood: {total}");
    };
    let percentiles = text.lines().filter_map(|line| {
        let (percent, latency) = line.trim().split_once("% :")?;
        Some((percent.trim().parse().ok()?, latency.trim().strip_suffix("us")?.parse().ok()?))
    });
    let percentiles = percentiles.filter(|(percent, _)| PERCENTILES.contains(percent));
    sample(
        iops,
        iops * f64::from(workload.block_bytes),
        Latency {
            mean: Some(mean),
            mean_is_computed: false,
            percentiles: percentiles.collect(),
            max: Some(max),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::workload::{self, MIXED_32, READ_32, SEQUENTIAL_READ, WRITE_32};

    const FIO: &str = include_str!("fixtures/fio-mixed.json");
    const LARIAT: &str = include_str!("fixtures/lariat-randread.json");
    const ISCSI: &str = include_str!("fixtures/iscsi-perf.txt");
    const PERF: &str = include_str!("fixtures/spdk-nvme-perf.txt");

    fn of(id: &str) -> Workload {
        workload::list(false).into_iter().find(|workload| workload.id == id).unwrap()
    }

    #[test]
    fn fios_report_of_a_mixed_load() {
        let sample = parse_fio(FIO, &of(MIXED_32)).unwrap();
        assert!((sample.iops - (237_810.189_810 + 101_801.198_801)).abs() < 1e-3);
        assert!((sample.bytes_per_second - (974_140_099.0 + 417_034_997.0)).abs() < 1.0);
        // Of the reads.
        assert_eq!(sample.latency_us.percentile(50.0), Some(55.552));
        assert_eq!(sample.latency_us.percentile(99.99), Some(8159.232));
        assert_eq!(sample.latency_us.percentiles.len(), PERCENTILES.len());
        assert_eq!(sample.latency_us.max, Some(9210.254));
        let writes = parse_fio(FIO, &of(WRITE_32)).unwrap();
        assert_eq!(writes.latency_us.percentile(50.0), Some(42.24));
        assert!(parse_fio("fio: no such engine", &of(MIXED_32)).is_err());
        let failed = FIO.replace("\"error\": 0", "\"error\": 5");
        assert!(parse_fio(&failed, &of(MIXED_32)).unwrap_err().to_string().contains("error 5"));
    }

    #[test]
    fn the_report_of_our_own_client() {
        let sample = parse_lariat(LARIAT, &of(READ_32)).unwrap();
        assert!((sample.iops - 407_970.044_911_904_2).abs() < 1e-6);
        assert_eq!(sample.latency_us.percentile(50.0), Some(67.135));
        assert_eq!(sample.latency_us.percentile(99.9), Some(232.191));
        assert_eq!(sample.latency_us.percentiles.len(), PERCENTILES.len());
        assert_eq!(sample.latency_us.max, Some(1059.839));
        assert!(parse_lariat("", &of(READ_32)).is_err());
        let nothing = LARIAT.replace("407970.0449119042", "0.0");
        assert!(parse_lariat(&nothing, &of(READ_32)).is_err());
    }

    #[test]
    fn iscsi_perf_has_a_rate_and_the_rest_follows() {
        let read = of(SEQUENTIAL_READ);
        let sample = parse_iscsi(ISCSI, &read).unwrap();
        assert!((sample.iops - 6506.0).abs() < 1e-9);
        assert!((sample.bytes_per_second - 6506.0 * 131_072.0).abs() < 1e-3);
        assert!((sample.latency_us.mean.unwrap() - 16.0 / 6506.0 * 1e6).abs() < 1e-6);
        assert!(sample.latency_us.mean_is_computed);
        assert!(parse_iscsi("connected\n", &read).is_err());
        assert_eq!(iscsi_arguments(&read, 512, 2).unwrap().join(" "), "-m 16 -b 256 -t 2",);
        assert!(iscsi_arguments(&of(WRITE_32), 512, 2).unwrap_err().contains("only reads"));
    }

    #[test]
    fn the_summary_of_spdks_client() {
        let read = of(READ_32);
        let sample = parse_perf(PERF, &read).unwrap();
        assert!((sample.iops - 412_345.67).abs() < 1e-6);
        assert!((sample.bytes_per_second - 412_345.67 * 4096.0).abs() < 1e-3);
        assert_eq!(sample.latency_us.mean, Some(77.51));
        assert_eq!(sample.latency_us.percentile(50.0), Some(74.24));
        assert_eq!(sample.latency_us.percentile(99.99), Some(403.456));
        // Those that nobody else gives are left out.
        assert_eq!(sample.latency_us.percentiles.len(), 4);
        assert_eq!(sample.latency_us.max, Some(921.5));
        assert!(!sample.latency_us.mean_is_computed);
        assert!(parse_perf("Total : 1 2", &read).is_err());
        let error = parse_perf("no controller", &read).unwrap_err().to_string();
        assert!(error.contains("no total"), "{error}");
    }

    #[test]
    fn spdks_client_counts_the_requests_of_all_connections() {
        let words = perf_arguments(&of("randread-4k-qd32-c16"), 1).join(" ");
        assert_eq!(words, "-w randread -o 4096 -q 512 -P 16 -t 1 -L");
    }

    #[test]
    fn all_clients_are_asked_for_the_same() {
        let mixed = of(MIXED_32);
        let fio = fio_arguments(&["--ioengine=null".into()], &mixed, 2).join(" ");
        for part in ["--rw=randrw", "--rwmixread=70", "--iodepth=32", "--bs=4096", "--runtime=2"] {
            assert!(fio.contains(part), "{part}");
        }
        let spdk = perf_arguments(&mixed, 2).join(" ");
        assert_eq!(spdk, "-w randrw -o 4096 -q 32 -P 1 -t 2 -L -M 70");
        let ours = lariat_arguments(&mixed, 2).join(" ");
        for part in ["--rw randrw", "--rwmixread 70", "--iodepth 32", "--bs 4096", "--runtime 2"] {
            assert!(ours.contains(part), "{part}");
        }
    }
}

//! What the project wants to reach, as ratios of figures from one run, and whether it did. Calls
//! `stats`; used by `run` and `report`.

use super::results::Results;
use super::stats::{Figure, Spread};
use super::workload::{
    CONNECTIONS, READ_1, READ_32, READ_128, SEQUENTIAL_READ, SEQUENTIAL_WRITE, Workload,
};

/// How a goal came out.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Outcome {
    Reached,
    Missed,
    /// Something that it needs was not measured.
    Unknown,
}

/// A goal and what was measured.
#[derive(Clone, Debug)]
pub(crate) struct Goal {
    pub(crate) name: String,
    pub(crate) limit: Limit,
    pub(crate) measured: Option<Spread>,
    /// Where the worst of several lies.
    pub(crate) place: String,
}

/// What the figure has to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Limit {
    AtLeast(f64),
    AtMost(f64),
    Above(f64),
    /// In percent.
    BelowPercent(f64),
}

impl Goal {
    pub(crate) fn outcome(&self) -> Outcome {
        let Some(measured) = self.measured else { return Outcome::Unknown };
        let value = measured.median;
        let reached = match self.limit {
            Limit::AtLeast(limit) => value >= limit,
            Limit::AtMost(limit) => value <= limit,
            Limit::Above(limit) => value > limit,
            Limit::BelowPercent(limit) => value < limit,
        };
        if reached { Outcome::Reached } else { Outcome::Missed }
    }

    /// The limit in words.
    pub(crate) fn wanted(&self) -> String {
        match self.limit {
            Limit::AtLeast(limit) => format!("at least {limit}"),
            Limit::AtMost(limit) => format!("at most {limit}"),
            Limit::Above(limit) => format!("above {limit}"),
            Limit::BelowPercent(limit) => format!("below {limit} %"),
        }
    }

    /// The measured figure with its spread.
    pub(crate) fn found(&self) -> String {
        let percent = matches!(self.limit, Limit::BelowPercent(_));
        match self.measured {
            None => "not measured".into(),
            Some(Spread { median, least, most }) if percent => {
                format!("{median:.2} % ({least:.2} to {most:.2})")
            }
            Some(Spread { median, least, most }) => {
                format!("{median:.2} ({least:.2} to {most:.2})")
            }
        }
    }

    /// The outcome in words.
    pub(crate) fn verdict(&self) -> &'static str {
        match self.outcome() {
            Outcome::Reached => "reached",
            Outcome::Missed => "missed",
            Outcome::Unknown => "not measured",
        }
    }
}

const MEMORY: &str = "lariat-memory";
const FILE: &str = "lariat-file";
const SLEEPING: &str = "lariat-sleep-memory";
const P50: Figure = Figure::PercentileUs(50.0);

/// All goals, with what this run says of them.
pub(crate) fn judge(results: &Results) -> Vec<Goal> {
    let simple = |name: &str, limit, system, other, workload, figure| Goal {
        name: name.to_owned(),
        limit,
        measured: results.ratio((system, workload), (other, workload), figure),
        place: String::new(),
    };
    use Limit::{Above, AtLeast, AtMost, BelowPercent};
    let mut goals = vec![
        simple(
            "file: latency (p50) at depth 1, by local io_uring's",
            AtMost(1.15),
            FILE,
            "local-file",
            READ_1,
            P50,
        ),
        simple(
            "file: IOPS at depth 32, by local",
            AtLeast(0.95),
            FILE,
            "local-file",
            READ_32,
            Figure::Iops,
        ),
        simple(
            "memory: IOPS at depth 32, by bare UDP batches",
            AtLeast(0.7),
            MEMORY,
            "limit-batch",
            READ_32,
            Figure::Iops,
        ),
        simple(
            "memory: IOPS at depth 128, by bare UDP batches",
            AtLeast(0.7),
            MEMORY,
            "limit-batch",
            READ_128,
            Figure::Iops,
        ),
        simple(
            "memory: latency (p50) at depth 1, by bare UDP batches",
            AtMost(1.25),
            MEMORY,
            "limit-batch",
            READ_1,
            P50,
        ),
        simple(
            "memory: IOPS at depth 32, by bare UDP batches out of as much memory",
            AtLeast(0.7),
            MEMORY,
            "limit-batch-memory",
            READ_32,
            Figure::Iops,
        ),
        simple(
            "memory: IOPS at depth 128, by bare UDP batches out of as much memory",
            AtLeast(0.7),
            MEMORY,
            "limit-batch-memory",
            READ_128,
            Figure::Iops,
        ),
        simple(
            "memory: latency (p50) at depth 1, by bare UDP batches out of as much memory",
            AtMost(1.25),
            MEMORY,
            "limit-batch-memory",
            READ_1,
            P50,
        ),
        simple(
            "null: IOPS at depth 32, by bare UDP batches",
            AtLeast(0.7),
            "lariat-null",
            "limit-batch",
            READ_32,
            Figure::Iops,
        ),
        simple(
            "null: latency (p50) at depth 1, by bare UDP batches",
            AtMost(1.25),
            "lariat-null",
            "limit-batch",
            READ_1,
            P50,
        ),
        simple(
            "memory: IOPS at depth 32, by tgt on /dev/shm",
            AtLeast(12.0),
            MEMORY,
            "tgt-memory",
            READ_32,
            Figure::Iops,
        ),
        simple(
            "memory: latency (mean) at depth 1, by tgt on /dev/shm",
            AtMost(0.14),
            MEMORY,
            "tgt-memory",
            READ_1,
            Figure::MeanUs,
        ),
        worst(
            results,
            "memory: IOPS by nbdkit memory, the worst of all workloads",
            (MEMORY, "nbdkit-memory"),
            Figure::Iops,
            |_| true,
        ),
        worst(
            results,
            "both ends sleeping: IOPS per CPU second, by tgt on /dev/shm, the worst",
            (SLEEPING, "tgt-memory"),
            Figure::IopsPerCpu,
            |_| true,
        ),
        worst(
            results,
            "both ends sleeping: IOPS per CPU second, by nbdkit memory, the worst",
            (SLEEPING, "nbdkit-memory"),
            Figure::IopsPerCpu,
            |_| true,
        ),
        Goal {
            name: "idle CPU of lariatd after the load".into(),
            limit: BelowPercent(1.0),
            measured: results.idle_percent(MEMORY),
            place: String::new(),
        },
    ];
    for (name, workload) in [("read", SEQUENTIAL_READ), ("write", SEQUENTIAL_WRITE)] {
        for (stream, words) in
            [("limit-stream", ""), ("limit-stream-memory", ", copied once at either end")]
        {
            goals.push(Goal {
                name: format!("memory: 128 KiB sequential {name}, by a bare UDP stream{words}"),
                limit: AtLeast(0.8),
                measured: results.ratio(
                    (MEMORY, workload),
                    (stream, SEQUENTIAL_READ),
                    Figure::BytesPerSecond,
                ),
                place: String::new(),
            });
        }
    }
    goals.push(flat(results));
    if results.system("spdk-memory").is_some() {
        goals.push(simple(
            "memory: IOPS at depth 32, by SPDK NVMe/TCP malloc",
            Above(1.0),
            MEMORY,
            "spdk-memory",
            READ_32,
            Figure::Iops,
        ));
        goals.push(simple(
            "memory: latency (p50) at depth 1, by SPDK NVMe/TCP malloc",
            AtMost(1.0),
            MEMORY,
            "spdk-memory",
            READ_1,
            P50,
        ));
    }
    goals
}

/// The least ratio of all workloads that both have.
fn worst(
    results: &Results,
    name: &str,
    (system, other): (&str, &str),
    figure: Figure,
    which: impl Fn(&Workload) -> bool,
) -> Goal {
    let least = results
        .workloads
        .iter()
        .filter(|workload| which(workload))
        .filter_map(|workload| {
            let at = workload.id.as_str();
            Some((results.ratio((system, at), (other, at), figure)?, workload.name.clone()))
        })
        .min_by(|(one, _), (two, _)| one.median.total_cmp(&two.median));
    let (measured, place) = least.map_or((None, String::new()), |(spread, at)| (Some(spread), at));
    Goal { name: name.into(), limit: Limit::Above(1.0), measured, place }
}

/// The least IOPS by the most, from 1 to 64 connections, in each repetition.
fn flat(results: &Results) -> Goal {
    let by_repetition = (0..results.settings.repeat).filter_map(|repetition| {
        let rates: Vec<f64> = CONNECTIONS
            .iter()
            .filter_map(|workload| {
                let mut samples = results.samples(MEMORY, workload);
                samples.find(|(of, _)| *of == repetition).map(|(_, sample)| sample.iops)
            })
            .collect();
        let range = Spread::of(rates.iter().copied())?;
        // Two points are not a line.
        (rates.len() == CONNECTIONS.len()).then_some(range.least / range.most)
    });
    Goal {
        name: "memory: IOPS from 1 to 64 connections, the least by the most".into(),
        limit: Limit::AtLeast(0.9),
        measured: Spread::of(by_repetition),
        place: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::report::fixture;

    fn find<'a>(goals: &'a [Goal], part: &str) -> &'a Goal {
        goals.iter().find(|goal| goal.name.contains(part)).unwrap()
    }

    #[test]
    fn goals_follow_from_the_ratios() {
        let results = fixture::results(&[
            ("lariat-memory", READ_32, &[700.0, 720.0, 680.0]),
            ("limit-batch", READ_32, &[1000.0, 1000.0, 1000.0]),
            ("tgt-memory", READ_32, &[70.0, 70.0, 70.0]),
        ]);
        let goals = judge(&results);
        let batch = find(&goals, "memory: IOPS at depth 32, by bare");
        assert_eq!(
            (batch.outcome(), batch.found().as_str()),
            (Outcome::Reached, "0.70 (0.68 to 0.72)")
        );
        assert_eq!(find(&goals, "depth 32, by tgt").outcome(), Outcome::Missed);
        assert_eq!(find(&goals, "depth 128, by bare").outcome(), Outcome::Unknown);
        assert!(goals.iter().all(|goal| !goal.name.contains("SPDK")));
    }

    #[test]
    fn ahead_everywhere_means_in_the_worst_case() {
        let results = fixture::results(&[
            ("lariat-memory", READ_1, &[50.0]),
            ("nbdkit-memory", READ_1, &[10.0]),
            ("lariat-memory", SEQUENTIAL_READ, &[9.0]),
            ("nbdkit-memory", SEQUENTIAL_READ, &[10.0]),
        ]);
        let goals = judge(&results);
        let nbdkit = find(&goals, "IOPS by nbdkit memory");
        assert_eq!(nbdkit.outcome(), Outcome::Missed);
        assert_eq!(nbdkit.place, "128 KiB sequential read, depth 16");
    }

    #[test]
    fn flatness_needs_all_four_points() {
        let [one, four, sixteen, many] = CONNECTIONS;
        let with = |rate: f64| {
            fixture::results(&[
                ("lariat-memory", one, &[100.0]),
                ("lariat-memory", four, &[98.0]),
                ("lariat-memory", sixteen, &[99.0]),
                ("lariat-memory", many, &[rate]),
            ])
        };
        assert_eq!(find(&judge(&with(91.0)), "64 connections").outcome(), Outcome::Reached);
        assert_eq!(find(&judge(&with(85.0)), "64 connections").outcome(), Outcome::Missed);
        let three = fixture::results(&[("lariat-memory", one, &[100.0])]);
        assert_eq!(find(&judge(&three), "64 connections").outcome(), Outcome::Unknown);
    }
}

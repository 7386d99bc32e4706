//! Medians and spreads over the repetitions of a run. Calls nothing; used by `goals` and `report`.

use super::results::{Results, Sample};

/// The middle of several measurements, and how far they lie apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl Spread {
    /// None without a value.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let (&least, &most) = (values.first()?, values.last()?);
        let middle = values.len() / 2;
        let upper = *values.get(middle)?;
        let median = if values.len().is_multiple_of(2) {
            (upper + *values.get(middle.checked_sub(1)?)?) / 2.0
        } else {
            upper
        };
        Some(Self { median, least, most })
    }
}

/// What can be asked of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Figure {
    Iops,
    BytesPerSecond,
    MeanUs,
    PercentileUs(f64),
    MaxUs,
    /// Processor seconds per million requests.
    ClientCpu,
    ServerCpu,
    /// Requests per processor second of both sides together.
    IopsPerCpu,
}

impl Figure {
    /// None where the tool did not tell.
    pub(crate) fn of(self, sample: &Sample) -> Option<f64> {
        match self {
            Self::Iops => Some(sample.iops),
            Self::BytesPerSecond => Some(sample.bytes_per_second),
            Self::MeanUs => sample.latency_us.mean,
            Self::PercentileUs(percent) => sample.latency_us.percentile(percent),
            Self::MaxUs => sample.latency_us.max,
            Self::ClientCpu => sample.client_cores.map(|cores| cores / sample.iops * 1e6),
            Self::ServerCpu => sample.server_cores.map(|cores| cores / sample.iops * 1e6),
            Self::IopsPerCpu => {
                let cores = sample.client_cores? + sample.server_cores?;
                (cores > 0.0).then(|| sample.iops / cores)
            }
        }
    }
}

impl Results {
    /// The samples of a system under a workload, with their repetitions.
    pub(crate) fn samples<'a>(
        &'a self,
        system: &'a str,
        workload: &'a str,
    ) -> impl Iterator<Item = (u32, &'a Sample)> {
        self.runs
            .iter()
            .filter(move |run| run.system == system && run.workload == workload)
            .filter_map(|run| Some((run.repetition, run.sample.as_ref()?)))
    }

    /// A figure over all repetitions.
    pub(crate) fn figure(&self, system: &str, workload: &str, figure: Figure) -> Option<Spread> {
        Spread::of(self.samples(system, workload).filter_map(|(_, sample)| figure.of(sample)))
    }

    /// A figure of one system by that of another, repetition by repetition: what was measured within
    /// seconds is compared, and the machine's moods fall out.
    pub(crate) fn ratio(
        &self,
        (system, workload): (&str, &str),
        (other, other_workload): (&str, &str),
        figure: Figure,
    ) -> Option<Spread> {
        Spread::of(self.samples(system, workload).filter_map(|(repetition, sample)| {
            let (_, beside) = self
                .samples(other, other_workload)
                .find(|(other_repetition, _)| *other_repetition == repetition)?;
            Some(figure.of(sample)? / figure.of(beside)?)
        }))
    }

    /// What the server of a system uses when idle.
    pub(crate) fn idle_percent(&self, system: &str) -> Option<Spread> {
        Spread::of(self.idle.iter().filter(|idle| idle.system == system).map(|idle| idle.percent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::report::fixture;

    #[test]
    fn the_median_has_as_many_below_as_above() {
        let spread = Spread::of([5.0, 1.0, 9.0]).unwrap();
        assert_eq!(spread, Spread { median: 5.0, least: 1.0, most: 9.0 });
        assert_eq!(Spread::of([4.0, 1.0]).unwrap().median, 2.5);
        assert_eq!(Spread::of([7.0, f64::NAN]).unwrap().median, 7.0);
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn ratios_are_taken_within_a_repetition() {
        // The second repetition ran at half speed on both sides: the ratio stays.
        let results = fixture::results(&[
            ("a", "randread-4k-qd1", &[200.0, 100.0, 210.0]),
            ("b", "randread-4k-qd1", &[100.0, 50.0, 100.0]),
        ]);
        let at = "randread-4k-qd1";
        let ratio = results.ratio(("a", at), ("b", at), Figure::Iops).unwrap();
        assert_eq!(ratio, Spread { median: 2.0, least: 2.0, most: 2.1 });
        assert_eq!(results.ratio(("a", at), ("c", at), Figure::Iops), None);
    }

    #[test]
    fn processor_time_is_per_request() {
        let sample = Sample {
            iops: 500_000.0,
            client_cores: Some(1.0),
            server_cores: Some(0.5),
            ..Sample::default()
        };
        assert_eq!(Figure::ClientCpu.of(&sample), Some(2.0));
        assert_eq!(Figure::ServerCpu.of(&sample), Some(1.0));
        assert_eq!(Figure::IopsPerCpu.of(&sample), Some(500_000.0 / 1.5));
    }
}

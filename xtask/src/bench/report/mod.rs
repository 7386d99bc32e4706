//! The HTML report: one file that needs nothing else. Calls `html`, which calls `plot`; called by
//! `mod`.

mod html;
mod plot;

pub(crate) use html::html;

/// Results for tests.
#[cfg(test)]
pub(crate) mod fixture {
    use crate::bench::results::{FORMAT, Latency, Machine, Results, Run, Sample, Settings, System};
    use crate::bench::workload;

    /// Systems and workloads with the IOPS of each repetition; latencies follow from the depth.
    pub(crate) fn results(cells: &[(&str, &str, &[f64])]) -> Results {
        let workloads = workload::list(false);
        let mut systems: Vec<System> = Vec::new();
        let mut runs = Vec::new();
        for (system, at, rates) in cells {
            if !systems.iter().any(|known| known.id == *system) {
                systems.push(System {
                    id: (*system).into(),
                    name: format!("The {system}"),
                    peer: "test".into(),
                    storage: "memory".into(),
                    server: format!("serve <{system}>"),
                });
            }
            let workload = workloads.iter().find(|workload| workload.id == *at).unwrap();
            for (repetition, rate) in (0..).zip(*rates) {
                let mean = f64::from(workload.total_depth()) / rate * 1e6;
                let percentiles =
                    [(50.0, mean), (90.0, 2.0 * mean), (99.0, 3.0 * mean), (99.9, 4.0 * mean)];
                runs.push(Run {
                    system: (*system).into(),
                    workload: (*at).into(),
                    repetition,
                    command: format!("ask {system} --of {at}"),
                    sample: Some(Sample {
                        iops: *rate,
                        bytes_per_second: rate * f64::from(workload.block_bytes),
                        latency_us: Latency {
                            mean: Some(mean),
                            mean_is_computed: false,
                            percentiles: percentiles.into(),
                            max: Some(9.0 * mean),
                        },
                        client_cores: Some(1.0),
                        server_cores: Some(0.5),
                    }),
                    error: None,
                });
            }
        }
        let repeat = runs.iter().map(|run| run.repetition + 1).max().unwrap_or(0);
        Results {
            format: FORMAT,
            date: "2026-11-29 18:00 UTC".into(),
            command: "cargo xtask bench".into(),
            machine: Machine::default(),
            programs: Vec::new(),
            settings: Settings {
                seconds: 1,
                repeat,
                placing: "somewhere".into(),
                disk_mib: 1,
                memory_mib: 1,
            },
            workloads,
            systems,
            runs,
            idle: Vec::new(),
            skipped: Vec::new(),
            lab: None,
        }
    }
}

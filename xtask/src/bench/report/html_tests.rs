use super::*;
use crate::bench::report::fixture;
use crate::bench::results::{Idle, Skipped};

fn sample() -> Results {
    let mut results = fixture::results(&[
        ("lariat-memory", READ_1, &[100_000.0, 90_000.0, 120_000.0]),
        ("lariat-memory", READ_32, &[500_000.0, 700_000.0, 600_000.0]),
        ("limit-batch", READ_1, &[125_000.0, 125_000.0, 125_000.0]),
        ("limit-batch", READ_32, &[1_000_000.0, 1_000_000.0, 1_000_000.0]),
        ("tgt-memory", READ_1, &[10_000.0, 10_000.0, 10_000.0]),
    ]);
    results.idle.push(Idle { system: "lariat-memory".into(), repetition: 0, percent: 0.25 });
    results.skipped.push(Skipped {
        system: "tgt-memory".into(),
        workload: Some(READ_32.into()),
        reason: "the <reason>".into(),
    });
    results.skipped.push(Skipped {
        system: "spdk".into(),
        workload: None,
        reason: "not measured: no build given".into(),
    });
    results
}

/// The text of a cell, up to its spread.
fn cell(page: &str, system: &str, workload: &str, title: &str) -> f64 {
    let key =
        format!("data-system=\"{system}\" data-workload=\"{workload}\" data-figure=\"{title}\">");
    let (_, rest) = page.split_once(&key).unwrap_or_else(|| panic!("no {key}"));
    rest.split([' ', '<']).next().unwrap().parse().unwrap()
}

#[test]
fn the_figures_are_the_medians_of_the_json() {
    // What a reader of the JSON gets, not what is in memory.
    let text = serde_json::to_string(&sample()).unwrap();
    let results: Results = serde_json::from_str(&text).unwrap();
    let page = html(&results).unwrap();
    let mut checked = 0;
    for system in &results.systems {
        for workload in &results.workloads {
            for (title, figure, digits, divisor) in COLUMNS {
                let mut values: Vec<f64> = results
                    .runs
                    .iter()
                    .filter(|run| run.system == system.id && run.workload == workload.id)
                    .filter_map(|run| figure.of(run.sample.as_ref()?))
                    .collect();
                if values.is_empty() {
                    continue;
                }
                values.sort_by(f64::total_cmp);
                let median = values[values.len() / 2] / divisor;
                let shown = cell(&page, &system.id, &workload.id, title);
                let half_a_digit = 0.5001 * 10_f64.powi(-i32::try_from(digits).unwrap());
                assert!((shown - median).abs() <= half_a_digit, "{title}: {shown}, {median}");
                checked += 1;
            }
        }
    }
    assert_eq!(checked, 5 * COLUMNS.len());
    assert!((cell(&page, "lariat-memory", READ_32, "k IOPS") - 600.0).abs() < 1e-9);
}

#[test]
fn goals_are_judged_on_the_page() {
    let page = html(&sample()).unwrap();
    assert!(page.contains("<td>0.60 (0.50 to 0.70)</td><td class=\"missed\">missed</td>"));
    assert!(page.contains("<td>1.25 (1.04 to 1.39)</td><td class=\"reached\">reached</td>"));
    assert!(page.contains("<td>0.25 % (0.25 to 0.25)</td><td class=\"reached\">reached</td>"));
}

#[test]
fn the_page_needs_nothing_from_elsewhere_and_hides_nothing() {
    let page = html(&sample()).unwrap();
    for outside in ["http:", "https:", "<script", "<link", "url(", "@import"] {
        let page = page.replace("http://www.w3.org/2000/svg", "");
        assert!(!page.contains(outside), "{outside}");
    }
    assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
    assert!(page.contains("the &lt;reason&gt;"));
    assert!(page.contains("spdk: not measured: no build given"));
    assert!(page.contains("serve &lt;lariat-memory&gt;"));
    assert!(page.contains("ask lariat-memory --of randread-4k-qd1"));
}

#[test]
fn what_failed_is_told() {
    let mut results = sample();
    for run in &mut results.runs {
        if run.system == "tgt-memory" {
            run.sample = None;
            run.error = Some("iscsi-perf <fell> over\nat length".into());
        }
    }
    let page = html(&results).unwrap();
    assert!(page.contains("<td colspan=\"10\" class=\"why\">failed</td>"));
    assert_eq!(page.matches("<li>tgt-memory: iscsi-perf &lt;fell&gt; over</li>").count(), 3);
}

#[test]
fn the_labs_results_stand_beside() {
    let mut results = sample();
    let mut lab = fixture::results(&[("kernel-nvmet", READ_1, &[1_700.0])]);
    lab.date = "another day".into();
    results.lab = Some(Box::new(lab));
    let page = html(&results).unwrap();
    assert!(page.contains("another day"));
    assert!((cell(&page, "kernel-nvmet", READ_1, "k IOPS") - 1.7).abs() < 1e-9);
}

#[test]
fn numbers_are_short() {
    assert_eq!(["950", "20k", "1.5M"], [950.0, 20_000.0, 1_500_000.0].map(count));
}

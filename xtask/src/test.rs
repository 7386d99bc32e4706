//! `cargo xtask test` and `cargo xtask sim`.

use anyhow::{Result, ensure};

use crate::{lint, setup, shell};

/// What can be chosen for `test`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Leave out formatting, clippy and dependency policy.
    #[arg(long)]
    no_lint: bool,
    /// Only tests whose name contains this.
    filter: Option<String>,
}

/// What can be chosen for `sim`.
#[derive(clap::Args)]
pub(crate) struct SimOptions {
    /// How many seeds to run.
    #[arg(long, default_value_t = 1000, conflicts_with = "seed")]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0, conflicts_with = "seed")]
    from: u64,
    /// Replay this seed, with its trace.
    #[arg(long)]
    seed: Option<u64>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    setup::install(setup::EVERYTHING)?;
    // What the linters complain of hides nothing that the tests have to say.
    let style = if options.no_lint { Ok(()) } else { lint::run() };
    // The end-to-end tests run the real binaries, from the folder the tests themselves are in.
    shell::run(&mut shell::cargo(&["build", "--quiet", "--locked", "--workspace", "--bins"]))?;
    let mut arguments = if shell::find("cargo-nextest").is_some() {
        vec!["nextest", "run", "--workspace", "--locked", "--no-fail-fast"]
    } else {
        vec!["test", "--workspace", "--locked", "--no-fail-fast", "--all-targets"]
    };
    if arguments.first() == Some(&"nextest") {
        arguments.extend(["--profile", profile()]);
    }
    arguments.extend(options.filter.as_deref());
    let report = shell::root().join("build/nextest").join(profile()).join("junit.xml");
    // What an earlier run left is not this one's.
    let _ = std::fs::remove_file(&report);
    let tests = shell::run(&mut shell::cargo(&arguments));
    let examples = if options.filter.is_none() {
        shell::run(&mut shell::cargo(&["test", "--workspace", "--locked", "--quiet", "--doc"]))
    } else {
        Ok(())
    };
    let report = std::fs::read_to_string(&report).unwrap_or_default();
    let mut count = count(&report);
    for (test, why) in skipped(&report) {
        println!("test skipped: {test}: {why}");
        // It passed, and proved nothing.
        count.passed = count.passed.saturating_sub(1);
        count.skipped += 1;
    }
    let mut broken: Vec<_> = [style, examples].into_iter().filter_map(Result::err).collect();
    // Tests that failed are in the report, unless they did not even compile.
    broken.extend(tests.err().filter(|_| count.failed == 0));
    for error in &broken {
        println!("{error:#}");
    }
    count.failed += broken.len();
    println!("{} passed, {} failed, {} skipped", count.passed, count.failed, count.skipped);
    ensure!(count.failed == 0, "not all that must hold does");
    Ok(())
}

/// Of the tests in a report.
#[derive(Debug, Default, PartialEq, Eq)]
struct Count {
    passed: usize,
    failed: usize,
    skipped: usize,
}

/// The tests of nextest's report (JUnit's XML) by how they ended. One that passed when it was tried
/// again passed.
fn count(report: &str) -> Count {
    let mut count = Count::default();
    for case in cases(report) {
        if case.contains("<failure") || case.contains("<error") {
            count.failed += 1;
        } else {
            count.passed += 1;
        }
    }
    count
}

/// The tests in a report: of each what follows its tag's name.
fn cases(report: &str) -> impl Iterator<Item = &str> {
    // A test without output has a tag without a body.
    report.split("<testcase ").skip(1).filter_map(|case| case.split("</testcase>").next())
}

fn profile() -> &'static str {
    if std::env::var_os("CI").is_some() { "ci" } else { "default" }
}

/// Tests that passed because something they need is not there: they say `SKIPPED` on stderr, which
/// nextest's report (JUnit's XML) keeps. The tests, and what they say.
fn skipped(report: &str) -> Vec<(String, String)> {
    cases(report)
        .filter_map(|case| {
            let name = case.split_once("name=\"")?.1.split('"').next()?;
            let marked = case.lines().find_map(|line| line.split_once("SKIPPED"))?;
            let why = marked.1.split("</system-").next()?.trim_start_matches(':').trim();
            Some((name.to_owned(), why.to_owned()))
        })
        .collect()
}

pub(crate) fn sim(options: &SimOptions) -> Result<()> {
    let base = ["run", "--quiet", "--release", "--package", "lariat-tests", "--bin", "sim", "--"];
    let mut command = shell::cargo(&base);
    match options.seed {
        Some(seed) => command.args(["--seed".into(), seed.to_string()]),
        None => command.args([
            "--seeds".to_owned(),
            options.seeds.to_string(),
            "--from".to_owned(),
            options.from.to_string(),
        ]),
    };
    shell::run(&mut command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_counted_and_those_that_say_skipped_are_found() {
        let report = r#"<testsuites><testsuite name="lariat-tests::wire">
        <testcase name="one" classname="c" time="0.1">
            <system-out>running 1 test
test one ... ok
</system-out>
            <system-err>SKIPPED one: no tshark here
</system-err>
        </testcase>
        <testcase name="two" classname="c" time="0.1"/>
        <testcase name="three" classname="c" time="0.1">
            <system-err>SKIPPED: needs root</system-err>
        </testcase>
        <testcase name="four" classname="c" time="0.1">
            <failure type="test failure">thread panicked</failure>
        </testcase>
        <testcase name="five" classname="c" time="0.1">
            <flakyFailure type="test failure">thread panicked</flakyFailure>
        </testcase></testsuite></testsuites>"#;
        assert_eq!(count(report), Count { passed: 4, failed: 1, skipped: 0 });
        assert_eq!(count("<testsuites></testsuites>"), Count::default());
        let found = skipped(report);
        let words = |test: &str, why: &str| (test.to_owned(), why.to_owned());
        assert_eq!(found, [words("one", "one: no tshark here"), words("three", "needs root")]);
    }
}

//! `cargo xtask test` and `cargo xtask sim`.

use anyhow::Result;

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
    if !options.no_lint {
        lint::run()?;
    }
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
    let outcome = shell::run(&mut shell::cargo(&arguments));
    if let Ok(report) = std::fs::read_to_string(&report) {
        for (test, why) in skipped(&report) {
            println!("test skipped: {test}: {why}");
        }
    }
    outcome?;
    if options.filter.is_none() {
        shell::run(&mut shell::cargo(&["test", "--workspace", "--locked", "--quiet", "--doc"]))?;
    }
    Ok(())
}

fn profile() -> &'static str {
    if std::env::var_os("CI").is_some() { "ci" } else { "default" }
}

/// Tests that passed because something they need is not there: they say `SKIPPED` on stderr, which
/// nextest's report (JUnit's XML) keeps. The tests, and what they say.
fn skipped(report: &str) -> Vec<(String, String)> {
    let cases = report.split("<testcase ").skip(1);
    cases
        .filter_map(|case| {
            let case = case.split("</testcase>").next()?;
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
    fn tests_that_say_skipped_are_found() {
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
        </testcase></testsuite></testsuites>"#;
        let found = skipped(report);
        let words = |test: &str, why: &str| (test.to_owned(), why.to_owned());
        assert_eq!(found, [words("one", "one: no tshark here"), words("three", "needs root")]);
    }
}

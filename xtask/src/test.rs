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
    if arguments.first() == Some(&"nextest") && std::env::var_os("CI").is_some() {
        arguments.extend(["--profile", "ci"]);
    }
    arguments.extend(options.filter.as_deref());
    shell::run(&mut shell::cargo(&arguments))?;
    if options.filter.is_none() {
        shell::run(&mut shell::cargo(&["test", "--workspace", "--locked", "--quiet", "--doc"]))?;
    }
    Ok(())
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

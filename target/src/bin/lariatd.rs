//! `lariatd`: serves local disks over NVMe-oF/RDMA. Prints one line, `ready`, when all listeners
//! stand; logs to stderr. All it does is in `lariat_target::daemon`.

use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use lariat_target::daemon::{self, Config};
use tracing_subscriber::EnvFilter;

/// Serves local disks to other machines: an NVMe-oF/RDMA target.
///
/// It prints `ready` when all listeners stand, and logs to stderr; SIGTERM or SIGINT ends it cleanly.
/// The configuration is described in docs/operating.md; configs/loopback.toml is the shortest.
///
/// Exit codes: 0 clean end; 1 could not start; 2 wrong command line or configuration; 3 failed while
/// running; 4 stopped without a clean end.
#[derive(Parser)]
#[command(name = "lariatd", version)]
struct Arguments {
    /// The configuration, a TOML file. LARIATD_* environment variables override its keys
    /// (LARIATD_TARGET__REACTORS=2).
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Check the configuration, say all that is wrong with it, and exit; no disk is made or opened, no
    /// address taken.
    #[arg(long)]
    check: bool,
    /// What to log: a level or a filter ("lariat_target=debug"). Stronger than RUST_LOG, which is
    /// stronger than the configuration.
    #[arg(long, value_name = "FILTER")]
    log: Option<String>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let config = match Config::load(&arguments.config) {
        Ok(config) => config,
        Err(error) => {
            for fault in error.faults() {
                complain(fault);
            }
            return ExitCode::from(2);
        }
    };
    let filter = match log_filter(arguments.log.as_deref(), &config) {
        Ok(filter) => filter,
        Err(error) => return fail(&error, 2),
    };
    if arguments.check {
        return match say(&format!("{}: ok", arguments.config.display())) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&error, 1),
        };
    }
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        // A log that cannot be written (disk full, reader gone) would be told to stderr: the same,
        // with a panic.
        .log_internal_errors(false)
        .init();
    // Before any other thread is started, so that all of them have the signals blocked.
    if let Err(error) = daemon::block_signals() {
        return fail(&error.into(), 1);
    }
    let ready = || {
        if let Err(error) = say("ready") {
            tracing::warn!("cannot say that the target is ready: {error:#}");
        }
    };
    match daemon::run(&config, ready) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let code = error.exit_code();
            fail(&error.into(), code)
        }
    }
}

fn say(line: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).context("cannot write to stdout")
}

fn fail(error: &anyhow::Error, code: u8) -> ExitCode {
    complain(format_args!("{error:#}"));
    ExitCode::from(code)
}

fn complain(what: impl Display) {
    let _ = writeln!(std::io::stderr(), "lariatd: {what}");
}

fn log_filter(option: Option<&str>, config: &Config) -> anyhow::Result<EnvFilter> {
    let variable = std::env::var("RUST_LOG").ok().filter(|filter| !filter.is_empty());
    let filter = option.or(variable.as_deref()).or(config.target.log.as_deref()).unwrap_or("info");
    EnvFilter::try_new(filter)
        .with_context(|| format!("{filter:?} is no log filter; write info or debug, say"))
}

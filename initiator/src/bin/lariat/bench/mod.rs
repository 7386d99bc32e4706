//! `lariat bench`: a workload on one namespace, then its figures. Calls the library; called by `main`.

mod options;
mod pattern;
mod report;
mod run;

use anyhow::{Context, Error, Result};

pub(crate) use self::options::BenchOptions;
use self::report::{Place, Report};
use crate::connect_args::NamespaceArgs;
use crate::failure::{Interrupted, usage};
use crate::output::{OutputFormat, print, print_json};
use crate::signals::Stop;

/// Options of `bench`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    workload: BenchOptions,
    /// How the figures are printed.
    #[arg(short, long, value_enum, default_value = "normal")]
    output_format: OutputFormat,
    /// No live line.
    #[arg(long)]
    quiet: bool,
    #[command(flatten)]
    namespace: NamespaceArgs,
}

/// `lariat bench`.
pub(crate) fn bench(args: &BenchArgs, stop: &Stop) -> Result<()> {
    let options = &args.workload;
    options.check()?;
    let subsystem = &args.namespace.subsystem;
    subsystem.must_hold(options.iodepth)?;
    let controller = subsystem.connect(options.queues, options.iodepth)?;
    let granted = controller.granted_queues();
    if granted < options.queues {
        return Err(usage(format!(
            "the target grants {granted} I/O queues, --queues {} is more: use --queues {granted}, or \
             let it grant more (lariatd: max_queues in [target])",
            options.queues
        )));
    }
    let disk = args.namespace.namespace(&controller)?;
    let geometry = disk.geometry();
    let region = options.region(geometry.block_bytes, geometry.capacity_bytes())?;
    let (report, ended) = run::run(&controller, geometry, options, region, stop, args.quiet)?;
    let place = Place {
        address: subsystem.address(),
        nqn: subsystem.nqn().to_string(),
        nsid: geometry.nsid.0,
        fabric: controller.fabric_name().to_owned(),
    };
    if ended.is_err() && report.is_empty() {
        return ended;
    }
    show(args, &report, &place, ended.as_ref().err(), stop)?;
    ended.context("the figures are those up to this failure")
}

fn show(
    args: &BenchArgs,
    report: &Report,
    place: &Place,
    failure: Option<&Error>,
    stop: &Stop,
) -> Result<()> {
    let options = &args.workload;
    match args.output_format {
        OutputFormat::Normal => print(&report.human(options, place))?,
        OutputFormat::Json => print_json(&report.json(options, place, failure))?,
    }
    if stop.requested() {
        return Err(Interrupted("interrupted; the figures are those up to then".into()).into());
    }
    Ok(())
}

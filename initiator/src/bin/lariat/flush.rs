//! `lariat flush`: the Flush command. Calls the library; called by `main`.

use anyhow::{Context, Result};

use crate::connect_args::NamespaceArgs;
use crate::output::print;

/// Options of `flush`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct FlushOptions {
    /// Print nothing.
    #[arg(long)]
    quiet: bool,
    #[command(flatten)]
    namespace: NamespaceArgs,
}

/// Connects, flushes.
pub(crate) fn run(options: &FlushOptions) -> Result<()> {
    let controller = options.namespace.subsystem.connect(0, 1)?;
    let disk = options.namespace.namespace(&controller)?;
    disk.flush().context("flush")?;
    if options.quiet {
        return Ok(());
    }
    print(&format!("flushed namespace {}\n", disk.geometry().nsid))
}

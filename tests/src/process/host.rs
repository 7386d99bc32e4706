//! Hosts in this process, through the library. Called by tests.

use std::time::Duration;

use anyhow::{Context, Result};
use lariat::{ConnectOptions, Controller, HostId, Nqn};

use super::config::NQN;
use super::target::Target;

/// How host number `host` connects to the target's subsystem.
///
/// # Errors
/// None in practice: the names are valid.
pub fn host_options(target: &Target, host: u8) -> Result<ConnectOptions> {
    let mut options = ConnectOptions::new(target.address(), Nqn::parse(NQN)?);
    options.host_nqn = Nqn::parse(&format!("nqn.2026-11.io.lariat:host{host}"))?;
    options.host_id = HostId([host.max(1); 16]);
    options.connect_timeout = Duration::from_secs(20);
    options.queues = 4;
    Ok(options)
}

/// Connects host number `host`.
///
/// # Errors
/// It cannot; with the target's log.
pub fn connect(target: &Target, host: u8) -> Result<Controller> {
    Controller::connect(host_options(target, host)?)
        .with_context(|| format!("the target's log:\n{}", target.log_text()))
}

//! The configuration of `lariatd`: a TOML file, with overrides from environment variables
//! `LARIATD_*`. Called by `lariatd` and [`run`](super::run()).
//!
//! ```text
//! text                        the file's text, or why it cannot be read
//! listener, subsystem, target the tables, one file each (subsystem: with namespaces and backends)
//! reader (size, words)        a table key by key, with errors that name file, key, fault and mending
//! error                       one fault, and all of them
//! ```
//!
//! A variable names a key by its path, levels separated by two underscores, places in lists by
//! number: `LARIATD_TARGET__REACTORS=2`, `LARIATD_LISTENER__0__PORT=4421`. All keys with their
//! meaning stand in `configs/reference.toml`.

mod error;
mod listener;
mod reader;
mod size;
mod subsystem;
mod target;
mod text;
mod words;

#[cfg(test)]
mod tests;

use core::net::SocketAddr;
use core::time::Duration;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use config::{FileFormat, Value};
use lariat_wire::nvme::{Nqn, Nsid};

use self::error::Faults;
pub use self::error::{ConfigError, Fault};
use self::reader::{Origin, Section, TableName};
use crate::nvme::{AllowedHosts, Limits};
use crate::storage::BackendConfig;

const PREFIX: &str = "LARIATD_";

/// A whole configuration, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The file it comes from, for messages.
    pub file: PathBuf,
    /// Where to listen, at least one.
    pub listeners: Vec<Listener>,
    /// What to serve, at least one.
    pub subsystems: Vec<SubsystemConfig>,
    /// How to run.
    pub target: TargetConfig,
}

/// One `[[listener]]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Address and rdma_cm port.
    pub address: SocketAddr,
    /// As written.
    pub fabric: FabricChoice,
}

/// Which provider a listener uses.
pub use lariat_fabric::provider::Wanted as FabricChoice;

/// What packets of the soft provider may travel over.
pub use lariat_fabric::soft::WireChoice;

/// One `[[subsystem]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubsystemConfig {
    /// Its name.
    pub nqn: Nqn,
    /// Serial number, 1 to 20 printable ASCII characters.
    pub serial: String,
    /// Model number, 1 to 40 printable ASCII characters.
    pub model: String,
    /// Who may connect.
    pub allowed_hosts: AllowedHosts,
    /// Its namespaces.
    pub namespaces: Vec<NamespaceConfig>,
}

/// One `[[subsystem.namespace]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceConfig {
    /// Its identifier.
    pub nsid: Nsid,
    /// What hosts recognise the disk by.
    pub uuid: [u8; 16],
    /// What its blocks stand on.
    pub backend: BackendConfig,
    /// Path of the backend's table, for messages.
    pub key: String,
}

/// The `[target]` table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetConfig {
    /// Reactor threads, 1 to 255.
    pub reactors: u8,
    /// The CPUs to pin them to, one each; empty for no pinning.
    pub cpus: Vec<usize>,
    /// How long a reactor goes on polling after there was work, before it sleeps.
    pub idle_poll: Duration,
    /// What packets of the soft provider may travel over: `Auto` or `Udp`.
    pub wire: WireChoice,
    /// Bytes of buffers for data, per reactor.
    pub buffers_bytes: u32,
    /// Bytes of receive buffers, per reactor.
    pub receive_bytes: usize,
    /// As much as they may grow to where hosts have many queues, in bytes per reactor.
    pub receive_max_bytes: usize,
    /// Whether I/O queues of known hosts share receive buffers.
    pub shared_receive: bool,
    /// How long a clean stop may take.
    pub shutdown_timeout: Duration,
    /// How long a silent host may keep buffers that others wait for; zero: as long as the transport
    /// allows.
    pub starve_timeout: Duration,
    /// After how much idle time a host without keep alive is asked whether it is there; zero: never.
    pub idle_probe: Duration,
    /// What hosts are granted.
    pub limits: Limits,
    /// Log filter, unless the command line or RUST_LOG says otherwise.
    pub log: Option<String>,
}

impl Config {
    /// Reads a file, with the overrides of this process's environment.
    ///
    /// # Errors
    /// All that is wrong, and what to write instead.
    pub fn load(file: &Path) -> Result<Self, ConfigError> {
        let text = text::read(file)?;
        Self::parse(file, &text, std::env::vars_os())
    }

    /// Reads text as if it came from `file`, with overrides from `environment`.
    ///
    /// # Errors
    /// All that is wrong, and what to write instead.
    pub fn parse(
        file: &Path,
        text: &str,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Self, ConfigError> {
        let syntax = |error: config::ConfigError| Fault::Syntax {
            file: file.to_owned(),
            reason: error.to_string().trim_end().to_owned(),
        };
        let mut builder =
            config::Config::builder().add_source(config::File::from_str(text, FileFormat::Toml));
        let mut variables = BTreeMap::new();
        for (variable, path, value) in overrides(environment)? {
            builder = builder.set_override(&path, value).map_err(|_| Fault::Key {
                origin: format!("environment variable {variable}"),
                key: path.clone(),
                wrong: "this does not name a key".to_owned(),
                instead: "write levels separated by two underscores, LARIATD_TARGET__REACTORS, say"
                    .to_owned(),
            })?;
            variables.insert(path, variable);
        }
        let origin = Origin { file, variables };
        let values = builder.build().map_err(syntax)?.cache.into_table().map_err(syntax)?;
        let mut faults = Faults::default();
        let config = read(Section::new(&origin, String::new(), values), &mut faults);
        faults.sort_by_root_key(&text::root_keys(text));
        faults.result(config)
    }

    /// The backends of all namespaces in order, each with the path of its table.
    pub fn backends(&self) -> impl Iterator<Item = (&str, &BackendConfig)> {
        let namespaces = self.subsystems.iter().flat_map(|subsystem| &subsystem.namespaces);
        namespaces.map(|namespace| (namespace.key.as_str(), &namespace.backend))
    }
}

/// The variables of ours: name, path of the key, value. If some are wrong, those alone are named: what they
/// would have said is not known to the rest.
fn overrides(
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Vec<(String, String, Value)>, ConfigError> {
    let mut faults = Faults::default();
    let mut found = BTreeMap::new();
    for (name, value) in environment {
        // A name that is not Unicode is none of ours.
        let Ok(name) = name.into_string() else { continue };
        if name.starts_with(PREFIX) {
            found.insert(name, value);
        }
    }
    let mut values = Vec::new();
    for (name, value) in found {
        if let Some((path, value)) = faults.keep(override_of(&name, value)) {
            values.push((name, path, value));
        }
    }
    faults.result(Some(values))
}

/// What a variable sets: path of the key, value.
fn override_of(name: &str, value: OsString) -> Result<(String, Value), Fault> {
    let rest = name.strip_prefix(PREFIX).unwrap_or(name);
    let path = path_of(rest);
    let fault = |wrong: &str, instead: &str| Fault::Key {
        origin: format!("environment variable {name}"),
        key: path.clone(),
        wrong: wrong.to_owned(),
        instead: instead.to_owned(),
    };
    // The library makes lists as long as the place says, whatever memory that takes.
    if rest.split("__").any(|level| level.len() > 4 && is_place(level)) {
        return Err(fault("no list is that long", "write a place from 0 to 9999"));
    }
    match value.into_string() {
        Ok(value) => Ok((path, Value::from(value))),
        Err(_) => Err(fault("its value is not Unicode", "write it in UTF-8")),
    }
}

/// Whether a level of a variable's name is a place in a list.
fn is_place(level: &str) -> bool {
    !level.is_empty() && level.bytes().all(|byte| byte.is_ascii_digit())
}

/// `LISTENER__0__PORT` as `listener[0].port`.
fn path_of(variable: &str) -> String {
    let mut path = String::new();
    for level in variable.split("__") {
        if is_place(level) {
            path.push_str(&format!("[{level}]"));
        } else {
            if !path.is_empty() {
                path.push('.');
            }
            path.push_str(&level.to_lowercase());
        }
    }
    path
}

/// Reads all tables. Without a fault there is a configuration.
fn read(mut root: Section<'_>, faults: &mut Faults) -> Option<Config> {
    let file = root.origin().file.to_owned();
    faults.extend(root.misspelt_tables(&[
        TableName::One("target"),
        TableName::List("listener"),
        TableName::List("subsystem"),
    ]));
    let target = root.section_or_empty("target").and_then(target::read);
    let listeners = root.some_sections("listener", "address = \"127.0.0.1\"");
    let subsystems = root.some_sections("subsystem", "nqn = \"nqn.2026-11.io.lariat:disk\"");

    let target = faults.keep(target);
    let listeners = faults.keep(listeners).map(|sections| listener::read_all(sections, faults));
    let subsystems = faults.keep(subsystems).map(|sections| subsystem::read_all(sections, faults));
    // A list that is missing has told of the key that it may be hidden in.
    let (listeners, subsystems) = (listeners?, subsystems?);
    faults.keep(root.finish())?;
    Some(Config { file, listeners, subsystems, target: target? })
}

//! The configuration of `lariatd`: a TOML file, with overrides from environment variables
//! `LARIATD_*`. Called by `lariatd` and [`run`](super::run()).
//!
//! A variable names a key by its path, levels separated by two underscores, places in lists by
//! number: `LARIATD_TARGET__REACTORS=2`, `LARIATD_LISTENER__0__PORT=4421`. All keys with their
//! meaning stand in `configs/reference.toml`.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use config::{FileFormat, Value};
use lariat_wire::nvme::{Nqn, Nsid, QueueSize};
use uuid::Uuid;

pub use super::reader::ConfigError;
use super::reader::{Origin, Section, TableName};
use crate::nvme::{AllowedHosts, Limits};
use crate::storage::{BackendConfig, BackendKind};

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
    /// What is wrong, and what to write instead.
    pub fn load(file: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(file).map_err(|error| ConfigError::Unreadable {
            file: file.to_owned(),
            reason: error.to_string(),
        })?;
        Self::parse(file, &text, std::env::vars_os())
    }

    /// Reads text as if it came from `file`, with overrides from `environment`.
    ///
    /// # Errors
    /// What is wrong, and what to write instead.
    pub fn parse(
        file: &Path,
        text: &str,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Self, ConfigError> {
        let syntax = |error: config::ConfigError| ConfigError::Syntax {
            file: file.to_owned(),
            reason: error.to_string().trim_end().to_owned(),
        };
        let mut builder =
            config::Config::builder().add_source(config::File::from_str(text, FileFormat::Toml));
        let mut variables = BTreeMap::new();
        for (variable, path, value) in overrides(environment)? {
            builder = builder.set_override(&path, value).map_err(|_| ConfigError::Key {
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
        read(Section::new(&origin, String::new(), values), file)
    }

    /// The backends of all namespaces in order, each with the path of its table.
    pub fn backends(&self) -> impl Iterator<Item = (&str, &BackendConfig)> {
        let namespaces = self.subsystems.iter().flat_map(|subsystem| &subsystem.namespaces);
        namespaces.map(|namespace| (namespace.key.as_str(), &namespace.backend))
    }
}

/// The variables of ours: name, path of the key, value.
fn overrides(
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Vec<(String, String, Value)>, ConfigError> {
    let mut found = BTreeMap::new();
    for (name, value) in environment {
        // A name that is not Unicode is none of ours.
        let Ok(name) = name.into_string() else { continue };
        let Some(rest) = name.strip_prefix(PREFIX) else { continue };
        let path = path_of(rest);
        // The library makes lists as long as the place says, whatever memory that takes.
        if rest.split("__").any(|level| level.len() > 4 && is_place(level)) {
            return Err(ConfigError::Key {
                origin: format!("environment variable {name}"),
                key: path,
                wrong: "no list is that long".to_owned(),
                instead: "write a place from 0 to 9999".to_owned(),
            });
        }
        let value = value.into_string().map_err(|_| ConfigError::Key {
            origin: format!("environment variable {name}"),
            key: path.clone(),
            wrong: "its value is not Unicode".to_owned(),
            instead: "write it in UTF-8".to_owned(),
        })?;
        found.insert(name, (path, Value::from(value)));
    }
    Ok(found.into_iter().map(|(name, (path, value))| (name, path, value)).collect())
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

fn read(mut root: Section<'_>, file: &Path) -> Result<Config, ConfigError> {
    root.no_misspelt_table(&[
        TableName::One("target"),
        TableName::List("listener"),
        TableName::List("subsystem"),
    ])?;
    let target = read_target(root.section_or_empty("target")?)?;

    let mut listeners: Vec<Listener> = Vec::new();
    for section in root.sections("listener")? {
        let path = section.path().to_owned();
        let listener = read_listener(section)?;
        if listeners.iter().any(|other| other.address == listener.address) {
            let wrong = format!("{} is listened on twice", listener.address);
            return Err(root.wrong(&path, wrong, "remove one, or give it another port"));
        }
        listeners.push(listener);
    }
    if listeners.is_empty() {
        let instead = "write [[listener]] with address = \"127.0.0.1\", say";
        return Err(root.wrong("listener", "there is none", instead));
    }

    let mut subsystems: Vec<SubsystemConfig> = Vec::new();
    for section in root.sections("subsystem")? {
        let path = section.path().to_owned();
        let subsystem = read_subsystem(section)?;
        if subsystems.iter().any(|other| other.nqn == subsystem.nqn) {
            let wrong = format!("another subsystem is named {}", subsystem.nqn);
            return Err(root.wrong(&format!("{path}.nqn"), wrong, "give it a name of its own"));
        }
        subsystems.push(subsystem);
    }
    if subsystems.is_empty() {
        let instead = "write [[subsystem]] with nqn = \"nqn.2026-11.io.lariat:disk\", say";
        return Err(root.wrong("subsystem", "there is none", instead));
    }
    check_unique_disks(&root, &subsystems)?;
    root.finish()?;
    Ok(Config { file: file.to_owned(), listeners, subsystems, target })
}

fn check_unique_disks(
    root: &Section<'_>,
    subsystems: &[SubsystemConfig],
) -> Result<(), ConfigError> {
    let mut uuids = BTreeMap::new();
    for namespace in subsystems.iter().flat_map(|subsystem| &subsystem.namespaces) {
        if let Some(other) = uuids.insert(namespace.uuid, &namespace.key) {
            return Err(root.wrong(
                &namespace.key.replace(".backend", ".uuid"),
                format_args!("{other} has the same UUID, so hosts would take both for one disk"),
                "give each its own (uuidgen makes one), or none",
            ));
        }
    }
    Ok(())
}

fn read_listener(mut section: Section<'_>) -> Result<Listener, ConfigError> {
    let instead = "write an IPv4 or IPv6 address of this machine: address = \"127.0.0.1\"";
    let text = section.text("address", instead)?;
    let text = section.required("address", text, instead)?;
    let address: IpAddr = text.parse().map_err(|_| match address_and_port(&text) {
        Some((address, Some(port))) => section.wrong(
            "address",
            format_args!("{text:?} is an address and a port"),
            format_args!(
                "the port (hosts' trsvcid) has a key of its own: address = \"{address}\" and \
                 port = {port}"
            ),
        ),
        Some((address, None)) => section.wrong(
            "address",
            format_args!("{text:?} has brackets"),
            format_args!("write address = \"{address}\""),
        ),
        None => section.wrong("address", format_args!("{text:?} is no IP address"), instead),
    })?;
    // ::ffff:192.0.2.7 is 192.0.2.7.
    let address = address.to_canonical();
    if address.is_unspecified() {
        let wrong = format_args!("{address} stands for all addresses, and hosts need one");
        return Err(section.wrong("address", wrong, instead));
    }
    if address.is_multicast() || address == IpAddr::V4(Ipv4Addr::BROADCAST) {
        let wrong = format_args!("{address} stands for several machines, and hosts need one");
        return Err(section.wrong("address", wrong, instead));
    }
    let port = section.number("port", 1..=u16::MAX)?.unwrap_or(4420);
    let instead = if cfg!(feature = "ib") {
        "write fabric = \"auto\", fabric = \"ib\" or fabric = \"soft\""
    } else {
        "write fabric = \"auto\" or fabric = \"soft\""
    };
    let fabric = match section.text("fabric", instead)?.as_deref() {
        None | Some("auto") => FabricChoice::Auto,
        Some("soft") => FabricChoice::Soft,
        Some("ib") if cfg!(feature = "ib") => FabricChoice::Ib,
        Some("ib") => {
            let wrong = "\"ib\" (RDMA devices through libibverbs) is not built into this lariatd";
            return Err(section.wrong("fabric", wrong, instead));
        }
        Some(other) => {
            return Err(section.wrong("fabric", format_args!("{other:?} is none"), instead));
        }
    };
    section.finish()?;
    Ok(Listener { address: SocketAddr::new(address, port), fabric })
}

/// An address as it is written elsewhere: with a port behind it, or in brackets.
/// None if that could not be listened at.
fn address_and_port(text: &str) -> Option<(IpAddr, Option<u16>)> {
    let found = match text.parse::<SocketAddr>() {
        Ok(both) => (both.ip(), Some(both.port())),
        Err(_) => (text.strip_prefix('[')?.strip_suffix(']')?.parse().ok()?, None),
    };
    (!found.0.is_unspecified() && found.1 != Some(0)).then_some(found)
}

fn read_subsystem(mut section: Section<'_>) -> Result<SubsystemConfig, ConfigError> {
    section.no_misspelt_table(&[TableName::List("namespace")])?;
    let instead = "write a name like nqn = \"nqn.2026-11.io.lariat:disk\"";
    let text = section.text("nqn", instead)?;
    let text = section.required("nqn", text, instead)?;
    let nqn = Nqn::parse(&text).map_err(|error| section.wrong("nqn", error, instead))?;
    if nqn.is_discovery() {
        let wrong = "this is the name of the discovery subsystem, which is built in";
        return Err(section.wrong("nqn", wrong, instead));
    }
    let serial = identity(&mut section, "serial", 20)?.unwrap_or_else(|| {
        let [a, b, c, d, e, f, g, h, ..] = digest(nqn.as_ref().as_bytes());
        format!("{:016X}", u64::from_be_bytes([a, b, c, d, e, f, g, h]))
    });
    let model = identity(&mut section, "model", 40)?.unwrap_or_else(|| "Lariat".to_owned());
    let allowed_hosts = read_hosts(&mut section)?;

    let mut namespaces: Vec<NamespaceConfig> = Vec::new();
    for inner in section.sections("namespace")? {
        let path = inner.path().to_owned();
        let namespace = read_namespace(inner, &nqn)?;
        if namespaces.iter().any(|other| other.nsid == namespace.nsid) {
            let wrong = format!("another namespace has nsid {} too", namespace.nsid.0);
            let key = path.rsplit('.').next().unwrap_or_default();
            return Err(section.wrong(&format!("{key}.nsid"), wrong, "number them 1, 2, ..."));
        }
        namespaces.push(namespace);
    }
    section.finish()?;
    Ok(SubsystemConfig { nqn, serial, model, allowed_hosts, namespaces })
}

/// A short ASCII text of the Identify data.
fn identity(
    section: &mut Section<'_>,
    key: &'static str,
    max: usize,
) -> Result<Option<String>, ConfigError> {
    let instead = format!("write 1 to {max} printable ASCII characters");
    let Some(text) = section.text(key, &instead)? else { return Ok(None) };
    let fits = (1..=max).contains(&text.len()) && text.bytes().all(|b| matches!(b, 0x20..=0x7e));
    if fits { Ok(Some(text)) } else { Err(section.wrong(key, format!("{text:?}"), instead)) }
}

fn read_hosts(section: &mut Section<'_>) -> Result<AllowedHosts, ConfigError> {
    let instead = "write allow_any_host = true, or allowed_hosts = [\"nqn...\", ...] with the names \
                   of hosts (/etc/nvme/hostnqn on them)";
    let any = section.flag("allow_any_host")?;
    let names = section.texts("allowed_hosts", instead)?;
    match (any, names) {
        (Some(true), None) => Ok(AllowedHosts::Any),
        (Some(true), Some(_)) => {
            Err(section.wrong("allowed_hosts", "allow_any_host is true as well", instead))
        }
        (None | Some(false), None) => {
            Err(section.wrong("allow_any_host", "nobody would be allowed to connect", instead))
        }
        (None | Some(false), Some(names)) => {
            let mut hosts = BTreeSet::new();
            for name in names {
                let host = Nqn::parse(&name)
                    .map_err(|error| section.wrong("allowed_hosts", error, instead))?;
                hosts.insert(host);
            }
            if hosts.is_empty() {
                let wrong = "the list is empty: nobody would be allowed to connect";
                return Err(section.wrong("allowed_hosts", wrong, instead));
            }
            Ok(AllowedHosts::Only(hosts))
        }
    }
}

fn read_namespace(mut section: Section<'_>, nqn: &Nqn) -> Result<NamespaceConfig, ConfigError> {
    section.no_misspelt_table(&[TableName::One("backend")])?;
    let nsid = section.number("nsid", 1..=crate::nvme::subsystem::MAX_NSID)?;
    let nsid = section.required("nsid", nsid, "number the namespaces: nsid = 1")?;
    let instead = "write one as uuidgen prints it, or leave it out";
    let uuid = match section.text("uuid", instead)? {
        None => derived_uuid(nqn, nsid),
        Some(text) => match Uuid::parse_str(&text) {
            Ok(uuid) if !uuid.is_nil() => uuid.into_bytes(),
            _ => return Err(section.wrong("uuid", format!("{text:?} is no UUID"), instead)),
        },
    };
    let inner = section.section("backend")?;
    let key = section.path_of("backend");
    let instead =
        "write [subsystem.namespace.backend] with type = \"file\" and path = \"...\", say";
    let backend = read_backend(section.required("backend", inner, instead)?)?;
    section.finish()?;
    Ok(NamespaceConfig { nsid: Nsid(nsid), uuid, backend, key })
}

fn read_backend(mut section: Section<'_>) -> Result<BackendConfig, ConfigError> {
    let instead = "write type = \"file\", type = \"memory\" or type = \"null\"";
    let kind = section.text("type", instead)?;
    let kind = section.required("type", kind, instead)?;
    let block_bytes = match section.number("block_size", 512..=4096)? {
        None => 4096,
        Some(bytes @ (512 | 4096)) => bytes,
        Some(other) => {
            let instead = "write block_size = 512 or block_size = 4096";
            return Err(section.wrong("block_size", other, instead));
        }
    };
    let read_only = section.flag("read_only")?.unwrap_or(false);
    let size = section.size("size")?;
    if let Some(bytes) = size
        && (bytes == 0 || !bytes.is_multiple_of(u64::from(block_bytes)))
    {
        let wrong = format!("{bytes} bytes are no whole number of blocks of {block_bytes}");
        let instead = match bytes - bytes % u64::from(block_bytes) {
            0 => format!("write a multiple of {block_bytes}, size = \"1GiB\", say"),
            less => format!("write a multiple of {block_bytes}, size = {less}, say"),
        };
        return Err(section.wrong("size", wrong, instead));
    }
    let kind = match kind.as_str() {
        "file" => {
            let instead = "write the file or block device: path = \"/srv/disk.img\"";
            let path = section.text("path", instead)?;
            let path = PathBuf::from(section.required("path", path, instead)?);
            let create = section.flag("create")?.unwrap_or(false);
            if create && size.is_none() {
                let instead = "write how large it shall be made: size = \"10GiB\"";
                return Err(section.wrong("size", "create = true needs a size", instead));
            }
            BackendKind::File { path, size_bytes: size, create }
        }
        kind @ ("memory" | "null") => {
            let instead = "write how large the disk shall be: size = \"1GiB\"";
            let size_bytes = section.required("size", size, instead)?;
            if kind == "memory" {
                BackendKind::Memory { size_bytes }
            } else {
                BackendKind::Null { size_bytes }
            }
        }
        other => return Err(section.wrong("type", format!("{other:?} is none"), instead)),
    };
    section.finish()?;
    Ok(BackendConfig { kind, block_bytes, read_only })
}

fn read_target(mut section: Section<'_>) -> Result<TargetConfig, ConfigError> {
    let instead = "write the numbers of CPUs, one per reactor: cpus = [0, 1]";
    let cpus = section.numbers("cpus", instead)?.unwrap_or_default();
    let distinct: BTreeSet<_> = cpus.iter().collect();
    if distinct.len() < cpus.len() || cpus.iter().any(|cpu| *cpu >= 1024) {
        return Err(section.wrong("cpus", format!("{cpus:?} has doubles, or no CPUs"), instead));
    }
    let reactors = section.number("reactors", 1..=255_u8)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let default = if cpus.is_empty() { cores } else { cpus.len() };
    let reactors = reactors.unwrap_or_else(|| u8::try_from(default).unwrap_or(u8::MAX));
    if !cpus.is_empty() && cpus.len() != usize::from(reactors) {
        let wrong = format!("there are {reactors} reactors for {} CPUs", cpus.len());
        return Err(section.wrong("cpus", wrong, instead));
    }

    let instead = "write wire = \"auto\" (shared memory with hosts that are processes of the same \
                   user on this machine, UDP with all others) or wire = \"udp\"";
    let wire = match section.text("wire", instead)?.as_deref() {
        None | Some("auto") => WireChoice::Auto,
        Some("udp") => WireChoice::Udp,
        Some(other) => return Err(section.wrong("wire", format_args!("{other:?}"), instead)),
    };

    let standard = Limits::default();
    let idle_poll_us = section.number("idle_poll_us", 0..=10_000_000_u64)?.unwrap_or(50);
    let buffers_mib = section.number("buffers_mib", 1..=1023_u32)?.unwrap_or(32);
    let receive_mib = section.number("receive_mib", 1..=1024_u32)?.unwrap_or(32);
    let receive_max_mib = section.number("receive_max_mib", 1..=65_536_u32)?;
    let receive_max_mib = receive_max_mib.unwrap_or(512.max(receive_mib));
    if receive_max_mib < receive_mib {
        let wrong = format!("{receive_max_mib} is less than receive_mib, {receive_mib}");
        return Err(section.wrong("receive_max_mib", wrong, "write more, or lower receive_mib"));
    }
    let shared_receive = section.flag("shared_receive")?.unwrap_or(false);
    let shutdown_s = section.number("shutdown_timeout_s", 1..=3600_u64)?.unwrap_or(10);
    let starve_s = section.number("starve_timeout_s", 0..=3600_u64)?.unwrap_or(3);
    let probe_s = section.number("idle_probe_s", 0..=86_400_u64)?.unwrap_or(30);
    let depth = section.number("max_queue_depth", 2..=1024_u16)?;
    let mdts_kib = section.number("mdts_kib", 8..=8192_u32)?.unwrap_or(standard.mdts_bytes >> 10);
    if !mdts_kib.is_power_of_two() {
        let instead = "write a power of two from 8 to 8192";
        return Err(section.wrong("mdts_kib", format!("{mdts_kib} is no power of two"), instead));
    }
    if mdts_kib >> 10 > buffers_mib {
        let wrong = format!("one transfer of {mdts_kib} KiB does not fit");
        return Err(section.wrong("buffers_mib", wrong, "write more, or lower mdts_kib"));
    }
    let in_capsule = section.number("in_capsule_bytes", 0..=65_536_u32)?;
    let in_capsule = in_capsule.unwrap_or(standard.in_capsule_bytes);
    if !in_capsule.is_multiple_of(16) {
        let instead = "write a multiple of 16 (0: no data in capsules)";
        return Err(section.wrong("in_capsule_bytes", in_capsule, instead));
    }
    let limits = Limits {
        max_queues: section.number("max_queues", 1..=1024)?.unwrap_or(standard.max_queues),
        // A queue of n + 1 entries holds n commands (NVMe Base 2.1, 3.3.3.1): n zero-based.
        max_queue_depth: depth.map_or(standard.max_queue_depth, QueueSize::from_zero_based),
        mdts_bytes: mdts_kib << 10,
        in_capsule_bytes: in_capsule,
        max_hosts: section.number("max_hosts", 1..=65_519)?.unwrap_or(standard.max_hosts),
    };
    let log = section.text("log", "write a level or filter: log = \"info\"")?;
    section.finish()?;
    Ok(TargetConfig {
        reactors,
        cpus,
        idle_poll: Duration::from_micros(idle_poll_us),
        wire,
        buffers_bytes: buffers_mib << 20,
        receive_bytes: (receive_mib as usize) << 20,
        receive_max_bytes: (receive_max_mib as usize) << 20,
        shared_receive,
        shutdown_timeout: Duration::from_secs(shutdown_s),
        starve_timeout: Duration::from_secs(starve_s),
        idle_probe: Duration::from_secs(probe_s),
        limits,
        log,
    })
}

/// The UUID of a namespace that is given none: always the same for a name and a number, so that
/// hosts find their disk again. A version 8 UUID (RFC 9562, 5.8).
fn derived_uuid(nqn: &Nqn, nsid: u32) -> [u8; 16] {
    let mut name = nqn.as_ref().as_bytes().to_vec();
    name.push(0);
    name.extend_from_slice(&nsid.to_be_bytes());
    uuid::Builder::from_custom_bytes(digest(&name)).into_uuid().into_bytes()
}

/// FNV-1a in 128 bits: spreads names, keeps no secrets.
fn digest(bytes: &[u8]) -> [u8; 16] {
    let hash = bytes.iter().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128, |hash, byte| {
        (hash ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    });
    hash.to_be_bytes()
}

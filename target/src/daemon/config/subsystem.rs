//! The tables `[[subsystem]]`, with their namespaces and the backends of those. Called by `config`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use lariat_wire::nvme::{Nqn, Nsid};
use uuid::Uuid;

use super::error::{Fault, Faults};
use super::reader::{Section, TableName};
use super::{NamespaceConfig, SubsystemConfig};
use crate::nvme::AllowedHosts;
use crate::storage::{BackendConfig, BackendKind};

/// Reads all of them; those whose own keys have faults are left out, and so are such namespaces.
pub(super) fn read_all(sections: Vec<Section<'_>>, faults: &mut Faults) -> Vec<SubsystemConfig> {
    let mut subsystems: Vec<SubsystemConfig> = Vec::new();
    let mut uuids = BTreeMap::new();
    for section in sections {
        let (origin, path) = (section.origin(), section.path().to_owned());
        let Some(subsystem) = read(section, faults) else { continue };
        if subsystems.iter().any(|other| other.nqn == subsystem.nqn) {
            let wrong = format_args!("another subsystem is named {}", subsystem.nqn);
            faults.add(origin.fault(format!("{path}.nqn"), wrong, "give it a name of its own"));
            continue;
        }
        for namespace in &subsystem.namespaces {
            if let Some(other) = uuids.insert(namespace.uuid, namespace.key.clone()) {
                faults.add(origin.fault(
                    namespace.key.replace(".backend", ".uuid"),
                    format_args!(
                        "{other} has the same UUID, so hosts would take both for one disk"
                    ),
                    "give each its own (uuidgen makes one), or none",
                ));
            }
        }
        subsystems.push(subsystem);
    }
    subsystems
}

/// None if its own keys have a fault.
fn read(mut section: Section<'_>, faults: &mut Faults) -> Option<SubsystemConfig> {
    let origin = section.origin();
    faults.extend(section.misspelt_tables(&[TableName::List("namespace")]));
    let inner = section.sections("namespace");
    let names = read_names(section);
    // In the file its own keys come first.
    let names = faults.keep(names);
    let inner = faults.keep(inner).unwrap_or_default();
    let nqn = names.as_ref().map(|names| &names.nqn);

    let mut namespaces: Vec<NamespaceConfig> = Vec::new();
    for section in inner {
        let path = section.path().to_owned();
        let Some(namespace) = read_namespace(section, nqn, faults) else { continue };
        if namespaces.iter().any(|other| other.nsid == namespace.nsid) {
            let wrong = format_args!("another namespace has nsid {} too", namespace.nsid.0);
            faults.add(origin.fault(format!("{path}.nsid"), wrong, "number them 1, 2, ..."));
        } else {
            namespaces.push(namespace);
        }
    }
    let Names { nqn, serial, model, allowed_hosts } = names?;
    Some(SubsystemConfig { nqn, serial, model, allowed_hosts, namespaces })
}

/// What a subsystem is called and who may see it.
struct Names {
    nqn: Nqn,
    serial: String,
    model: String,
    allowed_hosts: AllowedHosts,
}

fn read_names(mut section: Section<'_>) -> Result<Names, Fault> {
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
    section.finish()?;
    Ok(Names { nqn, serial, model, allowed_hosts })
}

/// A short ASCII text of the Identify data.
fn identity(
    section: &mut Section<'_>,
    key: &'static str,
    max: usize,
) -> Result<Option<String>, Fault> {
    let instead = format!("write 1 to {max} printable ASCII characters");
    let Some(text) = section.text(key, &instead)? else { return Ok(None) };
    let fits = (1..=max).contains(&text.len()) && text.bytes().all(|b| matches!(b, 0x20..=0x7e));
    if fits { Ok(Some(text)) } else { Err(section.wrong(key, format!("{text:?}"), instead)) }
}

fn read_hosts(section: &mut Section<'_>) -> Result<AllowedHosts, Fault> {
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

/// None if it has a fault. Without its subsystem's name it is read for its faults alone.
fn read_namespace(
    mut section: Section<'_>,
    nqn: Option<&Nqn>,
    faults: &mut Faults,
) -> Option<NamespaceConfig> {
    faults.extend(section.misspelt_tables(&[TableName::One("backend")]));
    let key = section.path_of("backend");
    let inner = section.section("backend");
    let is_missing = matches!(inner, Ok(None)) && !section.is_misspelt("backend");
    // In the file its own keys come first.
    let identifiers = faults.keep(read_identifiers(section, nqn, is_missing));
    let inner = faults.keep(inner).flatten();
    let backend = inner.and_then(|inner| faults.keep(read_backend(inner)));
    let (nsid, uuid) = identifiers?;
    Some(NamespaceConfig { nsid: Nsid(nsid), uuid, backend: backend?, key })
}

/// A namespace's number and UUID, and that it has nothing else but a backend.
fn read_identifiers(
    mut section: Section<'_>,
    nqn: Option<&Nqn>,
    no_backend: bool,
) -> Result<(u32, [u8; 16]), Fault> {
    let nsid = section.number("nsid", 1..=crate::nvme::subsystem::MAX_NSID)?;
    let nsid = section.required("nsid", nsid, "number the namespaces: nsid = 1")?;
    let instead = "write one as uuidgen prints it, or leave it out";
    let uuid = match section.text("uuid", instead)? {
        None => nqn.map_or([0; 16], |nqn| derived_uuid(nqn, nsid)),
        Some(text) => match Uuid::parse_str(&text) {
            Ok(uuid) if !uuid.is_nil() => uuid.into_bytes(),
            _ => return Err(section.wrong("uuid", format!("{text:?} is no UUID"), instead)),
        },
    };
    if no_backend {
        let instead =
            "write [subsystem.namespace.backend] with type = \"file\" and path = \"...\", say";
        return Err(section.wrong("backend", "is missing", instead));
    }
    section.finish()?;
    Ok((nsid, uuid))
}

fn read_backend(mut section: Section<'_>) -> Result<BackendConfig, Fault> {
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
            let path = section.required("path", path, instead)?;
            if path.is_empty() {
                return Err(section.wrong("path", "is empty", instead));
            }
            if path.starts_with("~/") {
                let wrong = format_args!("{path:?} has ~ for a home, which shells alone know");
                return Err(section.wrong("path", wrong, "write the whole path, from / on"));
            }
            let path = PathBuf::from(path);
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

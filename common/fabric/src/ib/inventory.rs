//! The RDMA devices of the machine, as sysfs shows them to everybody: for messages that say what to
//! do. Called by `cover`, `fabric` and `mod`.

use std::fs;
use std::io;
use std::path::Path;

use crate::provider::Network;

/// A port of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Port {
    pub(super) device: String,
    pub(super) number: u8,
    /// `ACTIVE`, `DOWN`, ...
    pub(super) state: String,
    /// `Ethernet` or `InfiniBand`.
    pub(super) link: String,
    /// Network interfaces on it.
    pub(super) interfaces: Vec<String>,
}

impl core::fmt::Display for Port {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { device, number, state, link, interfaces } = self;
        write!(f, "{device} port {number} {state} ({link}")?;
        match interfaces.as_slice() {
            [] => write!(f, ", no network interface)"),
            some => write!(f, ", {})", some.join(" ")),
        }
    }
}

fn line(path: &Path) -> String {
    fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default()
}

fn names(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let mut names: Vec<_> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// All ports.
pub(super) fn ports() -> Vec<Port> {
    ports_below(Path::new("/sys/class"))
}

fn ports_below(class: &Path) -> Vec<Port> {
    let mut ports = Vec::new();
    let devices = class.join("infiniband");
    for device in names(&devices) {
        let ipoib = names(&class.join("net")).into_iter().filter(|interface| {
            class.join("net").join(interface).join("device/infiniband").join(&device).exists()
        });
        let ipoib: Vec<_> = ipoib.collect();
        for number in names(&devices.join(&device).join("ports")) {
            let port = devices.join(&device).join("ports").join(&number);
            let Ok(number) = number.parse() else { continue };
            let gids = port.join("gid_attrs/ndevs");
            let mut interfaces: Vec<_> =
                names(&gids).iter().map(|gid| line(&gids.join(gid))).collect();
            interfaces.retain(|interface| !interface.is_empty());
            if interfaces.is_empty() {
                interfaces.clone_from(&ipoib);
            }
            interfaces.sort();
            interfaces.dedup();
            let state = line(&port.join("state"));
            let state = state.split(": ").last().unwrap_or_default().to_owned();
            let link = line(&port.join("link_layer"));
            ports.push(Port { device: device.clone(), number, state, link, interfaces });
        }
    }
    ports
}

/// What a port speaks.
pub(super) fn network(device: &str, port: u8) -> Network {
    network_below(Path::new("/sys/class"), device, port)
}

fn network_below(class: &Path, device: &str, port: u8) -> Network {
    let device = class.join("infiniband").join(device);
    // "4: RNIC"
    if line(&device.join("node_type")).starts_with('4') {
        return Network::Iwarp;
    }
    let port = device.join("ports").join(port.to_string());
    if line(&port.join("link_layer")) == "InfiniBand" {
        return Network::InfiniBand;
    }
    let types = port.join("gid_attrs/types");
    let types: Vec<_> = names(&types).iter().map(|gid| line(&types.join(gid))).collect();
    let first = types.iter().any(|kind| kind.ends_with("RoCE v1"));
    let second = types.iter().any(|kind| kind == "RoCE v2");
    if first && !second { Network::RoceV1 } else { Network::RoceV2 }
}

/// All ports in words.
pub(super) fn describe() -> String {
    let ports: Vec<_> = ports().iter().map(Port::to_string).collect();
    if ports.is_empty() {
        "this machine has no RDMA device".to_owned()
    } else {
        let ports = ports.join(", ");
        // Devices that may not be opened are none to libibverbs.
        match forbidden() {
            Some(file) => {
                format!("the RDMA devices are {ports}, but there is no permission on {file}")
            }
            None => format!("the RDMA devices are {ports}"),
        }
    }
}

/// The file of a device that this user may not use.
pub(super) fn forbidden() -> Option<String> {
    forbidden_in(Path::new("/dev/infiniband"))
}

fn forbidden_in(folder: &Path) -> Option<String> {
    let files = names(folder).into_iter().filter(|name| name.starts_with("uverbs"));
    files.map(|name| folder.join(name)).find_map(|file| {
        let opened = fs::File::options().read(true).write(true).open(&file);
        let refused = opened.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied);
        refused.then(|| file.display().to_string())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sysfs_is_read() {
        let root = std::env::temp_dir().join(format!("lariat-inventory-{}", std::process::id()));
        let port = root.join("infiniband/rxe0/ports/1");
        let gids = port.join("gid_attrs/ndevs");
        fs::create_dir_all(&gids).unwrap();
        fs::write(port.join("state"), "4: ACTIVE\n").unwrap();
        fs::write(port.join("link_layer"), "Ethernet\n").unwrap();
        fs::write(gids.join("0"), "eth7\n").unwrap();
        fs::write(gids.join("1"), "eth7\n").unwrap();
        let ports = ports_below(&root);
        let network = || network_below(&root, "rxe0", 1);
        assert_eq!(network(), Network::RoceV2);
        let types = port.join("gid_attrs/types");
        fs::create_dir_all(&types).unwrap();
        fs::write(types.join("0"), "IB/RoCE v1\n").unwrap();
        assert_eq!(network(), Network::RoceV1);
        fs::write(types.join("1"), "RoCE v2\n").unwrap();
        assert_eq!(network(), Network::RoceV2);
        fs::write(port.join("link_layer"), "InfiniBand\n").unwrap();
        assert_eq!(network(), Network::InfiniBand);
        fs::write(root.join("infiniband/rxe0/node_type"), "4: RNIC\n").unwrap();
        assert_eq!(network(), Network::Iwarp);
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(ports.len(), 1);
        assert_eq!(ports[0].to_string(), "rxe0 port 1 ACTIVE (Ethernet, eth7)");
        assert!(ports_below(&root).is_empty());
    }
}

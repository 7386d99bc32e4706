//! The TOML that `lariatd` is given. Called by tests, through `target`.

use std::fmt::{Display, Write as _};
use std::net::IpAddr;
use std::path::PathBuf;

use super::scratch::free_address;

/// The subsystem's name.
pub const NQN: &str = "nqn.2026-11.io.lariat:e2e";
/// The port that targets listen on.
pub const PORT: u16 = 4420;

/// What a namespace stands on.
#[derive(Clone, Debug)]
pub enum Backend {
    /// A file that is there.
    File(PathBuf),
    /// Memory of this many bytes.
    Memory(u64),
    /// Nothing, of this many bytes.
    Null(u64),
}

/// One namespace.
#[derive(Clone, Debug)]
pub struct DiskConfig {
    /// What it stands on.
    pub backend: Backend,
    /// Bytes of a block, 512 or 4,096.
    pub block_bytes: u32,
}

/// A target with one subsystem. Namespaces are numbered 1, 2, ...
#[derive(Clone, Debug)]
pub struct TargetConfig {
    /// Where it listens.
    pub address: IpAddr,
    /// Its disks.
    pub disks: Vec<DiskConfig>,
    /// The only host that may connect; `None` for any.
    pub allowed_host: Option<String>,
    /// Whether it talks UDP only, also to hosts on this machine.
    pub udp: bool,
    /// Keys of the `[target]` table.
    pub settings: Vec<(&'static str, String)>,
}

impl TargetConfig {
    /// A target without disks on an address of its own.
    #[must_use]
    pub fn new() -> Self {
        let address = free_address();
        Self { address, disks: Vec::new(), allowed_host: None, udp: false, settings: Vec::new() }
    }

    /// With a disk.
    #[must_use]
    pub fn disk(mut self, backend: Backend, block_bytes: u32) -> Self {
        self.disks.push(DiskConfig { backend, block_bytes });
        self
    }

    /// That talks UDP only.
    #[must_use]
    pub fn udp(mut self) -> Self {
        self.udp = true;
        self
    }

    /// With a key of the `[target]` table.
    #[must_use]
    pub fn set(mut self, key: &'static str, value: impl Display) -> Self {
        self.settings.push((key, value.to_string()));
        self
    }

    /// As TOML.
    #[must_use]
    pub fn toml(&self) -> String {
        let mut text = format!(
            "[[listener]]\naddress = \"{}\"\nport = {PORT}\nfabric = \"soft\"\n\n\
             [[subsystem]]\nnqn = \"{NQN}\"\nserial = \"E2E\"\n",
            self.address
        );
        match &self.allowed_host {
            Some(host) => {
                let _ = writeln!(text, "allowed_hosts = [\"{host}\"]");
            }
            None => text.push_str("allow_any_host = true\n"),
        }
        for (nsid, disk) in (1..).zip(&self.disks) {
            let backend = match &disk.backend {
                Backend::File(path) => format!("type = \"file\"\npath = \"{}\"", path.display()),
                Backend::Memory(bytes) => format!("type = \"memory\"\nsize = {bytes}"),
                Backend::Null(bytes) => format!("type = \"null\"\nsize = {bytes}"),
            };
            let _ = write!(
                text,
                "\n[[subsystem.namespace]]\nnsid = {nsid}\n[subsystem.namespace.backend]\n{backend}\n\
                 block_size = {}\n",
                disk.block_bytes
            );
        }
        text.push_str("\n[target]\n");
        if self.udp {
            text.push_str("wire = \"udp\"\n");
        }
        for (key, value) in &self.settings {
            let _ = writeln!(text, "{key} = {value}");
        }
        text
    }
}

impl Default for TargetConfig {
    fn default() -> Self {
        Self::new()
    }
}

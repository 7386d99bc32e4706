//! Subsystems, namespaces and limits: the immutable description that all reactors read. Calls
//! `discovery` for the addresses in it; the daemon builds it, everything in `nvme` reads it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use lariat_wire::nvme::{Nqn, Nsid, QueueSize};

use super::discovery::ListenerAddress;
use crate::storage::{BackendId, Geometry};

/// The unit of CAP.MPSMIN, in which MDTS counts (NVMe Base 2.1, 3.1.4.1).
pub const PAGE_BYTES: u32 = 4096;

/// Highest namespace identifier; also the length of the longest active list.
pub const MAX_NSID: u32 = 1024;

/// What the target grants. The same for all its subsystems, because queues and buffers are made
/// before a Connect says which subsystem is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// I/O queues of one controller, 1 to 1,024.
    pub max_queues: u16,
    /// Entries of the largest queue, 2 to 1,025; CAP.MQES and MAXCMD follow from it. Hosts that keep
    /// one entry empty, as the specification has it, have one command less outstanding.
    pub max_queue_depth: QueueSize,
    /// Largest transfer of one command in bytes: a power of two, from 8 KiB (MDTS 0 would mean
    /// no limit) to 8 MiB (a keyed SGL has 24 bits of length).
    pub mdts_bytes: u32,
    /// Data that fits into a command capsule, a multiple of 16 up to 64 KiB; 0 works.
    pub in_capsule_bytes: u32,
    /// Controllers of one subsystem at a time, 1 to 65,519.
    pub max_hosts: u16,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_queues: 64,
            // 128 commands, and the entry that stays empty.
            max_queue_depth: QueueSize::from_zero_based(128),
            mdts_bytes: 1 << 20,
            in_capsule_bytes: 8192,
            max_hosts: 1024,
        }
    }
}

impl Limits {
    /// MDTS as Identify Controller says it: the power of two of [`PAGE_BYTES`].
    #[must_use]
    pub fn mdts(&self) -> u8 {
        u8::try_from((self.mdts_bytes / PAGE_BYTES).max(1).ilog2()).unwrap_or(0)
    }

    fn check(&self) -> Result<(), ConfigError> {
        let depth = self.max_queue_depth.entries();
        if !(1..=1024).contains(&self.max_queues) {
            return Err(ConfigError::MaxQueues(self.max_queues));
        }
        if !(2..=1025).contains(&depth) {
            return Err(ConfigError::MaxQueueDepth(depth));
        }
        let pages = self.mdts_bytes / PAGE_BYTES;
        if !self.mdts_bytes.is_multiple_of(PAGE_BYTES)
            || !pages.is_power_of_two()
            || !(8 << 10..=8 << 20).contains(&self.mdts_bytes)
        {
            return Err(ConfigError::Mdts(self.mdts_bytes));
        }
        if !self.in_capsule_bytes.is_multiple_of(16) || self.in_capsule_bytes > 64 << 10 {
            return Err(ConfigError::InCapsule(self.in_capsule_bytes));
        }
        if !(1..=0xffef).contains(&self.max_hosts) {
            return Err(ConfigError::MaxHosts(self.max_hosts));
        }
        Ok(())
    }
}

/// Why a description cannot be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Not 1 to 1,024.
    #[error("{0} I/O queues per controller; 1 to 1024 are possible")]
    MaxQueues(u16),
    /// Not 2 to 1,025.
    #[error("queues of {0} entries; 2 to 1025 are possible")]
    MaxQueueDepth(u32),
    /// Not a power of two, too little or too much.
    #[error("a transfer limit of {0} bytes; it has to be a power of two from 8 KiB to 8 MiB")]
    Mdts(u32),
    /// Not a multiple of 16, or too much.
    #[error("{0} bytes of in-capsule data; it has to be a multiple of 16, at most 65536")]
    InCapsule(u32),
    /// Not 1 to 65,519.
    #[error("{0} hosts per subsystem; 1 to 65519 are possible")]
    MaxHosts(u16),
    /// The name that discovery has.
    #[error("the discovery NQN names the discovery subsystem, which is built in")]
    DiscoveryNqn,
    /// A listener of all addresses: the discovery log has to name one that hosts can connect to.
    #[error("{0} is no address that hosts can connect to: name one of this machine")]
    Listener(SocketAddr),
    /// Two subsystems of one name.
    #[error("two subsystems have the name {0}")]
    DuplicateNqn(Nqn),
    /// Empty, too long or not printable ASCII.
    #[error("{field} {value:?} of {nqn}: it has to be 1 to {max} printable ASCII characters")]
    Text {
        /// Which subsystem.
        nqn: Nqn,
        /// `serial` or `model`.
        field: &'static str,
        /// As given.
        value: String,
        /// Longest allowed.
        max: usize,
    },
    /// Not 1 to [`MAX_NSID`].
    #[error("namespace {nsid} of {nqn}: identifiers are 1 to {MAX_NSID}")]
    Nsid {
        /// Which subsystem.
        nqn: Nqn,
        /// As given.
        nsid: Nsid,
    },
    /// Two namespaces of one identifier.
    #[error("two namespaces of {nqn} have the identifier {nsid}")]
    DuplicateNsid {
        /// Which subsystem.
        nqn: Nqn,
        /// The identifier.
        nsid: Nsid,
    },
    /// Two namespaces of one UUID or NGUID: a host would take them for one disk, or ignore one.
    #[error("namespaces {} of {} and {} of {} have the same unique identifier",
        first.1, first.0, second.1, second.0)]
    DuplicateIdentifier {
        /// One.
        first: (Nqn, Nsid),
        /// The other.
        second: (Nqn, Nsid),
    },
    /// Not 512 or 4,096 bytes per block, or no blocks.
    #[error("namespace {nsid} of {nqn}: blocks of {block_bytes} bytes, {capacity_blocks} of them")]
    Geometry {
        /// Which subsystem.
        nqn: Nqn,
        /// Which namespace.
        nsid: Nsid,
        /// As given.
        block_bytes: u32,
        /// As given.
        capacity_blocks: u64,
    },
}

/// One namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Its identifier, 1 to [`MAX_NSID`].
    pub nsid: Nsid,
    /// Where its blocks are.
    pub backend: BackendId,
    /// What the backend is.
    pub geometry: Geometry,
    /// UUID; zeros for none.
    pub uuid: [u8; 16],
    /// Namespace Globally Unique Identifier; zeros for none.
    pub nguid: [u8; 16],
    /// IEEE Extended Unique Identifier; zeros for none.
    pub eui64: [u8; 8],
}

impl Namespace {
    /// A namespace with a UUID, which is its NGUID too.
    #[must_use]
    pub const fn new(nsid: Nsid, backend: BackendId, geometry: Geometry, uuid: [u8; 16]) -> Self {
        Self { nsid, backend, geometry, uuid, nguid: uuid, eui64: [0; 8] }
    }
}

/// Who may connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowedHosts {
    /// Every host.
    Any,
    /// These alone.
    Only(BTreeSet<Nqn>),
}

impl AllowedHosts {
    /// Whether `host` may connect.
    #[must_use]
    pub fn allows(&self, host: &Nqn) -> bool {
        match self {
            Self::Any => true,
            Self::Only(hosts) => hosts.contains(host),
        }
    }
}

/// One NVM subsystem, or the discovery subsystem. Immutable.
#[derive(Debug)]
pub struct Subsystem {
    nqn: Nqn,
    serial: String,
    model: String,
    allowed_hosts: AllowedHosts,
    /// Ascending by identifier.
    namespaces: Vec<Namespace>,
    limits: Limits,
    discovery: bool,
}

impl Subsystem {
    /// Starts the description of an NVM subsystem that any host may use.
    #[must_use]
    pub fn builder(nqn: Nqn) -> SubsystemBuilder {
        SubsystemBuilder {
            nqn,
            serial: "LARIAT0000000001".to_owned(),
            model: "Lariat".to_owned(),
            allowed_hosts: AllowedHosts::Any,
            namespaces: Vec::new(),
        }
    }

    /// Its name.
    #[must_use]
    pub const fn nqn(&self) -> &Nqn {
        &self.nqn
    }

    /// Serial number, 1 to 20 ASCII characters.
    #[must_use]
    pub fn serial(&self) -> &str {
        &self.serial
    }

    /// Model number, 1 to 40 ASCII characters.
    #[must_use]
    pub fn model(&self) -> &str {
        &self.model
    }

    /// Who may connect.
    #[must_use]
    pub const fn allowed_hosts(&self) -> &AllowedHosts {
        &self.allowed_hosts
    }

    /// Its namespaces, ascending by identifier.
    #[must_use]
    pub fn namespaces(&self) -> &[Namespace] {
        &self.namespaces
    }

    /// A namespace by identifier.
    #[must_use]
    pub fn namespace(&self, nsid: Nsid) -> Option<&Namespace> {
        let at = self.namespaces.binary_search_by_key(&nsid, |namespace| namespace.nsid).ok()?;
        self.namespaces.get(at)
    }

    /// The highest namespace identifier that means something: Identify Controller's NN. An
    /// identifier up to it may be inactive; one above it is invalid.
    #[must_use]
    pub fn max_nsid(&self) -> Nsid {
        self.namespaces.last().map_or(Nsid::NONE, |namespace| namespace.nsid)
    }

    /// What the target grants.
    #[must_use]
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Whether this is the discovery subsystem.
    #[must_use]
    pub const fn is_discovery(&self) -> bool {
        self.discovery
    }

    /// Whether some namespace loses unflushed writes in a power cut.
    #[must_use]
    pub fn has_volatile_cache(&self) -> bool {
        self.namespaces.iter().any(|namespace| namespace.geometry.volatile_write_cache)
    }
}

/// Describes one subsystem; checked when a [`SubsystemMap`] takes it.
#[derive(Clone, Debug)]
pub struct SubsystemBuilder {
    nqn: Nqn,
    serial: String,
    model: String,
    allowed_hosts: AllowedHosts,
    namespaces: Vec<Namespace>,
}

impl SubsystemBuilder {
    /// With a serial number, 1 to 20 printable ASCII characters.
    #[must_use]
    pub fn serial(mut self, serial: impl Into<String>) -> Self {
        self.serial = serial.into();
        self
    }

    /// With a model number, 1 to 40 printable ASCII characters.
    #[must_use]
    pub fn model(mut self, model: impl Into<String>) -> Self {
        self.model = model.into();
        self
    }

    /// Open to these hosts alone.
    #[must_use]
    pub fn allowed_hosts(mut self, hosts: AllowedHosts) -> Self {
        self.allowed_hosts = hosts;
        self
    }

    /// With one more namespace.
    #[must_use]
    pub fn namespace(mut self, namespace: Namespace) -> Self {
        self.namespaces.push(namespace);
        self
    }

    fn build(mut self, limits: Limits) -> Result<Subsystem, ConfigError> {
        if self.nqn.is_discovery() {
            return Err(ConfigError::DiscoveryNqn);
        }
        let text = |field, value: &String, max| {
            let printable = value.bytes().all(|byte| matches!(byte, 0x20..=0x7e));
            if value.is_empty() || value.len() > max || !printable {
                let value = value.clone();
                return Err(ConfigError::Text { nqn: self.nqn.clone(), field, value, max });
            }
            Ok(())
        };
        text("serial", &self.serial, 20)?;
        text("model", &self.model, 40)?;
        self.namespaces.sort_by_key(|namespace| namespace.nsid);
        check_namespaces(&self.nqn, &self.namespaces)?;
        Ok(Subsystem {
            nqn: self.nqn,
            serial: self.serial,
            model: self.model,
            allowed_hosts: self.allowed_hosts,
            namespaces: self.namespaces,
            limits,
            discovery: false,
        })
    }
}

fn check_namespaces(nqn: &Nqn, namespaces: &[Namespace]) -> Result<(), ConfigError> {
    let mut previous = None;
    for namespace in namespaces {
        let nsid = namespace.nsid;
        if !(1..=MAX_NSID).contains(&nsid.0) {
            return Err(ConfigError::Nsid { nqn: nqn.clone(), nsid });
        }
        if previous.replace(nsid) == Some(nsid) {
            return Err(ConfigError::DuplicateNsid { nqn: nqn.clone(), nsid });
        }
        let Geometry { block_bytes, capacity_blocks, .. } = namespace.geometry;
        if !matches!(block_bytes, 512 | 4096) || capacity_blocks == 0 {
            let nqn = nqn.clone();
            return Err(ConfigError::Geometry { nqn, nsid, block_bytes, capacity_blocks });
        }
    }
    Ok(())
}

/// No two namespaces of the target are the same disk to a host.
fn check_identifiers(subsystems: &BTreeMap<Nqn, Arc<Subsystem>>) -> Result<(), ConfigError> {
    let mut seen: BTreeMap<(u8, [u8; 16]), (&Nqn, Nsid)> = BTreeMap::new();
    for subsystem in subsystems.values() {
        for namespace in subsystem.namespaces() {
            let here = (subsystem.nqn(), namespace.nsid);
            for key in [(0, namespace.uuid), (1, namespace.nguid)] {
                if key.1 == [0; 16] {
                    continue;
                }
                if let Some(first) = seen.insert(key, here) {
                    let own = |(nqn, nsid): (&Nqn, Nsid)| (nqn.clone(), nsid);
                    let (first, second) = (own(first), own(here));
                    return Err(ConfigError::DuplicateIdentifier { first, second });
                }
            }
        }
    }
    Ok(())
}

/// All that the target serves: an immutable snapshot, shared as an `Arc` and replaced whole.
#[derive(Debug)]
pub struct SubsystemMap {
    subsystems: BTreeMap<Nqn, Arc<Subsystem>>,
    discovery: Arc<Subsystem>,
    listeners: Vec<ListenerAddress>,
    limits: Limits,
}

impl SubsystemMap {
    /// Checks and joins what the configuration says. `listeners` are the addresses that the
    /// discovery log names for every subsystem.
    ///
    /// # Errors
    /// What cannot be served, and why.
    pub fn new(
        limits: Limits,
        subsystems: impl IntoIterator<Item = SubsystemBuilder>,
        listeners: Vec<ListenerAddress>,
    ) -> Result<Self, ConfigError> {
        limits.check()?;
        if let Some(listener) = listeners.iter().find(|one| one.address.ip().is_unspecified()) {
            return Err(ConfigError::Listener(listener.address));
        }
        let mut map = BTreeMap::new();
        for builder in subsystems {
            let subsystem = builder.build(limits)?;
            let nqn = subsystem.nqn.clone();
            if map.insert(nqn.clone(), Arc::new(subsystem)).is_some() {
                return Err(ConfigError::DuplicateNqn(nqn));
            }
        }
        check_identifiers(&map)?;
        let discovery = Arc::new(Subsystem {
            nqn: Nqn::discovery(),
            serial: "LARIATDISCOVERY".to_owned(),
            model: "Lariat discovery".to_owned(),
            allowed_hosts: AllowedHosts::Any,
            namespaces: Vec::new(),
            limits,
            discovery: true,
        });
        Ok(Self { subsystems: map, discovery, listeners, limits })
    }

    /// A subsystem by name, the discovery subsystem among them.
    #[must_use]
    pub fn get(&self, nqn: &Nqn) -> Option<&Arc<Subsystem>> {
        if nqn.is_discovery() { Some(&self.discovery) } else { self.subsystems.get(nqn) }
    }

    /// The NVM subsystems by name, without discovery.
    pub fn subsystems(&self) -> impl Iterator<Item = &Arc<Subsystem>> {
        self.subsystems.values()
    }

    /// Where the target listens.
    #[must_use]
    pub fn listeners(&self) -> &[ListenerAddress] {
        &self.listeners
    }

    /// What the target grants.
    #[must_use]
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }
}

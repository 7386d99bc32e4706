//! The fabric's names for a reactor's memories, the region of zeroes among them. Called by the
//! reactor; calls the fabric when it is made, nothing later.

use std::sync::Arc;

use lariat_fabric::verbs::{Access, DomainId, RegionId};
use lariat_fabric::{Fabric, Memory, RegisterError};

use super::request::Request;

/// What is to be registered.
#[derive(Debug)]
pub(super) struct Memories<'a> {
    pub(super) pool: &'a Arc<Memory>,
    /// The device writes the sinks of RDMA READs as a peer would.
    pub(super) pool_remotely_writable: bool,
    /// The first memory of receive buffers.
    pub(super) receive: &'a Arc<Memory>,
    pub(super) responses: &'a Arc<Memory>,
    /// Size of the region of zeroes, if the storage has a use for it.
    pub(super) zeroes_bytes: Option<u32>,
}

/// The fabric's names for the reactor's memories.
#[derive(Clone, Debug)]
pub(super) struct Regions {
    pub(super) domain: DomainId,
    pub(super) pool: RegionId,
    /// By number of the arena's memories.
    pub(super) receive: Vec<RegionId>,
    pub(super) responses: RegionId,
    /// Where reads of what is known to be zeroes are sent from, if there is such.
    pub(super) zeroes: Option<Zeroes>,
}

impl Regions {
    /// Opens a domain for them.
    ///
    /// # Errors
    /// The fabric's limits.
    pub(super) fn register(
        fabric: &mut impl Fabric,
        memories: &Memories<'_>,
    ) -> Result<Self, RegisterError> {
        let domain = fabric.open_domain()?;
        let remote_write = memories.pool_remotely_writable;
        let pool_access = Access { remote_write, ..Access::LOCAL };
        let mut register = |memory, access| fabric.register(domain, Arc::clone(memory), access);
        Ok(Self {
            domain,
            pool: register(memories.pool, pool_access)?,
            receive: vec![register(memories.receive, Access::LOCAL)?],
            responses: register(memories.responses, Access::LOCAL_READ)?,
            zeroes: memories.zeroes_bytes.and_then(|bytes| Zeroes::register(fabric, domain, bytes)),
        })
    }

    /// Where the data of a request lies that goes to the host: region, and bytes from its start.
    pub(super) fn data_of(&self, request: &Request) -> Option<(RegionId, u64)> {
        if request.zeroes {
            self.zeroes.map(|zeroes| (zeroes.region, 0))
        } else {
            request.data.map(|data| (self.pool, data.offset))
        }
    }
}

/// As many zeroes as the largest transfer has bytes. The fabric alone has the memory, and may only
/// read it: so all requests send from it at the same time, and it never becomes anything else.
#[derive(Clone, Copy, Debug)]
pub(super) struct Zeroes {
    pub(super) region: RegionId,
    pub(super) bytes: u32,
}

impl Zeroes {
    /// `None` if there is no memory or no region to be had: buffers are filled then.
    fn register(fabric: &mut impl Fabric, domain: DomainId, bytes: u32) -> Option<Self> {
        // Pages that nobody writes are all the same one, unless a device pins them.
        let memory = Memory::allocate(bytes as usize).ok()?;
        match fabric.register(domain, memory, Access::LOCAL_READ) {
            Ok(region) => Some(Self { region, bytes }),
            Err(error) => {
                tracing::warn!(%error, "no region of zeroes: buffers are filled with them instead");
                None
            }
        }
    }
}

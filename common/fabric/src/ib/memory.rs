//! The domains and regions of a fabric, and their counterparts on each device. Called by `fabric`.
//!
//! A device takes part in a domain from the first connection (or listener) on that needs it; then
//! all regions of the domain are registered with it, and later ones at once. So the data path only
//! looks keys up, and a limit is met where a connection or listener can still be refused.

use std::io;
use std::sync::Arc;

use lariat_roce::verbs::{Access, DomainId, RegionId, Sge};
use lariat_wire::rocev2::Rkey;
use nix::sys::resource::{Resource, getrlimit};

use super::device::Device;
use super::mr::{Mr, Pd};
use crate::error::{RegisterError, StaleHandle};
use crate::memory::Memory;

#[derive(Debug)]
struct Region {
    generation: u32,
    domain: DomainId,
    access: Access,
    memory: Arc<Memory>,
    /// By the device's number.
    mrs: Vec<Option<Mr>>,
}

/// Domains and regions. The order of the fields is that of destruction.
#[derive(Debug, Default)]
pub(super) struct Regions {
    regions: slab::Slab<Region>,
    generation: u32,
    /// By the domain's number, by the device's number.
    domains: Vec<Vec<Option<Pd>>>,
}

/// Where a checked piece of a region is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) address: u64,
    pub(super) lkey: u32,
}

fn stale(what: &'static str) -> StaleHandle {
    StaleHandle { what }
}

impl Regions {
    pub(super) fn open_domain(&mut self) -> Result<DomainId, RegisterError> {
        let number = u32::try_from(self.domains.len()).map_err(|_| RegisterError::Limit {
            bytes: 0,
            limit: "no protection domain numbers are left".to_owned(),
            remedy: "open the fabric anew",
        })?;
        self.domains.push(Vec::new());
        Ok(DomainId(number))
    }

    pub(super) fn has_domain(&self, domain: DomainId) -> bool {
        (domain.0 as usize) < self.domains.len()
    }

    pub(super) fn domains(&self) -> impl Iterator<Item = DomainId> + use<> {
        (0..u32::try_from(self.domains.len()).unwrap_or(u32::MAX)).map(DomainId)
    }

    /// The domain on a device that takes part in it.
    pub(super) fn pd(&self, domain: DomainId, device: usize) -> Option<&Pd> {
        self.domains.get(domain.0 as usize)?.get(device)?.as_ref()
    }

    /// Lets a device take part in a domain.
    pub(super) fn join(
        &mut self,
        domain: DomainId,
        number: usize,
        device: &Device,
    ) -> Result<(), RegisterError> {
        let pds = self.domains.get_mut(domain.0 as usize).ok_or(stale("protection domain"))?;
        if pds.len() <= number {
            pds.resize_with(number + 1, || None);
        }
        let place = pds.get_mut(number).ok_or(stale("device"))?;
        if place.is_none() {
            // SAFETY: the device lives longer than the domain (see the order of `IbFabric`).
            let pd = unsafe { Pd::allocate(device.context()) };
            *place = Some(pd.map_err(|source| RegisterError::Io { bytes: 0, source })?);
        }
        let Some(pd) = place.as_ref() else { return Ok(()) };
        for (_, region) in self.regions.iter_mut().filter(|(_, region)| region.domain == domain) {
            enter(region, pd, number, device)?;
        }
        Ok(())
    }

    pub(super) fn register(
        &mut self,
        domain: DomainId,
        memory: Arc<Memory>,
        access: Access,
        devices: &[Option<Device>],
    ) -> Result<RegionId, RegisterError> {
        let pds = self.domains.get(domain.0 as usize).ok_or(stale("protection domain"))?;
        let bytes = memory.len();
        let generation = self.generation.checked_add(1);
        let number = u32::try_from(self.regions.vacant_key()).ok();
        let (generation, number) = generation.zip(number).ok_or_else(|| RegisterError::Limit {
            bytes,
            limit: "no region numbers are left".to_owned(),
            remedy: "open the fabric anew",
        })?;
        let mut region = Region { generation, domain, access, memory, mrs: Vec::new() };
        for (number, (pd, device)) in pds.iter().zip(devices).enumerate() {
            if let Some((pd, device)) = pd.as_ref().zip(device.as_ref()) {
                enter(&mut region, pd, number, device)?;
            }
        }
        self.generation = generation;
        self.regions.insert(region);
        Ok(RegionId(u64::from(generation) << 32 | u64::from(number)))
    }

    /// Frees all that a device has of the domains. Its queue pairs are gone.
    pub(super) fn leave(&mut self, number: usize) {
        for (_, region) in &mut self.regions {
            if let Some(mr) = region.mrs.get_mut(number) {
                *mr = None;
            }
        }
        for pds in &mut self.domains {
            if let Some(pd) = pds.get_mut(number) {
                *pd = None;
            }
        }
    }

    pub(super) fn deregister(&mut self, id: RegionId) -> Result<(), StaleHandle> {
        self.find(id).ok_or(stale("memory region"))?;
        self.regions.remove(number_of(id));
        Ok(())
    }

    fn find(&self, id: RegionId) -> Option<&Region> {
        let region = self.regions.get(number_of(id))?;
        (u64::from(region.generation) == id.0 >> 32).then_some(region)
    }

    pub(super) fn rkey(
        &self,
        domain: DomainId,
        device: usize,
        id: RegionId,
    ) -> Result<Rkey, StaleHandle> {
        let region = self.find(id).filter(|region| region.domain == domain);
        let mr = region.and_then(|region| region.mrs.get(device)).and_then(Option::as_ref);
        mr.map(|mr| mr.rkey).ok_or(stale("memory region"))
    }

    /// Checks a piece of memory that a request of our own names.
    #[inline]
    pub(super) fn place(
        &self,
        domain: DomainId,
        device: usize,
        sge: Sge,
        written: bool,
    ) -> Option<Place> {
        let region = self.find(sge.region)?;
        let end = sge.offset.checked_add(u64::from(sge.length))?;
        let allowed = !written || region.access.local_write || region.access.remote_write;
        if region.domain != domain || end > region.memory.len() as u64 || !allowed {
            return None;
        }
        let mr = region.mrs.get(device)?.as_ref()?;
        let base = region.memory.address().as_ptr().addr() as u64;
        Some(Place { address: base + sge.offset, lkey: mr.lkey })
    }
}

fn number_of(id: RegionId) -> usize {
    usize::try_from(id.0 & u64::from(u32::MAX)).unwrap_or(usize::MAX)
}

fn enter(
    region: &mut Region,
    pd: &Pd,
    number: usize,
    device: &Device,
) -> Result<(), RegisterError> {
    if region.mrs.len() <= number {
        region.mrs.resize_with(number + 1, || None);
    }
    if let Some(place) = region.mrs.get_mut(number)
        && place.is_none()
    {
        let mr = Mr::register(pd, &region.memory, region.access);
        *place = Some(mr.map_err(|source| explain(region.memory.len(), source, device))?);
    }
    Ok(())
}

/// Says which limit was met, as far as that can be told.
fn explain(bytes: usize, source: io::Error, device: &Device) -> RegisterError {
    let no_memory = matches!(source.raw_os_error(), Some(libc::ENOMEM | libc::EAGAIN));
    match getrlimit(Resource::RLIMIT_MEMLOCK) {
        Ok((soft, _)) if no_memory && soft != nix::libc::RLIM_INFINITY => RegisterError::Limit {
            bytes,
            limit: format!(
                "{} pins it, and this process may lock {} KiB (RLIMIT_MEMLOCK)",
                device.name,
                soft >> 10
            ),
            remedy: "raise that limit: `ulimit -l unlimited` in the shell, LimitMEMLOCK=infinity \
                     in the systemd unit, or --ulimit memlock=-1 for a container",
        },
        _ if no_memory => RegisterError::Limit {
            bytes,
            limit: format!(
                "{} or the kernel has no memory for it (the device takes {} regions)",
                device.name, device.abilities.max_regions
            ),
            remedy: "use fewer or smaller buffers",
        },
        _ => RegisterError::Io { bytes, source },
    }
}

//! Registered memory in plain vectors.

use lariat_roce::memory::{AccessError, MemRange, Memory};
use lariat_roce::verbs::{Access, DomainId, RegionId, Sge};
use lariat_wire::rocev2::Rkey;

/// One region.
struct Region {
    domain: DomainId,
    access: Access,
    rkey: Rkey,
    valid: bool,
    bytes: Vec<u8>,
}

/// All memory of a node. Region `n` has the virtual addresses from `(n + 1) << 32` on.
#[derive(Default)]
pub struct TestMemory {
    regions: Vec<Region>,
}

impl TestMemory {
    /// Registers memory with this content.
    pub fn register(&mut self, domain: DomainId, access: Access, bytes: Vec<u8>) -> RegionId {
        let id = self.regions.len() as u64;
        let rkey = Rkey(0x5000_0000 | u32::try_from(id).unwrap());
        self.regions.push(Region { domain, access, rkey, valid: true, bytes });
        RegionId(id)
    }

    /// The key and the first virtual address of a region.
    pub fn key(&self, region: RegionId) -> (Rkey, u64) {
        (self.region(region).rkey, (region.0 + 1) << 32)
    }

    /// Whether the peer can still use the region's key.
    pub fn is_valid(&self, region: RegionId) -> bool {
        self.region(region).valid
    }

    /// Bytes of a region.
    pub fn bytes(&self, region: RegionId, offset: u64, length: u32) -> &[u8] {
        let start = usize::try_from(offset).unwrap();
        &self.region(region).bytes[start..start + length as usize]
    }

    /// The bytes of a checked range.
    pub fn range(&self, range: MemRange) -> &[u8] {
        self.bytes(range.region, range.offset, range.length)
    }

    fn region(&self, region: RegionId) -> &Region {
        &self.regions[usize::try_from(region.0).unwrap()]
    }

    fn check(
        region: &Region,
        domain: DomainId,
        offset: u64,
        length: u32,
    ) -> Result<(), AccessError> {
        if region.domain != domain {
            return Err(AccessError::WrongDomain);
        }
        match offset.checked_add(u64::from(length)) {
            Some(end) if end <= region.bytes.len() as u64 => Ok(()),
            _ => Err(AccessError::OutOfBounds),
        }
    }
}

impl Memory for TestMemory {
    fn check_remote(
        &self,
        domain: DomainId,
        rkey: Rkey,
        virtual_address: u64,
        length: u32,
        need: Access,
    ) -> Result<MemRange, AccessError> {
        let at = self
            .regions
            .iter()
            .position(|region| region.rkey == rkey && region.valid)
            .ok_or(AccessError::UnknownKey)?;
        let region = &self.regions[at];
        let base = (at as u64 + 1) << 32;
        let offset = virtual_address.checked_sub(base).ok_or(AccessError::OutOfBounds)?;
        Self::check(region, domain, offset, length)?;
        if (need.remote_read && !region.access.remote_read)
            || (need.remote_write && !region.access.remote_write)
        {
            return Err(AccessError::NotAllowed);
        }
        Ok(MemRange { region: RegionId(at as u64), offset, length })
    }

    fn check_local(
        &self,
        domain: DomainId,
        sge: Sge,
        need: Access,
    ) -> Result<MemRange, AccessError> {
        let at = usize::try_from(sge.region.0).map_err(|_| AccessError::UnknownKey)?;
        let region = self.regions.get(at).ok_or(AccessError::UnknownKey)?;
        Self::check(region, domain, sge.offset, sge.length)?;
        if need.local_write && !(region.access.local_write || region.access.remote_write) {
            return Err(AccessError::NotAllowed);
        }
        Ok(MemRange { region: sge.region, offset: sge.offset, length: sge.length })
    }

    fn place(&mut self, range: MemRange, skip: u32, bytes: &[u8]) -> Result<(), AccessError> {
        let end = u64::from(skip) + bytes.len() as u64;
        if end > u64::from(range.length) {
            return Err(AccessError::OutOfBounds);
        }
        let start = usize::try_from(range.offset + u64::from(skip)).unwrap();
        let region = &mut self.regions[usize::try_from(range.region.0).unwrap()];
        region.bytes[start..start + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn invalidate(&mut self, domain: DomainId, rkey: Rkey) -> Result<(), AccessError> {
        let region = self
            .regions
            .iter_mut()
            .find(|region| region.rkey == rkey && region.valid)
            .ok_or(AccessError::UnknownKey)?;
        if region.domain != domain {
            return Err(AccessError::WrongDomain);
        }
        region.valid = false;
        Ok(())
    }
}

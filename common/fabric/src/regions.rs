//! The registered memory of one fabric: which bytes a key names and what may be done with them.
//!
//! [`RegionTable`] is what `lariat-roce` checks every access of a peer against, and what the wires
//! read outgoing payloads from. It holds the memory alive, calls nothing but [`Memory`], and is
//! owned by a [`SoftFabric`](crate::soft::SoftFabric).
//!
//! Keys are random, and a region stands in the place that the low bits of its key name: the key is
//! drawn again until that place is free. So a look-up is one index and one comparison, and a key
//! that was never given out tells nothing about those that were.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

use core::ptr::NonNull;
use std::io;
use std::sync::Arc;

use lariat_roce::memory::{AccessError, MemRange, Memory as RemoteMemory};
use lariat_roce::verbs::{Access, DomainId, RegionId, Sge};
use lariat_wire::rocev2::Rkey;

use crate::error::{RegisterError, StaleHandle};
use crate::memory::Memory;
use crate::random::Random;

const FIRST_CAPACITY: usize = 64;
/// Half of the places stay free, so that keys keep their randomness and are drawn quickly.
const MAX_REGIONS: usize = 1 << 20;

struct Region {
    id: RegionId,
    rkey: Rkey,
    domain: DomainId,
    access: Access,
    /// Whether peers may still use the key (SEND with Invalidate ends that).
    key_valid: bool,
    base: u64,
    memory: Arc<Memory>,
}

/// Domains, regions and keys of one fabric.
pub struct RegionTable {
    places: Vec<Option<Region>>,
    count: usize,
    domains: u32,
    generation: u32,
    random: Random,
}

impl core::fmt::Debug for RegionTable {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        // Keys are secrets of the connections; they are not shown.
        f.debug_struct("RegionTable")
            .field("regions", &self.count)
            .field("domains", &self.domains)
            .finish_non_exhaustive()
    }
}

fn limit(bytes: usize, limit: String, remedy: &'static str) -> RegisterError {
    RegisterError::Limit { bytes, limit, remedy }
}

impl RegionTable {
    /// An empty table whose keys come from `random`.
    #[must_use]
    pub fn new(random: Random) -> Self {
        let mut places = Vec::new();
        places.resize_with(FIRST_CAPACITY, || None);
        Self { places, count: 0, domains: 0, generation: 0, random }
    }

    /// Opens a protection domain.
    ///
    /// # Errors
    /// After 2^32 - 1 of them.
    pub fn open_domain(&mut self) -> Result<DomainId, RegisterError> {
        let domain = DomainId(self.domains);
        self.domains = self.domains.checked_add(1).ok_or_else(|| {
            limit(0, "no protection domain numbers are left".to_owned(), "open the fabric anew")
        })?;
        Ok(domain)
    }

    /// Whether the domain exists.
    #[must_use]
    pub fn has_domain(&self, domain: DomainId) -> bool {
        domain.0 < self.domains
    }

    /// Registers memory.
    ///
    /// # Errors
    /// A stale domain, or too many regions; no randomness from the operating system.
    pub fn register(
        &mut self,
        domain: DomainId,
        memory: Arc<Memory>,
        access: Access,
    ) -> Result<RegionId, RegisterError> {
        let bytes = memory.len();
        if !self.has_domain(domain) {
            return Err(StaleHandle { what: "protection domain" }.into());
        }
        if self.count >= MAX_REGIONS {
            return Err(limit(
                bytes,
                format!("{MAX_REGIONS} memory regions are registered"),
                "register fewer and larger pieces of memory",
            ));
        }
        let generation = self.generation.checked_add(1).ok_or_else(|| {
            limit(bytes, "no region numbers are left".to_owned(), "open the fabric anew")
        })?;
        if (self.count + 1) * 2 > self.places.len() {
            self.grow();
        }
        let rkey = self.draw_key().map_err(|source| RegisterError::Io { bytes, source })?;
        self.generation = generation;
        let id = RegionId(u64::from(generation) << 32 | u64::from(rkey.0));
        let base = memory.address().as_ptr().addr() as u64;
        let place = self.place_of(rkey);
        if let Some(free) = self.places.get_mut(place) {
            *free = Some(Region { id, rkey, domain, access, key_valid: true, base, memory });
            self.count += 1;
        }
        Ok(id)
    }

    /// Forgets a region and lets its memory go.
    ///
    /// # Errors
    /// There is no such region.
    pub fn deregister(&mut self, region: RegionId) -> Result<(), StaleHandle> {
        self.find(region).ok_or(StaleHandle { what: "memory region" })?;
        let place = self.place_of(key_of(region));
        if let Some(taken) = self.places.get_mut(place) {
            *taken = None;
            self.count -= 1;
        }
        Ok(())
    }

    /// The key of a region of this domain.
    ///
    /// # Errors
    /// There is no such region, or it is another domain's.
    pub fn rkey(&self, domain: DomainId, region: RegionId) -> Result<Rkey, StaleHandle> {
        match self.find(region) {
            Some(found) if found.domain == domain => Ok(found.rkey),
            _ => Err(StaleHandle { what: "memory region in this protection domain" }),
        }
    }

    /// Where the bytes of a range stand, for whoever sends them. `None` if the region is gone. The
    /// address is good until the region is deregistered.
    #[inline]
    #[must_use]
    pub fn address(&self, range: MemRange) -> Option<NonNull<u8>> {
        let region = self.find(range.region)?;
        region.memory.range(range.offset, range.length as usize).ok()
    }

    /// Copies the bytes of a range to `into`, which has its length. `false` if the region is gone.
    #[inline]
    #[must_use]
    pub fn read(&self, range: MemRange, into: &mut [u8]) -> bool {
        self.find(range.region)
            .is_some_and(|region| region.memory.read_at(range.offset, into).is_ok())
    }

    /// Copies the bytes of a range out (behind what `into` holds). `false` if the region is gone.
    pub fn append(&self, range: MemRange, into: &mut Vec<u8>) -> bool {
        let Some(region) = self.find(range.region) else { return false };
        let start = into.len();
        into.resize(start + range.length as usize, 0);
        let Some(room) = into.get_mut(start..) else { return false };
        region.memory.read_at(range.offset, room).is_ok()
    }

    /// How many regions are registered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether no region is registered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    #[inline]
    fn place_of(&self, rkey: Rkey) -> usize {
        rkey.0 as usize & (self.places.len() - 1)
    }

    #[inline]
    fn by_key(&self, rkey: Rkey) -> Option<&Region> {
        self.places.get(self.place_of(rkey))?.as_ref().filter(|region| region.rkey == rkey)
    }

    #[inline]
    fn find(&self, id: RegionId) -> Option<&Region> {
        self.places.get(self.place_of(key_of(id)))?.as_ref().filter(|region| region.id == id)
    }

    /// A random key whose place is free.
    fn draw_key(&mut self) -> io::Result<Rkey> {
        loop {
            let rkey = Rkey(self.random.next_u32()?);
            if self.places.get(self.place_of(rkey)).is_some_and(Option::is_none) {
                return Ok(rkey);
            }
        }
    }

    /// Doubles the places. Keys that differ in their low n bits differ in their low n + 1 bits.
    fn grow(&mut self) {
        let mut old = Vec::new();
        old.resize_with(self.places.len() * 2, || None);
        core::mem::swap(&mut old, &mut self.places);
        for region in old.into_iter().flatten() {
            let place = self.place_of(region.rkey);
            if let Some(free) = self.places.get_mut(place) {
                *free = Some(region);
            }
        }
    }
}

/// A region's number is its generation and its key.
#[inline]
fn key_of(id: RegionId) -> Rkey {
    #[expect(clippy::cast_possible_truncation, reason = "the low half of the number is the key")]
    Rkey(id.0 as u32)
}

fn allows(have: Access, need: Access) -> bool {
    (!need.local_write || have.local_write || have.remote_write)
        && (!need.remote_read || have.remote_read)
        && (!need.remote_write || have.remote_write)
}

impl RemoteMemory for RegionTable {
    #[inline]
    fn check_remote(
        &self,
        domain: DomainId,
        rkey: Rkey,
        virtual_address: u64,
        length: u32,
        need: Access,
    ) -> Result<MemRange, AccessError> {
        let region =
            self.by_key(rkey).filter(|region| region.key_valid).ok_or(AccessError::UnknownKey)?;
        if region.domain != domain {
            return Err(AccessError::WrongDomain);
        }
        let offset = virtual_address.checked_sub(region.base).ok_or(AccessError::OutOfBounds)?;
        inside(region, offset, length)?;
        if !allows(region.access, need) {
            return Err(AccessError::NotAllowed);
        }
        Ok(MemRange { region: region.id, offset, length })
    }

    #[inline]
    fn check_local(
        &self,
        domain: DomainId,
        sge: Sge,
        need: Access,
    ) -> Result<MemRange, AccessError> {
        let region = self.find(sge.region).ok_or(AccessError::UnknownKey)?;
        if region.domain != domain {
            return Err(AccessError::WrongDomain);
        }
        inside(region, sge.offset, sge.length)?;
        if !allows(region.access, need) {
            return Err(AccessError::NotAllowed);
        }
        Ok(MemRange { region: region.id, offset: sge.offset, length: sge.length })
    }

    #[inline]
    fn place(&mut self, range: MemRange, skip: u32, bytes: &[u8]) -> Result<(), AccessError> {
        let region = self.find(range.region).ok_or(AccessError::UnknownKey)?;
        let end = u64::from(skip).saturating_add(bytes.len() as u64);
        if end > u64::from(range.length) {
            return Err(AccessError::OutOfBounds);
        }
        let offset = range.offset.checked_add(u64::from(skip)).ok_or(AccessError::OutOfBounds)?;
        region.memory.write_at(offset, bytes).map_err(|_| AccessError::OutOfBounds)
    }

    fn invalidate(&mut self, domain: DomainId, rkey: Rkey) -> Result<(), AccessError> {
        let place = self.place_of(rkey);
        let region = self
            .places
            .get_mut(place)
            .and_then(Option::as_mut)
            .filter(|region| region.rkey == rkey && region.key_valid)
            .ok_or(AccessError::UnknownKey)?;
        if region.domain != domain {
            return Err(AccessError::WrongDomain);
        }
        region.key_valid = false;
        Ok(())
    }
}

#[inline]
fn inside(region: &Region, offset: u64, length: u32) -> Result<(), AccessError> {
    match offset.checked_add(u64::from(length)) {
        Some(end) if end <= region.memory.len() as u64 => Ok(()),
        _ => Err(AccessError::OutOfBounds),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITE: Access = Access { local_write: false, remote_read: false, remote_write: true };
    const READ: Access = Access { local_write: false, remote_read: true, remote_write: false };

    fn table() -> RegionTable {
        RegionTable::new(Random::seeded([7; 32]))
    }

    fn base(memory: &Memory) -> u64 {
        memory.address().as_ptr().addr() as u64
    }

    #[test]
    fn remote_access_is_checked() {
        let mut table = table();
        let ours = table.open_domain().unwrap();
        let theirs = table.open_domain().unwrap();
        let memory = Memory::allocate(4096).unwrap();
        let region = table.register(ours, memory.clone(), READ).unwrap();
        let rkey = table.rkey(ours, region).unwrap();
        let start = base(&memory);
        assert_eq!(
            table.check_remote(ours, rkey, start + 96, 4000, READ),
            Ok(MemRange { region, offset: 96, length: 4000 })
        );
        assert_eq!(
            table.check_remote(ours, rkey, start + 97, 4000, READ),
            Err(AccessError::OutOfBounds)
        );
        assert_eq!(
            table.check_remote(ours, rkey, start - 1, 1, READ),
            Err(AccessError::OutOfBounds)
        );
        assert_eq!(
            table.check_remote(ours, rkey, u64::MAX, u32::MAX, READ),
            Err(AccessError::OutOfBounds)
        );
        assert_eq!(table.check_remote(ours, rkey, start, 1, WRITE), Err(AccessError::NotAllowed));
        assert_eq!(table.check_remote(theirs, rkey, start, 1, READ), Err(AccessError::WrongDomain));
        assert_eq!(
            table.check_remote(ours, Rkey(rkey.0 ^ 0x8000_0000), start, 1, READ),
            Err(AccessError::UnknownKey)
        );
        assert!(table.rkey(theirs, region).is_err());
        table.deregister(region).unwrap();
        assert_eq!(table.check_remote(ours, rkey, start, 1, READ), Err(AccessError::UnknownKey));
        assert!(table.deregister(region).is_err());
        assert_eq!(Arc::strong_count(&memory), 1);
    }

    #[test]
    fn invalidation_ends_the_key_alone() {
        let mut table = table();
        let domain = table.open_domain().unwrap();
        let other = table.open_domain().unwrap();
        let memory = Memory::allocate(4096).unwrap();
        let region = table.register(domain, memory.clone(), Access::REMOTE).unwrap();
        let rkey = table.rkey(domain, region).unwrap();
        assert_eq!(table.invalidate(other, rkey), Err(AccessError::WrongDomain));
        table.invalidate(domain, rkey).unwrap();
        assert_eq!(table.invalidate(domain, rkey), Err(AccessError::UnknownKey));
        assert_eq!(
            table.check_remote(domain, rkey, base(&memory), 1, WRITE),
            Err(AccessError::UnknownKey)
        );
        let sge = Sge { region, offset: 0, length: 4096 };
        assert!(table.check_local(domain, sge, Access::LOCAL).is_ok());
    }

    #[test]
    fn placing_stays_in_the_range() {
        let mut table = table();
        let domain = table.open_domain().unwrap();
        let memory = Memory::allocate(4096).unwrap();
        let region = table.register(domain, memory.clone(), Access::LOCAL).unwrap();
        let range = MemRange { region, offset: 10, length: 8 };
        table.place(range, 4, b"abcd").unwrap();
        assert_eq!(table.place(range, 5, b"abcd"), Err(AccessError::OutOfBounds));
        assert_eq!(table.place(range, u32::MAX, b"a"), Err(AccessError::OutOfBounds));
        let mut out = Vec::new();
        assert!(table.append(range, &mut out));
        assert_eq!(out, b"\0\0\0\0abcd");
        let outside = MemRange { region, offset: 4090, length: 7 };
        assert!(table.address(outside).is_none());
        let sge = Sge { region, offset: 4090, length: 7 };
        assert_eq!(
            table.check_local(domain, sge, Access::LOCAL_READ),
            Err(AccessError::OutOfBounds)
        );
    }

    #[test]
    fn many_regions_keep_their_keys_while_the_table_grows() {
        let mut table = table();
        let domain = table.open_domain().unwrap();
        let memory = Memory::allocate(4096).unwrap();
        let regions: Vec<_> = (0..1000)
            .map(|_| {
                let id = table.register(domain, memory.clone(), Access::REMOTE).unwrap();
                (id, table.rkey(domain, id).unwrap())
            })
            .collect();
        for (id, rkey) in &regions {
            let range = table.check_remote(domain, *rkey, base(&memory), 1, WRITE).unwrap();
            assert_eq!(range.region, *id);
        }
        for (id, _) in &regions {
            table.deregister(*id).unwrap();
        }
        assert!(table.is_empty());
        let keys: std::collections::BTreeSet<u32> = regions.iter().map(|(_, r)| r.0).collect();
        assert_eq!(keys.len(), regions.len());
    }

    #[test]
    fn domains_must_exist() {
        let mut table = table();
        let memory = Memory::allocate(4096).unwrap();
        assert!(matches!(
            table.register(DomainId(0), memory, Access::LOCAL),
            Err(RegisterError::Stale(_))
        ));
    }
}

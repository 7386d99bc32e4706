//! How the state machines reach registered memory: by checked ranges, never by pointer.
//!
//! The owner of the memory (`lariat-fabric`'s region table) implements [`Memory`]. The endpoint
//! checks a key, address and length once per message or packet, and gets a [`MemRange`] to place
//! received bytes at or to name in a packet that is to be sent; the bytes of outgoing payloads are
//! read by whoever sends the packet.

use lariat_wire::rocev2::Rkey;

use crate::verbs::{Access, DomainId, RegionId, Sge};

/// A checked piece of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemRange {
    /// The region.
    pub region: RegionId,
    /// Bytes from its start.
    pub offset: u64,
    /// Length in bytes.
    pub length: u32,
}

impl MemRange {
    /// No bytes of no region.
    pub(crate) const EMPTY: Self = Self { region: RegionId(0), offset: 0, length: 0 };

    /// The `length` bytes from `skip` on, cut to what there is.
    #[must_use]
    #[inline]
    pub fn slice(self, skip: u32, length: u32) -> Self {
        let skip = skip.min(self.length);
        Self {
            region: self.region,
            offset: self.offset.saturating_add(u64::from(skip)),
            length: length.min(self.length - skip),
        }
    }
}

/// Why an access was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// No region has this key (any more).
    #[error("no memory region has this key")]
    UnknownKey,
    /// The region belongs to another protection domain.
    #[error("the memory region belongs to another protection domain")]
    WrongDomain,
    /// Address and length leave the region.
    #[error("address and length leave the memory region")]
    OutOfBounds,
    /// The region does not allow this kind of access.
    #[error("the memory region does not allow this access")]
    NotAllowed,
}

/// Registered memory.
pub trait Memory {
    /// Checks an access of the peer (IBTA 10.6.3.3): `need` names the right it takes.
    ///
    /// # Errors
    /// What is wrong with it; the caller answers with a NAK.
    fn check_remote(
        &self,
        domain: DomainId,
        rkey: Rkey,
        virtual_address: u64,
        length: u32,
        need: Access,
    ) -> Result<MemRange, AccessError>;

    /// Checks an access by a work request of our own.
    ///
    /// # Errors
    /// What is wrong with it; the request completes with a local protection error.
    fn check_local(
        &self,
        domain: DomainId,
        sge: Sge,
        need: Access,
    ) -> Result<MemRange, AccessError>;

    /// Copies received bytes into a checked range, `skip` bytes from its start.
    ///
    /// # Errors
    /// The region is gone, or the bytes do not fit.
    fn place(&mut self, range: MemRange, skip: u32, bytes: &[u8]) -> Result<(), AccessError>;

    /// Makes a key of this domain unusable for the peer (SEND with Invalidate, IBTA 9.4.1.1).
    ///
    /// # Errors
    /// The key is unknown or belongs to another domain.
    fn invalidate(&mut self, domain: DomainId, rkey: Rkey) -> Result<(), AccessError>;
}

//! The reactor's data buffers: one memory, registered once with the fabric and once with the
//! storage, cut by a buddy allocator into power-of-two pieces from 4 KiB to the largest transfer.
//!
//! A part is set aside for admin and connect commands, which data can never take. Who may take how
//! much, and who is next when there is too little, is `share`'s matter. Called by the reactor only;
//! calls `share` and `lariat_fabric::Memory`. Nothing is allocated for a request.

use core::net::IpAddr;
use std::io;
use std::sync::Arc;

use lariat_fabric::{Memory, Timestamp};

use super::share::{Shares, Verdict, Waiter};

/// The smallest piece in bytes: a page, so that every piece can be read and written by `O_DIRECT`.
pub(super) const UNIT_BYTES: u32 = 4096;

/// Freed pieces of one size that are kept aside unmerged: steady traffic of one size then never
/// splits or merges.
const CACHED_PIECES: usize = 64;

const NONE: u32 = u32::MAX;
/// Tag of a unit at which no free piece starts.
const NOT_FREE: u8 = u8::MAX;

/// Who asks for a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// Connect and admin commands: they may take the reserve.
    Admin,
    /// Reads and writes.
    Data,
}

impl Class {
    /// Both, the more urgent one first.
    const ALL: [Self; 2] = [Self::Admin, Self::Data];

    pub(super) const fn index(self) -> usize {
        match self {
            Self::Admin => 0,
            Self::Data => 1,
        }
    }
}

/// Index of the part that only admin commands get, in what `share` accounts for.
const RESERVE: usize = 0;
/// Index of the part for everybody.
const DATA: usize = 1;

/// A piece of the pool. Deliberately not `Clone`: whoever has it owns the bytes, and
/// [`BufferPool::release`] takes it back.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a buffer that is dropped is lost to the pool"]
pub(super) struct Buffer {
    unit: u32,
    order: u8,
    reserve: bool,
    /// The connection that it was lent to.
    connection: u32,
}

impl Buffer {
    /// Bytes from the start of the pool's memory.
    #[must_use]
    pub(super) fn offset(&self) -> u64 {
        u64::from(self.unit) * u64::from(UNIT_BYTES)
    }

    /// Size in bytes: what was asked for, rounded up to a power of two.
    #[cfg(test)]
    #[must_use]
    pub(super) fn capacity(&self) -> u32 {
        UNIT_BYTES << self.order
    }
}

/// Sizes of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PoolConfig {
    /// Bytes for data; rounded up to hold at least one buffer of the largest size.
    pub(super) data_bytes: u32,
    /// Bytes that only admin and connect commands get; rounded up as above.
    pub(super) reserve_bytes: u32,
    /// The largest buffer in bytes (MDTS); rounded up to a power of two.
    pub(super) max_buffer_bytes: u32,
}

/// The pool.
#[derive(Debug)]
pub(super) struct BufferPool {
    memory: Arc<Memory>,
    reserve: Buddy,
    data: Buddy,
    max_buffer_bytes: u32,
    shares: Shares,
    /// Something changed since nobody could be served.
    changed: bool,
}

impl BufferPool {
    /// Allocates the memory.
    ///
    /// # Errors
    /// What `mmap` says; `InvalidInput` if the sizes do not fit 32 bits.
    pub(super) fn new(config: &PoolConfig) -> io::Result<Self> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
        let largest = config
            .max_buffer_bytes
            .max(UNIT_BYTES)
            .checked_next_power_of_two()
            .ok_or_else(invalid)?;
        // Whatever an admin command may ask for has to be had from the reserve alone: what waits
        // for the data's part may be overtaken by data for ever, and those behind it wait too.
        let reserve_units = config.reserve_bytes.max(largest).div_ceil(UNIT_BYTES);
        let data_units = config.data_bytes.max(largest).div_ceil(UNIT_BYTES);
        let total = u64::from(reserve_units) + u64::from(data_units);
        let length = usize::try_from(total * u64::from(UNIT_BYTES)).map_err(|_| invalid())?;
        if u32::try_from(total).is_err() {
            return Err(invalid());
        }
        let orders = u8::try_from((largest / UNIT_BYTES).trailing_zeros()).unwrap_or(0);
        Ok(Self {
            memory: Memory::allocate(length)?,
            reserve: Buddy::new(data_units, reserve_units, orders),
            data: Buddy::new(0, data_units, orders),
            max_buffer_bytes: largest,
            shares: Shares::default(),
            changed: false,
        })
    }

    /// The memory that offsets count in.
    #[must_use]
    pub(super) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// The largest buffer there can be, in bytes.
    #[must_use]
    pub(super) fn max_buffer_bytes(&self) -> u32 {
        self.max_buffer_bytes
    }

    /// A connection that can have so many requests, most of them of one class, may take buffers
    /// from now on.
    pub(super) fn join(&mut self, connection: u32, address: IpAddr, class: Class, requests: u32) {
        self.shares.join(connection, address, class, requests);
    }

    /// A connection that has given everything back is no more.
    pub(super) fn leave(&mut self, connection: u32) {
        self.shares.leave(connection);
        self.changed = true;
    }

    /// Forgets who waits of a connection.
    pub(super) fn forget(&mut self, connection: u32) {
        self.shares.forget(connection);
        self.changed = true;
    }

    /// Lets a connection take nothing until further notice, or lets it again.
    pub(super) fn bar(&mut self, connection: u32, barred: bool) {
        self.changed |= self.shares.bar(connection, barred);
    }

    /// Takes a buffer, unless there is none, the connection has its share, or others of the same
    /// class wait already. `None` also for more than [`Self::max_buffer_bytes`], which no waiting
    /// would help.
    pub(super) fn take(&mut self, connection: u32, class: Class, bytes: u32) -> Option<Buffer> {
        if self.shares.must_wait(connection, class) {
            return None;
        }
        self.cut(connection, class, bytes).ok().flatten()
    }

    /// `Ok(None)` if there is no piece, although the connection may have one.
    fn cut(
        &mut self,
        connection: u32,
        class: Class,
        bytes: u32,
    ) -> Result<Option<Buffer>, Verdict> {
        if bytes > self.max_buffer_bytes {
            return Ok(None);
        }
        let order = order_of(bytes);
        let units = 1 << order;
        if class == Class::Admin {
            let free = self.reserve.free_units;
            if self.shares.may_take(connection, RESERVE, units, free) == Verdict::May
                && let Some(unit) = self.reserve.take(order)
            {
                self.shares.took(connection, RESERVE, units);
                return Ok(Some(Buffer { unit, order, reserve: true, connection }));
            }
        }
        match self.shares.may_take(connection, DATA, units, self.data.free_units) {
            Verdict::May => Ok(self.data.take(order).map(|unit| {
                self.shares.took(connection, DATA, units);
                Buffer { unit, order, reserve: false, connection }
            })),
            verdict => Err(verdict),
        }
    }

    /// Puts a request behind those of its connection that wait already.
    pub(super) fn wait(&mut self, connection: u32, waiter: Waiter) {
        self.shares.wait(connection, waiter);
        self.changed = true;
    }

    /// The next waiter that can be served, admin commands first.
    pub(super) fn grant(&mut self) -> Option<(Waiter, Buffer)> {
        if !self.changed {
            return None;
        }
        for class in Class::ALL {
            for _ in 0..self.shares.hosts_waiting(class) {
                match self.grant_host(class) {
                    Ok(Some(granted)) => return Some(granted),
                    // It may have a piece, but there is none: its turn stands.
                    Ok(None) => break,
                    Err(HasEnough) => self.shares.pass_host(class),
                }
            }
        }
        self.changed = false;
        None
    }

    /// Serves the host whose turn it is.
    fn grant_host(&mut self, class: Class) -> Result<Option<(Waiter, Buffer)>, HasEnough> {
        for _ in 0..self.shares.connections_waiting(class) {
            let Some((connection, waiter)) = self.shares.first(class) else { break };
            match self.cut(connection, class, waiter.bytes) {
                Ok(None) => return Ok(None),
                Ok(Some(buffer)) => {
                    self.shares.served(class);
                    return Ok(Some((waiter, buffer)));
                }
                Err(Verdict::ConnectionHasEnough) => self.shares.pass_connection(class),
                Err(_) => return Err(HasEnough),
            }
        }
        Err(HasEnough)
    }

    /// Whether [`Self::grant`] has to be asked again.
    #[must_use]
    pub(super) fn may_grant(&self) -> bool {
        self.changed && self.shares.waiting() > 0
    }

    /// Takes a buffer back.
    #[expect(clippy::needless_pass_by_value, reason = "giving back is giving up")]
    pub(super) fn release(&mut self, buffer: Buffer) {
        let (from, part) =
            if buffer.reserve { (&mut self.reserve, RESERVE) } else { (&mut self.data, DATA) };
        from.release(buffer.unit, buffer.order);
        self.shares.gave(buffer.connection, part, 1 << buffer.order);
        self.changed = true;
    }

    /// How many requests wait.
    #[must_use]
    pub(super) fn waiting(&self) -> usize {
        self.shares.waiting()
    }

    /// Since when somebody waits who may have a buffer; [`Timestamp::NEVER`] if nobody does.
    #[must_use]
    pub(super) fn waiting_since(&self) -> Timestamp {
        if self.waiting() == 0 { Timestamp::NEVER } else { self.shares.waiting_since() }
    }

    /// Whether a connection has a buffer.
    #[must_use]
    pub(super) fn holds(&self, connection: u32) -> bool {
        self.shares.holds(connection)
    }

    /// Bytes that are not lent, reserve included.
    #[must_use]
    pub(super) fn free_bytes(&self) -> u64 {
        u64::from(self.reserve.free_units + self.data.free_units) * u64::from(UNIT_BYTES)
    }

    /// Size in bytes, reserve included.
    #[must_use]
    pub(super) fn total_bytes(&self) -> u64 {
        u64::from(self.reserve.units() + self.data.units()) * u64::from(UNIT_BYTES)
    }
}

/// A host has its share.
struct HasEnough;

/// The order of the smallest piece that holds `bytes`.
fn order_of(bytes: u32) -> u8 {
    let units = bytes.div_ceil(UNIT_BYTES).max(1).next_power_of_two();
    u8::try_from(units.trailing_zeros()).unwrap_or(u8::MAX)
}

/// A unit on a free list.
#[derive(Clone, Copy, Debug)]
struct Link {
    next: u32,
    prev: u32,
    /// Order of the free piece that starts here, or [`NOT_FREE`].
    tag: u8,
}

/// A buddy allocator over `links.len()` units. Free lists run through `links` by index.
#[derive(Debug)]
struct Buddy {
    base: u32,
    links: Vec<Link>,
    heads: Vec<u32>,
    cached: Vec<Vec<u32>>,
    free_units: u32,
}

impl Buddy {
    fn new(base: u32, units: u32, max_order: u8) -> Self {
        let mut buddy = Self {
            base,
            links: vec![Link { next: NONE, prev: NONE, tag: NOT_FREE }; units as usize],
            heads: vec![NONE; usize::from(max_order) + 1],
            cached: (0..=max_order).map(|_| Vec::with_capacity(CACHED_PIECES)).collect(),
            free_units: 0,
        };
        // Cut into the largest aligned pieces that fit. From the end, so that the lists start low.
        let mut starts = Vec::new();
        let mut at = 0;
        while at < units {
            let mut order = max_order;
            while at % (1 << order) != 0 || units - at < (1 << order) {
                order -= 1;
            }
            starts.push((at, order));
            at += 1 << order;
        }
        for (at, order) in starts.into_iter().rev() {
            buddy.push(at, order);
        }
        buddy.free_units = units;
        buddy
    }

    fn units(&self) -> u32 {
        u32::try_from(self.links.len()).unwrap_or(u32::MAX)
    }

    fn take(&mut self, order: u8) -> Option<u32> {
        if self.free_units < 1 << order {
            return None;
        }
        let unit = match self.cached.get_mut(usize::from(order)).and_then(Vec::pop) {
            Some(unit) => unit,
            None => match self.split(order) {
                Some(unit) => unit,
                None => {
                    self.merge_cached();
                    self.split(order)?
                }
            },
        };
        self.free_units -= 1 << order;
        Some(unit + self.base)
    }

    fn release(&mut self, unit: u32, order: u8) {
        let unit = unit.saturating_sub(self.base);
        self.free_units += 1 << order;
        match self.cached.get_mut(usize::from(order)) {
            Some(cache) if cache.len() < CACHED_PIECES => cache.push(unit),
            _ => self.merge(unit, order),
        }
    }

    /// Takes the first piece of at least `order` off the lists and gives back what is too much.
    fn split(&mut self, order: u8) -> Option<u32> {
        let orders = u8::try_from(self.heads.len()).unwrap_or(u8::MAX);
        let found = (order..orders)
            .find(|&larger| self.heads.get(usize::from(larger)).is_some_and(|&h| h != NONE))?;
        let unit = *self.heads.get(usize::from(found))?;
        self.unlink(unit, found);
        for smaller in (order..found).rev() {
            self.push(unit + (1 << smaller), smaller);
        }
        Some(unit)
    }

    fn merge_cached(&mut self) {
        for order in 0..u8::try_from(self.cached.len()).unwrap_or(u8::MAX) {
            while let Some(unit) = self.cached.get_mut(usize::from(order)).and_then(Vec::pop) {
                self.merge(unit, order);
            }
        }
    }

    fn merge(&mut self, mut unit: u32, mut order: u8) {
        while usize::from(order) + 1 < self.heads.len() {
            let buddy = unit ^ (1 << order);
            if self.links.get(buddy as usize).is_none_or(|link| link.tag != order) {
                break;
            }
            self.unlink(buddy, order);
            unit &= !(1 << order);
            order += 1;
        }
        self.push(unit, order);
    }

    fn push(&mut self, unit: u32, order: u8) {
        let Some(head) = self.heads.get_mut(usize::from(order)) else { return };
        let next = core::mem::replace(head, unit);
        if let Some(link) = self.links.get_mut(unit as usize) {
            *link = Link { next, prev: NONE, tag: order };
        }
        if let Some(link) = self.links.get_mut(next as usize) {
            link.prev = unit;
        }
    }

    fn unlink(&mut self, unit: u32, order: u8) {
        let Some(link) = self.links.get_mut(unit as usize) else { return };
        let Link { next, prev, .. } = *link;
        link.tag = NOT_FREE;
        if let Some(link) = self.links.get_mut(next as usize) {
            link.prev = prev;
        }
        match self.links.get_mut(prev as usize) {
            Some(link) => link.next = next,
            None => {
                if let Some(head) = self.heads.get_mut(usize::from(order)) {
                    *head = next;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;

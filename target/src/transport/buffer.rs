//! The reactor's data buffers: one memory, registered once with the fabric and once with the
//! storage, cut by a buddy allocator into power-of-two pieces from 4 KiB to the largest transfer.
//!
//! A part is set aside for admin and connect commands, which data can never take. Who finds no
//! room waits in the order of asking. Called by the reactor only; calls nothing but
//! `lariat_fabric::Memory`. Nothing is allocated after construction but growth of the waiting list.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use lariat_fabric::Memory;

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

/// A piece of the pool. Deliberately not `Clone`: whoever has it owns the bytes, and
/// [`BufferPool::release`] takes it back.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a buffer that is dropped is lost to the pool"]
pub(super) struct Buffer {
    unit: u32,
    order: u8,
    reserve: bool,
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

/// Somebody waiting for a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiter {
    /// The request's slot.
    pub(super) slot: u32,
    /// What it needs, in bytes.
    pub(super) bytes: u32,
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
    waiting_admin: VecDeque<Waiter>,
    waiting_data: VecDeque<Waiter>,
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
            waiting_admin: VecDeque::new(),
            waiting_data: VecDeque::new(),
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

    /// Takes a buffer, unless there is none or others of the same class wait already.
    /// `None` also for more than [`Self::max_buffer_bytes`], which no waiting would help.
    pub(super) fn take(&mut self, class: Class, bytes: u32) -> Option<Buffer> {
        let queue = match class {
            Class::Admin => &self.waiting_admin,
            Class::Data => &self.waiting_data,
        };
        if queue.is_empty() { self.cut(class, bytes) } else { None }
    }

    fn cut(&mut self, class: Class, bytes: u32) -> Option<Buffer> {
        if bytes > self.max_buffer_bytes {
            return None;
        }
        let order = order_of(bytes);
        let from_reserve = match class {
            Class::Admin => self.reserve.take(order),
            Class::Data => None,
        };
        match from_reserve {
            Some(unit) => Some(Buffer { unit, order, reserve: true }),
            None => self.data.take(order).map(|unit| Buffer { unit, order, reserve: false }),
        }
    }

    /// Puts a request behind those that wait already.
    pub(super) fn wait(&mut self, class: Class, waiter: Waiter) {
        match class {
            Class::Admin => self.waiting_admin.push_back(waiter),
            Class::Data => self.waiting_data.push_back(waiter),
        }
    }

    /// The next waiter that can be served, admin first, each class in its order.
    pub(super) fn grant(&mut self) -> Option<(Waiter, Buffer)> {
        if let Some(&waiter) = self.waiting_admin.front()
            && let Some(buffer) = self.cut(Class::Admin, waiter.bytes)
        {
            self.waiting_admin.pop_front();
            return Some((waiter, buffer));
        }
        let &waiter = self.waiting_data.front()?;
        let buffer = self.cut(Class::Data, waiter.bytes)?;
        self.waiting_data.pop_front();
        Some((waiter, buffer))
    }

    /// Forgets the waiters that `keep` does not want, because their connection is gone.
    pub(super) fn retain_waiters(&mut self, keep: impl Fn(u32) -> bool) {
        self.waiting_admin.retain(|waiter| keep(waiter.slot));
        self.waiting_data.retain(|waiter| keep(waiter.slot));
    }

    /// Takes a buffer back.
    #[expect(clippy::needless_pass_by_value, reason = "giving back is giving up")]
    pub(super) fn release(&mut self, buffer: Buffer) {
        let from = if buffer.reserve { &mut self.reserve } else { &mut self.data };
        from.release(buffer.unit, buffer.order);
    }

    /// How many requests wait.
    #[must_use]
    pub(super) fn waiting(&self) -> usize {
        self.waiting_admin.len() + self.waiting_data.len()
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pool(data_kib: u32, reserve_kib: u32, max_kib: u32) -> BufferPool {
        BufferPool::new(&PoolConfig {
            data_bytes: data_kib << 10,
            reserve_bytes: reserve_kib << 10,
            max_buffer_bytes: max_kib << 10,
        })
        .unwrap()
    }

    #[test]
    fn data_cannot_take_the_reserve() {
        let mut pool = pool(16, 8, 16);
        let all: Vec<_> = std::iter::from_fn(|| pool.take(Class::Data, 4096)).collect();
        assert_eq!(all.len(), 4);
        let admin = pool.take(Class::Admin, 1024).unwrap();
        assert_eq!(admin.capacity(), 4096);
        assert!(admin.offset() >= 16 << 10);
        pool.release(admin);
        for buffer in all {
            pool.release(buffer);
        }
        assert_eq!(pool.free_bytes(), pool.total_bytes());
    }

    #[test]
    fn admin_takes_data_space_when_the_reserve_is_short() {
        let mut pool = pool(64, 64, 64);
        let reserve = pool.take(Class::Admin, 65_536).unwrap();
        let large = pool.take(Class::Admin, 65_536).unwrap();
        assert_eq!((large.offset(), large.capacity()), (0, 65_536));
        pool.release(large);
        pool.release(reserve);
    }

    #[test]
    fn the_largest_admin_command_never_needs_data_space() {
        let mut pool = pool(64, 4, 64);
        let data: Vec<_> = std::iter::from_fn(|| pool.take(Class::Data, 4096)).collect();
        assert_eq!(data.len(), 16);
        let large = pool.take(Class::Admin, 65_536).unwrap();
        pool.wait(Class::Admin, Waiter { slot: 1, bytes: 65_536 });
        pool.wait(Class::Admin, Waiter { slot: 2, bytes: 1024 });
        pool.release(large);
        let (waiter, large) = pool.grant().unwrap();
        assert_eq!(waiter.slot, 1);
        pool.release(large);
        assert_eq!(pool.grant().map(|(waiter, _)| waiter.slot), Some(2));
        drop(data);
    }

    #[test]
    fn waiting_is_in_order_even_for_small_requests() {
        let mut pool = pool(16, 4, 16);
        let first = pool.take(Class::Data, 16_384).unwrap();
        pool.wait(Class::Data, Waiter { slot: 1, bytes: 16_384 });
        pool.wait(Class::Data, Waiter { slot: 2, bytes: 4096 });
        assert!(pool.grant().is_none());
        pool.release(first);
        // Room is there, but not for those who come later.
        assert!(pool.take(Class::Data, 4096).is_none());
        let (waiter, buffer) = pool.grant().unwrap();
        assert_eq!(waiter.slot, 1);
        assert!(pool.grant().is_none());
        pool.release(buffer);
        let (waiter, buffer) = pool.grant().unwrap();
        assert_eq!(waiter.slot, 2);
        pool.release(buffer);
        assert_eq!(pool.waiting(), 0);
    }

    #[test]
    fn a_waiting_admin_command_goes_first_and_can_be_cancelled() {
        let mut pool = pool(4, 4, 4);
        let data = pool.take(Class::Data, 1).unwrap();
        let admin = pool.take(Class::Admin, 1).unwrap();
        for slot in 0..2 {
            pool.wait(Class::Data, Waiter { slot, bytes: 1 });
            pool.wait(Class::Admin, Waiter { slot: 10 + slot, bytes: 1 });
        }
        pool.retain_waiters(|slot| slot != 10);
        pool.release(data);
        let (waiter, data) = pool.grant().unwrap();
        assert_eq!(waiter.slot, 11);
        pool.release(admin);
        // The reserve is free again, but a data request does not get it.
        assert!(pool.grant().is_none());
        pool.release(data);
        assert_eq!(pool.grant().map(|(waiter, _)| waiter.slot), Some(0));
    }

    #[test]
    fn too_large_is_never_granted() {
        let mut pool = pool(64, 0, 16);
        assert_eq!(pool.max_buffer_bytes(), 16 << 10);
        assert!(pool.take(Class::Data, (16 << 10) + 1).is_none());
    }

    proptest! {
        #[test]
        fn pieces_never_overlap_and_all_comes_back(
            data_kib in 64u32..300,
            steps in prop::collection::vec((any::<bool>(), 1u32..=65_536, any::<prop::sample::Index>()), 1..200),
        ) {
            let mut pool = pool(data_kib, 8, 64);
            let mut held: Vec<Buffer> = Vec::new();
            for (take, bytes, index) in steps {
                if take {
                    if let Some(buffer) = pool.take(Class::Data, bytes) {
                        prop_assert!(buffer.capacity() >= bytes);
                        prop_assert_eq!(buffer.offset() % u64::from(UNIT_BYTES), 0);
                        let end = buffer.offset() + u64::from(buffer.capacity());
                        prop_assert!(end <= u64::from(data_kib.div_ceil(4)) * 4096);
                        for other in &held {
                            let other_end = other.offset() + u64::from(other.capacity());
                            prop_assert!(end <= other.offset() || other_end <= buffer.offset());
                        }
                        held.push(buffer);
                    }
                } else if !held.is_empty() {
                    pool.release(held.swap_remove(index.index(held.len())));
                }
            }
            for buffer in held {
                pool.release(buffer);
            }
            prop_assert_eq!(pool.free_bytes(), pool.total_bytes());
            // Everything merges again: the largest piece can be had.
            prop_assert!(pool.take(Class::Data, 65_536).is_some());
        }
    }
}

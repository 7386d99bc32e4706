//! Receives that the I/O queues of hosts with a controller share, if the configuration says so: one
//! queue for each device that they come over, made for the first of them and given back with the
//! last. Called by the reactor's other files; calls `connection` for where receives lie.
//!
//! What keeps one from starving others:
//! - Admin queues, and whatever comes from an address without a controller, have receives of their
//!   own: a host that is new never waits for a shared one.
//! - There are at least four times as many as a queue may have entries, and a connection that holds
//!   more capsules than its queue has entries is ended: no queue ever holds more than a quarter.
//! - When less than half are left, in-capsule data moves to the buffer pool as long as that has
//!   something for its host, by the pool's rule of fair shares; the receive takes the next capsule
//!   while the disk writes.
//!
//! Beyond that the transport makes hosts wait (RNR NAK) until commands are over.

use std::sync::Arc;

use lariat_fabric::verbs::{
    ConnId, DeviceLimits, RecvRequest, SharedReceiveId, WcStatus, WorkCompletion,
};
use lariat_fabric::{Fabric, Timestamp};
use slab::Slab;

use super::arena::Piece;
use super::config::ReactorConfig;
use super::connection::{Agreement, Capsule, Connection, Receives};
use super::reactor::{Reactor, key_of};
use super::wr_id::WrId;
use crate::storage::Storage;

/// So many times the entries of the largest queue there are at least. A device that takes fewer gets
/// no shared queue.
const QUEUES: u32 = 4;
/// Numbers of receives stay small.
const MOST: u32 = 1 << 15;
/// Bits of a [`SharedKey`] that hold the place; the epoch has 16 above them.
const PLACE_BITS: u32 = 8;

/// Names a shared queue in work request identifiers. Not used again for long: what comes late for a
/// queue that has ended is told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SharedKey(u32);

impl SharedKey {
    /// As it stands in a work request identifier.
    pub(super) const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    pub(super) const fn bits(self) -> u32 {
        self.0
    }

    fn place(self) -> usize {
        (self.0 & ((1 << PLACE_BITS) - 1)) as usize
    }
}

/// A shared queue, and the account of its receives.
#[derive(Debug)]
struct SharedQueue {
    key: SharedKey,
    id: SharedReceiveId,
    receives: Receives,
    count: u32,
    /// Not held by a connection: with the fabric, or to be posted.
    free: u32,
    users: u32,
    to_post: Vec<RecvRequest>,
}

/// All shared queues of a reactor.
#[derive(Debug, Default)]
pub(super) struct SharedQueues {
    queues: Slab<SharedQueue>,
    epoch: u32,
}

impl SharedQueues {
    fn find(&self, key: SharedKey) -> Option<&SharedQueue> {
        self.queues.get(key.place()).filter(|queue| queue.key == key)
    }

    fn find_mut(&mut self, key: SharedKey) -> Option<&mut SharedQueue> {
        self.queues.get_mut(key.place()).filter(|queue| queue.key == key)
    }

    /// The fabric's name for a queue.
    pub(super) fn id(&self, key: SharedKey) -> Option<SharedReceiveId> {
        self.find(key).map(|queue| queue.id)
    }

    /// Where its receives lie.
    pub(super) fn receives(&self, key: SharedKey) -> Option<Receives> {
        self.find(key).map(|queue| queue.receives.view())
    }

    /// Whether so few are left that holding one matters.
    pub(super) fn is_low(&self, key: SharedKey) -> bool {
        self.find(key).is_some_and(|queue| queue.free < queue.count / 2)
    }

    /// A connection gave a receive back.
    pub(super) fn give_back(&mut self, key: SharedKey, receive: u32) {
        if let Some(queue) = self.find_mut(key) {
            queue.to_post.push(queue.receives.shared_request(key, receive));
            queue.free += 1;
        }
    }

    /// Whether something is to be posted.
    pub(super) fn has_to_post(&self) -> bool {
        self.queues.iter().any(|(_, queue)| !queue.to_post.is_empty())
    }

    /// How many receives there are, and how many of them no connection holds.
    pub(super) fn counts(&self) -> (u32, u32) {
        self.queues
            .iter()
            .fold((0, 0), |(all, free), (_, queue)| (all + queue.count, free + queue.free))
    }

    /// A connection uses a queue until [`Reactor::leave_shared`].
    pub(super) fn enter(&mut self, key: SharedKey) {
        if let Some(queue) = self.find_mut(key) {
            queue.users += 1;
        }
    }
}

/// How many receives a shared queue is to have. `None`: none, the device is too small.
fn count(config: &ReactorConfig, device: &DeviceLimits, stride: u32) -> Option<u32> {
    let largest = config.limits.max_queue_depth.entries();
    let half = config.receive_bytes / 2 / stride.max(1) as usize;
    let wanted = u32::try_from(half).unwrap_or(MOST).max(largest.saturating_mul(QUEUES));
    let count = wanted.min(device.max_shared_receives).min(MOST);
    (count >= largest.saturating_mul(QUEUES)).then_some(count)
}

impl<F: Fabric, S: Storage> Reactor<F, S> {
    /// The shared queue that a connection to be takes its receives from, made if there is none on
    /// its device yet. `None`: it is to have its own.
    pub(super) fn shared_for(
        &mut self,
        now: Timestamp,
        id: ConnId,
        agreement: &Agreement,
        device: &DeviceLimits,
    ) -> Option<SharedKey> {
        let fabric = &self.fabric;
        let found = self.shared.queues.iter().find(|(_, queue)| fabric.can_share(id, queue.id));
        if let Some((_, queue)) = found {
            return Some(queue.key);
        }
        let stride = Receives::stride(agreement.in_capsule_bytes);
        let count = count(&self.config, device, stride)?;
        let place = self.shared.queues.vacant_key();
        if place >= 1 << PLACE_BITS {
            return None;
        }
        let piece = self.take_receives(now, agreement, u64::from(stride) * u64::from(count))?;
        match self.make_shared(id, (piece, count), agreement.in_capsule_bytes) {
            Ok(key) => Some(key),
            Err(error) => {
                if let Some(unsaid) = self.growth_failures.due(now) {
                    tracing::warn!(error = &*error, unsaid, "queues cannot share receives");
                }
                None
            }
        }
    }

    fn make_shared(
        &mut self,
        id: ConnId,
        (piece, count): (Piece, u32),
        in_capsule_bytes: u32,
    ) -> Result<SharedKey, Box<dyn core::error::Error>> {
        let chunk = piece.chunk();
        let region = self.regions.receive.get(usize::from(chunk)).copied();
        let Some((memory, region)) = self.arena.memory(chunk).map(Arc::clone).zip(region) else {
            self.arena.release(piece);
            return Err("their memory is not there".into());
        };
        let receives = Receives::new((piece, memory, region), in_capsule_bytes);
        let made = self.fabric.create_shared_receive(id, self.regions.domain, count);
        let id = match made {
            Ok(id) => id,
            Err(error) => {
                receives.into_piece().into_iter().for_each(|piece| self.arena.release(piece));
                return Err(error.into());
            }
        };
        self.shared.epoch = (self.shared.epoch + 1) & 0xffff;
        let place = key_of(self.shared.queues.vacant_key());
        let key = SharedKey(self.shared.epoch << PLACE_BITS | place);
        let to_post: Vec<_> = (0..count).map(|index| receives.shared_request(key, index)).collect();
        let mut queue = SharedQueue { key, id, receives, count, free: count, users: 0, to_post };
        let posted = self.fabric.post_shared_receive(id, &queue.to_post);
        queue.to_post.clear();
        self.shared.queues.insert(queue);
        if let Err(error) = posted {
            self.drop_shared_if_unused(key);
            return Err(error.into());
        }
        tracing::info!(receives = count, "I/O queues of known hosts share receives");
        Ok(key)
    }

    /// A connection that used a queue is destroyed.
    pub(super) fn leave_shared(&mut self, key: SharedKey) {
        if let Some(queue) = self.shared.find_mut(key) {
            queue.users = queue.users.saturating_sub(1);
        }
        self.drop_shared_if_unused(key);
    }

    /// With its last user a queue ends: its memory is free for others, and what its device may have
    /// lost with broken connections is there again the next time.
    fn drop_shared_if_unused(&mut self, key: SharedKey) {
        let Some(queue) = self.shared.find(key).filter(|queue| queue.users == 0) else { return };
        if queue.free != queue.count {
            tracing::info!(free = queue.free, all = queue.count, "receives did not come back");
        }
        if !self.fabric.destroy_shared_receive(queue.id) {
            self.stats.anomalies += 1;
            return;
        }
        let queue = self.shared.queues.remove(key.place());
        queue.receives.into_piece().into_iter().for_each(|piece| self.arena.release(piece));
    }

    /// Posts what was given back.
    pub(super) fn post_shared(&mut self) {
        for (_, queue) in &mut self.shared.queues {
            if queue.to_post.is_empty() {
                continue;
            }
            if let Err(error) = self.fabric.post_shared_receive(queue.id, &queue.to_post) {
                // Its device is gone, and so will be its connections.
                tracing::debug!(%error, "shared receives cannot be posted");
                self.stats.fabric_errors += 1;
            }
            queue.to_post.clear();
        }
    }

    /// A shared receive was taken and is over.
    pub(super) fn on_shared(&mut self, now: Timestamp, id: WrId, completion: &WorkCompletion) {
        let shared = SharedKey::from_bits(id.connection);
        let Some(queue) = self.shared.find_mut(shared) else { return };
        queue.free = queue.free.saturating_sub(1);
        let key = self.by_id.get(&completion.conn).copied();
        let success = completion.status == WcStatus::Success;
        match key {
            Some(key) if success => {
                let capsule = Capsule { receive: id.index, bytes: completion.byte_len };
                let its = |connection: &Connection| connection.shared == Some(shared);
                if self.connections.get(key as usize).is_some_and(its) {
                    return self.on_capsule(now, key, capsule);
                }
                self.stats.anomalies += 1;
            }
            Some(key) => {
                if completion.status != WcStatus::Flushed {
                    self.stats.fabric_errors += 1;
                    tracing::debug!(status = ?completion.status, "a shared receive failed");
                }
                self.close(now, key, "a work request failed");
            }
            // Of a connection that is destroyed.
            None => {}
        }
        self.shared.give_back(shared, id.index);
    }
}

#[cfg(test)]
mod tests {
    use lariat_wire::nvme::QueueSize;

    use super::*;

    #[test]
    fn there_are_enough_for_several_queues_or_none() {
        let mut config = ReactorConfig { receive_bytes: 32 << 20, ..ReactorConfig::default() };
        let mut device = crate::transport::connection::tests::device();
        device.max_shared_receives = 1 << 15;
        assert_eq!(count(&config, &device, 12 << 10), Some(1365), "half of the memory");
        config.limits.max_queue_depth = QueueSize::from_entries(1024).unwrap();
        assert_eq!(count(&config, &device, 12 << 10), Some(4096), "four queues at least");
        device.max_shared_receives = 4096;
        assert_eq!(count(&config, &device, 12 << 10), Some(4096));
        device.max_shared_receives = 4095;
        assert_eq!(count(&config, &device, 12 << 10), None);
        device.max_shared_receives = 0;
        assert_eq!(count(&config, &device, 12 << 10), None);
    }
}

//! Shared receive queues of a fabric: made, posted to, their completions told to the connection
//! that took the receive. Called by `verbs` and `fabric`; calls `srq`.
//!
//! A completion names the queue and the place in it; whose it is says the number of the queue pair.
//! Devices drop what is left in a completion queue of a queue pair that is destroyed, and the
//! receives with it: so the completion queue is emptied before that, and once more after it.

use std::collections::BTreeMap;
use std::io;

use lariat_roce::verbs::{
    ConnId, DomainId, PostError, PostErrorKind, RecvRequest, SharedReceiveId, WcOpcode,
    WorkCompletion,
};
use rdma_sys::ibv_wc;
use slab::Slab;

use super::conn::{Conn, completion_of, handle};
use super::fabric::{IbFabric, stale};
use super::qp::{Prepared, Tag};
use super::srq::Srq;
use super::verbs::fill;
use crate::error::{QpError, StaleHandle};

/// A handle that no connection has: generations start at 1.
const NOBODY: ConnId = ConnId(0);

/// The queues, and who takes from them.
///
/// Is destroyed after the queue pairs and before the domains.
#[derive(Debug, Default)]
pub(super) struct SharedQueues {
    queues: Slab<Srq>,
    generation: u32,
    /// Slots of connections whose queue pairs take from a shared queue, by device and number of the
    /// queue pair.
    takers: BTreeMap<(usize, u32), usize>,
}

fn number_of(id: SharedReceiveId) -> usize {
    usize::try_from(id.0 & 0xffff).unwrap_or(usize::MAX)
}

impl SharedQueues {
    pub(super) fn find(&self, id: SharedReceiveId) -> Option<&Srq> {
        self.queues.get(number_of(id)).filter(|srq| u64::from(srq.generation) == id.0 >> 16)
    }

    fn find_mut(&mut self, id: SharedReceiveId) -> Option<&mut Srq> {
        self.queues.get_mut(number_of(id)).filter(|srq| u64::from(srq.generation) == id.0 >> 16)
    }

    /// A queue pair of a connection takes from a queue.
    pub(super) fn join(&mut self, id: SharedReceiveId, taker: (usize, u32), slot: usize) {
        if let Some(srq) = self.find_mut(id) {
            srq.users += 1;
            self.takers.insert(taker, slot);
        }
    }

    /// It is gone.
    pub(super) fn leave(&mut self, id: SharedReceiveId, taker: (usize, u32)) {
        self.takers.remove(&taker);
        if let Some(srq) = self.find_mut(id) {
            srq.users = srq.users.saturating_sub(1);
        }
    }

    /// All queues of a device end, whose queue pairs are gone.
    pub(super) fn lose(&mut self, device: usize) {
        self.queues.retain(|_, srq| srq.device != device);
        self.takers.retain(|(of, _), _| *of != device);
    }

    /// Takes a completion of device number `device`. `None`: nobody waits for it.
    pub(super) fn complete(
        &mut self,
        device: usize,
        tag: Tag,
        wc: &ibv_wc,
        conns: &mut Slab<Conn>,
    ) -> Option<WorkCompletion> {
        let is_ours = tag.receive && tag.generation == 0;
        let srq = self.queues.get_mut(usize::from(tag.slot)).filter(|_| is_ours)?;
        let wr_id = srq.retire(tag.sequence)?;
        let slot = self.takers.get(&(device, wc.qp_num)).copied();
        let conn = slot.and_then(|slot| Some((slot, conns.get(slot)?)));
        let conn = conn.map_or(NOBODY, |(slot, conn)| handle(slot, conn.generation));
        Some(completion_of(conn, wr_id, WcOpcode::Recv, wc, true))
    }
}

impl IbFabric {
    pub(super) fn make_shared(
        &mut self,
        conn: ConnId,
        domain: DomainId,
        entries: u32,
    ) -> Result<SharedReceiveId, QpError> {
        if !self.regions.has_domain(domain) {
            return Err(StaleHandle { what: "protection domain" }.into());
        }
        let place = self.conn(conn)?.device.ok_or(stale())?;
        let device = self.devices.get_mut(place).and_then(Option::as_mut);
        let device = device.ok_or(StaleHandle { what: "device" })?;
        let limit = device.abilities.max_shared;
        let too_many = || QpError::Limit { what: "shared receives", wanted: entries, limit };
        let most = u16::try_from(entries).ok().filter(|_| (1..=limit).contains(&entries));
        let most = most.ok_or_else(too_many)?;
        let number = u16::try_from(self.shared.queues.vacant_key()).map_err(|_| too_many())?;
        let generation = self.shared.generation.checked_add(1).ok_or_else(too_many)?;
        self.regions
            .join(domain, place, device)
            .map_err(|error| QpError::Io(io::Error::other(error)))?;
        let pd = self.regions.pd(domain, place).ok_or(StaleHandle { what: "protection domain" })?;
        let cq = device.promise_receives(entries).map_err(QpError::Io)?;
        let sge = device.abilities.max_sge.min(2);
        // SAFETY: the fabric's fields are destroyed in this order: connections, shared queues,
        // domains; and a device that is lost leaves in the same order.
        let made =
            unsafe { Srq::create((pd, domain), (place, cq), (generation, number), (most, sge)) };
        let srq = made.map_err(|error| {
            if let Some(cq) = device.receive_cqs.get_mut(cq) {
                cq.unpromise(entries);
            }
            QpError::Io(error)
        })?;
        self.shared.generation = generation;
        self.shared.queues.insert(srq);
        Ok(SharedReceiveId(u64::from(generation) << 16 | u64::from(number)))
    }

    pub(super) fn post_shared(
        &mut self,
        shared: SharedReceiveId,
        requests: &[RecvRequest],
    ) -> Result<(), PostError> {
        let none = PostError { index: 0, kind: PostErrorKind::NoSharedReceive };
        let Self { shared: queues, regions, chain, .. } = self;
        let srq = queues.find_mut(shared).ok_or(none)?;
        let place = (srq.domain, srq.device);
        chain.prepared.clear();
        let mut wrong = None;
        for (index, request) in requests.iter().enumerate() {
            let mut prepared = Prepared::receive();
            match fill(&mut prepared, regions, place, &request.sges, true) {
                Ok(()) => chain.prepared.push(prepared),
                Err(kind) => {
                    wrong = Some(PostError { index, kind });
                    break;
                }
            }
        }
        let posted = srq.post(chain, requests.iter().map(|request| request.wr_id));
        posted.map_err(|(index, kind)| PostError { index, kind })?;
        wrong.map_or(Ok(()), Err)
    }

    pub(super) fn drop_shared(&mut self, shared: SharedReceiveId) -> bool {
        match self.shared.find(shared) {
            None => return true,
            Some(srq) if srq.users > 0 => return false,
            Some(_) => {}
        }
        // What is left in the completion queue must not be taken for that of a later queue.
        self.drain_completions();
        // Its device may have been found to be lost on that occasion.
        if self.shared.find(shared).is_some() {
            let srq = self.shared.queues.remove(number_of(shared));
            let device = self.devices.get_mut(srq.device).and_then(Option::as_mut);
            if let Some(cq) = device.and_then(|device| device.receive_cqs.get_mut(srq.cq)) {
                cq.leave(srq.entries());
            }
        }
        true
    }

    /// Takes all completions that there are, for the next poll.
    pub(super) fn drain_completions(&mut self) {
        let mut backlog = core::mem::take(&mut self.backlog);
        self.take_completions(usize::MAX, &mut backlog);
        // What the loss of a device has added.
        backlog.append(&mut self.backlog);
        self.backlog = backlog;
    }
}

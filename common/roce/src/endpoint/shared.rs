//! The shared receive queues of an endpoint: who uses them, and what comes back from queue pairs that
//! are gone.
//!
//! Called by the verbs, by `connection` when a queue pair goes, and by `traffic`.

use std::collections::VecDeque;

use slab::Slab;

use super::EndpointError;
use crate::qp::{QueuePair, SharedReceives};
use crate::verbs::{DomainId, SharedReceiveId, WcOpcode, WorkCompletion};

/// Bits of a [`SharedReceiveId`] that hold the slot; the generation stands above them.
const SLOT_BITS: u32 = 16;
/// All bits that the endpoint uses; the provider has the rest.
const ID_BITS: u32 = 56;

#[derive(Debug)]
struct SharedQueue {
    id: SharedReceiveId,
    users: u32,
    receives: SharedReceives,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct SharedQueues {
    queues: Slab<SharedQueue>,
    generation: u64,
    /// Receives that queue pairs had taken which are gone, for the next poll.
    pub(super) returned: VecDeque<(SharedReceiveId, WorkCompletion)>,
}

fn slot_of(id: SharedReceiveId) -> usize {
    usize::try_from(id.0 & ((1 << SLOT_BITS) - 1)).unwrap_or(usize::MAX)
}

impl SharedQueues {
    pub(super) fn create(
        &mut self,
        domain: DomainId,
        entries: u32,
    ) -> Result<SharedReceiveId, EndpointError> {
        let slot = self.queues.vacant_key();
        if slot >= 1 << SLOT_BITS {
            let (wanted, limit) = (1 << SLOT_BITS, (1 << SLOT_BITS) - 1);
            return Err(EndpointError::Limit { what: "shared receive queues", wanted, limit });
        }
        self.generation = (self.generation + 1) & ((1 << (ID_BITS - SLOT_BITS)) - 1);
        let id = SharedReceiveId(self.generation << SLOT_BITS | slot as u64);
        let receives = SharedReceives::new(domain, entries);
        self.queues.insert(SharedQueue { id, users: 0, receives });
        Ok(id)
    }

    fn find(&mut self, id: SharedReceiveId) -> Option<&mut SharedQueue> {
        self.queues.get_mut(slot_of(id)).filter(|queue| queue.id == id)
    }

    pub(super) fn contains(&self, id: SharedReceiveId) -> bool {
        self.queues.get(slot_of(id)).is_some_and(|queue| queue.id == id)
    }

    pub(super) fn get_mut(&mut self, id: SharedReceiveId) -> Option<&mut SharedReceives> {
        self.find(id).map(|queue| &mut queue.receives)
    }

    /// A queue pair of the domain takes its receives from there.
    pub(super) fn joined(
        &mut self,
        id: SharedReceiveId,
        domain: DomainId,
    ) -> Result<(), EndpointError> {
        let queue = self.find(id).filter(|queue| queue.receives.domain() == domain);
        queue.ok_or(EndpointError::NoSharedReceive)?.users += 1;
        Ok(())
    }

    /// A queue pair is gone.
    pub(super) fn left(&mut self, id: SharedReceiveId, qp: &mut QueuePair) {
        qp.give_back(|completion| self.returned.push_back((id, completion)));
        if let Some(queue) = self.find(id) {
            queue.users -= 1;
        }
    }

    /// The completions of a queue pair were polled: there is room for as many receives.
    pub(super) fn polled(&mut self, id: SharedReceiveId, completions: &[WorkCompletion]) {
        if let Some(receives) = self.get_mut(id) {
            let of_receives = completions.iter().filter(|done| done.opcode == WcOpcode::Recv);
            receives.polled(of_receives.count());
        }
    }

    /// Appends what came back, and returns how many.
    pub(super) fn take_returned(&mut self, budget: usize, out: &mut Vec<WorkCompletion>) -> usize {
        let mut taken = 0;
        while taken < budget
            && let Some((id, completion)) = self.returned.pop_front()
        {
            if let Some(receives) = self.get_mut(id) {
                receives.polled(1);
                out.push(completion);
                taken += 1;
            }
        }
        taken
    }

    pub(super) fn destroy(&mut self, id: SharedReceiveId) -> bool {
        match self.find(id) {
            None => true,
            Some(queue) if queue.users > 0 => false,
            Some(_) => {
                self.queues.remove(slot_of(id));
                self.returned.retain(|(of, _)| *of != id);
                true
            }
        }
    }
}

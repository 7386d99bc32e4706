//! The numbers that peers call us by: queue pair numbers and communication ids.
//!
//! Both carry the slot of their connection, so that a packet finds it without a search, and are
//! congruent to the member's index, so that the kernel finds the socket. What is left of their bits
//! keeps a slot's next connection apart from its last. Used by the endpoint only.

use lariat_wire::rocev2::cm::CommId;
use lariat_wire::rocev2::{Psn, Qpn};
use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::Member;

const QPN_SPACE: u32 = 1 << 24;
/// Enough to be hard to guess, and far from overflow.
const COMM_SPACE: u32 = 1 << 30;

/// Gives out numbers and takes them apart again.
#[derive(Debug)]
pub(super) struct Numbers {
    rng: ChaCha12Rng,
    index: u32,
    count: u32,
    /// Slots there are: a power of two.
    slots: u32,
    /// The last round of each slot, for both kinds of number.
    rounds: Vec<(u32, u32)>,
}

impl Numbers {
    pub(super) fn new(seed: [u8; 32], member: Member, max_connections: u32) -> Self {
        let count = u32::from(member.count.max(1));
        // At least four rounds of queue pair numbers must be left.
        let most = QPN_SPACE / count / 4;
        let slots = max_connections.clamp(1, 1 << 16).next_power_of_two();
        let slots = slots.min(1 << most.ilog2());
        Self {
            rng: ChaCha12Rng::from_seed(seed),
            index: u32::from(member.index) % count,
            count,
            slots,
            rounds: Vec::new(),
        }
    }

    /// Slots that numbers can be given for.
    pub(super) fn slots(&self) -> u32 {
        self.slots
    }

    /// New numbers for `slot`, not those it had last.
    pub(super) fn assign(&mut self, slot: u32) -> (Qpn, CommId) {
        // Round 0 stays free: queue pairs 0 and 1 are reserved, communication id 0 means none.
        let qpn_rounds = QPN_SPACE / self.count / self.slots;
        let comm_rounds = COMM_SPACE / self.count / self.slots;
        let key = slot as usize;
        if key >= self.rounds.len() {
            let (qpn, comm) = (self.below(qpn_rounds - 1), self.below(comm_rounds - 1));
            self.rounds.resize(key + 1, (qpn, comm));
        }
        let (last_qpn, last_comm) = self.rounds.get(key).copied().unwrap_or((0, 0));
        // A queue pair number comes back as late as possible, a communication id by chance.
        let qpn = last_qpn % (qpn_rounds - 1) + 1;
        let step = self.below(comm_rounds / 2);
        let comm = (last_comm % (comm_rounds - 1) + step) % (comm_rounds - 1) + 1;
        if let Some(rounds) = self.rounds.get_mut(key) {
            *rounds = (qpn, comm);
        }
        let number = |round: u32| (round * self.slots + slot) * self.count + self.index;
        // 0xffffff stands for multicast (IBTA 3.5.3).
        let qpn = number(qpn);
        let qpn = if qpn == QPN_SPACE - 1 { number(1) } else { qpn };
        (Qpn::new(qpn), CommId(number(comm)))
    }

    /// The slot that a queue pair number was given for, if it is one of ours.
    pub(super) fn slot_of_qpn(&self, qpn: Qpn) -> Option<usize> {
        self.slot_of(qpn.get())
    }

    /// The slot that a communication id was given for, if it is one of ours.
    pub(super) fn slot_of_comm(&self, comm: CommId) -> Option<usize> {
        self.slot_of(comm.0)
    }

    fn slot_of(&self, number: u32) -> Option<usize> {
        (number % self.count == self.index)
            .then(|| ((number / self.count) & (self.slots - 1)) as usize)
    }

    /// A first sequence number.
    pub(super) fn psn(&mut self) -> Psn {
        Psn::new(self.rng.next_u32())
    }

    /// A transaction id.
    pub(super) fn transaction(&mut self) -> u64 {
        self.rng.next_u64()
    }

    fn below(&mut self, bound: u32) -> u32 {
        self.rng.next_u32() % bound.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_lead_back_to_their_slot() {
        for (index, count, connections) in
            [(0, 1, 1), (0, 1, 65_536), (2, 3, 1000), (7, 8, 4096), (254, 255, 65_536)]
        {
            let mut numbers = Numbers::new([7; 32], Member { index, count }, connections);
            assert!(numbers.slots() >= 16_384.min(connections));
            for slot in [0, 1, numbers.slots() / 2, numbers.slots() - 1] {
                let slot = slot.min(numbers.slots() - 1);
                let mut last = (Qpn::new(0), CommId(0));
                for _ in 0..40 {
                    let (qpn, comm) = numbers.assign(slot);
                    assert!(qpn.get() > 1 && qpn.get() < QPN_SPACE - 1 && comm.0 != 0);
                    assert_ne!(qpn, last.0);
                    assert_ne!(comm, last.1);
                    assert_eq!(qpn.get() % u32::from(count), u32::from(index));
                    assert_eq!(comm.0 % u32::from(count), u32::from(index));
                    assert_eq!(numbers.slot_of_qpn(qpn), Some(slot as usize));
                    assert_eq!(numbers.slot_of_comm(comm), Some(slot as usize));
                    last = (qpn, comm);
                }
            }
            if count > 1 {
                assert_eq!(numbers.slot_of_qpn(Qpn::new(u32::from(index) + 1)), None);
            }
        }
    }
}

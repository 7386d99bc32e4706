//! What the fabric says of a queue's work requests: capsules that left, responses that came, the end
//! of commands. Called by the queue's owner with each completion.

use lariat_fabric::Timestamp;
use lariat_fabric::verbs::{WcStatus, WorkCompletion};
use lariat_wire::nvme::{COMPLETION_BYTES, Completion};

use super::{CAUSE_WITHIN, HostQueue, QueueCompletion, RECV_MARK, low_mask, recv_request};
use crate::core::types::LossReason;

impl HostQueue {
    /// Takes a completion of this queue's connection.
    pub fn handle_completion(&mut self, now: Timestamp, completion: &WorkCompletion) {
        if self.lost.is_some() {
            return;
        }
        match completion.status {
            WcStatus::Success => {}
            WcStatus::Flushed => {
                // The cause follows, as another completion's status or as a `Disconnected`.
                if self.flushed_until == Timestamp::NEVER {
                    self.flushed_until = now + CAUSE_WITHIN;
                    self.next_deadline = self.next_deadline.min(self.flushed_until);
                }
                return;
            }
            WcStatus::RetryExceeded | WcStatus::RnrRetryExceeded => {
                self.lost = Some(LossReason::Unresponsive);
                return;
            }
            other => {
                self.lost = Some(LossReason::Transport(other));
                return;
            }
        }
        let result = if completion.wr_id & RECV_MARK == 0 {
            self.handle_sent(completion.wr_id)
        } else {
            self.handle_response(now, completion)
        };
        if let Err(reason) = result {
            self.lost = Some(LossReason::Protocol(reason));
        }
    }

    fn handle_sent(&mut self, wr_id: u64) -> Result<(), &'static str> {
        let index = u16::try_from(wr_id).map_err(|_| "a send completion that is not ours")?;
        let slot =
            self.slots.get_mut(usize::from(index)).ok_or("a send completion without slot")?;
        slot.sent = true;
        self.finish(index);
        Ok(())
    }

    fn handle_response(
        &mut self,
        now: Timestamp,
        completion: &WorkCompletion,
    ) -> Result<(), &'static str> {
        let recv = u16::try_from(completion.wr_id & !RECV_MARK)
            .map_err(|_| "a receive completion that is not ours")?;
        if completion.invalidated.is_some() {
            return Err("a response invalidated a key although none was offered for that");
        }
        if completion.byte_len as usize != COMPLETION_BYTES {
            return Err("a response capsule that does not have 16 bytes");
        }
        let slots = u16::try_from(self.slots.len()).unwrap_or(u16::MAX);
        let request = recv_request(self.capsule_region, slots, recv);
        let mut bytes = [0; COMPLETION_BYTES];
        let offset = request.sges.iter().next().map_or(0, |sge| sge.offset);
        self.capsules.read_at(offset, &mut bytes).map_err(|_| "a receive without buffer")?;
        self.repost.push(request);
        let answer = Completion::from_bytes(&bytes);
        let cid = answer.command_id().0;
        let index = cid & low_mask(self.slot_bits);
        let slot = self.slots.get_mut(usize::from(index)).ok_or("an unknown command identifier")?;
        let expected = index | slot.generation.checked_shl(self.slot_bits).unwrap_or(0);
        if !slot.busy || slot.answer.is_some() || cid != expected {
            return Err("a response to no outstanding command");
        }
        slot.answer = Some(answer);
        slot.stages.answered = now;
        self.sq_head = answer.sq_head.get();
        self.finish(index);
        Ok(())
    }

    /// Ends a command that has its response, and frees its slot once the capsule is sent.
    fn finish(&mut self, index: u16) {
        let Some(slot) = self.slots.get_mut(usize::from(index)) else { return };
        let (true, Some(answer)) = (slot.busy, slot.answer) else { return };
        if !slot.ended && (slot.sent || !slot.with_data) {
            slot.ended = true;
            slot.deadline = Timestamp::NEVER;
            self.outstanding -= 1;
            if slot.small_write {
                self.small_writes.ended();
            }
            self.done.push_back(QueueCompletion {
                user_data: slot.user_data,
                tag: slot.tag,
                opcode: slot.opcode,
                outcome: Ok(answer),
                stages: slot.stages,
            });
        }
        if slot.ended && slot.sent {
            slot.busy = false;
            self.free.push(index);
        }
    }
}

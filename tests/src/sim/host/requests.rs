//! A host's requests: what it submits and what it makes of their ends. Called by the host's turn.

use lariat::core::{AdminData, DataRef, Failure, IoDone, SessionEvent, SubmitError, Transfer};
use lariat_fabric::{Fabric, Timestamp};
use lariat_wire::nvme::{AdminCommand, Cns, CommandId, ControllerId, Csi, Nsid};

use super::{Context, Host, Machine, Task};
use crate::sim::content::Value;
use crate::sim::trace::note;
use crate::sim::workload::{Draft, Form, Op, RawData};

impl Host {
    /// Takes what ended.
    pub(super) fn collect(&mut self, context: &mut Context<'_>) -> Result<bool, String> {
        let mut done: Vec<IoDone> = Vec::new();
        if let Some(machine) = &mut self.machine {
            if let Some(session) = &mut machine.session {
                for queue in 0..session.io_queues() {
                    while let Some(one) = session.poll_done(queue) {
                        done.push(one);
                    }
                }
                while let Some(event) = session.poll_event() {
                    if matches!(event, SessionEvent::Other(_)) {
                        context.trace.count("host: asynchronous event");
                    }
                }
                while let Some(admin) = session.poll_admin() {
                    match admin.result {
                        Ok(_) if admin.data.get(4..20) == Some(b"LARIAT0000000001") => {
                            context.trace.count("host: identified the controller again");
                        }
                        Err(Failure::Lost(_)) if self.excused || self.dying => {}
                        other => {
                            return Err(format!("host {}: Identify gave {other:?}", self.index));
                        }
                    }
                }
            }
            for queue in &mut machine.far {
                while let Some(one) = queue.poll_done() {
                    done.push(one);
                }
            }
        }
        for one in &done {
            self.end_op(context, one.user_data, one.result)?;
        }
        Ok(!done.is_empty())
    }

    pub(super) fn end_op(
        &mut self,
        context: &mut Context<'_>,
        id: u64,
        result: Result<u64, lariat::core::IoFailure>,
    ) -> Result<(), String> {
        let Some(op) = self.ops.remove(&id) else {
            return Err(format!("host {}: request {id} ended twice, or never began", self.index));
        };
        self.free_slots.push(op.slot);
        let mut data = Vec::new();
        if let (Some(bytes), Ok(_), Some(machine)) = (op.reads(), result, &self.machine) {
            data.resize(usize::try_from(bytes).unwrap_or(0), 0);
            let offset = op.slot as u64 * u64::from(self.slot_bytes);
            machine.memory.read_at(offset, &mut data).map_err(|e| e.to_string())?;
        }
        let outcome = match result {
            Ok(_) => "done",
            Err(failure) => match failure.failure {
                Failure::Status(_) => "status",
                _ => "lost",
            },
        };
        note!(context.trace, "host {} request {id}: {outcome}", self.index);
        self.succeeded += u64::from(result.is_ok());
        let lost = matches!(result, Err(lariat::core::IoFailure { failure: Failure::Lost(_), .. }));
        if lost && !self.excused && !self.dropping {
            return Err(format!("host {}: {op:?} was lost: {result:?}", self.index));
        }
        // The deadline of a verification must not pass over what was lost.
        if lost
            && let crate::sim::workload::Kind::Read(span) = op.kind
            && self.task == Task::Verify
        {
            let geometry = self.spaces[span.space].geometry;
            let sectors = u64::from(geometry.block_bytes) / 512;
            self.to_verify.push((geometry, span.sector / sectors, span.count / sectors));
        }
        op.finish(result, &data, context.model, context.trace, self.spaces.len())
            .map_err(|wrong| format!("host {}, request {id}: {wrong}", self.index))
    }

    /// Submits requests, as many as the moment allows.
    pub(super) fn submit_some(&mut self, context: &mut Context<'_>) -> Result<bool, String> {
        let now = context.now;
        if !self.was_ready || self.leaving || now < self.think_until {
            return Ok(false);
        }
        let mut any = false;
        let burst = self.rng.range(1, 24);
        for _ in 0..burst {
            let draft = match self.task {
                Task::Work if self.submitted < self.plan.quota => {
                    Draft::random(&mut self.rng, &self.plan, &self.spaces, context.mdts_bytes)
                }
                Task::Verify => match self.to_verify.last() {
                    Some(&(geometry, start, blocks)) => Draft::read(geometry, start, blocks),
                    None => break,
                },
                _ => break,
            };
            let Some(slot) = self.free_slots.pop() else { break };
            if !self.submit(context, draft, slot)? {
                self.free_slots.push(slot);
                break;
            }
            any = true;
            self.submitted += u64::from(self.task == Task::Work);
            if self.task == Task::Verify {
                self.to_verify.pop();
            }
        }
        if any && self.rng.percent(10) {
            self.identify(now);
        }
        if let Some(Machine { fabric, session: Some(session), far, .. }) = &mut self.machine {
            session.post(now, fabric);
            let mut ring = false;
            for queue in far {
                ring |= queue.post(now, fabric);
            }
            if ring {
                fabric.flush(now);
            }
        }
        if any && self.rng.percent(30) {
            self.think_until = now + self.rng.micros(1, 2000);
        }
        Ok(any)
    }

    /// Now and then, an admin command beside the I/O.
    fn identify(&mut self, now: Timestamp) {
        let Some(Machine { session: Some(session), fabric, .. }) = &mut self.machine else {
            return;
        };
        let identify = AdminCommand::Identify {
            cns: Cns::CONTROLLER,
            cntid: ControllerId(0),
            cns_specific: 0,
            csi: Csi::NVM,
            uuid_index: 0,
            nsid: Nsid(0),
        };
        let command = identify.to_command(CommandId(0));
        // A full queue, or one that is closed, is no matter.
        let _ = session.submit_admin(now, fabric, command, AdminData::ToHost(4096), 0);
    }

    fn submit(
        &mut self,
        context: &mut Context<'_>,
        draft: Draft,
        slot: usize,
    ) -> Result<bool, String> {
        let now = context.now;
        let Some(machine) = &mut self.machine else { return Ok(false) };
        let Some(session) = &mut machine.session else { return Ok(false) };
        let offset = slot as u64 * u64::from(self.slot_bytes);
        *context.next_value += 1;
        let value = Value(*context.next_value);
        let length = draft.bytes as usize;
        let fits = draft.bytes <= self.slot_bytes;
        if !fits {
            return Err(format!("{draft:?} does not fit a slot of {} bytes", self.slot_bytes));
        }
        // Whoever reads from memory that was not written finds this.
        let bytes = draft.data(value).unwrap_or_else(|| vec![0xee; length]);
        machine.memory.write_at(offset, &bytes).map_err(|e| e.to_string())?;
        let address = machine.memory.address().as_ptr().addr() as u64 + offset;
        let data = DataRef { region: machine.region, offset, address, length: draft.bytes };
        let id = self.next_op;
        let own = usize::from(self.plan.queues);
        let queue = self.rng.index(own + machine.far.len());
        let taken = match draft.form {
            Form::Request(..) => {
                let request = draft.request((length > 0).then_some(data));
                let Some(request) = request else { return Ok(false) };
                match queue.checked_sub(own) {
                    None => session.submit(now, &machine.fabric, queue, &request, id),
                    Some(far) => machine.far[far].submit(now, &machine.fabric, &request, id),
                }
            }
            Form::Raw(_, raw) => {
                let transfer = match raw {
                    RawData::None => Transfer::None,
                    RawData::ToHost(_) => Transfer::ToHost(data),
                    RawData::FromHost(_) => Transfer::ToController(data),
                };
                let Some(command) = draft.command() else { return Ok(false) };
                let fabric = &machine.fabric;
                match queue.checked_sub(own) {
                    None => session.submit_raw(now, fabric, queue, command, transfer, id),
                    Some(far) => machine.far[far].submit_raw(now, fabric, command, transfer, id),
                }
            }
        };
        match taken {
            Ok(()) => {}
            Err(SubmitError::Full | SubmitError::Closed(_) | SubmitError::NotReady) => {
                context.trace.count("host: queue full or closed");
                return Ok(false);
            }
            Err(error) => return Err(format!("host {}: {draft:?}: {error}", self.index)),
        }
        self.next_op += 1;
        let kind = draft.begin(context.model, value);
        note!(
            context.trace,
            "host {} request {id} on queue {queue}, value {}: {kind:?}",
            self.index,
            value.0
        );
        let limit = self.plan.transfer_bytes.min(context.mdts_bytes).max(512);
        let commands = draft.bytes.div_ceil(limit).max(1);
        self.ops.insert(id, Op { kind, slot, submitted: now, commands });
        Ok(true)
    }
}

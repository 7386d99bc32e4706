//! What goes over the wire on our initiative: RDMA READs of the hosts' data within the negotiated
//! depth, RDMA WRITEs of data read, responses; and the completions of all that.
//!
//! The order in a batch: first the receives (a host may send as soon as it sees a response), then
//! the RDMA WRITEs of a group of reads that are ready, then their responses, the next group and so
//! on, then RDMA READs. A response thus always follows its data on the same queue pair, equal
//! packets stand together, and the host works on the first group while the next is on its way.
//! Called by the reactor's turn.

use lariat_fabric::verbs::{SendOp, SendRequest, Sge, SgeList, WcStatus, WorkCompletion};
use lariat_fabric::{Fabric, Timestamp};
use lariat_wire::nvme::Completion;
use lariat_wire::rocev2::Rkey;

use super::connection::Capsule;
use super::reactor::{RESPONSE_BYTES, Reactor};
use super::request::State;
use super::sgl::HostMemory;
use super::wr_id::{Kind, WrId};
use crate::storage::Storage;

/// Data of a group of reads in one batch: what the soft provider sends in one call (15 packets of
/// 4 KiB).
const GROUP_BYTES: u32 = 60 << 10;
/// Data of a connection in one turn, about: the host works on it while the rest is posted.
const TURN_BYTES: u32 = 256 << 10;
/// Reads of a batch that go in two groups, where they would be one and little: while the host works
/// on the first half the second is made, and from then on they come as two.
const HALVED: core::ops::RangeInclusive<usize> = 6..=23;

impl<F: Fabric, S: Storage> Reactor<F, S> {
    /// Posts what the turn has made ready, connection by connection.
    pub(super) fn post_batches(&mut self, now: Timestamp) {
        self.post_shared();
        // Connections that keep something for the next turn list themselves again, behind these.
        let count = self.listed.len();
        for at in 0..count {
            if let Some(&key) = self.listed.get(at) {
                self.post_batch(now, key);
            }
        }
        self.listed.drain(..count);
    }

    fn post_batch(&mut self, now: Timestamp, key: u32) {
        let Some(connection) = self.connections.get_mut(key as usize) else { return };
        connection.listed = false;
        if !connection.is_live() {
            return;
        }
        let id = connection.id;
        if !connection.to_receive.is_empty() {
            let posted = self.fabric.post_recv(id, &connection.to_receive);
            connection.to_receive.clear();
            if posted.is_err() {
                self.stats.fabric_errors += 1;
                return self.close(now, key, "receives cannot be posted");
            }
        }
        self.batch.clear();
        let mut ready = core::mem::take(&mut connection.ready);
        let mut rest = ready.as_slice();
        let mut full_groups = false;
        let mut turn_bytes = 0;
        let has_data = |&&slot: &&u32| {
            self.requests.get(slot as usize).is_some_and(|request| request.send_data)
        };
        let halved = !connection.wire.is_busy()
            && HALVED.contains(&ready.len())
            && HALVED.contains(&ready.iter().filter(has_data).count());
        let most_members = if halved { ready.len().div_ceil(2) } else { usize::MAX };
        while !rest.is_empty() && turn_bytes < TURN_BYTES {
            // The data of a group, then its responses.
            let mut members = 0;
            let mut group_bytes = 0;
            let batch_before = self.batch.len();
            while let Some(&slot) = rest.get(members)
                && group_bytes < GROUP_BYTES
                && members < most_members
            {
                members += 1;
                let Some(request) = self.requests.get(slot as usize) else { continue };
                let (true, HostMemory::Keyed { address, rkey, .. }, Some((region, offset))) =
                    (request.send_data, request.host, self.regions.data_of(request))
                else {
                    continue;
                };
                group_bytes += request.bytes;
                let sge = Sge { region, offset, length: request.bytes };
                self.batch.push(SendRequest {
                    wr_id: WrId { kind: Kind::Write, connection: key, index: slot }.encode(),
                    op: SendOp::Write { remote_address: address, rkey },
                    sges: SgeList::one(sge),
                    signaled: false,
                });
            }
            if full_groups && !halved && group_bytes < GROUP_BYTES && members == rest.len() {
                // Few are left over: they wait one turn for company, as a call costs the same for
                // one packet as for fifteen.
                self.batch.truncate(batch_before);
                break;
            }
            full_groups = true;
            turn_bytes += group_bytes;
            let (group, others) = rest.split_at_checked(members).unwrap_or((rest, &[]));
            rest = others;
            for &slot in group {
                let Some(request) = self.requests.get_mut(slot as usize) else { continue };
                let cid = request.command.command_id();
                let completion = Completion::failure(cid, request.status)
                    .with_result(request.result)
                    .with_sq_head(connection.sq_head());
                let offset = u64::from(slot) * u64::from(RESPONSE_BYTES);
                if self.responses.write_at(offset, &completion.to_bytes()).is_err() {
                    self.stats.anomalies += 1;
                }
                self.stats.responses += 1;
                self.stats.error_responses += u64::from(!request.status.is_success());
                connection.count_out(cid, request.owns_cid);
                request.advance(now, State::Sending, &mut self.stats);
                connection.wire.posted(now);
                let sge = Sge { region: self.regions.responses, offset, length: RESPONSE_BYTES };
                self.batch.push(SendRequest {
                    wr_id: WrId { kind: Kind::Response, connection: key, index: slot }.encode(),
                    op: request.host.response_op(connection.agreement.may_invalidate),
                    sges: SgeList::one(sge),
                    signaled: true,
                });
            }
        }
        let posted = ready.len() - rest.len();
        ready.drain(..posted);
        if !ready.is_empty() {
            connection.listed = true;
            self.listed.push(key);
        }
        connection.ready = ready;
        while connection.reads_in_flight < connection.read_depth
            && let Some(slot) = connection.read_queue.pop_front()
        {
            let Some(request) = self.requests.get_mut(slot as usize) else { continue };
            let (HostMemory::Keyed { address, rkey, .. }, Some(data)) =
                (request.host, request.data)
            else {
                self.stats.anomalies += 1;
                continue;
            };
            connection.reads_in_flight += 1;
            connection.wire.posted(now);
            request.advance(now, State::Fetching, &mut self.stats);
            let sge = Sge { region: self.regions.pool, offset: data.offset, length: data.length };
            self.batch.push(SendRequest {
                wr_id: WrId { kind: Kind::Read, connection: key, index: slot }.encode(),
                op: SendOp::Read { remote_address: address, rkey },
                sges: SgeList::one(sge),
                signaled: true,
            });
        }
        if core::mem::take(&mut connection.probe_due) {
            self.stats.probes += 1;
            connection.wire.posted(now);
            // An RDMA WRITE of nothing names no memory of the peer's (IBTA 9.7.4.1.3), which has to
            // acknowledge it all the same.
            self.batch.push(SendRequest {
                wr_id: WrId { kind: Kind::Probe, connection: key, index: 0 }.encode(),
                op: SendOp::Write { remote_address: 0, rkey: Rkey(0) },
                sges: SgeList::EMPTY,
                signaled: true,
            });
        }
        if !self.batch.is_empty() && self.fabric.post_send(id, &self.batch).is_err() {
            // Requests that were not posted are freed with the connection, like those that were.
            self.stats.fabric_errors += 1;
            self.close(now, key, "responses cannot be posted");
        }
    }

    /// A work request ended.
    pub(super) fn on_completion(&mut self, now: Timestamp, completion: &WorkCompletion) {
        let Some(id) = WrId::decode(completion.wr_id) else {
            self.stats.anomalies += 1;
            return;
        };
        if id.kind == Kind::Shared {
            return self.on_shared(now, id, completion);
        }
        let key = id.connection;
        let live = match self.connections.get_mut(key as usize) {
            Some(connection) if connection.id == completion.conn => {
                if matches!(id.kind, Kind::Read | Kind::Response | Kind::Probe) {
                    connection.wire.ended(now);
                    self.pool.bar(key, false);
                }
                connection.is_live()
            }
            _ => {
                self.stats.anomalies += 1;
                return;
            }
        };
        let success = completion.status == WcStatus::Success;
        if !success {
            if completion.status != WcStatus::Flushed {
                self.stats.fabric_errors += 1;
                tracing::debug!(status = ?completion.status, kind = ?id.kind, "work request failed");
            }
            // Frees what nobody holds; the request of this completion is looked at below.
            self.close(now, key, "a work request failed");
        }
        match id.kind {
            Kind::Receive => {
                if success {
                    let capsule = Capsule { receive: id.index, bytes: completion.byte_len };
                    self.on_capsule(now, key, capsule);
                }
            }
            // Unsignalled: only failures are told, and the response fails with it.
            Kind::Write | Kind::Probe | Kind::Shared => {}
            Kind::Read => self.on_fetched(now, key, id.index, success && live),
            Kind::Response => self.on_sent(now, key, id.index, success && live),
        }
    }

    fn on_fetched(&mut self, now: Timestamp, key: u32, slot: u32, good: bool) {
        if !self.expect(slot, key, State::Fetching) {
            return;
        }
        if let Some(connection) = self.connections.get_mut(key as usize) {
            connection.reads_in_flight = connection.reads_in_flight.saturating_sub(1);
            if good && !connection.read_queue.is_empty() {
                self.list(key);
            }
        }
        if good {
            self.run(now, slot);
        } else {
            self.stats.orphaned += 1;
            self.free(now, slot);
        }
    }

    fn on_sent(&mut self, now: Timestamp, key: u32, slot: u32, good: bool) {
        if !self.expect(slot, key, State::Sending) {
            return;
        }
        let close = self.requests.get(slot as usize).is_some_and(|request| request.close_after);
        self.free(now, slot);
        if good && close {
            self.close(now, key, "the host disconnected the queue");
        } else if good {
            self.unpark(now, key);
        } else {
            self.stats.orphaned += 1;
        }
    }

    /// Whether a completion's slot is in the state that it should be in.
    fn expect(&mut self, slot: u32, key: u32, state: State) -> bool {
        let good = self
            .requests
            .get(slot as usize)
            .is_some_and(|request| request.connection == key && request.state() == state);
        self.stats.anomalies += u64::from(!good);
        good
    }
}

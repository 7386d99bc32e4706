//! One queue's way up, and down: resolve, queue pair, receives, connection, Fabrics Connect.
//!
//! ```text
//! start -> Resolving -> Connecting -> Handshake -> Live -> (lost or closed) -> Closed
//!                 \____________\___________\__________________________________/
//! ```
//!
//! Everything has a deadline, and whatever goes wrong ends in `Closed` with the connection destroyed
//! and each outstanding command completed. Calls the fabric and [`HostQueue`]; called by `block` and
//! `session`.

use core::net::SocketAddr;
use core::time::Duration;

use lariat_fabric::verbs::{
    CmEvent, ConnId, ConnectFailure, ConnectParams, DisconnectReason, DomainId, PrivateData,
    QpConfig, WorkCompletion,
};
use lariat_fabric::waiting::PARTING_SILENCE;
use lariat_fabric::{Fabric, Timestamp};
use lariat_wire::nvme::{
    ConnectData, ConnectResult, ControllerId, FabricsCommand, HostId, Nqn, Qid, QueueSize,
};
use lariat_wire::rdma_cm::{ConnectAccept, ConnectReject, ConnectRequest};
use lariat_wire::rocev2::cm::RejReason;

use super::error::{ConnectError, Stage, connect_hint};
use super::queue::{HostQueue, known_end};
use super::types::{LossReason, Transfer};

/// Size of the data of a Connect.
const CONNECT_DATA_BYTES: u32 = 1024;
/// RNR retries asked for: 7 would be without end, and nothing here waits without end.
const RNR_RETRIES: u8 = 6;
/// Transport retries asked for: the most there are.
const TRANSPORT_RETRIES: u8 = 7;
/// Capsules beside those of outstanding commands. An acknowledge comes behind the response at the
/// soonest where a target sends its data first.
const SPARE_CAPSULES: u32 = 64;
/// A command identifier names its capsule.
const CID_LIMIT: u32 = u16::MAX as u32 - 1;

/// Who connects to what.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The subsystem.
    pub subsystem: Nqn,
    /// This host's name.
    pub host: Nqn,
    /// This host's identifier.
    pub host_id: HostId,
}

/// One queue to connect.
#[derive(Clone, Debug)]
pub struct LinkConfig {
    /// The target.
    pub remote: SocketAddr,
    /// The protection domain of the queue's memory.
    pub domain: DomainId,
    /// The queue.
    pub qid: Qid,
    /// Its size in entries; one less are outstanding at most.
    pub size: QueueSize,
    /// The controller it belongs to ([`ControllerId::DYNAMIC`] for an admin queue).
    pub cntlid: ControllerId,
    /// Who connects to what.
    pub identity: Identity,
    /// Keep alive timeout; admin queue only.
    pub kato: Duration,
    /// Data that capsules of this queue may carry, in bytes.
    pub in_capsule_bytes: u32,
    /// Memory for the data of small commands, in bytes.
    pub scratch_bytes: usize,
    /// Time for all of it.
    pub timeout: Duration,
}

#[derive(Debug)]
enum State {
    Resolving(ConnId),
    Connecting(HostQueue),
    Handshake(HostQueue),
    Live(HostQueue),
    /// The queue is kept for the completions it still holds.
    Closed(Option<HostQueue>, LossReason),
}

/// A queue with its connection. See the module.
#[derive(Debug)]
pub struct Link {
    config: LinkConfig,
    state: State,
    started: Timestamp,
    deadline: Timestamp,
    controller: ControllerId,
    error: Option<ConnectError>,
}

/// Where a link stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkStatus {
    /// On its way up.
    Connecting,
    /// Usable.
    Live,
    /// Gone.
    Closed(LossReason),
}

impl Link {
    /// Starts connecting.
    ///
    /// # Errors
    /// What fails at once.
    pub fn start<F: Fabric + ?Sized>(
        now: Timestamp,
        fabric: &mut F,
        config: LinkConfig,
    ) -> Result<Self, ConnectError> {
        let conn = fabric.resolve(now, config.remote, config.timeout)?;
        Ok(Self {
            deadline: now + config.timeout,
            controller: config.cntlid,
            config,
            state: State::Resolving(conn),
            started: now,
            error: None,
        })
    }

    /// Where it stands.
    #[must_use]
    pub fn status(&self) -> LinkStatus {
        match &self.state {
            State::Live(_) => LinkStatus::Live,
            State::Closed(_, reason) => LinkStatus::Closed(*reason),
            _ => LinkStatus::Connecting,
        }
    }

    /// The queue, once it is live.
    pub fn live(&mut self) -> Option<&mut HostQueue> {
        match &mut self.state {
            State::Live(queue) => Some(queue),
            _ => None,
        }
    }

    /// The queue while it is live or has completions to give.
    pub fn queue(&mut self) -> Option<&mut HostQueue> {
        match &mut self.state {
            State::Live(queue) | State::Closed(Some(queue), _) => Some(queue),
            _ => None,
        }
    }

    /// The queue, once it is live.
    #[must_use]
    pub fn peek(&self) -> Option<&HostQueue> {
        match &self.state {
            State::Live(queue) => Some(queue),
            _ => None,
        }
    }

    /// What was configured.
    #[must_use]
    pub fn config(&self) -> &LinkConfig {
        &self.config
    }

    /// The controller that the Connect's answer named.
    #[must_use]
    pub fn controller(&self) -> ControllerId {
        self.controller
    }

    /// Why it did not come up; given once.
    pub fn take_error(&mut self) -> Option<ConnectError> {
        self.error.take()
    }

    /// The connection, while there is one.
    #[must_use]
    pub fn conn(&self) -> Option<ConnId> {
        match &self.state {
            State::Resolving(conn) => Some(*conn),
            State::Connecting(queue) | State::Handshake(queue) | State::Live(queue) => {
                Some(queue.conn())
            }
            State::Closed(..) => None,
        }
    }

    /// When the target will have been silent for too long to be waited for at an orderly end, if it
    /// goes on; [`Timestamp::NEVER`] if it owes no acknowledgement.
    #[must_use]
    pub fn silent_at<F: Fabric + ?Sized>(&self, fabric: &F) -> Timestamp {
        let since = self.conn().and_then(|conn| fabric.silent_since(conn));
        since.map_or(Timestamp::NEVER, |since| since + PARTING_SILENCE)
    }

    fn stage(&self) -> Stage {
        match self.state {
            State::Resolving(_) => Stage::Resolve,
            State::Connecting(_) => Stage::Connect,
            _ => Stage::FabricsConnect,
        }
    }

    /// Takes an event of this link's connection.
    pub fn handle_event<F: Fabric + ?Sized>(
        &mut self,
        now: Timestamp,
        fabric: &mut F,
        event: &CmEvent,
    ) {
        match *event {
            CmEvent::Resolved { conn } => self.resolved(now, fabric, conn),
            CmEvent::Established { private_data, .. } => {
                self.established(now, fabric, &private_data);
            }
            CmEvent::ConnectFailed { failure, .. } => {
                let error = self.explain(fabric, failure);
                self.fail(now, fabric, error);
            }
            CmEvent::Disconnected { reason, .. } => {
                self.close(
                    now,
                    fabric,
                    match reason {
                        DisconnectReason::Local => LossReason::Local,
                        DisconnectReason::Peer => LossReason::Peer,
                        DisconnectReason::Timeout => LossReason::Unresponsive,
                        DisconnectReason::DeviceRemoved => LossReason::DeviceRemoved,
                        DisconnectReason::Error => {
                            LossReason::Transport(lariat_fabric::verbs::WcStatus::Flushed)
                        }
                    },
                );
            }
            CmEvent::ConnectRequest { .. } => {}
        }
    }

    fn resolved<F: Fabric + ?Sized>(&mut self, now: Timestamp, fabric: &mut F, conn: ConnId) {
        if !matches!(self.state, State::Resolving(own) if own == conn) {
            return;
        }
        match self.open_queue(now, fabric, conn) {
            Ok(()) => {}
            Err(error) => self.fail(now, fabric, error),
        }
    }

    fn open_queue<F: Fabric + ?Sized>(
        &mut self,
        now: Timestamp,
        fabric: &mut F,
        conn: ConnId,
    ) -> Result<(), ConnectError> {
        let limits = fabric.limits(conn).map_err(lariat_fabric::QpError::from)?;
        let wanted = self.config.size.entries().saturating_sub(1);
        let slots = wanted.clamp(1, limits.max_queue_depth.max(1)).min(CID_LIMIT);
        let size = QueueSize::from_entries(slots + 1).unwrap_or(self.config.size);
        self.config.size = size;
        if limits.max_sge < 2 {
            self.config.in_capsule_bytes = 0;
        }
        // Room for commands that follow those whose capsules are answered before acknowledged.
        let capsules = (slots + slots.min(SPARE_CAPSULES))
            .min(limits.max_queue_depth.max(slots))
            .min(CID_LIMIT);
        fabric.create_qp(conn, &QpConfig::new(self.config.domain, capsules, slots))?;
        let slots =
            (u16::try_from(slots).unwrap_or(u16::MAX), u16::try_from(capsules).unwrap_or(u16::MAX));
        let scratch = self.config.scratch_bytes.max(CONNECT_DATA_BYTES as usize);
        let queue =
            HostQueue::new(fabric, self.config.domain, conn, self.config.qid, slots, scratch)?;
        self.state = State::Connecting(queue);
        let cntlid = if self.config.qid.is_admin() { ControllerId(0) } else { self.config.cntlid };
        let request = ConnectRequest::new(self.config.qid, size, cntlid);
        let params = ConnectParams {
            responder_resources: limits.max_responder_resources,
            initiator_depth: 0,
            retry_count: TRANSPORT_RETRIES,
            rnr_retry_count: RNR_RETRIES,
            private_data: PrivateData::new(&request.to_bytes()).unwrap_or(PrivateData::EMPTY),
        };
        fabric.connect(now, conn, &params, self.deadline.since(now))?;
        Ok(())
    }

    fn established<F: Fabric + ?Sized>(
        &mut self,
        now: Timestamp,
        fabric: &mut F,
        private_data: &PrivateData,
    ) {
        let lost = LossReason::Protocol("unexpected end of a handshake");
        match core::mem::replace(&mut self.state, State::Closed(None, lost)) {
            State::Connecting(mut queue) => {
                // A peer without NVMe private data (or of another format) still takes one command.
                let credit = ConnectAccept::parse(private_data.as_bytes())
                    .map_or(1, |accept| u32::from(accept.crqsize));
                queue.limit_depth(credit);
                queue.set_in_capsule_bytes(self.config.in_capsule_bytes);
                let result = self.send_connect(now, fabric, &mut queue);
                self.state = State::Handshake(queue);
                if let Err(error) = result {
                    self.fail(now, fabric, error);
                }
            }
            other => self.state = other,
        }
    }

    fn send_connect<F: Fabric + ?Sized>(
        &self,
        now: Timestamp,
        fabric: &mut F,
        queue: &mut HostQueue,
    ) -> Result<(), ConnectError> {
        let Identity { subsystem, host, host_id } = &self.config.identity;
        let data = ConnectData::new(*host_id, self.config.cntlid, subsystem, host);
        let no_room = ConnectError::Unsupported("no memory for the Connect data");
        let Some(target) = queue.scratch(0, CONNECT_DATA_BYTES) else { return Err(no_room) };
        if queue.scratch_memory().write_at(0, data.as_bytes()).is_err() {
            return Err(no_room);
        }
        let kato = if self.config.qid.is_admin() { self.config.kato } else { Duration::ZERO };
        let command = FabricsCommand::Connect {
            recfmt: 0,
            qid: self.config.qid,
            sqsize: self.config.size,
            cattr: 0,
            kato_ms: u32::try_from(kato.as_millis()).unwrap_or(u32::MAX),
        };
        let command = command.to_command(lariat_wire::nvme::CommandId(0));
        let left = self.deadline.since(now);
        queue
            .submit(now, fabric, command, Transfer::ToController(target), 0, 0, left)
            .map_err(|source| ConnectError::Submit { what: "Fabrics Connect", source })?;
        queue.post(now, fabric);
        Ok(())
    }

    /// Takes a work completion of this link's connection.
    pub fn handle_completion<F: Fabric + ?Sized>(
        &mut self,
        now: Timestamp,
        fabric: &mut F,
        completion: &WorkCompletion,
    ) {
        match &mut self.state {
            State::Live(queue) | State::Connecting(queue) => {
                queue.handle_completion(now, completion);
            }
            State::Handshake(queue) => {
                queue.handle_completion(now, completion);
                if let Some(done) = queue.poll_completion() {
                    self.handshake_done(now, fabric, &done);
                }
            }
            State::Resolving(_) | State::Closed(..) => {}
        }
        self.check_lost(now, fabric);
    }

    fn handshake_done<F: Fabric + ?Sized>(
        &mut self,
        now: Timestamp,
        fabric: &mut F,
        done: &super::queue::QueueCompletion,
    ) {
        let Ok(answer) = done.outcome else { return };
        let subsystem = || self.config.identity.subsystem.as_str().to_owned();
        let status = answer.status();
        let result = ConnectResult::from_result(answer.result32());
        if !status.is_success() {
            let error = ConnectError::Refused {
                subsystem: subsystem(),
                qid: self.config.qid,
                status,
                hint: connect_hint(
                    status,
                    answer.result32(),
                    self.config.remote,
                    &self.config.identity.host,
                ),
            };
            self.fail(now, fabric, error);
        } else if result.requires_authentication() {
            let error = ConnectError::Authentication { subsystem: subsystem() };
            self.fail(now, fabric, error);
        } else {
            self.controller = result.cntlid;
            let lost = LossReason::Protocol("unexpected answer to a Connect");
            self.state = match core::mem::replace(&mut self.state, State::Closed(None, lost)) {
                State::Handshake(queue) => State::Live(queue),
                other => other,
            };
        }
    }

    /// Hands queued commands to the fabric; the caller rings. Returns whether there were any.
    pub fn post<F: Fabric + ?Sized>(&mut self, now: Timestamp, fabric: &mut F) -> bool {
        let posted = match &mut self.state {
            State::Live(queue) | State::Handshake(queue) => queue.post(now, fabric),
            _ => false,
        };
        self.check_lost(now, fabric);
        posted
    }

    /// When [`Self::handle_timeout`] wants to be called.
    #[must_use]
    pub fn next_timeout(&self) -> Timestamp {
        match &self.state {
            State::Live(queue) => queue.next_timeout(),
            State::Closed(..) => Timestamp::NEVER,
            _ => self.deadline,
        }
    }

    /// Runs the deadlines.
    pub fn handle_timeout<F: Fabric + ?Sized>(&mut self, now: Timestamp, fabric: &mut F) {
        match &mut self.state {
            State::Live(queue) => queue.handle_timeout(now),
            State::Closed(..) => {}
            _ if now >= self.deadline => {
                let error = ConnectError::TimedOut {
                    remote: self.config.remote,
                    stage: self.stage(),
                    waited: now.since(self.started),
                    advice: self.conn().and_then(|conn| fabric.diagnose(conn)),
                };
                self.fail(now, fabric, error);
            }
            _ => {}
        }
        self.check_lost(now, fabric);
    }

    fn check_lost<F: Fabric + ?Sized>(&mut self, now: Timestamp, fabric: &mut F) {
        let lost = match &self.state {
            State::Connecting(queue) | State::Handshake(queue) | State::Live(queue) => queue.lost(),
            _ => None,
        };
        if let Some(reason) = lost {
            self.close(now, fabric, reason);
        }
    }

    fn fail<F: Fabric + ?Sized>(&mut self, now: Timestamp, fabric: &mut F, error: ConnectError) {
        if self.error.is_none() {
            self.error = Some(error);
        }
        self.close(now, fabric, LossReason::Local);
    }

    /// Ends it, whatever the state: the connection is destroyed (the peer is told), and what was
    /// outstanding completes.
    pub fn close<F: Fabric + ?Sized>(
        &mut self,
        now: Timestamp,
        fabric: &mut F,
        reason: LossReason,
    ) {
        let stage = self.stage();
        let reason = self.conn().map_or(reason, |conn| known_end(fabric, conn, reason));
        match core::mem::replace(&mut self.state, State::Closed(None, reason)) {
            State::Resolving(conn) => fabric.destroy(now, conn),
            State::Connecting(mut queue) | State::Handshake(mut queue) => {
                queue.close(now, fabric, reason);
            }
            State::Live(mut queue) => {
                queue.close(now, fabric, reason);
                self.state = State::Closed(Some(queue), reason);
                return;
            }
            closed @ State::Closed(..) => {
                self.state = closed;
                return;
            }
        }
        if self.error.is_none() {
            self.error = Some(ConnectError::Lost { remote: self.config.remote, stage, reason });
        }
    }

    fn explain<F: Fabric + ?Sized>(&self, fabric: &F, failure: ConnectFailure) -> ConnectError {
        let remote = self.config.remote;
        match failure {
            ConnectFailure::Rejected { reason, private_data } => ConnectError::Rejected {
                remote,
                qid: self.config.qid,
                reason: RejReason(reason),
                nvme: ConnectReject::parse(private_data.as_bytes())
                    .ok()
                    .filter(|reject| reject.status.0 != 0)
                    .map(|reject| reject.status),
            },
            ConnectFailure::Timeout { waited } => {
                let advice = self.conn().and_then(|conn| fabric.diagnose(conn));
                ConnectError::TimedOut { remote, stage: self.stage(), waited, advice }
            }
            ConnectFailure::Unreachable { errno } => {
                let advice = self.conn().and_then(|conn| fabric.diagnose(conn));
                ConnectError::Unreachable { remote, errno, advice }
            }
        }
    }
}

//! One controller's admin queue: from command to completion. Holds the state that only the admin
//! connection touches: properties, features, the keep-alive timer, held event requests. Calls
//! `property`, `identify`, `feature`, `log` and `abort`; `transport` owns it with the admin
//! connection.

use std::sync::Arc;

use lariat_fabric::Timestamp;
use lariat_wire::nvme::{
    AdminCommand, AdminOpcode, AsyncEvent, Command, CommandId, FabricsCommand, FeatureId, Lba,
    LogPage, Nsid, Property, Qid, QueueSize, Status,
};

use super::attachment::{ControllerShared, Notice, TerminateReason};
use super::event::AsyncEvents;
use super::fabrics::ConnectCommand;
use super::feature::{Features, SetRequest};
use super::identify;
use super::keep_alive::KeepAlive;
use super::log::{self, ErrorReport};
use super::property::{Change, Properties};
use super::registry::Registry;
use super::subsystem::Subsystem;

/// Length of what Identify returns.
const IDENTIFY_TRANSFER: u32 = 4096;

/// Silence after which a discovery controller without keep alive ends.
const DISCOVERY_TIMEOUT_MS: u32 = 120_000;

/// The data that goes with a command, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// None.
    None,
    /// From the target to the host.
    ToHost(u32),
    /// From the host to the target.
    FromHost(u32),
}

impl Transfer {
    /// The length, whatever the direction.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        match self {
            Self::None => 0,
            Self::ToHost(bytes) | Self::FromHost(bytes) => bytes,
        }
    }
}

/// An admin command that was found good: what it transfers, and what it does.
#[derive(Clone, Copy, Debug)]
pub struct AdminPlan {
    /// The command.
    pub cid: CommandId,
    /// The data that goes with it; check the SGL against it, and give `execute` a slice of
    /// exactly this length.
    pub transfer: Transfer,
    action: Action,
    opcode: u8,
    nsid: Nsid,
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Fabrics(FabricsCommand),
    Admin(AdminCommand),
}

/// How an admin command ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdminOutcome {
    /// Complete it now.
    Complete {
        /// Result, dwords 0 and 1.
        result: u64,
        /// Status.
        status: Status,
        /// Bytes of `data` to send to the host before the completion: all of a successful
        /// transfer to the host, else 0.
        bytes: u32,
    },
    /// Keep it: [`AdminEvent::CompleteHeld`] will complete it.
    Hold,
}

/// Something that happens to the admin queue by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdminEvent {
    /// Complete a held command.
    CompleteHeld {
        /// Which.
        cid: CommandId,
        /// Result, dwords 0 and 1.
        result: u64,
        /// Status.
        status: Status,
    },
    /// The controller is gone: close the admin connection. Comes once.
    Fatal(FatalReason),
}

/// Why a controller ended.
pub type FatalReason = TerminateReason;

/// A controller, as its admin connection sees it. Dropping it ends the controller and with it the
/// I/O queues.
#[derive(Debug)]
pub struct AdminController {
    registry: Arc<Registry>,
    subsystem: Arc<Subsystem>,
    shared: Arc<ControllerShared>,
    size: QueueSize,
    sq_flow_control: bool,
    started: Timestamp,
    properties: Properties,
    features: Features,
    keep_alive: KeepAlive,
    events: AsyncEvents,
    /// Commands that came by the admin queue.
    commands: u64,
    ended: bool,
}

impl AdminController {
    pub(super) fn new(
        now: Timestamp,
        registry: Arc<Registry>,
        subsystem: Arc<Subsystem>,
        shared: Arc<ControllerShared>,
        command: &ConnectCommand,
    ) -> Self {
        let features = Features::new(now, command.kato_ms);
        Self {
            size: command.sqsize,
            sq_flow_control: command.sq_flow_control(),
            started: now,
            properties: Properties::new(&subsystem),
            keep_alive: KeepAlive::new(now, timeout_ms(&subsystem, &features), 0),
            features,
            events: AsyncEvents::default(),
            commands: 0,
            ended: false,
            registry,
            subsystem,
            shared,
        }
    }

    /// What all queues of the controller share.
    #[must_use]
    pub const fn shared(&self) -> &Arc<ControllerShared> {
        &self.shared
    }

    /// The subsystem.
    #[must_use]
    pub const fn subsystem(&self) -> &Arc<Subsystem> {
        &self.subsystem
    }

    /// Entries of the admin queue.
    #[must_use]
    pub const fn size(&self) -> QueueSize {
        self.size
    }

    /// Whether completions carry the submission queue head (else it is FFFFh).
    #[must_use]
    pub const fn sq_flow_control(&self) -> bool {
        self.sq_flow_control
    }

    /// Result of the Connect that made it.
    #[must_use]
    pub fn connect_result(&self) -> u64 {
        u64::from(self.shared.id().0)
    }

    /// Checks a command of the admin queue: its form, whether it is allowed now, what it
    /// transfers.
    ///
    /// # Errors
    /// The status to complete it with; it is in the error log already.
    pub fn prepare(&mut self, command: &Command) -> Result<AdminPlan, Status> {
        self.commands = self.commands.wrapping_add(1);
        self.plan(command).map_err(|status| self.log(command, status))
    }

    fn plan(&self, command: &Command) -> Result<AdminPlan, Status> {
        let (action, transfer) = if command.is_fabrics() {
            (Action::Fabrics(self.check_fabrics(command)?), Transfer::None)
        } else {
            let parsed = AdminCommand::parse(command)?;
            if !self.properties.is_ready() {
                return Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr());
            }
            (Action::Admin(parsed), self.transfer(&parsed)?)
        };
        let (cid, opcode, nsid) = (command.command_id(), command.opcode, command.namespace());
        Ok(AdminPlan { cid, transfer, action, opcode, nsid })
    }

    /// Fabrics commands on the admin queue: properties alone, at any time. A second Connect is out
    /// of sequence, Disconnect is for I/O queues (NVMe Base 2.1, 6.4).
    #[expect(clippy::unused_self, reason = "stands beside the check of admin commands")]
    fn check_fabrics(&self, command: &Command) -> Result<FabricsCommand, Status> {
        let parsed = FabricsCommand::parse(command)?;
        match parsed {
            FabricsCommand::PropertyGet { .. } | FabricsCommand::PropertySet { .. } => Ok(parsed),
            FabricsCommand::Connect { .. } => Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr()),
            FabricsCommand::Disconnect { .. } => Err(Status::INVALID_QUEUE_TYPE.with_dnr()),
            FabricsCommand::Unsupported(_) => Err(Status::INVALID_OPCODE.with_dnr()),
        }
    }

    fn transfer(&self, command: &AdminCommand) -> Result<Transfer, Status> {
        let some = |bytes, transfer: fn(u32) -> Transfer| match bytes {
            0 => Transfer::None,
            bytes => transfer(bytes),
        };
        match *command {
            AdminCommand::Identify { .. } => Ok(Transfer::ToHost(IDENTIFY_TRANSFER)),
            AdminCommand::GetLogPage { numd, index_offset, .. } => {
                // Lengths beyond MDTS, and offsets that count entries, are invalid fields.
                match u32::try_from(numd.bytes()) {
                    Ok(bytes) if bytes <= self.subsystem.limits().mdts_bytes && !index_offset => {
                        Ok(Transfer::ToHost(bytes))
                    }
                    _ => Err(Status::INVALID_FIELD.with_dnr()),
                }
            }
            AdminCommand::GetFeatures { fid, select, .. } => {
                let bytes = Features::get_bytes(FeatureId(fid), select);
                Ok(some(bytes, Transfer::ToHost))
            }
            AdminCommand::SetFeatures { fid, .. } => {
                Ok(some(Features::set_bytes(FeatureId(fid)), Transfer::FromHost))
            }
            AdminCommand::Abort { .. }
            | AdminCommand::AsyncEventRequest
            | AdminCommand::KeepAlive => Ok(Transfer::None),
            AdminCommand::Unsupported(AdminOpcode(_)) => Err(Status::INVALID_OPCODE.with_dnr()),
        }
    }

    /// Executes a prepared command. `data` holds [`AdminPlan::transfer`]'s bytes: the host's for
    /// `FromHost`, room for the answer (all of it is written) for `ToHost`. Call
    /// [`poll`](Self::poll) afterwards: it may have completions of held commands.
    pub fn execute(&mut self, now: Timestamp, plan: &AdminPlan, data: &mut [u8]) -> AdminOutcome {
        let done = match plan.action {
            Action::Fabrics(command) => self.fabrics(now, command).map(Some),
            // The controller may have been reset since it was prepared.
            Action::Admin(_) if !self.properties.is_ready() => {
                Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr())
            }
            Action::Admin(command) => self.admin(now, plan.cid, command, data),
        };
        match done {
            Ok(Some(result)) => {
                let bytes = match plan.transfer {
                    Transfer::ToHost(bytes) => bytes,
                    Transfer::None | Transfer::FromHost(_) => 0,
                };
                AdminOutcome::Complete { result, status: Status::SUCCESS, bytes }
            }
            Ok(None) => AdminOutcome::Hold,
            Err(status) => {
                let status = self.report(plan.cid, plan.opcode, plan.nsid, status);
                AdminOutcome::Complete { result: 0, status, bytes: 0 }
            }
        }
    }

    fn fabrics(&mut self, now: Timestamp, command: FabricsCommand) -> Result<u64, Status> {
        match command {
            FabricsCommand::PropertyGet { size, offset } => {
                let value = self.properties.get(size, offset)?;
                // A reset is over when nothing of before it can happen any more (3.1.4.6).
                let resetting = Property(offset) == Property::CSTS
                    && !self.properties.is_enabled()
                    && self.shared.is_leaving();
                Ok(value | u64::from(resetting))
            }
            FabricsCommand::PropertySet { size, offset, value } => {
                match self.properties.set(size, offset, value)? {
                    Change::None => {}
                    Change::Enabled => {
                        self.keep_alive.restart(now, self.count());
                        self.shared.set_ready(true);
                    }
                    Change::Reset => {
                        self.shared.reset();
                        self.features.reset(now);
                        self.events.abort_all();
                    }
                    Change::ShutDown => {
                        self.shared.set_ready(false);
                        self.events.abort_all();
                    }
                }
                Ok(0)
            }
            _ => Err(Status::INVALID_OPCODE.with_dnr()),
        }
    }

    /// `None`: the command is held.
    fn admin(
        &mut self,
        now: Timestamp,
        cid: CommandId,
        command: AdminCommand,
        data: &mut [u8],
    ) -> Result<Option<u64>, Status> {
        match command {
            AdminCommand::Identify { cns, cntid, csi, nsid, .. } => {
                let request = identify::Request { cns, nsid, csi, cntid };
                let id = self.shared.id();
                identify::identify(&self.subsystem, &self.registry, id, request, data)?;
                Ok(Some(0))
            }
            AdminCommand::GetLogPage { lid, nsid, offset_bytes, rae, .. } => {
                let page = LogPage(lid);
                let source = log::Source {
                    subsystem: &self.subsystem,
                    registry: &self.registry,
                    shared: &self.shared,
                    started: self.started,
                };
                log::read(&source, now, log::Request { page, nsid, offset_bytes }, data)?;
                if !rae {
                    self.events.log_was_read(page);
                }
                Ok(Some(0))
            }
            AdminCommand::GetFeatures { fid, select, cdw11, .. } => {
                let what = (FeatureId(fid), select, cdw11);
                let result = self.features.get(now, &self.subsystem, &self.shared, what, data)?;
                Ok(Some(u64::from(result)))
            }
            AdminCommand::SetFeatures { fid, save, nsid, cdw11, .. } => {
                let fid = FeatureId(fid);
                let request = SetRequest { fid, save, nsid, cdw11 };
                let result =
                    self.features.set(now, &self.subsystem, &self.shared, request, data)?;
                if fid == FeatureId::KEEP_ALIVE_TIMER {
                    let timeout_ms = timeout_ms(&self.subsystem, &self.features);
                    self.keep_alive = KeepAlive::new(now, timeout_ms, self.count());
                }
                Ok(Some(u64::from(result)))
            }
            AdminCommand::Abort { sqid, cid } => Ok(Some(u64::from(!self.events.abort(sqid, cid)))),
            AdminCommand::AsyncEventRequest => {
                self.events.hold(cid)?;
                Ok(None)
            }
            AdminCommand::KeepAlive => {
                self.keep_alive.restart(now, self.count());
                Ok(Some(0))
            }
            AdminCommand::Unsupported(_) => Err(Status::INVALID_OPCODE.with_dnr()),
        }
    }

    /// Commands of all queues so far.
    fn count(&self) -> u64 {
        self.shared.totals().commands.wrapping_add(self.commands)
    }

    /// Puts an admin command that failed outside of `prepare` and `execute` (its SGL, say) into the
    /// error log. Gives the status to complete it with.
    pub fn log(&self, command: &Command, status: Status) -> Status {
        self.report(command.command_id(), command.opcode, command.namespace(), status)
    }

    fn report(&self, cid: CommandId, opcode: u8, nsid: Nsid, status: Status) -> Status {
        let (qid, lba) = (Qid::ADMIN, Lba(0));
        self.shared.report(ErrorReport { qid, cid, opcode, status, nsid, lba })
    }

    /// What happened by itself: the keep-alive timer, asynchronous events, the end. To be called
    /// each turn in which the reactor was woken, something was executed here, or
    /// [`next_timeout`](Self::next_timeout) came.
    pub fn poll(&mut self, now: Timestamp, events: &mut Vec<AdminEvent>) {
        let changed = self.shared.take_notice(Notice::DiscoveryChanged);
        let bit = AsyncEvent::DISCOVERY_CHANGED.enable_bit().unwrap_or(0);
        if changed && self.properties.is_ready() && self.features.wants_event(bit) {
            self.events.discovery_changed();
        }
        let (shared, commands) = (&self.shared, self.commands);
        let count = || shared.totals().commands.wrapping_add(commands);
        if !self.ended && self.keep_alive.expired(now, count) {
            self.shared.terminate(TerminateReason::KeepAliveExpired);
        }
        self.events.take(events);
        if let Some(reason) = self.shared.terminated()
            && !self.ended
        {
            self.ended = true;
            events.push(AdminEvent::Fatal(reason));
        }
    }

    /// Whether the host has to show by commands that it is still there (NVMe Base 2.1, 3.9).
    #[must_use]
    pub fn has_keep_alive(&self) -> bool {
        self.features.keep_alive_ms() != 0
    }

    /// When `poll` has something to do at the latest; [`Timestamp::NEVER`] for never,
    /// [`Timestamp::ZERO`] for at once.
    #[must_use]
    pub fn next_timeout(&self) -> Timestamp {
        if self.events.has_done() {
            Timestamp::ZERO
        } else if self.ended {
            Timestamp::NEVER
        } else {
            self.keep_alive.deadline()
        }
    }
}

/// How long the host may be silent, in milliseconds; 0 for ever. A host that gives a discovery
/// controller no keep-alive timeout has the fixed one (NVMe Base 2.1, 3.1.3.3): else a host that
/// died there would hold its controller for good.
fn timeout_ms(subsystem: &Subsystem, features: &Features) -> u32 {
    match features.keep_alive_ms() {
        0 if subsystem.is_discovery() => DISCOVERY_TIMEOUT_MS,
        timeout_ms => timeout_ms,
    }
}

impl Drop for AdminController {
    fn drop(&mut self) {
        self.shared.terminate(TerminateReason::AdminGone);
        self.registry.remove(self.subsystem.nqn(), self.shared.id());
    }
}

//! A session's way up, one admin command after the other, and the later re-reading of namespaces.
//! Called by `session`.
//!
//! ```text
//! Capabilities -> Version -> Enable -> AwaitReady.. -> Controller
//!   -> (discovery: AsyncConfig -> done)  or  AsyncConfig -> QueueCount -> List.. -> (Namespace -> Descriptors)..
//! a notice of changed namespaces: ChangedLog -> List.. -> (Namespace -> Descriptors)..
//! ```

use core::time::Duration;

use lariat_fabric::{Fabric, Timestamp};
use lariat_wire::nvme::identify::{
    AsyncEventSupport, ControllerType, IdentifyController, IdentifyNamespace, NamespaceList,
    SglSupport,
};
use lariat_wire::nvme::{
    AdminCommand, AsyncEvent, AsyncEventType, Capabilities, Cns, Command, CommandId,
    ControllerConfig, ControllerStatus, FabricsCommand, FeatureId, LogPage, Nsid, Numd, Property,
    PropertySize, Qid, Status, Version,
};

use super::{
    ADMIN_DATA_BYTES, ControllerInfo, NamespaceInfo, Phase, Session, SessionEvent, SessionState,
    tag,
};
use crate::core::block::BlockQueue;
use crate::core::error::ConnectError;
use crate::core::queue::QueueCompletion;
use crate::core::types::{Failure, LossReason, SubmitError, Transfer};

/// Time between two looks at CSTS.RDY.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// The least time given to become ready, whatever CAP.TO says.
const READY_AT_LEAST: Duration = Duration::from_secs(1);
/// More namespaces than this are refused: a list without end is not read without end.
const MAX_NAMESPACES: usize = 65_536;

/// A step: which command is out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Capabilities,
    Version,
    Enable,
    AwaitReady,
    Controller,
    AsyncConfig,
    QueueCount,
    ChangedLog,
    List(Nsid),
    Namespace(usize),
    Descriptors(usize),
}

impl Step {
    fn name(self) -> &'static str {
        match self {
            Self::Capabilities => "reading CAP",
            Self::Version => "reading VS",
            Self::Enable => "setting CC.EN",
            Self::AwaitReady => "reading CSTS",
            Self::Controller => "Identify Controller",
            Self::AsyncConfig => "Set Features (asynchronous events)",
            Self::QueueCount => "Set Features (number of queues)",
            Self::ChangedLog => "Get Log Page (changed namespaces)",
            Self::List(_) => "Identify (active namespaces)",
            Self::Namespace(_) => "Identify Namespace",
            Self::Descriptors(_) => "Identify (namespace descriptors)",
        }
    }

    /// Whether the controller may refuse it and still be of use.
    fn optional(self) -> bool {
        matches!(self, Self::AsyncConfig | Self::ChangedLog | Self::Descriptors(_))
    }
}

impl Session {
    /// Starts a sequence at `step`.
    pub(super) fn begin<F: Fabric + ?Sized>(&mut self, now: Timestamp, fabric: &mut F, step: Step) {
        self.step = Some(step);
        self.step_started = now;
        self.run_step(now, fabric);
    }

    /// Sends the command of the current step.
    pub(super) fn run_step<F: Fabric + ?Sized>(&mut self, now: Timestamp, fabric: &mut F) {
        let Some(step) = self.step else { return };
        let (command, data_bytes) = self.step_command(step);
        let timeout = self.config.admin_timeout;
        let Some(queue) = self.admin.live() else { return };
        let transfer = match queue.scratch(0, data_bytes) {
            Some(target) if data_bytes > 0 => Transfer::ToHost(target),
            _ => Transfer::None,
        };
        match queue.submit(now, fabric, command, transfer, tag::STEP, 0, timeout) {
            Ok(()) => {}
            Err(SubmitError::Full) => self.step_at = now + LOOK_EVERY,
            Err(source) => {
                let error = ConnectError::Submit { what: step.name(), source };
                self.fail(now, fabric, Some(error), LossReason::Local);
            }
        }
    }

    fn step_command(&self, step: Step) -> (Command, u32) {
        let cid = CommandId(0);
        let get = |property: Property, size| {
            FabricsCommand::PropertyGet { size, offset: property.0 }.to_command(cid)
        };
        let identify =
            |cns, nsid| (AdminCommand::identify(cns, nsid).to_command(cid), ADMIN_DATA_BYTES);
        let feature = |fid: FeatureId, value| {
            (AdminCommand::set_feature(fid.0, Nsid::NONE, value).to_command(cid), 0)
        };
        let listed = |index: usize| self.listed.get(index).copied().unwrap_or(Nsid::NONE);
        match step {
            Step::Capabilities => (get(Property::CAP, PropertySize::Eight), 0),
            Step::Version => (get(Property::VS, PropertySize::Four), 0),
            Step::AwaitReady => (get(Property::CSTS, PropertySize::Four), 0),
            Step::Enable => {
                let command = FabricsCommand::PropertySet {
                    size: PropertySize::Four,
                    offset: Property::CC.0,
                    value: u64::from(ControllerConfig::enable_nvm().0),
                };
                (command.to_command(cid), 0)
            }
            Step::Controller => identify(Cns::CONTROLLER, Nsid::NONE),
            Step::AsyncConfig => feature(FeatureId::ASYNC_EVENT_CONFIG, self.wanted_events()),
            Step::QueueCount => {
                let zero_based = u32::from(self.config.io_queues.saturating_sub(1));
                feature(FeatureId::NUMBER_OF_QUEUES, zero_based | zero_based << 16)
            }
            Step::ChangedLog => {
                let log = AdminCommand::log_page(
                    LogPage::CHANGED_NAMESPACES.0,
                    Nsid::ALL,
                    Numd::from_zero_based(ADMIN_DATA_BYTES / 4 - 1),
                    0,
                );
                (log.to_command(cid), ADMIN_DATA_BYTES)
            }
            Step::List(after) => identify(Cns::ACTIVE_NAMESPACE_LIST, after),
            Step::Namespace(index) => identify(Cns::NAMESPACE, listed(index)),
            Step::Descriptors(index) => identify(Cns::NAMESPACE_DESCRIPTORS, listed(index)),
        }
    }

    /// The notices that both sides know.
    fn wanted_events(&self) -> u32 {
        let known = AsyncEventSupport::NAMESPACE_ATTRIBUTES | AsyncEventSupport::DISCOVERY_CHANGE;
        self.info.as_ref().map_or(0, |info| info.identify.oaes.get() & known)
    }

    /// The answer to the current step's command.
    pub(super) fn step_done<F: Fabric + ?Sized>(
        &mut self,
        now: Timestamp,
        fabric: &mut F,
        done: &QueueCompletion,
    ) {
        let Some(step) = self.step else { return };
        let answer = match done.success() {
            Ok(answer) => Some(answer),
            Err(Failure::Status(_)) if step.optional() => None,
            Err(Failure::Status(status)) => {
                self.step_refused(now, fabric, step, status);
                return;
            }
            Err(_) => return,
        };
        let dword0 = answer.map_or(0, |answer| answer.result32());
        let next = match step {
            Step::Capabilities => {
                self.capabilities = Capabilities(answer.map_or(0, |answer| answer.result.get()));
                Ok(Some(Step::Version))
            }
            Step::Version => {
                self.version = Version(dword0);
                Ok(Some(Step::Enable))
            }
            Step::Enable => {
                self.step_started = now;
                Ok(Some(Step::AwaitReady))
            }
            Step::AwaitReady => match self.ready(now, ControllerStatus(dword0)) {
                Some(next) => next,
                None => return,
            },
            Step::Controller => self.identified(),
            Step::AsyncConfig => {
                if answer.is_some() && self.wanted_events() != 0 {
                    self.request_event(now, fabric);
                }
                Ok((self.config.io_queues > 0 && !self.is_discovery()).then_some(Step::QueueCount))
            }
            Step::QueueCount => {
                // Both counts are zero-based (5.1.25.1.7); a queue is a pair of them.
                let [a, b, c, d] = dword0.to_le_bytes();
                let granted = u16::from_le_bytes([a, b]).min(u16::from_le_bytes([c, d]));
                self.granted = granted.saturating_add(1).min(self.config.io_queues);
                self.start_list();
                Ok(Some(Step::List(Nsid::NONE)))
            }
            Step::ChangedLog => {
                self.start_list();
                Ok(Some(Step::List(Nsid::NONE)))
            }
            Step::List(after) => self.list_read(after),
            Step::Namespace(index) => Ok(Some(self.namespace_read(index))),
            Step::Descriptors(index) => {
                if answer.is_some() {
                    self.descriptors_read();
                }
                Ok(self.next_namespace(index))
            }
        };
        match next {
            Ok(next @ Some(_)) => {
                self.step = next;
                self.run_step(now, fabric);
            }
            Ok(None) => self.sequence_done(now, fabric),
            Err(error) => self.fail(now, fabric, Some(error), LossReason::Local),
        }
    }

    fn step_refused<F: Fabric + ?Sized>(
        &mut self,
        now: Timestamp,
        fabric: &mut F,
        step: Step,
        status: Status,
    ) {
        if let Step::Namespace(index) = step {
            // Detached between list and Identify.
            self.step = self.next_namespace(index);
            if self.step.is_some() {
                self.run_step(now, fabric);
            } else {
                self.sequence_done(now, fabric);
            }
            return;
        }
        if self.state() == SessionState::Ready {
            // A failed re-reading leaves what was known.
            self.step = None;
            return;
        }
        let error = ConnectError::Command { what: step.name(), status };
        self.fail(now, fabric, Some(error), LossReason::Local);
    }

    /// What CSTS says about being ready; `None`: look again later.
    fn ready(
        &mut self,
        now: Timestamp,
        status: ControllerStatus,
    ) -> Option<Result<Option<Step>, ConnectError>> {
        if status.fatal() {
            return Some(Err(ConnectError::Unsupported("it reports a fatal status (CSTS.CFS)")));
        }
        if status.ready() {
            return Some(Ok(Some(Step::Controller)));
        }
        let waited = now.since(self.step_started);
        if waited >= self.capabilities.ready_timeout().max(READY_AT_LEAST) {
            return Some(Err(ConnectError::NotReady { waited }));
        }
        self.step_at = now + LOOK_EVERY;
        None
    }

    fn identified(&mut self) -> Result<Option<Step>, ConnectError> {
        let identify = self.read_data().and_then(|data| IdentifyController::read_from(&data));
        let identify = identify.ok_or(ConnectError::Unsupported("its Identify data is missing"))?;
        let sgls = identify.sgls.get();
        // Some targets leave SGLS zero; what says something must say that keyed ones work.
        if sgls & 3 != 0 && sgls & SglSupport::KEYED == 0 {
            return Err(ConnectError::Unsupported("it does not take keyed SGL descriptors"));
        }
        self.info = Some(ControllerInfo {
            capabilities: self.capabilities,
            version: self.version,
            identify: Box::new(identify),
        });
        Ok(Some(Step::AsyncConfig))
    }

    fn is_discovery(&self) -> bool {
        self.config.identity.subsystem.is_discovery()
            || self
                .info
                .as_ref()
                .is_some_and(|info| info.identify.controller_type() == ControllerType::DISCOVERY)
    }

    fn start_list(&mut self) {
        self.listed.clear();
        self.building.clear();
    }

    fn list_read(&mut self, after: Nsid) -> Result<Option<Step>, ConnectError> {
        let list = self.read_data().and_then(|data| NamespaceList::read_from(&data));
        let list = list.ok_or(ConnectError::Unsupported("its namespace list is missing"))?;
        let mut last = after;
        for nsid in list.iter() {
            if nsid <= last || self.listed.len() >= MAX_NAMESPACES {
                return Err(ConnectError::Unsupported("its namespace list is not in order"));
            }
            last = nsid;
            self.listed.push(nsid);
        }
        Ok(match list.continue_after() {
            Some(after) => Some(Step::List(after)),
            None => (!self.listed.is_empty()).then_some(Step::Namespace(0)),
        })
    }

    fn namespace_read(&mut self, index: usize) -> Step {
        let identify = self.read_data().and_then(|data| IdentifyNamespace::read_from(&data));
        let nsid = self.listed.get(index).copied();
        let info = nsid.zip(identify).and_then(|(nsid, data)| NamespaceInfo::new(nsid, data));
        match info {
            Some(info) => {
                self.building.push(info);
                Step::Descriptors(index)
            }
            // One that cannot be used: its descriptors do not matter, but go on with the next.
            None => self.next_namespace(index).unwrap_or(Step::Descriptors(index)),
        }
    }

    fn descriptors_read(&mut self) {
        let Some(data) = self.read_data() else { return };
        let Some(Step::Descriptors(index)) = self.step else { return };
        let nsid = self.listed.get(index).copied();
        let Some(info) = self.building.last_mut() else { return };
        if Some(info.geometry.nsid) == nsid && !info.describe(&data) {
            self.building.pop();
        }
    }

    fn next_namespace(&self, index: usize) -> Option<Step> {
        let next = index + 1;
        (next < self.listed.len()).then_some(Step::Namespace(next))
    }

    fn read_data(&mut self) -> Option<Vec<u8>> {
        let mut data = vec![0; ADMIN_DATA_BYTES as usize];
        self.admin.live()?.scratch_memory().read_at(0, &mut data).ok()?;
        Some(data)
    }

    /// A sequence of steps has come to its end.
    fn sequence_done<F: Fabric + ?Sized>(&mut self, now: Timestamp, fabric: &mut F) {
        self.step = None;
        self.namespaces = core::mem::take(&mut self.building);
        if matches!(self.phase, Phase::Ready) {
            self.tell(SessionEvent::NamespacesChanged);
            if core::mem::take(&mut self.rescan) {
                self.begin(now, fabric, Step::ChangedLog);
            }
            return;
        }
        if !matches!(self.phase, Phase::Bringup) {
            return;
        }
        self.phase = Phase::IoConnecting;
        let own = self.config.own_io_queues.min(self.granted);
        for qid in 1..=own {
            let Some((link, limits)) = self.io_link(Qid(qid), self.domain) else { break };
            match BlockQueue::start(now, fabric, link, limits) {
                Ok(queue) => self.io.push(queue),
                Err(error) => {
                    self.fail(now, fabric, Some(error), LossReason::Local);
                    return;
                }
            }
        }
        self.watch_io(now, fabric);
        if core::mem::take(&mut self.rescan) && self.step.is_none() {
            self.begin(now, fabric, Step::ChangedLog);
        }
    }

    /// Gives the controller a command to answer when something happens.
    fn request_event<F: Fabric + ?Sized>(&mut self, now: Timestamp, fabric: &mut F) {
        let command = AdminCommand::AsyncEventRequest.to_command(CommandId(0));
        if let Some(queue) = self.admin.live() {
            let forever = Duration::MAX;
            let _ =
                queue.submit(now, fabric, command, Transfer::None, tag::ASYNC_EVENT, 0, forever);
        }
    }

    /// Something happened.
    pub(super) fn async_event<F: Fabric + ?Sized>(
        &mut self,
        now: Timestamp,
        fabric: &mut F,
        done: &QueueCompletion,
    ) {
        let Ok(answer) = done.success() else { return };
        let event = AsyncEvent::from_result(answer.result.get());
        match (event.kind, event.info) {
            (AsyncEventType::NOTICE, info) if info == AsyncEvent::NAMESPACE_CHANGED.info => {
                if matches!(self.phase, Phase::Ready) && self.step.is_none() {
                    self.begin(now, fabric, Step::ChangedLog);
                } else {
                    self.rescan = true;
                }
            }
            (AsyncEventType::NOTICE, info) if info == AsyncEvent::DISCOVERY_CHANGED.info => {
                self.tell(SessionEvent::DiscoveryChanged);
            }
            _ => self.tell(SessionEvent::Other(event)),
        }
        self.request_event(now, fabric);
    }
}

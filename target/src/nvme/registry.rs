//! Which controllers there are: makes them at a Connect on an admin queue, finds them at a Connect
//! on an I/O queue, forgets them when their admin connection goes. One lock, taken at connects and
//! disconnects alone. Called by `transport` and the daemon.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lariat_fabric::Timestamp;
use lariat_wire::nvme::{ConnectData, ControllerId, Nqn, Qid, QueueSize};

use super::attachment::{ControllerShared, IoAttachment, Notice, TerminateReason, Waker};
use super::controller::AdminController;
use super::fabrics::{ConnectCommand, ConnectError};
use super::guests::Guests;
use super::subsystem::{Subsystem, SubsystemMap};

/// The controllers of one subsystem.
#[derive(Debug, Default)]
struct Population {
    controllers: BTreeMap<ControllerId, Arc<ControllerShared>>,
    /// Where the search for a free identifier starts: one past the last given, so that an
    /// identifier is not used again soon after its controller went.
    next: u16,
}

impl Population {
    fn free_id(&mut self) -> Option<ControllerId> {
        let max = ControllerId::MAX.0;
        for _ in 0..=self.controllers.len() {
            let id = self.next.clamp(1, max);
            self.next = if id == max { 1 } else { id + 1 };
            if !self.controllers.contains_key(&ControllerId(id)) {
                return Some(ControllerId(id));
            }
        }
        None
    }
}

struct Inner {
    map: Arc<SubsystemMap>,
    /// GENCTR of the discovery log.
    generation: u64,
    populations: BTreeMap<Nqn, Population>,
    /// Controllers that are gone, with the subsystem's name, while something of theirs is in the
    /// storage.
    departing: Vec<(Nqn, Arc<ControllerShared>)>,
    closed: bool,
}

/// All controllers of a target. Shared by its reactors as an `Arc`.
pub struct Registry {
    inner: Mutex<Inner>,
    wakers: Arc<[Box<dyn Waker>]>,
    guests: Guests,
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").field("controllers", &self.controllers()).finish_non_exhaustive()
    }
}

impl Registry {
    /// A registry without controllers. `wakers`: one for each reactor.
    #[must_use]
    pub fn new(map: Arc<SubsystemMap>, wakers: Vec<Box<dyn Waker>>) -> Arc<Self> {
        let inner = Inner {
            map,
            generation: 1,
            populations: BTreeMap::new(),
            departing: Vec::new(),
            closed: false,
        };
        Arc::new(Self {
            inner: Mutex::new(inner),
            wakers: wakers.into(),
            guests: Guests::default(),
        })
    }

    /// Who has a controller, by address.
    #[must_use]
    pub fn guests(&self) -> &Guests {
        &self.guests
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Every step leaves valid maps behind.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the target serves now.
    #[must_use]
    pub fn map(&self) -> Arc<SubsystemMap> {
        Arc::clone(&self.lock().map)
    }

    /// Replaces what the target serves, for connects to come; controllers that stand keep what
    /// they were made with. Hosts of discovery controllers hear that the log changed.
    pub fn replace_map(&self, map: Arc<SubsystemMap>) {
        let mut inner = self.lock();
        inner.map = map;
        inner.generation = inner.generation.wrapping_add(1);
        if let Some(population) = inner.populations.get(&Nqn::discovery()) {
            for controller in population.controllers.values() {
                controller.notify(Notice::DiscoveryChanged);
            }
        }
    }

    /// What the target serves, and the discovery log's generation counter.
    pub(super) fn snapshot(&self) -> (Arc<SubsystemMap>, u64) {
        let inner = self.lock();
        (Arc::clone(&inner.map), inner.generation)
    }

    /// Makes a controller for a Connect on queue 0.
    ///
    /// # Errors
    /// What is wrong with the Connect; say it to the host by the error's status and result.
    pub fn connect_admin(
        self: &Arc<Self>,
        now: Timestamp,
        command: &ConnectCommand,
        data: &ConnectData,
    ) -> Result<AdminController, ConnectError> {
        let mut inner = self.lock();
        let inner = &mut *inner;
        check_format(command)?;
        if !command.qid.is_admin() {
            return Err(ConnectError::Qid { qid: command.qid, max: 0 });
        }
        let (subsystem, host) = check_names(&inner.map, data)?;
        check_size(command, &subsystem)?;
        if data.controller() != ControllerId::DYNAMIC {
            return Err(ConnectError::ControllerId(data.controller()));
        }
        if inner.closed {
            return Err(ConnectError::ShuttingDown);
        }
        inner.departing.retain(|(_, controller)| controller.is_leaving());
        let predecessor = inner.departing.iter().find(|(nqn, controller)| {
            let same = (controller.host_nqn(), controller.host_id()) == (&host, data.host());
            same && nqn == subsystem.nqn()
        });
        if let Some((_, controller)) = predecessor {
            return Err(ConnectError::Predecessor(controller.id()));
        }
        let population = inner.populations.entry(subsystem.nqn().clone()).or_default();
        let max = subsystem.limits().max_hosts;
        if population.controllers.len() >= usize::from(max) {
            return Err(ConnectError::TooManyHosts { subsystem: subsystem.nqn().clone(), max });
        }
        let id = population.free_id().ok_or_else(|| ConnectError::TooManyHosts {
            subsystem: subsystem.nqn().clone(),
            max,
        })?;
        let wakers = Arc::clone(&self.wakers);
        let shared = Arc::new(ControllerShared::new(id, host, data.host(), wakers));
        population.controllers.insert(id, Arc::clone(&shared));
        Ok(AdminController::new(now, Arc::clone(self), subsystem, shared, command))
    }

    /// Gives a controller one more I/O queue, for a Connect on queue 1 and up.
    ///
    /// # Errors
    /// What is wrong with the Connect; say it to the host by the error's status and result.
    pub fn attach_io(
        &self,
        _now: Timestamp,
        command: &ConnectCommand,
        data: &ConnectData,
    ) -> Result<IoAttachment, ConnectError> {
        check_format(command)?;
        let inner = self.lock();
        let (subsystem, host) = check_names(&inner.map, data)?;
        let id = data.controller();
        let controller = inner
            .populations
            .get(subsystem.nqn())
            .and_then(|population| population.controllers.get(&id))
            .filter(|controller| !controller.is_terminated())
            .ok_or(ConnectError::ControllerId(id))?;
        if *controller.host_nqn() != host {
            return Err(ConnectError::OtherHost { host, controller: id });
        }
        if controller.host_id() != data.host() {
            return Err(ConnectError::OtherHostId(id));
        }
        let max = if subsystem.is_discovery() { 0 } else { subsystem.limits().max_queues };
        if command.qid.is_admin() || command.qid.0 > max {
            return Err(ConnectError::Qid { qid: command.qid, max });
        }
        check_size(command, &subsystem)?;
        let controller = Arc::clone(controller);
        IoAttachment::new(
            controller,
            subsystem,
            command.qid,
            command.sqsize,
            command.sq_flow_control(),
        )
    }

    /// Refuses all Connects from now on (for a clean stop).
    pub fn close(&self) {
        self.lock().closed = true;
    }

    /// Ends all controllers: their connections are to be closed.
    pub fn terminate_all(&self, reason: TerminateReason) {
        for population in self.lock().populations.values() {
            for controller in population.controllers.values() {
                controller.terminate(reason);
            }
        }
    }

    /// Number of controllers, discovery controllers among them.
    #[must_use]
    pub fn controllers(&self) -> usize {
        self.lock().populations.values().map(|population| population.controllers.len()).sum()
    }

    /// The controllers of a subsystem from `from` on, ascending.
    pub(super) fn controller_ids(&self, nqn: &Nqn, from: ControllerId) -> Vec<ControllerId> {
        let inner = self.lock();
        let population = inner.populations.get(nqn);
        population.map_or_else(Vec::new, |population| {
            population.controllers.range(from..).map(|(id, _)| *id).collect()
        })
    }

    /// The admin connection of a controller is gone.
    pub(super) fn remove(&self, nqn: &Nqn, id: ControllerId) {
        let mut inner = self.lock();
        let population = inner.populations.get_mut(nqn);
        let controller = population.and_then(|population| population.controllers.remove(&id));
        if let Some(controller) = controller
            && controller.is_leaving()
        {
            inner.departing.push((nqn.clone(), controller));
        }
    }
}

const fn check_format(command: &ConnectCommand) -> Result<(), ConnectError> {
    match command.recfmt {
        0 => Ok(()),
        other => Err(ConnectError::RecordFormat(other)),
    }
}

fn check_names(
    map: &SubsystemMap,
    data: &ConnectData,
) -> Result<(Arc<Subsystem>, Nqn), ConnectError> {
    let nqn = data.subsystem_nqn().map_err(ConnectError::SubsystemName)?;
    let host = data.host_nqn().map_err(ConnectError::HostName)?;
    let subsystem = match map.get(&nqn) {
        Some(subsystem) => Arc::clone(subsystem),
        None => return Err(ConnectError::UnknownSubsystem(nqn)),
    };
    if !subsystem.allowed_hosts().allows(&host) {
        return Err(ConnectError::HostNotAllowed { host, subsystem: nqn });
    }
    Ok((subsystem, host))
}

/// A queue has at least 2 entries and no more than the limit; the admin queue at least 32
/// whatever the limit, because hosts fix its size (Linux takes 32).
fn check_size(command: &ConnectCommand, subsystem: &Subsystem) -> Result<(), ConnectError> {
    let limit = subsystem.limits().max_queue_depth.entries();
    let max = if command.qid == Qid::ADMIN { limit.max(ADMIN_QUEUE_ENTRIES) } else { limit };
    let entries = command.sqsize.entries();
    if command.sqsize < QueueSize::MIN_LEGAL || entries > max {
        return Err(ConnectError::QueueSize { entries, max });
    }
    Ok(())
}

/// Entries that an admin queue may have in any case.
pub const ADMIN_QUEUE_ENTRIES: u32 = 32;

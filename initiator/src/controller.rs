//! A connection to a subsystem's controller. Starts the thread of `care`, sends admin commands to
//! it, hands out queues and namespaces. Called by users.

use std::net::SocketAddr;
use std::sync::{Arc, TryLockError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use lariat_fabric::{Fabric, Path};
use lariat_wire::nvme::{
    AdminCommand, Cns, Command, CommandId, Completion, ControllerId, IdentifyController,
    IdentifyNamespace, LogPage, Nsid, Numd,
};

use crate::care::{Caretaker, Member, Payload, Request, Shared, lock};
use crate::core::session::ADMIN_DATA_BYTES;
use crate::core::{AdminData, ControllerInfo, Failure, LossReason, NamespaceInfo};
use crate::error::{AdminError, ConnectError};
use crate::io_queue::IoQueue;
use crate::namespace::Namespace;
use crate::options::ConnectOptions;
use crate::provider;

/// A connected controller. Dropping it ends the connection politely, within the configured time;
/// queues and namespaces of it that are still around fail from then on.
pub struct Controller {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    fabric: &'static str,
}

impl std::fmt::Debug for Controller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Controller")
            .field("address", &self.shared.options.address)
            .field("subsystem", &self.shared.options.subsystem)
            .finish_non_exhaustive()
    }
}

impl Controller {
    /// Connects, identifies the controller and its namespaces, and keeps it alive from then on.
    ///
    /// # Errors
    /// What went wrong, and what to check.
    pub fn connect(options: ConnectOptions) -> Result<Self, ConnectError> {
        // One fabric for the admin queue, one for the synchronous calls, one for each queue.
        let count =
            if options.subsystem.is_discovery() { 1 } else { options.queues.saturating_add(2) };
        let count = u8::try_from(count).unwrap_or(u8::MAX);
        let fabrics = provider::open(&options, count)?;
        Self::connect_on(fabrics, options)
    }

    /// As [`Self::connect`], on fabrics of the caller's making: the first for the admin queue, the
    /// others for I/O queues, of which one is used by the synchronous calls.
    ///
    /// # Errors
    /// What went wrong, and what to check.
    pub fn connect_on(
        fabrics: Vec<Box<dyn Fabric + Send>>,
        options: ConnectOptions,
    ) -> Result<Self, ConnectError> {
        let members: Result<Vec<Member>, ConnectError> =
            fabrics.into_iter().map(Member::new).collect();
        let mut members = members?;
        if members.is_empty() {
            return Err(ConnectError::Fabric { provider: "given", source: "no fabric".into() });
        }
        let member = members.remove(0);
        let fabric = member.fabric.name();
        let (requests, inbox) = mpsc::channel();
        let (ready, up) = mpsc::sync_channel(1);
        let shared = Arc::new(Shared::new(options, members, requests)?);
        let caretaker = Caretaker { member, shared: Arc::clone(&shared), requests: inbox, ready };
        let thread = std::thread::Builder::new()
            .name("lariat-admin".to_owned())
            .spawn(move || caretaker.run())?;
        let controller = Self { shared, thread: Some(thread), fabric };
        // Each step of the thread has its time limit, so an answer comes; a thread that ended
        // without one has dropped its end.
        up.recv().unwrap_or(Err(ConnectError::Closed(LossReason::Local)))?;
        Ok(controller)
    }

    /// The target's address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.shared.options.address
    }

    /// How long a waiting queue polls before it sleeps ([`ConnectOptions::spin`]).
    #[must_use]
    pub fn poll_time(&self) -> Duration {
        self.shared.options.spin
    }

    /// The RDMA provider in use: `"ib"` or `"soft"`.
    #[must_use]
    pub fn fabric_name(&self) -> &'static str {
        self.fabric
    }

    /// What the packets of the admin queue travel over, where the provider has a choice:
    /// [`IoQueue::path`] has the answer for an I/O queue, which is the same as a rule.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.shared.facts.get().and_then(|facts| facts.path.as_ref())
    }

    /// The controller's identifier.
    #[must_use]
    pub fn id(&self) -> ControllerId {
        self.shared.facts.get().map_or(ControllerId::DYNAMIC, |facts| facts.id)
    }

    /// What is known of the controller since it was connected.
    #[must_use]
    pub fn info(&self) -> Option<&ControllerInfo> {
        self.shared.facts.get().map(|facts| &facts.info)
    }

    /// I/O queues that the controller granted, of those asked for.
    #[must_use]
    pub fn granted_queues(&self) -> u16 {
        self.shared.facts.get().map_or(0, |facts| facts.granted)
    }

    /// Whether it is a discovery controller.
    #[must_use]
    pub fn is_discovery(&self) -> bool {
        self.shared.options.subsystem.is_discovery()
    }

    /// Why the connection is gone, if it is.
    #[must_use]
    pub fn lost(&self) -> Option<LossReason> {
        self.shared.lost()
    }

    /// Connects an I/O queue, for one thread to own.
    ///
    /// # Errors
    /// None is left, or it could not be connected.
    pub fn io_queue(&self) -> Result<IoQueue, ConnectError> {
        IoQueue::connect(&self.shared)
    }

    /// The namespaces that can be used, as last read; a controller that says they changed has them
    /// read anew.
    #[must_use]
    pub fn namespaces(&self) -> Arc<Vec<NamespaceInfo>> {
        Arc::clone(&lock(&self.shared.namespaces))
    }

    /// A namespace.
    ///
    /// # Errors
    /// There is none of this identifier.
    pub fn namespace(&self, nsid: Nsid) -> Result<Namespace, AdminError> {
        let known = self.namespaces();
        let info = known.iter().find(|info| info.geometry.nsid == nsid);
        let info = info.cloned();
        let info = info.ok_or_else(|| AdminError::NoNamespace { nsid, known: numbers(&known) })?;
        Ok(Namespace::new(Arc::clone(&self.shared), info))
    }

    /// The namespace of a subsystem that has one.
    ///
    /// # Errors
    /// There are more, or none.
    pub fn only_namespace(&self) -> Result<Namespace, AdminError> {
        match self.namespaces().as_slice() {
            [info] => Ok(Namespace::new(Arc::clone(&self.shared), info.clone())),
            others => Err(AdminError::NotOneNamespace { known: numbers(others) }),
        }
    }

    /// Identify Controller, asked anew.
    ///
    /// # Errors
    /// The controller's or the connection's.
    pub fn identify(&self) -> Result<IdentifyController, AdminError> {
        let data = self.identify_data(Cns::CONTROLLER, Nsid::NONE)?;
        IdentifyController::read_from(&data).ok_or(AdminError::Malformed("too few bytes"))
    }

    /// Identify Namespace, asked anew.
    ///
    /// # Errors
    /// The controller's or the connection's.
    pub fn identify_namespace(&self, nsid: Nsid) -> Result<IdentifyNamespace, AdminError> {
        let data = self.identify_data(Cns::NAMESPACE, nsid)?;
        IdentifyNamespace::read_from(&data).ok_or(AdminError::Malformed("too few bytes"))
    }

    /// Any Identify: its 4,096 bytes.
    ///
    /// # Errors
    /// The controller's or the connection's.
    pub fn identify_data(&self, cns: Cns, nsid: Nsid) -> Result<Vec<u8>, AdminError> {
        let command = AdminCommand::identify(cns, nsid).to_command(CommandId(0));
        Ok(self.admin(command, AdminData::ToHost(ADMIN_DATA_BYTES))?.1)
    }

    /// `length` bytes of a log page from `offset` (bytes) on; both multiples of 4.
    ///
    /// # Errors
    /// The controller's or the connection's.
    pub fn log_page(
        &self,
        page: LogPage,
        nsid: Nsid,
        offset: u64,
        length: u64,
    ) -> Result<Vec<u8>, AdminError> {
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < length {
            let at = bytes.len() as u64;
            let piece = (length - at).min(u64::from(ADMIN_DATA_BYTES));
            let unaligned = AdminError::Malformed("a log page is read in multiples of 4 bytes");
            let numd = Numd::from_bytes(piece).ok_or(unaligned)?;
            let command = AdminCommand::log_page(page.0, nsid, numd, offset.saturating_add(at));
            let to_host = u32::try_from(piece).unwrap_or(ADMIN_DATA_BYTES);
            let (_, data) =
                self.admin(command.to_command(CommandId(0)), AdminData::ToHost(to_host))?;
            bytes.extend_from_slice(&data);
        }
        Ok(bytes)
    }

    /// Any admin command: its completion, and data to the host.
    ///
    /// # Errors
    /// The controller's or the connection's.
    pub fn admin(
        &self,
        command: Command,
        data: AdminData<'_>,
    ) -> Result<(Completion, Vec<u8>), AdminError> {
        let opcode = command.opcode;
        let payload = match data {
            AdminData::None => Payload::None,
            AdminData::ToHost(length) => Payload::ToHost(length),
            AdminData::ToController(bytes) => Payload::ToController(bytes.to_vec()),
        };
        let closed = || AdminError::ConnectionLost(self.shared.lost().unwrap_or(LossReason::Local));
        let (reply, answer) = mpsc::sync_channel(1);
        let request = Request::Admin { command, payload, reply };
        self.shared.requests.send(request).map_err(|_| closed())?;
        self.shared.kick();
        let done = answer.recv().map_err(|_| closed())?;
        let done = done.map_err(|source| AdminError::NotSent { opcode, source })?;
        match done.result {
            Ok(completion) => Ok((completion, done.data)),
            Err(Failure::Status(status)) => Err(AdminError::Status { opcode, status }),
            Err(Failure::Lost(reason)) => Err(AdminError::ConnectionLost(reason)),
            Err(Failure::NotSent(source)) => Err(AdminError::NotSent { opcode, source }),
        }
    }
}

fn numbers(namespaces: &[NamespaceInfo]) -> Vec<Nsid> {
    namespaces.iter().map(|info| info.geometry.nsid).collect()
}

impl Drop for Controller {
    fn drop(&mut self) {
        // The synchronous calls' queue refers back to what is shared here. A call that is under way
        // has it: it may take long, and fails when the connection ends.
        let sync = match self.shared.sync.try_lock() {
            Ok(mut slot) => slot.take(),
            Err(TryLockError::Poisoned(slot)) => slot.into_inner().take(),
            Err(TryLockError::WouldBlock) => None,
        };
        drop(sync);
        let _ = self.shared.requests.send(Request::Shutdown);
        self.shared.kick();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let sync = lock(&self.shared.sync).take();
        drop(sync);
    }
}

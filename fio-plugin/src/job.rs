//! One fio job: its controllers, a queue on each, its disks and its memory; requests in, events out.
//! Nothing here knows of fio's structures: a request is named by a token, buffers by their address.
//! Calls the library; called by `engine`.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lariat::core::SubmitError;
use lariat::{
    AdminError, Buffer, ConnectError, Controller, Geometry, IoCompletion, IoError, IoQueue, Memory,
    RejectedIo,
};

use crate::settings::{ControllerName, DiskName, Settings, WriteMode};

/// One look for completions, where there is nothing else to do.
const LOOK: Duration = Duration::from_millis(20);
/// The same where several queues take turns.
const SHORT_LOOK: Duration = Duration::from_micros(200);
/// Names the flush that [`Job::flush`] waits for; no address of a request of fio's.
const FLUSH: u64 = u64::MAX;

/// Why a job cannot start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The subsystem does not let this host in; where its name comes from.
    #[error("{source}; {origin}")]
    HostRefused { source: ConnectError, origin: String },
    #[error("{}{}", .0, how_to_name(.0))]
    Namespace(#[from] AdminError),
    #[error("no memory for buffers of {bytes} bytes: {source}")]
    Memory { bytes: usize, source: io::Error },
    #[error("buffers: {0}")]
    Register(#[from] lariat_fabric::RegisterError),
}

fn how_to_name(error: &AdminError) -> &'static str {
    match error {
        AdminError::NotOneNamespace { known } if !known.is_empty() => {
            " (nsid=, or several in filename: ns=1:ns=2)"
        }
        AdminError::NoNamespace { .. } => " (nsid=, or ns= in filename)",
        _ => "",
    }
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Read,
    Write,
    Trim,
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// Comes back with its event.
    pub(crate) token: u64,
    pub(crate) action: Action,
    /// Index among the job's disks.
    pub(crate) disk: usize,
    pub(crate) offset_bytes: u64,
    pub(crate) length_bytes: u64,
    /// Address of its data.
    pub(crate) address: usize,
}

/// What became of a request that was handed over.
#[derive(Debug)]
pub(crate) enum Taken {
    /// An event follows.
    Queued,
    /// Not taken: as much as the controller allows is under way.
    Busy,
    /// Not taken.
    Failed(IoError),
}

/// A request that ended, and how.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) token: u64,
    pub(crate) error: Option<IoError>,
}

/// A disk: on which queue, and its geometry.
#[derive(Clone, Copy, Debug)]
struct Disk {
    queue: usize,
    geometry: Geometry,
}

/// A controller's queue, and whether requests on it wait for the doorbell.
#[derive(Debug)]
struct Lane {
    queue: IoQueue,
    unrung: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Job {
    // Queues go before their controllers.
    lanes: Vec<Lane>,
    disks: Vec<Disk>,
    memory: Option<Arc<Memory>>,
    writes: WriteMode,
    poll: Duration,
    done: Vec<IoCompletion>,
    ready: VecDeque<Event>,
    events: Vec<Event>,
    /// How the flush that is waited for ended.
    flushed: Option<Result<(), IoError>>,
    _controllers: Vec<Controller>,
}

/// Sizes in bytes of the disks, from connections of their own that are gone afterwards.
pub(crate) fn sizes(settings: &Settings) -> Result<Vec<u64>, StartError> {
    let (controllers, places) = connect(settings, 1)?;
    let of =
        |(at, name): (usize, &DiskName)| Ok(geometry(&controllers, at, name)?.capacity_bytes());
    places.into_iter().zip(&settings.disks).map(of).collect()
}

/// Connects to each controller once; gives for each disk which one it is on.
fn connect(
    settings: &Settings,
    queue_depth: u32,
) -> Result<(Vec<Controller>, Vec<usize>), StartError> {
    let mut names: Vec<&ControllerName> = Vec::new();
    let mut controllers = Vec::new();
    let mut places = Vec::new();
    for disk in &settings.disks {
        let known = names.iter().position(|name| **name == disk.controller);
        let at = match known {
            Some(at) => at,
            None => {
                let options = settings.connect_options(&disk.controller, queue_depth);
                controllers.push(
                    Controller::connect(options).map_err(|error| told(error, &disk.controller))?,
                );
                names.push(&disk.controller);
                names.len() - 1
            }
        };
        places.push(at);
    }
    Ok((controllers, places))
}

fn told(error: ConnectError, name: &ControllerName) -> StartError {
    if error.is_host_refused() {
        StartError::HostRefused { source: error, origin: name.host_origin() }
    } else {
        error.into()
    }
}

fn geometry(
    controllers: &[Controller],
    at: usize,
    name: &DiskName,
) -> Result<Geometry, StartError> {
    let Some(controller) = controllers.get(at) else {
        return Err(AdminError::NotOneNamespace { known: Vec::new() }.into());
    };
    let namespace = match name.nsid {
        Some(nsid) => controller.namespace(nsid)?,
        None => controller.only_namespace()?,
    };
    Ok(namespace.geometry())
}

impl Job {
    /// Connects all that the settings name.
    pub(crate) fn start(settings: &Settings, iodepth: u32) -> Result<Self, StartError> {
        let (controllers, places) = connect(settings, iodepth.max(1))?;
        let mut disks = Vec::with_capacity(places.len());
        for (queue, name) in places.into_iter().zip(&settings.disks) {
            disks.push(Disk { queue, geometry: geometry(&controllers, queue, name)? });
        }
        let mut lanes = Vec::with_capacity(controllers.len());
        for controller in &controllers {
            lanes.push(Lane { queue: controller.io_queue()?, unrung: false });
        }
        let depth = usize::try_from(iodepth).unwrap_or(0).saturating_add(1);
        Ok(Self {
            lanes,
            disks,
            memory: None,
            writes: settings.writes,
            poll: settings.poll(),
            done: Vec::with_capacity(depth),
            ready: VecDeque::with_capacity(depth),
            events: Vec::with_capacity(depth),
            flushed: None,
            _controllers: controllers,
        })
    }

    /// Sizes in bytes of the disks.
    pub(crate) fn sizes(&self) -> Vec<u64> {
        self.disks.iter().map(|disk| disk.geometry.capacity_bytes()).collect()
    }

    /// Memory for all data of the job, registered with each queue. Gives its address.
    pub(crate) fn allocate(&mut self, bytes: usize) -> Result<usize, StartError> {
        let memory = Memory::allocate(bytes.max(1))
            .map_err(|source| StartError::Memory { bytes, source })?;
        for lane in &mut self.lanes {
            lane.queue.register(&memory)?;
        }
        let address = memory.address().as_ptr().expose_provenance();
        self.memory = Some(memory);
        Ok(address)
    }

    /// The end of the memory: the caller does not touch it any more. It stays mapped as long as a
    /// request may use it.
    pub(crate) fn free(&mut self) {
        if let Some(memory) = self.memory.take() {
            for lane in &mut self.lanes {
                lane.queue.deregister(&memory);
            }
        }
    }

    /// Takes a request; it goes out with [`Self::commit`], or with the next look for events.
    pub(crate) fn submit(&mut self, request: &Request) -> Taken {
        match self.try_submit(request) {
            Ok(()) => Taken::Queued,
            Err(IoError::NotTaken(SubmitError::Full)) => Taken::Busy,
            Err(error) => Taken::Failed(error),
        }
    }

    fn try_submit(&mut self, request: &Request) -> Result<(), IoError> {
        let Request { token, offset_bytes: offset, length_bytes: length, .. } = *request;
        let bad_memory = IoError::NotTaken(SubmitError::BadMemory);
        let disk = *self.disks.get(request.disk).ok_or(IoError::NotTaken(SubmitError::NotReady))?;
        let without_data = request.action == Action::Trim || self.zeroes(request.action);
        let buffer =
            if without_data { None } else { Some(self.buffer(request).ok_or(bad_memory)?) };
        let lane = self.lanes.get_mut(disk.queue);
        let lane = lane.ok_or(IoError::NotTaken(SubmitError::NotReady))?;
        let (queue, geometry) = (&mut lane.queue, disk.geometry);
        let sent: Result<(), RejectedIo> = match (request.action, buffer, self.writes) {
            (Action::Trim, ..) => queue.submit_deallocate(token, geometry, offset, length),
            (Action::Read, Some(buffer), _) => queue.submit_read(token, geometry, offset, buffer),
            (Action::Write, Some(buffer), WriteMode::Write { fua }) => {
                queue.submit_write(token, geometry, offset, buffer, fua)
            }
            _ => queue.submit_write_zeroes(token, geometry, offset, length, false),
        };
        sent?;
        lane.unrung = true;
        Ok(())
    }

    fn zeroes(&self, action: Action) -> bool {
        action == Action::Write && self.writes == WriteMode::Zeroes
    }

    /// A buffer over the request's piece of the job's memory.
    fn buffer(&self, request: &Request) -> Option<Buffer> {
        let memory = self.memory.as_ref()?;
        let start = request.address.checked_sub(memory.address().as_ptr().addr())?;
        let length = usize::try_from(request.length_bytes).ok()?;
        Buffer::over(memory, u64::try_from(start).ok()?, length).ok()
    }

    /// Sends what was submitted; or waits with that, if events are left that came with the last
    /// look: fio takes those now one by one, with a request for each, and they go out together when
    /// the last was taken. (Before fio sleeps, it takes all events; should it not, the library
    /// sends within milliseconds what nobody rang for.)
    pub(crate) fn commit(&mut self) {
        if !self.ready.is_empty() {
            return;
        }
        for lane in &mut self.lanes {
            if std::mem::take(&mut lane.unrung) {
                lane.queue.ring();
            }
        }
    }

    /// Makes what has completed on a disk durable; waits for that. Events of other requests that
    /// come meanwhile are kept for [`Self::wait`].
    pub(crate) fn flush(&mut self, disk: usize) -> Result<(), IoError> {
        let not_ready = || IoError::NotTaken(SubmitError::NotReady);
        let Disk { queue, geometry } = *self.disks.get(disk).ok_or_else(not_ready)?;
        self.flushed = None;
        let mut sent = false;
        loop {
            if !sent {
                let lane = self.lanes.get_mut(queue).ok_or_else(not_ready)?;
                match lane.queue.submit_flush(FLUSH, geometry) {
                    Ok(()) => sent = true,
                    Err(RejectedIo { error: IoError::NotTaken(SubmitError::Full), .. }) => {}
                    Err(RejectedIo { error, .. }) => return Err(error),
                }
            }
            self.look(LOOK);
            if let Some(result) = self.flushed.take() {
                return result;
            }
        }
    }

    /// Waits until `least` events are there, at most `timeout`; gives how many, at most `most`, are
    /// to be had from [`Self::event`].
    pub(crate) fn wait(&mut self, least: usize, most: usize, timeout: Option<Duration>) -> usize {
        let end = timeout.map(|timeout| Instant::now() + timeout);
        self.events.clear();
        let least = least.min(most);
        loop {
            if self.ready.is_empty() {
                let need = self.events.len() < least;
                self.look(if need { LOOK } else { Duration::ZERO });
            }
            let room = most - self.events.len();
            self.events.extend(self.ready.drain(..room.min(self.ready.len())));
            let enough = self.events.len() >= least || self.outstanding() == 0;
            if enough || end.is_some_and(|end| Instant::now() >= end) {
                return self.events.len();
            }
        }
    }

    /// An event of the last [`Self::wait`].
    pub(crate) fn event(&self, index: usize) -> Option<&Event> {
        self.events.get(index)
    }

    fn outstanding(&self) -> u32 {
        self.lanes.iter().map(|lane| lane.queue.outstanding()).sum()
    }

    /// Looks at all queues, and waits for one of them if there is nothing.
    fn look(&mut self, patience: Duration) {
        for lane in &mut self.lanes {
            lane.unrung = false;
        }
        match self.lanes.as_mut_slice() {
            [lane] if patience > Duration::ZERO => {
                lane.queue.wait(&mut self.done, patience);
            }
            lanes => {
                let start = Instant::now();
                let mut waits = patience > Duration::ZERO;
                loop {
                    for lane in lanes.iter_mut() {
                        lane.queue.poll(&mut self.done);
                    }
                    if !self.done.is_empty() || !waits {
                        break;
                    }
                    if start.elapsed() < self.poll {
                        continue;
                    }
                    // The others are not forgotten for longer than this takes.
                    let busy = lanes.iter_mut().filter(|lane| lane.queue.outstanding() > 0);
                    for lane in busy {
                        lane.queue.wait(&mut self.done, SHORT_LOOK);
                    }
                    waits = start.elapsed() < patience;
                }
            }
        }
        for ended in self.done.drain(..) {
            let result = ended.result.map(drop);
            if ended.user_data == FLUSH {
                self.flushed = Some(result);
            } else {
                self.ready.push_back(Event { token: ended.user_data, error: result.err() });
            }
        }
    }
}

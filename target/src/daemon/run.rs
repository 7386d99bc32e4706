//! From a configuration to a running target and to its end. Called by `lariatd`.
//!
//! The main thread opens what is shared, starts a thread per reactor, says when all listen, and
//! waits for a signal; a second thread does nothing but wait for signals.

use core::cell::Cell;
use core::time::Duration;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use crossbeam_channel::{Receiver, RecvError, RecvTimeoutError, Sender, unbounded};
use lariat_fabric::provider::NoDevice;
use lariat_fabric::waiting::SAME_SIGNAL;
use lariat_fabric::{Fabric, ListenError, soft};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::Pid;

use super::config::{Config, Listener, TargetConfig};
use super::files::Watch;
use super::provider::{self, Fabrics, Part, parts, rdma_provider};
use super::turn::{Clock, Sleeper, drive};
use crate::nvme::{
    self, ListenerAddress, Namespace, Registry, Subsystem, SubsystemMap, TerminateReason, Waker,
};
use crate::storage::{
    BackendConfig, BackendId, EventWaker, OpenError, StorageSet, UringConfig, UringStorage,
};
use crate::transport::{Reactor, ReactorConfig, ReactorError};

/// How much longer than its configured time a clean stop may take before it is cut off.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// Why the target could not start, or did not end well.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A backend could not be opened.
    #[error("{}: {key}", .file.display())]
    Backend {
        /// The configuration.
        file: PathBuf,
        /// Path of the backend's table.
        key: String,
        /// Why.
        source: OpenError,
    },
    /// What is configured cannot be served.
    #[error("{}", .file.display())]
    Subsystems {
        /// The configuration.
        file: PathBuf,
        /// Why.
        source: nvme::ConfigError,
    },
    /// A listener asks for an RDMA device, and there is none.
    #[error(transparent)]
    NoDevice(#[from] NoDevice),
    /// The soft provider could not be opened.
    #[error(transparent)]
    Soft(#[from] soft::OpenError),
    /// The provider for RDMA devices could not be opened.
    #[cfg(feature = "ib")]
    #[error(transparent)]
    Ib(#[from] lariat_fabric::ib::OpenError),
    /// An address cannot be listened at.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A reactor could not be set up.
    #[error("{action}")]
    Setup {
        /// What was tried.
        action: String,
        /// Why it failed.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A reactor failed while it ran.
    #[error("reactor {reactor} failed: {reason}")]
    Reactor {
        /// Its number.
        reactor: usize,
        /// Why.
        reason: String,
    },
    /// The target was stopped before it had come to a clean end.
    #[error("stopped without a clean end: {reason}")]
    CutOff {
        /// Why.
        reason: String,
    },
}

impl RunError {
    /// The exit code of `lariatd`: 1 could not start, 3 failed while running, 4 no clean end.
    /// (0 is a clean end, 2 a wrong command line or configuration.)
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Reactor { .. } => 3,
            Self::CutOff { .. } => 4,
            _ => 1,
        }
    }
}

fn setup<E>(action: impl Into<String>) -> impl FnOnce(E) -> RunError
where
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let action = action.into();
    move |source| RunError::Setup { action, source: source.into() }
}

impl Waker for EventWaker {
    fn wake(&self) {
        Self::wake(self);
    }
}

/// What the main thread hears.
enum News {
    Ready,
    Failed(RunError),
    Ended(usize, Option<String>),
    Signal(Signal),
}

/// What a reactor thread is given.
struct Seat<F> {
    /// Among all reactors.
    number: usize,
    /// Among those of its provider: where it is pinned to.
    place: usize,
    fabric: F,
    waker: EventWaker,
    part: Part,
    common: Common,
}

/// What all reactor threads share.
#[derive(Clone)]
struct Common {
    storage: Arc<StorageSet>,
    registry: Arc<Registry>,
    target: TargetConfig,
    clock: Clock,
    stop: Arc<AtomicBool>,
    news: Sender<News>,
}

/// Blocks the signals that [`run`] waits for. To be called by the main thread before it starts any
/// other. Blocks SIGXFSZ too: a write beyond RLIMIT_FSIZE then fails instead of ending the process.
///
/// # Errors
/// The operating system's word.
pub fn block_signals() -> io::Result<()> {
    let mut signals = our_signals();
    signals.add(Signal::SIGXFSZ);
    signals.thread_block().map_err(io::Error::from)
}

fn our_signals() -> SigSet {
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().collect()
}

/// Serves until SIGTERM or SIGINT; calls `ready` when all listeners stand. The first signal stops
/// cleanly, a second one at once. SIGHUP is ignored. [`block_signals`] has to be called before.
///
/// # Errors
/// Why it could not start, what failed, or that it did not end cleanly.
pub fn run(config: &Config, ready: impl FnOnce()) -> Result<(), RunError> {
    let (sender, news) = unbounded();
    watch_signals(sender.clone()).map_err(setup("cannot wait for signals"))?;

    // What is most likely to fail comes before what leaves something behind.
    let parts = parts(config)?;
    let fabrics = parts.iter().map(|part| provider::open(part, &config.target));
    let fabrics = fabrics.collect::<Result<Vec<_>, _>>()?;
    let configs: Vec<BackendConfig> =
        config.backends().map(|(_, backend)| backend.clone()).collect();
    let storage = StorageSet::open(&configs).map_err(|(place, source)| RunError::Backend {
        file: config.file.clone(),
        key: config.backends().nth(place).map(|(key, _)| key.to_owned()).unwrap_or_default(),
        source,
    })?;
    let start = Start { storage: &storage, configs: &configs, stands: Cell::new(false) };
    let _looking = Watch::start(&configs).look_on().map_err(setup("cannot start a thread"))?;
    let map = subsystems(config, &storage, &parts)?;
    let reactors = config.target.reactors;
    let wakers = (0..usize::from(reactors) * parts.len())
        .map(|_| EventWaker::new())
        .collect::<io::Result<Vec<_>>>()
        .map_err(setup("cannot make an eventfd"))?;
    let boxed = wakers.iter().map(|waker| Box::new(waker.clone()) as Box<dyn Waker>).collect();
    let registry = Registry::new(map, boxed);
    let stop = Arc::new(AtomicBool::new(false));
    let common = Common {
        storage: Arc::clone(&storage),
        registry: Arc::clone(&registry),
        target: config.target.clone(),
        clock: Clock::start(),
        stop: Arc::clone(&stop),
        news: sender,
    };
    let mut crew = Crew { threads: Vec::new(), wakers, stop };
    for (part, fabrics) in parts.iter().zip(fabrics) {
        match fabrics {
            Fabrics::Soft(fabrics) => crew.start(fabrics, part, &common)?,
            #[cfg(feature = "ib")]
            Fabrics::Ib(fabrics) => crew.start(fabrics, part, &common)?,
        }
    }

    let outcome = serve(config, &news, crew.threads.len(), || {
        start.stands.set(true);
        ready();
    });
    registry.close();
    let running = match &outcome {
        Ok(()) => crew.threads.len(),
        Err(_) => crew.running(),
    };
    tracing::info!(controllers = registry.controllers(), "stopping");
    crew.stop();
    let bound = config.target.shutdown_timeout + STOP_GRACE;
    let ended = wait_for_end(&news, running, bound);
    if ended.is_ok() {
        crew.join();
        if let Err(error) = storage.sync() {
            tracing::error!(%error, "a backend could not be synced at the end");
        }
    } else {
        registry.terminate_all(TerminateReason::Shutdown);
    }
    outcome.and(ended)
}

/// A start that comes to nothing leaves no files behind that it made.
struct Start<'a> {
    storage: &'a StorageSet,
    configs: &'a [BackendConfig],
    stands: Cell<bool>,
}

impl Drop for Start<'_> {
    fn drop(&mut self) {
        if !self.stands.get() {
            for path in self.storage.unmake(self.configs) {
                tracing::info!(path = %path.display(), "made for this start, and removed again");
            }
        }
    }
}

/// The reactor threads.
struct Crew {
    threads: Vec<JoinHandle<()>>,
    wakers: Vec<EventWaker>,
    stop: Arc<AtomicBool>,
}

impl Crew {
    /// Starts the reactors of one provider.
    fn start<F: Fabric + Send + 'static>(
        &mut self,
        fabrics: Vec<F>,
        part: &Part,
        common: &Common,
    ) -> Result<(), RunError> {
        for (place, fabric) in fabrics.into_iter().enumerate() {
            let number = self.threads.len();
            let Some(waker) = self.wakers.get(number).cloned() else { continue };
            let (part, common) = (part.clone(), common.clone());
            let seat = Seat { number, place, fabric, waker, part, common };
            let thread = thread::Builder::new()
                .name(format!("reactor-{number}"))
                .spawn(move || sit(seat))
                .map_err(setup("cannot start a thread"))?;
            self.threads.push(thread);
        }
        Ok(())
    }

    fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        for waker in &self.wakers {
            waker.wake();
        }
    }

    fn running(&self) -> usize {
        self.threads.iter().filter(|thread| !thread.is_finished()).count()
    }

    fn join(self) {
        for thread in self.threads {
            // A panic was reported by the thread's own guard.
            let _ = thread.join();
        }
    }
}

/// Until a signal comes or a reactor fails.
fn serve(
    config: &Config,
    news: &Receiver<News>,
    reactors: usize,
    ready: impl FnOnce(),
) -> Result<(), RunError> {
    let mut missing = reactors;
    let mut ready = Some(ready);
    loop {
        match news.recv() {
            Ok(News::Ready) => {
                missing -= 1;
                if missing == 0
                    && let Some(ready) = ready.take()
                {
                    let listeners: Vec<_> =
                        config.listeners.iter().map(|one| one.address.to_string()).collect();
                    tracing::info!(reactors, listeners = listeners.join(", "), "ready");
                    ready();
                }
            }
            Ok(News::Failed(error)) => return Err(error),
            Ok(News::Ended(reactor, reason)) => {
                let reason = reason.unwrap_or_else(|| "it ended by itself".to_owned());
                return Err(RunError::Reactor { reactor, reason });
            }
            Ok(News::Signal(Signal::SIGHUP)) => {
                tracing::info!("SIGHUP is ignored: the configuration is read at the start alone");
            }
            Ok(News::Signal(signal)) => {
                tracing::info!(%signal, "a signal: stopping; a second one stops at once");
                return Ok(());
            }
            Err(RecvError) => return Ok(()),
        }
    }
}

/// Until all reactors have ended, a second signal comes, or it takes too long.
fn wait_for_end(news: &Receiver<News>, running: usize, bound: Duration) -> Result<(), RunError> {
    let start = Instant::now();
    let deadline = start + bound;
    let mut running = running;
    let mut failure = Ok(());
    while running > 0 {
        match news.recv_deadline(deadline) {
            Ok(News::Ended(reactor, reason)) => {
                running -= 1;
                if let Some(reason) = reason {
                    failure = Err(RunError::Reactor { reactor, reason });
                }
            }
            Ok(News::Signal(Signal::SIGTERM | Signal::SIGINT)) if start.elapsed() > SAME_SIGNAL => {
                return Err(RunError::CutOff { reason: "a second signal came".to_owned() });
            }
            Ok(News::Ready | News::Failed(_) | News::Signal(_)) => {}
            Err(RecvTimeoutError::Timeout) => {
                let reason = format!("{running} reactors still had work after {bound:?}");
                return Err(RunError::CutOff { reason });
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    failure
}

fn watch_signals(news: Sender<News>) -> io::Result<()> {
    let signals = our_signals();
    let watch = move || {
        while let Ok(signal) = signals.wait() {
            if news.send(News::Signal(signal)).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("signals".to_owned()).spawn(watch).map(drop)
}

fn subsystems(
    config: &Config,
    storage: &StorageSet,
    parts: &[Part],
) -> Result<Arc<SubsystemMap>, RunError> {
    let mut next = 0;
    let mut builders = Vec::new();
    for subsystem in &config.subsystems {
        let mut builder = Subsystem::builder(subsystem.nqn.clone())
            .serial(&subsystem.serial)
            .model(&subsystem.model)
            .allowed_hosts(subsystem.allowed_hosts.clone());
        for namespace in &subsystem.namespaces {
            // In the order of `Config::backends`.
            let backend = BackendId(next);
            next += 1;
            let Some(geometry) = storage.geometry(backend) else { continue };
            let (nsid, uuid) = (namespace.nsid, namespace.uuid);
            tracing::info!(
                subsystem = %subsystem.nqn,
                nsid = nsid.0,
                blocks = geometry.capacity_blocks,
                block_bytes = geometry.block_bytes,
                direct = storage.is_direct(backend),
                deallocate = geometry.deallocate,
                read_only = geometry.read_only,
                "namespace"
            );
            builder = builder.namespace(Namespace::new(nsid, backend, geometry, uuid));
        }
        builders.push(builder);
    }
    let listeners = (1..)
        .zip(&config.listeners)
        .map(|(port_id, &Listener { address, .. })| ListenerAddress {
            address,
            port_id,
            provider: rdma_provider(parts, address),
        })
        .collect();
    SubsystemMap::new(config.target.limits, builders, listeners)
        .map(Arc::new)
        .map_err(|source| RunError::Subsystems { file: config.file.clone(), source })
}

/// Tells the main thread how a reactor ended, even if it panics.
struct Farewell {
    number: usize,
    news: Sender<News>,
    reason: Option<String>,
}

impl Drop for Farewell {
    fn drop(&mut self) {
        let reason = self.reason.take();
        let _ = self.news.send(News::Ended(self.number, reason));
    }
}

/// The life of a reactor thread.
fn sit<F: Fabric>(seat: Seat<F>) {
    let Seat { number, ref common, .. } = seat;
    let Common { clock, news, stop, target, .. } = common.clone();
    let mut farewell =
        Farewell { number, news: news.clone(), reason: Some("it panicked".to_owned()) };
    let mut sleeper = match prepare(seat) {
        Ok(sleeper) => sleeper,
        Err(error) => {
            let _ = news.send(News::Failed(error));
            farewell.reason = None;
            return;
        }
    };
    let _ = news.send(News::Ready);
    let result = drive(&mut sleeper, clock, target.idle_poll, &stop);
    let counters = sleeper.reactor().fabric().counters();
    tracing::info!(number, ?counters, "the reactor has ended");
    // The ring waits for what the disks still do; only then has the reactor ended.
    drop(sleeper);
    farewell.reason = result.err().map(|error| error.to_string());
}

fn prepare<F: Fabric>(seat: Seat<F>) -> Result<Sleeper<F>, RunError> {
    let Seat { number, place, fabric, waker, part, common } = seat;
    let target = common.target;
    if let Some(cpu) = target.cpus.get(place) {
        let mut set = CpuSet::new();
        set.set(*cpu)
            .and_then(|()| sched_setaffinity(Pid::from_raw(0), &set))
            .map_err(setup(format!("cannot pin reactor {number} to CPU {cpu}")))?;
    }
    let storage = UringStorage::new(common.storage, waker, UringConfig::default())
        .map_err(setup("cannot set up io_uring"))?;
    let config = ReactorConfig {
        limits: target.limits,
        data_bytes: target.buffers_bytes,
        receive_bytes: target.receive_bytes,
        receive_max_bytes: target.receive_max_bytes,
        shared_receive: target.shared_receive,
        drain_timeout: target.shutdown_timeout,
        starve_timeout: target.starve_timeout,
        idle_probe: target.idle_probe,
        read_sinks_remotely_writable: part.read_sinks_remotely_writable,
        ..ReactorConfig::default()
    };
    let mut reactor = Reactor::new(fabric, storage, common.registry, config)
        .map_err(|error: ReactorError| setup("cannot set up a reactor")(error))?;
    for (address, _) in &part.listeners {
        reactor.listen(*address)?;
    }
    Sleeper::new(reactor).map_err(setup("cannot set up the place to sleep"))
}

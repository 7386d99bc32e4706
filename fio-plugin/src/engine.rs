//! fio's callbacks: each makes views of what fio gave, calls `job`, and tells fio the outcome as a
//! number; what went wrong becomes one line in fio's log. Called by fio, through the table that
//! `load` fills.
//!
//! fio's order: `setup` (in the parent process, before jobs are forked; with `create_serialize=0` in
//! the job, after `init`); then in the job's process or thread `init`, `iomem_alloc`, `post_init`;
//! `queue`, `commit`, `getevents`, `event`; `iomem_free`, `cleanup`. So what must not cross a fork is
//! made in `init`; `setup` uses connections that end before it returns.

use std::ffi::{c_int, c_uint, c_void};
use std::time::Duration;

use lariat::IoError;

use crate::abi::{Abi, fixed};
use crate::canary;
use crate::errors::{errno_of_io, errno_of_start};
use crate::ffi::{File, IoU, Td, complain, guard};
use crate::job::{self, Action, Event as JobEvent, Job, Request, StartError, Taken};
use crate::load;
use crate::settings::Settings;

pub(crate) type OnTd = unsafe extern "C" fn(*mut c_void) -> c_int;
pub(crate) type Ended = unsafe extern "C" fn(*mut c_void);
pub(crate) type OnFile = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;
pub(crate) type Queue = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;
pub(crate) type GetEvents =
    unsafe extern "C" fn(*mut c_void, c_uint, c_uint, *const libc::timespec) -> c_int;
pub(crate) type Event = unsafe extern "C" fn(*mut c_void, c_int) -> *mut c_void;
pub(crate) type Allocate = unsafe extern "C" fn(*mut c_void, usize) -> c_int;

/// What hangs on fio's job.
struct State {
    job: Job,
    /// One line about failed I/O was said; fio itself has a line for each.
    complained: bool,
}

/// Why a job does not start, with what fio is told.
struct Refusal {
    errno: i32,
    words: String,
}

impl Refusal {
    fn invalid(error: &dyn std::error::Error) -> Self {
        Self { errno: libc::EINVAL, words: error.to_string() }
    }
}

impl From<StartError> for Refusal {
    fn from(error: StartError) -> Self {
        Self { errno: errno_of_start(&error), words: error.to_string() }
    }
}

/// The job's view.
///
/// # Safety
/// `td` is what fio passed to the running callback.
unsafe fn view(td: *mut c_void) -> Option<(Td, &'static Abi)> {
    let abi = load::current()?;
    // SAFETY: the caller's promise; `load` chose the row by fio's version, `settings` has checked it.
    Some((unsafe { Td::new(td, abi) }?, abi))
}

/// The job's state, for as long as the callback runs.
///
/// # Safety
/// `td` is what fio passed to the running callback, after `init` was called for it; fio calls back
/// for one job from one thread at a time, so the reference is the only one.
unsafe fn state<'a>(td: Td) -> Option<&'a mut State> {
    // SAFETY: `init` stored a `Box<State>`, `cleanup` takes it away; the caller's promise.
    unsafe { td.data().cast::<State>().as_mut() }
}

fn refuse(td: Td, refusal: &Refusal) -> c_int {
    complain(&refusal.words);
    td.set_error(refusal.errno, "lariat: see the line above");
    refusal.errno
}

/// The canaries, then what the user asked for.
fn settings(td: Td, abi: &'static Abi) -> Result<Settings, Refusal> {
    let options = canary::check(td, load::ops(), abi.version).map_err(|e| Refusal::invalid(&e))?;
    let names: Vec<String> = td.files().map(File::name).collect();
    Settings::new(&options.given(), &names, td.has_filename()).map_err(|e| Refusal::invalid(&e))
}

/// Tells fio the size of each of the job's files.
pub(crate) unsafe extern "C" fn setup(td: *mut c_void) -> c_int {
    guard(libc::EIO, || {
        // SAFETY: fio passes its job.
        let Some((td, abi)) = (unsafe { view(td) }) else { return libc::EINVAL };
        let sizes = settings(td, abi).and_then(|settings| {
            // SAFETY: the canaries hold, so this is the engine's own pointer: NULL before `init`.
            match unsafe { state(td) } {
                Some(state) => Ok(state.job.sizes()),
                None => Ok(job::sizes(&settings)?),
            }
        });
        match sizes {
            Ok(sizes) => {
                for (file, bytes) in td.files().zip(sizes) {
                    file.set_size(bytes);
                }
                0
            }
            Err(refusal) => refuse(td, &refusal),
        }
    })
}

/// Connects.
pub(crate) unsafe extern "C" fn init(td: *mut c_void) -> c_int {
    guard(libc::EIO, || {
        // SAFETY: fio passes its job.
        let Some((td, abi)) = (unsafe { view(td) }) else { return libc::EINVAL };
        let started =
            settings(td, abi).and_then(|settings| Ok(Job::start(&settings, td.iodepth())?));
        match started {
            Ok(job) => {
                for (at, file) in td.files().enumerate() {
                    file.set_disk(at);
                }
                let state = Box::new(State { job, complained: false });
                td.set_data(Box::into_raw(state).cast());
                0
            }
            Err(refusal) => refuse(td, &refusal),
        }
    })
}

/// The last look before I/O starts.
pub(crate) unsafe extern "C" fn post_init(td: *mut c_void) -> c_int {
    guard(libc::EIO, || {
        // SAFETY: fio passes its job.
        let Some((td, _)) = (unsafe { view(td) }) else { return libc::EINVAL };
        if td.moves_data() && td.buffer().is_null() {
            // Some releases complain about `mem` themselves and go on without buffers.
            let words = "there are no buffers: leave out mem=, the engine brings registered memory";
            return refuse(td, &Refusal { errno: libc::EINVAL, words: words.to_owned() });
        }
        0
    })
}

/// Gives fio memory that is registered, so that no byte is copied on this side.
pub(crate) unsafe extern "C" fn iomem_alloc(td: *mut c_void, bytes: usize) -> c_int {
    guard(libc::ENOMEM, || {
        // SAFETY: fio passes its job, after `init`.
        let Some((td, _)) = (unsafe { view(td) }) else { return libc::EINVAL };
        // SAFETY: as above.
        let Some(state) = (unsafe { state(td) }) else { return libc::EINVAL };
        match state.job.allocate(bytes) {
            Ok(address) => {
                td.set_buffer(std::ptr::with_exposed_provenance_mut(address));
                0
            }
            Err(error) => refuse(td, &error.into()),
        }
    })
}

/// fio does not touch the memory any more.
pub(crate) unsafe extern "C" fn iomem_free(td: *mut c_void) {
    guard((), || {
        // SAFETY: fio passes its job.
        let Some((td, _)) = (unsafe { view(td) }) else { return };
        // SAFETY: as above; NULL if `init` failed, `cleanup` was first, or there was no memory.
        if let Some(state) = unsafe { state(td) } {
            state.job.free();
        }
        td.set_buffer(std::ptr::null_mut());
    });
}

/// Takes one I/O.
pub(crate) unsafe extern "C" fn queue(td: *mut c_void, io_u: *mut c_void) -> c_int {
    let taken = guard(None, || {
        // SAFETY: fio passes its job, after `init`.
        let (td, abi) = unsafe { view(td) }?;
        // SAFETY: fio passes an I/O of that job.
        let io_u = unsafe { IoU::new(io_u, abi) }?;
        // SAFETY: as above.
        let state = unsafe { state(td) }?;
        Some(take(state, io_u, io_u.file()?))
    });
    // Nothing was taken, which must not look like a success.
    taken.unwrap_or_else(|| {
        // SAFETY: as above.
        let io_u = load::current().and_then(|abi| unsafe { IoU::new(io_u, abi) });
        if let Some(io_u) = io_u {
            io_u.set_error(libc::EIO);
        }
        fixed::Q_COMPLETED
    })
}

fn take(state: &mut State, io_u: IoU, file: File) -> c_int {
    let action = match io_u.direction() {
        fixed::DDIR_READ => Action::Read,
        fixed::DDIR_WRITE => Action::Write,
        fixed::DDIR_TRIM => Action::Trim,
        fixed::DDIR_SYNC | fixed::DDIR_DATASYNC | fixed::DDIR_SYNC_FILE_RANGE => {
            // In place: early releases send an asynchronous fsync again and again.
            return match state.job.flush(file.disk()) {
                Ok(()) => fixed::Q_COMPLETED,
                Err(error) => failed(io_u, state, &error),
            };
        }
        _ => {
            io_u.set_error(libc::EOPNOTSUPP);
            return fixed::Q_COMPLETED;
        }
    };
    let request = Request {
        token: token_of(io_u.address()),
        action,
        disk: file.disk(),
        offset_bytes: io_u.offset(),
        length_bytes: io_u.length(),
        address: io_u.buffer().addr(),
    };
    match state.job.submit(&request) {
        Taken::Queued => fixed::Q_QUEUED,
        Taken::Busy => fixed::Q_BUSY,
        Taken::Failed(error) => failed(io_u, state, &error),
    }
}

fn failed(io_u: IoU, state: &mut State, error: &IoError) -> c_int {
    io_u.set_error(errno_of_io(error));
    complain_once(&mut state.complained, error);
    fixed::Q_COMPLETED
}

/// The first failure of a job in words; the others are most likely the same.
fn complain_once(complained: &mut bool, error: &IoError) {
    if !std::mem::replace(complained, true) {
        complain(&error.to_string());
    }
}

fn token_of(address: *mut c_void) -> u64 {
    address.expose_provenance() as u64
}

/// One doorbell for what was queued.
pub(crate) unsafe extern "C" fn commit(td: *mut c_void) -> c_int {
    guard(libc::EIO, || {
        // SAFETY: fio passes its job, after `init`.
        let Some((td, _)) = (unsafe { view(td) }) else { return libc::EINVAL };
        // SAFETY: as above.
        if let Some(state) = unsafe { state(td) } {
            state.job.commit();
        }
        0
    })
}

/// Waits for I/O to end.
pub(crate) unsafe extern "C" fn getevents(
    td: *mut c_void,
    least: c_uint,
    most: c_uint,
    timeout: *const libc::timespec,
) -> c_int {
    guard(-libc::EIO, || {
        // SAFETY: fio passes its job, after `init`.
        let Some((td, _)) = (unsafe { view(td) }) else { return -libc::EINVAL };
        // SAFETY: as above.
        let Some(state) = (unsafe { state(td) }) else { return -libc::EINVAL };
        // SAFETY: fio passes NULL or a timespec.
        let timeout = unsafe { timeout.as_ref() }.map(duration);
        let size = |count: c_uint| usize::try_from(count).unwrap_or(usize::MAX);
        let count = state.job.wait(size(least), size(most), timeout);
        c_int::try_from(count).unwrap_or(c_int::MAX)
    })
}

fn duration(timeout: &libc::timespec) -> Duration {
    let seconds = Duration::from_secs(u64::try_from(timeout.tv_sec).unwrap_or(0));
    seconds.saturating_add(Duration::from_nanos(u64::try_from(timeout.tv_nsec).unwrap_or(0)))
}

/// Gives one of the I/Os that `getevents` counted.
pub(crate) unsafe extern "C" fn event(td: *mut c_void, index: c_int) -> *mut c_void {
    guard(std::ptr::null_mut(), || {
        // SAFETY: fio passes its job, after `init`.
        let Some((td, abi)) = (unsafe { view(td) }) else { return std::ptr::null_mut() };
        // SAFETY: as above.
        let Some(State { job, complained }) = (unsafe { state(td) }) else {
            return std::ptr::null_mut();
        };
        let event = usize::try_from(index).ok().and_then(|index| job.event(index));
        let Some(JobEvent { token, error }) = event else { return std::ptr::null_mut() };
        let address = usize::try_from(*token).unwrap_or(0);
        let io_u = std::ptr::with_exposed_provenance_mut::<c_void>(address);
        if let Some(error) = error {
            // SAFETY: the token is the address of an I/O that fio queued; it gets it back here.
            if let Some(io_u) = unsafe { IoU::new(io_u, abi) } {
                io_u.set_error(errno_of_io(error));
            }
            complain_once(complained, error);
        }
        io_u
    })
}

/// The end of the job. Also called after an `init` that failed.
pub(crate) unsafe extern "C" fn cleanup(td: *mut c_void) {
    guard((), || {
        // SAFETY: fio passes its job.
        let Some((td, abi)) = (unsafe { view(td) }) else { return };
        // Where the canaries do not hold, there was no `init` that went well.
        if canary::check(td, load::ops(), abi.version).is_err() {
            return;
        }
        let state = td.data().cast::<State>();
        td.set_data(std::ptr::null_mut());
        if !state.is_null() {
            // SAFETY: `init` stored it from a `Box`, and it was taken out of fio's job above.
            drop(unsafe { Box::from_raw(state) });
        }
    });
}

/// Files are opened with their controller; there is no cache to invalidate.
pub(crate) unsafe extern "C" fn nothing_to_do(_td: *mut c_void, _file: *mut c_void) -> c_int {
    0
}

//! Opens what a `file` backend stands on: a regular file or a block device, locked against other
//! targets, with direct I/O where it is to be had. Called by `set`, once per backend.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::{FallocateFlags, Flock, FlockArg, OFlag, fallocate};

use super::open_error::{OpenError, Step};
use super::{Geometry, sys};

/// An open file or block device.
#[derive(Debug)]
pub(super) struct OpenFile {
    pub(super) file: Arc<File>,
    /// Holds the lock; a second descriptor of the same open file.
    _lock: Flock<File>,
    pub(super) geometry: Geometry,
    /// Whether I/O bypasses the page cache.
    pub(super) direct: bool,
    /// Whether it was made for this.
    made: bool,
    /// It failed to sync: the kernel has dropped what it could not write and says so once, so no
    /// later flush may succeed.
    pub(super) lost_writes: AtomicBool,
}

/// What to open.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    pub(super) path: &'a Path,
    pub(super) size_bytes: Option<u64>,
    pub(super) create: bool,
    pub(super) block_bytes: u32,
    pub(super) read_only: bool,
}

impl OpenFile {
    /// Removes the file at `path` if it is this one, was made for it, and nothing was written to it.
    pub(super) fn unmake(&self, path: &Path) -> bool {
        self.made && remove_unwritten(&self.file, path)
    }
}

/// Removes what is at `path` if it is `file`, of which no byte was ever written. To be called by who has
/// the lock: whoever waits for that looks at the path once more (`open_existing`).
fn remove_unwritten(file: &File, path: &Path) -> bool {
    let unwritten = file.metadata().is_ok_and(|about| about.blocks() == 0);
    unwritten && is_at(file, path) && std::fs::remove_file(path).is_ok()
}

/// Whether `path` itself, not what it links to, is this file.
fn is_at(file: &File, path: &Path) -> bool {
    let (own, there) = (file.metadata(), std::fs::symlink_metadata(path));
    own.is_ok_and(|own| there.is_ok_and(|there| identity(&own) == identity(&there)))
}

/// Which file it is: device and inode.
fn identity(about: &Metadata) -> (u64, u64) {
    (about.dev(), about.ino())
}

/// How often a path may lead to another file by the time that one is locked.
const MOST_TRIES: u32 = 8;

pub(super) fn open_file(wanted: Wanted<'_>) -> Result<OpenFile, OpenError> {
    for _ in 0..MOST_TRIES {
        let made = if wanted.create { create(wanted)? } else { None };
        let opened = open_existing(wanted, made.is_some());
        // Somebody else may have it by now, and use it: then the lock is his.
        if let (Some(made), Err(_)) = (made, &opened)
            && let Ok(made) = Flock::lock(made, FlockArg::LockExclusiveNonblock)
        {
            remove_unwritten(&made, wanted.path);
        }
        if let Some(file) = opened? {
            return Ok(file);
        }
    }
    let source = io::Error::other("another process removes or replaces it again and again");
    Err(OpenError::Io { action: "open", path: wanted.path.to_owned(), source })
}

/// `None` if the path leads elsewhere by the time that the file is locked.
fn open_existing(wanted: Wanted<'_>, made: bool) -> Result<Option<OpenFile>, OpenError> {
    let path = wanted.path;
    let failed = |action| move |source| OpenError::Io { action, path: path.to_owned(), source };
    // Looked at before it is opened: opening a pipe would wait for its other end.
    let about =
        std::fs::metadata(path).map_err(|source| OpenError::refused(Step::Look, wanted, source))?;
    if about.is_dir() {
        return Err(OpenError::Folder { path: path.to_owned() });
    }
    let block_device = about.file_type().is_block_device();
    if !block_device && !about.is_file() {
        return Err(OpenError::NotAFile { path: path.to_owned() });
    }
    let (mut file, direct) = open(wanted, block_device)?;
    let lock = lock(wanted, &file)?;
    // Who had the lock until now may have removed it.
    let Ok(there) = std::fs::metadata(path) else { return Ok(None) };
    let own = file.metadata().map_err(failed("look at"))?;
    if identity(&own) != identity(&there) {
        return Ok(None);
    }

    // Also right for block devices, whose metadata has no size.
    let size_bytes = file.seek(SeekFrom::End(0)).map_err(failed("measure"))?;
    if let Some(wanted_bytes) = wanted.size_bytes
        && wanted_bytes != size_bytes
    {
        let path = path.to_owned();
        return Err(OpenError::Size { path, actual_bytes: size_bytes, wanted_bytes });
    }
    let block_bytes = wanted.block_bytes;
    if size_bytes == 0 || !size_bytes.is_multiple_of(u64::from(block_bytes)) {
        return Err(OpenError::NotWhole { path: path.to_owned(), size_bytes, block_bytes });
    }
    if direct {
        check_alignment(wanted, &mut file, size_bytes).map_err(|error| match error {
            Misfit::Io(source) => failed("read")(source),
            Misfit::Needs(needed_bytes) => {
                OpenError::Alignment { path: path.to_owned(), block_bytes, needed_bytes }
            }
        })?;
    }
    let geometry = Geometry {
        block_bytes,
        capacity_blocks: size_bytes / u64::from(block_bytes),
        volatile_write_cache: true,
        deallocate: !wanted.read_only && can_deallocate(&file, block_device, size_bytes),
        read_only: wanted.read_only,
    };
    let lost_writes = AtomicBool::new(false);
    Ok(Some(OpenFile { file: Arc::new(file), _lock: lock, geometry, direct, made, lost_writes }))
}

/// Makes the file unless there is something of that name.
fn create(wanted: Wanted<'_>) -> Result<Option<File>, OpenError> {
    let path = wanted.path;
    let failed = |source| OpenError::refused(Step::Make, wanted, source);
    if path.exists() {
        return Ok(None);
    }
    let size = wanted.size_bytes.ok_or_else(|| OpenError::NoSize { path: path.to_owned() })?;
    let file = match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(None),
        other => other.map_err(failed)?,
    };
    // Its name has to be as durable as what hosts will flush to it.
    match file.set_len(size).and_then(|()| sync_folder_of(path)) {
        Ok(()) => Ok(Some(file)),
        Err(error) => {
            // An empty file would only mislead the next start.
            if let Ok(file) = Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                remove_unwritten(&file, path);
            }
            Err(failed(error))
        }
    }
}

fn sync_folder_of(path: &Path) -> io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    File::open(folder)?.sync_all()
}

/// Opens it, for direct I/O if the file system can.
fn open(wanted: Wanted<'_>, block_device: bool) -> Result<(File, bool), OpenError> {
    let path = wanted.path;
    let mut common = OFlag::O_CLOEXEC | OFlag::O_NOCTTY;
    if block_device && !wanted.read_only {
        // Claims the device: fails while it is mounted or part of something.
        common |= OFlag::O_EXCL;
    }
    let attempt = |extra: OFlag| {
        OpenOptions::new()
            .read(true)
            .write(!wanted.read_only)
            .custom_flags((common | extra).bits())
            .open(path)
    };
    let failed = |source: io::Error| {
        if block_device && source.raw_os_error() == Some(libc::EBUSY) {
            let holder = "a mounted file system or another user of the device (see lsblk)";
            return OpenError::InUse { path: path.to_owned(), holder: holder.to_owned() };
        }
        OpenError::refused(Step::Open, wanted, source)
    };
    let buffered = || {
        tracing::warn!(
            path = %path.display(),
            "the file system has no direct I/O here: going through the page cache, which costs \
             memory and copies; put the file on another file system to avoid that"
        );
        attempt(OFlag::empty()).map_err(failed).map(|file| (file, false))
    };
    match attempt(OFlag::O_DIRECT) {
        Ok(file) => match sys::direct_alignment(&file) {
            Ok(Some(alignment)) if alignment.offset_bytes == 0 => {
                // Closed first: a block device is claimed once.
                drop(file);
                buffered()
            }
            _ => Ok((file, true)),
        },
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => buffered(),
        Err(error) => Err(failed(error)),
    }
}

/// How long the lock of a process that is no more is waited for: the kernel lets go of it when the
/// last write that the process had under way has ended, and only then may others write.
const AFTERLIFE: Duration = Duration::from_secs(10);

/// Locks the file against other targets: exclusively, or among readers if read-only.
fn lock(wanted: Wanted<'_>, file: &File) -> Result<Flock<File>, OpenError> {
    let path = wanted.path;
    let failed = |source| OpenError::Io { action: "lock", path: path.to_owned(), source };
    let kind = if wanted.read_only {
        FlockArg::LockSharedNonblock
    } else {
        FlockArg::LockExclusiveNonblock
    };
    let mut twin = file.try_clone().map_err(failed)?;
    let deadline = Instant::now() + AFTERLIFE;
    loop {
        match Flock::lock(twin, kind) {
            Ok(lock) => return Ok(lock),
            Err((back, nix::errno::Errno::EWOULDBLOCK)) => {
                twin = back;
                let holder = holder(&twin);
                if holder.is_some_and(is_alive) || Instant::now() >= deadline {
                    let holder = name_of(holder);
                    return Err(OpenError::InUse { path: path.to_owned(), holder });
                }
                thread::sleep(Duration::from_millis(10));
            }
            Err((_, errno)) => return Err(failed(errno.into())),
        }
    }
}

/// Who has locked this file, from /proc/locks.
fn holder(file: &File) -> Option<u32> {
    let (about, locks) = (file.metadata().ok()?, std::fs::read_to_string("/proc/locks").ok()?);
    let device = about.dev();
    let (major, minor) = (nix::sys::stat::major(device), nix::sys::stat::minor(device));
    let place = format!("{major:02x}:{minor:02x}:{}", about.ino());
    locks.lines().find_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let at = fields.iter().position(|field| **field == place)?;
        fields.get(at.checked_sub(1)?)?.parse().ok()
    })
}

/// Whether there is such a process, and not only its exit status.
fn is_alive(pid: u32) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok();
    let state = state.as_deref().and_then(|text| text.rsplit_once(") "));
    state.is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

fn name_of(holder: Option<u32>) -> String {
    match holder {
        Some(pid) if pid == std::process::id() => {
            "another namespace of this configuration".to_owned()
        }
        Some(pid) => match std::fs::read_to_string(format!("/proc/{pid}/comm")) {
            Ok(name) => format!("process {pid} ({})", name.trim()),
            Err(_) => format!("process {pid}"),
        },
        None => "another process".to_owned(),
    }
}

enum Misfit {
    Needs(u32),
    Io(io::Error),
}

/// Whether single blocks can be read: by the kernel's word, and where it has none, by trying.
fn check_alignment(wanted: Wanted<'_>, file: &mut File, size_bytes: u64) -> Result<(), Misfit> {
    let block_bytes = wanted.block_bytes;
    if let Ok(Some(alignment)) = sys::direct_alignment(file) {
        let needed = alignment.offset_bytes;
        let fits = needed <= block_bytes;
        return if fits { Ok(()) } else { Err(Misfit::Needs(needed)) };
    }
    // The last block: its offset is a multiple of no more than the block size, mostly.
    file.seek(SeekFrom::Start(size_bytes - u64::from(block_bytes))).map_err(Misfit::Io)?;
    let mut room = vec![0; 8192];
    let start = room.as_ptr().align_offset(4096);
    let length = block_bytes as usize;
    let block = room.get_mut(start..start + length).ok_or(Misfit::Needs(4096))?;
    match file.read(block) {
        Ok(_) => Ok(()),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Err(Misfit::Needs(4096)),
        Err(error) => Err(Misfit::Io(error)),
    }
}

/// Whether blocks can be given back and read as zeroes then.
fn can_deallocate(file: &File, block_device: bool, size_bytes: u64) -> bool {
    if block_device {
        return device_discards(file);
    }
    // A hole beyond the end changes nothing, but fails where holes cannot be made.
    let Ok(end) = i64::try_from(size_bytes) else { return false };
    let mode = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    fallocate(file, mode, end, 4096).is_ok()
}

/// A block device makes holes (unmaps with a promise of zeroes) if its driver can write zeroes by
/// command and discards at all.
fn device_discards(file: &File) -> bool {
    let Ok(about) = file.metadata() else { return false };
    let device = about.rdev();
    let (major, minor) = (nix::sys::stat::major(device), nix::sys::stat::minor(device));
    let number = |name: &str| -> u64 {
        // A partition has its queue one folder up.
        ["queue", "../queue"]
            .iter()
            .find_map(|folder| {
                let file = format!("/sys/dev/block/{major}:{minor}/{folder}/{name}");
                std::fs::read_to_string(file).ok()
            })
            .and_then(|text| text.trim().parse().ok())
            .unwrap_or(0)
    };
    number("write_zeroes_max_bytes") > 0 && number("discard_max_bytes") > 0
}

//! Why a backend cannot be opened, in words: what is wrong, and what to do. Made by `open` and `set`.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::open::Wanted;

/// Why a backend could not be opened: what is wrong, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no such file, and none is to be made.
    #[error(
        "{path} does not exist; make it (truncate -s SIZE {path}), or let the target do so with \
         create = true and a size"
    )]
    NotFound {
        /// As configured.
        path: PathBuf,
    },
    /// `create` without a size.
    #[error("{path} is to be created, but its size is not given; add size = \"10GiB\", say")]
    NoSize {
        /// As configured.
        path: PathBuf,
    },
    /// A character device, a socket, ...
    #[error(
        "{path} is neither a regular file nor a block device; give the path of one (of an NVMe disk: \
         /dev/nvme0n1, say)"
    )]
    NotAFile {
        /// As configured.
        path: PathBuf,
    },
    /// A folder.
    #[error("{path} is a folder; give the path of a file in it: path = \"{}\", say", .path.join("disk.img").display())]
    Folder {
        /// As configured.
        path: PathBuf,
    },
    /// The folder that it is to be in is not there.
    #[error(
        "{path} cannot be there, since there is no folder {folder}; make that (mkdir -p {folder}), or give another path"
    )]
    NoFolder {
        /// As configured.
        path: PathBuf,
        /// What is missing.
        folder: PathBuf,
    },
    /// What should be a folder on the way to it is none.
    #[error("{path} cannot be there, since {file} is a file, no folder; give another path")]
    UnderFile {
        /// As configured.
        path: PathBuf,
        /// What is no folder.
        file: PathBuf,
    },
    /// The process has not the right to do so.
    #[error("the user of this process (uid {uid}) may not {action} {path}; {remedy}")]
    Denied {
        /// Who.
        uid: u32,
        /// What was tried.
        action: &'static str,
        /// As configured.
        path: PathBuf,
        /// What to do.
        remedy: String,
    },
    /// Its file system can only be read.
    #[error("{path} is on a file system that is mounted read-only; {remedy}")]
    ReadOnly {
        /// As configured.
        path: PathBuf,
        /// What to do.
        remedy: &'static str,
    },
    /// The size is not the configured one.
    #[error(
        "{path} has {actual_bytes} bytes, the configuration says {wanted_bytes}; drop `size` (it is \
         needed with create = true only) or give the true one"
    )]
    Size {
        /// As configured.
        path: PathBuf,
        /// What it has.
        actual_bytes: u64,
        /// What was asked for.
        wanted_bytes: u64,
    },
    /// No blocks, or not a whole number of them.
    #[error(
        "{path} has {size_bytes} bytes, which is not a whole number (at least one) of blocks of \
         {block_bytes}; resize it (truncate -s), or choose another block_size"
    )]
    NotWhole {
        /// As configured.
        path: PathBuf,
        /// What it has.
        size_bytes: u64,
        /// As configured.
        block_bytes: u32,
    },
    /// The device has larger blocks.
    #[error(
        "{path} cannot be read or written in blocks of {block_bytes} bytes: direct I/O there needs \
         multiples of {needed_bytes}; write block_size = {needed_bytes}"
    )]
    Alignment {
        /// As configured.
        path: PathBuf,
        /// As configured.
        block_bytes: u32,
        /// What is needed.
        needed_bytes: u32,
    },
    /// Neither 512 nor 4096.
    #[error("a block size of {0} bytes; 512 and 4096 are possible")]
    BlockSize(u32),
    /// A memory or null backend of no, or no whole number of, blocks, or too large to address.
    #[error(
        "a size of {size_bytes} bytes is not a whole number (at least one) of blocks of {block_bytes}"
    )]
    MemorySize {
        /// As configured.
        size_bytes: u64,
        /// As configured.
        block_bytes: u32,
    },
    /// Somebody else serves it.
    #[error("{path} is in use by {holder}; stop that, or give this namespace another file")]
    InUse {
        /// As configured.
        path: PathBuf,
        /// Who, as far as can be told.
        holder: String,
    },
    /// The operating system's word.
    #[error("cannot {action} {path}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// As configured.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// Memory could not be had.
    #[error("cannot allocate {size_bytes} bytes for a memory backend")]
    Memory {
        /// As configured.
        size_bytes: u64,
        /// Why.
        source: io::Error,
    },
}

/// What the operating system was asked to do with the path of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// To say what is there.
    Look,
    /// To make a file.
    Make,
    /// To open what is there.
    Open,
}

impl OpenError {
    /// What the operating system's refusal means.
    pub(super) fn refused(step: Step, wanted: Wanted<'_>, source: io::Error) -> Self {
        let path = wanted.path.to_owned();
        match source.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => Self::absent(wanted.path),
            ErrorKind::IsADirectory => Self::Folder { path },
            ErrorKind::PermissionDenied => Self::denied(step, wanted),
            ErrorKind::ReadOnlyFilesystem => {
                let remedy = match step {
                    Step::Make => "give a path on another",
                    Step::Look | Step::Open => {
                        "serve it with read_only = true, or mount it for writing"
                    }
                };
                Self::ReadOnly { path, remedy }
            }
            _ => {
                let action = match step {
                    Step::Look => "look at",
                    Step::Make => "create",
                    Step::Open => "open",
                };
                Self::Io { action, path, source }
            }
        }
    }

    /// There is no such thing: who is missing?
    fn absent(path: &Path) -> Self {
        // A path without a folder is in the one that this process is in.
        let above = || path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty());
        let path = path.to_owned();
        match (above().next(), above().find(|above| above.exists())) {
            (_, Some(file)) if !file.is_dir() => Self::UnderFile { path, file: file.to_owned() },
            (Some(folder), there) if there != Some(folder) => {
                Self::NoFolder { path, folder: folder.to_owned() }
            }
            _ => Self::NotFound { path },
        }
    }

    fn denied(step: Step, wanted: Wanted<'_>) -> Self {
        let shown = wanted.path.display();
        let uid = nix::unistd::geteuid();
        let action = match step {
            Step::Look => "look at",
            Step::Make => "make",
            Step::Open if wanted.read_only => "read",
            Step::Open => "read and write",
        };
        let remedy = match step {
            // The rights of files do not bind root.
            _ if uid.is_root() => format!(
                "its file system or device forbids that: see `lsattr {shown}`, `blockdev --getro \
                 {shown}`, and root_squash of NFS"
            ),
            Step::Look | Step::Make => format!(
                "give it the rights on the folders above (`namei -l {shown}` shows them), or run \
                 lariatd as a user who has them"
            ),
            Step::Open => {
                // Whoever may read it may be content with that.
                let may_read = !wanted.read_only && std::fs::File::open(wanted.path).is_ok();
                let or = if may_read { ", or serve it with read_only = true" } else { "" };
                format!(
                    "give it the rights (`ls -l {shown}` shows them; devices: those of the group), or \
                     run lariatd as a user who has them{or}"
                )
            }
        };
        Self::Denied { uid: uid.as_raw(), action, path: wanted.path.to_owned(), remedy }
    }
}

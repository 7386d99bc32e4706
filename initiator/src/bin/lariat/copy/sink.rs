//! The file that `lariat read` writes. Called by `copy`.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

/// What is written to.
pub(super) enum Output {
    /// A file or block device, locked as long as it is written.
    Locked(Flock<File>),
    /// A terminal, a pipe, /dev/null: anybody's.
    Shared(File),
}

impl io::Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file().flush()
    }
}

impl Output {
    fn file(&self) -> &File {
        match self {
            Self::Locked(lock) => lock.deref(),
            Self::Shared(file) => file,
        }
    }
}

/// Makes the file, or empties the one that is there: unless somebody has locked it, as targets lock
/// what they serve.
pub(super) fn create(path: &Path) -> Result<Output> {
    let words = || format!("cannot create {}", path.display());
    // Emptied only once it is known to be nobody's.
    let file = File::options().write(true).create(true).truncate(false).open(path);
    let file = file.with_context(words)?;
    let kind = file.metadata().with_context(words)?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Ok(Output::Shared(file));
    }
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => {
            if kind.is_file() {
                lock.set_len(0).with_context(words)?;
            }
            Ok(Output::Locked(lock))
        }
        Err((_, Errno::EWOULDBLOCK)) => bail!(
            "{} is in use: another process, a target that serves it maybe, has locked it; give --output \
             another name",
            path.display()
        ),
        // File systems without locks.
        Err((file, Errno::ENOLCK | Errno::EOPNOTSUPP | Errno::ENOSYS)) => {
            if kind.is_file() {
                file.set_len(0).with_context(words)?;
            }
            Ok(Output::Shared(file))
        }
        Err((_, errno)) => Err(errno).with_context(words),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_locked_file_is_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        std::fs::write(&path, "the data").unwrap();
        let served = Flock::lock(File::open(&path).unwrap(), FlockArg::LockSharedNonblock).unwrap();
        let error = create(&path).err().unwrap().to_string();
        assert!(error.contains("disk is in use"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "the data");
        drop(served);
        let mut output = create(&path).unwrap();
        assert!(create(&path).is_err(), "one at a time");
        output.write_all(b"new").unwrap();
        drop(output);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
        // What is anybody's is nobody's.
        let null = Path::new("/dev/null");
        let both = [create(null).unwrap(), create(null).unwrap()];
        assert!(both.iter().all(|output| matches!(output, Output::Shared(_))));
    }
}

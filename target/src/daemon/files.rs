//! Whether the files of backends are still where they were opened, and as large: one that was deleted,
//! moved or replaced is served on, but is gone when the target ends. Looks at paths alone, once in a while,
//! from a thread of its own, since a file server that is gone may hold up who looks; started by `run`.

use core::convert::Infallible;
use core::time::Duration;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread;

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};

use crate::storage::{BackendConfig, BackendKind};

/// How often.
const LOOK_INTERVAL: Duration = Duration::from_secs(60);

/// What a path leads to: device and inode of a file; of a block device its number, since device
/// nodes are made anew for the same device.
type Identity = (u64, u64);

fn identity(metadata: &Metadata) -> Identity {
    if metadata.file_type().is_block_device() {
        (u64::MAX, metadata.rdev())
    } else {
        (metadata.dev(), metadata.ino())
    }
}

/// A file that is served.
#[derive(Debug)]
struct Watched {
    path: PathBuf,
    opened: Identity,
    /// What it had at the start; 0 for a device.
    size_bytes: u64,
    /// The warning was given. It is given again only when the file had been back in between.
    warned: bool,
}

/// Somebody looks while this is there. Nobody waits for its end: it may hang on a file.
#[derive(Debug)]
pub(super) struct Looking {
    _stop: Sender<Infallible>,
}

/// The files of all backends.
#[derive(Debug, Default)]
pub(super) struct Watch(Vec<Watched>);

impl Watch {
    /// Right after they were opened.
    pub(super) fn start(backends: &[BackendConfig]) -> Self {
        let paths = backends.iter().filter_map(|backend| match &backend.kind {
            BackendKind::File { path, .. } => Some(path),
            BackendKind::Memory { .. } | BackendKind::Null { .. } => None,
        });
        let watched = paths.filter_map(|path| {
            let about = fs::metadata(path).ok()?;
            let (opened, size_bytes) = (identity(&about), about.len());
            Some(Watched { path: path.clone(), opened, size_bytes, warned: false })
        });
        Self(watched.collect())
    }

    /// Warns of those that are gone, from now until what is returned is dropped.
    pub(super) fn look_on(mut self) -> io::Result<Looking> {
        let (stop, stopped) = bounded::<Infallible>(0);
        if !self.0.is_empty() {
            thread::Builder::new().name("files".into()).spawn(move || {
                while stopped.recv_timeout(LOOK_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                    for words in self.news() {
                        tracing::warn!("{words}");
                    }
                }
            })?;
        }
        Ok(Looking { _stop: stop })
    }

    /// What has become of them since the last look, in words.
    fn news(&mut self) -> Vec<String> {
        let mut news = Vec::new();
        for file in &mut self.0 {
            let what = match fs::metadata(&file.path) {
                Ok(now) if identity(&now) == file.opened => {
                    if now.len() >= file.size_bytes {
                        file.warned = false;
                        continue;
                    }
                    News::Shrunken(now.len())
                }
                Ok(_) => News::Gone("was replaced by another file"),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    News::Gone("was deleted or moved")
                }
                // What cannot be looked at is not known to be gone.
                Err(_) => continue,
            };
            if !core::mem::replace(&mut file.warned, true) {
                news.push(match what {
                    News::Gone(what) => gone(&file.path, what, descriptor(file.opened).as_deref()),
                    News::Shrunken(now_bytes) => shrunken(file, now_bytes),
                });
            }
        }
        news
    }
}

/// What became of a file.
enum News {
    /// It is no longer there.
    Gone(&'static str),
    /// It is there, with so many bytes.
    Shrunken(u64),
}

fn shrunken(file: &Watched, now_bytes: u64) -> String {
    format!(
        "the backend's file {} was made smaller: {now_bytes} bytes instead of {}; reads beyond that fail, \
         and what was there is lost; make it as large as it was (truncate -s {}) and restore its data",
        file.path.display(),
        file.size_bytes,
        file.size_bytes,
    )
}

fn gone(path: &Path, what: &str, descriptor: Option<&Path>) -> String {
    let path = path.display();
    let remedy = match descriptor {
        Some(descriptor) => format!(
            "while it runs, the file is also {}: stop the hosts' writing and copy it from there",
            descriptor.display()
        ),
        None => "end lariatd when the hosts have disconnected".to_owned(),
    };
    format!(
        "the backend's file {path} {what}; hosts still read and write the one that was opened, and if \
         it was deleted, all of it is lost when lariatd ends; {remedy}"
    )
}

/// Where the open file can be reached, whatever became of its name.
fn descriptor(opened: Identity) -> Option<PathBuf> {
    let entries = fs::read_dir("/proc/self/fd").ok()?;
    let entry = entries.flatten().find(|entry| {
        fs::metadata(entry.path()).is_ok_and(|metadata| identity(&metadata) == opened)
    })?;
    let number = entry.file_name();
    Some(Path::new("/proc").join(std::process::id().to_string()).join("fd").join(number))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn backend(path: &Path) -> BackendConfig {
        let kind = BackendKind::File { path: path.to_owned(), size_bytes: None, create: false };
        BackendConfig { kind, block_bytes: 512, read_only: false }
    }

    #[test]
    fn a_file_that_is_gone_is_told_once_and_where_it_still_is() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("disk"), folder.path().join("other"));
        fs::write(&path, "the data").unwrap();
        let open = File::open(&path).unwrap();
        let mut watch = Watch::start(&[backend(&path)]);
        assert!(watch.news().is_empty());

        fs::rename(&path, &other).unwrap();
        let [moved] = watch.news().try_into().unwrap();
        assert!(moved.contains("disk was deleted or moved"), "{moved}");
        assert!(watch.news().is_empty(), "once is enough");
        fs::rename(&other, &path).unwrap();
        assert!(watch.news().is_empty());

        fs::write(&other, "something else").unwrap();
        fs::rename(&other, &path).unwrap();
        let [replaced] = watch.news().try_into().unwrap();
        assert!(replaced.contains("was replaced by another file"), "{replaced}");
        let at = replaced.split("also ").nth(1).unwrap().split(": stop").next().unwrap();
        assert_eq!(fs::read_to_string(at).unwrap(), "the data");
        drop(open);
    }

    #[test]
    fn a_file_that_was_made_smaller_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        fs::write(&path, [7; 8192]).unwrap();
        let mut watch = Watch::start(&[backend(&path)]);
        let file = File::options().write(true).open(&path).unwrap();
        file.set_len(16_384).unwrap();
        assert!(watch.news().is_empty(), "larger does no harm");
        file.set_len(4096).unwrap();
        let [told] = watch.news().try_into().unwrap();
        assert!(told.contains("disk was made smaller: 4096 bytes instead of 8192"), "{told}");
        assert!(told.contains("truncate -s 8192"), "{told}");
        assert!(watch.news().is_empty(), "once is enough");
        file.set_len(8192).unwrap();
        assert!(watch.news().is_empty());
    }

    #[test]
    fn what_is_no_file_is_not_looked_after() {
        let kind = BackendKind::Memory { size_bytes: 1 << 20 };
        let memory = BackendConfig { kind, block_bytes: 512, read_only: false };
        assert!(Watch::start(&[memory]).0.is_empty());
    }
}

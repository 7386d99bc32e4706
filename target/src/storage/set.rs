//! All backends of a process: opened once by the daemon, shared by the reactors' storages.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::memory::MemoryDisk;
use super::open::{OpenFile, Wanted, open_file};
use super::open_error::OpenError;
use super::{BackendId, Geometry};

/// What a backend stands on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackendKind {
    /// A regular file or a block device.
    File {
        /// Where.
        path: PathBuf,
        /// Its size in bytes. Only needed with `create`; else it has to be the true one.
        size_bytes: Option<u64>,
        /// Whether a file that is not there is made (sparse).
        create: bool,
    },
    /// Memory of this process.
    Memory {
        /// Size in bytes.
        size_bytes: u64,
    },
    /// Nothing: reads give zeroes, writes vanish.
    Null {
        /// Size in bytes that it claims to have.
        size_bytes: u64,
    },
}

/// One backend to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendConfig {
    /// What it stands on.
    pub kind: BackendKind,
    /// Logical block size in bytes: 512 or 4096.
    pub block_bytes: u32,
    /// Whether writes are refused.
    pub read_only: bool,
}

#[derive(Debug)]
pub(super) enum Backend {
    File { open: OpenFile, index: u32 },
    Memory { disk: MemoryDisk, geometry: Geometry },
    Null { geometry: Geometry },
}

impl Backend {
    pub(super) fn geometry(&self) -> Geometry {
        match self {
            Self::File { open, .. } => open.geometry,
            Self::Memory { geometry, .. } | Self::Null { geometry } => *geometry,
        }
    }

    /// Whether all of it reads as zeroes whatever is written.
    pub(super) const fn is_zeroes(&self) -> bool {
        matches!(self, Self::Null { .. })
    }
}

/// The open backends. A [`BackendId`] is the place in the list they were opened from.
#[derive(Debug, Default)]
pub struct StorageSet {
    backends: Vec<Backend>,
}

impl StorageSet {
    /// Opens, and locks, all of them. If one fails, the files that were made are removed again.
    ///
    /// # Errors
    /// Which one could not be opened, by its place in `configs`, and why.
    pub fn open(configs: &[BackendConfig]) -> Result<Arc<Self>, (usize, OpenError)> {
        let mut set = Self { backends: Vec::with_capacity(configs.len()) };
        let mut files = 0;
        for (place, config) in configs.iter().enumerate() {
            match open(config, &mut files) {
                Ok(backend) => set.backends.push(backend),
                Err(error) => {
                    set.unmake(configs);
                    return Err((place, error));
                }
            }
        }
        Ok(Arc::new(set))
    }

    /// Removes the files that were made when they were opened (from `configs`) and that nothing was
    /// written to: for starts that fail. Says which.
    pub fn unmake<'a>(&self, configs: &'a [BackendConfig]) -> Vec<&'a Path> {
        let mut removed = Vec::new();
        for (backend, config) in self.backends.iter().zip(configs) {
            if let (Backend::File { open, .. }, BackendKind::File { path, .. }) =
                (backend, &config.kind)
                && open.unmake(path)
            {
                removed.push(path.as_path());
            }
        }
        removed
    }

    /// What a backend is; `None` for an unknown one.
    #[must_use]
    pub fn geometry(&self, backend: BackendId) -> Option<Geometry> {
        self.get(backend).map(Backend::geometry)
    }

    /// Whether a backend's I/O bypasses the page cache (true for what has no page cache).
    #[must_use]
    pub fn is_direct(&self, backend: BackendId) -> bool {
        !matches!(self.get(backend), Some(Backend::File { open, .. }) if !open.direct)
    }

    /// Makes everything written durable. For the end: may take long.
    ///
    /// # Errors
    /// The first file's that failed; all were tried.
    pub fn sync(&self) -> std::io::Result<()> {
        let mut result = Ok(());
        for backend in &self.backends {
            if let Backend::File { open, .. } = backend
                && !open.geometry.read_only
            {
                result = result.and(open.file.sync_data());
            }
        }
        result
    }

    /// Whether there are disks of which it is known without a look that they read as zeroes.
    pub(super) fn knows_zeroes(&self) -> bool {
        self.backends.iter().any(Backend::is_zeroes)
    }

    pub(super) fn get(&self, backend: BackendId) -> Option<&Backend> {
        self.backends.get(usize::try_from(backend.0).ok()?)
    }

    /// The files, by their index.
    pub(super) fn files(&self) -> Vec<Arc<std::fs::File>> {
        let file = |backend: &Backend| match backend {
            Backend::File { open, .. } => Some(Arc::clone(&open.file)),
            Backend::Memory { .. } | Backend::Null { .. } => None,
        };
        self.backends.iter().filter_map(file).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.backends.len()
    }
}

fn open(config: &BackendConfig, files: &mut u32) -> Result<Backend, OpenError> {
    let BackendConfig { ref kind, block_bytes, read_only } = *config;
    if !matches!(block_bytes, 512 | 4096) {
        return Err(OpenError::BlockSize(block_bytes));
    }
    let geometry = |size_bytes: u64, deallocate| {
        if size_bytes == 0 || !size_bytes.is_multiple_of(u64::from(block_bytes)) {
            return Err(OpenError::MemorySize { size_bytes, block_bytes });
        }
        Ok(Geometry {
            block_bytes,
            capacity_blocks: size_bytes / u64::from(block_bytes),
            // What a power cut takes it takes with or without a flush.
            volatile_write_cache: false,
            deallocate: deallocate && !read_only,
            read_only,
        })
    };
    match *kind {
        BackendKind::File { ref path, size_bytes, create } => {
            let open = open_file(Wanted { path, size_bytes, create, block_bytes, read_only })?;
            let index = *files;
            *files += 1;
            Ok(Backend::File { open, index })
        }
        BackendKind::Memory { size_bytes } => {
            let geometry = geometry(size_bytes, true)?;
            let length = usize::try_from(size_bytes)
                .map_err(|_| OpenError::MemorySize { size_bytes, block_bytes })?;
            let disk = MemoryDisk::new(length)
                .map_err(|source| OpenError::Memory { size_bytes, source })?;
            Ok(Backend::Memory { disk, geometry })
        }
        BackendKind::Null { size_bytes } => {
            Ok(Backend::Null { geometry: geometry(size_bytes, true)? })
        }
    }
}

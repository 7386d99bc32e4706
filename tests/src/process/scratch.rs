//! Places that a test has for itself: a folder on a disk, an address. Called by all tests.

use std::collections::hash_map::RandomState;
use std::fs::File;
use std::hash::BuildHasher;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::fcntl::{Flock, FlockArg};

use super::binaries::build_folder;
use super::bound::until;

/// A folder that goes away with its value. On the build folder's disk: /tmp may be memory, which
/// does not do O_DIRECT everywhere.
#[derive(Debug)]
pub struct Scratch(tempfile::TempDir);

impl Scratch {
    /// Makes one.
    ///
    /// # Errors
    /// The operating system's word.
    pub fn new() -> Result<Self> {
        let place = build_folder()?.join("scratch");
        std::fs::create_dir_all(&place)?;
        let folder = tempfile::Builder::new().prefix("e2e-").tempdir_in(place)?;
        Ok(Self(folder))
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// A path in it.
    #[must_use]
    pub fn join(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A sparse file in it.
    ///
    /// # Errors
    /// The operating system's word.
    pub fn disk(&self, name: &str, bytes: u64) -> Result<PathBuf> {
        let path = self.join(name);
        File::create(&path)?.set_len(bytes).context("cannot set a disk's size")?;
        Ok(path)
    }
}

/// An address of 127.0.0.0/8 that nobody else is likely to use: one of 16 million by chance.
#[must_use]
pub fn free_address() -> IpAddr {
    // Each RandomState has other keys.
    let [a, b, c, ..] = RandomState::new().hash_one(std::process::id()).to_le_bytes();
    IpAddr::V4(Ipv4Addr::new(127, a % 250 + 2, b, c % 250 + 2))
}

/// The one IPv6 loopback address: tests take turns.
#[derive(Debug)]
pub struct Ipv6Loopback(#[expect(dead_code, reason = "held for its lock")] Flock<File>);

impl Ipv6Loopback {
    /// The address.
    pub const ADDRESS: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

    /// Waits for the turn. `None` where the machine has no IPv6.
    ///
    /// # Errors
    /// The lock file cannot be had, or the turn does not come.
    pub fn take() -> Result<Option<Self>> {
        if std::net::UdpSocket::bind((Self::ADDRESS, 0)).is_err() {
            return Ok(None);
        }
        // One for all working copies: they share the address.
        let path = std::env::temp_dir().join("lariat-tests-ipv6-loopback");
        let mut file = File::options().create(true).append(true).open(path)?;
        until("the turn on ::1", Duration::from_secs(60), || {
            match Flock::lock(file.try_clone()?, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => Ok(Some(lock)),
                Err((back, _)) => {
                    file = back;
                    Ok(None)
                }
            }
        })
        .map(|lock| Some(Self(lock)))
    }
}

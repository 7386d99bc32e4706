//! What is wrong with a configuration: one fault or several. Made by all that reads one; `lariatd` shows it.

use core::fmt;
use std::path::PathBuf;

/// One thing that is wrong with a configuration, and what to write or do instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The file cannot be read.
    #[error("{}: {wrong}; {instead}", .file.display())]
    File {
        /// Which file.
        file: PathBuf,
        /// What is wrong.
        wrong: String,
        /// What to do instead.
        instead: String,
    },
    /// The file is not TOML.
    #[error("{}: this is not TOML: {reason}", .file.display())]
    Syntax {
        /// Which file.
        file: PathBuf,
        /// Where and why.
        reason: String,
    },
    /// A key is wrong.
    #[error("{origin}: {key}: {wrong}; {instead}")]
    Key {
        /// The file or environment variable.
        origin: String,
        /// The key's path, `listener[0].port`.
        key: String,
        /// What is wrong.
        wrong: String,
        /// What to write instead.
        instead: String,
    },
}

impl Fault {
    /// The key of the whole file that it lies under.
    fn root_key(&self) -> Option<&str> {
        match self {
            Self::Key { key, .. } => key.split(['.', '[']).next(),
            Self::File { .. } | Self::Syntax { .. } => None,
        }
    }
}

/// What is wrong with a configuration: at least one fault, in the order of the file; of each table the
/// first. Shown as one line for each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    faults: Vec<Fault>,
}

impl ConfigError {
    /// All that was found.
    #[must_use]
    pub fn faults(&self) -> &[Fault] {
        &self.faults
    }
}

impl core::error::Error for ConfigError {}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, fault) in self.faults.iter().enumerate() {
            let between = if place == 0 { "" } else { "\n" };
            write!(f, "{between}{fault}")?;
        }
        Ok(())
    }
}

impl From<Fault> for ConfigError {
    fn from(fault: Fault) -> Self {
        Self { faults: vec![fault] }
    }
}

/// The faults found so far.
#[derive(Debug, Default)]
pub(super) struct Faults(Vec<Fault>);

impl Faults {
    pub(super) fn add(&mut self, fault: Fault) {
        self.0.push(fault);
    }

    pub(super) fn extend(&mut self, faults: impl IntoIterator<Item = Fault>) {
        self.0.extend(faults);
    }

    /// The value; or none, and the fault is kept.
    pub(super) fn keep<T>(&mut self, result: Result<T, Fault>) -> Option<T> {
        result.map_err(|fault| self.add(fault)).ok()
    }

    /// Puts them in the order of the file, of which these are the keys.
    pub(super) fn sort_by_root_key(&mut self, keys: &[String]) {
        // What lies under none of them is something that is missing: last.
        let place = |fault: &Fault| {
            let key = fault.root_key();
            keys.iter().position(|other| Some(other.as_str()) == key).unwrap_or(keys.len())
        };
        self.0.sort_by_key(place);
    }

    /// The value if nothing was wrong. Where there is none, a fault was kept.
    pub(super) fn result<T>(self, value: Option<T>) -> Result<T, ConfigError> {
        match value {
            Some(value) if self.0.is_empty() => Ok(value),
            _ => Err(ConfigError { faults: self.0 }),
        }
    }
}

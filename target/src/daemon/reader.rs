//! Reads tables of the configuration key by key, so that every error names the file (or the
//! environment variable), the key, what is wrong and what to write instead. Called by `config`.

use core::fmt;
use core::ops::RangeInclusive;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use config::{Value, ValueKind};

use super::size;

/// What is wrong with a configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: {reason}", .file.display())]
    Unreadable {
        /// Which file.
        file: PathBuf,
        /// The operating system's word.
        reason: String,
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

/// Where the values come from.
#[derive(Debug)]
pub(super) struct Origin<'a> {
    pub(super) file: &'a Path,
    /// Environment variables by the path of the key that they set.
    pub(super) variables: BTreeMap<String, String>,
}

/// The name of a table within another.
#[derive(Clone, Copy, Debug)]
pub(super) enum TableName {
    /// Of one, `[name]`.
    One(&'static str),
    /// Of a list of them, `[[name]]`.
    List(&'static str),
}

impl TableName {
    fn name(self) -> &'static str {
        match self {
            Self::One(name) | Self::List(name) => name,
        }
    }
}

/// One table. Keys are taken out of it; what is left at the end is unknown.
#[derive(Debug)]
pub(super) struct Section<'a> {
    origin: &'a Origin<'a>,
    path: String,
    values: BTreeMap<String, Value>,
    known: Vec<&'static str>,
    /// Those of them that were not there.
    absent: Vec<&'static str>,
}

impl<'a> Section<'a> {
    /// A table whose own path is `path` (empty for the whole file).
    pub(super) fn new(
        origin: &'a Origin<'a>,
        path: String,
        values: impl IntoIterator<Item = (String, Value)>,
    ) -> Self {
        Self {
            origin,
            path,
            values: values.into_iter().collect(),
            known: Vec::new(),
            absent: Vec::new(),
        }
    }

    /// The path of a key of this table.
    pub(super) fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// This table's own path.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// An error about a key of this table.
    pub(super) fn wrong(
        &self,
        key: &str,
        wrong: impl fmt::Display,
        instead: impl fmt::Display,
    ) -> ConfigError {
        let path = self.path_of(key);
        match self.misspelt().filter(|_| self.absent.contains(&key)) {
            None => self.wrong_at(path, wrong, instead),
            Some(other) => {
                let wrong = format!("{wrong}; there is {other}, which means nothing here");
                self.wrong_at(path, wrong, instead)
            }
        }
    }

    /// A key that looks like one of those that are not there.
    fn misspelt(&self) -> Option<&str> {
        // Keys that were read are taken out; a misspelt one is still there.
        let alike = |other: &&String| self.absent.iter().any(|key| is_slip(key, other));
        self.values.keys().find(alike).map(String::as_str)
    }

    fn wrong_at(
        &self,
        key: String,
        wrong: impl fmt::Display,
        instead: impl fmt::Display,
    ) -> ConfigError {
        let origin = match self.origin.variables.get(&key) {
            Some(variable) => format!("environment variable {variable}"),
            None => self.origin.file.display().to_string(),
        };
        ConfigError::Key { origin, key, wrong: wrong.to_string(), instead: instead.to_string() }
    }

    fn take(&mut self, key: &'static str) -> Option<ValueKind> {
        self.known.push(key);
        let value = self.values.remove(key).map(|value| value.kind);
        let value = value.filter(|kind| *kind != ValueKind::Nil);
        if value.is_none() {
            self.absent.push(key);
        }
        value
    }

    /// Whether a key's value is text from the environment, which knows no other types.
    fn is_variable(&self, key: &str) -> bool {
        self.origin.variables.contains_key(&self.path_of(key))
    }

    /// The value of a key that must be there.
    pub(super) fn required<T>(
        &self,
        key: &'static str,
        value: Option<T>,
        instead: &str,
    ) -> Result<T, ConfigError> {
        value.ok_or_else(|| self.wrong(key, "is missing", instead))
    }

    pub(super) fn text(
        &mut self,
        key: &'static str,
        instead: &str,
    ) -> Result<Option<String>, ConfigError> {
        match self.take(key) {
            None => Ok(None),
            Some(ValueKind::String(text)) => Ok(Some(text)),
            Some(other) => {
                Err(self.wrong(key, format_args!("{} is not text", shown(&other)), instead))
            }
        }
    }

    pub(super) fn flag(&mut self, key: &'static str) -> Result<Option<bool>, ConfigError> {
        let variable = self.is_variable(key);
        match self.take(key) {
            None => Ok(None),
            Some(ValueKind::Boolean(flag)) => Ok(Some(flag)),
            Some(ValueKind::String(text)) if variable && text == "true" => Ok(Some(true)),
            Some(ValueKind::String(text)) if variable && text == "false" => Ok(Some(false)),
            Some(other) => Err(self.wrong(
                key,
                format_args!("{} is neither true nor false", shown(&other)),
                format_args!("write {key} = true or {key} = false"),
            )),
        }
    }

    /// A whole number in a range.
    pub(super) fn number<T>(
        &mut self,
        key: &'static str,
        range: RangeInclusive<T>,
    ) -> Result<Option<T>, ConfigError>
    where
        T: Copy + PartialOrd + fmt::Display + TryFrom<i64>,
    {
        let variable = self.is_variable(key);
        let Some(kind) = self.take(key) else { return Ok(None) };
        let number = match &kind {
            ValueKind::I64(number) => Some(*number),
            ValueKind::String(text) if variable => text.trim().parse().ok(),
            _ => None,
        };
        match number.and_then(|number| T::try_from(number).ok()) {
            Some(number) if range.contains(&number) => Ok(Some(number)),
            _ => Err(self.wrong(
                key,
                format_args!("{} is not a whole number that is possible here", shown(&kind)),
                format_args!("write one from {} to {}", range.start(), range.end()),
            )),
        }
    }

    /// A size in bytes, as a number or as text with a unit.
    pub(super) fn size(&mut self, key: &'static str) -> Result<Option<u64>, ConfigError> {
        let Some(kind) = self.take(key) else { return Ok(None) };
        let bytes = match &kind {
            ValueKind::I64(number) => u64::try_from(*number).ok(),
            ValueKind::String(text) => size::parse(text),
            _ => None,
        };
        bytes.map(Some).ok_or_else(|| {
            self.wrong(
                key,
                format_args!("{} is not a size", shown(&kind)),
                format_args!(
                    "write bytes, or a number with KiB, MiB, GiB, TiB (kB, MB, GB, TB: powers of \
                     1000): {key} = \"10GiB\""
                ),
            )
        })
    }

    /// A list of texts; in the environment, separated by commas.
    pub(super) fn texts(
        &mut self,
        key: &'static str,
        instead: &str,
    ) -> Result<Option<Vec<String>>, ConfigError> {
        let variable = self.is_variable(key);
        let wrong = match self.take(key) {
            None => return Ok(None),
            Some(ValueKind::String(text)) if variable => {
                return Ok(Some(text.split(',').map(|part| part.trim().to_owned()).collect()));
            }
            Some(ValueKind::Array(values)) => {
                let mut texts = Vec::new();
                let mut wrong = None;
                for value in values {
                    match value.kind {
                        ValueKind::String(text) => texts.push(text),
                        other => wrong = Some(other),
                    }
                }
                match wrong {
                    None => return Ok(Some(texts)),
                    Some(wrong) => wrong,
                }
            }
            Some(other) => other,
        };
        Err(self.wrong(key, format_args!("{} is not a list of texts", shown(&wrong)), instead))
    }

    /// A list of numbers; in the environment, separated by commas.
    pub(super) fn numbers(
        &mut self,
        key: &'static str,
        instead: &str,
    ) -> Result<Option<Vec<usize>>, ConfigError> {
        let variable = self.is_variable(key);
        let Some(kind) = self.take(key) else { return Ok(None) };
        let numbers: Option<Vec<usize>> = match &kind {
            ValueKind::String(text) if variable => {
                text.split(',').map(|part| part.trim().parse().ok()).collect()
            }
            ValueKind::Array(values) => values
                .iter()
                .map(|value| match value.kind {
                    ValueKind::I64(number) => usize::try_from(number).ok(),
                    _ => None,
                })
                .collect(),
            _ => None,
        };
        numbers.map(Some).ok_or_else(|| {
            self.wrong(key, format_args!("{} is not a list of numbers", shown(&kind)), instead)
        })
    }

    /// A table below this one.
    pub(super) fn section(&mut self, key: &'static str) -> Result<Option<Self>, ConfigError> {
        let path = self.path_of(key);
        match self.take(key) {
            None => Ok(None),
            Some(ValueKind::Table(table)) => Ok(Some(Self::new(self.origin, path, table))),
            Some(other) => Err(self.wrong(
                key,
                format_args!("{} is not a table", shown(&other)),
                format_args!("write [{}] and its keys below", plain(&path)),
            )),
        }
    }

    /// A table below this one; an empty one if there is none.
    pub(super) fn section_or_empty(&mut self, key: &'static str) -> Result<Self, ConfigError> {
        let empty = Self::new(self.origin, self.path_of(key), []);
        Ok(self.section(key)?.unwrap_or(empty))
    }

    /// A list of tables below this one; empty if there are none.
    pub(super) fn sections(&mut self, key: &'static str) -> Result<Vec<Self>, ConfigError> {
        let path = self.path_of(key);
        let values = match self.take(key) {
            None => return Ok(Vec::new()),
            Some(ValueKind::Array(values)) => values,
            Some(other) => {
                return Err(self.wrong(
                    key,
                    format_args!("{} is not a list of tables", shown(&other)),
                    format_args!("write [[{}]], with two brackets, for each", plain(&path)),
                ));
            }
        };
        let mut sections = Vec::new();
        for (place, value) in values.into_iter().enumerate() {
            let path = format!("{path}[{place}]");
            let ValueKind::Table(table) = value.kind else {
                let instead = format!("write [[{}]] and its keys below", plain(&path));
                let wrong = format!("{} is not a table", shown(&value.kind));
                return Err(self.wrong_at(path, wrong, instead));
            };
            sections.push(Self::new(self.origin, path, table));
        }
        Ok(sections)
    }

    /// All keys must have been taken.
    pub(super) fn finish(self) -> Result<(), ConfigError> {
        let Some((key, _)) = self.values.first_key_value() else { return Ok(()) };
        let near = self
            .known
            .iter()
            .map(|known| (distance(known, key), known))
            .min()
            .filter(|(distance, _)| *distance <= 2);
        let mut known: Vec<_> = self.known.clone();
        known.sort_unstable();
        let instead = match near {
            Some((_, near)) => format!("did you mean {near}?"),
            None => format!("known here: {}", known.join(", ")),
        };
        Err(self.unknown(key, "there is no such key", instead))
    }

    /// None of the keys may be a table whose name is nearly one of `tables`: what was meant to be there
    /// would be missed, or misunderstood. To be called before anything is taken.
    pub(super) fn no_misspelt_table(&self, tables: &[TableName]) -> Result<(), ConfigError> {
        for (key, value) in &self.values {
            if !is_table(&value.kind) || tables.iter().any(|table| table.name() == key) {
                continue;
            }
            if let Some(near) = tables.iter().find(|table| distance(table.name(), key) <= 2) {
                let path = plain(&self.path_of(near.name()));
                let instead = match near {
                    TableName::One(_) => format!("did you mean [{path}]?"),
                    TableName::List(_) => format!("did you mean [[{path}]]?"),
                };
                return Err(self.unknown(key, "there is no such table", instead));
            }
        }
        Ok(())
    }

    /// An error about a key that is none.
    fn unknown(&self, key: &str, wrong: &str, instead: String) -> ConfigError {
        // A variable may name something deeper inside what is unknown.
        let path = self.path_of(key);
        let deeper = matches!(
            self.values.get(key).map(|value| &value.kind),
            Some(ValueKind::Table(_) | ValueKind::Array(_))
        )
        .then(|| self.origin.variables.keys().find(|variable| variable.starts_with(&path)))
        .flatten();
        self.wrong_at(deeper.cloned().unwrap_or(path), wrong, instead)
    }
}

/// Whether it is a table, or a list of tables.
fn is_table(kind: &ValueKind) -> bool {
    match kind {
        ValueKind::Table(_) => true,
        ValueKind::Array(values) => {
            values.iter().any(|value| matches!(value.kind, ValueKind::Table(_)))
        }
        _ => false,
    }
}

/// A path without indices, as tables are named in TOML.
fn plain(path: &str) -> String {
    let mut inside = false;
    path.chars()
        .filter(|c| {
            inside |= *c == '[';
            let keep = !inside;
            inside &= *c != ']';
            keep
        })
        .collect()
}

fn shown(kind: &ValueKind) -> String {
    match kind {
        ValueKind::Nil => "nothing".to_owned(),
        ValueKind::String(text) => format!("{text:?}"),
        ValueKind::Table(_) => "a table".to_owned(),
        ValueKind::Array(_) => "a list".to_owned(),
        other => other.to_string(),
    }
}

/// Whether one word is the other with a letter more, less or changed, or with two of them swapped.
fn is_slip(one: &str, other: &str) -> bool {
    let letters = |word: &str| {
        let mut letters: Vec<char> = word.chars().collect();
        letters.sort_unstable();
        letters
    };
    match distance(one, other) {
        0 | 1 => true,
        2 => letters(one) == letters(other),
        _ => false,
    }
}

/// Edits (insertions, deletions, replacements) between two words.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, from) in one.chars().enumerate() {
        let mut next = vec![at + 1];
        let mut left = at + 1;
        for (to, pair) in other.iter().zip(row.windows(2)) {
            let &[diagonal, above] = pair else { continue };
            left = (left + 1).min(above + 1).min(diagonal + usize::from(from != *to));
            next.push(left);
        }
        row = next;
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_told_from_another_word() {
        for (one, other) in [("nsid", "nsdi"), ("nsid", "nsi"), ("nsid", "nssid"), ("nsid", "nsie")]
        {
            assert!(is_slip(one, other), "{one} {other}");
        }
        for (one, other) in [("nsid", "uuid"), ("nsid", "nqn"), ("path", "size"), ("nsid", "")] {
            assert!(!is_slip(one, other), "{one} {other}");
        }
    }

    #[test]
    fn words_have_distances() {
        assert_eq!(distance("address", "adress"), 1);
        assert_eq!(distance("port", "prot"), 2);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("abc", ""), 3);
        assert_eq!(distance("size", "size"), 0);
    }

    #[test]
    fn paths_lose_their_indices() {
        assert_eq!(plain("subsystem[0].namespace[12].backend"), "subsystem.namespace.backend");
    }
}

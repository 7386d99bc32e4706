//! Reads tables of the configuration key by key, so that every error names the file (or the
//! environment variable), the key, what is wrong and what to write instead. Called by `config`.

use core::fmt;
use core::ops::RangeInclusive;
use std::collections::BTreeMap;
use std::path::Path;

use config::{Value, ValueKind};

use super::error::Fault;
use super::size;
use super::words::{distance, is_slip, plain, shown};

/// Where the values come from.
#[derive(Debug)]
pub(super) struct Origin<'a> {
    pub(super) file: &'a Path,
    /// Environment variables by the path of the key that they set.
    pub(super) variables: BTreeMap<String, String>,
}

impl Origin<'_> {
    /// What is wrong with the key of this path.
    pub(super) fn fault(
        &self,
        key: String,
        wrong: impl fmt::Display,
        instead: impl fmt::Display,
    ) -> Fault {
        let origin = match self.variables.get(&key) {
            Some(variable) => format!("environment variable {variable}"),
            None => self.file.display().to_string(),
        };
        Fault::Key { origin, key, wrong: wrong.to_string(), instead: instead.to_string() }
    }
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
    /// Tables that are there under nearly this name.
    misspelt: Vec<&'static str>,
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
            misspelt: Vec::new(),
        }
    }

    /// What it is a part of.
    pub(super) const fn origin(&self) -> &'a Origin<'a> {
        self.origin
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
    ) -> Fault {
        let path = self.path_of(key);
        match self.alike().filter(|_| self.absent.contains(&key)) {
            None => self.origin.fault(path, wrong, instead),
            Some(other) => {
                let wrong = format!("{wrong}; there is {other}, which means nothing here");
                self.origin.fault(path, wrong, instead)
            }
        }
    }

    /// A key that looks like one of those that are not there.
    fn alike(&self) -> Option<&str> {
        // Keys that were read are taken out; a misspelt one is still there.
        let alike = |other: &&String| self.absent.iter().any(|key| is_slip(key, other));
        self.values.keys().find(alike).map(String::as_str)
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
    ) -> Result<T, Fault> {
        value.ok_or_else(|| self.wrong(key, "is missing", instead))
    }

    pub(super) fn text(
        &mut self,
        key: &'static str,
        instead: &str,
    ) -> Result<Option<String>, Fault> {
        match self.take(key) {
            None => Ok(None),
            Some(ValueKind::String(text)) => Ok(Some(text)),
            Some(other) => {
                Err(self.wrong(key, format_args!("{} is not text", shown(&other)), instead))
            }
        }
    }

    pub(super) fn flag(&mut self, key: &'static str) -> Result<Option<bool>, Fault> {
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
    ) -> Result<Option<T>, Fault>
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
        let possible = |number: i64| T::try_from(number).ok().filter(|n| range.contains(n));
        number.and_then(possible).map(Some).ok_or_else(|| {
            match whole(&kind).filter(|number| possible(*number).is_some()) {
                Some(number) => self.disguised(key, &kind, number),
                None => self.wrong(
                    key,
                    format_args!("{} is not a whole number that is possible here", shown(&kind)),
                    format_args!("write one from {} to {}", range.start(), range.end()),
                ),
            }
        })
    }

    /// A whole number was written as something else.
    fn disguised(&self, key: &str, kind: &ValueKind, number: i64) -> Fault {
        let what = match kind {
            ValueKind::String(_) => "text",
            _ => "a fraction",
        };
        self.wrong(
            key,
            format_args!("{} is written as {what}, not as a whole number", shown(kind)),
            format_args!("write {key} = {number}"),
        )
    }

    /// A size in bytes, as a number or as text with a unit.
    pub(super) fn size(&mut self, key: &'static str) -> Result<Option<u64>, Fault> {
        let Some(kind) = self.take(key) else { return Ok(None) };
        let bytes = match &kind {
            ValueKind::I64(number) => u64::try_from(*number).ok(),
            ValueKind::String(text) => size::parse(text),
            _ => None,
        };
        bytes.map(Some).ok_or_else(|| match whole(&kind).filter(|number| *number > 0) {
            Some(number) => self.disguised(key, &kind, number),
            None => self.wrong(
                key,
                format_args!("{} is not a size", shown(&kind)),
                format_args!(
                    "write bytes, or a whole number with K, M, G, T (as KiB, MiB, GiB, TiB: powers of \
                     1024) or kB, MB, GB, TB (of 1000): {key} = \"10GiB\""
                ),
            ),
        })
    }

    /// A list of texts; in the environment, separated by commas.
    pub(super) fn texts(
        &mut self,
        key: &'static str,
        instead: &str,
    ) -> Result<Option<Vec<String>>, Fault> {
        self.list(key, "text", instead, |kind| match kind {
            ValueKind::String(text) => Some(text.clone()),
            _ => None,
        })
    }

    /// A list of numbers; in the environment, separated by commas.
    pub(super) fn numbers(
        &mut self,
        key: &'static str,
        instead: &str,
    ) -> Result<Option<Vec<usize>>, Fault> {
        let variable = self.is_variable(key);
        self.list(key, "whole number", instead, |kind| match kind {
            ValueKind::I64(number) => usize::try_from(*number).ok(),
            ValueKind::String(text) if variable => text.parse().ok(),
            _ => None,
        })
    }

    /// A list of what is called `what`.
    fn list<T>(
        &mut self,
        key: &'static str,
        what: &str,
        instead: &str,
        read: impl Fn(&ValueKind) -> Option<T>,
    ) -> Result<Option<Vec<T>>, Fault> {
        let variable = self.is_variable(key);
        let kinds: Vec<ValueKind> = match self.take(key) {
            None => return Ok(None),
            Some(ValueKind::Array(values)) => values.into_iter().map(|value| value.kind).collect(),
            Some(ValueKind::String(text)) if variable => {
                text.split(',').map(|part| ValueKind::String(part.trim().to_owned())).collect()
            }
            Some(other) => {
                let wrong = format_args!("{} is not a list of {what}s", shown(&other));
                return Err(self.wrong(key, wrong, instead));
            }
        };
        let one = |kind: ValueKind| {
            let wrong = format_args!("{} in the list is no {what}", shown(&kind));
            read(&kind).ok_or_else(|| self.wrong(key, wrong, instead))
        };
        kinds.into_iter().map(one).collect::<Result<_, _>>().map(Some)
    }

    /// A table below this one.
    pub(super) fn section(&mut self, key: &'static str) -> Result<Option<Self>, Fault> {
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
    pub(super) fn section_or_empty(&mut self, key: &'static str) -> Result<Self, Fault> {
        let empty = Self::new(self.origin, self.path_of(key), []);
        Ok(self.section(key)?.unwrap_or(empty))
    }

    /// A list of tables below this one; empty if there are none.
    pub(super) fn sections(&mut self, key: &'static str) -> Result<Vec<Self>, Fault> {
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
                return Err(self.origin.fault(path, wrong, instead));
            };
            sections.push(Self::new(self.origin, path, table));
        }
        Ok(sections)
    }

    /// A list of tables below this one, at least one: such as has the key and value `say`.
    pub(super) fn some_sections(
        &mut self,
        key: &'static str,
        say: &str,
    ) -> Result<Vec<Self>, Fault> {
        let sections = self.sections(key)?;
        if sections.is_empty() && !self.is_misspelt(key) {
            let instead = format_args!("write [[{key}]] with {say}, say");
            return Err(self.wrong(key, "there is none", instead));
        }
        Ok(sections)
    }

    /// All keys must have been taken.
    pub(super) fn finish(self) -> Result<(), Fault> {
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

    /// Faults of keys that are tables whose name is nearly one of `tables`. What was meant to be there
    /// would be missed, or misunderstood: neither is in this section any longer. To be called before
    /// anything is taken.
    pub(super) fn misspelt_tables(&mut self, tables: &[TableName]) -> Vec<Fault> {
        let mut found = Vec::new();
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
                let fault = self.unknown(key, "there is no such table", instead);
                found.push((key.clone(), near.name(), fault));
            }
        }
        let mut faults = Vec::new();
        for (key, meant, fault) in found {
            self.values.remove(&key);
            self.values.remove(meant);
            self.misspelt.push(meant);
            faults.push(fault);
        }
        faults
    }

    /// Whether a table of nearly this name was found.
    pub(super) fn is_misspelt(&self, table: &str) -> bool {
        self.misspelt.contains(&table)
    }

    /// An error about a key that is none.
    fn unknown(&self, key: &str, wrong: &str, instead: String) -> Fault {
        // A variable may name something deeper inside what is unknown.
        let path = self.path_of(key);
        let deeper = matches!(
            self.values.get(key).map(|value| &value.kind),
            Some(ValueKind::Table(_) | ValueKind::Array(_))
        )
        .then(|| self.origin.variables.keys().find(|variable| variable.starts_with(&path)))
        .flatten();
        self.origin.fault(deeper.cloned().unwrap_or(path), wrong, instead)
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

/// The whole number that a float or a text is.
fn whole(kind: &ValueKind) -> Option<i64> {
    match kind {
        ValueKind::Float(number) if number.fract() == 0.0 => format!("{number:.0}").parse().ok(),
        ValueKind::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

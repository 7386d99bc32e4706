//! What every read may return: for each sector of a namespace, which values it may hold now and
//! which a power cut may leave.
//!
//! Time is a counter that grows with each call. A write is an interval from its submission to its
//! completion; reads and writes that overlap in time may have happened in either order. A value
//! stands until a write that was *submitted after the value's write had completed* completes
//! itself. A value is out of a power cut's reach once such a later one is durable: acknowledged
//! with FUA, or followed by a flush that was submitted after it had completed.
//!
//! A write whose connection was lost is without end: it may be applied at any time until
//! [`Model::fence`] says that the target has nothing left of it, or the target was killed.

use core::fmt;
use std::collections::BTreeSet;

use super::content::{SECTOR_BYTES, Value, recognise};

/// A point in the model's time.
pub type Tick = u64;

/// Not yet.
const NEVER: Tick = Tick::MAX;

#[derive(Clone, Copy, Debug)]
struct Entry {
    value: Value,
    /// When it was submitted.
    invoked: Tick,
    /// When it was known to have ended.
    completed: Tick,
    /// It may be that it was not applied at all, so it supersedes nothing.
    doubtful: bool,
    /// Its host will not hear of it any more.
    lost: bool,
    /// One of the possible outcomes of a power cut, all of which are of the same `invoked`.
    outcome: bool,
    /// Since when no read returns it; `NEVER` while one may.
    hidden: Tick,
    /// A power cut may bring it (back).
    restorable: bool,
}

/// A violation: what was read, and what could have been.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongRead {
    /// Namespace.
    pub nsid: u32,
    /// Sector of 512 bytes.
    pub sector: u64,
    /// What it held; `None`: no write's data.
    pub found: Option<Value>,
    /// The first words of what it held.
    pub words: [u64; 2],
    /// What it may hold.
    pub allowed: Vec<Value>,
}

impl fmt::Display for WrongRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sector {} of namespace {} holds ", self.sector, self.nsid)?;
        match self.found {
            Some(value) => write!(f, "{value}")?,
            None => write!(f, "no write's data ({:x?})", self.words)?,
        }
        f.write_str("; allowed:")?;
        for value in &self.allowed {
            write!(f, " [{value}]")?;
        }
        Ok(())
    }
}

/// One namespace.
#[derive(Debug)]
struct Space {
    nsid: u32,
    sectors: Vec<Vec<Entry>>,
}

/// A request that was submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Index of the namespace.
    pub space: usize,
    /// First sector.
    pub sector: u64,
    /// Number of sectors.
    pub count: u64,
    /// When.
    pub invoked: Tick,
}

/// How a write ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteEnd {
    /// Acknowledged.
    Done {
        /// With Force Unit Access.
        fua: bool,
    },
    /// Answered with an error: it may have been applied in part, and is over.
    Failed,
    /// Its connection is gone.
    Lost,
}

/// All namespaces of the target.
#[derive(Debug, Default)]
pub struct Model {
    spaces: Vec<Space>,
    tick: Tick,
    reads: BTreeSet<Tick>,
    /// Sectors whose content was checked.
    pub checked: u64,
    /// Sectors that might have held more than one value when they were read.
    pub ambiguous: u64,
}

impl Model {
    /// Adds a namespace full of zeroes. Gives its index.
    pub fn add_space(&mut self, nsid: u32, sectors: usize) -> usize {
        let zeroes = Entry {
            value: Value::ZERO,
            invoked: 0,
            completed: 0,
            doubtful: false,
            lost: false,
            outcome: false,
            hidden: NEVER,
            restorable: true,
        };
        self.spaces.push(Space { nsid, sectors: vec![vec![zeroes]; sectors] });
        self.spaces.len() - 1
    }

    fn next(&mut self) -> Tick {
        self.tick += 1;
        self.tick
    }

    fn entries(&mut self, span: Span) -> impl Iterator<Item = &mut Vec<Entry>> {
        let from = usize::try_from(span.sector).unwrap_or(usize::MAX);
        let count = usize::try_from(span.count).unwrap_or(0);
        let sectors = self.spaces.get_mut(span.space).map(|space| space.sectors.iter_mut());
        sectors.into_iter().flatten().skip(from).take(count)
    }

    /// A write is submitted.
    pub fn begin_write(&mut self, space: usize, sector: u64, count: u64, value: Value) -> Span {
        let invoked = self.next();
        let oldest = self.reads.first().copied().unwrap_or(NEVER);
        let span = Span { space, sector, count, invoked };
        for entries in self.entries(span) {
            entries.retain(|entry| {
                entry.restorable || entry.completed == NEVER || entry.hidden > oldest
            });
            entries.push(Entry {
                value,
                invoked,
                completed: NEVER,
                doubtful: false,
                lost: false,
                outcome: false,
                hidden: NEVER,
                restorable: true,
            });
        }
        span
    }

    /// A write ended.
    pub fn end_write(&mut self, span: Span, end: WriteEnd) {
        let now = self.next();
        for entries in self.entries(span) {
            let own = entries.iter_mut().find(|e| e.invoked == span.invoked && !e.outcome);
            // After a power cut it is one of the outcomes already.
            let Some(own) = own.filter(|own| own.completed == NEVER) else { continue };
            match end {
                WriteEnd::Lost => own.lost = true,
                WriteEnd::Failed => {
                    own.completed = now;
                    own.doubtful = true;
                }
                WriteEnd::Done { fua } => {
                    own.completed = now;
                    supersede(entries, span.invoked, now, fua);
                }
            }
        }
    }

    /// A flush is submitted.
    pub fn begin_flush(&mut self) -> Tick {
        self.next()
    }

    /// A flush of a namespace was acknowledged.
    pub fn end_flush(&mut self, space: usize, invoked: Tick) {
        let Some(space) = self.spaces.get_mut(space) else { return };
        for entries in &mut space.sectors {
            let sure = entries.iter().filter(|e| !e.doubtful && e.completed < invoked);
            let Some(latest) = sure.map(|e| e.invoked).max() else { continue };
            for entry in entries.iter_mut() {
                entry.restorable &= entry.completed >= latest;
            }
        }
    }

    /// A read is submitted.
    pub fn begin_read(&mut self, space: usize, sector: u64, count: u64) -> Span {
        let invoked = self.next();
        self.reads.insert(invoked);
        Span { space, sector, count, invoked }
    }

    /// A read ended without data.
    pub fn end_read(&mut self, span: Span) {
        self.reads.remove(&span.invoked);
    }

    /// A read ended with this data.
    ///
    /// # Errors
    /// The first sector that holds what it cannot hold.
    pub fn check_read(&mut self, span: Span, data: &[u8]) -> Result<(), Box<WrongRead>> {
        self.reads.remove(&span.invoked);
        let now = self.next();
        let nsid = self.spaces.get(span.space).map_or(0, |space| space.nsid);
        let (mut checked, mut ambiguous) = (0, 0);
        let mut wrong = None;
        let sectors = (span.sector..).zip(data.chunks(SECTOR_BYTES));
        for ((sector, bytes), entries) in sectors.zip(self.entries(span)) {
            checked += 1;
            let possible = |entry: &Entry| entry.hidden > span.invoked;
            let found = recognise(nsid, sector, bytes);
            let some = found.is_some_and(|v| entries.iter().any(|e| possible(e) && e.value == v));
            let (true, Some(found)) = (some, found) else {
                let word = |at: usize| {
                    bytes
                        .get(at..)
                        .and_then(<[u8]>::first_chunk)
                        .map_or(0, |b| u64::from_le_bytes(*b))
                };
                let allowed = entries.iter().filter(|e| possible(e)).map(|e| e.value).collect();
                let words = [word(0), word(8)];
                wrong = Some(Box::new(WrongRead { nsid, sector, found, words, allowed }));
                break;
            };
            ambiguous += u64::from(entries.iter().filter(|e| possible(e)).count() > 1);
            settle(entries, found, span.invoked, now);
        }
        self.checked += checked;
        self.ambiguous += ambiguous;
        if wrong.is_none() && checked != span.count {
            // Less data than asked for is a fault of the simulation itself.
            let allowed = Vec::new();
            let words = [checked, span.count];
            let sector = span.sector;
            wrong = Some(Box::new(WrongRead { nsid, sector, found: None, words, allowed }));
        }
        wrong.map_or(Ok(()), Err)
    }

    /// The target has nothing left of writes that were lost before: they happened or did not.
    pub fn fence(&mut self) {
        let now = self.next();
        for entry in self.spaces.iter_mut().flat_map(|space| space.sectors.iter_mut().flatten()) {
            if entry.lost && entry.completed == NEVER {
                entry.completed = now;
                entry.doubtful = true;
            }
        }
    }

    /// The power of the disks was cut: each sector holds one of the values it could be left with.
    pub fn power_cut(&mut self) {
        let now = self.next();
        // A read may have been answered before the cut, and be seen to end after it.
        let oldest = self.reads.first().copied().unwrap_or(NEVER);
        for entries in self.spaces.iter_mut().flat_map(|space| space.sectors.iter_mut()) {
            entries.retain(|entry| entry.restorable || entry.hidden > oldest);
            for entry in entries.iter_mut() {
                if !entry.restorable {
                    entry.hidden = entry.hidden.min(now);
                    continue;
                }
                entry.completed = now;
                entry.invoked = now;
                // Until one is read, or it is the only one.
                entry.doubtful = true;
                entry.outcome = true;
                entry.lost = false;
                entry.hidden = NEVER;
            }
            if let [only] = entries.as_mut_slice()
                && only.restorable
            {
                only.doubtful = false;
            }
        }
    }
}

/// A write that was submitted at `invoked` is complete: it hides what was complete before that.
fn supersede(entries: &mut [Entry], invoked: Tick, now: Tick, durable: bool) {
    for entry in entries {
        if entry.completed < invoked {
            entry.hidden = entry.hidden.min(now);
            entry.restorable &= !durable;
        }
    }
}

/// A read returned `found`. If no write can have been under way since, all others are out.
fn settle(entries: &mut [Entry], found: Value, invoked: Tick, now: Tick) {
    let still = |entry: &Entry| entry.completed < invoked;
    if !entries.iter().filter(|entry| entry.hidden == NEVER).all(still) {
        return;
    }
    let outcomes = entries.iter().filter(|entry| entry.hidden == NEVER).all(|entry| entry.outcome);
    for entry in entries.iter_mut().filter(|entry| entry.hidden == NEVER) {
        if entry.value != found {
            entry.hidden = now;
            // What a power cut left is on the medium: what was not found there is nowhere.
            entry.restorable &= !outcomes;
        }
    }
}

#[cfg(test)]
mod tests;

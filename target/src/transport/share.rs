//! Who may take how much of the reactor's data buffers, and whose turn it is when there are too
//! few.
//!
//! Hosts (peers, by address) and their connections are accounts. As long as one host is alone it
//! may take all. Otherwise a host may take what leaves at least as much free as it then holds: of
//! `n` hosts that want more than there is each gets 1/(n + 1), and whoever comes next finds
//! something, also when those before it stopped to give anything back. A host that holds nothing
//! may take any piece that is there. The connections of a host stand to its share as the hosts do
//! to the whole. A connection that is barred (it does not acknowledge) takes nothing.
//!
//! Those who wait take turns: hosts in a ring, in each host its connections in a ring, in each
//! connection its requests in the order of asking. Who is over its share is passed over; who is
//! not, and finds no piece that is large enough, keeps its turn, so that small requests cannot
//! starve a large one.
//!
//! Called by `buffer` only; calls nothing. A request costs O(1), and when there are too few
//! buffers one look at each waiting connection per turn at most. Memory is allocated when a
//! connection comes, never for a request.

use core::net::IpAddr;
use std::collections::VecDeque;

use lariat_fabric::Timestamp;
use slab::Slab;

use super::buffer::Class;

/// The parts of the pool: what only admin commands get, and what everybody gets.
pub(super) const PARTS: usize = 2;
const CLASSES: usize = 2;

/// Somebody waiting for a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiter {
    /// The request's slot.
    pub(super) slot: u32,
    /// What it needs, in bytes.
    pub(super) bytes: u32,
    /// What for.
    pub(super) class: Class,
    /// Since when it waits.
    pub(super) since: Timestamp,
}

/// Whether somebody may take a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It may, if there is one.
    May,
    /// Its connection has enough; others of its host may be served before it.
    ConnectionHasEnough,
    /// Its host has enough; other hosts may be served before it.
    HostHasEnough,
}

/// A connection's account.
#[derive(Debug)]
struct Member {
    host: usize,
    class: Class,
    /// Units that it holds of each part.
    held: [u32; PARTS],
    waiting: VecDeque<Waiter>,
    barred: bool,
}

/// A host's account.
#[derive(Debug)]
struct Host {
    address: IpAddr,
    members: u32,
    /// Connections that are there for commands of each class.
    queues: [u32; CLASSES],
    held: [u32; PARTS],
    /// Its connections whose first waiter is of this class, by turns.
    turns: [VecDeque<u32>; CLASSES],
}

/// All accounts.
#[derive(Debug, Default)]
pub(super) struct Shares {
    /// By the connection's key.
    members: Vec<Option<Member>>,
    hosts: Slab<Host>,
    /// Hosts of which somebody waits in this class, by turns.
    turns: [VecDeque<usize>; CLASSES],
    waiting: usize,
}

impl Shares {
    fn member(&self, key: u32) -> Option<&Member> {
        self.members.get(key as usize)?.as_ref()
    }

    fn member_mut(&mut self, key: u32) -> Option<&mut Member> {
        self.members.get_mut(key as usize)?.as_mut()
    }

    /// Opens an account for a connection that can have so many requests, mainly of one class.
    pub(super) fn join(&mut self, key: u32, address: IpAddr, class: Class, requests: u32) {
        let known = self.hosts.iter().find(|(_, host)| host.address == address);
        let known = known.map(|(at, _)| at);
        let host = known.unwrap_or_else(|| {
            self.hosts.insert(Host {
                address,
                members: 0,
                queues: [0; CLASSES],
                held: [0; PARTS],
                turns: Default::default(),
            })
        });
        let hosts = self.hosts.len();
        for turns in &mut self.turns {
            turns.reserve(hosts.saturating_sub(turns.len()));
        }
        if let Some(entry) = self.hosts.get_mut(host) {
            entry.members += 1;
            if let Some(queues) = entry.queues.get_mut(class.index()) {
                *queues += 1;
            }
            for turns in &mut entry.turns {
                turns.reserve((entry.members as usize).saturating_sub(turns.len()));
            }
        }
        let at = key as usize;
        if self.members.len() <= at {
            self.members.resize_with(at + 1, || None);
        }
        let waiting = VecDeque::with_capacity(requests as usize);
        let member = Member { host, class, held: [0; PARTS], waiting, barred: false };
        if let Some(place) = self.members.get_mut(at) {
            *place = Some(member);
        }
    }

    /// Closes an account; everything it held is back.
    pub(super) fn leave(&mut self, key: u32) {
        self.forget(key);
        let Some(member) = self.members.get_mut(key as usize).and_then(Option::take) else {
            return;
        };
        let Some(host) = self.hosts.get_mut(member.host) else { return };
        host.members -= 1;
        if let Some(queues) = host.queues.get_mut(member.class.index()) {
            *queues -= 1;
        }
        if host.members == 0 {
            self.hosts.remove(member.host);
        }
    }

    /// Forgets who waits of a connection.
    pub(super) fn forget(&mut self, key: u32) {
        let Some(member) = self.member_mut(key) else { return };
        let (host, count) = (member.host, member.waiting.len());
        member.waiting.clear();
        self.waiting -= count;
        let Some(entry) = self.hosts.get_mut(host) else { return };
        for (in_host, hosts) in entry.turns.iter_mut().zip(&mut self.turns) {
            in_host.retain(|&other| other != key);
            if in_host.is_empty() {
                hosts.retain(|&other| other != host);
            }
        }
    }

    /// Lets a connection take nothing, or lets it again. Whether that is news.
    pub(super) fn bar(&mut self, key: u32, barred: bool) -> bool {
        self.member_mut(key)
            .is_some_and(|member| core::mem::replace(&mut member.barred, barred) != barred)
    }

    /// Whether a request of a connection has to stand behind others.
    pub(super) fn must_wait(&self, key: u32, class: Class) -> bool {
        self.turns.get(class.index()).is_none_or(|turns| !turns.is_empty())
            || self.member(key).is_none_or(|member| !member.waiting.is_empty() || member.barred)
    }

    /// Puts a request behind those of its connection.
    pub(super) fn wait(&mut self, key: u32, waiter: Waiter) {
        let Some(member) = self.member_mut(key) else { return };
        member.waiting.push_back(waiter);
        let (host, first) = (member.host, member.waiting.len() == 1);
        self.waiting += 1;
        if first {
            self.line_up(key, host, waiter.class);
        }
    }

    fn line_up(&mut self, key: u32, host: usize, class: Class) {
        let class = class.index();
        let turns = self.hosts.get_mut(host).and_then(|entry| entry.turns.get_mut(class));
        let (Some(turns), Some(hosts)) = (turns, self.turns.get_mut(class)) else { return };
        if turns.is_empty() {
            hosts.push_back(host);
        }
        turns.push_back(key);
    }

    /// How many requests wait.
    pub(super) const fn waiting(&self) -> usize {
        self.waiting
    }

    /// How many hosts wait in a class.
    pub(super) fn hosts_waiting(&self, class: Class) -> usize {
        self.turns.get(class.index()).map_or(0, VecDeque::len)
    }

    /// How many connections wait of the host whose turn it is.
    pub(super) fn connections_waiting(&self, class: Class) -> usize {
        self.turn(class).and_then(|host| host.turns.get(class.index())).map_or(0, VecDeque::len)
    }

    fn turn(&self, class: Class) -> Option<&Host> {
        let &host = self.turns.get(class.index())?.front()?;
        self.hosts.get(host)
    }

    /// Whose turn it is: a connection, and its first waiter.
    pub(super) fn first(&self, class: Class) -> Option<(u32, Waiter)> {
        let &key = self.turn(class)?.turns.get(class.index())?.front()?;
        Some((key, *self.member(key)?.waiting.front()?))
    }

    /// The next connection of the host whose turn it is.
    pub(super) fn pass_connection(&mut self, class: Class) {
        let class = class.index();
        let Some(&host) = self.turns.get(class).and_then(VecDeque::front) else { return };
        if let Some(turns) = self.hosts.get_mut(host).and_then(|entry| entry.turns.get_mut(class))
            && !turns.is_empty()
        {
            turns.rotate_left(1);
        }
    }

    /// The next host.
    pub(super) fn pass_host(&mut self, class: Class) {
        if let Some(turns) = self.turns.get_mut(class.index())
            && !turns.is_empty()
        {
            turns.rotate_left(1);
        }
    }

    /// The first waiter got what it wants: the turn goes to the next host, and in this host to the
    /// next connection.
    pub(super) fn served(&mut self, class: Class) {
        let at = class.index();
        let Some(host) = self.turns.get_mut(at).and_then(VecDeque::pop_front) else { return };
        let turns = self.hosts.get_mut(host).and_then(|entry| entry.turns.get_mut(at));
        let Some(turns) = turns else { return };
        let key = turns.pop_front();
        if !turns.is_empty()
            && let Some(hosts) = self.turns.get_mut(at)
        {
            hosts.push_back(host);
        }
        let Some(key) = key else { return };
        let Some(member) = self.member_mut(key) else { return };
        let served = member.waiting.pop_front().is_some();
        let next = member.waiting.front().map(|waiter| waiter.class);
        self.waiting -= usize::from(served);
        if let Some(class) = next {
            self.line_up(key, host, class);
        }
    }

    /// Whether a connection may take `units` of a part of which `free` units are free.
    pub(super) fn may_take(&self, key: u32, part: usize, units: u32, free: u32) -> Verdict {
        let Some(member) = self.member(key) else { return Verdict::HostHasEnough };
        let Some(host) = self.hosts.get(member.host) else { return Verdict::HostHasEnough };
        if member.barred {
            return Verdict::ConnectionHasEnough;
        }
        let held = |held: &[u32; PARTS]| held.get(part).copied().unwrap_or(0);
        let (by_host, by_member) = (held(&host.held), held(&member.held));
        if by_host == 0 {
            return Verdict::May;
        }
        let left = free.checked_sub(units);
        // What the host could take beyond this.
        let more = if self.hosts.len() == 1 {
            left.unwrap_or(0)
        } else {
            match left.and_then(|left| left.checked_sub(by_host + units)) {
                Some(more) => more / 2,
                None => return Verdict::HostHasEnough,
            }
        };
        let queues = host.queues.get(member.class.index()).copied().unwrap_or(0);
        if by_member == 0 || queues <= 1 || by_member + units <= more {
            Verdict::May
        } else {
            Verdict::ConnectionHasEnough
        }
    }

    /// A connection took `units` of a part.
    pub(super) fn took(&mut self, key: u32, part: usize, units: u32) {
        self.account(key, part, |held| held.saturating_add(units));
    }

    /// A connection gave `units` of a part back.
    pub(super) fn gave(&mut self, key: u32, part: usize, units: u32) {
        self.account(key, part, |held| held.saturating_sub(units));
    }

    fn account(&mut self, key: u32, part: usize, change: impl Fn(u32) -> u32) {
        let Some(member) = self.members.get_mut(key as usize).and_then(Option::as_mut) else {
            return;
        };
        let host = self.hosts.get_mut(member.host).and_then(|host| host.held.get_mut(part));
        for held in member.held.get_mut(part).into_iter().chain(host) {
            *held = change(*held);
        }
    }

    /// Whether a connection holds anything.
    pub(super) fn holds(&self, key: u32) -> bool {
        self.member(key).is_some_and(|member| member.held.iter().any(|&held| held > 0))
    }

    /// Since when the first waiter of any connection waits that is not barred.
    pub(super) fn waiting_since(&self) -> Timestamp {
        let open = |member: &&Member| !member.barred;
        let first = |member: &Member| member.waiting.front().map(|waiter| waiter.since);
        let members = self.members.iter().flatten();
        members.filter(open).filter_map(first).min().unwrap_or(Timestamp::NEVER)
    }

    /// Whether all accounts are closed, and nobody waits.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.hosts.is_empty()
            && self.waiting == 0
            && self.turns.iter().all(VecDeque::is_empty)
            && self.members.iter().all(Option::is_none)
    }
}

//! The links of one wire: which of them leads to whom, what is sent and received on them, which
//! have ended.
//!
//! Used by `HostWire`; calls `link`, and takes what `agree` made from the letterbox.

use core::net::SocketAddr;
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use lariat_roce::endpoint::Member;
use lariat_roce::time::Timestamp;
use lariat_roce::transmit::Transmit;
use lariat_wire::rocev2::{Packet, Qpn};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use slab::Slab;

use super::agree::Letterbox;
use super::link::{Link, Sent};
use super::ring::{Broken, PacketBuffer};
use crate::regions::RegionTable;
use crate::soft::network::{Arrival, LostPeer, WireCounters};
use crate::soft::steering::member_for;

/// Packets taken from a link at a time.
const BUDGET: usize = 64;
/// Bells that the kernel is asked for at a time.
const BELLS_AT_ONCE: usize = 16;
/// How often a busy wire looks for peers that are gone.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// A link in the table.
#[derive(Debug)]
struct Entry {
    link: Link,
    /// The peer's process ended: only what it sent before is left.
    gone: bool,
    /// Packets came by it.
    used: bool,
    /// From the letterbox, which counts it.
    counted: bool,
}

/// The members of a peer's group: where their links stand.
#[derive(Debug)]
struct Group {
    members: u8,
    places: Vec<Option<usize>>,
}

/// The links of a wire.
pub(super) struct Table {
    links: Slab<Entry>,
    groups: BTreeMap<SocketAddr, Group>,
    /// The way of the packet before.
    last: Option<(SocketAddr, Qpn, Option<usize>)>,
    /// Links that were written to and not yet shown to the peer.
    written: Vec<usize>,
    /// The bells.
    epoll: Epoll,
    letterbox: Arc<Letterbox>,
    buffer: PacketBuffer,
    lost: VecDeque<LostPeer>,
    checked: Timestamp,
}

impl core::fmt::Debug for Table {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Table").field("links", &self.links.len()).finish_non_exhaustive()
    }
}

/// Addresses are compared without what IPv6 sockets add to them.
#[inline]
fn plain(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(_) => address,
        SocketAddr::V6(v6) => SocketAddr::new((*v6.ip()).into(), v6.port()),
    }
}

impl Table {
    pub(super) fn new(letterbox: Arc<Letterbox>) -> io::Result<Self> {
        Ok(Self {
            links: Slab::new(),
            groups: BTreeMap::new(),
            last: None,
            written: Vec::new(),
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            letterbox,
            buffer: PacketBuffer::new(),
            lost: VecDeque::new(),
            checked: Timestamp::ZERO,
        })
    }

    /// What becomes readable when a peer rings.
    pub(super) fn bells(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    /// Whether there is a link with every member of the group at an address.
    pub(super) fn reaches(&self, peer: SocketAddr) -> bool {
        let group = self.groups.get(&plain(peer));
        group.is_some_and(|group| group.places.iter().all(Option::is_some))
    }

    /// Whether there is a link with somebody at an address.
    pub(super) fn knows(&self, peer: SocketAddr) -> bool {
        self.groups.contains_key(&plain(peer))
    }

    pub(super) fn take_lost(&mut self) -> Option<LostPeer> {
        self.lost.pop_front()
    }

    /// Takes a link in. It takes the place of an older one with the same member.
    pub(super) fn add(&mut self, link: Link, counted: bool) -> io::Result<()> {
        let peer = link.peer;
        let address = plain(peer.address);
        // Another group than before: its process was started anew.
        if self.groups.get(&address).is_some_and(|group| group.members != peer.members) {
            let group = self.groups.remove(&address);
            for place in group.into_iter().flat_map(|group| group.places).flatten() {
                self.remove(place);
            }
        }
        let place = self.links.vacant_key();
        self.epoll.add(link.bell(), EpollEvent::new(EpollFlags::EPOLLIN, place as u64))?;
        let group = self.groups.entry(address).or_insert_with(|| Group {
            members: peer.members,
            places: vec![None; usize::from(peer.members)],
        });
        let old = group.places.get_mut(usize::from(peer.member)).and_then(|at| at.replace(place));
        self.links.insert(Entry { link, gone: false, used: false, counted });
        self.written.reserve(self.links.len());
        if let Some(old) = old {
            self.remove(old);
        }
        self.last = None;
        Ok(())
    }

    fn remove(&mut self, place: usize) {
        let Some(entry) = self.links.try_remove(place) else { return };
        self.last = None;
        self.written.retain(|written| *written != place);
        let _ = self.epoll.delete(entry.link.bell());
        let address = plain(entry.link.peer.address);
        if let Some(group) = self.groups.get_mut(&address) {
            let at = group.places.get_mut(usize::from(entry.link.peer.member));
            if let Some(at) = at.filter(|at| **at == Some(place)) {
                *at = None;
            }
            if group.places.iter().all(Option::is_none) {
                self.groups.remove(&address);
            }
        }
        if entry.counted {
            self.letterbox.forget();
        }
    }

    /// Gives a link up whose peer breaks the rules. Its packets go by UDP from now on.
    #[cold]
    fn give_up(&mut self, place: usize, error: Broken) {
        if let Some(entry) = self.links.get(place) {
            let peer = entry.link.peer.address;
            tracing::warn!(%peer, %error, "a shared-memory link is given up: its peer broke it");
        }
        self.remove(place);
    }

    /// Takes in what the acceptor made.
    #[inline]
    pub(super) fn adopt(&mut self) {
        if self.letterbox.has_news() {
            for link in self.letterbox.take() {
                if let Err(error) = self.add(link, true) {
                    tracing::warn!(%error, "a shared-memory link cannot be watched");
                    self.letterbox.forget();
                }
            }
        }
    }

    /// Looks whose bells rang, and whose process ended.
    pub(super) fn hear(&mut self) {
        // Each link once: a peer that rings without end does not keep us here.
        for _ in 0..=self.links.len() / BELLS_AT_ONCE {
            let mut events = [EpollEvent::empty(); BELLS_AT_ONCE];
            let count = self.epoll.wait(&mut events, 0_u8).unwrap_or(0);
            for event in events.iter().take(count) {
                let place = usize::try_from(event.data()).ok();
                let Some(entry) = place.and_then(|place| self.links.get_mut(place)) else {
                    continue;
                };
                if !entry.gone && !entry.link.hear() {
                    entry.gone = true;
                    self.last = None;
                    let _ = self.epoll.delete(entry.link.bell());
                }
            }
            if count < events.len() {
                break;
            }
        }
        self.bury();
    }

    /// Removes the links of processes that ended, once all is read that they sent.
    fn bury(&mut self) {
        while let Some((place, peer, used)) = self.links.iter_mut().find_map(|(place, entry)| {
            let over = entry.gone && !entry.link.has_packets();
            over.then_some((place, entry.link.peer, entry.used))
        }) {
            tracing::debug!(peer = %peer.address, "the other end of a shared-memory link is gone");
            self.remove(place);
            // A link that its maker gave up before it was used says nothing about the peer.
            if !used {
                continue;
            }
            let member = Member { index: peer.member, count: peer.members };
            self.lost.push_back(LostPeer { address: peer.address, member });
        }
    }

    /// The link that a packet belongs on.
    #[inline]
    pub(super) fn find(&mut self, packet: &Transmit) -> Option<usize> {
        if let Some((remote, qpn, place)) = self.last
            && remote == packet.remote
            && qpn == packet.dest_qp
            && qpn != Qpn::CM
        {
            return place;
        }
        let group = self.groups.get(&plain(packet.remote));
        let place = group.and_then(|group| {
            let member = member_for(packet, group.members);
            let place = group.places.get(usize::from(member)).copied().flatten()?;
            self.links.get(place).filter(|entry| !entry.gone).map(|_| place)
        });
        self.last = Some((packet.remote, packet.dest_qp, place));
        place
    }

    /// Writes a packet to a link; [`Table::publish`] has to follow. `None`: the link is no more.
    #[inline]
    pub(super) fn send(
        &mut self,
        place: usize,
        now: Timestamp,
        packet: &Transmit,
        regions: &RegionTable,
        counters: &mut WireCounters,
    ) -> Option<Sent> {
        let entry = self.links.get_mut(place)?;
        match entry.link.send(now, packet, regions) {
            Ok(sent) => {
                match sent {
                    Sent::Yes => {
                        counters.packets_sent += 1;
                        counters.shm_packets_sent += 1;
                    }
                    Sent::Lost => counters.send_failures += 1,
                    Sent::Blocked => {}
                }
                if self.written.last() != Some(&place) {
                    self.written.push(place);
                }
                Some(sent)
            }
            Err(error) => {
                self.give_up(place, error);
                None
            }
        }
    }

    /// Shows the peers what was written.
    #[inline]
    pub(super) fn publish(&mut self) {
        while let Some(place) = self.written.pop() {
            if let Some(entry) = self.links.get_mut(place) {
                entry.link.publish();
            }
        }
    }

    /// Hands in packets; whether there may be more.
    #[inline]
    pub(super) fn receive<F: FnMut(Arrival<'_>)>(
        &mut self,
        now: Timestamp,
        counters: &mut WireCounters,
        sink: &mut F,
    ) -> bool {
        if now.since(self.checked) >= CHECK_INTERVAL {
            self.checked = now;
            self.hear();
        }
        let mut more = false;
        let mut broken = None;
        for (place, entry) in &mut self.links {
            let taken =
                entry.link.receive(
                    BUDGET,
                    &mut self.buffer,
                    |source, datagram| match Packet::parse(datagram) {
                        Ok(packet) => {
                            counters.packets_received += 1;
                            counters.shm_packets_received += 1;
                            sink(Arrival { source, congested: false, packet: &packet, datagram });
                        }
                        Err(_) => counters.malformed += 1,
                    },
                );
            match taken {
                Ok(taken) => {
                    entry.used |= taken != 0;
                    more |= taken == BUDGET;
                }
                Err(error) => broken = Some((place, error)),
            }
        }
        if let Some((place, error)) = broken {
            self.give_up(place, error);
        }
        more
    }

    /// Asks to be woken. `true`: something is there already.
    pub(super) fn arm(&mut self) -> bool {
        self.adopt();
        if self.links.is_empty() {
            return !self.lost.is_empty();
        }
        self.hear();
        let mut ready = !self.lost.is_empty();
        let mut broken = None;
        for (place, entry) in &mut self.links {
            match entry.link.arm() {
                Ok(there) => ready |= there,
                Err(error) => broken = Some((place, error)),
            }
        }
        if let Some((place, error)) = broken {
            self.give_up(place, error);
            return true;
        }
        ready
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        for entry in self.links.drain() {
            if entry.counted {
                self.letterbox.forget();
            }
        }
    }
}

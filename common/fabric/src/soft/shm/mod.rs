//! The network of this host: shared memory to peers on it, UDP to all others.
//!
//! [`HostNetwork`] and [`HostWire`] wrap those of `udp` and are what
//! [`SoftFabric`](super::SoftFabric) runs on. Above them nothing changes: the same packets, sequence
//! numbers, acknowledgements and connection management. A peer has a link (`link`: two rings in
//! memory, `ring`) for each member of the two groups, which `agree` made before the first packet;
//! `table` holds the links of a wire. What has no link goes by UDP.

mod agree;
mod hello;
mod link;
mod ring;
mod table;
#[cfg(test)]
mod tests;

use core::net::{IpAddr, SocketAddr};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};

use lariat_roce::endpoint::Member;
use lariat_roce::time::Timestamp;
use lariat_roce::transmit::Transmit;

use self::agree::{Acceptor, Post};
use self::link::{Peer, Sent};
use self::table::Table;
use super::knocks::Door;
use super::network::{
    Arrival, BindError, Forwarded, LostPeer, Network, Route, SoftConfig, Source, Wire, WireChoice,
    WireCounters,
};
use super::udp::{self, UdpNetwork, UdpWire};
use crate::fabric::{Medium, Path};
use crate::regions::RegionTable;

/// While all packets come by shared memory, the socket is looked at in one of so many polls.
const IDLE_LOOK: u32 = 32;
/// After a packet came by UDP, it is looked at in so many polls.
const BUSY_LOOKS: u32 = 64;

/// What the members of a group share.
#[derive(Debug)]
struct Group {
    post: Arc<Post>,
    acceptor: Mutex<Option<Acceptor>>,
}

/// One member's network.
#[derive(Debug)]
pub struct HostNetwork {
    group: Arc<Group>,
    udp: UdpNetwork,
}

/// Opens the networks of a group of `count` members (1 to 255).
///
/// # Errors
/// The operating system's word.
pub(super) fn open_group(count: u8, config: &SoftConfig) -> io::Result<Vec<HostNetwork>> {
    if !ring::fits(config.ring_bytes) {
        let why = "ring_bytes is a power of two from 64 KiB to 16 MiB";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let group = Arc::new(Group { post: Arc::new(Post::new(count)), acceptor: Mutex::new(None) });
    let members = udp::open_group(count, config)?.into_iter();
    Ok(members.map(|udp| HostNetwork { group: Arc::clone(&group), udp }).collect())
}

impl HostNetwork {
    fn wire(&self, udp: UdpWire) -> Result<HostWire, BindError> {
        let local = udp.local();
        let member = self.udp.member();
        let failed = |source| BindError::Io { ip: local.ip(), source };
        let links = Table::new(self.group.post.letterbox(local, member.index)).map_err(failed)?;
        self.udp.watch(links.bells()).map_err(failed)?;
        let choice = self.udp.config().wire;
        Ok(HostWire { udp, links, choice, looks: Looks::default(), declined: None })
    }

    /// Lets processes on this host ask for links. Without them they come by UDP.
    fn offer(&self, address: SocketAddr) -> io::Result<()> {
        let acceptor = &self.group.acceptor;
        let mut acceptor = acceptor.lock().unwrap_or_else(PoisonError::into_inner);
        let acceptor = match &mut *acceptor {
            Some(acceptor) => acceptor,
            none => none.insert(Acceptor::start(Arc::clone(&self.group.post), self.udp.waker())?),
        };
        acceptor.listen(address)
    }
}

impl Network for HostNetwork {
    type Wire = HostWire;

    fn name(&self) -> &'static str {
        self.udp.name()
    }

    fn member(&self) -> Member {
        self.udp.member()
    }

    fn open_listening(&mut self, ip: IpAddr) -> Result<HostWire, BindError> {
        let udp = self.udp.open_listening(ip)?;
        let wire = self.wire(udp)?;
        if wire.choice != WireChoice::Udp {
            let address = wire.local();
            if let Err(error) = self.offer(address) {
                tracing::warn!(%address, %error, "no shared memory for processes on this host");
            }
        }
        Ok(wire)
    }

    fn open_connecting(
        &mut self,
        source: Source,
        remote: SocketAddr,
    ) -> Result<HostWire, BindError> {
        let udp = self.udp.open_connecting(source, remote)?;
        self.wire(udp)
    }

    fn route(&mut self, remote: SocketAddr) -> io::Result<Route> {
        self.udp.route(remote)
    }

    fn agree(&mut self, wire: &mut HostWire, peer: SocketAddr) -> Result<(), String> {
        if wire.choice == WireChoice::Udp {
            return Ok(());
        }
        // Whoever ended since is to be asked anew.
        wire.links.adopt();
        wire.links.hear();
        if wire.links.reaches(peer) {
            return Ok(());
        }
        let member = self.udp.member();
        let us = Peer { address: wire.local(), member: member.index, members: member.count };
        let made = agree::ask(us, peer, self.udp.config().ring_bytes).and_then(|links| {
            links.into_iter().try_for_each(|link| Ok(wire.links.add(link, false)?))
        });
        match made {
            Ok(()) => {
                wire.declined = None;
                tracing::info!(%peer, "packets go through shared memory");
                Ok(())
            }
            Err(error) => {
                let reason = format!("no shared memory with {}: {error}", peer.ip());
                tracing::info!(%peer, reason = %error, "packets go by UDP");
                wire.declined = Some((peer, reason.clone()));
                if wire.choice == WireChoice::Shm {
                    return Err(format!(
                        "{reason}; choose the wire \"auto\" or \"udp\" to reach it"
                    ));
                }
                Ok(())
            }
        }
    }

    fn holder(&self, ip: IpAddr) -> Option<String> {
        self.udp.holder(ip)
    }

    fn can_knock(&self) -> bool {
        self.udp.can_knock()
    }

    fn door(&self, local: SocketAddr, peer: SocketAddr) -> Option<Box<dyn Door + Send>> {
        self.udp.door(local, peer)
    }

    fn forward(&mut self, to: u8, packet: Forwarded) {
        self.udp.forward(to, packet);
    }

    fn take_forwarded(&mut self) -> Option<Forwarded> {
        self.udp.take_forwarded()
    }

    fn arm(&mut self) -> bool {
        self.udp.arm()
    }

    fn wait_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.udp.wait_fds()
    }
}

/// When to look at the socket beside the links: a look costs a system call.
#[derive(Clone, Copy, Debug, Default)]
struct Looks {
    /// Polls that look for sure.
    busy: u32,
    /// Polls since the last look.
    without: u32,
}

impl Looks {
    #[inline]
    fn now(&mut self) -> bool {
        self.without += 1;
        if self.busy == 0 && self.without < IDLE_LOOK {
            return false;
        }
        self.busy = self.busy.saturating_sub(1);
        self.without = 0;
        true
    }
}

/// An open address: a UDP socket, and the links with peers on this host.
#[derive(Debug)]
pub struct HostWire {
    udp: UdpWire,
    links: Table,
    choice: WireChoice,
    looks: Looks,
    /// With whom there is no link, and why: the last one.
    declined: Option<(SocketAddr, String)>,
}

impl Wire for HostWire {
    fn local(&self) -> SocketAddr {
        self.udp.local()
    }

    fn window_bytes(&self) -> u32 {
        self.udp.window_bytes()
    }

    fn refusal(&self) -> Option<(IpAddr, i32)> {
        self.udp.refusal()
    }

    fn path(&self, peer: SocketAddr) -> Option<Path> {
        if self.links.knows(peer) {
            return Some(Medium::SharedMemory.into());
        }
        let declined = self.declined.as_ref().filter(|(declined, _)| *declined == peer);
        Some(Path { medium: Medium::Udp, reason: declined.map(|(_, reason)| reason.clone()) })
    }

    fn favours_equal_packets(&self, peer: SocketAddr) -> bool {
        !self.links.knows(peer)
    }

    fn arm(&mut self) -> bool {
        self.looks.busy = self.looks.busy.max(1);
        self.links.arm()
    }

    fn take_lost(&mut self) -> Option<LostPeer> {
        self.links.take_lost()
    }

    fn transmit(
        &mut self,
        now: Timestamp,
        batch: &[Transmit],
        regions: &RegionTable,
        counters: &mut WireCounters,
    ) -> usize {
        if self.links.is_empty() && self.choice != WireChoice::Shm {
            return self.udp.transmit(now, batch, regions, counters);
        }
        let mut done = 0;
        while let Some(packet) = batch.get(done) {
            if let Some(place) = self.links.find(packet) {
                match self.links.send(place, now, packet, regions, counters) {
                    Some(Sent::Yes | Sent::Lost) => done += 1,
                    Some(Sent::Blocked) => break,
                    // Another way, then.
                    None => {}
                }
                continue;
            }
            let rest = batch.get(done..).unwrap_or_default();
            let run = rest.iter().position(|packet| self.links.find(packet).is_some());
            let run = rest.get(..run.unwrap_or(rest.len())).unwrap_or_default();
            let sent = if self.choice == WireChoice::Shm {
                counters.send_failures += run.len() as u64;
                run.len()
            } else {
                self.udp.transmit(now, run, regions, counters)
            };
            done += sent;
            if sent < run.len() {
                break;
            }
        }
        self.links.publish();
        done
    }

    #[inline]
    fn receive<F: FnMut(Arrival<'_>)>(
        &mut self,
        now: Timestamp,
        counters: &mut WireCounters,
        mut sink: F,
    ) -> bool {
        self.links.adopt();
        if self.links.is_empty() {
            return self.udp.receive(now, counters, sink);
        }
        let mut more = self.links.receive(now, counters, &mut sink);
        if self.looks.now() {
            let before = counters.packets_received;
            more |= self.udp.receive(now, counters, &mut sink);
            if counters.packets_received != before {
                self.looks.busy = BUSY_LOOKS;
            }
        }
        more
    }
}

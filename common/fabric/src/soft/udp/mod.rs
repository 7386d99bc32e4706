//! The network of the machine: UDP sockets on port 4791.
//!
//! [`UdpNetwork`] is one member's view of a group: the first member that opens an address opens
//! the sockets of all, the others pick theirs up. Called by [`SoftFabric`](super::SoftFabric);
//! `claim` says who owns an address, `socket` makes sockets, `send` and `receive` move packets.
//! All unsafe code of the provider is in this folder, around system calls.

mod calls;
pub(super) mod claim;
mod door;
mod receive;
mod send;
mod socket;
#[cfg(test)]
mod tests;

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};

use crossbeam_channel::{Receiver as Inbox, Sender as Outbox};
use lariat_roce::endpoint::Member;
use lariat_roce::time::Timestamp;
use lariat_roce::transmit::Transmit;
use lariat_wire::rocev2::UDP_PORT;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};

use self::claim::Claim;
use self::socket::Sharing;
use super::knocks::Door;
use super::network::{
    Arrival, BindError, Forwarded, Network, Route, SoftConfig, Source, UNSEEN, Wire, WireCounters,
};
use crate::random::Random;
use crate::regions::RegionTable;

/// Packets that may wait for a member that got them from another.
const INBOX_PACKETS: usize = 1024;
/// Attempts to find a loopback address that nobody uses.
const LOOPBACK_ATTEMPTS: u32 = 64;

/// What the members of a group share. Touched when addresses are opened, never per packet.
#[derive(Debug)]
struct Group {
    config: SoftConfig,
    addresses: Mutex<Vec<OpenAddress>>,
    members: Vec<Mailbox>,
}

/// An address whose sockets are open. Lives as long as the group.
#[derive(Debug)]
struct OpenAddress {
    local: SocketAddr,
    /// The sockets not yet picked up, by member.
    sockets: Vec<Option<UdpSocket>>,
    _claim: Option<Claim>,
}

/// How packets get to a member that another one received.
#[derive(Debug)]
struct Mailbox {
    outbox: Outbox<Forwarded>,
    wake: EventFd,
}

/// One member's network.
#[derive(Debug)]
pub struct UdpNetwork {
    group: Arc<Group>,
    member: Member,
    inbox: Inbox<Forwarded>,
    epoll: Epoll,
    random: Random,
}

/// Opens the networks of a group of `count` members (1 to 255).
///
/// # Errors
/// The operating system's word.
pub fn open_group(count: u8, config: &SoftConfig) -> io::Result<Vec<UdpNetwork>> {
    if count == 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a group needs a member"));
    }
    let mut members = Vec::new();
    let mut inboxes = Vec::new();
    for _ in 0..count {
        let (outbox, inbox) = crossbeam_channel::bounded(INBOX_PACKETS);
        let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        members.push(Mailbox { outbox, wake });
        inboxes.push(inbox);
    }
    let group =
        Arc::new(Group { config: config.clone(), addresses: Mutex::new(Vec::new()), members });
    (0..count)
        .zip(inboxes)
        .map(|(index, inbox)| {
            let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
            if let Some(mailbox) = group.members.get(usize::from(index)) {
                epoll.add(&mailbox.wake, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
            }
            let member = Member { index, count };
            Ok(UdpNetwork {
                group: Arc::clone(&group),
                member,
                inbox,
                epoll,
                random: Random::system(),
            })
        })
        .collect()
}

/// Binds the sockets of all members to one address.
fn open_address(
    address: SocketAddr,
    count: u8,
    config: &SoftConfig,
) -> Result<OpenAddress, BindError> {
    let ip = address.ip();
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::AddrInUse => {
            let holder = claim::holder(ip).unwrap_or_else(|| UNSEEN.to_owned());
            BindError::InUse { ip, holder }
        }
        io::ErrorKind::AddrNotAvailable => BindError::NotLocal { ip },
        _ => BindError::Io { ip, source: error },
    };
    let claim = match address.port() {
        UDP_PORT => Some(Claim::take(address).map_err(failed)?),
        _ => None,
    };
    match open_sockets(address, count, config.socket_buffer_bytes) {
        Ok((local, sockets)) => Ok(OpenAddress { local, sockets, _claim: claim }),
        Err(error) => {
            // It is not ours, and nobody is to be told so.
            drop(claim);
            Err(failed(error))
        }
    }
}

/// The sockets of all members, and the address they have.
fn open_sockets(
    address: SocketAddr,
    count: u8,
    buffer_bytes: u32,
) -> io::Result<(SocketAddr, Vec<Option<UdpSocket>>)> {
    let alone = socket::open(address, Sharing::Alone, buffer_bytes)?;
    let local = alone.local_addr()?;
    let mut sockets = Vec::with_capacity(usize::from(count));
    if count == 1 {
        sockets.push(Some(alone));
    } else {
        // It was only to see that the port is nobody's: no other socket may share it.
        drop(alone);
        for _ in 0..count {
            let socket = socket::open(local, Sharing::Group, buffer_bytes)?;
            sockets.push(Some(socket));
        }
        if let Some(Some(first)) = sockets.first() {
            socket::steer(first, count)?;
        }
    }
    Ok((local, sockets))
}

impl UdpNetwork {
    /// The settings of the group.
    pub(super) fn config(&self) -> &SoftConfig {
        &self.group.config
    }

    /// Makes the member's descriptor readable when this one is.
    pub(super) fn watch(&self, fd: impl AsFd) -> io::Result<()> {
        Ok(self.epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, 2))?)
    }

    /// What wakes a member of the group, by number.
    pub(super) fn waker(&self) -> impl Fn(u8) + Send + Sync + use<> {
        let group = Arc::clone(&self.group);
        move |member| {
            if let Some(mailbox) = group.members.get(usize::from(member)) {
                let _ = mailbox.wake.write(1);
            }
        }
    }

    /// Takes this member's socket of an address that the group has open, if `wanted` says it is
    /// the right one.
    fn pick_up(&self, wanted: impl Fn(SocketAddr) -> bool) -> Option<(UdpSocket, SocketAddr)> {
        let mut addresses = self.group.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        self.pick_up_from(&mut addresses, wanted)
    }

    fn pick_up_from(
        &self,
        addresses: &mut [OpenAddress],
        wanted: impl Fn(SocketAddr) -> bool,
    ) -> Option<(UdpSocket, SocketAddr)> {
        addresses.iter_mut().filter(|open| wanted(open.local)).find_map(|open| {
            let socket = open.sockets.get_mut(usize::from(self.member.index))?.take()?;
            Some((socket, open.local))
        })
    }

    fn open(&self, address: SocketAddr) -> Result<UdpWire, BindError> {
        let ip = address.ip();
        if ip.is_unspecified() || ip.is_multicast() {
            let source = io::Error::new(
                io::ErrorKind::InvalidInput,
                "name one address of this machine (the peer's packets carry it)",
            );
            return Err(BindError::Io { ip, source });
        }
        // Held over the look and the opening: of members that want the same address at the same
        // time, the first opens it and the others find it open.
        let mut addresses = self.group.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((socket, local)) = self.pick_up_from(&mut addresses, |local| local == address) {
            drop(addresses);
            return self.wire(socket, local);
        }
        let mut open = open_address(address, self.member.count, &self.group.config)?;
        let local = open.local;
        let socket = open.sockets.get_mut(usize::from(self.member.index)).and_then(Option::take);
        addresses.push(open);
        drop(addresses);
        let source = || io::Error::other("the group has no socket for this member");
        let socket = socket.ok_or_else(|| BindError::Io { ip, source: source() })?;
        self.wire(socket, local)
    }

    fn wire(&self, socket: UdpSocket, local: SocketAddr) -> Result<UdpWire, BindError> {
        self.epoll
            .add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, 1))
            .map_err(|error| BindError::Io { ip: local.ip(), source: error.into() })?;
        Ok(UdpWire {
            receiver: receive::Receiver::new(local),
            sender: send::Sender::new(local, self.group.config.segmentation),
            socket,
            local,
            _group: Arc::clone(&self.group),
        })
    }

    /// An address of the IPv4 loopback network for this group alone.
    fn open_loopback(&mut self, remote: IpAddr) -> Result<UdpWire, BindError> {
        let fits = |local: SocketAddr| {
            matches!(local.ip(), IpAddr::V4(ip) if ip.is_loopback()) && local.ip() != remote
        };
        if let Some((socket, local)) = self.pick_up(fits) {
            return self.wire(socket, local);
        }
        let mut attempts = 0;
        loop {
            let number = self
                .random
                .next_u32()
                .map_err(|source| BindError::Io { ip: Ipv4Addr::LOCALHOST.into(), source })?;
            let [a, b, c, _] = number.to_be_bytes();
            // Never 127.0.0.x, where people put servers, nor a broadcast address.
            let ip = Ipv4Addr::new(127, a.max(1), b, c.clamp(1, 254));
            if IpAddr::V4(ip) == remote {
                continue;
            }
            attempts += 1;
            match self.open(SocketAddr::new(ip.into(), UDP_PORT)) {
                Err(BindError::InUse { .. }) if attempts < LOOPBACK_ATTEMPTS => {}
                result => return result,
            }
        }
    }
}

impl Network for UdpNetwork {
    type Wire = UdpWire;

    fn name(&self) -> &'static str {
        "soft"
    }

    fn member(&self) -> Member {
        self.member
    }

    fn open_listening(&mut self, ip: IpAddr) -> Result<UdpWire, BindError> {
        self.open(SocketAddr::new(ip, UDP_PORT))
    }

    fn open_connecting(
        &mut self,
        source: Source,
        remote: SocketAddr,
    ) -> Result<UdpWire, BindError> {
        let ip = match source {
            Source::AnyLoopback => return self.open_loopback(remote.ip()),
            Source::Address(ip) => ip,
        };
        if let Some((socket, local)) = self.pick_up(|local| local.ip() == ip) {
            return self.wire(socket, local);
        }
        if ip == remote.ip().to_canonical() {
            return self.open(SocketAddr::new(ip, 0));
        }
        match self.open(SocketAddr::new(ip, UDP_PORT)) {
            Err(BindError::InUse { .. }) => self.open(SocketAddr::new(ip, 0)),
            result => result,
        }
    }

    fn route(&mut self, remote: SocketAddr) -> io::Result<Route> {
        socket::route(remote, self.group.config.max_mtu)
    }

    fn holder(&self, ip: IpAddr) -> Option<String> {
        claim::holder(ip)
    }

    fn can_knock(&self) -> bool {
        true
    }

    fn door(&self, local: SocketAddr, peer: SocketAddr) -> Option<Box<dyn Door + Send>> {
        let door = door::UdpDoor::open(local, peer);
        let door = door.inspect_err(|error| tracing::debug!(%error, %peer, "no knock")).ok()?;
        Some(Box::new(door))
    }

    fn forward(&mut self, to: u8, packet: Forwarded) {
        if let Some(mailbox) = self.group.members.get(usize::from(to)) {
            // A full mailbox loses the packet, as a full socket would.
            if mailbox.outbox.try_send(packet).is_ok() {
                let _ = mailbox.wake.write(1);
            }
        }
    }

    fn take_forwarded(&mut self) -> Option<Forwarded> {
        self.inbox.try_recv().ok()
    }

    fn arm(&mut self) -> bool {
        if let Some(mailbox) = self.group.members.get(usize::from(self.member.index)) {
            let _ = mailbox.wake.read();
        }
        !self.inbox.is_empty()
    }

    fn wait_fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.epoll.0.as_fd()]
    }
}

/// One socket.
#[derive(Debug)]
pub struct UdpWire {
    socket: UdpSocket,
    local: SocketAddr,
    receiver: receive::Receiver,
    sender: send::Sender,
    /// Keeps the claim on the address.
    _group: Arc<Group>,
}

impl Wire for UdpWire {
    fn local(&self) -> SocketAddr {
        self.local
    }

    fn window_bytes(&self) -> u32 {
        // The kernel counts its own overhead too, and several connections share the buffer.
        socket::receive_buffer_bytes(&self.socket).map_or(u32::MAX, |bytes| bytes / 4)
    }

    fn refusal(&self) -> Option<(IpAddr, i32)> {
        self.sender.refusal
    }

    fn transmit(
        &mut self,
        _now: Timestamp,
        batch: &[Transmit],
        regions: &RegionTable,
        counters: &mut WireCounters,
    ) -> usize {
        self.sender.transmit(self.socket.as_fd(), batch, regions, counters)
    }

    #[inline]
    fn receive<F: FnMut(Arrival<'_>)>(
        &mut self,
        _now: Timestamp,
        counters: &mut WireCounters,
        sink: F,
    ) -> bool {
        self.receiver.receive(self.socket.as_fd(), counters, sink)
    }
}

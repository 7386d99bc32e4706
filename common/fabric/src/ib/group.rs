//! What the members of a group share: their event channels and their listeners. Called by `fabric`
//! at listens and connection requests only; nothing of it is on the data path.
//!
//! An rdma_cm port has one listening identifier, and that one event channel. The member whose
//! channel it is (the owner) hands the requests out in turn to all members that listen there: it
//! moves the new identifier to the other's channel, then sends it over. (A channel of each member's
//! own for its connections, rather than one for all, means that no member waits for another one, or
//! is woken for it, once a connection is handed over.) When the owner stops to listen the listening
//! identifier moves to a member that still does.

use core::net::SocketAddr;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_channel::{Receiver, Sender, unbounded};
use lariat_roce::verbs::PrivateData;
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::cm::{CmId, EventChannel, IdKey};

/// Connection requests that may wait in the kernel.
const BACKLOG: i32 = 256;

/// A connection request on its way to the member that shall have it.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) id: CmId,
    /// The address that is listened at.
    pub(super) address: SocketAddr,
    /// RDMA READs that the peer serves at a time, and that it wants to have outstanding.
    pub(super) offer: (u8, u8),
    pub(super) private_data: PrivateData,
}

#[derive(Debug)]
struct Door {
    channel: Arc<EventChannel>,
    requests: Sender<Request>,
    wake: Arc<EventFd>,
}

/// One rdma_cm port.
#[derive(Debug)]
struct Listener {
    address: SocketAddr,
    id: CmId,
    owner: usize,
    /// Members that listen, and which of them is next.
    members: Vec<usize>,
    turn: usize,
}

/// Shared by the members.
#[derive(Debug)]
pub(super) struct Group {
    doors: Vec<Door>,
    listeners: Mutex<Vec<Listener>>,
}

/// A member's own part of its group.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) number: usize,
    pub(super) channel: Arc<EventChannel>,
    pub(super) wake: Arc<EventFd>,
    requests: Receiver<Request>,
    group: Arc<Group>,
}

/// Whose turn it is.
pub(super) enum Turn {
    Ours(SocketAddr),
    Other(usize, SocketAddr),
    /// Nobody listens there any more.
    Nobody,
}

/// Why there is no listener.
pub(super) enum Refusal {
    AlreadyOurs,
    Io(io::Error),
}

/// Makes a group of `count` members.
pub(super) fn open(count: u8) -> io::Result<Vec<Member>> {
    let mut doors = Vec::new();
    let mut ends = Vec::new();
    for _ in 0..count {
        let channel = Arc::new(EventChannel::open()?);
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        let wake = Arc::new(EventFd::from_flags(flags)?);
        let (requests, receiver) = unbounded();
        doors.push(Door { channel: Arc::clone(&channel), requests, wake: Arc::clone(&wake) });
        ends.push((channel, wake, receiver));
    }
    let group = Arc::new(Group { doors, listeners: Mutex::new(Vec::new()) });
    let member = |(number, (channel, wake, requests))| Member {
        number,
        channel,
        wake,
        requests,
        group: Arc::clone(&group),
    };
    Ok(ends.into_iter().enumerate().map(member).collect())
}

impl Member {
    fn listeners(&self) -> MutexGuard<'_, Vec<Listener>> {
        // No state is half done where a holder could panic.
        self.group.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts to listen, alone or beside other members. Says which local address to find the device
    /// by: none for the wildcard.
    pub(super) fn listen(&self, address: SocketAddr) -> Result<(), Refusal> {
        let mut listeners = self.listeners();
        if let Some(listener) = listeners.iter_mut().find(|one| one.address == address) {
            if listener.members.contains(&self.number) {
                return Err(Refusal::AlreadyOurs);
            }
            listener.members.push(self.number);
            return Ok(());
        }
        let make = || {
            let mut id = CmId::new(&self.channel)?;
            if address.is_ipv6() {
                id.set_one_family()?;
            }
            id.bind(address)?;
            id.listen(BACKLOG)?;
            Ok(id)
        };
        let id = make().map_err(Refusal::Io)?;
        let (owner, members) = (self.number, vec![self.number]);
        listeners.push(Listener { address, id, owner, members, turn: 0 });
        Ok(())
    }

    /// Stops to listen.
    pub(super) fn leave(&self, address: SocketAddr) {
        let mut listeners = self.listeners();
        let Some(place) = listeners.iter().position(|one| one.address == address) else { return };
        let Some(listener) = listeners.get_mut(place) else { return };
        listener.members.retain(|member| *member != self.number);
        let heir = listener.members.first().copied();
        let door = heir.and_then(|heir| self.group.doors.get(heir));
        match (heir, door) {
            (Some(heir), Some(door)) if listener.owner == self.number => {
                match listener.id.migrate(&door.channel) {
                    Ok(()) => listener.owner = heir,
                    Err(error) => {
                        tracing::warn!(%error, %address, "a listener could not be handed over");
                        listeners.remove(place);
                    }
                }
            }
            (Some(_), Some(_)) => {}
            _ => drop(listeners.remove(place)),
        }
    }

    /// Who is to have a request that came to this listening identifier.
    pub(super) fn turn(&self, listener: IdKey) -> Turn {
        let mut listeners = self.listeners();
        let Some(listener) = listeners.iter_mut().find(|one| one.id.key() == listener) else {
            return Turn::Nobody;
        };
        listener.turn = listener.turn.wrapping_add(1);
        let count = listener.members.len().max(1);
        match listener.members.get(listener.turn.wrapping_sub(1) % count) {
            Some(member) if *member == self.number => Turn::Ours(listener.address),
            Some(member) => Turn::Other(*member, listener.address),
            None => Turn::Nobody,
        }
    }

    /// Hands a request to another member. On failure it is gone, and the peer refused.
    pub(super) fn hand_over(&self, to: usize, mut request: Request) {
        let Some(door) = self.group.doors.get(to) else { return };
        if let Err(error) = request.id.migrate(&door.channel) {
            tracing::warn!(%error, "a connection request could not be handed over");
            return;
        }
        if door.requests.send(request).is_ok() {
            let _ = door.wake.write(1);
        }
    }

    /// A request that another member handed over.
    pub(super) fn take(&self) -> Option<Request> {
        self.requests.try_recv().ok()
    }

    /// Makes `wake` unreadable until something is handed over again.
    pub(super) fn hush(&self) {
        let _ = self.wake.read();
    }
}

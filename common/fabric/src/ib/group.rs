//! What the members of a group share: their event channels and their listeners. Called by `fabric`
//! at listens and connection requests only; nothing of it is on the data path.
//!
//! An rdma_cm port has one listening identifier, and that one event channel. The member whose
//! channel it is (the owner) hands the requests out in turn to all members that listen there: it
//! moves the new identifier to the other's channel, then sends it over. (A channel of each member's
//! own for its connections, rather than one for all, means that no member waits for another one, or
//! is woken for it, once a connection is handed over.) When the owner stops to listen the listening
//! identifier moves to a member that still does. When the device of a listener goes away, its owner
//! listens again as soon as a device has the address.

use core::net::SocketAddr;
use core::sync::atomic::{AtomicBool, Ordering};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_channel::{Receiver, Sender, unbounded};
use lariat_roce::verbs::PrivateData;
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::cm::{CmId, EventChannel, IdKey};
use super::news::News;

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

/// What a member hands to another.
#[derive(Debug)]
pub(super) enum Parcel {
    /// A connection request that it shall have.
    Request(Box<Request>),
    /// News of a queue pair that may be its own.
    News(News),
    /// It owns a listener now whose device is gone.
    Listener,
}

#[derive(Debug)]
struct Door {
    channel: Arc<EventChannel>,
    parcels: Sender<Parcel>,
    wake: Arc<EventFd>,
}

impl Door {
    fn hand(&self, parcel: Parcel) {
        if self.parcels.send(parcel).is_ok() {
            let _ = self.wake.write(1);
        }
    }
}

/// One rdma_cm port.
#[derive(Debug)]
struct Listener {
    address: SocketAddr,
    /// None: its device is gone.
    id: Option<CmId>,
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
    /// Some listener has no device.
    lacking: AtomicBool,
}

/// A member's own part of its group.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) number: usize,
    pub(super) channel: Arc<EventChannel>,
    pub(super) wake: Arc<EventFd>,
    parcels: Receiver<Parcel>,
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
        let (parcels, receiver) = unbounded();
        doors.push(Door { channel: Arc::clone(&channel), parcels, wake: Arc::clone(&wake) });
        ends.push((channel, wake, receiver));
    }
    let (listeners, lacking) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    let group = Arc::new(Group { doors, listeners, lacking });
    let member = |(number, (channel, wake, parcels))| Member {
        number,
        channel,
        wake,
        parcels,
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
        let id = Some(self.open(address).map_err(Refusal::Io)?);
        let (owner, members) = (self.number, vec![self.number]);
        listeners.push(Listener { address, id, owner, members, turn: 0 });
        Ok(())
    }

    fn open(&self, address: SocketAddr) -> io::Result<CmId> {
        let mut id = CmId::new(&self.channel)?;
        if address.is_ipv6() {
            id.set_one_family()?;
        }
        id.bind(address)?;
        id.listen(BACKLOG)?;
        Ok(id)
    }

    /// The device of a listening identifier is gone. Says where that listened, if it is one.
    pub(super) fn lose(&self, key: IdKey) -> Option<SocketAddr> {
        let (id, address) = {
            let mut listeners = self.listeners();
            let is_it = |id: &CmId| id.key() == key;
            let listener = listeners.iter_mut().find(|one| one.id.as_ref().is_some_and(is_it))?;
            self.group.lacking.store(true, Ordering::Relaxed);
            (listener.id.take(), listener.address)
        };
        // The device goes only when nothing uses it.
        drop(id);
        Some(address)
    }

    /// Whether some listener of the group has lost its device.
    pub(super) fn lacks_listeners(&self) -> bool {
        self.group.lacking.load(Ordering::Relaxed)
    }

    /// Listens again, as owner, where a device has come back. Says where.
    pub(super) fn revive(&self) -> Vec<SocketAddr> {
        let mut listeners = self.listeners();
        let mut revived = Vec::new();
        let own = listeners.iter_mut().filter(|one| one.id.is_none() && one.owner == self.number);
        for listener in own {
            match self.open(listener.address) {
                Ok(id) => {
                    listener.id = Some(id);
                    revived.push(listener.address);
                }
                Err(error) => {
                    tracing::debug!(%error, address = %listener.address, "still no listener");
                }
            }
        }
        let lacking = listeners.iter().any(|one| one.id.is_none());
        self.group.lacking.store(lacking, Ordering::Relaxed);
        revived
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
                let Some(id) = &mut listener.id else {
                    listener.owner = heir;
                    door.hand(Parcel::Listener);
                    return;
                };
                match id.migrate(&door.channel) {
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
        let is_it = |id: &CmId| id.key() == listener;
        let found = listeners.iter_mut().find(|one| one.id.as_ref().is_some_and(is_it));
        let Some(listener) = found else {
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
        door.hand(Parcel::Request(Box::new(request)));
    }

    /// Tells the others what a device said of a queue pair that is not ours.
    pub(super) fn pass_on(&self, news: News) {
        let others = self.group.doors.iter().enumerate();
        for (_, door) in others.filter(|(number, _)| *number != self.number) {
            door.hand(Parcel::News(news));
        }
    }

    /// Something that another member handed over.
    pub(super) fn take(&self) -> Option<Parcel> {
        self.parcels.try_recv().ok()
    }

    /// Makes `wake` unreadable until something is handed over again.
    pub(super) fn hush(&self) {
        let _ = self.wake.read();
    }
}

//! How two processes come to a link: the side that connects asks at an abstract Unix socket whose
//! name is the other side's UDP address. Abstract names live per network namespace, as addresses
//! do, so that nobody answers for an address of another machine.
//!
//! A link lets its owner speak for the UDP address it claims, as a raw socket would. So both sides
//! look at whose process the other is: the same user's or root's, or there is no link. Nor may a
//! process speak for an address that another one has claimed. Every step is bounded in time; without
//! a link the packets go by UDP.
//!
//! [`ask`] is called by the wire that connects, [`Acceptor`] by the network that listens; both call
//! `hello` and `link`.

use core::net::SocketAddr;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use core::time::Duration;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{self, AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr};

use super::hello::{Answer, Hello, VERSION, Verdict};
use super::link::{self, Ends, Link, Peer};
use super::ring;
use crate::soft::udp::claim::claimant;

/// How long an agreement may take in all.
const LIMIT: Duration = Duration::from_millis(200);
/// Links of a member, at most.
const MAX_LINKS: usize = 1024;
const BACKLOG: i32 = 64;
/// Conversations at a time: who says nothing holds up nobody else. More than may wait to be accepted.
const MAX_TALKS: usize = 96;
/// What a conversation's thread needs, and some more.
const TALK_STACK_BYTES: usize = 256 << 10;

/// Why there is no link.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoLink {
    #[error("nobody on this host offers it (or it is in another network namespace)")]
    Nobody,
    #[error("the peer is a process of another user (id {uid})")]
    OtherUser { uid: u32 },
    #[error("the peer refuses: {}", .0.in_words())]
    Refused(Verdict),
    #[error("the peer does not answer in time")]
    Silent,
    #[error("the peer answers what is no answer")]
    Malformed,
    #[error("the system refuses: {0}")]
    Io(#[from] io::Error),
}

impl From<Errno> for NoLink {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

fn name(address: SocketAddr) -> nix::Result<UnixAddr> {
    UnixAddr::new_abstract(format!("lariat-shm/{address}").as_bytes())
}

/// What all users look like that our user namespace does not know.
const UNKNOWN_USER: u32 = 65_534;

/// Whether a process of this user may have a link with ours.
pub(super) fn trusted(peer: u32, own: u32) -> bool {
    peer == 0 || peer == own && peer != UNKNOWN_USER
}

fn check_user(socket: &OwnedFd) -> Result<(), NoLink> {
    let uid = socket::getsockopt(socket, PeerCredentials)?.uid();
    let own = nix::unistd::geteuid().as_raw();
    if trusted(uid, own) { Ok(()) } else { Err(NoLink::OtherUser { uid }) }
}

/// Whether a process may speak for a UDP address: not for one that another has claimed. (Without a
/// claim, which other ports than the well-known do not have, there is nothing to compare.)
fn owns(socket: &OwnedFd, address: SocketAddr) -> bool {
    let peer = socket::getsockopt(socket, PeerCredentials).map(|peer| u32::try_from(peer.pid()));
    claimant(address).is_none_or(|owner| peer == Ok(Ok(owner)))
}

/// A conversation with an end.
struct Talk<'a> {
    socket: OwnedFd,
    until: Instant,
    /// Ends the conversation when it becomes readable.
    stop: Option<BorrowedFd<'a>>,
}

impl Talk<'_> {
    fn wait(&self, flags: PollFlags) -> Result<(), NoLink> {
        let left = self.until.saturating_duration_since(Instant::now());
        // Rounded up: a wait of no time at all would end before its end.
        let left = PollTimeout::try_from(left + Duration::from_millis(1));
        let mut fds = vec![PollFd::new(self.socket.as_fd(), flags)];
        fds.extend(self.stop.map(|stop| PollFd::new(stop, PollFlags::POLLIN)));
        let found = match poll(&mut fds, left.unwrap_or(PollTimeout::ZERO)) {
            Ok(found) => found,
            Err(Errno::EINTR) => 1,
            Err(error) => return Err(error.into()),
        };
        let stopped = fds.get(1).and_then(PollFd::any).unwrap_or(false);
        if found == 0 || stopped || Instant::now() >= self.until {
            return Err(NoLink::Silent);
        }
        Ok(())
    }

    fn say(&self, message: &[u8], ends: Option<&Ends>) -> Result<(), NoLink> {
        loop {
            let said = match ends {
                Some(ends) => link::pass(self.socket.as_fd(), message, ends),
                None => {
                    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
                    let sent = socket::send(self.socket.as_raw_fd(), message, flags);
                    sent.map(drop).map_err(io::Error::from)
                }
            };
            match said {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait(PollFlags::POLLOUT)?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                said => return Ok(said?),
            }
        }
    }

    fn hear(&self, message: &mut [u8]) -> Result<(usize, Option<Ends>), NoLink> {
        loop {
            match link::receive(self.socket.as_fd(), message) {
                Ok(Some(heard)) => return Ok(heard),
                Ok(None) => return Err(NoLink::Malformed),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait(PollFlags::POLLIN)?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The other side's verdict, and how many members it has.
    fn hear_answer(&self) -> Result<u8, NoLink> {
        let mut bytes = [0; Answer::LEN];
        let (length, _) = self.hear(&mut bytes)?;
        let answer = bytes.get(..length).and_then(Answer::parse).ok_or(NoLink::Malformed)?;
        match answer.verdict {
            Verdict::YES if answer.version == VERSION => Ok(answer.members),
            Verdict::YES => Err(NoLink::Refused(Verdict::OTHER_VERSION)),
            verdict => Err(NoLink::Refused(verdict)),
        }
    }
}

/// Asks the owner of `remote` (a UDP address) for links: one with each member of its group. `us` is
/// who we are.
pub(super) fn ask(us: Peer, remote: SocketAddr, capacity: u32) -> Result<Vec<Link>, NoLink> {
    let until = Instant::now() + LIMIT;
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket::socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
    match socket::connect(socket.as_raw_fd(), &name(remote)?) {
        Err(Errno::ECONNREFUSED | Errno::ENOENT) => return Err(NoLink::Nobody),
        // As many as may wait do so already.
        Err(Errno::EAGAIN) => return Err(NoLink::Silent),
        other => other?,
    }
    check_user(&socket)?;
    let talk = Talk { socket, until, stop: None };
    talk.hear_answer()?;
    let hello = Hello {
        version: VERSION,
        address: us.address,
        member: us.member,
        members: us.members,
        capacity,
    };
    talk.say(&hello.to_bytes(), None)?;
    let members = talk.hear_answer()?;
    if members == 0 {
        return Err(NoLink::Malformed);
    }
    let mut links = Vec::with_capacity(usize::from(members));
    for member in 0..members {
        let (link, ends) = Link::make(Peer { address: remote, member, members }, capacity)?;
        talk.say(&[member], Some(&ends))?;
        links.push(link);
    }
    talk.hear_answer()?;
    Ok(links)
}

/// Where a member finds the links that the acceptor made for one of its addresses.
#[derive(Debug, Default)]
pub(super) struct Letterbox {
    news: AtomicBool,
    letters: Mutex<Vec<Link>>,
    /// Links that are in here or in the member's hands.
    links: AtomicUsize,
}

impl Letterbox {
    /// Whether there are letters: cheap enough for every poll.
    #[inline]
    pub(super) fn has_news(&self) -> bool {
        self.news.load(Ordering::Relaxed)
    }

    pub(super) fn take(&self) -> Vec<Link> {
        let mut letters = lock(&self.letters);
        self.news.store(false, Ordering::Relaxed);
        core::mem::take(&mut letters)
    }

    /// A link that was taken from here is no more.
    pub(super) fn forget(&self) {
        let less = |links: usize| Some(links.saturating_sub(1));
        let _ = self.links.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    fn put(&self, link: Link) {
        let mut letters = lock(&self.letters);
        self.links.fetch_add(1, Ordering::Relaxed);
        letters.push(link);
        self.news.store(true, Ordering::Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The letterboxes of a group by address, one for each member.
#[derive(Debug)]
pub(super) struct Post {
    members: u8,
    boxes: Mutex<BTreeMap<SocketAddr, Arc<[Arc<Letterbox>]>>>,
}

impl Post {
    pub(super) fn new(members: u8) -> Self {
        Self { members, boxes: Mutex::new(BTreeMap::new()) }
    }

    fn boxes(&self, address: SocketAddr) -> Arc<[Arc<Letterbox>]> {
        let make = || (0..self.members).map(|_| Arc::default()).collect();
        Arc::clone(lock(&self.boxes).entry(address).or_insert_with(make))
    }

    pub(super) fn letterbox(&self, address: SocketAddr, member: u8) -> Arc<Letterbox> {
        self.boxes(address).get(usize::from(member)).cloned().unwrap_or_default()
    }
}

/// The thread that agrees with those who ask; each conversation has a short-lived one of its own.
#[derive(Debug)]
pub(super) struct Acceptor {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    epoll: Epoll,
    stop: EventFd,
    listeners: Mutex<Vec<(SocketAddr, OwnedFd)>>,
}

impl Acceptor {
    /// Starts the thread. `wake` is called with the number of a member that has mail.
    pub(super) fn start(
        post: Arc<Post>,
        wake: impl Fn(u8) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let stop = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        epoll.add(&stop, EpollEvent::new(EpollFlags::EPOLLIN, u64::MAX))?;
        let shared = Arc::new(Shared { epoll, stop, listeners: Mutex::new(Vec::new()) });
        let own = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("lariat-shm".to_owned())
            .spawn(move || own.serve(&post, &wake))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Listens for those who want to reach `address`.
    pub(super) fn listen(&self, address: SocketAddr) -> io::Result<()> {
        let mut listeners = lock(&self.shared.listeners);
        if listeners.iter().any(|(known, _)| *known == address) {
            return Ok(());
        }
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket::socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
        socket::bind(socket.as_raw_fd(), &name(address)?)?;
        socket::listen(&socket, socket::Backlog::new(BACKLOG)?)?;
        let number = listeners.len() as u64;
        self.shared.epoll.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, number))?;
        listeners.push((address, socket));
        Ok(())
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        let _ = self.shared.stop.write(1);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn serve(&self, post: &Post, wake: &(impl Fn(u8) + Sync)) {
        let talks = AtomicUsize::new(0);
        // At its end, which `stop` is to the conversations too, all threads are waited for.
        std::thread::scope(|scope| {
            loop {
                let mut events = [EpollEvent::empty(); 8];
                let count = match self.epoll.wait(&mut events, EpollTimeout::NONE) {
                    Ok(count) => count,
                    Err(Errno::EINTR) => continue,
                    Err(error) => {
                        tracing::warn!(%error, "no more shared-memory links are made");
                        return;
                    }
                };
                for event in events.iter().take(count) {
                    if event.data() == u64::MAX {
                        return;
                    }
                    let Some((address, socket)) = self.accept(event.data()) else { continue };
                    let until = Instant::now() + LIMIT;
                    let talk = Talk { socket, until, stop: Some(self.stop.as_fd()) };
                    if talks.fetch_add(1, Ordering::Relaxed) >= MAX_TALKS {
                        converse(&talk, address, post, wake);
                        talks.fetch_sub(1, Ordering::Relaxed);
                        continue;
                    }
                    let talks = &talks;
                    let thread = std::thread::Builder::new()
                        .name("lariat-shm-talk".to_owned())
                        .stack_size(TALK_STACK_BYTES)
                        .spawn_scoped(scope, move || {
                            converse(&talk, address, post, wake);
                            talks.fetch_sub(1, Ordering::Relaxed);
                        });
                    if let Err(error) = thread {
                        talks.fetch_sub(1, Ordering::Relaxed);
                        tracing::debug!(%address, %error, "no thread to agree on a link");
                    }
                }
            }
        });
    }

    fn accept(&self, number: u64) -> Option<(SocketAddr, OwnedFd)> {
        let listeners = lock(&self.listeners);
        let (address, listener) = listeners.get(usize::try_from(number).ok()?)?;
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        match socket::accept4(listener, flags) {
            Ok(socket) => Some((*address, socket)),
            Err(Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS | Errno::ENOMEM) => {
                // It stays readable: not again at once.
                drop(listeners);
                std::thread::sleep(LIMIT);
                None
            }
            Err(_) => None,
        }
    }
}

/// The other side of [`ask`], to its end.
fn converse(talk: &Talk<'_>, address: SocketAddr, post: &Post, wake: &impl Fn(u8)) {
    if let Err(error) = answer(talk, address, post, wake) {
        tracing::debug!(%address, %error, "no shared-memory link");
    }
}

fn answer(
    talk: &Talk<'_>,
    address: SocketAddr,
    post: &Post,
    wake: &impl Fn(u8),
) -> Result<(), NoLink> {
    let say = |verdict: Verdict| {
        let answer = Answer { version: VERSION, verdict, members: post.members };
        talk.say(&answer.to_bytes(), None)
    };
    if let Err(error) = check_user(&talk.socket) {
        say(Verdict::OTHER_USER)?;
        return Err(error);
    }
    say(Verdict::YES)?;
    let mut bytes = [0; Hello::LEN];
    let (length, _) = talk.hear(&mut bytes)?;
    let boxes = post.boxes(address);
    let verdict = match bytes.get(..length).and_then(Hello::parse) {
        None => Err(Verdict::MALFORMED),
        Some(hello) if hello.version != VERSION => Err(Verdict::OTHER_VERSION),
        Some(hello) if hello.member >= hello.members => Err(Verdict::MALFORMED),
        Some(hello) if !ring::fits(hello.capacity) => Err(Verdict::MALFORMED),
        Some(hello) if !owns(&talk.socket, hello.address) => Err(Verdict::NOT_YOURS),
        Some(_) if boxes.iter().any(|one| one.links.load(Ordering::Relaxed) >= MAX_LINKS) => {
            Err(Verdict::TOO_MANY)
        }
        Some(hello) => Ok(hello),
    };
    let hello = match verdict {
        Ok(hello) => hello,
        Err(verdict) => {
            say(verdict)?;
            return Err(NoLink::Refused(verdict));
        }
    };
    say(Verdict::YES)?;
    let peer = Peer { address: hello.address, member: hello.member, members: hello.members };
    let mut links = Vec::with_capacity(boxes.len());
    for member in 0..post.members {
        let mut number = [0; 1];
        match talk.hear(&mut number)? {
            (1, Some(ends)) if number == [member] => {
                links.push(Link::take(peer, ends, hello.capacity)?);
            }
            _ => {
                say(Verdict::MALFORMED)?;
                return Err(NoLink::Malformed);
            }
        }
    }
    for (member, (link, letterbox)) in (0..).zip(links.into_iter().zip(boxes.iter())) {
        letterbox.put(link);
        wake(member);
    }
    tracing::debug!(%address, peer = %peer.address, member = peer.member, "shared-memory link");
    // The members have them by now: what the peer sends finds its way.
    say(Verdict::YES)
}

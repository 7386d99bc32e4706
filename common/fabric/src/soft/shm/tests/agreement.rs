//! How links come to be, and why not.

use core::net::SocketAddr;
use std::io::{BufRead, BufReader};
use std::os::linux::net::SocketAddrExt;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use super::super::agree::{Acceptor, NoLink, Post, ask, trusted};
use super::super::hello::{Answer, Hello, VERSION, Verdict};
use super::super::link::{self, Link, Peer};

const RING: u32 = 64 << 10;

fn us() -> Peer {
    Peer { address: "127.1.2.3:4791".parse().unwrap(), member: 1, members: 2 }
}

fn address(last: u8) -> SocketAddr {
    SocketAddr::from(([127, 90, 6, last], 4791))
}

#[test]
fn each_member_gets_its_link() {
    let post = Arc::new(Post::new(3));
    let woken = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&woken);
    let wake = move |member: u8| {
        count.fetch_or(1 << member, Ordering::Relaxed);
    };
    let acceptor = Acceptor::start(Arc::clone(&post), wake).unwrap();
    acceptor.listen(address(1)).unwrap();
    acceptor.listen(address(1)).unwrap();
    let links = ask(us(), address(1), RING).unwrap();
    let peers: Vec<_> = links.iter().map(|link| link.peer).collect();
    let wanted: Vec<_> =
        (0..3).map(|member| Peer { address: address(1), member, members: 3 }).collect();
    assert_eq!(peers, wanted);
    assert_eq!(woken.load(Ordering::Relaxed), 0b111);
    for member in 0..3 {
        let letterbox = post.letterbox(address(1), member);
        assert!(letterbox.has_news());
        let links = letterbox.take();
        assert_eq!(links.iter().map(|link| link.peer).collect::<Vec<_>>(), [us()]);
        assert!(!letterbox.has_news());
        // The other end is there, and then it is not.
        assert!(links[0].hear());
    }
    drop(acceptor);
    assert!(matches!(ask(us(), address(1), RING), Err(NoLink::Nobody)));
}

#[test]
fn ends_tell_of_each_others_end() {
    let post = Arc::new(Post::new(1));
    let acceptor = Acceptor::start(Arc::clone(&post), |_| ()).unwrap();
    acceptor.listen(address(2)).unwrap();
    let links = ask(us(), address(2), RING).unwrap();
    let taken = post.letterbox(address(2), 0).take();
    assert!(links[0].hear() && taken[0].hear());
    drop(taken);
    assert!(!links[0].hear());
    // Nor is who rings all the time.
    acceptor.listen(address(11)).unwrap();
    let links = ask(us(), address(11), RING).unwrap();
    let taken = post.letterbox(address(11), 0).take();
    let ring = |times: usize| {
        let flags = socket::MsgFlags::MSG_NOSIGNAL;
        socket::send(taken[0].bell().as_raw_fd(), &vec![1; times], flags).unwrap();
    };
    ring(2);
    assert!(links[0].hear());
    ring(1000);
    assert!(!links[0].hear());
}

/// Speaks the other side's part.
fn fake(last: u8, part: impl FnOnce(OwnedFd) + Send + 'static) {
    let flags = SockFlag::SOCK_CLOEXEC;
    let listener = socket::socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap();
    let name = format!("lariat-shm/{}", address(last));
    let name = UnixAddr::new_abstract(name.as_bytes()).unwrap();
    socket::bind(listener.as_raw_fd(), &name).unwrap();
    socket::listen(&listener, socket::Backlog::new(1).unwrap()).unwrap();
    std::thread::spawn(move || part(socket::accept4(&listener, flags).unwrap()));
}

fn say(socket: &OwnedFd, bytes: &[u8]) {
    let flags = socket::MsgFlags::MSG_NOSIGNAL;
    socket::send(socket.as_raw_fd(), bytes, flags).unwrap();
}

#[test]
fn who_does_not_answer_is_not_waited_for() {
    let (keep, kept) = std::sync::mpsc::channel();
    fake(3, move |socket| keep.send(socket).unwrap());
    let start = Instant::now();
    assert!(matches!(ask(us(), address(3), RING), Err(NoLink::Silent)));
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(150), "{took:?}");
    assert!(took < Duration::from_secs(5), "{took:?}");
    drop(kept);
    fake(4, drop);
    assert!(ask(us(), address(4), RING).is_err());
}

#[test]
fn refusals_are_told() {
    let answers = |last: u8, answer: Answer| {
        fake(last, move |socket| say(&socket, &answer.to_bytes()));
        ask(us(), address(last), RING)
    };
    let verdict = Verdict::OTHER_USER;
    match answers(5, Answer { version: VERSION, verdict, members: 1 }) {
        Err(error @ NoLink::Refused(Verdict::OTHER_USER)) => {
            assert!(error.to_string().contains("another user"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    let verdict = Verdict::YES;
    match answers(6, Answer { version: VERSION + 1, verdict, members: 1 }) {
        Err(NoLink::Refused(Verdict::OTHER_VERSION)) => {}
        other => panic!("{other:?}"),
    }
    fake(7, move |socket| {
        let answer = Answer { version: VERSION, verdict, members: 0 };
        say(&socket, &answer.to_bytes());
        let mut hello = [0; 64];
        let flags = socket::MsgFlags::empty();
        let length = socket::recv(socket.as_raw_fd(), &mut hello, flags).unwrap();
        let hello = Hello::parse(hello.get(..length).unwrap()).unwrap();
        assert_eq!((hello.address, hello.member, hello.members), (us().address, 1, 2));
        say(&socket, &answer.to_bytes());
    });
    assert!(matches!(ask(us(), address(7), RING), Err(NoLink::Malformed)));
    fake(8, |socket| say(&socket, b"hello"));
    assert!(matches!(ask(us(), address(8), RING), Err(NoLink::Malformed)));
}

/// What one process after the other that stands still would add up to.
#[test]
fn the_silent_do_not_hold_up_the_others() {
    let post = Arc::new(Post::new(1));
    let acceptor = Acceptor::start(Arc::clone(&post), |_| ()).unwrap();
    acceptor.listen(address(10)).unwrap();
    let silent: Vec<_> = (0..40).map(|_| connect(10)).collect();
    assert_eq!(ask(us(), address(10), RING).unwrap().len(), 1);
    drop(acceptor);
    drop(silent);
}

/// A message brings ten descriptors to a process that has room for three or four.
#[test]
fn no_descriptor_is_left_open_where_there_is_no_room_for_all() {
    const CHILD: &str = "LARIAT_TEST_FEW_DESCRIPTORS";
    if std::env::var_os(CHILD).is_none() {
        // The limit is the process's: one of its own, for this test alone.
        let name = std::thread::current().name().unwrap().to_owned();
        let program = std::env::current_exe().unwrap();
        let mut child = std::process::Command::new(program);
        let status = child.args(["--exact", &name]).env(CHILD, "1").status().unwrap();
        assert!(status.success());
        return;
    }
    let flags = SockFlag::SOCK_CLOEXEC;
    let (from, to) =
        socket::socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap();
    let gifts = [from.as_raw_fd(); 10];
    let control = [socket::ControlMessage::ScmRights(&gifts)];
    let pieces = [std::io::IoSlice::new(b"?")];
    let none = socket::MsgFlags::empty();
    socket::sendmsg::<()>(from.as_raw_fd(), &pieces, &control, none, None).unwrap();
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open();
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, before as u64 + 3, hard).unwrap();
    let mut bytes = [0; 8];
    let heard = link::receive(to.as_fd(), &mut bytes).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
    assert!(matches!(heard, Some((1, None))), "{heard:?}");
    assert_eq!(open(), before);
}

/// The address is another process's as long as that lives.
#[test]
fn nobody_speaks_for_another_process() {
    const CHILD: &str = "LARIAT_TEST_HOLDS_CLAIM";
    let theirs = address(13);
    if std::env::var_os(CHILD).is_some() {
        let name = format!("lariat-roce/{theirs}");
        let name = std::os::unix::net::SocketAddr::from_abstract_name(name).unwrap();
        let _claim = std::os::unix::net::UnixListener::bind_addr(&name).unwrap();
        println!("\nbound");
        let _ = std::io::stdin().read_line(&mut String::new());
        return;
    }
    let name = std::thread::current().name().unwrap().to_owned();
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &name, "--nocapture"])
        .env(CHILD, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "bound"));
    let post = Arc::new(Post::new(1));
    let acceptor = Acceptor::start(Arc::clone(&post), |_| ()).unwrap();
    acceptor.listen(address(12)).unwrap();
    let claimed = Peer { address: theirs, member: 0, members: 1 };
    let refused = ask(claimed, address(12), RING);
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    assert!(matches!(refused, Err(NoLink::Refused(Verdict::NOT_YOURS))), "{refused:?}");
    assert_eq!(ask(claimed, address(12), RING).unwrap().len(), 1);
}

/// A bell has to tell of its peer's end.
#[test]
fn only_connected_unix_streams_are_bells() {
    let take = |bell: OwnedFd| {
        let (_link, link::Ends { memory, .. }) = Link::make(us(), RING).unwrap();
        Link::take(us(), link::Ends { memory, bell }, RING).is_ok()
    };
    let pair = |kind| {
        let flags = SockFlag::SOCK_CLOEXEC;
        socket::socketpair(AddressFamily::Unix, kind, None, flags).unwrap()
    };
    let (bell, _other) = pair(SockType::Stream);
    assert!(take(bell));
    let (datagrams, _other) = pair(SockType::Datagram);
    assert!(!take(datagrams));
    let (pipe, _other) = std::io::pipe().unwrap();
    assert!(!take(pipe.into()));
    assert!(!take(std::net::UdpSocket::bind("127.0.0.1:0").unwrap().into()));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let tcp = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    assert!(!take(tcp.into()));
    assert!(!take(std::fs::File::open("/dev/null").unwrap().into()));
    let flags = SockFlag::SOCK_CLOEXEC;
    let alone = socket::socket(AddressFamily::Unix, SockType::Stream, flags, None).unwrap();
    assert!(!take(alone));
}

fn connect(last: u8) -> OwnedFd {
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket::socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap();
    let name = format!("lariat-shm/{}", address(last));
    let name = UnixAddr::new_abstract(name.as_bytes()).unwrap();
    socket::connect(socket.as_raw_fd(), &name).unwrap();
    socket
}

/// Whatever comes to the acceptor: an answer, in time, and it goes on to serve others.
#[test]
fn strangers_do_not_stop_the_acceptor() {
    let post = Arc::new(Post::new(1));
    let acceptor = Acceptor::start(Arc::clone(&post), |_| ()).unwrap();
    acceptor.listen(address(9)).unwrap();
    let connect = || connect(9);
    let answer_to = |message: &[u8]| {
        let socket = connect();
        say(&socket, message);
        let hear = || {
            let mut answer = [0; 64];
            let flags = socket::MsgFlags::empty();
            let length = socket::recv(socket.as_raw_fd(), &mut answer, flags).unwrap();
            Answer::parse(answer.get(..length).unwrap()).unwrap().verdict
        };
        assert_eq!(hear(), Verdict::YES);
        hear()
    };
    let hello =
        Hello { version: VERSION, address: us().address, member: 0, members: 1, capacity: RING };
    assert_eq!(answer_to(b"?"), Verdict::MALFORMED);
    assert_eq!(answer_to(&[0; 4000]), Verdict::MALFORMED);
    let other = Hello { version: 7, ..hello };
    assert_eq!(answer_to(&other.to_bytes()), Verdict::OTHER_VERSION);
    for bad in [
        Hello { member: 1, ..hello },
        Hello { members: 0, ..hello },
        Hello { capacity: 0, ..hello },
        Hello { capacity: u32::MAX, ..hello },
        Hello { capacity: RING + 64, ..hello },
    ] {
        assert_eq!(answer_to(&bad.to_bytes()), Verdict::MALFORMED);
    }
    // One that says nothing, one that goes on with something else than a link.
    let silent = connect();
    let rude = connect();
    say(&rude, &hello.to_bytes());
    say(&rude, &[0]);
    drop(connect());
    std::thread::sleep(Duration::from_millis(300));
    assert!(!post.letterbox(address(9), 0).has_news());
    assert_eq!(ask(us(), address(9), RING).unwrap().len(), 1);
    drop(silent);
}

#[test]
fn users_are_told_apart() {
    for (peer, own) in [(0, 0), (1000, 1000), (0, 1000), (0, 65_534)] {
        assert!(trusted(peer, own), "{peer} {own}");
    }
    for (peer, own) in [(1000, 0), (1001, 1000), (65_534, 65_534), (65_534, 0)] {
        assert!(!trusted(peer, own), "{peer} {own}");
    }
}

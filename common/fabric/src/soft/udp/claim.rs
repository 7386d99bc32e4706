//! Who owns UDP port 4791 of an address: taken once per network namespace, and named when taken.
//!
//! The sockets of a group share their port (SO_REUSEPORT), so the kernel alone would let a second
//! process of the same user join in and take a part of the packets. A claim is a listening Unix
//! socket in the abstract namespace, which ends with its process and lives per network namespace
//! as ports do; its peer credentials tell who holds it.

use core::net::{IpAddr, SocketAddr};
use std::fmt::Write as _;
use std::io;
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener};

use lariat_wire::rocev2::UDP_PORT;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr};

/// How often the system's tables are looked at for a socket, before there is none.
const LOOKS: usize = 4;

/// Held as long as sockets of the address are open.
#[derive(Debug)]
pub(super) struct Claim {
    _listener: UnixListener,
}

impl Claim {
    /// Takes an address; `AddrInUse` if a process (this one counts) has it.
    pub(super) fn take(address: SocketAddr) -> io::Result<Self> {
        let name = UnixAddress::from_abstract_name(name(address))?;
        Ok(Self { _listener: UnixListener::bind_addr(&name)? })
    }
}

fn name(address: SocketAddr) -> String {
    format!("lariat-roce/{address}")
}

/// Who holds the well-known port of `ip`, in words, if that can be seen.
pub(super) fn holder(ip: IpAddr) -> Option<String> {
    if let Some(pid) = claimant(SocketAddr::new(ip, UDP_PORT)) {
        return Some(process(pid));
    }
    let inode = socket_inode(ip)?;
    Some(match socket_owner(inode) {
        Some(pid) => process(pid),
        None => {
            "a socket of another user's process or of the kernel (Soft-RoCE, rdma_rxe?)".to_owned()
        }
    })
}

/// The process that holds the claim, as our namespace of processes numbers it (0: not at all). Nobody ever takes what waits at a claim's socket, so once many
/// have asked the kernel turns others away; it must not make them wait.
pub(in crate::soft) fn claimant(address: SocketAddr) -> Option<u32> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket = socket::socket(AddressFamily::Unix, SockType::Stream, flags, None).ok()?;
    let claim = UnixAddr::new_abstract(name(address).as_bytes()).ok()?;
    socket::connect(socket.as_raw_fd(), &claim).ok()?;
    let credentials = socket::getsockopt(&socket, PeerCredentials).ok()?;
    u32::try_from(credentials.pid()).ok()
}

fn process(pid: u32) -> String {
    let mut words = format!("process {pid}");
    if let Ok(name) = std::fs::read_to_string(format!("/proc/{pid}/comm")) {
        let _ = write!(words, " ({})", name.trim_end());
    }
    if pid == std::process::id() {
        words.push_str(", which is this one");
    }
    words
}

/// The inode of a UDP socket bound to the port at this address or at all addresses.
fn socket_inode(ip: IpAddr) -> Option<u64> {
    let tables: &[&str] = match ip {
        // A socket of IPv6 bound to all addresses may hold IPv4 as well.
        IpAddr::V4(_) => &["/proc/net/udp", "/proc/net/udp6"],
        IpAddr::V6(_) => &["/proc/net/udp6"],
    };
    // Read in pieces that go by places: where a socket goes meanwhile, the next one is missed.
    (0..LOOKS).flat_map(|_| tables).find_map(|table| {
        let text = std::fs::read_to_string(table).ok()?;
        text.lines().skip(1).find_map(|line| inode_of(line, ip))
    })
}

/// The inode in a line of the table, if the line is of the port at `ip` or at all addresses.
fn inode_of(line: &str, ip: IpAddr) -> Option<u64> {
    let mut fields = line.split_ascii_whitespace();
    let (address, port) = fields.nth(1)?.split_once(':')?;
    if u16::from_str_radix(port, 16).ok()? != UDP_PORT {
        return None;
    }
    let everything = address.bytes().all(|digit| digit == b'0');
    if !everything && !address.eq_ignore_ascii_case(&proc_form(ip)) {
        return None;
    }
    fields.nth(7)?.parse().ok()
}

/// An address as the tables print it: words in the machine's byte order.
fn proc_form(ip: IpAddr) -> String {
    let mut text = String::new();
    let mut put = |word: [u8; 4]| {
        let _ = write!(text, "{:08X}", u32::from_ne_bytes(word));
    };
    match ip {
        IpAddr::V4(ip) => put(ip.octets()),
        IpAddr::V6(ip) => ip.octets().as_chunks::<4>().0.iter().copied().for_each(put),
    }
    text
}

fn socket_owner(inode: u64) -> Option<u32> {
    let wanted = format!("socket:[{inode}]");
    for process in std::fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let Ok(files) = std::fs::read_dir(process.path().join("fd")) else { continue };
        for file in files.flatten() {
            if std::fs::read_link(file.path()).is_ok_and(|to| to.as_os_str() == wanted.as_str()) {
                return Some(pid);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_claim_names_the_first() {
        let ip = IpAddr::from([127, 90, 1, 7]);
        let address = SocketAddr::new(ip, UDP_PORT);
        let claim = Claim::take(address).unwrap();
        assert_eq!(Claim::take(address).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert!(holder(ip).unwrap().contains(&std::process::id().to_string()));
        drop(claim);
        let _again = Claim::take(address).unwrap();
    }

    #[test]
    fn many_may_ask() {
        let ip = IpAddr::from([127, 90, 1, 10]);
        let _claim = Claim::take(SocketAddr::new(ip, UDP_PORT)).unwrap();
        let _socket = std::net::UdpSocket::bind((ip, UDP_PORT)).unwrap();
        let backlog = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
        let askers: u32 = backlog.trim().parse().unwrap();
        let (done, wait) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for _ in 0..askers + 2 {
                claimant(SocketAddr::new(ip, UDP_PORT));
            }
            done.send(holder(ip).unwrap()).unwrap();
        });
        let words = wait.recv_timeout(core::time::Duration::from_secs(20)).expect("an answer");
        assert!(words.contains(&std::process::id().to_string()), "{words}");
    }

    #[test]
    fn a_foreign_socket_is_found_by_its_inode() {
        let ip = IpAddr::from([127, 90, 1, 8]);
        let _socket = std::net::UdpSocket::bind((ip, UDP_PORT)).unwrap();
        assert!(holder(ip).unwrap().contains(&std::process::id().to_string()));
        assert_eq!(holder(IpAddr::from([127, 90, 1, 9])), None);
    }

    #[test]
    fn tables_are_read() {
        let line = "  105: 0107A8C0:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 27183 2 0 0";
        if cfg!(target_endian = "little") {
            assert_eq!(inode_of(line, IpAddr::from([192, 168, 7, 1])), Some(27183));
        }
        assert_eq!(inode_of(line, IpAddr::from([192, 168, 7, 2])), None);
        assert_eq!(inode_of("", IpAddr::from([192, 168, 7, 1])), None);
    }
}

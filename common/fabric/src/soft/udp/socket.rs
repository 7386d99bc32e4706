//! UDP sockets as RoCEv2 needs them, and the kernel's route to a peer.
//!
//! Sockets stay unconnected with path MTU discovery on: then the kernel sends IPv4 packets with
//! "don't fragment" and the identification 0 (segment i of a segmented call: i), which the ICRC
//! covers. Called by `udp`; calls the kernel.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use lariat_wire::rocev2::UDP_PORT;
use lariat_wire::rocev2::cm::PathMtu;
use libc::{c_int, c_void, socklen_t};
use socket2::{Domain, Protocol, Socket, Type};

use crate::soft::network::{Route, Source};

const UDP_NO_CHECK6_RX: c_int = 102;
const UDP_GRO: c_int = 104;
/// ECN-capable: routers may mark instead of drop.
const ECT_0: c_int = 2;

/// How a socket is to share its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sharing {
    Alone,
    /// With the other sockets of its group (SO_REUSEPORT).
    Group,
}

fn set(socket: BorrowedFd<'_>, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    set_bytes(socket, level, name, &value)
}

fn set_bytes<T>(socket: BorrowedFd<'_>, level: c_int, name: c_int, value: &T) -> io::Result<()> {
    let length = socklen_t::try_from(size_of::<T>()).map_err(io::Error::other)?;
    // SAFETY: `value` is valid for reads of its own size, which is the length given; the call only
    // reads it (and, for a filter, the program it points to, see `steer`).
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            core::ptr::from_ref(value).cast::<c_void>(),
            length,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn get(socket: BorrowedFd<'_>, level: c_int, name: c_int) -> io::Result<c_int> {
    let mut value: c_int = 0;
    let mut length = socklen_t::try_from(size_of::<c_int>()).map_err(io::Error::other)?;
    // SAFETY: `value` is valid for writes of `length` bytes, and both live through the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            name,
            core::ptr::from_mut(&mut value).cast::<c_void>(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

/// Opens and binds a socket; `address.port()` 0 lets the kernel choose.
pub(super) fn open(
    address: SocketAddr,
    sharing: Sharing,
    buffer_bytes: u32,
) -> io::Result<UdpSocket> {
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    let fd = socket.as_fd();
    if address.is_ipv4() {
        set(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)?;
        set(fd, libc::IPPROTO_IP, libc::IP_RECVTOS, 1)?;
        set(fd, libc::IPPROTO_IP, libc::IP_TOS, ECT_0)?;
    } else {
        set(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)?;
        set(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO)?;
        set(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1)?;
        set(fd, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, ECT_0)?;
        // Peers send without UDP checksums. We send with them: the kernel refuses to segment
        // without, and network devices compute them.
        set(fd, libc::IPPROTO_UDP, UDP_NO_CHECK6_RX, 1)?;
    }
    // Without it segments arrive one by one: slower, not wrong.
    if let Err(error) = set(fd, libc::IPPROTO_UDP, UDP_GRO, 1) {
        tracing::debug!(%error, "the kernel does not merge received datagrams (UDP_GRO)");
    }
    let size = c_int::try_from(buffer_bytes).unwrap_or(c_int::MAX);
    for (forced, asked) in
        [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)]
    {
        if set(fd, libc::SOL_SOCKET, forced, size).is_err() {
            // Silently cut to the system's limit.
            set(fd, libc::SOL_SOCKET, asked, size)?;
        }
    }
    if sharing == Sharing::Group {
        socket.set_reuse_port(true)?;
    }
    socket.bind(&address.into())?;
    Ok(socket.into())
}

/// What the kernel reserves for received packets, its overhead included.
pub(super) fn receive_buffer_bytes(socket: &UdpSocket) -> io::Result<u32> {
    let bytes = get(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF)?;
    u32::try_from(bytes).map_err(io::Error::other)
}

/// Tells the kernel which socket of a group a datagram is for; `socket` is any of them. The rule
/// is `soft::steering`'s. Sockets are numbered in the order in which they were bound.
pub(super) fn steer(socket: &UdpSocket, count: u8) -> io::Result<()> {
    const LOAD_WORD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const LOAD_HALF: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_ABS;
    const JUMP_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const JUMP: u32 = libc::BPF_JMP | libc::BPF_JA;
    const SHIFT_RIGHT: u32 = libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K;
    const AND: u32 = libc::BPF_ALU | libc::BPF_AND | libc::BPF_K;
    const MODULO: u32 = libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K;
    const RETURN: u32 = libc::BPF_RET | libc::BPF_A;
    // Offsets in the UDP payload: BTH 12, DETH 8, MAD header 24, CM message.
    const DEST_QP: u32 = 4;
    const ATTRIBUTE: u32 = 12 + 8 + 16;
    const BODY: u32 = 12 + 8 + 24;
    let step = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter {
        code: u16::try_from(code).unwrap_or(0),
        jt,
        jf,
        k,
    };
    let mut program = [
        step(LOAD_WORD, 0, 0, DEST_QP),
        step(AND, 0, 0, 0x00ff_ffff),
        step(JUMP_EQUAL, 0, 6, 1), // not the connection manager: to MODULO
        step(LOAD_HALF, 0, 0, ATTRIBUTE),
        step(JUMP_EQUAL, 0, 3, 0x10), // not a REQ: to the load of the receiver's id
        step(LOAD_WORD, 0, 0, BODY + 32),
        step(SHIFT_RIGHT, 0, 0, 8), // its sender's queue pair number
        step(JUMP, 0, 0, 1),
        step(LOAD_WORD, 0, 0, BODY + 4),
        step(MODULO, 0, 0, u32::from(count.max(1))),
        step(RETURN, 0, 0, 0),
    ];
    let filter = libc::sock_fprog {
        len: u16::try_from(program.len()).unwrap_or(0),
        filter: program.as_mut_ptr(),
    };
    // The kernel copies the program during the call; `program` lives through it.
    set_bytes(socket.as_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF, &filter)
}

/// How the kernel would get to `remote`, and how large packets may be.
pub(super) fn route(remote: SocketAddr, max_mtu: PathMtu) -> io::Result<Route> {
    let (any, level, option): (IpAddr, _, _) = if remote.is_ipv4() {
        (Ipv4Addr::UNSPECIFIED.into(), libc::IPPROTO_IP, libc::IP_MTU)
    } else {
        (Ipv6Addr::UNSPECIFIED.into(), libc::IPPROTO_IPV6, libc::IPV6_MTU)
    };
    let probe = UdpSocket::bind((any, 0))?;
    let mut target = remote;
    target.set_port(UDP_PORT);
    probe.connect(target)?;
    let source = probe.local_addr()?.ip();
    let mtu = get(probe.as_fd(), level, option)?;
    let source = match source {
        IpAddr::V4(ip) if ip.is_loopback() => Source::AnyLoopback,
        ip => Source::Address(ip),
    };
    let path_mtu = usize::try_from(mtu)
        .ok()
        .and_then(|mtu| PathMtu::for_ip_mtu(mtu, remote.is_ipv4()))
        .ok_or_else(|| io::Error::other(format!("an IP MTU of {mtu} bytes is too small")))?;
    let path_mtu = if path_mtu.bytes() > max_mtu.bytes() { max_mtu } else { path_mtu };
    Ok(Route { source, path_mtu })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_routes() {
        let route = route("127.0.0.1:4420".parse().unwrap(), PathMtu::Mtu4096).unwrap();
        assert_eq!(route, Route { source: Source::AnyLoopback, path_mtu: PathMtu::Mtu4096 });
        let limited = super::route("127.0.0.1:4420".parse().unwrap(), PathMtu::Mtu1024).unwrap();
        assert_eq!(limited.path_mtu, PathMtu::Mtu1024);
    }

    /// The kernel follows the same rule as `steering::member_of`.
    #[test]
    fn the_kernel_steers_as_we_do() {
        use crate::soft::steering::member_of;
        use lariat_wire::rocev2::Packet;

        const COUNT: u8 = 3;
        let address: SocketAddr = "127.90.2.1:4791".parse().unwrap();
        let sockets: Vec<_> =
            (0..COUNT).map(|_| open(address, Sharing::Group, 1 << 16).unwrap()).collect();
        steer(&sockets[0], COUNT).unwrap();
        let sender = UdpSocket::bind("127.90.2.2:0").unwrap();
        let mut datagrams = Vec::new();
        for number in 2..20_u8 {
            // SEND only to a queue pair.
            let mut data = vec![0; 24];
            data[0] = 0x04;
            data[4] = 0xc0;
            data[7] = number;
            datagrams.push(data);
            // A REQ, a REP, to queue pair 1.
            for attribute in [0x10, 0x13] {
                let mut mad = vec![0; 12 + 8 + 256 + 4];
                mad[0] = 0x64;
                mad[7] = 1;
                mad[20 + 17] = attribute;
                mad[20 + 24 + 3] = number;
                mad[20 + 28 + 3] = number * 7;
                mad[20 + 24 + 32 + 2] = number * 5;
                mad[20 + 24 + 32 + 3] = number;
                datagrams.push(mad);
            }
        }
        for datagram in datagrams {
            sender.send_to(&datagram, address).unwrap();
            let wanted = member_of(&Packet::parse(&datagram).unwrap(), COUNT);
            let mut buffer = [0; 512];
            let got = sockets.iter().position(|socket| socket.recv(&mut buffer).is_ok());
            assert_eq!(got, Some(usize::from(wanted)), "{datagram:02x?}");
        }
    }
}

//! What the soft fabric needs of a network: addresses to open, datagrams out and in.
//!
//! [`SoftFabric`](super::SoftFabric) calls these traits; `soft::udp` implements them with sockets,
//! `sim` in memory. The ICRC is the wire's business (it covers the IP header, which only the wire
//! knows), so is reading payloads from registered memory; everything above it is `lariat-roce`'s.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::io;
use std::os::fd::BorrowedFd;

use lariat_roce::endpoint::Member;
use lariat_roce::time::Timestamp;
use lariat_roce::transmit::Transmit;
use lariat_wire::rocev2::Packet;
use lariat_wire::rocev2::cm::PathMtu;

use super::knocks::Door;
use crate::fabric::Path;
use crate::regions::RegionTable;

/// How to get to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The address to speak from.
    pub source: Source,
    /// The packet payload that the path carries.
    pub path_mtu: PathMtu,
}

/// The local address of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// This one.
    Address(IpAddr),
    /// Any address of the IPv4 loopback network: each process takes one of its own.
    AnyLoopback,
}

/// Holder of a port, in words, where [`Network::holder`] knows of none.
pub(super) const UNSEEN: &str = "nobody that can be seen from here";

/// Why an address could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Somebody else has it.
    #[error("UDP port 4791 of {ip} is held by {holder}")]
    InUse {
        /// The address.
        ip: IpAddr,
        /// Who has it, as far as can be told.
        holder: String,
    },
    /// It is not an address of this machine.
    #[error("{ip} is not an address of this machine")]
    NotLocal {
        /// The address.
        ip: IpAddr,
    },
    /// Something else.
    #[error("cannot open a UDP socket at {ip}")]
    Io {
        /// The address.
        ip: IpAddr,
        /// The operating system's word.
        #[source]
        source: io::Error,
    },
}

/// A datagram that the kernel gave to the wrong socket of a group; its ICRC was right.
#[derive(Debug)]
pub struct Forwarded {
    /// The local address (and UDP port) it came to.
    pub local: SocketAddr,
    /// The sender.
    pub source: SocketAddr,
    /// Whether it was marked by congestion.
    pub congested: bool,
    /// The UDP payload.
    pub datagram: Box<[u8]>,
}

/// A valid packet, as a wire hands it in.
#[derive(Debug)]
pub struct Arrival<'a> {
    /// The sender.
    pub source: SocketAddr,
    /// Whether a router marked it (ECN congestion experienced).
    pub congested: bool,
    /// The packet.
    pub packet: &'a Packet<'a>,
    /// All of its bytes.
    pub datagram: &'a [u8],
}

/// What wires count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WireCounters {
    /// Packets given to the network.
    pub packets_sent: u64,
    /// Valid packets received.
    pub packets_received: u64,
    /// System calls that sent.
    pub send_calls: u64,
    /// System calls that received something.
    pub receive_calls: u64,
    /// Packets that could not be sent and count as lost.
    pub send_failures: u64,
    /// Datagrams dropped as too short or malformed.
    pub malformed: u64,
    /// Datagrams dropped for their ICRC.
    pub bad_icrc: u64,
    /// Packets, of those sent, that went through shared memory.
    pub shm_packets_sent: u64,
    /// Packets, of those received, that came through shared memory.
    pub shm_packets_received: u64,
}

/// A machine's network, as one member of a group of fabrics sees it.
pub trait Network {
    /// An open address.
    type Wire: Wire;

    /// The provider's name, for [`Fabric::name`](crate::Fabric::name).
    fn name(&self) -> &'static str;

    /// Which member this is.
    fn member(&self) -> Member;

    /// Opens `ip` with the well-known port, to be reached by anybody.
    ///
    /// # Errors
    /// Held by somebody else, not ours, or the operating system's word.
    fn open_listening(&mut self, ip: IpAddr) -> Result<Self::Wire, BindError>;

    /// Opens an address to reach `remote` from: the well-known port if it is free, else another. If
    /// it is `remote`'s own address, always another: that port is for whom `remote` names, and
    /// whoever took it would answer itself.
    ///
    /// # Errors
    /// Not ours, or the operating system's word.
    fn open_connecting(
        &mut self,
        source: Source,
        remote: SocketAddr,
    ) -> Result<Self::Wire, BindError>;

    /// How to get to `remote`.
    ///
    /// # Errors
    /// There is no way.
    fn route(&mut self, remote: SocketAddr) -> io::Result<Route>;

    /// Tries for a better way to a peer than by datagrams, before anything is sent to it. `peer` is
    /// its UDP address.
    ///
    /// # Errors
    /// Why there is none, in words, if nothing else will do.
    fn agree(&mut self, wire: &mut Self::Wire, peer: SocketAddr) -> Result<(), String> {
        let _ = (wire, peer);
        Ok(())
    }

    /// Who holds the well-known port of `ip`, an address of this machine, in words; `None`: nobody
    /// that can be seen from here.
    fn holder(&self, ip: IpAddr) -> Option<String>;

    /// Whether there are doors ([`Self::door`]).
    fn can_knock(&self) -> bool {
        false
    }

    /// A way to learn whether anything listens at a peer's UDP address, apart from the wires. `local`
    /// is the address of the wire that speaks to it.
    fn door(&self, local: SocketAddr, peer: SocketAddr) -> Option<Box<dyn Door + Send>> {
        let _ = (local, peer);
        None
    }

    /// Hands a packet to the member it belongs to. Lost if that member does not keep up.
    fn forward(&mut self, to: u8, packet: Forwarded);

    /// The next packet that another member handed over.
    fn take_forwarded(&mut self) -> Option<Forwarded>;

    /// Whether something was handed over; clears the wake-up that came with it.
    fn arm(&mut self) -> bool;

    /// What becomes readable when there is something to receive.
    fn wait_fds(&self) -> Vec<BorrowedFd<'_>>;
}

/// An open address: a UDP socket, or what stands for one.
pub trait Wire {
    /// Its address, with the UDP port that peers must answer to.
    fn local(&self) -> SocketAddr;

    /// Bytes that a connection should have under way at most, for the sake of the receiver's
    /// buffer (which is taken to be as large as ours).
    fn window_bytes(&self) -> u32 {
        u32::MAX
    }

    /// Which packet the system refused to send last, and why: to whom it was, the error number.
    fn refusal(&self) -> Option<(IpAddr, i32)> {
        None
    }

    /// What packets to a peer (its UDP address) travel over.
    fn path(&self, peer: SocketAddr) -> Option<Path> {
        let _ = peer;
        None
    }

    /// Whether a run of equal packets to a peer (its UDP address) costs far less than as many that
    /// differ.
    fn favours_equal_packets(&self, peer: SocketAddr) -> bool {
        let _ = peer;
        true
    }

    /// Asks to be woken through [`Network::wait_fds`], until something is received. `true`: something
    /// is there already.
    fn arm(&mut self) -> bool {
        false
    }

    /// A peer whose process ended, if the wire knows: to be asked again until there is none.
    fn take_lost(&mut self) -> Option<LostPeer> {
        None
    }

    /// Sends packets in order and says how many are dealt with (sent, or lost as a network may
    /// lose them). The others find no room now and should be offered again.
    fn transmit(
        &mut self,
        now: Timestamp,
        batch: &[Transmit],
        regions: &RegionTable,
        counters: &mut WireCounters,
    ) -> usize;

    /// Hands in what has arrived, up to some tens of packets, and says whether there may be more.
    fn receive<F: FnMut(Arrival<'_>)>(
        &mut self,
        now: Timestamp,
        counters: &mut WireCounters,
        sink: F,
    ) -> bool;
}

/// A peer that is gone for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostPeer {
    /// Its UDP address.
    pub address: SocketAddr,
    /// Which member of its group, and of how many: it owns the queue pairs whose numbers have
    /// this remainder.
    pub member: Member,
}

/// What packets may travel over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum WireChoice {
    /// Shared memory where both ends are on one host and belong to one user, else UDP.
    #[default]
    Auto,
    /// UDP.
    Udp,
    /// Shared memory or nothing.
    Shm,
}

/// Settings of the soft provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SoftConfig {
    /// How long an acknowledgement may wait for data to ride behind.
    pub ack_hold: Duration,
    /// The shortest time after which a silent peer is sent to again. Longer than a busy machine lets a
    /// thread wait for its turn, as a rule; a lost packet that others follow is told of at once.
    pub min_rto: Duration,
    /// Bytes in flight per connection, at most.
    pub max_inflight_bytes: u32,
    /// Size asked for the sockets' receive and send buffers, in bytes. The kernel's limits
    /// (`net.core.rmem_max`, `wmem_max`) apply where the process is not privileged.
    pub socket_buffer_bytes: u32,
    /// Whether runs of packets may be sent as segments of one call (UDP_SEGMENT).
    pub segmentation: bool,
    /// Path MTU to use at most.
    pub max_mtu: PathMtu,
    /// What packets may travel over.
    pub wire: WireChoice,
    /// Room for packets in each direction of a shared-memory link, in bytes: a power of two from
    /// 64 KiB to 16 MiB.
    pub ring_bytes: u32,
}

impl Default for SoftConfig {
    fn default() -> Self {
        Self {
            ack_hold: Duration::from_micros(50),
            min_rto: Duration::from_millis(4),
            max_inflight_bytes: 1 << 20,
            socket_buffer_bytes: 32 << 20,
            segmentation: true,
            max_mtu: PathMtu::Mtu4096,
            wire: WireChoice::Auto,
            ring_bytes: 1 << 20,
        }
    }
}

//! A node's side of the simulated network: [`Network`] and [`Wire`] over a [`SimNet`].

use core::net::{IpAddr, SocketAddr};
use std::io;
use std::os::fd::BorrowedFd;

use lariat_roce::endpoint::Member;
use lariat_roce::time::Timestamp;
use lariat_roce::transmit::{Payload, Transmit};
use lariat_wire::rocev2::{Packet, UDP_PORT, icrc};

use super::{SimNet, World};
use crate::regions::RegionTable;
use crate::soft::flows::{Direction, FlowCache};
use crate::soft::{Arrival, BindError, Forwarded, Network, Route, Source, Wire, WireCounters};

/// Datagrams handed in by one call.
const RECEIVE_BATCH: usize = 64;

/// A datagram on its way.
#[derive(Clone, Debug)]
pub(super) struct Datagram {
    pub(super) source: SocketAddr,
    pub(super) destination: SocketAddr,
    pub(super) congested: bool,
    pub(super) bytes: Vec<u8>,
}

/// A node's network.
#[derive(Debug)]
pub struct SimNetwork {
    net: SimNet,
    ip: IpAddr,
    incarnation: u64,
}

impl SimNetwork {
    pub(super) fn new(net: SimNet, ip: IpAddr, incarnation: u64) -> Self {
        Self { net, ip, incarnation }
    }

    /// The network it belongs to.
    #[must_use]
    pub fn net(&self) -> &SimNet {
        &self.net
    }

    fn open(&mut self) -> Result<SimWire, BindError> {
        let mut world = self.net.0.borrow_mut();
        let Some(node) = world.own(self.ip, self.incarnation) else {
            return Err(BindError::NotLocal { ip: self.ip });
        };
        if node.open {
            let holder = "this node".to_owned();
            return Err(BindError::InUse { ip: self.ip, holder });
        }
        node.open = true;
        drop(world);
        let local = SocketAddr::new(self.ip, UDP_PORT);
        Ok(SimWire {
            net: self.net.clone(),
            local,
            incarnation: self.incarnation,
            sending: FlowCache::new(local, Direction::Out),
            receiving: FlowCache::new(local, Direction::In),
        })
    }
}

impl World {
    /// The node, if it is still the one that asks.
    fn own(&mut self, ip: IpAddr, incarnation: u64) -> Option<&mut super::Node> {
        self.nodes.get_mut(&ip).filter(|node| node.incarnation == incarnation)
    }
}

impl Network for SimNetwork {
    type Wire = SimWire;

    fn name(&self) -> &'static str {
        "sim"
    }

    fn member(&self) -> Member {
        Member::ALONE
    }

    fn open_listening(&mut self, ip: IpAddr) -> Result<SimWire, BindError> {
        if ip == self.ip { self.open() } else { Err(BindError::NotLocal { ip }) }
    }

    fn open_connecting(&mut self, _: Source, _: SocketAddr) -> Result<SimWire, BindError> {
        self.open()
    }

    fn route(&mut self, remote: SocketAddr) -> io::Result<Route> {
        if remote.is_ipv4() != self.ip.is_ipv4() {
            return Err(io::ErrorKind::NetworkUnreachable.into());
        }
        let path_mtu = self.net.0.borrow().path_mtu;
        Ok(Route { source: Source::Address(self.ip), path_mtu })
    }

    fn holder(&self, _: IpAddr) -> Option<String> {
        Some("another node".to_owned())
    }

    fn forward(&mut self, _: u8, _: Forwarded) {}

    fn take_forwarded(&mut self) -> Option<Forwarded> {
        None
    }

    fn arm(&mut self) -> bool {
        let mut world = self.net.0.borrow_mut();
        world.own(self.ip, self.incarnation).is_some_and(|node| !node.inbox.is_empty())
    }

    fn wait_fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }
}

/// A node's socket.
#[derive(Debug)]
pub struct SimWire {
    net: SimNet,
    local: SocketAddr,
    incarnation: u64,
    sending: FlowCache,
    receiving: FlowCache,
}

impl SimWire {
    /// The UDP payload of a packet, as a socket would send it. False if its memory is gone.
    fn write(&mut self, packet: &Transmit, regions: &RegionTable, out: &mut Vec<u8>) -> bool {
        let Some(flow) = self.sending.get(packet.remote) else { return false };
        out.extend(packet.headers.iter().take(usize::from(packet.header_len)));
        let whole = match &packet.payload {
            Payload::Empty => true,
            Payload::Mad(mad) => {
                out.extend_from_slice(mad.as_slice());
                true
            }
            Payload::Memory(first, second) => {
                regions.append(*first, out)
                    && second.is_none_or(|second| regions.append(second, out))
            }
        };
        out.resize(out.len() + usize::from(packet.pad), 0);
        let crc = flow.seed(out.len() + 4, 0).over(out);
        out.extend(crc);
        whole
    }
}

impl Wire for SimWire {
    fn local(&self) -> SocketAddr {
        self.local
    }

    fn transmit(
        &mut self,
        now: Timestamp,
        batch: &[Transmit],
        regions: &RegionTable,
        counters: &mut WireCounters,
    ) -> usize {
        let net = self.net.clone();
        let mut world = net.0.borrow_mut();
        let own = world.own(self.local.ip(), self.incarnation);
        if own.as_ref().is_some_and(|node| node.full) {
            return 0;
        }
        let alive = own.is_some();
        counters.send_calls += u64::from(!batch.is_empty());
        for packet in batch {
            let mut bytes = world.spare.pop().unwrap_or_default();
            bytes.clear();
            if !alive || !self.write(packet, regions, &mut bytes) {
                counters.send_failures += 1;
                world.spare.push(bytes);
                continue;
            }
            counters.packets_sent += 1;
            let datagram = Datagram {
                source: self.local,
                destination: packet.remote,
                congested: false,
                bytes,
            };
            world.send(now, datagram);
        }
        batch.len()
    }

    fn receive<F: FnMut(Arrival<'_>)>(
        &mut self,
        _now: Timestamp,
        counters: &mut WireCounters,
        mut sink: F,
    ) -> bool {
        for turn in 0..RECEIVE_BATCH {
            let mut world = self.net.0.borrow_mut();
            let own = world.own(self.local.ip(), self.incarnation);
            let Some(datagram) = own.and_then(|node| node.inbox.pop_front()) else { return false };
            drop(world);
            if turn == 0 {
                counters.receive_calls += 1;
            }
            let source = datagram.source;
            match (Packet::parse(&datagram.bytes), self.receiving.get(source)) {
                (Ok(packet), Some(flow)) => {
                    // All identifications are zero here, so the sum is checked whole.
                    if icrc::verify_with_id(&flow, 0, &datagram.bytes) {
                        counters.packets_received += 1;
                        let congested = datagram.congested;
                        sink(Arrival {
                            source,
                            congested,
                            packet: &packet,
                            datagram: &datagram.bytes,
                        });
                    } else {
                        counters.bad_icrc += 1;
                    }
                }
                _ => counters.malformed += 1,
            }
            self.net.0.borrow_mut().spare.push(datagram.bytes);
        }
        true
    }
}

//! The invariant CRC (ICRC) that guards each RoCEv2 packet from end to end.
//!
//! Uses the CRC library and the algebra of `gf2`. The `soft` provider calls it
//! for every packet that it sends or receives, so nothing here allocates, and
//! what depends on the connection alone is computed once, in [`FlowSeed`].
//!
//! The ICRC (IBTA 7.8.1 and A17.3.3) is the Ethernet CRC-32, low byte first,
//! over eight bytes of ones, the IP header, the UDP header, and the packet up to
//! its pad. What routers may change counts as ones: IPv4's type of service, time
//! to live and header checksum, IPv6's traffic class, flow label and hop limit,
//! the UDP checksum, and byte 4 of the BTH.
//!
//! IPv4's identification is covered, too, yet a UDP socket neither sets it nor
//! shows it. [`verify_v4_hidden_id`] asks whether any identification explains
//! the ICRC; this leaves 16 bits of protection of 32.

mod gf2;

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

pub use gf2::IdBasis;

use super::ICRC_LEN;
use gf2::ByteTable;

const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;
const UDP_HEADER: usize = 8;
const ONES: [u8; 8] = [0xff; 8];
const PROTOCOL_UDP: u8 = 17;

/// Bytes from behind the first byte of IPv4's identification to the end of the
/// UDP header.
const AFTER_ID: usize = IPV4_HEADER - 5 + UDP_HEADER;

// What one byte of a length or of the identification adds to the CRC's state
// at the end of the UDP header.
static IPV4_LEN_HIGH: ByteTable = ByteTable::followed_by(IPV4_HEADER - 3 + UDP_HEADER);
static IPV4_LEN_LOW: ByteTable = ByteTable::followed_by(IPV4_HEADER - 4 + UDP_HEADER);
static IPV4_ID_HIGH: ByteTable = ByteTable::followed_by(AFTER_ID);
static IPV4_ID_LOW: ByteTable = ByteTable::followed_by(AFTER_ID - 1);
static IPV6_LEN_HIGH: ByteTable = ByteTable::followed_by(IPV6_HEADER - 5 + UDP_HEADER);
static IPV6_LEN_LOW: ByteTable = ByteTable::followed_by(IPV6_HEADER - 6 + UDP_HEADER);
static UDP_LEN_HIGH: ByteTable = ByteTable::followed_by(3);
static UDP_LEN_LOW: ByteTable = ByteTable::followed_by(2);
/// What must change in the state before the BTH to have the effect of a change
/// in its byte 4.
static BTH_BYTE_4: ByteTable = ByteTable::ahead_by(4);

/// The addresses and UDP ports of an IPv4 packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowV4 {
    /// Source address.
    pub src: Ipv4Addr,
    /// Destination address.
    pub dst: Ipv4Addr,
    /// UDP source port.
    pub src_port: u16,
    /// UDP destination port.
    pub dst_port: u16,
}

/// The addresses and UDP ports of an IPv6 packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowV6 {
    /// Source address.
    pub src: Ipv6Addr,
    /// Destination address.
    pub dst: Ipv6Addr,
    /// UDP source port.
    pub src_port: u16,
    /// UDP destination port.
    pub dst_port: u16,
}

/// The addresses and UDP ports of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Over IPv4.
    V4(FlowV4),
    /// Over IPv6.
    V6(FlowV6),
}

impl Flow {
    /// The flow from `src` to `dst`; none when their families differ. IPv4
    /// addresses in their IPv6-mapped form, as sockets of both families show
    /// them, count as IPv4.
    #[must_use]
    pub fn new(src: SocketAddr, dst: SocketAddr) -> Option<Self> {
        let (src_port, dst_port) = (src.port(), dst.port());
        match (src.ip().to_canonical(), dst.ip().to_canonical()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                Some(Self::V4(FlowV4 { src, dst, src_port, dst_port }))
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                Some(Self::V6(FlowV6 { src, dst, src_port, dst_port }))
            }
            _ => None,
        }
    }
}

/// What the ICRCs of all packets of a flow share: the CRC of the IP and UDP
/// headers with lengths and identification zero. Make it once for each flow;
/// it is small and costs nothing to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowSeed {
    base: u32,
    is_ipv4: bool,
}

impl FlowSeed {
    /// The seed of a flow.
    #[must_use]
    pub fn new(flow: &Flow) -> Self {
        match flow {
            Flow::V4(flow) => Self::v4(flow),
            Flow::V6(flow) => Self::v6(flow),
        }
    }

    fn v4(flow: &FlowV4) -> Self {
        let mut crc = crc32fast::Hasher::new();
        crc.update(&ONES);
        // Version and header length, type of service; length and
        // identification; don't fragment (A17.3.1 demands it); time to live,
        // protocol, checksum.
        crc.update(&[0x45, 0xff, 0, 0, 0, 0, 0x40, 0, 0xff, PROTOCOL_UDP, 0xff, 0xff]);
        crc.update(&flow.src.octets());
        crc.update(&flow.dst.octets());
        update_udp(&mut crc, flow.src_port, flow.dst_port);
        Self { base: crc.finalize(), is_ipv4: true }
    }

    fn v6(flow: &FlowV6) -> Self {
        let mut crc = crc32fast::Hasher::new();
        crc.update(&ONES);
        // Version, traffic class, flow label; length; next header, hop limit.
        crc.update(&[0x6f, 0xff, 0xff, 0xff, 0, 0, PROTOCOL_UDP, 0xff]);
        crc.update(&flow.src.octets());
        crc.update(&flow.dst.octets());
        update_udp(&mut crc, flow.src_port, flow.dst_port);
        Self { base: crc.finalize(), is_ipv4: false }
    }

    /// Whether the flow is of IPv4, where the identification counts.
    #[must_use]
    pub const fn is_ipv4(&self) -> bool {
        self.is_ipv4
    }

    /// The seeds for packets whose UDP payload, ICRC included, has `udp_payload_bytes`: what those of
    /// one length share. Without meaning for more than a UDP datagram holds.
    #[must_use]
    #[inline]
    pub fn of_length(&self, udp_payload_bytes: usize) -> LengthSeed {
        LengthSeed { seed: self.seed(udp_payload_bytes, 0), is_ipv4: self.is_ipv4 }
    }

    /// The seed for a packet whose UDP payload, ICRC included, has
    /// `udp_payload_bytes`. Without meaning for more than a UDP datagram holds.
    #[must_use]
    #[inline]
    pub fn seed(&self, udp_payload_bytes: usize, ipv4_id: u16) -> IcrcSeed {
        let [udp_high, udp_low] = length_bytes(udp_payload_bytes + UDP_HEADER);
        let udp = UDP_LEN_HIGH.of(udp_high) ^ UDP_LEN_LOW.of(udp_low);
        let ip = if self.is_ipv4 {
            let [high, low] = length_bytes(udp_payload_bytes + UDP_HEADER + IPV4_HEADER);
            IPV4_LEN_HIGH.of(high) ^ IPV4_LEN_LOW.of(low) ^ id_state(ipv4_id)
        } else {
            IPV6_LEN_HIGH.of(udp_high) ^ IPV6_LEN_LOW.of(udp_low)
        };
        IcrcSeed(self.base ^ udp ^ ip)
    }
}

fn update_udp(crc: &mut crc32fast::Hasher, src_port: u16, dst_port: u16) {
    crc.update(&src_port.to_be_bytes());
    crc.update(&dst_port.to_be_bytes());
    // Length, checksum.
    crc.update(&[0, 0, 0xff, 0xff]);
}

#[inline]
fn length_bytes(bytes: usize) -> [u8; 2] {
    let [low, high, ..] = bytes.to_le_bytes();
    [high, low]
}

#[inline]
fn id_state(id: u16) -> u32 {
    let [high, low] = id.to_be_bytes();
    IPV4_ID_HIGH.of(high) ^ IPV4_ID_LOW.of(low)
}

/// The CRC's state at the end of the UDP header, for one flow and packet length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LengthSeed {
    seed: IcrcSeed,
    is_ipv4: bool,
}

impl LengthSeed {
    /// The seed for a packet with that IPv4 identification, without effect on IPv6.
    #[must_use]
    #[inline]
    pub fn seed(self, ipv4_id: u16) -> IcrcSeed {
        if self.is_ipv4 { self.seed.with_id(ipv4_id) } else { self.seed }
    }
}

/// The CRC's state at the end of the UDP header, for one flow, packet length
/// and IPv4 identification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcrcSeed(u32);

impl IcrcSeed {
    /// The seed of the same packet, made with identification 0, for another one.
    #[must_use]
    #[inline]
    pub fn with_id(self, ipv4_id: u16) -> Self {
        Self(self.0 ^ id_state(ipv4_id))
    }

    /// The ICRC over a packet in one piece: BTH to pad, without ICRC.
    #[must_use]
    #[inline(always)]
    pub fn over(self, covered: &[u8]) -> [u8; ICRC_LEN] {
        let mut crc = crc32fast::Hasher::new_with_initial(self.masking(covered));
        crc.update(covered);
        crc.finalize().to_le_bytes()
    }

    /// The ICRC over headers, payload and `pad` zero bytes in pieces.
    #[must_use]
    #[inline]
    pub fn over_parts(self, headers: &[u8], payload: &[&[u8]], pad: u8) -> [u8; ICRC_LEN] {
        let mut crc = crc32fast::Hasher::new_with_initial(self.masking(headers));
        crc.update(headers);
        for part in payload.iter().filter(|part| !part.is_empty()) {
            crc.update(part);
        }
        if pad != 0 {
            crc.update([0; 3].get(..usize::from(pad)).unwrap_or_default());
        }
        crc.finalize().to_le_bytes()
    }

    /// The state to start from so that byte 4 of the BTH counts as ones: its
    /// difference from ones goes into the start, so the bytes need no copy.
    #[inline]
    fn masking(self, bth: &[u8]) -> u32 {
        self.0 ^ bth.get(4).map_or(0, |byte| BTH_BYTE_4.of(!byte))
    }
}

/// The ICRC of a packet to send: `headers` from the BTH on, the payload in
/// pieces, `pad` (0 to 3) zero bytes. `ipv4_id` is the identification that the
/// IP layer will set: 0, or the segment's index in a segmented send; without
/// effect on IPv6.
#[must_use]
#[inline]
pub fn compute(
    flow: &FlowSeed,
    ipv4_id: u16,
    headers: &[u8],
    payload: &[&[u8]],
    pad: u8,
) -> [u8; ICRC_LEN] {
    let payload_bytes: usize = payload.iter().map(|part| part.len()).sum();
    let udp_payload_bytes = headers.len() + payload_bytes + usize::from(pad) + ICRC_LEN;
    flow.seed(udp_payload_bytes, ipv4_id).over_parts(headers, payload, pad)
}

/// Checks a received UDP payload whose IPv4 identification is known, or which
/// came by IPv6 (then `ipv4_id` is without effect).
#[must_use]
#[inline]
pub fn verify_with_id(flow: &FlowSeed, ipv4_id: u16, udp_payload: &[u8]) -> bool {
    udp_payload
        .split_last_chunk::<ICRC_LEN>()
        .is_some_and(|(covered, icrc)| flow.seed(udp_payload.len(), ipv4_id).over(covered) == *icrc)
}

/// Checks a UDP payload that came by IPv6.
#[must_use]
#[inline]
pub fn verify_v6(flow: &FlowSeed, udp_payload: &[u8]) -> bool {
    debug_assert!(!flow.is_ipv4);
    verify_with_id(flow, 0, udp_payload)
}

/// Checks a UDP payload that came by IPv4, where the socket hides the
/// identification, and returns the identification that makes the ICRC right.
///
/// `expected_id` is tried first and costs least: the index of the packet in a
/// coalesced receive, else 0. Any other identification costs one more
/// multiplication: as a CRC is linear, the difference from the expected ICRC,
/// divided by what the bytes behind the identification multiplied it with, is
/// the difference of the identifications, or does not fit 16 bits.
#[must_use]
#[inline]
pub fn verify_v4_hidden_id(
    flow: &FlowSeed,
    expected_id: u16,
    udp_payload: &[u8],
    basis: &mut IdBasis,
) -> Option<u16> {
    debug_assert!(flow.is_ipv4);
    hidden_id(flow.of_length(udp_payload.len()), expected_id, udp_payload, basis)
}

/// As [`verify_v4_hidden_id`]; `seeds` are those of the payload's length.
#[inline]
fn hidden_id(
    seeds: LengthSeed,
    expected_id: u16,
    udp_payload: &[u8],
    basis: &mut IdBasis,
) -> Option<u16> {
    let (covered, received) = udp_payload.split_last_chunk::<ICRC_LEN>()?;
    let computed = seeds.seed(expected_id).over(covered);
    let difference = u32::from_le_bytes(computed) ^ u32::from_le_bytes(*received);
    if difference == 0 {
        return Some(expected_id);
    }
    let [high, low, 0, 0] = basis.pull_back(difference, AFTER_ID + covered.len()).to_le_bytes()
    else {
        return None;
    };
    Some(expected_id ^ u16::from_be_bytes([high, low]))
}

/// Checks a UDP payload of either family: whole on IPv6, for a hidden
/// identification on IPv4.
#[must_use]
#[inline]
pub fn verify(flow: &FlowSeed, expected_id: u16, udp_payload: &[u8], basis: &mut IdBasis) -> bool {
    verify_of_length(flow.of_length(udp_payload.len()), expected_id, udp_payload, basis)
}

/// As [`verify`], for one of several payloads of a length; `seeds` are those of that length.
#[must_use]
#[inline]
pub fn verify_of_length(
    seeds: LengthSeed,
    expected_id: u16,
    udp_payload: &[u8],
    basis: &mut IdBasis,
) -> bool {
    if seeds.is_ipv4 {
        hidden_id(seeds, expected_id, udp_payload, basis).is_some()
    } else {
        udp_payload
            .split_last_chunk::<ICRC_LEN>()
            .is_some_and(|(covered, icrc)| seeds.seed.over(covered) == *icrc)
    }
}

#[cfg(test)]
mod tests;

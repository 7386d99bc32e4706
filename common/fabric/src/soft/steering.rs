//! Which member of a group a packet belongs to: the same rule that the kernel is given as a
//! program (`udp::socket`), for packets that it merged and gave to the wrong one.
//!
//! Queue pair numbers and connection manager ids are chosen so that their remainder by the number
//! of members is their owner's. A REQ has no number of ours yet: it goes where the number of its
//! sender's queue pair says. Its duplicates follow it, and so does a REQ that takes a queue pair's
//! place; the queues of a host have consecutive numbers and spread over the members. (Its
//! sender's id would not do: Linux counts it up in the first byte on the wire, so that the
//! remainder stays the same.)

use lariat_roce::transmit::{Payload, Transmit};
use lariat_wire::rocev2::{Packet, Qpn};

/// Offset of the attribute id in a MAD.
const ATTRIBUTE: usize = 16;
/// Offset of the CM message in a MAD.
const BODY: usize = 24;
/// Offset of the receiver's communication id in the messages that have one.
const REMOTE_ID: usize = BODY + 4;
/// ConnectRequest (IBTA 12.6.5), and the offset of its sender's queue pair number in 24 bits.
const REQ: [u8; 2] = [0, 0x10];
const REQ_QPN: usize = BODY + 32;

/// The member, for a group of `count`.
#[inline]
#[must_use]
pub fn member_of(packet: &Packet<'_>, count: u8) -> u8 {
    member(packet.bth.dest_qp, packet.payload, count)
}

/// The member of the receiver's group, for a packet that is to be sent.
#[inline]
#[must_use]
pub fn member_for(packet: &Transmit, count: u8) -> u8 {
    let mad = match &packet.payload {
        Payload::Mad(mad) => mad.as_slice(),
        Payload::Empty | Payload::Memory(..) => &[],
    };
    member(packet.dest_qp, mad, count)
}

#[inline]
fn member(dest_qp: Qpn, mad: &[u8], count: u8) -> u8 {
    let key = if dest_qp == Qpn::CM { cm_key(mad).unwrap_or(0) } else { dest_qp.get() };
    let remainder = key % u32::from(count.max(1));
    u8::try_from(remainder).unwrap_or(0)
}

fn cm_key(mad: &[u8]) -> Option<u32> {
    let word = |at: usize| mad.get(at..)?.first_chunk().copied().map(u32::from_be_bytes);
    if mad.get(ATTRIBUTE..ATTRIBUTE + 2)? == REQ {
        Some(word(REQ_QPN)? >> 8)
    } else {
        word(REMOTE_ID)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// REQs as Linux' Soft-RoCE sends them: communication ids that count up in their first byte,
    /// queue pair numbers that count up as numbers.
    #[test]
    fn the_queues_of_a_linux_host_spread_over_the_members() {
        let mut members = [0; 2];
        for queue in 0..8_u8 {
            let mut datagram = vec![0; 12 + 8 + 256 + 4];
            datagram[0] = 0x64;
            datagram[7] = 1;
            let mad = &mut datagram[20..];
            mad[ATTRIBUTE + 1] = 0x10;
            mad[BODY..BODY + 4].copy_from_slice(&[0x40 + queue, 0x6f, 0x21, 0x9b]);
            mad[REQ_QPN..REQ_QPN + 4].copy_from_slice(&[0, 0, 17 + queue, 128]);
            let member = member_of(&Packet::parse(&datagram).unwrap(), 2);
            members[usize::from(member)] += 1;
        }
        assert_eq!(members, [4, 4]);
    }
}

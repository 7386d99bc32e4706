//! Which member of a group a packet belongs to: the same rule that the kernel is given as a
//! program (`udp::socket`), for packets that it merged and gave to the wrong one.
//!
//! Queue pair numbers and connection manager ids are chosen so that their remainder by the number
//! of members is their owner's. A REQ has no id of ours yet: it goes where its sender's id says,
//! so its duplicates follow it.

use lariat_wire::rocev2::{Packet, Qpn};

/// Offset of the attribute id in a MAD.
const ATTRIBUTE: usize = 16;
/// Offset of the CM message in a MAD.
const BODY: usize = 24;
/// ConnectRequest (IBTA 16.7.2).
const REQ: [u8; 2] = [0, 0x10];

/// The member, for a group of `count`.
#[inline]
#[must_use]
pub fn member_of(packet: &Packet<'_>, count: u8) -> u8 {
    let key = if packet.bth.dest_qp == Qpn::CM {
        cm_key(packet.payload).unwrap_or(0)
    } else {
        packet.bth.dest_qp.get()
    };
    let remainder = key % u32::from(count.max(1));
    u8::try_from(remainder).unwrap_or(0)
}

fn cm_key(mad: &[u8]) -> Option<u32> {
    let attribute = mad.get(ATTRIBUTE..ATTRIBUTE + 2)?;
    let at = if attribute == REQ { BODY } else { BODY + 4 };
    mad.get(at..)?.first_chunk().copied().map(u32::from_be_bytes)
}

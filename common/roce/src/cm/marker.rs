//! The marker by which two soft endpoints tell each other where their sockets are.
//!
//! It stands in the last 16 bytes of the private data of REQ, REP and DREQ: `LARIAT\0\x01`, the
//! UDP port (big-endian; 0 is 4791), the number of sockets of the group, zeros. Others take it for
//! private data of no interest. Called by `messages` and by the endpoint.

use core::num::NonZeroU16;

use lariat_wire::rocev2::UDP_PORT;

const MAGIC: [u8; 8] = *b"LARIAT\0\x01";

/// What the marker says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Marker {
    /// The UDP port that the sender receives on.
    pub(crate) udp_port: u16,
    /// Sockets that share it.
    pub(crate) sockets: u8,
}

impl Marker {
    /// Length in bytes.
    pub(crate) const LEN: usize = 16;

    /// The marker at the end of `private_data`.
    pub(crate) fn find(private_data: &[u8]) -> Option<Self> {
        let [m0, m1, m2, m3, m4, m5, m6, m7, p0, p1, sockets, ..] =
            private_data.last_chunk::<{ Self::LEN }>()?;
        if [*m0, *m1, *m2, *m3, *m4, *m5, *m6, *m7] != MAGIC {
            return None;
        }
        let port = NonZeroU16::new(u16::from_be_bytes([*p0, *p1]));
        Some(Self { udp_port: port.map_or(UDP_PORT, NonZeroU16::get), sockets: (*sockets).max(1) })
    }

    /// Writes the marker over the end of `private_data`.
    pub(crate) fn put(self, private_data: &mut [u8]) {
        if let Some(end) = private_data.last_chunk_mut::<{ Self::LEN }>() {
            let port = if self.udp_port == UDP_PORT { 0 } else { self.udp_port };
            let [p0, p1] = port.to_be_bytes();
            let [m0, m1, m2, m3, m4, m5, m6, m7] = MAGIC;
            *end = [m0, m1, m2, m3, m4, m5, m6, m7, p0, p1, self.sockets, 0, 0, 0, 0, 0];
        }
    }

    /// Clears the marker, if there is one, so that the consumer does not see it.
    pub(crate) fn erase(private_data: &mut [u8]) {
        if Self::find(private_data).is_some()
            && let Some(end) = private_data.last_chunk_mut::<{ Self::LEN }>()
        {
            *end = [0; Self::LEN];
        }
    }

    /// Whether peers cannot find us without it.
    pub(crate) const fn is_needed(self) -> bool {
        self.udp_port != UDP_PORT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survives_and_vanishes() {
        for marker in
            [Marker { udp_port: 4791, sockets: 1 }, Marker { udp_port: 33_000, sockets: 8 }]
        {
            let mut data = [7; 56];
            assert_eq!(Marker::find(&data), None);
            marker.put(&mut data);
            assert_eq!(Marker::find(&data), Some(marker));
            assert_eq!(data[..40], [7; 40]);
            assert_eq!(&data[40..48], b"LARIAT\0\x01");
            Marker::erase(&mut data);
            assert_eq!(data[..40], [7; 40]);
            assert_eq!(data[40..], [0; 16]);
        }
        assert_eq!(Marker::find(&[0; 15]), None);
    }
}

//! What the 64 bits of a work request identifier mean to the reactor: the kind of work, and whose
//! it was. Completions with an error say nothing else that can be trusted.

const KIND_SHIFT: u32 = 56;
const CONNECTION_SHIFT: u32 = 32;
/// Connections of a reactor: what the identifier has room for.
pub(super) const MAX_CONNECTIONS: u32 = 1 << 24;

/// The kind of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A receive; the index is the buffer's.
    Receive,
    /// An RDMA READ; the index is the request's slot.
    Read,
    /// An RDMA WRITE; the index is the request's slot.
    Write,
    /// A response; the index is the request's slot.
    Response,
    /// A receive of a shared queue, which stands in the connection's place; the index is the
    /// buffer's.
    Shared,
    /// A question whether the peer is still there; the index means nothing.
    Probe,
}

/// A work request identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WrId {
    /// The kind.
    pub(super) kind: Kind,
    /// The connection's key.
    pub(super) connection: u32,
    /// A receive buffer or a slot.
    pub(super) index: u32,
}

impl WrId {
    pub(super) const fn receive(connection: u32, index: u32) -> Self {
        Self { kind: Kind::Receive, connection, index }
    }

    pub(super) const fn shared(queue: u32, index: u32) -> Self {
        Self { kind: Kind::Shared, connection: queue, index }
    }

    pub(super) fn encode(self) -> u64 {
        let kind: u64 = match self.kind {
            Kind::Receive => 1,
            Kind::Read => 2,
            Kind::Write => 3,
            Kind::Response => 4,
            Kind::Probe => 5,
            Kind::Shared => 6,
        };
        kind << KIND_SHIFT
            | u64::from(self.connection % MAX_CONNECTIONS) << CONNECTION_SHIFT
            | u64::from(self.index)
    }

    /// `None` for what [`Self::encode`] never made.
    pub(super) fn decode(bits: u64) -> Option<Self> {
        let kind = match bits >> KIND_SHIFT {
            1 => Kind::Receive,
            2 => Kind::Read,
            3 => Kind::Write,
            4 => Kind::Response,
            5 => Kind::Probe,
            6 => Kind::Shared,
            _ => return None,
        };
        let connection = u32::try_from(bits >> CONNECTION_SHIFT & 0x00ff_ffff).ok()?;
        let index = u32::try_from(bits & 0xffff_ffff).ok()?;
        Some(Self { kind, connection, index })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn round_trip(connection in 0..MAX_CONNECTIONS, index: u32) {
            for kind in [
                Kind::Receive,
                Kind::Read,
                Kind::Write,
                Kind::Response,
                Kind::Probe,
                Kind::Shared,
            ] {
                let id = WrId { kind, connection, index };
                prop_assert_eq!(WrId::decode(id.encode()), Some(id));
            }
        }
    }

    #[test]
    fn others_are_nothing() {
        assert_eq!(WrId::decode(0), None);
        assert_eq!(WrId::decode(u64::MAX), None);
    }
}

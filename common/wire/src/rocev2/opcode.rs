//! The BTH opcode: what a packet is and which extended headers follow it.
//!
//! Calls nothing; used by `packet` and by the queue pairs of `lariat-roce`.

/// A packet's operation (IBTA 9.2.1, table 38): the reliable connected (RC)
/// service, the datagrams of the UD service, and the congestion notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are those of the specification's table")]
pub enum Opcode {
    SendFirst,
    SendMiddle,
    SendLast,
    SendLastImm,
    SendOnly,
    SendOnlyImm,
    WriteFirst,
    WriteMiddle,
    WriteLast,
    WriteLastImm,
    WriteOnly,
    WriteOnlyImm,
    ReadRequest,
    ReadResponseFirst,
    ReadResponseMiddle,
    ReadResponseLast,
    ReadResponseOnly,
    Acknowledge,
    AtomicAcknowledge,
    CompareSwap,
    FetchAdd,
    SendLastInvalidate,
    SendOnlyInvalidate,
    UdSendOnly,
    UdSendOnlyImm,
    /// Congestion notification (IBTA A17.9.3).
    Cnp,
    /// Anything else, kept: other transport services, reserved values.
    Unknown(u8),
}

/// A packet's place in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Position {
    First,
    Middle,
    Last,
    Only,
}

impl Position {
    /// Whether a message begins with this packet.
    #[must_use]
    pub const fn starts(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// Whether a message ends with this packet.
    #[must_use]
    pub const fn ends(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

impl From<u8> for Opcode {
    #[inline]
    fn from(value: u8) -> Self {
        match value {
            0x00 => Self::SendFirst,
            0x01 => Self::SendMiddle,
            0x02 => Self::SendLast,
            0x03 => Self::SendLastImm,
            0x04 => Self::SendOnly,
            0x05 => Self::SendOnlyImm,
            0x06 => Self::WriteFirst,
            0x07 => Self::WriteMiddle,
            0x08 => Self::WriteLast,
            0x09 => Self::WriteLastImm,
            0x0a => Self::WriteOnly,
            0x0b => Self::WriteOnlyImm,
            0x0c => Self::ReadRequest,
            0x0d => Self::ReadResponseFirst,
            0x0e => Self::ReadResponseMiddle,
            0x0f => Self::ReadResponseLast,
            0x10 => Self::ReadResponseOnly,
            0x11 => Self::Acknowledge,
            0x12 => Self::AtomicAcknowledge,
            0x13 => Self::CompareSwap,
            0x14 => Self::FetchAdd,
            0x16 => Self::SendLastInvalidate,
            0x17 => Self::SendOnlyInvalidate,
            0x64 => Self::UdSendOnly,
            0x65 => Self::UdSendOnlyImm,
            0x81 => Self::Cnp,
            other => Self::Unknown(other),
        }
    }
}

impl From<Opcode> for u8 {
    #[inline]
    fn from(opcode: Opcode) -> Self {
        match opcode {
            Opcode::SendFirst => 0x00,
            Opcode::SendMiddle => 0x01,
            Opcode::SendLast => 0x02,
            Opcode::SendLastImm => 0x03,
            Opcode::SendOnly => 0x04,
            Opcode::SendOnlyImm => 0x05,
            Opcode::WriteFirst => 0x06,
            Opcode::WriteMiddle => 0x07,
            Opcode::WriteLast => 0x08,
            Opcode::WriteLastImm => 0x09,
            Opcode::WriteOnly => 0x0a,
            Opcode::WriteOnlyImm => 0x0b,
            Opcode::ReadRequest => 0x0c,
            Opcode::ReadResponseFirst => 0x0d,
            Opcode::ReadResponseMiddle => 0x0e,
            Opcode::ReadResponseLast => 0x0f,
            Opcode::ReadResponseOnly => 0x10,
            Opcode::Acknowledge => 0x11,
            Opcode::AtomicAcknowledge => 0x12,
            Opcode::CompareSwap => 0x13,
            Opcode::FetchAdd => 0x14,
            Opcode::SendLastInvalidate => 0x16,
            Opcode::SendOnlyInvalidate => 0x17,
            Opcode::UdSendOnly => 0x64,
            Opcode::UdSendOnlyImm => 0x65,
            Opcode::Cnp => 0x81,
            Opcode::Unknown(value) => value,
        }
    }
}

impl Opcode {
    /// Whether an RDMA header (address, key, length) follows.
    #[must_use]
    pub const fn has_reth(self) -> bool {
        matches!(self, Self::WriteFirst | Self::WriteOnly | Self::WriteOnlyImm | Self::ReadRequest)
    }

    /// Whether an acknowledge header follows.
    #[must_use]
    pub const fn has_aeth(self) -> bool {
        matches!(
            self,
            Self::ReadResponseFirst
                | Self::ReadResponseLast
                | Self::ReadResponseOnly
                | Self::Acknowledge
                | Self::AtomicAcknowledge
        )
    }

    /// Whether immediate data follows.
    #[must_use]
    pub const fn has_imm(self) -> bool {
        matches!(
            self,
            Self::SendLastImm
                | Self::SendOnlyImm
                | Self::WriteLastImm
                | Self::WriteOnlyImm
                | Self::UdSendOnlyImm
        )
    }

    /// Whether a key to invalidate follows.
    #[must_use]
    pub const fn has_ieth(self) -> bool {
        matches!(self, Self::SendLastInvalidate | Self::SendOnlyInvalidate)
    }

    /// Whether a datagram header follows.
    #[must_use]
    pub const fn has_deth(self) -> bool {
        matches!(self, Self::UdSendOnly | Self::UdSendOnlyImm)
    }

    /// Whether the packet may carry data of a message. The fixed bytes that
    /// atomic operations and congestion notifications carry are not.
    #[must_use]
    pub const fn has_payload(self) -> bool {
        self.is_send() || self.is_write() || self.is_read_response() || self.has_deth()
    }

    /// Whether this is a part of a SEND of the RC service.
    #[must_use]
    pub const fn is_send(self) -> bool {
        matches!(
            self,
            Self::SendFirst
                | Self::SendMiddle
                | Self::SendLast
                | Self::SendLastImm
                | Self::SendOnly
                | Self::SendOnlyImm
                | Self::SendLastInvalidate
                | Self::SendOnlyInvalidate
        )
    }

    /// Whether this is a part of an RDMA WRITE.
    #[must_use]
    pub const fn is_write(self) -> bool {
        matches!(
            self,
            Self::WriteFirst
                | Self::WriteMiddle
                | Self::WriteLast
                | Self::WriteLastImm
                | Self::WriteOnly
                | Self::WriteOnlyImm
        )
    }

    /// Whether this is a part of the answer to an RDMA READ.
    #[must_use]
    pub const fn is_read_response(self) -> bool {
        matches!(
            self,
            Self::ReadResponseFirst
                | Self::ReadResponseMiddle
                | Self::ReadResponseLast
                | Self::ReadResponseOnly
        )
    }

    /// Whether a requester sends it, datagrams included.
    #[must_use]
    pub const fn is_request(self) -> bool {
        self.is_send()
            || self.is_write()
            || self.has_deth()
            || matches!(self, Self::ReadRequest | Self::CompareSwap | Self::FetchAdd)
    }

    /// Whether a responder sends it: acknowledges and read data.
    #[must_use]
    pub const fn is_response(self) -> bool {
        self.is_read_response() || matches!(self, Self::Acknowledge | Self::AtomicAcknowledge)
    }

    /// The packet's place in its message; none where the opcode is not known
    /// and for congestion notifications, which belong to no message.
    #[must_use]
    pub const fn position(self) -> Option<Position> {
        Some(match self {
            Self::SendFirst | Self::WriteFirst | Self::ReadResponseFirst => Position::First,
            Self::SendMiddle | Self::WriteMiddle | Self::ReadResponseMiddle => Position::Middle,
            Self::SendLast
            | Self::SendLastImm
            | Self::SendLastInvalidate
            | Self::WriteLast
            | Self::WriteLastImm
            | Self::ReadResponseLast => Position::Last,
            Self::SendOnly
            | Self::SendOnlyImm
            | Self::SendOnlyInvalidate
            | Self::WriteOnly
            | Self::WriteOnlyImm
            | Self::ReadRequest
            | Self::ReadResponseOnly
            | Self::Acknowledge
            | Self::AtomicAcknowledge
            | Self::CompareSwap
            | Self::FetchAdd
            | Self::UdSendOnly
            | Self::UdSendOnlyImm => Position::Only,
            Self::Cnp | Self::Unknown(_) => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_survives_and_is_classed_once() {
        for byte in 0..=u8::MAX {
            let opcode = Opcode::from(byte);
            assert_eq!(u8::from(opcode), byte);
            assert!(!(opcode.is_request() && opcode.is_response()), "{opcode:?}");
            let plain = matches!(opcode, Opcode::Cnp | Opcode::Unknown(_));
            assert_eq!(opcode.is_request() || opcode.is_response(), !plain);
            assert_eq!(opcode.position().is_some(), !plain);
            let starts_write = opcode.is_write() && opcode.position().is_some_and(Position::starts);
            assert_eq!(opcode.has_reth(), starts_write || opcode == Opcode::ReadRequest);
        }
    }
}

//! The header of a management datagram (MAD), as the connection manager's use it.
//!
//! Uses `fields`; used by `cm`.

use thiserror::Error;

use super::fields::Fields;

/// Length of a management datagram in bytes (IBTA 13.4.2); a packet carries it
/// as its whole payload.
pub const CM_MAD_LEN: usize = 256;

/// The shortest datagram that is read: bytes missing at the end count as zero.
/// The kernel accepts such a one.
pub const CM_MAD_MIN_LEN: usize = 232;

/// Why bytes are not a datagram of the connection manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MadError {
    /// Not between [`CM_MAD_MIN_LEN`] and [`CM_MAD_LEN`] bytes.
    #[error("management datagram of {len} bytes, not {CM_MAD_MIN_LEN} to {CM_MAD_LEN}")]
    Length {
        /// Bytes there are.
        len: usize,
    },
    /// Another management class, version or method.
    #[error(
        "management datagram of base version {base_version}, class {class:#04x} \
         version {class_version}, method {method:#04x}: not of the connection manager"
    )]
    NotCm {
        /// Version of the header; 1.
        base_version: u8,
        /// Management class; 7 for the connection manager.
        class: u8,
        /// Version of the class; 2.
        class_version: u8,
        /// Method; 3, Send.
        method: u8,
    },
}

/// Common MAD header (IBTA 13.4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadHeader {
    /// Version of the header.
    pub base_version: u8,
    /// Management class.
    pub class: u8,
    /// Version of the class.
    pub class_version: u8,
    /// Method.
    pub method: u8,
    /// Status.
    pub status: u16,
    /// For the class to use; zero in the connection manager.
    pub class_specific: u16,
    /// Names the exchange; the sender of its first message chooses it.
    pub transaction_id: u64,
    /// What the datagram is.
    pub attribute: u16,
    /// Reserved, kept.
    pub reserved: u16,
    /// Says more about the attribute; zero in the connection manager.
    pub attribute_modifier: u32,
}

impl MadHeader {
    /// Length in bytes.
    pub const LEN: usize = 24;

    /// The header of a connection manager's message (IBTA 12.6 and 16.7.1).
    #[must_use]
    pub const fn cm(attribute: u16, transaction_id: u64) -> Self {
        Self {
            base_version: 1,
            class: 7,
            class_version: 2,
            method: 3,
            status: 0,
            class_specific: 0,
            transaction_id,
            attribute,
            reserved: 0,
            attribute_modifier: 0,
        }
    }

    /// Reads the header; every value of the bytes is one.
    #[must_use]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        Self {
            base_version: bytes.u8_at::<0>(),
            class: bytes.u8_at::<1>(),
            class_version: bytes.u8_at::<2>(),
            method: bytes.u8_at::<3>(),
            status: bytes.be16_at::<4>(),
            class_specific: bytes.be16_at::<6>(),
            transaction_id: bytes.be64_at::<8>(),
            attribute: bytes.be16_at::<16>(),
            reserved: bytes.be16_at::<18>(),
            attribute_modifier: bytes.be32_at::<20>(),
        }
    }

    /// The header's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out.put_u8::<0>(self.base_version);
        out.put_u8::<1>(self.class);
        out.put_u8::<2>(self.class_version);
        out.put_u8::<3>(self.method);
        out.put_be16::<4>(self.status);
        out.put_be16::<6>(self.class_specific);
        out.put_be64::<8>(self.transaction_id);
        out.put_be16::<16>(self.attribute);
        out.put_be16::<18>(self.reserved);
        out.put_be32::<20>(self.attribute_modifier);
        out
    }

    /// Checks that the datagram is one of the connection manager.
    ///
    /// # Errors
    /// When class, versions or method are others.
    pub const fn check_cm(&self) -> Result<(), MadError> {
        if self.base_version == 1 && self.class == 7 && self.class_version == 2 && self.method == 3
        {
            Ok(())
        } else {
            Err(MadError::NotCm {
                base_version: self.base_version,
                class: self.class,
                class_version: self.class_version,
                method: self.method,
            })
        }
    }
}

//! The SGL descriptor in a command's data pointer (NVMe Base 2.1, 4.3.2; keyed
//! descriptors: RDMA transport 1.1, 4.2). Calls nothing; commands call it.

use super::status::Status;

/// Size of a descriptor.
pub const SGL_BYTES: usize = 16;

/// Longest transfer a keyed descriptor can name: its length has 24 bits.
pub const MAX_KEYED_LENGTH_BYTES: u32 = 0x00ff_ffff;

const TYPE_DATA_BLOCK: u8 = 0x0;
const TYPE_KEYED: u8 = 0x4;
const SUBTYPE_ADDRESS: u8 = 0x0;
const SUBTYPE_OFFSET: u8 = 0x1;
const SUBTYPE_INVALIDATE: u8 = 0xf;

/// One SGL descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Sgl {
    /// No data: a keyed descriptor (type byte 40h) of zeros, which is what
    /// kernel targets want to see in commands without data.
    Null,
    /// Memory of the host, reached by RDMA.
    Keyed {
        /// Virtual address in the host's memory region.
        address: u64,
        /// Length in bytes; 24 bits, higher ones are not sent.
        length: u32,
        /// The region's remote key.
        key: u32,
        /// Whether the response shall invalidate `key` (subtype Fh).
        invalidate: bool,
    },
    /// Data behind the command in its own capsule (data block, subtype offset).
    InCapsule {
        /// Bytes from the start of in-capsule data.
        offset: u64,
        /// Length in bytes.
        length: u32,
    },
    /// A data block by address, as PCIe uses it; all zeros is another way to
    /// say "no data".
    DataBlockAddress {
        /// Memory address.
        address: u64,
        /// Length in bytes.
        length: u32,
    },
    /// Any other descriptor, kept whole.
    Unknown {
        /// Descriptor type, 4 bits.
        kind: u8,
        /// Descriptor subtype, 4 bits.
        subtype: u8,
        /// The 15 bytes that stand before the type byte.
        body: [u8; 15],
    },
}

impl Sgl {
    /// A keyed descriptor without invalidation; `None` when `length` needs more
    /// than 24 bits.
    #[must_use]
    pub fn keyed(address: u64, length: u32, key: u32) -> Option<Self> {
        (length <= MAX_KEYED_LENGTH_BYTES).then_some(Self::Keyed {
            address,
            length,
            key,
            invalidate: false,
        })
    }

    /// Parses the 16 bytes of a data pointer. Reserved bytes are not looked at.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; SGL_BYTES]) -> Self {
        let [a0, a1, a2, a3, a4, a5, a6, a7, l0, l1, l2, l3, k1, k2, k3, identifier] = *bytes;
        let address = u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7]);
        let block_length = u32::from_le_bytes([l0, l1, l2, l3]);
        let keyed_length = u32::from_le_bytes([l0, l1, l2, 0]);
        let key = u32::from_le_bytes([l3, k1, k2, k3]);
        match (identifier >> 4, identifier & 0xf) {
            (TYPE_KEYED, SUBTYPE_ADDRESS) if address == 0 && keyed_length == 0 && key == 0 => {
                Self::Null
            }
            (TYPE_KEYED, SUBTYPE_ADDRESS) => {
                Self::Keyed { address, length: keyed_length, key, invalidate: false }
            }
            (TYPE_KEYED, SUBTYPE_INVALIDATE) => {
                Self::Keyed { address, length: keyed_length, key, invalidate: true }
            }
            (TYPE_DATA_BLOCK, SUBTYPE_ADDRESS) => {
                Self::DataBlockAddress { address, length: block_length }
            }
            (TYPE_DATA_BLOCK, SUBTYPE_OFFSET) => {
                Self::InCapsule { offset: address, length: block_length }
            }
            (kind, subtype) => Self::Unknown {
                kind,
                subtype,
                body: [a0, a1, a2, a3, a4, a5, a6, a7, l0, l1, l2, l3, k1, k2, k3],
            },
        }
    }

    /// The 16 bytes of a data pointer; reserved bytes are zero.
    #[must_use]
    pub fn to_bytes(self) -> [u8; SGL_BYTES] {
        let mut bytes = [0; SGL_BYTES];
        match self {
            Self::Null => bytes[15] = TYPE_KEYED << 4,
            Self::Keyed { address, length, key, invalidate } => {
                bytes[..8].copy_from_slice(&address.to_le_bytes());
                bytes[8..11].copy_from_slice(&length.to_le_bytes()[..3]);
                bytes[11..15].copy_from_slice(&key.to_le_bytes());
                let subtype = if invalidate { SUBTYPE_INVALIDATE } else { SUBTYPE_ADDRESS };
                bytes[15] = TYPE_KEYED << 4 | subtype;
            }
            Self::InCapsule { offset, length } => {
                bytes[..8].copy_from_slice(&offset.to_le_bytes());
                bytes[8..12].copy_from_slice(&length.to_le_bytes());
                bytes[15] = TYPE_DATA_BLOCK << 4 | SUBTYPE_OFFSET;
            }
            Self::DataBlockAddress { address, length } => {
                bytes[..8].copy_from_slice(&address.to_le_bytes());
                bytes[8..12].copy_from_slice(&length.to_le_bytes());
                bytes[15] = TYPE_DATA_BLOCK << 4 | SUBTYPE_ADDRESS;
            }
            Self::Unknown { kind, subtype, body } => {
                bytes[..15].copy_from_slice(&body);
                bytes[15] = kind << 4 | (subtype & 0xf);
            }
        }
        bytes
    }

    /// Bytes of data that the descriptor names; 0 for unknown types.
    #[must_use]
    pub const fn length_bytes(self) -> u32 {
        match self {
            Self::Null | Self::Unknown { .. } => 0,
            Self::Keyed { length, .. }
            | Self::InCapsule { length, .. }
            | Self::DataBlockAddress { length, .. } => length,
        }
    }

    /// Whether the descriptor names no data.
    #[must_use]
    pub const fn is_null(self) -> bool {
        !matches!(self, Self::Unknown { .. }) && self.length_bytes() == 0
    }

    /// The status for a command whose descriptor type cannot be used.
    pub const UNUSABLE: Status = Status::SGL_INVALID_TYPE.with_dnr();
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn keyed_bytes() {
        let sgl = Sgl::Keyed {
            address: 0x0000_1498_d5f1_4000,
            length: 4096,
            key: 0x2c96_450d,
            invalidate: true,
        };
        let bytes = [
            0x00, 0x40, 0xf1, 0xd5, 0x98, 0x14, 0, 0, 0x00, 0x10, 0x00, 0x0d, 0x45, 0x96, 0x2c,
            0x4f,
        ];
        assert_eq!(sgl.to_bytes(), bytes);
        assert_eq!(Sgl::from_bytes(&bytes), sgl);
    }

    #[test]
    fn null_forms() {
        let null = Sgl::Null.to_bytes();
        assert_eq!(null, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x40]);
        assert_eq!(Sgl::from_bytes(&null), Sgl::Null);
        assert!(Sgl::from_bytes(&[0; 16]).is_null());
        assert!(!Sgl::Unknown { kind: 5, subtype: 10, body: [0; 15] }.is_null());
    }

    #[test]
    fn keyed_length_has_24_bits() {
        assert_eq!(Sgl::keyed(0, 0x0100_0000, 1), None);
        assert!(Sgl::keyed(0, 0x00ff_ffff, 1).is_some());
    }

    proptest! {
        #[test]
        fn parse_is_total_and_emit_is_its_inverse(bytes: [u8; 16]) {
            let sgl = Sgl::from_bytes(&bytes);
            prop_assert_eq!(Sgl::from_bytes(&sgl.to_bytes()), sgl);
            let emitted = sgl.to_bytes();
            prop_assert_eq!(emitted[15], bytes[15]);
            prop_assert_eq!(&emitted[..12], &bytes[..12]);
        }

        #[test]
        fn known_types_round_trip(address: u64, length in 0u32..=MAX_KEYED_LENGTH_BYTES, key: u32,
                                  invalidate: bool) {
            for sgl in [
                Sgl::Keyed { address: address | 1, length, key, invalidate },
                Sgl::InCapsule { offset: address, length },
                Sgl::DataBlockAddress { address, length },
            ] {
                prop_assert_eq!(Sgl::from_bytes(&sgl.to_bytes()), sgl);
            }
        }
    }
}

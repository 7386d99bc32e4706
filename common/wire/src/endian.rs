//! Little-endian integers of alignment 1, for structures that lie on the wire
//! as they lie in memory. Called by every fixed layout in `nvme`.

use core::fmt;

use bytemuck::{Pod, Zeroable};

macro_rules! little_endian {
    ($(#[$meta:meta])* $ty:ident, $int:ty, $size:literal) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Pod, Zeroable)]
        #[repr(transparent)]
        pub struct $ty([u8; $size]);

        impl $ty {
            /// Stores `value` in little-endian order.
            #[must_use]
            pub const fn new(value: $int) -> Self {
                Self(value.to_le_bytes())
            }

            /// The value in the machine's own order.
            #[must_use]
            pub const fn get(self) -> $int {
                <$int>::from_le_bytes(self.0)
            }

            /// Replaces the value.
            pub const fn set(&mut self, value: $int) {
                self.0 = value.to_le_bytes();
            }
        }

        impl From<$int> for $ty {
            fn from(value: $int) -> Self {
                Self::new(value)
            }
        }

        impl From<$ty> for $int {
            fn from(value: $ty) -> Self {
                value.get()
            }
        }

        impl fmt::Debug for $ty {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.get(), f)
            }
        }

        const _: () = assert!(size_of::<$ty>() == $size && align_of::<$ty>() == 1);
    };
}

little_endian!(
    /// A `u16` in little-endian order, alignment 1.
    U16Le, u16, 2
);
little_endian!(
    /// A `u32` in little-endian order, alignment 1.
    U32Le, u32, 4
);
little_endian!(
    /// A `u64` in little-endian order, alignment 1.
    U64Le, u64, 8
);
little_endian!(
    /// A `u128` in little-endian order, alignment 1.
    U128Le, u128, 16
);

/// Reads a little-endian `u16` at `at`; `None` beyond the end.
#[must_use]
pub(crate) fn le16(bytes: &[u8], at: usize) -> Option<u16> {
    let field = bytes.get(at..at.checked_add(2)?)?;
    Some(u16::from_le_bytes(field.try_into().ok()?))
}

/// The low 16 bits of a dword.
#[must_use]
pub(crate) const fn low16(dword: u32) -> u16 {
    let [a, b, _, _] = dword.to_le_bytes();
    u16::from_le_bytes([a, b])
}

/// The high 16 bits of a dword.
#[must_use]
pub(crate) const fn high16(dword: u32) -> u16 {
    let [_, _, c, d] = dword.to_le_bytes();
    u16::from_le_bytes([c, d])
}

/// Byte `index` (0 = least significant) of a dword; the index is taken modulo 4.
#[must_use]
pub(crate) const fn byte_of(dword: u32, index: usize) -> u8 {
    dword.to_le_bytes()[index % 4]
}

/// A dword of two 16-bit halves.
#[must_use]
pub(crate) const fn join16(low: u16, high: u16) -> u32 {
    let [a, b] = low.to_le_bytes();
    let [c, d] = high.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// A qword of two dwords.
#[must_use]
pub(crate) const fn join32(low: u32, high: u32) -> u64 {
    let [a, b, c, d] = low.to_le_bytes();
    let [e, f, g, h] = high.to_le_bytes();
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

/// The low and the high dword of a qword.
#[must_use]
pub(crate) const fn split32(qword: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = qword.to_le_bytes();
    (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_little_endian() {
        assert_eq!(bytemuck::bytes_of(&U32Le::new(0x0403_0201)), [1, 2, 3, 4]);
        assert_eq!(bytemuck::bytes_of(&U16Le::new(0x0201)), [1, 2]);
        assert_eq!(U64Le::new(7).get(), 7);
    }

    #[test]
    fn halves() {
        assert_eq!(low16(0x1234_5678), 0x5678);
        assert_eq!(high16(0x1234_5678), 0x1234);
        assert_eq!(byte_of(0x1234_5678, 3), 0x12);
        assert_eq!(join16(0x5678, 0x1234), 0x1234_5678);
        assert_eq!(split32(0x0102_0304_0506_0708), (0x0506_0708, 0x0102_0304));
        assert_eq!(join32(0x0506_0708, 0x0102_0304), 0x0102_0304_0506_0708);
        assert_eq!(le16(&[1, 2, 3], 1), Some(0x0302));
        assert_eq!(le16(&[1, 2, 3], 2), None);
    }
}

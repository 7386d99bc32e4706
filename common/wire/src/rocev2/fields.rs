//! Big-endian fields at fixed offsets of fixed-size byte arrays.
//!
//! Called by the header modules of this folder only. An offset outside of the
//! array does not compile, so none of these can panic.

/// Reads and writes of big-endian fields; `OFF` is the field's first byte.
pub(super) trait Fields {
    fn u8_at<const OFF: usize>(&self) -> u8;
    fn be16_at<const OFF: usize>(&self) -> u16;
    /// Not of the first byte: the one before the field is read as well, and dropped.
    fn be24_at<const OFF: usize>(&self) -> u32;
    fn be32_at<const OFF: usize>(&self) -> u32;
    fn be64_at<const OFF: usize>(&self) -> u64;
    fn array_at<const OFF: usize, const LEN: usize>(&self) -> [u8; LEN];

    fn put_u8<const OFF: usize>(&mut self, value: u8);
    fn put_be16<const OFF: usize>(&mut self, value: u16);
    /// The upper eight bits of `value` are dropped.
    fn put_be24<const OFF: usize>(&mut self, value: u32);
    fn put_be32<const OFF: usize>(&mut self, value: u32);
    fn put_be64<const OFF: usize>(&mut self, value: u64);
    fn put_array<const OFF: usize, const LEN: usize>(&mut self, value: [u8; LEN]);
}

impl<const N: usize> Fields for [u8; N] {
    #[inline]
    fn u8_at<const OFF: usize>(&self) -> u8 {
        const { assert!(OFF < N) };
        self[OFF]
    }

    #[inline]
    fn be16_at<const OFF: usize>(&self) -> u16 {
        u16::from_be_bytes(self.array_at::<OFF, 2>())
    }

    #[inline]
    fn be24_at<const OFF: usize>(&self) -> u32 {
        const { assert!(OFF > 0 && OFF + 3 <= N) };
        let mut word = [0; 4];
        word.copy_from_slice(&self[OFF - 1..OFF + 3]);
        u32::from_be_bytes(word) & 0x00ff_ffff
    }

    #[inline]
    fn be32_at<const OFF: usize>(&self) -> u32 {
        u32::from_be_bytes(self.array_at::<OFF, 4>())
    }

    #[inline]
    fn be64_at<const OFF: usize>(&self) -> u64 {
        u64::from_be_bytes(self.array_at::<OFF, 8>())
    }

    #[inline]
    fn array_at<const OFF: usize, const LEN: usize>(&self) -> [u8; LEN] {
        const { assert!(OFF + LEN <= N) };
        let mut out = [0; LEN];
        out.copy_from_slice(&self[OFF..OFF + LEN]);
        out
    }

    #[inline]
    fn put_u8<const OFF: usize>(&mut self, value: u8) {
        const { assert!(OFF < N) };
        self[OFF] = value;
    }

    #[inline]
    fn put_be16<const OFF: usize>(&mut self, value: u16) {
        self.put_array::<OFF, 2>(value.to_be_bytes());
    }

    #[inline]
    fn put_be24<const OFF: usize>(&mut self, value: u32) {
        let [_, a, b, c] = value.to_be_bytes();
        self.put_array::<OFF, 3>([a, b, c]);
    }

    #[inline]
    fn put_be32<const OFF: usize>(&mut self, value: u32) {
        self.put_array::<OFF, 4>(value.to_be_bytes());
    }

    #[inline]
    fn put_be64<const OFF: usize>(&mut self, value: u64) {
        self.put_array::<OFF, 8>(value.to_be_bytes());
    }

    #[inline]
    fn put_array<const OFF: usize, const LEN: usize>(&mut self, value: [u8; LEN]) {
        const { assert!(OFF + LEN <= N) };
        self[OFF..OFF + LEN].copy_from_slice(&value);
    }
}

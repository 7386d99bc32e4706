//! Arithmetic of the CRC's field: polynomials over GF(2) modulo the CRC-32
//! polynomial.
//!
//! Calls nothing; used by `icrc` only.
//!
//! A word holds a polynomial bit-reversed, as the CRC's state does: the highest
//! bit is the coefficient of x^0. A byte that enters the state and is followed
//! by k more multiplies with x^(8 (k + 1)); x has an inverse, so that can be
//! undone as well.

const POLYNOMIAL: u32 = 0xedb8_8320;
/// The polynomial 1.
const ONE: u32 = 1 << 31;

const fn times_x(word: u32) -> u32 {
    (word >> 1) ^ if word & 1 == 0 { 0 } else { POLYNOMIAL }
}

const fn over_x(word: u32) -> u32 {
    if word & ONE == 0 { word << 1 } else { ((word ^ POLYNOMIAL) << 1) | 1 }
}

const fn multiply(mut a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    while a != 0 {
        if a & ONE != 0 {
            product ^= b;
        }
        a <<= 1;
        b = times_x(b);
    }
    product
}

/// x^(-8 * 2^i), that is, 2^i bytes back.
const BYTES_BACK: [u32; usize::BITS as usize] = {
    let mut powers = [0; usize::BITS as usize];
    let mut power = ONE;
    let mut step = 0;
    while step < 8 {
        power = over_x(power);
        step += 1;
    }
    let mut i = 0;
    while i < powers.len() {
        powers[i] = power;
        power = multiply(power, power);
        i += 1;
    }
    powers
};

/// x^(-8 * bytes).
fn back_by(bytes: usize) -> u32 {
    let mut factor = ONE;
    for (i, power) in BYTES_BACK.iter().enumerate() {
        if (bytes >> i) & 1 != 0 {
            factor = multiply(factor, *power);
        }
    }
    factor
}

/// The multiples, by every byte value, of one power of x.
pub(super) struct ByteTable([u32; 256]);

impl ByteTable {
    /// What a byte adds to the state once it and `after` more bytes went in.
    pub(super) const fn followed_by(after: usize) -> Self {
        let mut low_bit = 1;
        let mut step = 0;
        while step < 8 * (after + 1) {
            low_bit = times_x(low_bit);
            step += 1;
        }
        Self::of_low_bit(low_bit)
    }

    /// What to add to the state now, to have the effect of a byte that comes
    /// when `before` other bytes have gone in.
    pub(super) const fn ahead_by(before: usize) -> Self {
        let mut low_bit = 1;
        let mut step = 0;
        while step < 8 * before {
            low_bit = over_x(low_bit);
            step += 1;
        }
        Self::of_low_bit(low_bit)
    }

    /// Builds the table from the entry of the byte 1; the next higher bit of a
    /// byte stands for the next lower power of x.
    const fn of_low_bit(low_bit: u32) -> Self {
        let mut table = [0; 256];
        let mut entry = low_bit;
        let mut bit = 1;
        while bit < 256 {
            let mut below = 0;
            while below < bit {
                table[bit + below] = table[below] ^ entry;
                below += 1;
            }
            entry = over_x(entry);
            bit *= 2;
        }
        Self(table)
    }

    #[inline]
    pub(super) fn of(&self, byte: u8) -> u32 {
        self.0[usize::from(byte)]
    }
}

/// What four low bits become when multiplied by x^4.
const REDUCE_4: [u32; 16] = {
    let mut table = [0; 16];
    let mut nibble = 0;
    let mut word = 0;
    while nibble < table.len() {
        table[nibble] = times_x(times_x(times_x(times_x(word))));
        nibble += 1;
        word += 1;
    }
    table
};

/// The factor for one packet length, as a table of its multiples.
#[derive(Clone, Copy)]
struct Factor {
    /// Bytes behind the first byte of the identification.
    bytes: usize,
    /// The multiples by a polynomial of degree below 4; the highest bit of the
    /// index is x^0.
    multiples: [u32; 16],
}

impl Factor {
    const NONE: Self = Self { bytes: usize::MAX, multiples: [0; 16] };

    fn new(bytes: usize) -> Self {
        // The byte itself went in as well, hence one more.
        let mut power = back_by(bytes.wrapping_add(1));
        let mut multiples = [0; 16];
        for bit in [8_usize, 4, 2, 1] {
            for (index, multiple) in multiples.iter_mut().enumerate() {
                if index & bit != 0 {
                    *multiple ^= power;
                }
            }
            power = times_x(power);
        }
        Self { bytes, multiples }
    }

    #[inline]
    fn multiply(&self, word: u32) -> u32 {
        let mut product = 0_u32;
        for shift in [0, 4, 8, 12, 16, 20, 24, 28] {
            let reduced = (product >> 4) ^ REDUCE_4[nibble(product)];
            product = reduced ^ self.multiples[nibble(word >> shift)];
        }
        product
    }
}

#[inline]
fn nibble(word: u32) -> usize {
    let [low, ..] = word.to_le_bytes();
    usize::from(low & 0xf)
}

/// The factors for the packet lengths seen last, by which the check of a hidden
/// IPv4 identification undoes what the rest of the packet did to it.
///
/// A cache: 64 lengths, the newest replaces the one in its place. It takes some
/// 5 KB; one for each receiving thread is enough.
#[derive(Clone)]
pub struct IdBasis {
    factors: Box<[Factor; Self::PLACES]>,
}

impl IdBasis {
    const PLACES: usize = 64;

    /// An empty cache. The only allocation is here.
    #[must_use]
    pub fn new() -> Self {
        Self { factors: Box::new([Factor::NONE; Self::PLACES]) }
    }

    /// `difference` as it was `bytes` bytes (and one) before.
    #[inline]
    pub(super) fn pull_back(&mut self, difference: u32, bytes: usize) -> u32 {
        // Packets are multiples of four bytes long.
        let place = &mut self.factors[(bytes / 4) % Self::PLACES];
        if place.bytes != bytes {
            *place = Factor::new(bytes);
        }
        place.multiply(difference)
    }
}

impl Default for IdBasis {
    fn default() -> Self {
        Self::new()
    }
}

impl core::fmt::Debug for IdBasis {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let lengths = self.factors.iter().map(|factor| factor.bytes);
        f.debug_list().entries(lengths.filter(|bytes| *bytes != usize::MAX)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn x_has_an_inverse(word in any::<u32>()) {
            prop_assert_eq!(over_x(times_x(word)), word);
            prop_assert_eq!(times_x(over_x(word)), word);
        }

        #[test]
        fn factor_multiplies(word in any::<u32>(), bytes in 0_usize..70_000) {
            let factor = Factor::new(bytes);
            prop_assert_eq!(factor.multiply(word), multiply(word, back_by(bytes + 1)));
            // Forward again, by the CRC itself: zeros from a state.
            let back = factor.multiply(word);
            let mut forward = crc32fast::Hasher::new_with_initial(!back);
            forward.update(&vec![0; bytes + 1]);
            prop_assert_eq!(!forward.finalize(), word);
        }
    }
}

//! Content that says where it belongs: each eight bytes follow from a seed and their place. Calls
//! nothing; called by tests.

use std::path::Path;

use anyhow::{Context, Result, ensure};

fn word(seed: u64, place: u64) -> u64 {
    // SplitMix64's finisher over both.
    let mut z =
        seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ place.wrapping_mul(0xd1b5_4a32_d192_ed03);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Fills bytes that belong at `offset` (a multiple of 8).
pub fn fill(seed: u64, offset: u64, bytes: &mut [u8]) {
    for (place, chunk) in (offset / 8..).zip(bytes.chunks_mut(8)) {
        let word = word(seed, place).to_le_bytes();
        for (byte, value) in chunk.iter_mut().zip(word) {
            *byte = value;
        }
    }
}

/// Where two pieces differ first.
#[must_use]
pub fn first_difference(one: &[u8], other: &[u8]) -> Option<usize> {
    if one == other {
        return None;
    }
    let both = one.iter().zip(other).position(|(a, b)| a != b);
    Some(both.unwrap_or(one.len().min(other.len())))
}

/// What a disk has to hold.
#[derive(Debug)]
pub struct Content {
    bytes: Vec<u8>,
}

impl Content {
    /// All zeroes.
    ///
    /// # Errors
    /// More than there can be in memory.
    pub fn zeroes(bytes: u64) -> Result<Self> {
        Ok(Self { bytes: vec![0; usize::try_from(bytes)?] })
    }

    /// The bytes from `offset` on.
    ///
    /// # Errors
    /// There are not as many.
    pub fn at(&mut self, offset: u64, length: usize) -> Result<&mut [u8]> {
        let start = usize::try_from(offset)?;
        let end = start.checked_add(length).context("a range beyond everything")?;
        self.bytes.get_mut(start..end).context("a range beyond the disk")
    }

    /// Wants a file of exactly this content.
    ///
    /// # Errors
    /// It differs, or cannot be read.
    pub fn same_as_file(&self, file: &Path) -> Result<()> {
        let found = std::fs::read(file)?;
        let differs = first_difference(&self.bytes, &found);
        ensure!(differs.is_none(), "{} differs at byte {differs:?}", file.display());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_follows_from_seed_and_place() {
        let (mut whole, mut part) = ([0; 64], [0; 16]);
        fill(1, 4096, &mut whole);
        fill(1, 4096 + 24, &mut part);
        assert_eq!(whole.get(24..40), Some(&part[..]));
        fill(2, 4096 + 24, &mut part);
        assert_eq!(first_difference(&whole[24..40], &part), Some(0));
        assert_eq!(first_difference(&part, &part[..9]), Some(9));
        assert_eq!(first_difference(&part, &part), None);
    }
}

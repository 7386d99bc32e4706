//! What writes put into sectors: each sector says which write it is of and where it belongs, so
//! that a misplaced, mixed or damaged one is recognised.

use super::random::mix;

/// Bytes of a sector: what a disk writes as a whole or not at all.
pub const SECTOR_BYTES: usize = 512;

/// Which write a sector's bytes are of; 0 is "all zeroes".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Value(pub u64);

impl Value {
    /// All zeroes.
    pub const ZERO: Self = Self(0);
}

impl core::fmt::Display for Value {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.0 {
            0 => f.write_str("zeroes"),
            id => write!(f, "write {id}"),
        }
    }
}

/// Fills a sector with what a write puts there.
pub fn fill(value: Value, nsid: u32, sector: u64, bytes: &mut [u8]) {
    if value == Value::ZERO {
        bytes.fill(0);
        return;
    }
    let mut state = value.0 ^ sector.rotate_left(40) ^ u64::from(nsid).rotate_left(20);
    for (index, chunk) in bytes.chunks_exact_mut(8).enumerate() {
        let word = match index {
            0 => value.0,
            1 => sector,
            _ => mix(&mut state),
        };
        chunk.copy_from_slice(&word.to_le_bytes());
    }
}

/// Which write a sector's bytes are of; `None` if they are of none, or belong elsewhere.
#[must_use]
pub fn recognise(nsid: u32, sector: u64, bytes: &[u8]) -> Option<Value> {
    let id = u64::from_le_bytes(*bytes.first_chunk()?);
    let mut expected = [0; SECTOR_BYTES];
    fill(Value(id), nsid, sector, &mut expected);
    (bytes == expected).then_some(Value(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sector_is_recognised_only_whole_and_in_its_place() {
        let mut sector = [0; SECTOR_BYTES];
        assert_eq!(recognise(1, 7, &sector), Some(Value::ZERO));
        fill(Value(3), 1, 7, &mut sector);
        assert_eq!(recognise(1, 7, &sector), Some(Value(3)));
        assert_eq!(recognise(1, 8, &sector), None);
        assert_eq!(recognise(2, 7, &sector), None);
        sector[500] ^= 1;
        assert_eq!(recognise(1, 7, &sector), None);
        fill(Value(3), 1, 7, &mut sector);
        sector[256..].fill(0);
        assert_eq!(recognise(1, 7, &sector), None);
    }
}

//! Chance from a seed. Everything in a simulation that could go one way or another asks here.

use core::time::Duration;

/// A generator (xoshiro256++), seeded by SplitMix64.
#[derive(Clone, Debug)]
pub struct Rng([u64; 4]);

impl Rng {
    /// The same numbers for the same seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut state = seed;
        Self([(); 4].map(|()| mix(&mut state)))
    }

    /// A generator of its own: what it gives does not depend on how often this one is asked.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        Self::new(self.word())
    }

    /// The next 64 bits.
    pub fn word(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.0;
        let result = a.wrapping_add(*d).rotate_left(23).wrapping_add(*a);
        let shifted = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= shifted;
        *d = d.rotate_left(45);
        result
    }

    /// Less than `bound`; 0 if that is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.word().checked_rem(bound).unwrap_or(0)
    }

    /// Less than `bound`, as an index.
    pub fn index(&mut self, bound: usize) -> usize {
        usize::try_from(self.below(bound as u64)).unwrap_or(0)
    }

    /// From `low` to `high`, both included.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low).saturating_add(1))
    }

    /// True so often in a hundred.
    pub fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    /// True so often in a million.
    pub fn ppm(&mut self, chance: u32) -> bool {
        chance != 0 && self.below(1_000_000) < u64::from(chance)
    }

    /// One of these.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.index(of.len())]
    }

    /// A duration from `low` to `high` microseconds.
    pub fn micros(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_micros(self.range(low, high))
    }

    /// A random order of `0..count`.
    pub fn order(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        for at in (1..count).rev() {
            order.swap(at, self.index(at + 1));
        }
        order
    }

    /// Random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let random = self.word().to_le_bytes();
            chunk.copy_from_slice(&random[..chunk.len()]);
        }
    }
}

/// One step of SplitMix64.
pub fn mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

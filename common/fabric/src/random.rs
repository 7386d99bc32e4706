//! Where secrets come from: the operating system, or a seed in simulations.
//!
//! Used for memory keys and for the seeds of the endpoints; calls `getrandom` or nothing.

use std::io;

/// A source of random numbers.
#[derive(Clone, Debug)]
pub struct Random(Source);

#[derive(Clone)]
enum Source {
    System,
    Seeded([u64; 4]),
}

impl core::fmt::Debug for Source {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::System => "System",
            Self::Seeded(_) => "Seeded",
        })
    }
}

impl Random {
    /// The operating system's randomness.
    #[must_use]
    pub const fn system() -> Self {
        Self(Source::System)
    }

    /// The same numbers for the same seed: for simulations only, since they can be guessed.
    #[must_use]
    pub fn seeded(seed: [u8; 32]) -> Self {
        let mut state = [0x9e37_79b9_7f4a_7c15_u64; 4];
        for (word, bytes) in state.iter_mut().zip(seed.as_chunks::<8>().0) {
            *word ^= u64::from_le_bytes(*bytes);
        }
        if state == [0; 4] {
            state = [1; 4];
        }
        Self(Source::Seeded(state))
    }

    /// The next 32 bits.
    ///
    /// # Errors
    /// The operating system has no randomness to give.
    pub fn next_u32(&mut self) -> io::Result<u32> {
        match &mut self.0 {
            Source::System => getrandom::u32().map_err(io::Error::other),
            Source::Seeded(state) => {
                let [_, _, _, _, high @ ..] = step(state).to_le_bytes();
                Ok(u32::from_le_bytes(high))
            }
        }
    }

    /// 32 bytes, a seed for something else.
    ///
    /// # Errors
    /// The operating system has no randomness to give.
    pub fn next_seed(&mut self) -> io::Result<[u8; 32]> {
        let mut seed = [0; 32];
        match &mut self.0 {
            Source::System => getrandom::fill(&mut seed).map_err(io::Error::other)?,
            Source::Seeded(state) => {
                for chunk in seed.as_chunks_mut::<8>().0 {
                    *chunk = step(state).to_le_bytes();
                }
            }
        }
        Ok(seed)
    }

    /// Another source: of the same kind, and, if seeded, with numbers of its own.
    #[must_use]
    pub(crate) fn fork(&mut self) -> Self {
        match &mut self.0 {
            Source::System => Self::system(),
            Source::Seeded(state) => {
                let mut seed = [0; 32];
                for chunk in seed.as_chunks_mut::<8>().0 {
                    *chunk = step(state).to_le_bytes();
                }
                Self::seeded(seed)
            }
        }
    }

    /// 64 bits that are not secret (for the choices of a simulated network). Seeded sources never
    /// fail.
    pub(crate) fn next_u64(&mut self) -> u64 {
        match &mut self.0 {
            Source::System => getrandom::u64().unwrap_or(0),
            Source::Seeded(state) => step(state),
        }
    }
}

/// xoshiro256++ (Blackman and Vigna).
fn step(state: &mut [u64; 4]) -> u64 {
    let result = state[0].wrapping_add(state[3]).rotate_left(23).wrapping_add(state[0]);
    let shifted = state[1] << 17;
    state[2] ^= state[0];
    state[3] ^= state[1];
    state[1] ^= state[2];
    state[0] ^= state[3];
    state[2] ^= shifted;
    state[3] = state[3].rotate_left(45);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_repeat_and_differ() {
        let take = |seed: u8| {
            let mut random = Random::seeded([seed; 32]);
            (0..8).map(|_| random.next_u32().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(take(1), take(1));
        assert_ne!(take(1), take(2));
        let mut system = Random::system();
        assert_ne!(system.next_seed().unwrap(), system.next_seed().unwrap());
    }
}

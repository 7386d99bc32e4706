//! Which request comes next: offsets and direction, from a seed. Calls nothing; called by `run`.

use super::options::{BenchOptions, Region};

/// A small generator, xorshift64* (Marsaglia; Vigna). Fast and repeatable, not for secrets.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// From a seed; `stream` gives each queue a sequence of its own.
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        // splitmix64 spreads neighbouring seeds; xorshift's state must not be zero.
        let mut state =
            seed.wrapping_add(stream.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        state = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        state = (state ^ state >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self((state ^ state >> 31) | 1)
    }

    /// The next 64 bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `limit` (0 for a limit of 0).
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        let [low, high] = split(u128::from(self.next()) * u128::from(limit));
        let _ = low;
        high
    }
}

fn split(wide: u128) -> [u64; 2] {
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = wide.to_le_bytes();
    [u64::from_le_bytes([a, b, c, d, e, f, g, h]), u64::from_le_bytes([i, j, k, l, m, n, o, p])]
}

/// The requests of one queue.
#[derive(Clone, Debug)]
pub(crate) struct Requests {
    random: Random,
    read_percent: u64,
    sequential: bool,
    base_bytes: u64,
    request_bytes: u64,
    requests: u64,
    next: u64,
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Next {
    pub(crate) offset_bytes: u64,
    pub(crate) is_read: bool,
}

impl Requests {
    /// Those of queue `index`: random ones all over the region, sequential ones in the queue's own
    /// part of it.
    pub(crate) fn new(options: &BenchOptions, region: Region, index: u16) -> Self {
        let request_bytes = u64::from(region.request_bytes);
        let sequential = !options.rw.is_random();
        let share = region.requests / u64::from(options.queues.max(1));
        let (first, requests) =
            if sequential { (share * u64::from(index), share) } else { (0, region.requests) };
        Self {
            random: Random::new(options.seed, u64::from(index)),
            read_percent: u64::from(options.rw.read_percent(options.rwmixread)),
            sequential,
            base_bytes: region.offset_bytes + first * request_bytes,
            request_bytes,
            requests,
            next: 0,
        }
    }

    /// The next request.
    pub(crate) fn next(&mut self) -> Next {
        let index = if self.sequential {
            let index = self.next;
            self.next = if index + 1 < self.requests { index + 1 } else { 0 };
            index
        } else {
            self.random.below(self.requests)
        };
        let is_read = match self.read_percent {
            0 => false,
            100 => true,
            percent => self.random.below(100) < percent,
        };
        Next { offset_bytes: self.base_bytes + index * self.request_bytes, is_read }
    }
}

/// Fills a buffer with bytes that are not zero and do not compress.
pub(crate) fn fill(payload: &mut [u8], random: &mut Random) {
    for chunk in payload.chunks_mut(8) {
        for (to, from) in chunk.iter_mut().zip(random.next().to_le_bytes()) {
            *to = from | 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::options::Pattern;

    const REGION: Region = Region { offset_bytes: 1 << 20, request_bytes: 4096, requests: 10 };

    fn options(rw: Pattern, queues: u16, mix: u8) -> BenchOptions {
        BenchOptions {
            rw,
            rwmixread: mix,
            bs: 4096,
            iodepth: 1,
            queues,
            threads: None,
            runtime: core::time::Duration::from_secs(1),
            ramp_time: core::time::Duration::ZERO,
            offset: REGION.offset_bytes,
            size: None,
            seed: 7,
        }
    }

    fn take(requests: &mut Requests, count: usize) -> Vec<u64> {
        (0..count).map(|_| (requests.next().offset_bytes - REGION.offset_bytes) / 4096).collect()
    }

    #[test]
    fn sequential_queues_have_parts_of_their_own_and_wrap() {
        let options = options(Pattern::Read, 3, 50);
        let mut first = Requests::new(&options, REGION, 0);
        let mut last = Requests::new(&options, REGION, 2);
        assert_eq!(take(&mut first, 5), [0, 1, 2, 0, 1]);
        assert_eq!(take(&mut last, 4), [6, 7, 8, 6]);
    }

    #[test]
    fn random_requests_cover_the_region_and_repeat_with_the_seed() {
        let options = options(Pattern::Randread, 2, 50);
        let mut seen = [0u32; 10];
        for index in take(&mut Requests::new(&options, REGION, 0), 1000) {
            seen[usize::try_from(index).unwrap()] += 1;
        }
        assert!(seen.iter().all(|&count| (60..140).contains(&count)), "{seen:?}");
        let one = take(&mut Requests::new(&options, REGION, 0), 50);
        assert_eq!(one, take(&mut Requests::new(&options, REGION, 0), 50));
        assert_ne!(one, take(&mut Requests::new(&options, REGION, 1), 50));
    }

    #[test]
    fn the_mix_is_kept() {
        let mut requests = Requests::new(&options(Pattern::Randrw, 1, 70), REGION, 0);
        let reads = (0..10_000).filter(|_| requests.next().is_read).count();
        assert!((6800..7200).contains(&reads), "{reads}");
    }

    #[test]
    fn payloads_are_not_zero() {
        let mut payload = vec![0; 8192];
        fill(&mut payload, &mut Random::new(1, 0));
        assert!(payload.iter().all(|&byte| byte != 0));
    }
}

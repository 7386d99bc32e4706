//! What a reactor counts: how long requests spend in each stage, and what peers did.
//!
//! Plain numbers owned by the reactor's thread; whoever wants to see them asks the reactor for a
//! copy. Calls nothing; the reactor calls it.

use core::time::Duration;

/// A part of a request's life, between two of its timestamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Waiting for a buffer.
    Buffer,
    /// Waiting for a turn to RDMA READ, within the negotiated depth.
    ReadTurn,
    /// RDMA READ of the host's data.
    Fetch,
    /// Waiting for room in the storage's queue.
    StorageQueue,
    /// In the storage.
    Storage,
    /// From the response's posting to its completion.
    Send,
    /// From the capsule's arrival to the response's posting.
    Total,
}

impl Stage {
    /// All, in the order of a request's life.
    pub const ALL: [Self; 7] = [
        Self::Buffer,
        Self::ReadTurn,
        Self::Fetch,
        Self::StorageQueue,
        Self::Storage,
        Self::Send,
        Self::Total,
    ];

    /// A name for metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Buffer => "buffer",
            Self::ReadTurn => "read_turn",
            Self::Fetch => "fetch",
            Self::StorageQueue => "storage_queue",
            Self::Storage => "storage",
            Self::Send => "send",
            Self::Total => "total",
        }
    }
}

/// Number of buckets of a [`Latency`].
pub const BUCKETS: usize = 40;

/// A histogram of durations by powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    /// How many.
    pub count: u64,
    /// Their sum.
    pub total: Duration,
    /// The longest.
    pub longest: Duration,
    /// Bucket 0 counts zero; bucket n counts durations from 2^(n-1) to 2^n - 1 nanoseconds, the
    /// last one also all longer ones.
    pub buckets: [u64; BUCKETS],
}

impl Default for Latency {
    fn default() -> Self {
        Self { count: 0, total: Duration::ZERO, longest: Duration::ZERO, buckets: [0; BUCKETS] }
    }
}

impl Latency {
    /// Counts one.
    pub fn record(&mut self, duration: Duration) {
        self.count += 1;
        self.total = self.total.saturating_add(duration);
        self.longest = self.longest.max(duration);
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let bits = usize::try_from(u64::BITS - nanos.leading_zeros()).unwrap_or(BUCKETS);
        if let Some(bucket) = self.buckets.get_mut(bits.min(BUCKETS - 1)) {
            *bucket += 1;
        }
    }

    /// Adds what another counted.
    pub fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.total = self.total.saturating_add(other.total);
        self.longest = self.longest.max(other.longest);
        for (mine, theirs) in self.buckets.iter_mut().zip(other.buckets) {
            *mine += theirs;
        }
    }

    /// The mean; zero if nothing was counted.
    #[must_use]
    pub fn mean(&self) -> Duration {
        let nanos = self.total.as_nanos() / u128::from(self.count.max(1));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// Counters of one reactor since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    stages: [Latency; Stage::ALL.len()],
    /// Commands received.
    pub commands: u64,
    /// Responses sent.
    pub responses: u64,
    /// Responses that carried an error status.
    pub error_responses: u64,
    /// Bytes of reads, sent to hosts.
    pub read_bytes: u64,
    /// Bytes received from hosts and written to the storage.
    pub written_bytes: u64,
    /// Reads that were answered from the region of zeroes, without a buffer or the storage.
    pub zero_reads: u64,
    /// Requests that found no buffer and waited.
    pub buffer_waits: u64,
    /// Requests that found the storage's queue full and waited.
    pub storage_waits: u64,
    /// Requests that waited for their turn to RDMA READ.
    pub read_waits: u64,
    /// Capsules that waited because the peer did not acknowledge responses.
    pub parked_capsules: u64,
    /// In-capsule data that moved to the buffer pool because few shared receives were left.
    pub shared_copies: u64,
    /// Connections accepted.
    pub accepted: u64,
    /// Connection requests refused.
    pub rejected: u64,
    /// Connections gone.
    pub closed: u64,
    /// Connections dropped because no Fabrics Connect succeeded in time.
    pub connect_timeouts: u64,
    /// Connections ended because the peer held up all responses and RDMA READs for too long.
    pub stalls: u64,
    /// Connections ended because another needed the place and their peer had never answered.
    pub unanswered: u64,
    /// Connections ended because the peer acknowledged nothing while others waited for the buffers
    /// that it held.
    pub starvers: u64,
    /// Idle peers asked whether they are still there.
    pub probes: u64,
    /// Connections ended because the peer broke the transport's rules.
    pub violations: u64,
    /// Requests whose connection died before their response.
    pub orphaned: u64,
    /// Work requests that the fabric reported as failed (other than flushed).
    pub fabric_errors: u64,
    /// Operations that the storage reported as failed.
    pub storage_errors: u64,
    /// Events that should be impossible: a completion of nothing, an illegal state change.
    pub anomalies: u64,
}

impl Statistics {
    /// The latency of a stage.
    #[must_use]
    pub fn stage(&self, stage: Stage) -> &Latency {
        // `ALL` is in the order of declaration, so the discriminant is the index.
        &self.stages[stage as usize]
    }

    /// Counts one pass through a stage.
    pub fn record(&mut self, stage: Stage, duration: Duration) {
        self.stages[stage as usize].record(duration);
    }

    /// Adds what another reactor counted.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.stages.iter_mut().zip(&other.stages) {
            mine.merge(theirs);
        }
        for (mine, theirs) in [
            (&mut self.commands, other.commands),
            (&mut self.responses, other.responses),
            (&mut self.error_responses, other.error_responses),
            (&mut self.read_bytes, other.read_bytes),
            (&mut self.written_bytes, other.written_bytes),
            (&mut self.zero_reads, other.zero_reads),
            (&mut self.buffer_waits, other.buffer_waits),
            (&mut self.storage_waits, other.storage_waits),
            (&mut self.read_waits, other.read_waits),
            (&mut self.parked_capsules, other.parked_capsules),
            (&mut self.shared_copies, other.shared_copies),
            (&mut self.accepted, other.accepted),
            (&mut self.rejected, other.rejected),
            (&mut self.closed, other.closed),
            (&mut self.connect_timeouts, other.connect_timeouts),
            (&mut self.stalls, other.stalls),
            (&mut self.unanswered, other.unanswered),
            (&mut self.starvers, other.starvers),
            (&mut self.probes, other.probes),
            (&mut self.violations, other.violations),
            (&mut self.orphaned, other.orphaned),
            (&mut self.fabric_errors, other.fabric_errors),
            (&mut self.storage_errors, other.storage_errors),
            (&mut self.anomalies, other.anomalies),
        ] {
            *mine += theirs;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_powers_of_two() {
        let mut latency = Latency::default();
        for nanos in [0, 1, 2, 3, 4, u64::MAX] {
            latency.record(Duration::from_nanos(nanos));
        }
        assert_eq!(&latency.buckets[..4], &[1, 1, 2, 1]);
        assert_eq!(latency.buckets[BUCKETS - 1], 1);
        assert_eq!(latency.count, 6);
        assert_eq!(latency.longest, Duration::from_nanos(u64::MAX));
    }

    #[test]
    fn stages_are_kept_apart_and_merge() {
        for (index, stage) in Stage::ALL.into_iter().enumerate() {
            assert_eq!(stage as usize, index);
        }
        let mut one = Statistics::default();
        one.record(Stage::Fetch, Duration::from_micros(3));
        let mut two = Statistics { commands: 2, ..Statistics::default() };
        two.record(Stage::Fetch, Duration::from_micros(5));
        one.merge(&two);
        assert_eq!(one.stage(Stage::Fetch).mean(), Duration::from_micros(4));
        assert_eq!(one.stage(Stage::Storage).count, 0);
        assert_eq!(one.commands, 2);
    }
}

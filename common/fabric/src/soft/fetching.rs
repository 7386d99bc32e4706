//! When data of many small writes is better fetched by RDMA READ than sent along: see
//! [`Fabric::fetching_pays_from`](crate::Fabric::fetching_pays_from). Called by the fabric.

use core::time::Duration;

/// A message of two unequal packets costs either end about this much more than a capsule and the
/// answer to a READ that stand in runs of their kind.
const SAVED_PER_MESSAGE: Duration = Duration::from_micros(1);
/// Fewer than this gain nothing: there are no runs to speak of.
const FEWEST: u128 = 12;

/// With how many messages under way fetching pays where a round trip takes at least this long: what
/// it saves has to be more than the round trip that comes on top. (The shortest that was measured has
/// much of the peer's own time in it, so this errs towards not fetching.)
pub(super) fn pays_from(round_trip: Duration) -> u32 {
    let worth = round_trip.as_nanos() / SAVED_PER_MESSAGE.as_nanos();
    u32::try_from(worth.max(FEWEST)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_way_needs_more_messages() {
        assert_eq!(pays_from(Duration::ZERO), 12);
        assert_eq!(pays_from(Duration::from_micros(5)), 12);
        assert_eq!(pays_from(Duration::from_micros(50)), 50);
        assert_eq!(pays_from(Duration::MAX), u32::MAX);
    }
}

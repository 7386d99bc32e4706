//! Hosts that stop to acknowledge, or vanish, beside hosts that do their work.

use super::*;

/// A transfer of the largest size.
const LARGE: u32 = 64 << 10;
const LARGE_BLOCKS: u32 = LARGE / mock_storage::BLOCK_BYTES;
const STALL: Duration = Duration::from_secs(3);
const PROBE: Duration = Duration::from_secs(30);

fn small_pool(buffers: u32) -> Rig {
    Rig::with(ReactorConfig {
        data_bytes: buffers * LARGE,
        starve_timeout: STALL,
        idle_probe: PROBE,
        ..config()
    })
}

impl Rig {
    /// An I/O queue of a host of its own, with a place for data at each key below 100.
    fn host_queue(&mut self, peer: u8) -> ConnId {
        self.fabric().peer = peer;
        let (_, cntlid) = self.controller();
        let conn = self.queue(cntlid, 1, 32, 16);
        for key in 1..100 {
            self.host(conn).host.insert(key, vec![0; LARGE as usize]);
        }
        conn
    }

    fn read_large(&mut self, conn: ConnId, count: u32) {
        for key in 1..=count {
            let sgl =
                Sgl::Keyed { address: address_of(key), length: LARGE, key, invalidate: false };
            let read = self.read_command(0, LARGE_BLOCKS, sgl);
            self.send(conn, &read);
        }
    }

    /// A turn that lets time pass, as the reactor's owner would: arm first, then poll.
    fn sleep(&mut self, most: Duration) -> Duration {
        let wake = match self.reactor.arm(self.now) {
            lariat_fabric::Armed::Ready => self.now,
            lariat_fabric::Armed::Until(time) => time,
        };
        let slept = wake.since(self.now).min(most);
        self.pass(slept);
        slept
    }
}

#[test]
fn a_silent_host_leaves_buffers_for_others() {
    let mut rig = small_pool(16);
    let silent = rig.host_queue(1);
    let good = rig.host_queue(2);
    rig.host(silent).credit = Some(0);
    rig.read_large(silent, 30);
    rig.settle();
    let free = rig.reactor.resources().buffer_bytes_free;
    assert!(free >= u64::from(8 * LARGE), "{free}");
    for _ in 0..20 {
        rig.read_large(good, 20);
        rig.settle();
        assert_eq!(rig.host(good).responses.drain(..).count(), 20);
    }
    assert!(rig.is_there(silent));
    assert_eq!(rig.reactor.statistics().starvers, 0);
    assert_eq!(rig.reactor.statistics().anomalies, 0);
}

#[test]
fn a_host_that_is_alone_gets_the_whole_pool() {
    let mut rig = small_pool(16);
    let conn = rig.host_queue(1);
    rig.host(conn).credit = Some(0);
    rig.read_large(conn, 16);
    rig.settle();
    assert_eq!(rig.reactor.resources().buffer_bytes_free, u64::from(config().reserve_bytes));
    assert_eq!(rig.reactor.statistics().buffer_waits, 0);
}

#[test]
fn a_silent_host_is_ended_when_others_wait_and_not_before() {
    let mut rig = small_pool(2);
    // It came alone and took everything.
    let silent = rig.host_queue(1);
    rig.host(silent).credit = Some(0);
    rig.read_large(silent, 3);
    rig.settle();
    rig.pass(STALL * 10);
    assert!(rig.is_there(silent), "nobody waits but itself");
    let good = rig.host_queue(2);
    rig.read_large(good, 5);
    rig.settle();
    assert!(rig.host(good).responses.is_empty());
    assert!(rig.is_there(silent));
    // The reactor wakes by itself when the time is up.
    let slept = rig.sleep(STALL * 2);
    assert!(slept > STALL / 2 && slept <= STALL, "{slept:?}");
    rig.settle();
    assert!(!rig.is_there(silent));
    assert_eq!(rig.host(good).responses.len(), 5);
    assert_eq!(rig.reactor.statistics().starvers, 1);
    assert_eq!(rig.reactor.statistics().anomalies, 0);
}

#[test]
fn a_slow_host_is_not_a_silent_one() {
    let mut rig = small_pool(2);
    let slow = rig.host_queue(1);
    rig.host(slow).credit = Some(0);
    rig.read_large(slow, 8);
    rig.settle();
    let good = rig.host_queue(2);
    rig.read_large(good, 1);
    for _ in 0..8 {
        // A response with its data is two operations.
        rig.host(slow).credit = Some(2);
        rig.pass(STALL - Duration::from_millis(10));
    }
    assert!(rig.is_there(slow));
    assert_eq!(rig.host(good).responses.len(), 1);
    assert_eq!(rig.host(slow).responses.len(), 8);
    assert_eq!(rig.reactor.statistics().starvers, 0);
}

#[test]
fn an_idle_host_without_keep_alive_is_probed() {
    let mut rig = small_pool(2);
    let (admin, _) = rig.controller();
    rig.settle();
    rig.fabric().log.clear();
    for number in 1..=3 {
        let slept = rig.sleep(PROBE * 2);
        assert!(slept <= PROBE && slept > PROBE - Duration::from_millis(1), "{slept:?}");
        rig.settle();
        assert_eq!(rig.reactor.statistics().probes, number);
    }
    assert_eq!(rig.fabric().log, ["write 0", "write 0", "write 0"]);
    // The transport finds out that nobody is there: it reports a failed work request.
    rig.host(admin).credit = Some(0);
    rig.sleep(PROBE * 2);
    assert_eq!(rig.reactor.statistics().probes, 4);
    rig.fabric().cut(admin, lariat_fabric::verbs::DisconnectReason::Error);
    rig.settle();
    rig.check_nothing_leaked();
}

#[test]
fn probes_can_be_switched_off() {
    let mut rig = Rig::with(ReactorConfig { idle_probe: Duration::ZERO, ..config() });
    rig.controller();
    rig.pass(PROBE * 100);
    assert_eq!(rig.reactor.statistics().probes, 0);
}

//! Stops: what is in flight is finished, and who is gone is not waited for.

use core::time::Duration;

use lariat_fabric::Timestamp;
use lariat_fabric::verbs::ConnId;

use super::{Rig, config};

const STEP: Duration = Duration::from_millis(10);

#[test]
fn shutdown_finishes_what_is_in_flight() {
    let mut rig = Rig::new();
    let (_, cntlid) = rig.controller();
    let conn = rig.queue(cntlid, 1, 32, 16);
    rig.storage().held = true;
    let sgl = rig.memory(conn, 1, vec![0; 512]);
    let command = rig.read_command(0, 1, sgl);
    rig.send(conn, &command);
    rig.settle();
    rig.reactor.shutdown(rig.now);
    let sgl = rig.memory(conn, 2, vec![0; 512]);
    let late = rig.read_command(0, 1, sgl);
    rig.send(conn, &late);
    rig.settle();
    assert!(!rig.reactor.is_drained());
    rig.storage().held = false;
    rig.turn();
    assert!(rig.response(conn).status().is_success());
    assert!(rig.host(conn).responses.is_empty());
    rig.settle();
    assert!(rig.reactor.is_drained());
    rig.check_nothing_leaked();
    // Nobody gets in any more.
    let conn = rig.fabric().dial(&[0; 32], 1);
    rig.settle();
    assert_eq!(rig.host(conn).rejected.as_deref(), Some(&[0, 0, 6, 0][..]));
}

impl Rig {
    /// The host is gone without a word; what it is sent is not acknowledged.
    fn silence(&mut self, conn: ConnId) {
        let now = self.now;
        let host = self.host(conn);
        (host.credit, host.silent_since) = (Some(0), Some(now));
    }

    /// A read of a block, sent by the host.
    fn read(&mut self, conn: ConnId) {
        let sgl = self.memory(conn, 1, vec![0; 512]);
        let command = self.read_command(0, 1, sgl);
        self.send(conn, &command);
    }

    /// Sleeping as long as the reactor wants to, until all is over; how long that takes.
    fn stop(&mut self) -> Duration {
        let start = self.now;
        self.reactor.shutdown(start);
        self.settle();
        while !self.reactor.is_drained() {
            assert!(self.now.since(start) < Duration::from_secs(30), "the stop does not end");
            if let lariat_fabric::Armed::Until(until) = self.reactor.arm(self.now) {
                assert_ne!(until, Timestamp::NEVER, "nothing will wake it");
                self.now = self.now.max(until);
            }
            self.settle();
        }
        self.check_nothing_leaked();
        self.now.since(start)
    }
}

fn about(time: Duration, expected: Duration) {
    assert!(time >= expected && time < expected + STEP, "{time:?}, not {expected:?}");
}

#[test]
fn a_host_that_owes_acknowledgements_and_is_gone_is_given_up_soon() {
    let mut rig = Rig::new();
    let (admin, cntlid) = rig.controller();
    let conn = rig.queue(cntlid, 1, 32, 16);
    rig.silence(conn);
    rig.silence(admin);
    rig.read(conn);
    rig.settle();
    // The queue is told, once; the admin queue owes nothing and gets the time for some good-byes.
    about(rig.stop(), config().stop_silence + config().stop_close_timeout);
    assert_eq!(rig.fabric().goodbyes, 2);
}

#[test]
fn an_idle_host_that_is_gone_costs_the_time_of_some_goodbyes() {
    let mut rig = Rig::new();
    let (admin, cntlid) = rig.controller();
    let conn = rig.queue(cntlid, 1, 32, 16);
    rig.silence(conn);
    rig.silence(admin);
    // The admin queue does not wait for the other's good-byes, only for its commands.
    about(rig.stop(), config().stop_close_timeout);
    assert_eq!(rig.fabric().goodbyes, 2);
}

#[test]
fn goodbyes_that_are_under_way_are_cut_short() {
    let mut rig = Rig::new();
    let (admin, cntlid) = rig.controller();
    let conn = rig.queue(cntlid, 1, 32, 16);
    rig.silence(conn);
    rig.fabric().cut(admin, lariat_fabric::verbs::DisconnectReason::Peer);
    rig.pass(Duration::from_millis(2));
    assert!(rig.is_there(conn) && !rig.is_there(admin));
    about(rig.stop(), config().stop_close_timeout);
}

#[test]
fn a_host_that_answers_gets_its_answers_beside_one_that_is_gone() {
    let mut rig = Rig::new();
    let (_, cntlid) = rig.controller();
    let (gone, slow) = (rig.queue(cntlid, 1, 32, 16), rig.queue(cntlid, 2, 32, 16));
    rig.silence(gone);
    rig.read(gone);
    rig.settle();
    rig.storage().held = true;
    rig.read(slow);
    rig.settle();
    rig.reactor.shutdown(rig.now);
    // As long as the disk takes: the host waits for it, and owes nothing meanwhile.
    rig.pass(config().stop_silence * 4);
    assert!(!rig.is_there(gone) && rig.is_there(slow));
    rig.storage().held = false;
    rig.turn();
    assert!(rig.response(slow).status().is_success());
    rig.settle();
    assert!(rig.reactor.is_drained());
    rig.check_nothing_leaked();
}

#[test]
fn what_the_disk_has_of_a_host_that_is_gone_is_waited_for() {
    let mut rig = Rig::new();
    let (_, cntlid) = rig.controller();
    let conn = rig.queue(cntlid, 1, 32, 16);
    rig.read(conn);
    rig.settle();
    assert!(rig.response(conn).status().is_success());
    rig.silence(conn);
    rig.read(conn);
    rig.settle();
    rig.storage().held = true;
    rig.read(conn);
    rig.settle();
    rig.reactor.shutdown(rig.now);
    rig.pass(config().stop_silence + STEP);
    rig.pass(config().stop_close_timeout + STEP);
    assert!(!rig.reactor.is_drained(), "its buffer is the disk's");
    rig.storage().held = false;
    rig.settle();
    assert!(rig.reactor.is_drained());
    rig.check_nothing_leaked();
}

use super::super::content::fill;
use super::*;

const DONE: WriteEnd = WriteEnd::Done { fua: false };
const FUA: WriteEnd = WriteEnd::Done { fua: true };

struct Rig(Model);

impl Rig {
    fn new() -> Self {
        let mut model = Model::default();
        model.add_space(1, 4);
        Self(model)
    }

    fn begin(&mut self, value: u64) -> Span {
        self.0.begin_write(0, 0, 1, Value(value))
    }

    fn write(&mut self, value: u64, end: WriteEnd) {
        let span = self.begin(value);
        self.0.end_write(span, end);
    }

    fn flush(&mut self) {
        let tick = self.0.begin_flush();
        self.0.end_flush(0, tick);
    }

    fn finish(&mut self, span: Span, value: u64) -> bool {
        let mut sector = [0; SECTOR_BYTES];
        fill(Value(value), 1, 0, &mut sector);
        self.0.check_read(span, &sector).is_ok()
    }

    fn reads(&mut self, value: u64) -> bool {
        let span = self.0.begin_read(0, 0, 1);
        self.finish(span, value)
    }
}

#[test]
fn an_acknowledged_write_is_what_is_read() {
    let mut rig = Rig::new();
    assert!(rig.reads(0));
    assert!(!rig.reads(1));
    rig.write(1, DONE);
    assert!(rig.reads(1));
    assert!(!rig.reads(0));
    assert!(!rig.reads(2));
}

#[test]
fn data_of_no_write_is_wrong() {
    let mut rig = Rig::new();
    let span = rig.0.begin_read(0, 0, 1);
    assert_eq!(rig.0.check_read(span, &[7; SECTOR_BYTES]).unwrap_err().found, None);
    let span = rig.0.begin_read(0, 0, 2);
    assert!(rig.0.check_read(span, &[0; SECTOR_BYTES]).is_err(), "half of it is missing");
}

#[test]
fn a_read_beside_a_write_may_see_either() {
    for seen in [0, 1] {
        let mut rig = Rig::new();
        let early = rig.0.begin_read(0, 0, 1);
        let write = rig.begin(1);
        let late = rig.0.begin_read(0, 0, 1);
        rig.0.end_write(write, DONE);
        assert!(rig.finish(early, seen));
        assert!(rig.finish(late, seen));
        assert!(!rig.reads(0), "it is over");
    }
}

#[test]
fn of_writes_side_by_side_either_may_stand_but_one_only() {
    let mut rig = Rig::new();
    let one = rig.begin(1);
    let two = rig.begin(2);
    rig.0.end_write(two, DONE);
    rig.0.end_write(one, DONE);
    assert!(!rig.reads(0));
    assert!(rig.reads(2));
    assert!(!rig.reads(1), "it was seen that the other stands");
}

#[test]
fn a_lost_write_may_come_until_the_fence() {
    let mut rig = Rig::new();
    rig.write(1, WriteEnd::Lost);
    rig.write(2, DONE);
    assert!(rig.reads(2));
    assert!(rig.reads(1));
    assert!(rig.reads(2), "a read does not end a lost write");
    rig.0.fence();
    assert!(rig.reads(1));
    assert!(!rig.reads(2));
    rig.write(3, DONE);
    assert!(rig.reads(3));
    assert!(!rig.reads(1));
}

#[test]
fn a_failed_write_may_have_been_applied() {
    for seen in [0, 1] {
        let mut rig = Rig::new();
        rig.write(1, WriteEnd::Failed);
        assert!(rig.reads(seen));
        assert!(!rig.reads(1 - seen));
    }
}

#[test]
fn a_power_cut_takes_what_was_not_flushed() {
    for left in 0..=2 {
        let mut rig = Rig::new();
        rig.write(1, DONE);
        rig.write(2, DONE);
        rig.0.power_cut();
        assert!(rig.reads(left), "{left}");
        for other in (0..=2).filter(|other| *other != left) {
            assert!(!rig.reads(other), "{left} was found, so {other} is gone");
        }
        rig.0.power_cut();
        assert!(rig.reads(left), "it is on the medium");
    }
}

#[test]
fn a_power_cut_leaves_what_was_flushed() {
    let mut rig = Rig::new();
    rig.write(1, DONE);
    rig.flush();
    rig.write(2, DONE);
    rig.0.power_cut();
    assert!(!rig.reads(0));
    assert!(rig.reads(1) || rig.reads(2));
}

#[test]
fn a_flush_does_not_reach_what_was_not_complete() {
    let mut rig = Rig::new();
    let write = rig.begin(1);
    let flush = rig.0.begin_flush();
    rig.0.end_write(write, DONE);
    rig.0.end_flush(0, flush);
    rig.0.power_cut();
    assert!(rig.reads(0));
}

#[test]
fn a_power_cut_leaves_what_was_forced() {
    for left in [2, 3] {
        let mut rig = Rig::new();
        rig.write(1, DONE);
        rig.write(2, FUA);
        rig.write(3, DONE);
        rig.0.power_cut();
        for gone in [0, 1] {
            assert!(!rig.reads(gone));
        }
        assert!(rig.reads(left));
    }
}

#[test]
fn a_write_beside_a_forced_one_may_be_what_is_left() {
    let mut rig = Rig::new();
    let one = rig.begin(1);
    let two = rig.begin(2);
    rig.0.end_write(one, FUA);
    rig.0.end_write(two, DONE);
    rig.0.power_cut();
    assert!(!rig.reads(0));
    assert!(rig.reads(2));
}

#[test]
fn what_is_acknowledged_after_the_cut_was_before_it() {
    let mut rig = Rig::new();
    let write = rig.begin(1);
    rig.0.power_cut();
    rig.0.end_write(write, DONE);
    assert!(rig.reads(0));
}

#[test]
fn a_read_that_was_answered_before_the_cut_may_be_seen_after_it() {
    let mut rig = Rig::new();
    let read = rig.0.begin_read(0, 0, 1);
    rig.write(1, FUA);
    rig.0.power_cut();
    assert!(!rig.reads(0));
    assert!(rig.finish(read, 0));
}

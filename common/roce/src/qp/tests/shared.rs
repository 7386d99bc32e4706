//! Receives from a queue that others take from as well.

use super::*;
use crate::qp::QpFailure;
use crate::verbs::PostErrorKind;

const OK: WcStatus = WcStatus::Success;

fn post(pair: &mut Pair, wr_id: u64, sges: SgeList) -> Result<(), PostErrorKind> {
    pair.shared.post(&RecvRequest { wr_id, sges }, &pair.sides[1].mem)
}

/// Side 0 sends 3000 bytes, of which the first packet alone arrives.
fn midway() -> Pair {
    let mut pair = Pair::sharing(PathMtu::Mtu1024);
    let source = pair.region(0, pattern(1, 3000), Access::LOCAL_READ);
    let sink = pair.region(1, vec![0; 8192], Access::LOCAL);
    for (wr_id, offset) in [(5, 0), (6, 4096)] {
        post(&mut pair, wr_id, at(sink, offset, 4096)).unwrap();
    }
    pair.script = Box::new(|from, bytes| match bth(bytes).opcode {
        Opcode::SendMiddle | Opcode::SendLast if from == 0 => Fate::Drop,
        _ => Fate::Deliver,
    });
    pair.send(0, 1, SendOp::Send, at(source, 0, 3000));
    pair.step();
    pair.step();
    assert_eq!(pair.done(1), []);
    pair
}

#[test]
fn a_receive_is_taken_with_the_first_packet_and_kept() {
    let mut pair = midway();
    // Another queue pair takes the other one; the message goes on into its own.
    assert_eq!(pair.shared.take().map(|wqe| wqe.wr_id), Some(6));
    assert!(pair.shared.take().is_none());
    pair.script = Box::new(|_, _| Fate::Deliver);
    pair.settle();
    assert_eq!(pair.done(1), [(5, WcOpcode::Recv, OK, 3000)]);
    assert_eq!(pair.done(0), [(1, WcOpcode::Send, OK, 0)]);
    assert_eq!(pair.counters(1).rnr_sent, 0);
    let sink = RegionId(0);
    assert_eq!(pair.sides[1].mem.bytes(sink)[..3000], pattern(1, 3000));
}

#[test]
fn only_what_was_taken_is_flushed() {
    let mut pair = midway();
    pair.sides[1].qp.fail(pair.now, QpFailure::Closed);
    pair.flush();
    assert_eq!(pair.done(1), [(5, WcOpcode::Recv, WcStatus::Flushed, 0)]);
    assert_eq!(pair.shared.take().map(|wqe| wqe.wr_id), Some(6));

    // The same for one that ends without a word.
    let mut pair = midway();
    let mut back = Vec::new();
    pair.sides[1].qp.give_back(|completion| back.push((completion.wr_id, completion.status)));
    assert_eq!(back, [(5, WcStatus::Flushed)]);
    assert!(!pair.sides[1].qp.has_completions());
}

#[test]
fn an_empty_queue_is_answered_with_not_ready() {
    let mut pair = Pair::sharing(PathMtu::Mtu1024);
    let source = pair.region(0, pattern(2, 2000), Access::LOCAL_READ);
    let sink = pair.region(1, vec![0; 4096], Access::LOCAL);
    pair.send(0, 1, SendOp::Send, at(source, 0, 2000));
    for _ in 0..40 {
        pair.step();
    }
    assert!(pair.counters(1).rnr_sent > 1);
    assert_eq!((pair.done(0), pair.done(1)), (vec![], vec![]));
    post(&mut pair, 5, at(sink, 0, 4096)).unwrap();
    pair.settle();
    assert_eq!(pair.done(1), [(5, WcOpcode::Recv, OK, 2000)]);
    assert_eq!(pair.done(0), [(1, WcOpcode::Send, OK, 0)]);
    // It has none of its own.
    let request = RecvRequest { wr_id: 6, sges: at(sink, 0, 64) };
    let side = &mut pair.sides[1];
    assert_eq!(side.qp.post_recv(&request, &side.mem), Err(PostErrorKind::WrongState));
}

#[test]
fn a_place_is_free_when_its_completion_was_polled() {
    let mut pair = Pair::sharing(PathMtu::Mtu1024);
    let sink = pair.region(1, vec![0; 4096], Access::LOCAL);
    for wr_id in 0..4 {
        post(&mut pair, wr_id, at(sink, 0, 64)).unwrap();
    }
    assert_eq!(post(&mut pair, 4, at(sink, 0, 64)), Err(PostErrorKind::QueueFull));
    assert!(pair.shared.take().is_some());
    assert_eq!(post(&mut pair, 4, at(sink, 0, 64)), Err(PostErrorKind::QueueFull));
    pair.shared.polled(1);
    assert_eq!(post(&mut pair, 4, at(sink, 4090, 64)), Err(PostErrorKind::BadMemory));
    assert_eq!(post(&mut pair, 4, at(sink, 0, 64)), Ok(()));
}

//! Random commands, random orders of completion, connections that break anywhere. The mocks watch
//! over memory that two would use at a time; in the end everything has to be back.

use lariat_fabric::verbs::DisconnectReason;
use lariat_wire::nvme::{IoCommand, Sgl};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::*;
use crate::storage::StorageError;

#[derive(Clone, Debug)]
enum Step {
    Read { queue: usize, blocks: u32 },
    Write { queue: usize, blocks: u32, in_capsule: bool },
    Flush { queue: usize },
    WrongKey { queue: usize },
    FinishStorage(prop::sample::Index),
    FailStorage(bool),
    Fabric { queue: usize, credit: usize },
    Cut { queue: usize },
    CutAdmin,
    Turn,
}

fn step() -> impl Strategy<Value = Step> {
    let queue = 0..3usize;
    prop_oneof![
        8 => (queue.clone(), 1u32..=128).prop_map(|(queue, blocks)| Step::Read { queue, blocks }),
        8 => (queue.clone(), 1u32..=128, any::<bool>()).prop_map(|(queue, blocks, in_capsule)| {
            Step::Write { queue, blocks, in_capsule }
        }),
        1 => queue.clone().prop_map(|queue| Step::Flush { queue }),
        1 => queue.clone().prop_map(|queue| Step::WrongKey { queue }),
        10 => any::<prop::sample::Index>().prop_map(Step::FinishStorage),
        1 => any::<bool>().prop_map(Step::FailStorage),
        10 => (queue.clone(), 0..6usize).prop_map(|(queue, credit)| Step::Fabric { queue, credit }),
        1 => queue.prop_map(|queue| Step::Cut { queue }),
        1 => Just(Step::CutAdmin),
        10 => Just(Step::Turn),
    ]
}

/// The host's side of one queue: sends only what it may.
struct Queue {
    conn: ConnId,
    outstanding: u32,
}

const ENTRIES: u32 = 8;

fn may_send(rig: &mut Rig, queue: &mut Queue) -> bool {
    let Some(connection) = rig.fabric().connections.get_mut(&queue.conn) else { return false };
    let answered = u32::try_from(connection.responses.drain(..).count()).unwrap();
    queue.outstanding -= answered;
    let shared = connection.qp.and_then(|qp| qp.shared_receive);
    let (down, own) = (connection.down, !connection.receives.is_empty());
    let has_receive = match shared {
        Some(shared) => !rig.fabric().shared[&shared].is_empty(),
        None => own,
    };
    !down && queue.outstanding < ENTRIES && has_receive
}

fn play(steps: &[Step], shared_receive: bool) {
    // Sixteen shared receives for three queues of eight.
    let limits = Limits { max_queue_depth: QueueSize::from_entries(ENTRIES).unwrap(), ..limits() };
    let mut rig =
        Rig::with(ReactorConfig { limits, data_bytes: 256 << 10, shared_receive, ..config() });
    rig.fabric().limits.max_shared_receives = 2 * ENTRIES;
    let (admin, cntlid) = rig.controller();
    let mut queues: Vec<_> = (1..=3u8)
        .map(|qid| Queue { conn: rig.queue(cntlid, u16::from(qid), ENTRIES, qid), outstanding: 0 })
        .collect();
    rig.storage().held = true;
    rig.storage().capacity = 4;
    for queue in &queues {
        rig.host(queue.conn).credit = Some(0);
        for key in 1..=128 {
            rig.memory(queue.conn, key, vec![0; key as usize * 512]);
        }
    }
    for step in steps {
        let command = match *step {
            Step::Read { queue, blocks } => {
                let sgl = keyed(blocks, blocks);
                Some((queue, rig.read_command(0, blocks, sgl), 0))
            }
            Step::Write { queue, blocks, in_capsule } => {
                let blocks = if in_capsule { blocks.min(8) } else { blocks };
                let length = blocks * 512;
                let (sgl, data) = if in_capsule {
                    (Sgl::InCapsule { offset: 0, length }, length)
                } else {
                    (keyed(blocks, blocks), 0)
                };
                Some((queue, rig.write_command(0, blocks, sgl), data))
            }
            Step::Flush { queue } => {
                let cid = rig.next_cid();
                let command = IoCommand::Flush { nsid: NSID }.to_command(cid).unwrap();
                Some((queue, command, 0))
            }
            Step::WrongKey { queue } => Some((queue, rig.write_command(0, 1, keyed(999, 1)), 0)),
            _ => None,
        };
        if let Some((queue, command, data)) = command
            && may_send(&mut rig, &mut queues[queue])
        {
            let mut capsule = command.to_bytes().to_vec();
            capsule.resize(64 + data as usize, 0x5a);
            queues[queue].outstanding += 1;
            rig.fabric().capsule(queues[queue].conn, &capsule);
        }
        match *step {
            Step::FinishStorage(index) if !rig.storage().pending.is_empty() => {
                let pending = rig.storage().pending.len();
                rig.storage().finish(index.index(pending));
            }
            Step::FailStorage(fail) => {
                rig.storage().fail = fail.then_some(StorageError::Other { errno: 5 });
            }
            Step::Fabric { queue, credit } if rig.is_there(queues[queue].conn) => {
                rig.host(queues[queue].conn).credit = Some(credit);
                rig.fabric().execute(queues[queue].conn);
            }
            Step::Cut { queue } => rig.fabric().cut(queues[queue].conn, DisconnectReason::Error),
            Step::CutAdmin => rig.fabric().cut(admin, DisconnectReason::Peer),
            Step::Turn => {
                rig.turn();
            }
            _ => {}
        }
    }
    // Whoever is still there gets all its answers.
    rig.storage().held = false;
    for queue in &queues {
        if rig.is_there(queue.conn) {
            rig.host(queue.conn).credit = None;
        }
    }
    rig.settle();
    for queue in &mut queues {
        if rig.is_there(queue.conn) {
            may_send(&mut rig, queue);
            assert_eq!(queue.outstanding, 0);
        }
        rig.fabric().cut(queue.conn, DisconnectReason::Peer);
    }
    rig.fabric().cut(admin, DisconnectReason::Peer);
    rig.pass(Duration::from_millis(2));
    rig.check_nothing_leaked();
}

fn keyed(key: u32, blocks: u32) -> Sgl {
    Sgl::Keyed { address: address_of(key), length: blocks * 512, key, invalidate: false }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        rng_seed: RngSeed::Fixed(1),
        ..ProptestConfig::default()
    })]
    #[test]
    fn nothing_is_lost_and_nothing_is_used_twice(
        steps in prop::collection::vec(step(), 1..300),
    ) {
        play(&steps, false);
        play(&steps, true);
    }
}

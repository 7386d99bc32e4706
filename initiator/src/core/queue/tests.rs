//! Slots: when commands end, and when their capsules are free. Completions come from here, in any
//! order, instead of from a peer.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};

use lariat_fabric::sim::{SimNet, SimNetwork};
use lariat_fabric::soft::SoftFabric;
use lariat_fabric::verbs::{QpConfig, WcOpcode, WorkCompletion};
use lariat_wire::nvme::Status;

use super::*;

const LONG: Duration = Duration::from_secs(9);

struct World {
    net: SimNet,
    fabric: SoftFabric<SimNetwork>,
    queue: HostQueue,
}

impl World {
    fn new(commands: u16, capsules: u16) -> Self {
        let net = SimNet::new(5);
        let mut fabric = net.node(IpAddr::from(Ipv4Addr::new(10, 0, 0, 1)));
        let domain = fabric.open_domain().unwrap();
        let remote = SocketAddr::from((Ipv4Addr::new(10, 0, 0, 2), 4420));
        let conn = fabric.resolve(net.now(), remote, LONG).unwrap();
        let (max_send, max_recv) = (u32::from(capsules), u32::from(commands));
        fabric.create_qp(conn, &QpConfig::new(domain, max_send, max_recv)).unwrap();
        let slots = (commands, capsules);
        let mut queue = HostQueue::new(&mut fabric, domain, conn, Qid(1), slots, 4096).unwrap();
        queue.set_in_capsule_bytes(4096);
        Self { net, fabric, queue }
    }

    fn submit(&mut self, transfer: Transfer, user_data: u64) -> Result<(), SubmitError> {
        let (now, command) = (self.net.now(), Command::new(2));
        self.queue.submit(now, &self.fabric, command, transfer, user_data, 0, LONG)
    }

    fn complete(&mut self, wr_id: u64, opcode: WcOpcode, byte_len: u32) {
        let completion = WorkCompletion {
            conn: self.queue.conn(),
            wr_id,
            opcode,
            status: WcStatus::Success,
            byte_len,
            invalidated: None,
        };
        self.queue.handle_completion(self.net.now(), &completion);
    }

    /// The capsule of a slot is acknowledged.
    fn sent(&mut self, slot: u16) {
        self.complete(u64::from(slot), WcOpcode::Send, 0);
    }

    /// The response to a slot's command of that generation comes, into receive 0.
    fn answered(&mut self, slot: u16, generation: u16) {
        let cid = CommandId(slot | generation << self.queue.slot_bits);
        let bytes = Completion::failure(cid, Status::SUCCESS).to_bytes();
        let slots = u16::try_from(self.queue.slots.len()).unwrap();
        let request = recv_request(self.queue.capsule_region, slots, 0);
        let offset = request.sges.iter().next().unwrap().offset;
        self.queue.capsules.write_at(offset, &bytes).unwrap();
        self.complete(RECV_MARK, WcOpcode::Recv, 16);
    }

    fn ended(&mut self) -> Vec<u64> {
        std::iter::from_fn(|| self.queue.poll_completion()).map(|done| done.user_data).collect()
    }
}

#[test]
fn a_response_ends_a_command_whose_capsule_is_not_acknowledged_yet() {
    let mut world = World::new(1, 2);
    world.submit(Transfer::None, 7).unwrap();
    assert_eq!(world.queue.vacant(), 0);
    world.answered(0, 1);
    assert_eq!(world.ended(), [7]);
    assert_eq!((world.queue.outstanding(), world.queue.vacant()), (0, 1));
    // The next one has a capsule of its own: the first may have to be sent again.
    world.submit(Transfer::None, 8).unwrap();
    world.answered(1, 1);
    assert_eq!(world.ended(), [8]);
    assert_eq!(world.queue.vacant(), 0, "no capsule is free");
    assert_eq!(world.submit(Transfer::None, 9), Err(SubmitError::Full));
    world.sent(0);
    assert_eq!(world.queue.vacant(), 1);
    world.submit(Transfer::None, 9).unwrap();
    world.answered(0, 2);
    assert_eq!(world.ended(), [9]);
    assert_eq!(world.queue.lost(), None);
}

#[test]
fn data_in_a_capsule_belongs_to_it_until_it_is_acknowledged() {
    let mut world = World::new(4, 8);
    let data = world.queue.scratch(0, 4096).unwrap();
    world.submit(Transfer::ToController(data), 7).unwrap();
    world.answered(0, 1);
    assert_eq!(world.ended(), [] as [u64; 0]);
    assert_eq!(world.queue.outstanding(), 1);
    world.sent(0);
    assert_eq!(world.ended(), [7]);
    assert_eq!(world.queue.outstanding(), 0);
}

#[test]
fn what_has_ended_does_not_end_again() {
    let mut world = World::new(2, 4);
    world.submit(Transfer::None, 7).unwrap();
    world.submit(Transfer::None, 8).unwrap();
    world.answered(0, 1);
    assert_eq!(world.ended(), [7]);
    // Not by its time limit,
    world.queue.handle_timeout(world.net.now());
    world.queue.slots[1].deadline = Timestamp::NEVER;
    world.queue.handle_timeout(world.net.now() + LONG);
    assert_eq!(world.queue.lost(), None);
    // nor with the connection; the other does.
    let now = world.net.now();
    world.queue.close(now, &mut world.fabric, LossReason::Local);
    assert_eq!(world.ended(), [8]);
    assert_eq!(world.queue.outstanding(), 0);
}

#[test]
fn a_second_response_is_a_breach() {
    let mut world = World::new(2, 4);
    world.submit(Transfer::None, 7).unwrap();
    world.answered(0, 1);
    world.answered(0, 1);
    assert!(matches!(world.queue.lost(), Some(LossReason::Protocol(_))));
}

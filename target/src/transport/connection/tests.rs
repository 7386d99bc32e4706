//! What is agreed, where receives lie, and the accounting of a queue.

use lariat_wire::nvme::{ControllerId, QueueSize};

use super::super::arena::Arena;
use super::*;

pub(in crate::transport) fn device() -> DeviceLimits {
    DeviceLimits {
        max_queue_depth: 4096,
        max_sge: 2,
        max_initiator_depth: 16,
        max_responder_resources: 16,
        send_with_invalidate: true,
        read_sink_needs_remote_write: false,
        acknowledges: true,
        max_message_bytes: 1 << 30,
        max_shared_receives: 0,
    }
}

fn request(qid: u16, entries: u32) -> [u8; 32] {
    let size = QueueSize::from_entries(entries).unwrap();
    ConnectRequest::new(Qid(qid), size, ControllerId(1)).to_bytes()
}

fn agree(private_data: &[u8]) -> Result<Agreement, RejectStatus> {
    Agreement::new(private_data, (16, 4), &Limits::default(), &device(), 16)
}

#[test]
fn requests_that_cannot_be_met_are_refused() {
    assert_eq!(agree(&[0; 8]), Err(RejectStatus::INVALID_LENGTH));
    let mut other_format = request(1, 32);
    other_format[0] = 1;
    assert_eq!(agree(&other_format), Err(RejectStatus::INVALID_RECORD_FORMAT));
    assert_eq!(agree(&request(65, 32)), Err(RejectStatus::INVALID_QID));
    assert_eq!(agree(&request(1, 130)), Err(RejectStatus::INVALID_HSQSIZE));
    assert_eq!(agree(&request(1, 1)), Err(RejectStatus::INVALID_HSQSIZE));
    let mut no_receives = request(1, 32);
    no_receives[4] = 0;
    assert_eq!(agree(&no_receives), Err(RejectStatus::INVALID_HRQSIZE));
    let agreed = |peer: (u8, u8), device: &DeviceLimits| {
        Agreement::new(&request(1, 32), peer, &Limits::default(), device, 16)
    };
    assert_eq!(agreed((0, 4), &device()), Err(RejectStatus::INVALID_IRD));
    let small = DeviceLimits { max_queue_depth: 39, ..device() };
    assert_eq!(agreed((1, 0), &small), Err(RejectStatus::NO_RESOURCES));
    let enough = DeviceLimits { max_queue_depth: 66, ..device() };
    assert_eq!(agreed((1, 0), &enough).map(|a| (a.slots, a.initiator_depth)), Ok((33, 1)));
}

#[test]
fn depths_from_2_to_1024() {
    let limits = Limits { max_queue_depth: QueueSize::from_zero_based(1023), ..Limits::default() };
    for entries in [2, 3, 128, 1024] {
        let agreed = Agreement::new(&request(1, entries), (16, 4), &limits, &device(), 16).unwrap();
        assert_eq!(agreed.entries, entries);
        assert!(agreed.receives > entries && agreed.slots > entries);
    }
    // An admin queue may be longer than what I/O queues are limited to.
    let limits = Limits { max_queue_depth: QueueSize::MIN_LEGAL, ..Limits::default() };
    assert!(Agreement::new(&request(0, 32), (16, 4), &limits, &device(), 16).is_ok());
}

#[test]
fn in_capsule_data_is_page_aligned_and_inside() {
    for (in_capsule, stride) in [(0u32, 64u64), (16, 8192), (4096, 8192), (8192, 12_288)] {
        let limits = Limits { in_capsule_bytes: in_capsule, ..Limits::default() };
        let agreed = Agreement::new(&request(1, 2), (16, 4), &limits, &device(), 16).unwrap();
        let mut arena = Arena::new(1 << 20, 0).unwrap();
        let _other = arena.take(1).unwrap();
        let piece = arena.take(Receives::bytes_needed(&agreed)).unwrap();
        let (start, end) = (piece.offset(), piece.offset() + piece.bytes());
        let memory = Arc::clone(arena.memory(0).unwrap());
        let receives = Receives::new((piece, memory, RegionId(1)), in_capsule);
        assert_eq!(receives.capsule(1) - receives.capsule(0), stride);
        for index in 0..agreed.receives {
            let request = receives.request(3, index);
            assert_eq!(WrId::decode(request.wr_id), Some(WrId::receive(3, index)));
            let sge = request.sges.iter().next().unwrap();
            assert_eq!(sge.length, 64 + in_capsule);
            assert!(sge.offset >= start && sge.offset + u64::from(sge.length) <= end);
            assert_eq!(receives.data(index), sge.offset + 64);
            if in_capsule != 0 {
                assert_eq!(receives.data(index) % 4096, 0);
            }
        }
    }
}

fn connection(entries: u32) -> Connection {
    let agreement = agree(&request(1, entries)).unwrap();
    let mut arena = Arena::new(4096, 4096).unwrap();
    let piece = arena.take(1).unwrap();
    let memory = Arc::clone(arena.memory(0).unwrap());
    let receives = Receives::new((piece, memory, RegionId(0)), 0);
    let whose = (ConnId(9), core::net::Ipv4Addr::LOCALHOST.into());
    Connection::new(whose, agreement, (receives, None), Timestamp::ZERO, Duration::ZERO)
}

#[test]
fn queue_head_wraps_and_is_withheld_where_not_wanted() {
    let mut connection = connection(4);
    assert!(connection.count_in());
    connection.count_out(CommandId(0), true);
    connection.connected(Role::Gone, 3, true);
    let mut heads = Vec::new();
    for _ in 0..4 {
        assert!(connection.count_in());
        heads.push(connection.sq_head());
        connection.count_out(CommandId(0), true);
    }
    assert_eq!(heads, [2, 0, 1, 2]);
    connection.connected(Role::Gone, 3, false);
    assert_eq!(connection.sq_head(), u16::MAX);
}

#[test]
fn more_commands_than_entries_are_noticed() {
    let mut connection = connection(2);
    assert!(connection.count_in() && connection.count_in());
    assert!(!connection.count_in());
    assert_eq!(connection.outstanding(), 2);
    connection.count_out(CommandId(0), false);
    assert!(connection.count_in());
}

#[test]
fn identifiers_are_claimed_once() {
    let mut connection = connection(2);
    for cid in [0, 63, 64, u16::MAX] {
        assert!(connection.claim(CommandId(cid)));
        assert!(!connection.claim(CommandId(cid)));
        connection.count_out(CommandId(cid), false);
        assert!(!connection.claim(CommandId(cid)));
        connection.count_out(CommandId(cid), true);
        assert!(connection.claim(CommandId(cid)));
    }
}

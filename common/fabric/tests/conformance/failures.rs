//! Messages that must not arrive.

use lariat_fabric::verbs::{Access, CmEvent, ConnId, SendOp, SendRequest, Sge, SgeList, WcStatus};
use lariat_fabric::{Fabric, Memory, PostErrorKind};
use lariat_wire::rocev2::Rkey;

use super::pair::{Harness, Host, Pair, Target};

/// A request of the target fails with `status` and breaks the connection; requests behind it are
/// flushed.
fn breaks<H: Harness>(
    pair: &mut Pair<H>,
    (host, target): (ConnId, ConnId),
    op: SendOp,
    sges: SgeList,
    status: WcStatus,
) {
    let request = SendRequest { wr_id: 1, op, sges, signaled: true };
    let sge = pair.sge(Target, 0, 8);
    let behind =
        SendRequest { wr_id: 2, op: SendOp::Send, sges: SgeList::one(sge), signaled: false };
    pair.fabric(Target).post_send(target, &[request, behind]).unwrap();
    let now = pair.harness.now();
    pair.fabric(Target).flush(now);
    if pair.acknowledges(Target, target) {
        let completions = pair.completions(Target, 2);
        assert_eq!(completions[0].wr_id, 1);
        let unheard = pair.harness.lossy() && completions[0].status == WcStatus::Flushed;
        assert!(unheard || completions[0].status == status, "{:?}", completions[0]);
        assert_eq!((completions[1].wr_id, completions[1].status), (2, WcStatus::Flushed));
    } else {
        // What was written may have left long before the peer refuses it; the data of an RDMA READ
        // cannot have come.
        let over = |event: &CmEvent| matches!(event, CmEvent::Disconnected { conn, .. } if *conn == target);
        pair.run_until("the end", |pair| pair.side(Target).events.iter().any(over));
        let completions = std::mem::take(&mut pair.side(Target).completions);
        let first = completions.iter().find(|completion| completion.wr_id == 1).unwrap();
        let is_read = matches!(op, SendOp::Read { .. });
        assert!(!is_read || first.status != WcStatus::Success, "{completions:?}");
    }
    let now = pair.harness.now();
    pair.fabric(Target).destroy(now, target);
    loop {
        if let CmEvent::Disconnected { conn, .. } = pair.event(Host) {
            assert_eq!(conn, host);
            break;
        }
    }
    let now = pair.harness.now();
    pair.fabric(Host).destroy(now, host);
    pair.side(Target).events.clear();
    pair.side(Host).completions.clear();
}

pub fn invalidates<H: Harness>(pair: &mut Pair<H>) {
    if !pair.harness.invalidates() {
        return;
    }
    let (host, target) = pair.connect();
    let domain = pair.side(Host).domain;
    let memory = Memory::allocate(8192).unwrap();
    let region = pair.fabric(Host).register(domain, memory.clone(), Access::REMOTE).unwrap();
    let rkey = pair.fabric(Host).rkey(host, region).unwrap();
    let remote_address = memory.address().as_ptr().addr() as u64;
    let source = SgeList::one(pair.sge(Target, 0, 8192));
    pair.post(Target, target, 1, SendOp::Write { remote_address, rkey }, source);
    pair.success(Target, 1);
    let sink = pair.sge(Host, 0, 64);
    pair.recv(Host, host, 2, SgeList::one(sink));
    let response = SgeList::one(pair.sge(Target, 0, 16));
    pair.post(Target, target, 3, SendOp::SendWithInvalidate { rkey }, response);
    let received = pair.success(Host, 2);
    assert_eq!((received.invalidated, received.byte_len), (Some(rkey), 16));
    pair.success(Target, 3);
    let op = SendOp::Write { remote_address, rkey };
    breaks(pair, (host, target), op, source, WcStatus::RemoteAccess);
}

pub fn refuses_bad_remote_access<H: Harness>(pair: &mut Pair<H>) {
    let domain = pair.side(Host).domain;
    let memory = Memory::allocate(8192).unwrap();
    memory.write_at(0, &[7; 8192]).unwrap();
    let start = memory.address().as_ptr().addr() as u64;
    let read_only = Access { local_write: false, remote_read: true, remote_write: false };
    let write_only = Access { local_write: true, remote_read: false, remote_write: true };
    let cases = [
        (read_only, true, start, 64, 0),              // not to be written
        (write_only, false, start, 64, 0),            // not to be read
        (Access::LOCAL, false, start, 64, 0),         // not to be reached at all
        (Access::REMOTE, true, start + 1, 8192, 0),   // one byte beyond
        (Access::REMOTE, false, start - 1, 64, 0),    // one byte before
        (Access::REMOTE, true, u64::MAX - 10, 64, 0), // around the end
        (Access::REMOTE, true, start, 64, 0x100),     // another key
    ];
    for (access, write, remote_address, length, flip) in cases {
        let ends = pair.connect();
        let region = pair.fabric(Host).register(domain, memory.clone(), access).unwrap();
        let rkey = pair.fabric(Host).rkey(ends.0, region).unwrap();
        let rkey = Rkey(rkey.0 ^ flip);
        let op = if write {
            SendOp::Write { remote_address, rkey }
        } else {
            SendOp::Read { remote_address, rkey }
        };
        let sges = SgeList::one(pair.sge(Target, 0, length));
        breaks(pair, ends, op, sges, WcStatus::RemoteAccess);
        pair.fabric(Host).deregister(region).unwrap();
        let mut bytes = [0; 8192];
        memory.read_at(0, &mut bytes).unwrap();
        assert!(bytes == [7; 8192]);
    }
}

pub fn refuses_access_across_domains<H: Harness>(pair: &mut Pair<H>) {
    let ends = pair.connect();
    let other = pair.fabric(Host).open_domain().unwrap();
    let memory = Memory::allocate(4096).unwrap();
    let region = pair.fabric(Host).register(other, memory.clone(), Access::REMOTE).unwrap();
    assert!(pair.fabric(Host).rkey(ends.0, region).is_err());
    // The key of that region, learned by a connection of its domain.
    let address = pair.harness.address();
    let now = pair.harness.now();
    let timeout = core::time::Duration::from_secs(1);
    let conn = pair.fabric(Host).resolve(now, address, timeout).unwrap();
    let _ = pair.event(Host);
    let mut config = pair.config(Host);
    config.domain = other;
    pair.fabric(Host).create_qp(conn, &config).unwrap();
    let rkey = pair.fabric(Host).rkey(conn, region).unwrap();
    let remote_address = memory.address().as_ptr().addr() as u64;
    let sges = SgeList::one(pair.sge(Target, 0, 64));
    breaks(pair, ends, SendOp::Write { remote_address, rkey }, sges, WcStatus::RemoteAccess);
}

pub fn refuses_bad_local_memory<H: Harness>(pair: &mut Pair<H>) {
    let (host, _target) = pair.connect();
    let region = pair.side(Host).region;
    let beyond = Sge { region, offset: super::pair::BYTES as u64 - 4, length: 8 };
    let domain = pair.fabric(Host).open_domain().unwrap();
    let memory = Memory::allocate(4096).unwrap();
    let foreign = pair.fabric(Host).register(domain, memory, Access::LOCAL).unwrap();
    let foreign = Sge { region: foreign, offset: 0, length: 8 };
    // Some providers see it when posting, others when the request runs.
    for (wr_id, sge) in [(1, beyond), (2, foreign)] {
        let request =
            SendRequest { wr_id, op: SendOp::Send, sges: SgeList::one(sge), signaled: true };
        match pair.fabric(Host).post_send(host, &[request]) {
            Err(error) => assert_eq!(error.kind, PostErrorKind::BadMemory),
            Ok(()) => {
                let now = pair.harness.now();
                pair.fabric(Host).flush(now);
                let status = pair.completions(Host, 1)[0].status;
                assert_eq!(status, WcStatus::LocalProtection);
                return;
            }
        }
    }
}

pub fn fails_a_receive_that_is_too_small<H: Harness>(pair: &mut Pair<H>) {
    let (host, target) = pair.connect();
    for (wr_id, length) in [(11, 63), (12, 64)] {
        let sink = pair.sge(Host, 500_000, length);
        pair.recv(Host, host, wr_id, SgeList::one(sink));
    }
    let before = pair.bytes(Host, 500_063, 10);
    let source = pair.sge(Target, 0, 64);
    pair.post(Target, target, 1, SendOp::Send, SgeList::one(source));
    let status = pair.completions(Target, 1)[0].status;
    let unheard = pair.harness.lossy() && status == WcStatus::Flushed
        || !pair.acknowledges(Target, target) && status == WcStatus::Success;
    let failed = pair.completions(Host, 2);
    let ends = (status, failed[0].status);
    let right = |(sender, receiver): &(WcStatus, WcStatus)| {
        (unheard || *sender == ends.0) && *receiver == ends.1
    };
    assert!(pair.harness.too_long().iter().any(right), "{ends:?}");
    assert_eq!(failed[0].wr_id, 11);
    assert_eq!((failed[1].wr_id, failed[1].status), (12, WcStatus::Flushed));
    assert_eq!(pair.bytes(Host, 500_063, 10), before);
}

pub fn a_region_that_is_gone_is_not_touched<H: Harness>(pair: &mut Pair<H>) {
    let ends = pair.connect();
    let domain = pair.side(Host).domain;
    let memory = Memory::allocate(4096).unwrap();
    let region = pair.fabric(Host).register(domain, memory.clone(), Access::REMOTE).unwrap();
    let rkey = pair.fabric(Host).rkey(ends.0, region).unwrap();
    let remote_address = memory.address().as_ptr().addr() as u64;
    pair.fabric(Host).deregister(region).unwrap();
    assert_eq!(std::sync::Arc::strong_count(&memory), 1);
    let sges = SgeList::one(pair.sge(Target, 0, 64));
    breaks(pair, ends, SendOp::Write { remote_address, rkey }, sges, WcStatus::RemoteAccess);
    let mut bytes = [1; 64];
    memory.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 64]);
}

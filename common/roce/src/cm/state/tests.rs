use super::State::{self, *};
use super::Trigger::{self, *};
use super::{MOVES, State as S};

const STATES: [State; 11] = [
    Idle,
    ReqSent,
    MraReqReceived,
    ReqReceived,
    MraReqSent,
    RepSent,
    MraRepReceived,
    Established,
    DreqSent,
    TimeWait,
    Closed,
];

const TRIGGERS: [Trigger; 14] = [
    SendReq,
    ReceiveReq,
    SendMra,
    ReceiveMra,
    SendRep,
    ReceiveRep,
    ReceiveRtu,
    ReceiveData,
    SendRej,
    ReceiveRej,
    SendDreq,
    ReceiveDreq,
    ReceiveDrep,
    Expire,
];

/// The whole table, state by state: a change of it shows here.
const SNAPSHOT: &str = "\
Idle: SendReq>ReqSent ReceiveReq>ReqReceived
ReqSent: SendReq>ReqSent ReceiveMra>MraReqReceived ReceiveRep>Established SendRej>Closed ReceiveRej>Closed Expire>Closed
MraReqReceived: SendReq>ReqSent ReceiveMra>MraReqReceived ReceiveRep>Established SendRej>Closed ReceiveRej>Closed Expire>Closed
ReqReceived: SendMra>MraReqSent SendRep>RepSent SendRej>Closed ReceiveRej>Closed
MraReqSent: SendMra>MraReqSent SendRep>RepSent SendRej>Closed ReceiveRej>Closed
RepSent: ReceiveMra>MraRepReceived ReceiveRtu>Established ReceiveData>Established SendRej>TimeWait ReceiveRej>Closed ReceiveDreq>TimeWait Expire>Closed
MraRepReceived: ReceiveMra>MraRepReceived ReceiveRtu>Established ReceiveData>Established SendRej>TimeWait ReceiveRej>Closed ReceiveDreq>TimeWait Expire>Closed
Established: ReceiveRej>TimeWait SendDreq>DreqSent ReceiveDreq>TimeWait
DreqSent: ReceiveRej>TimeWait ReceiveDreq>TimeWait ReceiveDrep>TimeWait Expire>TimeWait
TimeWait: Expire>Closed
Closed:
";

#[test]
fn table_of_moves() {
    let mut table = String::new();
    for state in STATES {
        table.push_str(&format!("{state:?}:"));
        for trigger in TRIGGERS {
            if let Some(next) = state.after(trigger) {
                table.push_str(&format!(" {trigger:?}>{next:?}"));
            }
        }
        table.push('\n');
    }
    assert_eq!(table, SNAPSHOT);
}

#[test]
fn no_move_is_listed_twice() {
    for (at, (from, by, _)) in MOVES.iter().enumerate() {
        assert!(MOVES.iter().skip(at + 1).all(|(f, b, _)| (f, b) != (from, by)), "{from:?} {by:?}");
    }
}

/// Whatever stands ends: from each state some way leads to `Closed`, and only `Closed` has none on.
#[test]
fn every_state_ends() {
    for state in STATES {
        let mut reached = vec![state];
        let mut at = 0;
        while let Some(from) = reached.get(at).copied() {
            let next: Vec<S> = TRIGGERS.iter().filter_map(|by| from.after(*by)).collect();
            assert_eq!(next.is_empty(), from == Closed, "{from:?}");
            reached.extend(next.into_iter().filter(|to| !reached.contains(to)).collect::<Vec<_>>());
            at += 1;
        }
        assert!(reached.contains(&Closed), "{state:?}");
    }
}

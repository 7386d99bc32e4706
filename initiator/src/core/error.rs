//! Why a queue or a controller could not be reached or brought up: one enum, with what to check.
//! Calls nothing; called by `link` and `session`, shown to users through [`crate::Error`].

use core::fmt;
use core::net::SocketAddr;
use core::time::Duration;

use lariat_fabric::{CmError, QpError, RegisterError, ResolveError};
use lariat_wire::nvme::{Nqn, Qid, Status};
use lariat_wire::rdma_cm::RejectStatus;
use lariat_wire::rocev2::UDP_PORT;
use lariat_wire::rocev2::cm::RejReason;

use super::types::{LossReason, SubmitError};

/// Where NVMe over RDMA listens as a rule.
const NVME_PORT: u16 = 4420;

/// How far a connection had come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Address and route are looked up.
    Resolve,
    /// The connection manager's handshake.
    Connect,
    /// The Fabrics Connect command.
    FabricsConnect,
    /// The controller is being enabled.
    Enable,
    /// The controller and its namespaces are being identified.
    Identify,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Resolve => "resolving the address",
            Self::Connect => "the RDMA connection",
            Self::FabricsConnect => "the Fabrics Connect command",
            Self::Enable => "enabling the controller",
            Self::Identify => "identifying the controller",
        })
    }
}

impl Stage {
    /// What to check when nothing answers.
    fn hint(self) -> &'static str {
        match self {
            Self::Resolve | Self::Connect => {
                "is the target running, is the address right, does a firewall stop UDP port 4791?"
            }
            Self::FabricsConnect | Self::Enable | Self::Identify => {
                "the target answers, but not this command: see its log"
            }
        }
    }
}

fn advice_words(advice: Option<&str>) -> String {
    advice.map(|advice| format!("; {advice}")).unwrap_or_default()
}

/// A queue or a controller did not come up.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No way to get there.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// Memory could not be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The queue pair could not be created.
    #[error(transparent)]
    QueuePair(#[from] QpError),
    /// The connection manager refused locally.
    #[error(transparent)]
    Cm(#[from] CmError),
    /// The peer said no.
    #[error("{remote} rejected queue {qid}: {reason}{}{}", nvme_words(*.nvme), port_words(*.remote, *.reason))]
    Rejected {
        /// The target's address.
        remote: SocketAddr,
        /// The queue.
        qid: Qid,
        /// The connection manager's reason.
        reason: RejReason,
        /// The NVMe transport's reason, if it gave one.
        nvme: Option<RejectStatus>,
    },
    /// No route, no neighbour, nobody who listens, or a failure of this side.
    #[error("{remote} cannot be reached{}", unreachable_words(*.errno, .advice.as_deref()))]
    Unreachable {
        /// The target's address.
        remote: SocketAddr,
        /// The operating system's error number.
        errno: i32,
        /// What the provider knows of it, and what to do.
        advice: Option<String>,
    },
    /// No answer in time.
    #[error("{remote} gave no answer within {waited:.1?} ({stage}); {}{}", .stage.hint(), advice_words(.advice.as_deref()))]
    TimedOut {
        /// The target's address.
        remote: SocketAddr,
        /// How far it had come.
        stage: Stage,
        /// How long was waited.
        waited: Duration,
        /// What the provider knows of it: who holds the well-known port, say.
        advice: Option<String>,
    },
    /// The connection ended before it was of use.
    #[error("the connection to {remote} was lost during {stage}: {reason}")]
    Lost {
        /// The target's address.
        remote: SocketAddr,
        /// How far it had come.
        stage: Stage,
        /// Why.
        reason: LossReason,
    },
    /// The controller refused the Fabrics Connect.
    #[error("subsystem {subsystem} refused queue {qid}: {}{hint}", connect_status(*.status))]
    Refused {
        /// The subsystem's name.
        subsystem: String,
        /// The queue.
        qid: Qid,
        /// The status.
        status: Status,
        /// What is behind it, as far as the status tells.
        hint: String,
    },
    /// A command of the bring-up failed.
    #[error("{what} failed: {status}")]
    Command {
        /// Which command.
        what: &'static str,
        /// The status.
        status: Status,
    },
    /// A command of the bring-up could not be queued.
    #[error("{what} could not be sent: {source}")]
    Submit {
        /// Which command.
        what: &'static str,
        /// Why.
        source: SubmitError,
    },
    /// The controller did not become ready in the time it names itself (CAP.TO).
    #[error("the controller did not become ready within {waited:.1?}")]
    NotReady {
        /// How long was waited.
        waited: Duration,
    },
    /// The controller wants authentication, which this initiator cannot do.
    #[error("subsystem {subsystem} demands authentication, which is not supported")]
    Authentication {
        /// The subsystem's name.
        subsystem: String,
    },
    /// The controller lacks something needed.
    #[error("the controller cannot be used: {0}")]
    Unsupported(&'static str),
}

fn unreachable_words(errno: i32, advice: Option<&str>) -> String {
    match advice {
        Some(advice) => format!(": {advice}"),
        None => format!(
            ": {}; is the address right, and is there a route?",
            std::io::Error::from_raw_os_error(errno)
        ),
    }
}

/// Where nobody listens at a port, it is the wrong one.
fn port_words(remote: SocketAddr, reason: RejReason) -> String {
    if reason != RejReason::INVALID_SERVICE_ID {
        return String::new();
    }
    let usual = if remote.port() == NVME_PORT {
        "; see `port` of its listener"
    } else if remote.port() == UDP_PORT {
        ", which is 4420 if nobody changed it; 4791 is the one of RoCEv2's packets"
    } else {
        ", which is 4420 if nobody changed it"
    };
    format!("; {} is not the port of the target (lariat: -s, fio: trsvcid){usual}", remote.port())
}

fn nvme_words(status: Option<RejectStatus>) -> String {
    status.map_or_else(String::new, |status| format!(", NVMe: {status}"))
}

/// A status of a Connect in words: codes that mean something else to other commands give the name
/// that they have here, which the table lists first.
fn connect_status(status: Status) -> String {
    match status.name().and_then(|names| names.split_once(" / ")) {
        Some((name, _)) => {
            format!("{name} (sct {:#x}, sc {:#04x})", status.kind().0, status.code())
        }
        None => status.to_string(),
    }
}

/// What a Connect status tells about what is wrong, and what to do. `remote` is who was asked, `host`
/// the name of this host.
pub(crate) fn connect_hint(status: Status, result: u32, remote: SocketAddr, host: &Nqn) -> String {
    use lariat_wire::nvme::ConnectInvalidParameter as Parameter;
    if status.same_code(Status::CONNECT_INVALID_HOST) {
        return format!(
            "; {host}, the NQN of this host, is not among the subsystem's allowed hosts (lariatd: \
             allowed_hosts)"
        );
    }
    let invalid = status.same_code(Status::CONNECT_INVALID_PARAMETERS);
    if invalid && Parameter::from_result(result) == Parameter::SUBNQN {
        return format!(
            "; there is no subsystem of this name: `lariat discover -a {} -s {}` lists those that \
             there are",
            remote.ip(),
            remote.port()
        );
    }
    fixed_hint(status, result).to_owned()
}

fn fixed_hint(status: Status, result: u32) -> &'static str {
    use lariat_wire::nvme::ConnectInvalidParameter as Parameter;
    if status.same_code(Status::CONNECT_CONTROLLER_BUSY) {
        return "; the subsystem has no free controller: too many hosts, or a connection that just \
                died is still being cleaned up";
    }
    if !status.same_code(Status::CONNECT_INVALID_PARAMETERS) {
        return "";
    }
    let parameter = Parameter::from_result(result);
    if parameter == Parameter::HOSTNQN {
        "; the host NQN is not accepted"
    } else if parameter == Parameter::HOSTID {
        "; the host identifier is not accepted"
    } else if parameter == Parameter::CNTLID {
        "; there is no such controller (any more)"
    } else if parameter == Parameter::SQSIZE {
        "; the queue size is not accepted"
    } else if parameter == Parameter::QID {
        "; the queue identifier is taken or too high"
    } else if parameter == Parameter::KATO {
        "; the keep alive timeout is not accepted"
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remote(port: u16) -> SocketAddr {
        SocketAddr::new([192, 0, 2, 7].into(), port)
    }

    #[test]
    fn a_wrong_port_is_told_with_the_flag_that_sets_it() {
        let told = |port, reason| {
            let remote = remote(port);
            ConnectError::Rejected { remote, qid: Qid::ADMIN, reason, nvme: None }.to_string()
        };
        let words = told(8009, RejReason::INVALID_SERVICE_ID);
        assert!(
            words.contains("8009 is not the port of the target (lariat: -s, fio: trsvcid)"),
            "{words}"
        );
        assert!(words.ends_with("which is 4420 if nobody changed it"), "{words}");
        assert!(told(4791, RejReason::INVALID_SERVICE_ID).contains("RoCEv2's packets"));
        assert!(told(4420, RejReason::INVALID_SERVICE_ID).ends_with("`port` of its listener"));
        assert!(!told(8009, RejReason::CONSUMER).contains("-s"));
    }

    #[test]
    fn hints_name_what_lists_subsystems_and_who_this_host_is() {
        let host = Nqn::parse("nqn.2026-11.io.lariat:host").unwrap();
        let hint = |status, parameter: u32| connect_hint(status, parameter, remote(4421), &host);
        let words = hint(Status::CONNECT_INVALID_HOST, 0);
        assert!(words.contains("nqn.2026-11.io.lariat:host, the NQN of this host"), "{words}");
        assert!(words.contains("allowed_hosts"), "{words}");
        let subnqn = lariat_wire::nvme::ConnectInvalidParameter::SUBNQN.to_result();
        let words = hint(Status::CONNECT_INVALID_PARAMETERS, subnqn);
        assert!(words.contains("`lariat discover -a 192.0.2.7 -s 4421`"), "{words}");
        assert_eq!(hint(Status::INTERNAL_ERROR, 0), "");
    }

    #[test]
    fn an_unreachable_target_is_told_with_advice_or_the_systems_word() {
        let told = |advice: Option<&str>| {
            let advice = advice.map(str::to_owned);
            ConnectError::Unreachable { remote: remote(4420), errno: 113, advice }.to_string()
        };
        assert_eq!(told(Some("do this")), "192.0.2.7:4420 cannot be reached: do this");
        let words = told(None);
        assert!(
            words.contains("No route to host") && words.contains("is the address right"),
            "{words}"
        );
    }
}

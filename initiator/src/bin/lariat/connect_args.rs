//! Where to connect to, in nvme-cli's flags, and the library's options from them. Calls the library;
//! called by all verbs.

use core::time::Duration;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

use anyhow::{Context, Result, anyhow};
use lariat::address::{hidden_port, is_bad_ipv4, split_port};
use lariat::core::ConnectError as SessionError;
use lariat::host_files::{HOST_ID_FILE, HOST_NQN_FILE, host_nqn_origin, line_of};
use lariat::{
    ConnectError, ConnectOptions, Controller, FabricChoice, HostId, Namespace, Nqn, Nsid,
    WireChoice,
};

use lariat_wire::nvme::NqnError;

use crate::failure::usage;
use crate::units::parse_limit;

/// Entries of an I/O queue at most.
const MAX_QUEUE_ENTRIES: i64 = 1024;

/// RDMA provider.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum FabricArg {
    /// An RDMA device that reaches the target, else soft.
    #[default]
    Auto,
    /// RoCEv2 in user space over UDP: needs no hardware and no kernel module.
    Soft,
    /// An RDMA device (libibverbs).
    Ib,
}

/// What the soft provider's packets travel over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum WireArg {
    /// Shared memory if the target is a process of the same user on this host, else UDP.
    #[default]
    Auto,
    /// UDP, also on one host.
    Udp,
    /// Shared memory or nothing.
    Shm,
}

/// The target and this host.
// The heading holds for all that follows: who flattens this has it last.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct ConnectArgs {
    /// Transport type; only rdma is supported.
    #[arg(short, long, value_name = "TYPE", default_value = "rdma", value_parser = transport)]
    transport: Rdma,
    /// Address of the target: IPv4, IPv6 or a host name.
    #[arg(short = 'a', long, value_name = "ADDRESS")]
    traddr: String,
    /// Port of the target's listener (of RDMA CM; on the wire it is always UDP 4791).
    #[arg(short = 's', long, value_name = "PORT", default_value_t = 4420)]
    trsvcid: u16,
    /// Name of this host [default: /etc/nvme/hostnqn, else one derived from the machine].
    #[arg(short = 'q', long, value_name = "NQN", value_parser = Nqn::parse)]
    hostnqn: Option<Nqn>,
    /// Identifier of this host, a UUID [default: /etc/nvme/hostid, else one derived from the machine].
    #[arg(short = 'I', long, value_name = "UUID", value_parser = uuid)]
    hostid: Option<uuid::Uuid>,
    /// Seconds after which target and host take each other for dead (keep alive); 0: never.
    #[arg(short, long, value_name = "SECONDS", default_value_t = 10)]
    keep_alive_tmo: u16,
    /// RDMA provider.
    #[arg(long, value_enum, default_value = "auto")]
    fabric: FabricArg,
    /// What the soft provider's packets travel over.
    #[arg(long, value_enum, default_value = "auto")]
    wire: WireArg,
    /// How long to try to connect each queue: seconds, or with a suffix (1.5s, 500ms, 2m).
    #[arg(long, value_name = "TIME", default_value = "10", value_parser = parse_limit)]
    connect_timeout: Duration,
    /// How long to wait for the answer to a command, written likewise.
    #[arg(long, value_name = "TIME", default_value = "30", value_parser = parse_limit)]
    io_timeout: Duration,
}

/// The target, a subsystem there, and its queues.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct SubsystemArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    /// Name of the subsystem; `lariat discover` lists those of a target.
    #[arg(short, long, value_name = "NQN", value_parser = subsystem)]
    nqn: Nqn,
    /// Entries of each I/O queue, 2 to 1024, one of which stays free [default: as many as the work
    /// needs].
    #[arg(short = 'Q', long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=MAX_QUEUE_ENTRIES))]
    queue_size: Option<u32>,
    /// I/O queues to ask for, 1 to 128 [default: as many as the work needs].
    #[arg(short = 'i', long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=128))]
    nr_io_queues: Option<u16>,
    /// Microseconds to poll for completions before sleeping; 0: sleep at once [default: 100].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=10_000_000))]
    poll_us: Option<u32>,
}

/// A namespace of a subsystem.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct NamespaceArgs {
    #[command(flatten)]
    pub(crate) subsystem: SubsystemArgs,
    /// Number of the namespace, as `lariat list-ns` shows it [default: the only one].
    #[arg(long, visible_alias = "nsid", value_name = "NSID",
          value_parser = clap::value_parser!(u32).range(1..=0xffff_fffe))]
    namespace_id: Option<u32>,
}

/// The one transport there is.
#[derive(Clone, Copy, Debug)]
struct Rdma;

fn transport(name: &str) -> Result<Rdma, String> {
    match name {
        "rdma" => Ok(Rdma),
        "tcp" | "fc" | "loop" | "pcie" => Err(format!(
            "lariat speaks NVMe over RDMA only, not {name}; use -t rdma, or nvme-cli for {name}"
        )),
        other => Err(format!("there is no transport {other:?}; use -t rdma")),
    }
}

fn uuid(text: &str) -> Result<uuid::Uuid, String> {
    text.parse().map_err(|_| "not a UUID, 8-4-4-4-12 hexadecimal digits".to_owned())
}

/// nvme-cli's -n is the namespace where a device is given; here it is the subsystem everywhere.
fn subsystem(name: &str) -> Result<Nqn, String> {
    if name.trim() != name {
        return Err("there is white space around it".to_owned());
    }
    Nqn::parse(name).map_err(|error| {
        if matches!(error, NqnError::NoPrefix(_)) && !name.bytes().all(|b| b.is_ascii_digit()) {
            format!("{error}; `lariat discover` lists the names that a target has")
        } else if !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit()) {
            format!("-n is the subsystem's name; the namespace goes with --namespace-id {name}")
        } else {
            error.to_string()
        }
    })
}

impl ConnectArgs {
    /// The address as given, with its port.
    pub(crate) fn resolve(&self) -> Result<SocketAddr> {
        let bare = self.traddr.trim_start_matches('[').trim_end_matches(']');
        if let Ok(address) = bare.parse::<IpAddr>() {
            let address = address.to_canonical();
            if address.is_unspecified() || address.is_multicast() {
                return Err(usage(format!("-a {address}: give the address of one machine")));
            }
            return Ok(SocketAddr::new(address, self.trsvcid));
        }
        if let Some((host, port)) = split_port(&self.traddr) {
            let host = if host.is_empty() { "ADDRESS" } else { host };
            let port = port.parse::<u16>().map_or_else(
                |_| format!("PORT ({port} is none: they end at 65535)"),
                |port| port.to_string(),
            );
            return Err(usage(format!(
                "-a {}: an address without the port, which goes with -s: -a {host} -s {port}",
                self.traddr
            )));
        }
        if self.traddr.trim().is_empty() {
            return Err(usage("-a is empty: give the target's address"));
        }
        if is_bad_ipv4(&self.traddr) {
            return Err(usage(format!(
                "-a {}: not an IPv4 address, whose numbers end at 255",
                self.traddr
            )));
        }
        (self.traddr.as_str(), self.trsvcid)
            .to_socket_addrs()
            .with_context(|| format!("cannot look up the host name {:?}", self.traddr))?
            .next()
            .ok_or_else(|| anyhow!("the host name {:?} has no address", self.traddr))
    }

    fn apply(&self, options: &mut ConnectOptions) -> Result<()> {
        let Rdma = self.transport;
        options.fabric = match self.fabric {
            FabricArg::Auto => FabricChoice::Auto,
            FabricArg::Soft => FabricChoice::Soft,
            FabricArg::Ib => FabricChoice::Ib,
        };
        options.wire = match self.wire {
            WireArg::Auto => WireChoice::Auto,
            WireArg::Udp => WireChoice::Udp,
            WireArg::Shm => WireChoice::Shm,
        };
        if let Some(id) = self.hostid.map_or_else(host_id_of_file, |id| Ok(Some(id)))? {
            options.host_id = HostId(id.into_bytes());
        }
        if let Some(nqn) =
            self.hostnqn.clone().map_or_else(host_nqn_of_file, |nqn| Ok(Some(nqn)))?
        {
            options.host_nqn = nqn;
        }
        options.kato = Duration::from_secs(u64::from(self.keep_alive_tmo));
        options.connect_timeout = self.connect_timeout;
        options.admin_timeout = self.io_timeout.min(options.admin_timeout);
        options.io_timeout = self.io_timeout;
        Ok(())
    }

    /// The name of this host, and where it comes from, in words.
    fn host_origin(&self) -> String {
        host_nqn_origin("-q", self.hostnqn.is_some())
    }

    /// An error of connecting, with what the library cannot know.
    fn told(&self, error: ConnectError) -> anyhow::Error {
        if error.is_host_refused() {
            return anyhow!("{error}; {}", self.host_origin());
        }
        let nobody = matches!(
            error,
            ConnectError::Session(SessionError::Unreachable { .. } | SessionError::TimedOut { .. })
        );
        if !nobody {
            return error.into();
        }
        if let Some((host, port)) = hidden_port(&self.traddr) {
            return anyhow!(
                "{error}; if {port} is the port and not the end of the address: -a {host} -s {port}"
            );
        }
        match self.other_addresses().as_slice() {
            [] => error.into(),
            others => anyhow!(
                "{error}; {} has other addresses, too: -a {}",
                self.traddr,
                others.join(", -a ")
            ),
        }
    }

    /// The addresses of a host name beside the first, which is the one that is taken.
    fn other_addresses(&self) -> Vec<String> {
        let all = (self.traddr.as_str(), self.trsvcid).to_socket_addrs();
        let mut all = all.into_iter().flatten().map(|address| address.ip());
        let first = all.next();
        let mut others: Vec<String> =
            all.filter(|ip| Some(*ip) != first).map(|ip| ip.to_string()).collect();
        others.dedup();
        others
    }

    fn open(&self, options: ConnectOptions) -> Result<Controller> {
        Controller::connect(options).map_err(|error| self.told(error))
    }

    /// Connects to the discovery controller.
    pub(crate) fn connect_discovery(&self) -> Result<Controller> {
        self.open(self.discovery()?)
    }

    /// What `discover` does not show: who this host is, and that others may be shown more.
    pub(crate) fn nothing_shown(&self) -> Result<String> {
        Ok(format!(
            "the target offers this host no subsystem; lariatd offers those with allow_any_host, and \
             those whose allowed_hosts name {}, the NQN of this host; {}",
            self.discovery()?.host_nqn,
            self.host_origin()
        ))
    }

    /// Options for the discovery controller.
    fn discovery(&self) -> Result<ConnectOptions> {
        let mut options = ConnectOptions::discovery(self.resolve()?);
        let kato = options.kato;
        self.apply(&mut options)?;
        options.kato = kato;
        Ok(options)
    }
}

impl SubsystemArgs {
    /// Connects; `queues` of `depth` are what the work needs.
    pub(crate) fn connect(&self, queues: u16, depth: u32) -> Result<Controller> {
        let mut options = ConnectOptions::new(self.connect.resolve()?, self.nqn.clone());
        self.connect.apply(&mut options)?;
        options.queues = self.nr_io_queues.unwrap_or(queues);
        if options.queues < queues {
            return Err(usage(format!(
                "-i {} asks for fewer I/O queues than the {queues} of this work: leave it out, or \
                 ask for {queues}",
                options.queues
            )));
        }
        options.queue_depth = self.depth(depth);
        if let Some(poll_us) = self.poll_us {
            options.spin = Duration::from_micros(u64::from(poll_us));
        }
        self.connect.open(options)
    }

    /// The depth of each queue: one entry of a queue always stays free.
    pub(crate) fn depth(&self, wanted: u32) -> u32 {
        self.queue_size.map_or(wanted, |size| size.saturating_sub(1)).max(1)
    }

    /// Whether -Q leaves room for as many requests on a queue as the work keeps there.
    pub(crate) fn must_hold(&self, depth: u32) -> Result<()> {
        let most = self.depth(depth);
        if most >= depth {
            return Ok(());
        }
        let entries = depth.saturating_add(1);
        let larger = if i64::from(entries) <= MAX_QUEUE_ENTRIES {
            format!(", ask for -Q {entries}")
        } else {
            String::new()
        };
        Err(usage(format!(
            "-Q {} has room for {most} requests on a queue, --iodepth {depth} is more: leave -Q \
             out{larger}, or use --iodepth {most}",
            most + 1
        )))
    }

    /// For reports.
    pub(crate) fn address(&self) -> String {
        self.connect.resolve().map_or_else(
            |_| format!("{}:{}", self.connect.traddr, self.connect.trsvcid),
            |address| address.to_string(),
        )
    }

    /// For reports.
    pub(crate) fn nqn(&self) -> &Nqn {
        &self.nqn
    }
}

impl NamespaceArgs {
    /// The namespace that was named, or the only one.
    pub(crate) fn namespace(&self, controller: &Controller) -> Result<Namespace> {
        match self.namespace_id {
            Some(id) => Ok(controller.namespace(Nsid(id))?),
            None => only(controller),
        }
    }
}

fn only(controller: &Controller) -> Result<Namespace> {
    let ids: Vec<String> =
        controller.namespaces().iter().map(|info| info.geometry.nsid.to_string()).collect();
    match ids.len() {
        0 if controller.is_discovery() => Err(usage(
            "-n names the discovery subsystem, which has no namespaces: `lariat discover` lists the \
             others",
        )),
        0 => Err(anyhow!("the subsystem shows this host no namespace that can be used")),
        1 => Ok(controller.only_namespace()?),
        _ => Err(usage(format!(
            "the subsystem has namespaces {}: say which with --namespace-id",
            ids.join(", ")
        ))),
    }
}

fn host_nqn_of_file() -> Result<Option<Nqn>> {
    line_of(HOST_NQN_FILE)
        .map(|line| Nqn::parse(&line).with_context(|| format!("{HOST_NQN_FILE} (or give -q)")))
        .transpose()
}

fn host_id_of_file() -> Result<Option<uuid::Uuid>> {
    line_of(HOST_ID_FILE)
        .map(|line| {
            line.parse().with_context(|| format!("{HOST_ID_FILE} holds no UUID (or give -I)"))
        })
        .transpose()
}

#[cfg(test)]
mod tests;

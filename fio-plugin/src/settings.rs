//! What the user asked for, from options and names: where each disk is, and how to connect. Calls
//! `filename` and the library's types; called by `engine` and `job`.
#![forbid(unsafe_code)]

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

use lariat::address::{is_bad_ipv4, split_port};
use lariat::host_files::{HOST_ID_FILE, HOST_NQN_FILE, host_nqn_origin, line_of};
use lariat::{ConnectOptions, FabricChoice, HostId, Nqn, Nsid, WireChoice};
use lariat_wire::nvme::NqnError;

use crate::filename::{self, Family, FilenameError, Keys};

/// The engine's options as given.
#[derive(Clone, Debug, Default)]
pub(crate) struct Given {
    pub(crate) traddr: Option<String>,
    pub(crate) subnqn: Option<String>,
    pub(crate) fabric: Option<String>,
    pub(crate) wire: Option<String>,
    pub(crate) hostnqn: Option<String>,
    pub(crate) hostid: Option<String>,
    pub(crate) write_mode: Option<String>,
    pub(crate) trsvcid: u32,
    /// 0 for the only one.
    pub(crate) nsid: u32,
    pub(crate) keep_alive_s: u32,
    pub(crate) connect_timeout_s: u32,
    pub(crate) io_timeout_s: u32,
    pub(crate) poll_us: u32,
    pub(crate) write_fua: bool,
}

/// What the options and names come to.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// One for each file of the job.
    pub(crate) disks: Vec<DiskName>,
    pub(crate) writes: WriteMode,
    fabric: FabricChoice,
    wire: WireChoice,
    host_id: Option<HostId>,
    keep_alive: Duration,
    connect_timeout: Duration,
    io_timeout: Duration,
    poll: Duration,
}

/// What fio's writes become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteMode {
    Write { fua: bool },
    Zeroes,
}

/// Where a disk is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DiskName {
    pub(crate) controller: ControllerName,
    /// `None`: the only one of the subsystem.
    pub(crate) nsid: Option<Nsid>,
}

/// Where a controller is, and as whom to connect there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ControllerName {
    address: SocketAddr,
    subsystem: Nqn,
    host: Option<Nqn>,
    /// The user gave the host's name.
    host_given: bool,
}

impl ControllerName {
    /// Where the host's name comes from, in words.
    pub(crate) fn host_origin(&self) -> String {
        host_nqn_origin("hostnqn=", self.host_given)
    }
}

/// Why it cannot be done as asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SettingsError {
    #[error(transparent)]
    Filename(#[from] FilenameError),
    #[error("no {0}: give it in filename or by --{0}=")]
    Missing(&'static str),
    #[error("{what}: {source}")]
    Name { what: &'static str, source: NqnError },
    #[error("{what}={value:?}: {expected}")]
    BadValue { what: &'static str, value: String, expected: &'static str },
    #[error(
        "traddr={text}: an address without the port, which goes with trsvcid: traddr={host} \
         trsvcid={port}"
    )]
    PortInAddress { text: String, host: String, port: String },
    #[error("cannot look up the host name {name:?}: {source}")]
    LookUp { name: String, source: std::io::Error },
    #[error("{0:?} has no address of the family that adrfam names")]
    NoAddress(String),
    #[error(
        "nrfiles={0}: name each namespace in filename instead (filename=ns=1:ns=2), for all of \
         these files would be the same one"
    )]
    ManyFiles(usize),
}

impl Settings {
    /// From the options and the job's file names. `named`: the user chose the names; else fio made
    /// them up and they say nothing.
    pub(crate) fn new(given: &Given, names: &[String], named: bool) -> Result<Self, SettingsError> {
        if !named && names.len() > 1 {
            return Err(SettingsError::ManyFiles(names.len()));
        }
        // All are read before any is used: what stands in one may be the end of another that fio cut.
        let read = |name: &String| if named { filename::parse(name) } else { Ok(Keys::default()) };
        let names = names.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        let seconds = |value: u32| Duration::from_secs(u64::from(value));
        Ok(Self {
            disks: names
                .into_iter()
                .map(|keys| disk_name(given, keys))
                .collect::<Result<_, _>>()?,
            writes: write_mode(given)?,
            fabric: fabric(given)?,
            wire: wire(given)?,
            host_id: host_id(given)?,
            keep_alive: seconds(given.keep_alive_s),
            connect_timeout: seconds(given.connect_timeout_s.max(1)),
            io_timeout: seconds(given.io_timeout_s.max(1)),
            poll: Duration::from_micros(u64::from(given.poll_us)),
        })
    }

    /// How long to poll before sleeping.
    pub(crate) fn poll(&self) -> Duration {
        self.poll
    }

    /// How to connect to one of the controllers.
    pub(crate) fn connect_options(
        &self,
        name: &ControllerName,
        queue_depth: u32,
    ) -> ConnectOptions {
        let mut options = ConnectOptions::new(name.address, name.subsystem.clone());
        if let Some(host) = &name.host {
            options.host_nqn = host.clone();
        }
        if let Some(host_id) = self.host_id {
            options.host_id = host_id;
        }
        options.fabric = self.fabric;
        options.wire = self.wire;
        options.queues = 1;
        options.queue_depth = queue_depth;
        options.kato = self.keep_alive;
        options.connect_timeout = self.connect_timeout;
        options.admin_timeout = self.io_timeout.min(options.admin_timeout);
        options.io_timeout = self.io_timeout;
        options.spin = self.poll;
        options
    }
}

fn disk_name(given: &Given, keys: Keys) -> Result<DiskName, SettingsError> {
    let missing = SettingsError::Missing;
    let traddr = keys.traddr.or_else(|| given.traddr.clone()).ok_or(missing("traddr"))?;
    let subnqn = keys.subnqn.or_else(|| given.subnqn.clone()).ok_or(missing("subnqn"))?;
    let port = match keys.trsvcid.map_or_else(|| u16::try_from(given.trsvcid), Ok) {
        Ok(port) if port != 0 => port,
        _ => {
            let value = given.trsvcid.to_string();
            let expected = "a port is 1 to 65535";
            return Err(SettingsError::BadValue { what: "trsvcid", value, expected });
        }
    };
    let nqn = |what: &'static str, text: &str| {
        Nqn::parse(text).map_err(|source| SettingsError::Name { what, source })
    };
    let host_name = keys.hostnqn.as_ref().or(given.hostnqn.as_ref());
    let host = match host_name {
        Some(name) => Some(nqn("hostnqn", name)?),
        None => line_of(HOST_NQN_FILE).map(|line| nqn(HOST_NQN_FILE, &line)).transpose()?,
    };
    let controller = ControllerName {
        address: look_up(&traddr, port, keys.family)?,
        subsystem: nqn("subnqn", &subnqn)?,
        host,
        host_given: host_name.is_some(),
    };
    let nsid = keys.nsid.or(Some(given.nsid).filter(|nsid| *nsid != 0));
    Ok(DiskName { controller, nsid: nsid.map(Nsid) })
}

fn look_up(name: &str, port: u16, family: Option<Family>) -> Result<SocketAddr, SettingsError> {
    let bad =
        |expected| SettingsError::BadValue { what: "traddr", value: name.to_owned(), expected };
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    let addresses: Vec<SocketAddr> = match bare.parse::<IpAddr>() {
        Ok(address) if address.is_unspecified() || address.is_multicast() => {
            return Err(bad("the address of one machine is expected"));
        }
        Ok(address) => vec![SocketAddr::new(address, port)],
        Err(_) if is_bad_ipv4(name) => {
            return Err(bad("not an IPv4 address, whose numbers end at 255"));
        }
        Err(_) if let Some((host, port)) = split_port(name) => {
            let host = if host.is_empty() { "ADDRESS" } else { host };
            let (text, host, port) = (name.to_owned(), host.to_owned(), port.to_owned());
            return Err(SettingsError::PortInAddress { text, host, port });
        }
        Err(_) => (name, port)
            .to_socket_addrs()
            .map_err(|source| SettingsError::LookUp { name: name.to_owned(), source })?
            .collect(),
    };
    addresses
        .into_iter()
        .find(|address| match family {
            Some(Family::Ipv4) => address.is_ipv4(),
            Some(Family::Ipv6) => address.is_ipv6(),
            None => true,
        })
        .ok_or_else(|| SettingsError::NoAddress(name.to_owned()))
}

fn fabric(given: &Given) -> Result<FabricChoice, SettingsError> {
    let refuse = |value: &str, expected| {
        Err(SettingsError::BadValue { what: "fabric", value: value.to_owned(), expected })
    };
    match given.fabric.as_deref() {
        None | Some("auto") => Ok(FabricChoice::Auto),
        Some("soft") => Ok(FabricChoice::Soft),
        Some("ib") => Ok(FabricChoice::Ib),
        Some(other) => refuse(other, "there are auto, soft and ib"),
    }
}

fn wire(given: &Given) -> Result<WireChoice, SettingsError> {
    match given.wire.as_deref() {
        None | Some("auto") => Ok(WireChoice::Auto),
        Some("udp") => Ok(WireChoice::Udp),
        Some("shm") => Ok(WireChoice::Shm),
        Some(other) => Err(SettingsError::BadValue {
            what: "wire",
            value: other.to_owned(),
            expected: "there are auto, udp and shm",
        }),
    }
}

fn write_mode(given: &Given) -> Result<WriteMode, SettingsError> {
    match given.write_mode.as_deref() {
        None | Some("write") => Ok(WriteMode::Write { fua: given.write_fua }),
        Some("zeroes") => Ok(WriteMode::Zeroes),
        Some(other) => Err(SettingsError::BadValue {
            what: "write_mode",
            value: other.to_owned(),
            expected: "there are write and zeroes",
        }),
    }
}

fn host_id(given: &Given) -> Result<Option<HostId>, SettingsError> {
    let (what, text) = match &given.hostid {
        Some(text) => ("hostid", text.clone()),
        None => match line_of(HOST_ID_FILE) {
            Some(line) => (HOST_ID_FILE, line),
            None => return Ok(None),
        },
    };
    match text.parse::<uuid::Uuid>() {
        Ok(id) => Ok(Some(HostId(id.into_bytes()))),
        Err(_) => {
            Err(SettingsError::BadValue { what, value: text, expected: "a UUID is expected" })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given() -> Given {
        Given { trsvcid: 4420, connect_timeout_s: 10, io_timeout_s: 30, ..Given::default() }
    }

    const FULL: &str = "traddr=127.0.0.9 trsvcid=4421 subnqn=nqn.2026-11.io.lariat:a ns=2";

    fn told(given: &Given, name: &str) -> String {
        Settings::new(given, &[name.to_owned()], true).unwrap_err().to_string()
    }

    #[test]
    fn names_alone_are_enough() {
        let settings = Settings::new(&given(), &[FULL.into()], true).unwrap();
        let [disk] = settings.disks.as_slice() else { panic!("one disk") };
        assert_eq!(disk.nsid, Some(Nsid(2)));
        let options = settings.connect_options(&disk.controller, 7);
        assert_eq!(options.address, "127.0.0.9:4421".parse().unwrap());
        assert_eq!((options.queue_depth, options.queues), (7, 1));
        assert_eq!(settings.writes, WriteMode::Write { fua: false });
    }

    #[test]
    fn options_fill_in_what_names_leave_out() {
        let mut given = given();
        given.traddr = Some("::1".into());
        given.subnqn = Some("nqn.2026-11.io.lariat:a".into());
        given.hostid = Some("11111111-1111-1111-1111-111111111111".into());
        given.write_mode = Some("zeroes".into());
        let names = ["ns=1".to_owned(), "ns=2 traddr=127.0.0.9".to_owned()];
        let settings = Settings::new(&given, &names, true).unwrap();
        let [one, two] = settings.disks.as_slice() else { panic!("two disks") };
        assert_eq!(one.controller.address, "[::1]:4420".parse().unwrap());
        assert_eq!(two.controller.address, "127.0.0.9:4420".parse().unwrap());
        assert_eq!(one.controller.subsystem, two.controller.subsystem);
        assert_eq!(settings.writes, WriteMode::Zeroes);
        assert_eq!(settings.connect_options(&one.controller, 1).host_id, HostId([0x11; 16]));
        // A name of fio's making says nothing.
        let made_up = Settings::new(&given, &["job.0.0".into()], false).unwrap();
        assert_eq!(made_up.disks[0].nsid, None);
        // fio cut a name at a colon that stands before a port.
        let cut = ["traddr=10.0.0.1".to_owned(), "4420 ns=1".to_owned()];
        let words = Settings::new(&Given::default(), &cut, true).unwrap_err().to_string();
        assert!(words.contains("trsvcid=4420"), "{words}");
        let many = Settings::new(&given, &["job.0.0".into(), "job.0.1".into()], false);
        assert!(many.unwrap_err().to_string().contains("filename=ns=1:ns=2"));
    }

    #[test]
    fn mistakes_are_named() {
        assert!(told(&given(), "ns=1").contains("no traddr"));
        assert!(told(&given(), "traddr=127.0.0.1").contains("no subnqn"));
        assert!(told(&given(), "traddr=127.0.0.1 subnqn=disk").contains("subnqn: "));
        assert!(told(&given(), &format!("{FULL} adrfam=ipv6")).contains("adrfam"));
        let with = |change: fn(&mut Given)| {
            let mut given = given();
            change(&mut given);
            told(&given, FULL)
        };
        for (traddr, words) in [
            ("10.0.0.1:4420", "traddr=10.0.0.1 trsvcid=4420"),
            ("[::1]:4421", "traddr=::1 trsvcid=4421"),
            (":4420", "traddr=ADDRESS trsvcid=4420"),
            ("10.0.0.300", "not an IPv4 address"),
            ("0.0.0.0", "the address of one machine"),
        ] {
            let mut given = given();
            given.traddr = Some(traddr.into());
            let said = told(&given, "subnqn=nqn.2026-11.io.lariat:a ns=1");
            assert!(said.contains(words), "{said}");
        }
        assert!(with(|given| given.fabric = Some("tcp".into())).contains("auto, soft and ib"));
        assert!(with(|given| given.wire = Some("tcp".into())).contains("auto, udp and shm"));
        assert!(with(|given| given.hostid = Some("me".into())).contains("UUID"));
        assert!(with(|given| given.write_mode = Some("uncor".into())).contains("zeroes"));
        assert!(with(|given| given.hostnqn = Some("me".into())).contains("hostnqn: "));
    }
}

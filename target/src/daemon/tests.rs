//! The configuration: every example parses, every mistake is named with its key and its mending.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lariat_wire::nvme::{Nqn, Nsid};

use super::config::{FabricChoice, Listener, WireChoice};
use super::*;
use crate::nvme::{AllowedHosts, Limits};
use crate::storage::BackendKind;

const GOOD: &str = r#"
[[listener]]
address = "127.0.0.1"

[[subsystem]]
nqn = "nqn.2026-11.io.lariat:test"
allow_any_host = true

[[subsystem.namespace]]
nsid = 1
[subsystem.namespace.backend]
type = "file"
path = "/disk"
"#;

fn parse(text: &str, variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
    let variables =
        variables.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
    Config::parse(Path::new("t.toml"), text, variables)
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs")
}

#[test]
fn every_example_parses() {
    let mut seen = 0;
    for entry in std::fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            let text = std::fs::read_to_string(&path).unwrap();
            Config::parse(&path, &text, []).unwrap_or_else(|error| panic!("{error}"));
            seen += 1;
        }
    }
    assert!(seen >= 5, "{seen} examples");
}

#[test]
fn the_reference_shows_the_defaults() {
    let path = folder().join("reference.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let as_is = Config::parse(&path, &text, []).unwrap();
    // With every default written out, but what depends on the machine or the name.
    let skip = ["#serial", "#uuid", "#path", "#create", "#reactors", "#cpus"];
    let full: String = text
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(key) if key.starts_with(char::is_alphabetic) && key.contains(" = ") => {
                if skip.iter().any(|skip| line.starts_with(skip)) { "" } else { key }
            }
            _ => line,
        })
        .flat_map(|line| [line, "\n"])
        .collect();
    assert!(full.contains("\nidle_poll_us = 50"));
    let mut full = Config::parse(&path, &full, []).unwrap();
    assert_eq!(full.target.log.take().as_deref(), Some("info"));
    assert_eq!(full, as_is);
}

#[test]
fn a_configuration_means_what_it_says() {
    let config = parse(
        r#"
        [[listener]]
        address = "::1"
        port = 4421
        fabric = "soft"
        [[subsystem]]
        nqn = "nqn.2026-11.io.lariat:a"
        serial = "S1"
        model = "M 1"
        allowed_hosts = ["nqn.2026-11.io.lariat:host"]
        [[subsystem.namespace]]
        nsid = 7
        uuid = "0b5f7a3e-4f0e-4c38-9d53-6a3a3a0f3d11"
        [subsystem.namespace.backend]
        type = "file"
        path = "/srv/a.img"
        size = "1GiB"
        create = true
        block_size = 512
        [[subsystem.namespace]]
        nsid = 8
        [subsystem.namespace.backend]
        type = "null"
        size = 8192
        read_only = true
        [target]
        reactors = 2
        cpus = [3, 1]
        idle_poll_us = 0
        wire = "udp"
        buffers_mib = 16
        max_queue_depth = 1024
        shared_receive = true
        in_capsule_bytes = 0
        mdts_kib = 128
        max_hosts = 3
        max_queues = 2
        "#,
        &[],
    )
    .unwrap();
    let listener = Listener { address: "[::1]:4421".parse().unwrap(), fabric: FabricChoice::Soft };
    assert_eq!(config.listeners, [listener]);
    let [subsystem] = &config.subsystems[..] else { panic!("{config:?}") };
    assert_eq!((subsystem.serial.as_str(), subsystem.model.as_str()), ("S1", "M 1"));
    let host = Nqn::parse("nqn.2026-11.io.lariat:host").unwrap();
    assert_eq!(subsystem.allowed_hosts, AllowedHosts::Only([host].into()));
    let [first, second] = &subsystem.namespaces[..] else { panic!("{config:?}") };
    assert_eq!((first.nsid, first.uuid[0], first.uuid[15]), (Nsid(7), 0x0b, 0x11));
    let path = PathBuf::from("/srv/a.img");
    let kind = BackendKind::File { path, size_bytes: Some(1 << 30), create: true };
    assert_eq!((&first.backend.kind, first.backend.block_bytes), (&kind, 512));
    assert_eq!(second.backend.kind, BackendKind::Null { size_bytes: 8192 });
    assert!(second.backend.read_only && second.backend.block_bytes == 4096);
    assert_eq!(second.key, "subsystem[0].namespace[1].backend");
    assert_eq!((config.target.reactors, &config.target.cpus[..]), (2, &[3, 1][..]));
    assert_eq!((config.target.idle_poll, config.target.wire), (Duration::ZERO, WireChoice::Udp));
    assert_eq!((config.target.buffers_bytes, config.target.shared_receive), (16 << 20, true));
    let Limits { max_queues, max_queue_depth, mdts_bytes, in_capsule_bytes, max_hosts } =
        config.target.limits;
    assert_eq!((max_queues, max_queue_depth.entries(), max_hosts), (2, 1025, 3));
    assert_eq!((mdts_bytes, in_capsule_bytes), (128 << 10, 0));
}

#[test]
fn a_queue_depth_is_a_number_of_commands() {
    // What the initiator asks for by default has to fit what the target grants by default.
    let config = parse(GOOD, &[]).unwrap();
    assert_eq!(config.target.limits.max_queue_depth.entries(), 128 + 1);
    let config = parse(&format!("{GOOD}[target]\nmax_queue_depth = 2\n"), &[]).unwrap();
    assert_eq!(config.target.limits.max_queue_depth.entries(), 2 + 1);
}

#[test]
fn devices_are_asked_for_where_they_are_built_in() {
    let text = GOOD.replace("\"127.0.0.1\"", "\"127.0.0.1\"\nfabric = \"ib\"");
    assert_ne!(text, GOOD);
    match parse(&text, &[]) {
        Ok(config) => {
            assert_eq!(config.listeners[0].fabric, FabricChoice::Ib);
            // A loopback address is no device's: `auto` takes the soft provider, `ib` says why not.
            let error = super::provider::parts(&config).unwrap_err().to_string();
            assert!(error.contains("loopback"), "{error}");
            let parts = super::provider::parts(&parse(GOOD, &[]).unwrap()).unwrap();
            let [part] = &parts[..] else { panic!("{parts:?}") };
            assert_eq!((part.provider.name(), part.listeners.len()), ("soft", 1));
        }
        Err(error) => {
            assert!(error.to_string().contains("is not built into this lariatd"), "{error}");
        }
    }
}

#[test]
fn names_made_up_stay_the_same_and_differ() {
    let two = GOOD.to_owned()
        + "[[subsystem.namespace]]\nnsid = 2\n[subsystem.namespace.backend]\ntype = \"null\"\n\
           size = 4096\n";
    let (one, again) = (parse(&two, &[]).unwrap(), parse(&two, &[]).unwrap());
    assert_eq!(one, again);
    let [first, second] = &one.subsystems[0].namespaces[..] else { panic!("{one:?}") };
    assert_ne!(first.uuid, second.uuid);
    let other = parse(&two.replace("lariat:test", "lariat:tesu"), &[]).unwrap();
    assert_ne!(one.subsystems[0].serial, other.subsystems[0].serial);
    assert_ne!(first.uuid, other.subsystems[0].namespaces[0].uuid);
    // Hosts have these on record.
    assert_eq!(first.uuid[6] >> 4, 8);
    assert_eq!(first.uuid[8] >> 6, 0b10);
}

#[test]
fn variables_override() {
    let variables = [
        ("LARIATD_TARGET__REACTORS", "3"),
        ("LARIATD_LISTENER__0__PORT", "4430"),
        ("LARIATD_LISTENER__0__FABRIC", "soft"),
        ("LARIATD_SUBSYSTEM__0__NAMESPACE__0__BACKEND__PATH", "/other"),
        ("LARIATD_SUBSYSTEM__0__NAMESPACE__0__BACKEND__READ_ONLY", "true"),
        ("LARIATD_TARGET__CPUS", "4, 5,6"),
        ("OTHER_TARGET__REACTORS", "nonsense"),
    ];
    let config = parse(GOOD, &variables).unwrap();
    assert_eq!((config.target.reactors, &config.target.cpus[..]), (3, &[4, 5, 6][..]));
    assert_eq!(config.listeners[0].address, "127.0.0.1:4430".parse().unwrap());
    assert_eq!(config.listeners[0].fabric, FabricChoice::Soft);
    let backend = &config.subsystems[0].namespaces[0].backend;
    assert!(backend.read_only);
    assert!(matches!(&backend.kind, BackendKind::File { path, .. } if path == Path::new("/other")));
}

#[test]
fn wrong_variables_are_named() {
    for (name, value, expected) in [
        (
            "LARIATD_TARGET__REACTORS",
            "many",
            "environment variable LARIATD_TARGET__REACTORS: target.reactors: \"many\" is not a whole \
             number that is possible here; write one from 1 to 255",
        ),
        (
            "LARIATD_TARGET__REACTOR",
            "1",
            "environment variable LARIATD_TARGET__REACTOR: target.reactor: there is no such key; did \
             you mean reactors?",
        ),
        (
            "LARIATD_LOGGING__LEVEL",
            "1",
            "environment variable LARIATD_LOGGING__LEVEL: logging.level: there is no such key; known \
             here: listener, subsystem, target",
        ),
        (
            "LARIATD_LISTENER__5__PORT",
            "1",
            "t.toml: listener[1]: nothing is not a table; write [[listener]] and its keys below",
        ),
        (
            "LARIATD_LISTENER__99999999999__PORT",
            "1",
            "environment variable LARIATD_LISTENER__99999999999__PORT: listener[99999999999].port: \
             no list is that long; write a place from 0 to 9999",
        ),
        (
            "LARIATD_",
            "1",
            "environment variable LARIATD_: : this does not name a key; write levels separated \
             by two underscores, LARIATD_TARGET__REACTORS, say",
        ),
    ] {
        assert_eq!(parse(GOOD, &[(name, value)]).unwrap_err().to_string(), expected, "{name}");
    }
}

/// What to replace in [`GOOD`], by what, and the error that follows.
const MISTAKES: &[(&str, &str, &str)] = &[
    (
        "127.0.0.1",
        "localhost",
        "listener[0].address: \"localhost\" is no IP address; write an IPv4",
    ),
    (
        "127.0.0.1",
        "127.0.0.1:4421",
        "listener[0].address: \"127.0.0.1:4421\" is an address and a port; the port (hosts' trsvcid) \
         has a key of its own: address = \"127.0.0.1\" and port = 4421",
    ),
    (
        "127.0.0.1",
        "[::1]:4421",
        "listener[0].address: \"[::1]:4421\" is an address and a port; the port (hosts' trsvcid) has a \
         key of its own: address = \"::1\" and port = 4421",
    ),
    (
        "127.0.0.1",
        "[::]:4421",
        "listener[0].address: \"[::]:4421\" is no IP address; write an IPv4",
    ),
    ("127.0.0.1", "127.0.0.1:0", "listener[0].address: \"127.0.0.1:0\" is no IP address"),
    (
        "127.0.0.1",
        "255.255.255.255",
        "listener[0].address: 255.255.255.255 stands for several machines",
    ),
    ("127.0.0.1", "ff02::1", "listener[0].address: ff02::1 stands for several machines"),
    ("127.0.0.1", "[::1]", "listener[0].address: \"[::1]\" has brackets; write address = \"::1\""),
    (
        "[[subsystem]]",
        "[[subsytem]]",
        "subsytem: there is no such table; did you mean [[subsystem]]?",
    ),
    ("[[listener]]", "[[listner]]", "listner: there is no such table; did you mean [[listener]]?"),
    (
        "[[listener]]",
        "[traget]\nreactors = 1\n[[listener]]",
        "traget: there is no such table; did you mean [target]?",
    ),
    (
        "[[subsystem.namespace]]",
        "[[subsystem.namespaces]]",
        "subsystem[0].namespaces: there is no such table; did you mean [[subsystem.namespace]]?",
    ),
    (
        "[[subsystem.namespace]]",
        "[[subsytem.namespace]]",
        "subsytem: there is no such table; did you mean [[subsystem]]?",
    ),
    (
        "[subsystem.namespace.backend]",
        "[subsystem.namespace.backnd]",
        "subsystem[0].namespace[0].backnd: there is no such table; did you mean [subsystem.namespace.backend]?",
    ),
    ("address = \"127.0.0.1\"", "", "listener[0].address: is missing; write an IPv4 or IPv6"),
    ("127.0.0.1", "0.0.0.0", "listener[0].address: 0.0.0.0 stands for all addresses"),
    ("address", "adress", "listener[0].address: is missing; there is adress, which means"),
    (
        "\"127.0.0.1\"",
        "\"127.0.0.1\"\nprot = 1",
        "listener[0].prot: there is no such key; did you mean port?",
    ),
    (
        "\"127.0.0.1\"",
        "\"127.0.0.1\"\nport = 0",
        "listener[0].port: 0 is not a whole number that is possible here; write one from 1 to 65535",
    ),
    (
        "\"127.0.0.1\"",
        "\"127.0.0.1\"\nport = \"4420\"",
        "listener[0].port: \"4420\" is not a whole",
    ),
    (
        "\"127.0.0.1\"",
        "\"127.0.0.1\"\nfabric = \"tcp\"",
        "listener[0].fabric: \"tcp\" is none; write",
    ),
    (
        "allow_any_host = true",
        "allow_any_host = true\n[target]\nwire = \"shm\"",
        "target.wire: \"shm\"; write",
    ),
    (
        "\"127.0.0.1\"",
        "\"127.0.0.1\"\n[[listener]]\naddress = \"127.0.0.1\"",
        "listener[1]: 127.0.0.1:4420 is listened on twice; remove one",
    ),
    (
        "[[listener]]",
        "[listener]",
        "listener: a table is not a list of tables; write [[listener]], with two brackets",
    ),
    ("[[listener]]\naddress = \"127.0.0.1\"", "", "listener: there is none; write [[listener]]"),
    ("nqn.2026-11.io.lariat:test", "disk", "subsystem[0].nqn: "),
    (
        "nqn.2026-11.io.lariat:test",
        "nqn.2014-08.org.nvmexpress.discovery",
        "subsystem[0].nqn: this is the name of the discovery subsystem",
    ),
    ("nqn = \"nqn.2026-11.io.lariat:test\"", "", "subsystem[0].nqn: is missing; write a name"),
    (
        "allow_any_host = true",
        "",
        "subsystem[0].allow_any_host: nobody would be allowed to connect; write allow_any_host = true, or",
    ),
    (
        "allow_any_host = true",
        "allow_any_host = 1",
        "subsystem[0].allow_any_host: 1 is neither true nor false; write",
    ),
    (
        "allow_any_host = true",
        "allowed_hosts = []",
        "subsystem[0].allowed_hosts: the list is empty",
    ),
    ("allow_any_host = true", "allowed_hosts = [\"me\"]", "subsystem[0].allowed_hosts: "),
    (
        "allow_any_host = true",
        "allowed_hosts = [1]",
        "subsystem[0].allowed_hosts: 1 is not a list of texts; write",
    ),
    (
        "allow_any_host = true",
        "allow_any_host = true\nallowed_hosts = [\"nqn.2026-11.io.lariat:h\"]",
        "subsystem[0].allowed_hosts: allow_any_host is true as well",
    ),
    (
        "allow_any_host = true",
        "allow_any_host = true\nserial = \"123456789012345678901\"",
        "subsystem[0].serial: \"123456789012345678901\"; write 1 to 20 printable",
    ),
    (
        "allow_any_host = true",
        "allow_any_host = true\nmodel = \"ä\"",
        "subsystem[0].model: \"ä\"; write 1 to 40",
    ),
    (
        "nsid = 1",
        "nsid = 0",
        "subsystem[0].namespace[0].nsid: 0 is not a whole number that is possible here; write one from 1 to 1024",
    ),
    ("nsid = 1", "", "subsystem[0].namespace[0].nsid: is missing; number the namespaces"),
    (
        "allow_any_host = true",
        "alow_any_host = true",
        "subsystem[0].allow_any_host: nobody would be allowed to connect; there is alow_any_host, which",
    ),
    (
        "allow_any_host = true",
        "allowed_host = []",
        "subsystem[0].allow_any_host: nobody would be allowed to connect; there is allowed_host, which",
    ),
    ("nsid = 1", "nsdi = 1", "subsystem[0].namespace[0].nsid: is missing; there is nsdi, which"),
    (
        "nsid = 1",
        "nsid = 1\nuuid = \"1\"",
        "subsystem[0].namespace[0].uuid: \"1\" is no UUID; write one as uuidgen",
    ),
    (
        "[subsystem.namespace.backend]\ntype = \"file\"\npath = \"/disk\"",
        "",
        "subsystem[0].namespace[0].backend: is missing; write [subsystem.namespace.backend]",
    ),
    (
        "[subsystem.namespace.backend]\ntype = \"file\"\npath = \"/disk\"",
        "backend = 1",
        "subsystem[0].namespace[0].backend: 1 is not a table; write [subsystem.namespace.backend] and",
    ),
    (
        "type = \"file\"",
        "",
        "subsystem[0].namespace[0].backend.type: is missing; write type = \"file\"",
    ),
    (
        "type = \"file\"",
        "type = \"raw\"",
        "subsystem[0].namespace[0].backend.type: \"raw\" is none; write type",
    ),
    ("path = \"/disk\"", "", "subsystem[0].namespace[0].backend.path: is missing; write the file"),
    ("path = \"/disk\"", "path = 1", "subsystem[0].namespace[0].backend.path: 1 is not text"),
    (
        "path = \"/disk\"",
        "path = \"/disk\"\nblock_size = 1024",
        "subsystem[0].namespace[0].backend.block_size: 1024; write block_size = 512 or",
    ),
    (
        "path = \"/disk\"",
        "path = \"/disk\"\nblock_size = \"4k\"",
        "subsystem[0].namespace[0].backend.block_size: \"4k\" is not a whole number",
    ),
    (
        "path = \"/disk\"",
        "path = \"/disk\"\nsize = \"1 gig\"",
        "subsystem[0].namespace[0].backend.size: \"1 gig\" is not a size; write bytes, or",
    ),
    (
        "path = \"/disk\"",
        "path = \"/disk\"\nsize = -1",
        "subsystem[0].namespace[0].backend.size: -1 is not a size",
    ),
    (
        "path = \"/disk\"",
        "path = \"/disk\"\nsize = 512",
        "subsystem[0].namespace[0].backend.size: 512 bytes are no whole number of blocks of 4096; write a multiple",
    ),
    (
        "path = \"/disk\"",
        "path = \"/disk\"\nsize = \"500GB\"",
        "subsystem[0].namespace[0].backend.size: 500000000000 bytes are no whole number of blocks of 4096; \
         write a multiple of 4096, size = 499999997952, say",
    ),
    (
        "path = \"/disk\"",
        "path = \"/disk\"\ncreate = true",
        "subsystem[0].namespace[0].backend.size: create = true needs a size; write how",
    ),
    (
        "type = \"file\"\npath = \"/disk\"",
        "type = \"memory\"",
        "subsystem[0].namespace[0].backend.size: is missing; write how large",
    ),
    (
        "type = \"file\"\npath",
        "type = \"null\"\nsize = 4096\npath",
        "subsystem[0].namespace[0].backend.path: there is no such key; known here: block_size, read_only, size, type",
    ),
    (
        "path = \"/disk\"",
        "path = \"/disk\"\n[target]\nreactors = 256",
        "target.reactors: 256 is not a whole number that is possible here; write one from 1 to 255",
    ),
    (
        "path = \"/disk\"",
        "path = \"/disk\"\n[target]\nreactors = 2.5",
        "target.reactors: 2.5 is not a whole",
    ),
    (
        "path = \"/disk\"",
        "path = \"/disk\"\n[target]\nreactors = 2\ncpus = [1]",
        "target.cpus: there are 2 reactors for 1 CPUs; write the numbers",
    ),
    (
        "path = \"/disk\"",
        "path = \"/disk\"\n[target]\ncpus = [1, 1]",
        "target.cpus: [1, 1] has doubles",
    ),
    (
        "path = \"/disk\"",
        "path = \"/disk\"\n[target]\nmax_queue_depth = 1",
        "target.max_queue_depth: 1 is not a whole number that is possible here; write one from 2 to 1024",
    ),
    (
        "path = \"/disk\"",
        "path = \"/disk\"\n[target]\nmdts_kib = 100",
        "target.mdts_kib: 100 is no power of two; write",
    ),
    (
        "path = \"/disk\"",
        "path = \"/disk\"\n[target]\nmdts_kib = 8192\nbuffers_mib = 4",
        "target.buffers_mib: one transfer of 8192 KiB does not fit; write more",
    ),
    (
        "path = \"/disk\"",
        "path = \"/disk\"\n[target]\nreceive_mib = 64\nreceive_max_mib = 32",
        "target.receive_max_mib: 32 is less than receive_mib, 64; write more",
    ),
    (
        "path = \"/disk\"",
        "path = \"/disk\"\n[target]\nin_capsule_bytes = 100",
        "target.in_capsule_bytes: 100; write a multiple of 16",
    ),
    (
        "path = \"/disk\"",
        "path = \"/disk\"\n[target]\nthreads = 2",
        "target.threads: there is no such key; known here: buffers_mib, cpus, ",
    ),
    (
        "[[listener]]",
        "target = 3\n[[listener]]",
        "target: 3 is not a table; write [target] and its keys below",
    ),
    ("[[listener]]", "[[listener", "this is not TOML: "),
];

#[test]
fn mistakes_are_named_with_their_mending() {
    parse(GOOD, &[]).unwrap();
    for (from, to, expected) in MISTAKES {
        assert!(GOOD.contains(from), "{from:?}");
        let text = GOOD.replacen(from, to, 1);
        let error = parse(&text, &[]).map(|config| panic!("{text}\n{config:?}")).unwrap_err();
        let error = error.to_string();
        let start = format!("t.toml: {expected}");
        assert!(error.starts_with(&start), "{to:?} gives\n{error}\nnot\n{start}");
        if !expected.starts_with("this is not TOML") {
            assert!(error.contains("; "), "no mending in {error}");
        }
    }
}

#[test]
fn doubles_are_refused() {
    let second = "[[subsystem.namespace]]\nnsid = 1\n[subsystem.namespace.backend]\ntype = \"null\"\n\
                  size = 4096\n";
    let error = parse(&(GOOD.to_owned() + second), &[]).unwrap_err().to_string();
    assert!(
        error.starts_with("t.toml: subsystem[0].namespace[1].nsid: another namespace has nsid 1"),
        "{error}"
    );
    let subsystem = "[[subsystem]]\nnqn = \"nqn.2026-11.io.lariat:test\"\nallow_any_host = true\n";
    let error = parse(&(GOOD.to_owned() + subsystem), &[]).unwrap_err().to_string();
    assert!(
        error.starts_with("t.toml: subsystem[1].nqn: another subsystem is named nqn.2026-11"),
        "{error}"
    );
    let uuid = "uuid = \"0b5f7a3e-4f0e-4c38-9d53-6a3a3a0f3d11\"\n";
    let text = GOOD.replace("nsid = 1\n", &format!("nsid = 1\n{uuid}"))
        + &second.replace("nsid = 1\n", &format!("nsid = 2\n{uuid}"));
    let error = parse(&text, &[]).unwrap_err().to_string();
    assert!(
        error.starts_with(
            "t.toml: subsystem[0].namespace[1].uuid: subsystem[0].namespace[0].backend has the same"
        ),
        "{error}"
    );
}

#[test]
fn a_file_that_is_not_there_is_said_to_be() {
    let error = Config::load(Path::new("/nonexistent/lariatd.toml")).unwrap_err().to_string();
    assert!(error.starts_with("/nonexistent/lariatd.toml: No such file"), "{error}");
}

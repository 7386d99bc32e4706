//! The configuration: every example parses and means what it says. `mistakes` has what is wrong in one,
//! `several` more than one fault at once, `files` files that cannot be read.

mod files;
mod mistakes;
mod several;

use std::ffi::OsString;

use super::*;
use crate::daemon::provider;
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
            let error = provider::parts(&config).unwrap_err().to_string();
            assert!(error.contains("loopback"), "{error}");
            let parts = provider::parts(&parse(GOOD, &[]).unwrap()).unwrap();
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
            "LARIATD_TARGET__CPUS",
            "4, x",
            "environment variable LARIATD_TARGET__CPUS: target.cpus: \"x\" in the list is no whole number; \
             write the numbers of CPUs, one per reactor: cpus = [0, 1]",
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

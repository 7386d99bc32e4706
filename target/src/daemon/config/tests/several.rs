//! All faults of a configuration are named at once, one of each table, in the order of the file.

use super::{ConfigError, GOOD, parse};

/// Where the faults are: keys, or `origin: key` for variables.
fn keys(error: &ConfigError) -> Vec<String> {
    let text = error.to_string();
    let keys = text.lines().map(|line| {
        let mut parts = line.splitn(3, ": ");
        match (parts.next(), parts.next()) {
            (Some("t.toml"), Some(key)) => key.to_owned(),
            (Some(origin), Some(key)) => format!("{origin}: {key}"),
            _ => panic!("{line}"),
        }
    });
    let keys: Vec<_> = keys.collect();
    assert_eq!(keys.len(), error.faults().len(), "a line each");
    keys
}

#[test]
fn each_table_tells_of_itself_in_the_order_of_the_file() {
    let listeners = "[[listener]]\naddress = \"here\"\nport = 0\n\
                     [[listener]]\naddress = \"127.0.0.1\"\n\
                     [[listener]]\naddress = \"127.0.0.1\"\nprot = 1\n\
                     [[listener]]\naddress = \"127.0.0.1\"\n";
    let subsystems = "[[subsystem]]\nnqn = \"disk\"\nallow_any_host = true\n\
                      [[subsystem.namespace]]\nnsid = 0\n\
                      [subsystem.namespace.backend]\ntype = \"raw\"\n\
                      [[subsystem.namespace]]\nnsid = 2\nbackend = { type = \"null\" }\n\
                      [[subsystem]]\nnqn = \"nqn.2026-11.io.lariat:b\"\nallow_any_host = true\n\
                      [[subsystem.namespace]]\nnsid = 1\n\
                      [[subsystem.namespace]]\nnsid = 2\nbackend = { type = \"null\", size = 4096 }\n\
                      [[subsystem.namespace]]\nnsid = 2\nbackend = { type = \"null\", size = 4096 }\n\
                      [[subsystem]]\nnqn = \"nqn.2026-11.io.lariat:b\"\nallow_any_host = true\n";
    let target = "[target]\nreactors = 0\nmdts_kib = 3\n";
    let (of_listeners, of_subsystems, of_target) = (
        ["listener[0].address", "listener[2].prot", "listener[3]"],
        [
            "subsystem[0].nqn",
            "subsystem[0].namespace[0].nsid",
            "subsystem[0].namespace[0].backend.type",
            "subsystem[0].namespace[1].backend.size",
            "subsystem[1].namespace[0].backend",
            "subsystem[1].namespace[2].nsid",
            "subsystem[2].nqn",
        ],
        ["target.reactors"],
    );
    let error = parse(&[listeners, subsystems, target].concat(), &[]).unwrap_err();
    let expected = [&of_listeners[..], &of_subsystems, &of_target].concat();
    assert_eq!(keys(&error), expected, "{error}");
    let error = parse(&[target, subsystems, listeners].concat(), &[]).unwrap_err();
    let expected = [&of_target[..], &of_subsystems, &of_listeners].concat();
    assert_eq!(keys(&error), expected, "{error}");
    // What is said is what it says alone.
    let alone = parse(&[GOOD, target].concat(), &[]).unwrap_err();
    assert_eq!(alone.faults(), &error.faults()[..1]);
}

#[test]
fn the_file_itself_is_such_a_table() {
    let text =
        format!("surplus = 1\n[target]\nthreads = 2\n[[listner]]\naddress = \"::1\"\n{GOOD}");
    assert_eq!(keys(&parse(&text, &[]).unwrap_err()), ["surplus", "target.threads", "listner"]);
    // What is missing comes last, and is told once: not that there is something else as well.
    let text = GOOD.replace("[[listener]]\naddress = \"127.0.0.1\"", "listner = 1");
    let error = parse(&text.replace("nsid = 1", "nsid = 0"), &[]).unwrap_err();
    assert_eq!(keys(&error), ["subsystem[0].namespace[0].nsid", "listener"]);
    assert!(error.to_string().contains("there is listner, which means nothing here"), "{error}");
    let error = parse("", &[]).unwrap_err();
    assert_eq!(keys(&error), ["listener", "subsystem"]);
}

#[test]
fn the_same_disk_is_found_beside_other_faults() {
    let uuid = "0b5f7a3e-4f0e-4c38-9d53-6a3a3a0f3d11";
    let subsystem = |name: &str, more: &str| {
        format!(
            "[[subsystem]]\nnqn = \"nqn.2026-11.io.lariat:{name}\"\nallow_any_host = true\n\
             [[subsystem.namespace]]\nnsid = 1\nuuid = \"{uuid}\"\n\
             backend = {{ type = \"null\", size = 4096 }}\n{more}"
        )
    };
    let wrong = "[[subsystem.namespace]]\nnsid = 2\n";
    let text = format!("{GOOD}{}{}", subsystem("a", wrong), subsystem("b", ""));
    let error = parse(&text, &[]).unwrap_err();
    let expected = ["subsystem[1].namespace[1].backend", "subsystem[2].namespace[0].uuid"];
    assert_eq!(keys(&error), expected, "{error}");
}

#[test]
fn variables_are_named_together_and_before_the_file() {
    let variables =
        [("LARIATD_LISTENER__99999__PORT", "1"), ("LARIATD_SUBSYSTEM__77777__NQN", "1")];
    let error = parse("nothing = 1", &variables).unwrap_err();
    let expected = [
        "environment variable LARIATD_LISTENER__99999__PORT: listener[99999].port",
        "environment variable LARIATD_SUBSYSTEM__77777__NQN: subsystem[77777].nqn",
    ];
    assert_eq!(keys(&error), expected, "{error}");
    // What they set is wrong where the key is.
    let variables = [("LARIATD_TARGET__REACTORS", "0"), ("LARIATD_LISTENER__0__PORT", "x")];
    let error = parse(GOOD, &variables).unwrap_err();
    let expected = [
        "environment variable LARIATD_LISTENER__0__PORT: listener[0].port",
        "environment variable LARIATD_TARGET__REACTORS: target.reactors",
    ];
    assert_eq!(keys(&error), expected, "{error}");
}

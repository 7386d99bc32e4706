//! Every mistake is named with its key and its mending, and nothing else is.

use super::{GOOD, parse};

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
    // Of the network that every machine is in.
    (
        "127.0.0.1",
        "127.255.255.255",
        "listener[0].address: 127.255.255.255 stands for several machines",
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
        "listener[0].port: \"4420\" is written as text, not as a whole number; write port = 4420",
    ),
    (
        "\"127.0.0.1\"",
        "\"127.0.0.1\"\nport = \"70000\"",
        "listener[0].port: \"70000\" is not a whole number that is possible here; write one from 1 to",
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
        "subsystem[0].allowed_hosts: 1 in the list is no text; write",
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
    (
        "nsid = 1",
        "nsid = 1.0",
        "subsystem[0].namespace[0].nsid: 1.0 is written as a fraction, not as a whole number; write nsid = 1",
    ),
    (
        "nsid = 1",
        "nsid = 1025.0",
        "subsystem[0].namespace[0].nsid: 1025.0 is not a whole number that is possible here; write one from 1",
    ),
    (
        "nsid = 1",
        "nsid = nan",
        "subsystem[0].namespace[0].nsid: NaN is not a whole number that is possible here; write one from 1",
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
    ("\"/disk\"", "\"\"", "subsystem[0].namespace[0].backend.path: is empty; write the file or"),
    (
        "\"/disk\"",
        "\"~/disk\"",
        "subsystem[0].namespace[0].backend.path: \"~/disk\" has ~ for a home, which shells alone know; write the",
    ),
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
        "path = \"/disk\"\nsize = 1.5",
        "subsystem[0].namespace[0].backend.size: 1.5 is not a size; write bytes, or a whole number with K, M",
    ),
    (
        "path = \"/disk\"",
        "path = \"/disk\"\nsize = 1e6",
        "subsystem[0].namespace[0].backend.size: 1000000.0 is written as a fraction, not as a whole number; \
         write size = 1000000",
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
        "path = \"/disk\"\n[target]\ncpus = [0, 1.0]",
        "target.cpus: 1.0 in the list is no whole number; write the numbers of CPUs",
    ),
    (
        "path = \"/disk\"",
        "path = \"/disk\"\n[target]\ncpus = \"0,1\"",
        "target.cpus: \"0,1\" is not a list of whole numbers; write the numbers of CPUs",
    ),
    (
        "path = \"/disk\"",
        "path = \"/disk\"\n[target]\ncpus = [-1]",
        "target.cpus: -1 in the list is no whole number; write the numbers of CPUs",
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
        assert_eq!(error.faults().len(), 1, "{to:?} gives\n{error}");
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

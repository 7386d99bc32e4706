//! What is understood of nvme-cli's flags, and what is refused in which words.

use clap::Parser;

use super::*;

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    namespace: NamespaceArgs,
}

fn parse(words: &[&str]) -> Result<NamespaceArgs, String> {
    let words = [&["lariat", "-n", "nqn.2026-11.io.lariat:demo"], words].concat();
    Line::try_parse_from(words).map(|line| line.namespace).map_err(|error| error.to_string())
}

#[test]
fn nvme_clis_flags_are_understood() {
    let args = parse(&[
        "-t",
        "rdma",
        "-a",
        "127.0.0.9",
        "-s",
        "4421",
        "-q",
        "nqn.2026-11.io.lariat:host",
        "-I",
        "11111111-1111-1111-1111-111111111111",
        "-k",
        "3",
        "-Q",
        "33",
        "-i",
        "2",
        "--namespace-id",
        "7",
    ])
    .unwrap();
    assert_eq!(args.namespace_id, Some(7));
    let subsystem = &args.subsystem;
    assert_eq!(subsystem.address(), "127.0.0.9:4421");
    assert_eq!(subsystem.depth(128), 32);
    assert_eq!(subsystem.nr_io_queues, Some(2));
    let mut options =
        ConnectOptions::new(subsystem.connect.resolve().unwrap(), subsystem.nqn.clone());
    subsystem.connect.apply(&mut options).unwrap();
    assert_eq!(options.host_nqn.as_str(), "nqn.2026-11.io.lariat:host");
    assert_eq!(options.host_id, HostId([0x11; 16]));
    assert_eq!(options.kato, Duration::from_secs(3));
}

#[test]
fn defaults_and_ipv6() {
    let args = parse(&["--traddr", "fe80::1"]).unwrap();
    assert_eq!(args.subsystem.address(), "[fe80::1]:4420");
    assert_eq!(args.subsystem.depth(16), 16);
    let bracketed = parse(&["--traddr", "[::1]"]).unwrap();
    assert_eq!(bracketed.subsystem.address(), "[::1]:4420");
}

#[test]
fn a_port_behind_the_address_is_told_where_it_goes() {
    for (words, wanted) in [
        ("10.0.0.1:4420", "-a 10.0.0.1 -s 4420"),
        ("storage.example:4421", "-a storage.example -s 4421"),
        ("[fe80::1]:4422", "-a fe80::1 -s 4422"),
        (":4420", "-a ADDRESS -s 4420"),
        ("10.0.0.1:99999", "-a 10.0.0.1 -s PORT (99999 is none: they end at 65535)"),
        ("", "-a is empty: give the target's address"),
        ("10.0.0.300", "not an IPv4 address, whose numbers end at 255"),
    ] {
        let args = parse(&["-a", words]).unwrap();
        let error = args.subsystem.connect.resolve().unwrap_err().to_string();
        assert!(error.ends_with(wanted), "{error}");
    }
}

#[test]
fn who_does_not_answer_may_have_another_address() {
    let told = |traddr: &str, error: SessionError| {
        let args = parse(&["-a", traddr]).unwrap();
        args.subsystem.connect.told(error.into()).to_string()
    };
    let silent = || SessionError::Unreachable {
        remote: "[::1]:4420".parse().unwrap(),
        errno: 111,
        advice: None,
    };
    assert!(told("::1:4420", silent()).ends_with("-a ::1 -s 4420"));
    assert!(told("::1", silent()).ends_with("is there a route?"));
    assert!(!told("::1:4420", SessionError::Unsupported("x")).contains("-s"));
}

#[test]
fn fewer_queues_than_the_work_needs_are_refused() {
    let args = parse(&["-a", "127.0.0.9", "-i", "2"]).unwrap();
    let error = args.subsystem.connect(3, 1).unwrap_err().to_string();
    assert!(error.contains("-i 2 asks for fewer I/O queues than the 3"), "{error}");
}

#[test]
fn a_queue_too_small_for_the_work_is_refused() {
    let args = parse(&["-a", "127.0.0.9", "-Q", "16"]).unwrap();
    args.subsystem.must_hold(15).unwrap();
    let error = args.subsystem.must_hold(32).unwrap_err().to_string();
    assert!(error.starts_with("-Q 16 has room for 15 requests on a queue"), "{error}");
    assert!(error.contains("ask for -Q 33, or use --iodepth 15"), "{error}");
    let error = args.subsystem.must_hold(1024).unwrap_err().to_string();
    assert!(error.ends_with("leave -Q out, or use --iodepth 15"), "{error}");
    parse(&["-a", "::1"]).unwrap().subsystem.must_hold(1024).unwrap();
}

#[test]
fn what_cannot_work_is_refused() {
    let tcp = parse(&["-t", "tcp", "-a", "::1"]).unwrap_err();
    assert!(tcp.contains("NVMe over RDMA only, not tcp"), "{tcp}");
    assert!(parse(&["-t", "smoke", "-a", "::1"]).is_err());
    let words = ["lariat", "-a", "::1", "-n", "2"];
    let spaced = ["lariat", "-a", "::1", "-n", "nqn.2026-11.io.lariat:demo "];
    let spaced = Line::try_parse_from(spaced).unwrap_err().to_string();
    assert!(spaced.contains("white space around it"), "{spaced}");
    let id = parse(&["-a", "::1", "-I", "me"]).unwrap_err();
    assert!(id.contains("not a UUID"), "{id}");
    let name = Line::try_parse_from(["lariat", "-a", "::1", "-n", "disk"]).unwrap_err().to_string();
    assert!(name.contains("`lariat discover` lists the names"), "{name}");
    let number = Line::try_parse_from(words).unwrap_err().to_string();
    assert!(number.contains("the namespace goes with --namespace-id 2"), "{number}");
    assert!(parse(&["-a", "::1", "--namespace-id", "0"]).is_err());
    assert!(parse(&["-a", "::1", "-Q", "1"]).is_err());
    assert!(parse(&["-a", "::1", "-q", "somebody"]).is_err());
    let ib = parse(&["-a", "::1", "--fabric", "ib"]).unwrap();
    let mut options =
        ConnectOptions::new(ib.subsystem.connect.resolve().unwrap(), ib.subsystem.nqn.clone());
    ib.subsystem.connect.apply(&mut options).unwrap();
    assert_eq!((options.fabric, options.wire), (FabricChoice::Ib, WireChoice::Auto));
    let udp = parse(&["-a", "::1", "--wire", "udp"]).unwrap();
    udp.subsystem.connect.apply(&mut options).unwrap();
    assert_eq!(options.wire, WireChoice::Udp);
    assert!(parse(&["-a", "::1", "--wire", "tcp"]).is_err());
}

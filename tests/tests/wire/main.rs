//! What goes over the wire, seen by others: tshark takes every packet for InfiniBand and the capsules
//! for NVMe/RDMA, and an ICRC computed here from the captured bytes is the one in the packet.

mod capture;
mod packets;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lariat_tests::process::{
    Backend, Ipv6Loopback, Scratch, Target, TargetConfig, bounded, fill, lariat, run,
};
use lariat_wire::rocev2::UDP_PORT;

use self::capture::Capture;
use self::packets::Packets;

const LIMIT: Duration = Duration::from_secs(60);

/// The demo's exchange: discover, connect, identify, write, read, flush, disconnect.
fn exchange(target: &Target, scratch: &Scratch) -> Result<()> {
    let image = scratch.join("image");
    let mut bytes = vec![0; 300 << 10];
    fill(4, 0, &mut bytes);
    std::fs::write(&image, &bytes)?;
    let (image, copy) = (image.display().to_string(), scratch.join("copy"));
    let copy_path = copy.display().to_string();
    run(&mut lariat(target, "discover", &[] as &[&str])?, LIMIT)?.success()?;
    run(&mut lariat(target, "id-ctrl", &[] as &[&str])?, LIMIT)?.success()?;
    // Large requests fetch their data, small ones carry it in the capsule.
    for bs in ["128k", "4k"] {
        let words = ["--input", &image, "--bs", bs];
        run(&mut lariat(target, "write", &words)?, LIMIT)?.success()?;
        let words = ["--output", &copy_path, "--bs", bs, "--length", "300k"];
        run(&mut lariat(target, "read", &words)?, LIMIT)?.success()?;
        ensure!(std::fs::read(&copy)? == bytes, "the copy differs");
    }
    run(&mut lariat(target, "flush", &[] as &[&str])?, LIMIT)?.success().map(drop)
}

/// One line of fields for each packet, by tshark.
fn dissect(file: &Path, fields: &[&str]) -> Result<Vec<Vec<String>>> {
    let mut command = Command::new("tshark");
    command.arg("-r").arg(file).args(["-T", "fields", "-E", "separator=/t", "-E", "occurrence=a"]);
    for field in fields {
        command.args(["-e", field]);
    }
    let text = run(&mut command, LIMIT)?.success()?.text();
    Ok(text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect())
}

fn check(address: std::net::IpAddr, name: &str) -> Result<()> {
    let scratch = Scratch::new()?;
    let disk = scratch.disk("disk", 16 << 20)?;
    let mut config = TargetConfig::new().udp().disk(Backend::File(disk), 4096);
    config.address = address;
    let raw = scratch.join("raw.pcap");
    let capture = match Capture::start(&raw, address) {
        Ok(capture) => capture,
        Err(why) => {
            eprintln!("SKIPPED {name}: {why:#}");
            return Ok(());
        }
    };
    let target = Target::start(&scratch, &config)?;
    exchange(&target, &scratch)?;
    let log = target.stop()?;
    capture.stop()?;

    // What the kernel would have cut on its way out of the machine is cut here; each piece has its
    // ICRC checked on the way.
    let packets = Packets::read(&std::fs::read(&raw)?)?;
    ensure!(packets.count() > 300, "{} packets only", packets.count());
    let on_target_side = Target::counter(&log, "packets_sent")?;
    let captured = packets.count_from(SocketAddr::new(address, UDP_PORT));
    ensure!(captured == on_target_side, "{captured} of {on_target_side} packets captured");
    ensure!(packets.was_cut(), "no packets were sent in batches");
    let file = scratch.join("packets.pcap");
    std::fs::write(&file, packets.to_pcap()?)?;

    let lines = dissect(
        &file,
        &["frame.number", "frame.protocols", "_ws.malformed", "_ws.expert.message", "_ws.col.Info"],
    )?;
    ensure!(lines.len() == packets.count(), "{} lines", lines.len());
    let mut kinds = BTreeMap::<&str, u32>::new();
    for line in &lines {
        let [number, protocols, malformed, expert, info] = &line[..] else {
            anyhow::bail!("{line:?}");
        };
        ensure!(protocols.contains(":udp:infiniband"), "packet {number}: {protocols}");
        ensure!(malformed.is_empty(), "packet {number} is malformed: {info}");
        ensure!(!expert.to_lowercase().contains("malformed"), "packet {number}: {expert}");
        for kind in KINDS.iter().filter(|kind| info.contains(**kind)) {
            *kinds.entry(kind).or_default() += 1;
            let capsule = kind.contains("NVM");
            ensure!(!capsule || protocols.contains("nvme"), "packet {number}: {protocols}");
        }
    }
    for kind in KINDS {
        ensure!(kinds.contains_key(kind), "tshark has seen no {kind:?}; it has: {kinds:?}");
    }
    Ok(())
}

/// What tshark is to recognise, in its words.
const KINDS: &[&str] = &[
    "CM: ConnectReply",
    "CM: ReadyToUse",
    "NVMeOF Connect",
    "NVMeOF Data Request for Connect",
    "NVMeoF Data for Connect",
    "CQE for Connect",
    "Property Get Controller Capabilities",
    "Property Set Controller Configuration",
    "NVMe Identify Controller",
    "NVMe Get Log Page NVMeOF Discovery",
    "NVMe Write",
    "NVMeOF Data Request for Write",
    "NVMe Read",
    "NVMeOF Data for Read",
    "NVMe Flush",
];

#[test]
fn tshark_understands_every_packet() -> Result<()> {
    bounded(LIMIT, || {
        let address = lariat_tests::process::free_address();
        check(address, "tshark_understands_every_packet")
    })
}

#[test]
fn tshark_understands_every_packet_of_ipv6() -> Result<()> {
    bounded(LIMIT * 2, || {
        let name = "tshark_understands_every_packet_of_ipv6";
        let Some(_turn) = Ipv6Loopback::take()? else {
            eprintln!("SKIPPED {name}: this machine has no IPv6 loopback address");
            return Ok(());
        };
        check(Ipv6Loopback::ADDRESS, name).context("over IPv6")
    })
}

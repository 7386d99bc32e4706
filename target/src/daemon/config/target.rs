//! The table `[target]`. Called by `config`.

use core::time::Duration;
use std::collections::BTreeSet;

use lariat_wire::nvme::QueueSize;

use super::error::Fault;
use super::reader::Section;
use super::{TargetConfig, WireChoice};
use crate::nvme::Limits;

pub(super) fn read(mut section: Section<'_>) -> Result<TargetConfig, Fault> {
    let instead = "write the numbers of CPUs, one per reactor: cpus = [0, 1]";
    let cpus = section.numbers("cpus", instead)?.unwrap_or_default();
    let distinct: BTreeSet<_> = cpus.iter().collect();
    if distinct.len() < cpus.len() || cpus.iter().any(|cpu| *cpu >= 1024) {
        return Err(section.wrong("cpus", format!("{cpus:?} has doubles, or no CPUs"), instead));
    }
    let reactors = section.number("reactors", 1..=255_u8)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let default = if cpus.is_empty() { cores } else { cpus.len() };
    let reactors = reactors.unwrap_or_else(|| u8::try_from(default).unwrap_or(u8::MAX));
    if !cpus.is_empty() && cpus.len() != usize::from(reactors) {
        let wrong = format!("there are {reactors} reactors for {} CPUs", cpus.len());
        return Err(section.wrong("cpus", wrong, instead));
    }

    let instead = "write wire = \"auto\" (shared memory with hosts that are processes of the same \
                   user on this machine, UDP with all others) or wire = \"udp\"";
    let wire = match section.text("wire", instead)?.as_deref() {
        None | Some("auto") => WireChoice::Auto,
        Some("udp") => WireChoice::Udp,
        Some(other) => return Err(section.wrong("wire", format_args!("{other:?}"), instead)),
    };

    let standard = Limits::default();
    let idle_poll_us = section.number("idle_poll_us", 0..=10_000_000_u64)?.unwrap_or(50);
    let buffers_mib = section.number("buffers_mib", 1..=1023_u32)?.unwrap_or(32);
    let receive_mib = section.number("receive_mib", 1..=1024_u32)?.unwrap_or(32);
    let receive_max_mib = section.number("receive_max_mib", 1..=65_536_u32)?;
    let receive_max_mib = receive_max_mib.unwrap_or(512.max(receive_mib));
    if receive_max_mib < receive_mib {
        let wrong = format!("{receive_max_mib} is less than receive_mib, {receive_mib}");
        return Err(section.wrong("receive_max_mib", wrong, "write more, or lower receive_mib"));
    }
    let shared_receive = section.flag("shared_receive")?.unwrap_or(false);
    let shutdown_s = section.number("shutdown_timeout_s", 1..=3600_u64)?.unwrap_or(10);
    let starve_s = section.number("starve_timeout_s", 0..=3600_u64)?.unwrap_or(3);
    let probe_s = section.number("idle_probe_s", 0..=86_400_u64)?.unwrap_or(30);
    let depth = section.number("max_queue_depth", 2..=1024_u16)?;
    let mdts_kib = section.number("mdts_kib", 8..=8192_u32)?.unwrap_or(standard.mdts_bytes >> 10);
    if !mdts_kib.is_power_of_two() {
        let instead = "write a power of two from 8 to 8192";
        return Err(section.wrong("mdts_kib", format!("{mdts_kib} is no power of two"), instead));
    }
    if mdts_kib >> 10 > buffers_mib {
        let wrong = format!("one transfer of {mdts_kib} KiB does not fit");
        return Err(section.wrong("buffers_mib", wrong, "write more, or lower mdts_kib"));
    }
    let in_capsule = section.number("in_capsule_bytes", 0..=65_536_u32)?;
    let in_capsule = in_capsule.unwrap_or(standard.in_capsule_bytes);
    if !in_capsule.is_multiple_of(16) {
        let instead = "write a multiple of 16 (0: no data in capsules)";
        return Err(section.wrong("in_capsule_bytes", in_capsule, instead));
    }
    let limits = Limits {
        max_queues: section.number("max_queues", 1..=1024)?.unwrap_or(standard.max_queues),
        // A queue of n + 1 entries holds n commands (NVMe Base 2.1, 3.3.3.1): n zero-based.
        max_queue_depth: depth.map_or(standard.max_queue_depth, QueueSize::from_zero_based),
        mdts_bytes: mdts_kib << 10,
        in_capsule_bytes: in_capsule,
        max_hosts: section.number("max_hosts", 1..=65_519)?.unwrap_or(standard.max_hosts),
    };
    let log = section.text("log", "write a level or filter: log = \"info\"")?;
    section.finish()?;
    Ok(TargetConfig {
        reactors,
        cpus,
        idle_poll: Duration::from_micros(idle_poll_us),
        wire,
        buffers_bytes: buffers_mib << 20,
        receive_bytes: (receive_mib as usize) << 20,
        receive_max_bytes: (receive_max_mib as usize) << 20,
        shared_receive,
        shutdown_timeout: Duration::from_secs(shutdown_s),
        starve_timeout: Duration::from_secs(starve_s),
        idle_probe: Duration::from_secs(probe_s),
        limits,
        log,
    })
}

//! Installing the Debian packages that chores need.

use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell;

/// A program and the Debian package that has it.
#[derive(Clone, Copy)]
pub(crate) struct Tool {
    program: &'static str,
    package: &'static str,
}

pub(crate) const MKE2FS: Tool = Tool { program: "mke2fs", package: "e2fsprogs" };
pub(crate) const FIO: Tool = Tool { program: "fio", package: "fio" };
pub(crate) const TSHARK: Tool = Tool { program: "tshark", package: "tshark" };
pub(crate) const CC: Tool = Tool { program: "cc", package: "gcc" };

const fn tool(program: &'static str, package: &'static str) -> Tool {
    Tool { program, package }
}

/// What `cargo xtask lab` needs, on this machine and in the guest, which has the same files.
pub(crate) const LAB: &[Tool] = &[
    CC,
    FIO,
    MKE2FS,
    TSHARK,
    tool("python3", "python3"),
    tool("qemu-system-x86_64", "qemu-system-x86"),
    tool("busybox", "busybox-static"),
    tool("depmod", "kmod"),
    tool("file", "file"),
    tool("ip", "iproute2"),
    tool("nvme", "nvme-cli"),
    tool("setsid", "util-linux"),
];

/// What any of the verbs needs.
pub(crate) const EVERYTHING: &[Tool] = &[MKE2FS, FIO, TSHARK, CC];

/// Installs the packages of those tools that are missing.
pub(crate) fn install(tools: &[Tool]) -> Result<()> {
    let missing: Vec<&str> = tools
        .iter()
        .filter(|tool| shell::find(tool.program).is_none())
        .map(|tool| tool.package)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let by_hand = format!("install by hand: {}", missing.join(" "));
    if shell::find("apt-get").is_none() {
        bail!("this machine has no apt-get; {by_hand}");
    }
    println!("installing {}", missing.join(" "));
    // A fresh image has no package lists; one with old lists may name files that are gone.
    shell::capture(&mut apt(&["update", "-qq"])).with_context(|| by_hand.clone())?;
    let mut arguments = vec!["install", "-y", "-qq", "--no-install-recommends"];
    arguments.extend(&missing);
    shell::capture(&mut apt(&arguments)).with_context(|| by_hand.clone())?;
    Ok(())
}

/// apt-get as root: directly, or through sudo where that needs no password.
fn apt(arguments: &[&str]) -> Command {
    let root = shell::capture(&mut shell::command("id", &["-u"])).is_ok_and(|id| id.trim() == "0");
    let mut command = if root {
        shell::command("apt-get", arguments)
    } else {
        let mut sudo = shell::command("sudo", &["-n", "DEBIAN_FRONTEND=noninteractive", "apt-get"]);
        sudo.args(arguments);
        sudo
    };
    command.env("DEBIAN_FRONTEND", "noninteractive");
    command
}

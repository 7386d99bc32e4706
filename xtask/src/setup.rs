//! Installing the Debian packages that chores need.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell;

/// A Debian package, and how to see that it is there.
#[derive(Clone, Copy)]
pub(crate) struct Tool {
    sign: Sign,
    package: &'static str,
}

#[derive(Clone, Copy)]
enum Sign {
    /// A program of it is in PATH.
    Program(&'static str),
    /// A file of it exists.
    File(&'static str),
    /// Some version of libclang's library exists.
    Libclang,
}

impl Tool {
    const fn program(program: &'static str, package: &'static str) -> Self {
        Self { sign: Sign::Program(program), package }
    }

    const fn file(file: &'static str, package: &'static str) -> Self {
        Self { sign: Sign::File(file), package }
    }

    fn is_missing(&self) -> bool {
        match self.sign {
            Sign::Program(program) => shell::find(program).is_none(),
            Sign::File(file) => !Path::new(file).exists(),
            Sign::Libclang => {
                std::env::var_os("LIBCLANG_PATH").is_none()
                    && !LIBCLANG_FOLDERS.iter().any(|folder| holds_libclang(Path::new(folder)))
            }
        }
    }
}

const LIBCLANG_FOLDERS: &[&str] =
    &["/usr/lib", "/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"];

fn holds_libclang(folder: &Path) -> bool {
    folder.read_dir().into_iter().flatten().flatten().any(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name.starts_with("libclang-") && name.contains(".so")
    })
}

pub(crate) const MKE2FS: Tool = Tool::program("mke2fs", "e2fsprogs");
pub(crate) const FIO: Tool = Tool::program("fio", "fio");
pub(crate) const VALGRIND: Tool = Tool::program("valgrind", "valgrind");
pub(crate) const PERF: Tool = Tool::program("perf", "linux-perf");
pub(crate) const TSHARK: Tool = Tool::program("tshark", "tshark");
pub(crate) const CC: Tool = Tool::program("cc", "gcc");
const PKG_CONFIG: Tool = Tool::program("pkg-config", "pkg-config");
const IBVERBS: Tool = Tool::file("/usr/include/infiniband/verbs.h", "libibverbs-dev");
const RDMACM: Tool = Tool::file("/usr/include/rdma/rdma_cma.h", "librdmacm-dev");
const LIBCLANG: Tool = Tool { sign: Sign::Libclang, package: "libclang-dev" };

/// Those whom the benchmark measures beside us.
pub(crate) const PEERS: &[Tool] = &[
    Tool::program("tgtd", "tgt"),
    Tool::program("iscsi-perf", "libiscsi-bin"),
    Tool::program("nbdkit", "nbdkit"),
    Tool::program("ip", "iproute2"),
];

/// What building needs: a linker, and for the feature `ib` the libraries of RDMA devices.
pub(crate) const BUILD: &[Tool] = &[CC, PKG_CONFIG, IBVERBS, RDMACM, LIBCLANG];

/// For `cargo xtask lab bench`.
pub(crate) const OPEN_ISCSI: Tool = Tool::program("iscsid", "open-iscsi");

/// What `cargo xtask lab` needs, on this machine and in the guest, which has the same files.
pub(crate) const LAB: &[Tool] = &[
    CC,
    PKG_CONFIG,
    IBVERBS,
    RDMACM,
    LIBCLANG,
    FIO,
    MKE2FS,
    TSHARK,
    Tool::program("python3", "python3"),
    Tool::program("qemu-system-x86_64", "qemu-system-x86"),
    Tool::program("busybox", "busybox-static"),
    Tool::program("depmod", "kmod"),
    Tool::program("file", "file"),
    Tool::program("ip", "iproute2"),
    Tool::program("nvme", "nvme-cli"),
    Tool::program("setsid", "util-linux"),
];

/// What any of the verbs needs.
pub(crate) const EVERYTHING: &[Tool] =
    &[MKE2FS, FIO, TSHARK, VALGRIND, CC, PKG_CONFIG, IBVERBS, RDMACM, LIBCLANG];

/// Installs the packages of those tools that are missing.
pub(crate) fn install(tools: &[Tool]) -> Result<()> {
    let missing: Vec<&str> =
        tools.iter().filter(|tool| tool.is_missing()).map(|tool| tool.package).collect();
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

//! `cargo xtask fio-abi TREE...`: where the fields that the fio engine touches lie in a release of
//! fio, asked of that release's own headers. Prints `fio-plugin/abi.tsv` with a column per tree: put
//! a new column there and into `fio-plugin/src/abi/table.rs`, whose test compares the two.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::{setup, shell};

/// What can be chosen for `fio-abi`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Unpacked sources of fio releases (nothing in them is run; configuring is not needed).
    #[arg(required = true)]
    trees: Vec<PathBuf>,
}

/// What fio's configure finds on any Linux of the last ten years, without which its headers clash
/// with those of the C library. None of them moves a field that is asked for.
const CONFIG: &[&str] = &[
    "CONFIG_64BIT",
    "CONFIG_LITTLE_ENDIAN",
    "CONFIG_GETTID",
    "CONFIG_HAVE_GETTID",
    "CONFIG_PWRITEV",
    "CONFIG_PWRITEV2",
    "CONFIG_CLOCK_GETTIME",
    "CONFIG_CLOCK_MONOTONIC",
    "CONFIG_POSIX_FADVISE",
    "CONFIG_3ARG_AFFINITY",
    "CONFIG_STRSEP",
    "CONFIG_STRCASESTR",
    "CONFIG_STRLCPY",
    "CONFIG_STRNDUP",
    "CONFIG_SETVBUF",
    "CONFIG_STATIC_ASSERT",
    "CONFIG_HAVE_STATX",
    "CONFIG_HAVE_STATX_SYNCFS",
    "CONFIG_HAVE_TIMERFD_CREATE",
    "CONFIG_PTHREAD_CONDATTR_SETCLOCK",
    "CONFIG_LINUX_FALLOCATE",
    "CONFIG_POSIX_FALLOCATE",
    "CONFIG_RUSAGE_THREAD",
    "CONFIG_SCHED_IDLE",
    "CONFIG_TCP_NODELAY",
    "CONFIG_INET_ATON",
    "CONFIG_SOCKLEN_T",
    "CONFIG_SFAA",
    "CONFIG_SYNC_FILE_RANGE",
    "CONFIG_SYNC_SYNC",
    "CONFIG_ASPRINTF",
    "CONFIG_GETOPT_LONG_ONLY",
    "CONFIG_HAVE_BOOL",
    "CONFIG_BOOL",
    "CONFIG_IOSCHED_SWITCH",
];

pub(crate) fn run(options: &Options) -> Result<()> {
    setup::install(setup::BUILD)?;
    let table = shell::root().join("fio-plugin/abi.tsv");
    let table = std::fs::read_to_string(&table).with_context(|| table.display().to_string())?;
    let fields: Vec<&str> =
        table.lines().skip(1).filter_map(|line| line.split('\t').next()).collect();
    let mut rows: Vec<String> =
        std::iter::once("field").chain(fields.clone()).map(str::to_owned).collect();
    for tree in &options.trees {
        let column = column(tree, &fields).with_context(|| tree.display().to_string())?;
        for (row, value) in rows.iter_mut().zip(column) {
            row.push('\t');
            row.push_str(&value);
        }
    }
    println!("{}", rows.join("\n"));
    Ok(())
}

/// The release and its values.
fn column(tree: &Path, fields: &[&str]) -> Result<Vec<String>> {
    let folder = tempfile::tempdir()?;
    let source = folder.path().join("abi.c");
    let program = folder.path().join("abi");
    std::fs::write(&source, program_text(fields))?;
    let mut compiler = Command::new("cc");
    compiler.args(["-w", "-D_GNU_SOURCE", "-fcommon"]);
    compiler.args(CONFIG.iter().map(|name| format!("-D{name}")));
    compiler.arg("-I").arg(tree).arg("-o").arg(&program).arg(&source);
    shell::capture(&mut compiler)?;
    let printed = shell::capture(&mut Command::new(&program))?;
    let values = printed.lines().map(str::to_owned);
    let column: Vec<String> = std::iter::once(release(tree)?).chain(values).collect();
    ensure!(column.len() == fields.len() + 1, "the program printed {} values", column.len() - 1);
    Ok(column)
}

/// A C program that prints one value per line.
fn program_text(fields: &[&str]) -> String {
    let mut text = String::from(
        "#include <stddef.h>\n#include <stdio.h>\n#include \"fio.h\"\n#include \"optgroup.h\"\n\
         int main(void)\n{\n",
    );
    for field in fields {
        let value = match field.split_once('.') {
            Some(("sizeof", name)) => format!("sizeof(struct {name})"),
            Some(("const", name)) => name.to_owned(),
            Some((name, member)) => format!("offsetof(struct {name}, {member})"),
            None => (*field).to_owned(),
        };
        text.push_str(&format!("\tprintf(\"%llu\\n\", (unsigned long long)({value}));\n"));
    }
    text.push_str("\treturn 0;\n}\n");
    text
}

/// The release that a source tree says it is: `fio-3.33` is `3.33`.
fn release(tree: &Path) -> Result<String> {
    let names = ["FIO-VERSION-GEN", "GIT-VERSION-GEN"];
    let text = names.iter().find_map(|name| std::fs::read_to_string(tree.join(name)).ok());
    let text = text.context("no FIO-VERSION-GEN: not a source tree of fio")?;
    let line = text.lines().find_map(|line| line.strip_prefix("DEF_VER=fio-"));
    Ok(line.context("FIO-VERSION-GEN names no release")?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_field_has_its_expression() {
        let text =
            program_text(&["FIO_IOOPS_VERSION", "sizeof.io_u", "io_u.ddir", "const.DDIR_READ"]);
        for expected in [
            "(FIO_IOOPS_VERSION)",
            "(sizeof(struct io_u))",
            "(offsetof(struct io_u, ddir))",
            "(DDIR_READ)",
        ] {
            assert!(text.contains(expected), "{expected} in {text}");
        }
    }

    #[test]
    fn a_tree_says_its_release() {
        let tree = tempfile::tempdir().unwrap();
        assert!(release(tree.path()).is_err());
        std::fs::write(tree.path().join("GIT-VERSION-GEN"), "#!/bin/sh\nDEF_VER=fio-3.42\n")
            .unwrap();
        assert_eq!(release(tree.path()).unwrap(), "3.42");
    }
}

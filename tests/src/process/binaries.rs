//! Where the binaries are: in the folder that the running test is built into. Calls cargo if they are
//! not there; called by `target` and `command`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, ensure};

/// The profile's build folder (`build/debug`, say), and whether the binaries are in it.
fn folder() -> Result<&'static Path> {
    static FOLDER: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| find().map_err(|error| format!("{error:#}")));
    folder.as_deref().map_err(|error| anyhow::anyhow!("{error}"))
}

fn find() -> Result<PathBuf> {
    let test = std::env::current_exe().context("where is this test?")?;
    let folder = test.ancestors().nth(2).context("the test lies in no build folder")?.to_owned();
    if !complete(&folder) {
        let mut build = cargo_build();
        build.args(["--package", "lariat-target", "--package", "lariat", "--bins"]);
        if folder.ends_with("release") {
            build.arg("--release");
        }
        ensure!(build.status().context("cannot run cargo")?.success(), "{build:?} failed");
        ensure!(complete(&folder), "cargo built no binaries into {}", folder.display());
    }
    Ok(folder)
}

fn complete(folder: &Path) -> bool {
    ["lariatd", "lariat"].iter().all(|name| folder.join(name).is_file())
}

/// The path of the fio engine, built anew where it is not up to date: nothing else builds it before
/// the tests, because no crate depends on it.
///
/// # Errors
/// It cannot be built.
pub fn engine() -> Result<PathBuf> {
    static ENGINE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let build = || -> Result<PathBuf> {
        let folder = folder()?;
        let mut build = cargo_build();
        build.args(["--package", "lariat-fio"]);
        if folder.ends_with("release") {
            build.arg("--release");
        }
        ensure!(build.status().context("cannot run cargo")?.success(), "{build:?} failed");
        let engine = folder.join("liblariat_fio.so");
        ensure!(engine.is_file(), "cargo built no {}", engine.display());
        Ok(engine)
    };
    let engine = ENGINE.get_or_init(|| build().map_err(|error| format!("{error:#}")));
    engine.clone().map_err(|error| anyhow::anyhow!("{error}"))
}

fn cargo_build() -> Command {
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    build.args(["build", "--quiet", "--manifest-path"]);
    build.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml"));
    build
}

/// The path of a binary.
///
/// # Errors
/// It is not there and cannot be built.
pub fn binary(name: &str) -> Result<PathBuf> {
    Ok(folder()?.join(name))
}

/// The folder that cargo builds into: on a disk, and nothing in it is precious.
pub(super) fn build_folder() -> Result<&'static Path> {
    folder()?.parent().context("the build folder has no parent")
}

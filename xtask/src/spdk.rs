//! A build of SPDK in a folder that the user names: no registry has one. Only looked at, never built.
//! Used by `bench` and `lab`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// What stands in command lines that are kept, instead of the folder.
const PLACE: &str = "SPDK";
/// Its client has had two places.
const CLIENTS: [&str; 2] = ["build/bin/spdk_nvme_perf", "build/examples/perf"];
const TARGET: &str = "build/bin/nvmf_tgt";

/// Why SPDK was not measured, when nobody said where it is.
pub(crate) const NOT_GIVEN: &str = "no build given (--spdk DIR)";

/// A folder with what is needed.
#[derive(Clone, Debug)]
pub(crate) struct Build {
    root: PathBuf,
    client: PathBuf,
}

impl Build {
    /// An error, in one line, if the folder is none or lacks a program.
    pub(crate) fn open(folder: &Path) -> Result<Self> {
        let shown = folder.display();
        let root = folder.canonicalize().with_context(|| format!("--spdk {shown}"))?;
        if !root.join(TARGET).is_file() {
            bail!("--spdk {shown} is no build of SPDK: it has no {TARGET}");
        }
        let client = CLIENTS.iter().map(|name| root.join(name)).find(|path| path.is_file());
        let Some(client) = client else {
            bail!("--spdk {shown} lacks the client: it has no {}", CLIENTS.join(" or "));
        };
        Ok(Self { root, client })
    }

    /// The folder.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The target.
    pub(crate) fn nvmf_tgt(&self) -> PathBuf {
        self.root.join(TARGET)
    }

    /// SPDK's own client.
    pub(crate) fn perf(&self) -> &Path {
        &self.client
    }

    /// What the source tree says of itself.
    pub(crate) fn version(&self) -> String {
        let read = std::fs::read_to_string(self.root.join("VERSION")).unwrap_or_default();
        let version = read.trim();
        if version.is_empty() {
            "as built in the folder that was given".into()
        } else {
            version.into()
        }
    }

    /// A command line without the place that the build has on this machine.
    pub(crate) fn portable(&self, line: &str) -> String {
        line.replace(&self.root.display().to_string(), PLACE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_the_programs_is_refused_in_a_line() {
        let folder = tempfile::tempdir().expect("a folder");
        let error = |path: &Path| format!("{:#}", Build::open(path).expect_err("incomplete"));
        let missing = error(&folder.path().join("nowhere"));
        assert!(missing.contains("nowhere: No such file") && !missing.contains('\n'), "{missing}");
        let no_target = error(folder.path());
        assert!(no_target.ends_with("is no build of SPDK: it has no build/bin/nvmf_tgt"));
        std::fs::create_dir_all(folder.path().join("build/bin")).expect("room");
        let touch = |name: &str| std::fs::write(folder.path().join(name), "").expect("room");
        touch(TARGET);
        let no_client = error(folder.path());
        assert!(no_client.contains("no build/bin/spdk_nvme_perf or"), "{no_client}");
        touch(CLIENTS[0]);
        let build = Build::open(folder.path()).expect("both are there");
        assert!(build.version().contains("as built"));
        std::fs::write(folder.path().join("VERSION"), "26.05\n").expect("room");
        assert_eq!(build.version(), "26.05");
        let line = format!("taskset {} -m 1", build.nvmf_tgt().display());
        assert_eq!(build.portable(&line), "taskset SPDK/build/bin/nvmf_tgt -m 1");
        assert_eq!(build.perf(), build.root().join(CLIENTS[0]));
    }
}

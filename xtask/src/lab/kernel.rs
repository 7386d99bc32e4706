//! A stock Debian kernel with its modules, unpacked into the lab's folder; nothing is installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell;

/// Which of Debian's kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Series {
    /// bookworm's own.
    #[value(name = "6.1")]
    Bookworm,
    /// From bookworm-backports.
    #[value(name = "6.12")]
    Backports,
}

impl Series {
    pub(super) fn number(self) -> &'static str {
        match self {
            Self::Bookworm => "6.1",
            Self::Backports => "6.12",
        }
    }

    pub(super) fn suite(self) -> &'static str {
        match self {
            Self::Bookworm => "bookworm",
            Self::Backports => "bookworm-backports",
        }
    }
}

/// An unpacked kernel.
#[derive(Debug)]
pub(crate) struct Kernel {
    /// Such as 6.12.9-amd64: what `uname -r` says in the guest.
    pub(crate) version: String,
    pub(crate) image: PathBuf,
}

/// The kernel in the cache, or a download from this machine's Debian mirror.
pub(crate) fn fetch(series: Series) -> Result<Kernel> {
    let folder = super::folder().join("kernel").join(series.number());
    if let Some(kernel) = unpacked(&folder) {
        return Ok(kernel);
    }
    println!("downloading Debian's kernel {}", series.number());
    let mirror = Mirror::open(series)?;
    let package = mirror.image_package()?;
    let unfinished = tempfile::tempdir_in(super::folder())?;
    mirror.download(&package, unfinished.path())?;
    fs::create_dir_all(folder.parent().unwrap_or(&folder))?;
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::rename(unfinished.keep(), &folder)?;
    unpacked(&folder).with_context(|| format!("{package} has no kernel and modules in it"))
}

/// The kernel in a folder, if it is complete.
fn unpacked(folder: &Path) -> Option<Kernel> {
    let version = fs::read_dir(folder.join("lib/modules")).ok()?.next()?.ok()?.file_name();
    let version = version.to_string_lossy().into_owned();
    let image = folder.join("boot").join(format!("vmlinuz-{version}"));
    let complete =
        image.is_file() && folder.join("lib/modules").join(&version).join("modules.dep").is_file();
    complete.then_some(Kernel { version, image })
}

/// A private view of the machine's mirror: own package lists, nothing of the machine's changes.
pub(super) struct Mirror {
    series: Series,
    options: Vec<String>,
}

impl Mirror {
    pub(super) fn open(series: Series) -> Result<Self> {
        let folder = super::folder().join("apt");
        let lists = folder.join("lists");
        fs::create_dir_all(lists.join("partial"))?;
        let sources = folder.join("lab.sources");
        let address = mirror_address()?;
        fs::write(
            &sources,
            format!(
                "Types: deb\nURIs: {address}\nSuites: bookworm bookworm-backports\n\
                 Components: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
            ),
        )?;
        let options = vec![
            format!("Dir::Etc::SourceList={}", sources.display()),
            "Dir::Etc::SourceParts=/dev/null".into(),
            format!("Dir::State::Lists={}", lists.display()),
            format!("Dir::Cache={}", folder.join("cache").display()),
            // Files in a home folder are not for apt's own user to read.
            "APT::Sandbox::User=root".into(),
        ];
        let mirror = Self { series, options };
        shell::capture(mirror.command("apt-get").arg("update"))?;
        Ok(mirror)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = shell::command(program, &["-q"]);
        for option in &self.options {
            command.args(["-o", option]);
        }
        command
    }

    /// The name of the package that the suite's `linux-image-amd64` stands for.
    fn image_package(&self) -> Result<String> {
        let general = format!("linux-image-amd64/{}", self.series.suite());
        self.dependencies(&general)?
            .into_iter()
            .find(|package| package.starts_with("linux-image-"))
            .with_context(|| format!("{general} depends on no kernel"))
    }

    /// What a package depends on.
    pub(super) fn dependencies(&self, package: &str) -> Result<Vec<String>> {
        let text = shell::capture(self.command("apt-cache").args(["depends", package]))?;
        let names = text.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
        Ok(names.map(str::to_owned).collect())
    }

    /// Fetches a kernel and unpacks it, ready to boot.
    fn download(&self, package: &str, folder: &Path) -> Result<()> {
        self.unpack(package, folder)?;
        let to = folder.display().to_string();
        for entry in fs::read_dir(folder.join("lib/modules"))? {
            let version = entry?.file_name().to_string_lossy().into_owned();
            shell::capture(&mut shell::command("depmod", &["-b", &to, &version]))?;
        }
        Ok(())
    }

    /// Fetches a package and unpacks it.
    pub(super) fn unpack(&self, package: &str, folder: &Path) -> Result<()> {
        shell::capture(self.command("apt-get").args(["download", package]).current_dir(folder))?;
        let archive = fs::read_dir(folder)?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
            .with_context(|| format!("{package} was not downloaded"))?;
        let to = folder.display().to_string();
        shell::capture(&mut shell::command("dpkg", &["-x", &archive.display().to_string(), &to]))?;
        fs::remove_file(archive)?;
        Ok(())
    }
}

/// Where this machine gets Debian's packages from.
fn mirror_address() -> Result<String> {
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    if let Ok(entries) = fs::read_dir("/etc/apt/sources.list.d") {
        files.extend(entries.filter_map(|entry| Some(entry.ok()?.path())));
    }
    files.sort();
    for file in &files {
        let text = fs::read_to_string(file).unwrap_or_default();
        if let Some(address) = find_mirror(&text) {
            return Ok(address);
        }
    }
    bail!("no Debian mirror in /etc/apt/sources.list or /etc/apt/sources.list.d")
}

/// The first address of Debian itself (not of its security archive, not of anybody else) in one
/// sources file, of either format.
fn find_mirror(text: &str) -> Option<String> {
    text.lines()
        .filter(|line| line.starts_with("URIs:") || line.starts_with("deb "))
        .flat_map(str::split_whitespace)
        .find(|word| word.contains("://") && word.trim_end_matches('/').ends_with("/debian"))
        .map(|word| word.trim_end_matches('/').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_is_found_in_both_formats() {
        let new = "Types: deb\n# URIs: http://old.example/debian\nURIs: http://m.example/debian/\n";
        assert_eq!(find_mirror(new).as_deref(), Some("http://m.example/debian"));
        let old = "deb [signed-by=/k.gpg] https://m.example:81/debian bookworm main\n";
        assert_eq!(find_mirror(old).as_deref(), Some("https://m.example:81/debian"));
    }

    #[test]
    fn other_archives_are_no_mirror_of_debian() {
        let text =
            "deb https://packages.example cloud main\nURIs: http://m.example/debian-security\n";
        assert_eq!(find_mirror(text), None);
    }

    #[test]
    fn an_incomplete_folder_holds_no_kernel() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(unpacked(folder.path()).is_none());
        fs::create_dir_all(folder.path().join("lib/modules/6.0-test")).expect("a folder");
        assert!(unpacked(folder.path()).is_none());
    }
}

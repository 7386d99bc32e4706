//! What some scenarios need beside lariat, lariatd and the kernel, made when a chosen scenario names
//! it in a line `# needs: NAME`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::kernel::{Kernel, Mirror, Series};
use super::scenario::Scenario;
use crate::shell;

/// A part, and the variable by which a script finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) variable: &'static str,
    pub(crate) path: PathBuf,
}

/// Makes all that the scenarios need.
pub(crate) fn make(chosen: &[Scenario], series: Series, kernel: &Kernel) -> Result<Vec<Part>> {
    let names: BTreeSet<&str> = chosen.iter().flat_map(|one| &one.needs).map(|n| &**n).collect();
    let one = |name: &&str| match *name {
        "conformance" => Ok(Part { variable: "LAB_CONFORMANCE", path: conformance()? }),
        "siw" => Ok(Part { variable: "LAB_SIW", path: siw(series, kernel)? }),
        other => bail!("a scenario needs {other}, which the harness does not know"),
    };
    names.iter().map(one).collect()
}

/// The test program of the fabric's provider for RDMA devices.
fn conformance() -> Result<PathBuf> {
    let arguments = [
        "test",
        "--quiet",
        "--package",
        "lariat-fabric",
        "--features",
        "ib",
        "--test",
        "ib",
        "--no-run",
        "--message-format=json-render-diagnostics",
    ];
    let text = shell::capture(&mut shell::cargo(&arguments))?;
    test_program(&text, "ib").context("cargo built no test program")
}

/// The program of a test target in cargo's messages.
fn test_program(messages: &str, name: &str) -> Option<PathBuf> {
    messages.lines().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let target = message.get("target")?;
        let is_test = target.get("kind")?.as_array()?.iter().any(|kind| kind == "test");
        let program = message.get("executable")?.as_str()?;
        (is_test && target.get("name")? == name).then(|| program.into())
    })
}

/// The module of Soft-iWARP for the guest's kernel, which Debian leaves out: built from its sources.
fn siw(series: Series, kernel: &Kernel) -> Result<PathBuf> {
    let version = &kernel.version;
    let folder = super::folder().join("siw").join(version);
    let module = folder.join("siw.ko");
    if module.is_file() {
        return Ok(module);
    }
    println!("building Soft-iWARP for {version}");
    let unfinished = tempfile::tempdir_in(super::folder())?;
    let root = unfinished.path();
    let mirror = Mirror::open(series)?;
    let headers = format!("linux-headers-{version}");
    let mut packages = vec![headers.clone()];
    packages.extend(mirror.dependencies(&headers)?.into_iter().filter(|package| {
        (package.starts_with("linux-headers-") && package.ends_with("-common"))
            || package.starts_with("linux-kbuild-")
    }));
    packages.push(format!("linux-source-{}/{}", series.number(), series.suite()));
    for package in &packages {
        mirror.unpack(package, root).with_context(|| {
            format!("if {package} is gone from the mirror: remove build/lab/kernel, for a new one")
        })?;
    }
    let archive = root.join(format!("usr/src/linux-source-{}.tar.xz", series.number()));
    let place = format!("linux-source-{}/drivers/infiniband/sw/siw", series.number());
    let (archive, to) = (archive.display().to_string(), root.display().to_string());
    shell::capture(&mut shell::command("tar", &["-xJf", &archive, "-C", &to, &place]))?;
    let tree = root.join("usr/src").join(&headers);
    relocate(&tree, root)?;
    let make = [
        "-s".to_owned(),
        "-C".into(),
        tree.display().to_string(),
        format!("M={}", root.join(&place).display()),
        // The compiler that built the kernel may not be the one that is here.
        "CC=gcc".into(),
        "CONFIG_RDMA_SIW=m".into(),
        // Else it wants pahole.
        "CONFIG_DEBUG_INFO_BTF_MODULES=".into(),
        "modules".into(),
    ];
    let make: Vec<&str> = make.iter().map(String::as_str).collect();
    shell::capture(&mut shell::command("make", &make))?;
    fs::create_dir_all(&folder)?;
    fs::copy(root.join(&place).join("siw.ko"), &module).context("make built no siw.ko")?;
    Ok(module)
}

/// The headers name their other half where dpkg would install it: name where it is instead.
fn relocate(tree: &Path, root: &Path) -> Result<()> {
    let usr = format!("{}/usr/", root.display());
    for name in ["Makefile", ".kernelvariables"] {
        let file = tree.join(name);
        if let Ok(text) = fs::read_to_string(&file) {
            fs::write(&file, text.replace("/usr/src/", &format!("{usr}src/")))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_test_program_is_found_among_cargos_messages() {
        let text = "not a message\n\
            {\"target\":{\"kind\":[\"lib\"],\"name\":\"ib\"},\"executable\":null}\n\
            {\"target\":{\"kind\":[\"test\"],\"name\":\"soft\"},\"executable\":\"/b/soft-1\"}\n\
            {\"target\":{\"kind\":[\"test\"],\"name\":\"ib\"},\"executable\":\"/b/ib-2\"}\n";
        assert_eq!(test_program(text, "ib"), Some("/b/ib-2".into()));
        assert_eq!(test_program(text, "sim"), None);
    }

    #[test]
    fn headers_are_read_where_they_were_unpacked() {
        let folder = tempfile::tempdir().expect("a folder");
        let makefile = folder.path().join("Makefile");
        fs::write(&makefile, "include /usr/src/linux-headers-1-common/Makefile\n").expect("room");
        relocate(folder.path(), Path::new("/lab")).expect("it can be read and written");
        let text = fs::read_to_string(makefile).expect("it is there");
        assert_eq!(text, "include /lab/usr/src/linux-headers-1-common/Makefile\n");
    }
}

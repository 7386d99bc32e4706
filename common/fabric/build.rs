//! With the feature `ib`: says in one line what is missing for it.
//!
//! `rdma-sys` finds out for itself too, by a panic that names the package. Nothing orders the two, so
//! where there are few cores its words may come first. `cargo xtask` installs what is missing before
//! it builds. This script uses nothing but the standard library, to be as early as it can.

use std::env;
use std::path::Path;
use std::process::Command;

const REMEDY: &str = "install libibverbs-dev librdmacm-dev libclang-dev pkg-config (Debian, Ubuntu) \
                      or rdma-core-devel clang-devel (Fedora, RHEL), or leave RDMA devices out with \
                      --no-default-features";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for variable in ["PKG_CONFIG_PATH", "PKG_CONFIG", "LIBCLANG_PATH"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    if env::var_os("CARGO_FEATURE_IB").is_none() {
        return;
    }
    let pkg_config = env::var_os("PKG_CONFIG").unwrap_or_else(|| "pkg-config".into());
    for library in ["libibverbs", "librdmacm"] {
        let found = Command::new(&pkg_config).args(["--exists", library]).status();
        let missing = match found {
            Ok(status) if status.success() => continue,
            Ok(_) => format!("the headers of {library} are not installed"),
            Err(error) => format!("{} does not run ({error})", Path::new(&pkg_config).display()),
        };
        println!("cargo::error=feature `ib`: {missing}: {REMEDY}");
        return;
    }
    if !has_libclang() {
        // Not an error: bindgen knows more places.
        println!("cargo::warning=feature `ib`: libclang is not in the usual places: {REMEDY}");
    }
}

fn has_libclang() -> bool {
    if env::var_os("LIBCLANG_PATH").is_some() {
        return true;
    }
    let roots = ["/usr/lib", "/usr/lib64", "/usr/local/lib", "/opt"];
    roots.iter().any(|root| holds_libclang(Path::new(root), 3))
}

fn holds_libclang(folder: &Path, depth: u32) -> bool {
    let Ok(entries) = folder.read_dir() else { return false };
    let mut folders = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("libclang") && name.contains(".so") {
            return true;
        }
        let near = name.contains("llvm") || name.contains("-linux-gnu") || name == "lib";
        if near && depth > 0 && entry.path().is_dir() {
            folders.push(entry.path());
        }
    }
    folders.iter().any(|folder| holds_libclang(folder, depth - 1))
}

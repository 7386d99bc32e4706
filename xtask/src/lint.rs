//! `cargo xtask lint`: what tools can say about style and dependencies.

use anyhow::Result;

use crate::{setup, shell};

pub(crate) fn run() -> Result<()> {
    setup::install(setup::BUILD)?;
    shell::run(&mut shell::cargo(&["fmt", "--all", "--check"]))?;
    shell::run(&mut shell::cargo(&[
        "clippy",
        "--workspace",
        "--all-targets",
        "--locked",
        "--quiet",
        "--",
        "-D",
        "warnings",
    ]))?;
    // Fetches what the other targets of the lock file need, which `deny` reads but nothing built.
    shell::run(&mut shell::cargo(&["fetch", "--quiet", "--locked"]))?;
    // Advisories need a database from the network; bans, licences and sources do not.
    if shell::find("cargo-deny").is_some() {
        shell::run(&mut shell::cargo(&[
            "deny",
            "--offline",
            "check",
            // A crate whose manifest names a file alone: the licence is what that file says.
            "--allow",
            "no-license-field",
            "bans",
            "licenses",
            "sources",
        ]))?;
    } else {
        println!("skipped: cargo-deny (install it with: cargo install --locked cargo-deny)");
    }
    if shell::find("typos").is_some() {
        shell::run(&mut shell::command("typos", &[]))?;
    } else {
        println!("skipped: typos (install it with: cargo install --locked typos-cli)");
    }
    Ok(())
}

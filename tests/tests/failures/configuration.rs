//! Targets that must not start: wrong configurations and taken addresses.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use lariat_tests::process::{
    Backend, Finished, Scratch, Target, TargetConfig, binary, bounded, free_address, run,
};

use crate::LIMIT;

fn start(scratch: &Scratch, toml: &str) -> Result<Finished> {
    let file = scratch.join("wrong.toml");
    std::fs::write(&file, toml)?;
    run(Command::new(binary("lariatd")?).arg("--config").arg(file), Duration::from_secs(20))
}

#[test]
fn a_second_target_names_the_holder() -> Result<()> {
    bounded(LIMIT, || {
        let scratch = Scratch::new()?;
        let config = TargetConfig::new().disk(Backend::Memory(1 << 20), 4096);
        let target = Target::start(&scratch, &config)?;
        let holder = format!("process {} (lariatd)", target.pid());
        let second = start(&scratch, &config.toml())?;
        let address = config.address.to_string();
        second.failure(1, &[&address, "is already served", &holder])?;
        // No file is made for a target that cannot stand: not there, nor where another disk is wrong.
        let disk = scratch.join("made");
        let made = |config: &TargetConfig| {
            let path = format!("path = \"{}\"", disk.display());
            config.toml().replace(&path, &format!("{path}\ncreate = true\nsize = 1048576"))
        };
        let mut files = config.clone();
        files.disks.clear();
        let files = files.disk(Backend::File(disk.clone()), 4096);
        start(&scratch, &made(&files))?.failure(1, &[&address, "is already served", &holder])?;
        ensure!(!disk.exists(), "made for a target that has no address");
        let mut elsewhere = files.disk(Backend::File(scratch.join("missing")), 4096);
        elsewhere.address = free_address();
        start(&scratch, &made(&elsewhere))?.failure(1, &["namespace[1]", "does not exist"])?;
        ensure!(!disk.exists(), "made for a target that has no second disk");
        // The first one has not noticed.
        lariat_tests::process::connect(&target, 1)?;
        target.stop().map(drop)
    })
}

#[test]
fn mistakes_are_named() -> Result<()> {
    bounded(LIMIT, || {
        let scratch = Scratch::new()?;
        let config = TargetConfig::new().disk(Backend::File(scratch.join("missing")), 4096);
        let good = config.toml();
        start(&scratch, &good)?.failure(1, &["wrong.toml", "namespace[0]", "missing"])?;
        for (from, to, words) in [
            ("port = 4420", "prot = 4420", &["listener[0].prot", "port"][..]),
            ("nsid = 1", "nsid = 0", &["namespace[0].nsid"]),
            ("block_size = 4096", "block_size = 1000", &["block_size", "512"]),
            ("allow_any_host = true", "", &["allow_any_host"]),
            ("[target]", "[target]\nreactors = 1000", &["target.reactors", "255"]),
            ("[[listener]]", "[[listener", &["wrong.toml"]),
        ] {
            let toml = good.replace(from, to);
            let refused = start(&scratch, &toml)?;
            refused.failure(2, words).with_context(|| format!("{to:?} for {from:?}"))?;
        }
        // All of them at once, in the order of the file.
        let toml = good.replace("nsid = 1", "nsid = 1.0").replace("port = 4420", "port = 0");
        let refused = start(&scratch, &toml)?;
        let lines: Vec<_> = refused.stderr.lines().collect();
        let [first, second] = lines[..] else { bail!("{lines:?}") };
        ensure!(first.contains("listener[0].port: 0"), "{first}");
        ensure!(second.contains("namespace[0].nsid: 1.0"), "{second}");
        refused.failure(2, &["write nsid = 1"])?;
        // Nothing that could be a file.
        let disk = scratch.join("missing").display().to_string();
        for (path, words) in [
            (scratch.join("none/disk"), "there is no folder"),
            (scratch.join(""), "is a folder; give the path of a file in it"),
            (scratch.join("wrong.toml/disk"), "is a file, no folder"),
        ] {
            let toml = good.replace(&disk, &path.display().to_string());
            start(&scratch, &toml)?.failure(1, &["wrong.toml", "namespace[0]", words])?;
        }
        let absent = scratch.join("absent.toml");
        run(Command::new(binary("lariatd")?).arg("--config").arg(absent), LIMIT)?
            .failure(2, &["absent.toml: there is no such file"])?;
        // An address that is not this machine's.
        let far = good
            .replace(&config.address.to_string(), "192.0.2.77")
            .replace("type = \"file\"", "type = \"null\"\nsize = 4096")
            .lines()
            .filter(|line| !line.starts_with("path"))
            .fold(String::new(), |text, line| text + line + "\n");
        start(&scratch, &far)?
            .failure(1, &["192.0.2.77:4420", "is not an address of this machine"])?;
        Ok(())
    })
}

/// Somebody who is no Lariat: here the test itself.
#[test]
fn who_has_the_port_is_named_whoever_it_is() -> Result<()> {
    bounded(LIMIT, || {
        let scratch = Scratch::new()?;
        let config = TargetConfig::new().disk(Backend::Memory(1 << 20), 4096);
        let _socket = std::net::UdpSocket::bind((config.address, 4791))?;
        let holder = format!("process {}", std::process::id());
        for reactors in [1, 2] {
            let config = config.clone().set("reactors", reactors);
            start(&scratch, &config.toml())?.failure(1, &[&holder])?;
        }
        Ok(())
    })
}

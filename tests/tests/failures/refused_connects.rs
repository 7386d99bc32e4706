//! Connects that must be refused, each with words of its own: with the exit code of a run-time error,
//! or of wrong arguments where these ask for more than the target gives.

use std::time::Duration;

use anyhow::{Result, ensure};
use lariat_tests::process::{
    Backend, NQN, Scratch, Target, TargetConfig, binary, bounded, free_address, lariat, run,
};

use crate::LIMIT;

const ALLOWED: &str = "nqn.2026-11.io.lariat:allowed";

#[test]
fn each_mistake_has_its_own_words() -> Result<()> {
    bounded(LIMIT, || {
        let scratch = Scratch::new()?;
        let mut config = TargetConfig::new().disk(Backend::Memory(1 << 20), 4096);
        config.allowed_host = Some(ALLOWED.to_owned());
        let target = Target::start(&scratch, &config)?;
        let address = target.ip().to_string();
        let nobody = free_address().to_string();
        let list = |address: &str, port: &str, nqn: &str, host: &str, rest: &[&str]| {
            let mut command = std::process::Command::new(binary("lariat")?);
            command.args(["id-ns", "-t", "rdma", "-a", address, "-s", port, "-n", nqn, "-q", host]);
            command.args(rest);
            run(&mut command, Duration::from_secs(15))
        };

        list(&address, "4420", NQN, ALLOWED, &[])?.success()?;
        let other = format!("{NQN}-other");
        list(&address, "4420", &other, ALLOWED, &[])?
            .failure(1, &[&other, &format!("`lariat discover -a {address} -s 4420`")])?;
        list(&address, "4420", NQN, "nqn.2026-11.io.lariat:stranger", &[])?
            .failure(1, &[NQN, "lariat:stranger, the NQN of this host", "it is what -q says"])?;
        list(&address, "4420", NQN, ALLOWED, &["--namespace-id", "7"])?
            .failure(1, &["there is no namespace 7", "`lariat list-ns` shows: 1"])?;
        // Another port of the target's address is answered, by a refusal.
        list(&address, "4421", NQN, ALLOWED, &[])?.failure(
            1,
            &[&format!("{address}:4421"), "rejected", "nvalid service", "lariat: -s"],
        )?;
        list(&address, "4420", "nqn.2014-08.org.nvmexpress.discovery", ALLOWED, &[])?
            .failure(2, &["the discovery subsystem, which has no namespaces"])?;
        // At an address without a target its system says so, long before the 10 s are over.
        let words = ["cannot be reached", "nothing listens at UDP port 4791", "start lariatd"];
        let refused = list(&nobody, "4420", NQN, ALLOWED, &[])?.failure(1, &words)?;
        let took = refused.took.as_secs_f64();
        anyhow::ensure!((1.0..6.0).contains(&took), "given up after {took} s");
        // A socket that says nothing is waited for.
        let silent = std::net::UdpSocket::bind((free_address(), 4791))?;
        let ip = silent.local_addr()?.ip().to_string();
        let words = ["no answer within", "is the target running"];
        let silence = list(&ip, "4420", NQN, ALLOWED, &["--connect-timeout", "2"])?;
        silence.failure(1, &words)?;
        // Who may connect to nothing is told why nothing is shown.
        let mut command = std::process::Command::new(binary("lariat")?);
        command.args(["discover", "-a", &address, "-q", "nqn.2026-11.io.lariat:stranger"]);
        let shown = run(&mut command, Duration::from_secs(15))?.success()?;
        ensure!(shown.stderr.contains("offers this host no subsystem"), "{}", shown.stderr);
        ensure!(shown.stderr.contains("lariat:stranger"), "{}", shown.stderr);
        target.stop().map(drop)
    })
}

#[test]
fn who_asks_for_more_than_the_target_gives_is_told_how_much_that_is() -> Result<()> {
    bounded(LIMIT, || {
        let scratch = Scratch::new()?;
        let config = TargetConfig::new().disk(Backend::Memory(1 << 20), 4096);
        let config = config.set("max_queues", 2).set("max_queue_depth", 8);
        let target = Target::start(&scratch, &config)?;
        let address = target.ip().to_string();
        let bench = |rest: &[&str]| {
            let mut command = std::process::Command::new(binary("lariat")?);
            command.args(["bench", "-a", &address, "-n", NQN, "--runtime", "100ms", "--quiet"]);
            run(command.args(rest), Duration::from_secs(15))
        };
        bench(&["--queues", "2", "--iodepth", "8"])?.success()?;
        bench(&["--queues", "3", "--iodepth", "8"])?
            .failure(2, &["the target grants 2 I/O queues, --queues 3 is more", "max_queues"])?;
        bench(&["--iodepth", "9"])?
            .failure(2, &["the target takes 8 requests on a queue", "max_queue_depth"])?;
        // Copies want no figure of theirs: they take what there is.
        let copy = scratch.join("copy").display().to_string();
        for verb in [["read", "--output"], ["write", "--input"]] {
            let words = [verb[1], &copy, "--iodepth", "64", "--bs", "4k", "--quiet"];
            run(&mut lariat(&target, verb[0], &words)?, Duration::from_secs(15))?.success()?;
        }
        ensure!(std::fs::metadata(&copy)?.len() == 1 << 20);
        target.stop().map(drop)
    })
}

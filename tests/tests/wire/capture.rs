//! A capture of the loopback device by dumpcap, as long as its value lives.

use std::net::IpAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use lariat_tests::process::{Running, run, until};
use nix::sys::signal::Signal;

pub(crate) struct Capture {
    process: Running,
    log: std::path::PathBuf,
}

impl Capture {
    /// Starts one of RoCEv2 from and to an address.
    ///
    /// # Errors
    /// The tools are not there, or may not capture.
    pub(crate) fn start(file: &Path, address: IpAddr) -> Result<Self> {
        let version = run(Command::new("tshark").arg("--version"), Duration::from_secs(20));
        version.context("tshark is not installed")?.success()?;
        let filter = format!("udp port 4791 and host {address}");
        let log = file.with_extension("dumpcap");
        let mut command = Command::new("dumpcap");
        // As libpcap's own format, with room for everything.
        command.args(["-P", "-B", "64", "-i", "lo", "-f", &filter, "-w"]).arg(file);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(std::fs::File::create(&log)?);
        let mut process = Running::spawn(&mut command).context("dumpcap is not installed")?;
        until("the start of the capture", Duration::from_secs(10), || {
            let said = std::fs::read_to_string(&log)?;
            if process.try_wait()?.is_some() {
                bail!("not allowed to capture: {said}");
            }
            Ok(said.contains("File: ").then_some(()))
        })?;
        Ok(Self { process, log })
    }

    /// Ends it, with all that came before in the file.
    ///
    /// # Errors
    /// It lost packets, or does not end well.
    pub(crate) fn stop(mut self) -> Result<()> {
        // What the kernel has gathered comes to dumpcap now and then.
        thread::sleep(Duration::from_millis(500));
        self.process.signal(Signal::SIGINT)?;
        let status = self.process.wait(Duration::from_secs(10))?;
        let said = std::fs::read_to_string(&self.log)?;
        ensure!(status.success(), "dumpcap: {status}: {said}");
        ensure!(said.contains("/0 (pcap:0/"), "packets were lost: {said}");
        Ok(())
    }
}

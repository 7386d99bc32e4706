//! `cargo xtask profile`: where the processor's time goes at either end, as flame graphs. Starts what
//! the benchmark starts, looks with `perf`, draws with `inferno`. Calls `peers::lariat`.

use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use anyhow::{Context, Result, bail};
use inferno::collapse::Collapse;
use inferno::collapse::perf::Folder;
use inferno::flamegraph;

use super::peer::Ground;
use super::peers::lariat::{Daemon, Setup};
use super::process::{self, Placing};
use crate::cluster::{Binaries, NQN};
use crate::{setup, shell};

/// Samples a second: no divisor of what else happens in regular steps.
const FREQUENCY: &str = "1999";
/// Bytes of stack in a sample, from which callers are found.
const CALL_GRAPH: &str = "dwarf,8192";
const ADDRESS: &str = "127.79.4.1";

/// What can be chosen.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// What the target's disk is: memory or null.
    #[arg(long, default_value = "null", value_parser = ["null", "memory"])]
    backend: String,
    /// Access pattern, as of `lariat bench`.
    #[arg(long, default_value = "randread")]
    rw: String,
    /// Size of each request.
    #[arg(long, default_value = "4k")]
    bs: String,
    /// Requests in flight.
    #[arg(long, default_value_t = 32)]
    iodepth: u32,
    /// What packets travel over: udp or shm.
    #[arg(long, default_value = "udp", value_parser = ["udp", "shm"])]
    wire: String,
    /// How long to look.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=60))]
    seconds: u32,
    /// Where target.svg and initiator.svg go [default: build/profile].
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    setup::install(setup::BUILD)?;
    setup::install(&[setup::PERF])?;
    let binaries = Binaries::build()?;
    let folder = tempfile::Builder::new()
        .prefix("lariat-profile-")
        .tempdir_in(shell::root().join("build"))?;
    let nowhere = folder.path().join("none");
    let ground = Ground {
        folder: folder.path().to_owned(),
        disk: nowhere.clone(),
        cached: nowhere.clone(),
        memory: nowhere,
        disk_mib: 0,
        memory_mib: 512,
        placing: Placing::pinned(),
        binaries,
        spdk: None,
    };
    let how = Setup {
        with_file: false,
        wire: if options.wire == "udp" { "udp" } else { "auto" },
        ..Setup::default()
    };
    let daemon = Daemon::start(&ground, "profile", ADDRESS, Vec::new(), how)?;
    let recorded = record(&ground, &daemon, options);
    daemon.server.stop()?;
    let recorded = recorded?;

    let output = options.output.clone().unwrap_or_else(|| shell::root().join("build/profile"));
    std::fs::create_dir_all(&output)?;
    for (end, samples) in ["target", "initiator"].into_iter().zip(recorded) {
        let title = format!(
            "{end}: {} {} at depth {}, {} disk, over {}",
            options.rw, options.bs, options.iodepth, options.backend, options.wire
        );
        let picture = output.join(format!("{end}.svg"));
        draw(&samples, &title, &picture)?;
        println!("{}", picture.display());
    }
    Ok(())
}

/// Samples of the target and of the initiator, at the same time.
fn record(ground: &Ground, daemon: &Daemon, options: &Options) -> Result<[PathBuf; 2]> {
    let nsid = if options.backend == "memory" { "2" } else { "3" };
    let (depth, runtime) = (options.iodepth.to_string(), (options.seconds + 30).to_string());
    let program = ground.binaries.folder().join("lariat");
    let arguments = [
        "bench",
        "--traddr",
        ADDRESS,
        "--nqn",
        NQN,
        "--fabric",
        "soft",
        "--wire",
        &options.wire,
        "--namespace-id",
        nsid,
        "--rw",
        &options.rw,
        "--bs",
        &options.bs,
        "--iodepth",
        &depth,
        "--runtime",
        &runtime,
        "--quiet",
    ];
    let mut words = ground.placing.client();
    words.push(program.display().to_string());
    words.extend(arguments.map(str::to_owned));
    let (first, rest) = words.split_first().context("no command")?;
    let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
    let mut client =
        shell::command(first, &rest).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    process::sleep(process::RAMP * 3)?;
    if client.try_wait()?.is_some() {
        let said = client.wait_with_output()?;
        bail!("the load ended early: {}", String::from_utf8_lossy(&said.stderr).trim());
    }
    let files = ["target", "initiator"].map(|end| ground.folder.join(format!("{end}.perf")));
    let looks: Vec<Child> = [daemon.server.pid(), client.id()]
        .iter()
        .zip(&files)
        .map(|(pid, file)| look(*pid, file, options.seconds))
        .collect::<Result<_>>()?;
    let mut said = Vec::new();
    for look in looks {
        said.push(look.wait_with_output()?);
    }
    client.kill()?;
    client.wait()?;
    for look in &said {
        if !look.status.success() {
            bail!(
                "perf cannot look (it needs root, or kernel.perf_event_paranoid of 1 or less): {}",
                String::from_utf8_lossy(&look.stderr).trim()
            );
        }
    }
    Ok(files)
}

fn look(pid: u32, file: &Path, seconds: u32) -> Result<Child> {
    let (pid, seconds, file) = (pid.to_string(), seconds.to_string(), file.display().to_string());
    let words = [
        "record",
        "-q",
        "-e",
        "cpu-clock",
        "-F",
        FREQUENCY,
        "--call-graph",
        CALL_GRAPH,
        "-p",
        &pid,
        "-o",
        &file,
        "--",
        "sleep",
        &seconds,
    ];
    shell::command("perf", &words)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start perf")
}

/// From samples to a picture.
fn draw(samples: &Path, title: &str, picture: &Path) -> Result<()> {
    let words = ["script", "--force", "-i", &samples.display().to_string()];
    let mut script = shell::command("perf", &words)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("cannot start perf")?;
    let said = script.stdout.take().context("perf says nothing")?;
    let mut folded = Vec::new();
    Folder::default().collapse(BufReader::new(said), &mut folded)?;
    let ended = script.wait()?;
    if !ended.success() || folded.is_empty() {
        bail!("perf script gave no samples ({ended})");
    }
    let mut options = flamegraph::Options::default();
    title.clone_into(&mut options.title);
    let out = BufWriter::new(File::create(picture)?);
    let text = String::from_utf8(folded).context("perf script printed no text")?;
    flamegraph::from_lines(&mut options, text.lines(), out)?;
    Ok(())
}

//! `lariat read` and `lariat write`: bulk transfers with many requests in flight. The file side runs
//! in a thread of its own, so that a slow pipe never keeps the queue from being polled. Calls the
//! library, `pump`, `progress`, `sink`; called by `main`.

mod progress;
mod pump;
mod range;
mod sink;

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use lariat::{Controller, IoQueue, Namespace, Path as Wire};
use serde_json::json;

use self::progress::Progress;
use self::pump::{Job, Moved};
use crate::connect_args::NamespaceArgs;
use crate::failure::usage;
use crate::output::{OutputFormat, print, print_json, provider_words, wires_json};
use crate::signals::Stop;
use crate::units::{parse_size, show_rate, show_size, to_f64};

/// How a transfer is done.
#[derive(Clone, Debug, clap::Args)]
struct TransferArgs {
    /// Size of each request: a multiple of the namespace's block size, up to 64 MiB.
    #[arg(long, visible_alias = "block-size", value_name = "SIZE", default_value = "128k",
          value_parser = parse_size)]
    bs: u64,
    /// Requests in flight, 1 to 1024, as far as the target takes so many on a queue.
    #[arg(long, visible_alias = "depth", value_name = "N", default_value_t = 16,
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    iodepth: u32,
    /// No progress bar, no summary.
    #[arg(long)]
    quiet: bool,
    /// How the summary is printed.
    #[arg(short, long, value_enum, default_value = "normal")]
    output_format: OutputFormat,
    #[command(flatten)]
    namespace: NamespaceArgs,
}

/// Options of `read`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ReadOptions {
    /// First byte to read, a multiple of the block size; suffixes as in 4k, 1MiB.
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = parse_size)]
    offset: u64,
    /// Bytes to read, a multiple of the block size [default: up to the namespace's end].
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    length: Option<u64>,
    /// File to write to, - for stdout.
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
    #[command(flatten)]
    transfer: TransferArgs,
}

/// Options of `write`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct WriteOptions {
    /// First byte to write, a multiple of the block size; suffixes as in 4k, 1MiB.
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = parse_size)]
    offset: u64,
    /// Bytes to take from the input [default: all of it].
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    length: Option<u64>,
    /// File to read from, - for stdin.
    #[arg(long, value_name = "FILE")]
    input: PathBuf,
    /// Where the input does not end with a whole block, keep what the rest of that block holds
    /// (read-modify-write) instead of refusing.
    #[arg(long)]
    pad: bool,
    #[command(flatten)]
    transfer: TransferArgs,
}

/// When it began, and what it travels over.
struct Way {
    started: Instant,
    fabric: &'static str,
    paths: [Option<Wire>; 1],
}

/// A connection that is ready for a transfer.
struct Ready {
    // Before the controller, so that it ends first.
    queue: IoQueue,
    disk: Namespace,
    controller: Controller,
}

impl Ready {
    fn way(&self) -> Way {
        Way {
            started: Instant::now(),
            fabric: self.controller.fabric_name(),
            paths: [self.queue.path()],
        }
    }
}

impl TransferArgs {
    fn open(&self) -> Result<Ready> {
        let subsystem = &self.namespace.subsystem;
        let controller = subsystem.connect(1, self.iodepth)?;
        let disk = self.namespace.namespace(&controller)?;
        let queue = controller.io_queue()?;
        Ok(Ready { queue, disk, controller })
    }

    /// Bytes of each request: as asked for, in whole blocks.
    fn request_bytes(&self, block_bytes: u32) -> Result<usize> {
        let block = u64::from(block_bytes);
        if self.bs == 0 || !self.bs.is_multiple_of(block) || self.bs > 64 << 20 {
            return Err(usage(format!(
                "--bs {} is not a multiple of the block size, {block}, up to 64 MiB",
                self.bs
            )));
        }
        Ok(usize::try_from(self.bs)?)
    }

    fn summary(&self, verb: &str, moved: &Moved, way: &Way, to_stderr: bool) -> Result<()> {
        if self.quiet {
            return Ok(());
        }
        let seconds = way.started.elapsed().as_secs_f64();
        let rate = to_f64(moved.bytes) / seconds.max(1e-9);
        let crc32 = format!("{:08x}", moved.crc32);
        let json = json!({
            "bytes": moved.bytes,
            "seconds": seconds,
            "bytes_per_second": rate,
            "crc32": crc32,
            "fabric": way.fabric,
            "wire": wires_json(&way.paths),
        });
        let words = format!(
            "{verb} {} bytes ({}) in {seconds:.2} s, {} ({}), crc32 {crc32}\n",
            moved.bytes,
            show_size(moved.bytes),
            show_rate(rate),
            provider_words(way.fabric, &way.paths),
        );
        match (self.output_format, to_stderr) {
            (OutputFormat::Normal, false) => print(&words),
            (OutputFormat::Json, false) => print_json(&json),
            (OutputFormat::Normal, true) => {
                let _ = io::stderr().write_all(words.as_bytes());
                Ok(())
            }
            (OutputFormat::Json, true) => {
                let _ = writeln!(io::stderr(), "{json:#}");
                Ok(())
            }
        }
    }
}

/// `lariat read`.
pub(crate) fn read(options: &ReadOptions, stop: &Stop) -> Result<()> {
    let transfer = &options.transfer;
    let ready = transfer.open()?;
    stop.orderly();
    let way = ready.way();
    let Ready { mut queue, disk, controller: _controller } = ready;
    let geometry = disk.geometry();
    let length = range::of_read(options.offset, options.length, geometry)?;
    let to_stdout = options.output == Path::new("-");
    let output: Box<dyn Write + Send> =
        if to_stdout { Box::new(io::stdout()) } else { Box::new(sink::create(&options.output)?) };
    let progress = Progress::new(Some(length), transfer.quiet);
    let job = Job {
        geometry,
        offset: options.offset,
        request_bytes: transfer.request_bytes(geometry.block_bytes)?,
        depth: queue.depth().min(transfer.iodepth),
        stop,
        progress: &progress,
    };
    let moved = job.read(&mut queue, length, output, to_stdout);
    progress.end();
    transfer.summary("read", &moved?, &way, to_stdout)
}

/// `lariat write`.
pub(crate) fn write(options: &WriteOptions, stop: &Stop) -> Result<()> {
    let transfer = &options.transfer;
    let from_stdin = options.input == Path::new("-");
    // Before connecting: a name that is wrong is the most likely error.
    let (input, known): (Box<dyn Read + Send>, Option<u64>) = if from_stdin {
        (Box::new(io::stdin()), None)
    } else {
        let words = || format!("cannot read {}", options.input.display());
        let file = File::open(&options.input).with_context(words)?;
        let metadata = file.metadata().with_context(words)?;
        if metadata.is_dir() {
            return Err(usage(format!("--input {} is a directory", options.input.display())));
        }
        (Box::new(file), metadata.is_file().then_some(metadata.len()))
    };
    let ready = transfer.open()?;
    stop.orderly();
    let way = ready.way();
    let Ready { mut queue, disk, controller: _controller } = ready;
    let geometry = disk.geometry();
    let plan = range::of_write(options.offset, options.length, known, options.pad, geometry)?;
    let progress = Progress::new(plan.expected, transfer.quiet);
    let job = Job {
        geometry,
        offset: options.offset,
        request_bytes: transfer.request_bytes(geometry.block_bytes)?,
        depth: queue.depth().min(transfer.iodepth),
        stop,
        progress: &progress,
    };
    let moved = job.write(&mut queue, &disk, &plan, input);
    progress.end();
    transfer.summary("wrote", &moved?, &way, false)
}

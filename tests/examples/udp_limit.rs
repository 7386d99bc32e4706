//! What UDP carries between two processes with no protocol on it: the limit that the `soft` provider
//! is measured against. `cargo xtask bench` builds and runs it.
//!
//! `udp_limit batch --serve` answers in the shape of batched reads: for n capsules of 96 bytes that
//! came in one look, n datagrams of 4,128 bytes (a copy of 4 KiB in each), in segmented calls, and
//! then n of 32 bytes. `udp_limit batch` keeps `--depth` of them under way and copies what comes.
//!
//! `udp_limit stream --serve` sends packets as full as those of a long transfer, in segmented calls,
//! as fast as the receiver says it takes them. `udp_limit stream` takes them and copies nothing; with
//! `--copy` both ends copy every payload once, as a disk in memory and its reader cannot avoid.
//!
//! Both ends spin. The report has the form of `lariat bench`'s.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Parser, ValueEnum};
use lariat_fabric::Memory;
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrIn, recvmsg, sendmsg, setsockopt,
    sockopt,
};

/// Bare UDP between two processes.
#[derive(Parser)]
struct Options {
    mode: Mode,
    /// Be the end that sends the data.
    #[arg(long)]
    serve: bool,
    #[arg(long, default_value_t = 1)]
    depth: usize,
    /// How long to measure; the serving end leaves after it.
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    #[arg(long, default_value_t = Ipv4Addr::new(127, 79, 1, 1))]
    client: Ipv4Addr,
    #[arg(long, default_value_t = Ipv4Addr::new(127, 79, 1, 2))]
    server: Ipv4Addr,
    #[arg(long, default_value_t = 4799)]
    port: u16,
    /// Memory that the serving end copies from, in MiB: `batch` each time from another place. What does not fit a cache is what a real disk in memory is.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65536))]
    memory_mib: u32,
    /// `stream`: copy each payload, out of the memory in order, and into buffers.
    #[arg(long)]
    copy: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mode {
    Batch,
    Stream,
}

/// A command capsule: BTH, 64 bytes of command with padding, ICRC.
const CAPSULE: usize = 96;
/// A WRITE of one packet: BTH, RETH, 4 KiB, ICRC.
const WRITE: usize = 4128;
/// A response: BTH, 16 bytes, ICRC.
const SEND: usize = 32;
/// A packet in the middle of a long WRITE: BTH, 4 KiB, ICRC.
const MIDDLE: usize = 4112;
const PAYLOAD: usize = 4096;
/// What is in front of the payload of a WRITE.
const HEADER: usize = 28;
/// What is in front of its payload.
const STREAM_HEADER: usize = 12;
/// Segments of 4 KiB that fit into one call.
const SEGMENTS: usize = 15;
/// The largest datagram there is, rounded up.
const LARGEST: usize = 1 << 16;
/// What the ends copy from and to: as large as a cache that real data would not fit into.
const MEMORY: usize = 1 << 20;
/// What is not counted, while both ends warm up.
const RAMP: Duration = Duration::from_millis(200);
/// Without an answer for so long the receiver asks again: a datagram was lost.
const LOST: Duration = Duration::from_millis(20);

fn main() -> Result<()> {
    let options = Options::parse();
    match (options.mode, options.serve) {
        (Mode::Batch, true) => serve_batches(&options),
        (Mode::Batch, false) => ask_for_batches(&options),
        (Mode::Stream, true) => serve_stream(&options),
        (Mode::Stream, false) => take_stream(&options),
    }
}

/// A socket with segmentation in both directions.
struct End {
    socket: UdpSocket,
    peer: SockaddrIn,
    /// How much it holds for its owner, in bytes.
    receive_bytes: usize,
}

/// What one read gave: bytes, and how long each segment is.
struct Taken {
    bytes: usize,
    segment: usize,
}

impl Taken {
    fn segments(&self) -> usize {
        self.bytes.div_ceil(self.segment.max(1))
    }
}

impl End {
    fn new(options: &Options) -> Result<Self> {
        let (mine, other) = if options.serve {
            (options.server, options.client)
        } else {
            (options.client, options.server)
        };
        let address = SocketAddrV4::new(mine, options.port);
        let socket = UdpSocket::bind(address).with_context(|| format!("cannot bind {address}"))?;
        socket.set_nonblocking(true)?;
        let wanted = 32 << 20;
        // Only root may have more than the system's limit.
        if setsockopt(&socket, sockopt::RcvBufForce, &wanted).is_err() {
            setsockopt(&socket, sockopt::RcvBuf, &wanted)?;
        }
        if setsockopt(&socket, sockopt::SndBufForce, &wanted).is_err() {
            setsockopt(&socket, sockopt::SndBuf, &wanted)?;
        }
        setsockopt(&socket, sockopt::UdpGroSegment, &true)?;
        let receive_bytes = nix::sys::socket::getsockopt(&socket, sockopt::RcvBuf)?;
        Ok(Self {
            socket,
            peer: SockaddrIn::from(SocketAddrV4::new(other, options.port)),
            receive_bytes,
        })
    }

    /// Sends `bytes` in segments; false when there is no room now.
    fn send(&self, bytes: &[u8], segment: usize) -> Result<bool> {
        let size = u16::try_from(segment)?;
        let segments = [ControlMessage::UdpGsoSegments(&size)];
        let controls: &[_] = if bytes.len() > segment { &segments } else { &[] };
        let pieces = [IoSlice::new(bytes)];
        let flags = MsgFlags::MSG_DONTWAIT;
        match sendmsg(self.socket.as_raw_fd(), &pieces, controls, flags, Some(&self.peer)) {
            Ok(_) => Ok(true),
            Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::ENOBUFS) => Ok(false),
            // The other end is gone, or not there yet.
            Err(nix::errno::Errno::ECONNREFUSED) => Ok(true),
            Err(error) => Err(error).context("sendmsg"),
        }
    }

    /// Sends `bytes`, spinning until there is room.
    fn send_all(&self, bytes: &[u8], segment: usize, end: Instant) -> Result<()> {
        while !self.send(bytes, segment)? && Instant::now() < end {}
        Ok(())
    }

    /// Takes one read's worth, if there is any.
    fn take(&self, buffer: &mut [u8], control: &mut [u8]) -> Result<Option<Taken>> {
        let mut pieces = [IoSliceMut::new(buffer)];
        let flags = MsgFlags::MSG_DONTWAIT;
        match recvmsg::<()>(self.socket.as_raw_fd(), &mut pieces, Some(control), flags) {
            Ok(message) => {
                let mut segment = message.bytes;
                for control in message.cmsgs()? {
                    if let ControlMessageOwned::UdpGroSegments(size) = control {
                        segment = usize::try_from(size)?;
                    }
                }
                Ok(Some(Taken { bytes: message.bytes, segment }))
            }
            Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::ECONNREFUSED) => Ok(None),
            Err(error) => Err(error).context("recvmsg"),
        }
    }
}

fn control_buffer() -> Vec<u8> {
    nix::cmsg_space!(i32)
}

/// A place in the memory that the payloads come from or go to: the next one each time.
fn next_place(at: &mut usize) -> core::ops::Range<usize> {
    let start = *at;
    *at = (start + PAYLOAD) % MEMORY;
    start..start + PAYLOAD
}

/// What is served: blocks of a memory.
struct Source {
    memory: Arc<Memory>,
    blocks: u64,
    random: u64,
    next: u64,
}

impl Source {
    fn new(mib: u32) -> Result<Self> {
        let memory = Memory::allocate(usize::try_from(mib)? << 20)?;
        // As the target's disk in memory does; and pages never written are all one.
        memory.prefer_huge_pages();
        let block = [7; PAYLOAD];
        let blocks = u64::try_from(memory.len() / PAYLOAD)?;
        for at in 0..blocks {
            memory.write_at(at * PAYLOAD as u64, &block)?;
        }
        Ok(Self { memory, blocks, random: 0x9e37_79b9_7f4a_7c15, next: 0 })
    }

    /// In order.
    fn copy_next(&mut self, into: &mut [u8]) -> Result<()> {
        self.next = (self.next + 1) % self.blocks;
        self.memory.read_at(self.next * PAYLOAD as u64, into)?;
        Ok(())
    }

    /// In an order that no cache foresees.
    fn copy_any(&mut self, into: &mut [u8]) -> Result<()> {
        // Xorshift (Marsaglia, 2003).
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.memory.read_at(self.random % self.blocks * PAYLOAD as u64, into)?;
        Ok(())
    }
}

fn serve_batches(options: &Options) -> Result<()> {
    let end = End::new(options)?;
    let mut source = Source::new(options.memory_mib)?;
    ready();
    let until = Instant::now() + Duration::from_secs(options.seconds);
    let (mut buffer, mut control) = (vec![0; LARGEST], control_buffer());
    let responses = vec![0; SEND * (LARGEST / SEND)];
    while Instant::now() < until {
        let mut asked = 0;
        while let Some(taken) = end.take(&mut buffer, &mut control)? {
            asked += taken.segments();
        }
        let mut left = asked;
        while left > 0 {
            let count = left.min(SEGMENTS);
            for packet in buffer.chunks_mut(WRITE).take(count) {
                source.copy_any(&mut packet[HEADER..HEADER + PAYLOAD])?;
            }
            end.send_all(&buffer[..count * WRITE], WRITE, until)?;
            left -= count;
        }
        // 64 segments at most are taken in one call.
        let mut left = asked;
        while left > 0 {
            let count = left.min(64);
            end.send_all(&responses[..count * SEND], SEND, until)?;
            left -= count;
        }
    }
    Ok(())
}

fn ask_for_batches(options: &Options) -> Result<()> {
    let end = End::new(options)?;
    let (mut buffer, mut control) = (vec![0; LARGEST], control_buffer());
    let (mut memory, mut at) = (vec![0; MEMORY], 0);
    let capsules = vec![0; CAPSULE * 64];
    let mut report = Report::new(options)?;
    // When those under way were sent, oldest first: answers keep the order.
    let mut sent: VecDeque<Instant> = VecDeque::with_capacity(options.depth);
    let mut heard = Instant::now();
    while !report.is_over() {
        let mut room = options.depth - sent.len();
        while room > 0 {
            let count = room.min(64);
            let now = Instant::now();
            end.send_all(&capsules[..count * CAPSULE], CAPSULE, report.until)?;
            sent.extend(std::iter::repeat_n(now, count));
            room -= count;
        }
        let mut answered = 0;
        while let Some(taken) = end.take(&mut buffer, &mut control)? {
            if taken.segment <= SEND {
                answered += taken.segments();
                continue;
            }
            for packet in buffer[..taken.bytes].chunks(WRITE) {
                let place = next_place(&mut at);
                memory[place].copy_from_slice(&packet[HEADER..HEADER + PAYLOAD]);
            }
        }
        let now = Instant::now();
        for start in sent.drain(..answered.min(sent.len())) {
            report.record(now, now - start);
        }
        if answered > 0 {
            heard = now;
        } else if now - heard > LOST {
            sent.clear();
            heard = now;
        }
    }
    std::hint::black_box(&memory);
    report.print(PAYLOAD)
}

/// The receiver tells how many calls' worth it has taken, from its first on.
fn serve_stream(options: &Options) -> Result<()> {
    let end = End::new(options)?;
    let mut source = if options.copy { Some(Source::new(options.memory_mib)?) } else { None };
    ready();
    let until = Instant::now() + Duration::from_secs(options.seconds);
    let (mut buffer, mut control) = (vec![0; LARGEST], control_buffer());
    let mut data = vec![7; SEGMENTS * MIDDLE];
    let mut credit: usize = 0;
    while Instant::now() < until {
        while let Some(taken) = end.take(&mut buffer, &mut control)? {
            for message in buffer[..taken.bytes].chunks(taken.segment.max(1)) {
                let count = message.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
                credit += usize::try_from(count)?;
            }
        }
        if credit > 0 {
            if let Some(source) = &mut source {
                for packet in data.chunks_mut(MIDDLE) {
                    source.copy_next(&mut packet[STREAM_HEADER..STREAM_HEADER + PAYLOAD])?;
                }
            }
            end.send_all(&data, MIDDLE, until)?;
            credit -= 1;
        }
    }
    Ok(())
}

fn take_stream(options: &Options) -> Result<()> {
    let end = End::new(options)?;
    let (mut buffer, mut control) = (vec![0; LARGEST], control_buffer());
    // The kernel counts some more than the bytes; a lost datagram costs more than a short window.
    let window = (end.receive_bytes / 4 / (SEGMENTS * MIDDLE)).clamp(1, 32);
    let mut report = Report::new(options)?;
    let grant = |calls: usize| -> Result<()> {
        end.send(&u32::try_from(calls)?.to_le_bytes(), 4)?;
        Ok(())
    };
    let (mut segments, mut since_grant) = (0, 0);
    // 16 requests of 128 KiB.
    let (mut memory, mut place) = (vec![0; if options.copy { 2 << 20 } else { 0 }], 0);
    let mut heard = Instant::now() - LOST;
    while !report.is_over() {
        let now = Instant::now();
        match end.take(&mut buffer, &mut control)? {
            Some(taken) => {
                segments += taken.segments();
                since_grant += taken.segments();
                if options.copy {
                    for packet in buffer[..taken.bytes].chunks(MIDDLE) {
                        let payload = &packet[STREAM_HEADER..STREAM_HEADER + PAYLOAD];
                        memory[place..place + PAYLOAD].copy_from_slice(payload);
                        place = (place + PAYLOAD) % memory.len();
                    }
                }
                report.count(now, taken.segments());
                heard = now;
            }
            None if now - heard > LOST => {
                grant(window)?;
                since_grant = 0;
                heard = now;
            }
            None => {}
        }
        // Half a window at a time.
        let calls = since_grant / SEGMENTS;
        if calls > window / 2 {
            grant(calls)?;
            since_grant -= calls * SEGMENTS;
        }
    }
    std::hint::black_box(&memory);
    if segments == 0 {
        bail!("nothing came");
    }
    report.print(PAYLOAD)
}

/// One line, for whoever waits for it.
#[expect(clippy::print_stdout, reason = "the program's output")]
fn ready() {
    println!("ready");
}

/// Counts and latencies of the time that is measured.
struct Report {
    start: Instant,
    until: Instant,
    count: usize,
    /// In nanoseconds.
    latencies: hdrhistogram::Histogram<u64>,
}

impl Report {
    fn new(options: &Options) -> Result<Self> {
        let start = Instant::now() + RAMP;
        Ok(Self {
            start,
            until: start + Duration::from_secs(options.seconds),
            count: 0,
            latencies: hdrhistogram::Histogram::new_with_bounds(1, 10_000_000_000, 3)?,
        })
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }

    fn count(&mut self, now: Instant, count: usize) {
        if now >= self.start {
            self.count += count;
        }
    }

    fn record(&mut self, now: Instant, latency: Duration) {
        if now >= self.start {
            self.count += 1;
            self.latencies.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
        }
    }

    #[expect(clippy::print_stdout, reason = "the program's output")]
    #[expect(clippy::cast_precision_loss, reason = "a count of seconds' work")]
    fn print(&self, bytes: usize) -> Result<()> {
        let seconds = self.start.elapsed().as_secs_f64();
        let rate = self.count as f64 / seconds;
        let percentiles: serde_json::Map<_, _> =
            [1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.99]
                .into_iter()
                .filter(|_| !self.latencies.is_empty())
                .map(|percent: f64| {
                    let value = self.latencies.value_at_quantile(percent / 100.0);
                    (percent.to_string(), value.into())
                })
                .collect();
        let report = serde_json::json!({
            "read": {
                "iops": rate,
                "bytes_per_second": rate * bytes as f64,
                "latency_ns": {
                    "mean": self.latencies.mean(),
                    "max": self.latencies.max(),
                    "percentiles": percentiles,
                },
            },
            "write": {"iops": 0, "bytes_per_second": 0},
        });
        println!("{report}");
        Ok(())
    }
}

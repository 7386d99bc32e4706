//! Datagrams of strangers at a target that works: ignored, counted, harmless.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lariat_tests::process::{
    Backend, Scratch, Target, TargetConfig, bounded, connect, free_address, keep_busy,
};
use lariat_wire::rocev2::icrc::{Flow, FlowSeed};
use lariat_wire::rocev2::{
    Bth, Deth, Headers, MadHeader, Opcode, Psn, QKey, Qpn, Reth, Rkey, UDP_PORT,
};

use crate::LIMIT;

/// What is sent of each kind.
const EACH: u64 = 1500;

/// A stranger with a socket, and numbers by chance that are the same each time.
struct Stranger {
    socket: UdpSocket,
    flow: FlowSeed,
    state: u64,
    sent: u64,
}

impl Stranger {
    fn new(target: IpAddr) -> Result<Self> {
        let socket = UdpSocket::bind((free_address(), 0))?;
        let to = SocketAddr::new(target, UDP_PORT);
        socket.connect(to)?;
        let flow = Flow::new(socket.local_addr()?, to).context("both are IPv4")?;
        Ok(Self { socket, flow: FlowSeed::new(&flow), state: 0x5eed, sent: 0 })
    }

    fn next(&mut self) -> u64 {
        self.state =
            self.state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        self.state >> 20
    }

    fn below(&mut self, limit: usize) -> Result<usize> {
        Ok(usize::try_from(self.next() % limit as u64)?)
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        std::iter::repeat_with(|| self.next().to_le_bytes()[0]).take(count).collect()
    }

    fn send(&mut self, datagram: &[u8]) -> Result<()> {
        self.socket.send(datagram)?;
        self.sent += 1;
        // So that the kernel loses none for want of room.
        if self.sent.is_multiple_of(16) {
            thread::sleep(Duration::from_micros(300));
        }
        Ok(())
    }

    fn packet(&self, headers: &Headers, payload: &[u8]) -> Result<Vec<u8>> {
        let mut out = vec![0; 4500];
        let length = headers.assemble(payload, &self.flow, 0, &mut out)?;
        out.truncate(length);
        Ok(out)
    }

    /// A SEND, WRITE or READ request with a right ICRC, to whatever queue pair.
    fn request(&mut self, payload: &[u8]) -> Result<Vec<u8>> {
        let opcodes = [Opcode::SendOnly, Opcode::WriteOnly, Opcode::ReadRequest];
        let opcode = opcodes[self.below(3)?];
        // Not 1, the connection manager's.
        let number = u32::try_from(2 + self.next() % 0xff_fff0)?;
        let psn = u32::try_from(self.next() & 0xff_ffff)?;
        let mut headers = Headers::new(Bth::new(opcode, Qpn::new(number), Psn::new(psn)));
        if opcode.has_reth() {
            let virtual_address = self.next();
            let rkey = Rkey(u32::try_from(self.next() & 0xffff_ffff)?);
            headers.ext.reth = Some(Reth { virtual_address, rkey, length: 4096 });
        }
        let payload = if opcode.has_payload() { payload } else { &[] };
        self.packet(&headers, payload)
    }

    fn mad(&self, body: &[u8]) -> Result<Vec<u8>> {
        let bth = Bth::new(Opcode::UdSendOnly, Qpn::new(1), Psn::new(0));
        let mut headers = Headers::new(bth);
        headers.ext.deth = Some(Deth { qkey: QKey(0x8001_0000), source_qp: Qpn::new(1) });
        self.packet(&headers, body)
    }
}

#[test]
fn garbage_is_ignored_and_counted() -> Result<()> {
    bounded(LIMIT, || {
        let scratch = Scratch::new()?;
        let file = scratch.disk("disk", 16 << 20)?;
        let config = TargetConfig::new().disk(Backend::File(file), 4096).set("reactors", 2);
        let target = Target::start(&scratch, &config)?;
        let controller = connect(&target, 1)?;
        let geometry = controller.only_namespace()?.geometry();
        let mut queue = controller.io_queue()?;
        let mut stranger = Stranger::new(target.ip())?;
        let stop = std::sync::atomic::AtomicBool::new(false);
        thread::scope(|scope| {
            let busy = scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    keep_busy(&mut queue, geometry, 0, 16, 16)?;
                }
                anyhow::Ok(())
            });
            let thrown = throw(&mut stranger);
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            busy.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
            thrown
        })?;
        ensure!(controller.lost().is_none(), "{:?}", controller.lost());
        // Newcomers are still welcome.
        connect(&target, 2)?.only_namespace()?.read_at(&mut vec![0; 4096], 0)?;
        drop((queue, controller));
        let log = target.stop()?;
        for counter in ["malformed", "bad_icrc", "unknown_queue_pair"] {
            let count = Target::counter(&log, counter)?;
            ensure!(count >= EACH / 2, "{counter}: {count} of about {EACH}");
        }
        Ok(())
    })
}

fn throw(stranger: &mut Stranger) -> Result<()> {
    for _ in 0..EACH {
        let length = stranger.below(5000)?;
        let random = stranger.bytes(length);
        stranger.send(&random)?;

        let payload = stranger.bytes(256);
        let good = stranger.request(&payload)?;
        let cut = stranger.below(good.len())?;
        stranger.send(&good[..cut.min(15)])?;
        stranger.send(&good[..cut])?;

        let mut wrong = good.clone();
        let at = stranger.below(wrong.len())?;
        // Byte 4 of the BTH is not covered, and one bit cannot be explained by another IPv4
        // identification.
        wrong[if at == 4 { 5 } else { at }] ^= 0x10;
        stranger.send(&wrong)?;

        stranger.send(&good)?;

        // To the connection manager: noise; a known message with noise in it; one too short.
        let noise = stranger.bytes(256);
        let packet = stranger.mad(&noise)?;
        stranger.send(&packet)?;
        // ConnectRequest (0x10) and what follows it, up to DisconnectReply (0x16).
        let attribute = u16::try_from(0x10 + stranger.next() % 7)?;
        let mut known = noise;
        let header = MadHeader::cm(attribute, stranger.next()).to_bytes();
        known[..header.len()].copy_from_slice(&header);
        let packet = stranger.mad(&known)?;
        stranger.send(&packet)?;
        let packet = stranger.mad(&known[..100])?;
        stranger.send(&packet)?;
    }
    Ok(())
}

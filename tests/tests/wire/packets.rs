//! A captured exchange, packet by packet: cut where the kernel would cut it (UDP_SEGMENT), each ICRC
//! computed from the bytes as captured, by nothing of the code under test.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::{Context, Result, bail, ensure};

const ETHERNET: usize = 14;
const UDP: usize = 8;
/// BTH and ICRC: no packet is shorter.
const SHORTEST: usize = 16;

/// One packet, from its Ethernet header on.
struct Captured {
    /// Header of the capture's record: seconds, microseconds.
    time: [u8; 8],
    bytes: Vec<u8>,
}

/// All packets.
pub(crate) struct Packets {
    header: [u8; 24],
    packets: Vec<Captured>,
    cut: bool,
}

fn word(bytes: &[u8], at: usize) -> Result<u32> {
    let word = bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
    Ok(u32::from_le_bytes(word.context("the capture is cut off")?))
}

/// Length of the IP header, 20 or 40.
fn ip_header(frame: &[u8]) -> Result<usize> {
    match frame.get(12..15) {
        Some([0x08, 0x00, 0x45]) => Ok(20),
        Some([0x86, 0xdd, 0x60..=0x6f]) => Ok(40),
        other => bail!("neither IPv4 without options nor IPv6: {other:x?}"),
    }
}

fn source(frame: &[u8]) -> Result<SocketAddr> {
    let ip = frame.get(ETHERNET..).context("no IP header")?;
    let length = ip_header(frame)?;
    let port = u16::from_be_bytes(ip.get(length..length + 2).context("short")?.try_into()?);
    if length == 20 {
        let octets: [u8; 4] = ip.get(12..16).context("short")?.try_into()?;
        Ok(SocketAddr::new(Ipv4Addr::from(octets).into(), port))
    } else {
        let octets: [u8; 16] = ip.get(8..24).context("short")?.try_into()?;
        Ok(SocketAddr::new(Ipv6Addr::from(octets).into(), port))
    }
}

/// The headers of segment `index` of a batch, `payload` bytes long (IPv4's identification counts on).
fn segment_headers(headers: &[u8], index: u16, payload: usize) -> Result<Vec<u8>> {
    let mut out = headers.to_vec();
    let ip = ip_header(headers)?;
    let udp_length = u16::try_from(payload + UDP)?;
    let mut put = |at: usize, value: u16| {
        out[at..at + 2].copy_from_slice(&value.to_be_bytes());
    };
    put(ETHERNET + ip + 4, udp_length);
    if ip == 20 {
        put(ETHERNET + 2, udp_length + 20);
        let first = u16::from_be_bytes([headers[ETHERNET + 4], headers[ETHERNET + 5]]);
        put(ETHERNET + 4, first.wrapping_add(index));
    } else {
        put(ETHERNET + 4, udp_length);
    }
    Ok(out)
}

/// The ICRC of a packet: of eight bytes of ones and all from the IP header on, with ones for what
/// routers may change (InfiniBand Architecture 1.4, A17.3.3).
fn icrc(headers: &[u8], payload: &[u8]) -> Result<[u8; 4]> {
    let ip = ip_header(headers)?;
    let mut masked = headers.get(ETHERNET..).context("no IP header")?.to_vec();
    let changeable: &[usize] = if ip == 20 { &[1, 8, 10, 11] } else { &[1, 2, 3, 7] };
    for at in changeable {
        masked[*at] = 0xff;
    }
    if ip == 40 {
        masked[0] |= 0x0f;
    }
    masked[ip + 6..ip + 8].fill(0xff);
    let covered = payload.len().checked_sub(4).context("too short for an ICRC")?;
    let mut crc = crc32fast::Hasher::new();
    crc.update(&[0xff; 8]);
    crc.update(&masked);
    crc.update(payload.get(..4).context("too short for a BTH")?);
    crc.update(&[0xff]);
    crc.update(payload.get(5..covered).context("too short for a BTH")?);
    Ok(crc.finalize().to_le_bytes())
}

fn is_right(headers: &[u8], index: u16, payload: &[u8]) -> Result<bool> {
    let headers = segment_headers(headers, index, payload.len())?;
    Ok(payload.ends_with(&icrc(&headers, payload)?))
}

/// The size of the segments of a datagram: the first packet's, which its ICRC tells.
fn segment_bytes(headers: &[u8], payload: &[u8]) -> Result<Option<usize>> {
    if is_right(headers, 0, payload)? {
        return Ok(Some(payload.len()));
    }
    // Packets are whole words long.
    for bytes in (SHORTEST..payload.len()).step_by(4) {
        if is_right(headers, 0, &payload[..bytes])? {
            return Ok(Some(bytes));
        }
    }
    Ok(None)
}

impl Packets {
    /// Reads a capture; every ICRC has to be right.
    pub(crate) fn read(capture: &[u8]) -> Result<Self> {
        let header: [u8; 24] = capture.get(..24).context("no capture")?.try_into()?;
        ensure!(word(capture, 0)? == 0xa1b2_c3d4, "not a capture of this machine's byte order");
        ensure!(word(capture, 20)? == 1, "not a capture of Ethernet frames");
        let mut all = Self { header, packets: Vec::new(), cut: false };
        let mut at = 24;
        let mut record = 0;
        while at < capture.len() {
            record += 1;
            let kept = usize::try_from(word(capture, at + 8)?)?;
            ensure!(word(capture, at + 12)? == word(capture, at + 8)?, "{record}: cut short");
            let time = capture.get(at..at + 8).context("cut off")?.try_into()?;
            let frame = capture.get(at + 16..at + 16 + kept).context("cut off")?;
            at += 16 + kept;
            all.add(time, frame).with_context(|| format!("captured packet {record}"))?;
        }
        Ok(all)
    }

    fn add(&mut self, time: [u8; 8], frame: &[u8]) -> Result<()> {
        let (headers, payload) = frame
            .split_at_checked(ETHERNET + ip_header(frame)? + UDP)
            .context("shorter than its headers")?;
        let segment = segment_bytes(headers, payload)?.context("the ICRC is wrong")?;
        self.cut |= segment < payload.len();
        for (index, piece) in (0..).zip(payload.chunks(segment)) {
            ensure!(is_right(headers, index, piece)?, "the ICRC of segment {index} is wrong");
            let mut bytes = segment_headers(headers, index, piece.len())?;
            bytes.extend_from_slice(piece);
            self.packets.push(Captured { time, bytes });
        }
        Ok(())
    }

    pub(crate) fn count(&self) -> usize {
        self.packets.len()
    }

    pub(crate) fn count_from(&self, address: SocketAddr) -> u64 {
        let from = |packet: &&Captured| source(&packet.bytes).is_ok_and(|from| from == address);
        self.packets.iter().filter(from).count() as u64
    }

    /// Whether any datagram held more than one packet.
    pub(crate) fn was_cut(&self) -> bool {
        self.cut
    }

    /// As a capture again.
    pub(crate) fn to_pcap(&self) -> Result<Vec<u8>> {
        let mut out = self.header.to_vec();
        for Captured { time, bytes } in &self.packets {
            let length = u32::try_from(bytes.len())?.to_le_bytes();
            out.extend_from_slice(time);
            out.extend_from_slice(&length);
            out.extend_from_slice(&length);
            out.extend_from_slice(bytes);
        }
        Ok(out)
    }
}

#[test]
fn a_flipped_bit_is_seen() -> Result<()> {
    let mut headers = vec![0; ETHERNET];
    headers[12] = 8;
    headers.extend([0x45, 0, 0, 48, 0, 0, 0x40, 0, 64, 17, 0, 0, 127, 1, 2, 3, 127, 4, 5, 6]);
    headers.extend([0x12, 0xb7, 0x12, 0xb7, 0, 28, 0, 0]);
    let mut payload: Vec<u8> = (0..16).collect();
    let mut crc = icrc(&headers, &[&payload[..], &[0; 4]].concat())?;
    payload.extend(crc);
    assert!(is_right(&headers, 0, &payload)?);
    assert!(!is_right(&headers, 1, &payload)?);
    payload[7] ^= 1;
    assert!(!is_right(&headers, 0, &payload)?);
    crc[0] ^= 1;
    payload[7] ^= 1;
    payload.truncate(16);
    payload.extend(crc);
    assert!(!is_right(&headers, 0, &payload)?);
    Ok(())
}

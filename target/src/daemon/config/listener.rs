//! The tables `[[listener]]`. Called by `config`.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::io::{self, ErrorKind};
use std::net::UdpSocket;

use super::error::{Fault, Faults};
use super::reader::Section;
use super::{FabricChoice, Listener};

/// Reads all of them; those with faults are left out.
pub(super) fn read_all(sections: Vec<Section<'_>>, faults: &mut Faults) -> Vec<Listener> {
    let mut listeners: Vec<Listener> = Vec::new();
    for section in sections {
        let (origin, path) = (section.origin(), section.path().to_owned());
        let Some(listener) = faults.keep(read(section)) else { continue };
        if listeners.iter().any(|other| other.address == listener.address) {
            let wrong = format_args!("{} is listened on twice", listener.address);
            faults.add(origin.fault(path, wrong, "remove one, or give it another port"));
        } else {
            listeners.push(listener);
        }
    }
    listeners
}

fn read(mut section: Section<'_>) -> Result<Listener, Fault> {
    let instead = "write an IPv4 or IPv6 address of this machine: address = \"127.0.0.1\"";
    let text = section.text("address", instead)?;
    let text = section.required("address", text, instead)?;
    let address: IpAddr = text.parse().map_err(|_| match address_and_port(&text) {
        Some((address, Some(port))) => section.wrong(
            "address",
            format_args!("{text:?} is an address and a port"),
            format_args!(
                "the port (hosts' trsvcid) has a key of its own: address = \"{address}\" and \
                 port = {port}"
            ),
        ),
        Some((address, None)) => section.wrong(
            "address",
            format_args!("{text:?} has brackets"),
            format_args!("write address = \"{address}\""),
        ),
        None => section.wrong("address", format_args!("{text:?} is no IP address"), instead),
    })?;
    // ::ffff:192.0.2.7 is 192.0.2.7.
    let address = address.to_canonical();
    if address.is_unspecified() {
        let wrong = format_args!("{address} stands for all addresses, and hosts need one");
        return Err(section.wrong("address", wrong, instead));
    }
    if address.is_multicast() || is_broadcast(address) {
        let wrong = format_args!("{address} stands for several machines, and hosts need one");
        return Err(section.wrong("address", wrong, instead));
    }
    let port = section.number("port", 1..=u16::MAX)?.unwrap_or(4420);
    let instead = if cfg!(feature = "ib") {
        "write fabric = \"auto\", fabric = \"ib\" or fabric = \"soft\""
    } else {
        "write fabric = \"auto\" or fabric = \"soft\""
    };
    let fabric = match section.text("fabric", instead)?.as_deref() {
        None | Some("auto") => FabricChoice::Auto,
        Some("soft") => FabricChoice::Soft,
        Some("ib") if cfg!(feature = "ib") => FabricChoice::Ib,
        Some("ib") => {
            let wrong = "\"ib\" (RDMA devices through libibverbs) is not built into this lariatd";
            return Err(section.wrong("fabric", wrong, instead));
        }
        Some(other) => {
            return Err(section.wrong("fabric", format_args!("{other:?} is none"), instead));
        }
    };
    section.finish()?;
    Ok(Listener { address: SocketAddr::new(address, port), fabric })
}

/// An address as it is written elsewhere: with a port behind it, or in brackets.
/// None if that could not be listened at.
fn address_and_port(text: &str) -> Option<(IpAddr, Option<u16>)> {
    let found = match text.parse::<SocketAddr>() {
        Ok(both) => (both.ip(), Some(both.port())),
        Err(_) => (text.strip_prefix('[')?.strip_suffix(']')?.parse().ok()?, None),
    };
    (!found.0.is_unspecified() && found.1 != Some(0)).then_some(found)
}

/// Whether all machines of a network are meant: the kernel knows the networks that this one is in. It takes
/// such an address for a socket's own, but sends to it only what says that it is meant for all.
fn is_broadcast(address: IpAddr) -> bool {
    let IpAddr::V4(address) = address else { return false };
    let connect = |to_all: bool| -> io::Result<()> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.set_broadcast(to_all)?;
        // Nothing is sent.
        socket.connect((address, 9))
    };
    let refused = |result: io::Result<()>| {
        result.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
    };
    // A route may forbid an address too (`prohibit`), whatever is meant.
    address.is_broadcast() || (refused(connect(false)) && connect(true).is_ok())
}

//! Whether a device serves an address. Called by `provider` to choose, and by users who want to
//! know the device before they open the fabric.

use core::net::{IpAddr, SocketAddr};
use std::net::UdpSocket;
use std::sync::Arc;

use rdma_sys::ibv_port_state;

use super::cm::{CmId, EventChannel};
use super::{OpenError, device, inventory};
use crate::provider::Network;

/// A device that serves an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cover {
    /// Its name, `mlx5_0`, say.
    pub device: String,
    /// The port.
    pub port: u8,
    /// What it speaks.
    pub network: Network,
}

/// The device that serves a local address.
///
/// # Errors
/// Why none does, in words.
pub fn local(ip: IpAddr) -> Result<Cover, String> {
    local_scoped(SocketAddr::new(ip, 0))
}

/// The device that serves a local address; the port is not looked at, the scope of IPv6 is.
fn local_scoped(mut address: SocketAddr) -> Result<Cover, String> {
    let ip = address.ip();
    if ip.is_loopback() {
        return Err("RDMA devices do not serve loopback addresses, fabric soft does".to_owned());
    }
    address.set_port(0);
    let channel = EventChannel::open().map_err(|error| OpenError::explain(error).to_string())?;
    let channel = Arc::new(channel);
    let mut id = CmId::new(&channel).map_err(|error| error.to_string())?;
    if ip.is_unspecified() {
        return any();
    }
    let nobody = || format!("no RDMA device has {ip}: {}", inventory::describe());
    id.bind(address).map_err(|error| match error.raw_os_error() {
        Some(libc::ENODEV | libc::EADDRNOTAVAIL) => nobody(),
        _ => format!("{ip} cannot be used: {error}"),
    })?;
    let Some(context) = id.context() else { return Err(nobody()) };
    let port = id.port();
    // SAFETY: the identifier keeps the context alive.
    let (device, iwarp, state) = unsafe {
        let state = device::query_port(context, port);
        (device::name_of(context), device::is_iwarp(context), state)
    };
    let network = if iwarp { Network::Iwarp } else { inventory::network(&device, port) };
    match state {
        Ok((ibv_port_state::IBV_PORT_ACTIVE, _)) => Ok(Cover { device, port, network }),
        Ok(_) => Err(format!(
            "port {port} of {device} is not active: bring its link up ({})",
            inventory::describe()
        )),
        Err(error) => Err(format!("port {port} of {device} cannot be asked: {error}")),
    }
}

/// For the wildcard address: some port that is active.
fn any() -> Result<Cover, String> {
    let active = inventory::ports().into_iter().find(|port| port.state == "ACTIVE");
    let port = active
        .ok_or_else(|| format!("no port of an RDMA device is active: {}", inventory::describe()))?;
    let network = inventory::network(&port.device, port.number);
    Ok(Cover { device: port.device, port: port.number, network })
}

/// The device that a peer is reached through: that of the local address that the routes choose.
///
/// # Errors
/// Why there is none, in words.
pub fn remote(peer: SocketAddr) -> Result<Cover, String> {
    let any: SocketAddr = if peer.is_ipv4() {
        (core::net::Ipv4Addr::UNSPECIFIED, 0).into()
    } else {
        (core::net::Ipv6Addr::UNSPECIFIED, 0).into()
    };
    // Connecting a UDP socket sends nothing; it only asks the routes.
    let source = UdpSocket::bind(any).and_then(|socket| {
        socket.connect(peer)?;
        socket.local_addr()
    });
    let source = source.map_err(|error| format!("there is no route to {}: {error}", peer.ip()))?;
    local_scoped(source)
}

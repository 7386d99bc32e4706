//! A device as one fabric uses it: what it can do, its completion queues. Called by `fabric`.

use core::ffi::CStr;
use core::net::SocketAddr;
use core::ptr::NonNull;
use std::io;
use std::sync::Arc;

use lariat_roce::verbs::DeviceLimits;
use rdma_sys::{ibv_context, ibv_device_cap_flags, ibv_port_state, ibv_transport_type};

use super::cm::{CmId, EventChannel, IdKey};
use super::cq::{CompChannel, Cqs};
use super::hold::Hold;
use super::news::NewsChannel;

/// Outstanding requests of a queue at most: their numbers have 16 bits, and a completion queue has
/// to hold both queues of a queue pair with room to spare.
const MAX_DEPTH: u32 = 1 << 13;

/// Receives of a shared queue, at most: their numbers have 16 bits.
const MAX_SHARED: u32 = 1 << 15;

/// What a device can do. Read once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Abilities {
    pub(super) max_depth: u32,
    pub(super) max_sge: u32,
    pub(super) max_sge_read: u32,
    pub(super) max_reads_out: u8,
    pub(super) max_reads_in: u8,
    pub(super) max_cqe: u32,
    pub(super) max_regions: u32,
    /// Receives of a shared queue; 0: none.
    pub(super) max_shared: u32,
    pub(super) send_with_invalidate: bool,
    pub(super) iwarp: bool,
}

/// A device, shared by all connections of a fabric that run over it.
///
/// The order of the fields is the order in which they are destroyed.
#[derive(Debug)]
pub(super) struct Device {
    /// Of send queues, and of receive queues: these wake for each message, those only when somebody
    /// waits for the end of what was sent.
    pub(super) send_cqs: Cqs,
    pub(super) receive_cqs: Cqs,
    pub(super) channel: CompChannel,
    pub(super) news: NewsChannel,
    context: NonNull<ibv_context>,
    pub(super) name: String,
    pub(super) abilities: Abilities,
    hold: Hold,
    /// Keeps librdmacm from closing the device as long as this value lives.
    anchor: CmId,
}

// SAFETY: libibverbs may be called from any thread; the context is that of `anchor`.
unsafe impl Send for Device {}

/// A negative or absurd limit is none.
fn limit(value: core::ffi::c_int) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

/// Depths of 255 mean "as many as the device can" to librdmacm.
fn reads(value: core::ffi::c_int) -> u8 {
    u8::try_from(value.clamp(0, 254)).unwrap_or(0)
}

/// The name that libibverbs has for a device.
///
/// # Safety
/// The context is alive.
pub(super) unsafe fn name_of(context: NonNull<ibv_context>) -> String {
    // SAFETY: a live context has a device, and that a name which ends with a zero.
    unsafe {
        let name = rdma_sys::ibv_get_device_name((*context.as_ptr()).device);
        if name.is_null() {
            return "?".to_owned();
        }
        CStr::from_ptr(name).to_string_lossy().into_owned()
    }
}

/// Whether it is an iWARP device.
///
/// # Safety
/// The context is alive.
pub(super) unsafe fn is_iwarp(context: NonNull<ibv_context>) -> bool {
    // SAFETY: a live context has a device.
    let transport = unsafe { (*(*context.as_ptr()).device).transport_type };
    transport == ibv_transport_type::IBV_TRANSPORT_IWARP
}

/// State and largest message of a port.
///
/// # Errors
/// The device's word.
///
/// # Safety
/// The context is alive.
pub(super) unsafe fn query_port(
    context: NonNull<ibv_context>,
    port: u8,
) -> io::Result<(ibv_port_state::Type, u32)> {
    // SAFETY: a structure of integers, for which zero is a value.
    let mut attributes: rdma_sys::ibv_port_attr = unsafe { core::mem::zeroed() };
    // SAFETY: a live context, and a place for the answer.
    match unsafe { rdma_sys::___ibv_query_port(context.as_ptr(), port, &mut attributes) } {
        0 => Ok((attributes.state, attributes.max_msg_sz)),
        errno => Err(io::Error::from_raw_os_error(errno.abs())),
    }
}

impl Device {
    /// Opens the device that `address` belongs to, on which some identifier is bound already.
    ///
    /// # Errors
    /// The device's word.
    pub(super) fn open(channel: &Arc<EventChannel>, address: SocketAddr) -> io::Result<Self> {
        let mut anchor = CmId::new(channel)?;
        let mut address = address;
        address.set_port(0);
        anchor.bind(address)?;
        let context = anchor.context().ok_or(io::ErrorKind::NotFound)?;
        // SAFETY: a structure of integers, for which zero is a value.
        let mut attributes: rdma_sys::ibv_device_attr = unsafe { core::mem::zeroed() };
        // SAFETY: a live context, and a place for the answer.
        match unsafe { rdma_sys::ibv_query_device(context.as_ptr(), &mut attributes) } {
            0 => {}
            errno => return Err(io::Error::from_raw_os_error(errno.abs())),
        }
        // SAFETY: the anchor keeps the context alive.
        let iwarp = unsafe { is_iwarp(context) };
        let management = ibv_device_cap_flags::IBV_DEVICE_MEM_MGT_EXTENSIONS.0;
        let abilities = Abilities {
            max_depth: limit(attributes.max_qp_wr)
                .min(limit(attributes.max_cqe) / 4)
                .min(MAX_DEPTH),
            max_sge: limit(attributes.max_sge),
            max_sge_read: limit(attributes.max_sge_rd),
            max_reads_out: reads(attributes.max_qp_init_rd_atom),
            max_reads_in: reads(attributes.max_qp_rd_atom),
            max_cqe: limit(attributes.max_cqe),
            max_regions: limit(attributes.max_mr),
            // On iWARP an empty queue ends the connection; here the peer has to try again.
            max_shared: if iwarp || attributes.max_srq <= 0 || attributes.max_srq_sge < 1 {
                0
            } else {
                limit(attributes.max_srq_wr).min(limit(attributes.max_cqe) / 2).min(MAX_SHARED)
            },
            send_with_invalidate: attributes.device_cap_flags & management != 0,
            iwarp,
        };
        // SAFETY: the anchor keeps the context alive; it is dropped last.
        let (channel, news, hold, name) = unsafe {
            (
                CompChannel::create(context)?,
                NewsChannel::new(context)?,
                Hold::new(context),
                name_of(context),
            )
        };
        tracing::debug!(device = name, ?abilities, "RDMA device opened");
        let (send_cqs, receive_cqs) = (Cqs::default(), Cqs::default());
        Ok(Self { send_cqs, receive_cqs, channel, news, context, name, abilities, hold, anchor })
    }

    pub(super) fn context(&self) -> NonNull<ibv_context> {
        self.context
    }

    /// It is gone: whoever of this process drops it last closes it.
    pub(super) fn removed(&self) {
        self.hold.removed();
    }

    pub(super) fn anchor(&self) -> IdKey {
        self.anchor.key()
    }

    /// The limits of connections over `port`.
    pub(super) fn limits(&self, port: u8, remote_invalidate: bool) -> DeviceLimits {
        // SAFETY: the anchor keeps the context alive.
        let largest = unsafe { query_port(self.context, port) }.map_or(1 << 30, |(_, size)| size);
        DeviceLimits {
            max_queue_depth: self.abilities.max_depth,
            max_sge: self.abilities.max_sge,
            max_initiator_depth: self.abilities.max_reads_out,
            max_responder_resources: self.abilities.max_reads_in,
            send_with_invalidate: self.abilities.send_with_invalidate && remote_invalidate,
            read_sink_needs_remote_write: self.abilities.iwarp,
            acknowledges: !self.abilities.iwarp,
            max_message_bytes: largest.max(1 << 16),
            max_shared_receives: self.abilities.max_shared,
        }
    }

    /// Promises entries of a completion queue of send queues. Says which.
    pub(super) fn promise_sends(&mut self, entries: u32) -> io::Result<usize> {
        let Self { send_cqs, context, channel, abilities, .. } = self;
        // SAFETY: the anchor keeps the context alive; the channel is destroyed after the queues.
        unsafe { send_cqs.promise(*context, channel, entries, abilities.max_cqe) }
    }

    /// The same of receive queues.
    pub(super) fn promise_receives(&mut self, entries: u32) -> io::Result<usize> {
        let Self { receive_cqs, context, channel, abilities, .. } = self;
        // SAFETY: as above.
        unsafe { receive_cqs.promise(*context, channel, entries, abilities.max_cqe) }
    }

    /// Takes back a promise of [`Self::promise_sends`].
    pub(super) fn unpromise_sends(&mut self, place: usize, entries: u32) {
        if let Some(cq) = self.send_cqs.get_mut(place) {
            cq.unpromise(entries);
        }
    }

    /// Asks for a wake-up with the next message, and if somebody waits for it with the next end of
    /// what was sent. Look once more afterwards.
    pub(super) fn arm(&mut self, sends_too: bool) {
        // Each look into the channel is a system call.
        while self.send_cqs.may_have_fired() || self.receive_cqs.may_have_fired() {
            let Some(fired) = self.channel.next() else { break };
            self.send_cqs.fired(fired);
            self.receive_cqs.fired(fired);
        }
        let sends = if sends_too { self.send_cqs.arm() } else { Ok(()) };
        if let Err(error) = sends.and_then(|()| self.receive_cqs.arm()) {
            tracing::error!(device = self.name, %error, "no wake-up can be asked for");
        }
    }
}

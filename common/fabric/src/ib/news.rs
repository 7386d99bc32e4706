//! What devices say unasked: ports that go down, queue pairs that break (`ibv_get_async_event`). A
//! safe wrapper; called by `device`.

use core::mem::MaybeUninit;
use core::ptr::NonNull;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rdma_sys::{ibv_async_event, ibv_context, ibv_event_type as kind};

use super::cm::set_nonblocking;
use super::qp::QpKey;

/// One piece of news.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// The device works no more.
    DeviceFatal,
    /// A port carries traffic, or does not.
    Port { number: i32, up: bool },
    /// A message came before the peer's last word of the connection's setup (RTU): that got lost, or
    /// comes late.
    Established(QpKey),
    /// The device gave a queue pair up.
    QueuePairLost(QpKey),
    /// A queue pair that is broken takes no more receives of its shared queue.
    TookLast(QpKey),
    /// A completion queue is lost, and all its queue pairs with it.
    CompletionsLost,
    /// Nothing that we use.
    Other(u32),
}

/// Sorts an event; `element` is what it names.
fn sort(event: u32, element: usize, port: i32) -> News {
    const fn is(event: u32, kind: kind) -> bool {
        event == kind as u32
    }
    match event {
        _ if is(event, kind::IBV_EVENT_DEVICE_FATAL) => News::DeviceFatal,
        _ if is(event, kind::IBV_EVENT_PORT_ACTIVE) => News::Port { number: port, up: true },
        _ if is(event, kind::IBV_EVENT_PORT_ERR) => News::Port { number: port, up: false },
        _ if is(event, kind::IBV_EVENT_COMM_EST) => News::Established(QpKey::of(element)),
        _ if is(event, kind::IBV_EVENT_QP_FATAL)
            || is(event, kind::IBV_EVENT_QP_REQ_ERR)
            || is(event, kind::IBV_EVENT_QP_ACCESS_ERR) =>
        {
            News::QueuePairLost(QpKey::of(element))
        }
        _ if is(event, kind::IBV_EVENT_QP_LAST_WQE_REACHED) => News::TookLast(QpKey::of(element)),
        _ if is(event, kind::IBV_EVENT_CQ_ERR) => News::CompletionsLost,
        _ => News::Other(event),
    }
}

/// Where a device's news come. One for each process and device: all fabrics of the process read it.
#[derive(Debug)]
pub(super) struct NewsChannel {
    context: NonNull<ibv_context>,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for NewsChannel {}

impl NewsChannel {
    /// # Safety
    /// The context lives longer than the channel.
    pub(super) unsafe fn new(context: NonNull<ibv_context>) -> io::Result<Self> {
        let channel = Self { context };
        set_nonblocking(channel.as_fd())?;
        Ok(channel)
    }

    /// Takes one event, without waiting, and acknowledges it.
    pub(super) fn next(&self) -> Option<News> {
        let mut event = MaybeUninit::<ibv_async_event>::zeroed();
        let raw = event.as_mut_ptr();
        // SAFETY: a live context, and a place for the answer.
        if unsafe { rdma_sys::ibv_get_async_event(self.context.as_ptr(), raw) } != 0 {
            return None;
        }
        // SAFETY: the fields lie in `event`, which was zeroed and then written to. The kind is read
        // as the number that it is, since a device may know kinds that the binding does not.
        let (number, element, port) = unsafe {
            let element = &raw const (*raw).element;
            (
                (&raw const (*raw).event_type).cast::<u32>().read(),
                element.cast::<usize>().read(),
                element.cast::<i32>().read(),
            )
        };
        // SAFETY: the event that was just taken, acknowledged once.
        unsafe { rdma_sys::ibv_ack_async_event(raw) };
        Some(sort(number, element, port))
    }
}

impl AsFd for NewsChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor lives as long as the context.
        unsafe { BorrowedFd::borrow_raw((*self.context.as_ptr()).async_fd) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_is_sorted_or_kept() {
        assert_eq!(sort(8, 0, 0), News::DeviceFatal);
        assert_eq!(sort(9, 0, 2), News::Port { number: 2, up: true });
        assert_eq!(sort(10, 0, 1), News::Port { number: 1, up: false });
        assert_eq!(sort(4, 77, 0), News::Established(QpKey::of(77)));
        assert_eq!(sort(16, 7, 0), News::TookLast(QpKey::of(7)));
        for lost in [1, 2, 3] {
            assert_eq!(sort(lost, 5, 0), News::QueuePairLost(QpKey::of(5)));
        }
        assert_eq!(sort(0, 5, 0), News::CompletionsLost);
        for other in [5, 6, 7, 11, 19, 20, u32::MAX] {
            assert_eq!(sort(other, 0, 0), News::Other(other));
        }
    }
}

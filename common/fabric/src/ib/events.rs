//! What connection events do, and how connections end. Called by `fabric` when it polls.

use core::net::{Ipv4Addr, SocketAddr};
use core::time::Duration;
use std::os::fd::AsFd;

use lariat_roce::time::Timestamp;
use lariat_roce::verbs::{CmEvent, ConnId, ConnectFailure, DisconnectReason, PrivateData};
use rdma_sys::rdma_cm_event_type as kind;

use super::cm::{Event, EventChannel};
use super::conn::{Conn, State, handle};
use super::fabric::IbFabric;
use super::group::{Parcel, Request, Turn};
use super::inventory;
use super::news::News;
use super::verbs::CM_INTERVAL;

/// How long flushing and the peer's good-bye may take.
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Between attempts to listen again where the device went away.
const REVIVAL_INTERVAL: Duration = Duration::from_secs(1);
/// How long the kernel may take at a time to resolve an address. Where it does not know the neighbour
/// yet it was seen to look for the answer at the end of its time alone, so that a first connection
/// took all of it.
pub(super) const RESOLVE_INTERVAL: Duration = Duration::from_millis(200);
/// Events of identifiers that are not handed over yet, at most.
const MAX_EARLY: usize = 4096;
/// Reasons of a refusal (IBTA 12.6.7.2).
const REJECT_NO_SERVICE: u16 = 8;
const REJECT_CONSUMER: u16 = 28;

/// Whose event it is.
pub(super) fn conn_of(event: &CmEvent) -> ConnId {
    match *event {
        CmEvent::Resolved { conn }
        | CmEvent::ConnectRequest { conn, .. }
        | CmEvent::Established { conn, .. }
        | CmEvent::ConnectFailed { conn, .. }
        | CmEvent::Disconnected { conn, .. } => conn,
    }
}

fn no_way() -> String {
    format!("no RDMA device has a way to the peer; {}", inventory::describe())
}

impl IbFabric {
    /// Takes all events that are there, and requests that other members handed over.
    pub(super) fn take_events(&mut self, now: Timestamp) {
        let mut hushed = false;
        while let Some(parcel) = self.member.take() {
            if !hushed {
                self.member.hush();
                hushed = true;
            }
            match parcel {
                Parcel::Request(request) => self.admit(now, *request),
                Parcel::News(news) => {
                    self.on_queue_pair_news(news);
                }
                Parcel::Listener => self.next_revival = now,
            }
        }
        loop {
            match EventChannel::next(&self.member.channel) {
                Ok(Some(event)) => self.on_event(now, event),
                Ok(None) => break,
                Err(error) => {
                    tracing::error!(%error, "connection events cannot be read");
                    break;
                }
            }
        }
    }

    fn on_event(&mut self, now: Timestamp, event: Event) {
        if let Some(listener) = event.listener {
            self.on_request(now, listener, event);
            return;
        }
        if let Some(&slot) = self.by_key.get(&event.id) {
            self.on_conn_event(now, slot, &event);
        } else if let Some(place) = self
            .devices
            .iter()
            .position(|device| matches!(device, Some(device) if device.anchor() == event.id))
        {
            if event.kind == kind::RDMA_CM_EVENT_DEVICE_REMOVAL {
                self.lose_device(place);
            }
        } else if event.kind == kind::RDMA_CM_EVENT_DEVICE_REMOVAL
            && let Some(address) = self.member.lose(event.id)
        {
            tracing::warn!(
                %address,
                "the RDMA device of a listener went away: listening again when a device has the address"
            );
            self.next_revival = now + REVIVAL_INTERVAL;
        } else if event.kind == kind::RDMA_CM_EVENT_ADDR_CHANGE {
            tracing::warn!("a listening address changed");
        } else if self.early.len() < MAX_EARLY {
            self.early.push(event);
        }
    }

    fn on_request(&mut self, now: Timestamp, listener: super::cm::IdKey, event: Event) {
        let Some(id) = event.request else { return };
        let offer = (event.initiator_depth, event.responder_resources);
        let private_data = event.private_data;
        match self.member.turn(listener) {
            Turn::Ours(address) => self.admit(now, Request { id, address, offer, private_data }),
            Turn::Other(member, address) => {
                self.member.hand_over(member, Request { id, address, offer, private_data });
            }
            // Dropping the identifier refuses the peer.
            Turn::Nobody => {}
        }
    }

    fn admit(&mut self, now: Timestamp, request: Request) {
        let Request { id, address, offer, private_data } = request;
        let place = self.listeners.iter().position(|one| *one == Some(address));
        let listener = place.and_then(|place| u32::try_from(place).ok());
        let Some(listener) = listener.map(lariat_roce::verbs::ListenerId) else { return };
        let nowhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let peer = id.peer_address().unwrap_or(nowhere);
        let local = id.local_address().unwrap_or(nowhere);
        let key = id.key();
        let conn = match self.insert(id, State::Requested { offer }) {
            Ok(conn) => conn,
            Err(error) => {
                tracing::warn!(%peer, %error, "connection refused");
                return;
            }
        };
        let Some(&slot) = self.by_key.get(&key) else { return };
        if let Err(error) = self.attach(slot) {
            tracing::warn!(%peer, %error, "connection refused: its device cannot be used");
            crate::fabric::Fabric::destroy(self, now, conn);
            return;
        }
        self.outbox.push(CmEvent::ConnectRequest {
            conn,
            listener,
            peer,
            local,
            responder_resources: offer.0,
            initiator_depth: offer.1,
            private_data,
        });
        // What came for it while it was on its way here.
        let mut waiting = 0;
        while let Some(place) = self.early.iter().skip(waiting).position(|event| event.id == key) {
            waiting += place;
            let event = self.early.remove(waiting);
            self.on_conn_event(now, slot, &event);
        }
    }

    fn on_conn_event(&mut self, now: Timestamp, slot: usize, event: &Event) {
        match event.kind {
            kind::RDMA_CM_EVENT_ADDR_RESOLVED => self.on_address(now, slot),
            kind::RDMA_CM_EVENT_ROUTE_RESOLVED => self.on_route(slot),
            kind::RDMA_CM_EVENT_ADDR_ERROR
            | kind::RDMA_CM_EVENT_ROUTE_ERROR
            | kind::RDMA_CM_EVENT_CONNECT_ERROR
            | kind::RDMA_CM_EVENT_UNREACHABLE => {
                let errno = event.status.saturating_neg();
                self.fail(now, slot, errno);
            }
            kind::RDMA_CM_EVENT_REJECTED => self.on_rejected(slot, event),
            kind::RDMA_CM_EVENT_ESTABLISHED => self.on_established(slot, event),
            kind::RDMA_CM_EVENT_DISCONNECTED => self.on_disconnected(now, slot),
            kind::RDMA_CM_EVENT_DEVICE_REMOVAL => {
                match self.conns.get(slot).and_then(|conn| conn.device) {
                    Some(place) => self.lose_device(place),
                    None => self.fail(now, slot, libc::ENODEV),
                }
            }
            kind::RDMA_CM_EVENT_TIMEWAIT_EXIT => {}
            other => tracing::debug!(event = other, status = event.status, "connection event"),
        }
    }

    /// Listens again where a device has come back.
    pub(super) fn revive_listeners(&mut self, now: Timestamp) {
        self.next_revival = now + REVIVAL_INTERVAL;
        for address in self.member.revive() {
            match self.prepare(address) {
                Ok(()) => tracing::info!(%address, "listening again"),
                // Connections will say so too.
                Err(error) => tracing::warn!(%address, %error, "the device cannot be prepared"),
            }
        }
    }

    /// Takes what devices say unasked.
    pub(super) fn take_news(&mut self) {
        for place in 0..self.devices.len() {
            while let Some((name, news)) = self
                .device(place)
                .and_then(|device| Some((device.name.clone(), device.news.next()?)))
            {
                self.on_news(place, &name, news);
            }
        }
    }

    fn on_news(&mut self, place: usize, device: &str, news: News) {
        match news {
            News::Port { number, up: false } => tracing::warn!(
                device,
                port = number,
                "the port is down: nothing comes through until its link is up again"
            ),
            News::Port { number, up: true } => {
                tracing::info!(device, port = number, "the port is up");
            }
            News::DeviceFatal | News::CompletionsLost => {
                tracing::error!(device, ?news, "the RDMA device has failed");
                self.lose_device(place);
            }
            News::Established(_) | News::QueuePairLost(_) | News::TookLast(_) => {
                if !self.on_queue_pair_news(news) {
                    self.member.pass_on(news);
                }
            }
            News::Other(event) => tracing::debug!(device, event, "the device says"),
        }
    }

    /// Says whether the queue pair is ours.
    fn on_queue_pair_news(&mut self, news: News) -> bool {
        let (News::Established(key) | News::QueuePairLost(key) | News::TookLast(key)) = news else {
            return false;
        };
        let is_it = |conn: &Conn| conn.qp.as_ref().is_some_and(|qp| qp.key() == key);
        let Some((slot, conn)) = self.conns.iter_mut().find(|(_, conn)| is_it(conn)) else {
            return false;
        };
        if matches!(news, News::TookLast(_)) {
            if let Some(qp) = &mut conn.qp {
                qp.took_last = true;
            }
        } else if matches!(news, News::Established(_)) {
            if let Err(error) = conn.id.notify_established() {
                tracing::debug!(%error, "the kernel knows already that the connection stands");
            }
        } else {
            conn.note = Some("the device gave the queue pair up".to_owned());
            self.broken.push((handle(slot, conn.generation), DisconnectReason::Error));
        }
        true
    }

    fn on_address(&mut self, now: Timestamp, slot: usize) {
        let Some(conn) = self.conns.get_mut(slot) else { return };
        let State::Resolving { deadline, .. } = conn.state else { return };
        if let Err(error) = conn.id.resolve_route(deadline.since(now)) {
            let errno = error.raw_os_error().unwrap_or(libc::EIO);
            self.unreachable(slot, errno, Some(no_way()));
        }
    }

    fn on_route(&mut self, slot: usize) {
        let conn = self.conns.get(slot);
        if !conn.is_some_and(|conn| matches!(conn.state, State::Resolving { .. })) {
            return;
        }
        match self.attach(slot) {
            Ok(()) => {
                let Some(conn) = self.conns.get_mut(slot) else { return };
                conn.state = State::Resolved;
                self.outbox.push(CmEvent::Resolved { conn: handle(slot, conn.generation) });
            }
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(libc::EIO);
                self.unreachable(slot, errno, Some(format!("the device cannot be used: {error}")));
            }
        }
    }

    /// It did not come to be.
    pub(super) fn fail(&mut self, now: Timestamp, slot: usize, errno: i32) {
        let Some(conn) = self.conns.get_mut(slot) else { return };
        match conn.state {
            // TCP's word for a port without a listener.
            State::Connecting { .. } if errno == libc::ECONNREFUSED => {
                conn.state = State::Dead;
                let (reason, private_data) = (REJECT_NO_SERVICE, PrivateData::EMPTY);
                let failure = ConnectFailure::Rejected { reason, private_data };
                let conn = handle(slot, conn.generation);
                self.outbox.push(CmEvent::ConnectFailed { conn, failure });
            }
            State::Connecting { since, .. } if errno == libc::ETIMEDOUT => {
                conn.state = State::Dead;
                let failure = ConnectFailure::Timeout { waited: now.since(since) };
                let conn = handle(slot, conn.generation);
                self.outbox.push(CmEvent::ConnectFailed { conn, failure });
            }
            // The kernel waits for the neighbour's answer to the end of the time it was given.
            State::Resolving { remote, deadline } if errno == libc::ETIMEDOUT && now < deadline => {
                let left = deadline.since(now).min(RESOLVE_INTERVAL);
                if let Err(error) = conn.id.resolve_address(remote, left) {
                    let errno = error.raw_os_error().unwrap_or(errno);
                    self.unreachable(slot, errno, Some(no_way()));
                }
            }
            State::Resolving { .. } => {
                self.unreachable(slot, errno, Some(no_way()));
            }
            State::Resolved
            | State::Requested { .. }
            | State::Connecting { .. }
            | State::Accepting { .. } => self.unreachable(slot, errno, None),
            State::Established | State::Closing { .. } | State::Dead => {}
        }
    }

    fn unreachable(&mut self, slot: usize, errno: i32, note: Option<String>) {
        let Some(conn) = self.conns.get_mut(slot) else { return };
        conn.state = State::Dead;
        conn.note = note;
        let failure = ConnectFailure::Unreachable { errno };
        let conn = handle(slot, conn.generation);
        self.outbox.push(CmEvent::ConnectFailed { conn, failure });
    }

    fn on_rejected(&mut self, slot: usize, event: &Event) {
        let Some(conn) = self.conns.get_mut(slot) else { return };
        // On the passive side: the peer gave up while we thought about it.
        let waiting = matches!(
            conn.state,
            State::Connecting { .. } | State::Requested { .. } | State::Accepting { .. }
        );
        if !waiting {
            return;
        }
        conn.state = State::Dead;
        // iWARP knows no reasons: it says ECONNREFUSED.
        let spoke = !event.private_data.as_bytes().is_empty();
        let iwarp = if spoke { REJECT_CONSUMER } else { REJECT_NO_SERVICE };
        let reason = u16::try_from(event.status).unwrap_or(iwarp);
        let private_data = event.private_data;
        let failure = ConnectFailure::Rejected { reason, private_data };
        let conn = handle(slot, conn.generation);
        self.outbox.push(CmEvent::ConnectFailed { conn, failure });
    }

    fn on_established(&mut self, slot: usize, event: &Event) {
        let Some(conn) = self.conns.get_mut(slot) else { return };
        let device = conn.device.and_then(|place| self.devices.get(place)).and_then(Option::as_ref);
        let iwarp = device.is_some_and(|device| device.abilities.iwarp);
        let (depths, private_data) = match conn.state {
            State::Connecting { asked: (out, served), .. } => {
                // Some iWARP peers say nothing.
                let said = |value: u8, asked: u8| {
                    if iwarp && value == 0 { asked } else { value.min(asked) }
                };
                let out = said(event.initiator_depth, out);
                let served = said(event.responder_resources, served);
                ((out, served), event.private_data)
            }
            State::Accepting { agreed } => (agreed, PrivateData::EMPTY),
            _ => return,
        };
        conn.state = State::Established;
        if let Some(qp) = conn.qp.as_mut().filter(|_| !iwarp) {
            qp.set_rnr_timer();
        }
        self.outbox.push(CmEvent::Established {
            conn: handle(slot, conn.generation),
            initiator_depth: depths.0,
            responder_resources: depths.1,
            private_data,
        });
    }

    fn on_disconnected(&mut self, now: Timestamp, slot: usize) {
        let Some(conn) = self.conns.get_mut(slot) else { return };
        match &mut conn.state {
            State::Closing { told, .. } => *told = true,
            State::Established => self.close(now, slot, DisconnectReason::Peer),
            State::Dead => {}
            _ => self.unreachable(slot, libc::ECONNRESET, None),
        }
    }

    /// Starts the end of a connection: good-bye, and flush.
    pub(super) fn close(&mut self, now: Timestamp, slot: usize, reason: DisconnectReason) {
        let Some(conn) = self.conns.get_mut(slot) else { return };
        let told = match conn.state {
            State::Closing { .. } | State::Dead => return,
            State::Established => reason != DisconnectReason::Local,
            _ => true,
        };
        if conn.is_up()
            && let Err(error) = conn.id.disconnect()
        {
            tracing::debug!(%error, "no good-bye was said");
        }
        // librdmacm does so too, but not on every path, and not on iWARP.
        if let Some(qp) = &mut conn.qp {
            qp.set_error();
        }
        conn.state = State::Closing { reason, told, deadline: now + CLOSE_TIMEOUT };
        self.closing.push(slot);
    }

    /// Reports connections that have flushed.
    pub(super) fn finish_closing(&mut self, now: Timestamp) {
        let mut closing = core::mem::take(&mut self.closing);
        closing.retain(|slot| !self.finish(now, *slot));
        self.closing.append(&mut closing);
    }

    fn finish(&mut self, now: Timestamp, slot: usize) -> bool {
        let Some(conn) = self.conns.get_mut(slot) else { return true };
        let State::Closing { reason, told, deadline } = conn.state else { return true };
        let drained = conn.qp.as_ref().is_none_or(|qp| qp.is_drained());
        let waits_for_news = conn.may_hold_shared();
        if now < conn.end_by(deadline) && !(drained && told && !waits_for_news) {
            if waits_for_news {
                self.next_news_look = self.next_news_look.min(now + CM_INTERVAL);
            }
            return false;
        }
        conn.state = State::Dead;
        let mut flushed = Vec::new();
        conn.flush_all(slot, &mut flushed);
        let event = CmEvent::Disconnected { conn: handle(slot, conn.generation), reason };
        if !drained {
            // Only without its queue pair is the device sure not to touch what we give back.
            tracing::warn!("the device did not flush a queue pair in time");
            self.drop_qp(slot);
        }
        self.backlog.append(&mut flushed);
        self.outbox.push(event);
        true
    }

    /// Ends attempts to connect that took too long.
    pub(super) fn give_up(&mut self, now: Timestamp) {
        let Self { connecting, conns, outbox, .. } = self;
        connecting.retain(|slot| {
            let Some(conn) = conns.get_mut(*slot) else { return false };
            let State::Connecting { since, deadline, .. } = conn.state else { return false };
            if now < deadline {
                return true;
            }
            conn.state = State::Dead;
            let failure = ConnectFailure::Timeout { waited: now.since(since) };
            let conn = handle(*slot, conn.generation);
            outbox.push(CmEvent::ConnectFailed { conn, failure });
            false
        });
    }

    /// Ends all that runs over a device that is gone, and frees what there was of it: a device goes
    /// only when nothing uses it any more.
    pub(super) fn lose_device(&mut self, place: usize) {
        let Some(device) = self.devices.get_mut(place).and_then(Option::take) else { return };
        tracing::warn!(device = device.name, "the RDMA device went away");
        device.removed();
        let on_it = self.conns.iter().filter(|(_, conn)| conn.device == Some(place));
        let slots: Vec<usize> = on_it.map(|(slot, _)| slot).collect();
        for slot in slots {
            let Some(conn) = self.conns.get_mut(slot) else { continue };
            let state = core::mem::replace(&mut conn.state, State::Dead);
            conn.note = Some(format!("the RDMA device {} went away", device.name));
            conn.device = None;
            let mut flushed = Vec::new();
            conn.flush_all(slot, &mut flushed);
            conn.qp = None;
            conn.id.destroy_qp();
            let conn = handle(slot, conn.generation);
            self.backlog.append(&mut flushed);
            match state {
                State::Established | State::Closing { .. } => {
                    let reason = DisconnectReason::DeviceRemoved;
                    self.outbox.push(CmEvent::Disconnected { conn, reason });
                }
                State::Dead => {}
                _ => {
                    let failure = ConnectFailure::Unreachable { errno: libc::ENODEV };
                    self.outbox.push(CmEvent::ConnectFailed { conn, failure });
                }
            }
        }
        self.shared.lose(place);
        self.regions.leave(place);
        // Others of this process may still have the device open, and with it this descriptor.
        if let Err(error) = self.epoll.delete(device.news.as_fd()) {
            tracing::debug!(%error, "a descriptor was not watched");
        }
        // Its completion queues, and the identifier that kept it open.
        drop(device);
    }
}

//! The end in good order: nobody gets in any more, commands in flight finish, hosts are told
//! good-bye, and one that does not answer holds up nobody for long.
//!
//! What a command did to the disks stays, and nothing is acknowledged that was not done: who is not
//! waited for misses an answer, as at any loss of a connection, and asks again. Asked by the reactor's
//! turn and by `lifecycle`; calls `lifecycle` to end connections.

use lariat_fabric::verbs::ConnId;
use lariat_fabric::{Fabric, Timestamp};

use super::connection::{Phase, Role};
use super::reactor::{Reactor, key_of};
use super::request::State;
use crate::storage::Storage;

impl<F: Fabric, S: Storage> Reactor<F, S> {
    /// Stops accepting, lets commands in flight finish (not longer than the configured time), and
    /// disconnects. Go on polling until [`Reactor::is_drained`].
    ///
    /// With peers that answer it takes as long as their commands and a round trip. A peer that has
    /// gone without a word takes `stop_silence` where it owes acknowledgements, and then
    /// `stop_close_timeout` for its good-byes; if `Fabric::silent_since` knows nothing, the fabric's
    /// own retries.
    pub fn shutdown(&mut self, now: Timestamp) {
        if self.drain_deadline.is_some() {
            return;
        }
        self.registry.close();
        for listener in self.listeners.drain(..) {
            self.fabric.close_listener(listener);
        }
        self.drain_deadline = Some(now + self.config.drain_timeout);
        let latest = now + self.config.stop_close_timeout;
        for (_, connection) in &mut self.connections {
            if let Phase::Closing { deadline } = &mut connection.phase {
                *deadline = latest.min(*deadline);
            }
        }
    }

    /// Whether, after [`Reactor::shutdown`], nothing is left.
    pub fn is_drained(&self) -> bool {
        self.drain_deadline.is_some() && self.connections.is_empty()
    }

    /// During a stop: when the peer's silence will have lasted too long, if it goes on.
    pub(super) fn given_up_at(&self, id: ConnId) -> Timestamp {
        match self.drain_deadline {
            Some(_) => self
                .fabric
                .silent_since(id)
                .map_or(Timestamp::NEVER, |since| since + self.config.stop_silence),
            None => Timestamp::NEVER,
        }
    }

    /// During a stop: the connections whose time has come.
    pub(super) fn list_stopped(&self, now: Timestamp, to_close: &mut Vec<(u32, &'static str)>) {
        let Some(deadline) = self.drain_deadline else { return };
        for (at, connection) in &self.connections {
            if !connection.is_live() {
                continue;
            }
            let idle = |&slot: &u32| {
                let request = self.requests.get(slot as usize);
                request.is_none_or(|request| request.state() == State::Held)
            };
            // The end of an admin queue would cut the I/O queues short, here and on other reactors:
            // it goes last.
            let last = match &connection.role {
                Role::Admin(controller) => controller.shared().busy_queues() == 0,
                _ => true,
            };
            let why = if now >= deadline || (last && connection.requests.iter().all(idle)) {
                "the target stops"
            } else if last && now >= self.given_up_at(connection.id) {
                "the target stops, and the peer is silent"
            } else {
                continue;
            };
            to_close.push((key_of(at), why));
        }
    }

    /// Until when a disconnect that begins now may take. To be asked before it begins.
    pub(super) fn close_deadline(&self, now: Timestamp, id: ConnId) -> Timestamp {
        if self.drain_deadline.is_none() {
            now + self.config.close_timeout
        } else if now >= self.given_up_at(id) {
            // It is told, once.
            now
        } else {
            now + self.config.stop_close_timeout.min(self.config.close_timeout)
        }
    }
}

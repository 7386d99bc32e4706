//! What time brings, beside the fabric's own: connects that are late, peers that are silent or hold up
//! others, idle hosts that are asked, controllers that end or ended elsewhere, the stop; and how long
//! the reactor may sleep until then. Called by the reactor's turn and before its sleep; calls
//! `lifecycle` and `stopping`.

use core::time::Duration;

use lariat_fabric::{Armed, Fabric, Timestamp};

use super::buffer::Class;
use super::connection::{Connection, Phase, Role};
use super::reactor::{Reactor, key_of};
use crate::nvme::AdminEvent;
use crate::storage::Storage;

/// Time between two looks at whether a Connect can go on.
const CONNECT_RETRY: Duration = Duration::from_millis(5);

impl<F: Fabric, S: Storage> Reactor<F, S> {
    /// Before sleeping: looks at timers and at what other threads changed, and says how long to
    /// sleep at most. To be called after the wake-up flag of the registry's waker was cleared.
    ///
    /// Sleep until the fabric's `wait_fds`, the storage's own or the waker say otherwise.
    pub fn arm(&mut self, now: Timestamp) -> Armed {
        self.sweep(now);
        if self.reap(now)
            || !self.listed.is_empty()
            || self.shared.has_to_post()
            || self.unsubmitted
            || self.pool.may_grant()
        {
            return Armed::Ready;
        }
        let mut deadline = self.drain_deadline.unwrap_or(Timestamp::NEVER);
        if !self.waiting_connects.is_empty() {
            // What they wait for may end on another reactor.
            deadline = deadline.min(now + CONNECT_RETRY);
        }
        let waiting_since = self.pool.waiting_since();
        for (at, connection) in &self.connections {
            deadline = deadline.min(match connection.phase {
                // Without the storage's completions there is nothing to do for it.
                Phase::Closing { .. } | Phase::Closed if connection.in_storage > 0 => {
                    Timestamp::NEVER
                }
                Phase::Closing { deadline } => deadline,
                Phase::Closed => now,
                Phase::Live => {
                    let role = match &connection.role {
                        Role::Fresh | Role::Connecting => connection.connect_deadline,
                        Role::Admin(controller) => {
                            let probe = connection.probe_at(self.config.idle_probe);
                            controller.next_timeout().min(probe)
                        }
                        Role::Io(_) | Role::Gone => Timestamp::NEVER,
                    };
                    role.min(connection.stalled_at(self.config.stall_timeout))
                        .min(self.silent_at(key_of(at), connection, waiting_since))
                        .min(self.given_up_at(connection.id))
                }
            });
        }
        match self.fabric.arm(now) {
            Armed::Until(fabric_deadline) if deadline > now => {
                Armed::Until(fabric_deadline.min(deadline))
            }
            _ => Armed::Ready,
        }
    }

    /// Timers, controllers that ended elsewhere, events of controllers that live here.
    pub(super) fn sweep(&mut self, now: Timestamp) {
        self.sweep_due = false;
        self.next_sweep = now + self.config.sweep_interval;
        self.retry_connects(now);
        let mut to_close = core::mem::take(&mut self.to_close);
        let mut events = core::mem::take(&mut self.admin_events);
        self.bar_silent(now);
        let waiting_since = self.pool.waiting_since();
        for at in 0..self.connections.capacity() {
            let key = key_of(at);
            let Some(connection) = self.connections.get(at) else { continue };
            if !connection.is_live() {
                continue;
            }
            if now >= self.silent_at(key, connection, waiting_since) {
                self.stats.starvers += 1;
                to_close.push((key, "its peer is silent, and others wait for its buffers"));
                continue;
            }
            if now >= connection.stalled_at(self.config.stall_timeout) {
                self.stats.stalls += 1;
                to_close.push((key, "the peer takes nothing"));
                continue;
            }
            if now >= connection.probe_at(self.config.idle_probe) {
                self.probe(key);
            }
            let Some(connection) = self.connections.get_mut(at) else { continue };
            match &mut connection.role {
                Role::Fresh | Role::Connecting => {
                    if now >= connection.connect_deadline {
                        self.stats.connect_timeouts += 1;
                        to_close.push((key, "no Fabrics Connect in time"));
                    }
                }
                Role::Io(attachment) => {
                    if !attachment.is_live() {
                        to_close.push((key, "its controller is gone or was reset"));
                    }
                }
                Role::Admin(controller) => {
                    controller.poll(now, &mut events);
                    for event in events.drain(..) {
                        match event {
                            AdminEvent::CompleteHeld { cid, result, status } => {
                                self.complete_held(now, key, cid, result, status);
                            }
                            AdminEvent::Fatal(reason) => {
                                tracing::info!(?reason, "controller ends");
                                to_close.push((key, "its controller ended"));
                            }
                        }
                    }
                }
                Role::Gone => to_close.push((key, "its controller is gone")),
            }
        }
        self.list_stopped(now, &mut to_close);
        for (key, why) in to_close.drain(..) {
            self.close(now, key, why);
        }
        self.admin_events = events;
        self.to_close = to_close;
    }

    /// Who owes acknowledgements and gives none takes no more buffers for data. Admin commands go on:
    /// they have their reserve, and a probe that was lost must not hold them up.
    fn bar_silent(&mut self, now: Timestamp) {
        let limit = self.config.starve_timeout;
        if limit.is_zero() {
            return;
        }
        for (at, connection) in &self.connections {
            let since = connection.wire.stalled_since();
            let is_data = connection.agreement.class() == Class::Data;
            let barred = is_data && since.is_some_and(|since| now.since(since) >= limit / 4);
            self.pool.bar(key_of(at), barred);
        }
    }

    /// When a connection is to be ended if nothing changes: its peer owes acknowledgements, and
    /// others wait for the buffers that it holds.
    fn silent_at(&self, key: u32, connection: &Connection, waiting_since: Timestamp) -> Timestamp {
        let limit = self.config.starve_timeout;
        match connection.wire.stalled_since() {
            Some(since)
                if waiting_since < Timestamp::NEVER && !limit.is_zero() && self.pool.holds(key) =>
            {
                since.max(waiting_since) + limit
            }
            _ => Timestamp::NEVER,
        }
    }

    /// Asks an idle peer whether it is there, with this turn's batch.
    fn probe(&mut self, key: u32) {
        if let Some(connection) = self.connections.get_mut(key as usize) {
            connection.probe_due = true;
            self.list(key);
        }
    }
}

//! A host's sessions: how they are started, looked after, left and lost. Called by the host's turn.

use core::time::Duration;

use lariat::core::{
    BlockQueue, Identity, LinkStatus, LossReason, Session, SessionConfig, SessionState,
};
use lariat_fabric::verbs::{CmEvent, WorkCompletion};
use lariat_fabric::{Fabric, Timestamp};
use lariat_wire::nvme::{HostId, Qid};

use super::{
    CONNECT_TIMEOUT, Context, Host, IO_TIMEOUT, Machine, conn_of, host_nqn, subsystem_nqn,
};
use crate::sim::plan::reactor_address;
use crate::sim::trace::note;

impl Host {
    fn config(&self) -> SessionConfig {
        let identity = Identity {
            subsystem: subsystem_nqn(),
            host: host_nqn(self.index),
            host_id: HostId([u8::try_from(self.index + 1).unwrap_or(0); 16]),
        };
        let plan = &self.plan;
        SessionConfig {
            io_queues: plan.queues + plan.far_queues,
            own_io_queues: plan.queues,
            queue_depth: plan.depth,
            kato: plan.kato,
            connect_timeout: CONNECT_TIMEOUT,
            admin_timeout: Duration::from_secs(8),
            io_timeout: IO_TIMEOUT,
            shutdown_timeout: IO_TIMEOUT,
            max_transfer_bytes: plan.transfer_bytes,
            max_in_capsule_bytes: plan.in_capsule_bytes,
            ..SessionConfig::new(reactor_address(0), identity)
        }
    }

    /// Leaves in good order (and comes again, unless its task is to leave for good).
    pub(in crate::sim) fn leave(&mut self, now: Timestamp) {
        self.leaving = true;
        self.wake = now;
    }

    /// A step on the way out: first the queues that the session does not look after.
    pub(super) fn leave_on(&mut self, now: Timestamp) {
        let Some(Machine { session: Some(session), fabric, far, .. }) = &mut self.machine else {
            self.leaving = false;
            return;
        };
        if session.state() == SessionState::Ready {
            if !far.iter().all(BlockQueue::has_left) {
                return;
            }
            if !self.far_left {
                self.far_left = true;
                for queue in &mut *far {
                    queue.leave(now, fabric);
                }
                fabric.flush(now);
                if !far.is_empty() {
                    return;
                }
            }
        }
        for queue in far {
            queue.close(now, fabric, LossReason::Local);
        }
        session.shutdown(now, fabric);
        self.dying = true;
        self.leaving = false;
    }

    /// Drops its connections on the spot; the target is told.
    pub(in crate::sim) fn drop_connections(&mut self, now: Timestamp) {
        if let Some(Machine { session: Some(session), fabric, far, .. }) = &mut self.machine {
            session.abort(now, fabric, LossReason::Local);
            for queue in far {
                queue.close(now, fabric, LossReason::Local);
            }
            self.dying = true;
            self.dropping = true;
        }
        self.wake = now;
    }

    /// Sessions come and go.
    pub(super) fn look_after_session(&mut self, context: &mut Context<'_>) -> Result<(), String> {
        let now = context.now;
        let index = self.index;
        let config = self.config();
        let wants = self.wants_session();
        let Some(machine) = &mut self.machine else { return Ok(()) };
        let Some(session) = &mut machine.session else {
            if wants && now >= self.start_at {
                match Session::start(now, &mut machine.fabric, config, machine.domain) {
                    Ok(session) => machine.session = Some(session),
                    Err(error) => return Err(format!("host {index}: no session: {error}")),
                }
                machine.far_started = false;
                self.far_left = false;
                self.was_ready = false;
                note!(context.trace, "host {index}: connects");
            }
            return Ok(());
        };
        let far_lost = machine.far.iter().any(|q| matches!(q.status(), LinkStatus::Closed(_)));
        let far_live = machine.far.iter().all(|queue| queue.status() == LinkStatus::Live);
        let own_lost = (0..session.io_queues())
            .filter_map(|at| session.io_queue(at))
            .any(|queue| matches!(queue.status(), LinkStatus::Closed(_)));
        match session.state() {
            SessionState::Ready if !machine.far_started => {
                machine.far_started = true;
                for far in 0..self.plan.far_queues {
                    let qid = Qid(self.plan.queues + far + 1);
                    let Some((mut link, limits)) = session.io_link(qid, machine.domain) else {
                        return Err(format!("host {index}: queue {qid} was not granted"));
                    };
                    link.remote = reactor_address(1);
                    match BlockQueue::start(now, &mut machine.fabric, link, limits) {
                        Ok(queue) => machine.far.push(queue),
                        Err(error) => return Err(format!("host {index}: no queue: {error}")),
                    }
                }
            }
            SessionState::Ready if !self.dying && (own_lost || (far_lost && !self.far_left)) => {
                note!(context.trace, "host {index}: lost a queue, gives the session up");
                context.trace.count("host: lost an I/O queue alone");
                session.abort(now, &mut machine.fabric, LossReason::Local);
                self.wake = now;
                return self.session_over(context);
            }
            SessionState::Ready if !self.was_ready && far_live => {
                self.was_ready = true;
                self.excused = false;
                self.failures_in_row = 0;
                context.trace.count("host: session ready");
                note!(context.trace, "host {index}: ready");
                self.check_namespaces()?;
            }
            SessionState::Closed(_) => return self.session_over(context),
            _ => {}
        }
        Ok(())
    }

    fn check_namespaces(&self) -> Result<(), String> {
        let session = self.machine.as_ref().and_then(|machine| machine.session.as_ref());
        let Some(session) = session else { return Ok(()) };
        let found: Vec<_> = session.namespaces().iter().map(|info| info.geometry).collect();
        if found.iter().eq(self.spaces.iter().map(|space| &space.geometry)) {
            Ok(())
        } else {
            Err(format!("host {}: sees namespaces {found:?}", self.index))
        }
    }

    fn session_over(&mut self, context: &mut Context<'_>) -> Result<(), String> {
        let now = context.now;
        let Some(machine) = &mut self.machine else { return Ok(()) };
        let Some(session) = &mut machine.session else { return Ok(()) };
        let SessionState::Closed(reason) = session.state() else { return Ok(()) };
        let error = session.take_error();
        for queue in &mut machine.far {
            queue.close(now, &mut machine.fabric, reason);
        }
        machine.fabric.flush(now);
        self.collect(context)?;
        let index = self.index;
        note!(context.trace, "host {index}: session over");
        if !self.ops.is_empty() {
            return Err(format!(
                "host {index}: the session is over and {} requests did not end",
                self.ops.len()
            ));
        }
        let Some(machine) = &mut self.machine else { return Ok(()) };
        machine.session = None;
        machine.far.clear();
        if !self.excused && !self.dying {
            let error = error.map_or_else(String::new, |error| format!(": {error}"));
            return Err(format!("host {index}: session lost without cause: {reason}{error}"));
        }
        context.trace.count(match reason {
            LossReason::Local => "host: session closed on its side",
            LossReason::Peer => "host: session closed by the target",
            LossReason::Unresponsive => "host: target did not answer",
            LossReason::Transport(_) => "host: queue pair failed",
            LossReason::CommandTimeout { .. } => "host: command timed out",
            LossReason::KeepAlive { .. } => "host: keep alive timed out",
            _ => "host: session lost otherwise",
        });
        self.dying = false;
        self.dropping = false;
        self.leaving = false;
        self.was_ready = false;
        self.failures_in_row += 1;
        // After a while, longer and longer; sometimes at once.
        let most = 20_000 << self.failures_in_row.min(6);
        self.start_at = now + self.rng.micros(0, most);
        Ok(())
    }
}

impl Machine {
    pub(super) fn drive_far(
        &mut self,
        now: Timestamp,
        completions: &[WorkCompletion],
        events: &[CmEvent],
    ) {
        let mut ring = false;
        for queue in &mut self.far {
            for completion in completions {
                if queue.conn() == Some(completion.conn) {
                    queue.handle_completion(now, &mut self.fabric, completion);
                }
            }
            for event in events {
                if queue.conn() == Some(conn_of(event)) {
                    queue.handle_event(now, &mut self.fabric, event);
                }
            }
            if now >= queue.next_timeout() {
                queue.handle_timeout(now, &mut self.fabric);
            }
            ring |= queue.post(now, &mut self.fabric);
        }
        if ring {
            self.fabric.flush(now);
        }
    }
}

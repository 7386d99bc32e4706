//! What the consumers of the simulation do: post, answer events, end connections.

use std::time::Duration;

use lariat_roce::endpoint::RouteInfo;
use lariat_roce::time::Timestamp;
use lariat_roce::verbs::{
    CmEvent, ConnId, ConnectFailure, ConnectParams, DisconnectReason, PrivateData, QpConfig,
};

use super::link::{Mode, Phase};
use super::world::{World, trace};

impl World {
    pub(super) fn resolve(&mut self, index: usize) {
        let link = &mut self.links[index];
        let node = &mut self.nodes[link.sides[0].node];
        let route = RouteInfo { local_ip: node.address.ip(), path_mtu: self.path_mtu };
        link.sides[0].conn = Some(node.endpoint.resolve(self.now, link.service, route).unwrap());
        link.sides[0].phase = Phase::Connecting;
    }

    fn params(&mut self, private_data: PrivateData) -> ConnectParams {
        ConnectParams {
            responder_resources: u8::try_from(self.rng.between(1, 4)).unwrap(),
            initiator_depth: u8::try_from(self.rng.between(1, 4)).unwrap(),
            retry_count: 7,
            rnr_retry_count: 7,
            private_data,
        }
    }

    fn create_qp(&mut self, index: usize, side: usize) {
        let link = &self.links[index];
        let config = QpConfig::new(link.domain(), 16, 32);
        let this = &link.sides[side];
        self.nodes[this.node].endpoint.create_qp(this.conn.unwrap(), &config).unwrap();
        self.links[index].sides[side].has_qp = true;
        self.post_receives(index, side);
    }

    fn post_receives(&mut self, index: usize, side: usize) {
        let link = &mut self.links[index];
        let node = link.sides[side].node;
        while link.sides[side].receives_posted - link.sides[side].receives_done
            < link.sides[side].depth
            && let Some(request) = link.next_receive(side)
        {
            let conn = link.sides[side].conn.unwrap();
            let posted =
                self.nodes[node].endpoint.post_recv(conn, &[request], &self.memories[node]);
            if posted.is_err() {
                assert!(link.sides[side].failed || !link.must_pass(), "{posted:?}");
                return;
            }
            link.sides[side].receives_posted += 1;
        }
    }

    fn post_sends(&mut self, index: usize, side: usize) {
        let link = &mut self.links[index];
        let node = link.sides[side].node;
        for _ in 0..self.rng.between(1, 6) {
            let this = &link.sides[side];
            if this.posted - this.done >= 16 {
                return;
            }
            let Some(request) = link.next_send(side, &self.memories) else { return };
            let conn = link.sides[side].conn.unwrap();
            let posted =
                self.nodes[node].endpoint.post_send(conn, &[request], &self.memories[node]);
            if posted.is_err() {
                assert!(link.sides[side].failed || !link.must_pass(), "{posted:?}");
                return;
            }
            link.sides[side].posted += 1;
        }
    }

    pub(super) fn on_event(&mut self, at: usize, event: &CmEvent) {
        match event {
            CmEvent::Resolved { conn } => {
                let index = self.find(at, *conn).0;
                self.create_qp(index, 0);
                let hello = [index as u64; 1].map(|index| index.to_be_bytes()).concat();
                let params = self.params(PrivateData::new(&hello).unwrap());
                let endpoint = &mut self.nodes[at].endpoint;
                endpoint.connect(self.now, *conn, &params, Duration::from_secs(10)).unwrap();
            }
            CmEvent::ConnectRequest { conn, private_data, peer, .. } => {
                let data = private_data.as_bytes();
                assert_eq!(data.len(), 56);
                let index = usize::from(data[7]);
                assert!(data[8..].iter().all(|byte| *byte == 0), "the marker shows");
                let link = &mut self.links[index];
                assert_eq!(peer.ip(), self.nodes[link.sides[0].node].address.ip());
                if let Some(old) = link.sides[1].conn {
                    // The REQ came again after its connection was over here.
                    assert!(!self.nodes[at].endpoint.contains(old), "asked twice for link {index}");
                    self.nodes[at].endpoint.reject(self.now, *conn, b"again").unwrap();
                    return;
                }
                if link.mode == Mode::Rejected {
                    self.nodes[at].endpoint.reject(self.now, *conn, b"no").unwrap();
                    return;
                }
                link.sides[1].conn = Some(*conn);
                link.sides[1].phase = Phase::Connecting;
                // Sometimes longer than the peer's patience, so that it asks again.
                let wait = if self.rng.permille(300) { self.rng.below(60_000) } else { 0 };
                link.accept_at = Some(self.now + Duration::from_micros(wait));
            }
            CmEvent::Established { conn, private_data, .. } => {
                let (index, side) = self.find(at, *conn);
                let this = &mut self.links[index].sides[side];
                assert_eq!(this.phase, Phase::Connecting);
                this.phase = Phase::Up;
                if side == 0 {
                    assert_eq!(&private_data.as_bytes()[..7], b"welcome");
                    assert!(private_data.as_bytes()[7..].iter().all(|byte| *byte == 0));
                }
            }
            CmEvent::ConnectFailed { conn, failure } => {
                let (index, side) = self.find(at, *conn);
                let link = &self.links[index];
                assert_eq!(link.sides[side].phase, Phase::Connecting);
                match (link.mode, failure) {
                    _ if link.fragile => {}
                    (Mode::Rejected, ConnectFailure::Rejected { reason: 28, private_data }) => {
                        assert_eq!(&private_data.as_bytes()[..3], b"no\0");
                    }
                    (Mode::NoListener, ConnectFailure::Rejected { reason: 8, .. })
                    | (Mode::Destroy { .. } | Mode::Disconnect { .. }, _) => {}
                    // The other side went through with everything, and only its good-bye came.
                    (mode, failure) => panic!("link {index} side {side} {mode:?}: {failure:?}"),
                }
                self.destroy(index, side);
            }
            CmEvent::Disconnected { conn, reason } => {
                let (index, side) = self.find(at, *conn);
                let link = &self.links[index];
                assert_eq!(link.outstanding(side), 0, "link {index} side {side}: {reason:?}");
                assert_eq!(link.sides[side].phase, Phase::Up);
                assert!(link.disconnecting || !link.must_pass(), "{reason:?}");
                if link.mode.is_clean() && !link.fragile {
                    assert!(matches!(reason, DisconnectReason::Local | DisconnectReason::Peer));
                }
                self.destroy(index, side);
            }
        }
    }

    fn find(&self, node: usize, conn: ConnId) -> (usize, usize) {
        for link in &self.links {
            for (at, side) in link.sides.iter().enumerate() {
                if side.node == node && side.conn == Some(conn) {
                    return (link.index, at);
                }
            }
        }
        panic!("an event for a connection that nobody has: {conn:?}");
    }

    fn destroy(&mut self, index: usize, side: usize) {
        trace!(self, "destroy link {index} side {side}");
        let link = &mut self.links[index];
        link.disconnecting = true;
        let this = &mut link.sides[side];
        this.phase = Phase::Gone;
        self.nodes[this.node].endpoint.destroy(self.now, this.conn.unwrap());
        assert!(!self.nodes[this.node].endpoint.contains(this.conn.unwrap()));
    }

    fn disconnect(&mut self, index: usize, side: usize) {
        trace!(self, "disconnect link {index} side {side}");
        let link = &mut self.links[index];
        link.disconnecting = true;
        let this = &link.sides[side];
        let conn = this.conn.unwrap();
        if this.phase != Phase::Up {
            self.destroy(index, side);
        } else if !self.links[index].sides[side].told_end {
            self.links[index].sides[side].told_end = true;
            let node = self.links[index].sides[side].node;
            self.nodes[node].endpoint.disconnect(self.now, conn).unwrap();
        }
    }

    /// What consumers do of their own accord.
    pub(super) fn tick(&mut self) {
        if self.now < self.next_tick {
            return;
        }
        // Slow down when there is nothing but waiting.
        let busy = self.net.next() != Timestamp::NEVER;
        let wait = self.rng.between(20, if busy { 400 } else { 4_000 });
        self.next_tick = self.now + Duration::from_micros(wait);
        if let Some((node, at)) = self.vanish
            && at <= self.now
        {
            self.nodes[node].alive = false;
        }
        for index in 0..self.links.len() {
            self.tick_accept(index);
            for side in 0..2 {
                let (phase, node) =
                    (self.links[index].sides[side].phase, self.links[index].sides[side].node);
                if !self.nodes[node].alive {
                    continue;
                }
                if self.links[index].sides[side].has_qp && phase != Phase::Gone {
                    self.post_receives(index, side);
                }
                if phase == Phase::Up && !self.links[index].sides[side].told_end {
                    self.post_sends(index, side);
                }
            }
            self.tick_end(index);
        }
    }

    fn tick_accept(&mut self, index: usize) {
        let link = &mut self.links[index];
        if link.accept_at.is_none_or(|at| at > self.now)
            || link.sides[1].phase != Phase::Connecting
            || !self.nodes[link.sides[1].node].alive
        {
            return;
        }
        link.accept_at = None;
        let (node, conn) = (link.sides[1].node, link.sides[1].conn.unwrap());
        self.create_qp(index, 1);
        let params = self.params(PrivateData::new(b"welcome").unwrap());
        let route = RouteInfo { local_ip: self.nodes[node].address.ip(), path_mtu: self.path_mtu };
        let accepted = self.nodes[node].endpoint.accept(self.now, conn, &params, route);
        assert!(accepted.is_ok() || !self.links[index].must_pass(), "{accepted:?}");
    }

    fn tick_end(&mut self, index: usize) {
        let link = &self.links[index];
        let present = [0, 1].map(|side: usize| {
            let this = &link.sides[side];
            this.conn.is_some() && this.phase != Phase::Gone && self.nodes[this.node].alive
        });
        let satisfied = link.is_satisfied(0)
            && link.is_satisfied(1)
            && link.sides.iter().all(|side| side.phase == Phase::Up);
        if self.now >= self.give_up {
            // An idle side cannot know of a peer that went when its good-bye was lost for good.
            let lost = link.fragile || !link.mode.is_clean();
            assert!(lost || !(present[0] || present[1]), "waits in vain: {}", self.describe());
            for (side, present) in present.into_iter().enumerate() {
                if present {
                    self.disconnect(index, side);
                }
            }
            return;
        }
        match link.mode {
            Mode::Clean { first, both } if satisfied => {
                self.disconnect(index, first);
                if both {
                    self.disconnect(index, 1 - first);
                }
            }
            Mode::CleanDestroy { side } if satisfied => self.destroy(index, side),
            Mode::Disconnect { side, at } if at <= self.now && present[side] => {
                self.disconnect(index, side);
            }
            Mode::Destroy { side, at } if at <= self.now && present[side] => {
                self.destroy(index, side);
            }
            _ => {}
        }
    }
}

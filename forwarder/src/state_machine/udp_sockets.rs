//! The UDP sockets of one worker: which upstream each is connected to, the queries that wait on it,
//! and when it retires.
//!
//! Security (RFC 5452): a forger must guess the source port and the id of a query while it is
//! outstanding, and know its question. Ids are random, and unique on their socket. Ports are
//! random; an upstream has up to 32 at a time, and each is used for 1,000 queries or 10 s, or until
//! three datagrams were received that match no query. A few queries of one batch are sent from the
//! same socket, in one system call. That does not help a forger: the port is as unknown as before,
//! each query has its own id and question, and no two have the same question (equal queries share a
//! flight).

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use hashbrown::HashMap;
use rand::Rng;

use super::timer_wheel::MachineTime;
use super::{Limits, SocketId};
use crate::Upstream;
use crate::metrics::UpstreamProto;

/// Identifies an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AttemptId {
    pub(super) slot: u32,
    pub(super) generation: u32,
    pub(super) serial: u8,
}

/// All UDP sockets of a worker.
#[derive(Debug)]
pub(super) struct UdpSockets {
    limits: Limits,
    sockets: Vec<UdpSocket>,
    free: Vec<u32>,
    sides: HashMap<u32, UpstreamSockets, foldhash::fast::RandomState>,
    open: usize,
    requests: VecDeque<SocketRequest>,
}

/// A socket to open or to close.
#[derive(Debug)]
pub(super) enum SocketRequest {
    /// Open one, connected to the upstream.
    Open(SocketId, Arc<Upstream>),
    /// Close one.
    Close(SocketId),
}

/// One socket, or a free entry.
#[derive(Debug)]
struct UdpSocket {
    generation: u32,
    open: bool,
    upstream: Option<Arc<Upstream>>,
    /// The local address; `None` until the driver has opened the socket.
    local: Option<SocketAddr>,
    opened: MachineTime,
    queries: u32,
    /// Datagrams received that match no query.
    unmatched: u8,
    retired: bool,
    /// The ids of outstanding queries, apart from the attempts: a reply's id is found by a scan
    /// over 16-bit numbers.
    ids: Vec<u16>,
    owners: Vec<AttemptId>,
}

/// The UDP sockets of one upstream.
#[derive(Debug)]
struct UpstreamSockets {
    active: Vec<u32>,
    retiring: VecDeque<SocketId>,
    /// The socket of the current batch, when it was chosen, and how many more queries it gets.
    current: u32,
    chosen: MachineTime,
    left: u32,
}

impl UdpSockets {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            sockets: Vec::new(),
            free: Vec::new(),
            sides: HashMap::default(),
            open: 0,
            requests: VecDeque::new(),
        }
    }

    /// Takes the next socket to open or to close.
    pub(super) fn poll(&mut self) -> Option<SocketRequest> {
        self.requests.pop_front()
    }

    /// Returns the number of open sockets.
    pub(super) fn open_count(&self) -> usize {
        self.open
    }

    /// Chooses a socket for one more query to `upstream`, and requests to open it if it is new.
    pub(super) fn choose(
        &mut self,
        now: MachineTime,
        upstream: &Arc<Upstream>,
        rng: &mut impl Rng,
    ) -> SocketId {
        let side = self.sides.entry(upstream.id()).or_insert_with(UpstreamSockets::new);
        let reuse = side.left > 0 && side.chosen == now && side.active.contains(&side.current);
        if reuse && !worn(&self.sockets[side.current as usize], now, &self.limits) {
            side.left -= 1;
            let current = side.current;
            upstream.metrics().connection(UpstreamProto::Udp, true);
            return self.id(current);
        }
        let place = rng.random_range(0..self.limits.sockets.max(1));
        let chosen = side.active.get(place).copied();
        let index = match chosen {
            Some(index) if !worn(&self.sockets[index as usize], now, &self.limits) => {
                upstream.metrics().connection(UpstreamProto::Udp, true);
                index
            }
            _ => {
                if let Some(index) = chosen {
                    self.retire(upstream.id(), index);
                }
                self.open(now, upstream)
            }
        };
        if let Some(side) = self.sides.get_mut(&upstream.id()) {
            (side.current, side.chosen, side.left) = (index, now, QUERIES_PER_CHOICE - 1);
        }
        self.id(index)
    }

    /// Notes the local address of a socket that the driver has opened.
    pub(super) fn opened(&mut self, socket: SocketId, local: SocketAddr) {
        let port = self.sockets.get_mut(socket.index());
        let Some(port) = port.filter(|port| port.open && port.generation == socket.generation) else {
            return;
        };
        port.local = Some(local);
        if let Some(upstream) = &port.upstream {
            upstream.metrics().connection(UpstreamProto::Udp, false);
        }
    }

    /// Removes a socket that could not be opened. Returns another one of the same upstream for its
    /// queries, if there is one, even if that has reached its limit of queries or age.
    pub(super) fn not_opened(&mut self, socket: SocketId, rng: &mut impl Rng) -> Option<SocketId> {
        let upstream = self.upstream(socket)?.id();
        self.forget(socket.index);
        let side = self.sides.get_mut(&upstream)?;
        side.active.retain(|&active| active != socket.index);
        if side.active.is_empty() {
            side.left = 0;
            return None;
        }
        let other = side.active[rng.random_range(0..side.active.len())];
        if side.current == socket.index {
            side.current = other;
        }
        Some(self.id(other))
    }

    /// Retires a socket after its address or route is gone.
    pub(super) fn spoiled(&mut self, socket: SocketId) {
        let port = self.port(socket).filter(|port| !port.retired);
        if let Some(upstream) = port.and_then(|port| port.upstream.as_ref()).map(|upstream| upstream.id()) {
            self.retire(upstream, socket.index);
        }
    }

    /// Draws an id for an attempt on `socket`, unique among its outstanding queries.
    pub(super) fn register(&mut self, socket: SocketId, owner: AttemptId, rng: &mut impl Rng) -> u16 {
        let port = &mut self.sockets[socket.index()];
        let mut id = rng.random();
        // At most 1,000 of 65,536 are in use.
        while port.ids.contains(&id) {
            id = rng.random();
        }
        port.ids.push(id);
        port.owners.push(owner);
        port.queries += 1;
        id
    }

    /// Returns the attempt with this id on a socket.
    pub(super) fn owner(&self, socket: SocketId, id: u16) -> Option<AttemptId> {
        let port = self.port(socket)?;
        port.ids.iter().position(|&out| out == id).map(|at| port.owners[at])
    }

    /// Notes a datagram that matches no query of the socket. After a few of them a forger that
    /// knows the port may be guessing ids: the socket gets no more queries. Outstanding ones stay,
    /// as a forger must not be able to end them either.
    pub(super) fn unmatched(&mut self, socket: SocketId) {
        let Some(upstream) = self.upstream(socket) else { return };
        upstream.metrics().unmatched.add_shared(1);
        let upstream = upstream.id();
        let port = &mut self.sockets[socket.index()];
        port.unmatched = port.unmatched.saturating_add(1);
        if port.retired || port.unmatched < UNMATCHED_MAX {
            return;
        }
        self.forget_closed(upstream);
        // At the limit of retiring sockets the oldest would be closed, and its queries lost: then
        // this socket is not retired.
        let limit = self.limits.sockets;
        if self.sides.get(&upstream).is_some_and(|side| side.retiring.len() < limit) {
            self.retire(upstream, socket.index);
        }
    }

    /// Returns the upstream of a socket.
    pub(super) fn upstream(&self, socket: SocketId) -> Option<&Arc<Upstream>> {
        self.port(socket)?.upstream.as_ref()
    }

    /// Returns the local address of a socket.
    pub(super) fn local(&self, socket: SocketId) -> Option<SocketAddr> {
        self.port(socket)?.local
    }

    /// Removes a query; a retired socket is closed with its last one.
    pub(super) fn release(&mut self, socket: SocketId, id: u16) {
        if self.port(socket).is_none() {
            return;
        }
        let port = &mut self.sockets[socket.index()];
        if let Some(at) = port.ids.iter().position(|&out| out == id) {
            port.ids.swap_remove(at);
            port.owners.swap_remove(at);
        }
        if port.retired && port.ids.is_empty() {
            self.close(socket.index);
        }
    }

    /// Returns the attempts that wait on a socket.
    pub(super) fn owners(&self, socket: SocketId) -> &[AttemptId] {
        self.port(socket).map_or(&[], |port| &port.owners)
    }

    /// Retires sockets at their limit of queries or age, and removes upstreams without sockets.
    pub(super) fn sweep(&mut self, now: MachineTime) {
        for index in 0..self.sockets.len() {
            let port = &self.sockets[index];
            let (worn, retired) = (worn(port, now, &self.limits), port.retired);
            if let (true, true, false, Some(upstream)) = (port.open, worn, retired, &port.upstream) {
                let id = upstream.id();
                self.retire(id, index as u32);
            }
        }
        let sockets = &self.sockets;
        self.sides.retain(|_, side| {
            side.retiring.retain(|&socket| is_open(sockets, socket));
            !side.active.is_empty() || !side.retiring.is_empty()
        });
    }

    /// Closes all sockets.
    pub(super) fn close_all(&mut self) {
        for index in 0..self.sockets.len() as u32 {
            if self.sockets[index as usize].open {
                self.close(index);
            }
        }
        self.sides.clear();
    }

    fn forget_closed(&mut self, upstream: u32) {
        let sockets = &self.sockets;
        if let Some(side) = self.sides.get_mut(&upstream) {
            side.retiring.retain(|&socket| is_open(sockets, socket));
        }
    }

    fn open(&mut self, now: MachineTime, upstream: &Arc<Upstream>) -> u32 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.sockets.push(UdpSocket::vacant());
            (self.sockets.len() - 1) as u32
        });
        let port = &mut self.sockets[index as usize];
        (port.open, port.retired, port.queries, port.unmatched) = (true, false, 0, 0);
        (port.local, port.opened, port.upstream) = (None, now, Some(upstream.clone()));
        self.open += 1;
        self.requests.push_back(SocketRequest::Open(self.id(index), upstream.clone()));
        self.sides.entry(upstream.id()).or_insert_with(UpstreamSockets::new).active.push(index);
        index
    }

    /// Gives a socket no new queries; it is closed with its last query, or when too many are
    /// retiring.
    fn retire(&mut self, upstream: u32, index: u32) {
        let socket = self.id(index);
        let port = &mut self.sockets[index as usize];
        port.retired = true;
        let idle = port.ids.is_empty();
        let Some(side) = self.sides.get_mut(&upstream) else { return };
        side.active.retain(|&active| active != index);
        if idle {
            self.close(index);
            return;
        }
        side.retiring.push_back(socket);
        if side.retiring.len() <= self.limits.sockets {
            return;
        }
        let oldest = side.retiring.pop_front();
        // Replies to queries sent from this socket are lost; each of these queries times out and is
        // retried.
        if let Some(oldest) = oldest.filter(|&oldest| self.port(oldest).is_some()) {
            self.close(oldest.index);
        }
    }

    fn close(&mut self, index: u32) {
        self.requests.push_back(SocketRequest::Close(self.id(index)));
        self.forget(index);
    }

    fn forget(&mut self, index: u32) {
        let port = &mut self.sockets[index as usize];
        port.open = false;
        port.generation = port.generation.wrapping_add(1);
        port.upstream = None;
        port.ids.clear();
        port.owners.clear();
        self.free.push(index);
        self.open -= 1;
    }

    fn id(&self, index: u32) -> SocketId {
        SocketId { index, generation: self.sockets[index as usize].generation }
    }

    fn port(&self, socket: SocketId) -> Option<&UdpSocket> {
        self.sockets.get(socket.index()).filter(|port| port.open && port.generation == socket.generation)
    }
}

impl UdpSocket {
    fn vacant() -> Self {
        Self {
            generation: 0,
            open: false,
            upstream: None,
            local: None,
            opened: MachineTime(0),
            queries: 0,
            unmatched: 0,
            retired: false,
            ids: Vec::new(),
            owners: Vec::new(),
        }
    }
}

impl UpstreamSockets {
    fn new() -> Self {
        Self {
            active: Vec::new(),
            retiring: VecDeque::new(),
            current: 0,
            chosen: MachineTime::NEVER,
            left: 0,
        }
    }
}

fn is_open(sockets: &[UdpSocket], socket: SocketId) -> bool {
    sockets.get(socket.index()).is_some_and(|port| port.open && port.generation == socket.generation)
}

/// Datagrams without a matching query after which a socket is retired: two may be duplicates of a
/// reply, or late.
const UNMATCHED_MAX: u8 = 3;
/// Whether a socket has reached its limit of queries or age.
fn worn(port: &UdpSocket, now: MachineTime, limits: &Limits) -> bool {
    port.queries >= limits.socket_queries || now.since(port.opened) >= limits.socket_age
}

/// Queries of one batch that are sent from one socket before another socket is drawn: eight in one
/// system call have most of sendmmsg's benefit.
const QUERIES_PER_CHOICE: u32 = 8;

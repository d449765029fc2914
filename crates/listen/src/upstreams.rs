//! A worker's sockets towards upstreams, and what waits to be sent on them.

use std::io;
use std::net::SocketAddr;

use forwarder::{SocketId, Upstream};
use rand::rngs::ThreadRng;
use sockets::{Epoll, RecvBatch, UpstreamSocket};

use super::token::UPSTREAM;
use node::SourcePorts;

/// Sockets by the forwarder's ids, and one batch of queries.
pub(crate) struct Upstreams {
    sockets: Vec<Option<(SocketId, UpstreamSocket)>>,
    /// Sockets opened since the last flush: epoll is told then.
    opened: Vec<SocketId>,
    queue: Vec<Queued>,
    bytes: Vec<u8>,
    random: ThreadRng,
}

struct Queued {
    socket: SocketId,
    start: usize,
    end: usize,
}

impl Upstreams {
    pub(crate) fn new() -> Self {
        Self {
            sockets: Vec::new(),
            opened: Vec::new(),
            queue: Vec::new(),
            bytes: Vec::new(),
            random: rand::rng(),
        }
    }

    /// Connects a socket to `upstream` from one of `ports` that nobody can guess, and tells its own address.
    pub(crate) fn open(
        &mut self,
        id: SocketId,
        upstream: &Upstream,
        ports: &SourcePorts,
    ) -> io::Result<SocketAddr> {
        let random = &mut self.random;
        let candidates = std::iter::repeat_with(|| ports.draw(random));
        let socket = UpstreamSocket::connect(upstream.address(), candidates, upstream.source())?;
        let local = socket.local_addr();
        if self.sockets.len() <= id.index() {
            self.sockets.resize_with(id.index() + 1, || None);
        }
        self.sockets[id.index()] = Some((id, socket));
        self.opened.push(id);
        Ok(local)
    }

    /// Closes a socket; the kernel forgets it for epoll, too.
    pub(crate) fn close(&mut self, id: SocketId) {
        if let Some(place) = self.sockets.get_mut(id.index()) {
            place.take_if(|(open, _)| *open == id);
        }
    }

    /// Puts a query into the next batch.
    pub(crate) fn queue(&mut self, socket: SocketId, query: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(query);
        self.queue.push(Queued { socket, start, end: self.bytes.len() });
    }

    /// Takes what has arrived on the socket with this index.
    pub(crate) fn receive(
        &self,
        socket_index: usize,
        batch: &mut RecvBatch,
    ) -> Option<(SocketId, io::Result<usize>)> {
        let (id, socket) = self.sockets.get(socket_index)?.as_ref()?;
        Some((*id, socket.receive(batch)))
    }

    /// Registers new sockets and sends every queued query, those of one socket in one call; `failed` is told what the
    /// network refused, and with its id each query that did not leave.
    pub(crate) fn flush(&mut self, epoll: &Epoll, mut failed: impl FnMut(SocketId, Option<u16>, io::Error)) {
        for id in self.opened.drain(..) {
            if let Some(Some((open, socket))) = self.sockets.get(id.index())
                && *open == id
                && let Err(error) = epoll.add(socket, UPSTREAM | id.index() as u64)
            {
                failed(id, None, error);
            }
        }
        // The forwarder stays with one socket for a few queries: runs of the same one are the rule.
        let mut rest = self.queue.as_slice();
        while let Some(first) = rest.first() {
            let run = rest.iter().take_while(|queued| queued.socket == first.socket).count();
            let (now, later) = rest.split_at(run);
            rest = later;
            let Some(Some((open, socket))) = self.sockets.get(first.socket.index()) else { continue };
            if *open != first.socket {
                continue;
            }
            let message = |queued: &Queued| &self.bytes[queued.start..queued.end];
            let sent = socket.send_batch(now.iter().map(message), |at, error| {
                let id = message(&now[at]).first_chunk().map(|id| u16::from_be_bytes(*id));
                failed(first.socket, id, error);
            });
            if let Some(error) = sent.upstream_error {
                failed(first.socket, None, error);
            }
        }
        self.queue.clear();
        self.bytes.clear();
    }
}

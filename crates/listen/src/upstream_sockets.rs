//! A worker's UDP sockets to upstreams, and the batch to send from them.

use std::io;
use std::net::SocketAddr;

use forwarder::{Forwarder, SendError, SocketId, Upstream};
use rand::rngs::ThreadRng;
use sockets::{Epoll, RecvBatch, UpstreamSocket};

use super::token::UPSTREAM;
use node::SourcePorts;

/// Sockets by the forwarder's ids, and one batch of queries to send.
pub(crate) struct UpstreamSockets {
    sockets: Vec<Option<(SocketId, UpstreamSocket)>>,
    /// Sockets opened since the last flush, which registers them with epoll.
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

impl UpstreamSockets {
    pub(crate) fn new() -> Self {
        Self {
            sockets: Vec::new(),
            opened: Vec::new(),
            queue: Vec::new(),
            bytes: Vec::new(),
            random: rand::rng(),
        }
    }

    /// Connects a socket to `upstream` from a random one of `ports`. Returns its local address.
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

    /// Closes a socket; the kernel removes it from epoll.
    pub(crate) fn close(&mut self, id: SocketId) {
        if let Some(place) = self.sockets.get_mut(id.index()) {
            place.take_if(|(open, _)| *open == id);
        }
    }

    /// Receives a batch from the socket with this index.
    pub(crate) fn receive(
        &self,
        socket_index: usize,
        batch: &mut RecvBatch,
    ) -> Option<(SocketId, io::Result<usize>)> {
        let (id, socket) = self.sockets.get(socket_index)?.as_ref()?;
        Some((*id, socket.receive(batch)))
    }

    /// Registers new sockets, and sends the forwarder's datagrams, those of one socket in one call.
    /// Reports errors to the forwarder; returns whether there were any.
    pub(crate) fn flush<W>(&mut self, epoll: &Epoll, forwarder: &mut Forwarder<W>) -> bool {
        let mut refused = false;
        for id in self.opened.drain(..) {
            if let Some(Some((open, socket))) = self.sockets.get(id.index())
                && *open == id
                && let Err(error) = epoll.add(socket, UPSTREAM | id.index() as u64)
            {
                forwarder.socket_error(id, error.kind());
                refused = true;
            }
        }
        self.queue.clear();
        self.bytes.clear();
        let mut start = 0;
        while let Some(socket) = forwarder.poll_transmit(&mut self.bytes) {
            #[cfg(test)]
            crate::failpoint::within(&self.bytes[start..], "send", "again");
            let end = self.bytes.len();
            self.queue.push(Queued { socket, start, end });
            start = end;
        }
        // The forwarder uses a socket for a few queries in a row.
        for run in self.queue.chunk_by(|one, next| one.socket == next.socket) {
            let id = run[0].socket;
            let Some(Some((open, socket))) = self.sockets.get(id.index()) else { continue };
            if *open != id {
                continue;
            }
            let message = |queued: &Queued| &self.bytes[queued.start..queued.end];
            let sent = socket.send_batch(run.iter().map(message), |at, error| {
                refused = true;
                if let Some(query) = message(&run[at]).first_chunk() {
                    forwarder.unsent(id, u16::from_be_bytes(*query), SendError::from(&error));
                }
            });
            if let Some(error) = sent.upstream_error {
                refused = true;
                forwarder.socket_error(id, error.kind());
            }
        }
        refused
    }
}

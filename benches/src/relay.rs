//! A raw UDP relay in one loop: the minimum cost of a miss.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use sockets::{BATCH, Events, RecvBatch, SendBatch, UpstreamSocket};
use wire::HEADER;

use crate::responder::{LOOK_AT_CLOCK, Listeners, SLOT_BYTES};
use load::burst::Burst;
use load::clock::Clock;

/// Forwards every query received on `listen` to `upstream` with a new id, and every reply back;
/// pinned to `core` if given. Returns after `lasting`. It reads only the id of a message, and has
/// no retries and no timeouts.
///
/// # Errors
/// Errors of the kernel for addresses, sockets and cores.
pub fn relay(
    listen: &[SocketAddr],
    upstream: SocketAddr,
    core: Option<usize>,
    lasting: Duration,
) -> Result<()> {
    let clock = Clock::start();
    let listeners = Listeners::bind(listen, core)?;
    let socket = UpstreamSocket::connect(upstream, std::iter::empty(), None)
        .with_context(|| format!("upstream {upstream}"))?;
    listeners.epoll.add(&socket, u64::MAX).context("epoll")?;
    let mut flights = Flights::new();
    let mut events = Events::new(16);
    let mut received = RecvBatch::new(BATCH, SLOT_BYTES);
    let mut queries = Burst::default();
    let mut replies: Vec<_> = listen.iter().map(|_| SendBatch::new(BATCH, 512, 4096)).collect();
    let mut passes = 0u32;
    loop {
        let mut idle = true;
        for (from, listener) in listeners.sockets.iter().enumerate() {
            if listener.receive(&mut received).context("receive")? == 0 {
                continue;
            }
            idle = false;
            queries.clear();
            for datagram in received.iter().filter(|datagram| datagram.bytes.len() >= HEADER) {
                let id = flights.depart(from, datagram.peer.address(), datagram.bytes);
                queries.push(|out| {
                    out.extend_from_slice(&id.to_be_bytes());
                    out.extend_from_slice(&datagram.bytes[2..]);
                });
            }
            // A query that cannot be sent is lost, as in any network; the client retries.
            socket.send_batch(queries.messages(), |_, _| {});
        }
        // An ICMP error is about an earlier message.
        if socket.receive(&mut received).unwrap_or(0) > 0 {
            idle = false;
            for datagram in received.iter().filter(|datagram| datagram.bytes.len() >= HEADER) {
                let id = u16::from_be_bytes([datagram.bytes[0], datagram.bytes[1]]);
                let Some(flight) = flights.land(id) else { continue };
                let batch = &mut replies[flight.from];
                let Some(reply) = batch.slot() else { continue };
                reply.extend_from_slice(&flight.id);
                reply.extend_from_slice(&datagram.bytes[2..]);
                batch.commit(&flight.peer.into(), None);
            }
            for (listener, batch) in listeners.sockets.iter().zip(&mut replies) {
                if !batch.is_empty() {
                    listener.send(batch);
                }
            }
        }
        if idle {
            listeners.epoll.wait(&mut events, Some(LOOK_AT_CLOCK)).context("epoll")?;
        }
        passes = passes.wrapping_add(1);
        if (idle || passes.is_multiple_of(1024)) && clock.now_ns() >= lasting.as_nanos() as u64 {
            return Ok(());
        }
    }
}

/// Outstanding queries by the id sent to the upstream; a new query replaces the oldest.
struct Flights {
    slots: Vec<Option<Flight>>,
    next: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Flight {
    from: usize,
    peer: SocketAddr,
    id: [u8; 2],
}

impl Flights {
    fn new() -> Self {
        Self { slots: vec![None; 1 << 16], next: 0 }
    }

    fn depart(&mut self, from: usize, peer: SocketAddr, query: &[u8]) -> u16 {
        let id = self.next;
        self.next = id.wrapping_add(1);
        self.slots[usize::from(id)] = Some(Flight { from, peer, id: [query[0], query[1]] });
        id
    }

    fn land(&mut self, id: u16) -> Option<Flight> {
        self.slots[usize::from(id)].take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_finds_its_client_once() {
        let mut flights = Flights::new();
        let peer = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let first = flights.depart(0, peer(1), b"\x12\x34");
        let second = flights.depart(1, peer(2), b"\x12\x34");
        assert_ne!(first, second);
        assert_eq!(flights.land(second), Some(Flight { from: 1, peer: peer(2), id: [0x12, 0x34] }));
        assert_eq!(flights.land(second), None);
        for _ in 0..1 << 16 {
            flights.depart(0, peer(3), b"\0\0");
        }
        assert_eq!(flights.land(first).map(|flight| flight.peer), Some(peer(3)), "the oldest gave way");
    }
}

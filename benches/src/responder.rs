//! Servers with one loop and fixed answers: the echo, an upper bound set by the kernel, and the
//! upstream.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use sockets::{BATCH, Epoll, Events, ListenOptions, ListenSocket, RecvBatch, SendBatch};
use wire::{Class, Flags, HEADER, RType, Verdict, accept};

use load::clock::Clock;
use load::names::address_of;

/// Answers every message received on `listen`, pinned to `core` if given. Returns after `lasting`.
/// `answer` writes the reply into the empty buffer and returns whether there is one.
///
/// # Errors
/// Errors of the kernel for addresses, sockets and cores.
pub fn serve(
    listen: &[SocketAddr],
    core: Option<usize>,
    lasting: Duration,
    mut answer: impl FnMut(&[u8], &mut Vec<u8>) -> bool,
) -> Result<()> {
    let clock = Clock::start();
    let listeners = Listeners::bind(listen, core)?;
    let mut events = Events::new(16);
    let mut received = RecvBatch::new(BATCH, SLOT_BYTES);
    let mut replies = SendBatch::new(BATCH, 512, 4096);
    let mut passes = 0u32;
    loop {
        let mut idle = true;
        for socket in &listeners.sockets {
            if socket.receive(&mut received).context("receive")? == 0 {
                continue;
            }
            idle = false;
            for datagram in received.iter().filter(|datagram| datagram.peer.port() != 0) {
                let Some(reply) = replies.slot() else { break };
                if answer(datagram.bytes, reply) {
                    replies.commit(datagram.peer, datagram.local);
                }
            }
            socket.send(&mut replies);
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

/// Writes the query with QR set, the cheapest possible reply; returns false if the message is no
/// query.
#[inline]
pub fn echo(query: &[u8], reply: &mut Vec<u8>) -> bool {
    reply.extend_from_slice(query);
    match reply.get_mut(2) {
        Some(flags) if *flags & 0x80 == 0 && query.len() >= HEADER => {
            *flags |= 0x80;
            true
        }
        _ => false,
    }
}

/// Writes one A record, its owner compressed, with the name's address and a TTL of an hour; NODATA
/// for other types and classes; the refusal of `accept` for a message that is no query.
#[inline]
pub fn upstream(query: &[u8], reply: &mut Vec<u8>) -> bool {
    let query = match accept(query) {
        Verdict::Drop | Verdict::Zone(_) => return false,
        Verdict::Refuse(refusal) => {
            refusal.write(reply);
            return true;
        }
        Verdict::Pass(query) => query,
    };
    let known = query.rtype == RType::A && query.class == Class::IN;
    let flags = Flags::QR | Flags::RA | (query.flags.0 & (Flags::RD | Flags::CD));
    reply.extend_from_slice(&query.id.to_be_bytes());
    reply.extend_from_slice(&flags.to_be_bytes());
    reply.extend_from_slice(&[0, 1, 0, u8::from(known), 0, 0, 0, 0]);
    reply.extend_from_slice(query.question);
    if known {
        reply.extend_from_slice(b"\xc0\x0c\0\x01\0\x01\0\0\x0e\x10\0\x04");
        reply.extend_from_slice(&address_of(query.name.as_wire()).octets());
    }
    true
}

/// Bound sockets with a common epoll.
pub(crate) struct Listeners {
    pub(crate) sockets: Vec<ListenSocket>,
    pub(crate) epoll: Epoll,
}

impl Listeners {
    /// Binds every address, after pinning the thread to `core`.
    pub(crate) fn bind(listen: &[SocketAddr], core: Option<usize>) -> Result<Self> {
        if let Some(core) = core {
            sockets::pin_to_core(core).with_context(|| format!("core {core}"))?;
        }
        let epoll = Epoll::new().context("epoll")?;
        let mut bound = Vec::new();
        for addr in listen {
            let socket = ListenSocket::bind_first(*addr, &ListenOptions::default());
            let socket = socket.with_context(|| format!("listen on {addr}"))?;
            epoll.add(&socket, bound.len() as u64).context("epoll")?;
            bound.push(socket);
        }
        Ok(Self { sockets: bound, epoll })
    }
}

/// The size of the server's own buffers for clients.
pub(crate) const SLOT_BYTES: usize = 4096;
/// Maximum wait between checks of the clock.
pub(crate) const LOOK_AT_CLOCK: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;
    use load::judge::{Expect, Judgement, judge};

    #[test]
    fn an_echo_flips_one_bit_and_leaves_replies_and_stumps_alone() {
        let query = b"\x00\x07\x01\x00\x00\x01\0\0\0\0\0\0";
        let mut reply = Vec::new();
        assert!(echo(query, &mut reply));
        assert_eq!(reply, b"\x00\x07\x81\x00\x00\x01\0\0\0\0\0\0");
        assert!(!echo(&reply.clone(), &mut Vec::new()));
        assert!(!echo(&query[..11], &mut Vec::new()));
        assert!(!echo(b"", &mut Vec::new()));
    }

    #[test]
    fn the_upstream_gives_each_name_its_address() {
        let question = b"\x03Www\x05bench\0\0\x01\0\x01";
        let query = [b"\0\x07\x01\0\0\x01\0\0\0\0\0\0".as_slice(), question].concat();
        let mut reply = Vec::new();
        assert!(upstream(&query, &mut reply));
        let address = address_of(b"\x03www\x05bench\0");
        assert_eq!(judge(&reply, question, Expect::Address(address)), Judgement::Right);
        let mut other_type = query.clone();
        let at = other_type.len() - 3;
        other_type[at] = 28;
        reply.clear();
        assert!(upstream(&other_type, &mut reply));
        assert_eq!((reply[3] & 0xf, reply[7]), (0, 0), "NODATA");
        reply.clear();
        assert!(!upstream(&query[..5], &mut reply));
    }
}

//! Helpers: peers, and waiting without sleeping.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;

use sockets::{Epoll, Event, Events, Local, SendBatch};

/// A plain client on `source` that is connected to `server`.
pub(crate) fn client(source: &str, server: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((source, 0))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.connect(server)?;
    Ok(socket)
}

/// Adds a copy of `bytes` as a reply to `peer`. False, and nothing added, if the batch is full.
pub(crate) fn reply(replies: &mut SendBatch, peer: &SocketAddr, local: Option<Local>, bytes: &[u8]) -> bool {
    let Some(slot) = replies.slot() else { return false };
    slot.extend_from_slice(bytes);
    replies.commit(&(*peer).into(), local);
    true
}

/// Waits for an event of `socket`.
pub(crate) fn wait_for(socket: &impl AsFd) -> io::Result<Event> {
    events_within(socket, PATIENCE)?.ok_or_else(|| io::ErrorKind::TimedOut.into())
}

/// An event of `socket` within `timeout`, if there is one.
pub(crate) fn events_within(socket: &impl AsFd, timeout: Duration) -> io::Result<Option<Event>> {
    let epoll = Epoll::new()?;
    let mut events = Events::new(1);
    epoll.add(socket, 0)?;
    epoll.wait(&mut events, Some(timeout))?;
    Ok(events.iter().next())
}

/// Far longer than anything over loopback takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

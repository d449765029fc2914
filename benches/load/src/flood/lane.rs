//! One socket or connection of a load.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result};
use sockets::{Epoll, RecvBatch, UpstreamSocket};

use super::Transport;
use crate::burst::Burst;

/// A UDP socket or TCP connection for queries to one target and their replies.
pub(super) enum Lane {
    Udp(UpstreamSocket),
    Tcp(Connection),
}

impl Lane {
    /// Connects and registers with `epoll`.
    pub(super) fn open(transport: Transport, target: SocketAddr, epoll: &Epoll) -> Result<Self> {
        let lane = match transport {
            Transport::Udp => {
                let socket = UpstreamSocket::connect(target, std::iter::empty(), None)
                    .with_context(|| format!("connect to {target}"))?;
                epoll.add(&socket, 0).context("epoll")?;
                Self::Udp(socket)
            }
            Transport::Tcp => Self::Tcp(Connection::open(target, epoll)?),
        };
        Ok(lane)
    }

    /// Sends a burst. Calls `unsent` with the index of each message that could not be sent. Returns
    /// the number of errors.
    pub(super) fn send(&mut self, burst: &Burst, mut unsent: impl FnMut(usize)) -> u64 {
        match self {
            Self::Udp(socket) => {
                let sent = socket.send_batch(burst.messages(), |index, _| unsent(index));
                u64::from(sent.upstream_error.is_some())
            }
            Self::Tcp(connection) => {
                connection.out.extend_from_slice(burst.framed());
                u64::from(connection.flush().is_err())
            }
        }
    }

    /// Receives the available messages; `each` gets every message. Returns their number.
    ///
    /// # Errors
    /// The network's error about earlier queries, or the end of the connection.
    pub(super) fn receive(
        &mut self,
        received: &mut RecvBatch,
        mut each: impl FnMut(&[u8]),
    ) -> io::Result<usize> {
        match self {
            Self::Udp(socket) => {
                let count = socket.receive(received)?;
                received.iter().for_each(|datagram| each(datagram.bytes));
                Ok(count)
            }
            Self::Tcp(connection) => connection.receive(each),
        }
    }

    /// Replaces a connection that ended; a UDP socket stays. Returns true if the outstanding
    /// queries are lost.
    pub(super) fn replace_ended(&mut self, epoll: &Epoll) -> Result<bool> {
        match self {
            Self::Tcp(connection) if connection.ended => {
                *connection = Connection::open(connection.target, epoll)?;
                Ok(true)
            }
            Self::Tcp(_) | Self::Udp(_) => Ok(false),
        }
    }
}

/// A connection that never blocks once it is open.
pub(super) struct Connection {
    target: SocketAddr,
    stream: TcpStream,
    /// Bytes that the kernel has not accepted; bounded by the ids of a lane.
    out: Vec<u8>,
    /// The received part of an incomplete message.
    frames: Frames,
    ended: bool,
}

impl Connection {
    fn open(target: SocketAddr, epoll: &Epoll) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&target, CONNECT_MAX)
            .with_context(|| format!("connect to {target} over TCP"))?;
        stream.set_nodelay(true).context("TCP_NODELAY")?;
        stream.set_nonblocking(true).context("O_NONBLOCK")?;
        epoll.add(&stream, 0).context("epoll")?;
        Ok(Self { target, stream, out: Vec::new(), frames: Frames::default(), ended: false })
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut written = 0;
        let outcome = loop {
            if written == self.out.len() {
                break Ok(());
            }
            match self.stream.write(&self.out[written..]) {
                Ok(bytes) => written += bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.ended = true;
                    break Err(error);
                }
            }
        };
        self.out.drain(..written);
        outcome
    }

    fn receive(&mut self, mut each: impl FnMut(&[u8])) -> io::Result<usize> {
        // Retries bytes that the kernel did not accept before.
        self.flush()?;
        let mut count = 0;
        let mut bytes = [0; READ_BYTES];
        match self.stream.read(&mut bytes) {
            Ok(0) => {
                self.ended = true;
                Err(io::ErrorKind::UnexpectedEof.into())
            }
            Ok(length) => {
                self.frames.feed(&bytes[..length], |message| {
                    count += 1;
                    each(message);
                });
                Ok(count)
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Ok(0)
            }
            Err(error) => {
                self.ended = true;
                Err(error)
            }
        }
    }
}

/// A parser of length-prefixed messages in a stream of bytes (RFC 1035, section 4.2.2).
#[derive(Default)]
struct Frames {
    bytes: Vec<u8>,
}

impl Frames {
    /// Adds bytes and passes every complete message to `each`. Keeps only an incomplete last
    /// message.
    fn feed(&mut self, more: &[u8], mut each: impl FnMut(&[u8])) {
        self.bytes.extend_from_slice(more);
        let mut at = 0;
        while let Some(length) = self.bytes[at..].first_chunk::<2>() {
            let end = at + 2 + usize::from(u16::from_be_bytes(*length));
            let Some(message) = self.bytes.get(at + 2..end) else { break };
            each(message);
            at = end;
        }
        self.bytes.drain(..at);
    }
}

const CONNECT_MAX: Duration = Duration::from_secs(2);
const READ_BYTES: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages are returned whole, regardless of where the stream is cut.
    #[test]
    fn stream_is_cut_anywhere() {
        let stream = b"\0\x03one\0\0\0\x05three";
        for cut in 0..=stream.len() {
            let (mut frames, mut found) = (Frames::default(), Vec::new());
            for part in [&stream[..cut], &stream[cut..]] {
                frames.feed(part, |message| found.push(message.to_vec()));
            }
            assert_eq!(found, [b"one".to_vec(), vec![], b"three".to_vec()], "cut at {cut}");
            assert!(frames.bytes.is_empty());
        }
    }
}

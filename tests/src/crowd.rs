//! Many TCP connections of hostile clients: they send given bytes, read nothing, and reconnect when
//! they are closed.

use std::io::{ErrorKind, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};

use nix::errno::Errno;
use socket2::{Domain, Socket, Type};

/// A set of connections, all non-blocking.
#[derive(Debug)]
pub struct Crowd {
    server: SocketAddr,
    members: Vec<Member>,
    octets: Vec<u8>,
    again: usize,
    at_a_time: usize,
}

#[derive(Debug)]
struct Member {
    from: IpAddr,
    stream: Option<TcpStream>,
    sent: usize,
}

impl Crowd {
    /// `each` connections from each of these addresses; each connection sends these bytes and then
    /// nothing.
    pub fn gather(server: SocketAddr, from: &[IpAddr], each: usize, octets: Vec<u8>) -> Self {
        let member = |from: &IpAddr| Member { from: *from, stream: None, sent: 0 };
        let members = (0..each).flat_map(|_| from.iter().map(member)).collect();
        Self { server, members, octets, again: 0, at_a_time: usize::MAX }
    }

    /// Limits the reconnections per [`Self::press`]: for messages that are expensive for an
    /// unoptimized server.
    pub fn slowly(mut self, at_a_time: usize) -> Self {
        self.at_a_time = at_a_time;
        self
    }

    /// Sends up to `most` more bytes on every connection, as far as the kernel accepts them, and
    /// reconnects the closed ones. Returns the number of bytes sent.
    pub fn press(&mut self, most: usize) -> usize {
        let mut pressed = 0;
        let mut remaining = if self.again == 0 { usize::MAX } else { self.at_a_time };
        for member in &mut self.members {
            let Some(stream) = &mut member.stream else {
                if remaining == 0 {
                    continue;
                }
                remaining -= 1;
                member.stream = connect(member.from, self.server).ok();
                member.sent = 0;
                continue;
            };
            let end = self.octets.len().min(member.sent + most);
            let closed = match stream.write(&self.octets[member.sent..end]) {
                Ok(sent) => {
                    member.sent += sent;
                    pressed += sent;
                    // Data, or none yet, means that the connection is open.
                    matches!(stream.peek(&mut [0]), Ok(0))
                }
                Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected),
            };
            if closed {
                member.stream = None;
                self.again += 1;
            }
        }
        pressed
    }

    /// How many connections the server has closed so far.
    pub fn closed(&self) -> usize {
        self.again
    }
}

fn connect(from: IpAddr, server: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(server), Type::STREAM, None)?;
    socket.bind(&SocketAddr::from((from, 0)).into())?;
    socket.set_nonblocking(true)?;
    match socket.connect(&server.into()) {
        Err(error) if error.raw_os_error() != Some(Errno::EINPROGRESS as i32) => Err(error),
        _ => Ok(socket.into()),
    }
}

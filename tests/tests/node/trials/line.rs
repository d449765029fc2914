//! A client's non-blocking UDP socket or TCP connection.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};

use socket2::{Domain, Socket, Type};

use super::load::Way;

pub(super) enum Line {
    Port { socket: UdpSocket, to: SocketAddr },
    Connection { stream: TcpStream, unsent: Vec<u8>, received: Vec<u8> },
}

impl Line {
    /// Opens it; `None` without a route.
    pub(super) fn open(to: SocketAddr, way: Way) -> Option<Self> {
        let kind = if way.over_tcp() { Type::STREAM } else { Type::DGRAM };
        let socket = Socket::new(Domain::for_address(to), kind, None).expect("there are sockets");
        socket.set_nonblocking(true).expect("it can be set");
        let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
        let ready = match way {
            // Not connected, since that would fix the source address, which may go away.
            Way::OnePort => socket.bind(&SocketAddr::from((any, 0)).into()),
            _ => socket.connect(&to.into()),
        };
        match ready {
            Err(error) if error.raw_os_error() != Some(nix::errno::Errno::EINPROGRESS as i32) => return None,
            _ => {}
        }
        if way.over_tcp() {
            socket.set_tcp_nodelay(true).expect("it can be set");
            return Some(Self::Connection {
                stream: socket.into(),
                unsent: Vec::new(),
                received: Vec::new(),
            });
        }
        Some(Self::Port { socket: socket.into(), to })
    }

    /// Sends a query; over a connection that is not open yet, the next call flushes it.
    pub(super) fn send(&mut self, query: &[u8]) -> io::Result<()> {
        match self {
            Self::Port { socket, to } => {
                // The first call may return the refusal (ICMP) of an earlier query, without sending
                // this one.
                socket.send_to(query, *to).or_else(|_| socket.send_to(query, *to)).map(drop)
            }
            Self::Connection { unsent, .. } => {
                unsent.extend(u16::try_from(query.len()).expect("a short query").to_be_bytes());
                unsent.extend(query);
                self.flush()
            }
        }
    }

    /// The next reply, if it has arrived.
    ///
    /// # Errors
    /// Returns the end of a connection, or the refusal of a query from this port.
    pub(super) fn receive(&mut self) -> io::Result<Option<Vec<u8>>> {
        self.flush()?;
        let mut buffer = [0; 512];
        match self {
            Self::Port { socket, to } => loop {
                match socket.recv_from(&mut buffer) {
                    Ok((length, from)) if from == *to && length >= 2 => {
                        return Ok(Some(buffer[..length].to_vec()));
                    }
                    // From another address.
                    Ok(_) => {}
                    Err(error) => return nothing_yet(error),
                }
            },
            Self::Connection { stream, received, .. } => loop {
                if let Some(message) = next_message(received) {
                    return Ok(Some(message));
                }
                match stream.read(&mut buffer) {
                    Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                    Ok(length) => received.extend(&buffer[..length]),
                    Err(error) => return nothing_yet(error),
                }
            },
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        let Self::Connection { stream, unsent, .. } = self else { return Ok(()) };
        while !unsent.is_empty() {
            match stream.write(unsent) {
                Ok(length) => drop(unsent.drain(..length)),
                Err(error) => return nothing_yet(error).map(|_| ()),
            }
        }
        Ok(())
    }
}

fn nothing_yet(error: io::Error) -> io::Result<Option<Vec<u8>>> {
    if error.kind() == ErrorKind::WouldBlock { Ok(None) } else { Err(error) }
}

fn next_message(received: &mut Vec<u8>) -> Option<Vec<u8>> {
    let length = usize::from(u16::from_be_bytes([*received.first()?, *received.get(1)?]));
    let message = received.get(2..2 + length).filter(|message| message.len() >= 2)?.to_vec();
    received.drain(..2 + length);
    Some(message)
}

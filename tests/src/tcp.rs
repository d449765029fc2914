//! Queries over one TCP connection, many in flight (RFC 7766).

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result};
use socket2::{Domain, Socket, Type};

use crate::message::Message;

/// A client's TCP connection.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
}

impl Connection {
    /// Connects; `timeout` holds for this and for every later wait.
    ///
    /// # Errors
    /// The socket's.
    pub fn open(server: SocketAddr, timeout: Duration) -> Result<Self> {
        Self::ready(TcpStream::connect_timeout(&server, timeout).context("connect")?, timeout)
    }

    /// As [`Self::open`], from this address.
    ///
    /// # Errors
    /// The socket's.
    pub fn open_from(from: IpAddr, server: SocketAddr, timeout: Duration) -> Result<Self> {
        let socket = Socket::new(Domain::for_address(server), Type::STREAM, None)?;
        socket.bind(&SocketAddr::from((from, 0)).into())?;
        socket.connect_timeout(&server.into(), timeout).context("connect")?;
        Self::ready(socket.into(), timeout)
    }

    fn ready(stream: TcpStream, timeout: Duration) -> Result<Self> {
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream })
    }

    /// The client's own port.
    ///
    /// # Panics
    /// Never: a connected socket has an address.
    pub fn port(&self) -> u16 {
        self.stream.local_addr().expect("a connected socket has an address").port()
    }

    /// Sends one message behind its length.
    ///
    /// # Errors
    /// The socket's.
    pub fn send(&mut self, message: &[u8]) -> Result<()> {
        let length = u16::try_from(message.len()).context("a message above 64 KiB")?;
        self.send_octets(&[&length.to_be_bytes()[..], message].concat())
    }

    /// Sends octets as they are.
    ///
    /// # Errors
    /// The socket's.
    pub fn send_octets(&mut self, octets: &[u8]) -> Result<()> {
        Ok(self.stream.write_all(octets)?)
    }

    /// Says that nothing more will be sent; replies still come.
    ///
    /// # Errors
    /// The socket's.
    pub fn finish(&mut self) -> Result<()> {
        Ok(self.stream.shutdown(Shutdown::Write)?)
    }

    /// The next message's octets.
    ///
    /// # Errors
    /// The end of the connection, or of the time.
    pub fn receive(&mut self) -> Result<Vec<u8>> {
        let mut length = [0; 2];
        self.stream.read_exact(&mut length).context("no reply")?;
        let mut message = vec![0; u16::from_be_bytes(length).into()];
        self.stream.read_exact(&mut message).context("half a reply")?;
        Ok(message)
    }

    /// The next message, decoded.
    ///
    /// # Errors
    /// As [`Self::receive`], or a broken message.
    pub fn message(&mut self) -> Result<Message> {
        Message::decode(&self.receive()?)
    }

    /// Whether the server ends the connection (by FIN or RST) before the timeout; messages that come before are dropped.
    pub fn is_closed_by_peer(&mut self) -> bool {
        let mut buffer = [0; 4096];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => {
                    return !matches!(
                        error.kind(),
                        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
                    );
                }
            }
        }
    }
}

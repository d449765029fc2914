//! Queries over one TCP or TLS connection, many in flight (RFC 7766, RFC 7858).

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, HandshakeKind, StreamOwned};
use socket2::{Domain, Socket, Type};

use crate::message::Message;

/// A TLS client's configuration.
#[derive(Debug, Clone)]
pub struct TlsClient {
    /// Trusted authorities, and the client's certificate.
    pub config: Arc<ClientConfig>,
    /// The name that the server must prove.
    pub name: ServerName<'static>,
}

/// A client's TCP or TLS connection.
#[derive(Debug)]
pub struct Connection {
    stream: Stream,
}

#[derive(Debug)]
enum Stream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Stream {
    fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(tls) => &tls.sock,
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(buffer),
            Self::Tls(tls) => tls.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, octets: &[u8]) -> std::io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.write(octets),
            Self::Tls(tls) => tls.write(octets),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match self {
            Self::Plain(socket) => socket.flush(),
            Self::Tls(tls) => tls.flush(),
        }
    }
}

impl Connection {
    /// Connects; `timeout` applies to the connect and to every later read.
    ///
    /// # Errors
    /// The socket's.
    pub fn open(server: SocketAddr, timeout: Duration) -> Result<Self> {
        Self::ready(TcpStream::connect_timeout(&server, timeout).context("connect")?, timeout)
    }

    /// Like [`Self::open`], followed by a TLS handshake.
    ///
    /// # Errors
    /// The socket's, or a rejection by either side. With TLS 1.3 the server rejects a client after
    /// the handshake.
    pub fn open_tls(server: SocketAddr, client: &TlsClient, timeout: Duration) -> Result<Self> {
        let Stream::Plain(socket) = Self::open(server, timeout)?.stream else { unreachable!("it is plain") };
        Self::encrypt(socket, client)
    }

    /// A TLS handshake over a connected socket.
    ///
    /// # Errors
    /// As [`Self::open_tls`].
    pub fn encrypt(mut socket: TcpStream, client: &TlsClient) -> Result<Self> {
        let mut tls = ClientConnection::new(client.config.clone(), client.name.clone())?;
        while tls.is_handshaking() {
            tls.complete_io(&mut socket).context("handshake")?;
        }
        Ok(Self { stream: Stream::Tls(Box::new(StreamOwned::new(tls, socket))) })
    }

    /// A TLS handshake over this connection.
    ///
    /// # Errors
    /// As [`Self::open_tls`].
    ///
    /// # Panics
    /// On an encrypted connection.
    pub fn encrypted(self, client: &TlsClient) -> Result<Self> {
        let Stream::Plain(socket) = self.stream else { panic!("it is encrypted already") };
        Self::encrypt(socket, client)
    }

    /// The certificate that the server presented, and the negotiated protocol.
    ///
    /// # Panics
    /// On a plain connection.
    pub fn shown(&self) -> (Vec<u8>, Option<Vec<u8>>) {
        let Stream::Tls(tls) = &self.stream else { panic!("nothing is shown over plain TCP") };
        let certificate = tls.conn.peer_certificates().and_then(|chain| chain.first());
        let certificate = certificate.map(|certificate| certificate.to_vec()).unwrap_or_default();
        (certificate, tls.conn.alpn_protocol().map(<[u8]>::to_vec))
    }

    /// Whether the handshake resumed a session.
    ///
    /// # Panics
    /// On a plain connection.
    pub fn is_resumed(&self) -> bool {
        let Stream::Tls(tls) = &self.stream else { panic!("there is no session over plain TCP") };
        tls.conn.handshake_kind() == Some(HandshakeKind::Resumed)
    }

    /// Like [`Self::open`], from this address.
    ///
    /// # Errors
    /// The socket's.
    pub fn open_from(from: IpAddr, server: SocketAddr, timeout: Duration) -> Result<Self> {
        let socket = Socket::new(Domain::for_address(server), Type::STREAM, None)?;
        socket.bind(&SocketAddr::from((from, 0)).into())?;
        socket.connect_timeout(&server.into(), timeout).context("connect")?;
        Self::ready(socket.into(), timeout)
    }

    /// Like [`Self::open`], over a connected socket.
    ///
    /// # Errors
    /// The socket's.
    pub fn ready(stream: TcpStream, timeout: Duration) -> Result<Self> {
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: Stream::Plain(stream) })
    }

    /// The client's port.
    ///
    /// # Panics
    /// Never: a connected socket has an address.
    pub fn port(&self) -> u16 {
        self.stream.socket().local_addr().expect("a connected socket has an address").port()
    }

    /// Sends one message with its length prefix.
    ///
    /// # Errors
    /// The socket's.
    pub fn send(&mut self, message: &[u8]) -> Result<()> {
        let length = u16::try_from(message.len()).context("a message above 64 KiB")?;
        self.send_octets(&[&length.to_be_bytes()[..], message].concat())
    }

    /// Sends bytes without a length prefix.
    ///
    /// # Errors
    /// The socket's.
    pub fn send_octets(&mut self, octets: &[u8]) -> Result<()> {
        self.stream.write_all(octets)?;
        Ok(self.stream.flush()?)
    }

    /// Closes the sending direction; replies still arrive.
    ///
    /// # Errors
    /// The socket's.
    pub fn finish(&mut self) -> Result<()> {
        if let Stream::Tls(tls) = &mut self.stream {
            tls.conn.send_close_notify();
            tls.flush()?;
        }
        Ok(self.stream.socket().shutdown(Shutdown::Write)?)
    }

    /// The next message in wire format.
    ///
    /// # Errors
    /// The end of the connection, or a timeout.
    pub fn receive(&mut self) -> Result<Vec<u8>> {
        let mut length = [0; 2];
        self.stream.read_exact(&mut length).context("no reply")?;
        let mut message = vec![0; u16::from_be_bytes(length).into()];
        self.stream.read_exact(&mut message).context("half a reply")?;
        Ok(message)
    }

    /// The next `count` bytes, without a length prefix.
    ///
    /// # Errors
    /// The end of the connection, or a timeout.
    pub fn receive_octets(&mut self, count: usize) -> Result<Vec<u8>> {
        let mut octets = vec![0; count];
        self.stream.read_exact(&mut octets).context("too few bytes")?;
        Ok(octets)
    }

    /// Sends one message and returns the next one received.
    ///
    /// # Errors
    /// As [`Self::send`] and [`Self::receive`].
    pub fn exchange(&mut self, message: &[u8]) -> Result<Vec<u8>> {
        self.send(message)?;
        self.receive()
    }

    /// The next message, decoded.
    ///
    /// # Errors
    /// As [`Self::receive`], or a malformed message.
    pub fn message(&mut self) -> Result<Message> {
        Message::decode(&self.receive()?)
    }

    /// Whether the server ends the connection (by FIN or RST) before the timeout; earlier messages
    /// are dropped.
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

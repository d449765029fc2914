//! The connections to one server. hickory writes and parses messages, and multiplexes queries over a connection;
//! order of servers, deadlines and outcomes are the caller's.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use hickory_proto::op::{DnsRequest, DnsResponse};
use hickory_resolver::config::{ConnectionConfig, ResolverOpts};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::{RuntimeProvider as _, Spawn as _};
use hickory_resolver::net::tls::tls_client_connect;
use hickory_resolver::net::xfer::{DnsExchange, DnsHandle, DnsMultiplexer, FirstAnswer};
use hickory_resolver::{ConnectionProvider, PoolContext, TlsConfig};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::certificate::{KeepsFault, LastFault};
use crate::exchange::{over_udp, udp_socket};
use crate::outcome::LookupError;
use crate::server::{Server, Transport};
use runtime::Runtime;

mod runtime;

/// The connections to one server: a socket for each query over UDP, and one connection for all queries over streams.
pub(crate) struct Connections {
    pub(crate) server: Server,
    runtime: Runtime,
    tls: Option<Tls>,
    connection: Mutex<Option<Arc<Connection>>>,
    /// Set while the last query had no reply: the server is tried after the others, so that later names do not wait for it again.
    pub(crate) silent: AtomicBool,
}

/// The settings of encrypted connections.
struct Tls {
    config: ClientConfig,
    name: ServerName<'static>,
    fault: LastFault,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Udp,
    /// The server's only connection: TCP, TLS, HTTP/2 or QUIC.
    Stream,
}

/// A connection, on which any number of queries wait for their replies.
struct Connection {
    exchange: DnsExchange<Runtime>,
    /// Whether a query on it was answered.
    has_answered: AtomicBool,
    /// Whether a query on it waited for a reply until its deadline.
    is_silent: AtomicBool,
}

impl Connections {
    pub(crate) fn new(server: Server) -> Self {
        let tls = server.transport.tls().map(|settings| {
            let fault = LastFault::default();
            let config = settings.config_with(|verifier| KeepsFault { verifier, last: fault.clone() });
            Tls { config, name: settings.server_name_for(server.address.ip()), fault }
        });
        let runtime = Runtime::new(server.address);
        Self { server, runtime, tls, connection: Mutex::default(), silent: AtomicBool::new(false) }
    }

    /// The protocol of the first try.
    pub(crate) fn first_protocol(&self) -> Protocol {
        if self.tls.is_none() { Protocol::Udp } else { Protocol::Stream }
    }

    /// Sends the query and waits for its reply; has no timeout over UDP.
    ///
    /// # Errors
    /// The kernel's, a connection that cannot be made or that ends, or a reply that hickory cannot parse or that has another
    /// question.
    pub(crate) async fn exchange(
        &self,
        protocol: Protocol,
        request: DnsRequest,
    ) -> Result<DnsResponse, LookupError> {
        let response = match protocol {
            Protocol::Udp => self.over_udp(&request).await.map_err(|error| LookupError::from_net(&error))?,
            Protocol::Stream => self.over_stream(&request).await?,
        };
        // hickory matches replies on a TCP connection by their id alone, and others by their stream.
        let matches = response.queries.is_empty() || response.queries == request.queries;
        if matches { Ok(response) } else { Err(LookupError::Unreadable) }
    }

    /// Sends the query repeatedly, since datagrams may be lost.
    ///
    /// Not over hickory's `UdpClientStream`: its sockets are not connected, so that it waits for a port where no process listens;
    /// it drops FORMERR without a question; and one garbled datagram with the right id ends its try.
    async fn over_udp(&self, request: &DnsRequest) -> Result<DnsResponse, NetError> {
        let query = request.to_vec()?;
        let socket = udp_socket(self.server.address, None).await?;
        loop {
            if let Ok(reply) = timeout(AGAIN, over_udp(&socket, &query)).await {
                return Ok(DnsResponse::from_buffer(reply?)?);
            }
        }
    }

    /// Sends the query over the server's connection, and over another one where that ended after it had answered, since servers
    /// close idle connections and limit the number of queries on each.
    async fn over_stream(&self, request: &DnsRequest) -> Result<DnsResponse, LookupError> {
        let mut ended = None;
        for _ in 0..CONCURRENT {
            let connection = self.connection(ended.as_ref()).await?;
            match connection.send(request.clone()).await {
                Ok(response) => return Ok(response),
                Err(error) if has_ended(&error) && connection.has_answered.load(Relaxed) => {
                    ended = Some(connection);
                }
                Err(error) => {
                    connection.is_silent.fetch_or(has_ended(&error), Relaxed);
                    return Err(self.failed(&error));
                }
            }
        }
        Err(LookupError::Io(io::ErrorKind::ConnectionAborted))
    }

    /// The connection, or a new one in the place of one that has ended or is silent. Callers wait for each other, so that one
    /// connects for all.
    async fn connection(&self, ended: Option<&Arc<Connection>>) -> Result<Arc<Connection>, LookupError> {
        let mut current = self.connection.lock().await;
        if let Some(connection) = &*current
            && !connection.is_silent.load(Relaxed)
            && !ended.is_some_and(|ended| Arc::ptr_eq(ended, connection))
        {
            return Ok(connection.clone());
        }
        *current = None;
        let exchange = self.connect().await.map_err(|error| self.failed(&error))?;
        let connection = Arc::new(Connection {
            exchange,
            has_answered: AtomicBool::new(false),
            is_silent: AtomicBool::new(false),
        });
        Ok(current.insert(connection).clone())
    }

    async fn connect(&self) -> Result<DnsExchange<Runtime>, NetError> {
        let Server { address, transport } = &self.server;
        let config = self.tls.as_ref().map(|tls| tls.config.clone());
        let name = || Arc::from(self.tls.as_ref().map(|tls| tls.name.to_str()).unwrap_or_default());
        let mut connection = match (transport, &self.tls) {
            (Transport::Tls(_), Some(tls)) => return self.connect_tls(tls).await,
            (Transport::Https(_), _) => ConnectionConfig::https(name(), None),
            (Transport::Quic(_), _) => ConnectionConfig::quic(name()),
            (Transport::Dns | Transport::Tls(_), _) => ConnectionConfig::tcp(),
        };
        connection.port = address.port();
        let mut options = ResolverOpts::default();
        (options.timeout, options.max_active_requests) = (TRY, CONCURRENT);
        let tls = match config {
            Some(config) => TlsConfig { config },
            None => TlsConfig::new()?,
        };
        self.runtime.new_connection(address.ip(), &connection, &PoolContext::new(options, tls))?.await
    }

    /// From hickory's parts: its own connections over TLS send no SNI, which servers with several names need.
    async fn connect_tls(&self, tls: &Tls) -> Result<DnsExchange<Runtime>, NetError> {
        let (config, name) = (Arc::new(tls.config.clone()), tls.name.clone());
        let (stream, sender) = tls_client_connect(self.server.address, name, config, self.runtime.clone());
        let multiplexer =
            DnsMultiplexer::new(stream.await?, sender).with_timeout(TRY).with_max_active_requests(CONCURRENT);
        let (exchange, background) = DnsExchange::from_stream(multiplexer);
        self.runtime.create_handle().spawn_bg(background);
        Ok(exchange)
    }

    /// The error of a connection, or of a query on it.
    fn failed(&self, error: &NetError) -> LookupError {
        if let Some(fault) = self.tls.as_ref().and_then(|tls| tls.fault.take()) {
            return LookupError::Certificate(fault);
        }
        match (&self.server.transport, error) {
            // Texts are about HTTP; otherwise they are about the queue of a connection.
            (Transport::Https(_), NetError::Msg(_) | NetError::Decode(_) | NetError::ParseInt(_)) => {
                LookupError::Http
            }
            // Of the errors of a handshake hickory keeps no more than that it is none of the kernel's.
            (Transport::Quic(_), NetError::Io(error)) if error.kind() == io::ErrorKind::Other => {
                LookupError::Handshake
            }
            (_, error) => LookupError::from_net(error),
        }
    }
}

impl Connection {
    async fn send(&self, request: DnsRequest) -> Result<DnsResponse, NetError> {
        let mut waiting = Waiting { connection: self, is_over: false };
        let outcome = self.exchange.send(request).first_answer().await;
        waiting.is_over = true;
        match &outcome {
            Ok(_) => self.has_answered.store(true, Relaxed),
            Err(NetError::Timeout) => self.is_silent.store(true, Relaxed),
            Err(_) => {}
        }
        outcome
    }
}

/// A query that waits for its reply. If it is dropped before, its deadline has passed: later queries do not wait on the same
/// connection, which may be one that the server no longer knows.
struct Waiting<'c> {
    connection: &'c Connection,
    is_over: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.connection.is_silent.fetch_or(!self.is_over, Relaxed);
    }
}

/// Whether the connection is of no more use, in contrast to a reply that cannot be used.
fn has_ended(error: &NetError) -> bool {
    match error {
        // The task of the connection has ended.
        NetError::Busy | NetError::Message(_) => true,
        NetError::Io(_) | NetError::QuinnConnection(_) => true,
        NetError::QuinnReadError(_) | NetError::QuinnWriteError(_) => true,
        error => error.is_connection_closed(),
    }
}

impl LookupError {
    fn from_net(error: &NetError) -> Self {
        match error {
            NetError::Timeout => Self::Silent,
            NetError::Io(error) if is_of_tls(error) => Self::Handshake,
            NetError::Io(error) => Self::Io(error.kind()),
            NetError::Busy | NetError::Message(_) => Self::Io(io::ErrorKind::UnexpectedEof),
            NetError::Proto(_) | NetError::QuicMessageIdNot0(_) | NetError::RequestTooLarge => {
                Self::Unreadable
            }
            NetError::H2(_) | NetError::QuinnReadError(_) | NetError::QuinnWriteError(_) => {
                Self::Io(io::ErrorKind::ConnectionReset)
            }
            _ => Self::Io(io::ErrorKind::ConnectionAborted),
        }
    }
}

/// Whether the error is rustls's, which tokio-rustls wraps.
fn is_of_tls(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>())
}

/// Maximum wait for one server over one protocol.
pub(crate) const TRY: Duration = Duration::from_secs(3);
/// Maximum number of concurrent lookups; over UDP each has one socket.
pub(crate) const CONCURRENT: usize = 64;
/// The time after which a query over UDP is sent again.
const AGAIN: Duration = Duration::from_secs(1);

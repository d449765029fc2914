//! The connections to one server. hickory writes and parses messages, and multiplexes queries over a connection;
//! order of servers, deadlines and outcomes are the caller's.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
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
    /// The connection that lookups share, or why the last attempt to connect failed.
    connection: Mutex<Result<Arc<Connection>, Option<LookupError>>>,
    /// Attempts to connect that failed.
    failures: AtomicU64,
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
    /// Whether it has ended, or a query on it had no reply for [`AGAIN`]: later queries use another one.
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
        Self {
            server,
            runtime,
            tls,
            connection: Mutex::new(Err(None)),
            failures: AtomicU64::new(0),
            silent: AtomicBool::new(false),
        }
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

    /// Sends the query over the server's connection, and once more over the one that replaces it if it
    /// has ended: servers close idle connections and limit the number of queries on each. If both end,
    /// or there is no reply for [`AGAIN`], the query gets a connection of its own: a server may answer
    /// in the order of its queries (RFC 7766, section 6.2.1.1), and one slow name delays no other.
    async fn over_stream(&self, request: &DnsRequest) -> Result<DnsResponse, LookupError> {
        let mut ended = None;
        for _ in 0..2 {
            let connection = self.connection(ended.as_ref()).await?;
            let mut reply = pin!(connection.send(request.clone()));
            match timeout(AGAIN, reply.as_mut()).await {
                Ok(Ok(reply)) => return Ok(reply),
                Ok(Err(error)) if has_ended(&error) => {
                    connection.is_silent.store(true, Relaxed);
                    ended = Some(connection.clone());
                }
                Ok(Err(error)) => return Err(self.failed(&error)),
                Err(_) => {
                    connection.is_silent.store(true, Relaxed);
                    return tokio::select! {
                        Ok(reply) = reply => Ok(reply),
                        reply = self.alone(request) => reply,
                    };
                }
            }
        }
        self.alone(request).await
    }

    /// Sends the query over a connection of its own.
    async fn alone(&self, request: &DnsRequest) -> Result<DnsResponse, LookupError> {
        let connection = Connection::new(self.connect().await.map_err(|error| self.refused(&error))?);
        connection.send(request.clone()).await.map_err(|error| self.failed(&error))
    }

    /// The connection, or a new one in the place of one that has ended or is silent. Callers wait for each other, so that one
    /// connects for all; if it fails, it fails for all that waited.
    async fn connection(&self, ended: Option<&Arc<Connection>>) -> Result<Arc<Connection>, LookupError> {
        let failures = self.failures.load(Acquire);
        let mut current = self.connection.lock().await;
        let error = match &*current {
            Ok(connection)
                if !connection.is_silent.load(Relaxed)
                    && !ended.is_some_and(|ended| Arc::ptr_eq(ended, connection)) =>
            {
                return Ok(connection.clone());
            }
            Ok(_) => None,
            Err(error) => *error,
        };
        if let Some(error) = error
            && self.failures.load(Acquire) != failures
        {
            return Err(error);
        }
        *current = Err(None);
        match self.connect().await {
            Ok(exchange) => {
                let connection = Arc::new(Connection::new(exchange));
                *current = Ok(connection.clone());
                Ok(connection)
            }
            Err(error) => {
                let error = self.refused(&error);
                *current = Err(Some(error));
                self.failures.fetch_add(1, Release);
                Err(error)
            }
        }
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

    /// The error of a connection that could not be made.
    fn refused(&self, error: &NetError) -> LookupError {
        match self.tls.as_ref().and_then(|tls| tls.fault.take()) {
            Some(fault) => LookupError::Certificate(fault),
            None => self.failed(error),
        }
    }

    /// The error of a query.
    fn failed(&self, error: &NetError) -> LookupError {
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
    fn new(exchange: DnsExchange<Runtime>) -> Self {
        Self { exchange, is_silent: AtomicBool::new(false) }
    }

    async fn send(&self, request: DnsRequest) -> Result<DnsResponse, NetError> {
        let mut waiting = Waiting { connection: self, is_over: false };
        let outcome = self.exchange.send(request).first_answer().await;
        waiting.is_over = true;
        if matches!(outcome, Err(NetError::Timeout)) {
            self.is_silent.store(true, Relaxed);
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
/// The time without a reply after which a query is sent again: over UDP, and over a connection of its own.
const AGAIN: Duration = Duration::from_secs(1);

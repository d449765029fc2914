//! The connections to one server. hickory writes and parses messages, and multiplexes queries over a connection;
//! order of servers, deadlines and outcomes are the caller's.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use hickory_proto::op::{DnsRequest, DnsResponse};
use hickory_resolver::config::{ConnectionConfig, ResolverOpts};
use hickory_resolver::net::NetError;
use hickory_resolver::net::xfer::{DnsExchange, DnsHandle, FirstAnswer};
use hickory_resolver::{ConnectionProvider, PoolContext, TlsConfig};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::exchange::{over_udp, udp_socket};
use crate::outcome::LookupError;
use runtime::Runtime;

mod runtime;

/// The connections to one server: a socket for each query over UDP, and one over TCP for all queries.
pub(crate) struct Connections {
    runtime: Runtime,
    connection: Mutex<Option<Arc<Connection>>>,
    /// Set while the last query had no reply: the server is tried after the others, so that later names do not wait for it again.
    pub(crate) silent: AtomicBool,
}

#[derive(Clone, Copy)]
pub(crate) enum Protocol {
    Udp,
    Tcp,
}

/// A connection, on which any number of queries wait for their replies.
struct Connection {
    exchange: DnsExchange<Runtime>,
    /// Whether a query on it was answered.
    has_answered: AtomicBool,
}

impl Connections {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self { runtime: Runtime::new(address), connection: Mutex::default(), silent: AtomicBool::new(false) }
    }

    /// Sends the query and waits for its reply; has no timeout over UDP.
    ///
    /// # Errors
    /// The kernel's, a connection that ends, or a reply that hickory cannot parse or that has another question.
    pub(crate) async fn exchange(
        &self,
        protocol: Protocol,
        request: DnsRequest,
    ) -> Result<DnsResponse, LookupError> {
        let response = match protocol {
            Protocol::Udp => self.over_udp(&request).await,
            Protocol::Tcp => self.over_stream(&request).await,
        };
        let response = response.map_err(|error| LookupError::from_net(&error))?;
        // hickory matches replies on a connection by their id alone.
        let matches = response.queries.is_empty() || response.queries == request.queries;
        if matches { Ok(response) } else { Err(LookupError::Unreadable) }
    }

    /// Sends the query repeatedly, since datagrams may be lost.
    ///
    /// Not over hickory's `UdpClientStream`: its sockets are not connected, so that it waits for a port where no process listens;
    /// it drops FORMERR without a question; and one garbled datagram with the right id ends its try.
    async fn over_udp(&self, request: &DnsRequest) -> Result<DnsResponse, NetError> {
        let query = request.to_vec()?;
        let socket = udp_socket(self.runtime.server(), None).await?;
        loop {
            if let Ok(reply) = timeout(AGAIN, over_udp(&socket, &query)).await {
                return Ok(DnsResponse::from_buffer(reply?)?);
            }
        }
    }

    /// Sends the query over the server's connection, and over another one where that ended after it had answered, since servers
    /// close idle connections and limit the number of queries on each.
    async fn over_stream(&self, request: &DnsRequest) -> Result<DnsResponse, NetError> {
        let mut ended = None;
        loop {
            let connection = self.connection(ended.as_ref()).await?;
            match connection.exchange.send(request.clone()).first_answer().await {
                Ok(response) => {
                    connection.has_answered.store(true, Relaxed);
                    return Ok(response);
                }
                Err(error) if has_ended(&error) => {
                    if !connection.has_answered.load(Relaxed) {
                        self.forget(&connection).await;
                        return Err(error);
                    }
                    ended = Some(connection);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The connection, or a new one in the place of `ended`. Callers wait for each other, so that one connects for all.
    async fn connection(&self, ended: Option<&Arc<Connection>>) -> Result<Arc<Connection>, NetError> {
        let mut current = self.connection.lock().await;
        if let Some(connection) = &*current
            && !ended.is_some_and(|ended| Arc::ptr_eq(ended, connection))
        {
            return Ok(connection.clone());
        }
        *current = None;
        let exchange = self.connect().await?;
        let connection = Arc::new(Connection { exchange, has_answered: AtomicBool::new(false) });
        Ok(current.insert(connection).clone())
    }

    async fn forget(&self, ended: &Arc<Connection>) {
        let mut current = self.connection.lock().await;
        if current.as_ref().is_some_and(|connection| Arc::ptr_eq(ended, connection)) {
            *current = None;
        }
    }

    async fn connect(&self) -> Result<DnsExchange<Runtime>, NetError> {
        let server = self.runtime.server();
        let mut config = ConnectionConfig::tcp();
        config.port = server.port();
        let mut options = ResolverOpts::default();
        (options.timeout, options.max_active_requests) = (TRY, CONCURRENT);
        let context = PoolContext::new(options, TlsConfig::new()?);
        self.runtime.new_connection(server.ip(), &config, &context)?.await
    }
}

/// Whether the connection is of no more use, in contrast to a reply that cannot be used.
fn has_ended(error: &NetError) -> bool {
    // `Busy` and `Message`: the task of the connection has ended.
    matches!(error, NetError::Busy | NetError::Message(_) | NetError::Io(_))
}

impl LookupError {
    fn from_net(error: &NetError) -> Self {
        match error {
            NetError::Timeout => Self::Silent,
            NetError::Io(error) => Self::Io(error.kind()),
            NetError::Busy | NetError::Message(_) => Self::Io(io::ErrorKind::UnexpectedEof),
            _ => Self::Unreadable,
        }
    }
}

/// Maximum wait for one server over one protocol.
pub(crate) const TRY: Duration = Duration::from_secs(3);
/// Maximum number of concurrent lookups; over UDP each has one socket.
pub(crate) const CONCURRENT: usize = 64;
/// The time after which a query over UDP is sent again.
const AGAIN: Duration = Duration::from_secs(1);

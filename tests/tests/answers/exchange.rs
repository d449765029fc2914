//! Sends one query to both servers.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use tests::{Connection, TlsClient, now};

/// One query, the same for both servers.
#[derive(Debug, Clone)]
pub(crate) struct Query {
    /// A description for reports and for the table of differences.
    pub(crate) what: String,
    /// The messages: one in a datagram, or any number over one connection.
    pub(crate) messages: Vec<Vec<u8>>,
    /// Whether to use TCP.
    pub(crate) tcp: bool,
    /// The index of the listen address.
    pub(crate) listener: usize,
    /// Whether the servers are expected to send no reply: the timeout is short.
    pub(crate) quiet: bool,
    /// The server block that the query is for, if the Corefile has many.
    pub(crate) block: Option<Arc<str>>,
}

/// The replies of one server.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    /// Sorted by message ID, which distinguishes pipelined replies.
    pub(crate) replies: Vec<Vec<u8>>,
    /// The client's port, which whoami returns.
    pub(crate) port: u16,
}

/// Sends the query to both servers and waits for the replies; over TLS if `tls` is set.
pub(crate) fn ask_both(query: &Query, servers: [SocketAddr; 2], tls: Option<&TlsClient>) -> [Seen; 2] {
    match query.tcp || tls.is_some() {
        true => servers.map(|server| over_stream(query, server, tls)),
        false => over_udp(query, servers),
    }
}

/// Sends the query over UDP from one port, so that both servers see the same client.
fn over_udp(query: &Query, servers: [SocketAddr; 2]) -> [Seen; 2] {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a client socket can be made");
    let port = socket.local_addr().expect("a bound socket has an address").port();
    let mut seen = [Seen { port, ..Seen::default() }, Seen { port, ..Seen::default() }];
    for server in servers {
        socket.send_to(&query.messages[0], server).expect("a datagram can be sent on loopback");
    }
    let started = now();
    let mut buffer = vec![0; 65_535];
    loop {
        let replied = seen.iter().filter(|seen| !seen.replies.is_empty()).count();
        // If one server has replied, the other gets the full timeout before it counts as silent.
        let patience = if replied == 0 && query.quiet { SILENCE } else { PATIENCE };
        let left = patience.saturating_sub(started.elapsed());
        if replied == 2 || left.is_zero() {
            return seen;
        }
        socket.set_read_timeout(Some(left)).expect("a timeout can be set");
        match socket.recv_from(&mut buffer) {
            Ok((length, from)) => {
                let Some(server) = servers.iter().position(|server| *server == from) else { continue };
                seen[server].replies.push(buffer[..length].to_vec());
            }
            Err(error) => {
                let waited = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
                assert!(waited, "{}: {error}", query.what);
            }
        }
    }
}

/// Reads one reply for each message, until the connection ends or the timeout.
fn over_stream(query: &Query, server: SocketAddr, tls: Option<&TlsClient>) -> Seen {
    let patience = if query.quiet { SILENCE } else { PATIENCE };
    let connection = match tls {
        Some(client) => Connection::open_tls(server, client, patience),
        None => Connection::open(server, patience),
    };
    let mut connection = connection.unwrap_or_else(|error| panic!("{server}: {error:#}"));
    let port = connection.port();
    for message in &query.messages {
        // The server may have closed the connection after an earlier message.
        if connection.send(message).is_err() {
            break;
        }
    }
    let mut replies = Vec::new();
    while replies.len() < query.messages.len() {
        let Ok(reply) = connection.receive() else { break };
        replies.push(reply);
    }
    replies.sort_by_key(|reply| reply.get(..2).map(<[u8]>::to_vec));
    Seen { replies, port }
}

/// Above the delay of any prompt mock on a busy machine.
const PATIENCE: Duration = Duration::from_secs(6);
const SILENCE: Duration = Duration::from_millis(250);

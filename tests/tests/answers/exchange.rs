//! One query to both servers: what came back.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use tests::{Connection, TlsClient, now};

/// What is sent, the same to both.
#[derive(Debug, Clone)]
pub(crate) struct Query {
    /// What is special about it, for reports and for the table of differences.
    pub(crate) what: String,
    /// The messages: one in a datagram, or any number over one connection.
    pub(crate) messages: Vec<Vec<u8>>,
    /// Over TCP.
    pub(crate) tcp: bool,
    /// Which of the listen addresses it goes to.
    pub(crate) listener: usize,
    /// That nobody answers is likely: the wait for it is short.
    pub(crate) quiet: bool,
    /// The text of the server block that it is about, where there are many.
    pub(crate) block: Option<Arc<str>>,
}

/// What came back from one server: the replies by message id, each at most once.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    /// Sorted by id, which is how pipelined replies are told apart.
    pub(crate) replies: Vec<Vec<u8>>,
    /// The client's port, which whoami tells.
    pub(crate) port: u16,
}

/// Sends the query to both, and waits for both; over TLS where there is a client for that.
pub(crate) fn ask_both(query: &Query, servers: [SocketAddr; 2], tls: Option<&TlsClient>) -> [Seen; 2] {
    match query.tcp || tls.is_some() {
        true => servers.map(|server| over_stream(query, server, tls)),
        false => over_udp(query, servers),
    }
}

/// From one port, so that both see the same client.
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
        // Where only one answers, the other one gets all the time there is before that counts.
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

/// Replies are awaited until there is one for each message, or the end of the connection or of the time.
fn over_stream(query: &Query, server: SocketAddr, tls: Option<&TlsClient>) -> Seen {
    let patience = if query.quiet { SILENCE } else { PATIENCE };
    let connection = match tls {
        Some(client) => Connection::open_tls(server, client, patience),
        None => Connection::open(server, patience),
    };
    let mut connection = connection.unwrap_or_else(|error| panic!("{server}: {error:#}"));
    let port = connection.port();
    for message in &query.messages {
        // The server may have ended the connection over an earlier message.
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

/// Longer than any answer of a mock that answers at once takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(6);
const SILENCE: Duration = Duration::from_millis(250);

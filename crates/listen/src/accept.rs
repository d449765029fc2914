//! Accepts TCP connections.

use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::connections::MAX_CONNECTIONS;
use super::https;
use super::tcp::Connection;
use crate::server_state::ServerState;
use plugin::endpoint::{Endpoint, Transport};

/// Accepts connections on one endpoint until the task is aborted or `ends` becomes true; then the
/// connections that the kernel has queued by that time are the last.
pub(crate) async fn accept(
    listener: std::net::TcpListener,
    endpoint: Endpoint,
    running: Arc<ServerState>,
    mut ends: watch::Receiver<bool>,
) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return running.fatal(&format!("cannot serve {endpoint} (tcp): {error}")),
    };
    // The limit was raised at the start. If it cannot be read, EMFILE of `accept` below shows that
    // descriptors are short.
    let limit = sockets::raise_open_files_limit().map_or(u64::MAX, |(_, limit)| limit);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            // An error means that the sender, which lives as long as the server's endpoints, was
            // dropped: the end as well.
            _ = ends.wait_for(|ends| *ends) => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                // The kernel allocates the lowest free number: a high one shows that few are left.
                let last = stream.as_raw_fd() as u64 + RESERVED >= limit;
                if serve(stream, peer, endpoint, &running) && last {
                    running.connections.make_room();
                    tokio::time::sleep(CLOSING).await;
                }
            }
            Err(error) => {
                running.io_error("accept", endpoint.address, &error, clock::now());
                // EMFILE, ENFILE: descriptors are short.
                if matches!(error.raw_os_error(), Some(24 | 23)) {
                    running.connections.make_room();
                }
                tokio::time::sleep(CLOSING).await;
            }
        }
    }
    // Accepts without the runtime, which may not have polled for the newest connections yet. An
    // error or an empty queue is the end; a client that keeps connecting does not delay it, as the
    // number is bounded.
    let Ok(listener) = listener.into_std() else { return };
    for _ in 0..BACKLOG {
        let Ok((stream, peer)) = listener.accept() else { return };
        let stream = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
        if let Ok(stream) = stream {
            serve(stream, peer, endpoint, &running);
        }
    }
}

/// Serves a connection on a task of its own; false if it was refused.
fn serve(stream: TcpStream, peer: SocketAddr, endpoint: Endpoint, running: &Arc<ServerState>) -> bool {
    let now = clock::now();
    let most = match endpoint.transport {
        Transport::Https => {
            let plan = running.configuration.load();
            plan.endpoints.get(&endpoint).map_or(MAX_CONNECTIONS, |plan| plan.https.connections)
        }
        _ => MAX_CONNECTIONS,
    };
    let since = running.since_start_ms(now);
    let Some(shared) = running.connections.enter(endpoint, most, peer, since) else { return false };
    let local = stream.local_addr().unwrap_or(endpoint.address);
    if endpoint.transport == Transport::Https {
        tokio::spawn(https::serve(endpoint, local, peer, running.clone(), shared, stream));
        return true;
    }
    let connection = Connection::new(endpoint, local, peer, running.clone(), shared, stream, now);
    tokio::spawn(connection.serve());
    true
}

/// Descriptors that clients' connections leave to upstreams, files and HTTP pages.
const RESERVED: u64 = 16;
/// How long an evicted connection may take to close.
const CLOSING: Duration = Duration::from_millis(50);
/// Connections accepted at a listener's end: as many as its backlog has.
const BACKLOG: usize = 4096;

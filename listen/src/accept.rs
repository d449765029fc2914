//! Connections as they come.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;

use super::tcp::Connection;
use crate::running::Running;
use plugin::endpoint::Endpoint;

/// Accepts connections on one endpoint until it is aborted.
pub(crate) async fn accept(listener: std::net::TcpListener, endpoint: Endpoint, running: Arc<Running>) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return running.fatal(&format!("cannot serve {endpoint} (tcp): {error}")),
    };
    let taken = running.taken.socket(endpoint, running.inboxes.len());
    // The limit was raised at the start. Where it cannot be read, EMFILE of `accept` below says that descriptors are short.
    let limit = sockets::raise_open_files_limit().map_or(u64::MAX, |(_, limit)| limit);
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                taken.note();
                // The kernel gives the lowest number that is free: a high one says that few are left.
                let last = stream.as_raw_fd() as u64 + RESERVED >= limit;
                let now = clock::now();
                let Some(place) = running.connections.enter(peer, running.since_start_ms(now)) else {
                    continue;
                };
                let local = stream.local_addr().unwrap_or(endpoint.address);
                let connection = Connection::new(endpoint, local, peer, running.clone(), place, stream, now);
                tokio::spawn(connection.serve());
                if last {
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
}

/// Descriptors that connections of clients leave to upstreams, files and pages.
const RESERVED: u64 = 16;
/// What a connection that gives way may take to close.
const CLOSING: Duration = Duration::from_millis(50);

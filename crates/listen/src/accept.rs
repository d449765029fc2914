//! Connections as they come.

use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::tcp::Connection;
use crate::running::Running;
use plugin::endpoint::Endpoint;

/// Accepts connections on one endpoint until it is aborted, or `ends` says so: then those are the last that the kernel has by
/// then, with the queries that came over them.
pub(crate) async fn accept(
    listener: std::net::TcpListener,
    endpoint: Endpoint,
    running: Arc<Running>,
    mut ends: watch::Receiver<bool>,
) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return running.fatal(&format!("cannot serve {endpoint} (tcp): {error}")),
    };
    // The limit was raised at the start. Where it cannot be read, EMFILE of `accept` below says that descriptors are short.
    let limit = sockets::raise_open_files_limit().map_or(u64::MAX, |(_, limit)| limit);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            // Its sender lives as long as the server's endpoints: who drops it takes no more either.
            _ = ends.wait_for(|ends| *ends) => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                // The kernel gives the lowest number that is free: a high one says that few are left.
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
    // Asked without the runtime, which may not have heard yet of who came a moment ago. An error, and a queue that is empty, is
    // the end; a client that goes on connecting does not keep this from it.
    let Ok(listener) = listener.into_std() else { return };
    for _ in 0..BACKLOG {
        let Ok((stream, peer)) = listener.accept() else { return };
        let stream = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
        if let Ok(stream) = stream {
            serve(stream, peer, endpoint, &running);
        }
    }
}

/// Serves a connection on a task of its own; false where there is no place for it.
fn serve(stream: TcpStream, peer: SocketAddr, endpoint: Endpoint, running: &Arc<Running>) -> bool {
    let now = clock::now();
    let Some(place) = running.connections.enter(peer, running.since_start_ms(now)) else { return false };
    let local = stream.local_addr().unwrap_or(endpoint.address);
    let connection = Connection::new(endpoint, local, peer, running.clone(), place, stream, now);
    tokio::spawn(connection.serve());
    true
}

/// Descriptors that connections of clients leave to upstreams, files and pages.
const RESERVED: u64 = 16;
/// What a connection that gives way may take to close.
const CLOSING: Duration = Duration::from_millis(50);
/// Connections that a listener's end takes at most: as many as wait in its queue.
const BACKLOG: usize = 4096;

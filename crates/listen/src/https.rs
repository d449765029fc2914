//! DNS over HTTPS (RFC 8484).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use encrypted::Limits;
use tokio::net::TcpStream;
use wire::Proto;

use super::connection_state::ConnectionState;
use super::query_source::QuerySource;
use super::request_client::{ANSWER, Registered, RequestClient};
use crate::server_state::ServerState;
use plugin::endpoint::Endpoint;

/// Serves one connection.
pub(crate) async fn serve(
    endpoint: Endpoint,
    local: SocketAddr,
    peer: SocketAddr,
    running: Arc<ServerState>,
    shared: Arc<ConnectionState>,
    mut stream: TcpStream,
) {
    let _registered = Registered::new(running.clone(), shared.clone());
    let settings = running.configuration.load().endpoints.get(&endpoint).map(|plan| {
        let tls = plan.tls.as_ref().map(|tls| tls.handshakes().https());
        (tls, plan.timeouts, plan.https.streams)
    });
    let Some((tls, timeouts, streams)) = settings else { return };
    // TCP_NODELAY: replies are small and must not wait for each other's ACK.
    let _ = stream.set_nodelay(true);
    let (read, write, idle) = (timeouts.read, timeouts.write, timeouts.idle);
    let limits = Limits { read, write, idle, answer: ANSWER, streams };
    let places = running.requests.clone();
    let source = QuerySource { endpoint, local, peer, proto: Proto::Tcp, running };
    let client = RequestClient::new(source, shared, places);
    if !encrypted::serve(&mut stream, tls, limits, Arc::new(client)).await {
        // A linger time of 0 makes `close` send an RST: unread bytes must not stay in the kernel
        // for minutes.
        let _ = socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO));
    }
}

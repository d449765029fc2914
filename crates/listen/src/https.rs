//! DNS over HTTPS (RFC 8484).

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use encrypted::Limits;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::timeout;
use wire::Proto;

use super::connection_state::ConnectionState;
use super::proxy_header::ProxyHeader;
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
        (tls, plan.timeouts, plan.https.streams, ProxyHeader::expected(plan, peer))
    });
    let Some((tls, timeouts, streams, header)) = settings else { return };
    // TCP_NODELAY: replies are small and must not wait for each other's ACK.
    let _ = stream.set_nodelay(true);
    let (read, write, idle) = (timeouts.read, timeouts.write, timeouts.idle);
    let limits = Limits { read, write, idle, answer: ANSWER, streams };
    let (begun, client) = match header {
        Some(header) => match received(*header, &mut stream, read, &shared).await {
            Some(received) => received,
            None => return,
        },
        None => (Vec::new(), None),
    };
    let peer = client.unwrap_or(peer);
    let places = running.requests.clone();
    let source = QuerySource { endpoint, local, peer, proto: Proto::Tcp, running };
    let client = RequestClient::new(source, shared, places);
    let (reader, writer) = stream.split();
    // The bytes that were read with the header precede the others.
    let mut whole = tokio::io::join(AsyncReadExt::chain(&begun[..], reader), writer);
    if !encrypted::serve(&mut whole, tls, limits, Arc::new(client)).await {
        // A linger time of 0 makes `close` send an RST: unread bytes must not stay in the kernel
        // for minutes.
        let _ = socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO));
    }
}

/// Reads the header of the PROXY protocol; `None` if the connection ends, is evicted, or the header is
/// late or refused.
async fn received(
    header: ProxyHeader,
    stream: &mut TcpStream,
    within: Duration,
    shared: &ConnectionState,
) -> Option<(Vec<u8>, Option<SocketAddr>)> {
    let mut receive = pin!(timeout(within, header.receive(stream)));
    loop {
        tokio::select! {
            received = receive.as_mut() => return received.ok()?.ok(),
            () = shared.woken() => {
                if shared.is_cut() {
                    return None;
                }
            }
        }
    }
}

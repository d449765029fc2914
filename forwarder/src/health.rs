//! Probes upstreams that failed, on tokio: sends `. NS` until one reply arrives. Decides whether an
//! upstream is up or down; must not know queries.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use stub_resolver::{over_stream, over_udp, udp_socket};
use tokio::time::{Instant, sleep, timeout};

use crate::streams::{dial, handshake};
use crate::{HealthCheck, ProbeRequest, ProbeRequests, Upstream, UpstreamPath};

/// Probes every upstream that requests it, until the registry and all upstreams are dropped. Must
/// run inside a tokio runtime.
pub async fn run(mut requests: ProbeRequests) {
    while let Some(request) = requests.0.recv().await {
        tokio::spawn(probe_until_healthy(request));
    }
}

/// Sends one probe after the other until the upstream replies, or no configuration uses it any
/// more.
async fn probe_until_healthy(request: ProbeRequest) {
    while let Some(upstream) = request.upstream.upgrade() {
        let healthy = probe(&upstream, request.path, &request.check).await;
        if !upstream.probed(request.path, healthy) {
            return;
        }
        drop(upstream);
        sleep(request.check.interval).await;
    }
}

/// Whether the upstream answers one probe over the path that failed. Any DNS reply counts, REFUSED
/// too: the server is reachable.
async fn probe(upstream: &Arc<Upstream>, path: UpstreamPath, check: &HealthCheck) -> bool {
    let query = probe_query(rand::random(), check);
    let by = Instant::now() + TIMEOUT;
    if let Some(settings) = upstream.tls() {
        let Ok(stream) = dial(upstream, by).await else { return false };
        let Ok(mut stream) = handshake(stream, settings, by).await else { return false };
        replied(over_stream(&mut stream, &query)).await
    } else if path == UpstreamPath::Stream {
        let Ok(mut stream) = dial(upstream, by).await else { return false };
        replied(over_stream(&mut stream, &query)).await
    } else {
        let socket = udp_socket(upstream.address(), upstream.source());
        replied(async { over_udp(&socket.await?, &query).await }).await
    }
}

async fn replied(exchange: impl Future<Output = io::Result<Vec<u8>>>) -> bool {
    matches!(timeout(TIMEOUT, exchange).await, Ok(Ok(_)))
}

/// Encodes a probe: a query for the check's domain with type NS, class IN.
fn probe_query(id: u16, check: &HealthCheck) -> Vec<u8> {
    let flags = if check.recursion { wire::Flags::RD } else { 0 };
    stub_resolver::query(id, flags, &check.domain, wire::RType::NS, wire::Class::IN)
}

/// Timeout of connecting, and again of waiting for the reply, as in CoreDNS.
const TIMEOUT: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Registry;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::UdpSocket;
    use wire::Name;

    #[test]
    fn a_probe_asks_for_the_name_servers_of_its_domain() {
        let mut check = HealthCheck::default();
        assert_eq!(probe_query(0x0102, &check), b"\x01\x02\x01\0\0\x01\0\0\0\0\0\0\0\0\x02\0\x01");
        check.recursion = false;
        check.domain = Name::from_text("a.b").unwrap();
        assert_eq!(probe_query(0, &check), b"\0\0\0\0\0\x01\0\0\0\0\0\0\x01a\x01b\0\0\x02\0\x01");
    }

    #[allow(clippy::disallowed_methods, reason = "a test's time begins at any moment")]
    fn registry() -> (Registry, ProbeRequests) {
        Registry::new(std::time::Instant::now())
    }

    fn quick() -> HealthCheck {
        HealthCheck { interval: Duration::from_millis(5), ..HealthCheck::default() }
    }

    async fn until(what: &str, holds: impl Fn() -> bool) {
        let wait = async {
            while !holds() {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(Duration::from_secs(20), wait).await.unwrap_or_else(|_| panic!("{what}"));
    }

    fn reply_to(query: &[u8], rcode: u8) -> Vec<u8> {
        let mut reply = query.to_vec();
        (reply[2], reply[3]) = (0x80, rcode);
        reply
    }

    /// Over UDP an upstream goes down, and any reply brings it up again.
    #[tokio::test]
    async fn udp_upstream_recovers_with_any_reply() {
        let (registry, requests) = registry();
        let free = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let upstream = registry.upstream(address, None, None);
        tokio::spawn(run(requests));
        upstream.failed(UpstreamPath::Udp, 2, &quick());
        until("three probes fail", || upstream.is_down(UpstreamPath::Udp, 2)).await;
        assert!(upstream.metrics().healthcheck_failures.get() >= 3);
        let server = UdpSocket::bind(address).await.unwrap();
        let mut query = [0; 512];
        let (length, from) = server.recv_from(&mut query).await.unwrap();
        server.send_to(&reply_to(&query[..length], 5), from).await.unwrap();
        until("a reply is enough", || !upstream.is_down(UpstreamPath::Udp, 2)).await;
        assert_eq!(upstream.fails(UpstreamPath::Udp), 0);
        // The upstream is not probed any more until the next failure.
        upstream.failed(UpstreamPath::Udp, 2, &quick());
        let (length, from) = server.recv_from(&mut query).await.unwrap();
        server.send_to(&reply_to(&query[..length], 0), from).await.unwrap();
    }

    /// Over TCP an upstream goes down and up again.
    #[tokio::test]
    async fn tcp_upstream_recovers() {
        let (registry, requests) = registry();
        let free = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let upstream = registry.upstream(address, None, None);
        tokio::spawn(run(requests));
        upstream.failed(UpstreamPath::Stream, 1, &quick());
        until("two probes fail", || upstream.is_down(UpstreamPath::Stream, 1)).await;
        let server = tokio::net::TcpListener::bind(address).await.unwrap();
        let (mut stream, _) = server.accept().await.unwrap();
        let mut query = vec![0; usize::from(stream.read_u16().await.unwrap())];
        stream.read_exact(&mut query).await.unwrap();
        let mut reply = (query.len() as u16).to_be_bytes().to_vec();
        reply.extend_from_slice(&reply_to(&query, 2));
        stream.write_all(&reply).await.unwrap();
        until("a reply is enough", || !upstream.is_down(UpstreamPath::Stream, 1)).await;
    }

    /// An upstream that no stanza uses is not probed any more.
    #[tokio::test]
    async fn unused_upstream_is_not_probed() {
        let (registry, requests) = registry();
        let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let upstream = registry.upstream(server.local_addr().unwrap(), None, None);
        let prober = tokio::spawn(run(requests));
        let weak = Arc::downgrade(&upstream);
        upstream.failed(UpstreamPath::Udp, 2, &quick());
        drop(upstream);
        drop(registry);
        until("the probe lets go of it", || weak.upgrade().is_none()).await;
        timeout(Duration::from_secs(5), prober).await.unwrap().unwrap();
    }
}

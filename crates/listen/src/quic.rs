//! DNS over QUIC (RFC 9250).

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, PoisonError};

use client_quota::ClientQuota;
use encrypted::{Limits, QuicListener};
use tokio::sync::watch;
use wire::Proto;

use super::query_source::QuerySource;
use super::request_client::{ANSWER, Registered, RequestClient};
use crate::server_state::{REQUESTS, ServerState};
use plugin::endpoint::Endpoint;

/// Accepts connections on one endpoint until the task is aborted or `ends` becomes true; open
/// connections end as their state in the table of connections says.
pub(crate) async fn accept(
    socket: UdpSocket,
    endpoint: Endpoint,
    running: Arc<ServerState>,
    mut ends: watch::Receiver<bool>,
) {
    let listener = Arc::new(Listener {
        endpoint,
        running: running.clone(),
        places: Mutex::new((0, Arc::new(ClientQuota::new(1)))),
    });
    let ended = async move {
        // An error means that the sender was dropped: the end as well.
        let _ = ends.wait_for(|ends| *ends).await;
    };
    if let Err(error) = encrypted::serve_quic(socket, listener, ended).await {
        running.fatal(&format!("cannot serve {endpoint}: {error}"));
    }
}

struct Listener {
    endpoint: Endpoint,
    running: Arc<ServerState>,
    /// The places of queries of all connections, for this `worker_pool_size`.
    places: Mutex<(u32, Arc<ClientQuota>)>,
}

impl QuicListener for Listener {
    type Client = RequestClient;
    type Connection = Registered;

    fn settings(&self) -> Option<(Arc<rustls::ServerConfig>, Limits)> {
        let configuration = self.running.configuration.load();
        let plan = configuration.endpoints.get(&self.endpoint)?;
        let (read, write, idle) = (plan.timeouts.read, plan.timeouts.write, plan.timeouts.idle);
        let limits = Limits { read, write, idle, answer: ANSWER, streams: plan.quic.streams };
        Some((plan.tls.as_ref()?.handshakes().doq(), limits))
    }

    fn enter(&self, peer: SocketAddr, local: Option<IpAddr>) -> Option<(Arc<RequestClient>, Registered)> {
        let running = &self.running;
        let quic = running.configuration.load().endpoints.get(&self.endpoint)?.quic;
        let now = running.since_start_ms(clock::now());
        let shared = running.connections.enter(self.endpoint, quic.connections, peer, now)?;
        let bound = running.bound(self.endpoint.address);
        let local = local.map_or(bound, |local| SocketAddr::new(local, bound.port()));
        let source = QuerySource {
            endpoint: self.endpoint,
            local,
            peer,
            proto: Proto::Quic,
            running: running.clone(),
        };
        let client = RequestClient::new(source, shared.clone(), self.places(quic.workers));
        Some((Arc::new(client), Registered::new(running.clone(), shared)))
    }
}

impl Listener {
    /// Returns the places of `workers` queries at the same time, four fifths of them for one
    /// client.
    fn places(&self, workers: u32) -> Arc<ClientQuota> {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        if places.0 != workers {
            *places = (workers, Arc::new(ClientQuota::new((workers - workers / 5).min(REQUESTS))));
        }
        places.1.clone()
    }
}

//! DNS over QUIC (RFC 9250): accepts connections, with bounds on handshakes, and serves them.

mod connection;
mod message;

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quinn::congestion::CubicConfig;
use quinn::crypto::rustls::QuicServerConfig;
use quinn::{EndpointConfig, IdleTimeout, Incoming, ServerConfig, TokioRuntime, TransportConfig, VarInt};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::client::Client;
use crate::https::Limits;

/// A listener of DNS over QUIC, as the server sees it.
pub trait QuicListener: Send + Sync + 'static {
    /// The client of one connection.
    type Client: Client;
    /// The connection's place among all connections, released on drop.
    type Connection: Send + 'static;

    /// Returns the certificate and the limits of a new connection; `None` if the listener is not
    /// served any more.
    fn settings(&self) -> Option<(Arc<rustls::ServerConfig>, Limits)>;

    /// Registers a connection of a client that has completed its handshake; `None` if there is no
    /// place for it.
    fn enter(&self, peer: SocketAddr, local: Option<IpAddr>)
    -> Option<(Arc<Self::Client>, Self::Connection)>;
}

/// Accepts and serves connections until `ends` completes or the future is dropped; then the open
/// connections end once their queries are answered.
///
/// # Errors
/// The socket or the certificate cannot be used, or the socket not any more.
pub async fn serve_quic<L: QuicListener>(
    socket: UdpSocket,
    listener: Arc<L>,
    ends: impl Future<Output = ()>,
) -> io::Result<()> {
    let Some((tls, limits)) = listener.settings() else { return Ok(()) };
    let mut current = Current::new(tls, limits)?;
    let first = ServerConfig::clone(&current.config);
    let runtime = Arc::new(TokioRuntime);
    let endpoint = quinn::Endpoint::new(EndpointConfig::default(), Some(first), socket, runtime)?;
    let endpoint = Accepting { endpoint, alive: watch::Sender::new(()) };
    let half_open = HalfOpen::default();
    let mut ends = pin!(ends);
    loop {
        let incoming = tokio::select! {
            incoming = endpoint.endpoint.accept() => incoming,
            () = &mut ends => return Ok(()),
        };
        let incoming = incoming.ok_or_else(|| io::Error::other("reading its socket has failed"))?;
        let peer = incoming.remote_address();
        let Some(place) = half_open.enter(&incoming) else {
            // Without a proof of its address, the client may be another.
            match incoming.may_retry() {
                true => drop(incoming.retry()),
                false => incoming.refuse(),
            }
            continue;
        };
        let Some((tls, limits)) = listener.settings() else {
            incoming.refuse();
            continue;
        };
        // A certificate that cannot be used for QUIC was refused above, at the start.
        let _ = current.follow(tls, limits);
        let (listener, config, limits) = (listener.clone(), current.config.clone(), current.limits);
        let (local, accepts) = (incoming.local_ip(), endpoint.alive.subscribe());
        tokio::spawn(async move {
            let Ok(connecting) = incoming.accept_with(config) else { return };
            let Ok(Ok(connection)) = timeout(limits.read, connecting).await else { return };
            drop(place);
            match listener.enter(peer, local) {
                Some((client, _registered)) => connection::serve(connection, limits, client, accepts).await,
                None => connection.close(connection::EXCESSIVE_LOAD, b""),
            }
        });
    }
}

/// An endpoint that accepts connections until it is dropped. Then the open ones, which quinn drives
/// further, end once their queries are answered.
struct Accepting {
    endpoint: quinn::Endpoint,
    /// Dropped with the endpoint, which the connections observe.
    alive: watch::Sender<()>,
}

impl Drop for Accepting {
    fn drop(&mut self) {
        self.endpoint.set_server_config(None);
    }
}

/// The configuration of new connections.
struct Current {
    tls: Arc<rustls::ServerConfig>,
    limits: Limits,
    config: Arc<ServerConfig>,
}

impl Current {
    fn new(tls: Arc<rustls::ServerConfig>, limits: Limits) -> io::Result<Self> {
        let crypto = QuicServerConfig::try_from(tls.clone()).map_err(io::Error::other)?;
        let mut config = ServerConfig::with_crypto(Arc::new(crypto));
        config
            .transport_config(Arc::new(transport(limits)?))
            // A client's address decides what it may ask (`acl`), so that it stays the same.
            .migration(false)
            .max_incoming(MOST_INCOMING)
            .incoming_buffer_size(INCOMING_BYTES)
            .incoming_buffer_size_total(INCOMING_BYTES * MOST_INCOMING as u64);
        Ok(Self { tls, limits, config: Arc::new(config) })
    }

    /// Makes the configuration anew if certificate or limits have changed.
    fn follow(&mut self, tls: Arc<rustls::ServerConfig>, limits: Limits) -> io::Result<()> {
        if !Arc::ptr_eq(&tls, &self.tls) || limits != self.limits {
            *self = Self::new(tls, limits)?;
        }
        Ok(())
    }
}

fn transport(limits: Limits) -> io::Result<TransportConfig> {
    let mut transport = TransportConfig::default();
    let idle = IdleTimeout::try_from(limits.idle.max(limits.read)).map_err(io::Error::other)?;
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(limits.streams))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW))
        .receive_window(VarInt::from_u32(WINDOW))
        .send_window(SEND_BYTES)
        .max_idle_timeout(Some(idle))
        .datagram_receive_buffer_size(None)
        .congestion_controller_factory(Arc::new(CubicConfig::default()));
    Ok(transport)
}

/// The handshakes that are not completed, by network.
#[derive(Clone, Default)]
struct HalfOpen(Arc<Mutex<HashMap<IpAddr, usize>>>);

impl HalfOpen {
    /// Registers a handshake; `None` if there is no place for it.
    fn enter(&self, incoming: &Incoming) -> Option<HalfOpenPlace> {
        let mut all = self.lock();
        let total: usize = all.values().sum();
        let address = network(incoming.remote_address().ip());
        let own = all.get(&address).copied().unwrap_or_default();
        let most = match incoming.remote_address_validated() {
            true => MOST_HALF_OPEN,
            // Addresses are proven as soon as there are several handshakes at a time.
            false => UNPROVEN,
        };
        if total >= most || own >= MOST_OF_ADDRESS {
            return None;
        }
        *all.entry(address).or_default() += 1;
        Some(HalfOpenPlace { of: self.clone(), address })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the network of one client: an IPv4 address, or the /64 of an IPv6 address, as a client
/// may have all of its addresses.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

/// A handshake's place, released on drop.
struct HalfOpenPlace {
    of: HalfOpen,
    address: IpAddr,
}

impl Drop for HalfOpenPlace {
    fn drop(&mut self) {
        let mut all = self.of.lock();
        if let Some(count) = all.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.address);
            }
        }
    }
}

/// Handshakes at the same time; with as many, clients are refused.
const MOST_HALF_OPEN: usize = 128;
/// Handshakes of one address, over IPv6 of one /64, at the same time.
const MOST_OF_ADDRESS: usize = 16;
/// Handshakes at the same time from which on clients must prove their address first (Retry).
const UNPROVEN: usize = 16;
/// Connection attempts that wait to be looked at; they are looked at at once.
const MOST_INCOMING: usize = 64;
/// Bytes of each such attempt beyond its first datagram.
const INCOMING_BYTES: u64 = 16 * 1024;
/// Bytes that a client may send on one stream before they are read.
const STREAM_WINDOW: u32 = 8 * 1024;
/// Bytes that a client may send on all streams of a connection before they are read.
const WINDOW: u32 = 64 * 1024;
/// Bytes of replies that one connection sends before the client acknowledges them.
const SEND_BYTES: u64 = 128 * 1024;

#[cfg(test)]
mod tests {
    use super::network;

    #[test]
    fn addresses_of_a_network_share() {
        for (address, other, shares) in [
            ("2001:db8::1", "2001:db8::ffff:0:0:2", true),
            ("2001:db8::1", "2001:db8:0:1::1", false),
            ("192.0.2.1", "::ffff:192.0.2.1", true),
            ("192.0.2.1", "192.0.2.2", false),
        ] {
            let [first, second] = [address, other].map(|text| network(text.parse().unwrap()));
            assert_eq!(first == second, shares, "{address} {other}");
        }
    }
}

//! Opens connections: TCP under a deadline, and TLS over it.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::SockRef;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::{ExchangeError, TlsSettings, Upstream};

/// Connects over TCP, until `by`.
pub(crate) async fn dial(upstream: &Upstream, by: Instant) -> Result<TcpStream, ExchangeError> {
    let address = upstream.address();
    let failed = |error| ExchangeError::Dial { upstream: address, error };
    let connect = async {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        if let Some(source) = upstream.source() {
            socket.bind((source, 0).into())?;
        }
        socket.connect(address).await
    };
    let stream = match timeout_at(by, connect).await {
        Ok(stream) => stream.map_err(|error| failed(error.kind()))?,
        Err(_) => return Err(failed(io::ErrorKind::TimedOut)),
    };
    // TCP_NODELAY: a query must not wait for the ACK of the one before (Nagle's algorithm). If the
    // kernel refuses the option, queries are only slower.
    let _ = stream.set_nodelay(true);
    // A peer that acknowledges nothing is gone, so its queries move to another connection; one that
    // acknowledges is only slow.
    let _ = SockRef::from(&stream).set_tcp_user_timeout(Some(USER_TIMEOUT));
    Ok(stream)
}

/// Does the TLS handshake on a new connection, with the configured server name or the upstream's
/// address.
pub(crate) async fn handshake(
    stream: TcpStream,
    settings: &TlsSettings,
    by: Instant,
) -> Result<TlsStream<TcpStream>, ExchangeError> {
    let upstream = stream.peer_addr().unwrap_or_else(|_| SocketAddr::from(([0, 0, 0, 0], 0)));
    let local = stream.local_addr().ok();
    let connector = TlsConnector::from(settings.config());
    let name = settings.server_name_for(upstream.ip());
    let error = match timeout_at(by, connector.connect(name, stream)).await {
        Ok(Ok(stream)) => return Ok(stream),
        Ok(Err(error)) => error,
        Err(_) => return Err(ExchangeError::Timeout { local, upstream }),
    };
    Err(broken(&error, local, upstream))
}

/// Maps an I/O error; tokio-rustls wraps rustls's errors in these. With TLS 1.3 an upstream refuses
/// our certificate only after the handshake.
pub(super) fn broken(error: &io::Error, local: Option<SocketAddr>, upstream: SocketAddr) -> ExchangeError {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(inner) => ExchangeError::Tls { upstream, error: Box::new(inner.clone()) },
        None => ExchangeError::Read { local, upstream, error: error.kind() },
    }
}

/// TCP_USER_TIMEOUT: the first retransmission leaves after 0.2 s, the second 0.4 s later.
const USER_TIMEOUT: Duration = Duration::from_millis(800);

//! A connection to the API: TCP, TLS, HTTP/1.1, and one request at a time.

use std::error::Error;
use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::pin::{Pin, pin};
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue, USER_AGENT};
use hyper::http::request::Builder as Head;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustls::CertificateError;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::sanitize::sanitize;
use crate::settings::{ConnectionFault, WatchError};

use super::client_config::{Api, access_error};
use super::request::WatchRequest;
use super::run_blocking;

/// A connection, closed when it is dropped.
pub(super) struct Connection {
    pub(super) api: Api,
    sender: SendRequest<Full<Bytes>>,
    driver: Driver,
}

/// The future that reads and writes the connection; `None` when it has ended. Callers that wait for
/// data poll it: a separate task would be woken for each frame of a body and wake the caller in
/// turn.
type Driver = Option<Pin<Box<dyn Future<Output = ()> + Send>>>;

impl Connection {
    /// Connects, within 10 s.
    ///
    /// # Errors
    /// [`WatchError::Connection`].
    pub(super) async fn open(api: Api) -> Result<Self, WatchError> {
        let opened = timeout(CONNECT_TIMEOUT, Self::connect(&api)).await;
        let (sender, driver) = opened.unwrap_or_else(|_| Err(WatchError::Silent(CONNECT_TIMEOUT)))?;
        Ok(Self { api, sender, driver })
    }

    async fn connect(api: &Api) -> Result<(SendRequest<Full<Bytes>>, Driver), WatchError> {
        let addresses = Self::addresses(api).await?;
        let stream = TcpStream::connect(&*addresses).await.map_err(|error| connection_error(api, &error))?;
        set_options(&stream).map_err(|error| connection_error(api, &error))?;
        match &api.tls {
            None => handshake(api, stream).await,
            Some((config, name)) => {
                let connector = TlsConnector::from(config.clone());
                // rustls reads 4 KiB at a time, which for a list would be thousands of system
                // calls.
                let stream = BufReader::with_capacity(READ_BUFFER_BYTES, stream);
                let stream = connector.connect(name.clone(), stream).await;
                handshake(api, stream.map_err(|error| connection_error(api, &error))?).await
            }
        }
    }

    /// Resolves the name on a blocking thread. An abandoned lookup that has not started is
    /// cancelled, so that lookups that block do not pile up.
    async fn addresses(api: &Api) -> Result<Vec<SocketAddr>, WatchError> {
        if let Ok(address) = api.host.parse::<IpAddr>() {
            return Ok(vec![(address, api.port).into()]);
        }
        let (host, port, authority) = (api.host.clone(), api.port, api.authority.clone());
        run_blocking(move || {
            let found = (&*host, port).to_socket_addrs().map(Vec::from_iter);
            found.map_err(|error| WatchError::Connection {
                address: authority.into(),
                cause: error.to_string().into(),
                at: ConnectionFault::Lookup,
            })
        })
        .await
    }

    /// Whether the connection accepts another request.
    pub(super) async fn is_open(&mut self) -> bool {
        matches!(timeout(CONNECT_TIMEOUT, driven(&mut self.driver, self.sender.ready())).await, Ok(Ok(())))
    }

    /// Returns the next frame of a reply's body; `None` after the last.
    pub(super) async fn next_frame(&mut self, body: &mut Incoming) -> Option<hyper::Result<Frame<Bytes>>> {
        driven(&mut self.driver, body.frame()).await
    }

    /// Sends a request and waits for the head of its reply.
    ///
    /// # Errors
    /// [`WatchError::Connection`], or [`WatchError::Access`] if the credentials do not fit a
    /// header.
    pub(super) async fn send(
        &mut self,
        request: &WatchRequest,
        credentials: Option<&str>,
    ) -> Result<Response<Incoming>, WatchError> {
        let head =
            Request::get(format!("{}{}", self.api.prefix, request.path)).header(ACCEPT, request.accept);
        self.request(head, Full::default(), credentials).await
    }

    /// Sends a merge patch (RFC 7396) for the object at a path.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub(super) async fn patch(
        &mut self,
        path: &str,
        patch: String,
        credentials: Option<&str>,
    ) -> Result<Response<Incoming>, WatchError> {
        let head = Request::patch(format!("{}{path}", self.api.prefix)).header(ACCEPT, "application/json");
        let head = head.header(CONTENT_TYPE, "application/merge-patch+json");
        self.request(head, Full::from(patch), credentials).await
    }

    async fn request(
        &mut self,
        head: Head,
        body: Full<Bytes>,
        credentials: Option<&str>,
    ) -> Result<Response<Incoming>, WatchError> {
        let mut request = head.header(HOST, &self.api.authority);
        request = request.header(USER_AGENT, concat!("localdns/", env!("CARGO_PKG_VERSION")));
        if let Some(credentials) = credentials {
            let mut value = HeaderValue::from_str(credentials)
                .map_err(|_| access_error("the token", "not valid in a header"))?;
            value.set_sensitive(true);
            request = request.header(AUTHORIZATION, value);
        }
        let request =
            request.body(body).map_err(|error| access_error(&self.api.authority, &error.to_string()))?;
        let reply = driven(&mut self.driver, self.sender.send_request(request)).await;
        reply.map_err(|error| connection_error(&self.api, &error))
    }
}

/// Polls a future and the connection that it depends on.
async fn driven<T>(driver: &mut Driver, wanted: impl Future<Output = T>) -> T {
    let mut wanted = pin!(wanted);
    poll_fn(|context| {
        // An error of the connection is returned by the reader of the reply.
        if driver.as_mut().is_some_and(|driver| driver.as_mut().poll(context).is_ready()) {
            *driver = None;
        }
        wanted.as_mut().poll(context)
    })
    .await
}

/// Sets TCP options so that a dead peer is detected within a minute, also if nothing is sent.
fn set_options(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE).with_retries(3);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(2 * KEEPALIVE))
}

async fn handshake(
    api: &Api,
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
) -> Result<(SendRequest<Full<Bytes>>, Driver), WatchError> {
    let result = Builder::new().max_buf_size(READ_BUFFER_BYTES).handshake(TokioIo::new(stream)).await;
    let (sender, connection) = result.map_err(|error| connection_error(api, &error))?;
    Ok((sender, Some(Box::pin(async move { drop(connection.await) }))))
}

/// Converts an error with its chain of causes, of which hyper and rustls put the essential one
/// last.
pub(super) fn connection_error(api: &Api, error: &(dyn Error + 'static)) -> WatchError {
    let mut text = error.to_string();
    let (mut at, mut cause) = (tls_fault(error), error.source());
    let mut has_ended = is_end(error);
    while let Some(error) = cause {
        let more = error.to_string();
        at = at.or_else(|| tls_fault(error));
        has_ended |= is_end(error);
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    // It does not help an operator whether the connection ended within a reply or within TLS.
    if has_ended {
        text = ENDED.to_owned();
    }
    // The names in a certificate are untrusted.
    let cause = sanitize(&text, MAX_CAUSE);
    WatchError::Connection {
        address: api.authority.as_str().into(),
        cause,
        at: at.unwrap_or(ConnectionFault::Network),
    }
}

/// Whether the peer closed the connection prematurely.
fn is_end(error: &(dyn Error + 'static)) -> bool {
    let of_io = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    let of_http = error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_incomplete_message);
    of_io == Some(std::io::ErrorKind::UnexpectedEof) || of_http
}

/// Returns the class of a TLS failure; rustls's errors are wrapped in I/O errors.
fn tls_fault(error: &(dyn Error + 'static)) -> Option<ConnectionFault> {
    let inner = error.downcast_ref::<std::io::Error>()?.get_ref()?;
    match inner.downcast_ref::<rustls::Error>()? {
        rustls::Error::InvalidCertificate(why) => Some(match why {
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                ConnectionFault::Name
            }
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => ConnectionFault::Validity,
            _ => ConnectionFault::Authority,
        }),
        rustls::Error::AlertReceived(_) => Some(ConnectionFault::Rejected),
        _ => None,
    }
}

/// Timeout for connecting, including TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_CAUSE: usize = 300;
const ENDED: &str = "the API closed the connection";
const KEEPALIVE: Duration = Duration::from_secs(10);
/// Size of the read buffer.
const READ_BUFFER_BYTES: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use std::io;

    use rustls::{AlertDescription, Error as Tls};

    use super::*;
    use crate::watch::client_config::{Credentials, Pem};

    #[test]
    fn classifies_tls_failures() {
        let certificate = |why| Tls::InvalidCertificate(why);
        for (error, at) in [
            (
                io::Error::other(certificate(CertificateError::UnknownIssuer)),
                Some(ConnectionFault::Authority),
            ),
            (io::Error::other(certificate(CertificateError::BadSignature)), Some(ConnectionFault::Authority)),
            (io::Error::other(certificate(CertificateError::NotValidForName)), Some(ConnectionFault::Name)),
            (io::Error::other(certificate(CertificateError::Expired)), Some(ConnectionFault::Validity)),
            (io::Error::other(certificate(CertificateError::NotValidYet)), Some(ConnectionFault::Validity)),
            (
                io::Error::other(Tls::AlertReceived(AlertDescription::UnknownCA)),
                Some(ConnectionFault::Rejected),
            ),
            (io::Error::other(Tls::HandshakeNotComplete), None),
            (io::Error::other("another"), None),
            (io::ErrorKind::ConnectionRefused.into(), None),
        ] {
            assert_eq!(tls_fault(&error), at, "{error}");
        }
    }

    #[test]
    fn premature_close_has_a_plain_message() {
        let api =
            Api::at("http://192.0.2.1:6443", Pem::default(), Credentials::None).unwrap_or_else(|_| panic!());
        // The message of rustls.
        let unclean = "peer closed connection without sending TLS close_notify: https://docs.rs/rustls";
        for (error, message) in [
            (io::Error::new(io::ErrorKind::UnexpectedEof, unclean), "the API closed the connection"),
            (io::Error::other("another"), "another"),
        ] {
            assert_eq!(connection_error(&api, &error).to_string(), format!("192.0.2.1:6443: {message}"));
        }
    }
}

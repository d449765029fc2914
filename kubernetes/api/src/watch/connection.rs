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

use crate::sanitize::plain;
use crate::settings::{Fault, Lost};

use super::aside;
use super::client_config::{Api, lost};
use super::request::Ask;

/// A connection that stands until it is dropped.
pub(super) struct Connection {
    pub(super) api: Api,
    sender: SendRequest<Full<Bytes>>,
    driver: Driver,
}

/// Reads and writes what goes over a connection; `None` when that has ended. It is polled by whoever waits for some of it: a
/// task of its own would be woken for each piece of a body, and wake the other again.
type Driver = Option<Pin<Box<dyn Future<Output = ()> + Send>>>;

impl Connection {
    /// # Errors
    /// [`Lost::Connection`].
    pub(super) async fn open(api: Api) -> Result<Self, Lost> {
        let opened = timeout(PATIENCE, Self::connect(&api)).await;
        let (sender, driver) = opened.unwrap_or_else(|_| Err(Lost::Silent(PATIENCE)))?;
        Ok(Self { api, sender, driver })
    }

    async fn connect(api: &Api) -> Result<(SendRequest<Full<Bytes>>, Driver), Lost> {
        let addresses = Self::addresses(api).await?;
        let stream = TcpStream::connect(&*addresses).await.map_err(|error| broken(api, &error))?;
        settle(&stream).map_err(|error| broken(api, &error))?;
        match &api.tls {
            None => speak(api, stream).await,
            Some((config, name)) => {
                let connector = TlsConnector::from(config.clone());
                // It takes 4 KiB at a time, and a list is thousands of those.
                let stream = BufReader::with_capacity(READ_AT_ONCE, stream);
                let stream = connector.connect(name.clone(), stream).await;
                speak(api, stream.map_err(|error| broken(api, &error))?).await
            }
        }
    }

    /// A name is looked up aside, and no more where that was given up before it began: lookups that hang do not pile up.
    async fn addresses(api: &Api) -> Result<Vec<SocketAddr>, Lost> {
        if let Ok(address) = api.host.parse::<IpAddr>() {
            return Ok(vec![(address, api.port).into()]);
        }
        let (host, port, authority) = (api.host.clone(), api.port, api.authority.clone());
        aside(move || {
            let found = (&*host, port).to_socket_addrs().map(Vec::from_iter);
            found.map_err(|error| Lost::Connection {
                address: authority.into(),
                cause: error.to_string().into(),
                at: Fault::Lookup,
            })
        })
        .await
    }

    /// Whether it takes another request.
    pub(super) async fn is_open(&mut self) -> bool {
        matches!(timeout(PATIENCE, driven(&mut self.driver, self.sender.ready())).await, Ok(Ok(())))
    }

    /// The next piece of a reply's body; `None` after the last.
    pub(super) async fn piece(&mut self, body: &mut Incoming) -> Option<hyper::Result<Frame<Bytes>>> {
        driven(&mut self.driver, body.frame()).await
    }

    /// Sends a request and waits for the head of its reply.
    ///
    /// # Errors
    /// [`Lost::Connection`], or [`Lost::Access`] if the header is none.
    pub(super) async fn send(&mut self, ask: &Ask, who: Option<&str>) -> Result<Response<Incoming>, Lost> {
        let head = Request::get(format!("{}{}", self.api.prefix, ask.path)).header(ACCEPT, ask.accept);
        self.request(head, Full::default(), who).await
    }

    /// As [`Self::send`]: changes what is at a path, by a merge patch (RFC 7396).
    ///
    /// # Errors
    /// As [`Self::send`].
    pub(super) async fn patch(
        &mut self,
        path: &str,
        patch: String,
        who: Option<&str>,
    ) -> Result<Response<Incoming>, Lost> {
        let head = Request::patch(format!("{}{path}", self.api.prefix)).header(ACCEPT, "application/json");
        let head = head.header(CONTENT_TYPE, "application/merge-patch+json");
        self.request(head, Full::from(patch), who).await
    }

    async fn request(
        &mut self,
        head: Head,
        body: Full<Bytes>,
        who: Option<&str>,
    ) -> Result<Response<Incoming>, Lost> {
        let mut request = head.header(HOST, &self.api.authority);
        request = request.header(USER_AGENT, concat!("localdns/", env!("CARGO_PKG_VERSION")));
        if let Some(who) = who {
            let mut value =
                HeaderValue::from_str(who).map_err(|_| lost("the token", "no text of a header"))?;
            value.set_sensitive(true);
            request = request.header(AUTHORIZATION, value);
        }
        let request = request.body(body).map_err(|error| lost(&self.api.authority, &error.to_string()))?;
        let reply = driven(&mut self.driver, self.sender.send_request(request)).await;
        reply.map_err(|error| broken(&self.api, &error))
    }
}

/// Waits for something that a connection brings, and has it brought.
async fn driven<T>(driver: &mut Driver, wanted: impl Future<Output = T>) -> T {
    let mut wanted = pin!(wanted);
    poll_fn(|context| {
        // What it ends with is told to whoever reads the reply.
        if driver.as_mut().is_some_and(|driver| driver.as_mut().poll(context).is_ready()) {
            *driver = None;
        }
        wanted.as_mut().poll(context)
    })
    .await
}

/// A peer that is gone without a word is noticed within a minute, also where nothing is to be sent.
fn settle(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE).with_retries(3);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(2 * KEEPALIVE))
}

async fn speak(
    api: &Api,
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
) -> Result<(SendRequest<Full<Bytes>>, Driver), Lost> {
    let handshake = Builder::new().max_buf_size(READ_AT_ONCE).handshake(TokioIo::new(stream)).await;
    let (sender, connection) = handshake.map_err(|error| broken(api, &error))?;
    Ok((sender, Some(Box::pin(async move { drop(connection.await) }))))
}

/// What broke, with its causes: hyper and rustls say the most of it in the last.
pub(super) fn broken(api: &Api, error: &(dyn Error + 'static)) -> Lost {
    let mut text = error.to_string();
    let (mut at, mut cause) = (of_tls(error), error.source());
    let mut has_ended = is_end(error);
    while let Some(error) = cause {
        let more = error.to_string();
        at = at.or_else(|| of_tls(error));
        has_ended |= is_end(error);
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    // Whether that is in the midst of a reply, or of TLS, says nothing more to whoever looks after the API.
    if has_ended {
        text = ENDED.to_owned();
    }
    // A certificate's names are a stranger's.
    let cause = plain(&text, MOST_CAUSE);
    Lost::Connection { address: api.authority.as_str().into(), cause, at: at.unwrap_or(Fault::Way) }
}

/// Whether the other side has ended the connection before it said all.
fn is_end(error: &(dyn Error + 'static)) -> bool {
    let of_io = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    let of_http = error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_incomplete_message);
    of_io == Some(std::io::ErrorKind::UnexpectedEof) || of_http
}

/// Where it is TLS that failed: what rustls says is inside of the system's errors.
fn of_tls(error: &(dyn Error + 'static)) -> Option<Fault> {
    let inner = error.downcast_ref::<std::io::Error>()?.get_ref()?;
    match inner.downcast_ref::<rustls::Error>()? {
        rustls::Error::InvalidCertificate(why) => Some(match why {
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                Fault::Name
            }
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => Fault::Validity,
            _ => Fault::Authority,
        }),
        rustls::Error::AlertReceived(_) => Some(Fault::Refused),
        _ => None,
    }
}

/// To connect, TLS included.
const PATIENCE: Duration = Duration::from_secs(10);
const MOST_CAUSE: usize = 300;
const ENDED: &str = "the API ended the connection";
const KEEPALIVE: Duration = Duration::from_secs(10);
const READ_AT_ONCE: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use std::io;

    use rustls::{AlertDescription, Error as Tls};

    use super::*;
    use crate::watch::client_config::{Credentials, Pem};

    #[test]
    fn what_tls_says_inside_of_the_systems_errors_says_what_ends_it() {
        let certificate = |why| Tls::InvalidCertificate(why);
        for (error, at) in [
            (io::Error::other(certificate(CertificateError::UnknownIssuer)), Some(Fault::Authority)),
            (io::Error::other(certificate(CertificateError::BadSignature)), Some(Fault::Authority)),
            (io::Error::other(certificate(CertificateError::NotValidForName)), Some(Fault::Name)),
            (io::Error::other(certificate(CertificateError::Expired)), Some(Fault::Validity)),
            (io::Error::other(certificate(CertificateError::NotValidYet)), Some(Fault::Validity)),
            (io::Error::other(Tls::AlertReceived(AlertDescription::UnknownCA)), Some(Fault::Refused)),
            (io::Error::other(Tls::HandshakeNotComplete), None),
            (io::Error::other("another"), None),
            (io::ErrorKind::ConnectionRefused.into(), None),
        ] {
            assert_eq!(of_tls(&error), at, "{error}");
        }
    }
    #[test]
    fn an_end_before_all_was_said_is_told_in_plain_words() {
        let api =
            Api::at("http://192.0.2.1:6443", Pem::default(), Credentials::None).unwrap_or_else(|_| panic!());
        // As rustls has it.
        let unclean = "peer closed connection without sending TLS close_notify: https://docs.rs/rustls";
        for (error, told) in [
            (io::Error::new(io::ErrorKind::UnexpectedEof, unclean), "the API ended the connection"),
            (io::Error::other("another"), "another"),
        ] {
            assert_eq!(broken(&api, &error).to_string(), format!("192.0.2.1:6443: {told}"));
        }
    }
}

//! One connection: TLS, then HTTP/2 if the client offers it by ALPN, else HTTP/1.1.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body as _, Incoming};
use hyper::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use hyper::rt::Executor;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
use tokio::time::{sleep_until, timeout};
use tokio_rustls::TlsAcceptor;

use crate::client::{Activity, Answer, Client, End, MESSAGE_BYTES};
use crate::fair::fairly;
use crate::max_age::max_age;
use crate::outcome::Outcome;
use crate::progress::{OpenRequest, Progress};
use crate::request;
use crate::stall_timeout::StallTimeout;

/// The limits of one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Time for the handshake, for the first request, and for a request's body.
    pub read: Duration,
    /// Time for the client to read some of what is written.
    pub write: Duration,
    /// Time between two requests.
    pub idle: Duration,
    /// Time from a request to its answer, after which it is reset.
    pub answer: Duration,
    /// Requests at the same time over HTTP/2 or QUIC.
    pub streams: u32,
}

/// Serves a connection until it ends; without `tls` over HTTP/1.1 in plain text, for a proxy in
/// front. Returns false if what is not sent yet is to be discarded.
pub async fn serve<S, C>(
    stream: &mut S,
    tls: Option<Arc<ServerConfig>>,
    limits: Limits,
    client: Arc<C>,
) -> bool
where
    S: AsyncRead + AsyncWrite + Send + Unpin,
    C: Client,
{
    let stream = StallTimeout::new(stream, limits.write);
    let Some(config) = tls else { return over_http1(stream, limits, client).await };
    client.set_activity(Activity::Handshake, clock::now());
    let mut handshake = pin!(TlsAcceptor::from(config).accept(stream));
    let until = clock::now() + limits.read;
    let stream = loop {
        if client.end().is_some() {
            return false;
        }
        tokio::select! {
            done = fairly(&*client, handshake.as_mut()) => match done {
                Ok(stream) => break stream,
                Err(_) => return true,
            },
            () = client.woken() => {}
            () = sleep_until(until.into()) => return false,
        }
    };
    match stream.get_ref().1.alpn_protocol() == Some(b"h2") {
        true => over_http2(stream, limits, client).await,
        false => over_http1(stream, limits, client).await,
    }
}

async fn over_http1<S, C>(stream: S, limits: Limits, client: Arc<C>) -> bool
where
    S: AsyncRead + AsyncWrite + Send + Unpin,
    C: Client,
{
    let progress = Progress::new(client.clone());
    let service = service_fn(|request| respond(&client, &progress, limits, request));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.read.max(limits.idle))
        .max_buf_size(HTTP1_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    supervise(connection, |connection| connection.graceful_shutdown(), limits, &client, &progress).await
}

async fn over_http2<S, C>(stream: S, limits: Limits, client: Arc<C>) -> bool
where
    S: AsyncRead + AsyncWrite + Send + Unpin,
    C: Client,
{
    let progress = Progress::new(client.clone());
    let limit = limits.read + limits.answer + limits.write;
    // The tasks hold the executor, so that it must not hold them.
    let all = Arc::default();
    let tasks = Tasks { client: client.clone(), all: Arc::downgrade(&all), limit };
    let service = {
        let (client, progress) = (client.clone(), progress.clone());
        service_fn(move |request| respond(&client, &progress, limits, request))
    };
    let connection = http2::Builder::new(tasks)
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.streams)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_header_list_size(HEADER_BYTES)
        .max_send_buf_size(SEND_BYTES)
        .max_pending_accept_reset_streams(RESET_STREAMS)
        .max_local_error_reset_streams(RESET_STREAMS)
        .serve_connection(TokioIo::new(stream), service);
    supervise(connection, |connection| connection.graceful_shutdown(), limits, &client, &progress).await
}

/// Drives a connection until it ends, is idle for too long, does not read a reply in time, or the
/// server ends it. Returns false if what is not sent yet is to be discarded.
async fn supervise<F, C>(
    connection: F,
    finish: impl Fn(Pin<&mut F>),
    limits: Limits,
    client: &Arc<C>,
    progress: &Arc<Progress<C>>,
) -> bool
where
    F: Future<Output = hyper::Result<()>>,
    C: Client,
{
    let mut connection = pin!(connection);
    let mut closes: Option<Instant> = None;
    loop {
        let now = clock::now();
        let idle = progress.idle();
        let (since, limit) = match idle {
            Some((since, false)) => (since, limits.read),
            Some((since, true)) => (since, limits.idle),
            None => (now, limits.idle),
        };
        let end = client.end();
        if end == Some(End::Now) {
            return false;
        }
        // Bytes that are read one by one keep no reply: the bound is for all of it.
        let unsent = progress.unsent_since().unwrap_or(now) + limits.write;
        if now >= unsent {
            return false;
        }
        // The first request may be on its way as the server stops.
        let first = idle.filter(|(_, served)| !served).map(|(since, _)| since + FIRST_REQUEST);
        let first = first.filter(|first| end.is_some() && now < *first);
        match closes {
            Some(until) if idle.is_some() && now >= until => return true,
            None if first.is_none() && (end.is_some() || now >= since + limit) => {
                // The client is given time to read the end (GOAWAY), and to close.
                closes = Some(now + CLOSING);
                finish(connection.as_mut());
            }
            _ => {}
        }
        let until = closes.map_or(since + limit, |until| until.max(now + LOOK_AGAIN));
        // A reply that becomes ready meanwhile is looked at before its time has passed.
        let until = first.unwrap_or(until).min(unsent);
        tokio::select! {
            _ = fairly(&**client, connection.as_mut()) => return true,
            () = client.woken() => {}
            () = sleep_until(until.into()) => {}
        }
    }
}

/// Runs the requests of an HTTP/2 connection, and ends them with it.
struct Tasks<C> {
    client: Arc<C>,
    /// Held by the connection's own task, whose end aborts all.
    all: Weak<Mutex<JoinSet<()>>>,
    /// How long a request may take, its body and the reading of the reply included.
    limit: Duration,
}

impl<C> Clone for Tasks<C> {
    fn clone(&self) -> Self {
        Self { client: self.client.clone(), all: self.all.clone(), limit: self.limit }
    }
}

impl<C: Client, F: Future<Output = ()> + Send + 'static> Executor<F> for Tasks<C> {
    fn execute(&self, work: F) {
        let (client, limit) = (self.client.clone(), self.limit);
        let Some(all) = self.all.upgrade() else { return };
        let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
        while all.try_join_next().is_some() {}
        all.spawn(async move {
            let work = pin!(work);
            // Dropping the request resets its stream.
            let _ = timeout(limit, fairly(&*client, work)).await;
        });
    }
}

/// Responds to one request.
///
/// # Errors
/// The request is not processed: its stream is reset such that the client may send it again, over
/// HTTP/1.1 its connection is closed.
fn respond<C: Client>(
    client: &Arc<C>,
    progress: &Arc<Progress<C>>,
    limits: Limits,
    request: Request<Incoming>,
) -> impl Future<Output = Result<Response<Full<Bytes>>, h2::Error>> + Send + 'static + use<C> {
    // Before the first step, so that a request which is refused holds nothing.
    let place = client.place();
    let (client, open) = (client.clone(), progress.begin());
    let is_head = request.method() == Method::HEAD;
    async move {
        let refused = || h2::Error::from(h2::Reason::REFUSED_STREAM);
        let place = place.ok_or_else(refused)?;
        let mut open = open;
        let status = match answer(&*client, limits, request, &mut open).await {
            Ok(Answer::Reply(reply)) => {
                open.answered();
                client.count(Outcome::Answered);
                return Ok(answered(Sent { reply, _open: open, _place: place }));
            }
            Ok(Answer::Silence) => Outcome::Silence,
            Ok(Answer::Malformed) => Outcome::Malformed,
            Ok(Answer::Gone) => return Err(refused()),
            Err(status) => status,
        };
        client.count(status);
        let mut response = without_reply(status);
        if is_head {
            // hyper leaves the body of a response to HEAD out over HTTP/1.1 alone.
            let length = response.body().size_hint().exact().unwrap_or_default();
            response.headers_mut().insert(CONTENT_LENGTH, length.into());
            *response.body_mut() = Full::default();
        }
        Ok(response)
    }
}

/// Reads the message of a request, and answers it.
///
/// # Errors
/// The status of a request without a message.
async fn answer<C: Client>(
    client: &C,
    limits: Limits,
    request: Request<Incoming>,
    open: &mut OpenRequest<C>,
) -> Result<Answer<C::Reply>, Outcome> {
    if !request::is_served(request.uri().path()) {
        return Err(Outcome::OtherPath);
    }
    let message = match *request.method() {
        Method::GET => request::message(request.uri().query().unwrap_or_default()),
        Method::POST => timeout(limits.read, body(request.into_body())).await.ok().flatten(),
        _ => None,
    };
    let message = message.filter(|message| message.len() <= MESSAGE_BYTES).ok_or(Outcome::Malformed)?;
    open.received();
    Ok(client.query(&message, true).await)
}

/// Reads a body; `None` if it breaks off, or has more than [`MESSAGE_BYTES`]. The rest of a longer
/// one is discarded, as a response before its end would be reset with it.
async fn body(mut body: Incoming) -> Option<Vec<u8>> {
    let (mut message, mut length) = (Vec::new(), 0);
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.ok()?.into_data() else { continue };
        length += data.len();
        if length > DISCARDED_BYTES {
            return None;
        } else if length > MESSAGE_BYTES {
            message = Vec::new();
        } else {
            message.extend_from_slice(&data);
        }
    }
    (length <= MESSAGE_BYTES).then_some(message)
}

/// Returns the response without a reply; the texts are those of CoreDNS.
fn without_reply(outcome: Outcome) -> Response<Full<Bytes>> {
    let (code, text) = match outcome {
        Outcome::Malformed => (StatusCode::BAD_REQUEST, "invalid request\n"),
        Outcome::OtherPath => (StatusCode::NOT_FOUND, "\n"),
        _ => (StatusCode::INTERNAL_SERVER_ERROR, "No response\n"),
    };
    let mut response = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

fn answered<C: Client>(sent: Sent<C>) -> Response<Full<Bytes>> {
    let max_age = format!("max-age={}", max_age(sent.as_ref()));
    let mut response = Response::new(Full::new(Bytes::from_owner(sent)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/dns-message"));
    if let Ok(max_age) = HeaderValue::try_from(max_age) {
        headers.insert(CACHE_CONTROL, max_age);
    }
    response
}

/// A reply; its request stays open until hyper has written and dropped it.
struct Sent<C: Client> {
    reply: C::Reply,
    _open: OpenRequest<C>,
    _place: C::Place,
}

impl<C: Client> AsRef<[u8]> for Sent<C> {
    fn as_ref(&self) -> &[u8] {
        self.reply.as_ref()
    }
}

/// Bytes of a body up to which its end is waited for: as long as any DNS message, and as much again.
const DISCARDED_BYTES: usize = 128 * 1024;
/// Bytes that a connection and each of its streams may send before they are read.
const WINDOW: u32 = 64 * 1024 - 1;
/// Bytes of a request's header fields: a message of [`MESSAGE_BYTES`] in base64url, and half as
/// much again.
const HEADER_BYTES: u32 = 8 * 1024;
/// Bytes of a request's head, and of its body that are read ahead, over HTTP/1.1.
const HTTP1_BYTES: usize = 16 * 1024;
/// Bytes of one reply that are written ahead of the client's window.
const SEND_BYTES: usize = 16 * 1024;
/// Streams that a client may reset before they are served; the connection ends beyond (rapid
/// reset).
const RESET_STREAMS: usize = 64;
/// How long a client may take to close a connection that the server ends.
const CLOSING: Duration = Duration::from_secs(1);
/// How long a new connection may take to its first request once the server stops, as over TCP.
const FIRST_REQUEST: Duration = Duration::from_millis(300);
/// How often to look whether the last requests of an ending connection are answered.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

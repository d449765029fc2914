//! One HTTP connection: which page a path is, how long a client may take, and a polite end.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    CACHE_CONTROL, CONNECTION, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, DATE, HeaderValue,
    REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::made::MadePage;
use super::negotiate::Wanted;
use super::pages::{NotReady, Pages};
use super::scrape::Scrapes;
use super::slots::Slot;
use super::status_page;
use super::watched::Watched;
use logging::Logger;

/// What every connection of a listener shares.
pub(super) struct Site {
    /// Which pages it has, as [`Pages::to_bits`]; changes on reload.
    pub(super) pages: AtomicU8,
    pub(super) scrapes: Scrapes,
    pub(super) not_ready: Arc<NotReady>,
    /// What /ready last said is waited for; empty where nothing is.
    pub(super) waited_for: Mutex<String>,
    pub(super) status: Option<Arc<MadePage>>,
    pub(super) exporter: Option<Arc<MadePage>>,
    pub(super) logger: Logger,
    pub(super) patience: Patience,
}

/// How long a client is waited for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// For a request's head, and between two requests.
    pub(super) head: Duration,
    /// For the client to read some of what is written.
    pub(super) read: Duration,
    /// From accept to the end of the connection, whatever the client does or does not read.
    pub(super) life: Duration,
    /// For the client to close after us.
    pub(super) linger: Duration,
}

impl Default for Patience {
    /// CoreDNS waits 5 s for a request; the others are ours.
    fn default() -> Self {
        let [head, read] = [Duration::from_secs(5); 2];
        Self { head, read, life: Duration::from_secs(60), linger: Duration::from_secs(1) }
    }
}

/// Serves one connection to its end.
pub(super) async fn serve(
    mut stream: TcpStream,
    slot: Arc<Slot>,
    site: Arc<Site>,
    stop: watch::Receiver<bool>,
) {
    let _ = stream.set_nodelay(true);
    tokio::select! {
        () = serve_politely(&mut stream, &slot, &site, stop) => {}
        () = slot.was_cut() => {}
    }
    if slot.is_unread() {
        // Without this the kernel would keep what the client does not read, and probe its zero window for minutes (RFC 9293,
        // section 3.8.6.1).
        let _ = SockRef::from(&stream).set_linger(Some(Duration::ZERO));
    }
}

async fn serve_politely(
    stream: &mut TcpStream,
    slot: &Arc<Slot>,
    site: &Arc<Site>,
    mut stop: watch::Receiver<bool>,
) {
    let Patience { head, read, life, linger } = site.patience;
    {
        let service = service_fn(|request: Request<Incoming>| async move {
            sleep(slot.begin(clock::now())).await;
            let wanted = Wanted::of(request.headers());
            let response = site.respond(request.uri().path(), wanted, slot).await;
            slot.answer(clock::now());
            Ok::<_, Infallible>(response)
        });
        let mut connection = pin!(
            http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(head)
                .half_close(true)
                .auto_date_header(false)
                .max_buf_size(BUFFER_BYTES)
                .serve_connection(TokioIo::new(Watched::new(stream, slot, read)), service)
        );
        let ended = tokio::select! {
            _ = &mut connection => true,
            _ = stop.wait_for(|stop| *stop) => false,
            () = sleep(life) => false,
        };
        if !ended {
            connection.as_mut().graceful_shutdown();
            let _ = timeout(head, connection).await;
        }
    }
    if !slot.is_unread() {
        let _ = timeout(linger, close(stream)).await;
    }
}

/// Ends our side, and reads what the client still sends: closing a socket with unread data resets it, and the reset may
/// overtake our last reply (RFC 9112, section 9.6).
async fn close(stream: &mut TcpStream) {
    let _ = stream.shutdown().await;
    let mut waste = [0; 1024];
    let mut total = 0;
    while total < LINGER_BYTES
        && let Ok(read @ 1..) = stream.read(&mut waste).await
    {
        total += read;
    }
}

impl Site {
    async fn respond(&self, path: &str, wanted: Wanted, slot: &Arc<Slot>) -> Response<Full<Bytes>> {
        let pages = Pages::from_bits(self.pages.load(Ordering::Relaxed));
        match (path, &self.status, &self.exporter) {
            ("/metrics", ..) if pages.metrics => self.metrics(wanted, slot).await,
            ("/metrics", _, Some(exporter)) if pages.exporter => closing(made(exporter, EXPORTED).await),
            ("/health", ..) if pages.health => response(StatusCode::OK, PLAIN, "OK"),
            ("/ready", ..) if pages.ready => self.ready(),
            ("/status", Some(status), _) if pages.metrics => unkept(made(status, "application/json").await),
            ("/status.html", Some(_), _) if pages.metrics => {
                let mut page =
                    unkept(response(StatusCode::OK, "text/html; charset=utf-8", status_page::HTML));
                page.headers_mut().insert(CONTENT_SECURITY_POLICY, status_page::policy());
                page
            }
            _ if pages.exporter && !pages.metrics => closing(response(
                StatusCode::NOT_FOUND,
                PLAIN,
                "404 Not Found - Metrics available at /metrics\n",
            )),
            _ => {
                let mut absent = response(StatusCode::NOT_FOUND, PLAIN, "404 page not found\n");
                absent.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
                absent
            }
        }
    }

    async fn metrics(&self, wanted: Wanted, slot: &Arc<Slot>) -> Response<Full<Bytes>> {
        let Some(page) = self.scrapes.page(wanted, slot).await else {
            return response(StatusCode::SERVICE_UNAVAILABLE, PLAIN, "no page could be made\n");
        };
        let mut response = response(StatusCode::OK, PLAIN, page);
        if let Ok(kind) = HeaderValue::try_from(wanted.content_type()) {
            response.headers_mut().insert(CONTENT_TYPE, kind);
        }
        if wanted.gzip {
            response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        response
    }

    fn ready(&self) -> Response<Full<Bytes>> {
        let missing = (self.not_ready)().join(",");
        let mut told = self.waited_for.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever probes asks again every few seconds, for as long as it takes.
        let is_news = *told != missing;
        if is_news {
            told.clone_from(&missing);
        }
        drop(told);
        if missing.is_empty() {
            return response(StatusCode::OK, PLAIN, "OK");
        }
        if is_news {
            self.logger.info(Some("ready"), &format!("Plugins not ready: {missing:?}"));
        }
        response(StatusCode::SERVICE_UNAVAILABLE, PLAIN, missing)
    }
}

async fn made(page: &MadePage, kind: &'static str) -> Response<Full<Bytes>> {
    match page.bytes().await {
        Some(bytes) => response(StatusCode::OK, kind, bytes),
        None => response(StatusCode::SERVICE_UNAVAILABLE, PLAIN, "no page could be made\n"),
    }
}

/// Marks a page as one that no cache may keep: it is true for this request alone.
fn unkept(mut page: Response<Full<Bytes>>) -> Response<Full<Bytes>> {
    for (name, value) in
        [(CACHE_CONTROL, "no-store"), (X_CONTENT_TYPE_OPTIONS, "nosniff"), (REFERRER_POLICY, "no-referrer")]
    {
        page.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    page
}

/// One page for a connection, as production's exporter has it.
fn closing(mut page: Response<Full<Bytes>>) -> Response<Full<Bytes>> {
    page.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    page
}

fn response(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    if let Some(date) = date() {
        response.headers_mut().insert(DATE, date);
    }
    response
}

/// Now (RFC 9110, section 5.6.7). Of a clock that was set back, hyper's own header would tell the time before until that comes
/// again. Neither can write a year before 1970 or after 9999, where Linux lets no clock stand.
fn date() -> Option<HeaderValue> {
    HeaderValue::try_from(httpdate::fmt_http_date(clock::wall())).ok()
}

const PLAIN: &str = "text/plain; charset=utf-8";
const EXPORTED: &str = "text/plain; version=0.0.4";
/// How much of what it still sends is read.
const LINGER_BYTES: usize = 64 * 1024;
/// Bound of a request's head in octets.
const BUFFER_BYTES: usize = 16 * 1024;

//! One HTTP connection: routing, timeouts and an orderly close.

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

use super::connection_table::ConnectionSlot;
use super::negotiate::Negotiated;
use super::page_cache::CachedPage;
use super::pages::{NotReady, Pages};
use super::scrape::Scrapes;
use super::stall_timeout::StallTimeout;
use super::status_page;
use logging::Logger;

/// The state that all connections of a listener share.
pub(super) struct ListenerContext {
    /// The listener's pages, as [`Pages::to_bits`]; changed by a reload.
    pub(super) pages: AtomicU8,
    pub(super) scrapes: Scrapes,
    pub(super) not_ready: Arc<NotReady>,
    /// The plugins that were not ready at the last request of /ready.
    pub(super) reported_not_ready: Mutex<String>,
    pub(super) status: Option<Arc<CachedPage>>,
    pub(super) exporter: Option<Arc<CachedPage>>,
    pub(super) logger: Logger,
    pub(super) timeouts: Timeouts,
}

/// Timeouts of a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timeouts {
    /// A request's head, and the time between two requests.
    pub(super) head: Duration,
    /// A stalled write.
    pub(super) read: Duration,
    /// The whole connection.
    pub(super) life: Duration,
    /// Wait for the client's close after this server's.
    pub(super) linger: Duration,
}

impl Default for Timeouts {
    /// `head` is that of CoreDNS.
    fn default() -> Self {
        let [head, read] = [Duration::from_secs(5); 2];
        Self { head, read, life: Duration::from_secs(60), linger: Duration::from_secs(1) }
    }
}

/// Serves one connection to its end.
pub(super) async fn serve(
    mut stream: TcpStream,
    slot: Arc<ConnectionSlot>,
    context: Arc<ListenerContext>,
    stop: watch::Receiver<bool>,
) {
    let _ = stream.set_nodelay(true);
    tokio::select! {
        () = serve_requests(&mut stream, &slot, &context, stop) => {}
        () = slot.was_cut() => {}
    }
    if slot.is_unread() {
        // Resets the connection. Otherwise the kernel would keep the unread data, and probe the client's zero window for minutes
        // (RFC 9293, section 3.8.6.1).
        let _ = SockRef::from(&stream).set_linger(Some(Duration::ZERO));
    }
}

async fn serve_requests(
    stream: &mut TcpStream,
    slot: &Arc<ConnectionSlot>,
    context: &Arc<ListenerContext>,
    mut stop: watch::Receiver<bool>,
) {
    let Timeouts { head, read, life, linger } = context.timeouts;
    {
        let service = service_fn(|request: Request<Incoming>| async move {
            sleep(slot.begin(clock::now())).await;
            let negotiated = Negotiated::of(request.headers());
            let response = context.respond(request.uri().path(), negotiated, slot).await;
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
                .serve_connection(TokioIo::new(StallTimeout::new(stream, slot, read)), service)
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

/// Shuts down our side, and discards what the client still sends: closing a socket with unread data resets it, and the reset may
/// destroy our last reply (RFC 9112, section 9.6).
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

impl ListenerContext {
    async fn respond(
        &self,
        path: &str,
        negotiated: Negotiated,
        slot: &Arc<ConnectionSlot>,
    ) -> Response<Full<Bytes>> {
        let pages = Pages::from_bits(self.pages.load(Ordering::Relaxed));
        match (path, &self.status, &self.exporter) {
            ("/metrics", ..) if pages.metrics => self.metrics(negotiated, slot).await,
            ("/metrics", _, Some(exporter)) if pages.exporter => closing(cached(exporter, EXPORTED).await),
            ("/health", ..) if pages.health => response(StatusCode::OK, PLAIN, "OK"),
            ("/ready", ..) if pages.ready => self.ready(),
            ("/status", Some(status), _) if pages.metrics => {
                no_store(cached(status, "application/json").await)
            }
            ("/status.html", Some(_), _) if pages.metrics => {
                let mut page =
                    no_store(response(StatusCode::OK, "text/html; charset=utf-8", status_page::HTML));
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

    async fn metrics(&self, negotiated: Negotiated, slot: &Arc<ConnectionSlot>) -> Response<Full<Bytes>> {
        let Some(page) = self.scrapes.page(negotiated, slot).await else {
            return response(StatusCode::SERVICE_UNAVAILABLE, PLAIN, "no page could be made\n");
        };
        let mut response = response(StatusCode::OK, PLAIN, page);
        if let Ok(kind) = HeaderValue::try_from(negotiated.content_type()) {
            response.headers_mut().insert(CONTENT_TYPE, kind);
        }
        if negotiated.gzip {
            response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        response
    }

    fn ready(&self) -> Response<Full<Bytes>> {
        let missing = (self.not_ready)().join(",");
        let mut reported = self.reported_not_ready.lock().unwrap_or_else(PoisonError::into_inner);
        // Probes repeat every few seconds: only changes are logged.
        let has_changed = *reported != missing;
        if has_changed {
            reported.clone_from(&missing);
        }
        drop(reported);
        if missing.is_empty() {
            return response(StatusCode::OK, PLAIN, "OK");
        }
        if has_changed {
            self.logger.info(Some("ready"), &format!("Plugins not ready: {missing:?}"));
        }
        response(StatusCode::SERVICE_UNAVAILABLE, PLAIN, missing)
    }
}

async fn cached(page: &CachedPage, kind: &'static str) -> Response<Full<Bytes>> {
    match page.bytes().await {
        Some(bytes) => response(StatusCode::OK, kind, bytes),
        None => response(StatusCode::SERVICE_UNAVAILABLE, PLAIN, "no page could be made\n"),
    }
}

/// Forbids caches to store the page.
fn no_store(mut page: Response<Full<Bytes>>) -> Response<Full<Bytes>> {
    for (name, value) in
        [(CACHE_CONTROL, "no-store"), (X_CONTENT_TYPE_OPTIONS, "nosniff"), (REFERRER_POLICY, "no-referrer")]
    {
        page.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    page
}

/// Closes the connection after the page, as AKS's exporter does.
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

/// The Date header (RFC 9110, section 5.6.7). After a clock is set back, hyper's own header would repeat the old time until the clock
/// reaches it again. Neither can write a year before 1970 or after 9999, which Linux does not allow for its clock.
fn date() -> Option<HeaderValue> {
    HeaderValue::try_from(httpdate::fmt_http_date(clock::wall())).ok()
}

const PLAIN: &str = "text/plain; charset=utf-8";
const EXPORTED: &str = "text/plain; version=0.0.4";
/// Maximum number of bytes discarded before the close.
const LINGER_BYTES: usize = 64 * 1024;
/// Maximum size of a request's head in bytes.
const BUFFER_BYTES: usize = 16 * 1024;

//! Runs the API client on a separate thread, with a connection for each kind, until its handle is
//! dropped.
//!
//! [`Reflector`] is the sans-I/O state machine that decides requests and interprets replies; this
//! module has the thread, the connections and the sleeps. The sink is called from that thread only.

mod backoff;
mod client_config;
mod config_source;
mod connection;
mod kubeconfig;
mod patch_node;
mod rate_limiter;
mod reflector;
mod request;

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use hyper::header::{CONTENT_TYPE, RETRY_AFTER};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::coop::consume_budget;
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Sleep, sleep_until, timeout_at};

use crate::objects::Kind;
use crate::settings::{ClientSettings, RateLimit, WatchConfig, WatchError};
use crate::sink::{RequestMetrics, Sink};

pub use client_config::printable_url;
pub use patch_node::annotate;

use client_config::{Api, Credentials};
use connection::{Connection, connection_error};
use rate_limiter::TokenBucket;
use reflector::{Next, ReadMore, Reflector};
use request::WatchRequest;

/// A running client; dropping it stops the client.
pub struct WatchHandle {
    stop: Option<oneshot::Sender<()>>,
    /// Carries no messages; closed when the thread ends.
    ended: Receiver<Infallible>,
    thread: Option<JoinHandle<()>>,
}

/// Starts the client.
///
/// # Errors
/// If the system starts no thread.
pub fn follow(settings: ClientSettings, sink: Box<dyn Sink>) -> io::Result<WatchHandle> {
    let (stop, stopped) = oneshot::channel();
    let (ends, ended) = mpsc::channel();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(4).build()?;
    let thread = thread::Builder::new().name("kubernetes".to_owned()).spawn(move || {
        let _ends = ends;
        runtime.block_on(async {
            tokio::select! {
                () = watch_all(settings, sink) => {}
                _ = stopped => {}
            }
        });
        // Abandons a file read that blocks the runtime.
        runtime.shutdown_background();
    })?;
    Ok(WatchHandle { stop: Some(stop), ended, thread: Some(thread) })
}

impl Drop for WatchHandle {
    fn drop(&mut self) {
        drop(self.stop.take());
        // The thread stops at its next await point. If decoding a reply takes longer than this
        // timeout, the thread ends by itself later.
        let ended = self.ended.recv_timeout(STOP_TIMEOUT) == Err(RecvTimeoutError::Disconnected);
        if let Some(thread) = self.thread.take().filter(|_| ended) {
            let _ = thread.join();
        }
    }
}

impl WatchConfig {
    /// Returns the kinds to watch.
    pub fn kinds(&self) -> impl Iterator<Item = Kind> {
        let wanted = |kind: &Kind| match kind {
            Kind::Service | Kind::Namespace => true,
            Kind::Slice => self.endpoints,
            Kind::Pod => self.pods.is_some(),
            Kind::ServiceImport => self.imports,
        };
        Kind::ALL.into_iter().filter(wanted)
    }
}

struct WatchContext {
    settings: ClientSettings,
    wants: Arc<WatchConfig>,
    // Only one thread locks these mutexes, so that it never blocks. Mutexes make the tasks `Send`;
    // waking such tasks costs the runtime less than waking local ones.
    bucket: Mutex<TokenBucket>,
    sink: Mutex<Box<dyn Sink>>,
    in_flight: Semaphore,
}

async fn watch_all(settings: ClientSettings, sink: Box<dyn Sink>) {
    let wants = Arc::new(settings.wants.clone());
    let RateLimit { per_second, burst, in_flight } = settings.pace;
    let most = if in_flight == 0 { Semaphore::MAX_PERMITS } else { in_flight.min(Semaphore::MAX_PERMITS) };
    let shared = Arc::new(WatchContext {
        bucket: Mutex::new(TokenBucket::new(per_second, burst, (settings.now)())),
        in_flight: Semaphore::new(most),
        settings,
        wants: wants.clone(),
        sink: Mutex::new(sink),
    });
    let mut streams = JoinSet::new();
    let begin = |streams: &mut JoinSet<_>, kind| {
        let shared = shared.clone();
        streams.spawn(async move { shared.follow(kind).await })
    };
    let mut kinds: Vec<_> = wants.kinds().map(|kind| (begin(&mut streams, kind).id(), kind)).collect();
    // A task ends only by a panic, and is restarted.
    while let Some(ended) = streams.join_next_with_id().await {
        let id = ended.map_or_else(|error| error.id(), |(id, ())| id);
        let Some(place) = kinds.iter().position(|(known, _)| *known == id) else { continue };
        let kind = kinds[place].1;
        shared.sink().failed(kind, &WatchError::Invalid("internal error while it was read".into()));
        tokio::time::sleep(PANIC_DELAY).await;
        kinds[place].0 = begin(&mut streams, kind).id();
    }
}

/// State of a kind between requests.
#[derive(Default)]
struct KindConnection {
    connection: Option<Connection>,
    /// The Authorization header, and when it was read.
    authorization: Option<(Instant, Option<Box<str>>)>,
}

/// Credentials that the API rejected, and their header.
struct RejectedCredentials {
    credentials: Credentials,
    header: Option<Box<str>>,
}

impl KindConnection {
    /// Returns the credentials if a request failed because the API rejected them.
    fn refused(self, why: &WatchError) -> Option<RejectedCredentials> {
        let (WatchError::Unauthorized { .. }, Some(connection), Some((_, header))) =
            (why, self.connection, self.authorization)
        else {
            return None;
        };
        Some(RejectedCredentials { credentials: connection.api.credentials, header })
    }
}

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitEnd {
    Elapsed,
    /// The token file has another token than the rejected one.
    NewToken,
}

/// Waits until an instant, or until the token file has another token than the rejected one.
async fn wait(now: fn() -> Instant, until: Instant, refused: Option<RejectedCredentials>) -> WaitEnd {
    if let Some(RejectedCredentials { credentials: credentials @ Credentials::TokenFile(_), header }) =
        refused
    {
        while now() + TOKEN_POLL_INTERVAL < until {
            tokio::time::sleep(TOKEN_POLL_INTERVAL).await;
            let credentials = credentials.clone();
            if run_blocking(move || credentials.header()).await.is_ok_and(|is| is != header) {
                return WaitEnd::NewToken;
            }
        }
    }
    sleep_until(until.into()).await;
    WaitEnd::Elapsed
}

impl WatchContext {
    fn now(&self) -> Instant {
        (self.settings.now)()
    }

    fn sink(&self) -> MutexGuard<'_, Box<dyn Sink>> {
        locked(&self.sink)
    }

    async fn follow(&self, kind: Kind) {
        let mut reflector = Reflector::new(kind, self.wants.clone(), rand::random);
        let (mut link, mut refused) = (KindConnection::default(), None);
        loop {
            match reflector.next(self.now()) {
                Next::Wait(until) => {
                    if wait(self.settings.now, until, refused.take()).await == WaitEnd::NewToken {
                        reflector.retry_now();
                    }
                }
                Next::Send(request) => {
                    let result = self.exchange(kind, &mut reflector, &mut link, &request).await;
                    self.sink().end_batch(kind);
                    if let Err(why) = result {
                        refused = std::mem::take(&mut link).refused(&why);
                        reflector.failed(self.now(), &why, &mut **self.sink());
                    }
                }
            }
        }
    }

    /// Waits for a token of the rate limiter, and returns for how long.
    async fn wait_for_token(&self) -> Duration {
        let began = self.now();
        let mut now = began;
        loop {
            let Err(until) = locked(&self.bucket).take(now) else { break };
            sleep_until(until.into()).await;
            now = self.now();
        }
        now.saturating_duration_since(began)
    }

    /// Sends a request and reads its reply to the end.
    async fn exchange(
        &self,
        kind: Kind,
        reflector: &mut Reflector,
        link: &mut KindConnection,
        request: &WatchRequest,
    ) -> Result<(), WatchError> {
        if let Err(why) = self.prepare(link).await {
            if let WatchError::Connection { address, .. } = &why {
                let metrics = RequestMetrics {
                    host: address,
                    status: None,
                    waited: Duration::ZERO,
                    took: Duration::ZERO,
                    watch: request.watch,
                };
                self.sink().request_done(&metrics);
            }
            return Err(why);
        }
        let (Some(connection), Some((_, header))) = (&mut link.connection, &link.authorization) else {
            return Ok(());
        };
        let waited = self.wait_for_token().await;
        let permit = self.in_flight.acquire().await;
        let sent_at = self.now();
        let deadline = reflector.deadline(sent_at).into();
        let sent = timeout_at(deadline, connection.send(request, header.as_deref())).await;
        drop(permit);
        let status =
            sent.as_ref().ok().and_then(|sent| sent.as_ref().ok()).map(|reply| reply.status().as_u16());
        self.sink().request_done(&RequestMetrics {
            host: &connection.api.authority,
            status,
            waited,
            took: self.now().saturating_duration_since(sent_at),
            watch: request.watch,
        });
        let Ok(reply) = sent else {
            return Err(reflector.silent(self.now(), sent_at).unwrap_or(WatchError::Silent(Duration::ZERO)));
        };
        let (head, mut body) = reply?.into_parts();
        let header = |name| head.headers.get(name).and_then(|value| value.to_str().ok());
        let (encoding, again) =
            (header(CONTENT_TYPE), header(RETRY_AFTER).and_then(|after| after.parse().ok()));
        let (now, status, encoding) = (self.now(), head.status.as_u16(), encoding.unwrap_or_default());
        reflector.head(now, status, encoding, again, &mut **self.sink())?;
        let mut timer = pin!(sleep_until(deadline));
        // Time since the last yield, and since the last end of a batch.
        let (mut spent, mut in_batch) = (Duration::ZERO, Duration::ZERO);
        loop {
            // Lets other tasks run, also if much data is available.
            consume_budget().await;
            let deadline = reflector.deadline(sent_at).into();
            let received = {
                let mut frame = pin!(connection.next_frame(&mut body));
                let available = poll_fn(|context| Poll::Ready(frame.as_mut().poll(context))).await;
                if available.is_pending() || in_batch >= MAX_BATCH {
                    let began = self.now();
                    self.sink().end_batch(kind);
                    spent += self.now().saturating_duration_since(began);
                    in_batch = Duration::ZERO;
                }
                if spent >= MAX_TURN {
                    // Runs after all ready tasks, including those that the runtime polls I/O for
                    // now.
                    yield_now().await;
                    spent = Duration::ZERO;
                }
                match available {
                    Poll::Ready(frame) => Some(frame),
                    Poll::Pending => before(deadline, timer.as_mut(), frame).await,
                }
            };
            let now = self.now();
            let sink = &mut **self.sink();
            match received {
                Some(Some(Ok(frame))) => {
                    let Some(bytes) = frame.data_ref() else { continue };
                    sink.begin_batch(kind);
                    if reflector.body(now, bytes, sink)? == ReadMore::No {
                        link.connection = None;
                        return reflector.end(now, sink);
                    }
                    if sink.needs_relist(kind) {
                        return Err(reflector.relist_for_memory());
                    }
                    let took = self.now().saturating_duration_since(now);
                    spent += took;
                    in_batch += took;
                }
                Some(Some(Err(error))) => return Err(connection_error(&connection.api, &error)),
                Some(None) => return reflector.end(now, sink),
                None => {
                    let why = reflector.silent(now, sent_at);
                    link.connection = None;
                    return why.map_or(Ok(()), Err);
                }
            }
        }
    }

    /// Ensures an open connection, and credentials not older than 10 s.
    async fn prepare(&self, link: &mut KindConnection) -> Result<(), WatchError> {
        if let Some(connection) = &mut link.connection
            && !connection.is_open().await
        {
            link.connection = None;
        }
        if link.connection.is_none() {
            let access = self.settings.access.clone();
            link.connection =
                Some(Connection::open(run_blocking(move || Api::from_access(&access)).await?).await?);
            link.authorization = None;
        }
        let now = self.now();
        let old = |read: &Instant| now.saturating_duration_since(*read) >= TOKEN_MAX_AGE;
        if let Some(connection) = &link.connection
            && link.authorization.as_ref().is_none_or(|(read, _)| old(read))
        {
            let credentials = connection.api.credentials.clone();
            link.authorization = Some((now, run_blocking(move || credentials.header()).await?));
        }
        Ok(())
    }
}

/// Returns the result of a future if it is ready before a deadline. The timer is reused: most
/// frames of a list are available at once, and a timer for each would be set in vain.
async fn before<T>(
    deadline: tokio::time::Instant,
    mut sleep: Pin<&mut Sleep>,
    future: impl Future<Output = T>,
) -> Option<T> {
    let mut future = pin!(future);
    if deadline < sleep.deadline() {
        sleep.as_mut().reset(deadline);
    }
    poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Some(output));
        }
        while sleep.as_mut().poll(context).is_ready() {
            if sleep.deadline() >= deadline {
                return Poll::Ready(None);
            }
            sleep.as_mut().reset(deadline);
        }
        Poll::Pending
    })
    .await
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a blocking read on a thread of the runtime.
async fn run_blocking<T: Send + 'static>(
    read: impl FnOnce() -> Result<T, WatchError> + Send + 'static,
) -> Result<T, WatchError> {
    let done = AbortOnDrop(tokio::task::spawn_blocking(read)).await;
    done.unwrap_or_else(|error| Err(client_config::access_error("the configuration", &error.to_string())))
}

/// A blocking task that is cancelled on drop unless it has started.
struct AbortOnDrop<T>(tokio::task::JoinHandle<T>);

impl<T> Future for AbortOnDrop<T> {
    type Output = Result<T, tokio::task::JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context)
    }
}

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Timeout for the end of the thread, which decodes a few hundred KiB or a page at a time.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);
/// Time after which a kind yields to the others.
const MAX_TURN: Duration = Duration::from_millis(1);
/// Maximum reading time of a batch while more data is available.
const MAX_BATCH: Duration = Duration::from_millis(50);
/// As in client-go.
const TOKEN_MAX_AGE: Duration = Duration::from_secs(10);
/// Interval of reading a token file after its token was rejected.
const TOKEN_POLL_INTERVAL: Duration = Duration::from_millis(250);
const PANIC_DELAY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;

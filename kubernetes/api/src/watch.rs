//! Follows the API on a thread of its own, a stream for each kind, until it is told to stop.
//!
//! What is asked and what replies mean is [`Follower`]'s, which is handed the time; here are the thread, the connections and
//! the sleep in between. The sink is called from that thread alone.

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
use crate::settings::{Lost, Pace, Settings, Wants};
use crate::sink::{Asked, Sink};

pub use patch_node::annotate;

use client_config::{Api, Credentials};
use connection::{Connection, broken};
use rate_limiter::Bucket;
use reflector::{Follower, Next, Rest};
use request::Ask;

/// An API that is followed until this is dropped.
pub struct Following {
    stop: Option<oneshot::Sender<()>>,
    /// Says nothing, and is closed when the thread ends.
    ended: Receiver<Infallible>,
    thread: Option<JoinHandle<()>>,
}

/// Begins to follow.
///
/// # Errors
/// What the system says to one more thread.
pub fn follow(settings: Settings, sink: Box<dyn Sink>) -> io::Result<Following> {
    let (stop, stopped) = oneshot::channel();
    let (ends, ended) = mpsc::channel();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(4).build()?;
    let thread = thread::Builder::new().name("kubernetes".to_owned()).spawn(move || {
        let _ends = ends;
        runtime.block_on(async {
            tokio::select! {
                () = everything(settings, sink) => {}
                _ = stopped => {}
            }
        });
        // A read of a file that hangs is left behind.
        runtime.shutdown_background();
    })?;
    Ok(Following { stop: Some(stop), ended, thread: Some(thread) })
}

impl Drop for Following {
    fn drop(&mut self) {
        drop(self.stop.take());
        // The stop is heard at the thread's next await point; where what the API sent takes longer to decode than this
        // waits, the thread is left to end by itself.
        let ended = self.ended.recv_timeout(LONGEST_END) == Err(RecvTimeoutError::Disconnected);
        if let Some(thread) = self.thread.take().filter(|_| ended) {
            let _ = thread.join();
        }
    }
}

impl Wants {
    /// The kinds that are followed.
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

struct Shared {
    settings: Settings,
    wants: Arc<Wants>,
    // Both are locked by the one thread, which never waits for itself; a task that may be sent costs the runtime less to wake
    // than one that may not.
    bucket: Mutex<Bucket>,
    sink: Mutex<Box<dyn Sink>>,
    in_flight: Semaphore,
}

async fn everything(settings: Settings, sink: Box<dyn Sink>) {
    let wants = Arc::new(settings.wants.clone());
    let Pace { per_second, burst, in_flight } = settings.pace;
    let most = if in_flight == 0 { Semaphore::MAX_PERMITS } else { in_flight.min(Semaphore::MAX_PERMITS) };
    let shared = Arc::new(Shared {
        bucket: Mutex::new(Bucket::new(per_second, burst, (settings.now)())),
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
    // A stream ends by a panic alone, and begins anew.
    while let Some(ended) = streams.join_next_with_id().await {
        let id = ended.map_or_else(|error| error.id(), |(id, ())| id);
        let Some(place) = kinds.iter().position(|(known, _)| *known == id) else { continue };
        let kind = kinds[place].1;
        shared.sink().lost(kind, &Lost::Nonsense("a panic while it was read".into()));
        tokio::time::sleep(AFTER_PANIC).await;
        kinds[place].0 = begin(&mut streams, kind).id();
    }
}

/// What a kind's stream keeps between requests.
#[derive(Default)]
struct Link {
    connection: Option<Connection>,
    /// The header that says who asks, and when it was read.
    who: Option<(Instant, Option<Box<str>>)>,
}

/// What said who asks, and what it said.
struct Refused {
    credentials: Credentials,
    who: Option<Box<str>>,
}

impl Link {
    /// What was not accepted, where that is why a request failed.
    fn refused(self, why: &Lost) -> Option<Refused> {
        let (Lost::Unauthorized { .. }, Some(connection), Some((_, who))) = (why, self.connection, self.who)
        else {
            return None;
        };
        Some(Refused { credentials: connection.api.credentials, who })
    }
}

/// Why a wait was over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    Time,
    /// Who asks is another than was not accepted.
    Another,
}

/// Waits until then, or until a file has another token than the one that was not accepted.
async fn wait(now: fn() -> Instant, until: Instant, refused: Option<Refused>) -> Over {
    if let Some(Refused { credentials: credentials @ Credentials::TokenFile(_), who }) = refused {
        while now() + LOOK_AT_TOKEN < until {
            tokio::time::sleep(LOOK_AT_TOKEN).await;
            let credentials = credentials.clone();
            if aside(move || credentials.header()).await.is_ok_and(|is| is != who) {
                return Over::Another;
            }
        }
    }
    sleep_until(until.into()).await;
    Over::Time
}

impl Shared {
    fn now(&self) -> Instant {
        (self.settings.now)()
    }

    fn sink(&self) -> MutexGuard<'_, Box<dyn Sink>> {
        locked(&self.sink)
    }

    async fn follow(&self, kind: Kind) {
        let mut follower = Follower::new(kind, self.wants.clone(), rand::random);
        let (mut link, mut refused) = (Link::default(), None);
        loop {
            match follower.next(self.now()) {
                Next::Wait(until) => {
                    if wait(self.settings.now, until, refused.take()).await == Over::Another {
                        follower.at_once();
                    }
                }
                Next::Ask(ask) => {
                    let over = self.exchange(kind, &mut follower, &mut link, &ask).await;
                    self.sink().settle(kind);
                    if let Err(why) = over {
                        refused = std::mem::take(&mut link).refused(&why);
                        follower.failed(self.now(), &why, &mut **self.sink());
                    }
                }
            }
        }
    }

    /// Waits until the pace lets this request go, and says for how long it did.
    async fn turn(&self) -> Duration {
        let began = self.now();
        let mut now = began;
        loop {
            let Err(until) = locked(&self.bucket).take(now) else { break };
            sleep_until(until.into()).await;
            now = self.now();
        }
        now.saturating_duration_since(began)
    }

    /// One request and its reply, to its end.
    async fn exchange(
        &self,
        kind: Kind,
        follower: &mut Follower,
        link: &mut Link,
        ask: &Ask,
    ) -> Result<(), Lost> {
        if let Err(why) = self.prepare(link).await {
            if let Lost::Connection { address, .. } = &why {
                let asked = Asked {
                    host: address,
                    status: None,
                    waited: Duration::ZERO,
                    took: Duration::ZERO,
                    watch: ask.watch,
                };
                self.sink().asked(&asked);
            }
            return Err(why);
        }
        let (Some(connection), Some((_, who))) = (&mut link.connection, &link.who) else { return Ok(()) };
        let waited = self.turn().await;
        let place = self.in_flight.acquire().await;
        let asked = self.now();
        let deadline = follower.deadline(asked).into();
        let sent = timeout_at(deadline, connection.send(ask, who.as_deref())).await;
        drop(place);
        let status =
            sent.as_ref().ok().and_then(|sent| sent.as_ref().ok()).map(|reply| reply.status().as_u16());
        self.sink().asked(&Asked {
            host: &connection.api.authority,
            status,
            waited,
            took: self.now().saturating_duration_since(asked),
            watch: ask.watch,
        });
        let Ok(reply) = sent else {
            return Err(follower.silent(self.now(), asked).unwrap_or(Lost::Silent(Duration::ZERO)));
        };
        let (head, mut body) = reply?.into_parts();
        let header = |name| head.headers.get(name).and_then(|value| value.to_str().ok());
        let (form, again) = (header(CONTENT_TYPE), header(RETRY_AFTER).and_then(|after| after.parse().ok()));
        let (now, status, form) = (self.now(), head.status.as_u16(), form.unwrap_or_default());
        follower.head(now, status, form, again, &mut **self.sink())?;
        let mut patience = pin!(sleep_until(deadline));
        // In this turn, and on what is not settled yet.
        let (mut spent, mut gathered) = (Duration::ZERO, Duration::ZERO);
        loop {
            // Others have their turn, also where much has come already.
            consume_budget().await;
            let deadline = follower.deadline(asked).into();
            let came = {
                let mut piece = pin!(connection.piece(&mut body));
                let at_hand = poll_fn(|context| Poll::Ready(piece.as_mut().poll(context))).await;
                if at_hand.is_pending() || gathered >= LONGEST_GATHERED {
                    let began = self.now();
                    self.sink().settle(kind);
                    spent += self.now().saturating_duration_since(began);
                    gathered = Duration::ZERO;
                }
                if spent >= TURN {
                    // Behind all who are ready, and whom the runtime only now hears of.
                    yield_now().await;
                    spent = Duration::ZERO;
                }
                match at_hand {
                    Poll::Ready(came) => Some(came),
                    Poll::Pending => before(deadline, patience.as_mut(), piece).await,
                }
            };
            let now = self.now();
            let sink = &mut **self.sink();
            match came {
                Some(Some(Ok(frame))) => {
                    let Some(bytes) = frame.data_ref() else { continue };
                    sink.gather(kind);
                    if follower.body(now, bytes, sink)? == Rest::Unwanted {
                        link.connection = None;
                        return follower.end(now, sink);
                    }
                    if sink.wants_list(kind) {
                        return Err(follower.has_room_again());
                    }
                    let took = self.now().saturating_duration_since(now);
                    spent += took;
                    gathered += took;
                }
                Some(Some(Err(error))) => return Err(broken(&connection.api, &error)),
                Some(None) => return follower.end(now, sink),
                None => {
                    let why = follower.silent(now, asked);
                    link.connection = None;
                    return why.map_or(Ok(()), Err);
                }
            }
        }
    }

    /// A connection that takes a request, and a token that is not old.
    async fn prepare(&self, link: &mut Link) -> Result<(), Lost> {
        if let Some(connection) = &mut link.connection
            && !connection.is_open().await
        {
            link.connection = None;
        }
        if link.connection.is_none() {
            let access = self.settings.access.clone();
            link.connection = Some(Connection::open(aside(move || Api::find(&access)).await?).await?);
            link.who = None;
        }
        let now = self.now();
        let old = |read: &Instant| now.saturating_duration_since(*read) >= TOKEN_IS_OLD;
        if let Some(connection) = &link.connection
            && link.who.as_ref().is_none_or(|(read, _)| old(read))
        {
            let credentials = connection.api.credentials.clone();
            link.who = Some((now, aside(move || credentials.header()).await?));
        }
        Ok(())
    }
}

/// What comes before a deadline. The sleep is used for one after the other: of a list most comes at once, and a timer for each
/// piece of it would be set and unset for nothing.
async fn before<T>(
    deadline: tokio::time::Instant,
    mut sleep: Pin<&mut Sleep>,
    coming: impl Future<Output = T>,
) -> Option<T> {
    let mut coming = pin!(coming);
    if deadline < sleep.deadline() {
        sleep.as_mut().reset(deadline);
    }
    poll_fn(|context| {
        if let Poll::Ready(came) = coming.as_mut().poll(context) {
            return Poll::Ready(Some(came));
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

/// Reads files where nobody waits for it but whoever asked.
async fn aside<T: Send + 'static>(
    read: impl FnOnce() -> Result<T, Lost> + Send + 'static,
) -> Result<T, Lost> {
    let done = GivenUp(tokio::task::spawn_blocking(read)).await;
    done.unwrap_or_else(|error| Err(client_config::lost("the configuration", &error.to_string())))
}

/// Work aside that is not begun any more where nobody waits for it.
struct GivenUp<T>(tokio::task::JoinHandle<T>);

impl<T> Future for GivenUp<T> {
    type Output = Result<T, tokio::task::JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context)
    }
}

impl<T> Drop for GivenUp<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// How long is waited for the thread's end; it has its work in pieces of a few hundred KiB of a reply, or of a
/// page.
const LONGEST_END: Duration = Duration::from_secs(1);
/// Of one kind's stream: those of the others, and who waits for a reply, are asked about in between.
const TURN: Duration = Duration::from_millis(1);
/// Where there is always more at hand, what has come is settled after so long a time of reading it.
const LONGEST_GATHERED: Duration = Duration::from_millis(50);
/// As client-go.
const TOKEN_IS_OLD: Duration = Duration::from_secs(10);
/// Between two looks at a token's file where what it had is not accepted.
const LOOK_AT_TOKEN: Duration = Duration::from_millis(250);
const AFTER_PANIC: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;

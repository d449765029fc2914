//! State machine of lists and watches of one kind. Inputs: replies and the time. Outputs: requests
//! and calls of the sink.
//!
//! This module opens no connection and reads no clock. A list is the beginning of a watch if the
//! API supports that (`sendInitialEvents`); otherwise it is read in pages. A watch continues at the
//! last resource version of the previous watch, also after a failure; if that version has expired,
//! all objects are listed again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::decode::{self, Encoding, Event, Framing, Malformed, Reader, Status};
use crate::objects::Kind;
use crate::sanitize::sanitize;
use crate::settings::{WatchConfig, WatchError};
use crate::sink::Sink;

use super::backoff::{Backoff, FailureClass, MAX_WAIT};
use super::request::{Query, WatchRequest, encoding};

/// What the caller must do next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Wait until then.
    Wait(Instant),
    /// Send a request.
    Send(WatchRequest),
}

/// Whether to read more of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadMore {
    Yes,
    No,
}

/// Lists and watches one kind.
pub(super) struct Reflector {
    kind: Kind,
    wants: Arc<WatchConfig>,
    phase: Phase,
    /// Resource version of the last event; empty before the first list.
    version: Box<str>,
    /// Whether lists are requested as watches, until the API has refused one.
    watch_lists: bool,
    /// The preferred encoding.
    preferred: Encoding,
    reply: Option<Reply>,
    backoff: Backoff,
    not_before: Option<Instant>,
    random: fn() -> f64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// A list must begin.
    Start,
    /// Token of the next page of a list, and the number of pages read.
    Page(Box<str>, usize),
    /// Watching changes since `version`.
    Watch,
}

/// A reply in progress.
struct Reply {
    content: ReplyContent,
    began: Instant,
    last_data: Instant,
    deadlines: Deadlines,
}

enum ReplyContent {
    Objects { reader: Reader, what: ReplyKind },
    Refusal { status: u16, encoding: Option<Encoding>, body: Vec<u8> },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReplyKind {
    Page,
    /// A watch that begins with a list, which is not complete yet.
    WatchList,
    Watch,
}

/// When a reply has taken too long.
struct Deadlines {
    /// Maximum time without data.
    silence: Option<Duration>,
    end: Option<Instant>,
}

impl Reflector {
    /// Creates a reflector; `random` returns 0 to 1.
    pub(super) fn new(kind: Kind, wants: Arc<WatchConfig>, random: fn() -> f64) -> Self {
        Self {
            kind,
            wants,
            phase: Phase::Start,
            version: Box::default(),
            watch_lists: true,
            preferred: Encoding::Protobuf,
            reply: None,
            backoff: Backoff::default(),
            not_before: None,
            random,
        }
    }

    /// Returns the next step.
    pub(super) fn next(&mut self, now: Instant) -> Next {
        if let Some(until) = self.not_before.filter(|until| *until > now) {
            return Next::Wait(until);
        }
        self.not_before = None;
        let mut query = Query::of(self.kind, &self.wants);
        let watch = match &self.phase {
            Phase::Start if self.watch_lists => {
                query.add("sendInitialEvents", "true");
                query.add("resourceVersionMatch", "NotOlderThan");
                true
            }
            Phase::Start => {
                query.add("limit", PAGE_OBJECTS);
                false
            }
            Phase::Page(next, _) => {
                query.add("limit", PAGE_OBJECTS);
                query.add("continue", next);
                false
            }
            Phase::Watch => {
                query.add("resourceVersion", &self.version);
                true
            }
        };
        if watch {
            query.add("watch", "true");
            query.add("allowWatchBookmarks", "true");
            query.add("timeoutSeconds", &self.watch_timeout().as_secs().to_string());
        }
        let accept = match self.preferred {
            Encoding::Protobuf if watch => {
                "application/vnd.kubernetes.protobuf;stream=watch,application/json;stream=watch"
            }
            Encoding::Protobuf => "application/vnd.kubernetes.protobuf,application/json",
            Encoding::Json => "application/json",
        };
        Next::Send(WatchRequest { path: query.into_path(), accept, watch })
    }

    /// Returns a random duration for the next watch, so that watches of many nodes do not end
    /// together.
    fn watch_timeout(&self) -> Duration {
        MIN_WATCH + MIN_WATCH.mul_f64((self.random)())
    }

    /// Handles the head of a reply.
    ///
    /// # Errors
    /// If the content type is unknown.
    pub(super) fn head(
        &mut self,
        now: Instant,
        status: u16,
        content_type: &str,
        retry_after_s: Option<u64>,
        sink: &mut dyn Sink,
    ) -> Result<(), WatchError> {
        let encoding = encoding(content_type);
        let mut reply = Reply {
            content: ReplyContent::Refusal { status, encoding, body: Vec::new() },
            began: now,
            last_data: now,
            deadlines: Deadlines { silence: Some(MAX_SILENCE), end: Some(now + MAX_SILENCE) },
        };
        if status == 200 {
            let encoding = encoding.ok_or_else(|| WatchError::Invalid(sanitize(content_type, 100)))?;
            let what = match self.phase {
                Phase::Start if self.watch_lists => ReplyKind::WatchList,
                Phase::Start | Phase::Page(..) => ReplyKind::Page,
                Phase::Watch => ReplyKind::Watch,
            };
            if self.phase == Phase::Start {
                sink.begin(self.kind);
            }
            let framing = if what == ReplyKind::Page { Framing::List } else { Framing::Watch };
            match what {
                ReplyKind::Page | ReplyKind::WatchList => reply.deadlines.end = Some(now + MAX_LIST),
                ReplyKind::Watch => {
                    reply.deadlines = Deadlines::of_watch(now);
                    sink.watching(self.kind);
                }
            }
            reply.content = ReplyContent::Objects { reader: Reader::new(self.kind, encoding, framing), what };
        }
        self.reply = Some(reply);
        self.set_retry_after(now, retry_after_s);
        Ok(())
    }

    /// Delays the next request as the API demands.
    fn set_retry_after(&mut self, now: Instant, after_s: Option<u64>) {
        if let Some(seconds) = after_s.filter(|seconds| *seconds > 0) {
            self.not_before = Some(now + Duration::from_secs(seconds).min(MAX_WAIT));
        }
    }

    /// Handles a part of a reply's body.
    ///
    /// # Errors
    /// If the reply is invalid or reports a failure.
    pub(super) fn body(
        &mut self,
        now: Instant,
        bytes: &[u8],
        sink: &mut dyn Sink,
    ) -> Result<ReadMore, WatchError> {
        let Some(mut reply) = self.reply.take() else { return Ok(ReadMore::No) };
        reply.last_data = now;
        let rest = match &mut reply.content {
            ReplyContent::Refusal { body, .. } => {
                body.extend_from_slice(&bytes[..bytes.len().min(MAX_REFUSAL_BYTES - body.len())]);
                if body.len() < MAX_REFUSAL_BYTES { Ok(ReadMore::Yes) } else { Ok(ReadMore::No) }
            }
            ReplyContent::Objects { .. } => self.objects(now, &mut reply, Some(bytes), sink),
        };
        self.reply = Some(reply);
        rest
    }

    /// Handles the end of a reply's body.
    ///
    /// # Errors
    /// If the reply is incomplete or reports a failure.
    pub(super) fn end(&mut self, now: Instant, sink: &mut dyn Sink) -> Result<(), WatchError> {
        let Some(mut reply) = self.reply.take() else { return Ok(()) };
        match &reply.content {
            ReplyContent::Refusal { status, encoding, body } => {
                let status_object =
                    encoding.and_then(|encoding| decode::status(encoding, body).ok()).unwrap_or_default();
                Err(self.refused(now, *status, status_object))
            }
            ReplyContent::Objects { what, .. } => {
                let what = *what;
                self.objects(now, &mut reply, None, sink)?;
                let lasted = now.saturating_duration_since(reply.began);
                match what {
                    ReplyKind::Page => Ok(()),
                    ReplyKind::WatchList => {
                        Err(WatchError::Invalid("the watch ended before its list".into()))
                    }
                    // This also holds with an event: one event per watch would repeat requests at
                    // full speed.
                    ReplyKind::Watch if lasted < TOO_SHORT => {
                        Err(WatchError::Invalid("the watch ended at once".into()))
                    }
                    ReplyKind::Watch => {
                        if lasted >= HEALTHY_WATCH {
                            self.backoff.reset();
                        }
                        Ok(())
                    }
                }
            }
        }
    }

    /// Returns when to abandon the reply unless data arrives.
    pub(super) fn deadline(&self, asked: Instant) -> Instant {
        let Some(reply) = &self.reply else { return asked + MAX_SILENCE };
        let silence = reply.deadlines.silence.map(|silence| reply.last_data + silence);
        silence.into_iter().chain(reply.deadlines.end).min().unwrap_or(reply.last_data + MAX_SILENCE)
    }

    /// Handles the deadline; returns the failure, or `None` for a quiet watch, which is just
    /// started again.
    pub(super) fn silent(&mut self, now: Instant, asked: Instant) -> Option<WatchError> {
        let last_data = self.reply.as_ref().map_or(asked, |reply| reply.last_data);
        let is_receiving = now.saturating_duration_since(last_data) < MAX_SILENCE;
        match &self.reply {
            Some(Reply { content: ReplyContent::Objects { what: ReplyKind::Watch, .. }, .. }) => {
                self.reply = None;
                return None;
            }
            // The API may ignore `sendInitialEvents` and treat it as a plain watch.
            Some(Reply { content: ReplyContent::Objects { what: ReplyKind::WatchList, .. }, .. }) => {
                self.watch_lists = false;
            }
            _ => {}
        }
        let began = self.reply.as_ref().map_or(asked, |reply| reply.began);
        let (error, since): (fn(Duration) -> WatchError, _) =
            if is_receiving { (WatchError::Slow, began) } else { (WatchError::Silent, last_data) };
        Some(error(now.saturating_duration_since(since)))
    }

    /// Handles the failure of a request.
    pub(super) fn failed(&mut self, now: Instant, why: &WatchError, sink: &mut dyn Sink) {
        if self.reply.take().is_some_and(|reply| now.saturating_duration_since(reply.began) >= HEALTHY_REPLY)
        {
            self.backoff.reset();
        }
        let wait = match why {
            // Each other form of request is tried once, without delay.
            WatchError::Unsupported { .. } => Duration::ZERO,
            _ => self.backoff.failed(FailureClass::of(why), (self.random)()),
        };
        let retry_after = self.not_before.take().unwrap_or(now);
        self.not_before = Some(retry_after.max(now + wait));
        sink.failed(self.kind, why);
    }

    /// Cancels the wait before the next request.
    pub(super) fn retry_now(&mut self) {
        self.not_before = None;
    }

    /// Decodes objects; `None` is the end of the reply.
    fn objects(
        &mut self,
        now: Instant,
        reply: &mut Reply,
        bytes: Option<&[u8]>,
        sink: &mut dyn Sink,
    ) -> Result<ReadMore, WatchError> {
        let wants = self.wants.clone();
        let mut failed = None;
        let Reply { content: ReplyContent::Objects { reader, what }, deadlines, .. } = reply else {
            return Ok(ReadMore::No);
        };
        let mut state = EventState { what: *what, listed: false };
        let mut emit = |version: &str, event: Event| {
            if failed.is_none() {
                failed = self.handle_event(&mut state, version, event, sink).err();
            }
        };
        let read = match bytes {
            Some(bytes) => reader.push(bytes, &wants, &mut emit),
            None => reader.end(&wants, &mut emit),
        };
        *what = state.what;
        if state.listed {
            *deadlines = Deadlines::of_watch(now);
        }
        match failed {
            Some(EventError::Watch(error)) => Err(error),
            Some(EventError::Status(status)) => Err(self.refused(now, status.code, status)),
            None => read.map(|()| ReadMore::Yes).map_err(|error| self.malformed(&error)),
        }
    }

    /// Handles one event of a reply.
    fn handle_event(
        &mut self,
        state: &mut EventState,
        version: &str,
        event: Event,
        sink: &mut dyn Sink,
    ) -> Result<(), EventError> {
        if state.what == ReplyKind::Watch {
            self.advance(version)?;
        }
        match event {
            Event::Applied(object) => sink.apply(object),
            Event::Deleted(key) => sink.delete(self.kind, key),
            Event::Invalid(what) => sink.invalid(self.kind, &what),
            Event::Filtered | Event::Bookmark { listed: false } => {}
            Event::Bookmark { listed: true } => {
                if state.what == ReplyKind::WatchList {
                    self.list_complete(version, sink)?;
                    sink.watching(self.kind);
                    state.what = ReplyKind::Watch;
                    state.listed = true;
                }
            }
            Event::Page { next } if next.is_empty() => self.list_complete(version, sink)?,
            Event::Page { next } => self.next_page(next)?,
            Event::Failed(status) => return Err(EventError::Status(status)),
        }
        Ok(())
    }

    fn next_page(&mut self, next: Box<str>) -> Result<(), EventError> {
        let pages = if let Phase::Page(_, pages) = self.phase { pages + 1 } else { 1 };
        if pages > MAX_PAGES || next.len() > MAX_TOKEN_BYTES {
            return Err(self.restart("the list does not end"));
        }
        self.phase = Phase::Page(next, pages);
        Ok(())
    }

    fn restart(&mut self, why: &str) -> EventError {
        self.phase = Phase::Start;
        EventError::Watch(WatchError::Invalid(why.into()))
    }

    fn list_complete(&mut self, version: &str, sink: &mut dyn Sink) -> Result<(), EventError> {
        if !is_version(version) {
            return Err(self.restart("the list has no resource version"));
        }
        self.version = version.into();
        self.phase = Phase::Watch;
        sink.complete(self.kind);
        Ok(())
    }

    /// Checks that versions of a watch increase. Versions that are not numbers cannot be compared
    /// and are accepted.
    fn advance(&mut self, version: &str) -> Result<(), EventError> {
        if !version.is_empty() && !is_version(version) {
            return Err(self.restart("invalid resource version"));
        }
        let number = |version: &str| version.parse::<u64>().ok();
        if let (Some(new), Some(old)) = (number(version), number(&self.version))
            && new < old
        {
            self.phase = Phase::Start;
            return Err(EventError::Watch(WatchError::OutOfOrder(version.into(), self.version.clone())));
        }
        if !version.is_empty() && *self.version != *version {
            self.version = version.into();
        }
        Ok(())
    }

    fn malformed(&mut self, error: &Malformed) -> WatchError {
        if self.phase != Phase::Watch {
            self.phase = Phase::Start;
        }
        WatchError::Invalid(error.to_string().into())
    }
}

/// State while the events of some data are handled.
struct EventState {
    what: ReplyKind,
    listed: bool,
}

enum EventError {
    Watch(WatchError),
    Status(Status),
}

impl From<WatchError> for EventError {
    fn from(error: WatchError) -> Self {
        Self::Watch(error)
    }
}

impl Deadlines {
    /// Deadlines of a watch: the server ends it, and sends a bookmark once a minute.
    fn of_watch(now: Instant) -> Self {
        Self { silence: Some(MAX_WATCH_SILENCE), end: Some(now + 2 * MIN_WATCH + MAX_SILENCE) }
    }
}

/// Whether a resource version is valid in a request. Kubernetes uses decimal numbers.
fn is_version(text: &str) -> bool {
    (1..=MAX_VERSION_BYTES).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

fn message_of(message: &str, reason: &str) -> Box<str> {
    sanitize(if message.is_empty() { reason } else { message }, 300)
}

const MAX_PAGES: usize = 20_000;
const MAX_TOKEN_BYTES: usize = 8 << 10;
const MAX_VERSION_BYTES: usize = 128;
/// Objects in a page.
const PAGE_OBJECTS: &str = "100";
/// Watches last 5 to 10 minutes, as in client-go.
const MIN_WATCH: Duration = Duration::from_secs(290);
/// Maximum time without data before the head of a reply and within a list.
const MAX_SILENCE: Duration = Duration::from_secs(30);
/// Maximum time of a page, and of a list at the beginning of a watch (the API may ignore
/// `sendInitialEvents`).
const MAX_LIST: Duration = Duration::from_secs(120);
/// Maximum time without data in a watch: two missing bookmarks and half a minute.
const MAX_WATCH_SILENCE: Duration = Duration::from_secs(150);
/// A watch that ends earlier is a failure.
const TOO_SHORT: Duration = Duration::from_secs(1);
/// A watch that ends normally after this time resets the backoff.
const HEALTHY_WATCH: Duration = Duration::from_secs(5);
/// A reply that fails after this time resets the backoff.
const HEALTHY_REPLY: Duration = Duration::from_secs(30);
const MAX_REFUSAL_BYTES: usize = 64 << 10;

#[cfg(test)]
mod list_budget;
mod relist;
#[cfg(test)]
mod tests;

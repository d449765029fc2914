//! One kind's way through lists and watches: replies and the time go in, requests and what the sink is told come out.
//!
//! It opens no connection and reads no clock. A list comes as the beginning of a watch where the API offers that
//! (`sendInitialEvents`), else in pages; a watch goes on where the last one ended. What breaks is begun again from where it
//! was, or from the start where the API has forgotten that.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::decode::{self, Event, Form, Malformed, Reader, Shape, Status};
use crate::objects::Kind;
use crate::sanitize::plain;
use crate::settings::{Lost, Wants};
use crate::sink::Sink;

use super::backoff::{Backoff, Failed, MOST_WAIT};
use super::request::{Ask, Query, form};

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Not before that moment.
    Wait(Instant),
    Ask(Ask),
}

/// Whether the rest of a reply is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    Wanted,
    Unwanted,
}

pub(super) struct Follower {
    kind: Kind,
    wants: Arc<Wants>,
    phase: Phase,
    /// The version that all that was told has come to; empty before the first list.
    version: Box<str>,
    /// Whether lists come as watches; not any more once the API has refused.
    watch_lists: bool,
    /// What is asked for first.
    preferred: Form,
    reply: Option<Reply>,
    backoff: Backoff,
    not_before: Option<Instant>,
    random: fn() -> f64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// All is to be listed.
    Start,
    /// The list has begun, and this page comes next; how many have come.
    Page(Box<str>, usize),
    /// Changes since `version`.
    Watch,
}

/// A reply that is being read.
struct Reply {
    content: Content,
    began: Instant,
    heard: Instant,
    /// When its silence, or its length, is too much.
    patience: Patience,
}

enum Content {
    Objects { reader: Reader, what: What },
    Refusal { status: u16, form: Option<Form>, body: Vec<u8> },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Page,
    /// A watch that begins with a list, before that is whole.
    WatchList,
    Watch,
}

struct Patience {
    silence: Option<Duration>,
    end: Option<Instant>,
}

impl Follower {
    /// `random` is 0 to 1.
    pub(super) fn new(kind: Kind, wants: Arc<Wants>, random: fn() -> f64) -> Self {
        Self {
            kind,
            wants,
            phase: Phase::Start,
            version: Box::default(),
            watch_lists: true,
            preferred: Form::Protobuf,
            reply: None,
            backoff: Backoff::default(),
            not_before: None,
            random,
        }
    }

    pub(super) fn next(&mut self, now: Instant) -> Next {
        if let Some(moment) = self.not_before.filter(|moment| *moment > now) {
            return Next::Wait(moment);
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
                query.add("limit", PAGE);
                false
            }
            Phase::Page(next, _) => {
                query.add("limit", PAGE);
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
            query.add("timeoutSeconds", &self.length().as_secs().to_string());
        }
        let accept = match self.preferred {
            Form::Protobuf if watch => {
                "application/vnd.kubernetes.protobuf;stream=watch,application/json;stream=watch"
            }
            Form::Protobuf => "application/vnd.kubernetes.protobuf,application/json",
            Form::Json => "application/json",
        };
        Next::Ask(Ask { path: query.into_path(), accept, watch })
    }

    /// How long the next watch is to last: another length each time, so that those of many nodes do not end together.
    fn length(&self) -> Duration {
        SHORTEST_WATCH + SHORTEST_WATCH.mul_f64((self.random)())
    }

    /// The head of a reply.
    ///
    /// # Errors
    /// If its form is none that we read.
    pub(super) fn head(
        &mut self,
        now: Instant,
        status: u16,
        content_type: &str,
        retry_after_s: Option<u64>,
        sink: &mut dyn Sink,
    ) -> Result<(), Lost> {
        let form = form(content_type);
        let mut reply = Reply {
            content: Content::Refusal { status, form, body: Vec::new() },
            began: now,
            heard: now,
            patience: Patience { silence: Some(SILENCE), end: Some(now + SILENCE) },
        };
        if status == 200 {
            let form = form.ok_or_else(|| Lost::Nonsense(plain(content_type, 100)))?;
            let what = match self.phase {
                Phase::Start if self.watch_lists => What::WatchList,
                Phase::Start | Phase::Page(..) => What::Page,
                Phase::Watch => What::Watch,
            };
            if self.phase == Phase::Start {
                sink.begin(self.kind);
            }
            let shape = if what == What::Page { Shape::List } else { Shape::Watch };
            match what {
                What::Page | What::WatchList => reply.patience.end = Some(now + LONGEST_LIST),
                What::Watch => {
                    reply.patience = Patience::of_watch(now);
                    sink.following(self.kind);
                }
            }
            reply.content = Content::Objects { reader: Reader::new(self.kind, form, shape), what };
        }
        self.reply = Some(reply);
        self.come_again(now, retry_after_s);
        Ok(())
    }

    /// When the API wants to be asked again.
    fn come_again(&mut self, now: Instant, after_s: Option<u64>) {
        if let Some(seconds) = after_s.filter(|seconds| *seconds > 0) {
            self.not_before = Some(now + Duration::from_secs(seconds).min(MOST_WAIT));
        }
    }

    /// Some of a reply's body.
    ///
    /// # Errors
    /// Why the reply is worth no more.
    pub(super) fn body(&mut self, now: Instant, bytes: &[u8], sink: &mut dyn Sink) -> Result<Rest, Lost> {
        let Some(mut reply) = self.reply.take() else { return Ok(Rest::Unwanted) };
        reply.heard = now;
        let rest = match &mut reply.content {
            Content::Refusal { body, .. } => {
                body.extend_from_slice(&bytes[..bytes.len().min(MOST_REFUSAL - body.len())]);
                if body.len() < MOST_REFUSAL { Ok(Rest::Wanted) } else { Ok(Rest::Unwanted) }
            }
            Content::Objects { .. } => self.objects(now, &mut reply, Some(bytes), sink),
        };
        self.reply = Some(reply);
        rest
    }

    /// The end of a reply's body.
    ///
    /// # Errors
    /// Why nothing came of it.
    pub(super) fn end(&mut self, now: Instant, sink: &mut dyn Sink) -> Result<(), Lost> {
        let Some(mut reply) = self.reply.take() else { return Ok(()) };
        match &reply.content {
            Content::Refusal { status, form, body } => {
                let told = form.and_then(|form| decode::status(form, body).ok()).unwrap_or_default();
                Err(self.refused(now, *status, told))
            }
            Content::Objects { what, .. } => {
                let what = *what;
                self.objects(now, &mut reply, None, sink)?;
                let lived = now.saturating_duration_since(reply.began);
                match what {
                    What::Page => Ok(()),
                    What::WatchList => Err(Lost::Nonsense("a watch ended before its list".into())),
                    // Whatever it told: one event each time would be asked for as fast as the API answers.
                    What::Watch if lived < SHORT => Err(Lost::Nonsense("a watch ended at once".into())),
                    What::Watch => {
                        if lived >= LIVED {
                            self.backoff.reset();
                        }
                        Ok(())
                    }
                }
            }
        }
    }

    /// When to give the reply up, if nothing more comes of it.
    pub(super) fn deadline(&self, asked: Instant) -> Instant {
        let Some(reply) = &self.reply else { return asked + SILENCE };
        let silence = reply.patience.silence.map(|silence| reply.heard + silence);
        silence.into_iter().chain(reply.patience.end).min().unwrap_or(reply.heard + SILENCE)
    }

    /// Nothing came until the deadline: why that is a loss. A quiet watch is none before it cannot be had again.
    pub(super) fn silent(&mut self, now: Instant, asked: Instant) -> Option<Lost> {
        let heard = self.reply.as_ref().map_or(asked, |reply| reply.heard);
        let trickles = now.saturating_duration_since(heard) < SILENCE;
        match &self.reply {
            Some(Reply { content: Content::Objects { what: What::Watch, .. }, .. }) => {
                self.reply = None;
                return None;
            }
            // It may know nothing of such lists, and go on as any watch.
            Some(Reply { content: Content::Objects { what: What::WatchList, .. }, .. }) => {
                self.watch_lists = false;
            }
            _ => {}
        }
        let began = self.reply.as_ref().map_or(asked, |reply| reply.began);
        let (lost, since): (fn(Duration) -> Lost, _) =
            if trickles { (Lost::Slow, began) } else { (Lost::Silent, heard) };
        Some(lost(now.saturating_duration_since(since)))
    }

    /// Nothing more comes of what was asked.
    pub(super) fn failed(&mut self, now: Instant, why: &Lost, sink: &mut dyn Sink) {
        if self.reply.take().is_some_and(|reply| now.saturating_duration_since(reply.began) >= LONG) {
            self.backoff.reset();
        }
        let wait = match why {
            // Each other way is tried once.
            Lost::Unoffered { .. } => Duration::ZERO,
            _ => self.backoff.failed(Failed::of(why), (self.random)()),
        };
        let told = self.not_before.take().unwrap_or(now);
        self.not_before = Some(told.max(now + wait));
        sink.lost(self.kind, why);
    }

    /// What was waited for is there.
    pub(super) fn at_once(&mut self) {
        self.not_before = None;
    }

    /// Reads objects, or after the last octets (`None`) what they end with.
    fn objects(
        &mut self,
        now: Instant,
        reply: &mut Reply,
        bytes: Option<&[u8]>,
        sink: &mut dyn Sink,
    ) -> Result<Rest, Lost> {
        let wants = self.wants.clone();
        let mut failed = None;
        let Reply { content: Content::Objects { reader, what }, patience, .. } = reply else {
            return Ok(Rest::Unwanted);
        };
        let mut took = Took { what: *what, listed: false };
        let mut tell = |version: &str, event: Event| {
            if failed.is_none() {
                failed = self.take(&mut took, version, event, sink).err();
            }
        };
        let read = match bytes {
            Some(bytes) => reader.push(bytes, &wants, &mut tell),
            None => reader.end(&wants, &mut tell),
        };
        *what = took.what;
        if took.listed {
            *patience = Patience::of_watch(now);
        }
        match failed {
            Some(Failure::Lost(lost)) => Err(lost),
            Some(Failure::Told(status)) => Err(self.refused(now, status.code, status)),
            None => read.map(|()| Rest::Wanted).map_err(|error| self.malformed(&error)),
        }
    }

    /// One event of a reply.
    fn take(
        &mut self,
        took: &mut Took,
        version: &str,
        event: Event,
        sink: &mut dyn Sink,
    ) -> Result<(), Failure> {
        if took.what == What::Watch {
            self.advance(version)?;
        }
        match event {
            Event::Applied(object) => sink.apply(object),
            Event::Deleted(key) => sink.delete(self.kind, key),
            Event::Unreadable(what) => sink.unreadable(self.kind, &what),
            Event::Passed | Event::Bookmark { listed: false } => {}
            Event::Bookmark { listed: true } => {
                if took.what == What::WatchList {
                    self.listed(version, sink)?;
                    sink.following(self.kind);
                    took.what = What::Watch;
                    took.listed = true;
                }
            }
            Event::Page { next } if next.is_empty() => self.listed(version, sink)?,
            Event::Page { next } => self.turn_page(next)?,
            Event::Failed(status) => return Err(Failure::Told(status)),
        }
        Ok(())
    }

    fn turn_page(&mut self, next: Box<str>) -> Result<(), Failure> {
        let pages = if let Phase::Page(_, pages) = self.phase { pages + 1 } else { 1 };
        if pages > MOST_PAGES || next.len() > MOST_TOKEN {
            return Err(self.anew("a list without an end"));
        }
        self.phase = Phase::Page(next, pages);
        Ok(())
    }

    fn anew(&mut self, why: &str) -> Failure {
        self.phase = Phase::Start;
        Failure::Lost(Lost::Nonsense(why.into()))
    }

    fn listed(&mut self, version: &str, sink: &mut dyn Sink) -> Result<(), Failure> {
        if !is_version(version) {
            return Err(self.anew("a list without a resource version"));
        }
        self.version = version.into();
        self.phase = Phase::Watch;
        sink.complete(self.kind);
        Ok(())
    }

    /// A watch goes forward. Versions that are no numbers cannot be compared, and are believed.
    fn advance(&mut self, version: &str) -> Result<(), Failure> {
        if !version.is_empty() && !is_version(version) {
            return Err(self.anew("no resource version"));
        }
        let number = |version: &str| version.parse::<u64>().ok();
        if let (Some(new), Some(old)) = (number(version), number(&self.version))
            && new < old
        {
            self.phase = Phase::Start;
            return Err(Failure::Lost(Lost::Disorder(version.into(), self.version.clone())));
        }
        if !version.is_empty() && *self.version != *version {
            self.version = version.into();
        }
        Ok(())
    }

    fn malformed(&mut self, error: &Malformed) -> Lost {
        if self.phase != Phase::Watch {
            self.phase = Phase::Start;
        }
        Lost::Nonsense(error.to_string().into())
    }
}

/// What has come of some octets.
struct Took {
    what: What,
    listed: bool,
}

enum Failure {
    Lost(Lost),
    Told(Status),
}

impl From<Lost> for Failure {
    fn from(lost: Lost) -> Self {
        Self::Lost(lost)
    }
}

impl Patience {
    /// Of a watch from when changes come: its server ends it, and sends bookmarks meanwhile, one a minute.
    fn of_watch(now: Instant) -> Self {
        Self { silence: Some(SILENCE_OF_WATCH), end: Some(now + 2 * SHORTEST_WATCH + SILENCE) }
    }
}

/// Whether it can be sent back. Kubernetes has decimal numbers.
fn is_version(text: &str) -> bool {
    (1..=MOST_VERSION).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

fn message_of(message: &str, reason: &str) -> Box<str> {
    plain(if message.is_empty() { reason } else { message }, 300)
}

const MOST_PAGES: usize = 20_000;
const MOST_TOKEN: usize = 8 << 10;
const MOST_VERSION: usize = 128;
/// Objects in a page.
const PAGE: &str = "100";
/// As client-go: 5 to 10 minutes.
const SHORTEST_WATCH: Duration = Duration::from_secs(290);
/// For a reply's head, and in the midst of a list.
const SILENCE: Duration = Duration::from_secs(30);
/// For a page, and for a list as the beginning of a watch: one that lasts longer may be a watch that knows of none.
const LONGEST_LIST: Duration = Duration::from_secs(120);
/// Two bookmarks that did not come, and half a minute.
const SILENCE_OF_WATCH: Duration = Duration::from_secs(150);
/// A watch that ends before is not repeated at once.
const SHORT: Duration = Duration::from_secs(1);
/// One that lasted for so long and then ended whole was none of those.
const LIVED: Duration = Duration::from_secs(5);
/// A reply that lasted for so long was no failure.
const LONG: Duration = Duration::from_secs(30);
const MOST_REFUSAL: usize = 64 << 10;

#[cfg(test)]
mod list_budget;
mod relist;
#[cfg(test)]
mod tests;

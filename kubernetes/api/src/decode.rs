//! Octets of the API to compact records, as they come: no object is held whole but the one that is being read.
//!
//! Four forms come in: a list is one message, or one JSON text for each page; a watch is messages behind their lengths, or
//! lines of JSON. What is no object of its kind is told as such, and what follows it is read on; a stream that breaks its own
//! form is an error.

mod borrowed;
mod decode_error;
mod from_json;
mod from_protobuf;
mod protobuf;
mod protobuf_list;
mod time;

pub use decode_error::Unreadable;

use crate::objects::{Kind, Object, ObjectKey};
use crate::sanitize::plain;
use crate::settings::Wants;

use borrowed::{Meta, Recorder, Text, View};
use protobuf_list::List;

/// What the API calls the forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `application/vnd.kubernetes.protobuf`
    Protobuf,
    /// `application/json`
    Json,
}

/// Whether a list is read, or what happens after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A page of a list.
    List,
    /// A watch.
    Watch,
}

/// What a stream says.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// It is there.
    Applied(Object),
    /// It is gone.
    Deleted(ObjectKey),
    /// The version that the stream has come to, and nothing else.
    Bookmark {
        /// Every object has been told that was there when the watch began.
        listed: bool,
    },
    /// The end of a page: the token for the next one, empty after the last.
    Page {
        /// As the API wants to have it back.
        next: Box<str>,
    },
    /// The watch has failed, and its stream ends.
    Failed(Status),
    /// An object of a namespace that nobody asked for.
    Passed,
    /// An object that is none, or that has no name.
    Unreadable(Unreadable),
}

/// A failure as the API tells it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// As HTTP has it.
    pub code: u16,
    /// One word.
    pub reason: Box<str>,
    /// For people.
    pub message: Box<str>,
    /// One word for each cause.
    pub causes: Vec<Box<str>>,
    /// When to come again; 0 if it is not said.
    pub retry_after_s: u64,
}

/// What makes a stream unreadable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Fewer octets than announced.
    #[error("a length beyond the end")]
    Length,
    /// A field that cannot be.
    #[error("a field of another type")]
    Field,
    /// A text that is none.
    #[error("a text that is not UTF-8")]
    Text,
    /// Another beginning than every object has.
    #[error("no envelope around an object")]
    Envelope,
    /// More parts of one sort than an object may have.
    #[error("more than {0} parts of one sort in an object")]
    TooMany(usize),
    /// More than the bound, in octets.
    #[error("an object of more than {0} octets")]
    TooLarge(usize),
    /// An object without what tells it apart.
    #[error("no name, or no namespace")]
    Nameless,
    /// A name or a namespace beyond the bound, in octets.
    #[error("a name of more than {0} octets")]
    LongName(usize),
    /// Something else than that an object came, changed or went.
    #[error("an event of an unknown type")]
    Event,
    /// The stream ended inside of an object.
    #[error("the end in the midst of an object")]
    Unfinished,
    /// What the reader of JSON says.
    #[error("{0}")]
    Json(Box<str>),
}

impl From<serde_json::Error> for Malformed {
    fn from(error: serde_json::Error) -> Self {
        // It may quote what was sent.
        Self::Json(plain(&error.to_string(), MOST_QUOTED))
    }
}

/// Reads one reply.
pub struct Reader {
    form: Form,
    /// What has come and is not whole yet.
    pending: Vec<u8>,
    /// So many octets of it are known to end no line: those of a large object that comes in pieces are looked at once each.
    searched: usize,
    state: State,
    objects: Objects,
}

enum State {
    List(List),
    /// A page of JSON is read when it is whole.
    Page,
    Watch,
}

impl Reader {
    /// Of a reply in that form and shape.
    pub fn new(kind: Kind, form: Form, shape: Shape) -> Self {
        let state = match (shape, form) {
            (Shape::Watch, _) => State::Watch,
            (Shape::List, Form::Protobuf) => State::List(List::default()),
            (Shape::List, Form::Json) => State::Page,
        };
        Self {
            form,
            pending: Vec::new(),
            searched: 0,
            state,
            objects: Objects { kind, recorder: Recorder::default() },
        }
    }

    /// Takes what has come, and tells each event with the resource version that it brings.
    ///
    /// # Errors
    /// If it breaks its form; nothing can be read after that.
    pub fn push(
        &mut self,
        bytes: &[u8],
        wants: &Wants,
        tell: &mut dyn FnMut(&str, Event),
    ) -> Result<(), Malformed> {
        // Where nothing is pending, what has come is read in its place.
        let mut pending = std::mem::take(&mut self.pending);
        let read = if pending.is_empty() {
            let read = self.read(bytes, wants, tell)?;
            pending.extend_from_slice(&bytes[read..]);
            0
        } else {
            pending.extend_from_slice(bytes);
            self.read(&pending, wants, tell)?
        };
        pending.drain(..read);
        if pending.capacity() > KEPT && pending.len() < KEPT {
            pending.shrink_to(KEPT);
        }
        let most = if matches!(self.state, State::Page) { MOST_PAGE } else { MOST_OBJECT };
        if pending.len() > most {
            return Err(Malformed::TooLarge(most));
        }
        self.pending = pending;
        Ok(())
    }

    /// The reply has ended.
    ///
    /// # Errors
    /// If it ended before it was whole, or a page makes no sense.
    pub fn end(&mut self, wants: &Wants, tell: &mut dyn FnMut(&str, Event)) -> Result<(), Malformed> {
        let pending = std::mem::take(&mut self.pending);
        match &mut self.state {
            State::List(list) => list.end(&pending, tell),
            State::Page => self.objects.page(&pending, wants, tell),
            // A last line may lack its end.
            State::Watch if pending.is_empty() => Ok(()),
            State::Watch => Err(Malformed::Unfinished),
        }
    }

    /// Reads what is whole; how many octets that were.
    fn read(
        &mut self,
        bytes: &[u8],
        wants: &Wants,
        tell: &mut dyn FnMut(&str, Event),
    ) -> Result<usize, Malformed> {
        match &mut self.state {
            State::Page => Ok(0),
            State::List(list) => list.read(bytes, &mut |item| self.objects.item(item, wants, tell)),
            State::Watch => {
                let (mut read, mut searched) = (0, self.searched);
                while let Some((frame, length)) = frame(self.form, &bytes[read..], searched)? {
                    match self.form {
                        Form::Protobuf => self.objects.message(frame, wants, tell)?,
                        Form::Json => self.objects.line(frame, wants, tell)?,
                    }
                    read += length;
                    searched = 0;
                }
                self.searched = bytes.len() - read;
                Ok(read)
            }
        }
    }
}

/// The frame that `bytes` begin with, and its length with what is around it; `searched` of them end no line.
fn frame(form: Form, bytes: &[u8], searched: usize) -> Result<Option<(&[u8], usize)>, Malformed> {
    match form {
        Form::Protobuf => {
            let Some((length, rest)) = bytes.split_first_chunk() else { return Ok(None) };
            let length = u32::from_be_bytes(*length) as usize;
            if length > MOST_OBJECT {
                return Err(Malformed::TooLarge(MOST_OBJECT));
            }
            Ok(rest.get(..length).map(|frame| (frame, length + size_of::<u32>())))
        }
        Form::Json => {
            let end = memchr::memchr(b'\n', &bytes[searched..]).map(|end| searched + end);
            Ok(end.map(|end| (&bytes[..end], end + 1)))
        }
    }
}

/// Makes events of objects.
struct Objects {
    kind: Kind,
    recorder: Recorder,
}

impl Objects {
    fn message(
        &mut self,
        frame: &[u8],
        wants: &Wants,
        tell: &mut dyn FnMut(&str, Event),
    ) -> Result<(), Malformed> {
        let (event, object) = from_protobuf::event(frame)?;
        let (kind, object) = from_protobuf::envelope(object)?;
        if event == "ERROR" || kind == "Status" {
            tell("", Event::Failed(from_protobuf::status(object)?));
        } else {
            self.event(event, self.of_protobuf(object), wants, tell);
        }
        Ok(())
    }

    fn line(
        &mut self,
        line: &[u8],
        wants: &Wants,
        tell: &mut dyn FnMut(&str, Event),
    ) -> Result<(), Malformed> {
        let line = text(line)?;
        if line.trim_ascii().is_empty() {
            return Ok(());
        }
        let (event, object) = from_json::event(line)?;
        if event == "ERROR" {
            tell("", Event::Failed(from_json::status(object)?));
        } else {
            self.event(&event, self.of_json(object), wants, tell);
        }
        Ok(())
    }

    fn page(
        &mut self,
        page: &[u8],
        wants: &Wants,
        tell: &mut dyn FnMut(&str, Event),
    ) -> Result<(), Malformed> {
        let (version, next) = from_json::list(text(page)?, |item| {
            let object = match item.len() {
                0..=MOST_OBJECT => self.of_json(item),
                _ => Err(self.named(from_json::name(item), Malformed::TooLarge(MOST_OBJECT))),
            };
            self.event("ADDED", object, wants, tell);
        })?;
        tell(&version, Event::Page { next: (*next).into() });
        Ok(())
    }

    fn item(&mut self, item: &[u8], wants: &Wants, tell: &mut dyn FnMut(&str, Event)) {
        self.event("ADDED", self.of_protobuf(item), wants, tell);
    }

    fn of_protobuf<'a>(&self, object: &'a [u8]) -> Result<(Meta<'a>, View<'a>), NotRead> {
        from_protobuf::object(self.kind, object).map_err(|why| self.named(from_protobuf::name(object), why))
    }

    fn of_json<'a>(&self, object: &'a str) -> Result<(Meta<'a>, View<'a>), NotRead> {
        from_json::object(self.kind, object).map_err(|why| self.named(from_json::name(object), why))
    }

    /// By as much as can be read of its namespace and its name.
    fn named(&self, (namespace, name): (Text<'_>, Text<'_>), why: Malformed) -> NotRead {
        let unreadable = Unreadable::new(&namespace, &name, why);
        (Meta { namespace, name, ..Meta::default() }.key(self.kind).ok(), unreadable)
    }

    fn event(
        &mut self,
        event: &str,
        object: Result<(Meta<'_>, View<'_>), NotRead>,
        wants: &Wants,
        tell: &mut dyn FnMut(&str, Event),
    ) {
        let (meta, view) = match object {
            Ok(object) => object,
            Err((key, what)) => {
                tell("", Event::Unreadable(what));
                // It is gone all the same, and what it was before is not what it is: a list leaves it out as well.
                if let Some(key) = key.filter(|_| matches!(event, "ADDED" | "MODIFIED" | "DELETED")) {
                    tell("", Event::Deleted(key));
                }
                return;
            }
        };
        let odd = |why| Event::Unreadable(Unreadable::new(&meta.namespace, &meta.name, why));
        let told = match event {
            "BOOKMARK" => Event::Bookmark { listed: meta.annotation(LISTED) == Some("true") },
            "ADDED" | "MODIFIED" | "DELETED" if !self.is_wanted(&meta, wants) => Event::Passed,
            // Whether the API selects them out as it is asked to or not, pods that have ended are none.
            "ADDED" | "MODIFIED" if view.has_ended() => meta.key(self.kind).map_or_else(odd, Event::Deleted),
            "DELETED" => meta.key(self.kind).map_or_else(odd, Event::Deleted),
            "ADDED" | "MODIFIED" => self.recorder.record(&meta, view, wants).map_or_else(odd, Event::Applied),
            _ => odd(Malformed::Event),
        };
        tell(&meta.version, told);
    }

    fn is_wanted(&self, meta: &Meta<'_>, wants: &Wants) -> bool {
        let namespace = if self.kind == Kind::Namespace { &meta.name } else { &meta.namespace };
        wants.namespaces.is_empty() || wants.namespaces.iter().any(|wanted| **wanted == **namespace)
    }
}

/// What tells an object apart, where that can be read, and why all of it cannot.
type NotRead = (Option<ObjectKey>, Unreadable);

/// What a refusal says.
pub fn status(form: Form, body: &[u8]) -> Result<Status, Malformed> {
    match form {
        Form::Protobuf => from_protobuf::status(from_protobuf::envelope(body)?.1),
        Form::Json => from_json::status(text(body)?),
    }
}

fn text(bytes: &[u8]) -> Result<&str, Malformed> {
    str::from_utf8(bytes).map_err(|_| Malformed::Text)
}

/// A bookmark that has it ends what a watch tells first.
const LISTED: &str = "k8s.io/initial-events-end";
/// etcd takes 1.5 MiB unless it is told otherwise.
const MOST_OBJECT: usize = 8 << 20;
/// A page of JSON: 100 slices of 1,000 endpoints are 50 MB, and no cluster has one such page.
const MOST_PAGE: usize = 64 << 20;
/// Characters of an error of JSON that are told.
const MOST_QUOTED: usize = 200;
/// What is kept of the room that one large object took.
const KEPT: usize = 64 << 10;

#[cfg(test)]
mod tests;

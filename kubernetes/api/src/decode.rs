//! Decodes replies of the API into compact records as they arrive; at most one object is buffered.
//!
//! There are four formats: a list is one protobuf message, or a JSON text for each page; a watch is
//! protobuf messages with length prefixes, or lines of JSON. An invalid object is reported and
//! skipped; invalid framing is an error.

mod borrowed;
mod decode_error;
mod from_json;
mod from_protobuf;
mod protobuf;
mod protobuf_list;
mod time;

pub use decode_error::DecodeError;

use crate::objects::{Kind, Object, ObjectKey};
use crate::sanitize::sanitize;
use crate::settings::WatchConfig;

use borrowed::{Meta, Recorder, Text, View};
use protobuf_list::List;

/// Encoding of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// `application/vnd.kubernetes.protobuf`
    Protobuf,
    /// `application/json`
    Json,
}

/// Framing of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// A page of a list.
    List,
    /// A watch.
    Watch,
}

/// An event of a list or watch.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// An object was listed, added or modified.
    Applied(Object),
    /// An object was deleted.
    Deleted(ObjectKey),
    /// Reports the current resource version only.
    Bookmark {
        /// Whether all objects that existed at the start of the watch have been sent.
        listed: bool,
    },
    /// The end of a page, with the token of the next one; empty after the last.
    Page {
        /// The token as the API sent it.
        next: Box<str>,
    },
    /// The watch has failed, and its stream ends.
    Failed(Status),
    /// An object of a namespace that is filtered out.
    Filtered,
    /// An object that is invalid or has no name.
    Invalid(DecodeError),
}

/// A Status object of the API.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// HTTP status.
    pub code: u16,
    /// Machine-readable reason.
    pub reason: Box<str>,
    /// Human-readable message.
    pub message: Box<str>,
    /// Reason of each cause.
    pub causes: Vec<Box<str>>,
    /// Seconds after which to retry; 0 if absent.
    pub retry_after_s: u64,
}

/// Why an object or a stream is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// A length that exceeds the data.
    #[error("a length exceeds the data")]
    Length,
    /// A field of an unexpected wire type.
    #[error("a field has the wrong type")]
    Field,
    /// A text that is not UTF-8.
    #[error("a text is not UTF-8")]
    Text,
    /// The magic bytes of an object are missing.
    #[error("an object has no envelope")]
    Envelope,
    /// More elements of one field than the limit.
    #[error("an object has more than {0} elements in a field")]
    TooMany(usize),
    /// The limit in bytes.
    #[error("an object has more than {0} bytes")]
    TooLarge(usize),
    /// An object without name or namespace.
    #[error("no name or no namespace")]
    Nameless,
    /// A name or namespace longer than this, in bytes.
    #[error("a name has more than {0} bytes")]
    LongName(usize),
    /// A watch event of an unknown type.
    #[error("an event has an unknown type")]
    Event,
    /// The stream ended within an object.
    #[error("the reply ended within an object")]
    Unfinished,
    /// The error of the JSON parser.
    #[error("{0}")]
    Json(Box<str>),
}

impl From<serde_json::Error> for Malformed {
    fn from(error: serde_json::Error) -> Self {
        // The message may quote untrusted input.
        Self::Json(sanitize(&error.to_string(), MAX_QUOTED))
    }
}

/// Decodes one reply.
pub struct Reader {
    encoding: Encoding,
    /// Data of an incomplete frame.
    pending: Vec<u8>,
    /// Length of the prefix of `pending` without a line end, so that each byte is searched once.
    searched: usize,
    state: State,
    objects: Objects,
}

enum State {
    List(List),
    /// A JSON page is decoded when it is complete.
    Page,
    Watch,
}

impl Reader {
    /// Creates a reader for a reply.
    pub fn new(kind: Kind, encoding: Encoding, framing: Framing) -> Self {
        let state = match (framing, encoding) {
            (Framing::Watch, _) => State::Watch,
            (Framing::List, Encoding::Protobuf) => State::List(List::default()),
            (Framing::List, Encoding::Json) => State::Page,
        };
        Self {
            encoding,
            pending: Vec::new(),
            searched: 0,
            state,
            objects: Objects { kind, recorder: Recorder::default() },
        }
    }

    /// Decodes data, and calls `emit` for each event with its resource version.
    ///
    /// # Errors
    /// If the framing is invalid; the reader cannot continue.
    pub fn push(
        &mut self,
        bytes: &[u8],
        wants: &WatchConfig,
        emit: &mut dyn FnMut(&str, Event),
    ) -> Result<(), Malformed> {
        // Without pending data the input is decoded without copying.
        let mut pending = std::mem::take(&mut self.pending);
        let read = if pending.is_empty() {
            let read = self.read(bytes, wants, emit)?;
            pending.extend_from_slice(&bytes[read..]);
            0
        } else {
            pending.extend_from_slice(bytes);
            self.read(&pending, wants, emit)?
        };
        pending.drain(..read);
        if pending.capacity() > KEPT_CAPACITY && pending.len() < KEPT_CAPACITY {
            pending.shrink_to(KEPT_CAPACITY);
        }
        let most = if matches!(self.state, State::Page) { MAX_PAGE_BYTES } else { MAX_OBJECT_BYTES };
        if pending.len() > most {
            return Err(Malformed::TooLarge(most));
        }
        self.pending = pending;
        Ok(())
    }

    /// Handles the end of the reply.
    ///
    /// # Errors
    /// If the reply is incomplete, or a page is invalid.
    pub fn end(&mut self, wants: &WatchConfig, emit: &mut dyn FnMut(&str, Event)) -> Result<(), Malformed> {
        let pending = std::mem::take(&mut self.pending);
        match &mut self.state {
            State::List(list) => list.end(&pending, emit),
            State::Page => self.objects.page(&pending, wants, emit),
            // The last line of a watch must end in a line feed.
            State::Watch if pending.is_empty() => Ok(()),
            State::Watch => Err(Malformed::Unfinished),
        }
    }

    /// Decodes complete frames; returns the number of bytes consumed.
    fn read(
        &mut self,
        bytes: &[u8],
        wants: &WatchConfig,
        emit: &mut dyn FnMut(&str, Event),
    ) -> Result<usize, Malformed> {
        match &mut self.state {
            State::Page => Ok(0),
            State::List(list) => list.read(bytes, &mut |item| self.objects.item(item, wants, emit)),
            State::Watch => {
                let (mut read, mut searched) = (0, self.searched);
                while let Some((frame, length)) = frame(self.encoding, &bytes[read..], searched)? {
                    match self.encoding {
                        Encoding::Protobuf => self.objects.message(frame, wants, emit)?,
                        Encoding::Json => self.objects.line(frame, wants, emit)?,
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

/// Returns the first frame of `bytes`, and its length with its framing; the first `searched` bytes
/// have no line end.
fn frame(encoding: Encoding, bytes: &[u8], searched: usize) -> Result<Option<(&[u8], usize)>, Malformed> {
    match encoding {
        Encoding::Protobuf => {
            let Some((length, rest)) = bytes.split_first_chunk() else { return Ok(None) };
            let length = u32::from_be_bytes(*length) as usize;
            if length > MAX_OBJECT_BYTES {
                return Err(Malformed::TooLarge(MAX_OBJECT_BYTES));
            }
            Ok(rest.get(..length).map(|frame| (frame, length + size_of::<u32>())))
        }
        Encoding::Json => {
            let end = memchr::memchr(b'\n', &bytes[searched..]).map(|end| searched + end);
            Ok(end.map(|end| (&bytes[..end], end + 1)))
        }
    }
}

/// Converts objects to events.
struct Objects {
    kind: Kind,
    recorder: Recorder,
}

impl Objects {
    fn message(
        &mut self,
        frame: &[u8],
        wants: &WatchConfig,
        emit: &mut dyn FnMut(&str, Event),
    ) -> Result<(), Malformed> {
        let (event, object) = from_protobuf::event(frame)?;
        let (kind, object) = from_protobuf::envelope(object)?;
        if event == "ERROR" || kind == "Status" {
            emit("", Event::Failed(from_protobuf::status(object)?));
        } else {
            self.event(event, self.of_protobuf(object), wants, emit);
        }
        Ok(())
    }

    fn line(
        &mut self,
        line: &[u8],
        wants: &WatchConfig,
        emit: &mut dyn FnMut(&str, Event),
    ) -> Result<(), Malformed> {
        let line = text(line)?;
        if line.trim_ascii().is_empty() {
            return Ok(());
        }
        let (event, object) = from_json::event(line)?;
        if event == "ERROR" {
            emit("", Event::Failed(from_json::status(object)?));
        } else {
            self.event(&event, self.of_json(object), wants, emit);
        }
        Ok(())
    }

    fn page(
        &mut self,
        page: &[u8],
        wants: &WatchConfig,
        emit: &mut dyn FnMut(&str, Event),
    ) -> Result<(), Malformed> {
        let (version, next) = from_json::list(text(page)?, |item| {
            let object = match item.len() {
                0..=MAX_OBJECT_BYTES => self.of_json(item),
                _ => Err(self.named(from_json::name(item), Malformed::TooLarge(MAX_OBJECT_BYTES))),
            };
            self.event("ADDED", object, wants, emit);
        })?;
        emit(&version, Event::Page { next: (*next).into() });
        Ok(())
    }

    fn item(&mut self, item: &[u8], wants: &WatchConfig, emit: &mut dyn FnMut(&str, Event)) {
        self.event("ADDED", self.of_protobuf(item), wants, emit);
    }

    fn of_protobuf<'a>(&self, object: &'a [u8]) -> Result<(Meta<'a>, View<'a>), ReadFailure> {
        from_protobuf::object(self.kind, object).map_err(|why| self.named(from_protobuf::name(object), why))
    }

    fn of_json<'a>(&self, object: &'a str) -> Result<(Meta<'a>, View<'a>), ReadFailure> {
        from_json::object(self.kind, object).map_err(|why| self.named(from_json::name(object), why))
    }

    /// Returns the error with as much of namespace and name as can be read.
    fn named(&self, (namespace, name): (Text<'_>, Text<'_>), why: Malformed) -> ReadFailure {
        let unreadable = DecodeError::new(&namespace, &name, why);
        (Meta { namespace, name, ..Meta::default() }.key(self.kind).ok(), unreadable)
    }

    fn event(
        &mut self,
        event: &str,
        object: Result<(Meta<'_>, View<'_>), ReadFailure>,
        wants: &WatchConfig,
        emit: &mut dyn FnMut(&str, Event),
    ) {
        let (meta, view) = match object {
            Ok(object) => object,
            Err((key, what)) => {
                emit("", Event::Invalid(what));
                // The known version of the object is outdated: the object is deleted, as if a list
                // lacked it.
                if let Some(key) = key.filter(|_| matches!(event, "ADDED" | "MODIFIED" | "DELETED")) {
                    emit("", Event::Deleted(key));
                }
                return;
            }
        };
        let invalid = |why| Event::Invalid(DecodeError::new(&meta.namespace, &meta.name, why));
        let decoded = match event {
            "BOOKMARK" => Event::Bookmark { listed: meta.annotation(LISTED) == Some("true") },
            "ADDED" | "MODIFIED" | "DELETED" if !self.is_wanted(&meta, wants) => Event::Filtered,
            // Pods that have ended are deleted, whether the API honours the field selector or not.
            "ADDED" | "MODIFIED" if view.has_ended() => {
                meta.key(self.kind).map_or_else(invalid, Event::Deleted)
            }
            "DELETED" => meta.key(self.kind).map_or_else(invalid, Event::Deleted),
            "ADDED" | "MODIFIED" => {
                self.recorder.record(&meta, view, wants).map_or_else(invalid, Event::Applied)
            }
            _ => invalid(Malformed::Event),
        };
        emit(&meta.version, decoded);
    }

    fn is_wanted(&self, meta: &Meta<'_>, wants: &WatchConfig) -> bool {
        let namespace = if self.kind == Kind::Namespace { &meta.name } else { &meta.namespace };
        wants.namespaces.is_empty() || wants.namespaces.iter().any(|wanted| **wanted == **namespace)
    }
}

/// The key of an invalid object, if it can be read, and the error.
type ReadFailure = (Option<ObjectKey>, DecodeError);

/// Decodes the body of an error reply.
pub fn status(encoding: Encoding, body: &[u8]) -> Result<Status, Malformed> {
    match encoding {
        Encoding::Protobuf => from_protobuf::status(from_protobuf::envelope(body)?.1),
        Encoding::Json => from_json::status(text(body)?),
    }
}

fn text(bytes: &[u8]) -> Result<&str, Malformed> {
    str::from_utf8(bytes).map_err(|_| Malformed::Text)
}

/// Annotation of the bookmark after the initial events of a watch.
const LISTED: &str = "k8s.io/initial-events-end";
/// Maximum size of an object; the default limit of etcd is 1.5 MiB.
const MAX_OBJECT_BYTES: usize = 8 << 20;
/// Maximum size of a JSON page: 100 slices of 1,000 endpoints are 50 MB.
const MAX_PAGE_BYTES: usize = 64 << 20;
/// Maximum characters of a JSON error in a message.
const MAX_QUOTED: usize = 200;
/// Capacity that the buffer keeps after a large object.
const KEPT_CAPACITY: usize = 64 << 10;

#[cfg(test)]
mod tests;

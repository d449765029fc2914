//! Receiver of the objects of a cluster.

use std::time::Duration;

use crate::decode::DecodeError;
use crate::{Kind, Object, ObjectKey, WatchError};

/// Receives the objects of a cluster as they arrive.
///
/// For each kind there are lists (`begin`, `apply` for each object, `complete`) and single changes.
/// After a list, objects that were not applied in it are gone. Before the first `complete` of a
/// kind, absence of an object means nothing. Until `complete`, objects from before `begin` stay,
/// since a list may break off and begin again. All calls are made by one thread.
///
/// Calls between `begin_batch` and `end_batch` concern data that was available at once: the sink
/// may apply them together, at the latest in `end_batch`.
pub trait Sink: Send {
    /// Changes of this kind may be deferred until `end_batch`.
    fn begin_batch(&mut self, kind: Kind) {
        let _ = kind;
    }
    /// All available data of this kind was delivered; also called after `failed`, and without
    /// `begin_batch`.
    fn end_batch(&mut self, kind: Kind) {
        let _ = kind;
    }
    /// A list of all objects of this kind begins.
    fn begin(&mut self, kind: Kind);
    /// An object exists: new, changed or unchanged.
    fn apply(&mut self, object: Object);
    /// An object does not exist (any more).
    fn delete(&mut self, kind: Kind, key: ObjectKey);
    /// The list is complete: objects that were not applied since `begin` are gone.
    fn complete(&mut self, kind: Kind);
    /// Changes are received from now on, including those since `failed`.
    fn watching(&mut self, kind: Kind);
    /// No changes are received until `watching`. The client retries; called for each failure.
    fn failed(&mut self, kind: Kind, why: &WatchError);
    /// An invalid object was skipped. If its key is known, `delete` follows; otherwise the object's
    /// old version stays.
    fn invalid(&mut self, kind: Kind, what: &DecodeError) {
        let _ = (kind, what);
    }
    /// Whether this kind must be listed again: objects were skipped at the memory limit, and memory
    /// is available again.
    fn needs_relist(&mut self, kind: Kind) -> bool {
        let _ = kind;
        false
    }
    /// A request was answered or failed; `asked` is for the client's metrics.
    fn request_done(&mut self, asked: &RequestMetrics<'_>) {
        let _ = asked;
    }
}

/// Metrics of a request.
#[derive(Clone, Copy, Debug)]
pub struct RequestMetrics<'a> {
    /// Host and port.
    pub host: &'a str,
    /// Status of the reply; `None` without reply.
    pub status: Option<u16>,
    /// Delay by the rate limiter.
    pub waited: Duration,
    /// Time until the head of the reply.
    pub took: Duration,
    /// Whether it is a watch.
    pub watch: bool,
}

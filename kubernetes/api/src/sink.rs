//! Who is told what becomes of a cluster's objects.

use std::time::Duration;

use crate::decode::Unreadable;
use crate::{Kind, Lost, Object, ObjectKey};

/// Takes a cluster's objects as they come.
///
/// Of each kind either a list comes (`begin`, an `apply` for every object, `complete`), and what was not applied in between
/// is gone; or single changes, as they happen. Before the first `complete` of a kind nothing is known of what it lacks.
/// Until the next one the objects before `begin` stay as they are: a list may break off, and then begins anew. All calls
/// come from one thread, and none waits for another.
///
/// Between `gather` and `settle` what has come at once is told: it may be put in together, and is when `settle` returns.
pub trait Sink: Send {
    /// More of this kind may be at hand, up to `settle`.
    fn gather(&mut self, kind: Kind) {
        let _ = kind;
    }
    /// All of this kind that is at hand was told; also after what was `lost`, and where nothing was gathered.
    fn settle(&mut self, kind: Kind) {
        let _ = kind;
    }
    /// A list of all objects of this kind begins.
    fn begin(&mut self, kind: Kind);
    /// It is there, new or changed or as it was.
    fn apply(&mut self, object: Object);
    /// It is gone, or was never there.
    fn delete(&mut self, kind: Kind, key: ObjectKey);
    /// The list is whole: what was not applied since `begin` is gone.
    fn complete(&mut self, kind: Kind);
    /// Changes come from now on, also those that were missed since `lost`.
    fn following(&mut self, kind: Kind);
    /// No changes come until `following`. It is tried again meanwhile; called for each failure.
    fn lost(&mut self, kind: Kind, why: &Lost);
    /// An object that makes no sense came and is left out; what was known of it is gone by the `delete` that follows where it can be
    /// told which one it is, and stays where not.
    fn unreadable(&mut self, kind: Kind, what: &Unreadable) {
        let _ = (kind, what);
    }
    /// Whether all of this kind is to be listed again: objects were left out for want of room, and there is room by now.
    fn wants_list(&mut self, kind: Kind) -> bool {
        let _ = kind;
        false
    }
    /// A request was answered, or failed: for the metrics of the API's client.
    fn asked(&mut self, asked: &Asked<'_>) {
        let _ = asked;
    }
}

/// A request to the API.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// Host and port.
    pub host: &'a str,
    /// The reply's status; `None` if none came.
    pub status: Option<u16>,
    /// Before it was sent, since others had just been: for its turn by the pace. Zero where none is set.
    pub waited: Duration,
    /// From then until the reply's head. Of a watch, that is until it begins.
    pub took: Duration,
    /// A watch, and no list.
    pub watch: bool,
}

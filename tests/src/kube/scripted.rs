//! A cluster's objects behind a scripted API; the test changes them while clients watch.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::api::{Api, Reply, Request};
use super::forms::Form;
use crate::lock::lock;
use crate::upstream::Authority;

/// The path of services.
pub const SERVICES: &str = "/api/v1/services";
/// The path of endpoint slices.
pub const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";
/// The path of namespaces.
pub const NAMESPACES: &str = "/api/v1/namespaces";
/// The path of pods.
pub const PODS: &str = "/api/v1/pods";
/// The path of service imports.
pub const IMPORTS: &str = "/apis/multicluster.x-k8s.io/v1alpha1/serviceimports";

const PATHS: [&str; 5] = [SERVICES, SLICES, NAMESPACES, PODS, IMPORTS];
/// The resource version of the initial list; its objects have lower versions.
const FIRST_VERSION: usize = 100;

/// The path of an object's kind, and the object.
pub type Object = (&'static str, Value);

/// An API with objects that the test changes. Like a real one, it honours field selectors for a
/// pod's node and phase, and equality selectors for labels.
pub struct ScriptedCluster {
    /// The API.
    pub api: Api,
    shared: Arc<Shared>,
}

/// An open watch: its request, and the sender of its events.
type Watch = (Request, Sender<Vec<u8>>);

#[derive(Default)]
struct Shared {
    /// The objects by path.
    objects: Mutex<BTreeMap<&'static str, Vec<Value>>>,
    watches: Mutex<Vec<Watch>>,
    /// The number of changes, which gives the current resource version.
    changes: AtomicUsize,
    is_away: AtomicBool,
    /// Refuses watches that begin with a list.
    is_old: AtomicBool,
    ignores_fields: AtomicBool,
    /// Paths where watches cannot resume: the events are lost.
    forgotten: Mutex<Vec<&'static str>>,
}

impl ScriptedCluster {
    /// An API with these objects; if `is_away`, it answers 503.
    ///
    /// # Panics
    /// As [`Api::start`].
    pub fn start(objects: impl IntoIterator<Item = Object>, is_away: bool) -> Self {
        let shared = Shared::of(objects, is_away);
        let of = shared.clone();
        Self { api: Api::start(move |request| of.reply(request)), shared }
    }

    /// Like [`Self::start`], over TLS, for clients with a certificate of this authority alone.
    ///
    /// # Panics
    /// As [`Api::start_tls`].
    pub fn start_tls(objects: impl IntoIterator<Item = Object>, authority: &Authority) -> Self {
        let shared = Shared::of(objects, false);
        let of = shared.clone();
        Self { api: Api::start_tls(authority, move |request| of.reply(request)), shared }
    }

    /// Ends [`Self::fail`]: serves requests again.
    pub fn recover(&self) {
        self.shared.is_away.store(false, Ordering::Release);
    }

    /// Refuses watches that begin with a list, as old API servers do.
    pub fn lists(&self) {
        self.shared.is_old.store(true, Ordering::Release);
    }

    /// Ignores `fieldSelector` and sends all objects, as some substitutes of an API server do.
    pub fn ignores_fields(&self) {
        self.shared.ignores_fields.store(true, Ordering::Release);
    }

    /// Ends all connections, loses the events until [`Self::recover`], and answers 503.
    pub fn fail(&self) {
        self.shared.is_away.store(true, Ordering::Release);
        *lock(&self.shared.forgotten) = PATHS.to_vec();
        // In the other order, watches would end as those of a healthy API, and the next requests
        // would find open connections.
        self.api.cut();
        lock(&self.shared.watches).clear();
    }

    /// Changes an object under the next resource version and sends the event to all watches:
    /// `ADDED`, `MODIFIED` or `DELETED`.
    pub fn put(&self, path: &'static str, event: &str, mut object: Value) {
        let mut objects = lock(&self.shared.objects);
        let version = FIRST_VERSION + 1 + self.shared.changes.fetch_add(1, Ordering::AcqRel);
        object["metadata"]["resourceVersion"] = version.to_string().into();
        let all = objects.entry(path).or_default();
        let key = |object: &Value| {
            let metadata = &object["metadata"];
            (metadata["namespace"].clone(), metadata["name"].clone())
        };
        all.retain(|other| key(other) != key(&object));
        if event != "DELETED" {
            all.push(object.clone());
        }
        for (request, watch) in lock(&self.shared.watches).iter().filter(|(of, _)| of.path == path) {
            // A watch with selectors that no longer match the object gets a `DELETED` event.
            let event = if self.shared.selects(request, &object) { event } else { "DELETED" };
            // Fails for a watch that has ended.
            let _ = watch.send(form(path).event(event, kind(path), &object));
        }
    }
}

impl Shared {
    fn of(objects: impl IntoIterator<Item = Object>, is_away: bool) -> Arc<Self> {
        let shared = Self { is_away: is_away.into(), ..Self::default() };
        for (path, object) in objects {
            lock(&shared.objects).entry(path).or_default().push(object);
        }
        Arc::new(shared)
    }

    fn selects(&self, request: &Request, object: &Value) -> bool {
        let mut request = request.clone();
        if self.ignores_fields.load(Ordering::Acquire) {
            request.parameters.remove("fieldSelector");
        }
        selects(&request, object)
    }

    fn reply(&self, request: &Request) -> Reply {
        if self.is_away.load(Ordering::Acquire) {
            return Reply::failure(form(&request.path), 503, "ServiceUnavailable");
        }
        let path = PATHS.into_iter().find(|path| *path == request.path);
        let Some(path) = path else { return Reply::failure(form(""), 404, "NotFound") };
        let form = form(path);
        if request.is_watch_list() && self.is_old.load(Ordering::Acquire) {
            return Reply::failure(form, 422, "Invalid");
        }
        let mut forgotten = lock(&self.forgotten);
        if request.is_watch() && !request.is_watch_list() && forgotten.contains(&path) {
            return Reply::failure(form, 410, "Expired");
        }
        forgotten.retain(|other| *other != path);
        let objects = lock(&self.objects);
        let items = objects.get(path).cloned().unwrap_or_default();
        let version = (FIRST_VERSION + self.changes.load(Ordering::Acquire)).to_string();
        let items: Vec<Value> = items.into_iter().filter(|item| self.selects(request, item)).collect();
        if !request.is_watch() {
            return Reply::list(form, kind(path), &version, "", &items);
        }
        let (sender, receiver) = channel();
        lock(&self.watches).push((request.clone(), sender));
        let watch = Reply::watch(form);
        let watch = match request.is_watch_list() {
            true => {
                let added = items.iter().flat_map(|item| form.event("ADDED", kind(path), item)).collect();
                let annotations = json!({"k8s.io/initial-events-end": "true"});
                let end = json!({"metadata": {"resourceVersion": version, "annotations": annotations}});
                watch.octets(added).octets(form.event("BOOKMARK", kind(path), &end))
            }
            false => watch,
        };
        watch.live(receiver)
    }
}

fn kind(path: &str) -> &'static str {
    match path {
        SERVICES => "Service",
        SLICES => "EndpointSlice",
        PODS => "Pod",
        IMPORTS => "ServiceImport",
        _ => "Namespace",
    }
}

/// A real API serves custom resources only as JSON.
fn form(path: &str) -> Form {
    if path == IMPORTS { Form::Json } else { Form::Protobuf }
}

/// Whether the request's selectors select the object.
fn selects(request: &Request, object: &Value) -> bool {
    let terms = |name: &'static str| request.parameter(name).split(',').filter(|term| !term.is_empty());
    let holds = |term: &str, value: &dyn Fn(&str) -> String| match term.split_once("!=") {
        Some((field, unwanted)) => value(field) != unwanted,
        None => match term.split_once('=') {
            Some((field, wanted)) => value(field) == wanted,
            None => !value(term).is_empty(),
        },
    };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let field = |path: &str| text(path.split('.').fold(object, |value, part| &value[part]));
    let label = |name: &str| text(&object["metadata"]["labels"][name]);
    terms("fieldSelector").all(|term| holds(term, &field))
        && terms("labelSelector").all(|term| {
            term.strip_prefix('!').map_or_else(|| holds(term, &label), |absent| label(absent).is_empty())
        })
}

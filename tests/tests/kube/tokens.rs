//! A service account's token that is replaced while in use.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kubernetes_api::{Access, ClientSettings, Kind, RateLimit, WatchConfig, follow};
use serde_json::json;
use tests::kube::{Api, Form, Reply};
use tests::{now, publish, steadily, tempdir};

use super::scripted_faults::{SERVICES, added, begun, listed, services, start, until_names};
use super::store::Seen;

const FORM: Form = Form::Protobuf;

/// A kubeconfig for `api`, with the token in a file beside it.
fn kubeconfig(directory: &Path, api: &Api) -> PathBuf {
    let file = directory.join("config");
    let config = json!({
        "current-context": "c",
        "clusters": [{"name": "k", "cluster": {"server": api.url()}}],
        "users": [{"name": "u", "user": {"tokenFile": "token"}}],
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
    });
    publish(&file, config.to_string());
    file
}

/// A rejected token is tried again as soon as it has changed.
#[test]
fn rejected_token_is_retried_on_change() {
    steadily(|| {
        let directory = tempdir();
        let token = directory.path().join("token");
        publish(&token, "one");
        let valid = Arc::new(Mutex::new("one"));
        let of = valid.clone();
        let api = services(FORM, move |request| {
            let token = request.headers.get("authorization").map_or("", String::as_str);
            if token != format!("Bearer {}", of.lock().unwrap()) {
                return Reply::failure(FORM, 401, "Unauthorized");
            }
            let first = [added(FORM, "a", 3), listed(FORM, "Service", 10)].concat();
            if request.is_watch_list() {
                Reply::watch(FORM).octets(first).stall()
            } else {
                Reply::watch(FORM).octets(added(FORM, "b", 11)).stall()
            }
        });
        let access = Access::Kubeconfig { file: kubeconfig(directory.path(), &api).into(), context: None };
        let (seen, _following) = start(access, WatchConfig::default());
        until_names(&seen, &["a"]);
        *valid.lock().unwrap() = "two";
        api.cut();
        let refused = "the API rejects the credentials: scripted: Unauthorized";
        // The backoff is at least 1.6 s by then.
        seen.until("six refusals", |store| store.lost.iter().filter(|(_, why)| why == refused).count() == 6);
        publish(&token, "two");
        let published = now();
        until_names(&seen, &["a", "b"]);
        let took = published.elapsed();
        assert!(took < Duration::from_secs(1), "{took:?}");
        assert_eq!(seen.store().lists[&Kind::Service], 1);
    });
}

/// A renewed token is used before the old token is refused.
#[test]
fn renewed_token_during_a_watch() {
    static LATER_S: AtomicU64 = AtomicU64::new(0);
    let (directory, form) = (tempdir(), FORM);
    publish(&directory.path().join("token"), "one");
    let (sender, receiver) = channel::<Vec<u8>>();
    let first = Mutex::new(Some(receiver));
    let api = services(form, move |_| match first.lock().unwrap().take() {
        Some(parts) => {
            Reply::watch(form).octets([added(form, "a", 3), listed(form, "Service", 10)].concat()).live(parts)
        }
        None => Reply::watch(form).octets(added(form, "c", 12)).stall(),
    });
    let file = kubeconfig(directory.path(), &api);
    let seen = Seen::default();
    let settings = ClientSettings {
        access: Access::Kubeconfig { file: file.into(), context: None },
        wants: WatchConfig::default(),
        pace: RateLimit::default(),
        now: || now() + Duration::from_secs(LATER_S.load(Ordering::Acquire)),
    };
    let _following = follow(settings, Box::new(seen.clone())).expect("a thread can be had");
    until_names(&seen, &["a"]);
    publish(&directory.path().join("token"), "two");
    LATER_S.store(11, Ordering::Release);
    // An open watch continues with the old token; the API checked it when the watch began.
    sender.send(added(form, "b", 11)).expect("it is watched");
    until_names(&seen, &["a", "b"]);
    drop(sender);
    until_names(&seen, &["a", "b", "c"]);
    let tokens = api.requests().into_iter().filter(|request| request.path == SERVICES);
    let tokens: Vec<_> = tokens.filter_map(|request| request.headers.get("authorization").cloned()).collect();
    assert_eq!(tokens, ["Bearer one", "Bearer two"]);
    assert_eq!((begun(&api), seen.store().lost.len()), (vec![String::new(), "11".to_owned()], 0));
}

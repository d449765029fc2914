mod waits;

use super::*;
use crate::decode::DecodeError;
use crate::objects::{Object, ObjectKey};
use crate::settings::ConnectionFault;

/// Records the calls of the sink, one per line.
#[derive(Default)]
struct Calls(Vec<String>);

impl Sink for Calls {
    fn begin(&mut self, _: Kind) {
        self.0.push("begin".into());
    }
    fn apply(&mut self, object: Object) {
        let Object::Namespace(name) = object else { panic!("{object:?}") };
        self.0.push(format!("+{name}"));
    }
    fn delete(&mut self, _: Kind, key: ObjectKey) {
        self.0.push(format!("-{key}"));
    }
    fn complete(&mut self, _: Kind) {
        self.0.push("complete".into());
    }
    fn watching(&mut self, _: Kind) {
        self.0.push("watching".into());
    }
    fn failed(&mut self, _: Kind, why: &WatchError) {
        self.0.push(format!("failed: {why}"));
    }
    fn invalid(&mut self, _: Kind, what: &DecodeError) {
        self.0.push(what.to_string());
    }
}

/// A reflector of namespaces, its sink, and a clock that the test moves.
struct Script {
    reflector: Reflector,
    calls: Calls,
    now: Instant,
    asked: Instant,
}

impl Script {
    fn new() -> Self {
        #[allow(clippy::disallowed_methods, reason = "any instant will do")]
        let now = Instant::now();
        let reflector = Reflector::new(Kind::Namespace, Arc::new(WatchConfig::default()), || 0.5);
        Self { reflector, calls: Calls::default(), now, asked: now }
    }

    /// The API has refused a watch list: pages are requested next.
    fn without_watch_lists() -> Self {
        let mut script = Self::new();
        script.ask();
        script.head(422);
        script.end();
        script
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    /// Returns the parameters of the next request.
    fn ask(&mut self) -> String {
        self.asked = self.now;
        match self.reflector.next(self.now) {
            Next::Send(ask) => ask.path.split_once('?').unwrap().1.to_owned(),
            Next::Wait(until) => panic!("waits {:?}", until - self.now),
        }
    }

    /// Returns the delay before the next request, and advances the clock by it.
    fn wait(&mut self) -> Duration {
        match self.reflector.next(self.now) {
            Next::Send(ask) => panic!("asks {ask:?}"),
            Next::Wait(until) => {
                let wait = until - self.now;
                self.now = until;
                wait
            }
        }
    }

    fn head(&mut self, status: u16) {
        self.reflector.head(self.now, status, "application/json", None, &mut self.calls).unwrap();
    }

    fn body(&mut self, text: &str) {
        if let Err(why) = self.reflector.body(self.now, text.as_bytes(), &mut self.calls) {
            self.reflector.failed(self.now, &why, &mut self.calls);
        }
    }

    fn end(&mut self) {
        if let Err(why) = self.reflector.end(self.now, &mut self.calls) {
            self.reflector.failed(self.now, &why, &mut self.calls);
        }
    }

    /// Advances the clock to the deadline; returns the duration.
    fn silence(&mut self) -> Duration {
        let heard = self.now;
        self.now = self.reflector.deadline(self.asked);
        if let Some(why) = self.reflector.silent(self.now, self.asked) {
            self.reflector.failed(self.now, &why, &mut self.calls);
        }
        self.now - heard
    }

    fn calls(&mut self) -> Vec<String> {
        std::mem::take(&mut self.calls.0)
    }

    /// Completes a watch list at version 10.
    fn follow(&mut self) {
        assert_eq!(self.ask(), WATCH_LIST);
        self.head(200);
        self.body(&(event("ADDED", "a", 3) + &event("ADDED", "b", 7) + &listed(10)));
        assert_eq!(self.calls(), ["begin", "+a", "+b", "complete", "watching"]);
    }
}

const WATCH_LIST: &str = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&watch=true&allowWatchBookmarks=true&timeoutSeconds=435";

fn watch_from(version: &str) -> String {
    format!("resourceVersion={version}&watch=true&allowWatchBookmarks=true&timeoutSeconds=435")
}

fn event(kind: &str, name: &str, version: u64) -> String {
    format!(
        "{{\"type\":\"{kind}\",\"object\":{{\"metadata\":{{\"name\":\"{name}\",\"resourceVersion\":\"{version}\"}}}}}}\n"
    )
}

fn listed(version: u64) -> String {
    format!(
        "{{\"type\":\"BOOKMARK\",\"object\":{{\"metadata\":{{\"resourceVersion\":\"{version}\",\"annotations\":{{\"k8s.io/initial-events-end\":\"true\"}}}}}}}}\n"
    )
}

fn failure(code: u16, cause: &str) -> String {
    format!(
        "{{\"kind\":\"Status\",\"code\":{code},\"message\":\"no\",\"details\":{{\"causes\":[{{\"reason\":\"{cause}\"}}]}}}}"
    )
}

fn page(names: &[&str], version: &str, next: &str) -> String {
    let items: Vec<_> =
        names.iter().map(|name| format!("{{\"metadata\":{{\"name\":\"{name}\"}}}}")).collect();
    format!(
        "{{\"kind\":\"NamespaceList\",\"metadata\":{{\"resourceVersion\":\"{version}\",\"continue\":\"{next}\"}},\"items\":[{}]}}",
        items.join(",")
    )
}

const MS: Duration = Duration::from_millis(1);

#[test]
fn watch_list_then_watch() {
    let mut script = Script::new();
    script.follow();
    script.body(&(event("MODIFIED", "a", 11) + &event("DELETED", "b", 12)));
    script.body(&event("BOOKMARK", "", 40));
    assert_eq!(script.calls(), ["+a", "-b"]);
    script.pass(Duration::from_secs(300));
    script.end();
    assert_eq!(script.ask(), watch_from("40"));
    script.head(200);
    assert_eq!(script.calls(), ["watching"]);
    // The reply ends within an event: complete events count.
    script.body(&(event("ADDED", "c", 41) + "{\"type\":"));
    script.pass(Duration::from_secs(60));
    script.end();
    assert_eq!(script.calls(), ["+c", "failed: invalid reply: the reply ended within an object"]);
    assert_eq!(script.wait(), 200 * MS);
    assert_eq!(script.ask(), watch_from("41"));
}

#[test]
fn lists_pages_without_watch_list() {
    let mut script = Script::new();
    assert_eq!(script.ask(), WATCH_LIST);
    script.head(422);
    script.body(&failure(422, "FieldValueForbidden"));
    script.end();
    assert_eq!(script.calls(), ["failed: 422 from the API: no"]);
    assert_eq!(script.ask(), "limit=100", "at once");
    script.head(200);
    script.body(&page(&["a", "b"], "10", "t/1=="));
    assert!(script.calls() == ["begin"], "a page of JSON is read when it is whole");
    script.end();
    assert_eq!(script.ask(), "limit=100&continue=t%2F1%3D%3D");
    script.head(200);
    script.body(&page(&["c"], "10", "t2")[..20]);
    // A broken page is requested again, without the pages before.
    script.reflector.failed(script.now, &WatchError::Silent(MS), &mut script.calls);
    script.wait();
    assert_eq!(script.ask(), "limit=100&continue=t%2F1%3D%3D");
    script.head(200);
    script.body(&page(&["c"], "10", ""));
    script.end();
    assert_eq!(script.calls(), ["+a", "+b", "failed: no data for 0 s", "+c", "complete"]);
    assert_eq!(script.ask(), watch_from("10"));

    // The token has expired: the list begins again, in pages.
    script.head(410);
    script.body(&failure(410, ""));
    script.end();
    script.wait();
    assert_eq!(script.ask(), "limit=100");
    script.head(200);
    script.body(&page(&["a"], "20", "t"));
    script.end();
    assert_eq!(script.ask(), "limit=100&continue=t");
    script.head(410);
    script.end();
    script.wait();
    assert_eq!(script.ask(), "limit=100");
}

#[test]
fn relists_on_410_and_lower_version() {
    let gone = "{\"type\":\"ERROR\",\"object\":{\"kind\":\"Status\",\"code\":410,\"reason\":\"Expired\",\"message\":\"too old\\nby far\"}}\n";
    let ahead = format!("{{\"type\":\"ERROR\",\"object\":{}}}\n", failure(504, "ResourceVersionTooLarge"));
    for (body, why) in [
        (gone, "failed: resource version expired: too old by far"),
        (&*ahead, "failed: resource version expired: no"),
        (&*event("MODIFIED", "a", 9), "failed: resource version 9 received after 10"),
    ] {
        let mut script = Script::new();
        script.follow();
        script.body(body);
        assert_eq!(script.calls(), [why]);
        assert_eq!(script.wait(), 200 * MS);
        assert_eq!(script.ask(), WATCH_LIST);
        script.head(200);
        script.body(&(event("ADDED", "a", 9) + &listed(9)));
        assert_eq!(script.calls(), ["begin", "+a", "complete", "watching"]);
    }
    // Versions that are not numbers, and equal ones, are accepted.
    let mut script = Script::new();
    script.follow();
    script.body(&(event("MODIFIED", "a", 10) + &event("MODIFIED", "a", 10).replace("\"10\"", "\"x1\"")));
    script.body(&event("MODIFIED", "a", 1));
    assert_eq!(script.calls(), ["+a", "+a", "+a"]);
}

#[test]
fn silence_timeouts() {
    let second = Duration::from_secs(1);
    let mut script = Script::new();
    script.ask();
    assert_eq!(script.silence(), 30 * second, "no head");
    assert_eq!(script.calls(), ["failed: no data for 30 s"]);
    script.wait();
    assert_eq!(script.ask(), WATCH_LIST, "an API that is slow may know such lists");
    script.head(200);
    script.body(&event("ADDED", "a", 3));
    script.pass(29 * second);
    script.body(&event("ADDED", "b", 7));
    assert_eq!(script.silence(), 30 * second, "the list does not end");
    script.wait();
    assert_eq!(script.ask(), "limit=100", "an API that goes on as any watch does not");
    script.head(200);
    script.body(&page(&["a"], "10", ""));
    script.end();
    script.ask();
    script.head(200);
    script.calls();
    // A plain watch may have many events.
    let mut lively = Script::new();
    lively.ask();
    lively.head(200);
    for version in 0..119 {
        lively.pass(second);
        lively.body(&event("ADDED", "a", version));
    }
    assert_eq!(lively.silence(), second);
    lively.wait();
    assert_eq!(lively.ask(), "limit=100");
    assert_eq!(script.silence(), 150 * second, "a watch without bookmarks");
    assert!(script.calls().is_empty(), "which is no loss yet");
    assert_eq!(script.ask(), watch_from("10"));
    script.head(200);
    // A watch with data ends as well: another server may be available by now.
    let began = script.now;
    while script.reflector.deadline(script.asked) > script.now + 60 * second {
        script.pass(60 * second);
        script.body(&event("BOOKMARK", "", 10));
    }
    script.silence();
    assert_eq!(script.now - began, 610 * second);
    assert_eq!(script.ask(), watch_from("10"));
}

#[test]
fn falls_back_to_json() {
    let mut script = Script::new();
    let accepts = |script: &mut Script| match script.reflector.next(script.now) {
        Next::Send(ask) => ask.accept,
        Next::Wait(_) => panic!("waits"),
    };
    assert_eq!(
        accepts(&mut script),
        "application/vnd.kubernetes.protobuf;stream=watch,application/json;stream=watch"
    );
    script.head(406);
    script.end();
    assert_eq!(accepts(&mut script), "application/json");
}

#[test]
fn restarts_endless_lists() {
    // A page and an error arrive byte by byte.
    for (status, bound) in [(200, 120), (500, 30)] {
        let mut script = Script::without_watch_lists();
        script.ask();
        script.head(status);
        let began = script.now;
        while script.reflector.deadline(script.asked) > script.now + Duration::from_secs(1) {
            script.pass(Duration::from_secs(1));
            script.body(" ");
        }
        script.calls();
        script.silence();
        assert_eq!(script.now - began, Duration::from_secs(bound));
        assert_eq!(script.calls(), [format!("failed: reply incomplete after {bound} s")]);
    }
    // Too many pages.
    let mut script = Script::without_watch_lists();
    for _ in 0..=MAX_PAGES {
        script.ask();
        script.head(200);
        script.body(&page(&[], "10", "t"));
        script.end();
    }
    assert_eq!(script.calls().pop().unwrap(), "failed: invalid reply: the list does not end");
    script.wait();
    assert_eq!(script.ask(), "limit=100");
    // A version that is not valid in a path is refused.
    let long = "1".repeat(MAX_VERSION_BYTES + 1);
    for version in [&*long, "1 2", "\u{e9}"] {
        let mut script = Script::new();
        script.follow();
        script.body(&event("MODIFIED", "a", 77).replace("\"77\"", &format!("\"{version}\"")));
        assert_eq!(script.calls(), ["failed: invalid reply: invalid resource version"]);
        script.wait();
        assert_eq!(script.ask(), WATCH_LIST);
    }
    let mut script = Script::without_watch_lists();
    script.ask();
    script.head(200);
    script.body(&page(&[], "10", &"t".repeat(MAX_TOKEN_BYTES + 1)));
    script.end();
    assert_eq!(script.calls().pop().unwrap(), "failed: invalid reply: the list does not end");
}

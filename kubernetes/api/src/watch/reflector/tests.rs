mod waits;

use super::*;
use crate::decode::Unreadable;
use crate::objects::{Object, ObjectKey};
use crate::settings::Fault;

/// Tells the sink's calls, one a line.
#[derive(Default)]
struct Told(Vec<String>);

impl Sink for Told {
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
    fn following(&mut self, _: Kind) {
        self.0.push("following".into());
    }
    fn lost(&mut self, _: Kind, why: &Lost) {
        self.0.push(format!("lost: {why}"));
    }
    fn unreadable(&mut self, _: Kind, what: &Unreadable) {
        self.0.push(what.to_string());
    }
}

/// A follower of namespaces, its sink, and a clock that the test moves.
struct Script {
    follower: Follower,
    told: Told,
    now: Instant,
    asked: Instant,
}

impl Script {
    fn new() -> Self {
        #[allow(clippy::disallowed_methods, reason = "some moment to begin with")]
        let now = Instant::now();
        let follower = Follower::new(Kind::Namespace, Arc::new(Wants::default()), || 0.5);
        Self { follower, told: Told::default(), now, asked: now }
    }

    /// The API knows of no list by a watch: it is asked for pages next.
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

    /// The parameters of what is asked now.
    fn ask(&mut self) -> String {
        self.asked = self.now;
        match self.follower.next(self.now) {
            Next::Ask(ask) => ask.path.split_once('?').unwrap().1.to_owned(),
            Next::Wait(until) => panic!("waits {:?}", until - self.now),
        }
    }

    /// How long it waits, and passes that time.
    fn wait(&mut self) -> Duration {
        match self.follower.next(self.now) {
            Next::Ask(ask) => panic!("asks {ask:?}"),
            Next::Wait(until) => {
                let wait = until - self.now;
                self.now = until;
                wait
            }
        }
    }

    fn head(&mut self, status: u16) {
        self.follower.head(self.now, status, "application/json", None, &mut self.told).unwrap();
    }

    fn body(&mut self, text: &str) {
        if let Err(why) = self.follower.body(self.now, text.as_bytes(), &mut self.told) {
            self.follower.failed(self.now, &why, &mut self.told);
        }
    }

    fn end(&mut self) {
        if let Err(why) = self.follower.end(self.now, &mut self.told) {
            self.follower.failed(self.now, &why, &mut self.told);
        }
    }

    /// Nothing comes until its patience ends; how long that took.
    fn silence(&mut self) -> Duration {
        let heard = self.now;
        self.now = self.follower.deadline(self.asked);
        if let Some(why) = self.follower.silent(self.now, self.asked) {
            self.follower.failed(self.now, &why, &mut self.told);
        }
        self.now - heard
    }

    fn told(&mut self) -> Vec<String> {
        std::mem::take(&mut self.told.0)
    }

    /// Listed by a watch up to version 10, and followed.
    fn follow(&mut self) {
        assert_eq!(self.ask(), WATCH_LIST);
        self.head(200);
        self.body(&(event("ADDED", "a", 3) + &event("ADDED", "b", 7) + &listed(10)));
        assert_eq!(self.told(), ["begin", "+a", "+b", "complete", "following"]);
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
fn a_watch_that_begins_with_a_list_goes_on_from_where_it_came_to() {
    let mut script = Script::new();
    script.follow();
    script.body(&(event("MODIFIED", "a", 11) + &event("DELETED", "b", 12)));
    script.body(&event("BOOKMARK", "", 40));
    assert_eq!(script.told(), ["+a", "-b"]);
    script.pass(Duration::from_secs(300));
    script.end();
    assert_eq!(script.ask(), watch_from("40"));
    script.head(200);
    assert_eq!(script.told(), ["following"]);
    // Ends in the midst of an event: what was whole counts.
    script.body(&(event("ADDED", "c", 41) + "{\"type\":"));
    script.pass(Duration::from_secs(60));
    script.end();
    assert_eq!(script.told(), ["+c", "lost: the reply makes no sense: the end in the midst of an object"]);
    assert_eq!(script.wait(), 200 * MS);
    assert_eq!(script.ask(), watch_from("41"));
}

#[test]
fn pages_are_asked_for_where_lists_come_as_no_watch() {
    let mut script = Script::new();
    assert_eq!(script.ask(), WATCH_LIST);
    script.head(422);
    script.body(&failure(422, "FieldValueForbidden"));
    script.end();
    assert_eq!(script.told(), ["lost: 422 from the API: no"]);
    assert_eq!(script.ask(), "limit=100", "at once");
    script.head(200);
    script.body(&page(&["a", "b"], "10", "t/1=="));
    assert!(script.told() == ["begin"], "a page of JSON is read when it is whole");
    script.end();
    assert_eq!(script.ask(), "limit=100&continue=t%2F1%3D%3D");
    script.head(200);
    script.body(&page(&["c"], "10", "t2")[..20]);
    // It breaks off, and is asked for again: what came before is not.
    script.follower.failed(script.now, &Lost::Silent(MS), &mut script.told);
    script.wait();
    assert_eq!(script.ask(), "limit=100&continue=t%2F1%3D%3D");
    script.head(200);
    script.body(&page(&["c"], "10", ""));
    script.end();
    assert_eq!(script.told(), ["+a", "+b", "lost: nothing came for 0 s", "+c", "complete"]);
    assert_eq!(script.ask(), watch_from("10"));

    // The token is too old: the list begins anew, in pages as before.
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
fn what_the_api_has_forgotten_and_what_goes_backwards_is_listed_anew() {
    let gone = "{\"type\":\"ERROR\",\"object\":{\"kind\":\"Status\",\"code\":410,\"reason\":\"Expired\",\"message\":\"too old\\nby far\"}}\n";
    let ahead = format!("{{\"type\":\"ERROR\",\"object\":{}}}\n", failure(504, "ResourceVersionTooLarge"));
    for (said, why) in [
        (gone, "lost: the API has forgotten what was heard last: too old by far"),
        (&*ahead, "lost: the API has forgotten what was heard last: no"),
        (&*event("MODIFIED", "a", 9), "lost: version 9 after 10"),
    ] {
        let mut script = Script::new();
        script.follow();
        script.body(said);
        assert_eq!(script.told(), [why]);
        assert_eq!(script.wait(), 200 * MS);
        assert_eq!(script.ask(), WATCH_LIST);
        script.head(200);
        script.body(&(event("ADDED", "a", 9) + &listed(9)));
        assert_eq!(script.told(), ["begin", "+a", "complete", "following"]);
    }
    // Versions that are no numbers are believed, and equal ones are.
    let mut script = Script::new();
    script.follow();
    script.body(&(event("MODIFIED", "a", 10) + &event("MODIFIED", "a", 10).replace("\"10\"", "\"x1\"")));
    script.body(&event("MODIFIED", "a", 1));
    assert_eq!(script.told(), ["+a", "+a", "+a"]);
}

#[test]
fn silence_has_its_bounds() {
    let second = Duration::from_secs(1);
    let mut script = Script::new();
    script.ask();
    assert_eq!(script.silence(), 30 * second, "no head");
    assert_eq!(script.told(), ["lost: nothing came for 30 s"]);
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
    script.told();
    // A watch that knows of no list may be a lively one.
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
    assert!(script.told().is_empty(), "which is no loss yet");
    assert_eq!(script.ask(), watch_from("10"));
    script.head(200);
    // One that talks for ever is ended, too: another server may be there by now.
    let began = script.now;
    while script.follower.deadline(script.asked) > script.now + 60 * second {
        script.pass(60 * second);
        script.body(&event("BOOKMARK", "", 10));
    }
    script.silence();
    assert_eq!(script.now - began, 610 * second);
    assert_eq!(script.ask(), watch_from("10"));
}

#[test]
fn an_api_without_protobuf_is_asked_for_json() {
    let mut script = Script::new();
    let accepts = |script: &mut Script| match script.follower.next(script.now) {
        Next::Ask(ask) => ask.accept,
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
fn lists_that_do_not_end_and_versions_that_are_none_are_begun_anew() {
    // A page comes, octet by octet, and a refusal.
    for (status, bound) in [(200, 120), (500, 30)] {
        let mut script = Script::without_watch_lists();
        script.ask();
        script.head(status);
        let began = script.now;
        while script.follower.deadline(script.asked) > script.now + Duration::from_secs(1) {
            script.pass(Duration::from_secs(1));
            script.body(" ");
        }
        script.told();
        script.silence();
        assert_eq!(script.now - began, Duration::from_secs(bound));
        assert_eq!(script.told(), [format!("lost: a reply is not whole after {bound} s")]);
    }
    // Page after page.
    let mut script = Script::without_watch_lists();
    for _ in 0..=MOST_PAGES {
        script.ask();
        script.head(200);
        script.body(&page(&[], "10", "t"));
        script.end();
    }
    assert_eq!(script.told().pop().unwrap(), "lost: the reply makes no sense: a list without an end");
    script.wait();
    assert_eq!(script.ask(), "limit=100");
    // What cannot be sent back in a path is not kept.
    let long = "1".repeat(MOST_VERSION + 1);
    for version in [&*long, "1 2", "\u{e9}"] {
        let mut script = Script::new();
        script.follow();
        script.body(&event("MODIFIED", "a", 77).replace("\"77\"", &format!("\"{version}\"")));
        assert_eq!(script.told(), ["lost: the reply makes no sense: no resource version"]);
        script.wait();
        assert_eq!(script.ask(), WATCH_LIST);
    }
    let mut script = Script::without_watch_lists();
    script.ask();
    script.head(200);
    script.body(&page(&[], "10", &"t".repeat(MOST_TOKEN + 1)));
    script.end();
    assert_eq!(script.told().pop().unwrap(), "lost: the reply makes no sense: a list without an end");
}

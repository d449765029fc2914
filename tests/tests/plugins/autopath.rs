//! `autopath` with a resolv.conf: tries the names of a client's search list.

use std::fs;
use std::thread::scope;
use std::time::Duration;

use tests::{
    Action, Ask, Asked, Dns, Metrics, Options, Says, Server, Upstream, ask, assert_contains, fresh_ip,
};
use tests::{port, tempdir};

use super::SOA;

/// `four.example` and `two.labels` have an IPv4 address, `alias.lan` is an alias, `broken.lan`
/// fails; no other name exists.
fn upstream(asked: &Asked) -> Action {
    Action::Reply(match (asked.name.to_ascii_lowercase().as_str(), asked.rtype) {
        ("four.example." | "two.labels.", 1) => Says::answer(&format!("{} 300 IN A 192.0.2.4", asked.name)),
        ("four.example." | "two.labels.", _) => Says::nodata(SOA),
        ("alias.lan.", _) => {
            Says::answer(&format!("{0} 300 IN CNAME to.example.\nto.example. 60 IN A 192.0.2.6", asked.name))
        }
        ("broken.lan.", _) => Says::rcode(2),
        _ => Says::nxdomain(SOA),
    })
}

/// A server whose clients have the search list `corp.lan`, `lan`, `example`.
struct Searching {
    dns: Dns,
    upstream: Upstream,
    _directory: tempfile::TempDir,
}

impl Searching {
    fn start(properties: &str, directives: &str) -> Self {
        let directory = tempdir();
        let file = directory.path().join("resolv.conf");
        fs::write(&file, "nameserver 10.96.0.10\nsearch corp.lan lan example\noptions ndots:5\n")
            .expect("the directory is ours");
        let upstream = Upstream::start(fresh_ip(), upstream);
        let dns = Dns::start(&format!(
            "autopath {} {{\n{properties}\n}}\n{directives}\nhosts {{\n192.0.2.1 here.corp.lan\n192.0.2.2 there.lan\nfallthrough\n}}\ncache 30\nforward . {}",
            file.display(),
            upstream.word()
        ));
        Self { dns, upstream, _directory: directory }
    }

    /// Sends a query; returns its result and the names that the upstream received for it.
    fn answer(&self, ask: &Ask) -> (String, Vec<String>) {
        let before = self.upstream.asked().len();
        let reply = ask.of(self.dns.at);
        let asked = self.upstream.asked().into_iter().skip(before).map(|asked| asked.name).collect();
        let rows: Vec<String> = reply.answers.iter().map(|rr| format!("{} {}", rr.name, rr.data)).collect();
        (format!("{} {}", reply.status(), rows.join(", ")), asked)
    }
}

/// One query is answered by the first name that exists.
#[test]
fn first_existing_name_answers() {
    let searching = Searching::start("", "");
    for (name, rtype, expected, asked) in [
        ("here.corp.lan", "A", "NOERROR here.corp.lan. 192.0.2.1", &[][..]),
        // A candidate found in `hosts` is not forwarded.
        (
            "there.corp.lan",
            "A",
            "NOERROR there.corp.lan. there.lan., there.lan. 192.0.2.2",
            &["there.corp.lan."],
        ),
        (
            "Four.Corp.LAN",
            "A",
            "NOERROR Four.Corp.LAN. Four.example., Four.example. 192.0.2.4",
            &["four.corp.lan.", "four.lan.", "four.example."],
        ),
        // From the cache.
        ("four.corp.lan", "A", "NOERROR four.corp.lan. four.example., four.example. 192.0.2.4", &[]),
        // The other type finds the same candidate.
        ("four.corp.lan", "AAAA", "NOERROR ", &["four.corp.lan.", "four.lan.", "four.example."]),
        (
            "two.labels.corp.lan",
            "A",
            "NOERROR two.labels.corp.lan. two.labels., two.labels. 192.0.2.4",
            &["two.labels.corp.lan.", "two.labels.lan.", "two.labels.example.", "two.labels."],
        ),
        (
            "alias.corp.lan",
            "A",
            "NOERROR alias.corp.lan. alias.lan., alias.lan. to.example., to.example. 192.0.2.6",
            &["alias.corp.lan.", "alias.lan."],
        ),
        (
            "nowhere.corp.lan",
            "A",
            "NXDOMAIN ",
            &["nowhere.corp.lan.", "nowhere.lan.", "nowhere.example.", "nowhere."],
        ),
        // A failure ends the search: a later candidate might be another host.
        ("broken.corp.lan", "A", "SERVFAIL ", &["broken.corp.lan.", "broken.lan."]),
        // Names without anything before a search domain, and names of a later one, are not
        // completed.
        ("corp.lan", "A", "NOERROR ", &["corp.lan."]),
        ("four.lan", "TXT", "NXDOMAIN ", &["four.lan."]),
    ] {
        let asked: Vec<String> = asked.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(searching.answer(&Ask::new(name, rtype)), (expected.to_owned(), asked), "{name} {rtype}");
    }
    // The question is unchanged, also over TCP.
    let reply = Ask::new("Two.labels.corp.lan", "A").tcp().of(searching.dns.at);
    assert_eq!(reply.question.as_ref().map(|question| question.name.as_str()), Some("Two.labels.corp.lan."));
    assert_eq!(reply.answers.len(), 2);
}

/// A name that exists nowhere may be answered as without data; short names may be left alone.
#[test]
fn nonexistent_names_and_short_names() {
    let searching = Searching::start("ndots 1\nresponse noerror", "");
    let reply = ask(searching.dns.at, "no.where.corp.lan", "A");
    assert_eq!((reply.status(), reply.answers.len(), reply.authorities.len()), ("NOERROR", 0, 1));
    let (answer, asked) = searching.answer(&Ask::new("four.corp.lan", "A"));
    assert_eq!((answer.as_str(), asked), ("NXDOMAIN ", vec!["four.corp.lan.".to_owned()]));
    let (answer, _) = searching.answer(&Ask::new("two.labels.corp.lan", "A"));
    assert_contains!(answer, "192.0.2.4");
}

#[test]
fn acl_sees_each_tried_name() {
    let searching = Searching::start("", "acl example {\nblock\n}");
    let (answer, asked) = searching.answer(&Ask::new("four.corp.lan", "A"));
    assert_eq!((answer.as_str(), asked.len()), ("REFUSED ", 2), "{asked:?}");
    let searching = Searching::start("", "acl lan {\nfilter type AAAA\n}\nacl example {\ndrop\n}");
    assert_eq!(searching.answer(&Ask::new("four.corp.lan", "AAAA")), ("NOERROR ".to_owned(), vec![]));
    let silent = Ask::new("four.corp.lan", "A").timeout(Duration::from_millis(300)).try_of(searching.dns.at);
    assert!(silent.is_err(), "{silent:?}");
    assert_eq!(searching.upstream.asked().len(), 2, "what is dropped is asked for nowhere");
}

/// The rewritten name is completed, and the reply has the client's name.
#[test]
fn rewrite_with_autopath() {
    let searching = Searching::start("", "rewrite name suffix .old.test .corp.lan answer auto");
    let (answer, asked) = searching.answer(&Ask::new("two.labels.old.test", "A"));
    assert_eq!(answer, "NOERROR two.labels.old.test. two.labels., two.labels. 192.0.2.4");
    assert_eq!(asked.len(), 4);
}

/// Completed answers are counted, and failures are logged once.
#[test]
fn completed_answers_are_counted() {
    let ip = fresh_ip();
    let searching = Searching::start("", &format!("errors\nprometheus {ip}:9153"));
    for name in
        ["here.corp.lan", "four.corp.lan", "four.corp.lan", "nowhere.corp.lan", "four.lan", "corp.lan"]
    {
        searching.answer(&Ask::new(name, "A"));
    }
    let metrics = Metrics::after_queries((ip, 9153).into(), 6);
    assert_eq!(metrics.count("coredns_autopath_success_total", &[]), 3.0);
    assert_eq!(metrics.label_names("coredns_autopath_success_total"), ["server"]);
    let dead = tempdir();
    let file = dead.path().join("resolv.conf");
    fs::write(&file, "search corp.lan").unwrap();
    let dns = Dns::start(&format!("errors\nautopath {}\nforward . 127.0.0.1:1", file.display()));
    let reply = Ask::new("x.corp.lan", "A").edns(1232).of(dns.at);
    assert_eq!((reply.status(), reply.extended_error().map(|(code, _)| code)), ("SERVFAIL", Some(23)));
    dns.server.wait_for_log("plugin/errors: 2 x.corp.lan. A: ", Duration::from_secs(5));
    assert_eq!(dns.server.log_text().matches("plugin/errors").count(), 1, "{}", dns.server.log_text());
}

#[test]
fn concurrent_names_are_queried_once() {
    let ip = fresh_ip();
    // The kernel distributes the clients over the sockets of four workers.
    let searching = Searching::start("", &format!("multisocket 4\nprometheus {ip}:9153"));
    searching.upstream.answer_by(|asked| upstream(asked).after(Duration::from_millis(500)));
    scope(|scope| {
        for _ in 0..20 {
            let at = searching.dns.at;
            scope.spawn(move || {
                assert_eq!(ask(at, "four.corp.lan", "A").short(), ["192.0.2.4", "four.example."]);
            });
        }
    });
    let asked: Vec<String> = searching.upstream.asked().into_iter().map(|asked| asked.name).collect();
    // After 300 ms without a reply the query is sent again, in case the datagram was lost.
    let hedges = Metrics::of((ip, 9153).into()).count("localdns_forward_hedges_total", &[]);
    assert_eq!(asked.len() as f64 - hedges, 3.0, "{hedges} hedges: {asked:?}");
    for name in ["four.corp.lan.", "four.lan.", "four.example."] {
        assert!(asked.iter().any(|asked| asked == name), "{name}: {asked:?}");
    }
}

/// A list longer than other names may be is tried to its end.
#[test]
fn long_search_list_is_tried_whole() {
    let directory = tempdir();
    let file = directory.path().join("resolv.conf");
    let domains: String = (0..32).map(|n| format!(" d{n}.lan")).collect();
    fs::write(&file, format!("search{domains}\n")).unwrap();
    let upstream = Upstream::start(fresh_ip(), |asked| match asked.name.as_str() {
        "web.d31.lan." => Action::answer("web.d31.lan. 60 IN A 192.0.2.31"),
        _ => Action::Reply(Says::nxdomain(SOA)),
    });
    let dns = Dns::start(&format!("autopath {}\nforward . {}", file.display(), upstream.word()));
    assert_eq!(ask(dns.at, "web.d0.lan", "A").short(), ["192.0.2.31", "web.d31.lan."]);
    assert_eq!(upstream.asked().len(), 32);
}

/// An error at its place; a reload keeps the running configuration.
#[test]
fn invalid_search_list_is_refused() {
    let directory = tempdir();
    let file = directory.path().join("resolv.conf");
    let ip = fresh_ip();
    let corefile = format!(
        ". {{\n    bind {ip}\n    autopath {}\n    hosts {{\n        192.0.2.3 web.lan\n    }}\n}}\n",
        file.display()
    );
    let output = Server::expect_failure(&corefile, Options::default());
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_contains!(stderr, ":3:14: plugin/autopath: cannot read");
    fs::write(&file, "nameserver 192.0.2.53\n").unwrap();
    let output = Server::expect_failure(&corefile, Options::default());
    assert_contains!(
        String::from_utf8_lossy(&output.stderr).into_owned(),
        ":3:14: plugin/autopath: no search list in"
    );
    fs::write(&file, "search lan\n").unwrap();
    let server = Server::start(&corefile);
    let at = (ip, port()).into();
    assert_eq!(ask(at, "web.lan", "A").short(), ["192.0.2.3"]);
    fs::write(&file, "search a..b\n").unwrap();
    server.signal("USR1");
    server.wait_for_log("is no domain: a label is empty", Duration::from_secs(10));
    assert_eq!(ask(at, "web.lan", "A").short(), ["192.0.2.3"]);
}

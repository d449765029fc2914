//! The lines of `errors`: equal to CoreDNS's for the same queries, except those in
//! docs/differences.md.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::time::Duration;

use tests::{Action, Ask, Server, Upstream, eventually, fresh_ip, port};

use crate::coredns::CoreDns;

/// Directives of the root zone, a sequence of queries, and the lines of both servers.
type Row = (&'static str, &'static [(&'static str, &'static str)], Expected);

enum Expected {
    /// The lines that both servers log.
    Same(&'static [&'static str]),
    /// CoreDNS's lines, localdns's lines, and the words of docs/differences.md that describe the
    /// difference.
    Otherwise(&'static [&'static str], &'static [&'static str], &'static str),
}

use Expected::{Otherwise, Same};

const TWICE: &[(&str, &str)] = &[("a.test", "A"), ("a.test", "A")];
const ONCE: &[(&str, &str)] = &[("a.test", "A")];
const REFUSED: &str = "2 a.test. A: read udp LOCAL->REFUSING: read: connection refused";
const TIMEOUT: &str = "2 a.test. A: read udp LOCAL->SILENT: i/o timeout";

const ROWS: &[Row] = &[
    ("forward . REFUSING", TWICE, Same(&[REFUSED, REFUSED])),
    ("cache\nforward . REFUSING", TWICE, Same(&[REFUSED])),
    ("cache {\nservfail 0\n}\nforward . REFUSING", TWICE, Same(&[REFUSED, REFUSED])),
    ("cache {\nserve_stale\n}\nforward . REFUSING", TWICE, Same(&[REFUSED])),
    (
        "cache\nforward . REFUSING {\nforce_tcp\n}",
        TWICE,
        Same(&["2 a.test. A: dial tcp REFUSING: connect: connection refused"]),
    ),
    ("cache\nforward . SILENT", TWICE, Same(&[TIMEOUT])),
    ("cache\nforward . FAILING", TWICE, Same(&[])),
    ("hosts {\n192.0.2.1 b.test\n}", &[("a.test", "A"), ("b.test", "AAAA")], Same(&[])),
    (
        "hosts {\n192.0.2.1 b.test\nfallthrough\n}",
        ONCE,
        Same(&["2 a.test. A: plugin/hosts: no next plugin found"]),
    ),
    ("template IN A {\nrcode SERVFAIL\n}", ONCE, Same(&[])),
    ("template IN A {\nrcode NXDOMAIN\n}", ONCE, Same(&[])),
    (
        "template IN A {\nmatch ^b\nanswer \"{{ .Name }} 60 IN A 192.0.2.1\"\n}",
        &[("a.test", "A"), ("a.test", "AAAA")],
        Same(&["2 a.test. AAAA: plugin/template: no next plugin found"]),
    ),
    (
        "template IN A {\nanswer \"{{ .Name }} 60 IN A nonsense\"\n}",
        ONCE,
        Otherwise(
            &["2 a.test. A: dns: bad A A: \"nonsense\" at line: 1:24"],
            &[
                "2 a.test. A: plugin/template: \"a.test. 60 IN A nonsense\" is not a record: \"nonsense\" in the data of A is not an IPv4 address",
            ],
            "the reason why a template made no record has its own wording",
        ),
    ),
    (
        "template IN A a.test {\nanswer \"{{ .Name }} 60 IN CNAME c.test.\"\n}\ncache\nforward . REFUSING",
        TWICE,
        Same(&["2 c.test. A: read udp LOCAL->REFUSING: read: connection refused"]),
    ),
    (
        "rewrite name exact a.test b.test answer auto\nforward . REFUSING",
        ONCE,
        Otherwise(
            &["0 b.test. A: read udp LOCAL->REFUSING: read: connection refused"],
            &[REFUSED],
            "and the rcode 0 where a rule acts on answers",
        ),
    ),
    (
        "rewrite continue type AAAA A\nforward . REFUSING",
        &[("a.test", "AAAA")],
        Otherwise(
            &[REFUSED],
            &["2 a.test. AAAA: read udp LOCAL->REFUSING: read: connection refused"],
            "its `errors` the rewritten name and type",
        ),
    ),
    ("", ONCE, Same(&["2 a.test. A: plugin/errors: no next plugin found"])),
    ("forward other REFUSING", ONCE, Same(&["2 a.test. A: plugin/forward: no next plugin found"])),
    (
        "forward . REFUSING {\nexcept test\n}",
        ONCE,
        Same(&["2 a.test. A: plugin/forward: no next plugin found"]),
    ),
    (
        "cache",
        TWICE,
        Otherwise(
            &["2 a.test. A: plugin/cache: no next plugin found"],
            &[
                "2 a.test. A: plugin/cache: no next plugin found",
                "2 a.test. A: plugin/cache: no next plugin found",
            ],
            "where no plugin answers, each query is logged",
        ),
    ),
];

/// Runs every row with both servers, and returns the rows with other lines.
pub(crate) fn differences(program: &Path) -> Vec<String> {
    let upstreams = [
        ("REFUSING", Upstream::start(fresh_ip(), |_| Action::Silent)),
        ("SILENT", Upstream::start(fresh_ip(), |_| Action::Silent)),
        ("FAILING", Upstream::start(fresh_ip(), |_| Action::rcode(2))),
    ];
    let words = upstreams.each_ref().map(|(name, upstream)| (*name, upstream.word()));
    let [(_, mut refusing), rest @ ..] = upstreams;
    refusing.stop();
    let mut found = Vec::new();
    for (directives, asks, expected) in ROWS {
        let text = |ip: Ipv4Addr| {
            let mut text = directives.to_string();
            words.iter().for_each(|(name, word)| text = text.replace(name, word));
            let port = port();
            format!(".:{port} {{\nbind {ip}\nerrors\n{text}\n}}\nend:{port} {{\nbind {ip}\nerrors\n}}\n")
        };
        let (theirs, ours) = match expected {
            Same(lines) => (lines, lines),
            Otherwise(theirs, ours, _) => (theirs, ours),
        };
        let ip = fresh_ip();
        let coredns = CoreDns::start(program, &text(ip));
        let lines = ask(ip, asks, theirs.len(), &words, || coredns.log());
        if lines != *theirs {
            found.push(format!("[{directives}] CoreDNS logs {lines:#?}"));
        }
        let ip = fresh_ip();
        let server = Server::start(&text(ip));
        let lines = ask(ip, asks, ours.len(), &words, || server.log_text());
        if lines != *ours {
            found.push(format!("[{directives}] localdns logs {lines:#?}"));
        }
    }
    drop(rest);
    found
}

/// The words of docs/differences.md that rows quote.
pub(crate) fn listed() -> impl Iterator<Item = &'static str> {
    ROWS.iter().filter_map(|(.., expected)| match expected {
        Same(_) => None,
        Otherwise(.., stands) => Some(*stands),
    })
}

/// Sends the queries and returns at least `count` lines of `errors`, with names in place of this
/// run's addresses.
fn ask(
    ip: Ipv4Addr,
    asks: &[(&str, &str)],
    count: usize,
    words: &[(&str, String)],
    log: impl Fn() -> String,
) -> Vec<String> {
    // One socket, so that a single worker answers and logs in order.
    let socket = UdpSocket::bind("127.0.0.1:0").expect("an ephemeral port is free");
    socket.connect((ip, port())).expect("loopback is there");
    socket.set_read_timeout(Some(Duration::from_secs(15))).expect("a timeout above zero");
    for (name, rtype) in asks.iter().chain(&[("end", "A")]) {
        socket.send(&Ask::new(name, rtype).bytes()).expect("it is sent");
        socket.recv(&mut [0; 512]).expect("a reply");
    }
    let end = "2 end. A: plugin/errors: no next plugin found";
    // CoreDNS logs some errors after it has sent the reply, possibly after the error of the last
    // query.
    let errors = |log: &str| {
        let lines = log.lines().filter_map(|line| line.strip_prefix("[ERROR] plugin/errors: "));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let lines =
        eventually(&format!("{count} errors of {asks:?} and the last one"), Duration::from_secs(10), || {
            let lines = errors(&log());
            (lines.len() > count && lines.iter().any(|line| line == end)).then_some(lines)
        });
    lines
        .into_iter()
        .filter(|line| line != end)
        .map(|mut line| {
            words.iter().for_each(|(name, word)| line = line.replace(word, name));
            let local = line.split_once(" udp ").and_then(|(_, rest)| rest.split_once("->"));
            match local.map(|(local, _)| local.to_owned()) {
                Some(local) if local.parse::<SocketAddr>().is_ok() => line.replace(&local, "LOCAL"),
                _ => line,
            }
        })
        .collect()
}

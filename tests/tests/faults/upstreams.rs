//! One good upstream among two or three faulty ones, under every policy: the client gets the good
//! one's answer in time.

use std::net::SocketAddr;
use std::path::Path;
use std::thread::scope;
use std::time::Duration;

use tests::{
    Action, Ask, Asked, Authority, Dns, Says, Server, Upstream, ask, fresh_ip, port, steadily, tempdir,
};

use super::good;

/// The fault of the bad upstreams.
#[derive(Clone, Copy)]
struct Fault {
    name: &'static str,
    does: fn(&Asked) -> Action,
    /// Properties of `forward`.
    with: &'static str,
    /// The delay that one bad upstream may cause: none, or the 300 ms before the query is sent to
    /// the next.
    costs: Duration,
}

const NOTHING: Duration = Duration::ZERO;
const HEDGE: Duration = Duration::from_millis(300);

const FAULTS: &[Fault] = &[
    Fault { name: "silent", does: |_| Action::Silent, with: "", costs: HEDGE },
    Fault { name: "slow", does: |asked| forged(asked).after(Duration::from_secs(9)), with: "", costs: HEDGE },
    Fault { name: "servfail", does: |_| Action::rcode(2), with: "failover SERVFAIL", costs: NOTHING },
    Fault { name: "refused", does: |_| Action::rcode(5), with: "failover REFUSED", costs: NOTHING },
    Fault { name: "wrong id", does: |asked| Action::WrongId(false_answer(asked)), with: "", costs: HEDGE },
    Fault {
        name: "wrong question",
        does: |asked| Action::WrongQuestion("other.example".to_owned(), false_answer(asked)),
        with: "",
        costs: HEDGE,
    },
    Fault {
        name: "forged burst",
        does: |asked| Action::Forge(200, false_answer(asked), Box::new(Action::Silent)),
        with: "",
        costs: HEDGE,
    },
    Fault {
        name: "half-closed",
        does: |asked| Action::Half(false_answer(asked)),
        with: "force_tcp",
        costs: NOTHING,
    },
    Fault { name: "reset", does: |_| Action::Reset, with: "force_tcp", costs: NOTHING },
    Fault { name: "closed", does: |_| Action::Close, with: "force_tcp", costs: NOTHING },
    Fault { name: "silent over tcp", does: |_| Action::Silent, with: "force_tcp", costs: HEDGE },
];

fn false_answer(asked: &Asked) -> Says {
    Says::answer(&format!("{} 300 IN A 203.0.113.66", asked.name))
}

fn forged(asked: &Asked) -> Action {
    Action::Reply(false_answer(asked))
}

/// One good upstream of two or three is enough under every policy.
#[test]
fn one_good_upstream_is_enough() {
    for faults in FAULTS.chunks(3) {
        scope(|scope| {
            for fault in faults {
                for bad in [1, 2] {
                    scope.spawn(move || one_good(fault, bad));
                }
            }
        });
    }
}

fn one_good(fault: &Fault, bad: usize) {
    let bad: Vec<Upstream> = (0..bad).map(|_| Upstream::start(fresh_ip(), fault.does)).collect();
    let right = Upstream::start(fresh_ip(), good);
    let words: Vec<String> = bad.iter().chain([&right]).map(Upstream::word).collect();
    under_every_policy(fault.name, &words, fault.with, fault.costs * bad.len() as u32);
}

/// Queries eight names under each policy.
fn under_every_policy(what: &str, words: &[String], with: &str, costs: Duration) {
    steadily(|| {
        let at = SocketAddr::from((fresh_ip(), port()));
        let policies = ["sequential", "round_robin", "random"];
        let blocks = policies.map(|policy| {
            let (address, port, to) = (at.ip(), at.port(), words.join(" "));
            let forward = format!("forward . {to} {{\npolicy {policy}\n{with}\n}}");
            format!("{policy}.example:{port} {{\nbind {address}\n{forward}\n}}\n")
        });
        let _server = Server::start(&blocks.concat());
        for policy in policies {
            for n in 0..8 {
                let reply = ask(at, &format!("n{n}.{policy}.example"), "A");
                let case = format!("{what}, {} upstreams, {policy}, query {n}", words.len());
                assert_eq!(reply.short(), ["192.0.2.1"], "{case}");
                // A second for a busy machine: far below `read_timeout` and the deadline.
                assert!(reply.elapsed < costs + Duration::from_secs(1), "{case}: {:?}", reply.elapsed);
            }
        }
    });
}

/// Upstreams that refuse are passed over under every policy.
#[test]
fn refusing_upstreams_are_passed_over() {
    for bad in [1, 2] {
        let mut gone: Vec<Upstream> = (0..bad).map(|_| Upstream::start(fresh_ip(), good)).collect();
        gone.iter_mut().for_each(Upstream::stop);
        let right = Upstream::start(fresh_ip(), good);
        let words: Vec<String> = gone.iter().chain([&right]).map(Upstream::word).collect();
        under_every_policy("refusing", &words, "", NOTHING);
        under_every_policy("refusing over tcp", &words, "force_tcp", NOTHING);
    }
}

/// The client gets the truncated reply of an upstream without TCP.
#[test]
fn truncating_upstream_without_tcp() {
    steadily(|| {
        let upstream = Upstream::start(fresh_ip(), |asked| match asked.transport {
            tests::Transport::Udp => Action::Truncate(false_answer(asked)),
            _ => Action::Silent,
        });
        let dns = Dns::start(&format!("forward . {}", upstream.word()));
        let reply = Ask::new("x.example", "A").timeout(Duration::from_secs(6)).of(dns.at);
        assert!(reply.flag_names().contains("tc"), "{}", reply.flag_names());
        assert!(reply.elapsed < Duration::from_secs(3), "{:?}", reply.elapsed);
    });
}

#[test]
fn expired_tls_certificate_gets_no_query() {
    steadily(|| {
        let directory = tempdir();
        let authority = Authority::new();
        let ca = authority.write(directory.path());
        let [old, new] = [0, 1].map(|_| SocketAddr::from((fresh_ip(), 8853)));
        let expired = Upstream::tls_expired(old, &authority, "dns.example", good);
        let alone = tls_forward(&[old], &ca);
        let dns = Dns::start(&alone);
        let reply = Ask::new("x.example", "A").timeout(Duration::from_secs(7)).of(dns.at);
        assert_eq!(reply.status(), "SERVFAIL");
        assert!(reply.elapsed < Duration::from_secs(5), "{:?}", reply.elapsed);
        let _right = Upstream::tls(new, &authority, "dns.example", good);
        let dns = Dns::start(&tls_forward(&[old, new], &ca));
        let reply = dns.ask("x.example");
        assert_eq!(reply.short(), ["192.0.2.1"]);
        assert_eq!(expired.total(), 0, "no query reaches a server without a valid certificate");
    });
}

fn tls_forward(to: &[SocketAddr], ca: &Path) -> String {
    let words: Vec<String> = to.iter().map(|to| format!("tls://{to}")).collect();
    let (words, ca) = (words.join(" "), ca.display());
    format!("forward . {words} {{\ntls {ca}\ntls_servername dns.example\npolicy sequential\n}}")
}

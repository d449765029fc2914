//! Corefile.example: the recommended configuration of a node, served unmodified.

use std::fs;

use tests::{Action, Options, Says, Server, Upstream, ask, eventually, fresh_ip, tempdir};

use super::{PATIENCE, read};

/// The example Corefile answers from hosts, queries its upstream and counts both kinds of answers.
#[test]
fn example_corefile_is_served() {
    let upstream =
        Upstream::start(fresh_ip(), |_| Action::Reply(Says::answer("a.example. 60 IN A 192.0.2.1")));
    let ip = fresh_ip();
    let hosts = tempdir();
    let path = hosts.path().join("hosts");
    fs::write(&path, "192.0.2.99 canary.localdns.test\n").unwrap();
    let corefile = read("Corefile.example").replace("/etc/localdns/hosts", &path.to_string_lossy());
    let options = Options::default()
        .env("LOCALDNS_ADDRESS", &ip.to_string())
        .env("LOCALDNS_PORT", "5399")
        .env("LOCALDNS_UPSTREAM", &upstream.word());
    let server = Server::start_with(&corefile, options);
    assert_eq!(ask((ip, 5399).into(), "canary.localdns.test", "A").short(), ["192.0.2.99"]);
    for _ in 0..2 {
        assert_eq!(ask((ip, 5399).into(), "a.example", "A").short(), ["192.0.2.1"]);
    }
    assert_eq!(upstream.count("a.example."), 1);
    // Queries are counted after their replies are sent.
    eventually("all to be counted", PATIENCE, || {
        let metrics = server.metrics((ip, 9153).into());
        let counted = [
            "localdns_hosts_hits_total",
            "localdns_hosts_misses_total",
            "coredns_cache_hits_total",
            "coredns_cache_misses_total",
        ]
        .map(|name| metrics.value(name, &[]));
        (counted == [Some(1.0), Some(2.0), Some(1.0), Some(1.0)]).then_some(())
    });
}

#[test]
fn example_suits_a_node() {
    let text = read("Corefile.example");
    assert!(text.lines().count() < 50, "{} lines", text.lines().count());
    let words = |depth: usize| -> Vec<&str> {
        let directive = |line: &&str| {
            line.len() - line.trim_start().len() == depth && !line.trim_start().starts_with(['#', '}'])
        };
        text.lines().filter(directive).filter_map(|line| line.split_whitespace().next()).collect()
    };
    let directives =
        ["bind", "errors", "hosts", "cache", "forward", "prometheus", "ready", "health", "loop", "reload"];
    assert_eq!(words(4), directives);
    assert_eq!(words(8), ["ttl", "fallthrough", "serve_stale", "policy", "max_concurrent"]);
}

//! Unknown upstreams beside known ones: files without name servers, names that do not resolve.

use std::time::Duration;

use tests::{
    Action, Dns, Options, Server, Upstream, assert_contains, eventually, fresh_ip, port, publish, skip,
    tempdir,
};

use super::good;
use super::own_addresses::check;

/// A list without servers is passed over, and its later content is used.
#[test]
fn list_without_servers_is_passed_over() {
    if port() != 53 {
        return skip(
            "list_without_servers_is_passed_over",
            "nameservers listen on port 53, which needs root",
        );
    }
    let [listed, other] = [Upstream::start(fresh_ip(), good), Upstream::start(fresh_ip(), good)];
    let directory = tempdir();
    let file = |name: &str| directory.path().join(name);
    publish(&file("override.conf"), "# names of servers go here\n");
    publish(&file("resolv.conf"), "search example\n");
    let [first, second] = ["override.conf", "resolv.conf"].map(|name| file(name).display().to_string());
    let body = format!("forward . {first} {second} {} {{\npolicy sequential\n}}", other.word());
    let dns = Dns::start(&body);
    for file in [&first, &second] {
        let line = dns.server.wait_for_log(&format!("no nameserver in {file}"), Duration::from_secs(5));
        assert_contains!(line, "[WARNING] ");
        assert_contains!(line, "Corefile:3:");
    }
    assert_eq!(dns.ask("x.example").short(), ["192.0.2.1"]);
    let checked = check(&dns.server.path("Corefile"));
    assert!(checked.status.success(), "{checked:?}");
    assert_contains!(String::from_utf8_lossy(&checked.stderr), format!("no nameserver in {first}"));
    publish(&file("override.conf"), format!("nameserver {}\n", listed.address().ip()));
    dns.server.wait_for_log("upstreams changed: ", Duration::from_secs(10));
    dns.ask("y.example");
    assert_eq!((listed.count("y.example."), other.count("y.example.")), (1, 0));
}

/// An upstream name that does not resolve yet is passed over: the network may start after the
/// server.
#[test]
fn unresolved_name_is_passed_over() {
    let resolver = Upstream::start(fresh_ip(), |_| Action::rcode(2));
    let [named, other] = [Upstream::start(fresh_ip(), good), Upstream::start(fresh_ip(), good)];
    let name = format!("dns.provider.example:{}", port());
    let body = |others: &str| {
        format!("forward . {name} {others} {{\npolicy sequential\nresolver {}\n}}", resolver.word())
    };
    // Each stanza with the name logs a warning with the cause.
    let dns = Dns::start(&format!(
        "{}\nforward example.org {name} {} {{\nresolver {}\n}}",
        body(&other.word()),
        other.word(),
        resolver.word()
    ));
    for line in
        dns.server.wait_for_lines("cannot resolve dns.provider.example.: ", 2, Duration::from_secs(10))
    {
        assert_contains!(line, "[WARNING] ");
        assert_contains!(line, "SERVFAIL");
    }
    assert_eq!(dns.ask("x.example").short(), ["192.0.2.1"]);
    assert!(check(&dns.server.path("Corefile")).status.success());
    let address = named.address().ip();
    resolver.answer_by(move |asked| match asked.rtype {
        1 => Action::answer(&format!("dns.provider.example. 60 IN A {address}")),
        _ => Action::rcode(0),
    });
    dns.server.wait_for_lines("upstreams changed: ", 2, Duration::from_secs(20));
    eventually("the named upstream to be asked", Duration::from_secs(5), || {
        dns.ask("y.example");
        (named.count("y.example.") > 0).then_some(())
    });
    // Without another upstream the start fails.
    resolver.answer_by(|_| Action::rcode(2));
    let alone = Dns::corefile((fresh_ip(), port()).into(), &body(""));
    let output = Server::expect_failure(&alone, Options::default());
    assert_contains!(String::from_utf8_lossy(&output.stderr), "cannot resolve dns.provider.example.: ");
}

/// A missing list of upstreams is an error.
#[test]
fn missing_list_is_an_error() {
    let corefile = Dns::corefile((fresh_ip(), port()).into(), "forward . /nonexistent/resolv.conf 192.0.2.1");
    let output = Server::expect_failure(&corefile, Options::default());
    assert_contains!(String::from_utf8_lossy(&output.stderr), "cannot read /nonexistent/resolv.conf");
}

//! `log` and `errors`: the lines, and which of them.

use std::net::{Ipv4Addr, SocketAddr};
use std::thread::scope;
use std::time::Duration;

use tests::{Ask, Dns, Options, Server, Upstream, ask, assert_contains, fresh_ip, port};

use super::good;

#[test]
fn log_lines_are_those_of_coredns() {
    let dns = Dns::start("log\nhosts {\n192.0.2.1 x.example\n}");
    let reply = Ask::new("X.Example", "A").id(4711).edns(4096).dnssec_ok().of(dns.at);
    let line = dns.server.wait_for_log("x.example. udp", Duration::from_secs(2));
    let (client, rest) = line.strip_prefix("[INFO] ").expect("a level").split_once(" - ").expect("a dash");
    assert_eq!(client.parse::<SocketAddr>().unwrap().ip(), Ipv4Addr::LOCALHOST);
    let (shown, duration) = rest.rsplit_once(' ').unwrap();
    // 27 octets of header and question and 11 of OPT came in.
    let size = reply.bytes.len();
    assert_eq!(shown, format!("4711 \"A IN x.example. udp 38 true 4096\" NOERROR qr,aa,rd {size}"));
    let seconds: f64 = duration.strip_suffix('s').expect("seconds").parse().unwrap();
    assert!((0.0..1.0).contains(&seconds), "{duration}");
    Ask::new("x.example", "AAAA").tcp().of(dns.at);
    assert_contains!(
        dns.server.wait_for_log("x.example. tcp", Duration::from_secs(2)),
        "\"AAAA IN x.example. tcp 27 false 65535\" NOERROR"
    );
}

#[test]
fn log_classes_names_and_formats_choose_what_is_shown() {
    let hosts = "hosts {\n192.0.2.1 x.example x.other\n}";
    let dns = Dns::start(&format!("log . {{\nclass error denial\n}}\n{hosts}"));
    ask(dns.at, "x.example", "A");
    ask(dns.at, "none.example", "A");
    dns.server.wait_for_log("none.example.", Duration::from_secs(2));
    assert!(!dns.server.log_text().contains("x.example."));

    let dns = Dns::start(&format!("log example \"{{name}}|{{type}}|{{rcode}}|{{proto}}\"\n{hosts}"));
    ask(dns.at, "x.other", "A");
    ask(dns.at, "x.example", "A");
    assert_eq!(
        dns.server.wait_for_log("x.example.", Duration::from_secs(2)),
        "[INFO] x.example.|A|NOERROR|udp"
    );
    assert!(!dns.server.log_text().contains("x.other."));
}

#[test]
fn json_logs_are_objects_with_the_fields_of_coredns() {
    let ip = fresh_ip();
    let text = format!(".:{} {{\nbind {ip}\nlog\nhosts {{\n192.0.2.1 x.example\n}}\n}}", port());
    let server = Server::start_with(&text, Options::default().args(["-log-format", "json"]));
    Ask::new("x.example", "A").id(7).of((ip, port()).into());
    let line = server.wait_for_log("\"qname\":\"x.example.\"", Duration::from_secs(2));
    for field in [
        "\"time\":\"",
        "\"level\":\"INFO\"",
        "\"msg\":\"",
        "\"client_ip\":\"",
        "\"client_port\":",
        "\"qtype\":\"A\"",
        "\"qclass\":\"IN\"",
        "\"protocol\":\"udp\"",
        "\"id\":7",
        "\"opcode\":",
        "\"request_size\":27",
        "\"dnssec_ok\":false",
        "\"bufsize\":512",
        "\"rcode\":\"NOERROR\"",
        "\"response_size\":",
        "\"duration_seconds\":",
    ] {
        assert_contains!(line, field);
    }
    for line in server.log_lines() {
        assert!(line.starts_with('{') && line.ends_with('}'), "not an object: {line}");
    }
}

#[test]
fn errors_consolidates_what_repeats() {
    let mut upstream = Upstream::start(fresh_ip(), good);
    upstream.stop();
    let dns = Dns::start(&format!("errors {{\nconsolidate 1s \".*\"\n}}\nforward . {}", upstream.word()));
    scope(|scope| {
        for n in 0..10 {
            let at = dns.at;
            scope.spawn(move || ask(at, &format!("n{n}.example"), "A"));
        }
    });
    let line = dns.server.wait_for_log("errors like '.*' occurred in last 1s", Duration::from_secs(5));
    assert_contains!(line, "10 errors like");
}

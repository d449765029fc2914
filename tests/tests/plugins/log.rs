//! `log` and `errors`: the format of lines, and the choice of logged queries.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::thread::scope;
use std::time::Duration;

use tests::{Action, Ask, Dns, Message, Options, Server, Upstream, ask, assert_contains, fresh_ip, port};

use super::good;

#[test]
fn log_lines_are_those_of_coredns() {
    let dns = Dns::start("log\nhosts {\n192.0.2.1 x.example\n}");
    let reply = Ask::new("X.Example", "A").id(4711).edns(4096).dnssec_ok().of(dns.at);
    let line = dns.server.wait_for_log("x.example. udp", Duration::from_secs(2));
    let (client, rest) = line.strip_prefix("[INFO] ").expect("a level").split_once(" - ").expect("a dash");
    assert_eq!(client.parse::<SocketAddr>().unwrap().ip(), Ipv4Addr::LOCALHOST);
    let (shown, duration) = rest.rsplit_once(' ').unwrap();
    // The query has 27 bytes of header and question and 11 of OPT.
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
fn logged_size_respects_bufsize() {
    let dns = Dns::start("bufsize 600\nlog . \"{name} takes {>bufsize}\"\nhosts {\n192.0.2.1 x.example\n}");
    for (size, logged) in [(4096, 600), (600, 600), (512, 512)] {
        Ask::new(&format!("of-{size}.x.example"), "A").edns(size).of(dns.at);
        let line = dns.server.wait_for_log(&format!("of-{size}.x.example."), Duration::from_secs(2));
        assert_eq!(line, format!("[INFO] of-{size}.x.example. takes {logged}"));
    }
}

#[test]
fn an_upstream_that_refuses_is_named() {
    let to = format!("{}:1", fresh_ip());
    let log = "metadata\nlog . \"{name} {rcode} by {/forward/upstream} {not/a/label}\"";
    let dns = Dns::start(&format!("{log}\nforward . {to}"));
    for (name, query) in
        [("udp.example", Ask::new("udp.example", "A")), ("tcp.example", Ask::new("tcp.example", "A").tcp())]
    {
        assert_eq!(query.of(dns.at).status(), "SERVFAIL");
        let line = dns.server.wait_for_log(&format!("{name}. "), Duration::from_secs(5));
        assert_eq!(line, format!("[INFO] {name}. SERVFAIL by {to} {{not/a/label}}"));
    }
}

/// Classes, names and formats select what is logged.
#[test]
fn log_classes_names_and_formats() {
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
fn json_logs_have_coredns_fields() {
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

/// The Extended DNS Errors of a reply (RFC 8914).
fn explained(reply: &Message) -> Vec<u16> {
    let options = reply.edns.iter().flat_map(|edns| &edns.options);
    options.filter(|(code, _)| *code == 15).map(|(_, data)| u16::from_be_bytes([data[0], data[1]])).collect()
}

/// Every client gets the explanation, with and without cache.
#[test]
fn failed_upstream_is_logged_once() {
    let mut refusing = Upstream::start(fresh_ip(), good);
    refusing.stop();
    let silent = Upstream::start(fresh_ip(), |_| Action::Silent);
    let failing = Upstream::start(fresh_ip(), |_| Action::rcode(2));
    let (refused, timeout) = ("read: connection refused", "i/o timeout");
    for (before, upstream, causes, ede) in [
        ("", &refusing, &[refused, refused][..], &[23][..]),
        ("cache 30", &refusing, &[refused], &[23]),
        ("cache {\nservfail 0\n}", &refusing, &[refused, refused], &[23]),
        ("cache {\nserve_stale\n}", &refusing, &[refused], &[23]),
        ("cache", &silent, &[timeout], &[22]),
        // The upstream answered, so this is no error of the server.
        ("cache", &failing, &[], &[]),
    ] {
        let ip = fresh_ip();
        let end = format!("end:{} {{\nbind {ip}\nerrors\n}}", port());
        let dns = Dns::start_on(
            ip,
            &format!("errors\n{before}\nforward . {}\n}}\n{}", upstream.word(), end.trim_end_matches('}')),
        );
        let server = upstream.word();
        // One socket, so that a single worker answers and logs in order.
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(dns.at).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let send = |name: &str| {
            let mut reply = [0; 512];
            socket.send(&Ask::new(name, "A").edns(1232).bytes()).unwrap();
            let size = socket.recv(&mut reply).unwrap();
            Message::decode(&reply[..size]).unwrap()
        };
        for _ in ["miss", "cached, where there is a cache"] {
            let reply = send("X.example");
            assert_eq!((reply.rcode(), explained(&reply)), (2, ede.to_vec()), "{before} {server}");
        }
        send("end");
        dns.server.wait_for_log(" end. A: ", Duration::from_secs(10));
        let lines = dns.server.log_lines();
        let lines: Vec<_> = lines.iter().filter(|line| line.contains(" x.example. ")).collect();
        assert_eq!(lines.len(), causes.len(), "{before} {server}: {lines:?}");
        for (line, cause) in lines.iter().zip(causes) {
            let (start, end) = line.split_once(&format!("->{server}: ")).expect("the server's name");
            let local = start.strip_prefix("[ERROR] plugin/errors: 2 x.example. A: read udp ");
            let local = local.unwrap_or_else(|| panic!("{line}"));
            assert!(local.parse::<SocketAddr>().is_ok() && end == *cause, "{line}");
        }
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

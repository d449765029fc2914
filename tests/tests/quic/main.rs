//! DNS over QUIC as seen by clients (RFC 9250): answers, errors, bounds, changes and hostile clients.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::Result;
use tempfile::TempDir;
use tests::{
    Action, Ask, Authority, Connection, Doq, DoqEnd, Message, Metrics, Says, Server, Upstream,
    assert_contains, eventually, framed, fresh_ip, now, port, tempdir,
};

const PATIENCE: Duration = Duration::from_secs(8);
const HOST: &str = "dns.example";
const CLIENT: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// A server with endpoints for DNS over QUIC and over TLS at one port.
struct Server853 {
    at: SocketAddr,
    authority: Authority,
    files: TempDir,
    server: Server,
}

impl Server853 {
    /// `@IP@` in the directives is the server's address.
    fn start(directives: &str) -> Self {
        let (ip, authority, files) = (fresh_ip(), Authority::new(), tempdir());
        authority.certify(files.path(), HOST);
        let server = Server::start(&corefile(ip, &files, directives));
        Self { at: (ip, port()).into(), authority, files, server }
    }

    fn open(&self) -> Result<Doq> {
        self.open_from(CLIENT)
    }

    fn open_from(&self, from: Ipv4Addr) -> Result<Doq> {
        Doq::open(from, self.at, &self.authority.client(HOST, None), PATIENCE)
    }
}

fn corefile(ip: Ipv4Addr, files: &TempDir, directives: &str) -> String {
    let (port, files, directives) =
        (port(), files.path().display(), directives.replace("@IP@", &ip.to_string()));
    let keys = format!("quic://.:{port} tls://.:{port}");
    format!("{keys} {{\nbind {ip}\nroot {files}\ntls cert.pem key.pem\n{directives}\n}}\n")
}

/// A query with ID 0.
fn query(name: &str, rtype: &str) -> Vec<u8> {
    let mut octets = Ask::new(name, rtype).bytes();
    octets[..2].fill(0);
    octets
}

fn rcode(client: &Doq, name: &str) -> Result<u16> {
    Ok(Message::decode(&client.ask(&query(name, "A"))?)?.rcode())
}

/// A server that forwards to an upstream which delays names that begin with `slow`.
fn with_slow_upstream(delay: Duration, directives: &str) -> (Server853, Upstream) {
    let ip = fresh_ip();
    let upstream = Upstream::start(ip, move |asked| {
        let reply = Action::Reply(Says::answer(&format!("{} 60 IN A 192.0.2.1", asked.name)));
        match asked.name.starts_with("slow") {
            true => Action::Delay(delay, Box::new(reply)),
            false => reply,
        }
    });
    (Server853::start(&format!("forward . {ip}:{}\n{directives}", port())), upstream)
}

/// Queries over QUIC and TLS at one port are answered, counted and logged as in CoreDNS.
#[test]
fn quic_and_tls_share_a_port() {
    let server = Server853::start("whoami\nlog\nprometheus @IP@:9153");
    let client = server.open().unwrap();
    assert_eq!(rcode(&client, "a.example").unwrap(), 0);
    let mut tls = Connection::open_tls(server.at, &server.authority.client(HOST, None), PATIENCE).unwrap();
    tls.send(&Ask::new("b.example", "A").bytes()).unwrap();
    assert_eq!(tls.message().unwrap().rcode(), 0);
    server.server.wait_for_log("A IN a.example. udp ", PATIENCE);
    assert_contains!(server.server.log_text(), format!("quic://.:{} on {}", port(), server.at.ip()));
    client.run_for(Duration::from_millis(50));
    let metrics = Metrics::after_queries((server.at.ip(), 9153).into(), 2);
    let name = format!("quic://{}", server.at);
    assert_eq!(metrics.count("coredns_dns_requests_total", &[("server", &name), ("proto", "udp")]), 1.0);
    assert_eq!(
        metrics.count("coredns_dns_quic_responses_total", &[("server", &name), ("status", "0x0")]),
        1.0
    );
}

/// Answers leave as they are ready, and are not cut.
#[test]
fn slow_name_delays_no_other() {
    let (server, _upstream) = with_slow_upstream(Duration::from_millis(1_500), "");
    let client = server.open().unwrap();
    let slow = client.send(&framed(&query("slow.example", "A")), true).unwrap();
    let started = now();
    assert_eq!(rcode(&client, "fast.example").unwrap(), 0);
    assert!(started.elapsed() < Duration::from_millis(1_200), "it waited for the other");
    assert!(matches!(client.end_of(slow).unwrap(), DoqEnd::Octets(reply) if reply.len() > 20));
    let records: String = (0..200).map(|n| format!("192.0.2.{n} many.example\n")).collect();
    let server = Server853::start(&format!("hosts {{\n{records}}}"));
    let reply = server.open().unwrap().ask(&query("many.example", "A")).unwrap();
    assert_eq!(Message::decode(&reply).unwrap().answers.len(), 200);
}

/// Errors of RFC 9250, section 4.3, each with what the server does.
#[test]
fn protocol_errors_end_the_connection() {
    let server =
        Server853::start("acl {\ndrop type MX\n}\nwhoami\ntimeouts {\nread 1s\n}\nprometheus @IP@:9153");
    let good = query("a.example", "A");
    let changed = |at: usize, octet: u8| {
        let mut message = good.clone();
        message[at] = octet;
        framed(&message)
    };
    let mut keepalive = good.clone();
    keepalive[11] = 1;
    keepalive.extend_from_slice(&[0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 4, 0, 11, 0, 0]);
    let (protocol, internal) = (DoqEnd::Closed(2), DoqEnd::Reset(1));
    for (what, octets, ends, expected) in [
        ("an ID", changed(1, 1), true, Some(&protocol)),
        ("a response", changed(2, 0x81), true, Some(&protocol)),
        ("keepalive", framed(&keepalive), true, Some(&protocol)),
        ("no message", Vec::new(), true, Some(&protocol)),
        ("half a length", vec![0], true, Some(&protocol)),
        ("length 0", vec![0, 0], true, Some(&protocol)),
        ("half a message", framed(&good)[..10].to_vec(), true, Some(&protocol)),
        ("no end of the message", framed(&good)[..10].to_vec(), false, Some(&internal)),
        ("a dropped query", framed(&query("a.example", "MX")), true, Some(&internal)),
        ("an unknown opcode", changed(2, 0x78), true, None),
        ("a good query", framed(&good), true, None),
    ] {
        let client = server.open().unwrap();
        let stream = client.send(&octets, ends).unwrap();
        let end = client.end_of(stream).unwrap_or_else(|error| panic!("{what}: {error:#}"));
        match expected {
            Some(expected) => assert_eq!(&end, expected, "{what}"),
            None => assert!(matches!(end, DoqEnd::Octets(_)), "{what}: {end:?}"),
        }
        let survives = expected != Some(&protocol);
        assert_eq!(client.is_open() && rcode(&client, "a.example").is_ok(), survives, "{what}");
    }
    // The reply precedes the error of what comes behind the query.
    for octets in [[framed(&good), vec![0]].concat(), framed(&good).repeat(2)] {
        let client = server.open().unwrap();
        client.send(&octets, true).unwrap();
        assert_eq!(client.closed().unwrap(), 2);
    }
    let client = server.open().unwrap();
    let unended = client.send(&framed(&good), false).unwrap();
    assert_eq!(client.closed().unwrap(), 2, "the stream had no end");
    drop(unended);
    let metrics = Metrics::of((server.at.ip(), 9153).into());
    let name = format!("quic://{}", server.at);
    for (status, least) in [("0x0", 5.0), ("0x1", 2.0), ("0x2", 10.0)] {
        let count =
            metrics.count("coredns_dns_quic_responses_total", &[("server", &name), ("status", status)]);
        assert!(count >= least, "{status}: {count}");
    }
}

/// Clients that stall delay no other, and floods of handshakes are answered by Retry.
#[test]
fn stalled_clients_delay_no_other() {
    let server = Server853::start("whoami\ntimeouts {\nread 2s\nidle 2s\n}");
    let stalled: Vec<Doq> = (0..20).map(|_| server.open().unwrap()).collect();
    for client in &stalled {
        for _ in 0..100 {
            client.send(&[1, 0, 0, 0], false).unwrap();
        }
        client.run_for(Duration::from_millis(1));
    }
    // First packets of clients that never answer: an Initial with a broken payload, and another version.
    let spoofed = UdpSocket::bind((CLIENT, 0)).unwrap();
    let mut initial = [0; 1200];
    initial[..6].copy_from_slice(&[0xc3, 0, 0, 0, 1, 8]);
    initial[14] = 8;
    for n in 0..2_000_u16 {
        initial[6..8].copy_from_slice(&n.to_be_bytes());
        initial[4] = 1 - (n % 2) as u8;
        spoofed.send_to(&initial, server.at).unwrap();
    }
    let mut slowest = Duration::ZERO;
    for last in 1..6 {
        let started = now();
        let client = server.open_from([127, 88, 0, last].into()).unwrap();
        assert_eq!(rcode(&client, "a.example").unwrap(), 0);
        slowest = slowest.max(started.elapsed());
    }
    assert!(slowest < Duration::from_millis(1_500), "another client waited {slowest:?}");
    assert!(!server.server.log_text().contains("panicked"), "{}", server.server.log_text());
}

/// Connections, streams and queries have the bounds of `quic`.
#[test]
fn bounds_of_the_corefile_count() {
    let bounds =
        "quic {\nmax_connections 3\nmax_streams 2\nworker_pool_size 2\n}\ntimeouts {\nread 20s\nidle 20s\n}";
    let (server, _upstream) = with_slow_upstream(Duration::from_millis(600), bounds);
    let clients: Vec<Doq> = (0..3).map(|_| server.open().unwrap()).collect();
    for client in &clients {
        assert_eq!(rcode(client, "fast.example").unwrap(), 0);
    }
    // Four queries on a connection with two streams: two wait, and all are answered.
    let streams: Vec<_> = (0..2)
        .map(|n| clients[1].send(&framed(&query(&format!("slow{n}.example"), "A")), true).unwrap())
        .collect();
    assert_eq!(streams.last().unwrap().number(), 2, "after the first query");
    let started = now();
    assert_eq!(rcode(&clients[1], "fast.example").unwrap(), 0);
    assert!(started.elapsed() > Duration::from_millis(200), "a third stream was open");
    for stream in streams {
        assert!(matches!(clients[1].end_of(stream).unwrap(), DoqEnd::Octets(_)));
    }
    let other = server.open_from([127, 88, 0, 9].into()).unwrap();
    assert_eq!(rcode(&other, "fast.example").unwrap(), 0);
    // It reads late: the server may have forgotten the connection by then (stateless reset).
    let end = clients[0].closed();
    let is_closed = end.as_ref().map_or_else(|error| error.to_string().contains("reset"), |code| *code == 4);
    assert!(is_closed, "the one that waited longest: {end:?}");
}

/// New connections use a changed certificate; a reload removes the endpoint.
#[test]
fn certificate_and_corefile_change() {
    let server = Server853::start("whoami\ntimeouts {\nidle 1m\n}");
    let old = server.open().unwrap();
    assert_eq!(rcode(&old, "a.example").unwrap(), 0);
    let stranger = Authority::new();
    stranger.certify(server.files.path(), HOST);
    server.server.wait_for_log("plugin/tls: Successfully reloaded", Duration::from_secs(20));
    assert!(server.open().is_err(), "another authority has signed it");
    let new = Doq::open(CLIENT, server.at, &stranger.client(HOST, None), PATIENCE).unwrap();
    for client in [&old, &new] {
        assert_eq!(rcode(client, "a.example").unwrap(), 0);
    }
    let ip = server.at.ip();
    server.server.write_corefile(&format!(".:{} {{\nbind {ip}\nwhoami\n}}\n", port()));
    server.server.signal("USR1");
    server.server.wait_for_lines("Reloading complete", 1, PATIENCE);
    assert!(rcode(&new, "a.example").is_err(), "no block serves it");
    // The old connection ends as well, and its socket with it.
    assert_eq!(old.closed().unwrap(), 0);
    eventually("plain DNS at the port", PATIENCE, || {
        let query = Ask::new("a.example", "A").timeout(Duration::from_millis(200));
        query.try_of(server.at).ok().filter(|reply| reply.status() == "NOERROR")
    });
}

/// A stop answers what was received, then closes with DOQ_NO_ERROR.
#[test]
fn stop_answers_queries() {
    let (mut server, upstream) = with_slow_upstream(Duration::from_millis(700), "");
    let (client, idle) = (server.open().unwrap(), server.open().unwrap());
    assert_eq!(rcode(&idle, "fast.example").unwrap(), 0);
    let slow = client.send(&framed(&query("slow.example", "A")), true).unwrap();
    client.run_for(Duration::from_millis(20));
    upstream.wait_for("slow.example.", 1, PATIENCE);
    server.server.signal("TERM");
    assert!(matches!(client.end_of(slow).unwrap(), DoqEnd::Octets(_)));
    for client in [&client, &idle] {
        // The packet with the code is sent once: if the server is gone before it leaves, a reset shows the end.
        let end = client.closed();
        let is_end = end.as_ref().map_or_else(|error| error.to_string().contains("reset"), |code| *code == 0);
        assert!(is_end, "DOQ_NO_ERROR: {end:?}");
    }
    assert!(server.server.wait(PATIENCE).success());
}

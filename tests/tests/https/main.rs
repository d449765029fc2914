//! DNS over HTTPS as seen by clients (RFC 8484): changes of certificate and Corefile, stop, bounds,
//! hostile clients. What CoreDNS answers is compared in `answers`.

mod hostile;
mod limits;
mod proxied;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::Result;
use tempfile::TempDir;
use tests::http2::{GOAWAY, Http2, PING};
use tests::{
    Action, Ask, Authority, Connection, Message, Metrics, Says, Server, TlsClient, Upstream, assert_contains,
    fresh_ip, port, tempdir,
};

const PATIENCE: Duration = Duration::from_secs(8);
const HOST: &str = "dns.example";

/// A server with one endpoint for DNS over HTTPS, and the authority of its certificate.
struct Doh {
    at: SocketAddr,
    authority: Authority,
    files: TempDir,
    server: Server,
}

impl Doh {
    /// `@IP@` in the directives is the server's address.
    fn start(directives: &str) -> Self {
        let (ip, authority, files) = (fresh_ip(), Authority::new(), tempdir());
        authority.certify(files.path(), HOST);
        let server = Server::start(&corefile(ip, &files, directives));
        Self { at: (ip, port()).into(), authority, files, server }
    }

    fn client(&self) -> TlsClient {
        h2_client(&self.authority)
    }

    fn open(&self) -> Result<Http2> {
        self.open_with(&[])
    }

    fn open_with(&self, settings: &[(u16, u32)]) -> Result<Http2> {
        Http2::begin(Connection::open_tls(self.at, &self.client(), PATIENCE)?, settings)
    }
}

fn corefile(ip: Ipv4Addr, files: &TempDir, directives: &str) -> String {
    let (port, files, directives) =
        (port(), files.path().display(), directives.replace("@IP@", &ip.to_string()));
    format!("https://.:{port} {{\nbind {ip}\nroot {files}\ntls cert.pem key.pem\n{directives}\n}}\n")
}

/// A client that offers `h2`.
fn h2_client(authority: &Authority) -> TlsClient {
    let mut client = authority.client(HOST, None);
    let mut config = (*client.config).clone();
    config.alpn_protocols = vec![b"h2".to_vec()];
    client.config = config.into();
    client
}

fn query(name: &str) -> Vec<u8> {
    Ask::new(name, "A").bytes()
}

/// Sends one query and returns the rcode.
fn rcode(client: &mut Http2, name: &str) -> Result<u16> {
    let stream = client.post(&query(name), true)?;
    answer(client, stream)
}

fn answer(client: &mut Http2, stream: u32) -> Result<u16> {
    let (body, reset) = client.end_of(stream)?;
    anyhow::ensure!(reset.is_none(), "reset: {reset:?}");
    Ok(Message::decode(&body)?.rcode())
}

/// A server that forwards to an upstream which delays the name `slow.example`.
fn with_slow_upstream(delay: Duration, directives: &str) -> (Doh, Upstream) {
    let ip = fresh_ip();
    let upstream = Upstream::start(ip, move |asked| {
        let reply = Action::Reply(Says::answer(&format!("{} 60 IN A 192.0.2.1", asked.name)));
        match asked.name.starts_with("slow") {
            true => Action::Delay(delay, Box::new(reply)),
            false => reply,
        }
    });
    (Doh::start(&format!("forward . {ip}:{}\n{directives}", port())), upstream)
}

/// Queries are logged with their transport, and the banner names the endpoint.
#[test]
fn queries_are_logged() {
    let doh = Doh::start("whoami\nlog");
    let mut client = doh.open().unwrap();
    assert_eq!(rcode(&mut client, "a.example").unwrap(), 0);
    assert_eq!(client.connection().shown().1, Some(b"h2".to_vec()));
    doh.server.wait_for_log(&format!("{} - ", client.connection().port()), PATIENCE);
    assert_contains!(doh.server.log_text(), "A IN a.example. tcp ");
    assert_contains!(doh.server.log_text(), format!("https://.:{} on {}", port(), doh.at.ip()));
}

/// Answers leave as they are ready, on one connection.
#[test]
fn slow_name_delays_no_other() {
    let (doh, _upstream) = with_slow_upstream(Duration::from_millis(1_500), "");
    let mut client = doh.open().unwrap();
    let slow = client.post(&query("slow.example"), true).unwrap();
    let fast = client.post(&query("fast.example"), true).unwrap();
    assert_eq!(answer(&mut client, fast).unwrap(), 0);
    assert_eq!(answer(&mut client, slow).unwrap(), 0, "it was not answered first");
}

/// New connections use a changed certificate, and open ones continue.
#[test]
fn certificates_change_while_serving() {
    let doh = Doh::start("whoami\ntimeouts {\nidle 1m\n}");
    let mut old = doh.open().unwrap();
    assert_eq!(rcode(&mut old, "a.example").unwrap(), 0);
    doh.authority.certify(doh.files.path(), HOST);
    doh.server.wait_for_log("plugin/tls: Successfully reloaded", Duration::from_secs(20));
    let mut new = doh.open().unwrap();
    assert_ne!(new.connection().shown().0, old.connection().shown().0);
    for client in [&mut old, &mut new] {
        assert_eq!(rcode(client, "a.example").unwrap(), 0);
    }
}

/// A reload adds and removes an endpoint; a connection to a removed one ends.
#[test]
fn reload_adds_and_removes() {
    let doh = Doh::start("whoami\nreload 2s");
    let ip = fresh_ip();
    let second = corefile(ip, &doh.files, "whoami");
    let IpAddr::V4(first) = doh.at.ip() else { panic!("{} is IPv6", doh.at) };
    let first = corefile(first, &doh.files, "whoami\nreload 2s");
    doh.server.write_corefile(&format!("{first}{second}"));
    doh.server.signal("USR1");
    doh.server.wait_for_lines("Reloading complete", 1, PATIENCE);
    let at = SocketAddr::from((ip, port()));
    let open = || Http2::begin(Connection::open_tls(at, &doh.client(), PATIENCE)?, &[]);
    let mut added = open().unwrap();
    assert_eq!(rcode(&mut added, "a.example").unwrap(), 0);
    doh.server.write_corefile(&first);
    doh.server.signal("USR1");
    doh.server.wait_for_lines("Reloading complete", 2, PATIENCE);
    assert!(rcode(&mut added, "a.example").is_err(), "no block serves it");
    assert!(added.connection().is_closed_by_peer(), "a client that goes on must connect anew");
    assert!(open().is_err());
    assert_eq!(rcode(&mut doh.open().unwrap(), "a.example").unwrap(), 0);
}

/// A stop answers what was received, then sends GOAWAY.
#[test]
fn stop_answers_requests() {
    let (mut doh, upstream) = with_slow_upstream(Duration::from_millis(700), "");
    let mut client = doh.open().unwrap();
    let mut idle = doh.open().unwrap();
    assert_eq!(rcode(&mut idle, "fast.example").unwrap(), 0);
    let slow = client.post(&query("slow.example"), true).unwrap();
    upstream.wait_for("slow.example.", 1, PATIENCE);
    doh.server.signal("TERM");
    assert_eq!(answer(&mut client, slow).unwrap(), 0);
    for client in [&mut client, &mut idle] {
        assert_eq!(client.wait_for(GOAWAY).unwrap().payload[4..8], [0; 4], "NO_ERROR");
        assert!(client.connection().is_closed_by_peer());
    }
    assert!(doh.server.wait(PATIENCE).success());
}

/// A first request over HTTP/1.1 that is received just after the stop is answered.
#[test]
fn stop_awaits_first_request() {
    let mut doh = Doh::start("whoami");
    let mut client = doh.client();
    let mut config = (*client.config).clone();
    config.alpn_protocols.clear();
    client.config = config.into();
    let mut connection = Connection::open_tls(doh.at, &client, PATIENCE).unwrap();
    // The idle connection ends as the server stops.
    let mut idle = doh.open().unwrap();
    assert_eq!(rcode(&mut idle, "a.example").unwrap(), 0);
    doh.server.signal("TERM");
    idle.wait_for(GOAWAY).unwrap();
    let body = query("a.example");
    let head = format!("POST /dns-query HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len());
    connection.send_octets(&[head.as_bytes(), &body].concat()).unwrap();
    assert_eq!(connection.receive_octets(15).unwrap(), b"HTTP/1.1 200 OK");
    assert!(doh.server.wait(PATIENCE).success());
}

/// A client without requests is sent GOAWAY after `idle`, whatever else it sends.
#[test]
fn idle_client_is_sent_goaway() {
    let doh = Doh::start("whoami\ntimeouts {\nidle 1s\n}\nprometheus @IP@:9153");
    let mut client = doh.open().unwrap();
    assert_eq!(rcode(&mut client, "a.example").unwrap(), 0);
    // PING is no request.
    client.send(&tests::http2::Frame::new(PING, 0, 0, &[0; 8])).unwrap();
    client.wait_for(GOAWAY).unwrap();
    assert!(client.connection().is_closed_by_peer());
    let metrics = Metrics::of((doh.at.ip(), 9153).into());
    let server = format!("https://{}", doh.at);
    let labels = [("server", &server[..]), ("status", "200")];
    assert_eq!(metrics.count("coredns_dns_https_responses_total", &labels), 1.0);
}

//! Clients behind a proxy that sends the header of the PROXY protocol, as CoreDNS takes it before TLS
//! and before HTTP.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use tests::{Message, Server, assert_contains, curl, fresh_ip, port, tool};

use super::{Doh, PATIENCE, query};

/// `whoami` answers with the client's address.
const ALLOWED: &str = "whoami\nproxyproto {\nallow 127.0.0.0/8\ndefault reject\n}";

/// The header may arrive in parts, and together with the request.
#[test]
fn header_names_the_client() {
    let ip = fresh_ip();
    let server = Server::start(&format!("https://.:{} {{\nbind {ip}\n{ALLOWED}\n}}\n", port()));
    let ask = |parts: &[&[u8]]| {
        let mut stream = TcpStream::connect((ip, port())).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        for part in parts {
            stream.write_all(part).unwrap();
        }
        let body = query("a.example");
        let request = format!(
            "POST /dns-query HTTP/1.1\r\nHost: {ip}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(&[request.as_bytes(), &body].concat()).unwrap();
        let mut reply = Vec::new();
        // The server resets a connection whose header it refuses.
        let _ = stream.read_to_end(&mut reply);
        reply
    };
    for parts in [
        &[&b"PROXY TCP4 192.0.2.7 192.0.2.53 4000 443\r\n"[..]][..],
        &[b"PRO", b"XY TCP4 192.0.2.7 192.0.2.53 4000 443\r", b"\n"],
    ] {
        let reply = ask(parts);
        let body = reply.windows(4).position(|four| four == b"\r\n\r\n").expect("a response") + 4;
        let message = Message::decode(&reply[body..]).unwrap();
        assert_contains!(format!("{message:?}"), "192.0.2.7");
    }
    assert_eq!(ask(&[b"PROXY TCP4 192.0.2.7 nowhere 4000 443\r\n"]), b"", "an invalid header");
    drop(server);
}

#[test]
fn header_precedes_tls() {
    if !tool("header_precedes_tls", "curl") {
        return;
    }
    let doh = Doh::start(ALLOWED);
    for args in [&["--haproxy-protocol", "--http2"][..], &["--http2"]] {
        let response = curl("https", doh.at, "/dns-query", Some(&query("a.example")), args);
        assert_eq!(response.status, "2 200", "{args:?}");
    }
}

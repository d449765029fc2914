//! Clients that break TLS: each loses its own connection, and nothing panics.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};

use super::limits::hello;
use super::{Dot, PATIENCE, rcode};

#[test]
fn whoever_breaks_tls_loses_its_connection_and_nothing_panics() {
    let dot = Dot::start("", "", "whoami");
    let hello = hello(&dot);
    let record = |kind: u8, content: &[u8]| {
        let length = (content.len() as u16).to_be_bytes();
        [&[kind, 3, 1][..], &length, content].concat()
    };
    let mut all = vec![
        // A message of the handshake that is longer than any may be, and never whole.
        record(22, &[1, 0xff, 0xff, 0xff]),
        record(22, &[1, 0, 0xff, 0xff, 0]),
        [record(22, &[1]), record(22, &[0xff; 3]), record(22, &[0; 16_384])].concat(),
        record(22, &[]).repeat(100),
        [record(22, &[]), record(21, &[1, 0])].concat(),
        [record(22, &[]), hello.clone()].concat(),
        [record(22, &[1]), record(21, &[1, 0]), hello.clone()].concat(),
        record(20, &[1]).repeat(100),
        record(23, &[0; 100]),
        vec![22, 3, 1, 0xff, 0xff, 1],
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        hello.repeat(2),
    ];
    for at in 0..hello.len() {
        let mut other = hello.clone();
        other[at] ^= 0xff;
        all.push(other);
    }
    // All at once: some are waited for until their time is up.
    let mut streams = Vec::new();
    for octets in &all {
        let mut stream = TcpStream::connect(dot.at).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // It may be closed before all of it is sent.
        let _ = stream.write_all(octets);
        let _ = stream.shutdown(Shutdown::Write);
        streams.push(stream);
    }
    for mut stream in streams {
        let _ = stream.read_to_end(&mut Vec::new());
    }
    rcode(&mut dot.open(&dot.client()).unwrap()).unwrap();
    let log = dot.server.log_text();
    assert!(!log.contains("panicked"), "{log}");
}

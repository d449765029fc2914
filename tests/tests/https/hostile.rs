//! Clients that stall, or break HTTP/2: each loses its own connection, and delays no other client.

use std::time::Duration;

use anyhow::Result;
use tests::http2::{
    CONTINUATION, END_HEADERS, END_STREAM, Frame, GOAWAY, HEADERS, Http2, PREFACE, RST_STREAM, SETTINGS,
    post_fields, settings_frame,
};
use tests::{Connection, now};

use super::{Doh, PATIENCE, query, rcode};

/// A client: its name, and its connection once it stalls.
type Stalled = (&'static str, fn(&Doh) -> Result<Connection>);

fn plain(doh: &Doh) -> Result<Connection> {
    Connection::open(doh.at, PATIENCE)
}

fn encrypted(doh: &Doh, octets: &[u8]) -> Result<Connection> {
    let mut connection = Connection::open_tls(doh.at, &doh.client(), PATIENCE)?;
    connection.send_octets(octets)?;
    Ok(connection)
}

/// After the preface, sends these frames.
fn frames(doh: &Doh, settings: &[(u16, u32)], frames: &[Frame]) -> Result<Connection> {
    let mut octets = [PREFACE, &settings_frame(settings).octets()[..]].concat();
    frames.iter().for_each(|frame| octets.extend(frame.octets()));
    encrypted(doh, &octets)
}

fn hello(doh: &Doh) -> Vec<u8> {
    let client = doh.client();
    let mut tls = rustls::ClientConnection::new(client.config, client.name).expect("it can begin");
    let mut hello = Vec::new();
    tls.write_tls(&mut hello).expect("a vector takes all");
    hello
}

/// Requests with complete bodies, on streams 1, 3 ...
fn requests(count: u32, body: &[u8], ends: bool) -> Vec<Frame> {
    let streams = (0..count).map(|n| 2 * n + 1);
    let request = |stream| {
        let body = Frame::new(0, if ends { END_STREAM } else { 0 }, stream, body);
        [Frame::new(HEADERS, END_HEADERS, stream, &post_fields()), body]
    };
    streams.flat_map(request).collect()
}

const WINDOW: u16 = 4;

const STALLED: &[Stalled] = &[
    ("silence", plain),
    ("half a hello", |doh| {
        let hello = hello(doh);
        let mut connection = plain(doh)?;
        connection.send_octets(&hello[..hello.len() / 2])?;
        Ok(connection)
    }),
    ("no finish", |doh| {
        let mut connection = plain(doh)?;
        connection.send_octets(&hello(doh))?;
        Ok(connection)
    }),
    ("no preface", |doh| encrypted(doh, &[])),
    ("half a preface", |doh| encrypted(doh, &PREFACE[..10])),
    ("no settings", |doh| encrypted(doh, PREFACE)),
    ("half a frame", |doh| {
        let request = Frame::new(HEADERS, END_HEADERS, 1, &post_fields()).octets();
        encrypted(doh, &[PREFACE, &settings_frame(&[]).octets(), &request[..12]].concat())
    }),
    ("fields without end", |doh| frames(doh, &[], &[Frame::new(HEADERS, 0, 1, &post_fields())])),
    ("bodies without end", |doh| frames(doh, &[], &requests(100, &[0; 100], false))),
    ("no window", |doh| frames(doh, &[(WINDOW, 0)], &requests(100, &query("a.example"), true))),
    ("a window of one byte", |doh| frames(doh, &[(WINDOW, 1)], &requests(100, &query("a.example"), true))),
    ("a head without end", |doh| {
        let mut client = doh.client();
        let mut config = (*client.config).clone();
        config.alpn_protocols.clear();
        client.config = config.into();
        let mut connection = Connection::open_tls(doh.at, &client, PATIENCE)?;
        connection.send_octets(b"GET /dns-query HTTP/1.1\r\nHost: x\r\nA: ")?;
        Ok(connection)
    }),
];

/// Clients that stall are closed in time, and another client is answered meanwhile.
#[test]
fn stalled_clients_delay_no_other() {
    let doh = Doh::start("whoami\ntimeouts {\nread 1s\nwrite 1s\nidle 1s\n}");
    let mut stalled = Vec::new();
    for (what, open) in STALLED {
        for _ in 0..4 {
            stalled.push((what, open(&doh).unwrap_or_else(|error| panic!("{what}: {error:#}"))));
        }
    }
    let mut slowest = Duration::ZERO;
    for _ in 0..10 {
        let started = now();
        assert_eq!(rcode(&mut doh.open().unwrap(), "a.example").unwrap(), 0);
        slowest = slowest.max(started.elapsed());
    }
    assert!(slowest < Duration::from_millis(900), "another client waited {slowest:?}");
    for (what, connection) in &mut stalled {
        assert!(connection.is_closed_by_peer(), "{what}: still open");
    }
    assert_eq!(rcode(&mut doh.open().unwrap(), "a.example").unwrap(), 0);
}

/// Sends `frame(n)` until the server closes the connection; returns how many were sent.
fn flood(client: &mut Http2, mut frame: impl FnMut(u32) -> Vec<u8>) -> u32 {
    for n in 0..200_000 {
        if client.connection().send_octets(&frame(n)).is_err() {
            return n;
        }
    }
    200_000
}

/// Floods of frames end their connection, and need little memory.
#[test]
fn floods_end_their_connection() {
    let doh = Doh::start("whoami");
    let stream = |n: u32| 2 * n + 1;
    let reset = |n| {
        let request = Frame::new(HEADERS, END_HEADERS, stream(n), &post_fields());
        [request.octets(), Frame::new(RST_STREAM, 0, stream(n), &[0, 0, 0, 8]).octets()].concat()
    };
    let fields = |n: u32| match n {
        0 => Frame::new(HEADERS, 0, 1, &post_fields()).octets(),
        // A literal field, again and again.
        _ => Frame::new(CONTINUATION, 0, 1, &[&[0, 1, b'a', 100][..], &[b'b'; 100]].concat().repeat(100))
            .octets(),
    };
    let empty = |n: u32| match n {
        0 => Frame::new(HEADERS, 0, 1, &post_fields()).octets(),
        _ => Frame::new(CONTINUATION, 0, 1, &[]).octets(),
    };
    let settings = |_| Frame::new(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 1]).octets().repeat(100);
    let before = doh.server.rss_kb();
    for (what, frame) in [
        ("rapid reset", &reset as &dyn Fn(u32) -> Vec<u8>),
        ("fields", &fields),
        ("empty frames", &empty),
        ("settings", &settings),
    ] {
        let mut client = doh.open().unwrap();
        let sent = flood(&mut client, frame);
        assert!(sent < 200_000, "{what}: still open");
        assert_eq!(rcode(&mut doh.open().unwrap(), "a.example").unwrap(), 0, "{what}");
    }
    let more = doh.server.rss_kb().saturating_sub(before);
    assert!(more < 16 * 1024, "{more} KiB more");
    assert!(!doh.server.log_text().contains("panicked"), "{}", doh.server.log_text());
}

/// Bytes that are no HTTP/2 end their connection with GOAWAY or without a word.
#[test]
fn broken_frames_end_their_connection() {
    let doh = Doh::start("whoami");
    for frame in [
        Frame::new(0, 0, 0, b"data of no stream"),
        Frame::new(HEADERS, END_HEADERS, 2, &post_fields()),
        Frame::new(HEADERS, END_HEADERS, 1, &[0xff; 20]),
        Frame::new(SETTINGS, 0, 0, &[0; 5]),
        Frame::new(GOAWAY, 0, 1, &[0; 8]),
        Frame::new(6, 0, 0, &[0; 7]),
        Frame::new(8, 0, 0, &[0x7f, 0xff, 0xff, 0xff]),
        Frame::new(1, END_HEADERS, 1, &[0; 16_385]),
    ] {
        let mut client = doh.open().unwrap();
        client.send(&frame).unwrap();
        assert!(client.connection().is_closed_by_peer(), "{frame:?}");
    }
    assert_eq!(rcode(&mut doh.open().unwrap(), "a.example").unwrap(), 0);
    assert!(!doh.server.log_text().contains("panicked"), "{}", doh.server.log_text());
}

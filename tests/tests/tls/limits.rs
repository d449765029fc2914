//! Limits for TLS clients: the connections and buffers of TCP clients, and no more.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, TcpStream};
use std::time::{Duration, Instant};

use rustls::ClientConnection;
use tests::{Ask, Connection, Crowd, Metrics, eventually, may_open, now, skip, steadily};

use super::{Dot, PATIENCE, rcode};

/// A client's first flight.
pub(super) fn hello(dot: &Dot) -> Vec<u8> {
    let client = dot.client();
    let mut tls = ClientConnection::new(client.config, client.name).expect("it can begin");
    let mut hello = Vec::new();
    tls.write_tls(&mut hello).expect("a vector takes all");
    hello
}

fn from(last: std::ops::Range<u8>) -> Vec<IpAddr> {
    last.map(|last| IpAddr::from([127, 77, 0, last])).collect()
}

/// Half a handshake has the time limit of a message.
#[test]
fn half_handshake_times_out() {
    let dot = Dot::start("", "", "whoami\ntimeouts {\nread 1s\nidle 5s\n}");
    let hello = hello(&dot);
    let started = now();
    let mut silent = Connection::open(dot.at, PATIENCE).unwrap();
    let mut half = Connection::open(dot.at, PATIENCE).unwrap();
    half.send_octets(&hello[..hello.len() - 1]).unwrap();
    // It never finishes the handshake, although it has received the server's part.
    let mut unfinished = Connection::open(dot.at, PATIENCE).unwrap();
    unfinished.send_octets(&hello).unwrap();
    let mut unasked = dot.open(&dot.client()).unwrap();
    for (what, connection) in [
        ("silence", &mut silent),
        ("half a hello", &mut half),
        ("no finish", &mut unfinished),
        ("no query", &mut unasked),
    ] {
        assert!(connection.is_closed_by_peer(), "{what}: still open");
        assert!(started.elapsed() > Duration::from_millis(500), "{what}: closed too early");
    }
    // On a connection after the first query the timeout is `idle`, and `read` only within a record.
    let mut idle = dot.open(&dot.client()).unwrap();
    rcode(&mut idle).unwrap();
    // A connection opened now ends after `read`, when the idle one is still served.
    let mut later = Connection::open(dot.at, PATIENCE).unwrap();
    assert!(later.is_closed_by_peer(), "no hello: still open");
    rcode(&mut idle).expect("more than `read` is within `idle`");
}

#[test]
fn half_handshakes_yield_to_clients() {
    if !may_open(4_000) {
        return skip("half_handshakes_yield_to_clients", "4,000 descriptors");
    }
    steadily(|| {
        let dot = Dot::start("", "", "whoami\nprometheus @IP@:9153");
        let hello = hello(&dot);
        let mut half = Crowd::gather(dot.at, &from(1..5), 375, hello[..100].to_vec()).slowly(50);
        let mut unread = Crowd::gather(dot.at, &from(5..9), 375, hello).slowly(50);
        let mut slowest = Duration::ZERO;
        for _ in 0..20 {
            half.press(100);
            unread.press(4_096);
            let started: Instant = now();
            let mut honest = dot.open(&dot.client()).unwrap();
            assert_eq!(rcode(&mut honest).unwrap(), 0);
            slowest = slowest.max(started.elapsed());
        }
        let metrics = Metrics::of((dot.at.ip(), 9153).into());
        let evicted = ["idle", "half_sent", "unread"]
            .map(|was| metrics.count("localdns_connections_evicted_total", &[("was", was)]))
            .iter()
            .sum::<f64>();
        assert!(evicted > 0.0, "there was room for all");
        // Evicted connections close shortly after.
        eventually("as many connections as there may be", PATIENCE, || {
            (dot.server.fds() < 1_100).then_some(())
        });
        assert!(slowest < Duration::from_secs(2), "an honest client waited {slowest:?}");
    });
}

#[test]
fn unread_tls_needs_memory_like_tcp() {
    let dot = Dot::start(
        "",
        "",
        &format!(
            "timeouts {{\nwrite 1m\n}}\nprometheus @IP@:9153\nhosts {{\n{}}}",
            (0..200).map(|n| format!("192.0.2.{n} many.example\n")).collect::<String>()
        ),
    );
    let client = dot.client();
    let query = Ask::new("many.example", "A").bytes();
    let framed = [&(query.len() as u16).to_be_bytes()[..], &query].concat().repeat(1_000);
    let before = dot.server.rss_kb();
    let mut crowd: Vec<(ClientConnection, TcpStream)> = (0..100)
        .map(|_| {
            let mut socket = TcpStream::connect(dot.at).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut tls = ClientConnection::new(client.config.clone(), client.name.clone()).unwrap();
            while tls.is_handshaking() {
                tls.complete_io(&mut socket).unwrap();
            }
            (tls, socket)
        })
        .collect();
    for (tls, socket) in &mut crowd {
        tls.writer().write_all(&framed).unwrap();
        socket.set_nonblocking(true).unwrap();
        // Until the kernel accepts no more.
        while tls.wants_write() && tls.write_tls(socket).is_ok() {}
    }
    let mut honest = dot.open(&client).unwrap();
    assert_eq!(rcode(&mut honest).unwrap(), 2, "the table has no such name, and there is no upstream");
    let metrics = Metrics::of((dot.at.ip(), 9153).into());
    let held = metrics.count("localdns_stream_bytes", &[]);
    assert!(held <= f64::from(16 << 20), "{held} octets");
    let grown = dot.server.rss_kb().saturating_sub(before);
    assert!(grown < 64 << 10, "{grown} KiB of memory for 100 connections");
    // A client that finally reads receives its replies complete and in order.
    let (mut tls, mut socket) = crowd.pop().unwrap();
    socket.set_nonblocking(false).unwrap();
    let mut plain = Vec::new();
    while plain.len() < 30_000 {
        if tls.read_tls(&mut socket).unwrap_or(0) == 0 {
            break;
        }
        tls.process_new_packets().unwrap();
        let _ = tls.reader().read_to_end(&mut plain);
    }
    let length = usize::from(u16::from_be_bytes([plain[0], plain[1]]));
    assert!(plain.len() >= 30_000 && plain[2 + length..][..2] == plain[..2], "{}", plain.len());
}

//! Clients that exhaust connections, time and memory.

use std::net::{Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Result, ensure};
use socket2::{Domain, Protocol, Socket, Type};
use tests::{
    Action, Ask, Connection, Dns, Metrics, Server, Upstream, ask, eventually, free_port, fresh_ip, isolated,
    may_open, port, skip, steadily,
};

use super::good;

/// The limit in docs/limits.md.
const CONNECTIONS: usize = 1_024;

/// A datagram from port 0 gets no reply.
#[test]
fn datagram_from_port_0_is_dropped() {
    isolated(|| {
        let ip = fresh_ip();
        // One worker reads datagrams in order of arrival.
        let dns = Dns::start_on(ip, &format!("multisocket 1\nprometheus {ip}:9153\nlog\nwhoami"));
        let raw = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::UDP)).expect("root may have one");
        let send = |source: u16, name: &str| {
            let query = Ask::new(name, "A").bytes();
            let length = 8 + u16::try_from(query.len()).unwrap();
            // The checksum 0 means none (RFC 768).
            let header = [source, dns.at.port(), length, 0].map(u16::to_be_bytes).concat();
            raw.send_to(&[header, query].concat(), &SocketAddr::from((ip, 0)).into()).unwrap();
        };
        send(0, "forged.example");
        send(4_000, "honest.example");
        dns.server.wait_for_log("honest.example.", Duration::from_secs(5));
        let metrics = Metrics::after_queries((ip, 9153).into(), 1);
        assert_eq!(metrics.count("coredns_dns_requests_total", &[]), 1.0);
        // A reply to port 0 fails with an error, which would be logged.
        for text in ["forged.example", "send on"] {
            assert!(!dns.server.log_text().contains(text), "{}", dns.server.log_text());
        }
    });
}

/// If there are too many connections, the longest idle one is closed.
#[test]
fn longest_idle_connection_is_closed() {
    for (at, page) in places("longest_idle_connection_is_closed") {
        let server = crowded(at, page, "whoami");
        let mut crowd = crowd(at, CONNECTIONS);
        eventually("every connection accepted", Duration::from_secs(10), || {
            (server.fds() > CONNECTIONS).then_some(())
        });
        exchange(&mut crowd[0]).unwrap();
        let mut new = Connection::open(at, Duration::from_secs(5)).unwrap();
        exchange(&mut new).unwrap();
        let closed: Vec<usize> = (0..CONNECTIONS).filter(|&at| exchange(&mut crowd[at]).is_err()).collect();
        // The first connection was used just before. Connections made together may be accepted in
        // another order.
        assert!(matches!(closed[..], [1..100]), "{at}: {closed:?}");
        assert_eq!(counts(page), [1.0, 0.0], "{at}");
    }
}

/// If there are too many connections and none is idle, the new connection is closed at once.
#[test]
fn new_connection_is_closed_without_idle() {
    // The connections stay busy only until the upstream's timeout.
    steadily(|| {
        for (at, page) in places("new_connection_is_closed_without_idle") {
            let upstream = Upstream::start(fresh_ip(), |_| Action::Silent);
            let _server =
                crowded(at, page, &format!("forward . {} {{\nmax_concurrent 0\n}}", upstream.word()));
            let hang = Ask::new("hang.example", "A").bytes();
            let mut crowd = crowd(at, CONNECTIONS);
            for connection in &mut crowd {
                connection.send(&hang).unwrap();
            }
            eventually("a connection that is closed at once", Duration::from_secs(4), || {
                let mut new = Connection::open(at, Duration::from_millis(500)).ok()?;
                let closed = new.is_closed_by_peer();
                // The server kept the new connection and closed an older one with an unread query. Send a
                // query, so that the new connection is busy, too.
                if !closed && new.send(&hang).is_ok() {
                    crowd.push(new);
                }
                closed.then_some(())
            });
            upstream.answer_by(good);
            assert_eq!(ask(at, "other.example", "A").status(), "NOERROR", "{at}: UDP does not suffer");
            let answered = crowd.iter_mut().filter_map(|connection| connection.message().ok()).count();
            let [evicted, refused] = counts(page);
            assert!(answered + evicted as usize >= crowd.len(), "{at}: whoever keeps its place is answered");
            assert!(refused >= 1.0, "{at}");
            exchange(&mut Connection::open(at, Duration::from_secs(5)).unwrap()).unwrap();
        }
    });
}

/// Addresses for DNS and for metrics, IPv4 and IPv6. Empty, with a message, where this process may
/// not open enough files.
fn places(test: &str) -> Vec<(SocketAddr, SocketAddr)> {
    if !may_open(2 * CONNECTIONS as u64) {
        skip(test, "this process may not open 2,048 files");
        return Vec::new();
    }
    let (v4, v6) = (fresh_ip(), Ipv6Addr::LOCALHOST);
    let mut places = vec![((v4, port()).into(), (v4, 9153).into())];
    match UdpSocket::bind((v6, 0)) {
        Ok(_) => places.push(((v6, free_port(v6.into())).into(), (v6, free_port(v6.into())).into())),
        Err(_) => skip(test, "its IPv6 row: ::1 is not there"),
    }
    places
}

/// A server with an idle timeout of a minute.
fn crowded(at: SocketAddr, page: SocketAddr, directives: &str) -> Server {
    Server::start(&format!(
        ".:{} {{\nbind {}\nprometheus {page}\ntimeouts {{\nread 60s\nidle 60s\n}}\n{directives}\n}}",
        at.port(),
        at.ip(),
    ))
}

fn crowd(at: SocketAddr, count: usize) -> Vec<Connection> {
    (0..count).map(|_| Connection::open(at, Duration::from_secs(8)).expect("the server accepts")).collect()
}

fn exchange(connection: &mut Connection) -> Result<()> {
    connection.send(&Ask::new("a.example", "A").bytes())?;
    ensure!(connection.message()?.rcode() == 0, "no answer");
    Ok(())
}

/// Counts of evicted and of refused connections.
fn counts(page: SocketAddr) -> [f64; 2] {
    let metrics = Metrics::of(page);
    ["evicted", "refused"].map(|what| {
        metrics.value(&format!("localdns_connections_{what}_total"), &[]).expect("it is always there")
    })
}

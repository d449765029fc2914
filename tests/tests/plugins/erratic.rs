//! Replies that `erratic` delays or drops.

use std::io::{Read as _, Write as _};
use std::net::{TcpStream, UdpSocket};
use std::time::Duration;

use tests::{Ask, Dns};

const DELAY: Duration = Duration::from_millis(400);
const PATIENCE: Duration = Duration::from_secs(20);

/// Sends these queries in one go over UDP, and returns the ids of the first `count` replies.
fn ids_udp(dns: &Dns, ids: &[u16], count: usize) -> Vec<u16> {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port is free");
    socket.connect(dns.at).expect("UDP connects");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout is set");
    for id in ids {
        socket.send(&Ask::new("x.example", "A").id(*id).bytes()).expect("a query is sent");
    }
    let mut buffer = [0; 512];
    let mut id = || {
        socket.recv(&mut buffer).expect("a reply arrives");
        u16::from_be_bytes([buffer[0], buffer[1]])
    };
    (0..count).map(|_| id()).collect()
}

/// The same over one TCP connection.
fn ids_tcp(dns: &Dns, ids: &[u16], count: usize) -> Vec<u16> {
    let mut stream = TcpStream::connect(dns.at).expect("it accepts");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout is set");
    let mut sent = Vec::new();
    for id in ids {
        let query = Ask::new("x.example", "A").id(*id).bytes();
        sent.extend((query.len() as u16).to_be_bytes());
        sent.extend(query);
    }
    stream.write_all(&sent).expect("the queries are sent");
    let mut id = || {
        let mut length = [0; 2];
        stream.read_exact(&mut length).expect("a reply arrives");
        let mut reply = vec![0; u16::from_be_bytes(length).into()];
        stream.read_exact(&mut reply).expect("a reply arrives");
        u16::from_be_bytes([reply[0], reply[1]])
    };
    (0..count).map(|_| id()).collect()
}

/// A delayed reply leaves after its time, and holds up no other, on the same worker or connection.
#[test]
fn delayed_replies_hold_up_no_others() {
    let dns = Dns::start("erratic {\ndelay 3 400ms\n}");
    for exchange in [ids_udp, ids_tcp] {
        let began = tests::now();
        assert_eq!(exchange(&dns, &[1, 2, 3], 3), [2, 3, 1]);
        assert!(began.elapsed() >= DELAY, "{:?}", began.elapsed());
    }
    // A failure is delayed, too, and a query that middleware acts on.
    let dns = Dns::start("rewrite name a.example b.example\nerratic {\ndelay 1 400ms\n}");
    for (name, rtype, status) in
        [("x.example", "TXT", "SERVFAIL"), ("a.example", "A", "NOERROR"), ("a.example", "TXT", "SERVFAIL")]
    {
        let reply = Ask::new(name, rtype).of(dns.at);
        assert_eq!(reply.status(), status, "{name} {rtype}");
        assert!(reply.elapsed >= DELAY, "{name} {rtype}: {:?}", reply.elapsed);
        assert!(reply.answers.iter().all(|record| record.name == format!("{name}.")), "{reply:?}");
    }
}

/// Every second query has no reply, the first among them.
#[test]
fn dropped_queries_have_no_reply() {
    let dns = Dns::start("erratic");
    for exchange in [ids_udp, ids_tcp] {
        assert_eq!(exchange(&dns, &[1, 2, 3, 4], 2), [2, 4]);
    }
    let dns = Dns::start("rewrite name a.example b.example\nerratic");
    assert!(Ask::new("a.example", "A").timeout(DELAY).try_of(dns.at).is_err());
    assert_eq!(Ask::new("a.example", "A").of(dns.at).short(), ["192.0.2.53"]);
}

//! Queries over TCP and TLS: pipelining and timeouts.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv6Addr, UdpSocket};
use std::thread::sleep;
use std::time::Duration;

use tests::{Ask, Connection, Server, Transports, ask, eventually, free_port, now};

use super::{Dns, good};

#[test]
fn hundred_queries_on_one_connection() {
    let dns = Dns::start();
    for mut connection in dns.connections(Duration::from_secs(5)) {
        for id in 0..100 {
            let name =
                ["www.hosts.example".to_owned(), format!("n{id}.example")][usize::from(id % 2)].clone();
            connection.send(&Ask::new(&name, "A").id(id).bytes()).unwrap();
        }
        let mut ids: Vec<u16> = (0..100).map(|_| connection.message().unwrap().id).collect();
        ids.sort_unstable();
        assert_eq!(ids, (0..100).collect::<Vec<_>>());
    }
}

/// A slow answer does not delay the next one on its connection.
#[test]
fn slow_answer_delays_no_other() {
    let dns = Dns::start();
    dns.upstream.answer_by(|asked| good(asked).after(Duration::from_millis(700)));
    for (mut connection, slow) in dns.connections(Duration::from_secs(3)).into_iter().zip(["slow", "slower"])
    {
        connection.send(&Ask::new(&format!("{slow}.example"), "A").id(1).bytes()).unwrap();
        connection.send(&Ask::new("www.hosts.example", "A").id(2).bytes()).unwrap();
        assert_eq!([connection.message().unwrap().id, connection.message().unwrap().id], [2, 1]);
    }
}

/// A client that has finished sending still gets its answers.
#[test]
fn half_closed_client_gets_answers() {
    let dns = Dns::start();
    dns.upstream.answer_by(|asked| good(asked).after(Duration::from_millis(200)));
    for (mut connection, slow) in dns.connections(Duration::from_secs(3)).into_iter().zip(["slow", "slower"])
    {
        connection.send(&Ask::new(&format!("{slow}.example"), "A").id(1).bytes()).unwrap();
        connection.send(&Ask::new("www.hosts.example", "A").id(2).bytes()).unwrap();
        connection.finish().unwrap();
        let mut ids = [connection.message().unwrap().id, connection.message().unwrap().id];
        ids.sort_unstable();
        assert_eq!(ids, [1, 2]);
        assert!(connection.is_closed_by_peer());
    }
}

/// Octet by octet, and many in one segment.
#[test]
fn segmentation_of_queries() {
    let dns = Dns::start();
    let query = Ask::new("www.hosts.example", "A").id(7).bytes();
    let framed = [&u16::try_from(query.len()).unwrap().to_be_bytes()[..], &query].concat();
    for mut connection in dns.connections(Duration::from_secs(3)) {
        for octet in &framed {
            connection.send_octets(&[*octet]).unwrap();
            sleep(Duration::from_millis(2));
        }
        assert_eq!(connection.message().unwrap().id, 7);
        connection.send_octets(&framed.repeat(20)).unwrap();
        for _ in 0..20 {
            assert_eq!(connection.message().unwrap().id, 7);
        }
    }
}

/// A connection ends by FIN after its last permitted query, whatever else has arrived.
#[test]
fn exhausted_connection_ends_by_fin() {
    let over = Transports::fresh();
    let _server = Server::start(&over.block(".", "whoami\ntimeouts {\nmaxtcpqueries 5\n}"));
    let query = Ask::new("www.hosts.example", "A").id(7).bytes();
    let framed = [&u16::try_from(query.len()).unwrap().to_be_bytes()[..], &query].concat();
    for mut connection in over.connections(Duration::from_secs(5)) {
        // More than the server reads at once: unread data is left when the connection ends.
        connection.send_octets(&framed.repeat(600)).unwrap();
        for _ in 0..5 {
            assert_eq!(connection.message().unwrap().id, 7);
        }
        let error = connection.receive().expect_err("the end");
        let end = error.downcast_ref::<io::Error>().map(io::Error::kind);
        assert_eq!(end, Some(ErrorKind::UnexpectedEof), "{error:#}");
    }
}

/// Idle and silent connections are closed, and limits hold.
#[test]
fn idle_connections_and_limits() {
    let test = "idle_connections_and_limits";
    let v6 = IpAddr::from(Ipv6Addr::LOCALHOST);
    let mut places = vec![Transports::fresh()];
    match UdpSocket::bind((v6, 0)) {
        Ok(_) => places.push(Transports::new((v6, free_port(v6)).into(), free_port(v6))),
        Err(error) => tests::skip(test, &format!("its IPv6 row: ::1: {error}")),
    }
    for over in places {
        let server = Server::start(&over.block(".", "whoami\ntimeouts {\nread 1s\nidle 1s\n}"));
        let started = now();
        let open = || over.connections(Duration::from_secs(5));
        let (silent, mut half, mut idle) = (open(), open(), open());
        for connection in &mut half {
            connection.send_octets(&[0]).unwrap();
        }
        for connection in &mut idle {
            Ask::new("a.example", "A").over(connection).unwrap();
        }
        for (what, connections) in [("silent", silent), ("half a length", half), ("idle", idle)] {
            for mut connection in connections {
                assert!(connection.is_closed_by_peer(), "{what} is still open");
                assert!(started.elapsed() > Duration::from_millis(500), "{what} was closed too early");
            }
        }
        let before = server.fds();
        for at in [over.at, over.tls] {
            let crowd: Vec<_> =
                (0..300).filter_map(|_| Connection::open(at, Duration::from_secs(1)).ok()).collect();
            assert_eq!(
                ask(over.at, "a.example", "A").status(),
                "NOERROR",
                "UDP does not suffer from a crowd"
            );
            drop(crowd);
            eventually("the descriptors back", Duration::from_secs(5), || {
                (server.fds() <= before).then_some(())
            });
        }
    }
}

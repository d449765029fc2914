//! Bound sockets: their number follows `multisocket` across reloads without a lost query; port 0 is
//! one port for all.

use std::collections::BTreeSet;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tests::{Action, Ask, Message, Server, Stream, Upstream, eventually, fresh_ip, isolated, port};

/// Number of UDP sockets bound to this address.
fn listening(at: SocketAddr) -> usize {
    let SocketAddr::V4(at) = at else { panic!("an address of IPv4") };
    let local = format!(" {:08X}:{:04X} 00000000:0000 07 ", u32::from_ne_bytes(at.ip().octets()), at.port());
    let table = fs::read_to_string("/proc/net/udp").expect("linux has it");
    table.lines().filter(|line| line.contains(&local)).count()
}

/// The kernel returns its table in pieces while other sockets are opened and closed: repeats until
/// the number is right.
fn until_sockets(at: SocketAddr, wanted: usize, when: &str) {
    eventually(&format!("{wanted} sockets {when}"), Duration::from_secs(5), || {
        (listening(at) == wanted).then_some(())
    });
}

/// The number of sockets follows `multisocket` over reloads, and no query is lost.
#[test]
fn sockets_follow_multisocket() {
    // Misses take longer than a reload: their clients' sockets are closed meanwhile.
    let upstream = Upstream::start(fresh_ip(), |asked| {
        Action::answer(&format!("{} 300 IN A 192.0.2.2", asked.name)).after(Duration::from_millis(30))
    });
    for numbers in [[4, 1, 4, 2, 8], [1, 4, 2, 8, 1]] {
        let (ip, other, port) = (fresh_ip(), fresh_ip(), port());
        let corefile = |n: usize, binds: &[Ipv4Addr]| {
            let binds: Vec<String> = binds.iter().map(ToString::to_string).collect();
            format!(
                ".:{port} {{\nbind {}\nmultisocket {n}\nhosts {{\n192.0.2.1 x.example\nfallthrough\n}}\nforward . {}\n}}\n",
                binds.join(" "),
                upstream.word()
            )
        };
        let mut server = Server::start(&corefile(numbers[0], &[ip]));
        let at = SocketAddr::from((ip, port));
        until_sockets(at, numbers[0], "at the start");
        // From several ports, so that every socket has clients.
        let streams: Vec<Stream> = (0..12)
            .map(|stream| {
                let query = move |n: usize| match n % 2 {
                    0 => Ask::new("x.example", "A"),
                    // Some streams share names, so that the query may be in flight on another
                    // worker.
                    _ => Ask::new(&format!("n{}.s{}.example", n, stream / 4), "A"),
                };
                let right = |n: usize, message: &Message| {
                    let wanted = ["192.0.2.1", "192.0.2.2"][n % 2];
                    message.answers.first().is_some_and(|record| record.data == wanted)
                };
                Stream::start(at, 250, query, right)
            })
            .collect();
        for (reload, n) in numbers.iter().cycle().skip(1).take(20).enumerate() {
            // An address that is added has the same number of sockets.
            let binds = if reload % 3 == 0 { &[ip, other][..] } else { &[ip] };
            server.write_corefile(&corefile(*n, binds));
            server.signal("USR1");
            server.wait_for_lines("Reloading complete", reload + 1, Duration::from_secs(5));
            // Each worker keeps one socket for its replies.
            let bound = numbers[0].max(*n);
            for ip in binds {
                until_sockets((*ip, port).into(), bound, &format!("of {numbers:?}: reload {reload} to {n}"));
            }
        }
        let mut sent = 0;
        for stream in streams {
            let counts = stream.finish(Duration::from_secs(2));
            counts.assert_clean();
            sent += counts.sent;
        }
        println!("{numbers:?}: {sent} queries over 20 reloads");
        assert!(!server.log_text().contains("multisocket"), "{}", server.log_text());
        // The last number equals the first.
        until_sockets(at, numbers[0], "at the end");
        assert!(server.stop().success());
    }
}

/// Ports of all listening TCP (state 0A) and unconnected UDP (07) sockets in the test's own network
/// namespace.
fn waiting_ports(table: &str, state: &str) -> Vec<u16> {
    let text = fs::read_to_string(format!("/proc/net/{table}")).expect("linux has it");
    let rows = text.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let rows = rows.filter(|row| row[3] == state);
    let port = |row: Vec<&str>| u16::from_str_radix(row[1].rsplit_once(':')?.1, 16).ok();
    rows.map(|row| port(row).expect("an address and a port")).collect()
}

/// Port 0 becomes one port for all addresses.
#[test]
fn port_0_is_one_port() {
    isolated(|| {
        let sockets = |n: usize, bind: &str| {
            format!(".:0 {{\n{bind}\nmultisocket {n}\nwhoami\n}}\nexample.org:0 {{\n{bind}\nwhoami\n}}\n")
        };
        let server = Server::start(&sockets(2, ""));
        let port_of = |n: usize| {
            let tables = [("udp", "07", n), ("udp6", "07", n), ("tcp", "0A", 1), ("tcp6", "0A", 1)];
            let mut ports = BTreeSet::new();
            for (table, state, count) in tables {
                let bound =
                    eventually(&format!("{count} sockets of {table}"), Duration::from_secs(5), || {
                        Some(waiting_ports(table, state)).filter(|ports| ports.len() == count)
                    });
                ports.extend(bound);
            }
            assert_eq!(ports.len(), 1, "{ports:?}");
            ports.pop_first().unwrap()
        };
        let at_first = port_of(2);
        server.wait_for_log(&format!("port 0 is {at_first} here"), Duration::from_secs(5));
        // Other numbers of sockets, other addresses.
        for (nth, (n, bind)) in
            [(4, ""), (4, "bind 127.0.0.1 ::1"), (2, "bind 127.0.0.1 ::1")].into_iter().enumerate()
        {
            server.write_corefile(&sockets(n, bind));
            server.signal("USR1");
            server.wait_for_lines("Reloading complete", nth + 1, Duration::from_secs(5));
            // Each of the two workers keeps its socket.
            assert_eq!(port_of(n.max(2)), at_first, "{n} {bind}");
        }
        for ip in ["127.0.0.1", "::1"] {
            let at = SocketAddr::new(ip.parse().unwrap(), at_first);
            for ask in [Ask::new("x.example", "A"), Ask::new("x.example", "A").tcp()] {
                assert_eq!(ask.of(at).status(), "NOERROR", "{at}");
            }
        }
    });
}

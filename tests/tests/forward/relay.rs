//! Relayed queries and replies: transports, sockets, EDNS, wire format; and their logs and metrics.

use std::net::{Ipv6Addr, SocketAddr, UdpSocket};
use std::thread::scope;
use std::time::Duration;

use tests::{
    Action, Ask, Asked, Authority, Connection, Dns, Metrics, Options, Reply, Says, Server, Stream, Transport,
    Upstream, ask, assert_contains, eventually, free_port, fresh_ip, port, skip, steadily, tempdir,
};

use super::good;

#[test]
fn question_case_is_restored() {
    steadily(|| {
        let upstream = Upstream::start(fresh_ip(), |asked| {
            Action::Reply(Says::answer(&format!("{} 300 IN A 192.0.2.1", asked.name)).shouting())
        });
        let dns = Dns::start(&format!("cache\nforward . {}", upstream.word()));
        for name in ["wWw.eXample", "WwW.ExamplE"] {
            // `Ask` checks that the question is repeated.
            assert_eq!(dns.ask(name).short(), ["192.0.2.1"]);
        }
        assert_eq!(upstream.count("www.example."), 1);
    });
}

#[test]
fn truncated_replies_are_fetched_over_tcp() {
    let lines = |asked: &Asked| {
        (0..60).map(|n| format!("{} 300 IN A 198.51.100.{n}\n", asked.name)).collect::<String>()
    };
    for property in ["", "prefer_udp"] {
        let upstream =
            Upstream::start(fresh_ip(), move |asked| Action::Truncate(Says::answer(&lines(asked))));
        let dns = Dns::start(&format!("forward . {} {{\n{property}\n}}", upstream.word()));
        let reply = Ask::new("many.example", "A").tcp().of(dns.at);
        assert_eq!(reply.answers.len(), 60, "{property}");
        let reply = Ask::new("more.example", "A").edns(1232).of(dns.at);
        assert_eq!(reply.answers.len(), 60, "compressed it fits 1232 octets");
        let transports: Vec<Transport> =
            upstream.asked_for("more.example.").iter().map(|asked| asked.transport).collect();
        assert_eq!(transports, [Transport::Udp, Transport::Tcp], "{property}");
    }
}

#[test]
fn force_tcp_never_sends_a_datagram() {
    let upstream = Upstream::start(fresh_ip(), good);
    let dns = Dns::start(&format!("forward . {} {{\nforce_tcp\n}}", upstream.word()));
    for n in 0..20 {
        assert_eq!(dns.ask(&format!("n{n}.example")).short(), ["192.0.2.1"]);
    }
    assert!(upstream.asked().iter().all(|asked| asked.transport == Transport::Tcp));
    assert!(upstream.connections() <= 4, "{} connections for 20 queries", upstream.connections());
}

/// Each query has its own connection, which later ones reuse.
#[test]
fn slow_tcp_answers_are_independent() {
    steadily(|| {
        let upstream = Upstream::start(fresh_ip(), |asked| {
            let n: u64 = asked
                .name
                .trim_start_matches('n')
                .split('.')
                .next()
                .and_then(|n| n.parse().ok())
                .unwrap_or(0);
            Action::answer(&format!("{} 300 IN A 192.0.2.{n}", asked.name))
                .after(Duration::from_millis(800 - n * 10))
        });
        let dns = Dns::start(&format!("forward . {} {{\nforce_tcp\n}}", upstream.word()));
        for round in 0..2 {
            scope(|scope| {
                for n in 0..40 {
                    let at = dns.at;
                    scope.spawn(move || {
                        let reply = ask(at, &format!("n{n}.round{round}.example"), "A");
                        assert_eq!(reply.short(), [format!("192.0.2.{n}")]);
                        assert!(reply.elapsed < Duration::from_secs(2), "{:?}", reply.elapsed);
                    });
                }
            });
        }
        assert!(upstream.connections() <= 41, "{} connections for 40 queries", upstream.connections());
    });
}

#[test]
fn source_address_of_upstream_queries() {
    let source = fresh_ip();
    for properties in ["", "force_tcp", "max_fails 1\nhealth_check 50ms"] {
        let failing = properties.contains("health");
        // Probes query NS; they begin when a query is unanswered.
        let upstream = Upstream::start(fresh_ip(), move |asked| match asked.rtype {
            1 if failing => Action::Silent,
            _ => good(asked),
        });
        let word = upstream.word();
        let dns = Dns::start(&format!(
            "forward . {word} {{\nsource_address {source}\nread_timeout 200ms\n{properties}\n}}"
        ));
        let reply = Ask::new("a.example", "A").timeout(Duration::from_secs(7)).of(dns.at);
        assert_eq!(reply.status(), if failing { "SERVFAIL" } else { "NOERROR" }, "{properties:?}");
        if failing {
            eventually("a probe", Duration::from_secs(5), || {
                upstream.asked().iter().any(|asked| asked.rtype == 2).then_some(())
            });
        }
        for asked in upstream.asked() {
            assert_eq!(
                asked.from.ip(),
                source,
                "{properties:?}, {:?}, type {}",
                asked.transport,
                asked.rtype
            );
        }
    }
    let corefile =
        format!(".:{} {{\nbind {}\nforward . ::1 {{\nsource_address {source}\n}}\n}}", port(), fresh_ip());
    let output = Server::expect_failure(&corefile, Options::default());
    assert_contains!(String::from_utf8_lossy(&output.stderr), "cannot be asked from");
}

#[test]
fn closed_idle_connections_lose_nothing() {
    let mut upstream = Upstream::start(fresh_ip(), good);
    let dns = Dns::start(&format!("forward . {} {{\nforce_tcp\n}}", upstream.word()));
    let idle = dns.server.fds();
    assert_eq!(dns.ask("before.example").short(), ["192.0.2.1"]);
    // Its old connections end; the next query must not be lost on one of them, whether the server
    // has seen that or not.
    upstream.restart();
    assert_eq!(dns.ask("at-once.example").short(), ["192.0.2.1"]);
    upstream.restart();
    eventually("the end of its connections", Duration::from_secs(10), || {
        (dns.server.fds() <= idle).then_some(())
    });
    assert_eq!(dns.ask("after.example").short(), ["192.0.2.1"]);
}

#[test]
fn equal_misses_share_one_query() {
    let upstream = Upstream::start(fresh_ip(), |asked| good(asked).after(Duration::from_secs(1)));
    let ip = fresh_ip();
    // The kernel distributes UDP clients over the sockets of four workers; those over TCP go to any
    // of them.
    let dns = Dns::start_on(
        ip,
        &format!(
            "multisocket 4\nprometheus {ip}:9153\ncache\nforward . {} {{\nprefer_udp\n}}",
            upstream.word()
        ),
    );
    scope(|scope| {
        for n in 0..40 {
            let at = dns.at;
            let ask = Ask::new("same.example", "A");
            let ask = if n % 2 == 0 { ask } else { ask.tcp() };
            scope.spawn(move || assert_eq!(ask.of(at).short(), ["192.0.2.1"]));
        }
    });
    // After 300 ms without a reply the query is sent again, in case the datagram was lost.
    let hedges = Metrics::of((ip, 9153).into()).count("localdns_forward_hedges_total", &[]);
    assert!(hedges <= 1.0, "{hedges}");
    assert_eq!(upstream.count("same.example.") as f64 - hedges, 1.0, "{hedges} hedges");
}

#[test]
fn shared_flights_keep_each_spelling() {
    steadily(|| {
        let upstream = Upstream::start(fresh_ip(), |asked| good(asked).after(Duration::from_millis(250)));
        let dns = Dns::start(&format!("forward . {}", upstream.word()));
        // A short name, and one of the maximum length.
        let long = [&"a".repeat(63)[..], &"b".repeat(63), &"c".repeat(63), &"d".repeat(61)].join(".");
        for name in ["short.example", &long] {
            let upper = name.to_uppercase();
            let mixed = name.replace('a', "A").replace("ex", "eX");
            scope(|scope| {
                let asked = [name, &upper, &mixed].map(|spelled| {
                    let at = dns.at;
                    // `Ask` refuses a reply that does not repeat the question's case.
                    scope.spawn(move || Ask::new(spelled, "A").edns(1232).of(at).short().concat())
                });
                assert_eq!(asked.map(|asked| asked.join().unwrap()), ["192.0.2.1"; 3]);
            });
            assert!(upstream.count(&format!("{name}.")) < 3, "they shared a query");
        }
    });
}

/// Only one transport is used upstream, and each client gets what fits its own.
#[test]
fn shared_flights_of_both_transports() {
    // Forty addresses fit the size in queries to the upstream, but not a client without EDNS; two
    // hundred fit no datagram here. The number of queries to the upstream without hedges, and
    // whether over UDP and over TCP.
    let rows = [
        ("", 40, 2, [true, true]),
        ("", 200, 3, [true, true]),
        ("prefer_udp", 40, 1, [true, false]),
        ("prefer_udp", 200, 2, [true, true]),
        ("force_tcp", 40, 1, [false, true]),
        ("force_tcp", 200, 1, [false, true]),
    ];
    steadily(|| {
        for (property, count, queries, over) in rows {
            let upstream = Upstream::start(fresh_ip(), move |asked| {
                let line = |n| format!("{} 300 IN A 198.51.100.{n}\n", asked.name);
                let answer = Says::answer(&(0..count).map(line).collect::<String>());
                Action::Reply(answer.fitting()).after(Duration::from_millis(200))
            });
            let ip = fresh_ip();
            let forward = format!("forward . {} {{\n{property}\n}}", upstream.word());
            let dns = Dns::start_on(ip, &format!("multisocket 2\nprometheus {ip}:9153\n{forward}"));
            let plain = Ask::new("many.example", "A");
            let asks = [plain.clone(), plain.clone().edns(1232), plain.clone().tcp(), plain.edns(512).tcp()];
            let [short, long, streamed @ ..] = scope(|scope| {
                let at = dns.at;
                let asked = asks.map(|ask| scope.spawn(move || ask.of(at)));
                asked.map(|asked| asked.join().unwrap())
            });
            let is_cut = |reply: &Reply| reply.flag_names().contains("tc");
            assert!(is_cut(&short) && short.answers.len() < count, "{property} {count}: {short:?}");
            assert_eq!(is_cut(&long), count == 200, "{property} {count}: {long:?}");
            assert!(is_cut(&long) || long.answers.len() == count, "{property} {count}: {long:?}");
            for reply in streamed {
                assert_eq!((is_cut(&reply), reply.answers.len()), (false, count), "{property} {count}");
            }
            let hedges = Metrics::of((ip, 9153).into()).count("localdns_forward_hedges_total", &[]);
            let asked: Vec<_> = upstream.asked_for("many.example.").iter().map(|one| one.transport).collect();
            assert_eq!(
                asked.len() as f64 - hedges,
                f64::from(queries),
                "{property} {count}: {asked:?}, {hedges} hedges"
            );
            let is_over = [Transport::Udp, Transport::Tcp].map(|transport| asked.contains(&transport));
            assert_eq!(is_over, over, "{property} {count}: {asked:?}");
        }
    });
}

#[test]
fn ids_and_source_ports_are_spread() {
    let upstream = Upstream::start(fresh_ip(), good);
    let dns = Dns::start(&format!("forward . {}", upstream.word()));
    for n in 0..400 {
        assert_eq!(dns.ask(&format!("n{n}.example")).status(), "NOERROR");
    }
    let asked = upstream.asked();
    let distinct = |mut values: Vec<u16>| {
        values.sort_unstable();
        values.dedup();
        values.len()
    };
    let ports = distinct(asked.iter().map(|asked| asked.from.port()).collect());
    assert!(ports >= 16, "{ports} source ports for 400 queries");
    let ids: Vec<u16> = asked.iter().map(|asked| asked.id).collect();
    assert!(distinct(ids.clone()) > 380, "ids repeat");
    let steps = distinct(ids.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect());
    assert!(steps > 300, "ids follow a pattern: {steps} different steps");
}

#[test]
fn sockets_are_bounded() {
    let upstream = Upstream::start(fresh_ip(), |_| Action::Silent);
    let dns = Dns::start(&format!("forward . {}", upstream.word()));
    dns.ask("warm.example");
    let before = dns.server.fds();
    let flood = Stream::start(dns.at, 2000, |n| Ask::new(&format!("n{n}.example"), "A"), |_, _| true);
    let mut most = 0;
    eventually("a second of queries", Duration::from_secs(10), || {
        most = most.max(dns.server.fds());
        (flood.sent() >= 2_000).then_some(())
    });
    let counts = flood.finish(Duration::from_secs(7));
    assert_eq!(counts.lost, 0, "{counts:?}");
    assert!(most < 700, "{most} descriptors, {before} before");
}

#[test]
fn changed_system_authorities_and_reload() {
    let directory = tempdir();
    let before = Authority::new();
    let system = before.write(directory.path());
    let after = Authority::new();
    let at = SocketAddr::from((fresh_ip(), 8853));
    let _upstream = Upstream::tls(at, &after, "dns.example", good);
    let here = SocketAddr::from((fresh_ip(), port()));
    let corefile = Dns::corefile(here, &format!("forward . tls://{at} {{\ntls_servername dns.example\n}}"));
    let options = Options::default().env("SSL_CERT_FILE", &system.to_string_lossy());
    let server = Server::start_with(&corefile, options);
    let reply = Ask::new("a.example", "A").timeout(Duration::from_secs(7)).of(here);
    assert_eq!(reply.status(), "SERVFAIL");
    after.write(directory.path());
    server.signal("USR1");
    server.wait_for_log("Reloading complete", Duration::from_secs(10));
    let reply = Ask::new("b.example", "A").timeout(Duration::from_secs(7)).of(here);
    assert_eq!(reply.short(), ["192.0.2.1"]);
}

#[test]
fn tls_upstreams_are_verified() {
    let directory = tempdir();
    let authority = Authority::new();
    let ca = authority.write(directory.path());
    let at = SocketAddr::from((fresh_ip(), 8853));
    let upstream = Upstream::tls(at, &authority, "dns.example", good);
    let forward =
        |name: &str, ca: &str| format!("forward . tls://{at} {{\ntls {ca}\ntls_servername {name}\n}}");
    let dns = Dns::start(&forward("dns.example", &ca.to_string_lossy()));
    for n in 0..10 {
        assert_eq!(dns.ask(&format!("n{n}.example")).short(), ["192.0.2.1"]);
    }
    assert!(upstream.asked().iter().all(|asked| asked.transport == Transport::Tls));
    assert!(upstream.connections() <= 4, "{} handshakes for ten queries", upstream.connections());

    let asked = upstream.total();
    let dns = Dns::start(&forward("other.example", &ca.to_string_lossy()));
    assert_eq!(Ask::new("x.example", "A").timeout(Duration::from_secs(7)).of(dns.at).status(), "SERVFAIL");
    let elsewhere = tempdir();
    let stranger = Authority::new().write(elsewhere.path());
    let dns = Dns::start(&forward("dns.example", &stranger.to_string_lossy()));
    assert_eq!(Ask::new("x.example", "A").timeout(Duration::from_secs(7)).of(dns.at).status(), "SERVFAIL");
    assert_eq!(upstream.total(), asked, "no query reaches a server that is not the right one");
}

#[test]
fn upstream_without_tls_is_servfail() {
    steadily(|| {
        // Plain DNS over TCP on the port: the handshake ends in an alert or in silence.
        let at = SocketAddr::from((fresh_ip(), 8853));
        let _upstream = Upstream::at(at, |_| Action::Silent);
        let dns = Dns::start(&format!("forward . tls://{at} {{\ntls_servername dns.example\n}}"));
        let reply = Ask::new("x.example", "A").timeout(Duration::from_secs(8)).of(dns.at);
        assert_eq!(reply.status(), "SERVFAIL");
        assert!(reply.elapsed < Duration::from_secs(5), "{:?}", reply.elapsed);
    });
}

#[test]
fn unknown_types_pass_unchanged() {
    let data = "TYPE65400 \\# 5 00ff102030";
    let upstream = Upstream::start(fresh_ip(), move |asked| match asked.rtype {
        64 => Action::answer(&format!("{} 300 IN SVCB \\# 3 000100", asked.name)),
        _ => Action::answer(&format!("{} 300 IN {data}", asked.name)),
    });
    let dns = Dns::start(&format!("cache\nforward . {}", upstream.word()));
    for _ in ["miss", "hit"] {
        let reply = ask(dns.at, "x.example", "TYPE65400");
        assert_eq!(reply.rows(), [format!("x.example. {} IN {data}", reply.answers[0].ttl)]);
        assert_eq!(ask(dns.at, "x.example", "SVCB").short(), ["\\# 3 000100"]);
    }
}

#[test]
fn upstream_opt_is_our_own() {
    const ECS: u16 = 8;
    let upstream = Upstream::start(fresh_ip(), |asked| {
        let answer = Says::answer(&format!("{} 300 IN A 192.0.2.1", asked.name));
        // Cookie, NSID and unknown options end at this hop; an extended error is for the client.
        Action::Reply(
            answer
                .option(10, &[7; 16])
                .option(3, b"upstream")
                .option(65_001, b"x")
                .option(15, b"\x00\x03stale"),
        )
    });
    let dns = Dns::start(&format!("forward . {}", upstream.word()));
    let subnet = [0, 1, 24, 0, 198, 51, 100];
    let client = Ask::new("x.example", "A").edns(4096).dnssec_ok();
    let client = client
        .option(10, &[9; 8])
        .option(3, &[])
        .option(11, &[])
        .option(12, &[0; 20])
        .option(65_002, b"y")
        .option(ECS, &subnet);
    let reply = client.of(dns.at);
    assert_eq!(reply.short(), ["192.0.2.1"]);

    let seen = upstream.asked_for("x.example.")[0].edns.clone().expect("OPT goes upstream");
    assert_eq!((seen.size, seen.version, seen.dnssec_ok), (1232, 0, true));
    let codes: Vec<u16> = seen.options.iter().map(|(code, _)| *code).collect();
    assert_eq!(codes, [ECS], "only the client subnet is relayed");
    assert_eq!(seen.options[0].1, subnet);

    let edns = reply.edns.clone().expect("the reply has an OPT");
    assert_eq!((edns.size, edns.dnssec_ok), (1232, true));
    for hop in [3, 10, 11, 12, 65_001, 65_002] {
        assert_eq!(reply.option(hop), None, "option {hop} stays on its hop");
    }
    assert_eq!(reply.extended_error(), Some((3, "stale".to_owned())));

    let reply = dns.ask("plain.example");
    assert!(reply.edns.is_none(), "no OPT for a client without");
    let seen = upstream.asked_for("plain.example.")[0].edns.clone().expect("OPT goes upstream nevertheless");
    assert_eq!((seen.size, seen.dnssec_ok), (1232, false));
}

#[test]
fn sixty_thousand_octets_over_tcp() {
    let upstream = Upstream::start(fresh_ip(), |asked| {
        let lines: String = (0..230).map(|n| format!("{} 300 IN TXT \"{n:0>240}\"\n", asked.name)).collect();
        Action::Truncate(Says::answer(&lines))
    });
    let dns = Dns::start(&format!("cache\nforward . {} {{\nprefer_udp\n}}", upstream.word()));
    for _ in ["miss", "hit"] {
        let reply = Ask::new("big.example", "TXT").tcp().of(dns.at);
        assert_eq!(reply.answers.len(), 230);
        assert!(reply.bytes.len() > 55_000);
    }
    let reply = Ask::new("big.example", "TXT").edns(4096).of(dns.at);
    assert!(reply.flag_names().contains("tc") && reply.bytes.len() <= 1232, "{} octets", reply.bytes.len());
    assert!(reply.edns.is_some(), "a truncated reply keeps its OPT (RFC 6891 section 7)");
}

#[test]
fn forwarding_works_over_ipv6() {
    let v6 = Ipv6Addr::LOCALHOST;
    if UdpSocket::bind((v6, 0)).is_err() {
        return skip("forwarding_works_over_ipv6", "::1 is not there");
    }
    let upstream = Upstream::at((v6, free_port(v6.into())).into(), good);
    let at = SocketAddr::from((v6, free_port(v6.into())));
    let _server = Server::start(&format!(".:{} {{\nbind ::1\nforward . {}\n}}", at.port(), upstream.word()));
    assert_eq!(ask(at, "x.example", "A").short(), ["192.0.2.1"]);
    assert_eq!(Ask::new("y.example", "A").tcp().of(at).short(), ["192.0.2.1"]);
}

#[test]
fn metrics_name_every_upstream() {
    let upstream = Upstream::start(fresh_ip(), good);
    let ip = fresh_ip();
    let dns = Dns::start_on(ip, &format!("prometheus {ip}:9153\nforward . {}", upstream.word()));
    for n in 0..3 {
        dns.ask(&format!("n{n}.example"));
    }
    let metrics = Metrics::after_queries((ip, 9153).into(), 3);
    let labels = [("to", &upstream.word()[..]), ("proxy_name", "forward"), ("rcode", "NOERROR")];
    assert_eq!(metrics.value("coredns_proxy_request_duration_seconds_count", &labels), Some(3.0));
    let mut names = metrics.label_names("coredns_proxy_request_duration_seconds_count");
    names.sort_unstable();
    assert_eq!(names, ["proxy_name", "rcode", "to"]);
}

#[test]
fn error_lines_name_the_query() {
    let mut upstream = Upstream::start(fresh_ip(), good);
    upstream.stop();
    let dns = Dns::start(&format!("errors\nforward . {}", upstream.word()));
    assert_eq!(dns.ask("x.example").status(), "SERVFAIL");
    let line = dns.server.wait_for_log("plugin/errors: 2 x.example. A: ", Duration::from_secs(2));
    assert_contains!(line, "[ERROR] ");
}

#[test]
fn hundreds_of_queries_per_connection() {
    let upstream = Upstream::start(fresh_ip(), good);
    let dns = Dns::start(&format!(
        "hosts {{\n192.0.2.2 known.example\nfallthrough\n}}\nforward . {}",
        upstream.word()
    ));
    let mut connection = Connection::open(dns.at, Duration::from_secs(5)).unwrap();
    let queries: Vec<u8> = (0..400u16)
        .flat_map(|id| {
            let name = if id % 2 == 0 { "known.example".to_owned() } else { format!("n{id}.example") };
            let message = Ask::new(&name, "A").id(id).bytes();
            [&(message.len() as u16).to_be_bytes()[..], &message].concat()
        })
        .collect();
    connection.send_octets(&queries).unwrap();
    let mut ids: Vec<u16> = (0..400).map(|_| connection.message().unwrap().id).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..400).collect::<Vec<u16>>());
}

#[test]
fn burst_of_misses_loses_nothing() {
    let upstream = Upstream::start(fresh_ip(), good);
    let dns = Dns::start(&format!("multisocket 1\nforward . {}", upstream.word()));
    let client = UdpSocket::bind((dns.at.ip(), 0)).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    client.connect(dns.at).unwrap();
    // Twice the size of a batch, repeatedly, while earlier replies arrive.
    let (mut sent, mut received) = (0u16, 0);
    let mut reply = [0; 512];
    while received < 4000 {
        while sent < 4000 && sent - received < 128 {
            client.send(&Ask::new(&format!("n{sent}.example"), "A").id(sent).bytes()).unwrap();
            sent += 1;
        }
        client.recv(&mut reply).unwrap_or_else(|error| panic!("{received} of {sent} answered: {error}"));
        received += 1;
    }
}

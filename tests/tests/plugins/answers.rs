//! `whoami`, `nsid`, `loop`, and directives that answer no queries.

use std::time::Duration;

use tests::{
    Action, Ask, Dns, Options, Server, Upstream, ask, assert_contains, fresh_ip, isolated, port, tempdir,
};

/// whoami answers the client's address, port and transport.
#[test]
fn whoami_answers_the_clients_address() {
    let dns = Dns::start("whoami");
    for (query, service) in [
        (Ask::new("a.example", "A"), "_udp.a.example."),
        (Ask::new("a.example", "A").tcp(), "_tcp.a.example."),
    ] {
        let reply = query.of(dns.at);
        assert_eq!((reply.status(), reply.answers.len()), ("NOERROR", 0));
        assert_contains!(reply.flag_names(), "aa");
        let address = reply.additionals.iter().find(|record| record.rtype == 1).expect("an A record");
        assert_eq!((&address.name[..], &address.data[..]), ("a.example.", "127.0.0.1"));
        let srv = reply.additionals.iter().find(|record| record.rtype == 33).expect("an SRV record");
        assert_eq!(srv.name, service);
        let port: u16 = srv.data.split(' ').nth(2).unwrap().parse().unwrap();
        assert!(port >= 1024, "{srv}");
    }
}

#[test]
fn nsid_answers_requests_only() {
    let dns = Dns::start("nsid node-7\nwhoami");
    assert_eq!(Ask::new("a.example", "A").nsid().of(dns.at).option(3), Some(&b"node-7"[..]));
    assert_eq!(Ask::new("a.example", "A").edns(1232).of(dns.at).option(3), None);
    let dns = Dns::start("nsid\nwhoami");
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert_eq!(Ask::new("a.example", "A").nsid().of(dns.at).option(3), Some(host.trim().as_bytes()));
}

/// Like on OpenShift: a block for the name `hostname.bind` only.
#[test]
fn chaos_beside_other_blocks() {
    let (ip, port) = (fresh_ip(), port());
    let _server = Server::start(&format!(
        "hostname.bind:{port} {{\nbind {ip}\nchaos\n}}\nbind:{port} {{\nbind {ip}\nchaos \"node 7\" b@example a@example\nwhoami\n}}\nexample:{port} {{\nbind {ip}\nwhoami\n}}"
    ));
    let at = (ip, port).into();
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let host = format!("\"{}\"", host.trim());
    for (name, class, texts) in [
        ("hostname.bind", 3, &[&*host][..]),
        ("Version.Bind", 3, &["\"node 7\""]),
        ("authors.bind", 3, &["\"a@example\"", "\"b@example\""]),
        ("version.bind", 1, &[]),
        ("x.example", 3, &[]),
    ] {
        for tcp in [false, true] {
            let ask = Ask::new(name, "TXT").class(class);
            let reply = if tcp { ask.tcp() } else { ask }.of(at);
            assert_eq!(reply.status(), "NOERROR", "{name}");
            let answers: Vec<_> = reply.answers.iter().map(|rr| &*rr.data).collect();
            assert_eq!(answers, texts, "{name}");
            let owners =
                reply.answers.iter().all(|rr| rr.name == format!("{name}.") && rr.class == 3 && rr.ttl == 0);
            assert!(owners, "{name}: {:?}", reply.answers);
        }
    }
    assert_eq!(Ask::new("version.server", "TXT").class(3).of(at).status(), "REFUSED", "no block has it");
    assert_eq!(Ask::new("hostname.bind", "A").class(3).of(at).status(), "SERVFAIL", "no plugin answers it");
}

#[test]
fn forward_to_itself_is_refused() {
    let (ip, port) = (fresh_ip(), port());
    let corefile = format!(".:{port} {{\nbind {ip}\nloop\nforward . {ip}:{port}\n}}");
    let output = Server::expect_failure(&corefile, Options::default());
    assert_contains!(String::from_utf8_lossy(&output.stderr), "Corefile:4");
    assert_contains!(String::from_utf8_lossy(&output.stderr), format!("{ip}:{port}"));
}

/// In a private network, where the port is free on every address.
#[test]
fn bound_and_unbound_block_share_port() {
    isolated(|| {
        let (ip, other) = (fresh_ip(), fresh_ip());
        let port = port();
        let block = |zone: &str, bind: &str, last: u8| {
            format!("{zone}:{port} {{\n{bind}\nhosts {{\n192.0.2.{last} x.{zone}\n}}\n}}\n")
        };
        let (bound, every) = (block("a.example", &format!("bind {ip}"), 1), block("b.example", "", 2));
        let sees = |ip: std::net::Ipv4Addr, name: &str, status: &str| {
            for ask in [Ask::new(name, "A"), Ask::new(name, "A").tcp()] {
                assert_eq!(ask.of((ip, port).into()).status(), status, "{name} at {ip}");
            }
        };
        for (first, second) in [(&bound, &every), (&every, &bound)] {
            let server = Server::start(&format!("{first}{second}"));
            let check = || {
                sees(ip, "x.a.example", "NOERROR");
                sees(ip, "x.b.example", "REFUSED");
                sees(other, "x.b.example", "NOERROR");
                sees(other, "x.a.example", "REFUSED");
            };
            check();
            // The second block is added by a reload.
            server.write_corefile(first);
            server.signal("USR1");
            server.wait_for_lines("Reloading complete", 1, Duration::from_secs(5));
            server.write_corefile(&format!("{first}{second}"));
            server.signal("USR1");
            server.wait_for_lines("Reloading complete", 2, Duration::from_secs(5));
            check();
        }
    });
}

/// The example in CoreDNS's README: the root block forwards to two others of the same Corefile.
#[test]
fn chain_through_blocks_answers() {
    let (ip, port) = (fresh_ip(), port());
    let upstream = Upstream::start(fresh_ip(), |asked| {
        let answer = Action::answer(&format!("{} 30 IN A 192.0.2.1", asked.name));
        if asked.name.starts_with("late") { answer.after(Duration::from_millis(50)) } else { answer }
    });
    let last = |port: u16| format!(".:{port} {{\nbind {ip}\ncache\nforward . {}\n}}\n", upstream.word());
    let first = format!(
        ".:{port} {{\nbind {ip}\nerrors\ncache\nloop\nforward . {ip}:5301 {ip}:5302 {{\npolicy round_robin\n}}\n}}\n"
    );
    let at = std::net::SocketAddr::from((ip, port));
    let _server = Server::start(&format!("{first}{}{}", last(5301), last(5302)));
    std::thread::scope(|scope| {
        for thread in 0..8 {
            scope.spawn(move || {
                for n in 0..20 {
                    // Each name is queried twice at once; each block has its own flight for it.
                    let name = format!("late{}-{n}.example", thread / 2);
                    let ask = Ask::new(&name, "A").timeout(Duration::from_secs(5));
                    let reply = if thread % 2 == 0 { ask } else { ask.tcp() }.of(at);
                    assert_eq!(reply.short(), ["192.0.2.1"], "{name}");
                }
            });
        }
    });
    let asked = upstream.asked();
    let late = asked.iter().filter(|asked| asked.name.starts_with("late")).count();
    assert!(late >= 80, "every name reached the end of the chain: {late}");
}

/// A loop through another server is reported and does not end the server.
#[test]
fn loop_through_another_server() {
    let (ip, port) = (fresh_ip(), port());
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    let relay = Upstream::start(fresh_ip(), move |asked| {
        drop(socket.send_to(&asked.bytes, (ip, port)));
        Action::Silent
    });
    let hosts = "hosts {\n192.0.2.1 known.example\nfallthrough\n}";
    let mut dns = Dns::start_on(ip, &format!("loop\nerrors\n{hosts}\nforward . {}", relay.word()));
    let line = dns.server.wait_for_log("plugin/loop", Duration::from_secs(8));
    assert_contains!(line, relay.word());
    let reply = Ask::new("x.example", "A").timeout(Duration::from_secs(7)).of(dns.at);
    assert_eq!(reply.status(), "SERVFAIL");
    assert_eq!(ask(dns.at, "known.example", "A").short(), ["192.0.2.1"]);
    assert!(dns.server.is_running());
}

/// A loop is reported though the first probe is lost.
#[test]
fn loop_with_a_lost_probe() {
    let (ip, port) = (fresh_ip(), port());
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    let seen = std::sync::atomic::AtomicUsize::new(0);
    let relay = Upstream::start(fresh_ip(), move |asked| {
        // HINFO, the type of the loop probes.
        if asked.rtype == 13 && seen.fetch_add(1, std::sync::atomic::Ordering::Relaxed) > 0 {
            drop(socket.send_to(&asked.bytes, (ip, port)));
        }
        Action::Silent
    });
    let dns = Dns::start_on(ip, &format!("loop\nforward . {}", relay.word()));
    let line = dns.server.wait_for_log("plugin/loop", Duration::from_secs(8));
    assert_contains!(line, relay.word());
}

#[test]
fn block_with_every_quiet_directive() {
    let directory = tempdir();
    std::fs::write(directory.path().join("more"), "whoami\n").unwrap();
    let body = format!(
        "root {0}\ndebug\nmultisocket 2\ntimeouts {{\nread 2s\nwrite 3s\nidle 4s\n}}\nreload 5s 1s\nerrors\nimport {0}/more",
        directory.path().display()
    );
    let dns = Dns::start(&body);
    assert_eq!(ask(dns.at, "a.example", "A").status(), "NOERROR");
    assert_eq!(Ask::new("a.example", "A").tcp().of(dns.at).status(), "NOERROR");
}

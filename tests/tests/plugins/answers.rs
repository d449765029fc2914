//! `whoami`, `nsid`, `loop`, and the directives that answer nothing.

use std::time::Duration;

use tests::{Action, Ask, Dns, Options, Server, Upstream, ask, assert_contains, fresh_ip, port, tempdir};

#[test]
fn whoami_tells_address_port_and_transport() {
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
fn nsid_is_told_to_those_who_ask() {
    let dns = Dns::start("nsid node-7\nwhoami");
    assert_eq!(Ask::new("a.example", "A").nsid().of(dns.at).option(3), Some(&b"node-7"[..]));
    assert_eq!(Ask::new("a.example", "A").edns(1232).of(dns.at).option(3), None);
    let dns = Dns::start("nsid\nwhoami");
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert_eq!(Ask::new("a.example", "A").nsid().of(dns.at).option(3), Some(host.trim().as_bytes()));
}

#[test]
fn an_upstream_that_is_ourselves_is_refused_at_start() {
    let (ip, port) = (fresh_ip(), port());
    let corefile = format!(".:{port} {{\nbind {ip}\nloop\nforward . {ip}:{port}\n}}");
    let output = Server::expect_failure(&corefile, Options::default());
    assert_contains!(String::from_utf8_lossy(&output.stderr), "Corefile:4");
    assert_contains!(String::from_utf8_lossy(&output.stderr), format!("{ip}:{port}"));
}

#[test]
fn a_loop_through_another_server_is_told_and_ends_nothing() {
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

#[test]
fn a_loop_is_told_even_where_its_first_probe_is_lost() {
    let (ip, port) = (fresh_ip(), port());
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    let seen = std::sync::atomic::AtomicUsize::new(0);
    let relay = Upstream::start(fresh_ip(), move |asked| {
        // HINFO, as probes ask for.
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
fn a_block_with_every_quiet_directive_serves() {
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

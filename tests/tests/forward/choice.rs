//! The choice of upstreams: zones, policies, health, failover, and sources of upstreams.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tests::{
    Action, Ask, Dns, Metrics, Says, Server, Transport, Upstream, add_address, ask, eventually, fresh_ip,
    isolated, port, publish, skip, steadily, tempdir,
};

use super::good;

#[test]
fn policies_choose_as_they_say() {
    steadily(|| {
        let table = [("sequential", 40, 0), ("round_robin", 15, 15), ("random", 5, 5)];
        for (policy, first, second) in table {
            let upstreams = [Upstream::start(fresh_ip(), good), Upstream::start(fresh_ip(), good)];
            let words = upstreams.each_ref().map(Upstream::word).join(" ");
            let dns = Dns::start(&format!("forward . {words} {{\npolicy {policy}\n}}"));
            for n in 0..40 {
                assert_eq!(dns.ask(&format!("n{n}.example")).status(), "NOERROR");
            }
            let counts = upstreams.each_ref().map(Upstream::total);
            assert!(counts[0] >= first && counts[1] >= second, "{policy}: {counts:?}");
            assert!(policy != "sequential" || counts[1] == 0, "{policy}: {counts:?}");
        }
    });
}

/// Other rcodes of the upstream are final.
#[test]
fn failover_rcodes() {
    for (rcode, status) in [(2, "SERVFAIL"), (5, "REFUSED"), (3, "NXDOMAIN")] {
        let first = Upstream::start(fresh_ip(), move |_| Action::rcode(rcode));
        let second = Upstream::start(fresh_ip(), good);
        let to = format!("forward . {} {}", first.word(), second.word());
        let dns = Dns::start(&format!("{to} {{\npolicy sequential\n}}"));
        assert_eq!(dns.ask("x.example").status(), status);
        assert_eq!(second.total(), 0);
        let dns = Dns::start(&format!("{to} {{\npolicy sequential\nfailover {status}\n}}"));
        assert_eq!(dns.ask("x.example").short(), ["192.0.2.1"], "failover {status}");
    }
}

/// `next` passes a query with its rcodes to the next stanza.
#[test]
fn next_passes_to_the_next_stanza() {
    let first = Upstream::start(fresh_ip(), |_| Action::rcode(3));
    let second = Upstream::start(fresh_ip(), good);
    let dns =
        Dns::start(&format!("forward . {} {{\nnext NXDOMAIN\n}}\nforward . {}", first.word(), second.word()));
    assert_eq!(dns.ask("x.example").short(), ["192.0.2.1"]);
    assert_eq!(first.total(), 1);
}

/// The next stanza gets the time that a truncated reply in the first has left.
#[test]
fn next_stanza_gets_the_remaining_time() {
    // After a truncated reply TCP has a second; the next stanza has the rest of the query's time.
    for over_tcp in [Action::Silent, Action::rcode(3)] {
        let transport = format!("{over_tcp:?} over TCP");
        let first = Upstream::start(fresh_ip(), move |asked| match asked.transport {
            Transport::Udp => Action::Truncate(Says::rcode(3)),
            _ => over_tcp.clone(),
        });
        let second = Upstream::start(fresh_ip(), |asked| good(asked).after(Duration::from_millis(1600)));
        let dns = Dns::start(&format!(
            "forward . {} {{\nnext NXDOMAIN\n}}\nforward . {}",
            first.word(),
            second.word()
        ));
        assert_eq!(dns.ask("x.example").short(), ["192.0.2.1"], "{transport}");
    }
}

#[test]
fn next_uses_its_stanzas_transport() {
    use Transport::{Tcp, Udp};
    for (properties, client, over) in [
        (["", "force_tcp"], Udp, [Udp, Tcp]),
        (["force_tcp", ""], Udp, [Tcp, Udp]),
        (["", "prefer_udp"], Tcp, [Tcp, Udp]),
        (["prefer_udp", ""], Tcp, [Udp, Tcp]),
    ] {
        let upstreams =
            [Upstream::start(fresh_ip(), |_| Action::rcode(3)), Upstream::start(fresh_ip(), good)];
        let [first, second] = upstreams.each_ref().map(Upstream::word);
        let dns = Dns::start(&format!(
            "forward . {first} {{\nnext NXDOMAIN\n{}\n}}\nforward . {second} {{\n{}\n}}",
            properties[0], properties[1]
        ));
        let ask = Ask::new("x.example", "A");
        let reply = if client == Tcp { ask.tcp() } else { ask }.of(dns.at);
        assert_eq!(reply.short(), ["192.0.2.1"], "{properties:?}");
        let asked = upstreams.each_ref().map(|upstream| upstream.asked_for("x.example.")[0].transport);
        assert_eq!(asked, over, "{properties:?} for a client over {client:?}");
    }
}

#[test]
fn zones_and_except_select_the_stanza() {
    let [inside, outside] = [Upstream::start(fresh_ip(), good), Upstream::start(fresh_ip(), good)];
    let dns = Dns::start(&format!(
        "forward example {} {{\nexcept not.example\n}}\nforward . {}",
        inside.word(),
        outside.word()
    ));
    for (name, is_inside) in
        [("a.example", true), ("a.not.example", false), ("a.other", false), ("example", true)]
    {
        assert_eq!(dns.ask(name).status(), "NOERROR");
        let dotted = format!("{name}.");
        assert_eq!(
            (inside.count(&dotted), outside.count(&dotted)),
            (is_inside.into(), (!is_inside).into()),
            "{name}"
        );
    }
}

/// SERVFAIL outside of every stanza, REFUSED outside of every block.
#[test]
fn names_outside_stanzas_and_blocks() {
    let upstream = Upstream::start(fresh_ip(), good);
    // Like CoreDNS: a block whose plugins all pass answers SERVFAIL, a server without a block for
    // the name REFUSED.
    let dns = Dns::start(&format!("forward example {}", upstream.word()));
    assert_eq!(dns.ask("a.other").status(), "SERVFAIL");
    let at = SocketAddr::from((fresh_ip(), port()));
    let text = format!("example:{} {{\nbind {}\nforward . {}\n}}", at.port(), at.ip(), upstream.word());
    let _server = Server::start(&text);
    assert_eq!(ask(at, "a.example", "A").status(), "NOERROR");
    assert_eq!(ask(at, "a.other", "A").status(), "REFUSED");
    assert_eq!(upstream.total(), 1);
}

#[test]
fn recovered_upstream_is_used_again() {
    steadily(|| {
        let mut first = Upstream::start(fresh_ip(), good);
        let second = Upstream::start(fresh_ip(), good);
        first.stop();
        let words = format!("{} {}", first.word(), second.word());
        let ip = fresh_ip();
        let dns = Dns::start_on(
            ip,
            &format!(
                "prometheus {ip}:9153\nforward . {words} {{\npolicy sequential\nhealth_check 100ms\nmax_fails 1\n}}"
            ),
        );
        assert_eq!(dns.ask("first.example").short(), ["192.0.2.1"]);
        eventually("two failed probes", Duration::from_secs(10), || {
            let failed =
                Metrics::of((ip, 9153).into()).count("coredns_proxy_healthcheck_failures_total", &[]);
            (failed >= 2.0).then_some(())
        });
        // It is down by now and costs no time.
        let reply = dns.ask("down.example");
        assert!(reply.elapsed < Duration::from_millis(200), "{:?}", reply.elapsed);
        first.restart();
        eventually("the first upstream to be used again", Duration::from_secs(5), || {
            let name = format!("n{}.up.example", first.total() + second.total());
            dns.ask(&name);
            (first.count(&format!("{name}.")) == 1).then_some(())
        });
    });
}

#[test]
fn health_probe_questions() {
    let table = [("", ".", true), ("no_rec", ".", false), ("domain health.local.", "health.local.", true)];
    for (properties, name, rd) in table {
        let upstream = Upstream::start(fresh_ip(), |asked| match asked.rtype {
            2 => Action::rcode(0),
            _ => Action::Silent,
        });
        let dns =
            Dns::start(&format!("forward . {} {{\nhealth_check 200ms {properties}\n}}", upstream.word()));
        // Like CoreDNS's, probes begin with the first failure.
        drop(Ask::new("x.example", "A").timeout(Duration::from_millis(2500)).try_of(dns.at));
        upstream.wait_for(name, 1, Duration::from_secs(3));
        let probe = &upstream.asked_for(name)[0];
        assert_eq!((probe.rtype, probe.flags & 0x0100 != 0), (2, rd), "{properties}");
    }
}

#[test]
fn failfast_with_every_upstream_down() {
    let upstream = Upstream::start(fresh_ip(), |_| Action::Silent);
    let dns = Dns::start(&format!(
        "forward . {} {{\nhealth_check 100ms\nmax_fails 1\nfailfast_all_unhealthy_upstreams\n}}",
        upstream.word()
    ));
    eventually("a quick SERVFAIL", Duration::from_secs(20), || {
        let reply = Ask::new("x.example", "A").timeout(Duration::from_secs(6)).of(dns.at);
        assert_eq!(reply.status(), "SERVFAIL");
        (reply.elapsed < Duration::from_millis(100)).then_some(())
    });
}

#[test]
fn resolv_conf_is_followed() {
    let [old, new] = [Upstream::start(fresh_ip(), good), Upstream::start(fresh_ip(), good)];
    let directory = tempdir();
    let path = directory.path().join("resolv.conf");
    let write = |upstream: &Upstream| {
        std::fs::write(
            &path,
            format!("# a comment\nsearch example\nnameserver {}\n", upstream.address().ip()),
        )
        .unwrap();
    };
    if port() != 53 {
        return skip("resolv_conf_is_followed", "nameservers listen on port 53, which needs root");
    }
    write(&old);
    let dns = Dns::start(&format!("forward . {}", path.display()));
    assert_eq!(dns.ask("x.example").short(), ["192.0.2.1"]);
    assert_eq!(old.total(), 1);
    write(&new);
    eventually("the new nameserver", Duration::from_secs(10), || {
        dns.ask("y.example");
        (new.total() > 0).then_some(())
    });
}

/// An upstream's host name is looked up as an absolute name and not by this server.
#[test]
fn host_name_upstream_is_absolute() {
    isolated(|| {
        add_address("192.0.2.53/32");
        add_address("192.0.2.54/32");
        let system =
            Upstream::start(Ipv4Addr::new(192, 0, 2, 53), |asked| match (&asked.name[..], asked.rtype) {
                ("dns.provider.example.", 1) => Action::answer("dns.provider.example. 60 IN A 192.0.2.54"),
                _ => Action::rcode(3),
            });
        let upstream = Upstream::start(Ipv4Addr::new(192, 0, 2, 54), good);
        std::fs::write("/etc/resolv.conf", "search wrong.example\noptions ndots:5\nnameserver 192.0.2.53\n")
            .unwrap();
        let dns = Dns::start("forward . dns.provider.example");
        eventually("an answer", Duration::from_secs(5), || {
            (dns.ask("x.example").short() == ["192.0.2.1"]).then_some(())
        });
        assert!(upstream.count("x.example.") >= 1);
        assert_eq!(system.count("dns.provider.example.wrong.example."), 0, "no search path");
        assert_eq!(system.count("x.example."), 0, "the system's resolver is for names of upstreams only");
    });
}

/// An upstream's host name is looked up with the current resolvers of the system.
#[test]
fn host_name_upstream_and_new_resolvers() {
    isolated(|| {
        let ips: [Ipv4Addr; 4] = [1, 2, 3, 4].map(|last| Ipv4Addr::new(192, 0, 2, last));
        ips.iter().for_each(|ip| add_address(&format!("{ip}/32")));
        let knows = |upstream: Ipv4Addr| {
            move |asked: &tests::Asked| match asked.rtype {
                1 => Action::answer(&format!("dns.provider.example. 1 IN A {upstream}")),
                _ => Action::rcode(3),
            }
        };
        let [old, new] = [(ips[0], ips[2]), (ips[1], ips[3])].map(|(ip, of)| Upstream::start(ip, knows(of)));
        let [before, after] = [ips[2], ips[3]].map(|ip| Upstream::start(ip, good));
        let resolver = |upstream: &Upstream| {
            publish("/etc/resolv.conf".as_ref(), format!("nameserver {}\n", upstream.address().ip()));
        };
        resolver(&old);
        let dns = Dns::start("forward . dns.provider.example");
        assert_eq!(dns.ask("x.example").short(), ["192.0.2.1"]);
        assert_eq!((before.count("x.example."), after.count("x.example.")), (1, 0));
        // As after a DHCP lease in another network. A resolved name is kept for at least 30 s.
        resolver(&new);
        old.forget();
        let changed = format!("upstreams changed: {}:53", ips[3]);
        dns.server.wait_for_log(&changed, Duration::from_secs(60));
        assert_eq!(dns.ask("y.example").short(), ["192.0.2.1"]);
        assert_eq!((before.count("y.example."), after.count("y.example.")), (0, 1));
        assert!(old.asked().is_empty(), "the system has this resolver no more: {:?}", old.asked());
    });
}

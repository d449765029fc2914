//! Answers to clients, and their metrics and logs.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use tests::{
    Action, Ask, Metrics, Options, ask, assert_contains, eventually, fixtures, http_get, isolated, publish,
    run, tool,
};

use super::{CLUSTER, HOSTS, LISTENERS, NODE, Node, PODS, VNET, answer_all, at, at9253, dotted};

/// Both listeners answer whoami for the health zone.
#[test]
fn health_zone_answers_whoami() {
    isolated(|| {
        let _node = Node::start("");
        for ip in LISTENERS {
            for query in [
                Ask::new("health-check.localdns.local", "A"),
                Ask::new("health-check.localdns.local", "A").tcp(),
            ] {
                let reply = query.of(at(ip));
                assert_eq!((reply.status(), reply.answers.len()), ("NOERROR", 0));
                assert_contains!(reply.flag_names(), "aa");
                let glue: Vec<&str> = reply.additionals.iter().map(|record| &record.name[..]).collect();
                assert!(glue.contains(&"health-check.localdns.local."), "{glue:?}");
                let service = glue
                    .iter()
                    .find(|name| name.starts_with('_'))
                    .expect("an SRV record names the transport");
                assert!(service.ends_with(".health-check.localdns.local."), "{service}");
            }
            if tool("dig against the health zone", "dig") {
                let at = format!("@{ip}");
                run("dig", &["+short", "+timeout=2", "+tries=2", "health-check.localdns.local", &at]);
                run("dig", &["+short", "+timeout=2", "+tries=2", "+tcp", "health-check.localdns.local", &at]);
            }
        }
    });
}

#[test]
fn host_resolves_by_the_node_listener() {
    isolated(|| {
        if !tool("host_resolves_by_the_node_listener", "dig") {
            return;
        }
        let _node = Node::start("");
        fs::write("/etc/resolv.conf", "nameserver 169.254.10.10\n").unwrap();
        let text = run("dig", &["bing.com", "+timeout=1", "+tries=1"]);
        assert_contains!(text, "status: NOERROR");
        assert_contains!(text, "SERVER: 169.254.10.10");
    });
}

/// Entries of the hosts file precede the upstream's answers on both listeners.
#[test]
fn hosts_entries_win_over_upstream() {
    isolated(|| {
        let node = Node::start(
            "# mcr.microsoft.com\n192.0.2.10 mcr.microsoft.com\n192.0.2.11 mcr.microsoft.com\n192.0.2.12 mcr.microsoft.com\n\
             2001:db8::10 mcr.microsoft.com\n2001:db8::11 mcr.microsoft.com\n192.0.2.20 packages.aks.azure.com\n",
        );
        for ip in LISTENERS {
            let reply = ask(at(ip), "mcr.microsoft.com", "A");
            assert_eq!(reply.short(), ["192.0.2.10", "192.0.2.11", "192.0.2.12"]);
            assert!(reply.answers.iter().all(|record| record.ttl <= 5), "{:?}", reply.rows());
            assert_contains!(reply.flag_names(), "aa");
            let reply = ask(at(ip), "MCR.Microsoft.com", "AAAA");
            assert_eq!(reply.short(), ["2001:db8::10", "2001:db8::11"]);
            for (name, rtype) in [("mcr.microsoft.com", "TXT"), ("packages.aks.azure.com", "AAAA")] {
                let reply = ask(at(ip), name, rtype);
                assert_eq!((reply.status(), reply.answers.len()), ("NOERROR", 0), "{name} {rtype} at {ip}");
            }
            assert_eq!(ask(at(ip), "10.2.0.192.in-addr.arpa", "PTR").short(), ["mcr.microsoft.com."]);
        }
        for name in ["mcr.microsoft.com.", "packages.aks.azure.com."] {
            assert_eq!(node.vnet.count(name) + node.cluster.count(name), 0, "{name} went upstream");
        }
    });
}

/// Names resolve with an empty hosts file, and new entries are served even for names queried
/// before.
#[test]
fn cold_start_with_empty_hosts_file() {
    isolated(|| {
        let node = Node::start("");
        assert_eq!(ask(at(NODE), "mcr.microsoft.com", "A").short(), ["198.51.100.1"]);
        assert_eq!(ask(at(NODE), "bing.com", "A").short(), ["198.51.100.1"]);
        // Queried early, so that NXDOMAIN is cached.
        for ip in LISTENERS {
            assert_eq!(ask(at(ip), "canary.localdns.test", "A").status(), "NXDOMAIN");
        }
        publish(Path::new(HOSTS), "192.0.2.99 canary.localdns.test\n");
        for ip in LISTENERS {
            eventually("the new entry", Duration::from_secs(15), || {
                sleep(Duration::from_millis(50));
                (ask(at(ip), "canary.localdns.test", "A").short() == ["192.0.2.99"]).then_some(())
            });
        }
        drop(node);
    });
}

/// The critical names of the environment are maintained although the Corefile does not name them.
#[test]
fn critical_names_of_the_environment() {
    isolated(|| {
        let names = "mcr.microsoft.com,login.microsoftonline.com";
        let socket = "/etc/localdns/status.sock";
        let options = Options::default()
            .cwd(Path::new("/"))
            .env("LOCALDNS_CRITICAL_FQDNS", names)
            .env("LOCALDNS_HOSTS_PLUGIN_REFRESH_INTERVAL_IN_SECONDS", "5")
            .args(["-status", socket]);
        let node = Node::start_with("192.0.2.10 mcr.microsoft.com\n", fixtures::AKS, options);
        let kept = |last: u8| {
            for ip in LISTENERS {
                for name in names.split(',') {
                    let want = format!("198.51.100.{last}");
                    eventually(&format!("{name} at {ip}"), Duration::from_secs(20), || {
                        sleep(Duration::from_millis(20));
                        let reply = ask(at(ip), name, "A");
                        let is_entry = reply.flag_names().contains("aa");
                        (reply.short() == [want.as_str()] && is_entry).then_some(())
                    });
                }
            }
        };
        kept(1);
        assert_eq!(node.cluster.count("mcr.microsoft.com."), 0, "the first root block names the upstream");
        // From now on all lookups fail; clients see no change, only the metrics do.
        node.vnet.answer_by(|_| Action::rcode(2));
        eventually("a failed round", Duration::from_secs(20), || {
            sleep(Duration::from_millis(50));
            let metrics = Metrics::of(at9253());
            (metrics.count("localdns_refresh_rounds_total", &[("result", "failed")]) >= 1.0).then_some(())
        });
        kept(1);
        for ip in LISTENERS {
            let ready = http_get((ip.parse::<Ipv4Addr>().unwrap(), 8181).into(), "/ready").unwrap();
            assert_eq!(ready, (200, "OK".to_owned()));
        }
        node.vnet.answer_by(|asked| answer_all(asked, 7));
        kept(7);
    });
}

/// The templates answer names of a search path without an upstream query.
#[test]
fn templates_stop_search_path_leaks() {
    isolated(|| {
        let node = Node::start("");
        for ip in LISTENERS {
            for name in [
                "a.b.c.d.internal.cloudapp.net",
                "x.a.b.c.d.internal.cloudapp.net",
                "reddog.microsoft.com",
                "a.b.reddog.microsoft.com",
            ] {
                let reply = ask(at(ip), name, "A");
                assert_eq!((reply.status(), reply.answers.len()), ("NXDOMAIN", 0), "{name} at {ip}");
                assert_eq!(
                    node.vnet.count(&dotted(name)) + node.cluster.count(&dotted(name)),
                    0,
                    "{name} went upstream"
                );
            }
            assert_eq!(ask(at(ip), "a.b.c.internal.cloudapp.net", "A").status(), "NOERROR");
        }
        assert_eq!(node.vnet.count("a.b.c.internal.cloudapp.net."), 1);
        assert_eq!(node.cluster.count("a.b.c.internal.cloudapp.net."), 1);
    });
}

/// A client that requests NSID gets the listener's name.
#[test]
fn nsid_names_the_listener() {
    isolated(|| {
        let _node = Node::start("");
        for (ip, id) in [(NODE, "localdns"), (PODS, "localdns-pod")] {
            for name in ["bing.com", "a.reddog.microsoft.com", "kubernetes.default.svc.cluster.local"] {
                for _ in ["miss", "hit"] {
                    let reply = Ask::new(name, "A").nsid().of(at(ip));
                    let found = reply.option(3).unwrap_or_else(|| panic!("no NSID for {name} at {ip}"));
                    assert_eq!(found, id.as_bytes(), "{name} at {ip}");
                    assert_eq!(Ask::new(name, "A").edns(1232).of(at(ip)).option(3), None, "unasked");
                }
            }
        }
    });
}

/// The metrics at one listener cover every server block.
#[test]
fn metrics_cover_every_block() {
    isolated(|| {
        let _node = Node::start("192.0.2.10 mcr.microsoft.com\n");
        for ip in LISTENERS {
            for name in ["bing.com", "bing.com", "mcr.microsoft.com", "kubernetes.default.svc.cluster.local"]
            {
                ask(at(ip), name, "A");
            }
        }
        // Only type A: others, such as the loop plugin's probes, are not the test's.
        let counted =
            |metrics: &Metrics| metrics.count("coredns_dns_requests_total", &[("type", "A")]) >= 8.0;
        let metrics = Metrics::when(at9253(), counted);
        for ip in LISTENERS {
            let server = format!("dns://{ip}:53");
            for (zone, least) in [(".", 3.0), ("cluster.local.", 1.0)] {
                let seen = metrics.count(
                    "coredns_dns_requests_total",
                    &[("server", &server), ("zone", zone), ("type", "A")],
                );
                assert!(seen >= least, "{server} {zone}: {seen}");
                let labels = [("server", &server[..]), ("zone", zone), ("rcode", "NOERROR")];
                assert!(metrics.count("coredns_dns_responses_total", &labels) >= least, "{server} {zone}");
            }
            assert!(metrics.count("coredns_cache_hits_total", &[("server", &server)]) >= 1.0, "{server}");
        }
        assert_eq!(metrics.count("coredns_hosts_entries", &[]) % 1.0, 0.0);
        assert!(metrics.count("coredns_hosts_entries", &[]) >= 1.0);
        assert!(
            metrics.count("coredns_proxy_request_duration_seconds_count", &[("to", &format!("{VNET}:53"))])
                >= 1.0
        );
        assert!(
            metrics
                .count("coredns_proxy_request_duration_seconds_count", &[("to", &format!("{CLUSTER}:53"))])
                >= 1.0
        );
    });
}

#[test]
fn only_the_node_listener_logs_queries() {
    isolated(|| {
        let node = Node::start("");
        ask(at(PODS), "unlogged.example", "A");
        ask(at(NODE), "logged.example", "A");
        let line = node.server.wait_for_log("logged.example. udp", Duration::from_secs(2));
        assert_contains!(line, "\"A IN logged.example. udp ");
        assert!(!node.server.log_text().contains("unlogged.example."));
    });
}

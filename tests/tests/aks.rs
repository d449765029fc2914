//! The Corefile that AKS LocalDNS runs, served unmodified: acceptance checks over the real binary, in a network of each test's own that has the production
//! addresses. There the mock upstreams are 168.63.129.16 (the platform's resolver) and 10.0.0.10 (the cluster's).

use std::collections::HashMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use tests::{
    Action, Ask, Asked, Cgroup, Connection, Message, Metrics, Options, Says, Server, Stream, Transport,
    Upstream, add_address, ask, assert_contains, binary, eventually, fixtures, flood, http_get, isolated,
    isolated_for, now, publish, run, skip, tool,
};

const VNET: &str = "168.63.129.16";
const CLUSTER: &str = "10.0.0.10";
const HOSTS: &str = "/etc/localdns/hosts";
const SOA: &str = "example. 60 IN SOA ns.example. host.example. 1 7200 900 86400 30";

#[test]
fn version_and_plugins_are_what_the_image_test_reads() {
    let version = run(&binary().to_string_lossy(), &["--version"]);
    let first = version.lines().next().unwrap_or_default();
    let (name, number) = first.split_once('-').unwrap_or_else(|| panic!("{first:?} does not split on -"));
    assert!(matches!(name.to_lowercase().as_str(), "localdns" | "coredns"), "{first:?}");
    assert!(number.starts_with(|first: char| first.is_ascii_digit()), "{first:?}");

    let plugins = run(&binary().to_string_lossy(), &["--plugins"]);
    let words = [
        "bind",
        "whoami",
        "errors",
        "log",
        "hosts",
        "forward",
        "ready",
        "cache",
        "loop",
        "nsid",
        "prometheus",
        "template",
    ];
    for word in words {
        let listed = plugins.lines().any(|line| line.trim().trim_start_matches("dns.") == word);
        assert!(listed, "{word} is not listed:\n{plugins}");
    }
}

#[test]
fn it_starts_ready_on_both_listeners() {
    isolated(|| {
        let node = Node::start("");
        assert!(node.server.started_in() < Duration::from_secs(2), "{:?}", node.server.started_in());
        for ip in LISTENERS {
            let ready = eventually("ready", Duration::from_secs(5), || {
                let (status, body) = http_get(format!("{ip}:8181").parse().unwrap(), "/ready").ok()?;
                (status == 200).then_some(body)
            });
            assert_eq!(ready, "OK");
            if tool("curl against /ready", "curl") {
                assert_eq!(run("curl", &["-s", "--noproxy", ip, &format!("http://{ip}:8181/ready")]), "OK");
            }
        }
    });
}

#[test]
fn the_health_zone_answers_whoami_on_both_listeners() {
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
fn the_host_resolves_through_the_node_listener() {
    isolated(|| {
        if !tool("the_host_resolves_through_the_node_listener", "dig") {
            return;
        }
        let _node = Node::start("");
        fs::write("/etc/resolv.conf", "nameserver 169.254.10.10\n").unwrap();
        let text = run("dig", &["bing.com", "+timeout=1", "+tries=1"]);
        assert_contains!(text, "status: NOERROR");
        assert_contains!(text, "SERVER: 169.254.10.10");
    });
}

#[test]
fn hosts_entries_win_over_upstream_on_both_listeners() {
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

#[test]
fn a_cold_start_with_an_empty_hosts_file_resolves_and_then_sees_new_entries_even_if_asked_early() {
    isolated(|| {
        let node = Node::start("");
        assert_eq!(ask(at(NODE), "mcr.microsoft.com", "A").short(), ["198.51.100.1"]);
        assert_eq!(ask(at(NODE), "bing.com", "A").short(), ["198.51.100.1"]);
        // Asked early: the NXDOMAIN is in the cache now.
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

#[test]
fn each_listener_forwards_to_its_own_upstream() {
    isolated(|| {
        let node = Node::start("");
        let table = [
            (NODE, "bing.com", "198.51.100.1", Transport::Udp),
            (PODS, "bing.com", "198.51.100.2", Transport::Udp),
            (NODE, "kubernetes.default.svc.cluster.local", "198.51.100.2", Transport::Tcp),
            (PODS, "kubernetes.default.svc.cluster.local", "198.51.100.2", Transport::Tcp),
        ];
        for (ip, name, answer, transport) in table {
            for query in [Ask::new(name, "A"), Ask::new(name, "A").tcp()] {
                assert_eq!(query.of(at(ip)).short(), [answer], "{name} at {ip}");
            }
            let asked = [node.vnet.asked_for(&dotted(name)), node.cluster.asked_for(&dotted(name))].concat();
            // force_tcp keeps to TCP; prefer_udp takes UDP even for clients that came over TCP.
            assert!(asked.iter().all(|asked| asked.transport == transport), "{name} at {ip}: {asked:?}");
        }
        assert_eq!(node.vnet.count("bing.com."), 1, "the second client is served from the cache");
        assert_eq!(node.vnet.count("kubernetes.default.svc.cluster.local."), 0, "cluster names stay inside");
    });
}

#[test]
fn prefer_udp_takes_a_truncated_reply_to_tcp() {
    isolated(|| {
        let node = Node::start("");
        node.vnet.answer_by(|asked| {
            let lines: String =
                (0..100).map(|n| format!("{} 300 IN A 198.51.100.{n}\n", asked.name)).collect();
            Action::Truncate(Says::answer(&lines))
        });
        let reply = Ask::new("many.example", "A").tcp().of(at(NODE));
        assert_eq!((reply.status(), reply.answers.len()), ("NOERROR", 100));
        let transports: Vec<Transport> =
            node.vnet.asked_for("many.example.").iter().map(|asked| asked.transport).collect();
        assert_eq!(transports, [Transport::Udp, Transport::Tcp]);
        let small = Ask::new("many.example", "A").of(at(NODE));
        assert!(
            small.flag_names().contains("tc") && small.bytes.len() <= 512,
            "{} octets",
            small.bytes.len()
        );
    });
}

#[test]
fn templates_stop_search_path_leaks_without_upstream_traffic() {
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

#[test]
fn nsid_names_the_listener_to_those_who_ask() {
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

#[test]
fn beyond_max_concurrent_a_query_is_refused_at_once() {
    isolated(|| {
        let node = Node::start_on("", &fixtures::AKS.replace("max_concurrent 1000", "max_concurrent 3"));
        node.vnet.answer_by(|asked| answer_all(asked, 1).after(Duration::from_millis(1500)));
        scope(|scope| {
            let waiting: Vec<_> = (0..3)
                .map(|n| scope.spawn(move || ask(at(NODE), &format!("slow{n}.example"), "A").status()))
                .collect();
            eventually("three queries in flight", Duration::from_secs(1), || {
                let slow = (0..3).filter(|n| node.vnet.count(&format!("slow{n}.example.")) > 0);
                (slow.count() == 3).then_some(())
            });
            let reply = ask(at(NODE), "one-too-many.example", "A");
            assert_eq!(reply.status(), "REFUSED");
            assert!(reply.elapsed < Duration::from_millis(500), "{:?}", reply.elapsed);
            for waiting in waiting {
                assert_eq!(waiting.join().unwrap(), "NOERROR");
            }
        });
        assert_eq!(ask(at(NODE), "slow0.example", "A").status(), "NOERROR");
        let metrics = Metrics::of(at9253());
        assert!(metrics.count("coredns_forward_max_concurrent_rejects_total", &[]) >= 1.0);
    });
}

#[test]
fn a_dead_first_upstream_does_not_cost_the_client_its_answer() {
    isolated(|| {
        add_address("10.0.0.1/32");
        let text = fixtures::AKS.replace("forward . 168.63.129.16", "forward . 10.0.0.1 168.63.129.16");
        let dead = Upstream::at("10.0.0.1:53".parse().unwrap(), |_| Action::Silent);
        let _node = Node::start_on("", &text);
        for n in 0..3 {
            let reply = ask(at(NODE), &format!("n{n}.example"), "A");
            assert_eq!(reply.short(), ["198.51.100.1"]);
            assert!(reply.elapsed < Duration::from_millis(700), "{:?}", reply.elapsed);
        }
        assert!(dead.total() > 0, "sequential asks the first one first");
    });
}

#[test]
fn serve_stale_immediate_and_verify_outlive_their_upstreams() {
    isolated(|| {
        // Records live 5 s at least in this cache; less is not to be had from this Corefile.
        let mut node = Node::start("");
        node.vnet.answer_by(|asked| Action::answer(&format!("{} 1 IN A 198.51.100.1", asked.name)));
        node.cluster.answer_by(|asked| Action::answer(&format!("{} 1 IN A 198.51.100.2", asked.name)));
        let stored = now();
        assert_eq!(ask(at(NODE), "stale.example", "A").short(), ["198.51.100.1"]);
        assert_eq!(ask(at(PODS), "stale.example", "A").short(), ["198.51.100.2"]);
        node.vnet.stop();
        node.cluster.stop();
        sleep(Duration::from_secs(6).saturating_sub(stored.elapsed()));
        let reply = ask(at(NODE), "stale.example", "A");
        assert_eq!((reply.status(), reply.short()), ("NOERROR", vec!["198.51.100.1"]));
        assert!(reply.elapsed < Duration::from_millis(300), "immediate: {:?}", reply.elapsed);
        assert!(reply.answers[0].ttl <= 30, "{:?}", reply.rows());
        let reply = ask(at(PODS), "stale.example", "A");
        assert_eq!((reply.status(), reply.short()), ("NOERROR", vec!["198.51.100.2"]));
        assert!(reply.elapsed < Duration::from_millis(2500), "verify: {:?}", reply.elapsed);
    });
}

#[test]
fn metrics_cover_every_block_on_one_listener() {
    isolated(|| {
        let _node = Node::start("192.0.2.10 mcr.microsoft.com\n");
        for ip in LISTENERS {
            for name in ["bing.com", "bing.com", "mcr.microsoft.com", "kubernetes.default.svc.cluster.local"]
            {
                ask(at(ip), name, "A");
            }
        }
        // Others than ours, such as the loop plugin's, are of another type.
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
                let said = [("server", &server[..]), ("zone", zone), ("rcode", "NOERROR")];
                assert!(metrics.count("coredns_dns_responses_total", &said) >= least, "{server} {zone}");
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
fn the_node_listener_logs_queries_and_the_pod_listener_does_not() {
    isolated(|| {
        let node = Node::start("");
        ask(at(PODS), "unlogged.example", "A");
        ask(at(NODE), "logged.example", "A");
        let line = node.server.wait_for_log("logged.example. udp", Duration::from_secs(2));
        assert_contains!(line, "\"A IN logged.example. udp ");
        assert!(!node.server.log_text().contains("unlogged.example."));
    });
}

#[test]
fn missing_listener_addresses_are_added_and_left_in_place() {
    isolated(|| {
        add_address("168.63.129.16/32");
        add_address("10.0.0.10/32");
        let mut node = Node::start_here("", fixtures::AKS);
        let addresses = || run("ip", &["-4", "-oneline", "address", "show"]);
        for ip in LISTENERS {
            assert_eq!(ask(at(ip), "bing.com", "A").status(), "NOERROR");
            let found = addresses();
            let line = found
                .lines()
                .find(|line| line.contains(&format!(" {ip}/32 ")))
                .expect("the address was added");
            assert_contains!(line, "scope host");
        }
        // A dummy or, where the kernel has none, a bridge without ports.
        let link = run("ip", &["-details", "link", "show", "dev", "localdns"]);
        let kind = ["    dummy ", "    bridge "].iter().find(|kind| link.contains(**kind));
        assert!(kind.is_some() && run("ip", &["link", "show", "master", "localdns"]).is_empty(), "{link}");
        assert!(node.server.stop().success());
        assert_contains!(addresses(), "169.254.10.10/32");
        // Adopted, not added again.
        drop(node);
        let _node = Node::start_here("", fixtures::AKS);
        assert_eq!(addresses().matches("169.254.10.10/32").count(), 1);
    });
}

#[test]
fn the_seed_corefile_is_served() {
    isolated(|| {
        let _node = Node::start_on("192.0.2.10 mcr.microsoft.com\n", fixtures::SEED);
        assert_eq!(ask(at(NODE), "mcr.microsoft.com", "A").short(), ["192.0.2.10"]);
        assert_eq!(ask(at(NODE), "bing.com", "A").short(), ["198.51.100.1"]);
    });
}

#[test]
fn the_node_local_corefile_is_served() {
    isolated(|| {
        let text = fixtures::node_local([NODE, PODS], "10.0.0.10", "168.63.129.16");
        let _node = Node::start_on("", &text);
        assert_eq!(ask(at(PODS), "kubernetes.default.svc.cluster.local", "A").short(), ["198.51.100.2"]);
        assert_eq!(ask(at(NODE), "bing.com", "A").short(), ["198.51.100.1"]);
        assert_eq!(
            http_get("169.254.10.10:8080".parse().unwrap(), "/health").unwrap(),
            (200, "OK".to_owned())
        );
    });
}

#[test]
fn sigterm_ends_it_with_zero_and_a_kill_is_survived_by_the_next_start() {
    isolated(|| {
        for _ in 0..5 {
            let node = Node::start("");
            assert_eq!(ask(at(NODE), "bing.com", "A").status(), "NOERROR");
            // Dropped: killed without a chance to clean up.
            drop(node);
        }
        let mut node = Node::start("");
        assert_eq!(node.server.stop().code(), Some(0));
    });
}

#[test]
fn hits_are_served_while_a_thousand_upstream_queries_hang() {
    isolated(|| {
        let node = Node::start("192.0.2.10 mcr.microsoft.com\n");
        assert_eq!(ask(at(NODE), "bing.com", "A").status(), "NOERROR");
        node.vnet.answer_by(|_| Action::Silent);
        let flood = Stream::start(at(NODE), 500, |n| Ask::new(&format!("hang{n}.example"), "A"), |_, _| true);
        let hits = Stream::start(at(NODE), 200, hit, right_hit);
        eventually("a thousand queries that hang", Duration::from_secs(10), || {
            (node.vnet.total() >= 1_000).then_some(())
        });
        sleep(Duration::from_secs(1));
        let hits = hits.finish(Duration::from_secs(1));
        let flood = flood.finish(Duration::from_secs(7));
        hits.assert_clean();
        assert!(hits.slowest < Duration::from_millis(200), "{hits:?}");
        assert_eq!(flood.lost, 0, "every client gets an answer: {flood:?}");
        let deadline = Duration::from_secs(5);
        assert!(flood.slowest < deadline, "clients gave up before they were answered: {flood:?}");
        // What the server measured: from a query's first sight to its reply.
        let slow =
            node.server.log_lines().into_iter().find(|line| took(line).is_some_and(|took| took >= 5.0));
        assert_eq!(slow, None);
        let memory = node.server.rss_kb();
        assert!(memory < 128 << 10, "{memory} KiB");
    });
}

/// The seconds at the end of a log line.
fn took(line: &str) -> Option<f64> {
    line.rsplit_once(' ')?.1.strip_suffix('s')?.parse().ok()
}

#[test]
#[ignore = "takes minutes: a million misses under the memory limit of production"]
fn a_million_unique_misses_fit_the_memory_of_production() {
    isolated_for(Duration::from_secs(1_800), || misses_in_little_memory(1_000_000));
}

#[test]
fn unique_misses_fit_the_memory_of_production() {
    isolated(|| misses_in_little_memory(50_000));
}

/// So many fresh names in 128 MiB, while a thousand other queries wait for upstreams that say nothing: every query is answered, and hits at once.
fn misses_in_little_memory(misses: usize) {
    let group = Cgroup::memory(128 << 20);
    let mut options = Options::default().cwd(Path::new("/"));
    match &group {
        Ok(group) => options = options.within(group),
        Err(why) => skip("the memory limit of the kernel", why),
    }
    let node = Node::start_with("192.0.2.10 mcr.microsoft.com\n", fixtures::AKS, options);
    assert_eq!(ask(at(NODE), "bing.com", "A").status(), "NOERROR");
    // Which names the upstreams were silent about, and since when.
    let hung: Arc<Mutex<HashMap<String, Instant>>> = Arc::default();
    let silent = || {
        let hung = Arc::clone(&hung);
        move |asked: &Asked| {
            hung.lock().expect(UNHARMED).entry(asked.name.clone()).or_insert_with(now);
            Action::Silent
        }
    };
    let silent_about = silent();
    node.vnet.answer_by(move |asked| match asked.name.starts_with("hang") {
        true => silent_about(asked),
        false => answer_all(asked, 1),
    });
    node.cluster.answer_by(silent());
    // Each is given up after 4.8 s.
    let waiting = || {
        hung.lock()
            .expect(UNHARMED)
            .values()
            .filter(|since| since.elapsed() < Duration::from_millis(4_700))
            .count()
    };
    let hang = |zone| move |n| Ask::new(&format!("hang{n}.{zone}"), "A");
    let servfail = |_, message: &Message| message.rcode() == 2;
    // 4.8 s each: about 400 over UDP, which with the misses stay below `max_concurrent`, and 750 over TCP.
    let hanging = [("example", 80), ("cluster.local", 160)]
        .map(|(zone, rate)| Stream::start(at(NODE), rate, hang(zone), servfail));
    let hits = Stream::start(at(NODE), 100, hit, right_hit);
    eventually("a thousand queries that hang at once", Duration::from_secs(60), || {
        (waiting() >= 1_000).then_some(())
    });
    let (mut peak, mut least, mut most) = (0, usize::MAX, 0);
    scope(|scope| {
        let floods = [0, 1].map(|of| {
            let fresh = move |n| Ask::new(&format!("miss{of}-{n}.example"), "A");
            let right = |_, message: &Message| message.rcode() == 0 && message.answers.len() == 1;
            scope.spawn(move || flood(at(NODE), misses / 2, 128, fresh, right))
        });
        while floods.iter().any(|flood| !flood.is_finished()) {
            sleep(Duration::from_millis(100));
            peak = peak.max(node.server.rss_kb());
            (least, most) = (least.min(waiting()), most.max(waiting()));
        }
        for flood in floods {
            flood.join().expect("the flood does not panic").assert_clean();
        }
    });
    hits.finish(Duration::from_secs(1)).assert_clean();
    for hanging in hanging {
        hanging.finish(Duration::from_secs(6)).assert_clean();
    }
    let hung = hung.lock().expect(UNHARMED).len();
    assert!(most >= 1_000, "{least} to {most} queries hung beside the misses, {hung} in all");
    assert!(peak < 128 << 10, "{peak} KiB");
    if let Ok(group) = &group {
        assert_eq!(group.killed(), 0);
        let held = group.peak().unwrap_or_default() >> 10;
        eprintln!(
            "measured: {misses} misses beside {least} to {most} silent queries ({hung} in all): resident {peak} KiB at most, the group {held} KiB"
        );
    }
}

#[test]
fn pipelined_tcp_queries_do_not_wait_for_each_other() {
    isolated(|| {
        let node = Node::start("192.0.2.10 mcr.microsoft.com\n");
        node.vnet.answer_by(|asked| answer_all(asked, 1).after(Duration::from_millis(800)));
        let mut connection = Connection::open(at(NODE), Duration::from_secs(3)).unwrap();
        connection.send(&Ask::new("slow.example", "A").id(1).bytes()).unwrap();
        connection.send(&Ask::new("mcr.microsoft.com", "A").id(2).bytes()).unwrap();
        let ids = [connection.message().unwrap().id, connection.message().unwrap().id];
        assert_eq!(ids, [2, 1], "the hit comes first");
    });
}

/// Why what the mock upstreams write down can be read.
const UNHARMED: &str = "no script panics";
const NODE: &str = "169.254.10.10";
const PODS: &str = "169.254.10.11";
const LISTENERS: [&str; 2] = [NODE, PODS];

/// A node with its two mock upstreams and the server under test.
struct Node {
    vnet: Upstream,
    cluster: Upstream,
    server: Server,
}

impl Node {
    /// The production Corefile, with this hosts file.
    fn start(hosts: &str) -> Self {
        Self::start_on(hosts, fixtures::AKS)
    }

    fn start_on(hosts: &str, corefile: &str) -> Self {
        Self::start_with(hosts, corefile, Options::default().cwd(Path::new("/")))
    }

    fn start_with(hosts: &str, corefile: &str, options: Options) -> Self {
        for ip in [NODE, PODS, VNET, CLUSTER] {
            let there = run("ip", &["-oneline", "address", "show"]).contains(&format!(" {ip}/32 "));
            if !there {
                add_address(&format!("{ip}/32"));
            }
        }
        Self::start_as_it_is(hosts, corefile, options)
    }

    /// On the addresses that are there.
    fn start_here(hosts: &str, corefile: &str) -> Self {
        Self::start_as_it_is(hosts, corefile, Options::default().cwd(Path::new("/")))
    }

    fn start_as_it_is(hosts: &str, corefile: &str, options: Options) -> Self {
        fs::create_dir_all("/etc/localdns").expect("/etc is this test's own");
        publish(Path::new(HOSTS), hosts);
        Self {
            vnet: Upstream::at(at(VNET), |asked| answer_all(asked, 1)),
            cluster: Upstream::at(at(CLUSTER), |asked| answer_all(asked, 2)),
            server: Server::start_with(corefile, options),
        }
    }
}

/// An address for every name, but none under `test.` and none for other types.
fn answer_all(asked: &Asked, last: u8) -> Action {
    match asked.rtype {
        _ if asked.name.ends_with(".test.") => Action::nxdomain(SOA),
        1 => Action::answer(&format!("{} 300 IN A 198.51.100.{last}", asked.name)),
        _ => Action::Reply(Says::nodata(SOA)),
    }
}

fn hit(n: usize) -> Ask {
    Ask::new(["mcr.microsoft.com", "bing.com"][n % 2], "A")
}

fn right_hit(n: usize, message: &Message) -> bool {
    message.answers.first().is_some_and(|record| record.data == ["192.0.2.10", "198.51.100.1"][n % 2])
}

fn at(ip: &str) -> SocketAddr {
    (ip.parse::<Ipv4Addr>().expect("a constant address"), 53).into()
}

fn at9253() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 9253).into()
}

fn dotted(name: &str) -> String {
    format!("{name}.")
}

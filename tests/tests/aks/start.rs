//! Start and stop: messages before serving, addresses, and the Corefiles beside the production one.

use std::time::Duration;

use tests::{add_address, ask, assert_contains, binary, eventually, fixtures, http_get, isolated, run, tool};

use super::{LISTENERS, NODE, Node, PODS, at};

/// `-version` and `-plugins` print what the image's test reads.
#[test]
fn version_and_plugins_of_the_image() {
    let version = run(&binary().to_string_lossy(), &["--version"]);
    let first = version.lines().next().unwrap_or_default();
    let (name, number) = first.split_once('-').unwrap_or_else(|| panic!("{first:?} does not split on -"));
    assert_eq!(name, "localdns", "{first:?}");
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

/// Missing listener addresses are added, and they stay at the end.
#[test]
fn listener_addresses_are_added_and_stay() {
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
        // The next start reuses the address.
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

/// SIGTERM ends the server with exit status 0, and the next start works after a kill.
#[test]
fn exit_by_sigterm_and_by_kill() {
    isolated(|| {
        for _ in 0..5 {
            let node = Node::start("");
            assert_eq!(ask(at(NODE), "bing.com", "A").status(), "NOERROR");
            // Dropping the node kills the server without cleanup.
            drop(node);
        }
        let mut node = Node::start("");
        assert_eq!(node.server.stop().code(), Some(0));
    });
}

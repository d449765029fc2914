//! Building a configuration.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::Duration;

use admin::AdminAddress;
use scene::Scene;

#[test]
fn zone_twice_on_an_address_is_refused() {
    const DEFINED: &str = "it is already defined at";
    const ONCE: &str = "; merge the blocks, or give each its own `bind`";
    const MIXED: &str = "one block has `bind`, the other listens on all addresses; give both a `bind`";
    for (corefile, error) in [
        (
            ". {\nwhoami\n}\n. {\nwhoami\n}\n",
            format!("stdin:4:1: cannot serve dns://.:53 - {DEFINED} stdin:1:1{ONCE}"),
        ),
        (
            ". {\nbind 127.0.0.1\n}\n.:53 {\nbind 127.0.0.1\n}\n",
            format!("stdin:4:1: cannot serve dns://.:53 on 127.0.0.1 - {DEFINED} stdin:1:1{ONCE}"),
        ),
        (
            ". {\nbind eth0\n}\n. {\nbind 192.0.2.10\n}\n",
            format!("stdin:4:1: cannot serve dns://.:53 on 192.0.2.10 - {DEFINED} stdin:1:1{ONCE}"),
        ),
        (
            "a.org b.org A.org {\nwhoami\n}\n",
            format!("stdin:1:13: cannot serve dns://a.org.:53 - {DEFINED} stdin:1:1{ONCE}"),
        ),
        (
            "10.0.0.0/24 0.0.10.in-addr.arpa {\nwhoami\n}\n",
            format!("stdin:1:13: cannot serve dns://0.0.10.in-addr.arpa.:53 - {DEFINED} stdin:1:1{ONCE}"),
        ),
        (
            ". {\nbind 127.0.0.1\n}\n. {\nwhoami\n}\n",
            format!(
                "stdin:4:1: cannot serve dns://.:53 - zone overlap listener capacity with stdin:1:1: {MIXED}"
            ),
        ),
        (
            ". {\nwhoami\n}\n. {\nbind 127.0.0.1\n}\n",
            format!(
                "stdin:4:1: cannot serve dns://.:53 - zone overlap listener capacity with stdin:1:1: {MIXED}"
            ),
        ),
        (
            ". {\nbind eth9\n}\n",
            "stdin:2:6: plugin/bind: no interface \"eth9\" on this machine; name one that `ip link` lists, or an \
             IP address"
                .to_owned(),
        ),
        (
            ". {\nbind eth0 {\nexcept 192.0.2.10 2001:db8::10\n}\n}\n",
            "stdin:2:6: plugin/bind: `except` leaves no address to listen on; leave one".to_owned(),
        ),
    ] {
        assert_eq!(Scene::build(corefile).err(), Some(error), "{corefile}");
    }
}

#[test]
fn equal_zones_on_different_endpoints() {
    let scene = Scene::new(
        ". {\nbind 127.0.0.1\nwhoami\n}\n. {\nbind 127.0.0.2\nwhoami\n}\n.:54 example.org {\nwhoami\n}\n",
    );
    let endpoints: Vec<String> = scene.configuration.endpoints.keys().map(ToString::to_string).collect();
    assert_eq!(endpoints, ["0.0.0.0:53", "0.0.0.0:54", "127.0.0.1:53", "127.0.0.2:53", "[::]:53", "[::]:54"]);
    assert_eq!(
        scene.configuration.banner(),
        [".:53 on 127.0.0.1", ".:53 on 127.0.0.2", "example.org.:53", ".:54"]
    );
}

#[test]
fn server_labels() {
    let scene = Scene::new(
        ". {\nbind 127.0.0.1 ::1\nprometheus\nerrors\ncache\nforward . 192.0.2.53\n}\nexample.org:5300 {\nprometheus\nwhoami\n}\n",
    );
    let mut labels: Vec<_> = scene
        .shared
        .zones
        .all()
        .into_iter()
        .map(|(labels, _)| (labels.server, labels.zone, labels.plugin))
        .collect();
    labels.sort();
    let expected = [
        ("dns://127.0.0.1:53", ".", "errors"),
        ("dns://127.0.0.1:53", "dropped", ""),
        ("dns://:5300", "dropped", ""),
        ("dns://:5300", "example.org.", "whoami"),
        ("dns://[::1]:53", ".", "errors"),
        ("dns://[::1]:53", "dropped", ""),
    ];
    assert_eq!(labels, expected.map(|(server, zone, plugin)| (server.into(), zone.into(), plugin)));
}

#[test]
fn settings_of_several_blocks() {
    let scene = Scene::new(
        "a. {\nhealth :8080 {\nlameduck 5s\n}\nready\nprometheus :9253\nreload 10s 2s\nwhoami\n}\n\
         b. {\nhealth :8080 {\nlameduck 7s\n}\nready 127.0.0.1:8181\nprometheus :9253\nmultisocket 3\ndebug\nwhoami\n}\n",
    );
    let configuration = &scene.configuration;
    let ports = |addresses: &[AdminAddress]| -> Vec<String> {
        addresses
            .iter()
            .map(|a| format!("{}:{}", a.host.map_or(String::new(), |h| h.to_string()), a.port))
            .collect()
    };
    assert_eq!(ports(&configuration.admin.health), [":8080"]);
    assert_eq!(ports(&configuration.admin.ready), [":8181", "127.0.0.1:8181"]);
    assert_eq!(ports(&configuration.admin.metrics), [":9253"]);
    assert_eq!(
        (configuration.lameduck, configuration.sockets, configuration.debug),
        (Duration::from_secs(7), 3, true)
    );
    assert_eq!(configuration.reload.map(|reload| reload.interval), Some(Duration::from_secs(10)));
}

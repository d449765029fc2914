//! The pipeline without a socket.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::Duration;

use scene::{Scene, Sent, packet};
use wire::{Proto, RType};

const AT: &str = "127.0.0.1:53";

fn scene(lines: &str) -> Scene {
    Scene::new(&format!(". {{\nbind 127.0.0.1\n{lines}\n}}\n"))
}

fn rows(scene: &Scene, rows: &[(&str, RType, &str)]) {
    for (name, rtype, expected) in rows {
        assert_eq!(scene.ask(AT, name, *rtype), *expected, "{name} {rtype}");
    }
}

const HOSTS: &str =
    "192.0.2.1 web.example.org www.example.org\n2001:db8::1 web.example.org\n192.0.2.5 *.wild.example.org";

#[test]
fn hosts_forward_and_reverse() {
    let scene = scene(&format!("hosts /nowhere/h {{\nttl 60\n{HOSTS}\n}}"));
    rows(
        &scene,
        &[
            ("web.example.org", RType::A, "NOERROR aa; web.example.org. 60 IN A 192.0.2.1"),
            ("wEb.eXample.ORG", RType::A, "NOERROR aa; wEb.eXample.ORG. 60 IN A 192.0.2.1"),
            ("web.example.org", RType::AAAA, "NOERROR aa; web.example.org. 60 IN AAAA 2001:db8::1"),
            ("x.wild.example.org", RType::A, "NOERROR aa; x.wild.example.org. 60 IN A 192.0.2.5"),
            (
                "1.2.0.192.in-addr.arpa",
                RType::PTR,
                "NOERROR aa; 1.2.0.192.in-addr.arpa. 60 IN PTR web.example.org.; 1.2.0.192.in-addr.arpa. 60 IN PTR www.example.org.",
            ),
            // Known name, other type: NODATA.
            ("www.example.org", RType::AAAA, "NOERROR aa"),
            ("web.example.org", RType::TXT, "NOERROR aa"),
            ("web.example.org", RType::HTTPS, "NOERROR aa"),
            ("web.example.org", RType::ANY, "NOERROR aa"),
            // Unknown name, no fallthrough.
            ("nope.example.org", RType::A, "SERVFAIL"),
            ("example.org", RType::A, "SERVFAIL"),
            ("x.y.wild.example.org", RType::A, "SERVFAIL"),
            // An unknown address falls through, and no plugin is left.
            ("9.2.0.192.in-addr.arpa", RType::PTR, "SERVFAIL"),
        ],
    );
}

#[test]
fn fallthrough_zones() {
    for (properties, inside, outside, other_type) in [
        ("", "SERVFAIL", "SERVFAIL", "NOERROR aa"),
        ("fallthrough", "forward", "forward", "NOERROR aa"),
        ("fallthrough example.org", "forward", "SERVFAIL", "NOERROR aa"),
        ("fallthrough_unsupported", "SERVFAIL", "SERVFAIL", "NOERROR aa"),
        ("fallthrough\nfallthrough_unsupported", "forward", "forward", "forward"),
        ("fallthrough example.com\nfallthrough_unsupported", "SERVFAIL", "SERVFAIL", "NOERROR aa"),
    ] {
        let scene = scene(&format!("hosts /nowhere/h {{\n{HOSTS}\n{properties}\n}}\nforward . 192.0.2.53"));
        for (name, rtype, expected) in [
            ("nope.example.org", RType::A, inside),
            ("nope.example.net", RType::A, outside),
            ("www.example.org", RType::TXT, other_type),
            ("www.example.org", RType::AAAA, "NOERROR aa"),
            // An address that is not in the table always falls through.
            ("9.2.0.192.in-addr.arpa", RType::PTR, "forward"),
        ] {
            assert_eq!(scene.ask(AT, name, rtype), expected, "{properties:?}: {name} {rtype}");
        }
    }
}

#[test]
fn hosts_zones() {
    let scene =
        scene(&format!("hosts /nowhere/h example.org {{\n{HOSTS}\nno_reverse\n}}\nforward . 192.0.2.53"));
    rows(
        &scene,
        &[
            ("www.example.org", RType::A, "NOERROR aa; www.example.org. 3600 IN A 192.0.2.1"),
            ("nope.example.org", RType::A, "SERVFAIL"),
            ("nope.example.net", RType::A, "forward"),
            ("1.2.0.192.in-addr.arpa", RType::PTR, "forward"),
        ],
    );
}

#[test]
fn order_is_independent_of_the_corefile() {
    const LINES: [&str; 5] = [
        "whoami",
        "forward example.org 192.0.2.53",
        "cache",
        "hosts /nowhere/h {\n192.0.2.1 both.example.org hosts.example.org\nfallthrough\n}",
        "template IN A example.org {\nmatch ^(both|kept)\nanswer \"{{ .Name }} 30 IN A 192.0.2.9\"\nfallthrough\n}",
    ];
    for turn in 0..LINES.len() {
        let mut lines = LINES;
        lines.rotate_left(turn);
        let scene = scene(&lines.join("\n"));
        scene.keep(AT, "hosts.example.org", RType::A, &["hosts.example.org. 60 A 192.0.2.77"]);
        scene.keep(AT, "kept.example.org", RType::A, &["kept.example.org. 60 A 192.0.2.77"]);
        scene.keep(AT, "only.example.org", RType::A, &["only.example.org. 60 A 192.0.2.77"]);
        rows(
            &scene,
            &[
                ("both.example.org", RType::A, "NOERROR aa; both.example.org. 30 IN A 192.0.2.9"),
                ("kept.example.org", RType::A, "NOERROR aa; kept.example.org. 30 IN A 192.0.2.9"),
                ("hosts.example.org", RType::A, "NOERROR aa; hosts.example.org. 3600 IN A 192.0.2.1"),
                ("only.example.org", RType::A, "NOERROR; only.example.org. 60 IN A 192.0.2.77"),
                ("other.example.org", RType::A, "forward"),
                // Outside of the forwarded zones.
                (
                    "example.net",
                    RType::A,
                    "NOERROR aa; additional example.net. 0 IN A 192.0.2.200; additional _udp.example.net. 0 IN SRV 0 0 40000 .",
                ),
            ],
        );
    }
}

#[test]
fn hosts_entry_wins_over_the_cache() {
    let corefile = |hosts: &str| {
        format!(
            ". {{\nbind 127.0.0.1\nhosts /nowhere/h {{\n{hosts}\nfallthrough\n}}\ncache\nforward . 192.0.2.53\n}}\n"
        )
    };
    let mut scene = Scene::new(&corefile(""));
    scene.keep(AT, "new.example.org", RType::A, &[]);
    scene.keep(AT, "old.example.org", RType::A, &["old.example.org. 300 A 192.0.2.77"]);
    assert!(
        scene.ask(AT, "new.example.org", RType::A).starts_with("NXDOMAIN; authority example.org. 60 IN SOA")
    );
    assert_eq!(scene.ask(AT, "old.example.org", RType::A), "NOERROR; old.example.org. 300 IN A 192.0.2.77");
    scene.reload(&corefile("192.0.2.1 new.example.org old.example.org"));
    rows(
        &scene,
        &[
            ("new.example.org", RType::A, "NOERROR aa; new.example.org. 3600 IN A 192.0.2.1"),
            ("old.example.org", RType::A, "NOERROR aa; old.example.org. 3600 IN A 192.0.2.1"),
        ],
    );
    // Cached answers survive reloads.
    scene.reload(&corefile(""));
    assert_eq!(scene.ask(AT, "old.example.org", RType::A), "NOERROR; old.example.org. 300 IN A 192.0.2.77");
}

#[test]
fn blocks_have_separate_caches() {
    let block = |zone, address| format!("{zone} {{\nbind {address}\ncache\nforward . 192.0.2.53\n}}\n");
    let scene = Scene::new(
        &(block(".", "127.0.0.1") + &block("example.org", "127.0.0.1") + &block(".", "127.0.0.2")),
    );
    scene.keep(AT, "a.example.net", RType::A, &["a.example.net. 300 A 192.0.2.77"]);
    scene.keep(AT, "a.example.org", RType::A, &["a.example.org. 300 A 192.0.2.77"]);
    for (at, name, known) in [
        (AT, "a.example.net", true),
        (AT, "a.example.org", true),
        ("127.0.0.2:53", "a.example.net", false),
        ("127.0.0.2:53", "a.example.org", false),
    ] {
        assert_eq!(scene.ask(at, name, RType::A) != "forward", known, "{name} at {at}");
    }
}

/// It counts down, is served stale, then is a miss.
#[test]
fn cached_answer_expires() {
    for (property, when, expected) in [
        ("", 0, "NOERROR; a. 300 IN A 192.0.2.77"),
        ("", 299, "NOERROR; a. 1 IN A 192.0.2.77"),
        ("", 300, "forward"),
        ("keepttl", 299, "NOERROR; a. 300 IN A 192.0.2.77"),
        ("serve_stale 1h immediate", 301, "asks a.: NOERROR; a. 0 IN A 192.0.2.77"),
        ("serve_stale 1h immediate 7s", 301, "asks a.: NOERROR; a. 7 IN A 192.0.2.77"),
        ("serve_stale 1h immediate", 3901, "forward"),
        ("serve_stale 1h verify", 301, "forward, 1.8s"),
        ("serve_stale 1h verify 250ms", 301, "forward, 250ms"),
        ("disable success", 301, "forward"),
    ] {
        let mut scene = scene(&format!("cache {{\n{property}\n}}\nforward . 192.0.2.53"));
        if property != "disable success" {
            scene.keep(AT, "a", RType::A, &["a. 300 A 192.0.2.77"]);
        }
        scene.now += Duration::from_secs(when);
        assert_eq!(scene.ask(AT, "a", RType::A), expected, "{property:?} after {when} s");
    }
}

#[test]
fn stanzas_and_cache_zones() {
    let scene = scene(
        "cache example.org\nforward example.org 192.0.2.53 {\nexcept local.example.org\n}\nforward example.net 192.0.2.54\nwhoami",
    );
    scene.keep(AT, "a.example.org", RType::A, &["a.example.org. 300 A 192.0.2.77"]);
    for (name, asked) in [
        ("a.example.org", false),
        ("b.example.org", true),
        ("x.local.example.org", false),
        ("a.example.net", true),
        ("a.example.com", false),
    ] {
        assert_eq!(scene.ask(AT, name, RType::A) == "forward", asked, "{name}");
    }
}

#[test]
fn whoami_returns_the_client() {
    let scene = scene("whoami");
    for rtype in [RType::A, RType::TXT, RType::ANY] {
        assert_eq!(
            scene.ask(AT, "x.Example.org", rtype),
            "NOERROR aa; additional x.Example.org. 0 IN A 192.0.2.200; additional _udp.x.Example.org. 0 IN SRV 0 0 40000 .",
        );
    }
}

#[test]
fn unanswered_names_the_last_plugin() {
    for (lines, last) in [
        ("hosts /nowhere/h {\nfallthrough\n}", "hosts"),
        ("log\nerrors", "log"),
        ("forward example.net 192.0.2.53\ncache", "forward"),
    ] {
        let Sent::Reply(reply) = scene(lines).send(AT, &packet("example.org", RType::A, None)) else {
            panic!("no reply")
        };
        let failure = reply.2.failure.as_deref().map(ToString::to_string);
        assert_eq!(failure, Some(format!("plugin/{last}: no next plugin found")), "{lines}");
        assert_eq!(reply.2.rcode, wire::Rcode::SERVFAIL);
    }
}

#[test]
fn empty_block_refuses() {
    for (lines, expected) in [
        ("", "REFUSED"),
        ("reload\nroot /etc\ndebug", "REFUSED"),
        ("errors", "SERVFAIL"),
        ("bufsize", "SERVFAIL"),
    ] {
        assert_eq!(scene(lines).ask(AT, "example.org", RType::A), expected, "{lines}");
    }
}

#[test]
fn lookups_are_counted() {
    let mut scene = scene(&format!(
        "prometheus\nhosts /nowhere/h {{\n{HOSTS}\nfallthrough\n}}\ncache {{\nserve_stale\n}}\nforward . 192.0.2.53"
    ));
    scene.keep(AT, "kept.example.org", RType::A, &["kept.example.org. 300 A 192.0.2.77"]);
    scene.keep(AT, "gone.example.org", RType::A, &[]);
    for name in
        ["web.example.org", "kept.example.org", "kept.example.org", "gone.example.org", "new.example.org"]
    {
        scene.ask(AT, name, RType::A);
    }
    scene.ask(AT, "www.example.org", RType::AAAA);
    scene.now += Duration::from_secs(400);
    // The first of these triggers a refresh.
    scene.ask(AT, "kept.example.org", RType::A);
    scene.ask(AT, "kept.example.org", RType::A);
    let zone = &scene.configuration.zones[0].counters.as_ref().unwrap()[0];
    let counts = [
        ("hosts hits", zone.hosts_hits.get(), 2),
        ("hosts misses", zone.hosts_misses.get(), 6),
        ("cache requests", zone.cache_requests.get(), 6),
        ("cache misses", zone.cache_misses.get(), 1),
        ("success hits", zone.cache_hits[0].get(), 4),
        ("denial hits", zone.cache_hits[1].get(), 1),
        ("stale", zone.cache_stale.get(), 2),
        ("prefetches", zone.cache_prefetches.get(), 1),
    ];
    for (what, found, expected) in counts {
        assert_eq!(found, expected, "{what}");
    }
}

/// Two views of one zone on one address never share a cached answer, whatever their names; a view
/// with another condition begins with an empty cache.
#[test]
fn views_have_caches_of_their_own() {
    let corefile = |condition: &str| {
        let view = format!("view a {{\nexpr {condition}\n}}");
        let block = |view: &str| format!(". {{\nbind 127.0.0.1\n{view}\ncache\nforward . 192.0.2.53\n}}\n");
        [block(&view), block("view a"), block("")].concat()
    };
    let mut scene = Scene::new(&corefile("proto() == 'udp'"));
    scene.keep(AT, "kept.example.org", RType::A, &["kept.example.org. 300 IN A 192.0.2.1"]);
    let ask = |scene: &Scene| scene.ask(AT, "kept.example.org", RType::A);
    let kept = ask(&scene);
    assert!(kept.contains("192.0.2.1"), "{kept}");
    scene.proto = Proto::Tcp;
    assert_eq!(ask(&scene), "forward");
    scene.proto = Proto::Udp;
    scene.reload(&corefile("proto() == 'udp'"));
    assert_eq!(ask(&scene), kept);
    scene.reload(&corefile("proto() in ['udp']"));
    assert_eq!(ask(&scene), "forward");
}

//! Choice of the zone.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use plugin::QueryContext;
use plugin::failure::Failure;
use proptest::prelude::*;
use query::route::Route;
use scene::{Scene, packet};
use wire::{Class, Name, Proto, RType, Verdict, accept};

/// Blocks that serve `zones` on one address each; `forwards` names those with a forward.
fn scene(blocks: &[(&str, &str)]) -> Scene {
    let text: String = blocks.iter().map(|(key, lines)| format!("{key} {{\n{lines}\n}}\n")).collect();
    Scene::new(&text)
}

fn found(route: &Route, name: &str, rtype: RType, class: Class) -> String {
    let mut packet = packet(name, rtype, None);
    let end = packet.len();
    packet[end - 2..].copy_from_slice(&class.0.to_be_bytes());
    let Verdict::Pass(query) = accept(&packet) else { panic!("refused") };
    let client = scene::client();
    let server = ([127, 0, 0, 1], 53).into();
    let context = QueryContext::new(clock::now(), &client, server, Proto::Udp, 0);
    let found = route.find(&query, &context);
    if rtype != RType::DS && class == Class::IN {
        let longest = route.longest(&query.name).map(|zone| zone.index);
        assert_eq!(longest, found.as_ref().ok().map(|zone| zone.index), "{name}");
    }
    match found {
        Ok(zone) => zone.zone.to_string(),
        Err(failure) => failure.to_string(),
    }
}

fn route<'s>(scene: &'s Scene, at: &str) -> &'s Route {
    &scene.configuration.endpoints[&at.parse().unwrap()].served.route
}

#[test]
fn longest_zone_wins() {
    const HERE: &str = "bind 127.0.0.1\nwhoami";
    let scene = scene(&[
        ("example.org", HERE),
        ("a.b.example.org", HERE),
        ("com", HERE),
        ("10.in-addr.arpa", HERE),
        ("x\\.y.example.net", HERE),
    ]);
    let none = Failure::NoZone.to_string();
    for (name, zone) in [
        ("example.org", "example.org."),
        ("EXAMPLE.Org", "example.org."),
        ("b.example.org", "example.org."),
        ("a.b.example.org", "a.b.example.org."),
        ("x.a.B.example.org", "a.b.example.org."),
        ("aa.b.example.org", "example.org."),
        ("notexample.org", &none),
        ("example.org.com", "com."),
        ("org", &none),
        ("", &none),
        ("1.0.0.10.in-addr.arpa", "10.in-addr.arpa."),
        ("y.example.net", &none),
    ] {
        assert_eq!(found(route(&scene, "127.0.0.1:53"), name, RType::A, Class::IN), zone, "{name}");
    }
}

#[test]
fn ds_goes_to_the_parent() {
    const HERE: &str = "bind 127.0.0.1\nwhoami";
    let scene = scene(&[("example.org", HERE), ("sub.example.org", HERE), ("example.net", HERE)]);
    for (name, rtype, zone) in [
        ("sub.example.org", RType::DS, "example.org."),
        ("sub.example.org", RType::A, "sub.example.org."),
        ("x.sub.example.org", RType::DS, "sub.example.org."),
        ("example.net", RType::DS, "example.net."),
        ("example.org", RType::DS, "example.org."),
    ] {
        assert_eq!(found(route(&scene, "127.0.0.1:53"), name, rtype, Class::IN), zone, "{name} {rtype}");
    }
    let root = self::scene(&[(".", HERE), ("example.org", HERE)]);
    for (name, zone) in
        [("example.org", "example.org."), ("", "."), ("a.example.org", "example.org."), ("org", ".")]
    {
        assert_eq!(found(route(&root, "127.0.0.1:53"), name, RType::DS, Class::IN), zone, "{name}");
    }
}

#[test]
fn zones_per_address() {
    let scene = scene(&[
        (".", "bind 127.0.0.1\nwhoami"),
        (".", "bind 127.0.0.2\nwhoami"),
        ("example.org", "bind 127.0.0.2\nwhoami"),
        ("example.org:54", "bind 127.0.0.1\nwhoami"),
    ]);
    let none = Failure::NoZone.to_string();
    for (at, name, zone, block) in [
        ("127.0.0.1:53", "example.org", ".", 0),
        ("127.0.0.2:53", "example.org", "example.org.", 2),
        ("127.0.0.2:53", "example.com", ".", 1),
        ("127.0.0.1:54", "a.example.org", "example.org.", 3),
        ("127.0.0.1:54", "example.com", none.as_str(), 9),
    ] {
        assert_eq!(found(route(&scene, at), name, RType::A, Class::IN), zone, "{name} at {at}");
        let served = Name::from_text(zone).ok().and_then(|zone| route(&scene, at).zone(&zone));
        assert_eq!(served.map_or(9, |zone| zone.block.index), block, "{name} at {at}");
    }
    assert_eq!(route(&scene, "127.0.0.2:53").zones().count(), 2);
}

/// Blocks with views and the queries that they admit: zone first, then the order of the blocks.
#[test]
fn views_are_asked_in_order() {
    let view =
        |name: &str, condition: &str| format!("bind 127.0.0.1\nview {name} {{\n{condition}\n}}\nwhoami");
    let mx = view("mx", "expr type() == 'MX'");
    let all = view("all", "");
    let never = view("never", "expr name() + 1 == 2");
    let two = view("two", "expr type() == 'TXT'\nexpr client_ip() == '192.0.2.200'");
    const PLAIN: &str = "bind 127.0.0.1\nwhoami";
    let scene = scene(&[
        ("example.org", &mx),
        ("example.org", &never),
        ("example.org", PLAIN),
        ("org", &two),
        ("sub.example.org", &mx),
        ("net", &mx),
        ("com", &all),
        ("com", PLAIN),
        (".", &two),
    ]);
    let none = Failure::NoZone.to_string();
    let route = route(&scene, "127.0.0.1:53");
    for (name, rtype, expected) in [
        ("example.org", RType::MX, "0"),
        ("a.example.org", RType::MX, "0"),
        ("example.org", RType::A, "2"),
        ("sub.example.org", RType::MX, "4"),
        ("a.sub.example.org", RType::A, "2"),
        ("sub.example.org", RType::DS, "2"),
        ("org", RType::TXT, "3"),
        ("org", RType::A, &none),
        ("net", RType::MX, "5"),
        ("net", RType::TXT, "8"),
        ("net", RType::A, &none),
        ("com", RType::A, "6"),
        ("", RType::TXT, "8"),
        ("", RType::A, &none),
    ] {
        assert_eq!(block_of(route, name, rtype), expected, "{name} {rtype}");
    }
    assert_eq!(route.zones().count(), 9);
    for (zone, block) in
        [("example.org", Some(2)), ("com", Some(7)), ("net", Some(5)), (".", Some(8)), ("a", None)]
    {
        let found = route.zone(&Name::from_text(zone).unwrap());
        assert_eq!(found.map(|zone| zone.block.index), block, "{zone}");
    }
}

fn block_of(route: &Route, name: &str, rtype: RType) -> String {
    let packet = packet(name, rtype, None);
    let Verdict::Pass(query) = accept(&packet) else { panic!("refused") };
    let client = scene::client();
    let server = ([127, 0, 0, 1], 53).into();
    let context = QueryContext::new(clock::now(), &client, server, Proto::Udp, 0);
    match route.find(&query, &context) {
        Ok(zone) => zone.block.index.to_string(),
        Err(failure) => failure.to_string(),
    }
}

#[test]
fn other_classes() {
    let scene = scene(&[
        ("example.org", "bind 127.0.0.1 127.0.0.2 127.0.0.3\nwhoami"),
        (".", "bind 127.0.0.2\nforward . 192.0.2.53"),
        ("hostname.bind", "bind 127.0.0.3\nchaos"),
    ]);
    let refused = Failure::Class.to_string();
    for (at, class, zone) in [
        ("127.0.0.1:53", Class::IN, "example.org."),
        ("127.0.0.1:53", Class::CH, &refused),
        ("127.0.0.1:53", Class::ANY, &refused),
        ("127.0.0.2:53", Class::CH, "example.org."),
        ("127.0.0.2:53", Class::ANY, "example.org."),
        ("127.0.0.3:53", Class::CH, "example.org."),
    ] {
        assert_eq!(found(route(&scene, at), "example.org", RType::A, class), zone, "{class} at {at}");
    }
    assert_eq!(Failure::Class.rcode(), wire::Rcode::REFUSED);
}

#[test]
fn names_of_every_length() {
    let labels = vec!["a"; 127];
    let deepest = labels.join(".");
    let scene = scene(&[
        (".", "bind 127.0.0.1\nwhoami"),
        (&deepest, "bind 127.0.0.1\nwhoami"),
        (&labels[1..].join("."), "bind 127.0.0.1\nwhoami"),
    ]);
    for (count, zone) in [(127, 127), (126, 126), (125, 0), (1, 0)] {
        let zone = if zone == 0 { ".".to_owned() } else { labels[..zone].join(".") + "." };
        let name = labels[..count].join(".");
        assert_eq!(found(route(&scene, "127.0.0.1:53"), &name, RType::A, Class::IN), zone, "{count}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Model: the zone with most labels that contains the name.
    #[test]
    fn route_equals_linear_search(
        zones in prop::collection::btree_set("([ab]\\.){0,4}[ab]", 1..40),
        names in prop::collection::vec("([abc]\\.){0,5}[abc]", 1..40),
    ) {
        let blocks: Vec<(&str, &str)> =
            zones.iter().map(|zone| (zone.as_str(), "bind 127.0.0.1\nwhoami")).collect();
        let scene = scene(&blocks);
        for name in &names {
            let asked = Name::from_text(name).unwrap();
            let zones = zones.iter().map(|zone| Name::from_text(zone).unwrap());
            let longest = zones.filter(|zone| asked.is_within(zone)).max_by_key(Name::label_count);
            let expected = longest.map_or_else(|| Failure::NoZone.to_string(), |zone| zone.to_string());
            prop_assert_eq!(found(route(&scene, "127.0.0.1:53"), name, RType::A, Class::IN), expected);
        }
    }
}

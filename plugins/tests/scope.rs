//! The zones of directives: compared with a query's name only if the block receives names outside
//! of them.

use scene::Scene;
use wire::{Name, RType};

/// The zones of a block's cache; `all` if names are not compared.
fn kept(keys: &str, lines: &str) -> String {
    let scene = Scene::new(&format!("{keys} {{\nbind 127.0.0.1\n{lines}\nforward . 192.0.2.53\n}}\n"));
    let forwarding = scene.configuration.blocks[0].pipeline.forwarding().expect("the block forwards");
    let cache = forwarding.cache.as_ref().expect("it has a cache");
    let zones = cache.spec().zones.iter().map(Name::to_string).collect::<Vec<_>>().join(" ");
    if zones.is_empty() { "all".to_owned() } else { zones }
}

#[test]
fn scope_compares_outside_names() {
    for (keys, lines, expected) in [
        (".", "cache", "all"),
        ("a.example", "cache", "all"),
        ("a.example b.example", "cache", "all"),
        ("a.example b.example", "cache example", "all"),
        ("a.example b.example", "cache b.example a.example", "all"),
        ("a.example b.example", "cache a.example", "a.example."),
        ("a.example", "cache x.a.example", "x.a.example."),
        // Middleware acts on names.
        ("a.example", "acl {\nblock net 192.0.2.0/24\n}\nany\nloadbalance\nminimal\ncache", "all"),
        ("a.example", "header {\nresponse set aa\n}\nrewrite type ANY HINFO\ncache", "all"),
        ("a.example", "rewrite name exact x.a.example x.b.example\ncache", "a.example."),
        ("a.example", "rewrite continue name suffix .a.example .b.example\ncache", "a.example."),
        (".", "rewrite name exact x.a.example x.b.example\ncache", "all"),
    ] {
        assert_eq!(kept(keys, lines), expected, "{keys} {lines}");
    }
}

#[test]
fn zones_label_of_metrics() {
    let scene = Scene::new("a.example b.example {\nbind 127.0.0.1\ncache\nforward . 192.0.2.53\n}\n");
    let cache = scene.configuration.blocks[0].pipeline.forwarding().unwrap().cache.as_ref().unwrap();
    assert_eq!(configuration::zones_label(cache.spec(), cache.zones()), "a.example.,b.example.");
}

#[test]
fn rewritten_name_outside_scope() {
    let rewrite = "rewrite name exact x.a.example x.b.example";
    for source in [
        "hosts /nowhere/h {\n192.0.2.1 y.a.example\n}",
        "template ANY ANY {\nrcode NXDOMAIN\n}",
        "template ANY ANY {\nmatch x\nrcode NXDOMAIN\n}",
        "forward a.example 192.0.2.53",
    ] {
        let ends = |lines: &str| {
            let text = format!("a.example {{\nbind 127.0.0.1\n{lines}\n{source}\nwhoami\n}}\n");
            Scene::new(&text).ask("127.0.0.1:53", "x.a.example", RType::A)
        };
        let (inside, outside) = (ends(""), ends(rewrite));
        assert!(!inside.contains("additional"), "{source}: {inside}");
        assert!(outside.contains("additional"), "{source}: {outside}");
    }
}

//! Upstreams of `forward` that depend on the machine.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::{Duration, Instant};

use scene::Scene;
use std::fs;
use tempfile::TempDir;

fn asked(scene: &Scene) -> Vec<String> {
    let stanzas = scene.configuration.blocks[0].pipeline.forwarding().unwrap().chain.stanzas().to_vec();
    stanzas.iter().flat_map(|stanza| stanza.upstreams().to_vec()).map(|u| u.address().to_string()).collect()
}

fn look_at(scene: &Scene) -> Option<Instant> {
    let shared = &scene.shared;
    let looked = shared.followed.look(
        shared.forward(),
        &|stanza, upstreams| configuration::looping(&scene.configuration, stanza, upstreams),
        scene.now,
        files::READ_TIMEOUT,
        &shared.logger,
    );
    looked.next
}

fn corefile(upstreams: &str) -> String {
    format!(". {{\nbind 127.0.0.1\nforward . {upstreams}\n}}\n")
}

#[test]
fn upstreams_in_file_order() {
    let scene = Scene::new(&corefile("192.0.2.2 192.0.2.1:53 192.0.2.2:53 tls://192.0.2.2:53"));
    assert_eq!(asked(&scene), ["192.0.2.2:53", "192.0.2.1:53", "192.0.2.2:53"]);
}

#[test]
fn missing_addresses_and_files() {
    let dir = TempDir::new().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    fs::write(path("none"), "search example.org\n").unwrap();
    fs::write(path("bad.pem"), "no certificate\n").unwrap();
    for (upstreams, error) in [
        (path("absent"), format!("stdin:3:11: plugin/forward: cannot read {}: ", path("absent"))),
        (path("none"), format!("stdin:3:11: plugin/forward: no nameserver in {}", path("none"))),
        (
            format!("192.0.2.1 tls://192.0.2.1 {{\ntls {}\n}}", path("bad.pem")),
            format!("stdin:4:5: plugin/forward: {}: no valid certificate; ", path("bad.pem")),
        ),
    ] {
        let found = Scene::build(&corefile(&upstreams)).err().unwrap_or_default();
        assert!(found.starts_with(&error), "{upstreams}: {found}");
    }
}

#[test]
fn upstream_file_changes() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("resolv.conf");
    fs::write(&file, "nameserver 192.0.2.1\nnameserver 192.0.2.2\n").unwrap();
    let mut scene = Scene::new(&corefile(&format!("{} 192.0.2.9", file.display())));
    let mut look = |text: Option<&str>| {
        match text {
            Some(text) => fs::write(&file, text).unwrap(),
            None => fs::remove_file(&file).unwrap(),
        }
        scene.now += Duration::from_secs(5);
        let next = look_at(&scene);
        assert_eq!(next, Some(scene.now + plugins::forward::FILE_INTERVAL));
        (asked(&scene).join(" "), scene.log.read(&scene.shared.logger))
    };
    let changed = "192.0.2.3:53 192.0.2.9:53";
    let stay = "[ERROR] plugin/forward: upstreams stay as they were: stdin:3:11: plugin/forward: ";
    for (text, upstreams, logged) in [
        (
            Some("nameserver 192.0.2.1\nnameserver 192.0.2.2\n"),
            "192.0.2.1:53 192.0.2.2:53 192.0.2.9:53",
            String::new(),
        ),
        (
            Some("nameserver 192.0.2.3\n"),
            changed,
            format!("[INFO] plugin/forward: upstreams changed: {changed}\n"),
        ),
        (
            Some("# half written"),
            changed,
            format!(
                "{stay}no nameserver in {}; expected lines such as `nameserver 192.0.2.53`\n",
                file.display()
            ),
        ),
        (Some("# half written"), changed, String::new()),
        (
            Some("nameserver 127.0.0.1\nnameserver 192.0.2.5\n"),
            "192.0.2.5:53 192.0.2.9:53",
            "[INFO] plugin/forward: upstreams changed: 192.0.2.5:53 192.0.2.9:53\n[WARNING] plugin/forward: the upstream 127.0.0.1:53 is this server itself: queries would return to this block, so it is left out\n".to_owned(),
        ),
        (None, "192.0.2.5:53 192.0.2.9:53", String::new()),
        (
            Some("nameserver 192.0.2.4\n"),
            "192.0.2.4:53 192.0.2.9:53",
            "[INFO] plugin/forward: upstreams changed: 192.0.2.4:53 192.0.2.9:53\n".to_owned(),
        ),
    ] {
        assert_eq!(look(text), (upstreams.to_owned(), logged), "{text:?}");
    }
}

/// Three files: one with comments only, one that loses its server, one that changes.
#[test]
fn empty_list_delays_no_other() {
    let dir = TempDir::new().unwrap();
    let path = |name: &str| dir.path().join(name);
    let write = |name: &str, text: &str| fs::write(path(name), text).unwrap();
    let words = ["none", "emptied", "other"].map(|name| path(name).display().to_string());
    write("none", "# nothing yet\n");
    write("emptied", "nameserver 192.0.2.1\n");
    write("other", "nameserver 192.0.2.2\n");
    let mut scene = Scene::new(&corefile(&words.join(" ")));
    let why = |nth: usize, name: &str| {
        let column = 11 + words[..nth].iter().map(|word| word.len() + 1).sum::<usize>();
        let file = path(name);
        format!(
            "stdin:3:{column}: plugin/forward: no nameserver in {}; expected lines such as `nameserver 192.0.2.53`",
            file.display()
        )
    };
    assert_eq!(asked(&scene), ["192.0.2.1:53", "192.0.2.2:53"]);
    assert_eq!(
        scene.log.read(&scene.shared.logger),
        format!("[WARNING] {}; until then it is passed over\n", why(0, "none"))
    );
    write("emptied", "");
    write("other", "nameserver 192.0.2.3\n");
    let mut look = || {
        scene.now += plugins::forward::FILE_INTERVAL;
        look_at(&scene);
        (asked(&scene).join(" "), scene.log.read(&scene.shared.logger))
    };
    let changed = |to: &str| format!("[INFO] plugin/forward: upstreams changed: {to}\n");
    let stays = format!("[ERROR] plugin/forward: upstreams stay as they were: {}\n", why(1, "emptied"));
    let both = "192.0.2.1:53 192.0.2.3:53";
    assert_eq!(look(), (both.to_owned(), stays + &changed(both)));
    write("none", "nameserver 192.0.2.4\n");
    let all = "192.0.2.4:53 192.0.2.1:53 192.0.2.3:53";
    assert_eq!(look(), (all.to_owned(), changed(all)));
}

#[test]
fn list_of_own_addresses() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("resolv.conf");
    fs::write(&file, "nameserver 192.0.2.1\n").unwrap();
    let mut scene = Scene::new(&corefile(&file.display().to_string()));
    fs::write(&file, "nameserver 127.0.0.1\n").unwrap();
    scene.now += plugins::forward::FILE_INTERVAL;
    look_at(&scene);
    assert_eq!(asked(&scene), ["192.0.2.1:53"]);
    assert_eq!(
        scene.log.read(&scene.shared.logger),
        "[ERROR] plugin/forward: upstreams stay as they were: plugin/forward: the upstream 127.0.0.1:53 is this server itself: its queries would return to this server block; name another upstream\n"
    );
}

#[test]
fn unused_file_is_dropped() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("resolv.conf");
    fs::write(&file, "nameserver 192.0.2.1\n").unwrap();
    let mut scene = Scene::new(&corefile(&file.display().to_string()));
    scene.reload(&corefile("192.0.2.1"));
    assert_eq!(look_at(&scene), None);
}

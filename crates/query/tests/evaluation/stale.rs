//! Stale answers and subqueries.

use std::time::Duration;

use scene::Scene;
use wire::RType;

use crate::{AT, CACHE, Wants};

#[test]
fn stale_subquery_is_refreshed() {
    let corefile = format!(
        ". {{\nbind 127.0.0.1\nhosts /nowhere/h {{\n192.0.2.1 a.example.org\n}}\n}}\n\
         other {{\nbind 127.0.0.1\n{CACHE}\n}}\n"
    );
    let mut scene = Scene::with_step(&corefile, Wants::of(&["x.other"]));
    assert_eq!(scene.ask(AT, "a.example.org", RType::A), "forward");
    scene.keep(AT, "x.other", RType::A, &["x.other 20 A 192.0.2.9"]);
    scene.now += Duration::from_secs(60);
    let reply = scene.ask(AT, "a.example.org", RType::A);
    let stale = "NOERROR aa; a.example.org. 3600 IN A 192.0.2.1; x.other. 0 IN A 192.0.2.9";
    assert_eq!(reply, format!("asks x.other.: {stale}"));
}

#[test]
fn stale_answer_with_stale_subquery() {
    let corefile = format!(". {{\nbind 127.0.0.1\n{CACHE}\n}}\nother {{\nbind 127.0.0.1\n{CACHE}\n}}\n");
    let mut scene = Scene::with_step(&corefile, Wants::of(&["x.other"]));
    scene.keep(AT, "a.example.org", RType::A, &["a.example.org 20 A 192.0.2.1"]);
    scene.now += Duration::from_secs(60);
    assert_eq!(scene.ask(AT, "a.example.org", RType::A), "asks a.example.org.: forward");
    scene.keep(AT, "x.other", RType::A, &["x.other 20 A 192.0.2.9"]);
    // A refresh is claimed for 5 s.
    scene.now += Duration::from_secs(10);
    let reply = |scene: &Scene| scene.ask(AT, "a.example.org", RType::A);
    let own = "a.example.org. 0 IN A 192.0.2.1";
    assert_eq!(reply(&scene), format!("asks a.example.org.: NOERROR; {own}; x.other. 10 IN A 192.0.2.9"));
    scene.now += Duration::from_secs(60);
    let both = format!("NOERROR; {own}; x.other. 0 IN A 192.0.2.9");
    assert_eq!(reply(&scene), format!("asks a.example.org. x.other.: {both}"));
}

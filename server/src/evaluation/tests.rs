//! Wishes, by a step that exists here alone: it puts the addresses of other names behind every answer.

use std::net::IpAddr;
use std::sync::atomic::Ordering::Relaxed;

use super::*;
use crate::house::tests::Scene;
use crate::plugin::hosts::Tables;
use crate::plugin::step::{Back, BuildContext, Step, StepSpec};

const AT: &str = "127.0.0.1:53";

/// Wants addresses of these names.
#[derive(Debug, Clone)]
struct Wants(Vec<&'static str>);

impl StepSpec for Wants {
    fn build(&self, _: &BuildContext<'_>) -> Arc<dyn Step> {
        Arc::new(self.clone())
    }
}

impl Step for Wants {
    fn inward<'s>(&'s self, _: &mut Sought<'_>, _: &Moment<'_>) -> Inward<'s> {
        Inward::Back(Box::new(self))
    }

    fn explain(&self, _: &mut Sought<'_>, _: Option<IpAddr>) -> Option<String> {
        None
    }
}

impl Back for &Wants {
    fn back(&self, _: &Sought<'_>, _: &Moment<'_>, told: &mut Message, wishes: &mut dyn Wishes) -> Told {
        let mut waits = false;
        for name in &self.0 {
            match wishes.wish(&Name::from_text(name).unwrap(), RType::A, Class::IN) {
                None => waits = true,
                Some(Wish::Answer(answer)) => {
                    told.rcode = answer.rcode;
                    told.records.extend(answer.section(Section::Answer).cloned());
                }
                Some(Wish::Failed(failure)) => {
                    told.rcode = failure.rcode();
                    told.options.push_ede(failure.ede().unwrap());
                }
            }
        }
        if waits { Told::Waits } else { Told::Done }
    }
}

fn scene(directives: &str, wants: &[&'static str]) -> Scene {
    let hosts = "hosts /nowhere/h {\n192.0.2.1 a.example.org\n192.0.2.2 b.example.org\nfallthrough org\n}";
    let corefile = format!(". {{\nbind 127.0.0.1\n{directives}\n{hosts}\n}}\n");
    Scene::with_step(&corefile, Arc::new(Wants(wants.to_vec())))
}

const CACHE: &str = "cache 30 {\nserve_stale 1h immediate\n}\nforward . 192.0.2.53";

#[test]
fn one_answer_needs_two_others() {
    let scene = scene("whoami", &["b.example.org", "a.example.org"]);
    // The wishes come back through the same step: each brings what it wants in turn, until there were enough.
    let told = scene.ask(AT, "a.example.org", RType::A);
    assert!(told.starts_with("SERVFAIL"), "it wants itself: {told}");
    let scene = scene_of_two("");
    assert_eq!(
        scene.ask(AT, "a.example.org", RType::A),
        "NOERROR aa; a.example.org. 3600 IN A 192.0.2.1; x.other. 3600 IN A 192.0.2.7; y.other. 3600 IN A 192.0.2.8"
    );
}

/// Two blocks, the first of which wants names of the second.
fn scene_of_two(second: &str) -> Scene {
    let corefile = format!(
        ". {{\nbind 127.0.0.1\nhosts /nowhere/h {{\n192.0.2.1 a.example.org\n}}\n}}\n\
         other {{\nbind 127.0.0.1\n{second}\nhosts /nowhere/o {{\n192.0.2.7 x.other\n192.0.2.8 y.other\nfallthrough\n}}\n}}\n"
    );
    Scene::with_step(&corefile, Arc::new(Wants(vec!["x.other", "y.other"])))
}

#[test]
fn what_is_forbidden_to_the_client_is_forbidden_to_its_wishes() {
    let scene = scene_of_two("acl {\nblock\n}");
    assert_eq!(scene.ask(AT, "a.example.org", RType::A), "REFUSED aa; a.example.org. 3600 IN A 192.0.2.1");
    let scene = scene_of_two("acl {\ndrop\n}");
    assert_eq!(scene.ask(AT, "a.example.org", RType::A), "SERVFAIL aa; a.example.org. 3600 IN A 192.0.2.1");
}

#[test]
fn a_wish_that_fails_is_no_empty_answer() {
    let corefile = ". {\nbind 127.0.0.1\nhosts /nowhere/h {\n192.0.2.1 a.example.org\n}\n}\n";
    let scene = Scene::with_step(corefile, Arc::new(Wants(vec!["missing.example.org"])));
    let told = scene.ask(AT, "a.example.org", RType::A);
    assert!(told.starts_with("SERVFAIL"), "{told}");
}

#[test]
fn a_wish_is_answered_from_what_is_stale_and_that_is_fetched_again() {
    let corefile = format!(
        ". {{\nbind 127.0.0.1\nhosts /nowhere/h {{\n192.0.2.1 a.example.org\n}}\n}}\n\
         other {{\nbind 127.0.0.1\n{CACHE}\n}}\n"
    );
    let mut scene = Scene::with_step(&corefile, Arc::new(Wants(vec!["x.other"])));
    assert_eq!(scene.ask(AT, "a.example.org", RType::A), "forward");
    scene.keep(AT, "x.other", RType::A, &["x.other 20 A 192.0.2.9"]);
    scene.now += Duration::from_secs(60);
    let told = scene.ask(AT, "a.example.org", RType::A);
    assert_eq!(told, "NOERROR aa; a.example.org. 3600 IN A 192.0.2.1; x.other. 0 IN A 192.0.2.9");
}

#[test]
fn what_an_upstream_said_is_found_by_all_that_it_was_asked_for() {
    let scene = scene(CACHE, &["b.example.org"]);
    let listener = &scene.house.listeners[&AT.parse().unwrap()];
    let packet = crate::house::tests::packet("far.example.org", RType::A, None);
    let wire::Gate::Pass(query) = wire::accept(&packet) else { panic!("refused") };
    let zone = listener.route.find(&query).unwrap();
    let said = |rtype| {
        let query = Query { rtype, ..query };
        let mut octets = Vec::new();
        let mut reply = Reply::start(&mut octets, &query);
        (reply.rcode, reply.flags) = (Rcode::NXDOMAIN, Flags::RA);
        Found::of_reply(zone, &query, &reply, false)
    };
    let tables = Tables::default();
    let moment = scene.moment(AT, &tables);
    for (found, asks) in [(vec![], true), (vec![said(RType::AAAA)], true), (vec![said(RType::A)], false)] {
        let mut evaluation = Evaluation::new(&listener.route, &moment, &query, found);
        let end = evaluation.run(zone);
        assert_eq!(end.as_ref().is_err_and(|asked| asked.query.question() == query.question), asks);
    }
}

#[test]
fn what_waits_may_hold_so_much_together_and_gives_it_back() {
    let scene = scene(CACHE, &[]);
    let listener = &scene.house.listeners[&AT.parse().unwrap()];
    let packet = crate::house::tests::packet("far.example.org", RType::A, None);
    let wire::Gate::Pass(query) = wire::accept(&packet) else { panic!("refused") };
    let zone = listener.route.find(&query).unwrap();
    let mut octets = Vec::new();
    let mut reply = Reply::start(&mut octets, &query);
    reply.push(Section::Answer, wire::Owner::Question, RType::TXT, Class::IN, 1, &[0; 60_000]);
    let found = Found::of_reply(zone, &query, &reply, false);
    let tables = Tables::default();
    let moment = scene.moment(AT, &tables);
    let wait = || {
        let evaluation = Evaluation::new(&listener.route, &moment, &query, vec![found.clone()]);
        evaluation.wait(zone, Asked::new(&query, zone, None, 0))
    };
    let mut waiting = Vec::new();
    while let Ok(asked) = wait() {
        waiting.push(asked);
        assert!(waiting.len() * 60_000 <= MOST_HELD);
    }
    assert!((waiting.len() + 2) * 60_000 > MOST_HELD, "{}", waiting.len());
    assert!(matches!(wait(), Err(Failure::Overload)));
    waiting.pop();
    assert!(wait().is_ok());
    drop(waiting);
    assert_eq!(scene.shared.held.load(Relaxed), 0);
}

//! Subqueries, issued by middleware of these tests that appends addresses of other names to every
//! answer.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod inbound;
mod large;
mod stale;
mod varied;

use std::net::IpAddr;
use std::sync::Arc;

use plugin::failure::Failure;
use plugin::middleware::{
    EffectiveQuery, HookResult, Middleware, OnQuery, ResponseHook, Subqueries, SubqueryResult,
};
use plugin::spec::{BuildContext, Explanation, MiddlewareSpec};
use plugin::{HostsGuard, QueryContext};
use query::evaluate::{
    Evaluated, Evaluation, FollowCnames, MAX_SUSPENDED_BYTES, NeedsUpstream, PendingLookups, SubqueryAnswer,
    Usage,
};
use scene::Scene;
use wire::{Class, Flags, Message, Name, Query, RType, Rcode, Reply, Rr, Section};

const AT: &str = "127.0.0.1:53";

/// Looks up addresses of these names; a failure is appended as a record.
#[derive(Debug, Clone, Default)]
struct Wants {
    names: Vec<&'static str>,
    /// Whether the names are candidates, resolved below this middleware, rather than routed.
    below: bool,
    sees_failures: bool,
}

impl Wants {
    fn of(names: &[&'static str]) -> Arc<dyn MiddlewareSpec> {
        Arc::new(Self { names: names.to_vec(), ..Self::default() })
    }
}

impl MiddlewareSpec for Wants {
    fn build(&self, _: &BuildContext<'_>) -> plugin::args::Result<Arc<dyn Middleware>> {
        Ok(Arc::new(self.clone()))
    }
}

impl Middleware for Wants {
    fn on_query<'s>(&'s self, _: &mut EffectiveQuery<'_>, _: &QueryContext<'_>) -> OnQuery<'s> {
        OnQuery::Hook(Box::new(self))
    }

    fn explain(&self, _: &mut EffectiveQuery<'_>, _: Option<IpAddr>) -> Explanation {
        Explanation::Passes(None)
    }
}

impl ResponseHook for &Wants {
    fn sees_failures(&self) -> bool {
        self.sees_failures
    }

    fn on_response(
        &self,
        effective: &EffectiveQuery<'_>,
        _: &QueryContext<'_>,
        response: &mut Message,
        subqueries: &mut dyn Subqueries,
    ) -> HookResult {
        let mut waits = false;
        for name in &self.names {
            let name = Name::from_text(name).unwrap();
            let result = match self.below {
                true => subqueries.resolve_below(effective, &name),
                false => subqueries.resolve(&name, RType::A, Class::IN),
            };
            match result {
                None => waits = true,
                Some(SubqueryResult::Answer(answer)) => {
                    response.rcode = answer.rcode;
                    response.records.extend(answer.section(Section::Answer).cloned());
                }
                Some(SubqueryResult::Failed(failure)) => {
                    response.rcode = failure.rcode();
                    response.options.push_ede(failure.ede().unwrap());
                    let why = failure.to_string();
                    let data = [&[why.len() as u8], why.as_bytes()].concat();
                    response.records.push(Rr::new(
                        Section::Additional,
                        effective.name(),
                        RType::TXT,
                        0,
                        &data,
                    ));
                }
            }
        }
        if waits { HookResult::Waiting } else { HookResult::Done }
    }
}

fn scene(directives: &str, wants: &[&'static str]) -> Scene {
    let hosts = "hosts /nowhere/h {\n192.0.2.1 a.example.org\n192.0.2.2 b.example.org\nfallthrough org\n}";
    let corefile = format!(". {{\nbind 127.0.0.1\n{directives}\n{hosts}\n}}\n");
    Scene::with_step(&corefile, Wants::of(wants))
}

const CACHE: &str = "cache 30 {\nserve_stale 1h immediate\n}\nforward . 192.0.2.53";

#[test]
fn answer_with_two_subqueries() {
    let scene = scene_of_two("");
    assert_eq!(
        scene.ask(AT, "a.example.org", RType::A),
        "NOERROR aa; a.example.org. 3600 IN A 192.0.2.1; x.other. 3600 IN A 192.0.2.7; y.other. 3600 IN A 192.0.2.8"
    );
}

#[test]
fn subquery_loop_is_detected() {
    const CIRCLE: &str = "0 IN TXT the answer depends on itself";
    // The subquery passes the same middleware, which issues it again.
    let reply = scene("whoami", &["a.example.org"]).ask(AT, "a.example.org", RType::A);
    assert_eq!(
        reply,
        format!("SERVFAIL aa; a.example.org. 3600 IN A 192.0.2.1; additional a.example.org. {CIRCLE}")
    );
    let reply = scene("whoami", &["b.example.org"]).ask(AT, "a.example.org", RType::A);
    assert_eq!(reply, "SERVFAIL aa; a.example.org. 3600 IN A 192.0.2.1; b.example.org. 3600 IN A 192.0.2.2");
}

/// Two blocks; the first looks up names of the second.
fn scene_of_two(second: &str) -> Scene {
    let corefile = format!(
        ". {{\nbind 127.0.0.1\nhosts /nowhere/h {{\n192.0.2.1 a.example.org\n}}\n}}\n\
         other {{\nbind 127.0.0.1\n{second}\nhosts /nowhere/o {{\n192.0.2.7 x.other\n192.0.2.8 y.other\nfallthrough\n}}\n}}\n"
    );
    Scene::with_step(&corefile, Wants::of(&["x.other", "y.other"]))
}

#[test]
fn acl_applies_to_subqueries() {
    let scene = scene_of_two("acl {\nblock\n}");
    assert_eq!(scene.ask(AT, "a.example.org", RType::A), "REFUSED aa; a.example.org. 3600 IN A 192.0.2.1");
    let scene = scene_of_two("acl {\ndrop\n}");
    let why = "; additional a.example.org. 0 IN TXT plugin/acl: a name that the answer depends on is dropped";
    let expected = "SERVFAIL aa; a.example.org. 3600 IN A 192.0.2.1".to_owned() + &why.repeat(2);
    assert_eq!(scene.ask(AT, "a.example.org", RType::A), expected);
}

/// After a failure only middleware that sees failures issues subqueries.
#[test]
fn subqueries_after_a_failure() {
    let corefile = ". {\nbind 127.0.0.1\nhosts /nowhere/h {\n192.0.2.1 a.example.org\n}\n}\n\
                  other {\nbind 127.0.0.1\nhosts /nowhere/o {\n192.0.2.7 x.other\n}\n}\n";
    for (sees_failures, expected) in [(false, "SERVFAIL"), (true, "NOERROR; x.other. 3600 IN A 192.0.2.7")] {
        let wants = Wants { names: vec!["x.other"], sees_failures, ..Wants::default() };
        let scene = Scene::with_step(corefile, Arc::new(wants));
        assert_eq!(scene.ask(AT, "missing.example.org", RType::A), expected, "{sees_failures}");
    }
    // Likewise if failure and subquery are answered by upstreams.
    for (sees_failures, asked, text) in [
        (false, vec![vec!["fails.org."]], "SERVFAIL "),
        (true, vec![vec!["fails.org."], vec!["yy.other."]], "NOERROR 2"),
    ] {
        let scene = scene_that_asks(Wants { names: vec!["yy.other"], sees_failures, ..Wants::default() });
        let expected: Vec<Vec<String>> =
            asked.iter().map(|names| names.iter().map(|&name| name.to_owned()).collect()).collect();
        assert_eq!(rounds(&scene, "fails.org", octet), (expected, text.to_owned()), "{sees_failures}");
    }
}

#[test]
fn failed_subquery_is_servfail() {
    let corefile = ". {\nbind 127.0.0.1\nhosts /nowhere/h {\n192.0.2.1 a.example.org\n}\n}\n";
    let scene = Scene::with_step(corefile, Wants::of(&["missing.example.org"]));
    let reply = scene.ask(AT, "a.example.org", RType::A);
    assert!(reply.starts_with("SERVFAIL"), "{reply}");
}

#[test]
fn answers_are_found_by_key() {
    let corefile = format!(". {{\nbind 127.0.0.1\n{CACHE}\n}}\nother {{\nbind 127.0.0.1\n{CACHE}\n}}\n");
    let scene = Scene::with_step(&corefile, Wants::of(&[]));
    let route = &scene.configuration.endpoints[&AT.parse().unwrap()].served.route;
    let (packet, elsewhere) =
        (scene::packet("far.example.org", RType::A, None), scene::packet("far.other", RType::A, None));
    let wire::Verdict::Pass(query) = wire::accept(&packet) else { panic!("refused") };
    let wire::Verdict::Pass(of_other) = wire::accept(&elsewhere) else { panic!("refused") };
    let (zone, other) = (route.candidates(&query).unwrap()[0], route.candidates(&of_other).unwrap()[0]);
    let answer_to = |zone, query: &Query<'_>| {
        let mut octets = Vec::new();
        let mut reply = Reply::start(&mut octets, query);
        (reply.rcode, reply.flags) = (Rcode::NXDOMAIN, Flags::RA);
        SubqueryAnswer::of_reply(zone, query, &reply, FollowCnames::No)
    };
    let client = scene::client();
    let context = scene.context(AT, &client);
    let option = wire::UpstreamOverrides::encode(0, b"\xfd\xe9\0\x01x");
    let overrides = wire::UpstreamOverrides::new(&option);
    for (what, found, asks) in [
        ("nothing yet", None, true),
        ("the same", Some(answer_to(zone, &query)), false),
        ("another block", Some(answer_to(other, &query)), true),
        ("another name", Some(answer_to(zone, &Query { name: of_other.name, ..query })), true),
        ("another type", Some(answer_to(zone, &Query { rtype: RType::AAAA, ..query })), true),
        ("another class", Some(answer_to(zone, &Query { class: Class::CH, ..query })), true),
        ("without RD", Some(answer_to(zone, &Query { flags: Flags(0), ..query })), true),
        (
            "with CD as well",
            Some(answer_to(zone, &Query { flags: Flags(query.flags.0 | Flags::CD), ..query })),
            false,
        ),
        ("with an option", Some(answer_to(zone, &Query { overrides, ..query })), true),
    ] {
        let (mut tables, found) = (HostsGuard::default(), found.into_iter().collect());
        let mut evaluation = Evaluation::new(route, &context, &mut tables, &query, found, Usage::default());
        let end = evaluation.run(zone);
        assert_eq!(end.is_err(), asks, "{what}");
        if asks {
            let waits = evaluation.wait(zone).unwrap_or_else(|failure| panic!("{failure}"));
            assert_eq!(waits.asked[0].query.question(), query.question, "{what}");
        }
    }
}

#[test]
fn suspended_queries_memory_quota() {
    let scene = scene(CACHE, &[]);
    let plan = &scene.configuration.endpoints[&AT.parse().unwrap()];
    let packet = scene::packet("far.example.org", RType::A, None);
    let wire::Verdict::Pass(query) = wire::accept(&packet) else { panic!("refused") };
    let zone = plan.served.route.candidates(&query).unwrap()[0];
    let mut octets = Vec::new();
    let mut reply = Reply::start(&mut octets, &query);
    reply.push(Section::Answer, wire::Owner::Question, RType::TXT, Class::IN, 1, &[0; 60_000]);
    let found = || SubqueryAnswer::of_reply(zone, &query, &reply, FollowCnames::No);
    let client = scene::client();
    let context = scene.context(AT, &client);
    let other_client = std::net::SocketAddr::from(([192, 0, 2, 201], 40_000)).into();
    let other_context = scene.context(AT, &other_client);
    let wait_as = |context: &QueryContext<'_>, found: Arc<SubqueryAnswer>| {
        let (mut tables, found) = (HostsGuard::default(), vec![found]);
        let evaluation =
            Evaluation::new(&plan.served.route, context, &mut tables, &query, found, Usage::default());
        evaluation.wait(zone)
    };
    let wait_with = |found: Arc<SubqueryAnswer>| wait_as(&context, found);
    let wait = || wait_with(found());
    let (mut waiting, of_one) = (Vec::new(), MAX_SUSPENDED_BYTES / 5 * 4);
    while let Ok(asked) = wait() {
        waiting.push(asked);
        assert!(waiting.len() * 60_000 <= of_one);
    }
    assert!((waiting.len() + 2) * 60_000 > of_one, "{}", waiting.len());
    // There is memory left for other clients, none of which may take all of it either.
    let others = (0..).map_while(|_| wait_as(&other_context, found()).ok());
    let others: Vec<_> = others.collect();
    assert!((20..27).contains(&others.len()), "{}", others.len());
    assert!(waiting[0].suspended.as_ref().unwrap().is_short_of_memory());
    assert!(!others[0].suspended.as_ref().unwrap().is_short_of_memory());
    drop(others);
    assert!(matches!(wait(), Err(Failure::Overload)));
    // An answer to a suspended query counts as well: it is kept as a failure.
    let outer = waiting[0].suspended.as_mut().unwrap();
    outer.add(found());
    assert!(matches!(outer.answers[1].result, Err(Failure::Overload)));
    drop(waiting.pop());
    assert!(wait().is_ok());
    let shared = found();
    waiting[0].suspended.as_mut().unwrap().add(shared.clone());
    assert!(waiting[0].suspended.as_ref().unwrap().answers[2].result.is_ok());
    // Shared answers are counted once.
    assert!(matches!(wait(), Err(Failure::Overload)));
    let others: Vec<_> = (0..10).map(|_| wait_with(shared.clone()).unwrap()).collect();
    drop((waiting, shared));
    assert!((60_000..120_000).contains(&scene.shared.held.in_use()), "ten keep one");
    drop(others);
    assert_eq!(scene.shared.held.in_use(), 0);
}

/// Evaluates a query as a worker does: the queries for upstreams, round by round, and the final
/// answer. A query is its name, with type and class unless A and IN, and `+` for each option.
/// `answer` is an upstream's answer: the last byte of its address, or a failure.
fn rounds(
    scene: &Scene,
    name: &str,
    answer: impl Fn(&str) -> Result<u8, Failure>,
) -> (Vec<Vec<String>>, String) {
    let plan = &scene.configuration.endpoints[&AT.parse().unwrap()];
    let packet = scene::packet(name, RType::A, None);
    let wire::Verdict::Pass(query) = wire::accept(&packet) else { panic!("refused") };
    let zone = plan.served.route.candidates(&query).unwrap()[0];
    let client = scene::client();
    let (mut tables, context) = (HostsGuard::default(), scene.context(AT, &client));
    let (mut found, mut spent, mut rounds) = (Vec::new(), Usage::default(), Vec::new());
    loop {
        let mut evaluation = Evaluation::new(&plan.served.route, &context, &mut tables, &query, found, spent);
        match evaluation.run(zone) {
            Ok(Evaluated::Drop) => return (rounds, "silence".to_owned()),
            Ok(Evaluated::Answer(message, _)) => {
                let last = |rr: &Rr| rr.data.last().map(ToString::to_string);
                let answers: Vec<_> = message.section(Section::Answer).filter_map(last).collect();
                let whys = message.section(Section::Additional).filter_map(|rr| rr.data.get(1..));
                let whys: String = whys.map(|why| format!(", {}", String::from_utf8_lossy(why))).collect();
                return (rounds, format!("{} {}{whys}", message.rcode, answers.join(" ")));
            }
            Err(NeedsUpstream) => {}
        }
        let PendingLookups { asked: now, suspended: outer, .. } =
            *evaluation.wait(zone).unwrap_or_else(|failure| panic!("{failure}"));
        let mut outer = outer.unwrap();
        rounds.push(now.iter().map(|asked| described(&asked.query.query())).collect());
        // Answers arrive in another order.
        for asked in now.iter().rev() {
            let query = asked.query.query();
            let mut octets = Vec::new();
            let mut reply = Reply::start(&mut octets, &query);
            outer.add(match answer(&described(&query)) {
                Ok(last) => {
                    let owner = wire::Owner::Question;
                    reply.push(Section::Answer, owner, RType::A, Class::IN, 60, &[192, 0, 2, last]);
                    SubqueryAnswer::of_reply(asked.zone, &query, &reply, FollowCnames::No)
                }
                Err(failure) => SubqueryAnswer::new(asked.zone, &query, Err(failure), FollowCnames::No),
            });
        }
        (found, spent) = (outer.answers, outer.spent);
    }
}

fn described(query: &Query<'_>) -> String {
    let mut text = query.name.to_string();
    if (query.rtype, query.class) != (RType::A, Class::IN) {
        text += &format!(" {} {}", query.rtype, query.class);
    }
    text + &"+".repeat(query.overrides.options().count())
}

/// A first block that looks up names, and a second one that forwards `other`.
fn scene_that_asks(wants: Wants) -> Scene {
    let corefile = ". {\nbind 127.0.0.1\nhosts /nowhere/h {\n192.0.2.1 a.example.org\n192.0.2.2 b.example.org\nfallthrough\n}\nforward . 192.0.2.53\n}\n\
                    other {\nbind 127.0.0.1\nforward . 192.0.2.54\n}\n";
    Scene::with_step(corefile, Arc::new(wants))
}

fn octet(name: &str) -> Result<u8, Failure> {
    match name.split('.').next() {
        Some("fails") => Err(Failure::Forward(forwarder::ForwardError::NoHealthy)),
        Some(label) => Ok(label.len() as u8),
        None => Ok(0),
    }
}

#[test]
fn subqueries_are_sent_at_once() {
    let names = |names: &[&str]| names.iter().map(|name| format!("{name}.")).collect::<Vec<_>>();
    for (name, wants, asked, expected) in [
        (
            "a.example.org",
            vec!["x.other", "yy.other"],
            vec![names(&["x.other", "yy.other"])],
            "NOERROR 1 1 2",
        ),
        (
            "far.example.org",
            vec!["x.other", "yy.other"],
            vec![names(&["far.example.org"]), names(&["x.other", "yy.other"])],
            "NOERROR 3 1 2",
        ),
        // Each once; names in memory are not forwarded.
        (
            "a.example.org",
            vec!["x.other", "b.example.org", "x.other"],
            vec![names(&["x.other"])],
            "NOERROR 1 1 2 1 1 1",
        ),
        // One failure does not end the others.
        (
            "a.example.org",
            vec!["fails.other", "x.other"],
            vec![names(&["fails.other", "x.other"])],
            "NOERROR 1 1, no healthy proxies",
        ),
        (
            "a.example.org",
            vec!["x.other", "fails.other"],
            vec![names(&["x.other", "fails.other"])],
            "SERVFAIL 1 1, no healthy proxies",
        ),
    ] {
        let scene = scene_that_asks(Wants { names: wants.clone(), ..Wants::default() });
        assert_eq!(rounds(&scene, name, octet), (asked, expected.to_owned()), "{name} {wants:?}");
    }
}

#[test]
fn candidates_start_below_their_middleware() {
    let scene =
        scene_that_asks(Wants { names: vec!["b.example.org", "xyz.other"], below: true, ..Wants::default() });
    let (asked, reply) = rounds(&scene, "a.example.org", octet);
    assert_eq!((asked, reply.as_str()), (vec![vec!["xyz.other.".to_owned()]], "NOERROR 1 2 3"));
    // The first block forwards it, not the one that serves the name.
    let plan = &scene.configuration.endpoints[&AT.parse().unwrap()];
    let packet = scene::packet("a.example.org", RType::A, None);
    let wire::Verdict::Pass(query) = wire::accept(&packet) else { panic!("refused") };
    let (zone, mut tables) = (plan.served.route.candidates(&query).unwrap()[0], HostsGuard::default());
    let client = scene::client();
    let context = scene.context(AT, &client);
    let mut evaluation =
        Evaluation::new(&plan.served.route, &context, &mut tables, &query, Vec::new(), Usage::default());
    assert!(evaluation.run(zone).is_err());
    assert_eq!(
        evaluation.wait(zone).unwrap_or_else(|failure| panic!("{failure}")).asked[0].zone.block.index,
        0
    );
}

#[test]
fn limits_of_8_and_32_subqueries() {
    let leak =
        |names: Vec<String>| names.into_iter().map(|name| &*name.leak()).collect::<Vec<&'static str>>();
    let scene = scene_that_asks(Wants {
        names: leak((0..10).map(|n| format!("n{n}.other")).collect()),
        ..Wants::default()
    });
    let (asked, reply) = rounds(&scene, "a.example.org", octet);
    assert_eq!(asked.iter().map(Vec::len).collect::<Vec<_>>(), [8]);
    assert_eq!(
        reply,
        "SERVFAIL 1 2 2 2 2 2 2 2 2".to_owned()
            + &", the answer depends on more than 8 other names".repeat(2)
    );
    let names: Vec<String> = (0..40).map(|n| format!("n{n}.other")).collect();
    let lines: String = names.iter().map(|name| format!("192.0.2.9 {name}\n")).collect();
    let corefile = format!(
        ". {{\nbind 127.0.0.1\nhosts /nowhere/h {{\n192.0.2.1 a\n}}\n}}\n\
         other {{\nbind 127.0.0.1\nhosts /nowhere/o {{\n{lines}}}\n}}\n"
    );
    let scene = Scene::with_step(&corefile, Wants::of(&leak(names)));
    let (asked, reply) = rounds(&scene, "a", octet);
    assert!(asked.is_empty());
    let why = ", the answer depends on more than 32 other names";
    assert_eq!(reply, "SERVFAIL 1".to_owned() + &" 9".repeat(32) + &why.repeat(8));
}

//! Answers of the largest size that need subqueries.

use allocation_counter::measure;
use plugin::{HostsGuard, QueryContext};
use query::evaluate::{
    Evaluated, Evaluation, FollowCnames, NeedsUpstream, PendingLookups, SubqueryAnswer, Usage,
};
use scene::Scene;
use wire::Proto;
use wire::{Class, Flags, Message, Name, Owner, Query, RType, Rcode, Reply, Section};

use crate::AT;

/// An upstream's answer for `a<n>`: CNAMEs without a target, one to `b<n + 1>` for the first few,
/// and addresses.
#[derive(Clone, Copy)]
struct ReplyShape {
    aliases: u16,
    leads_on: u16,
    addresses: u16,
}

impl ReplyShape {
    fn write(self, query: &Query<'_>, reply: &mut Reply<'_>) {
        let name = query.name.to_string();
        let number: u16 = name.trim_matches(|other: char| !other.is_ascii_digit()).parse().unwrap();
        let mut push = |rtype, data: &[u8]| {
            reply.push(Section::Answer, Owner::Question, rtype, Class::IN, 60, data);
        };
        (0..self.aliases).for_each(|_| push(RType::CNAME, b"\x01c\0"));
        if number < self.leads_on {
            push(RType::CNAME, Name::from_text(&format!("b{}", number + 1)).unwrap().as_wire());
        }
        (0..self.addresses).for_each(|last| push(RType::A, &last.to_be_bytes().repeat(2)));
    }
}

/// Returns the answer over TCP, and the number of names forwarded to upstreams.
fn ask(scene: &Scene, shape: ReplyShape) -> (Box<Message>, usize) {
    ask_upstream(scene, "a0", Proto::Tcp, &|query, reply| shape.write(query, reply))
}

/// Returns the answer for a name with these replies of upstreams.
fn ask_upstream(
    scene: &Scene,
    name: &str,
    proto: Proto,
    write: &dyn Fn(&Query<'_>, &mut Reply<'_>),
) -> (Box<Message>, usize) {
    let plan = &scene.configuration.endpoints[&AT.parse().unwrap()];
    let packet = scene::packet(name, RType::A, None);
    let wire::Verdict::Pass(query) = wire::accept(&packet) else { panic!("refused") };
    let zone = plan.served.route.candidates(&query).unwrap()[0];
    let client = scene::client();
    let context = QueryContext::new(scene.now, &client, AT.parse().unwrap(), proto, 0);
    let (mut tables, mut found, mut spent, mut names) =
        (HostsGuard::default(), Vec::new(), Usage::default(), 0);
    loop {
        let mut evaluation = Evaluation::new(&plan.served.route, &context, &mut tables, &query, found, spent);
        match evaluation.run(zone) {
            Ok(Evaluated::Answer(message, _)) => return (message, names),
            Ok(Evaluated::Drop) => panic!("silence"),
            Err(NeedsUpstream) => {}
        }
        let PendingLookups { asked, suspended: outer, .. } =
            *evaluation.wait(zone).unwrap_or_else(|why| panic!("{why}"));
        let mut outer = outer.unwrap();
        names += asked.len();
        for asked in asked {
            let query = asked.query.query();
            let mut octets = Vec::new();
            let mut reply = Reply::start(&mut octets, &query);
            write(&query, &mut reply);
            outer.add(SubqueryAnswer::of_reply(asked.zone, &query, &reply, FollowCnames::No));
        }
        (found, spent) = (outer.answers, outer.spent);
    }
}

/// Rewrites `b<n>` to `a<n>`, which is forwarded.
fn scene() -> Scene {
    Scene::new(". {\nbind 127.0.0.1\nrewrite cname regex ^b([0-9]+)\\.$ a{1}.\nforward . 192.0.2.53\n}\n")
}

/// Addresses of one name that fit 64 KiB besides a CNAME.
const MOST: u16 = 4_000;

#[test]
fn cname_between_largest_answers() {
    let (message, names) = ask(&scene(), ReplyShape { aliases: 0, leads_on: 1, addresses: MOST });
    assert_eq!((message.rcode, names), (Rcode::NOERROR, 2));
    assert_eq!(message.records.len(), 1 + usize::from(MOST));
    // The longest chain, with as many addresses as a name may have.
    let (message, names) = ask(&scene(), ReplyShape { aliases: 0, leads_on: 8, addresses: 100 });
    assert_eq!((message.rcode, message.records.len(), names), (Rcode::NOERROR, 8 + 100, 9));
}

#[test]
fn chained_large_answers_have_a_limit() {
    let (scene, shape) = (scene(), ReplyShape { aliases: 0, leads_on: u16::MAX, addresses: MOST });
    let mut measured = None;
    let once = measure(|| measured = Some(ask(&scene, ReplyShape { leads_on: 0, ..shape })));
    assert_eq!(measured.take().map(|(message, names)| (message.rcode, names)), Some((Rcode::NOERROR, 1)));
    let counted = measure(|| measured = Some(ask(&scene, shape)));
    let (message, names) = measured.unwrap();
    let records: Vec<_> = message.records.iter().map(|rr| rr.rtype).collect();
    assert_eq!((message.rcode, records, names), (Rcode::SERVFAIL, vec![RType::CNAME; 2], 3));
    let [counted, once] = [counted, once].map(|info| info.count_total);
    assert!(counted < 6 * once, "{counted} allocations, and {once} for one such answer");
}

#[test]
fn first_64_cnames_are_followed() {
    for (aliases, asked) in [(63, 2), (64, 1)] {
        let (message, names) = ask(&scene(), ReplyShape { aliases, leads_on: 1, addresses: 1 });
        assert_eq!((message.rcode, names), (Rcode::NOERROR, asked), "{aliases}");
    }
}

/// As many records as fit 64 KiB, each with names of its own below the queried one.
fn long_names(_: &Query<'_>, reply: &mut Reply<'_>) {
    for n in 0..2_900_u16 {
        let label = format!("{n:04}");
        let name = [&[4], label.as_bytes(), b"\xc0\x0c"].concat();
        reply.push(Section::Answer, Owner::Name(&name), RType::CNAME, Class::IN, 60, &name);
    }
}

#[test]
fn pattern_comparisons_scale_with_the_reply() {
    let long = ["a".repeat(60), "b".repeat(60), "c".repeat(60), "d".repeat(50)].join(".");
    // All patterns match and leave the name unchanged.
    let answers = |count| {
        "answer name ^([^.]+)[.](.*)[.]y[.]$ {1}.{2}.y answer value ^([^.]+)[.](.*)[.]y[.]$ {1}.{2}.y "
            .repeat(count)
    };
    // 8 KiB for a datagram of 512 bytes, 1 MiB for a stream: each name has 240 bytes, and 16 for
    // the comparison.
    for (proto, rules, records) in
        [(Proto::Udp, 1, 15), (Proto::Udp, 6, 2), (Proto::Tcp, 1, 2_039), (Proto::Tcp, 6, 339)]
    {
        let rule = format!("rewrite name suffix .x .y {}", answers(rules));
        let scene = Scene::new(&format!(". {{\nbind 127.0.0.1\n{rule}\nforward . 192.0.2.53\n}}\n"));
        let (message, _) = ask_upstream(&scene, &format!("{long}.x"), proto, &long_names);
        let cut = message.flags & Flags::TC != 0;
        assert_eq!((message.records.len(), cut), (records, true), "{proto:?} {rules}");
    }
}

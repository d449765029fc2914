//! Several subqueries for one name.

use std::net::IpAddr;
use std::sync::Arc;

use plugin::QueryContext;
use plugin::middleware::{EffectiveQuery, Middleware, OnQuery, Subqueries, SubqueryResult};
use plugin::spec::{BuildContext, Explanation, MiddlewareSpec};
use scene::Scene;
use wire::{Class, Message, Name, RType, Rcode, Section};

use crate::rounds;

/// Issues subqueries for one name with several types, classes and options, and answers with their
/// results in order.
#[derive(Debug, Clone)]
struct Varies {
    /// Whether they are candidates, which have the options of the effective query.
    below: bool,
}

impl MiddlewareSpec for Varies {
    fn build(&self, _: &BuildContext<'_>) -> plugin::args::Result<Arc<dyn Middleware>> {
        Ok(Arc::new(self.clone()))
    }
}

impl Middleware for Varies {
    fn on_query<'s>(&'s self, _: &mut EffectiveQuery<'_>, _: &QueryContext<'_>) -> OnQuery<'s> {
        OnQuery::NeedsSubquery(Box::new(self))
    }

    fn explain(&self, _: &mut EffectiveQuery<'_>, _: Option<IpAddr>) -> Explanation {
        Explanation::Passes(None)
    }
}

impl<'s> plugin::middleware::NeedsSubquery<'s> for &'s Varies {
    fn resume(
        &self,
        effective: &mut EffectiveQuery<'_>,
        _: &QueryContext<'_>,
        subqueries: &mut dyn Subqueries,
    ) -> Option<OnQuery<'s>> {
        let name = Name::from_text("x.other").unwrap();
        let results = if self.below {
            let plain = subqueries.resolve_below(effective, &name);
            effective.set_rtype(RType::AAAA);
            let of_type = subqueries.resolve_below(effective, &name);
            effective.set_rtype(RType::A);
            effective.set_class(Class::CH);
            let of_class = subqueries.resolve_below(effective, &name);
            effective.set_class(Class::IN);
            assert!(effective.set_option(0xfde9, b"x"));
            let with_option = subqueries.resolve_below(effective, &name);
            effective.remove_options(0xfde9);
            vec![plain, of_type, of_class, with_option]
        } else {
            [(RType::A, Class::IN), (RType::AAAA, Class::IN), (RType::A, Class::CH)]
                .map(|(rtype, class)| subqueries.resolve(&name, rtype, class))
                .into()
        };
        let mut message = Message::empty(&effective.query(), Rcode::NOERROR);
        for result in results {
            let SubqueryResult::Answer(answer) = result? else { panic!("an upstream answered") };
            message.records.extend(answer.section(Section::Answer).cloned());
        }
        Some(OnQuery::Answer(Box::new(message)))
    }
}

#[test]
fn subqueries_by_type_class_and_option() {
    let corefile = ". {\nbind 127.0.0.1\nforward . 192.0.2.53\n}\n\
                    other {\nbind 127.0.0.1\nforward . 192.0.2.54\n}\n";
    let answer = |asked: &str| match asked {
        "x.other." => Ok(1),
        "x.other. AAAA IN" => Ok(2),
        "x.other. A CH" => Ok(3),
        "x.other.+" => Ok(4),
        _ => panic!("asked for {asked}"),
    };
    for (below, asks, expected) in [
        (false, &["x.other.", "x.other. AAAA IN", "x.other. A CH"][..], "NOERROR 1 2 3"),
        (true, &["x.other.", "x.other. AAAA IN", "x.other. A CH", "x.other.+"][..], "NOERROR 1 2 3 4"),
    ] {
        let scene = Scene::with_step(corefile, Arc::new(Varies { below }));
        let (asked, reply) = rounds(&scene, "short", answer);
        assert_eq!((asked, reply.as_str()), (vec![asks.iter().map(ToString::to_string).collect()], expected));
    }
}

/// Resolves a name as a candidate and routed, in either order, and answers with both results.
#[derive(Debug, Clone)]
struct TwoEntries {
    candidate_first: bool,
}

impl MiddlewareSpec for TwoEntries {
    fn build(&self, _: &BuildContext<'_>) -> plugin::args::Result<Arc<dyn Middleware>> {
        Ok(Arc::new(self.clone()))
    }
}

impl Middleware for TwoEntries {
    fn on_query<'s>(&'s self, effective: &mut EffectiveQuery<'_>, _: &QueryContext<'_>) -> OnQuery<'s> {
        // Routed subqueries pass this middleware too.
        if effective.is_target { OnQuery::Pass } else { OnQuery::NeedsSubquery(Box::new(self)) }
    }

    fn explain(&self, _: &mut EffectiveQuery<'_>, _: Option<IpAddr>) -> Explanation {
        Explanation::Passes(None)
    }
}

impl<'s> plugin::middleware::NeedsSubquery<'s> for &'s TwoEntries {
    fn resume(
        &self,
        effective: &mut EffectiveQuery<'_>,
        _: &QueryContext<'_>,
        subqueries: &mut dyn Subqueries,
    ) -> Option<OnQuery<'s>> {
        let name = Name::from_text("x.other").unwrap();
        let results = [self.candidate_first, !self.candidate_first].map(|below| match below {
            true => subqueries.resolve_below(effective, &name),
            false => subqueries.resolve(&name, RType::A, Class::IN),
        });
        let mut message = Message::empty(&effective.query(), Rcode::NOERROR);
        for result in results {
            let SubqueryResult::Answer(answer) = result? else { panic!("it has an address") };
            message.records.extend(answer.section(Section::Answer).cloned());
        }
        Some(OnQuery::Answer(Box::new(message)))
    }
}

#[test]
fn candidate_and_routed_are_distinct() {
    let block = |zone, address| {
        format!("{zone} {{\nbind 127.0.0.1\nhosts /nowhere/{zone} {{\n{address} x.other\n}}\n}}\n")
    };
    let corefile = block(".", "192.0.2.1") + &block("other", "192.0.2.2");
    for (candidate_first, expected) in [(true, "NOERROR 1 2"), (false, "NOERROR 2 1")] {
        let scene = Scene::with_step(&corefile, Arc::new(TwoEntries { candidate_first }));
        assert_eq!(
            rounds(&scene, "short", |asked| panic!("asked for {asked}")),
            (vec![], expected.to_owned())
        );
    }
}

//! Middleware that issues subqueries on the way in.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use plugin::QueryContext;
use plugin::middleware::{EffectiveQuery, Middleware, OnQuery, Subqueries, SubqueryResult};
use plugin::spec::{BuildContext, Explanation, MiddlewareSpec};
use scene::Scene;
use wire::{Name, Section};

use crate::{octet, rounds};

/// Replaces the name of the query by the first of these names that has an address.
#[derive(Debug, Clone)]
struct Seeks(Vec<&'static str>);

impl MiddlewareSpec for Seeks {
    fn build(&self, _: &BuildContext<'_>) -> plugin::args::Result<Arc<dyn Middleware>> {
        Ok(Arc::new(self.clone()))
    }
}

impl Middleware for Seeks {
    fn on_query<'s>(&'s self, _: &mut EffectiveQuery<'_>, _: &QueryContext<'_>) -> OnQuery<'s> {
        OnQuery::NeedsSubquery(Box::new(self))
    }

    fn explain(&self, _: &mut EffectiveQuery<'_>, _: Option<IpAddr>) -> Explanation {
        Explanation::Passes(None)
    }
}

impl<'s> plugin::middleware::NeedsSubquery<'s> for &'s Seeks {
    fn resume(
        &self,
        effective: &mut EffectiveQuery<'_>,
        _: &QueryContext<'_>,
        subqueries: &mut dyn Subqueries,
    ) -> Option<OnQuery<'s>> {
        let names: Vec<Name> = self.0.iter().map(|name| Name::from_text(name).unwrap()).collect();
        let results: Vec<_> = names.iter().map(|name| subqueries.resolve_below(effective, name)).collect();
        for (name, result) in names.into_iter().zip(results) {
            if let SubqueryResult::Answer(answer) = result?
                && answer.section(Section::Answer).next().is_some()
            {
                effective.set_name(name);
                break;
            }
        }
        Some(OnQuery::Pass)
    }
}

#[test]
fn subqueries_on_the_way_in() {
    let corefile = ". {\nbind 127.0.0.1\nforward . 192.0.2.53\n}\n";
    let scene = Scene::with_step(corefile, Arc::new(Seeks(vec!["fails.a", "here.b", "there.c"])));
    let (asked, reply) = rounds(&scene, "short", octet);
    let expected = [["fails.a.", "here.b.", "there.c."].map(str::to_owned).to_vec()];
    assert_eq!((asked, reply.as_str()), (expected.to_vec(), "NOERROR 4"), "what was found is asked for once");
}

/// Records the names of the queries that it counts.
#[derive(Debug, Clone, Default)]
struct Counts(Arc<Mutex<Vec<String>>>);

impl MiddlewareSpec for Counts {
    fn build(&self, _: &BuildContext<'_>) -> plugin::args::Result<Arc<dyn Middleware>> {
        Ok(Arc::new(self.clone()))
    }
}

impl Middleware for Counts {
    fn on_query<'s>(&'s self, effective: &mut EffectiveQuery<'_>, _: &QueryContext<'_>) -> OnQuery<'s> {
        if effective.counts {
            self.0.lock().unwrap().push(effective.name().to_string());
        }
        OnQuery::Pass
    }

    fn explain(&self, _: &mut EffectiveQuery<'_>, _: Option<IpAddr>) -> Explanation {
        Explanation::Passes(None)
    }
}

/// Middleware above and below a step that waits for upstreams counts once over all evaluations.
#[test]
fn each_middleware_counts_once() {
    let corefile = ". {\nbind 127.0.0.1\nforward . 192.0.2.53\n}\n";
    let (above, below) = (Counts::default(), Counts::default());
    let seeks = Seeks(vec!["fails.a", "here.b"]);
    let steps: Vec<Arc<dyn MiddlewareSpec>> =
        vec![Arc::new(above.clone()), Arc::new(seeks), Arc::new(below.clone())];
    let (asked, _) = rounds(&Scene::with_steps(corefile, steps), "short", octet);
    assert_eq!(asked.len(), 1);
    assert_eq!((*above.0.lock().unwrap()).as_slice(), ["short."]);
    assert_eq!((*below.0.lock().unwrap()).as_slice(), ["here.b."]);
}

//! Joins several subqueries of a client's query, which may be answered on several workers: the last
//! answer resumes the query.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use query::evaluate::{SubqueryAnswer, SuspendedQuery, UpstreamQuery};
use wire::Proto;

/// A client's query that waits for its subqueries.
pub(crate) struct Suspended<C> {
    /// The query, and the answers so far.
    pub outer: Box<SuspendedQuery>,
    /// The client to reply to.
    pub client: C,
}

/// A handle of one subquery.
pub(crate) struct SubqueryHandle<C> {
    of: Arc<Pending<C>>,
    /// Whether the subquery is the client's own query.
    pub own: bool,
    completed: bool,
}

struct Pending<C> {
    /// The client's number.
    number: u128,
    proto: Proto,
    state: Mutex<State<C>>,
}

struct State<C> {
    /// The number of answers that are missing.
    waits: usize,
    inner: Option<Suspended<C>>,
}

impl<C> SubqueryHandle<C> {
    /// Creates one handle for each of `asked`, all of the query `inner`. The client has this number
    /// and transport.
    pub(crate) fn all(
        inner: Suspended<C>,
        number: u128,
        proto: Proto,
        asked: &[UpstreamQuery<'_>],
    ) -> Vec<Self> {
        let state = Mutex::new(State { waits: asked.len(), inner: Some(inner) });
        let of = Arc::new(Pending { number, proto, state });
        let share = |asked: &UpstreamQuery<'_>| Self { of: of.clone(), own: asked.own, completed: false };
        asked.iter().map(share).collect()
    }

    /// Adds an answer, and the upstream that sent it; returns the query if this was the last
    /// answer.
    pub(crate) fn complete(
        mut self,
        found: Arc<SubqueryAnswer>,
        upstream: Option<SocketAddr>,
    ) -> Option<Suspended<C>> {
        self.completed = true;
        let mut state = self.state();
        state.waits -= 1;
        if let Some(inner) = &mut state.inner {
            inner.outer.add(found);
            inner.outer.upstream = upstream.or(inner.outer.upstream);
        }
        if state.waits == 0 { state.inner.take() } else { None }
    }

    /// Ends a wait that adds no answer; returns the query if this was the last one outstanding.
    pub(crate) fn complete_wait(mut self) -> Option<Suspended<C>> {
        self.completed = true;
        let mut state = self.state();
        state.waits -= 1;
        if state.waits == 0 { state.inner.take() } else { None }
    }

    /// Returns the client's address as a number.
    pub(crate) fn number(&self) -> u128 {
        self.of.number
    }

    /// The transport of the client's query.
    pub(crate) fn proto(&self) -> Proto {
        self.of.proto
    }

    fn state(&self) -> MutexGuard<'_, State<C>> {
        self.of.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C> Drop for SubqueryHandle<C> {
    /// A subquery lost in a worker's panic must not keep the query waiting for ever.
    fn drop(&mut self) {
        if !self.completed {
            self.state().waits -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plugin::HostsGuard;
    use plugin::failure::Failure;
    use query::evaluate::{Evaluation, FollowCnames, PendingLookups, Usage};
    use scene::{Scene, packet};
    use wire::RType;

    /// The last answer resumes the query, even if another subquery was lost.
    #[test]
    fn last_answer_resumes_query() {
        const AT: &str = "127.0.0.1:53";
        let scene = Scene::new(
            ". {\nbind 127.0.0.1\ntemplate IN A t {\nanswer \"t 1 IN CNAME x.u\"\nanswer \"t 1 IN CNAME y.u\"\nanswer \"t 1 IN CNAME z.u\"\n}\nforward . 192.0.2.53\n}\n",
        );
        let plan = &scene.configuration.endpoints[&AT.parse().unwrap()];
        let packet = packet("t", RType::A, None);
        let wire::Verdict::Pass(query) = wire::accept(&packet) else { panic!("refused") };
        let (zone, client) = (plan.served.route.candidates(&query).unwrap()[0], scene::client());
        let context = scene.context(AT, &client);
        for lost in [[false, false, false], [true, false, false], [false, true, false], [true, true, false]] {
            let mut tables = HostsGuard::default();
            let mut evaluation = Evaluation::new(
                &plan.served.route,
                &context,
                &mut tables,
                &query,
                Vec::new(),
                Usage::default(),
            );
            assert!(evaluation.run(zone).is_err());
            let lookups = evaluation.wait(zone).unwrap_or_else(|failure| panic!("{failure}"));
            let PendingLookups { asked, suspended: outer, .. } = *lookups;
            let inner = Suspended { outer: outer.unwrap(), client: () };
            let shares = SubqueryHandle::all(inner, 0, Proto::Udp, &asked);
            assert_eq!(shares.len(), 3);
            let mut ends = Vec::new();
            for ((share, asked), lost) in shares.into_iter().zip(&asked).zip(lost) {
                let found = SubqueryAnswer::new(
                    asked.zone,
                    &asked.query.query(),
                    Err(Failure::Panic),
                    FollowCnames::No,
                );
                ends.push(if lost { None } else { share.complete(found, None) });
            }
            let completed = lost.iter().filter(|lost| !**lost).count();
            assert!(ends[..2].iter().all(Option::is_none), "{lost:?}");
            // The template's own answer was found first.
            assert_eq!(
                ends.pop().flatten().map(|inner| inner.outer.answers.len()),
                Some(1 + completed),
                "{lost:?}"
            );
        }
        assert_eq!(scene.shared.held.in_use(), 0);
    }
}

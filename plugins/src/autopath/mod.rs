//! `autopath`: tries the names of a client's search path in the server.
//!
//! ```text
//! web.t1.svc.cluster.local, client with search path t1.svc.cluster.local, svc.cluster.local,
//! cluster.local:
//! web.t1.svc.cluster.local -> web.svc.cluster.local -> web.cluster.local -> web; the first name
//! that exists is the answer
//! ```

mod setup;

use std::net::IpAddr;
use std::sync::Arc;

use corefile::Located;
use wire::{Message, Name, Opcode, RType, Rcode, Rr, Section};

pub use self::setup::AutopathSpec;
pub(crate) use self::setup::read;
use self::setup::{PLUGIN, PathSource};
use crate::server_counters::ServerCounters;
use metrics::counters::PerThread;
use metrics::{Families, Metric};
use plugin::args::Result;
use plugin::failure::Failure;
use plugin::middleware::{
    EffectiveQuery, HookResult, Middleware, NeedsSubquery, OnQuery, ResponseHook, Subqueries, SubqueryResult,
};
use plugin::reload_state::Persistent;
use plugin::search_path::SearchPaths;
use plugin::spec::{BuildContext, Explanation, MiddlewareSpec};
use plugin::{QueryContext, SetupError};

impl MiddlewareSpec for AutopathSpec {
    fn build(&self, context: &BuildContext<'_>) -> Result<Arc<dyn Middleware>> {
        let paths = match &self.source {
            PathSource::File(file) => Paths::OfAll(self.search_list(file)?),
            PathSource::Plugin(name) => {
                let lent = context.extensions.get::<Arc<dyn SearchPaths>>();
                Paths::OfEach(lent.get().cloned().ok_or_else(|| {
                    Located::new(&self.at, SetupError::Own { plugin: PLUGIN, error: Box::new(NotHere(name)) })
                })?)
            }
        };
        let registry: Arc<AutopathCounters> = context.reload_state.get();
        let counter = |server: &String| (server.clone(), registry.0.counter(server, context.threads));
        let answered = context.servers.iter().map(counter).collect();
        Ok(Arc::new(Autopath { spec: self.clone(), paths, answered }))
    }

    fn searches(&self) -> Option<&'static str> {
        match self.source {
            PathSource::File(_) => None,
            PathSource::Plugin(name) => Some(name),
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("`@{0}` needs the directive `{0}` in this server block; add it, or name a file")]
struct NotHere(&'static str);

/// The middleware of one server block.
#[derive(Debug)]
struct Autopath {
    spec: AutopathSpec,
    paths: Paths,
    /// Counters of names found, by server.
    answered: Vec<(String, Arc<PerThread>)>,
}

/// Search paths.
#[derive(Debug)]
enum Paths {
    /// One search path for all clients.
    OfAll(Vec<Name>),
    /// A search path for each client.
    OfEach(Arc<dyn SearchPaths>),
}

/// The role of a query in its client's search path.
#[derive(Debug)]
enum Searched<'s> {
    /// The query is for the first candidate: the client's name with the first domain appended.
    For(Search<'s>),
    /// The query is for the first domain itself.
    Domain,
}

/// The candidates of one query.
#[derive(Debug)]
struct Search<'s> {
    step: &'s Autopath,
    /// The client's name before completion, in its spelling, without the root.
    base: Box<[u8]>,
    /// The search path.
    path: Vec<Name>,
}

impl Autopath {
    /// Returns the names to try, if the client completes names and the query is for its first
    /// candidate.
    fn search(&self, effective: &EffectiveQuery<'_>, client: IpAddr) -> Option<Searched<'_>> {
        let name = effective.name();
        if !self.spec.zones.iter().any(|zone| name.is_within(zone)) {
            return None;
        }
        let path = match &self.paths {
            Paths::OfAll(path) if name.is_within(path.first()?) => path.clone(),
            Paths::OfAll(_) => return None,
            Paths::OfEach(paths) => paths.search_path(name, client)?,
        };
        let first = path.first().filter(|first| name.is_within(first))?;
        let labels = name.label_count() - first.label_count();
        // The name is a search domain itself, not a completed name.
        if labels == 0 {
            return Some(Searched::Domain);
        }
        if labels - 1 < self.spec.ndots {
            return None;
        }
        let query = effective.query();
        let base = query.question.get(..name.as_wire().len() - first.as_wire().len())?;
        Some(Searched::For(Search { step: self, base: base.into(), path }))
    }
}

impl Search<'_> {
    /// Returns the candidates with their spelling: the base in every domain, then the base alone.
    /// Omits candidates that are too long for a name.
    fn candidates(&self) -> impl Iterator<Item = (Name, Vec<u8>)> {
        let domains = self.path.iter().chain([&Name::ROOT]);
        domains.filter_map(|domain| {
            let spelled = [&self.base, domain.as_wire()].concat();
            Name::from_wire(&spelled).ok().map(|name| (name, spelled))
        })
    }

    /// Turns the answer for the candidate `found` into one for the client's question: prepends a
    /// CNAME to `spelled`, which is `found` in the client's spelling, unless the two names are
    /// equal or the answer section is empty.
    fn lead_to(
        &self,
        effective: &EffectiveQuery<'_>,
        found: &Name,
        spelled: Vec<u8>,
        response: &mut Message,
    ) {
        for rr in response.records.iter_mut().filter(|rr| rr.name() == *found) {
            rr.owner = spelled.as_slice().into();
        }
        let first = response.section(Section::Answer).next();
        let Some(ttl) = first.map(|rr| rr.ttl).filter(|_| found != effective.name()) else { return };
        response.records.insert(0, Rr::new(Section::Answer, effective.name(), RType::CNAME, ttl, &spelled));
        response.clear_ad();
    }

    fn count(&self, effective: &EffectiveQuery<'_>, subqueries: &mut dyn Subqueries) {
        let answered = self.step.answered.iter().find(|(server, _)| server == effective.server);
        if let Some((_, counter)) = answered {
            subqueries.count_when_answered(counter);
        }
    }
}

impl Middleware for Autopath {
    fn on_query<'s>(&'s self, effective: &mut EffectiveQuery<'_>, context: &QueryContext<'_>) -> OnQuery<'s> {
        // A transfer, NOTIFY or UPDATE names a zone: search domains do not apply.
        let asks = effective.client_query().flags.opcode() == Opcode::QUERY;
        if !asks || effective.is_target || matches!(effective.rtype(), RType::AXFR | RType::IXFR) {
            return OnQuery::Pass;
        }
        match self.search(effective, context.client().ip().to_canonical()) {
            Some(Searched::For(search)) => OnQuery::NeedsSubquery(Box::new(search)),
            Some(Searched::Domain) => OnQuery::Hook(Box::new(Domain)),
            None => OnQuery::Pass,
        }
    }

    fn explain(&self, effective: &mut EffectiveQuery<'_>, client: Option<IpAddr>) -> Explanation {
        if let (Paths::OfEach(_), None) = (&self.paths, client) {
            let is_ours = self.spec.zones.iter().any(|zone| effective.name().is_within(zone));
            return Explanation::Passes(
                is_ours.then(|| "what `autopath` tries depends on the client".to_owned()),
            );
        }
        let client = client.unwrap_or(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED));
        Explanation::Passes(self.search(effective, client).map(|searched| {
            match searched {
                Searched::For(search) => {
                    let names: Vec<_> = search.candidates().map(|(name, _)| name.to_string()).collect();
                    format!("`autopath` answers with the first of {} that is there", names.join(", "))
                }
                Searched::Domain => {
                    "`autopath` does not answer NXDOMAIN for the first search domain: it has names below it"
                        .to_owned()
                }
            }
        }))
    }
}

impl<'s> NeedsSubquery<'s> for Search<'s> {
    fn resume(
        &self,
        effective: &mut EffectiveQuery<'_>,
        _: &QueryContext<'_>,
        subqueries: &mut dyn Subqueries,
    ) -> Option<OnQuery<'s>> {
        let mut first = None;
        for (name, spelled) in self.candidates() {
            match subqueries.resolve_below(effective, &name)? {
                // NODATA is an answer: a client that queries both families gets addresses of one name.
                SubqueryResult::Answer(response) if response.rcode == Rcode::NXDOMAIN => {
                    _ = first.get_or_insert(response)
                }
                SubqueryResult::Answer(mut response) => {
                    self.lead_to(effective, &name, spelled, &mut response);
                    self.count(effective, subqueries);
                    return Some(OnQuery::Answer(response));
                }
                SubqueryResult::Failed(Failure::Dropped) => return Some(OnQuery::Drop),
                // A failed lookup ends the search: a later name may not be the one that the client
                // means.
                SubqueryResult::Failed(failure) => return Some(OnQuery::Fail(failure)),
            }
        }
        let mut response = first.unwrap_or_default();
        if self.step.spec.noerror {
            response.rcode = Rcode::NOERROR;
            response.clear_ad();
        }
        Some(OnQuery::Answer(response))
    }
}

/// The response hook for a query for the first domain itself.
#[derive(Debug)]
struct Domain;

impl ResponseHook for Domain {
    /// Turns NXDOMAIN into NODATA: NXDOMAIN would also deny the names below the domain (RFC 8020).
    fn on_response(
        &self,
        _: &EffectiveQuery<'_>,
        _: &QueryContext<'_>,
        response: &mut Message,
        _: &mut dyn Subqueries,
    ) -> HookResult {
        // NXDOMAIN after an alias applies to the alias's target, not to the domain.
        if response.rcode == Rcode::NXDOMAIN && response.section(Section::Answer).next().is_none() {
            response.rcode = Rcode::NOERROR;
            response.clear_ad();
        }
        HookResult::Done
    }
}

/// Counters of all `autopath` directives.
#[derive(Debug, Default)]
struct AutopathCounters(ServerCounters);

impl Persistent for AutopathCounters {
    fn collect(&self, into: &mut Families) {
        self.0.collect(SUCCESS, into);
    }
}

const SUCCESS: Metric =
    Metric { name: "coredns_autopath_success_total", help: "Counter of requests that did autopath." };

#[cfg(test)]
mod tests;
